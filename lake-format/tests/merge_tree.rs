//! What is written by key is what is read by key, with every merge engine and key type, and beside
//! what others wrote.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test may panic, and makes numbers of any size"
)]

use std::collections::BTreeMap;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, BooleanArray, Date32Array, Decimal128Array,
    Float32Array, Float64Array, Int8Array, Int16Array, Int32Array, Int64Array, RecordBatch,
    StringArray, Time32MillisecondArray, TimestampMicrosecondArray, TimestampMillisecondArray,
    TimestampNanosecondArray,
};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType as ArrowType, Int32Type, TimeUnit};
use futures::TryStreamExt;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use proptest::prelude::*;
use weir_lake_format::commit::{BaseView, RetryPolicy};
use weir_lake_format::expire::{ExpireRequest, Retention};
use weir_lake_format::orphans::OrphanRequest;
use weir_lake_format::{
    CommitKind, CommitMessage, CommitOutcome, CommitRequest, DataField, DataType, Datum, Error,
    FileSource, Filter, MergeTreeWriter, NewTable, Partition, RowKind, Table, TableOptions,
    TableSchema, WriteTarget, WriterOptions, canonical_json, paths,
};

const BUFFER: usize = 64 << 20;

/// Key, two numbers and a text.
type Row = (i32, Option<i32>, Option<i32>, Option<String>);

/// A row and what it does.
type Change = (RowKind, Row);

fn schema_of(key_type: &str, options: &[(&str, &str)]) -> Arc<TableSchema> {
    let columns = [("k", key_type), ("a", "INT"), ("b", "INT"), ("c", "STRING")];
    let field = |(name, text): (&str, &str)| DataField::new(-1, name, text.parse().unwrap());
    let mut all = BTreeMap::from([("bucket".to_owned(), "1".to_owned())]);
    let options = options.iter();
    all.extend(options.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    let table = NewTable {
        fields: columns.map(field).into(),
        primary_keys: vec!["k".to_owned()],
        options: all,
        ..NewTable::default()
    };
    Arc::new(TableSchema::create(table, 0).unwrap())
}

struct Fixture {
    store: Arc<dyn ObjectStore>,
    schema: Arc<TableSchema>,
    table: Table,
    commits: i64,
    next_sequence_number: i64,
    options: WriterOptions,
}

impl Fixture {
    async fn new(options: &[(&str, &str)]) -> Self {
        Self::of(schema_of("INT NOT NULL", options)).await
    }

    async fn of(schema: Arc<TableSchema>) -> Self {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let root = Path::from("t");
        let table = Table::create(Arc::clone(&store), root, &schema);
        let table = table.await.unwrap();
        Self {
            store,
            options: WriterOptions::new(&schema, "u".to_owned(), 7).unwrap(),
            schema,
            table,
            commits: 0,
            next_sequence_number: 0,
        }
    }

    fn try_writer(&self, bucket: i32, buffer_bytes: usize) -> Result<MergeTreeWriter, Error> {
        let target = WriteTarget {
            schema: Arc::clone(&self.schema),
            partition: Partition::unpartitioned(),
            bucket,
            total_buckets: 1,
            first_sequence_number: self.next_sequence_number,
        };
        let mut options = self.options.clone();
        options.file_uuid = format!("u{}", self.commits);
        let store = Arc::clone(&self.store);
        MergeTreeWriter::new(target, options, buffer_bytes, store, Path::from("t"))
    }

    fn writer(&self) -> MergeTreeWriter {
        self.try_writer(0, BUFFER).unwrap()
    }

    /// Writes the changes, each slice to a file of its own.
    async fn write(&self, flushes: &[Vec<Change>]) -> CommitMessage {
        let mut writer = self.writer();
        for changes in flushes {
            let (batch, kinds) = batch(&self.schema, changes);
            writer.write(batch, &kinds).await.unwrap();
            writer.flush().await.unwrap();
        }
        writer.finish().await.unwrap()
    }

    async fn commit(&mut self, message: CommitMessage) {
        let highest = message
            .new_files
            .iter()
            .map(|file| file.max_sequence_number);
        let next = highest.max().map_or(0, |highest| highest + 1);
        self.next_sequence_number = self.next_sequence_number.max(next);
        self.commits += 1;
        commit(&self.table, self.commits, vec![message]).await;
    }

    async fn rows(&self) -> BTreeMap<i32, Row> {
        let batch = read(&self.table).await;
        let rows = rows_of(&batch);
        let keys: Vec<i32> = rows.iter().map(|row| row.0).collect();
        assert!(keys.is_sorted(), "{keys:?}");
        rows.into_iter().map(|row| (row.0, row)).collect()
    }

    async fn assert_sound(&self) {
        let problems = self.table.check().await.unwrap();
        assert!(problems.is_empty(), "{problems:#?}");
    }

    async fn names(&self) -> Vec<String> {
        let objects: Vec<_> = self.store.list(None).try_collect().await.unwrap();
        let mut names: Vec<String> = objects.iter().map(|o| o.location.to_string()).collect();
        names.sort();
        names
    }
}

async fn commit(table: &Table, number: i64, messages: Vec<CommitMessage>) {
    let request = CommitRequest {
        commit_user: "test".to_owned(),
        commit_identifier: number,
        kind: CommitKind::Append,
        messages,
        deletes: Vec::new(),
        properties: BTreeMap::new(),
        allow_empty: true,
        uuid: format!("c{number}"),
        now_ms: number,
    };
    let mut guard = |_: &BaseView<'_>| Ok(());
    let outcome = table.commit(&request, &mut guard, RetryPolicy::default());
    let outcome = outcome.await.unwrap();
    assert!(
        matches!(outcome, CommitOutcome::Committed(_)),
        "{outcome:?}"
    );
}

async fn read(table: &Table) -> RecordBatch {
    let schema = table.latest_schema().await.unwrap();
    let mut batches = Vec::new();
    if let Some(snapshot) = table.latest_snapshot().await.unwrap() {
        for split in table.plan(&snapshot, &Filter::default()).await.unwrap() {
            let stream = table.read_split(&split, None).await.unwrap();
            batches.extend(stream.try_collect::<Vec<_>>().await.unwrap());
        }
    }
    concat_batches(&schema.arrow_schema(), &batches).unwrap()
}

fn batch(schema: &TableSchema, changes: &[Change]) -> (RecordBatch, Vec<RowKind>) {
    let rows = || changes.iter().map(|(_, row)| row);
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int32Array::from_iter_values(rows().map(|row| row.0))),
        Arc::new(rows().map(|row| row.1).collect::<Int32Array>()),
        Arc::new(rows().map(|row| row.2).collect::<Int32Array>()),
        Arc::new(rows().map(|row| row.3.as_deref()).collect::<StringArray>()),
    ];
    let batch = RecordBatch::try_new(schema.arrow_schema(), columns).unwrap();
    (batch, changes.iter().map(|(kind, _)| *kind).collect())
}

fn rows_of(batch: &RecordBatch) -> Vec<Row> {
    let number = |name: &str, row: usize| {
        let array = batch
            .column_by_name(name)
            .unwrap()
            .as_primitive::<Int32Type>();
        array.is_valid(row).then(|| array.value(row))
    };
    let texts = batch.column_by_name("c").unwrap().as_string::<i32>();
    let text = |row: usize| texts.is_valid(row).then(|| texts.value(row).to_owned());
    let row = |row| {
        (
            number("k", row).unwrap(),
            number("a", row),
            number("b", row),
            text(row),
        )
    };
    (0..batch.num_rows()).map(row).collect()
}

fn insert(key: i32, a: i32) -> Change {
    (RowKind::Insert, (key, Some(a), None, None))
}

/// An engine: its options, and what it makes of two or more changes of a key, oldest first.
struct Engine {
    options: &'static [(&'static str, &'static str)],
    kinds: &'static [RowKind],
    merge: fn(&[Change]) -> Change,
}

const ALL: &[RowKind] = &[
    RowKind::Insert,
    RowKind::UpdateBefore,
    RowKind::UpdateAfter,
    RowKind::Delete,
];
const UPSERTS: &[RowKind] = &[RowKind::Insert, RowKind::UpdateAfter];

const ENGINES: &[Engine] = &[
    Engine {
        options: &[],
        kinds: ALL,
        merge: |changes| changes.last().unwrap().clone(),
    },
    Engine {
        options: &[("ignore-delete", "true")],
        kinds: UPSERTS,
        merge: |changes| changes.last().unwrap().clone(),
    },
    Engine {
        options: &[("sequence.field", "a,b")],
        kinds: ALL,
        merge: |changes| {
            changes
                .iter()
                .max_by_key(|(_, row)| (row.1, row.2))
                .unwrap()
                .clone()
        },
    },
    Engine {
        options: &[("merge-engine", "first-row")],
        kinds: UPSERTS,
        merge: |changes| changes[0].clone(),
    },
    Engine {
        options: &[("merge-engine", "partial-update")],
        kinds: UPSERTS,
        merge: |changes| {
            let mut row = changes[0].1.clone();
            for (_, next) in changes {
                row = (
                    row.0,
                    next.1.or(row.1),
                    next.2.or(row.2),
                    next.3.clone().or(row.3),
                );
            }
            (RowKind::Insert, row)
        },
    },
    Engine {
        options: &[
            ("merge-engine", "partial-update"),
            ("partial-update.remove-record-on-delete", "true"),
        ],
        kinds: &[RowKind::Insert, RowKind::UpdateAfter, RowKind::Delete],
        merge: |changes| {
            let mut row: Row = (changes[0].1.0, None, None, None);
            let mut kind = RowKind::Insert;
            for (change, next) in changes {
                kind = if *change == RowKind::Delete {
                    *change
                } else {
                    RowKind::Insert
                };
                row = match kind {
                    RowKind::Delete => next.clone(),
                    _ => (
                        row.0,
                        next.1.or(row.1),
                        next.2.or(row.2),
                        next.3.clone().or(row.3),
                    ),
                };
            }
            (kind, row)
        },
    },
    Engine {
        options: &[
            ("merge-engine", "aggregation"),
            ("fields.a.aggregate-function", "sum"),
            ("fields.b.aggregate-function", "max"),
            ("fields.b.ignore-retract", "true"),
            ("fields.c.ignore-retract", "true"),
        ],
        kinds: ALL,
        merge: |changes| {
            let mut row: Row = (changes[0].1.0, None, None, None);
            for (kind, next) in changes {
                let sign = if kind.is_retraction() { -1 } else { 1 };
                row.1 = match (row.1, next.1) {
                    (sum, None) => sum,
                    (sum, Some(a)) => Some(sum.unwrap_or(0) + sign * a),
                };
                if !kind.is_retraction() {
                    row.2 = row.2.max(next.2);
                    row.3 = next.3.clone().or(row.3);
                }
            }
            (RowKind::Insert, row)
        },
    },
];

impl Engine {
    /// The changes of each key as one; a single one stays as it is.
    fn merged<'a>(&self, changes: impl Iterator<Item = &'a Change>) -> BTreeMap<i32, Change> {
        let mut by_key: BTreeMap<i32, Vec<Change>> = BTreeMap::new();
        for change in changes {
            by_key.entry(change.1.0).or_default().push(change.clone());
        }
        let one = |changes: Vec<Change>| match changes.as_slice() {
            [change] => change.clone(),
            changes => (self.merge)(changes),
        };
        by_key
            .into_iter()
            .map(|(key, changes)| (key, one(changes)))
            .collect()
    }

    /// What is read after these flushes: each is merged for itself, then all of them.
    fn read(&self, flushes: &[Vec<Change>]) -> BTreeMap<i32, Row> {
        let flushed = flushes.iter().map(|changes| self.merged(changes.iter()));
        let flushed: Vec<Change> = flushed.flat_map(BTreeMap::into_values).collect();
        let rows = self.merged(flushed.iter()).into_iter();
        let kept = rows.filter(|(_, (kind, _))| !kind.is_retraction());
        kept.map(|(key, (_, row))| (key, row)).collect()
    }
}

fn change(kinds: &'static [RowKind]) -> impl Strategy<Value = Change> {
    let number = || prop::option::weighted(0.7, -3..3_i32);
    let text = prop::option::weighted(0.7, "[a-cä]{0,2}");
    (
        prop::sample::select(kinds),
        (0..6_i32, number(), number(), text),
    )
}

/// An engine, and commits of flushes of changes.
fn history() -> impl Strategy<Value = (usize, Vec<Vec<Vec<Change>>>)> {
    (0..ENGINES.len()).prop_flat_map(|engine| {
        let changes = prop::collection::vec(change(ENGINES[engine].kinds), 1..12);
        let flushes = prop::collection::vec(changes, 1..3);
        (Just(engine), prop::collection::vec(flushes, 1..4))
    })
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn what_is_read_is_what_the_engine_makes_of_the_changes((engine, commits) in history()) {
        let engine = &ENGINES[engine];
        runtime().block_on(async {
            let mut fixture = Fixture::new(engine.options).await;
            let is_first_row = engine.options.contains(&("merge-engine", "first-row"));
            let mut level = 100;
            for flushes in &commits {
                let mut message = fixture.write(flushes).await;
                assert_eq!(message.new_files.len(), flushes.len());
                for file in message.new_files.iter_mut().filter(|_| is_first_row) {
                    // Such rows are read from compacted files only: each is a level of its own.
                    level -= 1;
                    file.level = level;
                }
                fixture.commit(message).await;
            }
            fixture.assert_sound().await;
            let flushes: Vec<Vec<Change>> = commits.into_iter().flatten().collect();
            assert_eq!(fixture.rows().await, engine.read(&flushes), "{:?}", engine.options);
        });
    }
}

#[tokio::test]
async fn a_file_has_one_row_a_key_and_its_meta_tells_keys_numbers_and_retractions() {
    let mut fixture = Fixture::new(&[]).await;
    fixture.next_sequence_number = 40;
    let changes = vec![
        insert(7, 1),
        insert(-2, 2),
        (RowKind::UpdateBefore, (7, Some(1), None, None)),
        (RowKind::UpdateAfter, (7, Some(3), None, None)),
        (RowKind::Delete, (5, Some(9), None, None)),
    ];
    let message = fixture.write(&[changes]).await;
    let [file] = message.new_files.as_slice() else {
        panic!("{message:?}")
    };
    assert_eq!(file.file_name, "data-u0-0.parquet");
    assert_eq!((file.row_count, file.level), (3, 0));
    assert_eq!(
        (file.min_sequence_number, file.max_sequence_number),
        (41, 44)
    );
    assert_eq!(file.delete_row_count, Some(1));
    assert_eq!(file.file_source, Some(FileSource::Append));
    assert_eq!(file.creation_time, Some(7));
    assert_eq!(file.value_stats_cols, None);
    let int: DataType = "INT NOT NULL".parse().unwrap();
    let key = |bytes: &[u8]| {
        let row = weir_lake_format::BinaryRow::from_serialized(bytes).unwrap();
        row.decode([&int].into_iter()).unwrap()
    };
    assert_eq!(key(&file.min_key), [Datum::Int(-2)]);
    assert_eq!(key(&file.max_key), [Datum::Int(7)]);
    let stats = file.key_stats.decode([&int].into_iter()).unwrap();
    assert_eq!(
        (&stats[0].min, &stats[0].max),
        (&Datum::Int(-2), &Datum::Int(7))
    );
    let rows = parquet_rows(&fixture, "data-u0-0.parquet").await;
    let names: Vec<&str> = rows
        .schema_ref()
        .fields()
        .iter()
        .map(|f| f.name().as_str())
        .collect();
    assert_eq!(
        names,
        [
            "_KEY_k",
            "_SEQUENCE_NUMBER",
            "_VALUE_KIND",
            "k",
            "a",
            "b",
            "c"
        ]
    );
    let ids: Vec<&str> = rows
        .schema_ref()
        .fields()
        .iter()
        .map(|field| field.metadata()["PARQUET:field_id"].as_str())
        .collect();
    assert_eq!(
        ids,
        ["1073741823", "2147483646", "2147483645", "0", "1", "2", "3"]
    );
    let kinds = rows.column(2).as_primitive::<arrow::datatypes::Int8Type>();
    assert_eq!(kinds.values(), &[0, 3, 2]);
    let numbers = rows.column(1).as_primitive::<arrow::datatypes::Int64Type>();
    assert_eq!(numbers.values(), &[41, 44, 43]);
    fixture.commit(message).await;
    fixture.assert_sound().await;
}

async fn parquet_rows(fixture: &Fixture, name: &str) -> RecordBatch {
    let path = Path::from(format!("t/bucket-0/{name}"));
    let bytes = fixture
        .store
        .get(&path)
        .await
        .unwrap()
        .bytes()
        .await
        .unwrap();
    let builder = ParquetRecordBatchReaderBuilder::try_new(bytes).unwrap();
    let schema = Arc::clone(builder.schema());
    let batches: Vec<RecordBatch> = builder.build().unwrap().map(Result::unwrap).collect();
    concat_batches(&schema, &batches).unwrap()
}

#[tokio::test]
async fn files_of_the_thin_mode_have_no_key_columns_and_the_same_meta() {
    let mut fixture = Fixture::new(&[("data-file.thin-mode", "true")]).await;
    let message = fixture.write(&[vec![insert(3, 1), insert(1, 2)]]).await;
    let rows = parquet_rows(&fixture, "data-u0-0.parquet").await;
    assert_eq!(rows.schema_ref().field(0).name(), "_SEQUENCE_NUMBER");
    assert_eq!(rows.num_columns(), 6);
    let thick = Fixture::new(&[]).await;
    let other = thick.write(&[vec![insert(3, 1), insert(1, 2)]]).await;
    assert_eq!(message.new_files[0].min_key, other.new_files[0].min_key);
    assert_eq!(message.new_files[0].key_stats, other.new_files[0].key_stats);
    fixture.commit(message).await;
    fixture.assert_sound().await;
    assert_eq!(fixture.rows().await.len(), 2);
}

#[tokio::test]
async fn ignored_changes_leave_a_gap_in_the_numbers_and_nothing_else() {
    for (option, left) in [("ignore-delete", 1), ("ignore-update-before", 2)] {
        let fixture = Fixture::new(&[(option, "true")]).await;
        let changes = vec![
            (RowKind::UpdateBefore, (1, None, None, None)),
            (RowKind::Delete, (2, None, None, None)),
            insert(3, 1),
        ];
        let message = fixture.write(&[changes]).await;
        assert_eq!(message.new_files[0].row_count, left, "{option}");
        assert_eq!(message.new_files[0].max_sequence_number, 2);
    }
    let fixture = Fixture::new(&[("ignore-delete", "true")]).await;
    let message = fixture
        .write(&[vec![(RowKind::Delete, (2, None, None, None))]])
        .await;
    assert!(message.new_files.is_empty());
}

#[tokio::test]
async fn a_full_buffer_is_written_and_a_full_file_is_followed_by_one_of_higher_keys() {
    let mut fixture = Fixture::new(&[]).await;
    fixture.options.target_file_size = 20_000;
    let mut writer = fixture.try_writer(0, 200_000).unwrap();
    let mut most = 0;
    for round in 0..20 {
        // Keys in an order of their own, each three times.
        let changes = (0..1500).map(|i| insert((i * 7919 + round) % 500, i));
        let changes: Vec<Change> = changes.collect();
        let (batch, kinds) = batch(&fixture.schema, &changes);
        writer.write(batch, &kinds).await.unwrap();
        most = most.max(writer.memory_bytes());
    }
    assert!(most < 800_000, "{most}");
    assert_eq!(writer.row_count(), 30_000);
    writer.flush().await.unwrap();
    assert_eq!(writer.memory_bytes(), 0);
    let message = writer.finish().await.unwrap();
    assert!(message.new_files.len() > 4, "{}", message.new_files.len());
    fixture.commit(message).await;
    fixture.assert_sound().await;
    let rows = fixture.rows().await;
    assert_eq!(rows.len(), 500);
    assert!(rows.values().all(|row| row.1.unwrap() >= 1000));
}

#[tokio::test]
async fn the_same_changes_make_the_same_files_and_metas() {
    let changes: Vec<Change> = (0..3000).map(|i| insert((i * 37) % 1000, i)).collect();
    let mut found = Vec::new();
    for _ in 0..2 {
        let fixture = Fixture::new(&[("changelog-producer", "input")]).await;
        let message = fixture.write(std::slice::from_ref(&changes)).await;
        let mut bytes = Vec::new();
        for name in fixture
            .names()
            .await
            .iter()
            .filter(|name| name.contains("bucket-0"))
        {
            let object = fixture.store.get(&Path::from(name.as_str())).await.unwrap();
            bytes.push((name.clone(), object.bytes().await.unwrap()));
        }
        assert_eq!(bytes.len(), 2);
        found.push((message, bytes));
    }
    assert_eq!(found[0], found[1]);
}

#[tokio::test]
async fn a_changelog_has_all_changes_and_lives_as_long_as_its_snapshot() {
    let mut fixture = Fixture::new(&[("changelog-producer", "input")]).await;
    let changes = vec![
        insert(2, 1),
        insert(1, 2),
        (RowKind::UpdateBefore, (2, Some(1), None, None)),
        (RowKind::UpdateAfter, (2, Some(3), None, None)),
    ];
    let message = fixture.write(&[changes]).await;
    let [file] = message.changelog_files.as_slice() else {
        panic!("{message:?}")
    };
    assert_eq!(file.file_name, "changelog-u0-0.parquet");
    assert_eq!((file.row_count, file.delete_row_count), (4, Some(1)));
    assert_eq!((file.min_sequence_number, file.max_sequence_number), (0, 3));
    let rows = parquet_rows(&fixture, "changelog-u0-0.parquet").await;
    let numbers = rows.column(1).as_primitive::<arrow::datatypes::Int64Type>();
    assert_eq!(numbers.values(), &[1, 0, 2, 3]);
    fixture.commit(message).await;
    let snapshot = fixture.table.latest_snapshot().await.unwrap().unwrap();
    assert_eq!(snapshot.changelog_record_count, Some(4));
    assert_eq!(
        (snapshot.delta_record_count, snapshot.total_record_count),
        (2, 2)
    );
    let list = snapshot.changelog_manifest_list.clone().unwrap();
    let path = fixture.table.paths().manifest(&list).unwrap();
    let size = fixture.store.head(&path).await.unwrap().size;
    assert_eq!(snapshot.changelog_manifest_list_size, Some(size as i64));
    let manifests = fixture.table.read_manifest_list(&list).await.unwrap();
    let entries = fixture
        .table
        .read_manifest(&manifests[0].file_name)
        .await
        .unwrap();
    assert_eq!(entries.len(), 1);
    assert_eq!(entries[0].file.file_name, "changelog-u0-0.parquet");

    let second = fixture.write(&[vec![insert(1, 5)]]).await;
    fixture.commit(second).await;
    fixture.assert_sound().await;
    assert_eq!(fixture.rows().await.len(), 2);

    // Nothing of it is an orphan.
    let sweep = OrphanRequest {
        older_than: std::time::Duration::ZERO,
        now_ms: i64::MAX / 2,
        uuid: "o",
        own_files: &|_| Vec::new(),
    };
    assert_eq!(fixture.table.find_orphans(&sweep).await.unwrap(), []);
    let options = BTreeMap::new();
    let mut retention = Retention::of(TableOptions::new(&options)).unwrap();
    retention.min = 1;
    retention.max = 1;
    let request = ExpireRequest {
        retention: &retention,
        keep_newest_of: "test",
        keep_from: None,
        now_ms: i64::MAX / 2,
        own_files: &|_| Vec::new(),
    };
    let expired = fixture.table.expire(&request).await.unwrap();
    assert_eq!(expired.snapshots, [1]);
    let names = fixture.names().await;
    let has = |text: &str| names.iter().any(|name| name.contains(text));
    assert!(!has("changelog-u0-0"), "{names:?}");
    assert!(has("data-u0-0") && has("changelog-u1-0"), "{names:?}");
    assert!(!has(&list), "{names:?}");
    assert_eq!(fixture.table.find_orphans(&sweep).await.unwrap(), []);
    fixture.assert_sound().await;
}

#[tokio::test]
async fn a_changelog_is_sorted_by_key_then_sequence_field_then_number() {
    let options = [("changelog-producer", "input"), ("sequence.field", "a")];
    let fixture = Fixture::new(&options).await;
    let changes = vec![insert(2, 5), insert(2, 3), insert(1, 9), insert(2, 5)];
    fixture.write(&[changes]).await;
    let rows = parquet_rows(&fixture, "changelog-u0-0.parquet").await;
    let numbers = rows.column(1).as_primitive::<arrow::datatypes::Int64Type>();
    assert_eq!(numbers.values(), &[2, 1, 0, 3]);
}

#[tokio::test]
async fn merged_rows_are_inserts_with_the_number_of_their_last_change_or_deletes() {
    let option = ("partial-update.remove-record-on-delete", "true");
    let fixture = Fixture::new(&[("merge-engine", "partial-update"), option]).await;
    let changes = vec![
        insert(1, 5),
        (RowKind::UpdateAfter, (2, None, None, None)),
        (RowKind::UpdateAfter, (1, None, Some(7), None)),
        insert(3, 1),
        (RowKind::Delete, (3, Some(2), None, None)),
    ];
    fixture.write(&[changes]).await;
    let rows = parquet_rows(&fixture, "data-u0-0.parquet").await;
    let numbers = rows.column(1).as_primitive::<arrow::datatypes::Int64Type>();
    assert_eq!(numbers.values(), &[2, 1, 4]);
    // What changed once keeps its kind.
    let kinds = rows.column(2).as_primitive::<arrow::datatypes::Int8Type>();
    assert_eq!(kinds.values(), &[0, 2, 3]);
    let rows = rows_of(&rows);
    assert_eq!(rows[0], (1, Some(5), Some(7), None));
}

#[tokio::test]
async fn abort_deletes_data_and_changelog() {
    let fixture = Fixture::new(&[("changelog-producer", "input")]).await;
    let before = fixture.names().await;
    let mut writer = fixture.writer();
    let (batch, kinds) = batch(&fixture.schema, &[insert(1, 1)]);
    writer.write(batch, &kinds).await.unwrap();
    writer.flush().await.unwrap();
    assert_eq!(fixture.names().await.len(), before.len() + 2);
    writer.abort().await.unwrap();
    assert_eq!(fixture.names().await, before);
}

#[tokio::test]
async fn bad_input_is_refused_and_takes_nothing() {
    let fixture = Fixture::new(&[]).await;
    let mut writer = fixture.writer();
    let (good, kinds) = batch(&fixture.schema, &[insert(1, 1), insert(2, 2)]);
    let refused = writer.write(good.clone(), &kinds[..1]).await;
    assert!(
        matches!(refused, Err(Error::BadValue { .. })),
        "{refused:?}"
    );
    let mut columns = good.columns().to_vec();
    columns[0] = Arc::new(Int32Array::from(vec![Some(1), None]));
    let mut fields: Vec<_> = good.schema_ref().fields().iter().cloned().collect();
    fields[0] = Arc::new(fields[0].as_ref().clone().with_nullable(true));
    let schema = Arc::new(arrow::datatypes::Schema::new(fields));
    let null_key = RecordBatch::try_new(schema, columns).unwrap();
    let refused = writer.write(null_key, &kinds).await;
    assert!(
        matches!(&refused, Err(Error::BadValue { column, .. }) if column == "k"),
        "{refused:?}"
    );
    assert_eq!(writer.row_count(), 0);
    writer.write(good, &kinds).await.unwrap();
    assert_eq!(writer.finish().await.unwrap().new_files[0].row_count, 2);
}

#[tokio::test]
async fn tables_that_are_not_written_by_key_are_refused() {
    for options in [
        &[("deletion-vectors.enabled", "true")][..],
        &[("changelog-producer", "lookup")],
        &[("changelog-producer", "full-compaction")],
        &[
            ("changelog-producer", "input"),
            ("merge-engine", "first-row"),
        ],
        &[("rowkind.field", "c")],
        &[("bucket", "-1")],
        &[("bucket", "-2")],
        &[("merge-engine", "nonsense")],
        &[
            ("merge-engine", "aggregation"),
            ("fields.a.aggregate-function", "theta_sketch"),
        ],
        &[("file.format", "orc")],
        &[("sequence.snapshot-ordering", "true")],
    ] {
        let fixture = Fixture::new(options).await;
        let refused = fixture.try_writer(0, BUFFER).unwrap_err();
        assert!(
            matches!(refused, Error::Unsupported { .. }),
            "{options:?}: {refused}"
        );
    }
    let fixture = Fixture::new(&[]).await;
    for bucket in [-1, 1] {
        let refused = fixture.try_writer(bucket, BUFFER).unwrap_err();
        assert!(matches!(refused, Error::BadValue { .. }), "{refused}");
    }
}

/// The problems of a table that has files which its writer would not make so.
async fn problems_of(
    options: &[(&str, &str)],
    flushes: &[Vec<Change>],
    spoil: impl FnOnce(&mut CommitMessage),
) -> Vec<String> {
    let mut fixture = Fixture::new(options).await;
    let mut message = fixture.write(flushes).await;
    spoil(&mut message);
    fixture.commit(message).await;
    let problems = fixture.table.check().await.unwrap();
    problems.into_iter().map(|problem| problem.reason).collect()
}

#[tokio::test]
async fn the_check_finds_what_is_wrong_with_a_file() {
    let rows = vec![vec![insert(1, 1), insert(2, 2), insert(3, 3)]];
    let found = problems_of(&[], &rows, |_| ()).await;
    assert!(found.is_empty(), "{found:?}");
    let found = problems_of(&[], &rows, |message| {
        let file = &mut message.new_files[0];
        std::mem::swap(&mut file.min_key, &mut file.max_key);
    });
    let expected =
        ["lowest", "highest"].map(|what| format!("its {what} key is another than the stated one"));
    assert_eq!(found.await, expected);
    let found = problems_of(&[], &rows, |message| {
        message.new_files[0].max_sequence_number = 9;
    });
    assert_eq!(
        found.await,
        ["sequence numbers 0 to 2 where 0 to 9 are stated"]
    );
    let found = problems_of(&[], &rows, |message| {
        message.new_files[0].delete_row_count = Some(1);
    });
    assert_eq!(found.await, ["0 retractions where 1 are stated"]);
    let other = Fixture::new(&[]).await;
    let other = other.write(&[vec![insert(2, 2)]]).await;
    let stats = other.new_files[0].key_stats.clone();
    let found = problems_of(&[], &rows, |message| message.new_files[0].key_stats = stats).await;
    assert!(found[0].contains("column `_KEY_k`"), "{found:?}");

    // The unmerged changes as a data file.
    let twice = vec![vec![insert(1, 1), insert(1, 2)]];
    let input = [("changelog-producer", "input")];
    let found = problems_of(&input, &twice, |message| {
        message.new_files = std::mem::take(&mut message.changelog_files);
    });
    assert_eq!(found.await, ["two rows have the same key"]);

    // Level 1 has one run.
    let flushes = vec![vec![insert(1, 1), insert(3, 1)], vec![insert(2, 1)]];
    let found = problems_of(&[], &flushes, |message| message.new_files[0].level = 1);
    assert_eq!(found.await, Vec::<String>::new());
}

#[tokio::test]
async fn the_check_finds_rows_of_another_order_and_another_bucket() {
    // Files without key columns, sorted by `k`, in a table whose key is `a`.
    let thin = [("data-file.thin-mode", "true")];
    let by_k = Fixture::of(schema_of("INT NOT NULL", &thin)).await;
    let message = by_k.write(&[vec![insert(1, 5), insert(2, 4)]]).await;
    let mut by_a = by_k.schema.as_ref().clone();
    by_a.primary_keys = vec!["a".to_owned()];
    by_a.fields[1].data_type.nullable = false;
    by_a.options.insert("bucket".to_owned(), "2".to_owned());
    let mut fixture = Fixture::of(Arc::new(by_a)).await;
    for name in by_k
        .names()
        .await
        .iter()
        .filter(|name| name.contains("bucket-0"))
    {
        let object = by_k.store.get(&Path::from(name.as_str())).await.unwrap();
        let bytes = object.bytes().await.unwrap();
        for bucket in [0, 1] {
            let path = name.replace("bucket-0", &format!("bucket-{bucket}"));
            fixture
                .store
                .put(&Path::from(path), bytes.clone().into())
                .await
                .unwrap();
        }
    }
    let mut messages = vec![message.clone(), message];
    for (bucket, message) in (0..).zip(&mut messages) {
        (message.bucket, message.total_buckets) = (bucket, 2);
    }
    fixture.commits += 1;
    commit(&fixture.table, 1, messages).await;
    let problems = fixture.table.check().await.unwrap();
    let reasons: Vec<&str> = problems
        .iter()
        .map(|problem| problem.reason.as_str())
        .collect();
    let unsorted = "its rows are not in the order of their keys";
    assert!(reasons.contains(&unsorted), "{reasons:?}");
    assert!(
        reasons
            .iter()
            .any(|reason| reason.contains("belongs to bucket")),
        "{reasons:?}"
    );
}

/// Values of a key column that are told apart, in an order of their own.
fn key_values(data_type: &ArrowType) -> Option<ArrayRef> {
    let numbers = || [5_i32, -3, 0, 127, -128, 1, -1, 100];
    Some(match data_type {
        ArrowType::Boolean => Arc::new(BooleanArray::from(vec![true, false])),
        ArrowType::Int8 => Arc::new(Int8Array::from_iter_values(numbers().map(|n| n as i8))),
        ArrowType::Int16 => {
            let ends = [i16::MAX, i16::MIN];
            let numbers = numbers().into_iter().map(|n| n as i16).chain(ends);
            Arc::new(Int16Array::from_iter_values(numbers))
        }
        ArrowType::Int32 => {
            let ends = [i32::MAX, i32::MIN];
            Arc::new(Int32Array::from_iter_values(
                numbers().into_iter().chain(ends),
            ))
        }
        ArrowType::Int64 => {
            let ends = [i64::MAX, i64::MIN];
            let numbers = numbers().into_iter().map(i64::from).chain(ends);
            Arc::new(Int64Array::from_iter_values(numbers))
        }
        ArrowType::Float32 => Arc::new(Float32Array::from(vec![
            1.5,
            f32::NAN,
            -0.0,
            0.0,
            f32::NEG_INFINITY,
            f32::INFINITY,
            -1e30,
        ])),
        ArrowType::Float64 => Arc::new(Float64Array::from(vec![
            f64::NAN,
            1.5,
            0.0,
            -0.0,
            f64::INFINITY,
            f64::NEG_INFINITY,
            1e-300,
        ])),
        ArrowType::Decimal128(precision, scale) => {
            let most = 10_i128.pow(u32::from(*precision)) - 1;
            let numbers = numbers().into_iter().map(i128::from).chain([most, -most]);
            let array = Decimal128Array::from_iter_values(numbers);
            Arc::new(array.with_precision_and_scale(*precision, *scale).unwrap())
        }
        ArrowType::Utf8 => Arc::new(StringArray::from(vec![
            "b",
            "",
            "ab",
            "ä",
            "z",
            "a",
            "\u{ffff}",
            "\u{10000}",
            "longer than eight bytes",
        ])),
        ArrowType::Binary => Arc::new(BinaryArray::from(vec![
            &b"b"[..],
            b"",
            b"\xff",
            b"\x00",
            b"\x7f\x80",
            b"\x7f",
            b"longer than eight bytes",
        ])),
        ArrowType::Date32 => Arc::new(Date32Array::from_iter_values(numbers())),
        ArrowType::Time32(TimeUnit::Millisecond) => {
            Arc::new(Time32MillisecondArray::from_iter_values([
                5, 0, 86_399_999, 1, 1000,
            ]))
        }
        ArrowType::Timestamp(unit, zone) => {
            let numbers = numbers().into_iter().map(|n| i64::from(n) * 1_000_000_007);
            match unit {
                TimeUnit::Millisecond => Arc::new(
                    TimestampMillisecondArray::from_iter_values(numbers)
                        .with_timezone_opt(zone.clone()),
                ),
                TimeUnit::Microsecond => Arc::new(
                    TimestampMicrosecondArray::from_iter_values(numbers)
                        .with_timezone_opt(zone.clone()),
                ),
                TimeUnit::Nanosecond => Arc::new(
                    TimestampNanosecondArray::from_iter_values(numbers)
                        .with_timezone_opt(zone.clone()),
                ),
                TimeUnit::Second => return None,
            }
        }
        _ => return None,
    })
}

#[tokio::test]
async fn every_type_of_key_is_sorted_and_found_again() {
    for text in [
        "BOOLEAN",
        "TINYINT",
        "SMALLINT",
        "INT",
        "BIGINT",
        "FLOAT",
        "DOUBLE",
        "DECIMAL(9, 2)",
        "DECIMAL(18, 2)",
        "DECIMAL(38, 4)",
        "CHAR(30)",
        "VARCHAR(30)",
        "STRING",
        "BINARY(30)",
        "BYTES",
        "DATE",
        "TIME(3)",
        "TIMESTAMP(3)",
        "TIMESTAMP(6)",
        "TIMESTAMP(9)",
        "TIMESTAMP(3) WITH LOCAL TIME ZONE",
        "TIMESTAMP(9) WITH LOCAL TIME ZONE",
    ] {
        let mut fixture = Fixture::of(schema_of(&format!("{text} NOT NULL"), &[])).await;
        let arrow = fixture.schema.arrow_schema();
        let keys = key_values(arrow.field(0).data_type()).unwrap();
        let rows = keys.len();
        let (none, texts) = (vec![None::<i32>; rows], vec![None::<&str>; rows]);
        let batch_of = |a: i32| {
            let columns: Vec<ArrayRef> = vec![
                Arc::clone(&keys),
                Arc::new(Int32Array::from(vec![a; rows])),
                Arc::new(Int32Array::from(none.clone())),
                Arc::new(StringArray::from(texts.clone())),
            ];
            RecordBatch::try_new(Arc::clone(&arrow), columns).unwrap()
        };
        for round in [1, 2] {
            let mut writer = fixture.writer();
            for a in [round * 10, round * 10 + 1] {
                let kinds = vec![RowKind::Insert; rows];
                writer.write(batch_of(a), &kinds).await.unwrap();
            }
            let message = writer.finish().await.unwrap();
            assert_eq!(message.new_files[0].row_count, rows as i64, "{text}");
            fixture.commit(message).await;
        }
        fixture.assert_sound().await;
        let found = read(&fixture.table).await;
        assert_eq!(found.num_rows(), rows, "{text}");
        let newest = found.column(1).as_primitive::<Int32Type>();
        assert!(newest.values().iter().all(|a| *a == 21), "{text}");
        let data_type = &fixture.schema.fields[0].data_type;
        let value = |row| Datum::from_array(found.column(0).as_ref(), row, data_type).unwrap();
        for row in 1..rows {
            let order = value(row - 1).compare(&value(row));
            assert_eq!(order, Some(std::cmp::Ordering::Less), "{text}, row {row}");
        }
    }
}

#[tokio::test]
async fn a_nan_key_of_other_bits_than_javas_is_refused() {
    let fixture = Fixture::of(schema_of("DOUBLE NOT NULL", &[])).await;
    let mut writer = fixture.writer();
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Float64Array::from(vec![-f64::NAN])),
        Arc::new(Int32Array::from(vec![1])),
        Arc::new(Int32Array::from(vec![1])),
        Arc::new(StringArray::from(vec![""])),
    ];
    let batch = RecordBatch::try_new(fixture.schema.arrow_schema(), columns).unwrap();
    let refused = writer.write(batch, &[RowKind::Insert]).await;
    assert!(
        matches!(refused, Err(Error::BadValue { .. })),
        "{refused:?}"
    );
}

fn copy_folder(from: &FilePath, to: &FilePath) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// What is read, as canonical lines.
async fn lines(table: &Table) -> Vec<String> {
    let fields = table.latest_schema().await.unwrap().fields;
    let mut lines = canonical_json::rows(&read(table).await, &fields).unwrap();
    canonical_json::sort(&mut lines);
    lines
}

#[tokio::test]
async fn changes_go_on_top_of_the_tables_of_others() {
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/warehouse");
    for (database, name, takes_deletes) in [
        ("golden", "pk_nocompact", true),
        ("golden", "pk_compact", true),
        ("golden", "pk_mixed_buckets", true),
        ("golden", "pk_changelog_input", true),
        ("golden", "evolved_pk", true),
        ("golden", "partial_update", false),
        ("golden_py", "pk_parts", true),
        ("golden_py", "partial_update", false),
    ] {
        let scratch = tempfile::tempdir().unwrap();
        let folder = format!("{database}.db/{name}");
        copy_folder(&golden.join(&folder), &scratch.path().join(&folder));
        let store: Arc<dyn ObjectStore> =
            Arc::new(LocalFileSystem::new_with_prefix(scratch.path()).unwrap());
        let root = paths::table_path(&Path::default(), database, name).unwrap();
        let table = Table::open(Arc::clone(&store), root.clone()).await.unwrap();
        let schema = Arc::new(table.latest_schema().await.unwrap());
        let before = lines(&table).await;
        let snapshot = table.latest_snapshot().await.unwrap().unwrap();
        let mut messages = Vec::new();
        let mut gone = Vec::new();
        for split in table.plan(&snapshot, &Filter::default()).await.unwrap() {
            let stream = table.read_split(&split, None).await.unwrap();
            let rows = stream.try_collect::<Vec<_>>().await.unwrap();
            let rows = concat_batches(&schema.arrow_schema(), &rows).unwrap();
            if rows.num_rows() == 0 {
                continue;
            }
            let highest = split
                .files
                .iter()
                .map(|file| file.max_sequence_number)
                .max();
            let target = WriteTarget {
                schema: Arc::clone(&schema),
                partition: split.partition.clone(),
                bucket: split.bucket,
                total_buckets: split.total_buckets,
                first_sequence_number: highest.unwrap() + 1,
            };
            let uuid = format!("w{}", messages.len());
            let options = WriterOptions::new(&schema, uuid, 0).unwrap();
            let store = Arc::clone(&store);
            let mut writer =
                MergeTreeWriter::new(target, options, BUFFER, store, root.clone()).unwrap();
            // All rows again, then the first one goes.
            let kinds = vec![RowKind::UpdateAfter; rows.num_rows()];
            writer.write(rows.clone(), &kinds).await.unwrap();
            if takes_deletes {
                let first = rows.slice(0, 1);
                gone.extend(canonical_json::rows(&first, &schema.fields).unwrap());
                writer.write(first, &[RowKind::Delete]).await.unwrap();
            }
            messages.push(writer.finish().await.unwrap());
        }
        assert!(!messages.is_empty(), "{name}");
        commit(&table, 1, messages).await;
        let problems = table.check().await.unwrap();
        assert!(problems.is_empty(), "{name}: {problems:#?}");
        let mut expected = before;
        expected.retain(|line| !gone.contains(line));
        assert_eq!(lines(&table).await, expected, "{name}");
        let snapshot = table.latest_snapshot().await.unwrap().unwrap();
        let has_changelog = snapshot.changelog_manifest_list.is_some();
        assert_eq!(has_changelog, name == "pk_changelog_input");
    }
}
