//! Rows of the lake and rows of the log as multisets: equal sums of the hashes of their canonical texts.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use arrow::array::RecordBatch;
use futures::TryStreamExt as _;
use weir_lake_format::{Partition, Split as LakeSplit, canonical_json};
use weir_protocol::ids::{LogOffset, TableBucket, TotalBuckets};
use weir_protocol::record::LogBatch;

use super::{Finding, LakeBucket, Step, lake_bucket};
use crate::align::Position;
use crate::cluster::{BucketFault, OffsetKind, TableInfo, TieringClient};
use crate::enumerate::{TableView, bucket_groups};
use crate::error::{Error, Result};
use crate::lake_table::LakeTable;
use crate::ranges::BucketRange;
use crate::split::Split;
use crate::worker::decode::decode;
use crate::worker::schemas::Schemas;

/// About what one read of the log brings.
const FETCH_BYTES: u64 = 8 << 20;
/// The most bytes of rows that one batch may decode to.
const MAX_BATCH_BYTES: u64 = 256 << 20;
/// The longest wait of one read.
const MAX_WAIT: Duration = Duration::from_millis(500);
/// Reads in a row that may bring nothing before the log counts as stuck.
const EMPTY_READS: u32 = 120;

/// A multiset of rows: their number, and the sum of their 128-bit hashes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Multiset {
    rows: i64,
    sum: u128,
}

impl Multiset {
    fn add(&mut self, text: &str) {
        let half = |salt: u8| {
            let mut hasher = DefaultHasher::new();
            hasher.write_u8(salt);
            hasher.write(text.as_bytes());
            u128::from(hasher.finish())
        };
        self.rows += 1;
        self.sum = self.sum.wrapping_add((half(0) << 64) | half(1));
    }
}

/// What a comparison needs.
pub(super) struct Comparison<'a> {
    pub client: &'a Arc<dyn TieringClient>,
    pub info: &'a Arc<TableInfo>,
    pub lake: &'a Arc<LakeTable>,
    pub partitions: &'a BTreeMap<Vec<u8>, (String, Partition)>,
}

/// A bucket of the log, with the offsets that are compared.
#[derive(Debug)]
struct LogPart {
    bucket: TableBucket,
    partition: Option<String>,
    total_buckets: TotalBuckets,
    ranges: Vec<(LogOffset, LogOffset)>,
}

impl Comparison<'_> {
    /// Compares all ranges that the log still holds; returns how many rows were compared.
    pub(super) async fn run(
        &self,
        steps: &[Step],
        skipped: &BTreeSet<(i64, LakeBucket)>,
        findings: &mut Vec<Finding>,
    ) -> Result<i64> {
        let starts = self.log_starts().await?;
        let mut lake = BTreeMap::<LakeBucket, Multiset>::new();
        let mut parts = BTreeMap::<LakeBucket, BTreeMap<TableBucket, LogPart>>::new();
        for step in steps {
            for (name, ranges) in by_lake_bucket(self.lake, step) {
                let held = |range: &BucketRange| {
                    let start = starts.get(&self.log_bucket(range)).map(|(start, _)| *start);
                    start.is_some_and(|start| range.start >= start)
                };
                let known_wrong = skipped.contains(&(step.snapshot, name.clone()));
                if known_wrong || !ranges.iter().all(held) {
                    continue;
                }
                let files = step.files.get(&name).cloned().unwrap_or_default();
                let sum = lake.entry(name.clone()).or_default();
                self.add_lake_rows(&name, files, sum).await?;
                let logs = parts.entry(name).or_default();
                for range in ranges {
                    let bucket = self.log_bucket(&range);
                    let Some((_, total_buckets)) = starts.get(&bucket) else {
                        continue;
                    };
                    let part = logs.entry(bucket).or_insert_with(|| LogPart {
                        bucket,
                        partition: range.partition.clone(),
                        total_buckets: *total_buckets,
                        ranges: Vec::new(),
                    });
                    part.ranges.push((range.start, range.end));
                }
            }
        }
        let mut compared = 0;
        for (name, logs) in parts {
            let mut log = Multiset::default();
            for part in logs.into_values() {
                self.add_log_rows(part, &mut log).await?;
            }
            let lake = lake.get(&name).copied().unwrap_or_default();
            compared += log.rows;
            if lake != log {
                let reason = if lake.rows == log.rows {
                    format!("its {} rows are not those of the log", log.rows)
                } else {
                    format!("it holds {} rows, the log {}", lake.rows, log.rows)
                };
                findings.push(Finding {
                    bucket: Some(name),
                    snapshot: None,
                    reason,
                });
            }
        }
        Ok(compared)
    }

    fn log_bucket(&self, range: &BucketRange) -> TableBucket {
        TableBucket {
            table: self.info.id,
            partition: range.partition_id,
            bucket: range.bucket,
        }
    }

    /// Where the log of each bucket begins, with its partition's own bucket count; dropped
    /// partitions have none.
    async fn log_starts(&self) -> Result<BTreeMap<TableBucket, (LogOffset, TotalBuckets)>> {
        let path = self.lake.path();
        let partitions = if self.info.partition_keys.is_empty() {
            None
        } else {
            Some(self.client.partitions(path).await?)
        };
        let view = TableView {
            path: path.clone(),
            id: self.info.id,
            bucket_count: self.info.bucket_count,
            bucket_layout_epoch: self.info.bucket_layout_epoch,
            partitions,
        };
        let mut starts = BTreeMap::new();
        for group in bucket_groups(&view)? {
            let offsets = self
                .client
                .offsets(path, self.info.id, &group, OffsetKind::Earliest)
                .await?;
            for (bucket, start) in offsets {
                let key = TableBucket {
                    table: self.info.id,
                    partition: group.partition,
                    bucket,
                };
                starts.insert(key, (start?, group.total_buckets));
            }
        }
        Ok(starts)
    }

    async fn add_lake_rows(
        &self,
        name: &LakeBucket,
        files: Vec<weir_lake_format::DataFileMeta>,
        sum: &mut Multiset,
    ) -> Result<()> {
        if files.is_empty() {
            return Ok(());
        }
        let named = self
            .partitions
            .values()
            .find(|(known, _)| Some(known) == name.partition.as_ref());
        let partition =
            named.map_or_else(Partition::unpartitioned, |(_, partition)| partition.clone());
        let split = LakeSplit {
            partition,
            bucket: name.bucket,
            total_buckets: 0,
            files,
        };
        let lake = |error| self.lake.error(error);
        let mut batches = self
            .lake
            .table
            .read_split_as(&split, &self.lake.schema, None)
            .await
            .map_err(lake)?;
        while let Some(batch) = batches.try_next().await.map_err(lake)? {
            self.add(&batch, sum)?;
        }
        Ok(())
    }

    async fn add_log_rows(&self, mut part: LogPart, sum: &mut Multiset) -> Result<()> {
        part.ranges.retain(|(start, end)| start < end);
        part.ranges.sort_unstable();
        let (Some((start, _)), Some((_, stop))) = (part.ranges.first(), part.ranges.last()) else {
            return Ok(());
        };
        let (start, stop) = (*start, *stop);
        let split = Split {
            bucket: part.bucket,
            partition: part.partition.clone(),
            total_buckets: part.total_buckets,
            start,
            stop,
        };
        let mut reader = self
            .client
            .reader(self.lake.path(), self.info.id, FETCH_BYTES)
            .await?;
        reader.add(&split);
        let schemas = Schemas::new(
            Arc::clone(self.client),
            MAX_BATCH_BYTES,
            Arc::clone(self.info),
            Arc::clone(self.lake),
        );
        let (mut next, mut empty) = (start, 0);
        while next < stop {
            let mut moved = false;
            for fetched in reader.poll(MAX_WAIT).await {
                for batch in &fetched.batches {
                    self.add_batch(&schemas, &part, batch, sum).await?;
                    next = next.max(batch.next_offset());
                    moved = true;
                }
                if let Some(fault) = fetched.fault.filter(|_| next < stop) {
                    let reason = match fault {
                        BucketFault::OutOfRange => format!("the log lost offset {next} meanwhile"),
                        BucketFault::Failed(reason) => reason,
                    };
                    return Err(Error::LogStuck {
                        bucket: part.bucket,
                        offset: next,
                        reason,
                    });
                }
            }
            empty = if moved { 0 } else { empty + 1 };
            if empty > EMPTY_READS {
                let reason = "nothing comes any more".to_owned();
                return Err(Error::LogStuck {
                    bucket: part.bucket,
                    offset: next,
                    reason,
                });
            }
        }
        Ok(())
    }

    async fn add_batch(
        &self,
        schemas: &Schemas,
        part: &LogPart,
        batch: &LogBatch,
        sum: &mut Multiset,
    ) -> Result<()> {
        let (base, next) = (batch.header.base_offset, batch.next_offset());
        if batch.header.record_count == 0 {
            return Ok(());
        }
        for (start, end) in &part.ranges {
            let range = base.max(*start)..next.min(*end);
            if range.start >= range.end {
                continue;
            }
            let form = schemas.get(batch.header.schema_id).await?;
            let rows = decode(&form.log, batch, &range).map_err(|source| Error::Log {
                table: self.lake.path().clone(),
                bucket: part.bucket,
                offset: base,
                source,
            })?;
            let position = Position {
                bucket: part.bucket,
                offset: range.start,
                timestamp_ms: batch.header.commit_timestamp_ms,
            };
            self.add(&form.alignment.apply(&rows, position)?, sum)?;
        }
        Ok(())
    }

    fn add(&self, batch: &RecordBatch, sum: &mut Multiset) -> Result<()> {
        let lines = canonical_json::rows(batch, &self.lake.schema.fields);
        for line in lines.map_err(|error| self.lake.error(error))? {
            sum.add(&line);
        }
        Ok(())
    }
}

/// The ranges of a step by lake bucket; those of a table without bucket key share bucket 0.
fn by_lake_bucket(lake: &LakeTable, step: &Step) -> BTreeMap<LakeBucket, Vec<BucketRange>> {
    let mut all = BTreeMap::<LakeBucket, Vec<BucketRange>>::new();
    for range in &step.ranges {
        all.entry(lake_bucket(lake, range))
            .or_default()
            .push(range.clone());
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn multiset(lines: &[&str]) -> Multiset {
        let mut sum = Multiset::default();
        lines.iter().for_each(|line| sum.add(line));
        sum
    }

    #[test]
    fn order_does_not_matter_and_every_row_counts() {
        assert_eq!(multiset(&["a", "b", "b"]), multiset(&["b", "a", "b"]));
        assert_ne!(multiset(&["a", "b", "b"]), multiset(&["a", "a", "b"]));
        assert_ne!(multiset(&["a"]), multiset(&["a", "a"]));
    }
}
