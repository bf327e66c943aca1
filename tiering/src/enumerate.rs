//! Enumeration: table × offsets → splits. Pure; every partition is walked over its own bucket
//! count.

use std::collections::{BTreeMap, BTreeSet};

use weir_protocol::ids::{
    BucketId, LogOffset, PartitionId, TableBucket, TableId, TablePath, TotalBuckets,
};

use crate::error::{Error, Result};
use crate::ranges;
use crate::split::Split;

/// What enumeration needs of a table, as one reading of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableView {
    /// The table.
    pub id: TableId,
    /// Its path, for messages.
    pub path: TablePath,
    /// The table's bucket count: of an unpartitioned table its own, else a template for new
    /// partitions.
    pub bucket_count: TotalBuckets,
    /// 0 until the table's bucket count is changed for the first time.
    pub bucket_layout_epoch: i64,
    /// Whether it has a primary key: then rows that its log has lost are missing in the lake.
    pub is_keyed: bool,
    /// The partitions; `None` if the table has no partition keys.
    pub partitions: Option<Vec<PartitionView>>,
}

impl TableView {
    /// The name of a bucket's partition; its id if the partition is gone.
    pub fn partition_name(&self, bucket: TableBucket) -> Option<String> {
        let id = bucket.partition?;
        let mut partitions = self.partitions.iter().flatten();
        let found = partitions.find(|partition| partition.id == id);
        Some(found.map_or_else(|| id.to_string(), |partition| partition.name.clone()))
    }
}

/// One partition of a [`TableView`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionView {
    /// The partition.
    pub id: PartitionId,
    /// Its name: values in key order joined by `$`.
    pub name: String,
    /// Its own bucket count; `None` if it was made before partitions kept one.
    pub bucket_count: Option<TotalBuckets>,
}

/// A partition, or a table without partitions, with the count that holds for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketGroup {
    /// The partition, of a partitioned table.
    pub partition: Option<PartitionId>,
    /// The partition's name, of a partitioned table.
    pub name: Option<String>,
    /// How many buckets it has.
    pub total_buckets: TotalBuckets,
}

impl BucketGroup {
    /// All buckets of the group: `0..total_buckets`.
    pub fn buckets(&self, table: TableId) -> impl Iterator<Item = TableBucket> + '_ {
        let partition = self.partition;
        (0..self.total_buckets.0).map(move |bucket| TableBucket {
            table,
            partition,
            bucket: BucketId(bucket),
        })
    }
}

/// The offsets that a round starts from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offsets {
    /// Per bucket, the end of what may be read (the high watermark).
    pub latest: BTreeMap<TableBucket, LogOffset>,
    /// Per bucket that was never tiered, the start of its log.
    pub earliest: BTreeMap<TableBucket, LogOffset>,
    /// Buckets whose offsets could not be read now; they are left for a later round.
    pub unavailable: BTreeSet<TableBucket>,
    /// Per bucket, the end of what the lake holds; buckets of dropped partitions are passed over.
    pub lake: BTreeMap<TableBucket, LogOffset>,
    /// Per bucket, offsets that the log has lost and a person let go: if the lake ends where they
    /// begin, reading goes on behind them.
    pub let_go: BTreeMap<TableBucket, ranges::Offsets>,
}

/// The partitions of `table` (or the table itself), each with its own bucket count, by partition
/// id.
///
/// # Errors
/// [`Error::MissingBucketCount`] if a partition has no count of its own although the table's count
/// was changed; [`Error::BadBucketCount`] for a count below 1.
pub fn bucket_groups(table: &TableView) -> Result<Vec<BucketGroup>> {
    let Some(partitions) = &table.partitions else {
        let total_buckets = checked(table, None, table.bucket_count)?;
        return Ok(vec![BucketGroup {
            partition: None,
            name: None,
            total_buckets,
        }]);
    };
    let mut groups = Vec::with_capacity(partitions.len());
    for partition in partitions {
        let count = match partition.bucket_count {
            Some(count) => count,
            None if table.bucket_layout_epoch == 0 => table.bucket_count,
            None => {
                return Err(Error::MissingBucketCount {
                    table: table.path.clone(),
                    partition: partition.name.clone(),
                    epoch: table.bucket_layout_epoch,
                });
            }
        };
        groups.push(BucketGroup {
            partition: Some(partition.id),
            name: Some(partition.name.clone()),
            total_buckets: checked(table, Some(&partition.name), count)?,
        });
    }
    groups.sort_by_key(|group| group.partition);
    Ok(groups)
}

/// Plans the splits of one round: per bucket `lake end..latest`, or from the log's start if it was
/// never tiered; of a table with a primary key from offset 0 then, so that a log which begins later
/// is told as lost.
///
/// Splits are ordered by (partition, bucket), at most one a bucket; empty ranges give none.
/// O(buckets).
///
/// # Errors
/// What [`bucket_groups`] returns; [`Error::StrayBuckets`] if the lake's offsets name a bucket
/// beyond its partition's own count; [`Error::MissingOffset`] if an offset of an available bucket
/// is not given.
pub fn enumerate(table: &TableView, offsets: &Offsets) -> Result<Vec<Split>> {
    let groups = bucket_groups(table)?;
    refuse_strays(table, &groups, &offsets.lake)?;
    let mut splits = Vec::new();
    for group in &groups {
        for bucket in group.buckets(table.id) {
            if offsets.unavailable.contains(&bucket) {
                continue;
            }
            if let Some((start, stop)) = range_of(table, bucket, offsets)? {
                let partition = group.name.clone();
                let total_buckets = group.total_buckets;
                let let_go = offsets.let_go.get(&bucket).filter(|o| o.start == start);
                splits.push(Split {
                    bucket,
                    partition,
                    total_buckets,
                    start,
                    stop,
                    read_from: let_go.map_or(start, |o| o.end.clamp(start, stop)),
                });
            }
        }
    }
    Ok(splits)
}

fn range_of(
    table: &TableView,
    bucket: TableBucket,
    offsets: &Offsets,
) -> Result<Option<(LogOffset, LogOffset)>> {
    let missing = || Error::MissingOffset {
        table: table.path.clone(),
        bucket,
    };
    let latest = *offsets.latest.get(&bucket).ok_or_else(missing)?;
    if latest.0 <= 0 {
        return Ok(None);
    }
    let start = match offsets.lake.get(&bucket) {
        Some(tiered) if tiered.0 >= 0 => *tiered,
        // What retention took from the log still counts: the changes of a key add up.
        _ if table.is_keyed => LogOffset(0),
        _ => *offsets.earliest.get(&bucket).ok_or_else(missing)?,
    };
    Ok((start < latest).then_some((start, latest)))
}

fn checked(
    table: &TableView,
    partition: Option<&str>,
    count: TotalBuckets,
) -> Result<TotalBuckets> {
    if count.0 < 1 {
        return Err(Error::BadBucketCount {
            table: table.path.clone(),
            partition: partition.map(str::to_owned),
            count,
        });
    }
    Ok(count)
}

fn refuse_strays(
    table: &TableView,
    groups: &[BucketGroup],
    lake: &BTreeMap<TableBucket, LogOffset>,
) -> Result<()> {
    let counts: BTreeMap<Option<PartitionId>, &BucketGroup> = groups
        .iter()
        .map(|group| (group.partition, group))
        .collect();
    for bucket in lake.keys() {
        let fits_table =
            bucket.table == table.id && bucket.partition.is_some() == table.partitions.is_some();
        // A live table's partition that is gone was dropped; its offsets stay in old files.
        let group = counts.get(&bucket.partition);
        let in_range = group.is_none_or(|g| (0..g.total_buckets.0).contains(&bucket.bucket.0));
        if !fits_table || !in_range {
            return Err(stray(table, group.copied(), lake, bucket.partition));
        }
    }
    Ok(())
}

/// The error names every bucket of the partition that does not fit, not only the first.
fn stray(
    table: &TableView,
    group: Option<&BucketGroup>,
    lake: &BTreeMap<TableBucket, LogOffset>,
    partition: Option<PartitionId>,
) -> Error {
    let count = group.map_or(table.bucket_count, |g| g.total_buckets);
    let buckets = lake
        .keys()
        .filter(|b| b.partition == partition)
        .filter(|b| b.table != table.id || group.is_none() || !(0..count.0).contains(&b.bucket.0))
        .copied()
        .collect();
    let partition = group.and_then(|g| g.name.clone());
    Error::StrayBuckets {
        table: table.path.clone(),
        partition,
        buckets,
        count,
    }
}

#[cfg(test)]
mod tests;
