//! What commits remember between rounds.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use weir_lake_format::commit::TableCommitter;
use weir_protocol::ids::TableId;

use crate::lake_table::LakeTable;
use crate::lease::{Epochs, Lease};
use crate::worker::floors::Floors;

/// What commits remember of each table, so that the next one need not read its history again.
/// Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Committers {
    idle: Arc<Mutex<HashMap<TableId, TableCommitter>>>,
    /// Tables of which lake and cluster agreed when they were last looked at, with their newest own
    /// snapshot.
    settled: Arc<Mutex<HashMap<TableId, Option<i64>>>>,
    /// Tables whose book of bad records had nothing pending under this lease, and whose policy was
    /// to divert nothing.
    none_pending: Arc<Mutex<HashMap<TableId, Epochs>>>,
    /// The sequence numbers of tables with a primary key.
    floors: Arc<Mutex<HashMap<TableId, Arc<Floors>>>>,
}

impl Committers {
    pub(super) fn take(&self, lake: &LakeTable, table: TableId) -> TableCommitter {
        let idle = self.idle.lock().remove(&table);
        let same = idle.filter(|idle| idle.table().root() == lake.table.root());
        let mut committer = same.unwrap_or_else(|| TableCommitter::new(lake.table.clone()));
        committer.hold_to(&lake.identity);
        committer
    }

    pub(super) fn put_back(&self, table: TableId, committer: TableCommitter) {
        self.idle.lock().insert(table, committer);
    }

    /// Lake and cluster agree on this newest own snapshot of a table.
    pub(crate) fn settle(&self, table: TableId, own: Option<i64>) {
        self.settled.lock().insert(table, own);
    }

    /// Whether lake and cluster agreed when they were last looked at, and no round began since.
    pub(crate) fn is_settled(&self, table: TableId) -> bool {
        self.settled.lock().contains_key(&table)
    }

    /// Whether this is the newest own snapshot on which they agreed.
    pub(crate) fn is_settled_at(&self, table: TableId, own: Option<i64>) -> bool {
        self.settled.lock().get(&table) == Some(&own)
    }

    /// A round begins that may change it.
    pub(crate) fn unsettle(&self, table: TableId) {
        self.settled.lock().remove(&table);
    }

    /// Forgets a table that is gone.
    pub fn forget(&self, table: TableId) {
        self.idle.lock().remove(&table);
        self.unsettle(table);
        self.none_pending.lock().remove(&table);
        self.floors.lock().remove(&table);
    }

    /// The sequence numbers that a table with a primary key has now.
    ///
    /// # Errors
    /// As of the lake's calls.
    pub(crate) async fn floors(
        &self,
        lake: &LakeTable,
        table: TableId,
    ) -> weir_lake_format::Result<Arc<Floors>> {
        let known = self.floors.lock().remove(&table);
        let mut floors = known.unwrap_or_default();
        // Nobody else has them any more: the round before is over.
        Arc::make_mut(&mut floors).advance(lake).await?;
        self.floors.lock().insert(table, Arc::clone(&floors));
        Ok(floors)
    }

    /// Whether the book of bad records need not be read: it had nothing pending when it was read
    /// last, and nobody else held the table since.
    pub(crate) fn has_none_pending(&self, lease: &Lease) -> bool {
        let mut known = self.none_pending.lock();
        let Some(seen) = known.get_mut(&lease.table) else {
            return false;
        };
        let ours = lease.epochs;
        let handed_out = ours.tiering.0.saturating_sub(seen.tiering.0);
        let is_next = ours.coordinator == seen.coordinator && (0..=1).contains(&handed_out);
        if is_next {
            *seen = ours;
        }
        is_next
    }

    /// Remembers whether the book of bad records has nothing pending, nor can get anything.
    pub(crate) fn note_pending(&self, lease: &Lease, has_none: bool) {
        let mut known = self.none_pending.lock();
        if has_none {
            known.insert(lease.table, lease.epochs);
        } else {
            known.remove(&lease.table);
        }
    }
}
