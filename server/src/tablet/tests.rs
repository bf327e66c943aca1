//! What a tablet server has answered is there after a power cut, on a disk that forgets what was not synced.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::Duration;

use arrow::array::{Int64Array, RecordBatch};
use object_store::memory::InMemory;
use object_store::path::Path as ObjectPath;
use prometheus_client::registry::Registry;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;
use weir_catalog::Catalog;
use weir_catalog::catalog::{IfExists, NewTable};
use weir_catalog::clock::ManualClock;
use weir_catalog::lake::PaimonCatalog;
use weir_catalog::store::memory::MemoryStore;
use weir_protocol::descriptor::{DatabaseDescriptor, TableDescriptor};
use weir_protocol::error_code::ErrorCode;
use weir_protocol::ids::{
    BucketId, LogOffset, SchemaId, ServerId, TableBucket, TableId, TablePath, WriterId,
};
use weir_protocol::proto::{
    NotifyLeaderAndIsrRequest, PbNotifyLeaderAndIsrReqForBucket, PbPhysicalTablePath, PbTableBucket,
};
use weir_protocol::record::arrow::{Compression, encode_append};
use weir_protocol::record::log_batch;
use weir_protocol::schema::{Column, LogicalType, Schema, TypeKind};

use super::{
    Append, Columns, FetchAnswer, FetchBucket, FetchRequest, KvParts, LimitScan, Parts,
    TabletServer,
};
use crate::api::error::Failure;
use crate::config::{LimitsConfig, LogConfig};
use crate::error::Error;
use crate::log::disk::memory::{Crash, MemoryDisk};
use crate::log::{self, Disk as _, FlushPolicy, Flusher, LogOptions};
use crate::metrics::Metrics;
use crate::peer::Peer;
use crate::reads::Reads;
use crate::shutdown::Shutdown;

const SERVER: ServerId = ServerId(0);
const WRITERS: i64 = 4;

/// A table of one bucket, and the disk of the server that leads it.
struct World {
    catalog: Catalog,
    path: TablePath,
    table: TableId,
    disk: MemoryDisk,
    /// The bucket's next leader epoch.
    leader_epoch: AtomicI32,
    /// Bytes of a log that are enough, if that is above 0.
    retention_bytes: u64,
    /// Bytes of the disk that stay free.
    min_free_bytes: u64,
}

/// One life of the server's process.
struct Life {
    server: Arc<TabletServer>,
    bucket: TableBucket,
    shutdown: Shutdown,
    _flusher: Flusher,
}

impl World {
    async fn new() -> Self {
        Self::with_properties(&[]).await
    }

    async fn with_properties(properties: &[(&str, &str)]) -> Self {
        let clock = Arc::new(ManualClock::new(1));
        let lake = PaimonCatalog::new(
            Arc::new(InMemory::new()),
            ObjectPath::from("lake"),
            Arc::clone(&clock) as _,
        );
        let catalog =
            Catalog::new(Arc::new(MemoryStore::default()), clock).with_lake(Arc::new(lake));
        let properties = properties.iter();
        let properties = properties.map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let path = TablePath::new("db", "t");
        let database = DatabaseDescriptor::default();
        catalog
            .create_database("db", &database, IfExists::Fail)
            .await
            .unwrap();
        let n = Column::new("n", LogicalType::not_null(TypeKind::BigInt));
        let descriptor = TableDescriptor {
            bucket_count: Some(1),
            properties: properties.collect(),
            ..TableDescriptor::new(Schema::new(vec![n], Vec::new()).unwrap())
        };
        let table = NewTable {
            path: &path,
            descriptor: &descriptor,
            servers: &[SERVER],
        };
        catalog.create_table(table, IfExists::Fail).await.unwrap();
        let table = catalog.get_table(&path).await.unwrap().table_id;
        Self {
            catalog,
            path,
            table,
            disk: MemoryDisk::new(),
            leader_epoch: AtomicI32::new(0),
            retention_bytes: 0,
            min_free_bytes: 0,
        }
    }

    /// Starts the server on what is on the disk and makes it the bucket's leader.
    async fn start(&self, policy: FlushPolicy) -> Life {
        let (life, refusal) = self.try_start(policy).await;
        assert_eq!(refusal, None);
        life
    }

    /// The same; tells with which code and message the server refused to lead the bucket, if it did.
    async fn try_start(&self, policy: FlushPolicy) -> (Life, Option<(i32, String)>) {
        let flusher = Flusher::start(policy, 2).unwrap();
        let config = log::LogConfig {
            segment_bytes: 20_000,
            checkpoint_bytes: 7_000,
            ..log::LogConfig::default()
        };
        let shutdown = Shutdown::new();
        let server = TabletServer::new(Parts {
            id: SERVER,
            log_dir: PathBuf::from("/log"),
            log_config: LogConfig {
                retention_bytes: self.retention_bytes,
                min_free_bytes: self.min_free_bytes,
                ..LogConfig::default()
            },
            log_options: LogOptions {
                disk: Arc::new(self.disk.process()),
                config,
                flusher: Some(flusher.handle()),
            },
            kv: KvParts::for_tests("/kv"),
            limits: LimitsConfig::default(),
            reads: Arc::new(Reads::new(self.catalog.clone(), String::new(), Vec::new())),
            clock: Arc::new(ManualClock::new(1)),
            metrics: Arc::new(Metrics::new(&mut Registry::default())),
            shutdown: shutdown.clone(),
        });
        let (peer, calls) = Peer::new(SERVER);
        shutdown.spawn(Arc::clone(&server).run(calls));
        let lead = PbNotifyLeaderAndIsrReqForBucket {
            physical_table_path: PbPhysicalTablePath {
                database_name: self.path.database.clone(),
                table_name: self.path.table.clone(),
                partition_name: None,
            },
            table_bucket: PbTableBucket {
                table_id: self.table.0,
                ..PbTableBucket::default()
            },
            leader: SERVER.0,
            leader_epoch: self.leader_epoch.fetch_add(1, Ordering::Relaxed),
            bucket_count: Some(1),
            ..PbNotifyLeaderAndIsrReqForBucket::default()
        };
        let request = NotifyLeaderAndIsrRequest {
            coordinator_epoch: 1,
            notify_buckets_leader_req: vec![lead],
        };
        let mut acks = peer.notify_leader_and_isr(request).await.unwrap();
        let answer = acks.recv().await.expect("the bucket is opened");
        let entry = answer.notify_buckets_leader_resp[0].clone();
        let refusal = entry.error_code.zip(entry.error_message);
        let bucket = TableBucket {
            table: self.table,
            partition: None,
            bucket: BucketId(0),
        };
        let life = Life {
            server,
            bucket,
            shutdown,
            _flusher: flusher,
        };
        (life, refusal)
    }
}

impl Life {
    /// Appends as a client with `acks=-1` does; the offset, once the server would answer with it.
    async fn append(&self, writer: i64, sequence: i32) -> Option<LogOffset> {
        self.try_append(writer, sequence).await.ok()
    }

    async fn try_append(&self, writer: i64, sequence: i32) -> Result<LogOffset, Error> {
        let numbers = Int64Array::from_iter_values(std::iter::repeat_n(i64::from(sequence), 20));
        let rows = RecordBatch::try_from_iter([("n", Arc::new(numbers) as _)]).unwrap();
        let writer = WriterId(writer);
        let records =
            encode_append(SchemaId(1), writer, sequence, &rows, Compression::None).unwrap();
        let append = Append {
            bucket: self.bucket,
            records,
            routing_bucket_count: Some(1),
        };
        let appending = self.server.append(vec![append]).await?.pop().unwrap();
        let deadline = Instant::now() + Duration::from_mins(1);
        appending.acknowledged(deadline, 60_000).await
    }

    /// Base offset of each batch in the log, by writer and sequence.
    fn found(&self) -> BTreeMap<(i64, i32), LogOffset> {
        let replica = self.server.leader_for(self.bucket, Some(1)).unwrap();
        let (mut found, mut from) = (BTreeMap::new(), LogOffset(0));
        let end = replica.end_offset();
        while from < end {
            let read = replica.read(from, 1 << 20, end).unwrap();
            for batch in log_batch::batches(read.batches) {
                let batch = batch.unwrap();
                batch.verify_crc().unwrap();
                let id = (batch.header.writer_id.0, batch.header.batch_sequence);
                assert_eq!(
                    found.insert(id, batch.header.base_offset),
                    None,
                    "{id:?} is twice"
                );
            }
            from = read.next_offset;
        }
        found
    }

    async fn end(self) {
        self.shutdown.begin();
        assert!(self.shutdown.drained(Duration::from_mins(1)).await);
    }
}

/// Appends of all writers until the disk is gone: what each was answered.
fn start_writers(
    life: &Arc<Life>,
    heard: &Arc<(AtomicU64, Notify)>,
) -> JoinSet<Vec<(i64, i32, LogOffset)>> {
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let (life, heard) = (Arc::clone(life), Arc::clone(heard));
        writers.spawn(async move {
            let mut answers = Vec::new();
            for sequence in 0.. {
                let Some(offset) = life.append(writer, sequence).await else {
                    break;
                };
                answers.push((writer, sequence, offset));
                heard.0.fetch_add(1, Ordering::Relaxed);
                heard.1.notify_one();
            }
            answers
        });
    }
    writers
}

/// Cuts the power after some answers; answers how many of them are lost.
async fn lost_by_a_power_cut(policy: FlushPolicy, crash: Crash, after: u64) -> usize {
    let world = World::new().await;
    let life = Arc::new(world.start(policy).await);
    let heard = Arc::<(AtomicU64, Notify)>::default();
    let writers = start_writers(&life, &heard);
    while heard.0.load(Ordering::Relaxed) < after {
        heard.1.notified().await;
    }
    world.disk.crash(crash);
    let answers: Vec<_> = writers.join_all().await.into_iter().flatten().collect();
    Arc::into_inner(life)
        .expect("the writers have ended")
        .end()
        .await;

    let life = world.start(policy).await;
    let found = life.found();
    let lost = |(writer, sequence, offset): &&(i64, i32, LogOffset)| {
        found.get(&(*writer, *sequence)) != Some(offset)
    };
    let lost = answers.iter().filter(lost).count();
    life.end().await;
    lost
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_answered_append_survives_a_power_cut() {
    for policy in [
        FlushPolicy::Always,
        FlushPolicy::Interval(Duration::from_millis(3)),
    ] {
        for round in 0..8 {
            let after = 1 + round * 40;
            for crash in [Crash::ForgetAll, Crash::Torn(round)] {
                let lost = lost_by_a_power_cut(policy, crash, after).await;
                assert_eq!(lost, 0, "{policy:?}, {crash:?} after {after} answers");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn with_the_os_policy_a_power_cut_loses_answered_appends() {
    assert!(lost_by_a_power_cut(FlushPolicy::Os, Crash::ForgetAll, 20).await > 0);
}

#[tokio::test]
async fn a_bucket_with_damaged_answered_rows_is_offline_and_says_file_and_byte_to_clients() {
    let world = World::new().await;
    let life = world.start(FlushPolicy::Always).await;
    for sequence in 0..3 {
        life.append(1, sequence).await.unwrap();
    }
    world.disk.crash(Crash::ProcessOnly);
    life.end().await;
    let path = world.disk.files("log")[0].clone();
    let mut bytes = world.disk.bytes(&path);
    let second = bytes.len() / 3;
    bytes[second + 100] ^= 4;
    world.disk.set_bytes(&path, &bytes);

    let (life, refusal) = world.try_start(FlushPolicy::Always).await;
    let (code, message) = refusal.expect("it must not be led");
    assert_eq!(code, ErrorCode::LogStorage.code());
    let place = format!("{}: corrupt at byte {second}: checksum", path.display());
    assert!(message.starts_with(&place), "{message}");
    assert_eq!(life.server.parts.metrics.buckets_offline.get(), 1);
    let told = Failure::from(life.try_append(1, 3).await.unwrap_err());
    assert_eq!(told.code, ErrorCode::LogStorage);
    assert!(told.message.contains(&place), "{}", told.message);
    assert_eq!(world.disk.bytes(&path), bytes, "nothing was changed");
    life.end().await;

    bytes[second + 100] ^= 4;
    world.disk.set_bytes(&path, &bytes);
    let life = world.start(FlushPolicy::Always).await;
    assert_eq!(life.found().len(), 3);
    assert_eq!(life.server.parts.metrics.buckets_offline.get(), 0);
    life.end().await;
}

#[tokio::test]
async fn whole_batches_cut_off_after_a_power_cut_are_counted() {
    let world = World::new().await;
    let life = world.start(FlushPolicy::Os).await;
    for sequence in 0..3 {
        life.append(1, sequence).await.unwrap();
    }
    world.disk.crash(Crash::ProcessOnly);
    life.end().await;
    let path = world.disk.files("log")[0].clone();
    let mut bytes = world.disk.bytes(&path);
    let whole = bytes.len() as u64;
    bytes[..100].fill(0);
    world.disk.set_bytes(&path, &bytes);
    let life = world.start(FlushPolicy::Os).await;
    let metrics = &life.server.parts.metrics;
    assert_eq!(metrics.log_cut_bytes.get(), whole);
    assert_eq!(metrics.log_set_aside_bytes.get(), whole);
    assert_eq!(metrics.log_set_aside_files.get(), 1);
    life.end().await;
}

#[tokio::test]
async fn an_append_that_a_full_disk_refuses_is_counted_and_the_next_one_is_taken() {
    let world = World::new().await;
    let life = world.start(FlushPolicy::Always).await;
    life.append(1, 0).await.unwrap();
    world.disk.run_full_after(0);
    for _ in 0..3 {
        let told = Failure::from(life.try_append(1, 1).await.unwrap_err());
        assert_eq!(told.code, ErrorCode::DiskWriteLocked);
        let said = format!("cannot write {}: ", world.disk.files("log")[0].display());
        assert!(told.message.starts_with(&said), "{}", told.message);
    }
    assert_eq!(life.server.parts.metrics.append_failures.get(), 3);
    world.disk.make_room();
    life.append(1, 1).await.unwrap();
    life.end().await;
}

#[tokio::test]
async fn fc_083_appends_end_before_the_disk_is_full_and_go_on_once_the_lake_has_old_rows() {
    const FREE: u64 = 30_000;
    let mut world = World::with_properties(&[("table.datalake.enabled", "true")]).await;
    (world.retention_bytes, world.min_free_bytes) = (1, FREE);
    let life = world.start(FlushPolicy::Always).await;
    let metrics = &life.server.parts.metrics;
    world.disk.run_full_after(150_000);
    let mut written = 0;
    let told = loop {
        match life.try_append(1, written).await {
            Ok(_) => written += 1,
            Err(refused) => break Failure::from(refused),
        }
        // The lake has none of it: nothing may go.
        life.server.expire();
        assert_eq!(metrics.expired_bytes.get(), 0);
    };
    assert!(told.code.is_retriable(), "{told:?}");
    assert!(
        told.message.contains("log.min-free-bytes"),
        "{}",
        told.message
    );
    let free = world.disk.free_bytes(Path::new("/log")).unwrap();
    assert!(
        (FREE / 2..FREE + 1_000).contains(&free),
        "{free} bytes are free"
    );
    assert_eq!(told.code, ErrorCode::DiskWriteLocked);
    assert!(metrics.held.bytes.get() > 60_000, "it is told what is held");
    let all = (0..written).map(|sequence| (1, sequence));
    assert_eq!(
        life.found().into_keys().collect::<Vec<_>>(),
        all.collect::<Vec<_>>()
    );
    // The lake is back and has all but the last batch: old segments go, and there is room again.
    let replica = life.server.leader_for(life.bucket, Some(1)).unwrap();
    replica.raise_lake_end(LogOffset(replica.end_offset().0 - 20));
    life.server.expire();
    assert!(metrics.expired_bytes.get() > 60_000);
    assert_eq!(metrics.held.bytes.get(), 0);
    life.append(1, written).await.unwrap();
    life.end().await;
}

impl Life {
    /// Appends one batch of so many rows and waits for it.
    async fn append_rows(&self, rows: usize) {
        let numbers = Int64Array::from_iter_values(std::iter::repeat_n(1, rows));
        let rows = RecordBatch::try_from_iter([("n", Arc::new(numbers) as _)]).unwrap();
        let (writer, plain) = (WriterId(-1), Compression::None);
        let records = encode_append(SchemaId(1), writer, -1, &rows, plain).unwrap();
        let append = Append {
            bucket: self.bucket,
            records,
            routing_bucket_count: Some(1),
        };
        let appending = self.server.append(vec![append]).await.unwrap().pop();
        let deadline = Instant::now() + Duration::from_mins(1);
        let acknowledged = appending.unwrap().acknowledged(deadline, 60_000).await;
        acknowledged.unwrap();
    }

    /// Fetches from the start without any wait.
    async fn fetch(&self, max_bytes: usize, min_bytes: Option<usize>) -> FetchAnswer {
        let bucket = FetchBucket {
            bucket: self.bucket,
            offset: 0,
            max_bytes,
            routing_bucket_count: Some(1),
            columns: Columns::All,
        };
        let request = FetchRequest {
            buckets: vec![bucket],
            max_bytes,
            min_bytes,
            max_wait: Duration::ZERO,
        };
        self.server.fetch(request).await.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_take_as_much_memory_as_they_have_bytes() {
    let world = World::new().await;
    let life = world.start(FlushPolicy::Always).await;
    life.append_rows(20_000).await;
    for max_bytes in [1, 1 << 20] {
        let answer = life.fetch(max_bytes, None).await;
        let records = &answer.buckets[0].as_ref().unwrap().records;
        assert!(records.len() > 150_000, "one whole batch, however large");
        let taken = answer.memory.unwrap().num_permits() * 1024;
        assert!(
            (records.len()..records.len() + 1024).contains(&taken),
            "{taken}"
        );
    }
    let newest = life.server.limit_scan(life.bucket, Some(1), 1).await;
    let LimitScan {
        records, memory, ..
    } = newest.unwrap();
    let taken = memory.unwrap().num_permits() * 1024;
    assert!(
        (records.len()..records.len() + 1024).contains(&taken),
        "{taken}"
    );
    life.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fetch_for_more_than_there_is_reads_nothing_before_its_time_is_over() {
    let world = World::new().await;
    let life = world.start(FlushPolicy::Always).await;
    life.append_rows(100).await;
    life.append_rows(100).await;
    let before = world.disk.reads();
    let answer = life.fetch(1 << 20, Some(1 << 20)).await;
    assert!(!answer.buckets[0].as_ref().unwrap().records.is_empty());
    assert_eq!(world.disk.reads() - before, 1, "the answer itself");
    life.end().await;
}
