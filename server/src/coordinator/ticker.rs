//! What happens by the clock: partitions of auto-partitioned tables, old offsets files.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use weir_catalog::auto_partition::{self, KnownPartition, Progress};
use weir_catalog::catalog::{IfExists, IfMissing, Partition, Table};
use weir_catalog::ddl::properties::TableProperties;
use weir_protocol::ids::{BucketId, LogOffset, TableBucket};
use weir_protocol::partition::PartitionSpec;

use super::Coordinator;
use super::activation::Wanted;
use crate::error::Error;

/// How often old offsets files are looked for.
const DISCARD_CHECK: Duration = Duration::from_mins(1);

impl Coordinator {
    /// Looks after all auto-partitioned tables from time to time, until the shutdown begins.
    pub(crate) async fn auto_partition_loop(self: Arc<Self>) {
        let every = Duration::from_millis(self.parts.config.auto_partition_check_ms);
        loop {
            tokio::select! {
                biased;
                () = self.parts.shutdown.begun() => return,
                () = tokio::time::sleep(every) => {}
            }
            if let Err(error) = self.auto_partition_all().await {
                tracing::warn!(%error, "auto-partitioned tables were not all looked at");
            }
        }
    }

    /// Removes old offsets files from time to time, until the shutdown begins.
    pub(crate) async fn discard_loop(self: Arc<Self>) {
        if let Err(error) = self.sweep_offsets_files().await {
            tracing::warn!(%error, "offsets files that nothing names may be left");
        }
        loop {
            tokio::select! {
                biased;
                () = self.parts.shutdown.begun() => return,
                () = tokio::time::sleep(DISCARD_CHECK) => {}
            }
            self.remove_discarded().await;
        }
    }

    async fn auto_partition_all(self: &Arc<Self>) -> Result<(), Error> {
        let mut tables = BTreeSet::new();
        for path in self.parts.reads.all_tables().await? {
            match self.parts.reads.table(&path).await {
                Ok(table) => {
                    tables.insert(table.table_id);
                    self.auto_partition(&table).await;
                }
                Err(error) => tracing::debug!(table = %path, %error, "a table was left out"),
            }
        }
        self.parts.metrics.held.keep(&tables);
        Ok(())
    }

    /// Creates the partitions that are due and drops those past retention. A failure is logged:
    /// one table never keeps another waiting.
    pub(super) async fn auto_partition(self: &Arc<Self>, table: &Table) {
        if let Err(error) = self.try_auto_partition(table).await {
            tracing::warn!(table = %table.path, %error, "partitions were not created or dropped");
        }
    }

    async fn try_auto_partition(self: &Arc<Self>, table: &Table) -> Result<(), Error> {
        if !table.descriptor.is_partitioned() {
            return Ok(());
        }
        let keys = &table.descriptor.partition_keys;
        let properties = TableProperties::new(&table.path, &table.descriptor.properties);
        let rule = properties.auto_partition(keys)?;
        if !rule.is_enabled {
            return Ok(());
        }
        let (_, partitions) = self.parts.reads.partitions(&table.path).await?;
        let now_ms = self.parts.clock.now_ms();
        let lake_ends = self.lake_ends_of(table).await?;
        let oldest_kept = rule.oldest_kept(now_ms);
        let mut known = Vec::with_capacity(partitions.len());
        for partition in &partitions {
            let unknown = KnownPartition::new(&rule, partition, Progress::Unknown);
            // Only those that may go need to be asked about.
            let is_old = oldest_kept
                .as_ref()
                .is_some_and(|oldest| unknown.time < *oldest);
            let progress = match &lake_ends {
                None => Progress::NoLake,
                Some(_) if !is_old => Progress::Unknown,
                Some(lake_ends) => self.progress(table, partition, lake_ends).await,
            };
            known.push(KnownPartition {
                progress,
                ..unknown
            });
        }
        let plan = auto_partition::plan(now_ms, &rule, keys.len(), &known);
        let waits = |one: &&KnownPartition| {
            let is_old = oldest_kept
                .as_ref()
                .is_some_and(|oldest| one.time < *oldest);
            is_old && !one.progress.is_complete()
        };
        let waiting = known.iter().filter(waits).map(|one| one.id).collect();
        self.parts.metrics.held.set_waiting(table.table_id, waiting);
        if plan.waiting > 0 {
            tracing::info!(table = %table.path, count = plan.waiting,
                "partitions past retention stay until their rows are in the lake");
        }
        let gone = partitions.iter().filter(|one| plan.drop.contains(&one.id));
        let mut result = Ok(());
        for partition in gone {
            let dropped = self.drop_by_age(table, partition, lake_ends.as_ref()).await;
            result = result.and(dropped);
        }
        for name in plan.create {
            let spec = PartitionSpec::from_name(keys, &name)?;
            self.create_partition(&table.path, &spec, IfExists::Ignore)
                .await?;
            self.parts.metrics.partitions_created.inc();
            tracing::info!(table = %table.path, partition = name, "partition created in advance");
        }
        result
    }

    /// How far each bucket is in the lake; `None` for a table that is not tiered.
    async fn lake_ends_of(&self, table: &Table) -> Result<Option<LakeEnds>, Error> {
        if !self.parts.reads.settings_of(table)?.is_lake_enabled {
            return Ok(None);
        }
        let reads = &self.parts.reads;
        let lake_ends = reads.lake_ends(&table.path, table.table_id).await?;
        Ok(Some(lake_ends))
    }

    /// Drops a partition, unless rows came that are not in the lake: nobody can append while that is
    /// looked at, and if it stays it is led again.
    async fn drop_by_age(
        self: &Arc<Self>,
        table: &Table,
        partition: &Partition,
        lake_ends: Option<&LakeEnds>,
    ) -> Result<(), Error> {
        let turn = self.turns.take((table.table_id, Some(partition.id))).await;
        let dropped = self.try_drop_by_age(table, partition, lake_ends).await;
        drop(turn);
        match dropped {
            Ok(true) => {
                self.parts.metrics.partitions_dropped.inc();
                tracing::info!(table = %table.path, partition = partition.name, "partition dropped by age");
                return Ok(());
            }
            Ok(false) => tracing::info!(table = %table.path, partition = partition.name,
                "rows came while the partition was to be dropped: it stays"),
            Err(_) => {}
        }
        self.bring(Wanted::partition(table.clone(), partition.clone()));
        dropped.map(drop)
    }

    /// Whether the partition is gone. Called in its turn.
    async fn try_drop_by_age(
        &self,
        table: &Table,
        partition: &Partition,
        lake_ends: Option<&LakeEnds>,
    ) -> Result<bool, Error> {
        let (table_id, id) = (table.table_id, partition.id);
        if let Some(lake_ends) = lake_ends {
            let log_ends = self.parts.leaders.stop((table_id, Some(id))).await;
            if !progress_of(table, partition, lake_ends, &log_ends).is_complete() {
                return Ok(false);
            }
        }
        let catalog = &self.parts.catalog;
        let found = catalog.find_partition(&table.path, &partition.name).await?;
        if found.is_none_or(|found| found.id != id) {
            // Somebody else dropped it.
            return Ok(true);
        }
        catalog
            .drop_partition(&table.path, &partition.spec, IfMissing::Ignore)
            .await?;
        self.clear_partition(table_id, id).await?;
        Ok(true)
    }

    /// How far each bucket of a partition is in the lake, of how much there is.
    async fn progress(
        &self,
        table: &Table,
        partition: &Partition,
        lake_ends: &LakeEnds,
    ) -> Progress {
        let (id, count) = (Some(partition.id), partition.bucket_count);
        let log_ends = self.parts.leaders.log_ends(table.table_id, id, count).await;
        progress_of(table, partition, lake_ends, &log_ends)
    }
}

type LakeEnds = BTreeMap<TableBucket, LogOffset>;

fn progress_of(
    table: &Table,
    partition: &Partition,
    lake_ends: &LakeEnds,
    log_ends: &BTreeMap<BucketId, LogOffset>,
) -> Progress {
    let mut ends = Vec::new();
    for bucket in (0..partition.bucket_count.0).map(BucketId) {
        let key = TableBucket {
            table: table.table_id,
            partition: Some(partition.id),
            bucket,
        };
        let Some(log_end) = log_ends.get(&bucket) else {
            return Progress::Unknown;
        };
        ends.push((lake_ends.get(&key).copied(), *log_end));
    }
    Progress::Buckets(ends)
}
