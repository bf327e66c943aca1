use std::time::Duration;

use prometheus_client::registry::Registry;
use tokio::sync::Notify;
use weir_catalog::Catalog;
use weir_catalog::catalog::{IfExists, NewTable};
use weir_catalog::clock::ManualClock;
use weir_catalog::store::Key;
use weir_protocol::descriptor::{DatabaseDescriptor, TableDescriptor};
use weir_protocol::ids::ServerId;
use weir_protocol::proto::UpdateMetadataRequest;
use weir_protocol::schema::{Column, LogicalType, Schema, TypeKind};

use super::*;
use crate::config::{LimitsConfig, LogConfig};
use crate::log::disk::memory::MemoryDisk;
use crate::log::{self, LogOptions};
use crate::metrics::Metrics;
use crate::peer::Peer;
use crate::reads::Reads;
use crate::shutdown::Shutdown;
use crate::tablet::{KvParts, Parts};
use crate::watched_store::Watched;

const SERVER: ServerId = ServerId(0);
/// Longer than anything may take; never asserted on.
const PATIENCE: Duration = Duration::from_secs(30);

/// A catalog with the table `db.t` of two buckets.
async fn catalog(store: &Arc<Watched>) -> (Catalog, TableId) {
    let catalog = Catalog::new(Arc::clone(store) as _, Arc::new(ManualClock::new(1)));
    let database = DatabaseDescriptor::default();
    let created = catalog.create_database("db", &database, IfExists::Fail);
    created.await.unwrap();
    let n = Column::new("n", LogicalType::not_null(TypeKind::BigInt));
    let descriptor = TableDescriptor {
        bucket_count: Some(2),
        ..TableDescriptor::new(Schema::new(vec![n], Vec::new()).unwrap())
    };
    let path = TablePath::new("db", "t");
    let table = NewTable {
        path: &path,
        descriptor: &descriptor,
        servers: &[SERVER],
    };
    catalog.create_table(table, IfExists::Fail).await.unwrap();
    let table = catalog.get_table(&path).await.unwrap().table_id;
    (catalog, table)
}

fn server(catalog: &Catalog) -> (Arc<TabletServer>, Shutdown) {
    let shutdown = Shutdown::new();
    let server = TabletServer::new(Parts {
        id: SERVER,
        log_dir: PathBuf::from("/log"),
        log_config: LogConfig::default(),
        log_options: LogOptions {
            disk: Arc::new(MemoryDisk::new().process()),
            config: log::LogConfig::default(),
            flusher: None,
        },
        kv: KvParts::for_tests("/kv"),
        limits: LimitsConfig::default(),
        reads: Arc::new(Reads::new(catalog.clone(), String::new(), Vec::new())),
        clock: Arc::new(ManualClock::new(1)),
        metrics: Arc::new(Metrics::new(&mut Registry::default())),
        shutdown: shutdown.clone(),
    });
    (server, shutdown)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_is_slow_to_look_up_keeps_no_other_call_waiting() {
    let store = Arc::new(Watched::default());
    let (catalog, table) = catalog(&store).await;
    let (server, shutdown) = server(&catalog);
    let (peer, calls) = Peer::new(SERVER);
    shutdown.spawn(Arc::clone(&server).run(calls));
    let go_on = Arc::new(Notify::new());
    let (lake_table, waits_for) = (Key::lake_table(table), Arc::clone(&go_on));
    *store.before_get.lock() = Some(Box::new(move |key| {
        let waits_for = Arc::clone(&waits_for);
        (*key == lake_table).then(|| {
            let waiting = async move {
                waits_for.notified().await;
                Ok(())
            };
            Box::pin(waiting) as _
        })
    }));
    let lead = |bucket_id| PbNotifyLeaderAndIsrReqForBucket {
        physical_table_path: PbPhysicalTablePath {
            database_name: "db".to_owned(),
            table_name: "t".to_owned(),
            partition_name: None,
        },
        table_bucket: PbTableBucket {
            table_id: table.0,
            partition_id: None,
            bucket_id,
        },
        leader: SERVER.0,
        bucket_count: Some(2),
        ..PbNotifyLeaderAndIsrReqForBucket::default()
    };
    let request = NotifyLeaderAndIsrRequest {
        coordinator_epoch: 1,
        notify_buckets_leader_req: vec![lead(0), lead(1)],
    };
    let mut acks = peer.notify_leader_and_isr(request).await.unwrap();
    let told = peer.update_metadata(UpdateMetadataRequest::default());
    let told = tokio::time::timeout(PATIENCE, told).await;
    told.expect("it is not in the way").unwrap();
    // Looked up once for both buckets.
    go_on.notify_one();
    for _ in 0..2 {
        let ack = tokio::time::timeout(PATIENCE, acks.recv()).await;
        let ack = ack.expect("it goes on").expect("one a bucket");
        assert_eq!(ack.notify_buckets_leader_resp[0].error_code, None);
    }
    shutdown.begin();
    assert!(shutdown.drained(PATIENCE).await);
}
