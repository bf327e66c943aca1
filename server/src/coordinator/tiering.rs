//! Which lake table is offered to a tiering worker, and when: a pure state machine.
//!
//! Times are milliseconds of one monotonic clock that the caller chooses. The states and their
//! order follow the reference's `LakeTableTieringManager`; what differs is deliberate: epochs are
//! persistent and never restart, queue entries name their epoch and are dropped when stale, a
//! failed table waits longer after each failure, and no entry is answered outside its own round.

use std::collections::{BTreeMap, VecDeque};

use weir_protocol::ids::{TableId, TablePath, TieringEpoch};

/// The longest wait after repeated failures.
const MAX_BACKOFF_MS: i64 = 5 * 60 * 1000;
/// The wait after the first failure; it doubles from there.
const FIRST_BACKOFF_MS: i64 = 1000;

/// Where a table stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Waits for its freshness interval to pass.
    Scheduled {
        /// When it becomes pending.
        due_ms: i64,
    },
    /// In the queue under its current epoch.
    Pending {
        /// When it entered the queue.
        since_ms: i64,
    },
    /// With a worker.
    Tiering {
        /// When it was handed out.
        started_ms: i64,
        /// When the worker was last heard.
        heartbeat_ms: i64,
    },
    /// Waits after a failure.
    Failed {
        /// When it becomes pending again.
        retry_ms: i64,
    },
}

/// What the last finished round did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RoundStats {
    /// Bytes of the lake table, if the worker told.
    pub(crate) file_size: Option<i64>,
    /// Rows of the lake table, if the worker told.
    pub(crate) record_count: Option<i64>,
}

/// A lake table as the scheduler sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Its name.
    pub(crate) path: TablePath,
    /// How old its lake copy may become.
    pub(crate) freshness_ms: i64,
    /// Raised each time it enters the queue.
    pub(crate) epoch: TieringEpoch,
    /// Where it stands.
    pub(crate) state: State,
    /// When its lake copy was last brought up to date.
    pub(crate) tiered_ms: i64,
    /// Failures since the last success.
    pub(crate) failures: u32,
    /// What the last finished round reported.
    pub(crate) last_round: RoundStats,
}

/// Why an entry of a heartbeat is refused. `api/error.rs` gives each its code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The scheduler has no such table.
    #[error("table {table} is not tiered by this cluster")]
    UnknownTable {
        /// The table.
        table: TableId,
    },
    /// The round is over: another epoch, or none, owns the table.
    #[error("table {table}: tiering epoch {given} is fenced by {current}")]
    Fenced {
        /// The table.
        table: TableId,
        /// The worker's epoch.
        given: TieringEpoch,
        /// The table's epoch.
        current: TieringEpoch,
    },
}

/// How a worker ended a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// All of the round's range is in the lake.
    Complete(RoundStats),
    /// The round was cut at its longest duration: there is more to do at once.
    Cut(RoundStats),
    /// Nothing can be said about the round.
    Failed,
}

/// A table taken from the queue. It is with nobody until [`Scheduler::hand_out`] confirms it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// The table.
    pub(crate) table: TableId,
    /// Its name.
    pub(crate) path: TablePath,
    /// The epoch under which it would be handed out.
    pub(crate) epoch: TieringEpoch,
}

/// The scheduler's whole state.
#[derive(Debug)]
pub(crate) struct Scheduler {
    heartbeat_timeout_ms: i64,
    tables: BTreeMap<TableId, Entry>,
    queue: VecDeque<(TableId, TieringEpoch)>,
}

impl Scheduler {
    /// An empty scheduler that takes a table from its worker after `heartbeat_timeout_ms` of silence.
    pub(crate) fn new(heartbeat_timeout_ms: i64) -> Self {
        Self {
            heartbeat_timeout_ms,
            tables: BTreeMap::new(),
            queue: VecDeque::new(),
        }
    }

    /// The tables in the order of their ids.
    pub(crate) fn tables(&self) -> impl Iterator<Item = (TableId, &Entry)> {
        self.tables.iter().map(|(id, entry)| (*id, entry))
    }

    /// The table, if it is scheduled here.
    #[cfg(test)]
    pub(crate) fn table(&self, table: TableId) -> Option<&Entry> {
        self.tables.get(&table)
    }

    /// Starts to schedule a table, or takes over a new freshness or name of a known one.
    ///
    /// `epoch` is the highest epoch ever handed out (0 for none); `tiered_ms` is when its lake copy
    /// was last up to date: a table that is older than its freshness becomes pending at once.
    pub(crate) fn register(&mut self, table: TableId, registration: Registration, now_ms: i64) {
        let Registration {
            path,
            freshness_ms,
            epoch,
            tiered_ms,
        } = registration;
        if let Some(known) = self.tables.get_mut(&table) {
            known.path = path;
            known.freshness_ms = freshness_ms;
            if matches!(known.state, State::Scheduled { .. }) {
                known.state = State::Scheduled {
                    due_ms: known.tiered_ms + freshness_ms,
                };
            }
        } else {
            let state = State::Scheduled {
                due_ms: tiered_ms + freshness_ms,
            };
            let entry = Entry {
                path,
                freshness_ms,
                epoch,
                state,
                tiered_ms,
                failures: 0,
                last_round: RoundStats::default(),
            };
            self.tables.insert(table, entry);
        }
        self.advance(now_ms);
    }

    /// Forgets a table: dropped, or no longer tiered. A worker that still has it is fenced.
    pub(crate) fn remove(&mut self, table: TableId) {
        self.tables.remove(&table);
        self.queue.retain(|(queued, _)| *queued != table);
    }

    /// Moves every table whose time has come; returns those that lost their worker to silence.
    pub(crate) fn advance(&mut self, now_ms: i64) -> Vec<TableId> {
        let mut lost = Vec::new();
        for (id, entry) in &mut self.tables {
            match entry.state {
                State::Scheduled { due_ms: when_ms } | State::Failed { retry_ms: when_ms }
                    if when_ms <= now_ms =>
                {
                    enqueue(&mut self.queue, *id, entry, now_ms);
                }
                State::Tiering { heartbeat_ms, .. }
                    if now_ms - heartbeat_ms > self.heartbeat_timeout_ms =>
                {
                    fail(entry, now_ms);
                    lost.push(*id);
                }
                _ => {}
            }
        }
        lost
    }

    /// Keeps a round alive.
    ///
    /// # Errors
    /// [`Refusal`] if the table is not with a worker under this epoch.
    pub(crate) fn renew(
        &mut self,
        table: TableId,
        epoch: TieringEpoch,
        now_ms: i64,
    ) -> Result<(), Refusal> {
        let entry = self.in_round(table, epoch)?;
        if let State::Tiering { started_ms, .. } = entry.state {
            entry.state = State::Tiering {
                started_ms,
                heartbeat_ms: now_ms,
            };
        }
        Ok(())
    }

    /// Ends a round. A failed table waits before it is offered again, longer each time.
    ///
    /// # Errors
    /// [`Refusal`] if the table is not with a worker under this epoch; a repeated ending too.
    pub(crate) fn finish(
        &mut self,
        table: TableId,
        epoch: TieringEpoch,
        ending: Ending,
        now_ms: i64,
    ) -> Result<(), Refusal> {
        let entry = self.in_round(table, epoch)?;
        match ending {
            Ending::Failed => fail(entry, now_ms),
            Ending::Complete(stats) => {
                let started_ms = succeed(entry, stats, now_ms);
                entry.state = State::Scheduled {
                    due_ms: started_ms + entry.freshness_ms,
                };
            }
            Ending::Cut(stats) => {
                succeed(entry, stats, now_ms);
                entry.state = State::Scheduled { due_ms: now_ms };
            }
        }
        self.advance(now_ms);
        Ok(())
    }

    /// Takes the next table from the queue; stale entries fall out on the way.
    ///
    /// The table stays pending until [`Self::hand_out`]; on a failure to persist its epoch give it
    /// back with [`Self::give_back`].
    pub(crate) fn next_offer(&mut self) -> Option<Offer> {
        while let Some((table, epoch)) = self.queue.pop_front() {
            let Some(entry) = self.tables.get(&table) else {
                continue;
            };
            if entry.epoch == epoch && matches!(entry.state, State::Pending { .. }) {
                return Some(Offer {
                    table,
                    path: entry.path.clone(),
                    epoch,
                });
            }
        }
        None
    }

    /// Confirms that a worker gets the offer under `epoch` (at least the offer's own); whether it
    /// still stands.
    pub(crate) fn hand_out(&mut self, offer: &Offer, epoch: TieringEpoch, now_ms: i64) -> bool {
        let Some(entry) = self.pending(offer) else {
            return false;
        };
        entry.epoch = epoch;
        entry.state = State::Tiering {
            started_ms: now_ms,
            heartbeat_ms: now_ms,
        };
        true
    }

    /// Puts an offer that was not handed out at the end of the queue.
    pub(crate) fn give_back(&mut self, offer: &Offer) {
        if self.pending(offer).is_some() {
            self.queue.push_back((offer.table, offer.epoch));
        }
    }

    /// When [`Self::advance`] has something to do next, if ever.
    pub(crate) fn next_deadline_ms(&self) -> Option<i64> {
        let deadline = |entry: &Entry| match entry.state {
            State::Scheduled { due_ms } => Some(due_ms),
            State::Failed { retry_ms } => Some(retry_ms),
            State::Tiering { heartbeat_ms, .. } => {
                Some(heartbeat_ms + self.heartbeat_timeout_ms + 1)
            }
            State::Pending { .. } => None,
        };
        self.tables.values().filter_map(deadline).min()
    }

    fn pending(&mut self, offer: &Offer) -> Option<&mut Entry> {
        self.tables.get_mut(&offer.table).filter(|entry| {
            entry.epoch == offer.epoch && matches!(entry.state, State::Pending { .. })
        })
    }

    fn in_round(&mut self, table: TableId, given: TieringEpoch) -> Result<&mut Entry, Refusal> {
        let entry = self
            .tables
            .get_mut(&table)
            .ok_or(Refusal::UnknownTable { table })?;
        let current = entry.epoch;
        if current != given || !matches!(entry.state, State::Tiering { .. }) {
            return Err(Refusal::Fenced {
                table,
                given,
                current,
            });
        }
        Ok(entry)
    }
}

/// What the scheduler needs to know of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Registration {
    /// Its name.
    pub(crate) path: TablePath,
    /// How old its lake copy may become.
    pub(crate) freshness_ms: i64,
    /// The highest epoch ever handed out.
    pub(crate) epoch: TieringEpoch,
    /// When its lake copy was last up to date.
    pub(crate) tiered_ms: i64,
}

fn enqueue(
    queue: &mut VecDeque<(TableId, TieringEpoch)>,
    table: TableId,
    entry: &mut Entry,
    now_ms: i64,
) {
    entry.epoch = TieringEpoch(entry.epoch.0 + 1);
    entry.state = State::Pending { since_ms: now_ms };
    queue.push_back((table, entry.epoch));
}

fn fail(entry: &mut Entry, now_ms: i64) {
    let doublings = entry.failures.min(16);
    let wait_ms = (FIRST_BACKOFF_MS << doublings).min(MAX_BACKOFF_MS);
    entry.failures = entry.failures.saturating_add(1);
    entry.state = State::Failed {
        retry_ms: now_ms + wait_ms,
    };
}

fn succeed(entry: &mut Entry, stats: RoundStats, now_ms: i64) -> i64 {
    let started_ms = match entry.state {
        State::Tiering { started_ms, .. } => started_ms,
        _ => now_ms,
    };
    entry.failures = 0;
    entry.tiered_ms = started_ms;
    entry.last_round = stats;
    started_ms
}

#[cfg(test)]
mod tests;
