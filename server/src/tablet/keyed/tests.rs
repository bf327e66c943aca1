//! A disk that refuses: what was not put is not there, and whoever waits is told.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use object_store::memory::InMemory;
use object_store::path::Path as ObjectPath;
use prometheus_client::registry::Registry;
use tempfile::TempDir;
use tokio::time::timeout;
use weir_catalog::Catalog;
use weir_catalog::catalog::{IfExists, NewTable};
use weir_catalog::clock::ManualClock;
use weir_catalog::lake::PaimonCatalog;
use weir_catalog::store::memory::MemoryStore;
use weir_kv::KvConfig;
use weir_kv::upsert::MergeMode;
use weir_protocol::descriptor::{DatabaseDescriptor, TableDescriptor};
use weir_protocol::ids::{BucketId, SchemaId, ServerId, TablePath};
use weir_protocol::record::BatchIdentity;
use weir_protocol::record::kv_batch::{self, KvRecord};
use weir_protocol::row::key::KeyFormat;
use weir_protocol::row::{Datum, compacted};
use weir_protocol::schema::{Column, LogicalType, Schema, TypeKind};

use super::*;
use crate::log::disk::memory::MemoryDisk;
use crate::log::{self, FlushPolicy, Flusher, LogOptions};

const PATIENCE: Duration = Duration::from_mins(1);

/// The keys of a bucket on a log whose disk can be told to fail.
struct World {
    disk: MemoryDisk,
    keyed: Keyed,
    _dir: TempDir,
    _flusher: Flusher,
}

fn schema() -> Schema {
    let column = |name: &str| Column::new(name, LogicalType::nullable(TypeKind::BigInt));
    Schema::new(vec![column("id"), column("n")], vec!["id".to_owned()]).unwrap()
}

impl World {
    async fn new() -> Self {
        let clock = Arc::new(ManualClock::new(1));
        let lake = PaimonCatalog::new(
            Arc::new(InMemory::new()),
            ObjectPath::from("lake"),
            Arc::clone(&clock) as _,
        );
        let store = Arc::new(MemoryStore::default());
        let catalog = Catalog::new(store, Arc::clone(&clock) as _).with_lake(Arc::new(lake));
        let database = DatabaseDescriptor::default();
        let made = catalog.create_database("db", &database, IfExists::Fail);
        made.await.unwrap();
        let path = TablePath::new("db", "t");
        let mut descriptor = TableDescriptor::new(schema());
        descriptor.bucket_count = Some(1);
        let table = NewTable {
            path: &path,
            descriptor: &descriptor,
            servers: &[ServerId(0)],
        };
        catalog.create_table(table, IfExists::Fail).await.unwrap();
        let id = catalog.get_table(&path).await.unwrap().table_id;
        let reads = Arc::new(Reads::new(catalog, String::new(), Vec::new()));
        let table = Arc::new(TableInfo::load(id, path, &reads).await.unwrap());

        let dir = tempfile::tempdir().unwrap();
        let disk = MemoryDisk::new();
        let flusher = Flusher::start(FlushPolicy::Always, 1).unwrap();
        let bucket = TableBucket {
            table: id,
            partition: None,
            bucket: BucketId(0),
        };
        let options = LogOptions {
            disk: Arc::new(disk.process()),
            config: log::LogConfig::default(),
            flusher: Some(flusher.handle()),
        };
        let log = Log::open(&PathBuf::from("/log"), bucket, options).unwrap();
        let around = Surroundings {
            environment: KvEnvironment::new(KvConfig::default(), Arc::new(|| 0)),
            reads,
            clock,
            metrics: Arc::new(Metrics::new(&mut Registry::default())),
            room: Arc::new(Room::new(
                Arc::new(disk.process()),
                PathBuf::from("/log"),
                0,
            )),
            turns: Arc::new(Semaphore::new(4)),
            max_batch_bytes: 1 << 20,
            max_waiting: 4,
            max_buffer_bytes: 1 << 20,
            old_values: Memory::new(MAX_OLD_BYTES),
            failed: Arc::default(),
        };
        let rules = table.key_rules().unwrap();
        let opened = Keyed::open(&log, &table, &rules, dir.path(), around);
        Self {
            disk,
            keyed: opened.await.unwrap(),
            _dir: dir,
            _flusher: flusher,
        }
    }

    async fn put(&self, id: i64, n: i64) -> Result<LogOffset, Error> {
        let put = Put {
            records: batch(id, n),
            target_columns: None,
            mode: MergeMode::Engine,
            existing: Existing::Merge,
        };
        let putting = self.keyed.put(put).await?;
        Ok(putting.done().await?.end)
    }

    async fn reached(&self, end: LogOffset) -> bool {
        timeout(PATIENCE, self.keyed.reached(end)).await.unwrap()
    }

    async fn is_there(&self, id: i64) -> bool {
        self.keyed.store().get(key(id)).await.unwrap().is_some()
    }
}

fn key(id: i64) -> Bytes {
    let ty = [LogicalType::not_null(TypeKind::BigInt)];
    let key = KeyFormat::Paimon.encode(&[Datum::BigInt(id)], &ty);
    key.unwrap().into()
}

fn batch(id: i64, n: i64) -> Bytes {
    let row = compacted::encode(&[Datum::BigInt(id), Datum::BigInt(n)], &schema().columns);
    let record = KvRecord {
        key: key(id),
        row: Some(row.unwrap().into()),
    };
    kv_batch::encode(BatchIdentity::anonymous(SchemaId(1)), &[record]).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_that_the_disk_has_no_room_for_leaves_the_keys_as_they_were() {
    let world = World::new().await;
    assert_eq!(world.put(1, 1).await.unwrap(), LogOffset(1));
    assert!(world.reached(LogOffset(1)).await);
    world.disk.run_full_after(0);
    for id in [1, 2] {
        let refused = world.put(id, 2).await.unwrap_err();
        assert!(
            matches!(refused, Error::Log(log::Error::DiskFull { .. })),
            "{refused}"
        );
    }
    world.disk.make_room();
    let end = world.put(2, 3).await.unwrap();
    assert_eq!(end, LogOffset(2), "it is a new key: one change");
    assert!(world.reached(end).await);
    assert!(world.is_there(2).await);
    world.keyed.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_waits_is_told_when_the_log_fails_and_nothing_more_is_put() {
    let world = World::new().await;
    assert_eq!(world.put(1, 1).await.unwrap(), LogOffset(1));
    assert!(world.reached(LogOffset(1)).await);
    world.disk.fail_syncs_after(0);
    let end = world.put(2, 2).await.unwrap();
    assert!(!world.reached(end).await);
    assert!(!world.is_there(2).await, "what is not durable is not seen");
    let refused = world.put(3, 3).await.unwrap_err();
    assert!(
        matches!(refused, Error::Log(log::Error::Failed { .. })),
        "{refused}"
    );
    assert!(world.is_there(1).await, "lookups go on");
    world.keyed.close().await;
}
