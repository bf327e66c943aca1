//! The coordinator: changes what exists, decides who leads, schedules tiering.
//!
//! Metadata is changed first, in fenced transactions; servers are told after. Whatever a crash
//! between the two leaves undone is done at the next start.

mod lake;
mod leaders;
mod rounds;
mod start;
mod tags;
mod ticker;
pub(crate) mod tiering;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use weir_catalog::Catalog;
use weir_catalog::catalog::{
    Contents, Created, DatabaseChange, IfExists, IfMissing, NewPartition, NewTable, Partition,
    Table,
};
use weir_catalog::clock::Clock;
use weir_catalog::ddl::TableChange;
use weir_catalog::offsets_files::OffsetsFiles;
use weir_catalog::store::Fence;
use weir_protocol::descriptor::{DatabaseDescriptor, TableDescriptor};
use weir_protocol::ids::{PartitionId, PhysicalTablePath, ServerId, TableId, TablePath};
use weir_protocol::partition::PartitionSpec;

pub(crate) use leaders::{Group, Leaders};
pub(crate) use rounds::{Rounds, RoundsParts};

use crate::cluster::MetadataCache;
use crate::config::ServerConfig;
use crate::error::Error;
use crate::metrics::Metrics;
use crate::reads::Reads;
use crate::shutdown::Shutdown;

/// How long a create waits for the leaders of what it made; they become ready later all the same.
const ACTIVATION_WAIT: Duration = Duration::from_secs(10);

/// What a coordinator is made of.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) catalog: Catalog,
    pub(crate) fence: Fence,
    pub(crate) reads: Arc<Reads>,
    pub(crate) offsets_files: OffsetsFiles,
    pub(crate) leaders: Arc<Leaders>,
    pub(crate) rounds: Rounds,
    pub(crate) cache: Arc<MetadataCache>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) config: Arc<ServerConfig>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) shutdown: Shutdown,
    pub(crate) servers: Vec<ServerId>,
}

/// The active coordinator of this process.
#[derive(Debug)]
pub(crate) struct Coordinator {
    pub(crate) parts: Parts,
    /// Names of the tables by their ids.
    paths: Mutex<BTreeMap<TableId, TablePath>>,
    /// Offsets files that nothing names any more, oldest first.
    discarded: Mutex<VecDeque<lake::Discarded>>,
    /// Offsets files whose offsets may be below those recorded, newest last.
    resets: Mutex<VecDeque<String>>,
}

impl Coordinator {
    pub(crate) fn new(parts: Parts) -> Arc<Self> {
        let (paths, discarded, resets) = Default::default();
        Arc::new(Self {
            parts,
            paths,
            discarded,
            resets,
        })
    }

    /// Keeps a table's name, for requests that give its id alone.
    fn remember(&self, table: TableId, path: &TablePath) {
        self.paths.lock().insert(table, path.clone());
    }

    pub(crate) async fn create_database(
        &self,
        name: &str,
        descriptor: &DatabaseDescriptor,
        if_exists: IfExists,
    ) -> Result<(), Error> {
        self.parts
            .catalog
            .create_database(name, descriptor, if_exists)
            .await?;
        Ok(())
    }

    pub(crate) async fn alter_database(
        &self,
        name: &str,
        changes: &[DatabaseChange],
        if_missing: IfMissing,
    ) -> Result<(), Error> {
        Ok(self
            .parts
            .catalog
            .alter_database(name, changes, if_missing)
            .await?)
    }

    /// Drops a database, maybe with its tables, and then their logs.
    pub(crate) async fn drop_database(
        &self,
        name: &str,
        if_missing: IfMissing,
        contents: Contents,
    ) -> Result<(), Error> {
        let dropped = self
            .parts
            .catalog
            .drop_database(name, if_missing, contents)
            .await?;
        for (_, table, partitions) in dropped.tables {
            self.finish_table_drop(table, &partitions).await?;
        }
        Ok(())
    }

    /// Creates a table and waits a while for its leaders.
    pub(crate) async fn create_table(
        self: &Arc<Self>,
        path: &TablePath,
        descriptor: &TableDescriptor,
        if_exists: IfExists,
    ) -> Result<(), Error> {
        if descriptor.schema.has_primary_key() {
            return Err(Error::PrimaryKeyTable {
                table: path.clone(),
            });
        }
        let request = NewTable {
            path,
            descriptor,
            servers: &self.parts.servers,
        };
        let created = self.parts.catalog.create_table(request, if_exists).await?;
        let Created::New(table) = created else {
            return Ok(());
        };
        self.remember(table.table_id, path);
        self.register_tiering(&table, 0).await?;
        if table.descriptor.is_partitioned() {
            self.parts.leaders.announce_table(&table).await;
            self.auto_partition(&table).await;
            return Ok(());
        }
        let group = self.group(&table, None).await?;
        self.activate(group).await
    }

    /// Drops a table: its metadata first, then its logs. The lake table stays.
    pub(crate) async fn drop_table(
        &self,
        path: &TablePath,
        if_missing: IfMissing,
    ) -> Result<(), Error> {
        let dropped = self.parts.catalog.drop_table(path, if_missing).await?;
        let Some(dropped) = dropped else {
            return Ok(());
        };
        self.finish_table_drop(dropped.table_id, &dropped.partitions)
            .await
    }

    /// Alters a table, tells the servers, and tells the scheduler its new freshness.
    pub(crate) async fn alter_table(
        self: &Arc<Self>,
        path: &TablePath,
        changes: &[TableChange],
        if_missing: IfMissing,
    ) -> Result<(), Error> {
        self.parts
            .catalog
            .alter_table(path, changes, if_missing)
            .await?;
        let table = match self.parts.reads.table(path).await {
            Err(Error::Catalog(weir_catalog::Error::TableNotExist { .. })) => return Ok(()),
            other => other?,
        };
        self.parts.leaders.announce_table(&table).await;
        self.register_tiering(&table, 0).await?;
        self.auto_partition(&table).await;
        Ok(())
    }

    /// Creates a partition and waits a while for its leaders.
    pub(crate) async fn create_partition(
        self: &Arc<Self>,
        path: &TablePath,
        spec: &PartitionSpec,
        if_exists: IfExists,
    ) -> Result<(), Error> {
        let request = NewPartition {
            path,
            spec,
            servers: &self.parts.servers,
        };
        let created = self
            .parts
            .catalog
            .create_partition(request, if_exists)
            .await?;
        let Created::New(partition) = created else {
            return Ok(());
        };
        let table = self.parts.reads.table(path).await?;
        let group = self.group(&table, Some(&partition)).await?;
        self.activate(group).await
    }

    /// Drops a partition: its metadata first, then its logs. Its rows in the lake stay.
    pub(crate) async fn drop_partition(
        &self,
        path: &TablePath,
        spec: &PartitionSpec,
        if_missing: IfMissing,
    ) -> Result<(), Error> {
        let table = self.parts.reads.table(path).await?;
        let dropped = self
            .parts
            .catalog
            .drop_partition(path, spec, if_missing)
            .await?;
        let Some(partition) = dropped else {
            return Ok(());
        };
        self.finish_partition_drop(table.table_id, partition).await
    }

    async fn activate(&self, group: Group) -> Result<(), Error> {
        let path = group.path.clone();
        let activation = self.parts.leaders.activate(group).await?;
        if tokio::time::timeout(ACTIVATION_WAIT, activation.settled())
            .await
            .is_err()
        {
            tracing::warn!(table = %path, "leaders are not ready yet");
        }
        Ok(())
    }

    /// The buckets of a table, or of one of its partitions, with their count.
    async fn group(&self, table: &Table, partition: Option<&Partition>) -> Result<Group, Error> {
        let id = partition.map(|partition| partition.id);
        let found = self
            .parts
            .catalog
            .find_assignment(table.table_id, id)
            .await?;
        let missing = || weir_catalog::Error::Corrupt {
            what: format!("table {}", table.path),
            reason: "its buckets are assigned to no server".to_owned(),
        };
        Ok(Group {
            path: PhysicalTablePath {
                table: table.path.clone(),
                partition: partition.map(|partition| partition.name.clone()),
            },
            table: table.table_id,
            partition: id,
            bucket_count: partition.map_or(table.bucket_count, |one| one.bucket_count),
            bucket_count_epoch: table.bucket_layout_epoch,
            schema: table.schema_id,
            assignment: found.ok_or_else(missing)?.document.buckets,
        })
    }

    /// Removes what is left of a table whose metadata is gone.
    async fn finish_table_drop(
        &self,
        table: TableId,
        partitions: &[PartitionId],
    ) -> Result<(), Error> {
        self.paths.lock().remove(&table);
        self.parts.rounds.remove(table).await;
        self.parts.leaders.forget_table(table).await;
        for partition in partitions {
            self.finish_partition_drop(table, *partition).await?;
        }
        if let Some(found) = self.parts.catalog.find_assignment(table, None).await? {
            self.parts
                .leaders
                .delete(table, None, &found.document.buckets)
                .await;
        }
        Ok(self.parts.catalog.finish_table_drop(table).await?)
    }

    /// Removes what is left of a partition whose metadata is gone.
    async fn finish_partition_drop(
        &self,
        table: TableId,
        partition: PartitionId,
    ) -> Result<(), Error> {
        self.parts.leaders.forget_partition(table, partition).await;
        let id = Some(partition);
        if let Some(found) = self.parts.catalog.find_assignment(table, id).await? {
            self.parts
                .leaders
                .delete(table, id, &found.document.buckets)
                .await;
        }
        Ok(self.parts.catalog.finish_partition_drop(partition).await?)
    }

    /// Schedules the tiering of a lake table, or stops it; `tiered_ms` is relative to now.
    async fn register_tiering(&self, table: &Table, tiered_ms: i64) -> Result<(), Error> {
        let settings = self.parts.reads.settings_of(table)?;
        if !settings.is_lake_enabled {
            self.parts.rounds.remove(table.table_id).await;
            return Ok(());
        }
        let registration = tiering::Registration {
            path: table.path.clone(),
            freshness_ms: settings.freshness_ms,
            epoch: self.parts.catalog.get_tiering_epoch(table.table_id).await?,
            tiered_ms,
        };
        self.parts
            .rounds
            .register(table.table_id, registration)
            .await;
        Ok(())
    }
}
