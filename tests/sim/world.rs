//! The world of one run: one server process, some daemons, some producers, and what outlives them
//! all: the disk, the metadata, the objects.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use object_store::path::Path as ObjectPath;
use prometheus_client::registry::Registry;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tempfile::TempDir;
use tokio::time::Instant;
use weir_catalog::clock::Clock;
use weir_catalog::offsets_files::OffsetsFiles;
use weir_catalog::store::memory::MemoryStore;
use weir_protocol::client::Client;
use weir_protocol::ids::TablePath;
use weir_protocol::partition::PartitionSpec;
use weir_server::config::ServerConfig;
use weir_server::server::{Components, Host, RunningServer, Server};
use weir_tiering::cluster::wire::WireCluster;
use weir_tiering::config::DaemonConfig;
use weir_tiering::daemon::{self, Daemon};
use weir_tiering::lake_table::Warehouse;

use crate::chaos::Chaos;
use crate::disk::{Crash, MemoryDisk, ReachedDisk};
use crate::metadata::Metadata;
use crate::model::Model;
use crate::network::Network;
use crate::objects::{Objects, Reached};
use crate::process::Process;
use crate::producer::{ADDRESS, Producer, client_config};
use crate::swarm::Swarm;

/// The root of the lake among the objects.
pub(crate) const LAKE: &str = "lake";
/// A date to begin with.
const BEGIN_MS: i64 = 1_760_000_000_000;

/// The world's time: the runtime's, which stands still while there is work, and its jumps.
#[derive(Debug)]
pub(crate) struct WorldClock {
    begin: Instant,
    ahead_ms: AtomicI64,
}

impl WorldClock {
    pub(crate) fn jump(&self, ms: i64) {
        self.ahead_ms.fetch_add(ms, Ordering::SeqCst);
    }
}

impl Clock for WorldClock {
    fn now_ms(&self) -> i64 {
        let passed = i64::try_from(self.begin.elapsed().as_millis()).unwrap_or(i64::MAX);
        BEGIN_MS + passed + self.ahead_ms.load(Ordering::SeqCst)
    }
}

/// A server that runs.
pub(crate) struct Served {
    pub(crate) running: RunningServer,
    pub(crate) process: Process,
    /// Sees everything, meets no trouble, dies with the server.
    pub(crate) observer: Client,
}

/// A daemon that runs.
pub(crate) struct Tier {
    pub(crate) process: Process,
    pub(crate) handle: daemon::Handle,
}

pub(crate) struct World {
    pub(crate) seed: u64,
    pub(crate) rng: StdRng,
    pub(crate) swarm: Swarm,
    pub(crate) chaos: Chaos,
    /// For those that only look.
    pub(crate) calm: Chaos,
    pub(crate) clock: Arc<WorldClock>,
    pub(crate) disk: MemoryDisk,
    pub(crate) objects: Arc<Objects>,
    pub(crate) network: Network,
    pub(crate) model: Model,
    pub(crate) server: Option<Served>,
    pub(crate) daemons: Vec<Option<Tier>>,
    pub(crate) producers: Vec<Producer>,
    pub(crate) made: i64,
    /// Partitions that were stored for the server to find.
    pub(crate) laid_out: Vec<(TablePath, PartitionSpec)>,
    closing: Vec<tokio::task::JoinHandle<()>>,
    pub(crate) store: MemoryStore,
    dir: TempDir,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let swarm = Swarm::draw(&mut rng);
        Self::with(seed, swarm, rng)
    }

    /// A world in which nothing happens by chance.
    pub(crate) fn calm() -> Self {
        Self::with(0, Swarm::calm(), StdRng::seed_from_u64(0))
    }

    fn with(seed: u64, swarm: Swarm, mut rng: StdRng) -> Self {
        let chaos = Chaos::new(rng.random(), swarm.rates.clone());
        let calm = Chaos::new(0, Default::default());
        let clock = Arc::new(WorldClock {
            begin: Instant::now(),
            ahead_ms: AtomicI64::new(0),
        });
        let objects = Objects::new(Arc::clone(&clock) as Arc<dyn Clock>);
        Self {
            seed,
            daemons: (0..swarm.daemons).map(|_| None).collect(),
            rng,
            swarm,
            chaos,
            calm,
            clock,
            disk: MemoryDisk::new(),
            objects,
            network: Network::default(),
            model: Model::default(),
            server: None,
            producers: Vec::new(),
            made: 0,
            laid_out: Vec::new(),
            closing: Vec::new(),
            store: MemoryStore::new(),
            dir: tempfile::Builder::new()
                .prefix("weir-sim-")
                .tempdir_in(fast_folder())
                .expect("a folder for the lock of the data directory"),
        }
    }

    /// Starts the server on what is left of the last one. It may fail, or die while it starts.
    pub(crate) async fn start_server(&mut self) {
        self.made += 1;
        let process = Process::new(format!("server-{}", self.made), &self.chaos);
        let crash = match self.rng.random_range(0..3) {
            0 => Crash::ForgetAll,
            1 => Crash::Torn(self.rng.random()),
            _ => Crash::ProcessOnly,
        };
        let (disk, network) = (self.disk.clone(), self.network.clone());
        process.on_death(move || {
            network.close();
            disk.crash(crash);
        });
        let reached = Reached {
            objects: Arc::clone(&self.objects),
            process: process.clone(),
        };
        let store = Arc::new(reached);
        let components = Components {
            clock: Arc::clone(&self.clock) as Arc<dyn Clock>,
            store: Some(Arc::new(Metadata {
                store: self.store.clone(),
                process: process.clone(),
            })),
            disk: ReachedDisk::new(&self.disk, &process),
            lake: Some((Arc::clone(&store) as _, ObjectPath::from(LAKE))),
            offsets_files: Some(OffsetsFiles::new(
                store,
                ObjectPath::from("remote"),
                "file:/remote",
            )),
            host: Host::Program,
        };
        let starting = Server::start(self.server_config(), components);
        let started = tokio::select! {
            started = starting => started,
            () = process.dead() => return,
        };
        let running = match started {
            Ok(running) => running,
            Err(error) => {
                self.chaos
                    .note(&format!("the server does not start: {error}"));
                // As the binary would.
                process.die();
                return;
            }
        };
        self.network.open(running.entrance(), process.clone());
        let watcher = Process::new("observer", &self.calm);
        let connecting = Client::connect(client_config(&self.network, &watcher));
        let observer = tokio::select! {
            connected = connecting => connected,
            () = process.dead() => return,
        };
        let Ok(observer) = observer else {
            assert!(process.is_dead(), "a server that runs must be reachable");
            return;
        };
        self.chaos.count("server starts");
        self.server = Some(Served {
            running,
            process,
            observer,
        });
    }

    fn server_config(&self) -> ServerConfig {
        let mut config = ServerConfig::in_dir(self.dir.path());
        ADDRESS.clone_into(&mut config.listen);
        config.log.flush = self.swarm.flush;
        config.start_timeout_ms = 20_000;
        config.tiering.heartbeat_timeout_ms = 12_000;
        config.tiering.check_ms = 1_000;
        config.tiering.discarded_file_grace_ms = 30_000;
        config.auto_partition_check_ms = 20_000;
        config.log.retention_check_ms = 10_000;
        config
    }

    /// Starts a daemon in a place that has none.
    pub(crate) fn start_daemon(&mut self, place: usize) {
        self.made += 1;
        let process = Process::new(format!("daemon-{}", self.made), &self.chaos);
        let config = self.daemon_config();
        let reached = Reached {
            objects: Arc::clone(&self.objects),
            process: process.clone(),
        };
        let components = daemon::Components {
            client: Arc::new(WireCluster::over(&config, self.network.of(&process))),
            warehouse: Warehouse::new(Arc::new(reached), ObjectPath::from(LAKE)),
            clock: Arc::clone(&self.clock) as Arc<dyn Clock>,
        };
        let handle = Daemon::start_with(config, components, &mut Registry::default())
            .expect("the settings are right");
        self.chaos.count("daemon starts");
        self.daemons[place] = Some(Tier { process, handle });
    }

    fn daemon_config(&self) -> DaemonConfig {
        let mut config = DaemonConfig {
            bootstrap: vec![ADDRESS.to_owned()],
            warehouse: "simulated".to_owned(),
            memory: 32 << 20,
            cpu_permits: 1,
            tables: 2,
            heartbeat_ms: 1_000,
            rpc_timeout_ms: 6_000,
            lease_ms: 10_000,
            stop_ms: 10_000,
            ..DaemonConfig::default()
        };
        config.round.max_rows = self.swarm.round_rows;
        config.retry.first_ms = 200;
        config.retry.max_ms = 5_000;
        config
    }

    /// Takes away what has died by itself.
    pub(crate) fn bury(&mut self) {
        if self
            .server
            .as_ref()
            .is_some_and(|server| server.process.is_dead())
        {
            self.server = None;
            self.chaos.count("server deaths");
        }
        for place in &mut self.daemons {
            if place
                .as_ref()
                .is_some_and(|daemon| daemon.process.is_dead())
            {
                *place = None;
                self.chaos.count("daemon deaths");
            }
        }
        self.producers
            .retain(|producer| !producer.process.is_dead());
    }

    /// Everyone who is to run does, from now on.
    pub(crate) async fn heal(&mut self) -> Result<(), String> {
        if let Some(server) = &self.server {
            server.process.forget_plan();
        }
        for daemon in self.daemons.iter().flatten() {
            daemon.process.forget_plan();
            daemon.process.thaw();
        }
        self.bury();
        if self.server.is_none() {
            self.start_server().await;
        }
        if self.server.is_none() {
            return Err("the server does not start although nothing goes wrong".to_owned());
        }
        for place in 0..self.daemons.len() {
            if self.daemons[place].is_none() {
                self.start_daemon(place);
            }
        }
        if let Some(server) = &self.server {
            for (path, spec) in &self.laid_out {
                // Its table may be gone.
                let _asked = server.observer.create_partition(path, spec, true).await;
            }
        }
        // Producers end once what they were given is written or given up.
        self.closing = self.producers.drain(..).map(Producer::close).collect();
        Ok(())
    }

    /// Whether all producers have ended.
    pub(crate) fn is_silent(&self) -> bool {
        self.closing
            .iter()
            .all(tokio::task::JoinHandle::is_finished)
    }

    /// How the daemons say that their tables fare.
    pub(crate) fn statuses(&self) -> String {
        let daemons = self.daemons.iter().flatten();
        let statuses = daemons.flat_map(|daemon| daemon.handle.status());
        let lines: Vec<String> = statuses.map(|status| format!("{status:?}")).collect();
        lines.join("\n")
    }

    /// Lets time pass; everything goes on meanwhile.
    pub(crate) async fn pass(&mut self, time: Duration) {
        tokio::time::sleep(time).await;
        self.bury();
    }

    /// Some number of the run, below `upto`.
    pub(crate) fn any(&mut self, upto: usize) -> usize {
        self.rng.random_range(0..upto.max(1))
    }
}

/// A folder whose syncs cost nothing, if there is one.
fn fast_folder() -> std::path::PathBuf {
    let memory = std::path::PathBuf::from("/dev/shm");
    if memory.is_dir() {
        memory
    } else {
        std::env::temp_dir()
    }
}
