//! A server and a tiering daemon in this process, on free ports and a folder of their own.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::registry::Registry;
use tempfile::TempDir;
use tokio::time::{Instant, MissedTickBehavior, interval};
use weir_catalog::clock::{Clock, SystemClock};
use weir_catalog::store::MetadataStore;
use weir_lake_format::Table;
use weir_protocol::client::offsets::{OffsetSpec, OffsetsRequest};
use weir_protocol::client::writer::{LogWriter, LogWriterConfig};
use weir_protocol::client::{Client, ClientConfig};
use weir_protocol::ids::{BucketId, LogOffset, PartitionId, TableBucket, TableId, TablePath};
use weir_server::config::{FlushPolicy, ServerConfig};
use weir_server::held::Held;
use weir_server::server::{Components, RunningServer, Server};
use weir_tiering::config::DaemonConfig;
use weir_tiering::daemon::{Daemon, Handle};
use weir_tiering::lake_table::Warehouse;
use weir_tiering::status::TableStatus;

/// How long any condition may take before the test counts as failed: generous, machines are busy.
pub const PATIENCE: Duration = Duration::from_secs(45);
/// How often a condition is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(15);

/// Waits until `look` finds something and returns it.
///
/// # Panics
/// After [`PATIENCE`], naming `what`.
pub async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut look: impl FnMut() -> F) -> T {
    let give_up = Instant::now() + PATIENCE;
    let mut looks = interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < give_up, "waited in vain until {what}");
    }
}

/// How a [`Cluster`] is started.
#[derive(Debug)]
pub struct Setup {
    /// Wall time of server and daemon.
    pub clock: Arc<dyn Clock>,
    /// Where metadata is kept; `None` for RocksDB in the data directory.
    pub store: Option<Arc<dyn MetadataStore>>,
    /// What differs from the kit's configuration.
    pub tune: fn(&mut ServerConfig),
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            clock: Arc::new(SystemClock),
            store: None,
            tune: |_| {},
        }
    }
}

/// A running server with its client, and a daemon once [`Cluster::tier`] is called.
#[derive(Debug)]
pub struct Cluster {
    dir: TempDir,
    setup: Setup,
    server: Option<RunningServer>,
    daemon: Option<Handle>,
    /// A client of the server.
    pub client: Client,
}

impl Cluster {
    /// A server with the kit's configuration.
    pub async fn start() -> Self {
        Self::start_with(Setup::default()).await
    }

    /// A server with this set-up.
    pub async fn start_with(setup: Setup) -> Self {
        let dir = TempDir::new().expect("a folder for the data");
        let (server, client) = serve(dir.path(), &setup).await;
        Self {
            dir,
            setup,
            server: Some(server),
            daemon: None,
            client,
        }
    }

    /// Stops daemon and server in order and starts the server again on the same data.
    pub async fn restart(&mut self) {
        self.stop().await;
        self.start_again().await;
    }

    /// Starts the server again on the same data, after [`Cluster::stop`].
    pub async fn start_again(&mut self) {
        let (server, client) = serve(self.dir.path(), &self.setup).await;
        self.server = Some(server);
        self.client = client;
    }

    /// Stops daemon and server; the data stay until the value is dropped.
    pub async fn stop(&mut self) {
        self.stop_tiering().await;
        self.client.close().await;
        if let Some(server) = self.server.take() {
            server.shutdown().await;
        }
    }

    /// Starts the daemon; rounds of all tables run from now on.
    pub async fn tier(&mut self) -> Handle {
        let config = self.daemon_config();
        let handle = Daemon::start(config, &mut Registry::default()).expect("the daemon starts");
        handle
            .ready()
            .await
            .expect("the coordinator answers the daemon");
        self.daemon = Some(handle.clone());
        handle
    }

    /// Stops the daemon, if it runs.
    pub async fn stop_tiering(&mut self) {
        if let Some(daemon) = self.daemon.take() {
            daemon.shutdown().await;
        }
    }

    /// The settings with which [`Cluster::tier`] starts the daemon.
    pub fn daemon_config(&self) -> DaemonConfig {
        let mut config = DaemonConfig {
            bootstrap: vec![self.addr()],
            warehouse: self.server().warehouse().to_owned(),
            heartbeat_ms: 25,
            lag_ms: 100,
            ..DaemonConfig::default()
        };
        config.retry.first_ms = 100;
        config.retry.max_ms = 1_000;
        config
    }

    fn server(&self) -> &RunningServer {
        self.server.as_ref().expect("the server runs")
    }

    /// What retention keeps of each table because the lake lacks it, as of its last look.
    pub fn held(&self) -> BTreeMap<TableId, Held> {
        self.server().held()()
    }

    /// `HOST:PORT` of the coordinator.
    pub fn addr(&self) -> String {
        self.server().addr()
    }

    /// `HOST:PORT` of the first tablet server.
    pub fn tablet_addr(&self) -> String {
        self.server().tablet_addrs().remove(0)
    }

    /// The server's data directory.
    pub fn data_dir(&self) -> PathBuf {
        data_dir(self.dir.path())
    }

    /// The root of the lake.
    pub fn warehouse(&self) -> PathBuf {
        self.data_dir().join("lake")
    }

    /// The lake table of `path`.
    pub async fn lake(&self, path: &TablePath) -> Table {
        lake_table(&self.warehouse(), path).await
    }

    /// The warehouse as the daemon opens it.
    pub fn open_warehouse(&self) -> Warehouse {
        open_warehouse(&self.warehouse())
    }

    /// A writer of `path` that closes batches by flush alone.
    pub async fn writer(&self, path: &TablePath) -> LogWriter {
        let config = LogWriterConfig {
            linger: None,
            ..LogWriterConfig::default()
        };
        LogWriter::open(self.client.clone(), path.clone(), config)
            .await
            .expect("a writer opens")
    }

    /// The buckets of a table with the ends of their logs (high watermarks), over each partition's
    /// own count.
    pub async fn log_ends(&self, path: &TablePath) -> BTreeMap<TableBucket, LogOffset> {
        self.offsets(path, OffsetSpec::Latest).await
    }

    /// The buckets of a table with the first offsets that their logs still hold.
    pub async fn log_starts(&self, path: &TablePath) -> BTreeMap<TableBucket, LogOffset> {
        self.offsets(path, OffsetSpec::Earliest).await
    }

    async fn offsets(
        &self,
        path: &TablePath,
        spec: OffsetSpec,
    ) -> BTreeMap<TableBucket, LogOffset> {
        let info = self
            .client
            .table_info(path)
            .await
            .expect("the table exists");
        let mut groups: Vec<(Option<PartitionId>, _)> = Vec::new();
        if info.descriptor.is_partitioned() {
            for one in self
                .client
                .list_partitions(path)
                .await
                .expect("partitions are listed")
            {
                groups.push((Some(one.id), one.total_buckets(&info).expect("a count")));
            }
        } else {
            groups.push((None, info.total_buckets().expect("a count")));
        }
        let mut ends = BTreeMap::new();
        for (partition, routing_count) in groups {
            let (table, path) = (info.table_id, path.clone());
            let buckets = (0..routing_count.0).map(BucketId).collect();
            let request = OffsetsRequest {
                path,
                table,
                partition,
                buckets,
                spec,
                routing_count,
            };
            let found = self
                .client
                .list_offsets(&request)
                .await
                .expect("offsets are listed");
            ends.extend(found.into_iter().map(|(bucket, end)| {
                (
                    TableBucket {
                        table,
                        partition,
                        bucket,
                    },
                    end.expect("an offset"),
                )
            }));
        }
        ends
    }

    /// How far each bucket is in the lake, as the cluster registered it.
    pub async fn lake_ends(&self, path: &TablePath) -> BTreeMap<TableBucket, LogOffset> {
        let snapshot = self
            .client
            .lake_snapshot(path)
            .await
            .expect("the lake snapshot is told");
        let buckets = snapshot
            .map(|snapshot| snapshot.buckets)
            .unwrap_or_default();
        buckets
            .into_iter()
            .map(|(bucket, end, _)| (bucket, end))
            .collect()
    }

    /// Waits until all rows that are in the log of `path` now are in the lake.
    pub async fn wait_tiered(&self, path: &TablePath) {
        let ends = self.log_ends(path).await;
        until(&format!("{path} is tiered"), || async {
            let lake = self.lake_ends(path).await;
            let reached = |(bucket, end): (&TableBucket, &LogOffset)| {
                end.0 == 0 || lake.get(bucket).is_some_and(|lake| lake >= end)
            };
            ends.iter().all(reached).then_some(())
        })
        .await;
    }

    /// Waits until the daemon's status of `path` is as `look` wants it.
    pub async fn wait_status(
        &self,
        path: &TablePath,
        what: &str,
        look: impl Fn(&TableStatus) -> bool,
    ) -> TableStatus {
        let daemon = self.daemon.as_ref().expect("the daemon runs");
        until(what, || async {
            daemon
                .status()
                .into_iter()
                .find(|status| status.path == *path && look(status))
        })
        .await
    }
}

/// The kit's server configuration over the data in `root`: free ports, short waits.
pub fn server_config(root: &Path) -> ServerConfig {
    let mut config = ServerConfig::in_dir(data_dir(root));
    "127.0.0.1:0".clone_into(&mut config.listen);
    config.log.flush = FlushPolicy::Interval(5);
    config.auto_partition_check_ms = 50;
    config
}

/// The table of `path` in the lake at `warehouse`.
pub async fn lake_table(warehouse: &Path, path: &TablePath) -> Table {
    let (store, root) = weir_lake_format::open_warehouse(&text(warehouse), &BTreeMap::new())
        .expect("the warehouse opens");
    let folder = weir_lake_format::paths::table_path(&root, &path.database, &path.table)
        .expect("a folder's name");
    Table::open(store, folder)
        .await
        .expect("the lake table exists")
}

/// The warehouse in a folder as the daemon opens it.
pub fn open_warehouse(folder: &Path) -> Warehouse {
    Warehouse::open(&text(folder), &BTreeMap::new()).expect("the warehouse opens")
}

fn text(path: &Path) -> String {
    path.to_str()
        .expect("a folder of the test has a plain name")
        .to_owned()
}

fn data_dir(root: &Path) -> PathBuf {
    root.join("data")
}

async fn serve(root: &Path, setup: &Setup) -> (RunningServer, Client) {
    let mut config = server_config(root);
    (setup.tune)(&mut config);
    let components = Components {
        clock: Arc::clone(&setup.clock),
        store: setup.store.clone(),
        ..Components::default()
    };
    let server = Server::start(config, components)
        .await
        .expect("the server starts");
    let mut config = ClientConfig::new([server.addr()]);
    config.request_timeout = PATIENCE;
    let client = Client::connect(config).await.expect("the client connects");
    (server, client)
}
