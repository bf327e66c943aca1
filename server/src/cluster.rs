//! Who is in the cluster and who leads what, as one server was told by `UPDATE_METADATA`.

use std::collections::{BTreeMap, HashMap};

use parking_lot::RwLock;
#[cfg(test)]
use weir_protocol::ids::ServerId;
use weir_protocol::ids::{BucketId, PartitionId, TableBucket, TableId};
use weir_protocol::proto::{
    PbBucketMetadata, PbPartitionMetadata, PbServerNode, PbTableMetadata, UpdateMetadataRequest,
};

use crate::error::Error;

/// The name of a dropped table or partition in `UPDATE_METADATA`, as the reference writes it.
pub(crate) const DELETED_NAME: &str = "__delete__";

/// What one server knows of the cluster. Leaders are here only once they are ready.
#[derive(Debug, Default)]
pub(crate) struct MetadataCache {
    inner: RwLock<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    coordinator_epoch: i32,
    coordinator: Option<PbServerNode>,
    tablets: Vec<PbServerNode>,
    buckets: HashMap<(TableId, Option<PartitionId>), BTreeMap<BucketId, PbBucketMetadata>>,
    /// Partitions of a table, to forget them with it.
    partitions: HashMap<TableId, Vec<PartitionId>>,
    tables: HashMap<TableId, Known>,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    bucket_count_epoch: i64,
}

impl MetadataCache {
    /// Takes over an update: per table, one with a lower bucket count epoch is left out.
    ///
    /// # Errors
    /// [`Error::WrongCoordinator`] if it comes from an earlier coordinator.
    pub(crate) fn apply(&self, update: &UpdateMetadataRequest) -> Result<(), Error> {
        if let Some(given) = update.coordinator_epoch {
            self.accept_coordinator(given)?;
        }
        let mut inner = self.inner.write();
        if update.coordinator_server.is_some() {
            inner.coordinator.clone_from(&update.coordinator_server);
        }
        if !update.tablet_servers.is_empty() {
            inner.tablets.clone_from(&update.tablet_servers);
        }
        for table in &update.table_metadata {
            inner.apply_table(table);
        }
        for partition in &update.partition_metadata {
            inner.apply_partition(partition);
        }
        Ok(())
    }

    /// Checks that a call comes from the newest coordinator known; a newer one is believed.
    ///
    /// # Errors
    /// [`Error::WrongCoordinator`].
    pub(crate) fn accept_coordinator(&self, given: i32) -> Result<(), Error> {
        let mut inner = self.inner.write();
        let current = inner.coordinator_epoch;
        if given < current {
            return Err(Error::WrongCoordinator { given, current });
        }
        inner.coordinator_epoch = given;
        Ok(())
    }

    /// The coordinator's address.
    pub(crate) fn coordinator(&self) -> Option<PbServerNode> {
        self.inner.read().coordinator.clone()
    }

    /// All live tablet servers.
    pub(crate) fn tablets(&self) -> Vec<PbServerNode> {
        self.inner.read().tablets.clone()
    }

    /// What is known of the buckets of a table or partition, by bucket.
    pub(crate) fn buckets(
        &self,
        table: TableId,
        partition: Option<PartitionId>,
    ) -> BTreeMap<BucketId, PbBucketMetadata> {
        self.inner
            .read()
            .buckets
            .get(&(table, partition))
            .cloned()
            .unwrap_or_default()
    }

    /// Who leads a bucket, if it is known and ready.
    #[cfg(test)]
    pub(crate) fn leader(&self, bucket: TableBucket) -> Option<ServerId> {
        let inner = self.inner.read();
        let buckets = inner.buckets.get(&(bucket.table, bucket.partition))?;
        buckets.get(&bucket.bucket)?.leader_id.map(ServerId)
    }

    /// Whether the bucket exists, led or not.
    pub(crate) fn knows(&self, bucket: TableBucket) -> bool {
        let inner = self.inner.read();
        let buckets = inner.buckets.get(&(bucket.table, bucket.partition));
        buckets.is_some_and(|buckets| buckets.contains_key(&bucket.bucket))
    }

    /// How often the table's bucket count was changed, as far as this server knows.
    pub(crate) fn bucket_count_epoch(&self, table: TableId) -> i64 {
        self.inner
            .read()
            .tables
            .get(&table)
            .map_or(0, |known| known.bucket_count_epoch)
    }

    /// Buckets that have a ready leader, and all that are known.
    pub(crate) fn leader_counts(&self) -> (usize, usize) {
        let inner = self.inner.read();
        let all = inner.buckets.values().flat_map(BTreeMap::values);
        all.fold((0, 0), |(led, known), bucket| {
            (led + usize::from(bucket.leader_id.is_some()), known + 1)
        })
    }
}

impl Inner {
    fn apply_table(&mut self, update: &PbTableMetadata) {
        let table = TableId(update.table_id);
        if update.table_path.table_name == DELETED_NAME {
            self.tables.remove(&table);
            self.buckets.remove(&(table, None));
            for partition in self.partitions.remove(&table).unwrap_or_default() {
                self.buckets.remove(&(table, Some(partition)));
            }
            return;
        }
        let bucket_count_epoch = update.bucket_count_epoch.unwrap_or(0);
        let known = self.tables.get(&table).copied();
        if known.is_some_and(|known| bucket_count_epoch < known.bucket_count_epoch) {
            return;
        }
        self.tables.insert(table, Known { bucket_count_epoch });
        merge(
            self.buckets.entry((table, None)).or_default(),
            &update.bucket_metadata,
        );
    }

    fn apply_partition(&mut self, update: &PbPartitionMetadata) {
        let table = TableId(update.table_id);
        let partition = PartitionId(update.partition_id);
        let partitions = self.partitions.entry(table).or_default();
        if update.partition_name == DELETED_NAME {
            partitions.retain(|known| *known != partition);
            self.buckets.remove(&(table, Some(partition)));
            return;
        }
        if !partitions.contains(&partition) {
            partitions.push(partition);
        }
        merge(
            self.buckets.entry((table, Some(partition))).or_default(),
            &update.bucket_metadata,
        );
    }
}

/// Takes over buckets, except older states than those known.
fn merge(known: &mut BTreeMap<BucketId, PbBucketMetadata>, update: &[PbBucketMetadata]) {
    for bucket in update {
        let id = BucketId(bucket.bucket_id);
        let version = |bucket: &PbBucketMetadata| (bucket.leader_epoch, bucket.bucket_epoch);
        if known
            .get(&id)
            .is_none_or(|known| version(known) <= version(bucket))
        {
            known.insert(id, bucket.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use weir_protocol::proto::PbTablePath;

    use super::*;

    fn table(name: &str, epoch: i64, leader_epoch: i32, leader: Option<i32>) -> PbTableMetadata {
        let bucket = PbBucketMetadata {
            bucket_id: 0,
            leader_id: leader,
            leader_epoch: Some(leader_epoch),
            bucket_epoch: Some(0),
            ..PbBucketMetadata::default()
        };
        PbTableMetadata {
            table_path: PbTablePath {
                database_name: "db".into(),
                table_name: name.into(),
            },
            table_id: 7,
            schema_id: 1,
            bucket_metadata: vec![bucket],
            bucket_count_epoch: Some(epoch),
            ..PbTableMetadata::default()
        }
    }

    fn update(coordinator_epoch: i32, table: PbTableMetadata) -> UpdateMetadataRequest {
        UpdateMetadataRequest {
            table_metadata: vec![table],
            coordinator_epoch: Some(coordinator_epoch),
            ..UpdateMetadataRequest::default()
        }
    }

    const BUCKET: TableBucket = TableBucket {
        table: TableId(7),
        partition: None,
        bucket: BucketId(0),
    };

    #[test]
    fn an_update_of_a_deposed_coordinator_is_refused() {
        let cache = MetadataCache::default();
        cache.apply(&update(5, table("t", 0, 1, Some(1)))).unwrap();
        let refused = cache.apply(&update(4, table("t", 0, 2, Some(2))));
        assert!(matches!(
            refused,
            Err(Error::WrongCoordinator {
                given: 4,
                current: 5
            })
        ));
        assert_eq!(cache.leader(BUCKET), Some(ServerId(1)));
    }

    #[test]
    fn a_lower_bucket_count_epoch_or_leader_epoch_changes_nothing() {
        let cache = MetadataCache::default();
        cache.apply(&update(1, table("t", 3, 7, Some(1)))).unwrap();
        cache.apply(&update(1, table("t", 2, 8, Some(2)))).unwrap();
        assert_eq!(cache.leader(BUCKET), Some(ServerId(1)));
        cache.apply(&update(1, table("t", 3, 6, Some(2)))).unwrap();
        assert_eq!(cache.leader(BUCKET), Some(ServerId(1)));
        cache.apply(&update(1, table("t", 3, 8, None))).unwrap();
        assert_eq!(cache.leader(BUCKET), None);
        assert_eq!(cache.bucket_count_epoch(TableId(7)), 3);
    }

    #[test]
    fn a_dropped_table_is_forgotten_with_its_partitions() {
        let cache = MetadataCache::default();
        cache.apply(&update(1, table("t", 0, 1, Some(1)))).unwrap();
        let partition = PbPartitionMetadata {
            table_id: 7,
            partition_id: 9,
            partition_name: "p".into(),
            bucket_metadata: table("t", 0, 1, Some(1)).bucket_metadata,
            ..PbPartitionMetadata::default()
        };
        let partitions = UpdateMetadataRequest {
            partition_metadata: vec![partition],
            ..UpdateMetadataRequest::default()
        };
        cache.apply(&partitions).unwrap();
        assert_eq!(cache.leader_counts(), (2, 2));
        cache
            .apply(&update(1, table(DELETED_NAME, 0, 1, None)))
            .unwrap();
        assert_eq!(cache.leader_counts(), (0, 0));
    }
}
