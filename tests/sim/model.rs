//! What the world's clients did, and what they were told: the truth that the oracle holds against
//! logs and lake.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use weir_protocol::ids::{TableId, TablePath};

/// A row: who wrote it, and as which of its own.
pub(crate) type RowId = (i64, i64);

/// What is known of a table.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub(crate) path: TablePath,
    pub(crate) id: TableId,
    pub(crate) is_partitioned: bool,
    /// Rows have a bucket by their key.
    pub(crate) is_bucketed: bool,
    pub(crate) is_dropped: bool,
    /// Rows that were handed to a writer, with their partition.
    pub(crate) sent: BTreeMap<RowId, String>,
    /// Rows of which a writer was told that they are in the log.
    pub(crate) acknowledged: BTreeSet<RowId>,
    /// Rows whose partition may have been dropped since they were sent.
    pub(crate) given_up: BTreeSet<RowId>,
    /// Partitions that may be dropped at any moment.
    pub(crate) unsure: BTreeSet<String>,
    /// The bucket counts that partitions of this name were seen with.
    pub(crate) counts: BTreeMap<String, BTreeSet<i32>>,
}

/// The tables there are and were. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Model(Arc<Mutex<BTreeMap<TablePath, Table>>>);

impl Model {
    pub(crate) fn add(&self, table: Table) {
        self.0.lock().insert(table.path.clone(), table);
    }

    /// All tables, dropped ones too.
    pub(crate) fn tables(&self) -> Vec<Table> {
        self.0.lock().values().cloned().collect()
    }

    pub(crate) fn paths(&self) -> Vec<TablePath> {
        let tables = self.0.lock();
        let alive = tables.values().filter(|table| !table.is_dropped);
        alive.map(|table| table.path.clone()).collect()
    }

    pub(crate) fn change<T>(
        &self,
        path: &TablePath,
        change: impl FnOnce(&mut Table) -> T,
    ) -> Option<T> {
        self.0.lock().get_mut(path).map(change)
    }
}

impl Table {
    /// The rows that must be in log or lake.
    pub(crate) fn owed(&self) -> impl Iterator<Item = &RowId> {
        let owed = self.acknowledged.difference(&self.given_up);
        owed.filter(|id| {
            let is_unsure = self
                .sent
                .get(id)
                .is_some_and(|part| self.unsure.contains(part));
            !self.is_dropped && (!self.is_partitioned || !is_unsure)
        })
    }

    /// Rows of this partition that were sent so far are nobody's debt any more.
    pub(crate) fn give_up(&mut self, partition: &str) {
        let rows = self.sent.iter();
        let gone = rows.filter(|(_, of)| *of == partition).map(|(id, _)| *id);
        self.given_up.extend(gone);
    }
}
