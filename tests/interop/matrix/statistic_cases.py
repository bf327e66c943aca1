"""Statistics in manifests against the generator, read without any Paimon library."""
import math

import pyarrow.parquet as pq
import tables
from kinds import TEXT
from site_of_tables import case
from smoke import same

NESTED = ("ARRAY", "MAP", "ROW")
LAST = "\U0010ffff"


def raised(text, length):
    """The shortest text of at most `length` characters that is not below any text that begins like `text`; None if there is none."""
    if len(text) <= length:
        return text
    kept = text[:length].rstrip(LAST)
    if not kept:
        return None
    following = ord(kept[-1]) + 1
    return kept[:-1] + chr(0xE000 if following == 0xD800 else following)


def bounds(ty, values):
    """Minimum, maximum and null count that a manifest has of these values."""
    known = [value for value in values if value is not None]
    nulls = len(values) - len(known)
    none = [None, None, nulls]
    if not known or ty.name in ("BINARY", "BYTES") or (ty.name.startswith("TIMESTAMP") and ty.precision > 6):
        return none
    if ty.name in ("FLOAT", "DOUBLE"):
        if any(math.isnan(value) for value in known):
            return none
        low, high = min(known), max(known)
        return [-0.0 if low == 0 else low, 0.0 if high == 0 else high, nulls]
    if ty.name in TEXT:
        low, high = min(known, key=str.encode), raised(max(known, key=str.encode), 16)
        return none if high is None else [low[:16], high, nulls]
    return [min(known), max(known), nulls]


def told_apart(stats):
    """So that −0.0 and 0.0 differ."""
    return [repr(value) for value in stats]


@case
def statistics_are_exactly_those_of_the_rows(site):
    """Bounds and null counts of every file, by type: cut texts, NaN, zeros, nulls alone, bytes and nanoseconds without bounds, nested without any."""
    site.make(tables.of_floats(), "stats")
    files = columns_seen = 0
    for name, table in site.tables.items():
        lake = site.lake(name)
        rows = {row[0]: row for row in table.rows}
        for entry in lake.files():
            file = entry["_FILE"]
            (path,) = lake.folder.glob(f"**/{file['_FILE_NAME']}")
            ids = pq.ParquetFile(path).read(columns=["id"])["id"].to_pylist()
            same(f"rows of {path}", (file["_ROW_COUNT"], file["_FILE_SIZE"]), (len(ids), path.stat().st_size))
            flat = [column for column, ty in table.columns if ty.name not in NESTED]
            same(f"columns with statistics of {name}", file["_VALUE_STATS_COLS"], flat if len(flat) < len(table.columns) else None)
            for column, found in lake.stats(entry, table.columns).items():
                at = table.column(column)
                expected = bounds(table.columns[at][1], [rows[key][at] for key in ids])
                same(f"statistics of {name}.{column} {table.columns[at][1]}", told_apart(found), told_apart(expected))
                columns_seen += 1
            files += 1
    assert files > 25 and columns_seen > 500, (files, columns_seen)


@case
def fc_006_manifests_hold_the_values_of_partitions(site):
    """dt=20240301 with 2 rows and dt=20240302 with 1: in manifests, in listings, and a filter on dt reads one file."""
    table = tables.Table(
        "by_day", tables.columns_of("v STRING", "dt STRING"), [(1, "a", "20240301"), (2, "b", "20240301"), (3, "c", "20240302")], partition_by=("dt",)
    )
    site.make([table], "stats")
    lake, ty = site.lake("stats.by_day"), table.columns[2][1]
    held = {lake.partition(entry, [ty])[0]: entry["_FILE"]["_ROW_COUNT"] for entry in lake.files()}
    same("rows by partition in manifests", held, {"20240301": 2, "20240302": 1})
    listed = site.json("lake", "partitions", "stats.by_day", "--warehouse", site.weir.warehouse)
    same("listing", [(part["partition"], part["rows"]) for part in listed], [("dt=20240301", 2), ("dt=20240302", 1)])
    files = site.json("lake", "files", "stats.by_day", "--warehouse", site.weir.warehouse, "--where", "dt = '20240302'")
    same("files of a partition", [file["rows"] for file in files], [1])
    for manifest in lake.manifest_files():
        low, high = (lake.partition({"_PARTITION": manifest["_PARTITION_STATS"][key]}, [ty])[0] for key in ("_MIN_VALUES", "_MAX_VALUES"))
        assert "20240301" <= low <= high <= "20240302", (low, high)


@case
def fc_010_nulls_of_wide_decimals_and_fine_times_are_counted(site):
    """Three rows of nulls and one of values: null counts of 3, and the rows as they are."""
    columns = tables.columns_of("d DECIMAL(38, 18)", "t TIMESTAMP(6)")
    table = tables.Table("wide_nulls", columns, [(1, None, None), (2, None, None), (3, None, None), (4, 1_000_000_000_000_000_001, 1_000)])
    site.make([table], "stats")
    lake = site.lake("stats.wide_nulls")
    (entry,) = lake.files()
    stats = lake.stats(entry, columns)
    same("statistics", (stats["d"], stats["t"]), ([1_000_000_000_000_000_001] * 2 + [3], [1_000, 1_000, 3]))
    for reader in site.readers:
        same(f"rows by {reader.name}", dict(site.compare("stats.wide_nulls", reader)), {})
