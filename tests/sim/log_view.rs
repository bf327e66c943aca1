//! What the server says of a table's logs, and what is in them.

use std::collections::BTreeMap;
use std::time::Duration;

use weir_protocol::client::Client;
use weir_protocol::client::offsets::{OffsetSpec, OffsetsRequest};
use weir_protocol::client::scanner::{LogFetcher, LogFetcherConfig, Subscription};
use weir_protocol::ids::{BucketId, LogOffset, PartitionId, TableBucket, TotalBuckets};
use weir_protocol::record::arrow::decode;

use crate::model::{RowId, Table};
use crate::oracle::{Depth, Place, Violation, ids};
use crate::producer::schema;
use crate::world::World;

/// One bucket's log.
#[derive(Debug, Default)]
pub(crate) struct BucketView {
    /// `None` while it is not served.
    pub(crate) high_watermark: Option<i64>,
    /// Rows below the high watermark with their offsets, if they were read.
    pub(crate) rows: Option<Vec<(i64, RowId)>>,
}

/// A table as the server shows it.
#[derive(Debug, Default)]
pub(crate) struct LogView {
    pub(crate) buckets: BTreeMap<Place, BucketView>,
    /// The newest lake snapshot that the server knows; 0 if none.
    pub(crate) registered: i64,
    pub(crate) registered_ends: BTreeMap<Place, i64>,
    /// Bucket counts by partition name; of a table without partitions under the empty name.
    pub(crate) counts: BTreeMap<String, i32>,
    /// Ids of partitions by name.
    pub(crate) partitions: BTreeMap<String, PartitionId>,
}

type Error = weir_protocol::client::Error;

/// Looks at a table; `None` if no server runs, or if it died meanwhile, or if the table is gone.
pub(crate) async fn log_view(
    world: &World,
    table: &Table,
    depth: Depth,
) -> Result<Option<LogView>, Violation> {
    let Some(server) = &world.server else {
        return Ok(None);
    };
    let looked = tokio::select! {
        looked = look(&server.observer, table, depth) => looked,
        () = server.process.dead() => return Ok(None),
    };
    match looked {
        Ok(view) => Ok(view),
        // The server's own store may refuse to be read: it is looked at again after the next step.
        Err(_) if world.server.is_some() => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

async fn look(client: &Client, table: &Table, depth: Depth) -> Result<Option<LogView>, Error> {
    let info = match client.table_info(&table.path).await {
        Ok(info) if info.table_id == table.id => info,
        Ok(_) => return Ok(None),
        Err(_) if table.is_dropped => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut groups: Vec<(Option<PartitionId>, String, TotalBuckets)> = Vec::new();
    if table.is_partitioned {
        for one in client.list_partitions(&table.path).await? {
            groups.push((Some(one.id), one.name.clone(), one.total_buckets(&info)?));
        }
    } else {
        groups.push((None, String::new(), info.total_buckets()?));
    }
    let mut view = LogView::default();
    // The lake first: it is never ahead of the log.
    if let Some(lake) = client.lake_snapshot(&table.path).await? {
        view.registered = lake.snapshot_id;
        let ends = lake.buckets.into_iter();
        view.registered_ends = ends
            .map(|(bucket, end, _)| ((bucket.partition, bucket.bucket.0), end.0))
            .collect();
    }
    for (partition, name, routing_count) in groups {
        if let Some(id) = partition {
            view.partitions.insert(name.clone(), id);
        }
        view.counts.insert(name, routing_count.0);
        let request = OffsetsRequest {
            path: table.path.clone(),
            table: table.id,
            partition,
            buckets: (0..routing_count.0).map(BucketId).collect(),
            spec: OffsetSpec::Latest,
            routing_count,
        };
        for (bucket, end) in client.list_offsets(&request).await? {
            let mut found = BucketView {
                high_watermark: end.ok().map(|end| end.0),
                rows: None,
            };
            if depth == Depth::All
                && let Some(end) = found.high_watermark
            {
                let bucket = TableBucket {
                    table: table.id,
                    partition,
                    bucket,
                };
                found.rows = read(client, table, (bucket, routing_count, end)).await?;
            }
            view.buckets.insert((partition, bucket.0), found);
        }
    }
    Ok(Some(view))
}

/// The rows of a log up to `end`; `None` if its leader goes meanwhile.
async fn read(
    client: &Client,
    table: &Table,
    (bucket, routing_count, end): (TableBucket, TotalBuckets, i64),
) -> Result<Option<Vec<(i64, RowId)>>, Error> {
    let mut rows = Vec::new();
    if end == 0 {
        return Ok(Some(rows));
    }
    let config = LogFetcherConfig::default();
    let mut fetcher = LogFetcher::new(client.clone(), table.path.clone(), table.id, config);
    fetcher.subscribe(Subscription {
        bucket,
        start: LogOffset(0),
        stop: Some(LogOffset(end)),
        routing_count,
    });
    let schema = schema().arrow_schema();
    while !fetcher.is_done() {
        for found in fetcher.poll(Duration::from_secs(5)).await {
            if found.error.is_some() {
                return Ok(None);
            }
            for batch in &found.batches {
                let first = batch.header.base_offset.0;
                let decoded = decode(batch, &schema).expect("a batch of the log is whole");
                let numbered = (first..).zip(ids(&decoded.batch));
                rows.extend(numbered.map(|(offset, (id, _))| (offset, id)));
            }
        }
    }
    Ok(Some(rows))
}
