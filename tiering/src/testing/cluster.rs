//! A cluster in memory: tables with logs, offsets files, registered lake snapshots, and a
//! coordinator that hands out tables.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use weir_protocol::error_code::ErrorCode;
use weir_protocol::ids::{
    BucketId, CoordinatorEpoch, LogOffset, SchemaId, TableBucket, TableId, TablePath, TieringEpoch,
};
use weir_protocol::record::{LogBatch, batches};
use weir_protocol::schema::Schema;

use super::Faults;
use crate::cluster::{
    BucketFault, Fetched, Heartbeat, HeartbeatAnswer, LakeProgress, LogReader, OffsetKind, Refusal,
    Registration, TableInfo, TieringClient, Trouble,
};
use crate::enumerate::{BucketGroup, PartitionView};
use crate::error::{Error, Result};
use crate::lease::{Epochs, Lease};
use crate::split::Split;

/// One bucket's log: stored batches, whose offsets are set.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    pub start: i64,
    pub end: i64,
    pub batches: Vec<Bytes>,
}

/// One table.
#[derive(Clone, Debug)]
pub(crate) struct FakeTable {
    pub info: TableInfo,
    pub partitions: Vec<PartitionView>,
    pub schemas: BTreeMap<SchemaId, Arc<Schema>>,
    pub logs: BTreeMap<TableBucket, Log>,
    /// Registered lake snapshots in order: id and offsets file.
    pub registered: Vec<(i64, String)>,
    pub epoch: i64,
    pub held: bool,
    /// Heartbeats since the table was renewed.
    pub missed: u32,
}

/// Heartbeats without renewal after which a held table is given to others: the double's time-out.
const PATIENCE: u32 = 5;

/// The cluster's state.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub tables: BTreeMap<TablePath, FakeTable>,
    pub files: BTreeMap<String, (TableId, BTreeMap<TableBucket, LogOffset>)>,
    pub coordinator: i32,
    pub queue: VecDeque<TablePath>,
    pub heartbeats: Vec<Heartbeat>,
    /// The ends of each prepared offsets file as they were sent.
    pub prepared: Vec<BTreeMap<TableBucket, LogOffset>>,
    /// Buckets that give no answer to reads.
    pub mute: Vec<TableBucket>,
    /// Buckets whose offsets are not told.
    pub no_offsets: Vec<TableBucket>,
    /// Buckets whose reads fail, again and again.
    pub troubled: BTreeMap<TableBucket, Trouble>,
    /// Buckets whose reads fail for the rest of a round.
    pub failing: BTreeMap<TableBucket, Trouble>,
    /// A finished table is handed out again, if its log has grown.
    pub auto: bool,
}

/// The cluster; clones share it. Each handle counts its calls with its own faults.
#[derive(Clone, Debug)]
pub(crate) struct FakeCluster {
    pub state: Arc<Mutex<State>>,
    pub faults: Faults,
    pub ours: bool,
}

impl FakeCluster {
    pub(crate) fn new(faults: Faults) -> Self {
        let state = State {
            coordinator: 1,
            ..State::default()
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            faults,
            ours: true,
        }
    }

    /// The same cluster for another process.
    pub(crate) fn with_faults(&self, faults: Faults) -> Self {
        Self {
            faults,
            ..self.clone()
        }
    }

    async fn call<T>(
        &self,
        name: &'static str,
        work: impl FnOnce(&mut State) -> Result<T>,
    ) -> Result<T> {
        let lost = |()| Error::cluster(name, None, true, "connection lost");
        let after = self.faults.before(name).await.map_err(lost)?;
        let result = work(&mut self.state.lock());
        self.faults.after(after).await.map_err(lost)?;
        result
    }
}

fn missing(name: &'static str) -> Error {
    Error::cluster(name, Some(ErrorCode::TableNotExist), false, "no such table")
}

impl State {
    fn table(&mut self, name: &'static str, path: &TablePath) -> Result<&mut FakeTable> {
        self.tables.get_mut(path).ok_or_else(|| missing(name))
    }

    /// The table of a call that names it by path and id.
    fn table_of(
        &mut self,
        name: &'static str,
        path: &TablePath,
        id: TableId,
    ) -> Result<&mut FakeTable> {
        let table = self.table(name, path)?;
        if table.info.id == id {
            Ok(table)
        } else {
            Err(missing(name))
        }
    }

    fn by_id(&mut self, id: TableId) -> Option<(&TablePath, &mut FakeTable)> {
        self.tables
            .iter_mut()
            .find(|(_, table)| table.info.id == id)
    }

    /// Hands the table out to whoever asks next.
    pub(crate) fn offer(&mut self, path: &TablePath) {
        let table = self.tables.get_mut(path).unwrap();
        table.epoch += 1;
        table.held = false;
        self.queue.push_back(path.clone());
    }

    /// The lease of the table's newest epoch.
    pub(crate) fn lease(&self, path: &TablePath) -> Lease {
        let table = &self.tables[path];
        let epochs = Epochs {
            coordinator: CoordinatorEpoch(self.coordinator),
            tiering: TieringEpoch(table.epoch),
        };
        Lease {
            table: table.info.id,
            path: path.clone(),
            epochs,
        }
    }

    /// Held tables that nobody renews are offered again.
    fn expire(&mut self, heartbeat: &Heartbeat) {
        let renewed = |id| heartbeat.tiering.iter().any(|entry| entry.table == id);
        let mut lost = Vec::new();
        for (path, table) in &mut self.tables {
            table.missed = if renewed(table.info.id) {
                0
            } else {
                table.missed + 1
            };
            if table.held && table.missed > PATIENCE {
                lost.push(path.clone());
            }
        }
        for path in lost {
            self.offer(&path);
        }
    }

    fn check(&mut self, epochs: Epochs, id: TableId) -> Option<Refusal> {
        let refusal = |code| {
            Some(Refusal {
                table: id,
                code: Some(code),
                message: String::new(),
            })
        };
        if epochs.coordinator.0 != self.coordinator {
            return refusal(ErrorCode::InvalidCoordinator);
        }
        match self.by_id(id) {
            None => refusal(ErrorCode::TableNotExist),
            Some((_, table)) if table.epoch != epochs.tiering.0 || !table.held => {
                refusal(ErrorCode::FencedTieringEpoch)
            }
            Some(_) => None,
        }
    }
}

#[async_trait]
impl TieringClient for FakeCluster {
    async fn table_info(&self, path: &TablePath) -> Result<TableInfo> {
        self.call("table info", |state| {
            Ok(state.table("table info", path)?.info.clone())
        })
        .await
    }

    async fn schema(&self, path: &TablePath, id: SchemaId) -> Result<Arc<Schema>> {
        self.call("schema", |state| {
            Ok(Arc::clone(&state.table("schema", path)?.schemas[&id]))
        })
        .await
    }

    async fn partitions(&self, path: &TablePath) -> Result<Vec<PartitionView>> {
        self.call("partitions", |state| {
            Ok(state.table("partitions", path)?.partitions.clone())
        })
        .await
    }

    async fn offsets(
        &self,
        path: &TablePath,
        table: TableId,
        group: &BucketGroup,
        kind: OffsetKind,
    ) -> Result<BTreeMap<BucketId, Result<LogOffset>>> {
        self.call("list offsets", |state| {
            let untold = state.no_offsets.clone();
            let logs = &state.table("list offsets", path)?.logs;
            let offset = |bucket| {
                if untold.contains(&bucket) {
                    let code = Some(ErrorCode::LeaderNotAvailable);
                    return Err(Error::cluster("list offsets", code, true, "no leader"));
                }
                let log = logs.get(&bucket).cloned().unwrap_or_default();
                Ok(LogOffset(if kind == OffsetKind::Earliest {
                    log.start
                } else {
                    log.end
                }))
            };
            Ok(group
                .buckets(table)
                .map(|bucket| (bucket.bucket, offset(bucket)))
                .collect())
        })
        .await
    }

    async fn lake_progress(&self, path: &TablePath, table: TableId) -> Result<LakeProgress> {
        self.call("lake snapshot", |state| {
            let registered = state
                .table_of("lake snapshot", path, table)?
                .registered
                .last()
                .cloned();
            let Some((snapshot, file)) = registered else {
                return Ok(LakeProgress::default());
            };
            Ok(LakeProgress {
                snapshot: Some(snapshot),
                ends: state.files[&file].1.clone(),
            })
        })
        .await
    }

    async fn heartbeat(&self, heartbeat: Heartbeat) -> Result<HeartbeatAnswer> {
        self.call("heartbeat", |state| {
            let mut refused = Vec::new();
            for entry in &heartbeat.failed {
                if let Some(refusal) = state.check(entry.epochs, entry.table) {
                    refused.push(refusal);
                    continue;
                }
                let (path, _) = state.by_id(entry.table).unwrap();
                let path = path.clone();
                state.offer(&path);
            }
            for entry in &heartbeat.tiering {
                refused.extend(state.check(entry.epochs, entry.table));
            }
            for entry in &heartbeat.finished {
                if let Some(refusal) = state.check(entry.epochs, entry.table) {
                    refused.push(refusal);
                    continue;
                }
                let (path, table) = state.by_id(entry.table).unwrap();
                table.held = false;
                let path = path.clone();
                if state.auto || heartbeat.force_finished.contains(&entry.table) {
                    state.offer(&path);
                }
            }
            state.expire(&heartbeat);
            let mut offered = None;
            if heartbeat.request_table
                && let Some(path) = state.queue.pop_front()
            {
                let table = state.tables.get_mut(&path).unwrap();
                (table.held, table.missed) = (true, 0);
                offered = Some(state.lease(&path));
            }
            state.heartbeats.push(heartbeat);
            let coordinator = CoordinatorEpoch(state.coordinator);
            Ok(HeartbeatAnswer {
                coordinator,
                offered,
                refused,
            })
        })
        .await
    }

    async fn prepare(
        &self,
        path: &TablePath,
        table: TableId,
        ends: &BTreeMap<TableBucket, LogOffset>,
    ) -> Result<String> {
        self.call("prepare", |state| {
            let last = state
                .table_of("prepare", path, table)?
                .registered
                .last()
                .cloned();
            let mut all = last
                .map(|(_, file)| state.files[&file].1.clone())
                .unwrap_or_default();
            all.extend(ends.iter().map(|(bucket, end)| (*bucket, *end)));
            state.prepared.push(ends.clone());
            let file = format!("file:/remote/{}.offsets", state.files.len());
            state.files.insert(file.clone(), (table, all));
            Ok(file)
        })
        .await
    }

    async fn register(&self, registration: &Registration) -> Result<()> {
        self.call("register", |state| {
            // As the reference: no check of order, the last call wins.
            let table = state.table_of("register", &registration.path, registration.table)?;
            if !registration.keep_all {
                table.registered.clear();
            }
            table
                .registered
                .push((registration.snapshot, registration.offsets_path.clone()));
            Ok(())
        })
        .await
    }

    async fn reader(
        &self,
        path: &TablePath,
        _table: TableId,
        max_bytes: u64,
    ) -> Result<Box<dyn LogReader>> {
        let (cluster, path) = (self.clone(), path.clone());
        let positions = BTreeMap::new();
        Ok(Box::new(FakeReader {
            cluster,
            path,
            positions,
            told: BTreeSet::new(),
            max_bytes,
        }))
    }

    async fn is_ours(&self) -> Result<bool> {
        Ok(self.ours)
    }
}

fn nothing(bucket: TableBucket) -> Fetched {
    Fetched {
        bucket,
        batches: Vec::new(),
        gap_to: None,
        fault: None,
        trouble: None,
    }
}

fn ended(bucket: TableBucket, fault: BucketFault) -> Fetched {
    Fetched {
        fault: Some(fault),
        ..nothing(bucket)
    }
}

struct FakeReader {
    cluster: FakeCluster,
    path: TablePath,
    positions: BTreeMap<TableBucket, (i64, i64)>,
    /// Buckets whose trouble was told.
    told: BTreeSet<TableBucket>,
    max_bytes: u64,
}

#[async_trait]
impl LogReader for FakeReader {
    fn add(&mut self, split: &Split) {
        self.positions
            .insert(split.bucket, (split.read_from.0, split.stop.0));
    }

    fn remove(&mut self, bucket: TableBucket) {
        self.positions.remove(&bucket);
    }

    async fn poll(&mut self, max_wait: Duration) -> Vec<Fetched> {
        if self.positions.is_empty() {
            // As the protocol's client: there is nothing to wait for.
            return Vec::new();
        }
        let failed = |reason: &str| BucketFault::Failed(Trouble::passing(reason));
        let Ok(after) = self.cluster.faults.before("fetch").await else {
            // All buckets of the answer fail; those of the other leaders would not.
            let positions = std::mem::take(&mut self.positions);
            let fault = |bucket| ended(bucket, failed("lost"));
            return positions.into_keys().map(fault).collect();
        };
        let mut fetched = Vec::new();
        let mut gone = Vec::new();
        // Taken over only when the answer is given: a cancelled poll loses nothing.
        let mut positions = self.positions.clone();
        {
            let state = self.cluster.state.lock();
            let mut room = i64::try_from(self.max_bytes).unwrap();
            for (bucket, (next, stop)) in &mut positions {
                if room <= 0 || state.mute.contains(bucket) {
                    continue;
                }
                if let Some(trouble) = state.troubled.get(bucket) {
                    if self.told.insert(*bucket) {
                        fetched.push(Fetched {
                            trouble: Some(trouble.clone()),
                            ..nothing(*bucket)
                        });
                    }
                    continue;
                }
                if let Some(trouble) = state.failing.get(bucket) {
                    gone.push(*bucket);
                    fetched.push(ended(*bucket, BucketFault::Failed(trouble.clone())));
                    continue;
                }
                let log = state
                    .tables
                    .get(&self.path)
                    .and_then(|table| table.logs.get(bucket));
                let Some(log) = log else {
                    gone.push(*bucket);
                    fetched.push(ended(*bucket, failed("the bucket is gone")));
                    continue;
                };
                if *next < log.start {
                    gone.push(*bucket);
                    fetched.push(ended(*bucket, BucketFault::OutOfRange));
                    continue;
                }
                let mut found: Vec<LogBatch> = Vec::new();
                for stored in &log.batches {
                    let batch = batches(stored.clone()).next().unwrap().unwrap();
                    if batch.next_offset().0 <= *next || room <= 0 {
                        continue;
                    }
                    room -= i64::try_from(stored.len()).unwrap();
                    *next = batch.next_offset().0;
                    found.push(batch);
                    if *next >= *stop {
                        gone.push(*bucket);
                        break;
                    }
                }
                if found.is_empty() && *next < log.end {
                    *next = log.end;
                    if *next >= *stop {
                        gone.push(*bucket);
                    }
                    let gap_to = Some(LogOffset(log.end.min(*stop)));
                    fetched.push(Fetched {
                        gap_to,
                        ..nothing(*bucket)
                    });
                } else if !found.is_empty() {
                    fetched.push(Fetched {
                        batches: found,
                        ..nothing(*bucket)
                    });
                }
            }
        }
        for bucket in gone {
            positions.remove(&bucket);
        }
        let lost = self.cluster.faults.after(after).await.is_err();
        self.positions = positions;
        if lost {
            // The answer is lost: the reader asks again from where it was, which this double leaves
            // to the next round.
            let fault = |f: Fetched| Fetched {
                batches: vec![],
                fault: Some(failed("lost")),
                ..f
            };
            return fetched.into_iter().map(fault).collect();
        }
        if fetched.is_empty() {
            tokio::time::sleep(max_wait).await;
        }
        fetched
    }
}
