//! What happens by the clock: partitions of auto-partitioned tables, old offsets files.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use weir_catalog::auto_partition::{self, AutoPartition, KnownPartition, Progress};
use weir_catalog::catalog::{IfExists, IfMissing, Partition, Table};
use weir_catalog::ddl::properties::TableProperties;
use weir_protocol::ids::{BucketId, LogOffset, TableBucket, TablePath};
use weir_protocol::partition::PartitionSpec;

use super::Coordinator;
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
        for database in self.parts.reads.list_databases().await? {
            for name in self.parts.reads.list_tables(&database).await? {
                let path = TablePath::new(database.clone(), name);
                match self.parts.reads.table(&path).await {
                    Ok(table) => self.auto_partition(&table).await,
                    Err(error) => tracing::debug!(table = %path, %error, "a table was left out"),
                }
            }
        }
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
        let known = self
            .known_partitions(table, &rule, now_ms, &partitions)
            .await?;
        let plan = auto_partition::plan(now_ms, &rule, keys.len(), &known);
        for name in plan.create {
            let spec = PartitionSpec::from_name(keys, &name)?;
            self.create_partition(&table.path, &spec, IfExists::Ignore)
                .await?;
            self.parts.metrics.partitions_created.inc();
            tracing::info!(table = %table.path, partition = name, "partition created in advance");
        }
        if plan.waiting > 0 {
            tracing::info!(table = %table.path, count = plan.waiting,
                "partitions past retention stay until their rows are in the lake");
        }
        for id in plan.drop {
            let Some(gone) = partitions.iter().find(|one| one.id == id) else {
                continue;
            };
            self.drop_partition(&table.path, &gone.spec, IfMissing::Ignore)
                .await?;
            self.parts.metrics.partitions_dropped.inc();
            tracing::info!(table = %table.path, partition = gone.name, "partition dropped by age");
        }
        Ok(())
    }

    async fn known_partitions(
        &self,
        table: &Table,
        rule: &AutoPartition,
        now_ms: i64,
        partitions: &[Partition],
    ) -> Result<Vec<KnownPartition>, Error> {
        let has_lake = self.parts.reads.settings_of(table)?.is_lake_enabled;
        let oldest_kept = rule.oldest_kept(now_ms);
        let lake_ends = if has_lake {
            self.parts
                .reads
                .lake_ends(&table.path, table.table_id)
                .await?
        } else {
            BTreeMap::new()
        };
        let mut known = Vec::with_capacity(partitions.len());
        for partition in partitions {
            let time = partition.spec.get(&rule.key).unwrap_or_default().to_owned();
            // Only those that may go need to be asked about.
            let is_old = oldest_kept.as_ref().is_some_and(|oldest| time < *oldest);
            let progress = match (has_lake, is_old) {
                (false, _) => Progress::NoLake,
                (true, false) => Progress::Unknown,
                (true, true) => self.progress(table, partition, &lake_ends).await?,
            };
            let (id, name) = (partition.id, partition.name.clone());
            known.push(KnownPartition {
                id,
                name,
                time,
                progress,
            });
        }
        Ok(known)
    }

    /// How far each bucket of a partition is in the lake, of how much there is.
    async fn progress(
        &self,
        table: &Table,
        partition: &Partition,
        lake_ends: &BTreeMap<TableBucket, LogOffset>,
    ) -> Result<Progress, Error> {
        let (id, count) = (Some(partition.id), partition.bucket_count);
        let log_ends = self.parts.leaders.log_ends(table.table_id, id, count).await;
        let mut ends = Vec::new();
        for bucket in (0..count.0).map(BucketId) {
            let key = TableBucket {
                table: table.table_id,
                partition: id,
                bucket,
            };
            let Some(log_end) = log_ends.get(&bucket) else {
                return Ok(Progress::Unknown);
            };
            ends.push((lake_ends.get(&key).copied(), *log_end));
        }
        Ok(Progress::Buckets(ends))
    }
}
