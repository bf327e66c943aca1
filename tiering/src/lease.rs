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

impl Epochs {
    /// The epochs of a round that a person demands of a table which the coordinator did not hand
    /// out. Epochs of leases begin at 1. Such a round fences nobody and is not fenced: if anyone
    /// commits meanwhile, its base is no longer the newest and it is dropped.
    pub fn without_lease(coordinator: CoordinatorEpoch) -> Self {
        let tiering = TieringEpoch(0);
        Self {
            coordinator,
            tiering,
        }
    }

    /// Whether these are of a round without a lease.
    pub fn is_without_lease(self) -> bool {
        self.tiering == TieringEpoch(0)
    }
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
