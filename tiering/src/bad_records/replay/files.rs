//! The data files of a replay: records decoded, fitted to the lake's columns and written, each into
//! its own partition and bucket.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::{Array, AsArray, BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{Int32Type, Int64Type};
use arrow::error::ArrowError;
use weir_catalog::clock::Clock;
use weir_lake_format::write::{CommitMessage, DataFileWriter, WriteTarget, WriterOptions};
use weir_protocol::ids::{BucketId, LogOffset, PartitionId, TableBucket, TableId, TotalBuckets};

use super::{BadRecord, Key};
use crate::align::Position;
use crate::cluster::{TableInfo, TieringClient};
use crate::enumerate::{TableView, bucket_groups};
use crate::error::{Error, Result};
use crate::lake_table::LakeTable;
use crate::split::Split;
use crate::wall::{local_ms, unique_name};
use crate::worker::decode::decode;
use crate::worker::schemas::Schemas;

/// The most bytes of rows that one record may decode to.
const MAX_RECORD_BYTES: u64 = 256 << 20;

/// Writers of the partitions and buckets that records fall into.
pub(super) struct Files<'a> {
    info: &'a Arc<TableInfo>,
    lake: &'a Arc<LakeTable>,
    clock: &'a Arc<dyn Clock>,
    schemas: Schemas,
    counts: BTreeMap<Option<PartitionId>, TotalBuckets>,
    writers: BTreeMap<TableBucket, DataFileWriter>,
}

impl<'a> Files<'a> {
    pub(super) async fn new(
        client: &Arc<dyn TieringClient>,
        info: &'a Arc<TableInfo>,
        lake: &'a Arc<LakeTable>,
        clock: &'a Arc<dyn Clock>,
    ) -> Result<Self> {
        let partitions = if info.partition_keys.is_empty() {
            None
        } else {
            Some(client.partitions(lake.path()).await?)
        };
        let view = TableView {
            id: info.id,
            path: lake.path().clone(),
            bucket_count: info.bucket_count,
            bucket_layout_epoch: info.bucket_layout_epoch,
            is_keyed: info.schema.has_primary_key(),
            partitions,
        };
        let groups = bucket_groups(&view)?.into_iter();
        let counts = groups.map(|group| (group.partition, group.total_buckets));
        let schemas = Schemas::new(
            Arc::clone(client),
            MAX_RECORD_BYTES,
            Arc::clone(info),
            Arc::clone(lake),
        );
        Ok(Self {
            info,
            lake,
            clock,
            schemas,
            counts: counts.collect(),
            writers: BTreeMap::new(),
        })
    }

    /// Writes the row of a record; column and reason if it does not fit, or if its own bytes or
    /// partition are what is wrong: others can be put back all the same.
    pub(super) async fn write(&mut self, record: &BadRecord) -> Result<Option<(String, String)>> {
        match self.write_row(record).await {
            Ok(()) => Ok(None),
            Err(Error::Column { column, reason, .. }) => Ok(Some((column, reason))),
            Err(error @ (Error::Log { .. } | Error::MissingBucketCount { .. })) => {
                Ok(Some(("(all)".to_owned(), error.chain())))
            }
            Err(error) => Err(error),
        }
    }

    async fn write_row(&mut self, record: &BadRecord) -> Result<()> {
        let log = |source| Error::Log {
            table: self.lake.path().clone(),
            bucket: record.bucket,
            offset: record.offset,
            source,
        };
        let batch = record.batch().map_err(log)?;
        let form = self.schemas.get(batch.header.schema_id).await?;
        let range = batch.header.base_offset..batch.next_offset();
        let in_arrow = form.log.clone().in_arrow();
        let rows = decode(&in_arrow, &batch, &range).map_err(log)?.rows;
        let position = Position {
            bucket: record.bucket,
            offset: record.offset,
            timestamp_ms: batch.header.commit_timestamp_ms,
        };
        let rows = form.alignment.apply(&rows, position)?;
        if !self.writers.contains_key(&record.bucket) {
            let writer = self.open(record)?;
            self.writers.insert(record.bucket, writer);
        }
        if let Some(writer) = self.writers.get_mut(&record.bucket) {
            writer.write(rows).await.map_err(|e| self.lake.error(e))?;
        }
        Ok(())
    }

    fn open(&self, record: &BadRecord) -> Result<DataFileWriter> {
        let partition = record.bucket.partition;
        let total_buckets = match self.counts.get(&partition) {
            Some(count) => *count,
            // Buckets don't matter to a table without bucket key.
            None if self.lake.is_bucket_unaware() => TotalBuckets(1),
            None => {
                return Err(Error::MissingBucketCount {
                    table: self.lake.path().clone(),
                    partition: record.partition.clone().unwrap_or_default(),
                    epoch: self.info.bucket_layout_epoch,
                });
            }
        };
        let (start, stop) = (record.offset, LogOffset(record.offset.0.saturating_add(1)));
        let split = Split {
            bucket: record.bucket,
            partition: record.partition.clone(),
            total_buckets,
            start,
            stop,
            read_from: start,
        };
        let (bucket, total_buckets) = self.lake.bucket(&split);
        let target = WriteTarget {
            schema: Arc::clone(&self.lake.schema),
            partition: self
                .lake
                .partition(self.info, record.partition.as_deref())?,
            bucket,
            total_buckets,
            first_sequence_number: if total_buckets < 0 { 0 } else { start.0 },
        };
        let lake = |error| self.lake.error(error);
        let now_ms = local_ms(self.clock.now_ms());
        let options = WriterOptions::new(&self.lake.schema, unique_name(), now_ms).map_err(lake)?;
        let (store, root) = (
            Arc::clone(self.lake.table.store()),
            self.lake.table.root().clone(),
        );
        DataFileWriter::new(target, options, store, root).map_err(lake)
    }

    pub(super) async fn finish(mut self) -> Result<Vec<CommitMessage>> {
        let mut messages = Vec::new();
        while let Some((_, writer)) = self.writers.pop_first() {
            match writer.finish().await {
                Ok(message) => messages.push(message),
                Err(error) => {
                    let error = self.lake.error(error);
                    self.lake.discard(messages).await;
                    self.abort().await;
                    return Err(error);
                }
            }
        }
        Ok(messages)
    }

    pub(super) async fn abort(self) {
        for writer in self.writers.into_values() {
            // What can't be deleted now is swept by name later.
            let _ = writer.abort().await;
        }
    }
}

/// The rows of a table of bad records but those of `keys`.
pub(super) fn without(
    batch: &RecordBatch,
    table: TableId,
    keys: &BTreeSet<Key>,
) -> Result<RecordBatch, ArrowError> {
    let missing = |name: &str| ArrowError::SchemaError(format!("there is no column {name}"));
    let column = |name: &str| batch.column_by_name(name).ok_or_else(|| missing(name));
    let ids = column("table_id")?.as_primitive::<Int64Type>();
    let partitions = column("partition_id")?.as_primitive::<Int64Type>();
    let buckets = column("bucket")?.as_primitive::<Int32Type>();
    let offsets = column("log_offset")?.as_primitive::<Int64Type>();
    let is_kept = |row: usize| {
        let is_some = partitions.is_valid(row);
        let bucket = TableBucket {
            table,
            partition: is_some.then(|| PartitionId(partitions.value(row))),
            bucket: BucketId(buckets.value(row)),
        };
        ids.value(row) != table.0 || !keys.contains(&(bucket, LogOffset(offsets.value(row))))
    };
    let kept: BooleanArray = (0..batch.num_rows())
        .map(|row| Some(is_kept(row)))
        .collect();
    filter_record_batch(batch, &kept)
}
