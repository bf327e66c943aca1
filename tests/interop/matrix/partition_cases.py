"""Partitions of every type and text: folders, manifests, listings, rows and filters in each reader."""
import collections

import kinds
import tables
from filters import Filter
from findings import answer
from manifests import escaped
from site_of_tables import case
from smoke import same


def differences(site, name, reader, conditions, ty):
    """What a reader answers wrongly of a table: of all rows, or of filters; the empty text if nothing."""
    found = site.compare(name, reader)
    if found:
        return f"other values in {sorted(found)}"
    for condition in conditions:
        ids, expected = reader.filtered(site.weir.lake, name, condition, ty), condition.ids(site.tables[name])
        if ids != expected:
            return f"{condition.operator} {condition.value!r} gives {len(ids)} rows instead of {len(expected)}"
    return ""


def conditions_on(values):
    """Filters on a partition column of these values."""
    known = [value for value in values if value is not None]
    return [
        *(Filter("p", "=", value) for value in known[:4]), *(Filter("p", operator, known[len(known) // 2]) for operator in ("<", ">=", "!=")),
        Filter("p", "IS NULL"), Filter("p", "IS NOT NULL"),
    ]


@case
def fc_024_partitions_of_every_type_are_one_thing_on_both_sides(site):
    """Stream-side names, manifest values and rows of partition columns of every type, alike in every reader; filters too."""
    made = tables.by_partition_type()
    site.make(made, "parts")
    for table in made:
        name, ty = f"parts.{table.name}", table.columns[2][1]
        values = tables.partition_values(ty)
        lake = site.lake(name)
        held = collections.Counter(lake.partition(entry, [ty])[0] for entry in lake.files())
        same(f"partitions in the manifests of {name}", held, collections.Counter(values))
        listed = site.json("lake", "partitions", name, "--warehouse", site.weir.warehouse)
        same(f"rows by partition of {name}", [part["rows"] for part in listed], [2] * len(values))
        for reader in site.readers:
            text = answer(lambda: differences(site, name, reader, conditions_on(values), ty))
            site.findings.add("partition", str(ty), reader.name, text)
    site.findings.check("partition")


@case
def fc_024_a_day_has_its_date_as_name_and_its_number_as_value(site):
    """2024-03-01: `2024-03-01` for the stream, day 19783 in the manifest, `p=2024-03-01` as folder; `d=19783` by Paimon's default names."""
    lake = site.lake("parts.by_date")
    assert 19_783 in [lake.partition(entry, [kinds.parse("DATE")])[0] for entry in lake.files()]
    assert (lake.folder / "p=2024-03-01").is_dir()
    names = [part["partition"] for part in site.json("table", "partitions", "parts.by_date", "--bootstrap", site.weir.fluss)]
    assert "2024-03-01" in names, names
    site.make_alone(tables.by_old_names(), "parts")
    lake = site.lake("parts.by_old_names")
    assert (lake.folder / "d=19783").is_dir() and (lake.folder / "d=-3487").is_dir()
    for reader in site.readers:
        same(f"rows by old names by {reader.name}", dict(site.compare("parts.by_old_names", reader)), {})


@case
def fc_025_times_without_seconds_are_partitions_like_others(site):
    """12:30:00 and 00:00:00 list by their long names, in the stream and in the lake."""
    for precision, wanted, folders in (
        (3, {"2024-01-01-12-30-00_", "2024-01-01-00-00-00_"}, {"p=2024-01-01 12%3A30%3A00.000", "p=2024-01-01 00%3A00%3A00.000"}),
        (6, {"2024-01-01-12-30-00_", "2024-01-01-01-02-03_000456"}, {"p=2024-01-01 12%3A30%3A00.000000", "p=2024-01-01 01%3A02%3A03.000456"}),
    ):
        name = f"parts.by_timestamp_{precision}"
        parts = site.json("table", "partitions", name, "--bootstrap", site.weir.fluss)
        same(f"names of {name}", wanted - {part["partition"] for part in parts}, set())
        same(f"folders of {name}", folders - {path.name for path in site.lake(name).folder.glob("p=*")}, set())


@case
def fc_026_null_blank_and_strange_texts_are_partitions_of_their_own(site):
    """NULL and blank share the default folder and stay apart in manifests; any other text has a folder of its own, and is itself in each reader."""
    table = tables.by_strange_texts()
    name = f"parts.{table.name}"
    site.make_alone(table, "parts", {"partition.legacy-name": "false"})
    lake = site.lake(name)
    held = collections.Counter(lake.partition(entry, [kinds.parse("STRING")])[0] for entry in lake.files())
    same("partitions in the manifests", held, collections.Counter(tables.STRANGE_TEXTS))
    blank = {None, "", " ", "\t", "__DEFAULT_PARTITION__"}
    folders = {"p=" + ("__DEFAULT_PARTITION__" if text in blank else escaped(text)) for text in tables.STRANGE_TEXTS}
    same("folders", {path.name for path in lake.folder.glob("p=*")}, folders)
    for reader in site.readers:
        text = answer(lambda: differences(site, name, reader, conditions_on(tables.STRANGE_TEXTS), kinds.parse("STRING")))
        site.findings.add("partition", "STRING, any text and null", reader.name, text)
    site.findings.check("partition")
