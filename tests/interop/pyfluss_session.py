"""Sessions with the released Python client of Fluss (pyfluss 1.0.0) on log tables."""
import datetime as dt
import decimal
import json

import fluss
import pyarrow as pa

ALL_TYPES = pa.schema(
    [
        ("b", pa.bool_()), ("i8", pa.int8()), ("i16", pa.int16()), ("i32", pa.int32()), ("i64", pa.int64()),
        ("f32", pa.float32()), ("f64", pa.float64()), ("d5", pa.decimal128(5, 2)), ("d20", pa.decimal128(20, 5)),
        ("s", pa.string()), ("by", pa.binary()), ("dt", pa.date32()), ("tm", pa.time32("ms")),
        ("ts", pa.timestamp("us")), ("tz", pa.timestamp("ms", "UTC")),
    ]
)
ROW = dict(
    b=True, i8=1, i16=2, i32=3, i64=4, f32=0.5, f64=0.25, d5=decimal.Decimal("1.25"),
    d20=decimal.Decimal("123456789.12345"), s="détente 水路", by=b"\x00\x01\xff", dt=dt.date(2026, 1, 2),
    tm=dt.time(3, 4, 5, 6000), ts=dt.datetime(2026, 1, 2, 3, 4, 5, 678901),
    tz=dt.datetime(2026, 1, 2, 3, 4, 5, 678000, dt.timezone.utc),
)


def same(what, found, expected):
    if found != expected:
        raise AssertionError(f"{what}: found {found!r}, expected {expected!r}")


async def connect(bootstrap):
    connection = await fluss.FlussConnection.create(fluss.Config({"bootstrap.servers": bootstrap}))
    return connection, connection.get_admin()


async def rows_of(scanner, expected, tries=20):
    """Polls until `expected` rows came; returns them."""
    rows = []
    for _ in range(tries):
        if len(rows) >= expected:
            break
        rows += list(await scanner.poll(3000))
    return rows


async def session(bootstrap, database):
    """Creates tables, appends, scans with projection, limit-scans, lists offsets and partitions, drops all."""
    connection, admin = await connect(bootstrap)
    await admin.create_database(database, None, True)
    same("the database exists", await admin.database_exists(database), True)
    path = fluss.TablePath(database, "all_types")
    await admin.create_table(path, fluss.TableDescriptor(fluss.Schema(ALL_TYPES), bucket_count=2), False)
    table = await connection.get_table(path)
    writer = table.new_append().create_writer()
    rows = [ROW, {name: None for name in ALL_TYPES.names}]
    for row in rows * 3:
        writer.append(row)
    await writer.flush()
    writer.write_arrow(pa.Table.from_pylist(rows, schema=ALL_TYPES))
    await writer.flush()
    ends = await admin.list_offsets(path, [0, 1], fluss.OffsetSpec.latest())
    same("latest offsets", sum(ends.values()), 8)
    starts = await admin.list_offsets(path, [0, 1], fluss.OffsetSpec.earliest())
    same("earliest offsets", sum(starts.values()), 0)
    scanner = await table.new_scan().create_record_batch_log_scanner()
    scanner.subscribe_buckets({0: fluss.EARLIEST_OFFSET, 1: fluss.EARLIEST_OFFSET})
    same("rows of an arrow scan", (await scanner.to_arrow()).num_rows, 8)
    scanner = await table.new_scan().project_by_name(["i32", "s"]).create_log_scanner()
    scanner.subscribe_buckets({0: fluss.EARLIEST_OFFSET, 1: fluss.EARLIEST_OFFSET})
    projected = [record.row for record in await rows_of(scanner, 8)]
    same("projected rows", sum(row == {"i32": 3, "s": ROW["s"]} for row in projected), 4)
    same("projected nulls", sum(row == {"i32": None, "s": None} for row in projected), 4)
    table_id = (await admin.get_table_info(path)).table_id
    limited = 0
    for bucket, end in ends.items():
        batch = await table.new_scan().limit(2).create_bucket_batch_scanner(fluss.TableBucket(table_id, bucket)).to_arrow()
        same(f"limit scan of bucket {bucket}", batch.num_rows, min(2, end))
        limited += batch.num_rows
    same("limit scans found rows", limited > 0, True)
    await partitions(connection, admin, database)
    same("a missing table", await admin.table_exists(fluss.TablePath(database, "nope")), False)
    for call in (admin.get_latest_lake_snapshot(path), admin.get_table_info(fluss.TablePath(database, "nope"))):
        try:
            await call
        except Exception:  # noqa: BLE001 - any typed refusal is right
            continue
        raise AssertionError("an error was expected")
    for name in ("all_types", "part"):
        await admin.drop_table(fluss.TablePath(database, name), False)
    await admin.drop_database(database, False, True)
    await connection.close()


async def partitions(connection, admin, database):
    path = fluss.TablePath(database, "part")
    schema = pa.schema([("p", pa.string()), ("v", pa.int64())])
    await admin.create_table(path, fluss.TableDescriptor(fluss.Schema(schema), partition_keys=["p"], bucket_count=1), False)
    for value in ("a", "b"):
        await admin.create_partition(path, {"p": value}, False)
    listed = await admin.list_partition_infos(path)
    same("partitions", len(listed), 2)
    table = await connection.get_table(path)
    writer = table.new_append().create_writer()
    for i in range(4):
        writer.append(dict(p="ab"[i % 2], v=i))
    await writer.flush()
    scanner = await table.new_scan().create_log_scanner()
    for partition in listed:
        scanner.subscribe_partition(partition.partition_id, 0, fluss.EARLIEST_OFFSET)
    found = sorted((record.row["p"], record.row["v"]) for record in await rows_of(scanner, 4))
    same("rows of partitions", found, [("a", 0), ("a", 2), ("b", 1), ("b", 3)])
    await admin.drop_partition(path, {"p": "a"}, False)
    same("partitions after a drop", len(await admin.list_partition_infos(path)), 1)


async def lake_table(bootstrap, database, name):
    """Appends 1,000 rows to a lake table of three buckets; returns them as canonical JSON lines."""
    connection, admin = await connect(bootstrap)
    await admin.create_database(database, None, True)
    path = fluss.TablePath(database, name)
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("amount", pa.decimal128(12, 2)), ("day", pa.date32()), ("at", pa.timestamp("us"))])
    properties = {"table.datalake.enabled": "true", "table.datalake.freshness": "1s"}
    descriptor = fluss.TableDescriptor(fluss.Schema(schema), bucket_count=3, bucket_keys=["id"], properties=properties)
    await admin.create_table(path, descriptor, False)
    table = await connection.get_table(path)
    writer = table.new_append().create_writer()
    lines = []
    for i in range(1000):
        row = dict(
            id=i - 500,
            name=None if i % 7 == 0 else f"name {i} é",
            amount=decimal.Decimal(i * 101 - 3000) / 100,
            day=dt.date(1960, 1, 1) + dt.timedelta(days=i * 40),
            at=dt.datetime(1969, 12, 31, 23, 59, 59) + dt.timedelta(microseconds=i * 1_000_003),
        )
        writer.append(row)
        lines.append(
            json.dumps(
                dict(
                    id=row["id"], name=row["name"], amount=format(row["amount"], ".2f"), day=row["day"].isoformat(),
                    at=row["at"].strftime("%Y-%m-%dT%H:%M:%S.%f") + "000",
                ),
                ensure_ascii=False, separators=(",", ":"),
            )
        )
    await writer.flush()
    await connection.close()
    return lines
