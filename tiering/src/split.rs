//! A split: the part of one bucket's log that one round writes to the lake.

use weir_protocol::ids::{LogOffset, TableBucket, TotalBuckets};

/// A half-open range of one bucket's log, with what the lake must know about the bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// The bucket.
    pub bucket: TableBucket,
    /// The partition's name (values joined by `$`), of a partitioned table.
    pub partition: Option<String>,
    /// How many buckets the bucket's own partition (or unpartitioned table) has; stamped in each
    /// file.
    pub total_buckets: TotalBuckets,
    /// First offset to write.
    pub start: LogOffset,
    /// First offset that is left for a later round; above `start`.
    pub stop: LogOffset,
    /// First offset to read: `start`, unless the log has lost what is below and a person let it go.
    pub read_from: LogOffset,
}

impl Split {
    /// How many offsets the split covers: an upper bound of its rows.
    pub fn backlog(&self) -> u64 {
        u64::try_from(self.stop.0.saturating_sub(self.start.0)).unwrap_or(0)
    }
}
