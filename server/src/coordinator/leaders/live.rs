//! What was activated, and which of its activations counts.

use std::collections::{BTreeMap, HashMap};

use weir_protocol::ids::{BucketId, PartitionId, ServerId, TableId};

use super::Group;

/// Names the buckets of an unpartitioned table or of one partition.
pub(crate) type GroupKey = (TableId, Option<PartitionId>);

/// What was activated and not dropped since.
#[derive(Debug, Default)]
pub(super) struct Live {
    pub(super) groups: HashMap<GroupKey, LiveGroup>,
    /// Counts activations: an earlier one has no say in what a later one does.
    activations: u64,
}

/// Buckets whose servers were told of them.
#[derive(Debug)]
pub(super) struct LiveGroup {
    pub(super) activation: u64,
    pub(super) assignment: Assignment,
    /// They are not led for a moment; their data stays.
    pub(super) is_stopped: bool,
}

/// The servers of each bucket.
pub(crate) type Assignment = BTreeMap<BucketId, Vec<ServerId>>;

/// What became of an activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It is the newest.
    Stands,
    /// The buckets were stopped, or activated again.
    Superseded,
    /// The buckets were dropped.
    Dropped,
}

impl Live {
    /// Begins an activation and returns its number.
    pub(super) fn begin(&mut self, group: &Group) -> u64 {
        self.activations += 1;
        let activation = self.activations;
        let begun = LiveGroup {
            activation,
            assignment: group.assignment.clone(),
            is_stopped: false,
        };
        self.groups.insert(group.key(), begun);
        activation
    }
}
