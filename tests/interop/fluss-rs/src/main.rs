//! The log-table part of a session with the released Rust client of Fluss:
//! `weir-interop-fluss-rs HOST:PORT DATABASE`. Exit code 1 on the first answer that differs.

use std::collections::HashMap;
use std::time::Duration;

use fluss::client::{EARLIEST_OFFSET, FlussConnection, FlussTable};
use fluss::config::Config;
use fluss::metadata::{
    DataTypes, PartitionSpec, Schema, TableBucket, TableDescriptor, TablePath,
};
use fluss::row::{Date, Decimal, GenericRow, Time, TimestampLtz, TimestampNtz};
use fluss::rpc::message::OffsetSpec;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: &T, expected: &T) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(format!("{what}: found {found:?}, expected {expected:?}").into())
}

/// Reads until `expected` rows came or nothing more comes within 5 s.
async fn scan(table: &FlussTable<'_>, buckets: &[i32], expected: usize) -> Result<usize> {
    let scanner = table.new_scan().create_log_scanner()?;
    let all = buckets.iter().map(|bucket| (*bucket, EARLIEST_OFFSET)).collect::<HashMap<_, _>>();
    scanner.subscribe_buckets(&all).await?;
    let mut rows = 0;
    while rows < expected {
        let read = scanner.poll(Duration::from_secs(5)).await?.count();
        if read == 0 {
            break;
        }
        rows += read;
    }
    Ok(rows)
}

fn row_of_all_types(i: i32) -> Result<GenericRow<'static>> {
    let mut row = GenericRow::new(15);
    row.set_field(0, true);
    row.set_field(1, 1i8);
    row.set_field(2, 2i16);
    row.set_field(3, 3 + i);
    row.set_field(4, 4i64 + i64::from(i));
    row.set_field(5, 0.5f32);
    row.set_field(6, 0.25f64);
    row.set_field(7, Decimal::from_unscaled_long(125, 5, 2)?);
    row.set_field(8, Decimal::from_arrow_decimal128(12_345_678_912_345, 5, 20, 5)?);
    row.set_field(9, "détente 水路");
    row.set_field(10, vec![0u8, 1, 255]);
    row.set_field(11, Date::new(20455));
    row.set_field(12, Time::new(11_045_000));
    row.set_field(13, TimestampNtz::from_millis_nanos(1_767_323_045_678, 901_000)?);
    row.set_field(14, TimestampLtz::new(1_767_323_045_678));
    Ok(row)
}

async fn all_types(connection: &FlussConnection, database: &str) -> Result<()> {
    let admin = connection.get_admin()?;
    let path = TablePath::new(database, "all_types");
    let schema = Schema::builder()
        .column("b", DataTypes::boolean())
        .column("i8", DataTypes::tinyint())
        .column("i16", DataTypes::smallint())
        .column("i32", DataTypes::int())
        .column("i64", DataTypes::bigint())
        .column("f32", DataTypes::float())
        .column("f64", DataTypes::double())
        .column("d5", DataTypes::decimal(5, 2))
        .column("d20", DataTypes::decimal(20, 5))
        .column("s", DataTypes::string())
        .column("by", DataTypes::bytes())
        .column("dt", DataTypes::date())
        .column("tm", DataTypes::time())
        .column("ts", DataTypes::timestamp())
        .column("tz", DataTypes::timestamp_ltz_with_precision(3))
        .build()?;
    let descriptor =
        TableDescriptor::builder().schema(schema).distributed_by(Some(2), vec![]).build()?;
    admin.create_table(&path, &descriptor, false).await?;
    let info = admin.get_table_info(&path).await?;
    let table = connection.get_table(&path).await?;
    let writer = table.new_append()?.create_writer()?;
    for i in 0..6 {
        let row = if i % 2 == 0 { row_of_all_types(i)? } else { GenericRow::new(15) };
        writer.append(&row)?;
    }
    writer.flush().await?;
    let ends = admin.list_offsets(&path, &[0, 1], OffsetSpec::Latest).await?;
    same("rows by latest offsets", &ends.values().sum::<i64>(), &6)?;
    same("scanned rows", &scan(&table, &[0, 1], 6).await?, &6)?;

    let scanner =
        table.new_scan().project_by_name(&["i32", "s"])?.create_record_batch_log_scanner()?;
    scanner
        .subscribe_buckets(&HashMap::from([(0, EARLIEST_OFFSET), (1, EARLIEST_OFFSET)]))
        .await?;
    let batches = scanner.poll(Duration::from_secs(5)).await?;
    same("a projected scan returns batches", &batches.is_empty(), &false)?;
    let mut limited = 0;
    for bucket in 0..2 {
        let target = TableBucket::new(info.table_id, bucket);
        let mut scanner = table.new_scan().limit(2)?.create_bucket_batch_scanner(target)?;
        limited += scanner.collect_all_batches().await?.len();
    }
    same("a limit scan returns batches", &(limited > 0), &true)?;
    admin.drop_table(&path, false).await?;
    Ok(())
}

async fn partitions(connection: &FlussConnection, database: &str) -> Result<()> {
    let admin = connection.get_admin()?;
    let path = TablePath::new(database, "part");
    let schema = Schema::builder()
        .column("p", DataTypes::string())
        .column("v", DataTypes::bigint())
        .build()?;
    let descriptor = TableDescriptor::builder()
        .schema(schema)
        .partitioned_by(vec!["p"])
        .distributed_by(Some(1), vec![])
        .build()?;
    admin.create_table(&path, &descriptor, false).await?;
    for value in ["a", "b"] {
        let spec = PartitionSpec::new(HashMap::from([("p", value)]));
        admin.create_partition(&path, &spec, false).await?;
    }
    let listed = admin.list_partition_infos(&path).await?;
    same("partitions", &listed.len(), &2)?;
    let table = connection.get_table(&path).await?;
    let writer = table.new_append()?.create_writer()?;
    for i in 0..4i64 {
        let mut row = GenericRow::new(2);
        row.set_field(0, if i % 2 == 0 { "a" } else { "b" });
        row.set_field(1, i);
        writer.append(&row)?;
    }
    writer.flush().await?;
    let scanner = table.new_scan().create_log_scanner()?;
    for partition in &listed {
        scanner.subscribe_partition(partition.get_partition_id(), 0, EARLIEST_OFFSET).await?;
    }
    let mut rows = 0;
    while rows < 4 {
        let read = scanner.poll(Duration::from_secs(5)).await?.count();
        if read == 0 {
            break;
        }
        rows += read;
    }
    same("rows of all partitions", &rows, &4)?;
    let dropped = PartitionSpec::new(HashMap::from([("p", "a")]));
    admin.drop_partition(&path, &dropped, false).await?;
    same("partitions after a drop", &admin.list_partition_infos(&path).await?.len(), &1)?;
    let missing = TablePath::new(database, "nope");
    same("a missing table exists", &admin.table_exists(&missing).await?, &false)?;
    same("a missing table has no info", &admin.get_table_info(&missing).await.is_err(), &true)?;
    let again = admin.create_table(&path, &descriptor, false).await;
    same("the same table again is refused", &again.is_err(), &true)?;
    admin.drop_table(&path, false).await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: weir-interop-fluss-rs HOST:PORT DATABASE";
    let mut config = Config::default();
    config.bootstrap_servers = arguments.next().ok_or(usage)?;
    let database = arguments.next().ok_or(usage)?;
    let connection = FlussConnection::new(config).await?;
    let admin = connection.get_admin()?;
    admin.create_database(&database, None, true).await?;
    same("the database exists", &admin.database_exists(&database).await?, &true)?;
    all_types(&connection, &database).await?;
    partitions(&connection, &database).await?;
    admin.drop_database(&database, false, true).await?;
    eprintln!("fluss-rs 1.0.0: session ok");
    Ok(())
}
