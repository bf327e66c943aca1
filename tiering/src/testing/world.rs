//! One table in a cluster in memory and its lake table, and the oracle: what is in the lake must be
//! what is in the log.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{Array, AsArray, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::Int64Type;
use bytes::BytesMut;
use futures::TryStreamExt;
use object_store::memory::InMemory;
use object_store::path::Path;
use tokio::sync::Semaphore;
use weir_catalog::clock::ManualClock;
use weir_lake_format::paths::table_path;
use weir_lake_format::{
    DataField, DataType as LakeType, Filter, NewTable, Snapshot, Table, TableSchema,
    TypeKind as LakeKind,
};
use weir_protocol::ids::{
    BucketId, LogOffset, PartitionId, SchemaId, TableBucket, TableId, TablePath, TotalBuckets,
};
use weir_protocol::record::arrow::{Compression, encode_append};
use weir_protocol::record::log_batch::{encode_empty, set_stored};
use weir_protocol::record::{BatchIdentity, batches};
use weir_protocol::schema::{Column, LogicalType, Schema, TypeKind};

use super::Faults;
use super::cluster::{FakeCluster, FakeTable, Log};
use super::store::FaultyStore;
use crate::cluster::TableInfo;
use crate::committer::{self, COMMIT_USER, Committers, EpochFence};
use crate::enumerate::PartitionView;
use crate::error::Result;
use crate::lake_table::Warehouse;
use crate::lease::Lease;
use crate::memory::MemoryBudget;
use crate::ranges;
use crate::runner::{RoundReport, Runner, RunnerLimits};
use crate::worker::{RoundSignals, WorkerResources};

/// What a table looks like.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub buckets: i32,
    pub epoch: i64,
    /// Id and own count of each partition.
    pub partitions: Option<Vec<(i64, Option<i32>)>>,
    pub bucket_aware: bool,
    pub system_columns: bool,
}

impl Shape {
    /// Unpartitioned, fixed buckets.
    pub(crate) fn plain(buckets: i32) -> Self {
        Self {
            buckets,
            epoch: 0,
            partitions: None,
            bucket_aware: true,
            system_columns: false,
        }
    }
}

/// The world.
#[derive(Debug)]
pub(crate) struct World {
    pub cluster: FakeCluster,
    pub store: Arc<InMemory>,
    pub clock: Arc<ManualClock>,
    pub path: TablePath,
    next_row: i64,
    /// What was appended, per bucket, by offset; `None` where an empty batch took the offset.
    pub(super) rows: BTreeMap<TableBucket, Vec<Option<i64>>>,
}

pub(crate) const TABLE: TableId = TableId(7);

fn nullable_text() -> LakeType {
    LakeKind::string().nullable()
}

fn fluss_schema(partitioned: bool) -> Schema {
    let mut columns = vec![
        Column::new("id", LogicalType::not_null(TypeKind::BigInt)),
        Column::new("name", LogicalType::nullable(TypeKind::String)),
    ];
    if partitioned {
        columns.push(Column::new("day", LogicalType::nullable(TypeKind::String)));
    }
    Schema::new(columns, Vec::new()).unwrap()
}

fn lake_schema(shape: &Shape) -> TableSchema {
    let mut fields = vec![
        DataField::new(0, "id", LakeKind::BigInt.not_null()),
        DataField::new(1, "name", nullable_text()),
    ];
    if shape.partitions.is_some() {
        fields.push(DataField::new(2, "day", nullable_text()));
    }
    if shape.system_columns {
        let id = i32::try_from(fields.len()).unwrap();
        let ltz = LakeKind::TimestampLtz { precision: 3 };
        fields.push(DataField::new(id, "__bucket", LakeKind::Int.nullable()));
        fields.push(DataField::new(
            id + 1,
            "__offset",
            LakeKind::BigInt.nullable(),
        ));
        fields.push(DataField::new(id + 2, "__timestamp", ltz.nullable()));
    }
    let bucket = if shape.bucket_aware {
        shape.buckets
    } else {
        -1
    };
    let mut options = BTreeMap::from([("bucket".to_owned(), bucket.to_string())]);
    if shape.bucket_aware {
        options.insert("bucket-key".to_owned(), "id".to_owned());
    }
    let partition_keys = shape.partitions.iter().map(|_| "day".to_owned()).collect();
    let new = NewTable {
        fields,
        partition_keys,
        primary_keys: vec![],
        options,
        comment: None,
    };
    TableSchema::create(new, 0).unwrap()
}

impl World {
    pub(crate) async fn new(shape: Shape) -> Self {
        let cluster = FakeCluster::new(Faults::default());
        let store = Arc::new(InMemory::new());
        let path = TablePath::new("d", "t");
        let world = Self {
            cluster,
            store,
            clock: Arc::new(ManualClock::new(1_000_000)),
            path,
            next_row: 0,
            rows: BTreeMap::new(),
        };
        let partitioned = shape.partitions.is_some();
        let schema = Arc::new(fluss_schema(partitioned));
        let info = TableInfo {
            id: TABLE,
            schema_id: SchemaId(1),
            schema: Arc::clone(&schema),
            partition_keys: shape.partitions.iter().map(|_| "day".to_owned()).collect(),
            bucket_count: TotalBuckets(shape.buckets),
            bucket_layout_epoch: shape.epoch,
            properties: [("table.datalake.enabled", "true")]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
        };
        let view = |(id, count): (i64, Option<i32>)| PartitionView {
            id: PartitionId(id),
            name: format!("p{id}"),
            bucket_count: count.map(TotalBuckets),
        };
        let table = FakeTable {
            info,
            partitions: shape
                .partitions
                .clone()
                .into_iter()
                .flatten()
                .map(view)
                .collect(),
            schemas: BTreeMap::from([(SchemaId(1), schema)]),
            logs: BTreeMap::new(),
            registered: Vec::new(),
            epoch: 1,
            held: false,
            missed: 0,
        };
        world
            .cluster
            .state
            .lock()
            .tables
            .insert(world.path.clone(), table);
        let schema = lake_schema(&shape);
        Table::create(Arc::clone(&world.store) as _, world.root(), &schema)
            .await
            .unwrap();
        world
    }

    pub(crate) fn root(&self) -> Path {
        table_path(&Path::from("lake"), &self.path.database, &self.path.table).unwrap()
    }

    /// A second table as this one was made, with nothing in it; `path` names it from now on.
    pub(crate) async fn add_table(&mut self, name: &str, id: TableId) {
        let mut schema = self.lake().await.latest_schema().await.unwrap();
        schema.id = 0;
        let mut table = self.cluster.state.lock().tables[&self.path].clone();
        table.info.id = id;
        table.logs.clear();
        table.registered.clear();
        self.path = TablePath::new("d", name);
        {
            let mut state = self.cluster.state.lock();
            state.tables.insert(self.path.clone(), table);
        }
        Table::create(Arc::clone(&self.store) as _, self.root(), &schema)
            .await
            .unwrap();
    }

    /// The log of a bucket.
    pub(crate) fn edit_log(&self, bucket: TableBucket, edit: impl FnOnce(&mut Log)) {
        let mut state = self.cluster.state.lock();
        let table = state.tables.get_mut(&self.path).unwrap();
        edit(table.logs.get_mut(&bucket).unwrap());
    }

    /// The lake table, without faults.
    pub(crate) async fn lake(&self) -> Table {
        Table::open(Arc::clone(&self.store) as _, self.root())
            .await
            .unwrap()
    }

    /// Sets a property of the table in the cluster.
    pub(crate) fn set_property(&self, key: &str, value: &str) {
        let mut state = self.cluster.state.lock();
        let table = state.tables.get_mut(&self.path).unwrap();
        let properties = &mut table.info.properties;
        properties.insert(key.to_owned(), value.to_owned());
    }

    /// Appends a batch of `rows` rows.
    pub(crate) fn append(&mut self, bucket: TableBucket, rows: i64) {
        self.append_named(bucket, rows, |id| id % 3 != 0);
    }

    /// Appends a batch of `rows` rows, those with a name of which `is_named` says so.
    pub(crate) fn append_named(
        &mut self,
        bucket: TableBucket,
        rows: i64,
        is_named: impl Fn(i64) -> bool,
    ) {
        let ids: Vec<i64> = (self.next_row..self.next_row + rows).collect();
        self.next_row += rows;
        let names: Vec<Option<String>> = ids
            .iter()
            .map(|id| is_named(*id).then(|| format!("row {id}")))
            .collect();
        let day = bucket.partition.map(|id| vec![format!("p{id}"); ids.len()]);
        let info = self.cluster.state.lock().tables[&self.path].info.clone();
        let schema = info.schema.arrow_schema();
        let mut columns: Vec<Arc<dyn Array>> = vec![
            Arc::new(Int64Array::from(ids.clone())),
            Arc::new(StringArray::from(names)),
        ];
        if let Some(day) = day {
            columns.push(Arc::new(StringArray::from(day)));
        }
        while columns.len() < schema.fields().len() {
            columns.push(Arc::new(Int64Array::from(ids.clone())));
        }
        let batch = RecordBatch::try_new(schema, columns).unwrap();
        let none = BatchIdentity::NO_WRITER;
        let bytes = encode_append(info.schema_id, none, -1, &batch, Compression::None).unwrap();
        self.store_batch(bucket, &bytes, ids.into_iter().map(Some).collect());
    }

    /// Appends a batch whose row `null_at` has no id although its column forbids it, as a client that
    /// does not look would.
    pub(crate) fn append_with_null_id(&mut self, bucket: TableBucket, rows: i64, null_at: i64) {
        let ids: Vec<Option<i64>> = (0..rows).map(|id| (id != null_at).then_some(id)).collect();
        let names: Vec<String> = (0..rows).map(|id| format!("row {id}")).collect();
        let columns: [(&str, Arc<dyn Array>); 2] = [
            ("id", Arc::new(Int64Array::from(ids.clone()))),
            ("name", Arc::new(StringArray::from(names))),
        ];
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let none = BatchIdentity::NO_WRITER;
        let bytes = encode_append(SchemaId(1), none, -1, &batch, Compression::None).unwrap();
        self.store_batch(bucket, &bytes, ids);
    }

    /// Adds a nullable BIGINT column to both sides; rows that are appended from now on have a value
    /// in it.
    pub(crate) async fn add_column(&mut self, name: &str) {
        let lake = self.lake().await;
        let schema = lake.latest_schema().await.unwrap();
        let id = schema.highest_field_id + 1;
        let mut wider = TableSchema {
            id: schema.id + 1,
            highest_field_id: id,
            ..schema
        };
        wider
            .fields
            .push(DataField::new(id, name, LakeKind::BigInt.nullable()));
        lake.add_schema(&wider).await.unwrap();
        let mut state = self.cluster.state.lock();
        let table = state.tables.get_mut(&self.path).unwrap();
        let column = Column::new(name, LogicalType::nullable(TypeKind::BigInt));
        let schema = Arc::new(table.info.schema.with_column_added(column).unwrap());
        table.info.schema_id = SchemaId(table.info.schema_id.0 + 1);
        table.info.schema = Arc::clone(&schema);
        table.schemas.insert(table.info.schema_id, schema);
    }

    /// Appends a batch without rows, which takes one offset.
    pub(crate) fn append_empty(&mut self, bucket: TableBucket) {
        let bytes = encode_empty(BatchIdentity::anonymous(SchemaId(1))).unwrap();
        self.store_batch(bucket, &bytes, vec![None]);
    }

    fn store_batch(&mut self, bucket: TableBucket, bytes: &[u8], rows: Vec<Option<i64>>) {
        let mut state = self.cluster.state.lock();
        let log = state
            .tables
            .get_mut(&self.path)
            .unwrap()
            .logs
            .entry(bucket)
            .or_default();
        let mut stored = BytesMut::from(bytes);
        set_stored(&mut stored, LogOffset(log.end), 5_000 + log.end).unwrap();
        let batch = batches(stored.clone().freeze()).next().unwrap().unwrap();
        log.end = batch.next_offset().0;
        log.batches.push(stored.freeze());
        self.rows.entry(bucket).or_default().extend(rows);
    }

    /// A process with its own faults, on the shared cluster and store.
    pub(crate) fn process(&self, faults: &Faults) -> Runner {
        let store = FaultyStore::new(Arc::clone(&self.store), faults.clone());
        Runner {
            resources: WorkerResources {
                client: Arc::new(self.cluster.with_faults(faults.clone())),
                budget: MemoryBudget::new(64 << 20),
                cpu: Arc::new(Semaphore::new(2)),
                clock: Arc::clone(&self.clock) as _,
                open_buckets: 8,
                fetch_bytes: 1 << 20,
                max_batch_bytes: 16 << 20,
                target_file_bytes: 1 << 20,
            },
            warehouse: Warehouse::new(Arc::new(store), Path::from("lake")),
            committers: Committers::default(),
            fence: EpochFence::Refuse,
            limits: RunnerLimits {
                max_duration: Some(Duration::from_mins(1)),
                max_rows: u64::MAX,
                max_bytes: u64::MAX,
            },
            bad_record: crate::bad_records::Policy::Stop,
        }
    }

    /// The table's newest lease.
    pub(crate) fn lease(&self) -> Lease {
        self.cluster.state.lock().lease(&self.path)
    }

    /// Raises the table's epoch: what was held before is stale.
    pub(crate) fn next_lease(&self) -> Lease {
        self.cluster
            .state
            .lock()
            .tables
            .get_mut(&self.path)
            .unwrap()
            .epoch += 1;
        self.lease()
    }

    /// One round of a healthy process under a new lease.
    pub(crate) async fn round(&self) -> Result<RoundReport> {
        let runner = self.process(&Faults::default());
        runner
            .run(self.next_lease(), &RoundSignals::default(), &|_| {})
            .await
    }

    /// Healthy rounds until the lake holds everything.
    pub(crate) async fn recover(&self) {
        for _ in 0..4 {
            match self.round().await {
                Ok(report) if report.left_rows == 0 => return,
                Ok(_) => {}
                Err(error) => assert!(error.is_retriable(), "{}", error.chain()),
            }
        }
        panic!("healthy rounds don't catch up");
    }

    /// All snapshots of tiering, in order.
    pub(crate) async fn snapshots(&self) -> Vec<Snapshot> {
        let lake = self.lake().await;
        let mut own = Vec::new();
        for id in lake.snapshot_ids().await.unwrap() {
            let snapshot = lake.snapshot(id).await.unwrap();
            if snapshot.commit_user == COMMIT_USER {
                own.push(snapshot);
            }
        }
        own
    }

    /// Rows in the lake, per bucket of the lake, sorted.
    pub(crate) async fn lake_rows(&self) -> BTreeMap<(String, i32), Vec<i64>> {
        let lake = self.lake().await;
        let schema = lake.latest_schema().await.unwrap();
        let mut rows: BTreeMap<(String, i32), Vec<i64>> = BTreeMap::new();
        let Some(snapshot) = lake.latest_snapshot().await.unwrap() else {
            return rows;
        };
        for split in lake.plan(&snapshot, &Filter::default()).await.unwrap() {
            let key = (split.partition.path(&schema).unwrap(), split.bucket);
            let stream = lake.read_split(&split, Some(&["id"])).await.unwrap();
            let batches: Vec<RecordBatch> = stream.try_collect().await.unwrap();
            let ids = batches
                .iter()
                .flat_map(|b| b.column(0).as_primitive::<Int64Type>().values());
            rows.entry(key).or_default().extend(ids);
        }
        for ids in rows.values_mut() {
            ids.sort_unstable();
        }
        rows
    }

    /// Rows in the log, as [`World::lake_rows`] shows them.
    pub(crate) fn log_rows(&self, bucket_aware: bool) -> BTreeMap<(String, i32), Vec<i64>> {
        let mut rows: BTreeMap<(String, i32), Vec<i64>> = BTreeMap::new();
        for (bucket, ids) in &self.rows {
            let partition = bucket
                .partition
                .map_or(String::new(), |id| format!("day=p{id}"));
            let number = if bucket_aware { bucket.bucket.0 } else { 0 };
            let ids: Vec<i64> = ids.iter().flatten().copied().collect();
            if !ids.is_empty() {
                rows.entry((partition, number)).or_default().extend(ids);
            }
        }
        for ids in rows.values_mut() {
            ids.sort_unstable();
        }
        rows
    }

    /// The lake holds each row of the log exactly once, and the snapshots' ranges chain without gap
    /// or overlap.
    pub(crate) async fn check(&self, bucket_aware: bool) {
        assert_eq!(self.lake_rows().await, self.log_rows(bucket_aware));
        let mut ends: BTreeMap<(Option<PartitionId>, BucketId), LogOffset> = BTreeMap::new();
        let lake = self.lake().await;
        for snapshot in self.snapshots().await {
            let text = snapshot.property(committer::RANGES).unwrap();
            let ranges = ranges::load(&lake, text).await.unwrap();
            let rows: i64 = ranges.iter().map(|range| range.rows).sum();
            assert_eq!(
                rows, snapshot.delta_record_count,
                "snapshot {}",
                snapshot.id
            );
            for range in ranges {
                let end = ends
                    .entry((range.partition_id, range.bucket))
                    .or_insert(LogOffset(0));
                assert_eq!(
                    range.start, *end,
                    "snapshot {}, bucket {}",
                    snapshot.id, range.bucket
                );
                *end = range.end;
            }
        }
        let logs = self.cluster.state.lock().tables[&self.path].logs.clone();
        for (bucket, log) in logs {
            let end = ends
                .get(&(bucket.partition, bucket.bucket))
                .map_or(0, |end| end.0);
            assert_eq!(end, log.end, "{bucket}");
        }
    }

    /// The newest registered snapshot and its ends.
    pub(crate) fn registered(&self) -> Option<(i64, BTreeMap<TableBucket, LogOffset>)> {
        let state = self.cluster.state.lock();
        let (snapshot, file) = state.tables[&self.path].registered.last()?.clone();
        Some((snapshot, state.files[&file].1.clone()))
    }
}

/// A bucket of the world's table.
pub(crate) fn bucket(partition: Option<i64>, bucket: i32) -> TableBucket {
    TableBucket {
        table: TABLE,
        partition: partition.map(PartitionId),
        bucket: BucketId(bucket),
    }
}
