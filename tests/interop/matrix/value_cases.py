"""Single values that others got wrong: bytes, annotations of files, nested nulls, times before 1970, zones."""
import asyncio
import datetime
import zoneinfo

import kinds
import pyarrow as pa
import pyarrow.parquet as pq
import readers
import tables
from kinds import NANOS
from pypaimon import CatalogFactory
from pypaimon.schema.data_types import AtomicType
from pypaimon.schema.schema_change import SchemaChange
from site_of_tables import case, wait_until
from smoke import pypaimon_table, same

NOON = 1_709_294_400 * NANOS  # 2024-03-01T12:00:00


def made(site, name, columns, rows, **more):
    """A table by way of the product, and that every reader gives its rows back."""
    table = tables.Table(name, tables.columns_of(*columns), rows, **more)
    site.make([table], "cases")
    for reader in site.readers:
        same(f"rows of {name} by {reader.name}", dict(site.compare(f"cases.{name}", reader)), {})
    return site.lake(f"cases.{name}")


def footer(lake):
    """The Parquet columns of the table's only file, by name."""
    (entry,) = lake.files()
    (path,) = lake.folder.glob(f"**/{entry['_FILE']['_FILE_NAME']}")
    file = pq.ParquetFile(path)
    return file, {file.schema.column(i).path: file.schema.column(i) for i in range(len(file.schema))}


@case
def fc_001_bytes_stay_bytes_and_empty_is_not_null(site):
    rows = [(1, b"\x00\xff\x10\xab", b""), (2, b"\x7f\x80\x81\x82", None), (3, None, b"\x00")]
    _, columns = footer(made(site, "binaries", ["b4 BINARY(4)", "b BYTES"], rows))
    for name in ("b4", "b"):
        same(f"annotation of {name}", (columns[name].physical_type, columns[name].logical_type.type), ("BYTE_ARRAY", "NONE"))


@case
def fc_002_times_are_annotated_in_the_footer(site):
    """Milliseconds to precision 3, microseconds to 6, INT96 beyond; instants are adjusted to UTC, the others not."""
    names = ["t3 TIMESTAMP(3)", "t6 TIMESTAMP(6)", "t9 TIMESTAMP(9)", "l3 TIMESTAMP_LTZ(3)", "l6 TIMESTAMP_LTZ(6)", "l9 TIMESTAMP_LTZ(9)"]
    file, columns = footer(made(site, "annotations", names, [(1, *[NOON] * 6)]))
    for name, unit, adjusted in (("t3", "milliseconds", "false"), ("t6", "microseconds", "false"), ("l3", "milliseconds", "true"), ("l6", "microseconds", "true")):
        same(f"type of {name}", columns[name].physical_type, "INT64")
        logical = str(columns[name].logical_type)
        assert f"isAdjustedToUTC={adjusted}" in logical and f"timeUnit={unit}" in logical, (name, logical)
    same("types beyond microseconds", [columns[name].physical_type for name in ("t9", "l9")], ["INT96"] * 2)
    numbers = file.read(columns=["t3", "t6", "l3"])
    same("stored numbers", [numbers[name].cast(pa.int64())[0].as_py() for name in ("t3", "t6", "l3")], [1709294400000, 1709294400000000, 1709294400000])


@case
def fc_003_empty_and_null_members_of_rows_are_two_things(site):
    made(site, "members", ["r ROW<a INT, b ARRAY<INT>>"], [(1, (1, [])), (2, (2, None)), (3, None), (4, (3, [None, 4])), (5, (None, [7])), (6, (None, None))])


@case
def fc_007_every_type_text_reads_back_in_every_library(site):
    """Odd parameters, VARCHAR among them, which only the lake has: the schema file parses in each library, and prints the same types."""
    texts = [
        "DECIMAL(1, 0)", "DECIMAL(10, 2)", "DECIMAL(38, 38)", "CHAR(3)", "VARCHAR(10)", "BINARY(4)", "TIME(3)", "TIMESTAMP(9)", "TIMESTAMP_LTZ(0)", "BOOLEAN", "TINYINT",
        "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "STRING", "BYTES", "DATE",
    ]
    columns = tables.columns_of(*(f"c{i} {text}" for i, text in enumerate(texts)))
    site.make_alone(tables.all_values("odd_types", columns), "cases")
    for reader in site.readers:
        same(f"rows by {reader.name}", dict(site.compare("cases.odd_types", reader)), {})
    wanted = [kinds.lake_json(ty, None) for _, ty in columns]
    schema = site.lake("cases.odd_types").schema(0)
    same("types in the schema file", [field["type"] for field in schema["fields"]], wanted)
    same("types by pypaimon", [str(field.type) for field in pypaimon_table(site.weir.lake, "cases.odd_types").table_schema.fields], wanted)
    by_rust = readers.Rust().types(site.weir.lake, "cases.odd_types")
    same("types by the paimon crate", [text.replace("VARCHAR(2147483647)", "STRING").replace("VARBINARY(2147483647)", "BYTES") for text in by_rust], wanted)


@case
def fc_012_nanoseconds_before_1970_are_split_downwards(site):
    """The last nanosecond of 1969 is millisecond -1 and 999999 nanoseconds."""
    values = [-1, -NANOS + 1, 0]
    lake = made(site, "before_1970", ["t TIMESTAMP(9)", "l TIMESTAMP_LTZ(9)"], [(i, v, v) for i, v in enumerate(values)])
    assert lake.files()
    by_nanos = "parts.by_timestamp_9"
    ty = kinds.parse("TIMESTAMP(9)")
    held = [site.lake(by_nanos).partition(entry, [ty])[0] for entry in site.lake(by_nanos).files()]
    assert -1 in held, "millisecond -1 and 999999 nanoseconds in a manifest"


@case
def fc_013_a_time_before_1970_has_the_day_it_is_on(site):
    """Days of partitions and of statistics: 1969-12-31 is day -1, 1960-06-15 day -3487."""
    last, summer = -NANOS, -301_239_000 * NANOS  # 1969-12-31T23:59:59, 1960-06-15T10:30:00
    same("texts of the generator", [kinds.instant_text(t)[:19] for t in (last, summer)], ["1969-12-31T23:59:59", "1960-06-15T10:30:00"])
    columns = ["t TIMESTAMP(3)", "d DATE"]
    lake = made(site, "old_days", columns, [(1, last, -1), (2, summer, -3487)], partition_by=("t",))
    same("folders", {path.name for path in lake.folder.glob("t=*")}, {"t=1969-12-31 23%3A59%3A59.000", "t=1960-06-15 10%3A30%3A00.000"})
    names = {part["partition"] for part in site.json("table", "partitions", "cases.old_days", "--bootstrap", site.weir.fluss)}
    same("names in the stream", names, {"1969-12-31-23-59-59_", "1960-06-15-10-30-00_"})
    days = sorted(lake.stats(entry, tables.columns_of(*columns))["d"][:2] for entry in lake.files())
    same("statistics of days", days, [[-3487, -3487], [-1, -1]])


@case
def fc_014_times_of_day_are_milliseconds(site):
    """TIME(0) keeps whole seconds, the others milliseconds up to 86399999."""
    rows = [(1, 0, 0, 0), (2, 43_200_000, 43_200_001, 43_200_001), (3, 86_399_000, 86_399_999, 86_399_999)]
    file, columns = footer(made(site, "times_of_day", ["t0 TIME(0)", "t3 TIME(3)", "t9 TIME(9)"], rows))
    numbers = file.read(columns=["t0", "t3", "t9"])
    found = [tuple(value.value for value in numbers[name]) for name in ("t0", "t3", "t9")]
    same("stored numbers", found, [(0, 43_200_000, 86_399_000), (0, 43_200_001, 86_399_999), (0, 43_200_001, 86_399_999)])
    same("types", {columns[name].physical_type for name in ("t0", "t3", "t9")}, {"INT32"})


@case
def fc_016_maps_with_nulls_and_empty_maps(site):
    maps = [[], [("a", 1)], [("a", None), ("b", 2)], None]
    lists = [[], [[("k", (1,))], []], [[("k", None), ("l", (None,))], None], None]
    made(site, "maps", ["m MAP<STRING, INT>", "a ARRAY<MAP<STRING, ROW<x INT>>>"], [(i, m, a) for i, (m, a) in enumerate(zip(maps, lists))])


@case
def fc_030_an_instant_is_the_same_whatever_the_host_zone(site):
    """The server and the daemon of this run are at home in Asia/Shanghai; the file holds 1746529200000, shown at 11:00 in UTC and 19:00 there."""
    instant = 1_746_529_200_000
    file, _ = footer(made(site, "instants", ["l TIMESTAMP_LTZ(3)"], [(1, instant * 1_000_000)]))
    same("stored number", file.read(columns=["l"])["l"].cast(pa.int64())[0].as_py(), instant)
    for read in (readers.LAKECHECK.read_pypaimon, readers.LAKECHECK.read_rust):
        value = read({"warehouse": site.weir.lake}, "cases.instants", None)["l"][0].as_py()
        shown = [value.astimezone(zoneinfo.ZoneInfo(zone)).strftime("%H:%M:%S") for zone in ("UTC", "Asia/Shanghai")]
        same("time by zone", shown, ["11:00:00", "19:00:00"])


@case
def fc_031_old_dates_do_not_move_by_the_host_zone(site):
    """1900-01-01 00:00:00, when Shanghai was 8:05:43 ahead."""
    file, _ = footer(made(site, "old_dates", ["t TIMESTAMP(3)"], [(1, -2_208_988_800 * NANOS)]))
    same("stored number", file.read(columns=["t"])["t"].cast(pa.int64())[0].as_py(), -2_208_988_800_000)
    same("as a date", file.read(columns=["t"])["t"][0].as_py(), datetime.datetime(1900, 1, 1))


@case
def fc_026_a_stream_has_no_null_and_no_blank_partition(site):
    """What has no name is refused, with the rows before it kept; `None` and `null` are texts like others."""
    columns = tables.columns_of("p STRING")
    table = tables.Table("named", columns, [(1, "None"), (2, "null"), (3, "none")], partition_by=("p",), source="parquet")
    site.make([table], "cases")
    for value in (None, "", " ", "a/b", "__x"):
        path = site.sources / "refused.parquet"
        pq.write_table(kinds.arrow_table(columns, [(9, value)]), path)
        site.weir.run("load", "--bootstrap", site.weir.fluss, "--table", "cases.named", path, code=1)
    same("folders", {path.name for path in site.lake("cases.named").folder.glob("p=*")}, {"p=None", "p=null", "p=none"})
    for reader in site.readers:
        same(f"rows by {reader.name}", dict(site.compare("cases.named", reader)), {})


async def _drops(site, names):
    import fluss
    import pyfluss_session

    connection, admin = await pyfluss_session.connect(site.weir.fluss)
    refused = []
    for name in names:
        try:
            await admin.drop_partition(fluss.TablePath("cases", "named"), {"p": name}, False)
        except Exception as error:  # noqa: BLE001 - any typed refusal is right
            refused.append(str(error))
    await connection.close()
    return refused


@case
def fc_027_a_partition_without_name_is_not_dropped(site):
    """Dropping `` and ` ` is refused, and nothing is gone."""
    same("refusals", len(asyncio.run(_drops(site, ["", " "]))), 2)
    parts = site.json("table", "partitions", "cases.named", "--bootstrap", site.weir.fluss)
    same("partitions", sorted(part["partition"] for part in parts), ["None", "none", "null"])
    for reader in site.readers:
        same(f"rows by {reader.name}", dict(site.compare("cases.named", reader)), {})


@case
def fc_038_a_table_without_bucket_key_has_no_buckets_in_the_lake(site):
    """Three buckets in the stream, `bucket = -1` and one folder in the lake; nine rows."""
    table = tables.Table("keyless", tables.columns_of("v STRING"), [(i, f"v{i}") for i in range(9)], buckets=3, source="pyfluss")
    site.make([table], "cases")
    lake = site.lake("cases.keyless")
    same("option", lake.schema(0)["options"]["bucket"], "-1")
    same("places", {(entry["_BUCKET"], entry["_TOTAL_BUCKETS"]) for entry in lake.files()}, {(0, -1)})
    same("folders", {path.name for path in lake.folder.glob("bucket-*")}, {"bucket-0"})
    for reader in site.readers:
        same(f"rows by {reader.name}", dict(site.compare("cases.keyless", reader)), {})


@case
def fc_020_a_decimal_widened_in_the_lake_reads_in_old_and_new_files(site):
    """A file of DECIMAL(10, 2) and one of DECIMAL(20, 2): both as the wider in each reader; tiering stands with a reason, or goes on."""
    name = "cases.widened"
    made(site, "widened", ["d DECIMAL(10, 2)"], [(1, 125)])
    catalog = CatalogFactory.create({"warehouse": site.weir.lake})
    catalog.alter_table(name, [SchemaChange.update_column_type("d", AtomicType("DECIMAL(20, 2)"))], False)
    rows = [(1, 125), (2, 12_345_678_901_250)]
    site.tables[name] = tables.Table("widened", tables.columns_of("d DECIMAL(20, 2)"), rows)
    site.append_alone(name, rows[1:])
    for reader in site.readers:
        same(f"rows by {reader.name}", dict(site.compare(name, reader)), {})
    path = site.sources / "narrow.parquet"
    pq.write_table(kinds.arrow_table(tables.columns_of("d DECIMAL(10, 2)"), [(3, 100)]), path)
    site.weir.run("load", "--bootstrap", site.weir.fluss, "--table", name, path)

    def settled():
        (status,) = [table for table in site.json("status", "--grpc", site.weir.grpc) if table["table"] == name]
        reason = status["reason"] or ""
        named = "column d" in reason and "Decimal128(20, 2)" in reason
        return site.lake(name).snapshot["totalRecordCount"] == 3 or (status["state"] == "paused" and named)

    wait_until("the row is tiered, or the table is paused with column and types as reason", settled)
    site.streamed.discard(name)  # what is not tiered is no fault
