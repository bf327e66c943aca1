//! What must hold between the rows that were acknowledged, those in the log and those in the lake.

use std::collections::BTreeMap;

use arrow::array::{Array as _, AsArray as _, RecordBatch};
use arrow::datatypes::Int64Type;
use futures::TryStreamExt as _;
use std::time::Duration;
use weir_lake_format::{Filter, Table, open_warehouse};
use weir_protocol::client::Client;
use weir_protocol::client::offsets::{OffsetSpec, OffsetsRequest};
use weir_protocol::client::scanner::{LogFetcher, LogFetcherConfig, Subscription};
use weir_protocol::ids::{BucketId, LogOffset, TableBucket, TablePath, TotalBuckets};
use weir_protocol::record::arrow::decode;
use weir_tests::{Result, process};

use crate::site::Site;
use crate::workload::{Claims, RowId, part_of, payload_of};

/// How often each row was found.
type Counts = BTreeMap<RowId, u64>;

/// A bucket with its routing count and the end of its log.
type LogEnd = (TableBucket, TotalBuckets, LogOffset);

/// Waits until the lake has caught up with the log, then compares all rows; answers how many there are.
pub(crate) async fn check(
    site: &mut Site,
    client: &Client,
    path: &TablePath,
    claims: &Claims,
) -> Result<u64> {
    let ends = log_ends(client, path).await?;
    let in_log = log_rows(client, path, &ends).await?;
    let rows: u64 = in_log.values().sum();
    compare_log(path, claims, &in_log)?;
    let folder = site
        .warehouse()
        .join(format!("{}.db/{}", path.database, path.table));
    let caught_up = || match process::snapshot_rows(&folder)? {
        found if found > rows => {
            Err(format!("{path}: {found} rows in the lake, {rows} in the log").into())
        }
        found => Ok(found == rows),
    };
    site.until(&format!("{rows} rows of {path} in the lake"), caught_up)
        .await?;
    let warehouse = site.warehouse().to_string_lossy().into_owned();
    let in_lake = lake_rows(&warehouse, path).await?;
    if in_lake != in_log {
        return Err(format!(
            "{path}: lake and log differ: {}",
            first_differences(&in_log, &in_lake)
        )
        .into());
    }
    let table = path.to_string();
    site.run(&[
        "verify",
        &table,
        "--bootstrap",
        site.address(),
        "--warehouse",
        &warehouse,
    ])?;
    site.run(&["lake", "check", &table, "--warehouse", &warehouse])?;
    Ok(rows)
}

/// Each acknowledged row once; each other row of a writer that was given up at most once; nothing else.
fn compare_log(path: &TablePath, claims: &Claims, in_log: &Counts) -> Result<()> {
    let lost: Vec<_> = claims
        .acknowledged
        .iter()
        .filter(|id| !in_log.contains_key(id))
        .collect();
    let twice: Vec<_> = in_log.iter().filter(|(_, count)| **count != 1).collect();
    let known = |id: &RowId| claims.acknowledged.contains(id) || claims.unknown.contains(id);
    let invented: Vec<_> = in_log.keys().filter(|id| !known(id)).collect();
    if lost.is_empty() && twice.is_empty() && invented.is_empty() {
        return Ok(());
    }
    let some = 10;
    Err(format!(
        "{path}: in the log, {} acknowledged rows are missing {:?}, {} are more than once {:?}, {} were never sent {:?}",
        lost.len(),
        lost.iter().take(some).collect::<Vec<_>>(),
        twice.len(),
        twice.iter().take(some).collect::<Vec<_>>(),
        invented.len(),
        invented.iter().take(some).collect::<Vec<_>>(),
    )
    .into())
}

fn first_differences(in_log: &Counts, in_lake: &Counts) -> String {
    let count = |counts: &Counts, id| counts.get(id).copied().unwrap_or(0);
    let ids = in_log.keys().chain(in_lake.keys());
    let different = ids.filter(|id| count(in_log, id) != count(in_lake, id));
    let shown = different.take(10).map(|id| {
        format!(
            "row {id:?} is {} times in the log and {} times in the lake",
            count(in_log, id),
            count(in_lake, id)
        )
    });
    shown.collect::<Vec<_>>().join("; ")
}

async fn log_ends(client: &Client, path: &TablePath) -> Result<Vec<LogEnd>> {
    let table = client.table_info(path).await?;
    let mut places = Vec::new();
    if table.descriptor.is_partitioned() {
        for partition in client.list_partitions(path).await? {
            places.push((Some(partition.id), partition.total_buckets(&table)?));
        }
    } else {
        places.push((None, table.total_buckets()?));
    }
    let mut ends = Vec::new();
    for (partition, total) in places {
        let request = OffsetsRequest {
            path: path.clone(),
            table: table.table_id,
            partition,
            buckets: (0..total.0).map(BucketId).collect(),
            spec: OffsetSpec::Latest,
            routing_count: total,
        };
        for (bucket, end) in client.list_offsets(&request).await? {
            ends.push((
                TableBucket {
                    table: table.table_id,
                    partition,
                    bucket,
                },
                total,
                end?,
            ));
        }
    }
    Ok(ends)
}

async fn log_rows(client: &Client, path: &TablePath, ends: &[LogEnd]) -> Result<Counts> {
    let table = client.table_info(path).await?;
    let schema = table.descriptor.schema.arrow_schema();
    let mut fetcher = LogFetcher::new(
        client.clone(),
        path.clone(),
        table.table_id,
        LogFetcherConfig::default(),
    );
    for &(bucket, routing_count, end) in ends {
        fetcher.subscribe(Subscription {
            bucket,
            start: LogOffset(0),
            stop: Some(end),
            routing_count,
        });
    }
    let mut counts = Counts::new();
    while !fetcher.is_done() {
        for found in fetcher.poll(Duration::from_secs(10)).await {
            if let Some(error) = found.error {
                return Err(error.into());
            }
            for batch in &found.batches {
                count(&mut counts, &decode(batch, &schema)?.batch)?;
            }
        }
    }
    Ok(counts)
}

async fn lake_rows(warehouse: &str, path: &TablePath) -> Result<Counts> {
    let (store, root) = open_warehouse(warehouse, &BTreeMap::new())?;
    let root = root
        .join(format!("{}.db", path.database))
        .join(path.table.as_str());
    let table = Table::open(store, root).await?;
    let snapshot = table
        .latest_snapshot()
        .await?
        .ok_or("the lake table has no snapshot")?;
    let mut counts = Counts::new();
    for split in table.plan(&snapshot, &Filter::default()).await? {
        let mut batches = table.read_split(&split, None).await?;
        while let Some(batch) = batches.try_next().await? {
            count(&mut counts, &batch)?;
        }
    }
    Ok(counts)
}

/// Counts rows by their identity; all else in them must be as it was written.
fn count(counts: &mut Counts, rows: &RecordBatch) -> Result<()> {
    let column = |name: &str| {
        rows.column_by_name(name)
            .ok_or_else(|| format!("no column {name}"))
    };
    let writers = column("writer")?.as_primitive::<Int64Type>();
    let numbers = column("n")?.as_primitive::<Int64Type>();
    let parts = column("part")?.as_string::<i32>();
    let payloads = column("payload")?.as_string::<i32>();
    for row in 0..rows.num_rows() {
        let id = (writers.value(row), numbers.value(row));
        let payload = payloads
            .is_valid(row)
            .then(|| payloads.value(row).to_owned());
        let part = parts.value(row);
        if part != part_of(id) || payload != payload_of(id) {
            return Err(format!(
                "row {id:?} is not as it was written: part {part}, payload {payload:?}"
            )
            .into());
        }
        *counts.entry(id).or_default() += 1;
    }
    Ok(())
}
