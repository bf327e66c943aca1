//! Appends the rows of a Parquet file to a table of a lake by the table format alone, without
//! server and daemon: `weir-lake-writer WAREHOUSE DATABASE TABLE SOURCE.parquet [SCHEMA.json [USER]]`.
//!
//! The schema, a schema file of the format without ids, creates the table where it is missing. The
//! columns of the source have the Arrow types of the lake's. Rows go to the partitions of their
//! values and to the buckets of their keys, one commit a run. Runs of several users may go on at a time.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "it serves tests alone: what fails here fails the test, with the reason"
)]

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{RecordBatch, UInt32Array};
use arrow::compute::{concat_batches, take_record_batch};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use weir_lake_format::commit::{BaseView, RetryPolicy};
use weir_lake_format::{
    BATCH_COMMIT_IDENTIFIER, BinaryRow, BucketMode, CommitKind, CommitOutcome, CommitRequest,
    DataField, DataFileWriter, Datum, Filter, NewTable, Partition, Table, TableSchema, WriteTarget,
    WriterOptions, bucket, paths,
};

/// The rows of a partition's bucket, by serialized partition and bucket.
type Rows = BTreeMap<(Vec<u8>, i32), Vec<u32>>;

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [warehouse, database, name, source, schema @ ..] = arguments.as_slice() else {
        panic!("weir-lake-writer WAREHOUSE DATABASE TABLE SOURCE.parquet [SCHEMA.json [USER]]");
    };
    let none = BTreeMap::new();
    let (store, folder) = weir_lake_format::open_warehouse(warehouse, &none).unwrap();
    let root = paths::table_path(&folder, database, name).unwrap();
    let table = match Table::open(Arc::clone(&store), root.clone()).await {
        Ok(table) => table,
        Err(_) => Table::create(store, root, &new_schema(&schema[0]))
            .await
            .unwrap(),
    };
    let user = schema.get(1).map_or("weir-lake-writer", String::as_str);
    let schema = Arc::new(table.latest_schema().await.unwrap());
    append(&table, &schema, &read(source), user).await;
}

fn new_schema(path: &str) -> TableSchema {
    let json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(path).unwrap()).expect("the schema is JSON");
    let field = |field: &serde_json::Value| {
        let data_type = serde_json::from_value(field["type"].clone()).expect("a type");
        DataField::new(-1, field["name"].as_str().unwrap(), data_type)
    };
    let table = NewTable {
        fields: json["fields"]
            .as_array()
            .unwrap()
            .iter()
            .map(field)
            .collect(),
        partition_keys: serde_json::from_value(json["partitionKeys"].clone()).unwrap(),
        options: serde_json::from_value(json["options"].clone()).unwrap(),
        ..NewTable::default()
    };
    TableSchema::create(table, 0).unwrap()
}

fn read(source: &str) -> RecordBatch {
    let file = std::fs::File::open(source).unwrap();
    let builder = ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
    let schema = Arc::clone(builder.schema());
    let batches: Vec<_> = builder.build().unwrap().map(Result::unwrap).collect();
    concat_batches(&schema, &batches).unwrap()
}

async fn append(table: &Table, schema: &Arc<TableSchema>, rows: &RecordBatch, user: &str) {
    let latest = table.latest_snapshot().await.unwrap();
    let id = latest.as_ref().map_or(0, |snapshot| snapshot.id) + 1;
    let mut counts = BTreeMap::new();
    let mut sequences = BTreeMap::new();
    if let Some(snapshot) = &latest {
        for split in table.plan(snapshot, &Filter::default()).await.unwrap() {
            let partition = split.partition.to_bytes();
            counts.insert(partition.clone(), split.total_buckets);
            let last = split.files.iter().map(|file| file.max_sequence_number);
            sequences.insert((partition, split.bucket), last.max().unwrap_or(-1) + 1);
        }
    }
    let mut messages = Vec::new();
    for (place, (key, indices)) in (0..).zip(by_bucket(schema, rows, &counts)) {
        let first_sequence_number = sequences.get(&key).copied().unwrap_or(0);
        let (partition, bucket) = key;
        let target = WriteTarget {
            schema: Arc::clone(schema),
            total_buckets: total_buckets(schema, counts.get(&partition)),
            partition: Partition::from_bytes(&partition, schema).unwrap(),
            bucket,
            first_sequence_number,
        };
        let options = WriterOptions::new(schema, format!("{user}-{id}-{place}"), 0).unwrap();
        let (store, root) = (Arc::clone(table.store()), table.root().clone());
        let mut writer = DataFileWriter::new(target, options, store, root).unwrap();
        let taken = take_record_batch(rows, &UInt32Array::from(indices)).unwrap();
        writer.write(taken).await.unwrap();
        messages.push(writer.finish().await.unwrap());
    }
    let request = CommitRequest {
        commit_user: user.to_owned(),
        commit_identifier: BATCH_COMMIT_IDENTIFIER,
        kind: CommitKind::Append,
        messages,
        deletes: Vec::new(),
        properties: BTreeMap::new(),
        allow_empty: true,
        uuid: format!("{user}-{id}"),
        now_ms: 1_700_000_000_000 + id,
    };
    let mut guard = |_: &BaseView<'_>| Ok(());
    let outcome = table
        .commit(&request, &mut guard, RetryPolicy::default())
        .await
        .unwrap();
    assert!(
        matches!(outcome, CommitOutcome::Committed(_)),
        "{outcome:?}"
    );
}

/// The count of a partition's files, or of the table where it has none.
fn total_buckets(schema: &TableSchema, of_partition: Option<&i32>) -> i32 {
    match (of_partition, schema.bucket_mode().unwrap()) {
        (Some(count), _) => *count,
        (None, BucketMode::Fixed(count)) => count,
        (None, _) => bucket::UNAWARE_TOTAL_BUCKETS,
    }
}

fn by_bucket(schema: &TableSchema, rows: &RecordBatch, counts: &BTreeMap<Vec<u8>, i32>) -> Rows {
    let partition_fields = schema.partition_fields().unwrap();
    let key_fields = schema.bucket_key_fields().unwrap();
    let values = |fields: &[&DataField], row: usize| -> Vec<Datum> {
        let value = |field: &&DataField| {
            let column = rows
                .column_by_name(&field.name)
                .expect("the column is there");
            Datum::from_array(column, row, &field.data_type).unwrap()
        };
        fields.iter().map(value).collect()
    };
    let mut found = Rows::new();
    for row in 0..rows.num_rows() {
        let partition = Partition::new(values(&partition_fields, row), schema).unwrap();
        let partition = partition.to_bytes();
        let count = total_buckets(schema, counts.get(&partition));
        let bucket = if count < 0 {
            0
        } else {
            let types: Vec<_> = key_fields.iter().map(|field| &field.data_type).collect();
            let key = BinaryRow::encode(&values(&key_fields, row), types.into_iter()).unwrap();
            bucket::bucket_of_key(&key, count).unwrap()
        };
        let place = found.entry((partition, bucket)).or_default();
        place.push(u32::try_from(row).unwrap());
    }
    found
}
