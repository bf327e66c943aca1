//! Maintenance of lake tables, off the path of rounds: old snapshots and old partitions go, where
//! the table (`table.datalake.auto-expire-snapshot`) or the daemon says so.
//!
//! A run begins after a round has committed, at most one a table and only so often, beside the
//! rounds. What goes wrong is the table's own warning; it neither fails nor delays a round.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinSet;
use weir_catalog::clock::Clock;
use weir_lake_format::expire::{ExpireRequest, KeptBy, Retention};
use weir_lake_format::partition_expiry::{PartitionExpiry, PartitionExpiryRequest};
use weir_lake_format::{Snapshot, TableOptions};
use weir_protocol::ids::{TableId, TablePath};

use crate::cluster::TieringClient;
use crate::committer::COMMIT_USER;
use crate::config::MaintenanceConfig;
use crate::error::{Result, sentence};
use crate::lake_table::{LakeTable, Warehouse};
use crate::ranges;
use crate::wall::{local_ms, unique_name};

/// The commit user of partition expiry: another than that of tiering, whose newest snapshot tells
/// what was tiered.
pub const MAINTENANCE_USER: &str = "weir-maintenance";

/// The property by which a table asks for it (reference).
const AUTO_EXPIRE: &str = "table.datalake.auto-expire-snapshot";

/// Tables that are maintained at the same time.
const MAX_RUNNING: usize = 4;

/// Steps of [`Retention::limit`] snapshots that one run may take.
const MAX_STEPS: usize = 20;

/// The maintenance of all tables.
#[derive(Debug)]
pub(crate) struct Maintenance {
    client: Arc<dyn TieringClient>,
    warehouse: Warehouse,
    clock: Arc<dyn Clock>,
    config: MaintenanceConfig,
    tables: Arc<Mutex<HashMap<TableId, State>>>,
    running: JoinSet<()>,
}

/// What is known of one table.
#[derive(Debug, Default)]
struct State {
    is_running: bool,
    begun_ms: Option<i64>,
    partitions_checked_ms: Option<i64>,
    warning: Option<String>,
    expired_snapshots: u64,
    failures: u64,
}

/// What maintenance did so far, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) expired_snapshots: u64,
    pub(crate) failures: u64,
}

impl Maintenance {
    pub(crate) fn new(
        client: Arc<dyn TieringClient>,
        warehouse: Warehouse,
        clock: Arc<dyn Clock>,
        config: MaintenanceConfig,
    ) -> Self {
        Self {
            client,
            warehouse,
            clock,
            config,
            tables: Arc::default(),
            running: JoinSet::new(),
        }
    }

    /// A round of the table has committed: it is maintained now if it is time.
    pub(crate) fn committed(&mut self, path: &TablePath, table: TableId, snapshot: i64) {
        while self.running.try_join_next().is_some() {}
        let now_ms = self.clock.now_ms();
        let interval_ms = i64::try_from(self.config.interval_ms).unwrap_or(i64::MAX);
        let partitions_checked_ms = {
            let mut tables = self.tables.lock();
            let state = tables.entry(table).or_default();
            let is_early = state
                .begun_ms
                .is_some_and(|begun_ms| now_ms < begun_ms.saturating_add(interval_ms));
            if state.is_running || is_early || self.running.len() >= MAX_RUNNING {
                return;
            }
            state.is_running = true;
            state.begun_ms = Some(now_ms);
            state.partitions_checked_ms
        };
        let run = Run {
            client: Arc::clone(&self.client),
            warehouse: self.warehouse.clone(),
            clock: Arc::clone(&self.clock),
            expires_all: self.config.auto_expire_snapshot,
            path: path.clone(),
            table,
            registered: snapshot,
            partitions_checked_ms,
        };
        let deadline = Duration::from_millis(self.config.timeout_ms);
        // Whatever becomes of the run, even a panic, the table may have another one.
        let tables = Arc::clone(&self.tables);
        self.running.spawn(async move {
            let path = run.path.clone();
            let mut ending = Ending {
                tables,
                table,
                outcome: Err("maintenance broke".to_owned()),
            };
            ending.outcome = match tokio::time::timeout(deadline, run.run()).await {
                Ok(Ok(done)) => Ok(done),
                Ok(Err(error)) => Err(format!("maintenance failed: {}", sentence(&error))),
                Err(_) => Err(format!("maintenance took longer than {deadline:?}")),
            };
            if let Err(warning) = &ending.outcome {
                tracing::warn!(table = %path, warning, "the table's maintenance is tried again later");
            }
        });
    }

    /// What went wrong with the last run of a table.
    pub(crate) fn warning(&self, table: TableId) -> Option<String> {
        self.tables.lock().get(&table)?.warning.clone()
    }

    pub(crate) fn counts(&self, table: TableId) -> Counts {
        let tables = self.tables.lock();
        tables
            .get(&table)
            .map_or_else(Counts::default, |state| Counts {
                expired_snapshots: state.expired_snapshots,
                failures: state.failures,
            })
    }

    /// A table is gone.
    pub(crate) fn forget(&self, table: TableId) {
        self.tables.lock().remove(&table);
    }

    /// Ends what is under way; the next run of the table finishes it.
    pub(crate) async fn end(&mut self) {
        self.running.shutdown().await;
    }
}

/// What a run did.
#[derive(Clone, Debug, Default)]
struct Done {
    snapshots: u64,
    partitions_checked_ms: Option<i64>,
    warning: Option<String>,
}

/// Notes down how a run ended, when it is dropped.
struct Ending {
    tables: Arc<Mutex<HashMap<TableId, State>>>,
    table: TableId,
    outcome: std::result::Result<Done, String>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        let mut tables = self.tables.lock();
        // Forgotten meanwhile: it stays so.
        let Some(state) = tables.get_mut(&self.table) else {
            return;
        };
        state.is_running = false;
        match &self.outcome {
            Ok(done) => {
                state.expired_snapshots += done.snapshots;
                state.warning.clone_from(&done.warning);
                if done.partitions_checked_ms.is_some() {
                    state.partitions_checked_ms = done.partitions_checked_ms;
                }
            }
            Err(warning) => {
                state.failures += 1;
                state.warning = Some(warning.clone());
            }
        }
    }
}

/// One run of one table.
struct Run {
    client: Arc<dyn TieringClient>,
    warehouse: Warehouse,
    clock: Arc<dyn Clock>,
    expires_all: bool,
    path: TablePath,
    table: TableId,
    registered: i64,
    partitions_checked_ms: Option<i64>,
}

impl Run {
    async fn run(&self) -> Result<Done> {
        let info = self.client.table_info(&self.path).await?;
        let asks = info.properties.get(AUTO_EXPIRE);
        let asks = asks.is_some_and(|value| value.eq_ignore_ascii_case("true"));
        if info.id != self.table || !(asks || self.expires_all) {
            return Ok(Done::default());
        }
        let lake = self.warehouse.table(&self.path, &info.properties).await?;
        let mut done = Done::default();
        self.expire_partitions(&lake, &mut done).await?;
        self.expire_snapshots(&lake, &mut done).await?;
        Ok(done)
    }

    async fn expire_partitions(&self, lake: &LakeTable, done: &mut Done) -> Result<()> {
        let failed = |error| lake.error(error);
        let Some(expiry) = PartitionExpiry::of(&lake.schema).map_err(failed)? else {
            return Ok(());
        };
        let now_ms = self.clock.now_ms();
        let interval_ms = i64::try_from(expiry.check_interval.as_millis()).unwrap_or(i64::MAX);
        let is_early = self
            .partitions_checked_ms
            .is_some_and(|checked_ms| now_ms < checked_ms.saturating_add(interval_ms));
        if is_early {
            return Ok(());
        }
        let request = PartitionExpiryRequest {
            expiry: &expiry,
            commit_user: MAINTENANCE_USER,
            uuid: &unique_name(),
            now_ms,
            local_now_ms: local_ms(now_ms),
        };
        let expired = lake.table.expire_partitions(&request).await;
        let expired = expired.map_err(failed)?;
        done.partitions_checked_ms = Some(now_ms);
        if let Some(snapshot) = &expired.snapshot {
            tracing::info!(
                table = %self.path,
                snapshot = snapshot.id,
                partitions = expired.partitions.join(" "),
                rows = expired.rows,
                "old partitions were dropped from the lake"
            );
        }
        done.warning = expired.without_time.map(|(first, count)| {
            format!(
                "{count} partitions say no time and never expire, such as {first}: see the lake \
                 table's partition.timestamp-pattern and partition.timestamp-formatter"
            )
        });
        Ok(())
    }

    async fn expire_snapshots(&self, lake: &LakeTable, done: &mut Done) -> Result<()> {
        let failed = |error| lake.error(error);
        let options = TableOptions::new(&lake.schema.options);
        let retention = Retention::of(options).map_err(failed)?;
        let own_files = |snapshot: &Snapshot| ranges::file_of(&lake.table, snapshot);
        for _ in 0..MAX_STEPS {
            let request = ExpireRequest {
                retention: &retention,
                keep_newest_of: COMMIT_USER,
                keep_from: Some(self.registered),
                now_ms: self.clock.now_ms(),
                own_files: &own_files,
            };
            let expired = lake.table.expire(&request).await.map_err(failed)?;
            done.snapshots += u64::try_from(expired.snapshots.len()).unwrap_or(0);
            if expired.kept_by != KeptBy::Limit || expired.snapshots.is_empty() {
                return Ok(());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
