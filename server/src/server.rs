//! Puts the parts together, starts them, and stops them in order.

mod entrance;
mod nodes;
mod stores;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use object_store::ObjectStore;
use object_store::path::Path as ObjectPath;
use prometheus_client::registry::Registry;
use tokio_util::sync::DropGuard;
use weir_catalog::Catalog;
use weir_catalog::catalog::{DEFAULT_DATABASE, IfExists};
use weir_catalog::clock::{Clock, SystemClock};
use weir_catalog::ddl::Rules;
use weir_catalog::lake::PaimonCatalog;
use weir_catalog::leader::{self, Leadership};
use weir_catalog::offsets_files::OffsetsFiles;
use weir_catalog::store::{Fence, MetadataStore, Session, SessionId};
use weir_kv::KvEnvironment;
use weir_protocol::descriptor::DatabaseDescriptor;
use weir_protocol::ids::TableId;

use crate::api::{Role, Service};
use crate::cluster::MetadataCache;
use crate::config::{FlushPolicy, ServerConfig};
use crate::coordinator::{self, Coordinator, Leaders, LogFolders, Rounds, RoundsParts};
use crate::data_dir::DataDir;
use crate::error::Error;
use crate::held::Held;
use crate::log::{self, Disk, FileSystem, Flusher, LogOptions};
use crate::meta_store::RocksMetadataStore;
use crate::metrics::Metrics;
use crate::net::{self, Admission, Shared};
use crate::peer::{Call, Peer};
use crate::reads::Reads;
use crate::shutdown::Shutdown;
use crate::tablet::{self, TabletServer};

pub use entrance::Entrance;
use nodes::Nodes;
use stores::{open_lake, open_remote, open_store};

/// How long requests that are running at a stop may take.
const DRAIN_REQUESTS: Duration = Duration::from_secs(15);
/// How long the server's own tasks may take to stop.
const DRAIN_TASKS: Duration = Duration::from_secs(15);
/// Threads that sync logs, per tablet server.
const FLUSH_THREADS: usize = 2;
/// In-process sessions end with their owner; this is for stores elsewhere.
const SESSION_TTL: Duration = Duration::from_secs(30);

/// What a server gets besides its configuration.
#[derive(Clone, Debug)]
pub struct Components {
    /// Wall time.
    pub clock: Arc<dyn Clock>,
    /// Where metadata is kept. Default: RocksDB in the data directory.
    pub store: Option<Arc<dyn MetadataStore>>,
    /// What logs are kept on. Default: the file system.
    pub disk: Arc<dyn Disk>,
    /// The lake's store and root. Default: what the configuration names.
    pub lake: Option<(Arc<dyn ObjectStore>, ObjectPath)>,
    /// Where offsets files are kept. Default: what the configuration names.
    pub offsets_files: Option<OffsetsFiles>,
    /// What the server takes of the machine. Default: sockets and threads.
    pub host: Host,
}

/// What a server takes of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Host {
    /// Sockets to listen on, and threads that sync logs.
    #[default]
    Machine,
    /// Neither: the program around it brings connections ([`RunningServer::entrance`]), and the
    /// runtime that it was started on syncs logs, by its own clock.
    Program,
}

impl Default for Components {
    fn default() -> Self {
        Self {
            clock: Arc::new(SystemClock),
            store: None,
            disk: Arc::new(FileSystem),
            lake: None,
            offsets_files: None,
            host: Host::Machine,
        }
    }
}

/// An embedded server: one coordinator and its tablet servers.
#[derive(Debug)]
pub struct Server;

/// A server that serves. Stop it with [`RunningServer::shutdown`]; dropping it leaves a log to be
/// recovered at the next start.
#[derive(Debug)]
pub struct RunningServer {
    nodes: Nodes,
    warehouse: String,
    entrance: Entrance,
    registry: Arc<Registry>,
    gauges: Arc<Metrics>,
    /// Connections and their requests.
    front: Shutdown,
    /// The server's own tasks.
    back: Shutdown,
    tablets: Vec<Arc<TabletServer>>,
    flushers: Vec<Flusher>,
    store: Arc<dyn MetadataStore>,
    rocks: Option<RocksMetadataStore>,
    session: Session,
    data_dir: DataDir,
    /// Tell the tasks to end if this is dropped without a stop.
    _ends: [DropGuard; 2],
}

impl Server {
    /// Starts a server; it serves when this returns.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::PortInUse`], [`Error::Locked`], [`Error::NewerFormat`],
    /// [`Error::Disk`], [`Error::Warehouse`], or the metadata cannot be read.
    pub async fn start(
        config: ServerConfig,
        components: Components,
    ) -> Result<RunningServer, Error> {
        config.validate()?;
        let config = Arc::new(config);
        let ground = Ground::prepare(Arc::clone(&config), components).await?;
        let listeners = match ground.host {
            Host::Machine => nodes::Listeners::bind(&config).await?,
            Host::Program => nodes::Listeners::unbound(&config)?,
        };
        ground.build(listeners).await
    }
}

/// What must be there before anything runs.
struct Ground {
    config: Arc<ServerConfig>,
    clock: Arc<dyn Clock>,
    disk: Arc<dyn Disk>,
    host: Host,
    data_dir: DataDir,
    offsets_files: OffsetsFiles,
    lake: (Arc<dyn ObjectStore>, ObjectPath),
    warehouse: String,
    store: Arc<dyn MetadataStore>,
    rocks: Option<RocksMetadataStore>,
    registry: Registry,
    metrics: Arc<Metrics>,
}

impl Ground {
    async fn prepare(config: Arc<ServerConfig>, components: Components) -> Result<Self, Error> {
        let dir = config.data_dir.clone();
        let data_dir = tokio::task::spawn_blocking(move || DataDir::open(&dir)).await??;
        let offsets_files = match components.offsets_files {
            Some(offsets_files) => offsets_files,
            None => open_remote(&config.remote_url()).await?,
        };
        let warehouse = config.warehouse_url();
        let lake = match components.lake {
            Some(lake) => lake,
            None => open_lake(&warehouse).await?,
        };
        let (store, rocks) = match components.store {
            Some(store) => (store, None),
            None => {
                let rocks = open_store(&data_dir).await?;
                (
                    Arc::new(rocks.clone()) as Arc<dyn MetadataStore>,
                    Some(rocks),
                )
            }
        };
        let mut registry = Registry::default();
        let metrics = Arc::new(Metrics::new(&mut registry));
        let clock = components.clock;
        Ok(Self {
            config,
            clock,
            disk: components.disk,
            host: components.host,
            data_dir,
            offsets_files,
            lake,
            warehouse,
            store,
            rocks,
            registry,
            metrics,
        })
    }

    async fn build(self, listeners: nodes::Listeners) -> Result<RunningServer, Error> {
        let (front, back) = (Shutdown::new(), Shutdown::new());
        let leadership = leader::take_over(&*self.store).await?;
        let session = self
            .store
            .open_session(SESSION_TTL)
            .await
            .map_err(|source| {
                let what = "session".to_owned();
                weir_catalog::Error::Store { what, source }
            })?;
        let nodes = listeners.nodes();
        let catalog = self.catalog(leadership.fence.clone());
        nodes.register(&catalog, &*self.clock, session.id()).await;
        let settings = nodes.settings(&self.config, &self.warehouse);
        let reads = Arc::new(Reads::new(
            catalog.clone(),
            self.warehouse.clone(),
            settings,
        ));
        let running = self.start_tablets(&nodes, &reads, &back)?;
        let start = CoordinatorStart {
            catalog,
            leadership,
            session: session.id(),
            reads: Arc::clone(&reads),
            back: back.clone(),
        };
        let coordinator = self.start_coordinator(start, &nodes, running.peers).await?;
        let limit = Duration::from_millis(self.config.start_timeout_ms);
        let logs = LogFolders {
            disk: Arc::clone(&self.disk),
            dirs: running.log_dirs,
        };
        // Keys are always on the file system.
        let keys = LogFolders {
            disk: Arc::new(FileSystem),
            dirs: running.kv_dirs,
        };
        coordinator.bring_up(vec![logs, keys], limit).await?;
        let ticker = Arc::clone(&coordinator).auto_partition_loop();
        back.spawn_critical("the clock of partitions", ticker);
        let sweeper = Arc::clone(&coordinator).discard_loop();
        back.spawn_critical("the sweep of offsets files", sweeper);
        let counts = Arc::clone(&coordinator).bucket_count_loop();
        back.spawn_critical("the lake's bucket counts", counts);
        let entrance = self.open_doors(listeners, &nodes, (coordinator, &running.tablets), &front);
        let guard = |shutdown: &Shutdown| shutdown.token().clone().drop_guard();
        Ok(RunningServer {
            nodes,
            entrance,
            warehouse: self.warehouse,
            registry: Arc::new(self.registry),
            gauges: self.metrics,
            _ends: [guard(&front), guard(&back)],
            front,
            back,
            tablets: running.tablets,
            flushers: running.flushers,
            store: self.store,
            rocks: self.rocks,
            session,
            data_dir: self.data_dir,
        })
    }

    async fn start_coordinator(
        &self,
        start: CoordinatorStart,
        nodes: &Nodes,
        peers: Vec<Peer>,
    ) -> Result<Arc<Coordinator>, Error> {
        let CoordinatorStart {
            catalog,
            leadership,
            session,
            reads,
            back,
        } = start;
        let Leadership { epoch, fence } = leadership;
        let cache = Arc::new(MetadataCache::default());
        let shared = (catalog.clone(), Arc::clone(&cache));
        let leaders = Leaders::new(shared.0, shared.1, peers, epoch.0, back.clone());
        leaders.broadcast(nodes.update(epoch.0)).await;
        let rounds = Rounds::start(RoundsParts {
            catalog: catalog.clone(),
            coordinator_epoch: epoch.0,
            session,
            config: self.config.tiering.clone(),
            metrics: Arc::clone(&self.metrics),
            shutdown: back.clone(),
        });
        let coordinator = Coordinator::new(coordinator::Parts {
            catalog,
            fence,
            reads,
            offsets_files: self.offsets_files.clone(),
            leaders,
            rounds,
            cache,
            clock: Arc::clone(&self.clock),
            config: Arc::clone(&self.config),
            metrics: Arc::clone(&self.metrics),
            shutdown: back,
            servers: nodes.servers(),
        });
        let plain = DatabaseDescriptor::default();
        coordinator
            .create_database(DEFAULT_DATABASE, &plain, IfExists::Ignore)
            .await?;
        Ok(coordinator)
    }

    /// The catalog that this process may change until another takes over.
    fn catalog(&self, fence: Fence) -> Catalog {
        let (store, root) = &self.lake;
        let clock = Arc::clone(&self.clock);
        let lake = PaimonCatalog::new(Arc::clone(store), root.clone(), Arc::clone(&clock));
        Catalog::new(Arc::clone(&self.store), clock)
            .with_lake(Arc::new(lake))
            .with_offsets_files(self.offsets_files.clone())
            .with_fence(fence)
            .with_rules(Rules {
                default_bucket_count: self.config.default_bucket_number,
                max_bucket_count: self.config.max_bucket_number,
                max_partition_count: usize::try_from(self.config.max_partition_number).unwrap_or(1),
                ..Rules::default()
            })
    }

    fn start_tablets(
        &self,
        nodes: &Nodes,
        reads: &Arc<Reads>,
        back: &Shutdown,
    ) -> Result<Tablets, Error> {
        let mut tablets = Tablets::default();
        let environment = self.kv_environment();
        for id in nodes.servers() {
            let flusher = self.flusher()?;
            let log_dir = self.data_dir.path().join(format!("tablet-{id}/log"));
            crate::data_dir::make_folder(&*self.disk, &log_dir)?;
            let kv_dir = self.data_dir.path().join(format!("tablet-{id}/kv"));
            let server = TabletServer::new(tablet::Parts {
                id,
                log_dir: log_dir.clone(),
                log_config: self.config.log.clone(),
                log_options: self.log_options(&flusher),
                kv: tablet::KvParts {
                    dir: kv_dir.clone(),
                    config: self.config.kv.clone(),
                    environment: environment.clone(),
                },
                limits: self.config.limits.clone(),
                reads: Arc::clone(reads),
                clock: Arc::clone(&self.clock),
                metrics: Arc::clone(&self.metrics),
                shutdown: back.clone(),
            });
            let (peer, calls): (Peer, tokio::sync::mpsc::Receiver<Call>) = Peer::new(id);
            back.spawn_critical("a tablet server", Arc::clone(&server).run(calls));
            back.spawn_critical(
                "the retention of logs",
                Arc::clone(&server).retention_loop(),
            );
            back.spawn_critical("the mending of keys", Arc::clone(&server).reopen_loop());
            tablets.peers.push(peer);
            tablets.tablets.push(server);
            tablets.flushers.push(flusher);
            tablets.log_dirs.push(log_dir);
            tablets.kv_dirs.push(kv_dir);
        }
        Ok(tablets)
    }

    fn kv_environment(&self) -> KvEnvironment {
        let clock = Arc::clone(&self.clock);
        KvEnvironment::new(
            self.config.kv.environment(),
            Arc::new(move || clock.now_ms()),
        )
    }

    fn flusher(&self) -> Result<Flusher, Error> {
        let policy = match self.config.log.flush {
            FlushPolicy::Always => log::FlushPolicy::Always,
            FlushPolicy::Interval(ms) => log::FlushPolicy::Interval(Duration::from_millis(ms)),
            FlushPolicy::Os => log::FlushPolicy::Os,
        };
        if self.host == Host::Program {
            let runtime = tokio::runtime::Handle::current();
            return Ok(Flusher::on_runtime(policy, runtime));
        }
        Flusher::start(policy, FLUSH_THREADS).map_err(|source| Error::Disk {
            path: self.data_dir.path().to_owned(),
            source,
        })
    }

    fn log_options(&self, flusher: &Flusher) -> LogOptions {
        let config = log::LogConfig {
            segment_bytes: self.config.log.segment_bytes,
            writer_expiry_ms: i64::try_from(self.config.log.writer_expiry_ms).unwrap_or(i64::MAX),
            ..log::LogConfig::default()
        };
        LogOptions {
            disk: Arc::clone(&self.disk),
            config,
            flusher: Some(flusher.handle()),
        }
    }

    fn open_doors(
        &self,
        listeners: nodes::Listeners,
        nodes: &Nodes,
        (coordinator, tablets): (Arc<Coordinator>, &[Arc<TabletServer>]),
        front: &Shutdown,
    ) -> Entrance {
        let reads = Arc::clone(&coordinator.parts.reads);
        let shared = Arc::new(Shared {
            admission: Admission::new(&self.config.limits),
            limits: self.config.limits.clone(),
            sasl: self.config.sasl.clone(),
            metrics: Arc::clone(&self.metrics),
            shutdown: front.clone(),
        });
        let service = |role, cache: &Arc<MetadataCache>| {
            let (reads, cache) = (Arc::clone(&reads), Arc::clone(cache));
            Arc::new(Service { role, reads, cache })
        };
        let cache = Arc::clone(&coordinator.parts.cache);
        let mut services = vec![service(Role::Coordinator(coordinator), &cache)];
        let roles = tablets
            .iter()
            .map(|tablet| service(Role::Tablet(Arc::clone(tablet)), &tablet.cache));
        services.extend(roles);
        let listeners = listeners.coordinator.into_iter().chain(listeners.tablets);
        for (listener, service) in listeners.zip(&services) {
            let accepting = net::accept_loop(listener, Arc::clone(service), Arc::clone(&shared));
            front.spawn_critical("a listener", accepting);
        }
        let addresses = nodes.all().map(ToString::to_string);
        Entrance::new(addresses.zip(services).collect(), shared)
    }
}

/// What a coordinator starts with.
struct CoordinatorStart {
    catalog: Catalog,
    leadership: Leadership,
    session: SessionId,
    reads: Arc<Reads>,
    back: Shutdown,
}

#[derive(Default)]
struct Tablets {
    tablets: Vec<Arc<TabletServer>>,
    peers: Vec<Peer>,
    flushers: Vec<Flusher>,
    log_dirs: Vec<PathBuf>,
    kv_dirs: Vec<PathBuf>,
}

impl RunningServer {
    /// `HOST:PORT` of the coordinator, as clients are told: where they connect first.
    pub fn addr(&self) -> String {
        self.nodes.coordinator.to_string()
    }

    /// `HOST:PORT` of each tablet server.
    pub fn tablet_addrs(&self) -> Vec<String> {
        self.nodes.tablets.iter().map(ToString::to_string).collect()
    }

    /// Lets the program around the server bring connections, besides those of sockets.
    pub fn entrance(&self) -> Entrance {
        self.entrance.clone()
    }

    /// The lake's root: a folder or a URL.
    pub fn warehouse(&self) -> &str {
        &self.warehouse
    }

    /// All metrics of this server.
    pub fn metrics(&self) -> Arc<Registry> {
        Arc::clone(&self.registry)
    }

    /// Asks what retention would have removed by now, if it were in the lake, by table; as of the last
    /// look. Does not block.
    pub fn held(&self) -> impl Fn() -> BTreeMap<TableId, Held> + Send + Sync + 'static + use<> {
        let gauges = Arc::clone(&self.gauges);
        move || gauges.held.tables()
    }

    /// Whether every known bucket has a ready leader, as the tablet servers were told, and no part of the
    /// server is gone.
    pub fn is_ready(&self) -> bool {
        self.readiness()()
    }

    /// Asks [`Self::is_ready`] without holding the server. Does not block.
    pub fn readiness(&self) -> impl Fn() -> bool + Send + Sync + 'static + use<> {
        let metadata = self.rocks.as_ref().map(RocksMetadataStore::failure);
        let parts = [self.front.clone(), self.back.clone()];
        let caches = self.tablets.iter().map(|tablet| Arc::clone(&tablet.cache));
        let caches: Vec<_> = caches.collect();
        move || {
            let can_write = metadata
                .as_ref()
                .is_none_or(|failure| failure.borrow().is_none());
            can_write
                && !parts.iter().any(Shutdown::has_failed)
                && caches.iter().all(|cache| {
                    let (ready, known) = cache.leader_counts();
                    ready == known
                })
        }
    }

    /// Ends with the reason once the server can't go on: a write of metadata failed, and what is on disk is
    /// unknown, or a part of it is gone. The process is to end then, and recovers at its next start.
    /// Cancel-safe.
    pub async fn failed(&self) -> String {
        let metadata = async {
            match &self.rocks {
                Some(rocks) => rocks.failed().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            reason = metadata => reason,
            reason = self.front.failed() => reason,
            reason = self.back.failed() => reason,
        }
    }

    /// Stops: no new requests, then the running ones end, then tasks, then logs are flushed and
    /// closed. Each step is bounded; a step that takes too long is logged and the next one begins.
    pub async fn shutdown(self) {
        self.front.begin();
        if !self.front.drained(DRAIN_REQUESTS).await {
            tracing::warn!("some requests did not end in time");
        }
        self.back.begin();
        if !self.back.drained(DRAIN_TASKS).await {
            tracing::warn!("some tasks did not end in time");
        }
        for tablet in &self.tablets {
            tablet.close().await;
        }
        if let Err(error) = self.store.close_session(self.session.id()).await {
            tracing::warn!(%error, "the session was not closed");
        }
        let flushers = self.flushers;
        // Joins threads.
        if tokio::task::spawn_blocking(move || drop(flushers))
            .await
            .is_err()
        {
            tracing::error!("the log flushers did not end");
        }
        drop(self.store);
        // Closing joins the writer.
        let closed =
            tokio::task::spawn_blocking(move || self.rocks.inspect(RocksMetadataStore::close));
        if closed.await.is_err() {
            tracing::error!("the metadata store was not closed");
        }
        drop(self.data_dir);
        tracing::info!("stopped");
    }
}
