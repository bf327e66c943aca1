"""Every type through the product, read by every reader."""
import itertools
import os
import pathlib
import re
import time

import kinds
import tables
from findings import SAME
from page import family
from site_of_tables import case
from smoke import pypaimon_table, same

FIXED_SEEDS = [1, 2, 3, 4]
ROOT = pathlib.Path(__file__).resolve().parents[3]


def compared(site, made, database):
    """Every value of every table in every reader."""
    for table in made:
        for reader in site.readers:
            differences = site.compare(f"{database}.{table.name}", reader)
            for column, ty in table.columns:
                pairs = differences.get(column)
                text = f"{table.name}.{column}: {pairs[0][1]} instead of {pairs[0][0]}" if pairs else SAME
                site.findings.add("value", family(ty), reader.name, text)
    site.findings.check("value")


@case
def fc_009_the_tables_have_every_type_of_the_mapping(site):
    """A type that is added to Fluss's or the lake's types must be added to the tables."""
    del site
    variants = re.search(r"pub enum TypeKind \{(.*?)\n\}", (ROOT / "server/protocol/src/schema.rs").read_text(), re.DOTALL).group(1)
    names = re.findall(r"^    ([A-Z]\w*)", variants, re.MULTILINE)
    wanted = {"TIMESTAMP_LTZ" if name == "TimestampLtz" else name.upper() for name in names}
    for table in ("every_type", "every_type_required", "only_nulls"):
        made = next(made for made in tables.of_types() if made.name == table)
        same(f"types of {table}", {ty.name for _, ty in made.columns}, wanted)


@case
def fc_009_every_type_reads_alike_in_every_reader(site):
    """One row per type and edge, rows of nulls, every precision, every type in every container: identical in every reader."""
    made = tables.of_types()
    site.make(made, "types")
    compared(site, made, "types")


@case
def tables_by_chance_read_alike_in_every_reader(site):
    """Any columns, any rows, any bucket keys: four tables that are the same in each run, and two new ones."""
    fresh = [int(time.time()) * 2 + i for i in range(2)]
    print(f"        tables by chance: seeds {FIXED_SEEDS} and {fresh} (WEIR_SEEDS=… for others)", flush=True)
    seeds = [int(seed) for seed in os.environ["WEIR_SEEDS"].split(",")] if "WEIR_SEEDS" in os.environ else [*FIXED_SEEDS, *fresh]
    made = [tables.by_chance(seed) for seed in seeds]
    site.make(made, "chance")
    compared(site, made, "chance")


@case
def fc_007_types_stand_in_the_schema_file_as_paimon_spells_them(site):
    """Names, types and field ids of every schema file; pypaimon prints the types back."""
    for name, table in site.tables.items():
        schema = site.lake(name).schema(0)
        ids = itertools.count()
        wanted = [kinds.lake_field(column, ty, ids) for column, ty in table.columns]
        same(f"fields of {name}", schema["fields"], wanted)
        same(f"highest id of {name}", schema["highestFieldId"], next(ids) - 1)
        by_pypaimon = [str(field.type) for field in pypaimon_table(site.weir.lake, name).table_schema.fields]
        printed = [field["type"] for field in wanted if isinstance(field["type"], str)]
        same(f"types of {name} by pypaimon", [text for text in by_pypaimon if "<" not in text], printed)
