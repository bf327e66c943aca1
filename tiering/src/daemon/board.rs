//! What the daemon knows of its tables and what it does next: pure, driven by events and the time
//! they carry.

use std::collections::BTreeMap;

use weir_protocol::ids::{CoordinatorEpoch, TableBucket, TableId, TablePath};

use super::entry::Entry;
use super::lag::{Known, Seen};
use crate::cluster::{Heartbeat, HeartbeatAnswer, HeartbeatEntry, Refusal, RoundStats};
use crate::config::RetryConfig;
use crate::error::{Error, Result, Verdict};
use crate::lease::{Epochs, Lease};
use crate::phase::Phase;
use crate::ranges::Offsets;
use crate::runner::RoundReport;
use crate::status::{Activity, LostOffsets, TableStatus};

/// What the daemon has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Run a round under this lease.
    Start(Lease),
    /// The lease of the running round is lost: cancel it.
    Cancel(TableId),
    /// End the reading of the running round, commit what is there.
    Stop(TableId),
}

/// All tables, and what the coordinator is to be told.
#[derive(Debug)]
pub(super) struct Board {
    retry: RetryConfig,
    slots: usize,
    coordinator: Option<CoordinatorEpoch>,
    tables: BTreeMap<TableId, Entry>,
    finished: BTreeMap<TableId, Done>,
    failed: BTreeMap<TableId, HeartbeatEntry>,
}

#[derive(Clone, Copy, Debug)]
struct Done {
    entry: HeartbeatEntry,
    more: bool,
}

impl Board {
    pub(super) fn new(slots: usize, retry: RetryConfig) -> Self {
        Self {
            retry,
            slots,
            coordinator: None,
            tables: BTreeMap::new(),
            finished: BTreeMap::new(),
            failed: BTreeMap::new(),
        }
    }

    /// Tables that a person paused before the daemon was started.
    pub(super) fn paused_before(&mut self, paused: BTreeMap<TableId, TablePath>) {
        for (id, path) in paused {
            self.entry(id, &path).paused_by_user = true;
        }
    }

    /// The tables that a person paused.
    pub(super) fn paused(&self) -> BTreeMap<TableId, TablePath> {
        let paused = self.tables.iter().filter(|(_, entry)| entry.paused_by_user);
        paused
            .map(|(id, entry)| (*id, entry.path.clone()))
            .collect()
    }

    /// Whether the coordinator has answered under the epoch that leases carry.
    pub(super) fn is_registered(&self) -> bool {
        self.coordinator.is_some()
    }

    /// Whether the coordinator should hear of something soon.
    pub(super) fn has_news(&self) -> bool {
        !self.finished.is_empty() || !self.failed.is_empty()
    }

    /// Whether any table is held.
    pub(super) fn has_leases(&self) -> bool {
        self.tables.values().any(|entry| entry.lease.is_some())
    }

    /// How many rounds run.
    pub(super) fn running(&self) -> usize {
        self.tables
            .values()
            .filter(|entry| entry.running.is_some())
            .count()
    }

    /// The next heartbeat; empty as long as the coordinator's epoch is not known.
    pub(super) fn heartbeat(&self, want_table: bool) -> Heartbeat {
        if self.coordinator.is_none() {
            return Heartbeat::default();
        }
        let renewed = |entry: &Entry| {
            let lease = entry.lease.as_ref()?;
            Some(HeartbeatEntry {
                table: lease.table,
                epochs: lease.epochs,
                stats: None,
            })
        };
        let busy = self
            .tables
            .values()
            .filter(|e| e.running.is_some() || e.is_due_soon())
            .count();
        Heartbeat {
            tiering: self.tables.values().filter_map(renewed).collect(),
            finished: self.finished.values().map(|done| done.entry).collect(),
            failed: self.failed.values().copied().collect(),
            force_finished: self
                .finished
                .values()
                .filter(|done| done.more)
                .map(|done| done.entry.table)
                .collect(),
            request_table: want_table && busy < self.slots,
        }
    }

    /// The coordinator has answered `sent`.
    pub(super) fn answered(&mut self, sent: &Heartbeat, answer: HeartbeatAnswer) -> Vec<Action> {
        if self.coordinator != Some(answer.coordinator) {
            let actions = self.register(answer.coordinator);
            // What the new coordinator hands out is held under its own epoch.
            if let Some(lease) = answer.offered {
                self.hold(lease);
            }
            return actions;
        }
        // Delivered, or refused because the table is someone else's by now: either way there is
        // nothing more to say.
        for entry in &sent.finished {
            self.finished.retain(|_, done| done.entry != *entry);
        }
        for entry in &sent.failed {
            self.failed.retain(|_, failed| failed != entry);
        }
        let mut actions = Vec::new();
        for refusal in &answer.refused {
            actions.extend(self.lose(sent, refusal));
        }
        if let Some(lease) = answer.offered {
            self.hold(lease);
        }
        actions
    }

    /// A new coordinator: all leases are void.
    fn register(&mut self, coordinator: CoordinatorEpoch) -> Vec<Action> {
        if let Some(old) = self.coordinator {
            tracing::warn!(%old, new = %coordinator, "the coordinator changed, all leases are void");
        }
        self.coordinator = Some(coordinator);
        self.drop_leases()
    }

    /// Forgets all leases, for they may be given to others.
    pub(super) fn drop_leases(&mut self) -> Vec<Action> {
        self.finished.clear();
        self.failed.clear();
        let mut actions = Vec::new();
        for (table, entry) in &mut self.tables {
            entry.lease = None;
            entry.last_lease = None;
            if entry.running.is_some() {
                actions.push(Action::Cancel(*table));
            } else {
                entry.activity = Activity::Idle;
            }
        }
        actions
    }

    fn lose(&mut self, sent: &Heartbeat, refusal: &Refusal) -> Option<Action> {
        let Some(renewal) = sent.tiering.iter().find(|e| e.table == refusal.table) else {
            let Refusal {
                table,
                code,
                message,
            } = refusal;
            tracing::info!(%table, ?code, message, "a report came too late");
            return None;
        };
        let epochs = renewal.epochs;
        let entry = self.tables.get_mut(&refusal.table)?;
        // Only the lease that was refused: a newer one may be held by now.
        entry
            .lease
            .as_ref()
            .filter(|lease| lease.epochs == epochs)?;
        tracing::warn!(
            table = %entry.path, code = ?refusal.code, message = refusal.message, "lease lost"
        );
        entry.lease = None;
        entry.last_lease = None;
        match &entry.running {
            Some(running) if running.epochs == epochs => Some(Action::Cancel(refusal.table)),
            Some(_) => None,
            None => {
                entry.activity = Activity::Idle;
                None
            }
        }
    }

    /// The coordinator handed out a table. Another one that had its path is gone, then.
    fn hold(&mut self, lease: Lease) {
        self.tables.retain(|id, entry| {
            *id == lease.table || entry.path != lease.path || entry.running.is_some()
        });
        let entry = self.entry(lease.table, &lease.path);
        entry.path = lease.path.clone();
        entry.last_lease = Some(lease.clone());
        entry.lease = Some(lease);
        if entry.running.is_none() {
            entry.activity = Activity::Held;
        }
    }

    fn entry(&mut self, table: TableId, path: &TablePath) -> &mut Entry {
        self.tables
            .entry(table)
            .or_insert_with(|| Entry::new(path.clone()))
    }

    /// The rounds to start at `now_ms`, as many as there are slots; each counts as running from now
    /// on.
    pub(super) fn due(&mut self, now_ms: i64) -> Vec<Action> {
        let mut free = self.slots.saturating_sub(self.running());
        let mut actions = Vec::new();
        // Whoever waited longest goes first, so that tables that always have something to do leave
        // room for the others.
        let mut waiting: Vec<&mut Entry> = self.tables.values_mut().collect();
        waiting.sort_by_key(|entry| entry.last_end_ms);
        for entry in waiting {
            if free == 0 {
                break;
            }
            if let Some(lease) = entry.next_lease(now_ms) {
                entry.demanded = false;
                entry.begin(lease.clone(), now_ms);
                actions.push(Action::Start(lease));
                free -= 1;
            }
        }
        actions
    }

    /// When [`Board::due`] may have more to start without any event before, if ever.
    pub(super) fn next_due_ms(&self) -> Option<i64> {
        let waits = |entry: &&Entry| {
            entry.lease.is_some() && entry.running.is_none() && !entry.paused_by_user
        };
        if self.running() >= self.slots {
            return None;
        }
        self.tables
            .values()
            .filter(waits)
            .map(|entry| entry.next_attempt_ms)
            .min()
    }

    /// A step of a running round.
    pub(super) fn stepped(&mut self, table: TableId, phase: Phase) {
        if let Some(entry) = self.tables.get_mut(&table)
            && entry.running.is_some()
            && phase != Phase::Reporting
        {
            entry.activity = phase.into();
        }
    }

    /// A round has ended.
    pub(super) fn ended(&mut self, lease: &Lease, result: Result<RoundReport>, now_ms: i64) {
        let Some(entry) = self.tables.get_mut(&lease.table) else {
            return;
        };
        entry.running = None;
        entry.last_end_ms = now_ms;
        entry.activity = if entry.lease.is_some() {
            Activity::Held
        } else {
            Activity::Idle
        };
        let ours = entry
            .lease
            .as_ref()
            .is_some_and(|held| held.epochs == lease.epochs);
        let epochs = lease.epochs;
        match result {
            Ok(report) => {
                let more = report.cut.is_some();
                let stats = report.committed.as_ref().map(|committed| RoundStats {
                    bytes: committed.bytes,
                    rows: committed.rows,
                });
                let clean = entry.succeeded(report, &self.retry, now_ms);
                // A table with trouble stays ours until the trouble is over.
                if ours && clean {
                    entry.lease = None;
                    entry.activity = Activity::Idle;
                    let table = lease.table;
                    let done = HeartbeatEntry {
                        table,
                        epochs,
                        stats,
                    };
                    self.finished.insert(table, Done { entry: done, more });
                }
            }
            Err(error) => {
                let verdict = error.verdict();
                entry.failed(&error, &self.retry, now_ms);
                let gone = error.is_table_gone();
                if ours && verdict == Verdict::Drop {
                    entry.lease = None;
                    entry.activity = Activity::Idle;
                    self.fail(lease.table, epochs);
                }
                if gone {
                    self.tables.remove(&lease.table);
                }
            }
        }
    }

    fn fail(&mut self, table: TableId, epochs: Epochs) {
        self.failed.insert(
            table,
            HeartbeatEntry {
                table,
                epochs,
                stats: None,
            },
        );
    }

    /// Gives all held tables back, at the daemon's end.
    pub(super) fn give_back(&mut self) {
        let held: Vec<Lease> = self
            .tables
            .values_mut()
            .filter_map(|entry| entry.lease.take())
            .collect();
        for lease in held {
            self.fail(lease.table, lease.epochs);
        }
    }

    /// A person wants a round now.
    ///
    /// # Errors
    /// [`Error::UnknownTable`] if the table was never handed out and `id` is not given,
    /// [`Error::PausedByPerson`].
    pub(super) fn tier_now(&mut self, path: &TablePath, id: Option<TableId>) -> Result<()> {
        let coordinator = self.coordinator;
        let known = self.find(path).and_then(|table| self.tables.get(&table));
        if known.is_some_and(|entry| entry.paused_by_user) {
            let table = path.clone();
            return Err(Error::PausedByPerson { table });
        }
        if let (None, Some(id)) = (self.find(path), id) {
            self.entry(id, path);
        }
        let table = self.find(path).ok_or_else(|| Error::UnknownTable {
            table: path.clone(),
        })?;
        let entry = self.entry(table, path);
        if entry.last_lease.is_none()
            && let Some(coordinator) = coordinator
        {
            // Never handed out to us: whoever holds the table wins.
            let epochs = Epochs::without_lease(coordinator);
            entry.last_lease = Some(Lease {
                table,
                path: path.clone(),
                epochs,
            });
        }
        entry.demanded = true;
        entry.clear_pause();
        Ok(())
    }

    /// A person stops the table's rounds; a running one commits what it has.
    ///
    /// # Errors
    /// [`Error::UnknownTable`].
    pub(super) fn pause(&mut self, path: &TablePath) -> Result<Option<Action>> {
        let table = self.find(path).ok_or_else(|| Error::UnknownTable {
            table: path.clone(),
        })?;
        let entry = self.entry(table, path);
        entry.paused_by_user = true;
        entry.demanded = false;
        Ok(entry.running.as_ref().map(|_| Action::Stop(table)))
    }

    /// A person lets the table go on, whoever paused it.
    ///
    /// # Errors
    /// [`Error::UnknownTable`].
    pub(super) fn resume(&mut self, path: &TablePath) -> Result<()> {
        let table = self.find(path).ok_or_else(|| Error::UnknownTable {
            table: path.clone(),
        })?;
        self.entry(table, path).clear_pause();
        Ok(())
    }

    /// A person lets go what the table's logs have lost; a round goes on behind it.
    ///
    /// # Errors
    /// [`Error::UnknownTable`], [`Error::NothingLost`].
    pub(super) fn accept_loss(&mut self, path: &TablePath) -> Result<Vec<LostOffsets>> {
        let table = path.clone();
        let id = self.find(path).ok_or(Error::UnknownTable { table })?;
        let lost = self.entry(id, path).accept_loss();
        if lost.is_empty() {
            let table = path.clone();
            return Err(Error::NothingLost { table });
        }
        self.tier_now(path, None)?;
        Ok(lost)
    }

    /// The lost offsets of a table that a person let go.
    pub(super) fn let_go(&self, table: TableId) -> BTreeMap<TableBucket, Offsets> {
        let entry = self.tables.get(&table);
        entry.map(|entry| entry.let_go.clone()).unwrap_or_default()
    }

    /// What is known of each table, for a look at its lag.
    pub(super) fn known(&self) -> Vec<Known> {
        let known = |(id, entry): (&TableId, &Entry)| Known {
            table: *id,
            path: entry.path.clone(),
            seen: entry.report.as_ref().map(|report| Seen {
                view: report.view.clone(),
                lake_ends: report.lake_ends.clone(),
            }),
        };
        self.tables.iter().map(known).collect()
    }

    /// The cluster says that there is no table of this id any more: forgets it. Answers what is left
    /// to do; a running round is cancelled, and its end finds the table forgotten.
    pub(super) fn gone(&mut self, table: TableId) -> Option<Action> {
        let entry = self.tables.remove(&table)?;
        tracing::info!(table = %entry.path, %table, "the table is gone");
        self.finished.remove(&table);
        self.failed.remove(&table);
        entry.running.map(|_| Action::Cancel(table))
    }

    /// Whether the table is still on the board.
    pub(super) fn knows(&self, table: TableId) -> bool {
        self.tables.contains_key(&table)
    }

    /// Lag was looked up at `as_of_ms`; `None` if a bucket gave no answer.
    pub(super) fn lagged(&mut self, table: TableId, rows: Option<u64>, as_of_ms: i64) {
        if let Some(entry) = self.tables.get_mut(&table) {
            entry.lag.rows = rows;
            if rows == Some(0) {
                entry.lag.complete_as_of_ms = entry.lag.complete_as_of_ms.max(Some(as_of_ms));
            }
        }
    }

    /// The status of all tables, by path.
    pub(super) fn statuses(&self, now_ms: i64) -> Vec<TableStatus> {
        let mut statuses: Vec<TableStatus> = self
            .tables
            .iter()
            .map(|(id, entry)| entry.status(*id, now_ms))
            .collect();
        statuses.sort_by(|a, b| a.path.cmp(&b.path));
        statuses
    }

    /// The newest table of that path.
    fn find(&self, path: &TablePath) -> Option<TableId> {
        self.tables
            .iter()
            .rev()
            .find(|(_, entry)| entry.path == *path)
            .map(|(id, _)| *id)
    }
}

#[cfg(test)]
mod tests;
