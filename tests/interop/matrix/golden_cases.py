"""Append tables of other writers: read as they are, and after Weir appended to them."""
import collections
import pathlib
import re
import shutil

import pyarrow.parquet as pq
import readers
from findings import answer
from site_of_tables import case
from smoke import same

GOLDEN = pathlib.Path(__file__).resolve().parents[3] / "lake-format/tests/golden"
TABLES = [
    "golden.append_alltypes", "golden.append_fixed_parts", "golden.append_special_partitions", "golden.evolved_append", "golden_py.append_types",
    "golden_py.append_fixed", "g.log", "g.part",
]
# A JDK before 19 looks for another folder (see the page, partition columns of FLOAT).
KNOWN_PROBLEMS = {"parts.by_float": ["file p=1.17549435E-38/bucket-0/data-….parquet is missing"]}


def missing(found, expected):
    """What of the lines is missing or too many; the empty text if nothing."""
    found, expected = collections.Counter(found), collections.Counter(expected)
    lost, more = sum((expected - found).values()), sum((found - expected).values())
    return f"{lost} rows missing, {more} too many" if lost or more else ""


@case
def golden_append_tables_are_read_and_appended_to(site):
    """Every reader gives the generator's rows; then Weir appends the same rows, and every reader gives each of them twice."""
    for name in TABLES:
        database, short = name.split(".")
        folder = pathlib.Path(site.weir.lake) / f"{database}.db" / short
        shutil.copytree(GOLDEN / f"warehouse/{database}.db" / short, folder)
        expected = (GOLDEN / f"expected/{database}/{short}.jsonl").read_text().splitlines()
        source = site.sources / f"{name}.parquet"
        rows = readers.LAKECHECK.read_pypaimon({"warehouse": site.weir.lake}, name, None)
        if answer(lambda: missing(readers.LAKECHECK.lines(rows), expected)) == "same":
            pq.write_table(rows, source)
        for times in (1, 2):
            for reader in site.readers:
                if hasattr(reader, "lines"):
                    site.findings.add("table", f"`{name}`", reader.name, answer(lambda: missing(reader.lines(site.weir.lake, name), expected * times)))
            site.weir.run("lake", "check", name, "--warehouse", site.weir.warehouse)
            if times == 1:
                site.append_file(name, source)
    site.findings.check("table")


@case
def every_table_passes_the_check_and_the_audit(site):
    """`weir lake check` of every table, `weir verify` of those that came from a stream, and lakecheck where Java is."""
    for name in [*site.tables, *TABLES]:
        site.weir.run("lake", "check", name, "--warehouse", site.weir.warehouse)
        if name in site.streamed:
            site.weir.run("verify", name, "--complete", "--bootstrap", site.weir.fluss, "--warehouse", site.weir.warehouse)
        if site.java:
            found = [re.sub(r"data-[-0-9a-f]+", "data-…", problem) for problem in site.java.problems(site.weir.lake, name)]
            same(f"problems of {name} by lakecheck", found, KNOWN_PROBLEMS.get(name, []))
