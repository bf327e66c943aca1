//! `weir demo`: the whole path on generated TPC-H data, then what is in the lake.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_protocol::client::{Client, ClientConfig};
use weir_protocol::ids::TablePath;
use weir_server::{RunningServer, ServerConfig};
use weir_tiering::cli::connect::failure;
use weir_tiering::cli::exit::{Failure, Outcome};
use weir_tiering::cli::output::{count, print};
use weir_tiering::cli::{
    Cluster, Demo, LakeCommand, LakeTable, LakeTarget, Load, Warehouse, lake, load, table, tier,
    verify,
};
use weir_tiering::cluster::TieringClient;
use weir_tiering::cluster::wire::WireCluster;
use weir_tiering::config::DaemonConfig;
use weir_tiering::daemon::Handle;
use weir_tiering::lake_table::Warehouse as OpenWarehouse;
use weir_tiering::verify::audit;

use super::serve;

/// A file that marks a folder of an earlier demo.
const MARK: &str = "weir-demo";
/// The longest wait for the lake to catch up.
const CATCH_UP: Duration = Duration::from_mins(3);
/// How often the lake is looked at meanwhile.
const LOOK: Duration = Duration::from_millis(200);

/// Loads two tables while they are tiered, waits for the lake, audits and shows it.
pub(crate) async fn run(arguments: Demo) -> Outcome {
    if !(arguments.scale > 0.0 && arguments.scale <= 100.0) {
        return Err(Failure::usage("--scale must be above 0 and at most 100"));
    }
    let folder = folder(arguments.data_dir)?;
    let config = ServerConfig {
        data_dir: folder.clone(),
        listen: "127.0.0.1:0".to_owned(),
        ..ServerConfig::default()
    };
    let server = serve::start(config).await?;
    let daemon = DaemonConfig {
        bootstrap: vec![server.addr()],
        warehouse: server.warehouse().to_owned(),
        foreign: Some(false),
        ..DaemonConfig::default()
    };
    let started = tier::start(daemon.clone());
    let shown = match &started {
        Ok((handle, _)) => show(&server, handle, &daemon, arguments.scale).await,
        Err(_) => Ok(()),
    };
    if let Ok((handle, _)) = &started {
        handle.shutdown().await;
    }
    server.shutdown().await;
    started.map(drop)?;
    shown
}

async fn show(
    server: &RunningServer,
    handle: &Handle,
    daemon: &DaemonConfig,
    scale: f64,
) -> Outcome {
    handle.ready().await.map_err(Failure::error)?;
    let lineitem = TablePath::new("demo", "lineitem");
    let part = TablePath::new("demo", "part");
    print(&format!(
        "server {}  lake {}\n\n",
        server.addr(),
        server.warehouse()
    ))?;
    let keyed = (
        vec!["l_shipyear".to_owned()],
        vec!["l_orderkey".to_owned()],
        Some(4),
    );
    let lineitems = load_table(server, &lineitem, &format!("tpch:lineitem:{scale}"), keyed).await?;
    let parts = load_table(
        server,
        &part,
        &format!("tpch:part:{scale}"),
        (vec![], vec![], Some(2)),
    )
    .await?;

    let client = Client::connect(ClientConfig::new([server.addr()]))
        .await
        .map_err(Failure::error)?;
    let cluster: Arc<dyn TieringClient> = Arc::new(WireCluster::new(daemon));
    let warehouse =
        OpenWarehouse::open(server.warehouse(), &Default::default()).map_err(Failure::error)?;
    for (path, loaded) in [(&lineitem, lineitems), (&part, parts)] {
        let in_log = table::log_rows(&client, path)
            .await
            .map_err(|error| failure(&error))?;
        if in_log != loaded {
            return Err(Failure::failed(format!(
                "{path}: {} rows were acknowledged, the log holds {}",
                count(loaded),
                count(in_log)
            )));
        }
        let in_lake = wait(&warehouse, path, loaded).await?;
        print(&format!(
            "\n{path}: {} loaded = {} in lake\n",
            count(loaded),
            count(in_lake)
        ))?;
        let target = LakeTarget {
            table: LakeTable {
                table: path.clone(),
                warehouse: Warehouse {
                    warehouse: server.warehouse().to_owned(),
                },
                json: false,
            },
            snapshot: None,
        };
        lake::run(LakeCommand::Partitions(target)).await?;
        let report = audit(&cluster, &warehouse, path)
            .await
            .map_err(Failure::error)?;
        verify::show(&report)?;
        if !report.findings.is_empty() || report.rows != loaded {
            return Err(Failure::failed(format!(
                "{path}: the lake is not what was loaded"
            )));
        }
    }
    client.close().await;
    print(&how_to_open(server.warehouse()))
}

async fn load_table(
    server: &RunningServer,
    table: &TablePath,
    source: &str,
    (partition_by, bucket_key, buckets): (Vec<String>, Vec<String>, Option<i32>),
) -> Outcome<i64> {
    let rows = load::run(Load {
        cluster: Cluster {
            bootstrap: vec![server.addr()],
            user: None,
            password: None,
        },
        table: table.clone(),
        source: source.to_owned(),
        create: true,
        partition_by,
        bucket_key,
        primary_key: Vec::new(),
        buckets,
        no_lake: false,
        freshness: None,
        state: None,
    })
    .await?;
    i64::try_from(rows).map_err(Failure::error)
}

/// Waits until the lake table holds as many rows as were loaded.
async fn wait(warehouse: &OpenWarehouse, path: &TablePath, loaded: i64) -> Outcome<i64> {
    let started = Instant::now();
    let lake = warehouse
        .table(path, &Default::default())
        .await
        .map_err(Failure::error)?;
    loop {
        let snapshot = lake.table.latest_snapshot().await.map_err(Failure::error)?;
        let found = snapshot.map_or(0, |snapshot| snapshot.total_record_count);
        if found == loaded {
            return Ok(found);
        }
        if found > loaded || started.elapsed() > CATCH_UP {
            let message = format!(
                "{path}: {} rows loaded, {} in the lake",
                count(loaded),
                count(found)
            );
            return Err(Failure::failed(message));
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// An empty folder: the given one, or a new one among temporary files.
fn folder(given: Option<PathBuf>) -> Outcome<PathBuf> {
    let folder = given
        .unwrap_or_else(|| std::env::temp_dir().join(format!("weir-demo-{}", std::process::id())));
    let named = |error: std::io::Error| Failure::failed(format!("{}: {error}", folder.display()));
    let entries = match std::fs::read_dir(&folder) {
        Ok(entries) => entries.count(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => 0,
        Err(error) => return Err(named(error)),
    };
    if entries > 0 {
        if !folder.join(MARK).is_file() {
            let message = format!(
                "{} is not empty and no earlier demo: choose another folder",
                folder.display()
            );
            return Err(Failure::failed(message));
        }
        std::fs::remove_dir_all(&folder).map_err(named)?;
    }
    std::fs::create_dir_all(&folder).map_err(named)?;
    std::fs::write(
        folder.join(MARK),
        "A folder of `weir demo`: emptied by the next one.\n",
    )
    .map_err(named)?;
    let data = folder.join("data");
    std::fs::create_dir_all(&data).map_err(named)?;
    Ok(absolute(&data))
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn how_to_open(warehouse: &str) -> String {
    let folder = warehouse.trim_start_matches("file://");
    format!(
        r#"
Open the lake with pypaimon:
  from pypaimon import CatalogFactory
  table = CatalogFactory.create({{"warehouse": "{folder}"}}).get_table("demo.lineitem")
  read = table.new_read_builder()
  print(read.new_read().to_arrow(read.new_scan().plan().splits()).num_rows)

or with Spark:
  spark-sql --packages org.apache.paimon:paimon-spark-3.5:1.3.1 \
    --conf spark.sql.catalog.lake=org.apache.paimon.spark.SparkCatalog \
    --conf spark.sql.catalog.lake.warehouse=file://{folder} \
    -e 'SELECT l_shipyear, count(*) FROM lake.demo.lineitem GROUP BY l_shipyear'
"#
    )
}
