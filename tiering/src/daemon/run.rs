//! The daemon's own task: waits for whatever comes next, and does what the board says.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use weir_protocol::ids::{TableId, TablePath};

use super::board::{Action, Board};
use super::lag::{self, Found, Known};
use super::pauses::{Keeper, Pauses};
use super::{Command, HeldSource, Running};
use crate::cluster::{Heartbeat, HeartbeatAnswer};
use crate::committer::{Committers, EpochFence};
use crate::config::DaemonConfig;
use crate::error::{Error, Result};
use crate::lake_table::Warehouse;
use crate::lease::Lease;
use crate::maintenance::Maintenance;
use crate::metrics::Metrics;
use crate::phase::Phase;
use crate::runner::{RoundReport, Runner, RunnerLimits};
use crate::status::TableStatus;
use crate::worker::{RoundSignals, WorkerResources};

/// Steps of rounds that may wait to be shown; what does not fit is not shown.
const STEP_QUEUE: usize = 256;
/// The longest pause between heartbeats while the coordinator does not answer.
const MAX_HEARTBEAT_PAUSE: Duration = Duration::from_secs(10);
/// How long cancelled rounds may take to discard their files at the daemon's end.
const DISCARD_WAIT: Duration = Duration::from_secs(2);

/// The daemon's ends of the channels to its handles.
#[derive(Debug)]
pub(super) struct Ends {
    pub inbox: mpsc::Receiver<Command>,
    pub statuses: watch::Sender<Arc<Vec<TableStatus>>>,
    pub ready: watch::Sender<bool>,
    pub watched_until_ms: Arc<AtomicI64>,
    pub stop: CancellationToken,
    pub pauses: Pauses,
    pub paused: BTreeMap<TableId, TablePath>,
    pub held: Arc<OnceLock<HeldSource>>,
}

type Looked = (i64, Vec<(TableId, Found)>);

/// A heartbeat and what came of it.
#[derive(Debug)]
struct Answered {
    sent: Heartbeat,
    answer: Result<HeartbeatAnswer>,
    /// Whether the cluster is an embedded server of ours, if that was asked.
    ours: Option<bool>,
}

#[derive(Debug)]
pub(super) struct DaemonTask {
    config: DaemonConfig,
    resources: WorkerResources,
    warehouse: Warehouse,
    metrics: Metrics,
    ends: Ends,
    board: Board,
    committers: Committers,
    maintenance: Maintenance,
    keeper: Keeper,
    /// What a newer lease in the lake means; unknown until the cluster has said who it is.
    fence: Option<EpochFence>,
    rounds: JoinSet<Result<RoundReport>>,
    leases: HashMap<Id, Lease>,
    running: Running,
    steps: mpsc::Receiver<(TableId, Phase)>,
    steps_in: mpsc::Sender<(TableId, Phase)>,
    calls: JoinSet<Answered>,
    next_heartbeat: Instant,
    last_answer: Instant,
    silent: u32,
    looks: JoinSet<Looked>,
    next_look: Instant,
    waiting_for_lag: Vec<oneshot::Sender<()>>,
}

impl DaemonTask {
    pub(super) fn new(
        config: DaemonConfig,
        resources: WorkerResources,
        warehouse: Warehouse,
        metrics: Metrics,
        ends: Ends,
    ) -> Self {
        let (steps_in, steps) = mpsc::channel(STEP_QUEUE);
        let fence = config.foreign.map(fence);
        let now = Instant::now();
        let maintenance = Maintenance::new(
            Arc::clone(&resources.client),
            warehouse.clone(),
            Arc::clone(&resources.clock),
            config.maintenance.clone(),
        );
        let mut ends = ends;
        let mut board = Board::new(config.tables, config.retry.clone());
        board.paused_before(std::mem::take(&mut ends.paused));
        let keeper = Keeper::start(std::mem::take(&mut ends.pauses));
        Self {
            maintenance,
            keeper,
            board,
            config,
            resources,
            warehouse,
            metrics,
            ends,
            committers: Committers::default(),
            fence,
            rounds: JoinSet::new(),
            leases: HashMap::new(),
            running: HashMap::new(),
            steps,
            steps_in,
            calls: JoinSet::new(),
            next_heartbeat: now,
            last_answer: now,
            silent: 0,
            looks: JoinSet::new(),
            next_look: now,
            waiting_for_lag: Vec::new(),
        }
    }

    pub(super) async fn run(mut self) {
        let stop = self.ends.stop.clone();
        while !stop.is_cancelled() {
            self.expire_leases();
            self.start_rounds();
            self.start_heartbeat();
            self.start_look();
            self.show();
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = self.event() => {}
            }
        }
        self.end().await;
    }

    /// Waits for the next thing to happen and takes it in.
    async fn event(&mut self) {
        let wake = self.wake();
        tokio::select! {
            Some(ended) = self.rounds.join_next_with_id() => self.round_ended(ended),
            Some((table, phase)) = self.steps.recv() => self.board.stepped(table, phase),
            Some(answered) = self.calls.join_next() => match answered {
                Ok(answered) => self.heartbeat_answered(answered),
                Err(error) => tracing::error!(%error, "a heartbeat panicked"),
            },
            Some(looked) = self.looks.join_next() => self.looked(looked),
            Some(command) = self.ends.inbox.recv() => self.obey(command),
            () = sleep_until(wake) => {}
        }
    }

    /// When something is to be done although nothing happened.
    fn wake(&self) -> Instant {
        let now = Instant::now();
        let now_ms = self.now_ms();
        let mut wake = now + Duration::from_hours(1);
        if self.calls.is_empty() {
            wake = wake.min(self.next_heartbeat);
        }
        if self.board.has_leases() {
            wake = wake.min(self.leases_end());
        }
        if let Some(due_ms) = self.board.next_due_ms() {
            let wait = u64::try_from(due_ms.saturating_sub(now_ms)).unwrap_or(0);
            // Never a tight loop, should the board not start what it said was due.
            wake = wake.min(now + Duration::from_millis(wait.max(1)));
        }
        if self.looks.is_empty() && self.is_watched() {
            wake = wake.min(self.next_look);
        }
        wake
    }

    fn start_rounds(&mut self) {
        let Some(fence) = self.fence else { return };
        for action in self.board.due(self.now_ms()) {
            if let Action::Start(lease) = action {
                self.start_round(lease, fence);
            }
        }
    }

    fn start_round(&mut self, lease: Lease, fence: EpochFence) {
        let runner = Runner {
            resources: self.resources.clone(),
            warehouse: self.warehouse.clone(),
            committers: self.committers.clone(),
            fence,
            limits: RunnerLimits {
                max_duration: self.config.round.max_ms.map(Duration::from_millis),
                max_rows: self.config.round.max_rows,
                max_bytes: self.config.round.max_bytes,
            },
            bad_record: self.config.bad_record,
        };
        let signals = RoundSignals {
            let_go: self.board.let_go(lease.table),
            ..RoundSignals::default()
        };
        self.running.insert(lease.table, signals.clone());
        let (steps, table, held) = (self.steps_in.clone(), lease.table, lease.clone());
        let round = self.rounds.spawn(async move {
            // A step that is not shown is no harm.
            let phase = move |phase| {
                let _ = steps.try_send((table, phase));
            };
            runner.run(held, &signals, &phase).await
        });
        self.leases.insert(round.id(), lease);
    }

    fn round_ended(&mut self, ended: Result<(Id, Result<RoundReport>), JoinError>) {
        let id = ended.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
        let Some(lease) = self.leases.remove(&id) else {
            return;
        };
        let result = ended.map_or_else(
            |error| {
                Err(Error::Panicked {
                    table: lease.path.clone(),
                    reason: error.to_string(),
                })
            },
            |(_, result)| result,
        );
        self.running.remove(&lease.table);
        let (table, now_ms) = (lease.path.to_string(), self.now_ms());
        match &result {
            // A table that was forgotten meanwhile is not shown again.
            _ if !self.board.knows(lease.table) => {}
            Ok(report) => {
                self.metrics.round(&table, report, now_ms);
                if let Some(committed) = &report.committed {
                    self.maintenance
                        .committed(&lease.path, lease.table, committed.snapshot);
                }
            }
            Err(_) => self.metrics.round_failed(&table),
        }
        self.board.ended(&lease, result, now_ms);
        if !self.board.knows(lease.table) {
            self.committers.forget(lease.table);
            self.maintenance.forget(lease.table);
        }
        // The coordinator hears of it at once, and may have the next table.
        self.next_heartbeat = Instant::now();
    }

    fn start_heartbeat(&mut self) {
        if !self.calls.is_empty() || Instant::now() < self.next_heartbeat {
            return;
        }
        let sent = self.board.heartbeat(true);
        let client = Arc::clone(&self.resources.client);
        let timeout = self.config.rpc_timeout().saturating_mul(2);
        let ask_ours = self.fence.is_none();
        self.calls.spawn(async move {
            let call = async {
                let ours = if ask_ours {
                    Some(client.is_ours().await?)
                } else {
                    None
                };
                Ok((client.heartbeat(sent.clone()).await?, ours))
            };
            let late = |elapsed| Err(Error::cluster("tiering heartbeat", None, true, elapsed));
            match tokio::time::timeout(timeout, call)
                .await
                .unwrap_or_else(late)
            {
                Ok((answer, ours)) => Answered {
                    sent,
                    answer: Ok(answer),
                    ours,
                },
                Err(error) => Answered {
                    sent,
                    answer: Err(error),
                    ours: None,
                },
            }
        });
    }

    fn heartbeat_answered(&mut self, answered: Answered) {
        let now = Instant::now();
        let interval = Duration::from_millis(self.config.heartbeat_ms);
        let answer = match answered.answer {
            Ok(answer) => answer,
            Err(error) => return self.heartbeat_failed(&error, now, interval),
        };
        self.silent = 0;
        self.last_answer = now;
        if let Some(ours) = answered.ours {
            self.fence = Some(fence(!ours));
        }
        // As long as there is something to take or to tell, there is no pause.
        let again = answer.offered.is_some() || !self.board.is_registered();
        let actions = self.board.answered(&answered.sent, answer);
        self.act(actions);
        self.ends
            .ready
            .send_if_modified(|ready| !std::mem::replace(ready, true));
        let pause = if again || self.board.has_news() {
            Duration::ZERO
        } else {
            interval
        };
        self.next_heartbeat = now + pause;
    }

    fn heartbeat_failed(&mut self, error: &Error, now: Instant, interval: Duration) {
        self.metrics.heartbeat_failed();
        if self.silent == 0 {
            tracing::warn!(error = error.chain(), "the coordinator does not answer");
        }
        let pause = interval.saturating_mul(1 << self.silent.min(16));
        self.silent = self.silent.saturating_add(1);
        self.next_heartbeat = now + pause.min(MAX_HEARTBEAT_PAUSE).max(interval);
    }

    /// Until when leases hold without another answer of the coordinator.
    fn leases_end(&self) -> Instant {
        self.last_answer + Duration::from_millis(self.config.lease_ms)
    }

    /// Drops leases that ran out, also while a heartbeat still waits for its answer.
    fn expire_leases(&mut self) {
        if self.board.has_leases() && Instant::now() >= self.leases_end() {
            tracing::warn!("leases have run out without a heartbeat");
            let actions = self.board.drop_leases();
            self.act(actions);
        }
    }

    fn act(&self, actions: Vec<Action>) {
        for action in actions {
            match action {
                // Rounds start only from `start_rounds`.
                Action::Start(_) => {}
                Action::Cancel(table) => {
                    if let Some(signals) = self.running.get(&table) {
                        signals.cancel.cancel();
                    }
                }
                Action::Stop(table) => {
                    if let Some(signals) = self.running.get(&table) {
                        signals.stop.cancel();
                    }
                }
            }
        }
    }

    fn obey(&mut self, command: Command) {
        // Whoever asked may have gone; the command is carried out all the same.
        match command {
            Command::TierNow { path, id, answer } => {
                let _ = answer.send(self.board.tier_now(&path, id));
            }
            Command::Pause { path, answer } => {
                let paused = self.board.pause(&path);
                let paused = paused.map(|action| self.act(action.into_iter().collect()));
                self.keep_pauses(paused, answer);
            }
            Command::Resume { path, answer } => {
                let resumed = self.board.resume(&path);
                self.keep_pauses(resumed, answer);
            }
            Command::AcceptLoss { path, answer } => {
                let _ = answer.send(self.board.accept_loss(&path));
            }
            Command::RefreshLag { answer } => {
                self.waiting_for_lag.push(answer);
                self.next_look = Instant::now();
            }
        }
    }

    fn keep_pauses(&self, changed: Result<()>, answer: oneshot::Sender<Result<()>>) {
        match changed {
            Ok(()) => self.keeper.keep(self.board.paused(), answer),
            // Whoever asked may have gone.
            Err(error) => drop(answer.send(Err(error))),
        }
    }

    fn is_watched(&self) -> bool {
        !self.waiting_for_lag.is_empty()
            || self.now_ms() < self.ends.watched_until_ms.load(Ordering::Relaxed)
    }

    fn start_look(&mut self) {
        if !self.looks.is_empty() || !self.is_watched() || Instant::now() < self.next_look {
            return;
        }
        let known: Vec<Known> = self.board.known();
        let client = Arc::clone(&self.resources.client);
        let as_of_ms = self.now_ms();
        let timeout = self.config.rpc_timeout();
        self.looks
            .spawn(async move { (as_of_ms, lag::look(client, known, timeout).await) });
    }

    fn looked(&mut self, looked: Result<Looked, JoinError>) {
        self.next_look = Instant::now() + Duration::from_millis(self.config.lag_ms);
        match looked {
            Ok((as_of_ms, found)) => {
                for (table, found) in found {
                    match found {
                        Found::Behind(rows) => self.board.lagged(table, Some(rows), as_of_ms),
                        Found::Unknown => self.board.lagged(table, None, as_of_ms),
                        Found::Gone => {
                            let action = self.board.gone(table);
                            self.act(action.into_iter().collect());
                            self.committers.forget(table);
                            self.maintenance.forget(table);
                        }
                    }
                }
            }
            Err(error) => tracing::error!(%error, "a look at lag panicked"),
        }
        self.show();
        for answer in self.waiting_for_lag.drain(..) {
            let _ = answer.send(());
        }
    }

    /// Publishes the status if it changed.
    fn show(&self) {
        let mut statuses = self.board.statuses(self.now_ms());
        for status in &mut statuses {
            status.warning = self.maintenance.warning(status.table_id);
            let counts = self.maintenance.counts(status.table_id);
            self.metrics.maintained(&status.path.to_string(), counts);
        }
        if let Some(HeldSource(source)) = self.ends.held.get() {
            let held = source();
            for status in &mut statuses {
                status.held = Some(held.get(&status.table_id).copied().unwrap_or_default());
            }
        }
        self.metrics.show(&statuses, &self.resources.budget);
        self.ends.statuses.send_if_modified(|shown| {
            let changed = **shown != statuses;
            if changed {
                *shown = Arc::new(statuses);
            }
            changed
        });
    }

    fn now_ms(&self) -> i64 {
        self.resources.clock.now_ms()
    }

    /// Ends all rounds in time, gives the tables back and says so.
    async fn end(mut self) {
        for signals in self.running.values() {
            signals.stop.cancel();
        }
        let wait = Duration::from_millis(self.config.stop_ms);
        if tokio::time::timeout(wait, self.join_rounds())
            .await
            .is_err()
        {
            tracing::warn!("rounds did not end in time and are dropped");
            for signals in self.running.values() {
                signals.cancel.cancel();
            }
            if tokio::time::timeout(DISCARD_WAIT, self.join_rounds())
                .await
                .is_err()
            {
                self.rounds.shutdown().await;
            }
        }
        self.calls.shutdown().await;
        self.maintenance.end().await;
        let kept = tokio::time::timeout(DISCARD_WAIT, self.keeper.end()).await;
        if kept.is_err() {
            tracing::warn!("what is paused may not be kept: the disk did not take it in time");
        }
        self.looks.shutdown().await;
        self.board.give_back();
        self.show();
        if !self.board.has_news() {
            return;
        }
        let goodbye = self.board.heartbeat(false);
        let call = self.resources.client.heartbeat(goodbye);
        let said = tokio::time::timeout(self.config.rpc_timeout(), call).await;
        if !matches!(said, Ok(Ok(_))) {
            tracing::warn!("the coordinator did not hear that the daemon stops");
        }
    }

    async fn join_rounds(&mut self) {
        while let Some(ended) = self.rounds.join_next_with_id().await {
            self.round_ended(ended);
        }
    }
}

fn fence(foreign: bool) -> EpochFence {
    if foreign {
        EpochFence::Warn
    } else {
        EpochFence::Refuse
    }
}
