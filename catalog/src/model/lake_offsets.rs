//! How far the buckets of a table are in the lake: the offsets file.
//!
//! One JSON object, an array of exclusive end offsets by bucket number; −1 stands for unknown.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use weir_protocol::ids::{BucketId, LogOffset, PartitionId, TableId};

use super::Document;

/// Most buckets of a table or partition that a file may name: the most that any release allowed.
pub const MAX_BUCKETS: usize = 128_000;

/// A bucket within one table.
pub type Bucket = (Option<PartitionId>, BucketId);

/// Exclusive end offsets of one table. Buckets not named are unknown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "File", into = "File")]
pub struct LakeOffsets {
    /// The table.
    pub table_id: TableId,
    /// End offset of each bucket, at least 0. Either every bucket has a partition or none has.
    pub end_offsets: BTreeMap<Bucket, LogOffset>,
}

impl LakeOffsets {
    /// No offsets yet.
    pub fn new(table_id: TableId) -> Self {
        Self {
            table_id,
            end_offsets: BTreeMap::new(),
        }
    }

    /// End offset of a bucket; `None` if unknown.
    pub fn end_offset(
        &self,
        partition: Option<PartitionId>,
        bucket: BucketId,
    ) -> Option<LogOffset> {
        self.end_offsets.get(&(partition, bucket)).copied()
    }

    /// These offsets with those of `newer` in their place where both have one.
    pub fn merged(&self, newer: &LakeOffsets) -> Self {
        let mut merged = self.clone();
        merged.end_offsets.extend(
            newer
                .end_offsets
                .iter()
                .map(|(bucket, end)| (*bucket, *end)),
        );
        merged
    }

    /// The first bucket whose offset here is lower than in `earlier`, with both offsets (earlier,
    /// here).
    pub fn first_regression(
        &self,
        earlier: &LakeOffsets,
    ) -> Option<(Bucket, LogOffset, LogOffset)> {
        earlier.end_offsets.iter().find_map(|(bucket, before)| {
            let now = self.end_offsets.get(bucket)?;
            (now < before).then_some((*bucket, *before, *now))
        })
    }
}

impl Document for LakeOffsets {
    const VERSION: i64 = 1;

    fn check(&self) -> Result<(), String> {
        let mut partitioned = self
            .end_offsets
            .keys()
            .map(|(partition, _)| partition.is_some());
        if let Some(first) = partitioned.next()
            && partitioned.any(|other| other != first)
        {
            return Err("it names buckets with and without partition".to_owned());
        }
        Ok(())
    }
}

/// The file's own shape.
#[derive(Serialize, Deserialize)]
struct File {
    table_id: TableId,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    bucket_offsets: Option<Vec<i64>>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    partition_offsets: Option<Vec<PartitionOffsets>>,
}

#[derive(Serialize, Deserialize)]
struct PartitionOffsets {
    partition_id: PartitionId,
    bucket_offsets: Vec<i64>,
}

impl TryFrom<File> for LakeOffsets {
    type Error = String;

    fn try_from(file: File) -> Result<Self, String> {
        let mut offsets = Self::new(file.table_id);
        let mut take = |partition: Option<PartitionId>, ends: Vec<i64>| {
            if ends.len() > MAX_BUCKETS {
                return Err(format!(
                    "it names {} buckets, at most {MAX_BUCKETS}",
                    ends.len()
                ));
            }
            for (bucket, end) in (0..).map(BucketId).zip(ends) {
                if end >= 0
                    && offsets
                        .end_offsets
                        .insert((partition, bucket), LogOffset(end))
                        .is_some()
                {
                    return Err(format!("it names partition {partition:?} twice"));
                }
            }
            Ok(())
        };
        take(None, file.bucket_offsets.unwrap_or_default())?;
        for partition in file.partition_offsets.unwrap_or_default() {
            take(Some(partition.partition_id), partition.bucket_offsets)?;
        }
        Ok(offsets)
    }
}

impl From<LakeOffsets> for File {
    fn from(offsets: LakeOffsets) -> Self {
        let mut arrays: BTreeMap<Option<PartitionId>, Vec<i64>> = BTreeMap::new();
        for ((partition, bucket), end) in offsets.end_offsets {
            let array = arrays.entry(partition).or_default();
            let Ok(index) = usize::try_from(bucket.0) else {
                continue;
            };
            assert!(
                index < MAX_BUCKETS,
                "bucket {bucket} of table {}",
                offsets.table_id
            );
            array.resize(index.max(array.len()), -1);
            array.push(end.0);
        }
        let bucket_offsets = arrays.remove(&None);
        let partitions = arrays
            .into_iter()
            .filter_map(|(partition, bucket_offsets)| {
                partition.map(|partition_id| PartitionOffsets {
                    partition_id,
                    bucket_offsets,
                })
            });
        let partitions: Vec<_> = partitions.collect();
        let partition_offsets = (!partitions.is_empty()).then_some(partitions);
        Self {
            table_id: offsets.table_id,
            bucket_offsets,
            partition_offsets,
        }
    }
}
