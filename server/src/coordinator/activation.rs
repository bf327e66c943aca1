//! What exists gets its leaders, however often it takes; of what is dropped nothing stays.
//!
//! What follows a change of metadata is done in turns, one at a time for each table and each partition,
//! and begins by looking again at what exists: a drop that comes between leaves nothing behind.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedMutexGuard, watch};
use weir_catalog::catalog::{Partition, Table};
use weir_protocol::ids::{PartitionId, PhysicalTablePath, TableId, TablePath};

use super::leaders::{Activation, GroupKey};
use super::{Coordinator, Group};
use crate::error::Error;

/// How long a request waits for the leaders of what it made; they become ready later all the same.
const ACTIVATION_WAIT: Duration = Duration::from_secs(10);
/// The first wait after a failure; it doubles from there.
const FIRST_RETRY: Duration = Duration::from_millis(500);
/// The longest wait between two attempts.
const LAST_RETRY: Duration = Duration::from_secs(30);

/// How often what an uncertain creation may have made is looked for: for about a minute and a half.
const LOOKS: u32 = 8;

/// A table, or a partition of one, that is to be served.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    table: Table,
    partition: Option<Partition>,
    /// When the table's lake copy was last up to date, relative to now.
    tiered_ms: i64,
}

impl Wanted {
    pub(super) fn table(table: Table, tiered_ms: i64) -> Self {
        Self {
            table,
            partition: None,
            tiered_ms,
        }
    }

    pub(super) fn partition(table: Table, partition: Partition) -> Self {
        Self {
            table,
            partition: Some(partition),
            tiered_ms: 0,
        }
    }

    fn key(&self) -> GroupKey {
        let partition = self.partition.as_ref().map(|partition| partition.id);
        (self.table.table_id, partition)
    }

    /// Whether it has buckets of its own: a partitioned table has none.
    fn has_buckets(&self) -> bool {
        self.partition.is_some() || !self.table.descriptor.is_partitioned()
    }

    /// Its buckets, not assigned to any server yet.
    fn group(&self) -> Group {
        let (table, partition) = (&self.table, self.partition.as_ref());
        Group {
            path: PhysicalTablePath {
                table: table.path.clone(),
                partition: partition.map(|partition| partition.name.clone()),
            },
            table: table.table_id,
            partition: partition.map(|partition| partition.id),
            bucket_count: partition.map_or(table.bucket_count, |one| one.bucket_count),
            bucket_count_epoch: table.bucket_layout_epoch,
            schema: table.schema_id,
            assignment: Default::default(),
        }
    }
}

/// One turn at a time for each table and each partition. Holds only those that somebody has or waits for.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<HashMap<GroupKey, Arc<tokio::sync::Mutex<()>>>>);

impl Turns {
    pub(super) async fn take(&self, key: GroupKey) -> OwnedMutexGuard<()> {
        let turn = {
            let mut turns = self.0.lock();
            turns.retain(|_, turn| Arc::strong_count(turn) > 1);
            Arc::clone(turns.entry(key).or_default())
        };
        turn.lock_owned().await
    }
}

impl Coordinator {
    /// Serves what exists: schedules a lake table, makes leaders. Tried again until it is done, or what
    /// it is about is gone, or the server stops.
    pub(super) fn bring(self: &Arc<Self>, wanted: Wanted) -> Activation {
        let (settle, settled) = watch::channel(false);
        let coordinator = Arc::clone(self);
        self.parts
            .shutdown
            .spawn(async move { coordinator.keep_bringing(wanted, settle).await });
        Activation::of(settled)
    }

    /// Serves what exists and waits a while for its leaders.
    pub(super) async fn bring_and_wait(self: &Arc<Self>, wanted: Wanted) {
        let path = wanted.group().path;
        let settled = self.bring(wanted).settled();
        if tokio::time::timeout(ACTIVATION_WAIT, settled)
            .await
            .is_err()
        {
            tracing::warn!(table = %path, "leaders are not ready yet");
        }
    }

    /// Serves what a creation may have made that failed without anybody knowing whether: who asked for it
    /// may never ask again.
    pub(super) fn look_after(
        self: &Arc<Self>,
        path: &TablePath,
        partition: Option<String>,
        error: &Error,
    ) {
        if !is_unknown(error) {
            return;
        }
        let (coordinator, path) = (Arc::clone(self), path.clone());
        self.parts.shutdown.spawn(async move {
            let mut wait = FIRST_RETRY;
            for _ in 0..LOOKS {
                match coordinator.made(&path, partition.as_deref()).await {
                    Ok(Some(wanted)) => {
                        let (table, id) = (&wanted.table, wanted.key().1);
                        if !coordinator.is_brought(table, id) {
                            coordinator.bring(wanted);
                        }
                        return;
                    }
                    Err(error) if is_final(&error) => return,
                    // It may still be on its way.
                    Ok(None) | Err(_) => {}
                }
                tokio::select! {
                    () = coordinator.parts.shutdown.begun() => return,
                    () = tokio::time::sleep(wait) => wait = (wait * 2).min(LAST_RETRY),
                }
            }
        });
    }

    /// A table, or a partition of one, if it is there.
    async fn made(&self, path: &TablePath, name: Option<&str>) -> Result<Option<Wanted>, Error> {
        let catalog = &self.parts.catalog;
        let Some(table) = catalog.find_table(path).await? else {
            return Ok(None);
        };
        let Some(name) = name else {
            return Ok(Some(Wanted::table(table, 0)));
        };
        let found = catalog.find_partition(path, name).await?;
        Ok(found.map(|partition| Wanted::partition(table, partition)))
    }

    /// Whether a table, or one of its partitions, is served, or was at least begun with.
    pub(super) fn is_brought(&self, table: &Table, partition: Option<PartitionId>) -> bool {
        let is_leaderless = partition.is_none() && table.descriptor.is_partitioned();
        self.paths.lock().contains_key(&table.table_id)
            && (is_leaderless || self.parts.leaders.is_led((table.table_id, partition)))
    }

    async fn keep_bringing(&self, wanted: Wanted, settle: watch::Sender<bool>) {
        if wanted.has_buckets() {
            self.parts
                .leaders
                .announce_leaderless(&wanted.group())
                .await;
        }
        let path = wanted.group().path;
        let mut wait = FIRST_RETRY;
        loop {
            match self.try_bring(&wanted).await {
                Ok(activation) => {
                    if let Some(activation) = activation {
                        activation.settled().await;
                    }
                    settle.send_replace(true);
                    return;
                }
                Err(error) if is_final(&error) => {
                    tracing::error!(table = %path, %error, "it is not served");
                    return;
                }
                Err(error) => tracing::warn!(table = %path, %error, "no leaders yet, trying again"),
            }
            settle.send_replace(true);
            tokio::select! {
                () = self.parts.shutdown.begun() => return,
                () = tokio::time::sleep(wait) => wait = (wait * 2).min(LAST_RETRY),
            }
        }
    }

    /// One attempt; `None` if there is nothing to wait for.
    async fn try_bring(&self, wanted: &Wanted) -> Result<Option<Activation>, Error> {
        let key = wanted.key();
        let _turn = self.turns.take(key).await;
        let Some(wanted) = self.look_again(wanted).await? else {
            self.parts.leaders.forget(key).await;
            return Ok(None);
        };
        if wanted.partition.is_none() {
            self.remember(wanted.table.table_id, &wanted.table.path);
            self.register_tiering(&wanted.table, wanted.tiered_ms)
                .await?;
            self.parts.leaders.announce_table(&wanted.table).await;
        }
        if !wanted.has_buckets() || self.parts.leaders.is_led(key) {
            return Ok(None);
        }
        let found = self.parts.catalog.find_assignment(key.0, key.1).await?;
        let missing = || weir_catalog::Error::Corrupt {
            what: format!("table {}", wanted.table.path),
            reason: "its buckets are assigned to no server".to_owned(),
        };
        let assignment = found.ok_or_else(missing)?.document.buckets;
        let group = Group {
            assignment,
            ..wanted.group()
        };
        Ok(Some(self.parts.leaders.activate(group).await?))
    }

    /// What is wanted, as it is now; `None` if it is gone.
    async fn look_again(&self, wanted: &Wanted) -> Result<Option<Wanted>, Error> {
        let (catalog, path) = (&self.parts.catalog, &wanted.table.path);
        let table = catalog.find_table(path).await?;
        let Some(table) = table.filter(|table| table.table_id == wanted.table.table_id) else {
            return Ok(None);
        };
        let Some(partition) = &wanted.partition else {
            return Ok(Some(Wanted::table(table, wanted.tiered_ms)));
        };
        let found = catalog.find_partition(path, &partition.name).await?;
        let found = found.filter(|found| found.id == partition.id);
        Ok(found.map(|partition| Wanted::partition(table, partition)))
    }

    /// Removes what is left of a table whose metadata is gone, and of its partitions: all that can be.
    ///
    /// # Errors
    /// The first failure.
    pub(super) async fn finish_table_drop(
        &self,
        table: TableId,
        partitions: &[PartitionId],
    ) -> Result<(), Error> {
        let mut result = {
            let _turn = self.turns.take((table, None)).await;
            self.paths.lock().remove(&table);
            self.parts.rounds.remove(table).await;
            self.parts.leaders.forget((table, None)).await;
            self.delete((table, None)).await;
            let finished = self.parts.catalog.finish_table_drop(table).await;
            finished.map_err(Error::from)
        };
        for partition in partitions {
            let finished = self.finish_partition_drop(table, *partition).await;
            result = result.and(finished);
        }
        result
    }

    /// Removes what is left of a partition whose metadata is gone.
    pub(super) async fn finish_partition_drop(
        &self,
        table: TableId,
        partition: PartitionId,
    ) -> Result<(), Error> {
        let _turn = self.turns.take((table, Some(partition))).await;
        self.clear_partition(table, partition).await
    }

    /// As [`Self::finish_partition_drop`], for whoever has the partition's turn.
    pub(super) async fn clear_partition(
        &self,
        table: TableId,
        partition: PartitionId,
    ) -> Result<(), Error> {
        let key = (table, Some(partition));
        self.parts.leaders.forget(key).await;
        self.delete(key).await;
        Ok(self.parts.catalog.finish_partition_drop(partition).await?)
    }

    /// Takes dropped buckets from their servers. What is left over is removed at the next start.
    async fn delete(&self, key: GroupKey) {
        if self.parts.leaders.delete(key).await {
            return;
        }
        // Nobody was told to lead them, but an earlier process may have left their logs.
        match self.parts.catalog.find_assignment(key.0, key.1).await {
            Ok(found) => {
                let buckets = found.map(|found| found.document.buckets);
                let buckets = buckets.unwrap_or_default();
                self.parts.leaders.take_away(key, &buckets).await;
            }
            Err(error) => tracing::warn!(table = %key.0, %error, "dropped data may be left"),
        }
    }
}

/// Whether what was asked for may have been done.
pub(super) fn is_unknown(error: &Error) -> bool {
    use weir_catalog::Error as Catalog;
    matches!(
        error,
        Error::Catalog(Catalog::OutcomeUnknown { .. } | Catalog::Store { .. })
    )
}

/// Whether no further attempt can help: the fault is in what is stored, or another process took over.
fn is_final(error: &Error) -> bool {
    let is_deposed = matches!(error, Error::Catalog(weir_catalog::Error::Fenced { .. }));
    is_deposed || is_of_one_table(error)
}

/// Whether an error lies in what is stored of one table.
pub(super) fn is_of_one_table(error: &Error) -> bool {
    use weir_catalog::Error as Catalog;
    matches!(
        error,
        Error::Catalog(
            Catalog::Corrupt { .. }
                | Catalog::NewerVersion { .. }
                | Catalog::StaleMetadata { .. }
                | Catalog::SchemaNotExist { .. }
                | Catalog::InvalidConfig { .. },
        )
    )
}

#[cfg(test)]
mod tests;
