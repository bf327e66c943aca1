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

mod engines;
mod files;
mod key_types;
mod others;
mod wrong;

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
