//! What the cluster is made of, as far as it was asked for: servers, tables, partitions, leaders.
//!
//! Counts and leaders are kept by ids, which are never used again; a path is only a way to an id.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use super::connection::ServerRole;
use super::{Client, Error};
use crate::api_key::ApiKey;
use crate::descriptor::TableDescriptor;
use crate::error_code::ErrorCode;
use crate::ids::{
    BucketId, LeaderEpoch, PartitionId, PhysicalTablePath, SchemaId, ServerId, TableBucket,
    TableId, TablePath, TotalBuckets,
};
use crate::proto;

/// A server and where it listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerNode {
    /// Its id; coordinators and tablet servers number apart.
    pub id: ServerId,
    /// Host name or address.
    pub host: String,
    /// Port; only 0..=65535 can be dialled.
    pub port: i32,
}

impl ServerNode {
    /// `host:port`.
    pub fn address(&self) -> Arc<str> {
        let Self { host, port, .. } = self;
        if host.contains(':') {
            format!("[{host}]:{port}")
        } else {
            format!("{host}:{port}")
        }
        .into()
    }

    fn read(node: &proto::PbServerNode) -> Self {
        Self {
            id: ServerId(node.node_id),
            host: node.host.clone(),
            port: node.port,
        }
    }
}

/// Who leads a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketLeader {
    /// The leader; `None` while there is none.
    pub leader: Option<ServerId>,
    /// Its epoch, where the server tells.
    pub epoch: Option<LeaderEpoch>,
}

/// A table, as one answer described it.
#[derive(Clone, Debug)]
pub struct TableMetadata {
    /// Its path.
    pub path: TablePath,
    /// Its id.
    pub table_id: TableId,
    /// Its latest schema.
    pub schema_id: SchemaId,
    /// Its descriptor with that schema.
    pub descriptor: Arc<TableDescriptor>,
    /// Raised by each change of the table's bucket count; 0 if never changed or not told.
    pub bucket_layout_epoch: i64,
    /// Leaders by bucket; empty for a partitioned table.
    pub buckets: BTreeMap<BucketId, BucketLeader>,
}

/// A partition, as one answer described it.
#[derive(Clone, Debug)]
pub struct PartitionMetadata {
    /// The table it belongs to.
    pub table_id: TableId,
    /// Its id.
    pub partition_id: PartitionId,
    /// Its name.
    pub name: String,
    /// The count it was created with; `None` from servers that do not tell.
    pub bucket_count: Option<TotalBuckets>,
    /// Leaders by bucket.
    pub buckets: BTreeMap<BucketId, BucketLeader>,
}

/// Most tables, and most partitions, that a [`Cluster`] keeps.
const MAX_KEPT: usize = 20_000;

/// One consistent picture of everything asked for so far. A newer one replaces it as a whole.
///
/// Answers may come out of order: of two, what has the higher epoch stays. Beyond 20,000 tables or
/// partitions, all but those of the last answer are forgotten, and asked for again when needed.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    coordinator: Option<ServerNode>,
    tablets: BTreeMap<ServerId, ServerNode>,
    table_ids: HashMap<TablePath, TableId>,
    tables: HashMap<TableId, Arc<TableMetadata>>,
    partition_ids: HashMap<(TableId, String), PartitionId>,
    partitions: HashMap<PartitionId, Arc<PartitionMetadata>>,
}

impl Cluster {
    /// The active coordinator.
    pub fn coordinator(&self) -> Option<ServerNode> {
        self.coordinator.clone()
    }

    /// All tablet servers, by id.
    pub fn tablets(&self) -> impl Iterator<Item = &ServerNode> {
        self.tablets.values()
    }

    /// A tablet server.
    pub fn tablet(&self, id: ServerId) -> Option<ServerNode> {
        self.tablets.get(&id).cloned()
    }

    /// The table now behind a path, if it was asked for.
    pub fn table(&self, path: &TablePath) -> Option<&Arc<TableMetadata>> {
        self.table_by_id(*self.table_ids.get(path)?)
    }

    /// A table, if it was asked for.
    pub fn table_by_id(&self, id: TableId) -> Option<&Arc<TableMetadata>> {
        self.tables.get(&id)
    }

    /// A partition of a table by name, if it was asked for.
    pub fn partition(&self, table: TableId, name: &str) -> Option<&Arc<PartitionMetadata>> {
        let id = self.partition_ids.get(&(table, name.to_owned()))?;
        self.partitions.get(id)
    }

    /// A partition, if it was asked for.
    pub fn partition_by_id(&self, id: PartitionId) -> Option<&Arc<PartitionMetadata>> {
        self.partitions.get(&id)
    }

    /// The leader of a bucket, if it is known and listed as a server.
    pub fn leader(&self, bucket: TableBucket) -> Option<ServerId> {
        let buckets = match bucket.partition {
            Some(partition) => &self.partitions.get(&partition)?.buckets,
            None => &self.tables.get(&bucket.table)?.buckets,
        };
        let leader = buckets.get(&bucket.bucket)?.leader?;
        self.tablets.contains_key(&leader).then_some(leader)
    }

    /// The bucket count of a table, or of one of its partitions.
    ///
    /// # Errors
    /// [`Error::MissingBucketCount`] if it is not known for certain.
    pub fn total_buckets(
        &self,
        table: TableId,
        partition: Option<PartitionId>,
    ) -> Result<TotalBuckets, Error> {
        let metadata = self.tables.get(&table);
        let missing = Error::MissingBucketCount {
            table,
            partition,
            epoch: -1,
        };
        let Some(metadata) = metadata else {
            return Err(missing);
        };
        let own = match partition {
            None => return resolve_bucket_count(None, metadata, None),
            Some(id) => self.partitions.get(&id).ok_or(missing)?.bucket_count,
        };
        resolve_bucket_count(own, metadata, partition)
    }

    fn merge(&mut self, answer: &proto::MetadataResponse) -> Result<(), Error> {
        self.coordinator = answer.coordinator_server.as_ref().map(ServerNode::read);
        self.tablets = answer
            .tablet_servers
            .iter()
            .map(|node| (ServerId(node.node_id), ServerNode::read(node)))
            .collect();
        for table in &answer.table_metadata {
            self.put_table(read_table(table)?);
        }
        for partition in &answer.partition_metadata {
            self.put_partition(read_partition(partition));
        }
        self.forget_beyond(MAX_KEPT, answer);
        Ok(())
    }

    /// Forgets what the answer does not name, of tables and of partitions, where there are more
    /// than `limit`.
    fn forget_beyond(&mut self, limit: usize, answer: &proto::MetadataResponse) {
        if self.tables.len() > limit {
            let named = |id: &TableId| answer.table_metadata.iter().any(|t| t.table_id == id.0);
            self.tables.retain(|id, _| named(id));
            self.table_ids.retain(|_, id| named(id));
        }
        if self.partitions.len() > limit {
            let mut named = answer.partition_metadata.iter().map(|p| p.partition_id);
            let named: BTreeSet<i64> = named.by_ref().collect();
            self.partitions.retain(|id, _| named.contains(&id.0));
            self.partition_ids.retain(|_, id| named.contains(&id.0));
        }
    }

    fn put_table(&mut self, mut table: TableMetadata) {
        let id = table.table_id;
        if let Some(known) = self.tables.get(&id) {
            let age = |t: &TableMetadata| (t.bucket_layout_epoch, t.schema_id);
            if age(&table) < age(known) {
                table = TableMetadata {
                    buckets: table.buckets,
                    ..TableMetadata::clone(known)
                };
            }
            self.keep_newer_leaders(&mut table.buckets, &known.buckets);
        }
        let before = self.table_ids.insert(table.path.clone(), id);
        if let Some(before) = before.filter(|before| *before != id) {
            self.forget(before);
        }
        self.tables.insert(id, Arc::new(table));
    }

    fn put_partition(&mut self, mut partition: PartitionMetadata) {
        let id = partition.partition_id;
        if let Some(known) = self.partitions.get(&id) {
            self.keep_newer_leaders(&mut partition.buckets, &known.buckets);
        }
        let key = (partition.table_id, partition.name.clone());
        let before = self.partition_ids.insert(key, id);
        if let Some(before) = before.filter(|before| *before != id) {
            self.partitions.remove(&before);
        }
        self.partitions.insert(id, Arc::new(partition));
    }

    /// Puts back the leaders of a higher epoch, as long as the cluster still has them.
    fn keep_newer_leaders(
        &self,
        found: &mut BTreeMap<BucketId, BucketLeader>,
        known: &BTreeMap<BucketId, BucketLeader>,
    ) {
        for (bucket, known) in known {
            let is_listed = |id| self.tablets.contains_key(&id);
            if let Some(found) = found.get_mut(bucket)
                && found.epoch.is_some()
                && known.epoch > found.epoch
                && known.leader.is_none_or(is_listed)
            {
                *found = known.clone();
            }
        }
    }

    fn forget(&mut self, table: TableId) {
        self.tables.remove(&table);
        self.partition_ids.retain(|(owner, _), _| *owner != table);
        self.partitions
            .retain(|_, partition| partition.table_id != table);
    }
}

/// The count of a partition is its own. A server that does not tell it is believed to mean the
/// table's count, but only while that was never changed.
///
/// # Errors
/// [`Error::MissingBucketCount`].
pub fn resolve_bucket_count(
    own: Option<TotalBuckets>,
    table: &TableMetadata,
    partition: Option<PartitionId>,
) -> Result<TotalBuckets, Error> {
    let epoch = table.bucket_layout_epoch;
    let template = table.descriptor.bucket_count.map(TotalBuckets);
    let known = match partition {
        Some(_) => TotalBuckets::of_partition(own, template, epoch),
        None => template.filter(|count| count.0 > 0),
    };
    known.ok_or(Error::MissingBucketCount {
        table: table.table_id,
        partition,
        epoch,
    })
}

fn read_table(table: &proto::PbTableMetadata) -> Result<TableMetadata, Error> {
    let path = TablePath::new(
        &table.table_path.database_name,
        &table.table_path.table_name,
    );
    let descriptor = TableDescriptor::from_json(&table.table_json)
        .map_err(|source| Error::codec(format!("descriptor of {path}"), source))?;
    Ok(TableMetadata {
        path,
        table_id: TableId(table.table_id),
        schema_id: SchemaId(table.schema_id),
        descriptor: Arc::new(descriptor),
        bucket_layout_epoch: table.bucket_count_epoch.unwrap_or(0),
        buckets: read_buckets(&table.bucket_metadata),
    })
}

fn read_partition(partition: &proto::PbPartitionMetadata) -> PartitionMetadata {
    PartitionMetadata {
        table_id: TableId(partition.table_id),
        partition_id: PartitionId(partition.partition_id),
        name: partition.partition_name.clone(),
        bucket_count: partition.bucket_count.map(TotalBuckets),
        buckets: read_buckets(&partition.bucket_metadata),
    }
}

fn read_buckets(buckets: &[proto::PbBucketMetadata]) -> BTreeMap<BucketId, BucketLeader> {
    let leader = |bucket: &proto::PbBucketMetadata| BucketLeader {
        // −1 is how some servers say "none".
        leader: bucket.leader_id.filter(|id| *id >= 0).map(ServerId),
        epoch: bucket.leader_epoch.map(LeaderEpoch),
    };
    buckets
        .iter()
        .map(|bucket| (BucketId(bucket.bucket_id), leader(bucket)))
        .collect()
}

/// The cache of a client: the newest [`Cluster`].
#[derive(Debug, Default)]
pub(crate) struct Metadata {
    cluster: RwLock<Arc<Cluster>>,
    /// Held while the next picture is made, so that readers wait for its exchange alone.
    changing: Mutex<()>,
}

impl Metadata {
    /// Replaces the picture by a changed one, unless the change fails.
    fn change(
        &self,
        change: impl FnOnce(&mut Cluster) -> Result<(), Error>,
    ) -> Result<Arc<Cluster>, Error> {
        let _changing = self.changing.lock();
        let mut cluster = Cluster::clone(&self.cluster.read());
        change(&mut cluster)?;
        let cluster = Arc::new(cluster);
        *self.cluster.write() = Arc::clone(&cluster);
        Ok(cluster)
    }
}

/// What to ask GET_METADATA for; empty asks who is in the cluster.
#[derive(Clone, Debug, Default)]
pub struct MetadataQuery {
    /// Tables by path.
    pub tables: Vec<TablePath>,
    /// Partitions by path.
    pub partitions: Vec<PhysicalTablePath>,
    /// Partitions by id, of tables in `tables`.
    pub partition_ids: Vec<PartitionId>,
}

impl Client {
    /// The picture of the cluster as of now; it does not change under the caller.
    pub fn cluster(&self) -> Arc<Cluster> {
        Arc::clone(&self.inner.metadata.cluster.read())
    }

    /// Asks for the servers of the cluster.
    pub async fn refresh_cluster(&self) -> Result<Arc<Cluster>, Error> {
        self.refresh(&MetadataQuery::default()).await
    }

    /// Asks for servers, tables and partitions, and merges the answer into the picture.
    ///
    /// # Errors
    /// 7 of an unknown table, 36 of an unknown partition: one bad name fails the whole request.
    /// [`Error::NoServer`] while no tablet server has registered.
    pub async fn refresh(&self, query: &MetadataQuery) -> Result<Arc<Cluster>, Error> {
        let partition = |path: &PhysicalTablePath| proto::PbPhysicalTablePath {
            database_name: path.table.database.clone(),
            table_name: path.table.table.clone(),
            partition_name: path.partition.clone(),
        };
        let request = proto::MetadataRequest {
            table_path: query.tables.iter().map(wire_path).collect(),
            partitions_path: query.partitions.iter().map(partition).collect(),
            partitions_id: query.partition_ids.iter().map(|id| id.0).collect(),
        };
        let answer = self.any_server(request).await?;
        if answer.tablet_servers.is_empty() {
            // A cluster that has just started: they are yet to register.
            let role = ServerRole::Tablet;
            return Err(Error::NoServer { role });
        }
        self.inner.metadata.change(|cluster| cluster.merge(&answer))
    }

    /// A table's metadata, from the cache or asked for.
    pub async fn table_metadata(&self, path: &TablePath) -> Result<Arc<TableMetadata>, Error> {
        if let Some(table) = self.cluster().table(path) {
            return Ok(Arc::clone(table));
        }
        self.refresh_table(path).await
    }

    /// A table's metadata, asked for now.
    pub async fn refresh_table(&self, path: &TablePath) -> Result<Arc<TableMetadata>, Error> {
        let query = MetadataQuery {
            tables: vec![path.clone()],
            ..Default::default()
        };
        let cluster = self.refresh(&query).await?;
        let missing = Error::Incomplete {
            api: ApiKey::GetMetadata,
            missing: "the table",
        };
        cluster.table(path).map(Arc::clone).ok_or(missing)
    }

    /// A partition's metadata, from the cache or asked for; 36 if there is none of that name.
    pub async fn partition_metadata(
        &self,
        path: &PhysicalTablePath,
    ) -> Result<Arc<PartitionMetadata>, Error> {
        let name = path.partition.clone().unwrap_or_default();
        let found = |cluster: &Cluster| {
            let table = cluster.table(&path.table)?;
            cluster.partition(table.table_id, &name).map(Arc::clone)
        };
        if let Some(partition) = found(&self.cluster()) {
            return Ok(partition);
        }
        let query = MetadataQuery {
            tables: vec![path.table.clone()],
            partitions: vec![path.clone()],
            ..Default::default()
        };
        let cluster = self.refresh(&query).await?;
        let missing = Error::Incomplete {
            api: ApiKey::GetMetadata,
            missing: "the partition",
        };
        found(&cluster).ok_or(missing)
    }

    /// The leader of a bucket of `path`, from the cache or asked for.
    ///
    /// # Errors
    /// [`Error::NoLeader`] while there is none, [`Error::TableReplaced`] if the path has moved on.
    pub async fn leader(&self, path: &TablePath, bucket: TableBucket) -> Result<ServerId, Error> {
        if let Some(leader) = self.cluster().leader(bucket) {
            return Ok(leader);
        }
        let partitions = bucket.partition.into_iter().collect();
        let cluster = self.refresh_buckets(path, bucket.table, partitions).await?;
        cluster.leader(bucket).ok_or(Error::NoLeader { bucket })
    }

    /// Asks for the leaders of a table, or of some of its partitions.
    ///
    /// # Errors
    /// [`Error::TableReplaced`] if the path now names another table than `table`.
    pub async fn refresh_buckets(
        &self,
        path: &TablePath,
        table: TableId,
        partitions: Vec<PartitionId>,
    ) -> Result<Arc<Cluster>, Error> {
        let query = MetadataQuery {
            tables: vec![path.clone()],
            partition_ids: partitions,
            ..Default::default()
        };
        let cluster = self.refresh(&query).await?;
        match cluster.table(path).map(|table| table.table_id) {
            Some(found) if found != table => Err(Error::TableReplaced {
                expected: table,
                found,
            }),
            _ => Ok(cluster),
        }
    }

    /// As [`Client::refresh_buckets`], with a result per partition: one bad name fails a whole
    /// request, so they are asked for one by one then. `None` stands for a table without partitions.
    pub(crate) async fn refresh_each(
        &self,
        path: &TablePath,
        table: TableId,
        partitions: &BTreeSet<Option<PartitionId>>,
    ) -> BTreeMap<Option<PartitionId>, Result<(), Error>> {
        let all = partitions.iter().copied().flatten().collect();
        let result = self.refresh_buckets(path, table, all).await.map(drop);
        let unknown = |error: &Error| error.code() == Some(ErrorCode::PartitionNotExists);
        if !result.as_ref().is_err_and(unknown) {
            return partitions.iter().map(|id| (*id, result.clone())).collect();
        }
        let mut results = BTreeMap::new();
        for &partition in partitions {
            let ids = partition.into_iter().collect();
            let result = self.refresh_buckets(path, table, ids).await.map(drop);
            results.insert(partition, result);
        }
        results
    }

    /// Forgets a table with its partitions; the next call that needs it asks again.
    pub fn invalidate(&self, path: &TablePath) {
        let forget = |cluster: &mut Cluster| {
            if let Some(table) = cluster.table_ids.remove(path) {
                cluster.forget(table);
            }
            Ok(())
        };
        // Forgetting fails in no way.
        drop(self.inner.metadata.change(forget));
    }
}

/// A path as the wire has it.
pub(crate) fn wire_path(path: &TablePath) -> proto::PbTablePath {
    proto::PbTablePath {
        database_name: path.database.clone(),
        table_name: path.table.clone(),
    }
}

/// What the wire's path means.
pub(crate) fn read_path(path: &proto::PbTablePath) -> TablePath {
    TablePath::new(&path.database_name, &path.table_name)
}

#[cfg(test)]
mod tests;
