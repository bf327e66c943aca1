//! The right to tier a table, and the epochs that fence it.

use std::fmt;

use weir_protocol::ids::{CoordinatorEpoch, TableId, TablePath, TieringEpoch};

/// Under which epochs a worker holds a table; compared lexicographically, coordinator first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Epochs {
    /// The coordinator's epoch when the table was handed out.
    pub coordinator: CoordinatorEpoch,
    /// The table's tiering epoch.
    pub tiering: TieringEpoch,
}

impl fmt::Display for Epochs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({}, {})", self.coordinator, self.tiering)
    }
}

/// The right to tier a table, as the coordinator handed it out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The table.
    pub table: TableId,
    /// Its path.
    pub path: TablePath,
    /// The epochs that fence the lease.
    pub epochs: Epochs,
}
