//! The coordinator: changes what exists, decides who leads, schedules tiering.
//!
//! Metadata is changed first, in fenced transactions; servers are told after. Whatever a crash
//! between the two leaves undone is done at the next start.

mod activation;
mod bucket_counts;
mod lake;
mod leaders;
mod rounds;
mod start;
mod sweep;
mod tags;
mod ticker;
pub(crate) mod tiering;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use weir_catalog::Catalog;
use weir_catalog::catalog::{
    Contents, Created, DatabaseChange, IfExists, IfMissing, NewPartition, NewTable, Table,
};
use weir_catalog::clock::Clock;
use weir_catalog::ddl::TableChange;
use weir_catalog::offsets_files::OffsetsFiles;
use weir_catalog::store::Fence;
use weir_protocol::descriptor::{DatabaseDescriptor, TableDescriptor};
use weir_protocol::ids::{ServerId, TableId, TablePath};
use weir_protocol::partition::PartitionSpec;

pub(crate) use leaders::{Group, Leaders};
pub(crate) use rounds::{Rounds, RoundsParts};
pub(crate) use start::LogFolders;

use activation::{Turns, Wanted, is_unknown};

use crate::cluster::MetadataCache;
use crate::config::ServerConfig;
use crate::error::Error;
use crate::metrics::Metrics;
use crate::reads::Reads;
use crate::shutdown::Shutdown;
use crate::tablet::KeyRules;

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
    /// What follows a change of metadata is done one after the other.
    turns: Turns,
    /// Tables whose lake may have another bucket count than they have.
    uneven: Mutex<BTreeSet<TablePath>>,
    /// Offsets files that nothing names any more, oldest first.
    discarded: Mutex<VecDeque<lake::Discarded>>,
    /// Offsets files whose offsets may be below those recorded, newest last.
    resets: Mutex<VecDeque<String>>,
}

impl Coordinator {
    pub(crate) fn new(parts: Parts) -> Arc<Self> {
        let (paths, turns, uneven, discarded, resets) = Default::default();
        Arc::new(Self {
            parts,
            paths,
            turns,
            uneven,
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

    /// Drops a database, maybe with its tables, and then their logs: all that can be removed.
    ///
    /// # Errors
    /// The first failure.
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
        let mut result = Ok(());
        for (_, table, partitions) in dropped.tables {
            let finished = self.finish_table_drop(table, &partitions).await;
            result = result.and(finished);
        }
        result
    }

    /// Creates a table and waits a while for its leaders.
    pub(crate) async fn create_table(
        self: &Arc<Self>,
        path: &TablePath,
        descriptor: &TableDescriptor,
        if_exists: IfExists,
    ) -> Result<(), Error> {
        if descriptor.schema.has_primary_key() {
            KeyRules::check_new(path, descriptor)?;
        }
        let request = NewTable {
            path,
            descriptor,
            servers: &self.parts.servers,
        };
        let created = self.parts.catalog.create_table(request, if_exists).await;
        let created = created.map_err(Error::from);
        let table = match created.inspect_err(|error| self.look_after(path, None, error))? {
            Created::New(table) => table,
            // An earlier attempt may have ended before it was served.
            Created::Existing(table) if self.is_brought(&table, None) => return Ok(()),
            Created::Existing(table) => table,
        };
        self.bring_and_wait(Wanted::table(table.clone(), 0)).await;
        self.auto_partition(&table).await;
        Ok(())
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
        let changed = self.change_table(path, changes, if_missing).await;
        if matches!(&changed, Err(error) if !is_unknown(error)) {
            return changed;
        }
        // If nobody knows whether it changed, servers are told all the same what is there.
        let table = match self.parts.reads.table(path).await {
            Err(Error::Catalog(weir_catalog::Error::TableNotExist { .. })) => return changed,
            Err(error) => return changed.and(Err(error)),
            Ok(table) => table,
        };
        self.bring_and_wait(Wanted::table(table.clone(), 0)).await;
        self.auto_partition(&table).await;
        changed
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
            .await;
        let uncertain = |error: &Error| self.look_after(path, Some(spec.name()), error);
        let created = created.map_err(Error::from).inspect_err(uncertain)?;
        let table = self.parts.reads.table(path).await;
        let table = table.inspect_err(uncertain)?;
        let partition = match created {
            Created::New(partition) => partition,
            Created::Existing(partition) if self.is_brought(&table, Some(partition.id)) => {
                return Ok(());
            }
            Created::Existing(partition) => partition,
        };
        self.bring_and_wait(Wanted::partition(table, partition))
            .await;
        Ok(())
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
