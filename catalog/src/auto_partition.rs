//! Partitions that follow time: which to create ahead, and which have had their day.
//!
//! Pure: the clock's time, the partitions and how far each is in the lake are arguments.
//! Units, formats and the order of text follow the reference's `PartitionUtils`.

use std::collections::BTreeSet;

use weir_protocol::ids::{BucketId, LogOffset, PartitionId};

use crate::catalog::Partition;
use crate::model::lake_offsets::LakeOffsets;

pub(crate) mod format;
pub(crate) mod settings;
pub(crate) mod unit;

pub use format::TimeFormat;
pub use settings::AutoPartition;
pub use unit::TimeUnit;

/// Most partitions that one [`plan`] creates or drops; the rest follows with the next one.
pub const MAX_CHANGES: usize = 100;

/// A partition as the plan needs it.
#[derive(Clone, Debug)]
pub struct KnownPartition {
    /// Its id.
    pub id: PartitionId,
    /// Its name.
    pub name: String,
    /// Its value of the time column.
    pub time: String,
    /// Where its buckets stand; looked at only if the table has a lake.
    pub progress: Progress,
}

impl KnownPartition {
    /// A partition of a table that follows `table`.
    pub fn new(table: &AutoPartition, partition: &Partition, progress: Progress) -> Self {
        let time = partition
            .spec
            .get(&table.key)
            .unwrap_or_default()
            .to_owned();
        Self {
            id: partition.id,
            name: partition.name.clone(),
            time,
            progress,
        }
    }
}

/// How far a partition is in the lake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The table has no lake: nothing to wait for.
    NoLake,
    /// Some bucket's ends are not known: not to be dropped.
    Unknown,
    /// Per bucket, every bucket of the partition: end offset in the lake (`None` if nothing is) and
    /// of the log.
    Buckets(Vec<(Option<LogOffset>, LogOffset)>),
}

impl Progress {
    /// How far a partition of a lake table is, over all buckets of its own count.
    ///
    /// * `log_end`: end of a bucket's log; `None` makes the progress unknown.
    pub fn in_lake(
        partition: &Partition,
        offsets: &LakeOffsets,
        log_end: impl Fn(BucketId) -> Option<LogOffset>,
    ) -> Self {
        let mut buckets = Vec::new();
        for bucket in (0..partition.bucket_count.0).map(BucketId) {
            let Some(log_end) = log_end(bucket) else {
                return Progress::Unknown;
            };
            buckets.push((offsets.end_offset(Some(partition.id), bucket), log_end));
        }
        Progress::Buckets(buckets)
    }

    /// Whether everything that was written is in the lake.
    pub fn is_complete(&self) -> bool {
        match self {
            Progress::NoLake => true,
            Progress::Unknown => false,
            Progress::Buckets(buckets) => buckets
                .iter()
                .all(|(tiered, log)| tiered.unwrap_or(LogOffset(0)) >= *log),
        }
    }
}

/// What to do now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Names of partitions to create, soonest first. Only for tables with a single partition
    /// column.
    pub create: Vec<String>,
    /// Partitions to drop, oldest first.
    pub drop: Vec<PartitionId>,
    /// How many are old enough, but not wholly in the lake yet.
    pub waiting: usize,
}

/// Plans the partitions of one table.
///
/// * `partition_key_count`: with several partition columns nothing is created ahead.
/// * Partitions whose time text does not parse are the owner's own and stay.
/// * At most [`MAX_CHANGES`] creations and as many drops.
pub fn plan(
    now_ms: i64,
    table: &AutoPartition,
    partition_key_count: usize,
    partitions: &[KnownPartition],
) -> Plan {
    let mut plan = Plan::default();
    if !table.is_enabled {
        return plan;
    }
    if let Some(oldest_kept) = table.oldest_kept(now_ms) {
        plan.drop_before(&oldest_kept, table, partitions);
    }
    if partition_key_count == 1 {
        let known: BTreeSet<&str> = partitions.iter().map(|p| p.name.as_str()).collect();
        let ahead = (0..i64::from(table.precreate)).map_while(|steps| table.text(now_ms, steps));
        for name in ahead.filter(|name| !known.contains(name.as_str())) {
            if plan.create.len() == MAX_CHANGES {
                break;
            }
            // Around a change of the clocks, two steps may have the same text.
            if !plan.create.contains(&name) {
                plan.create.push(name);
            }
        }
    }
    plan
}

impl Plan {
    fn drop_before(
        &mut self,
        oldest_kept: &str,
        table: &AutoPartition,
        partitions: &[KnownPartition],
    ) {
        let is_old =
            |p: &&KnownPartition| p.time.as_str() < oldest_kept && table.format.fits(&p.time);
        let mut old: Vec<&KnownPartition> = partitions.iter().filter(is_old).collect();
        old.sort_by(|left, right| (&left.time, left.id).cmp(&(&right.time, right.id)));
        for partition in old {
            if !partition.progress.is_complete() {
                self.waiting += 1;
            } else if self.drop.len() < MAX_CHANGES {
                self.drop.push(partition.id);
            }
        }
    }
}

#[cfg(test)]
mod tests;
