//! Who leads a bucket.

use serde::{Deserialize, Serialize};
use weir_protocol::ids::{CoordinatorEpoch, LeaderEpoch, ServerId};

use super::{Document, Unknown};

/// The leader and the in-sync replicas of a bucket. Version 2 adds `standby_replicas`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LeaderIsr {
    /// The leader; −1 if there is none, see [`Self::leader`].
    pub leader: ServerId,
    /// Raised at each election.
    pub leader_epoch: LeaderEpoch,
    /// Replicas in sync with the leader, the leader among them.
    pub isr: Vec<ServerId>,
    /// The coordinator that decided this.
    pub coordinator_epoch: CoordinatorEpoch,
    /// Raised at each change of leader or in-sync replicas.
    pub bucket_epoch: i32,
    /// Replicas that stand ready to lead.
    #[serde(default)]
    pub standby_replicas: Vec<ServerId>,
    /// Fields we don't know.
    #[serde(flatten)]
    pub unknown: Unknown,
}

impl LeaderIsr {
    /// The first leader of a new bucket, alone in sync or with `isr`.
    pub fn first(
        leader: ServerId,
        isr: Vec<ServerId>,
        coordinator_epoch: CoordinatorEpoch,
    ) -> Self {
        Self {
            leader,
            leader_epoch: LeaderEpoch(0),
            isr,
            coordinator_epoch,
            bucket_epoch: 0,
            standby_replicas: Vec::new(),
            unknown: Unknown::new(),
        }
    }

    /// The leader, if there is one.
    pub fn leader(&self) -> Option<ServerId> {
        (self.leader.0 >= 0).then_some(self.leader)
    }
}

impl Document for LeaderIsr {
    const VERSION: i64 = 2;
}
