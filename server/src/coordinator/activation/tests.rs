use object_store::memory::InMemory;
use object_store::path::Path as ObjectPath;
use prometheus_client::registry::Registry;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use weir_catalog::Catalog;
use weir_catalog::catalog::{Contents, IfExists, IfMissing, NewTable};
use weir_catalog::clock::ManualClock;
use weir_catalog::lake::PaimonCatalog;
use weir_catalog::model::lake_offsets::LakeOffsets;
use weir_catalog::offsets_files::OffsetsFiles;
use weir_catalog::store::{Key, MetadataStore, StoreError};
use weir_protocol::descriptor::{DatabaseDescriptor, TableDescriptor};
use weir_protocol::ids::{BucketId, LogOffset, ServerId, TableBucket, TablePath};
use weir_protocol::partition::PartitionSpec;
use weir_protocol::proto::{
    LakeTieringHeartbeatRequest, ListOffsetsResponse, NotifyLeaderAndIsrRequest,
    NotifyLeaderAndIsrResponse, PbLakeTableSnapshotMetadata, PbListOffsetsRespForBucket,
    PbNotifyLeaderAndIsrRespForBucket, StopReplicaRequest,
};
use weir_protocol::schema::{Column, LogicalType, Schema, TypeKind};

use super::*;
use crate::cluster::MetadataCache;
use crate::config::{ServerConfig, TieringConfig};
use crate::coordinator::{Leaders, LogFolders, Parts, Rounds, RoundsParts};
use crate::log::FileSystem;
use crate::metrics::Metrics;
use crate::peer::{Call, Peer, Stopped};
use crate::reads::Reads;
use crate::shutdown::Shutdown;
use crate::watched_store::{Watched, once};

const SERVER: ServerId = ServerId(0);
/// Longer than anything may take; never asserted on.
const PATIENCE: Duration = Duration::from_secs(30);

type Acks = mpsc::Sender<NotifyLeaderAndIsrResponse>;

/// What a tablet server was told, in order.
enum Told {
    Lead(NotifyLeaderAndIsrRequest, Acks),
    Stop(StopReplicaRequest),
}

impl Told {
    /// Says that all buckets are ready.
    async fn ready(self) -> NotifyLeaderAndIsrRequest {
        let Told::Lead(request, acks) = self else {
            panic!("it is to stop")
        };
        for asked in &request.notify_buckets_leader_req {
            let entry = PbNotifyLeaderAndIsrRespForBucket {
                table_bucket: asked.table_bucket,
                ..Default::default()
            };
            let notify_buckets_leader_resp = vec![entry];
            acks.send(NotifyLeaderAndIsrResponse {
                notify_buckets_leader_resp,
            })
            .await
            .unwrap();
        }
        request
    }

    fn is_deletion(&self) -> bool {
        match self {
            Told::Stop(request) => request.stop_replicas_req.iter().all(|asked| asked.delete),
            Told::Lead(..) => false,
        }
    }
}

/// A coordinator with one tablet server, which is the test.
struct World {
    store: Arc<Watched>,
    catalog: Catalog,
    coordinator: Arc<Coordinator>,
    clock: Arc<ManualClock>,
    /// Rows of each log, as it says while it leads.
    log_end: Arc<Mutex<i64>>,
    /// Rows that come in at the last moment before it stops.
    late_rows: Arc<Mutex<i64>>,
    told: mpsc::Receiver<Told>,
}

fn tablet(log_end: Arc<Mutex<i64>>, late_rows: Arc<Mutex<i64>>) -> (Peer, mpsc::Receiver<Told>) {
    let (peer, mut calls) = Peer::new(SERVER);
    let (sender, told) = mpsc::channel(100);
    tokio::spawn(async move {
        while let Some(call) = calls.recv().await {
            match call {
                Call::UpdateMetadata(_, answer) => drop(answer.send(Ok(()))),
                Call::NotifyLeaderAndIsr(request, acks) => {
                    drop(sender.send(Told::Lead(request, acks)).await);
                }
                Call::StopReplica(request, answer) => {
                    let end = *log_end.lock() + *late_rows.lock();
                    let ends = request.stop_replicas_req.iter().map(|asked| {
                        let bucket = BucketId(asked.table_bucket.bucket_id);
                        (bucket, LogOffset(end))
                    });
                    let log_ends = ends.collect();
                    drop(sender.send(Told::Stop(request)).await);
                    drop(answer.send(Ok(Stopped { log_ends })));
                }
                Call::ListOffsets(request, answer) => {
                    let end = *log_end.lock();
                    let entry = |bucket_id: &i32| PbListOffsetsRespForBucket {
                        bucket_id: *bucket_id,
                        offset: Some(end),
                        ..Default::default()
                    };
                    let buckets_resp = request.bucket_id.iter().map(entry).collect();
                    drop(answer.send(Ok(ListOffsetsResponse { buckets_resp })));
                }
                Call::NotifyLakeTableOffset(_, answer) => drop(answer.send(Ok(()))),
            }
        }
    });
    (peer, told)
}

impl World {
    async fn new() -> Self {
        let store = Arc::new(Watched::default());
        let clock = Arc::new(ManualClock::new(0));
        let lake_store = Arc::new(InMemory::new());
        let (lake, remote) = (ObjectPath::from("lake"), ObjectPath::from("remote"));
        let offsets_files = OffsetsFiles::new(Arc::clone(&lake_store) as _, remote, "file:/remote");
        let leadership = weir_catalog::leader::take_over(&*store).await.unwrap();
        let catalog = Catalog::new(Arc::clone(&store) as _, Arc::clone(&clock) as _)
            .with_lake(Arc::new(PaimonCatalog::new(
                lake_store,
                lake,
                Arc::clone(&clock) as _,
            )))
            .with_offsets_files(offsets_files.clone())
            .with_fence(leadership.fence.clone());
        let database = DatabaseDescriptor::default();
        let created = catalog.create_database("db", &database, IfExists::Fail);
        created.await.unwrap();
        let (log_end, late_rows) = (Arc::default(), Arc::default());
        let (peer, told) = tablet(Arc::clone(&log_end), Arc::clone(&late_rows));
        let (shutdown, cache) = (Shutdown::new(), Arc::<MetadataCache>::default());
        let metrics = Arc::new(Metrics::new(&mut Registry::default()));
        let epoch = leadership.epoch.0;
        let session = store.open_session(Duration::from_secs(1)).await.unwrap();
        let rounds = Rounds::start(RoundsParts {
            catalog: catalog.clone(),
            coordinator_epoch: epoch,
            session: session.id(),
            config: TieringConfig::default(),
            metrics: Arc::clone(&metrics),
            shutdown: shutdown.clone(),
        });
        let leaders = Leaders::new(
            catalog.clone(),
            Arc::clone(&cache),
            vec![peer],
            epoch,
            shutdown.clone(),
        );
        let coordinator = Coordinator::new(Parts {
            catalog: catalog.clone(),
            fence: leadership.fence,
            reads: Arc::new(Reads::new(catalog.clone(), String::new(), Vec::new())),
            offsets_files,
            leaders,
            rounds,
            cache,
            clock: Arc::clone(&clock) as _,
            config: Arc::new(ServerConfig::default()),
            metrics,
            shutdown,
            servers: vec![SERVER],
        });
        Self {
            store,
            catalog,
            coordinator,
            clock,
            log_end,
            late_rows,
            told,
        }
    }

    /// What the tablet server is told next; `None` if that does not come.
    async fn next(&mut self) -> Option<Told> {
        tokio::time::timeout(PATIENCE, self.told.recv())
            .await
            .unwrap_or_default()
    }

    /// What the tablet server was told up to now.
    fn told(&mut self) -> Vec<Told> {
        std::iter::from_fn(|| self.told.try_recv().ok()).collect()
    }

    /// Creates a table beside the test, which acts as its tablet server.
    fn creating(&self, name: &'static str, if_exists: IfExists) -> JoinHandle<Result<(), Error>> {
        let coordinator = Arc::clone(&self.coordinator);
        tokio::spawn(async move {
            let (path, descriptor) = (path(name), descriptor());
            coordinator
                .create_table(&path, &descriptor, if_exists)
                .await
        })
    }

    async fn create(&self, name: &str, if_exists: IfExists) -> Result<(), Error> {
        let descriptor = descriptor();
        self.coordinator
            .create_table(&path(name), &descriptor, if_exists)
            .await
    }

    fn led(&self, table: TableId) -> Option<ServerId> {
        let bucket = TableBucket {
            table,
            partition: None,
            bucket: BucketId(0),
        };
        self.coordinator.parts.cache.leader(bucket)
    }

    /// Nothing of a dropped table is left anywhere.
    async fn assert_nothing_of(&self, table: TableId) {
        let parts = &self.coordinator.parts;
        let bucket = TableBucket {
            table,
            partition: None,
            bucket: BucketId(0),
        };
        let assignment = Key::table_assignment(table);
        let gone = async {
            while parts.cache.knows(bucket)
                || parts.leaders.is_led((table, None))
                || !self.store.children(&assignment).await.unwrap().is_empty()
            {
                tokio::task::yield_now().await;
            }
        };
        let gone = tokio::time::timeout(PATIENCE, gone).await;
        gone.expect("neither known, nor led, nor written down");
        let request = LakeTieringHeartbeatRequest {
            request_table: Some(true),
            ..Default::default()
        };
        let answer = parts.rounds.heartbeat(request).await.unwrap();
        assert_eq!(answer.tiering_table, None, "it is scheduled");
    }
}

fn path(name: &str) -> TablePath {
    TablePath::new("db", name)
}

fn descriptor() -> TableDescriptor {
    let columns = vec![
        Column::new("n", LogicalType::nullable(TypeKind::BigInt)),
        Column::new("day", LogicalType::not_null(TypeKind::String)),
    ];
    let mut descriptor = TableDescriptor::new(Schema::new(columns, Vec::new()).unwrap());
    descriptor.bucket_count = Some(1);
    let lake = ("table.datalake.enabled", "true");
    let fresh = ("table.datalake.freshness", "1 ms");
    for (key, value) in [lake, fresh] {
        descriptor
            .properties
            .insert(key.to_owned(), value.to_owned());
    }
    descriptor
}

#[tokio::test]
async fn a_start_that_takes_too_long_goes_on_with_what_is_left() {
    let mut world = World::new().await;
    for number in 0..40 {
        let (path, descriptor) = (path(&format!("t{number}")), descriptor());
        let table = NewTable {
            path: &path,
            descriptor: &descriptor,
            servers: &[SERVER],
        };
        let created = world.catalog.create_table(table, IfExists::Fail).await;
        created.unwrap();
    }
    let limit = Duration::from_millis(20);
    let logs = LogFolders {
        disk: Arc::new(FileSystem),
        dirs: Vec::new(),
    };
    world.coordinator.bring_up(vec![logs], limit).await.unwrap();
    for _ in 0..40 {
        world.next().await.expect("another table").ready().await;
    }
}

#[tokio::test]
async fn a_table_that_could_not_be_served_at_once_is_served_later() {
    let mut world = World::new().await;
    let fail = once(|| {
        let reason = "it is away".to_owned();
        Box::pin(async { Err(StoreError::Unavailable { reason }) })
    });
    let assignments = Key::table_assignments();
    *world.store.before_get.lock() = Some(Box::new(move |key| {
        key.is_under(&assignments).then(&fail).flatten()
    }));
    world.create("t", IfExists::Fail).await.unwrap();
    assert!(world.told().is_empty(), "the first attempt failed");
    let told = world.next().await.expect("another attempt").ready().await;
    assert_eq!(told.notify_buckets_leader_req.len(), 1);
}

#[tokio::test]
async fn creating_what_is_there_serves_it_if_nobody_does_yet() {
    let mut world = World::new().await;
    let (path, descriptor) = (path("t"), descriptor());
    let table = NewTable {
        path: &path,
        descriptor: &descriptor,
        servers: &[SERVER],
    };
    let created = world.catalog.create_table(table, IfExists::Fail).await;
    created.unwrap();
    let creating = world.creating("t", IfExists::Ignore);
    world.next().await.expect("it is served").ready().await;
    creating.await.unwrap().unwrap();
    world.create("t", IfExists::Ignore).await.unwrap();
    assert!(world.told().is_empty(), "it is served already");
}

#[tokio::test]
async fn a_table_dropped_before_it_is_served_leaves_nothing_behind() {
    let mut world = World::new().await;
    let coordinator = Arc::clone(&world.coordinator);
    let drop_it = once(move || {
        let coordinator = Arc::clone(&coordinator);
        Box::pin(async move {
            let dropped = coordinator.drop_table(&path("t"), IfMissing::Fail).await;
            dropped.unwrap();
            Ok(())
        })
    });
    let table = Key::table(&path("t")).unwrap();
    *world.store.after_commit.lock() = Some(Box::new(move |txn| {
        let creates = txn.ops.iter().any(|op| *op.key() == table);
        creates.then(&drop_it).flatten()
    }));
    world.create("t", IfExists::Fail).await.unwrap();
    world.assert_nothing_of(TableId(0)).await;
    let told = world.told();
    assert!(told.iter().all(Told::is_deletion), "nobody is to lead it");
}

#[tokio::test]
async fn a_table_dropped_while_it_is_begun_with_leaves_nothing_behind() {
    let mut world = World::new().await;
    let (catalog, coordinator) = (world.catalog.clone(), Arc::clone(&world.coordinator));
    let drop_it = once(move || {
        let (catalog, coordinator) = (catalog.clone(), Arc::clone(&coordinator));
        Box::pin(async move {
            tokio::spawn(async move { coordinator.drop_table(&path("t"), IfMissing::Fail).await });
            while catalog.find_table(&path("t")).await.unwrap().is_some() {
                tokio::task::yield_now().await;
            }
            Ok(())
        })
    });
    let assignments = Key::table_assignments();
    *world.store.before_get.lock() = Some(Box::new(move |key| {
        key.is_under(&assignments).then(&drop_it).flatten()
    }));
    let creating = world.creating("t", IfExists::Fail);
    // Led for a moment, maybe after the drop: then its data goes once more.
    loop {
        let told = world.next().await.expect("it is told to lead");
        if !told.is_deletion() {
            told.ready().await;
            break;
        }
    }
    let last = world.next().await.expect("it is told to give up");
    assert!(last.is_deletion());
    creating.await.unwrap().unwrap();
    world.assert_nothing_of(TableId(0)).await;
}

#[tokio::test]
async fn a_server_that_hears_of_a_table_after_its_drop_gives_it_up_again() {
    let mut world = World::new().await;
    let creating = world.creating("t", IfExists::Fail);
    let told = world.next().await.unwrap();
    let dropped = world
        .coordinator
        .drop_table(&path("t"), IfMissing::Fail)
        .await;
    dropped.unwrap();
    assert!(world.next().await.unwrap().is_deletion());
    told.ready().await;
    creating.await.unwrap().unwrap();
    assert!(world.next().await.expect("once more").is_deletion());
    assert_eq!(world.led(TableId(0)), None);
    world.assert_nothing_of(TableId(0)).await;
}

#[tokio::test]
async fn one_table_that_is_not_cleaned_up_keeps_no_other_of_its_database() {
    let mut world = World::new().await;
    for name in ["a", "b", "c"] {
        let creating = world.creating(name, IfExists::Fail);
        world.next().await.unwrap().ready().await;
        creating.await.unwrap().unwrap();
    }
    let fail = once(|| {
        let reason = "it is away".to_owned();
        Box::pin(async { Err(StoreError::Unavailable { reason }) })
    });
    let assignments = Key::table_assignments();
    *world.store.after_commit.lock() = Some(Box::new(move |txn| {
        let cleans = txn.ops.iter().any(|op| op.key().is_under(&assignments));
        cleans.then(&fail).flatten()
    }));
    let dropped = world
        .coordinator
        .drop_database("db", IfMissing::Fail, Contents::Drop)
        .await;
    assert!(dropped.is_err(), "the failure is told");
    for _ in 0..3 {
        assert!(world.next().await.expect("all of them").is_deletion());
    }
    for table in 0..3 {
        world.assert_nothing_of(TableId(table)).await;
    }
}

#[tokio::test]
async fn a_table_whose_creation_ended_unknown_is_served_if_it_is_there() {
    let mut world = World::new().await;
    let made = path("made");
    let request = NewTable {
        path: &made,
        descriptor: &descriptor(),
        servers: &[SERVER],
    };
    // As the coordinator does, whose answer from the store is lost for good.
    let created = world.catalog.create_table(request, IfExists::Fail).await;
    created.unwrap();
    let unknown = Error::Catalog(weir_catalog::Error::OutcomeUnknown {
        what: "creating a table".to_owned(),
    });
    world.coordinator.look_after(&made, None, &unknown);
    let told = world.next().await.expect("its bucket gets a leader");
    told.ready().await;
}

/// A table whose only partition, of one bucket, is long past retention.
async fn with_an_old_partition() -> (World, TablePath, PartitionId) {
    let mut world = World::new().await;
    let mut table = descriptor();
    table.partition_keys = vec!["day".to_owned()];
    for (key, value) in [
        ("table.auto-partition.enabled", "true"),
        ("table.auto-partition.time-unit", "DAY"),
        ("table.auto-partition.num-precreate", "0"),
        ("table.auto-partition.num-retention", "2"),
    ] {
        table.properties.insert(key.to_owned(), value.to_owned());
    }
    let days = path("days");
    let created = world
        .coordinator
        .create_table(&days, &table, IfExists::Fail);
    created.await.unwrap();
    let spec = PartitionSpec(vec![("day".to_owned(), "19700101".to_owned())]);
    let coordinator = Arc::clone(&world.coordinator);
    let creating = tokio::spawn(async move {
        let days = path("days");
        coordinator
            .create_partition(&days, &spec, IfExists::Fail)
            .await
    });
    let told = world.next().await.unwrap().ready().await;
    creating.await.unwrap().unwrap();
    let bucket = told.notify_buckets_leader_req[0].table_bucket;
    world.clock.set_ms(1_000 * 24 * 3_600_000);
    let id = PartitionId(bucket.partition_id.unwrap());
    (world, days, id)
}

#[tokio::test]
async fn a_partition_past_retention_that_gets_a_row_at_the_last_moment_stays() {
    let (mut world, days, id) = with_an_old_partition().await;
    *world.late_rows.lock() = 1;
    let table = world.catalog.get_table(&days).await.unwrap();
    world.coordinator.auto_partition(&table).await;
    let stopped = world.next().await.expect("nobody appends meanwhile");
    assert!(!stopped.is_deletion(), "its data stays");
    let led = world.next().await.expect("it is led again").ready().await;
    let bucket = led.notify_buckets_leader_req[0].table_bucket;
    assert_eq!(bucket.partition_id, Some(id.0));
    let left = world.catalog.list_partitions(&days).await.unwrap().1;
    assert_eq!(left.len(), 1);
}

#[tokio::test]
async fn a_partition_past_retention_whose_rows_are_in_the_lake_goes() {
    let (mut world, days, _) = with_an_old_partition().await;
    assert_eq!(*world.log_end.lock(), 0);
    let table = world.catalog.get_table(&days).await.unwrap();
    world.coordinator.auto_partition(&table).await;
    assert!(!world.next().await.expect("it is stopped").is_deletion());
    assert!(world.next().await.expect("it is removed").is_deletion());
    assert!(world.told().is_empty());
    let left = world.catalog.list_partitions(&days).await.unwrap().1;
    assert_eq!(left, []);
}

#[tokio::test]
async fn offsets_files_that_nothing_will_name_are_swept_and_no_others() {
    let mut world = World::new().await;
    let mut tables = Vec::new();
    for name in ["kept", "gone"] {
        let creating = world.creating(name, IfExists::Fail);
        world.next().await.unwrap().ready().await;
        creating.await.unwrap().unwrap();
        tables.push(world.catalog.get_table(&path(name)).await.unwrap().table_id);
    }
    let files = world.coordinator.parts.offsets_files.clone();
    let write = async |name: &str, table: TableId| {
        let offsets = LakeOffsets::new(table);
        files.write(&path(name), &offsets).await.unwrap()
    };
    let _of_a_failed_round = write("kept", tables[0]).await;
    let recorded = write("kept", tables[0]).await;
    let coming = write("kept", tables[0]).await;
    let _of_a_dropped_table = write("gone", tables[1]).await;
    let never_known = write("other", TableId(77)).await;
    let given = PbLakeTableSnapshotMetadata {
        table_id: tables[0].0,
        snapshot_id: 1,
        tiered_bucket_offsets_file_path: recorded.clone(),
        ..Default::default()
    };
    let committed = world.coordinator.commit_lake_snapshot(&given).await;
    committed.unwrap();
    let gone = path("gone");
    let dropped = world.coordinator.drop_table(&gone, IfMissing::Fail);
    dropped.await.unwrap();

    world.coordinator.sweep_offsets_files().await.unwrap();
    let left = files.list().await.unwrap();
    let mut left: Vec<String> = left.into_iter().map(|file| file.uri).collect();
    left.sort();
    let mut expected = vec![recorded, coming, never_known];
    expected.sort();
    assert_eq!(left, expected);
}
