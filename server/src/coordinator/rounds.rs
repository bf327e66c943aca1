//! The tiering scheduler at work: one task owns it, heartbeats come to it over a bounded channel.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use weir_catalog::Catalog;
use weir_catalog::model::tiering::TieringOwner;
use weir_catalog::store::SessionId;
use weir_protocol::ids::{TableId, TieringEpoch};
use weir_protocol::proto::{
    LakeTieringHeartbeatRequest, LakeTieringHeartbeatResponse, PbHeartbeatReqForTable,
    PbHeartbeatRespForTable, PbLakeTieringTableInfo, PbTablePath,
};

use super::tiering::{Ending, Registration, RoundStats, Scheduler, State};
use crate::api::error::Failure;
use crate::config::TieringConfig;
use crate::error::Error;
use crate::metrics::Metrics;
use crate::shutdown::Shutdown;

const QUEUE_COMMANDS: usize = 256;

/// Speaks to the task that owns the scheduler. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Rounds {
    commands: mpsc::Sender<Command>,
}

#[derive(Debug)]
enum Command {
    Heartbeat(
        LakeTieringHeartbeatRequest,
        oneshot::Sender<LakeTieringHeartbeatResponse>,
    ),
    Register(TableId, Registration),
    Remove(TableId),
}

/// What the task is made of.
pub(crate) struct RoundsParts {
    pub(crate) catalog: Catalog,
    pub(crate) coordinator_epoch: i32,
    /// Owns the keys that say who tiers what.
    pub(crate) session: SessionId,
    pub(crate) config: TieringConfig,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) shutdown: Shutdown,
}

impl Rounds {
    /// Starts the task.
    pub(crate) fn start(parts: RoundsParts) -> Self {
        let (commands, receiver) = mpsc::channel(QUEUE_COMMANDS);
        let timeout_ms = i64::try_from(parts.config.heartbeat_timeout_ms).unwrap_or(i64::MAX);
        let shutdown = parts.shutdown.clone();
        let task = Task {
            scheduler: Scheduler::new(timeout_ms),
            started: Instant::now(),
            parts,
        };
        shutdown.spawn_critical("the tiering scheduler", task.run(receiver));
        Self { commands }
    }

    /// Answers a worker.
    ///
    /// # Errors
    /// [`Error::Stopping`].
    pub(crate) async fn heartbeat(
        &self,
        request: LakeTieringHeartbeatRequest,
    ) -> Result<LakeTieringHeartbeatResponse, Error> {
        let (answer, answered) = oneshot::channel();
        self.send(Command::Heartbeat(request, answer)).await;
        answered.await.map_err(|_| Error::Stopping)
    }

    /// Starts to schedule a table, or takes over its new freshness. `tiered_ms` is relative to now:
    /// 0 for a lake copy that is up to date, negative for one that is old.
    pub(crate) async fn register(&self, table: TableId, registration: Registration) {
        self.send(Command::Register(table, registration)).await;
    }

    /// Stops scheduling a table.
    pub(crate) async fn remove(&self, table: TableId) {
        self.send(Command::Remove(table)).await;
    }

    async fn send(&self, command: Command) {
        if self.commands.send(command).await.is_err() {
            tracing::debug!("the tiering scheduler has stopped");
        }
    }
}

struct Task {
    scheduler: Scheduler,
    started: Instant,
    parts: RoundsParts,
}

impl Task {
    async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        let shutdown = self.parts.shutdown.clone();
        let check = Duration::from_millis(self.parts.config.check_ms);
        loop {
            let wake = Instant::now() + check;
            let wake = self
                .scheduler
                .next_deadline_ms()
                .map_or(wake, |at| wake.min(self.at(at)));
            tokio::select! {
                biased;
                () = shutdown.begun() => return,
                command = commands.recv() => match command {
                    Some(command) => self.take(command).await,
                    None => return,
                },
                () = tokio::time::sleep_until(wake) => {}
            }
            self.advance();
        }
    }

    /// Milliseconds since the task began: no step of the wall clock ends a round.
    fn now_ms(&self) -> i64 {
        i64::try_from(self.started.elapsed().as_millis()).unwrap_or(i64::MAX)
    }

    fn at(&self, ms: i64) -> Instant {
        self.started + Duration::from_millis(u64::try_from(ms).unwrap_or(0))
    }

    fn advance(&mut self) {
        for table in self.scheduler.advance(self.now_ms()) {
            tracing::warn!(%table, "a tiering worker fell silent, its table is offered again");
            self.parts.metrics.tiering_failures.inc();
        }
        let (mut pending, mut running) = (0, 0);
        for (_, entry) in self.scheduler.tables() {
            pending += i64::from(matches!(entry.state, State::Pending { .. }));
            running += i64::from(matches!(entry.state, State::Tiering { .. }));
        }
        self.parts.metrics.tiering_pending.set(pending);
        self.parts.metrics.tiering_running.set(running);
    }

    async fn take(&mut self, command: Command) {
        match command {
            Command::Register(table, registration) => {
                let now_ms = self.now_ms();
                let tiered_ms = registration.tiered_ms.saturating_add(now_ms);
                let registration = Registration {
                    tiered_ms,
                    ..registration
                };
                self.scheduler.register(table, registration, now_ms);
            }
            Command::Remove(table) => self.scheduler.remove(table),
            Command::Heartbeat(request, answer) => {
                let response = self.heartbeat(request).await;
                // A worker that is gone asks again, or its round times out.
                let _gone = answer.send(response);
            }
        }
    }

    /// Failed, then alive, then finished, then a new table; one bad entry spoils no other.
    async fn heartbeat(
        &mut self,
        request: LakeTieringHeartbeatRequest,
    ) -> LakeTieringHeartbeatResponse {
        let cut = request.force_finished_tables;
        let failed = self.each(request.failed_tables, |_, _| Some(Ending::Failed));
        self.parts.metrics.tiering_failures.inc_by(
            u64::try_from(failed.iter().filter(|entry| entry.error.is_none()).count()).unwrap_or(0),
        );
        let alive = self.each(request.tiering_tables, |_, _| None);
        let finished = self.each(request.finished_tables, |table, stats| {
            let was_cut = cut.contains(&table);
            Some(if was_cut {
                Ending::Cut(stats)
            } else {
                Ending::Complete(stats)
            })
        });
        let tiering_table = if request.request_table == Some(true) {
            self.hand_out().await
        } else {
            None
        };
        LakeTieringHeartbeatResponse {
            coordinator_epoch: self.parts.coordinator_epoch,
            tiering_table,
            tiering_table_resp: alive,
            finished_table_resp: finished,
            failed_table_resp: failed,
        }
    }

    /// Ends each round as `ending` says, or keeps it alive for `None`.
    fn each(
        &mut self,
        entries: Vec<PbHeartbeatReqForTable>,
        ending: impl Fn(i64, RoundStats) -> Option<Ending>,
    ) -> Vec<PbHeartbeatRespForTable> {
        let now_ms = self.now_ms();
        let current = self.parts.coordinator_epoch;
        let mut answers = Vec::with_capacity(entries.len());
        for entry in entries {
            let (table, epoch) = (TableId(entry.table_id), TieringEpoch(entry.tiering_epoch));
            let stats = entry
                .lake_tiering_stats
                .map_or_else(RoundStats::default, |stats| RoundStats {
                    file_size: stats.file_size,
                    record_count: stats.record_count,
                });
            let given = entry.coordinator_epoch;
            let result = if given == current {
                match ending(entry.table_id, stats) {
                    Some(ending) => self.scheduler.finish(table, epoch, ending, now_ms),
                    None => self.scheduler.renew(table, epoch, now_ms),
                }
                .map_err(Error::from)
            } else {
                Err(Error::WrongCoordinator { given, current })
            };
            let error = result.err().map(|error| Failure::from(error).into());
            answers.push(PbHeartbeatRespForTable {
                table_id: entry.table_id,
                error,
            });
        }
        answers
    }

    /// Writes down the next epoch of a table, and that somebody has it.
    async fn raise_epoch(&self, table: TableId) -> Result<TieringEpoch, Error> {
        let catalog = &self.parts.catalog;
        let tiering_epoch = catalog.next_tiering_epoch(table).await?;
        // The protocol does not say who a worker is.
        let (worker, unknown) = (String::new(), Default::default());
        let owner = TieringOwner {
            tiering_epoch,
            worker,
            unknown,
        };
        catalog
            .put_tiering_owner(table, &owner, self.parts.session)
            .await?;
        Ok(tiering_epoch)
    }

    /// The next table for a worker, once its epoch is written down.
    async fn hand_out(&mut self) -> Option<PbLakeTieringTableInfo> {
        let mut given_back = Vec::new();
        let mut handed = None;
        self.advance();
        while let Some(offer) = self.scheduler.next_offer() {
            let raised = self.raise_epoch(offer.table).await;
            let now_ms = self.now_ms();
            match raised {
                Ok(epoch) if self.scheduler.hand_out(&offer, epoch, now_ms) => {
                    tracing::debug!(table = %offer.path, %epoch, "handed out for tiering");
                    handed = Some(PbLakeTieringTableInfo {
                        table_id: offer.table.0,
                        table_path: PbTablePath {
                            database_name: offer.path.database,
                            table_name: offer.path.table,
                        },
                        tiering_epoch: epoch.0,
                    });
                    break;
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(table = %offer.path, %error, "a tiering epoch was not written");
                    given_back.push(offer);
                }
            }
        }
        for offer in given_back {
            self.scheduler.give_back(&offer);
        }
        handed
    }
}
