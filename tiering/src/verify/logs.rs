//! What the logs of a table hold: their ends, and their rows summed up by range.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::RecordBatch;
use weir_lake_format::RowKind;
use weir_protocol::ids::{LogOffset, TableBucket, TotalBuckets};
use weir_protocol::record::LogBatch;

use super::keys::Keys;
use super::{Finding, LakeBucket, Multiset};
use crate::align::Position;
use crate::cluster::{BucketFault, Fetched, OffsetKind, TableInfo, TieringClient, is_damage};
use crate::enumerate::{BucketGroup, TableView, bucket_groups};
use crate::error::{Error, Result};
use crate::lake_table::LakeTable;
use crate::ranges::Offsets;
use crate::split::Split;
use crate::worker::decode::{LogRows, decode};
use crate::worker::schemas::Schemas;

/// About what one read of the log brings.
const FETCH_BYTES: u64 = 8 << 20;
/// The most bytes of rows that one batch may decode to.
const MAX_BATCH_BYTES: u64 = 256 << 20;
/// The longest wait of one read.
const MAX_WAIT: Duration = Duration::from_millis(500);
/// Reads in a row that may bring nothing before the log counts as stuck.
const EMPTY_READS: u32 = 120;

/// A bucket's log: offsets `start..end` are readable, but for gaps.
#[derive(Clone, Debug)]
pub(super) struct LogExtent {
    pub start: LogOffset,
    pub end: LogOffset,
    pub partition: Option<String>,
    pub total_buckets: TotalBuckets,
}

impl LogExtent {
    /// The bucket's name: its number in the log, whatever the lake makes of it.
    pub(super) fn name(&self, bucket: TableBucket) -> LakeBucket {
        LakeBucket {
            partition: self.partition.clone(),
            bucket: bucket.bucket.0,
        }
    }
}

/// A range of a log whose rows are wanted.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub start: LogOffset,
    pub end: LogOffset,
    /// Offsets within it whose rows are not; ascending.
    pub apart: Vec<Offsets>,
}

impl Wanted {
    /// The wanted offsets among `from..to`.
    fn within(&self, from: LogOffset, to: LogOffset) -> Vec<Offsets> {
        let (mut next, end) = (from.max(self.start), to.min(self.end));
        let mut parts = Vec::new();
        for apart in &self.apart {
            if next < apart.start && next < end {
                parts.push(next..apart.start.min(end));
            }
            next = next.max(apart.end);
        }
        if next < end {
            parts.push(next..end);
        }
        parts
    }
}

/// The rows of some ranges of a log.
#[derive(Debug, Default)]
pub(super) struct LogRead {
    /// Per wanted range, its rows.
    pub sums: Vec<Multiset>,
    /// Offsets among the wanted ones that the log does not hold, ascending.
    pub missing: Vec<(LogOffset, LogOffset)>,
    /// What all changes read make of keys, if that is wanted.
    pub keys: Option<Keys>,
}

/// Why the wanted rows of a log are not known: the server says that they are damaged.
#[derive(Debug)]
pub(super) struct Damaged(pub String);

/// Reads the logs of one table.
pub(super) struct Logs<'a> {
    pub client: &'a Arc<dyn TieringClient>,
    pub info: &'a Arc<TableInfo>,
    pub lake: &'a Arc<LakeTable>,
}

impl Logs<'_> {
    /// The extents of all logs, over each partition's own bucket count; dropped partitions have
    /// none. A bucket whose log is damaged is a finding.
    ///
    /// # Errors
    /// If the cluster can't be asked.
    pub(super) async fn extents(
        &self,
        findings: &mut Vec<Finding>,
    ) -> Result<BTreeMap<TableBucket, LogExtent>> {
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
            is_keyed: self.info.schema.has_primary_key(),
            partitions,
        };
        let mut extents = BTreeMap::new();
        for group in bucket_groups(&view)? {
            self.extents_of(&group, &mut extents, findings).await?;
        }
        Ok(extents)
    }

    async fn extents_of(
        &self,
        group: &BucketGroup,
        extents: &mut BTreeMap<TableBucket, LogExtent>,
        findings: &mut Vec<Finding>,
    ) -> Result<()> {
        let look_up = |kind| {
            self.client
                .offsets(self.lake.path(), self.info.id, group, kind)
        };
        let mut ends = look_up(OffsetKind::Latest).await?;
        for (id, start) in look_up(OffsetKind::Earliest).await? {
            let bucket = TableBucket {
                table: self.info.id,
                partition: group.partition,
                bucket: id,
            };
            let end = ends.remove(&id).ok_or(Error::MissingOffset {
                table: self.lake.path().clone(),
                bucket,
            })?;
            match start.and_then(|start| end.map(|end| (start, end))) {
                Ok((start, end)) => {
                    let extent = LogExtent {
                        start,
                        end,
                        partition: group.name.clone(),
                        total_buckets: group.total_buckets,
                    };
                    extents.insert(bucket, extent);
                }
                Err(error) if error.code().is_some_and(is_damage) => {
                    let name = LakeBucket {
                        partition: group.name.clone(),
                        bucket: id.0,
                    };
                    findings.push(unreadable(name, bucket, &error.chain()));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The rows of `ranges`, as far as the log holds them.
    ///
    /// # Errors
    /// If the log can't be read now, and no server says that it is damaged.
    pub(super) async fn read(
        &self,
        bucket: TableBucket,
        extent: &LogExtent,
        ranges: &[Wanted],
    ) -> Result<Result<LogRead, Damaged>> {
        let mut read = LogRead {
            sums: vec![Multiset::default(); ranges.len()],
            ..LogRead::default()
        };
        let first = ranges.iter().map(|wanted| wanted.start).min();
        let stop = ranges.iter().map(|wanted| wanted.end).max();
        let (Some(first), Some(stop)) = (first, stop) else {
            return Ok(Ok(read));
        };
        let from = extent.start.max(first).min(stop);
        let to = extent.end.min(stop).max(from);
        read.lacks(first, from);
        if from < to {
            let split = Split {
                bucket,
                partition: extent.partition.clone(),
                total_buckets: extent.total_buckets,
                start: from,
                stop: to,
                read_from: from,
            };
            match self.read_split(&split, ranges, &mut read).await {
                Ok(None) => {}
                Ok(Some(damaged)) => return Ok(Err(damaged)),
                Err(error @ Error::Log { .. }) => return Ok(Err(Damaged(error.chain()))),
                Err(error) => return Err(error),
            }
        }
        read.lacks(to, stop);
        Ok(Ok(read))
    }

    /// What the changes below `end` make of the keys of a bucket.
    ///
    /// # Errors
    /// As [`Logs::read`].
    pub(super) async fn keys(
        &self,
        bucket: TableBucket,
        extent: &LogExtent,
        end: LogOffset,
    ) -> Result<Result<Keys, Damaged>> {
        let stop = end.min(extent.end);
        let mut read = LogRead {
            keys: Some(Keys::default()),
            ..LogRead::default()
        };
        if extent.start >= stop {
            return Ok(Ok(Keys::default()));
        }
        let split = Split {
            bucket,
            partition: extent.partition.clone(),
            total_buckets: extent.total_buckets,
            start: extent.start,
            stop,
            read_from: extent.start,
        };
        match self.read_split(&split, &[], &mut read).await {
            Ok(None) => Ok(Ok(read.keys.unwrap_or_default())),
            Ok(Some(damaged)) => Ok(Err(damaged)),
            Err(error @ Error::Log { .. }) => Ok(Err(Damaged(error.chain()))),
            Err(error) => Err(error),
        }
    }

    /// What the log has lost from `from` to its end, and why it can't be read there, if it can't.
    /// Reads that stretch.
    ///
    /// # Errors
    /// As [`Logs::read`].
    pub(super) async fn walk(
        &self,
        bucket: TableBucket,
        extent: &LogExtent,
        from: LogOffset,
    ) -> Result<(Vec<(LogOffset, LogOffset)>, Option<String>)> {
        let mut read = LogRead::default();
        let start = extent.start.max(from).min(extent.end);
        read.lacks(from, start);
        if start == extent.end {
            return Ok((read.missing, None));
        }
        let split = Split {
            bucket,
            partition: extent.partition.clone(),
            total_buckets: extent.total_buckets,
            start,
            stop: extent.end,
            read_from: start,
        };
        let said = match self.read_split(&split, &[], &mut read).await {
            Ok(damaged) => damaged.map(|Damaged(said)| said),
            Err(error @ Error::Log { .. }) => Some(error.chain()),
            Err(error) => return Err(error),
        };
        let said = said.map(|said| said.replace(&format!("{bucket}: "), ""));
        Ok((read.missing, said))
    }

    async fn read_split(
        &self,
        split: &Split,
        ranges: &[Wanted],
        read: &mut LogRead,
    ) -> Result<Option<Damaged>> {
        let path = self.lake.path();
        let mut reader = self.client.reader(path, self.info.id, FETCH_BYTES).await?;
        reader.add(split);
        let schemas = Schemas::new(
            Arc::clone(self.client),
            MAX_BATCH_BYTES,
            Arc::clone(self.info),
            Arc::clone(self.lake),
        );
        let (mut next, mut empty) = (split.start, 0);
        let mut trouble = None;
        while next < split.stop {
            let before = next;
            for fetched in reader.poll(MAX_WAIT).await {
                let Fetched { batches, .. } = fetched;
                for batch in &batches {
                    read.lacks(next, batch.header.base_offset.min(split.stop));
                    self.add_batch(&schemas, split, batch, (ranges, &mut *read))
                        .await?;
                    next = next.max(batch.next_offset());
                }
                if let Some(end) = fetched.gap_to {
                    read.lacks(next, end.min(split.stop));
                    next = next.max(end);
                }
                trouble = fetched.trouble.or(trouble);
                let fault = fetched.fault.filter(|_| next < split.stop);
                let stuck = match fault {
                    None => continue,
                    Some(BucketFault::Failed(trouble)) if trouble.is_damage() => {
                        return Ok(Some(Damaged(trouble.reason)));
                    }
                    Some(BucketFault::Failed(trouble)) => trouble.reason,
                    Some(BucketFault::OutOfRange) => "the log lost it meanwhile".to_owned(),
                };
                return Err(log_stuck(split.bucket, next, stuck));
            }
            empty = if next > before { 0 } else { empty + 1 };
            if empty > EMPTY_READS {
                let unsaid = || "nothing comes any more".to_owned();
                let reason = trouble.map_or_else(unsaid, |trouble| trouble.reason);
                return Err(log_stuck(split.bucket, next, reason));
            }
        }
        Ok(None)
    }

    async fn add_batch(
        &self,
        schemas: &Schemas,
        split: &Split,
        batch: &LogBatch,
        (ranges, read): (&[Wanted], &mut LogRead),
    ) -> Result<()> {
        let (base, next) = (batch.header.base_offset, batch.next_offset());
        if batch.header.record_count == 0 {
            return Ok(());
        }
        for (wanted, sum) in ranges.iter().zip(&mut read.sums) {
            for range in wanted.within(base, next) {
                let (rows, _) = self.rows_of(schemas, split.bucket, batch, range).await?;
                sum.add_rows(&rows, self.lake)?;
            }
        }
        let range = base.max(split.start)..next.min(split.stop);
        if let Some(keys) = &mut read.keys
            && range.start < range.end
        {
            let (rows, kinds) = self.rows_of(schemas, split.bucket, batch, range).await?;
            keys.apply(&rows, &kinds.unwrap_or_default(), self.lake)?;
        }
        Ok(())
    }

    /// Rows of a batch in the lake's columns, and what each does to its key.
    async fn rows_of(
        &self,
        schemas: &Schemas,
        bucket: TableBucket,
        batch: &LogBatch,
        range: Offsets,
    ) -> Result<(RecordBatch, Option<Vec<RowKind>>)> {
        let form = schemas.get(batch.header.schema_id).await?;
        let LogRows { rows, kinds } =
            decode(&form.log, batch, &range).map_err(|source| Error::Log {
                table: self.lake.path().clone(),
                bucket,
                offset: batch.header.base_offset,
                source,
            })?;
        let position = Position {
            bucket,
            offset: range.start,
            timestamp_ms: batch.header.commit_timestamp_ms,
        };
        Ok((form.alignment.apply(&rows, position)?, kinds))
    }
}

impl LogRead {
    /// Offsets `from..to` are not there.
    fn lacks(&mut self, from: LogOffset, to: LogOffset) {
        if from < to {
            self.missing.push((from, to));
        }
    }
}

/// A log that can't be read, with what the server says.
pub(super) fn unreadable(name: LakeBucket, bucket: TableBucket, said: &str) -> Finding {
    let said = said.replace(&format!("{bucket}: "), "");
    Finding {
        bucket: Some(name),
        snapshot: None,
        reason: format!("its log can't be read: {said}"),
    }
}

fn log_stuck(bucket: TableBucket, offset: LogOffset, reason: String) -> Error {
    Error::LogStuck {
        bucket,
        offset,
        reason,
    }
}
