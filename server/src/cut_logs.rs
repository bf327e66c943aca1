//! Keyed buckets whose log alone no longer tells their rows: a reader that begins with the log would
//! miss keys without knowing.

use std::collections::BTreeMap;

use parking_lot::RwLock;
use weir_protocol::ids::{BucketId, LogOffset, PartitionId, TableBucket, TableId};

/// Where the logs begin of keyed buckets that were cut beyond what is in the lake.
#[derive(Debug, Default)]
pub(crate) struct CutLogs(RwLock<BTreeMap<TableBucket, LogOffset>>);

impl CutLogs {
    /// Notes down where a log begins, and how far its lake is.
    pub(crate) fn note(&self, bucket: TableBucket, start: LogOffset, lake_end: Option<LogOffset>) {
        if start > lake_end.unwrap_or(LogOffset(0)) {
            self.0.write().insert(bucket, start);
        } else if self.0.read().contains_key(&bucket) {
            self.forget(bucket);
        }
    }

    /// The bucket is not here any more.
    pub(crate) fn forget(&self, bucket: TableBucket) {
        self.0.write().remove(&bucket);
    }

    /// One of the buckets of a table or partition, and where its log begins.
    pub(crate) fn any_of(
        &self,
        table: TableId,
        partition: Option<PartitionId>,
    ) -> Option<(BucketId, LogOffset)> {
        let cut = self.0.read();
        let found = cut
            .iter()
            .find(|(bucket, _)| (bucket.table, bucket.partition) == (table, partition));
        found.map(|(bucket, start)| (bucket.bucket, *start))
    }
}
