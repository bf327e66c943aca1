//! The daemon: holds tables by heartbeats, runs their rounds side by side, and tells how they fare.
//!
//! One task owns the board of tables; everything else (rounds, calls, looks at lag) is a task it
//! spawns and joins, and a [`Handle`] talks to it through a bounded channel. A round that panics or
//! hangs is its own table's trouble only.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use weir_catalog::clock::{Clock, SystemClock};
use weir_catalog::ddl::properties::DATALAKE_ENABLED;
use weir_protocol::ids::{TableId, TablePath};

use crate::cluster::TieringClient;
use crate::cluster::wire::WireCluster;
use crate::config::DaemonConfig;
use crate::error::{Error, Result};
use crate::lake_table::Warehouse;
use crate::memory::MemoryBudget;
use crate::metrics::Metrics;
use crate::status::{HeldBack, LostOffsets, TableStatus};
use crate::worker::WorkerResources;

mod board;
mod entry;
mod lag;
mod pauses;
mod run;

use pauses::Pauses;
use run::DaemonTask;

/// Commands that may wait for the daemon.
const COMMAND_QUEUE: usize = 64;
/// Why a table that a person wants tiered is not.
const NO_LAKE: &str = "it is not tiered: set table.datalake.enabled=true";
/// How long lag is looked up after someone asked for it.
const WATCHED_MS: i64 = 30_000;

/// The tiering daemon; see [`Daemon::start`].
#[derive(Debug)]
pub struct Daemon;

/// What the daemon stands on, apart from its settings.
#[derive(Debug)]
pub struct Components {
    /// The cluster.
    pub client: Arc<dyn TieringClient>,
    /// Where the lake is.
    pub warehouse: Warehouse,
    /// Wall time.
    pub clock: Arc<dyn Clock>,
}

/// Talks to a running daemon; clones talk to the same one. Dropping all of them stops it without
/// waiting.
#[derive(Clone, Debug)]
pub struct Handle {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    commands: mpsc::Sender<Command>,
    statuses: watch::Receiver<Arc<Vec<TableStatus>>>,
    ready: watch::Receiver<bool>,
    watched_until_ms: Arc<AtomicI64>,
    stop: CancellationToken,
    task: Mutex<Option<tokio::task::JoinHandle<()>>>,
    client: Arc<dyn TieringClient>,
    clock: Arc<dyn Clock>,
    budget: MemoryBudget,
    held: Arc<OnceLock<HeldSource>>,
}

/// Tells what retention keeps because the lake lacks it.
pub struct HeldSource(Box<dyn Fn() -> BTreeMap<TableId, HeldBack> + Send + Sync>);

impl std::fmt::Debug for HeldSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HeldSource")
    }
}

/// What a handle asks for; each is answered.
#[derive(Debug)]
enum Command {
    TierNow {
        path: TablePath,
        id: Option<TableId>,
        answer: oneshot::Sender<Result<()>>,
    },
    Pause {
        path: TablePath,
        answer: oneshot::Sender<Result<()>>,
    },
    Resume {
        path: TablePath,
        answer: oneshot::Sender<Result<()>>,
    },
    AcceptLoss {
        path: TablePath,
        answer: oneshot::Sender<Result<Vec<LostOffsets>>>,
    },
    RefreshLag {
        answer: oneshot::Sender<()>,
    },
}

impl Daemon {
    /// Starts a daemon against the cluster and warehouse of its settings; it goes on dialling until
    /// the cluster is there. Metrics are registered in `registry`.
    ///
    /// # Errors
    /// The first wrong setting ([`DaemonConfig::validate`] gives all), or [`Error::Warehouse`].
    pub fn start(config: DaemonConfig, registry: &mut Registry) -> Result<Handle> {
        validate(&config)?;
        let components = Components {
            client: Arc::new(WireCluster::new(&config)),
            warehouse: Warehouse::open(&config.warehouse, &config.warehouse_options.0)?,
            clock: Arc::new(SystemClock),
        };
        Self::start_with(config, components, registry)
    }

    /// As [`Daemon::start`], on these components. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// The first wrong setting.
    pub fn start_with(
        config: DaemonConfig,
        components: Components,
        registry: &mut Registry,
    ) -> Result<Handle> {
        validate(&config)?;
        let pauses = Pauses::new(config.state_file.clone());
        let paused = pauses.load()?;
        let budget = MemoryBudget::new(config.memory);
        let resources = WorkerResources {
            client: Arc::clone(&components.client),
            budget: budget.clone(),
            cpu: Arc::new(Semaphore::new(config.cpu_permits())),
            clock: Arc::clone(&components.clock),
            open_buckets: config.open_buckets,
            fetch_bytes: config.fetch_bytes(),
            max_batch_bytes: config.memory / 4,
            target_file_bytes: config.target_file_bytes,
        };
        let (commands, inbox) = mpsc::channel(COMMAND_QUEUE);
        let (statuses_in, statuses) = watch::channel(Arc::new(Vec::new()));
        let (ready_in, ready) = watch::channel(false);
        let watched_until_ms = Arc::new(AtomicI64::new(0));
        let stop = CancellationToken::new();
        let ends = run::Ends {
            inbox,
            statuses: statuses_in,
            ready: ready_in,
            watched_until_ms: Arc::clone(&watched_until_ms),
            stop: stop.clone(),
            pauses,
            paused,
            held: Arc::default(),
        };
        let held = Arc::clone(&ends.held);
        let metrics = Metrics::new(registry);
        let warehouse = components.warehouse.counted(metrics.lake_requests());
        let task = DaemonTask::new(config, resources, warehouse, metrics, ends);
        let task = Mutex::new(Some(tokio::spawn(task.run())));
        let (client, clock) = (components.client, components.clock);
        let inner = Inner {
            commands,
            statuses,
            ready,
            watched_until_ms,
            stop,
            task,
            client,
            clock,
            budget,
            held,
        };
        Ok(Handle {
            inner: Arc::new(inner),
        })
    }
}

/// Whether tiering is on for a table with these properties.
fn is_lake_enabled(properties: &BTreeMap<String, String>) -> bool {
    let enabled = properties.get(DATALAKE_ENABLED);
    enabled.is_some_and(|text| text.trim().eq_ignore_ascii_case("true"))
}

fn validate(config: &DaemonConfig) -> Result<()> {
    match config.validate() {
        Ok(()) => Ok(()),
        Err(errors) => errors.into_iter().next().map_or(Ok(()), Err),
    }
}

impl Handle {
    /// The tables as last known, by path. Costs nothing; keeps lag being looked up for the next
    /// half minute.
    pub fn status(&self) -> Vec<TableStatus> {
        self.watched();
        self.inner.statuses.borrow().as_ref().clone()
    }

    /// The tables with their lag looked up now, or as last known if that takes longer than
    /// `max_wait`.
    pub async fn fresh_status(&self, max_wait: Duration) -> Vec<TableStatus> {
        let (answer, done) = oneshot::channel();
        let ask = async {
            if self
                .inner
                .commands
                .send(Command::RefreshLag { answer })
                .await
                .is_ok()
            {
                // A daemon that stops meanwhile leaves the last known status.
                let _ = done.await;
            }
        };
        let _ = tokio::time::timeout(max_wait, ask).await;
        self.status()
    }

    /// The tables, each time something about them changes.
    pub fn watch(&self) -> watch::Receiver<Arc<Vec<TableStatus>>> {
        self.watched();
        self.inner.statuses.clone()
    }

    /// Whether the coordinator has answered the daemon's registration, and the daemon runs.
    pub fn is_ready(&self) -> bool {
        let ready = &self.inner.ready;
        // An error says that the daemon's end of the channel is gone.
        ready.has_changed().is_ok() && *ready.borrow()
    }

    /// Waits until the daemon has ended, by [`Handle::shutdown`] or because it broke.
    pub async fn ended(&self) {
        let mut ready = self.inner.ready.clone();
        // It never holds, so this answers only once the daemon's end of the channel is gone.
        let _ = ready.wait_for(|_| false).await;
    }

    /// Waits until [`Handle::is_ready`].
    ///
    /// # Errors
    /// [`Error::Stopped`] if the daemon stops before.
    pub async fn ready(&self) -> Result<()> {
        let mut ready = self.inner.ready.clone();
        ready
            .wait_for(|ready| *ready)
            .await
            .map(drop)
            .map_err(|_| Error::Stopped)
    }

    /// Starts a round of the table now, or as soon as a slot is free, also if it is not due or
    /// waits after a failure. Does not wait for the round.
    ///
    /// # Errors
    /// [`Error::UnknownTable`] or [`Error::Cluster`] if there is no such table,
    /// [`Error::Unsupported`] if its lake is off, [`Error::PausedByPerson`], [`Error::Stopped`].
    pub async fn tier_now(&self, path: &TablePath) -> Result<()> {
        let order = |id| {
            let path = path.clone();
            move |answer| Command::TierNow { path, id, answer }
        };
        match self.send(order(None)).await {
            Err(Error::UnknownTable { .. }) => {
                // Not handed out to this daemon so far: ask the cluster who it is.
                let info = self.inner.client.table_info(path).await?;
                if !is_lake_enabled(&info.properties) {
                    let (table, reason) = (path.clone(), NO_LAKE);
                    return Err(Error::Unsupported { table, reason });
                }
                self.send(order(Some(info.id))).await
            }
            sent => sent,
        }
    }

    /// Starts no more rounds of the table until [`Handle::resume`], also after a restart if there is a
    /// state file; a running round commits what it has read.
    ///
    /// # Errors
    /// [`Error::UnknownTable`], [`Error::Stopped`], [`Error::State`] if the pause holds but will end
    /// with the process.
    pub async fn pause(&self, path: &TablePath) -> Result<()> {
        self.send(|answer| Command::Pause {
            path: path.clone(),
            answer,
        })
        .await
    }

    /// Lets a paused table go on, whoever paused it.
    ///
    /// # Errors
    /// [`Error::UnknownTable`], [`Error::Stopped`].
    pub async fn resume(&self, path: &TablePath) -> Result<()> {
        self.send(|answer| Command::Resume {
            path: path.clone(),
            answer,
        })
        .await
    }

    /// Lets the offsets go that the table's logs have lost, as its status names them, and starts a
    /// round behind them. The next lake snapshot notes them down; the rows that they had are lost.
    ///
    /// # Errors
    /// [`Error::UnknownTable`], [`Error::NothingLost`] if no lost offsets are known, [`Error::Stopped`].
    pub async fn accept_loss(&self, path: &TablePath) -> Result<Vec<LostOffsets>> {
        let path = path.clone();
        self.send(|answer| Command::AcceptLoss { path, answer })
            .await
    }

    /// From now on the status tells what retention keeps because the lake lacks it, by `source`, which
    /// must not block. The first source stays.
    pub fn tell_held(
        &self,
        source: impl Fn() -> BTreeMap<TableId, HeldBack> + Send + Sync + 'static,
    ) {
        // A second source is not wanted.
        let _ = self.inner.held.set(HeldSource(Box::new(source)));
    }

    /// Bytes of the memory budget: held now, and at most ever.
    pub fn memory_bytes(&self) -> (u64, u64) {
        (
            self.inner.budget.used_bytes(),
            self.inner.budget.peak_bytes(),
        )
    }

    /// Ends all rounds (they commit what they have read, or are dropped after `stop-ms`), gives the
    /// tables back and waits for the daemon's end.
    pub async fn shutdown(&self) {
        self.inner.stop.cancel();
        let task = self.inner.task.lock().take();
        if let Some(task) = task {
            // A daemon that panicked has ended, too.
            let _ = task.await;
        }
    }

    async fn send<T>(
        &self,
        order: impl FnOnce(oneshot::Sender<Result<T>>) -> Command,
    ) -> Result<T> {
        let (answer, answered) = oneshot::channel();
        self.inner
            .commands
            .send(order(answer))
            .await
            .map_err(|_| Error::Stopped)?;
        answered.await.map_err(|_| Error::Stopped)?
    }

    fn watched(&self) {
        let until = self.inner.clock.now_ms().saturating_add(WATCHED_MS);
        self.inner.watched_until_ms.store(until, Ordering::Relaxed);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// The signals of each running round.
type Running = HashMap<TableId, crate::worker::RoundSignals>;

#[cfg(test)]
mod tests;
