//! Tables of other writers: what is read from them, and that they pass the check.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::cast_possible_truncation,
    reason = "a test that can't go on fails"
)]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use apache_avro::types::Value as AvroValue;
use arrow::array::RecordBatch;
use futures::TryStreamExt;
use object_store::local::LocalFileSystem;
use serde_json::Value as Json;
use weir_lake_format::{
    DataFileMeta, Datum, Error, FileKind, FileSource, Filter, ManifestEntry, ManifestFileMeta,
    Predicate, SimpleStats, Snapshot, StatsCollector, Table, canonical_json, decode_manifest,
    decode_manifest_list, encode_manifest, encode_manifest_list, paths,
};

const APPEND_TABLES: [(&str, &str); 8] = [
    ("golden", "append_alltypes"),
    ("golden", "append_fixed_parts"),
    ("golden", "append_special_partitions"),
    ("golden", "evolved_append"),
    ("golden_py", "append_types"),
    ("golden_py", "append_fixed"),
    ("g", "log"),
    ("g", "part"),
];

/// Tables with a primary key.
const KEYED_TABLES: [(&str, &str); 13] = [
    ("golden", "agg"),
    ("golden", "evolved_pk"),
    ("golden", "first_row"),
    ("golden", "partial_update"),
    ("golden", "partial_update_seqgroup"),
    ("golden", "pk_changelog_input"),
    ("golden", "pk_compact"),
    ("golden", "pk_dv"),
    ("golden", "pk_dynamic_bucket"),
    ("golden", "pk_mixed_buckets"),
    ("golden", "pk_nocompact"),
    ("golden_py", "partial_update"),
    ("golden_py", "pk_parts"),
];

fn all_tables() -> impl Iterator<Item = (&'static str, &'static str)> {
    APPEND_TABLES.into_iter().chain(KEYED_TABLES)
}

fn golden() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

async fn open(database: &str, name: &str) -> Table {
    let store = LocalFileSystem::new_with_prefix(golden().join("warehouse")).unwrap();
    let root = paths::table_path(&object_store::path::Path::default(), database, name).unwrap();
    Table::open(Arc::new(store), root).await.unwrap()
}

async fn batches(table: &Table, filter: &Filter, projection: Option<&[&str]>) -> Vec<RecordBatch> {
    let snapshot = table.latest_snapshot().await.unwrap().unwrap();
    let mut batches = Vec::new();
    for split in table.plan(&snapshot, filter).await.unwrap() {
        let stream = table.read_split(&split, projection).await.unwrap();
        batches.extend(stream.try_collect::<Vec<_>>().await.unwrap());
    }
    batches
}

async fn lines(table: &Table, filter: &Filter) -> Vec<String> {
    let schema = table.latest_schema().await.unwrap();
    let mut lines = Vec::new();
    for batch in batches(table, filter, None).await {
        lines.extend(canonical_json::rows(&batch, &schema.fields).unwrap());
    }
    canonical_json::sort(&mut lines);
    lines
}

fn expected(database: &str, name: &str) -> Vec<String> {
    let path = golden().join(format!("expected/{database}/{name}.jsonl"));
    let mut lines: Vec<String> = std::fs::read_to_string(path)
        .unwrap()
        .lines()
        .map(str::to_owned)
        .collect();
    canonical_json::sort(&mut lines);
    lines
}

#[tokio::test]
async fn every_append_table_reads_as_its_writer_meant_it() {
    for (database, name) in APPEND_TABLES {
        let found = lines(&open(database, name).await, &Filter::default()).await;
        assert_eq!(found, expected(database, name), "{database}.{name}");
    }
}

#[tokio::test]
async fn a_filter_on_partition_and_bucket_gives_exactly_their_rows() {
    let table = open("golden", "append_fixed_parts").await;
    let mut by_partition: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for dt in ["2024-01-01", "2024-01-02"] {
        let filter = Filter {
            partition: vec![("dt".to_owned(), Datum::String(dt.to_owned()))],
            bucket: None,
        };
        let found = lines(&table, &filter).await;
        assert!(!found.is_empty());
        assert!(
            found
                .iter()
                .all(|line| line.contains(&format!("\"dt\":\"{dt}\"")))
        );
        by_partition.insert(dt.to_owned(), found);
        let mut by_bucket = Vec::new();
        for bucket in 0..5 {
            let filter = Filter {
                bucket: Some(bucket),
                ..filter.clone()
            };
            by_bucket.extend(lines(&table, &filter).await);
        }
        canonical_json::sort(&mut by_bucket);
        assert_eq!(by_bucket, by_partition[dt]);
    }
    let all: usize = by_partition.values().map(Vec::len).sum();
    assert_eq!(all, expected("golden", "append_fixed_parts").len());
}

#[tokio::test]
async fn partitions_of_null_and_blank_are_told_apart() {
    let table = open("golden", "append_special_partitions").await;
    for (value, id) in [(Datum::Null, 4), (Datum::String(" ".to_owned()), 5)] {
        let filter = Filter {
            partition: vec![("p_str".to_owned(), value)],
            bucket: None,
        };
        let found = lines(&table, &filter).await;
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with(&format!("{{\"id\":{id},")));
    }
}

#[tokio::test]
async fn a_filter_on_no_partition_column_is_refused() {
    let table = open("golden", "append_fixed_parts").await;
    let snapshot = table.latest_snapshot().await.unwrap().unwrap();
    let filter = Filter {
        partition: vec![("id".to_owned(), Datum::BigInt(1))],
        bucket: None,
    };
    assert!(matches!(
        table.plan(&snapshot, &filter).await,
        Err(Error::BadValue { .. })
    ));
}

#[tokio::test]
async fn a_projection_gives_its_columns_in_its_order_and_none_gives_counts() {
    let table = open("golden", "evolved_append").await;
    let found = batches(&table, &Filter::default(), Some(&["gone", "id"])).await;
    let names: Vec<_> = found[0]
        .schema()
        .fields()
        .iter()
        .map(|f| f.name().clone())
        .collect();
    assert_eq!(names, ["gone", "id"]);
    let counted = batches(&table, &Filter::default(), Some(&[])).await;
    assert_eq!(counted.iter().map(RecordBatch::num_rows).sum::<usize>(), 4);
}

#[tokio::test]
async fn an_earlier_snapshot_reads_as_it_was() {
    let table = open("golden", "evolved_append").await;
    let first = table.snapshot(1).await.unwrap();
    let splits = table.plan(&first, &Filter::default()).await.unwrap();
    let schema = table.schema(first.schema_id).await.unwrap();
    let mut lines = Vec::new();
    for split in &splits {
        let stream = table.read_split_as(split, &schema, None).await.unwrap();
        for batch in stream.try_collect::<Vec<_>>().await.unwrap() {
            lines.extend(canonical_json::rows(&batch, &schema.fields).unwrap());
        }
    }
    assert_eq!(lines.len(), 2);
    assert!(lines[0].starts_with("{\"id\":1,\"a\":10,\"b\":\"b1\",\"gone\":"));
}

#[tokio::test]
async fn every_primary_key_table_reads_as_its_writer_meant_it() {
    for (database, name) in KEYED_TABLES {
        let found = lines(&open(database, name).await, &Filter::default()).await;
        assert_eq!(found, expected(database, name), "{database}.{name}");
    }
}

#[tokio::test]
async fn a_projection_of_merged_rows_gives_the_same_values() {
    for (database, name) in KEYED_TABLES {
        let table = open(database, name).await;
        let schema = table.latest_schema().await.unwrap();
        let whole = batches(&table, &Filter::default(), None).await;
        let counted = batches(&table, &Filter::default(), Some(&[])).await;
        let count = |batches: &[RecordBatch]| batches.iter().map(RecordBatch::num_rows).sum();
        let rows: usize = count(&whole);
        assert_eq!(rows, count(&counted), "{database}.{name}");
        for (column, field) in schema.fields.iter().enumerate() {
            let projection = [field.name.as_str()];
            let found = batches(&table, &Filter::default(), Some(&projection)).await;
            let expected: Vec<_> = whole
                .iter()
                .map(|batch| batch.project(&[column]).unwrap())
                .collect();
            assert_eq!(found, expected, "{database}.{name}.{}", field.name);
        }
    }
}

#[tokio::test]
async fn a_condition_on_a_value_leaves_no_version_of_a_row_out() {
    // An older version of a row passes, in a file that would be read alone.
    let table = open("golden", "pk_nocompact").await;
    let schema = table.latest_schema().await.unwrap();
    let snapshot = table.latest_snapshot().await.unwrap().unwrap();
    let everything = Filter::default();
    let all = table.plan(&snapshot, &everything).await.unwrap();
    let rows = expected("golden", "pk_nocompact");
    for text in ["v_int >= 200", "v_int < 10", "v_str IS NULL"] {
        let conditions = [Predicate::parse(text, &schema).unwrap()];
        let planned = table.plan_where(&snapshot, &everything, &conditions);
        let planned = planned.await.unwrap();
        assert_eq!(planned, all, "{text}");
    }
    let conditions = [Predicate::parse("k1 = 3", &schema).unwrap()];
    let mut found = Vec::new();
    let planned = table.plan_where(&snapshot, &everything, &conditions);
    for split in planned.await.unwrap() {
        let stream = table.read_split(&split, None).await.unwrap();
        for batch in stream.try_collect::<Vec<_>>().await.unwrap() {
            let picked = Predicate::pick(&conditions, &batch).unwrap();
            let batch = arrow::compute::filter_record_batch(&batch, &picked).unwrap();
            found.extend(canonical_json::rows(&batch, &schema.fields).unwrap());
        }
    }
    let passes = |line: &&String| line.starts_with("{\"k1\":3,");
    let wanted: Vec<String> = rows.iter().filter(passes).cloned().collect();
    assert_eq!(found, wanted);
    assert!(!wanted.is_empty());
}

/// The files of a kind in a table's folder.
fn files_of(database: &str, name: &str, folder: &str, prefix: &str) -> Vec<(String, Vec<u8>)> {
    let dir = golden().join(format!("warehouse/{database}.db/{name}/{folder}"));
    let mut files = Vec::new();
    for file in std::fs::read_dir(dir).unwrap() {
        let path = file.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if name.starts_with(prefix) {
            files.push((name, std::fs::read(path).unwrap()));
        }
    }
    files
}

#[test]
fn snapshots_of_all_writers_are_written_again_as_they_are() {
    let mut checked = 0;
    for (database, name) in all_tables() {
        for (file, bytes) in files_of(database, name, "snapshot", "snapshot-") {
            let again = Snapshot::from_json(&bytes).unwrap().to_json().unwrap();
            let mut theirs: Json = serde_json::from_slice(&bytes).unwrap();
            let theirs = theirs.as_object_mut().unwrap();
            // Always empty, and of no meaning since Paimon 1.0; then what Paimon 2 has more. Absent
            // and null are the same.
            for name in ["logOffsets", "uuid", "writerVersion"] {
                theirs.remove(name);
            }
            theirs.retain(|_, value| !value.is_null());
            let mut ours: Json = serde_json::from_slice(&again).unwrap();
            let ours = ours.as_object_mut().unwrap();
            ours.retain(|_, value| !value.is_null());
            assert_eq!(ours, theirs, "{database}.{name} {file}");
            checked += 1;
        }
    }
    assert!(checked > 15, "{checked}");
}

/// The records of an Avro file as an independent reader has them.
fn records(file: &[u8]) -> Vec<AvroValue> {
    let reader = apache_avro::Reader::new(file).unwrap();
    reader.collect::<Result<_, _>>().unwrap()
}

/// A field of a record, out of its union; null if there is none.
fn field<'a>(record: &'a AvroValue, name: &str) -> &'a AvroValue {
    let AvroValue::Record(fields) = record else {
        panic!("{record:?}")
    };
    let found = fields.iter().find(|(field, _)| field == name);
    found.map_or(&AvroValue::Null, |(_, value)| inside(value))
}

fn inside(value: &AvroValue) -> &AvroValue {
    match value {
        AvroValue::Union(_, value) => inside(value),
        value => value,
    }
}

fn number(record: &AvroValue, name: &str) -> Option<i64> {
    number_of(field(record, name))
}

fn number_of(value: &AvroValue) -> Option<i64> {
    match inside(value) {
        AvroValue::Null => None,
        AvroValue::Int(value) => Some(i64::from(*value)),
        AvroValue::Long(value) | AvroValue::TimestampMillis(value) => Some(*value),
        other => panic!("{other:?}"),
    }
}

fn small(record: &AvroValue, name: &str) -> Option<i32> {
    number(record, name).map(|number| i32::try_from(number).unwrap())
}

fn bytes(record: &AvroValue, name: &str) -> Option<Vec<u8>> {
    match field(record, name) {
        AvroValue::Null => None,
        AvroValue::Bytes(value) => Some(value.clone()),
        other => panic!("{other:?}"),
    }
}

fn text(record: &AvroValue, name: &str) -> Option<String> {
    match field(record, name) {
        AvroValue::Null => None,
        AvroValue::String(value) => Some(value.clone()),
        other => panic!("{other:?}"),
    }
}

fn items(record: &AvroValue, name: &str) -> Option<Vec<AvroValue>> {
    match field(record, name) {
        AvroValue::Null => None,
        AvroValue::Array(items) => Some(items.clone()),
        other => panic!("{other:?}"),
    }
}

fn texts(record: &AvroValue, name: &str) -> Option<Vec<String>> {
    let items = items(record, name)?;
    let text = |item: &AvroValue| match inside(item) {
        AvroValue::String(value) => value.clone(),
        other => panic!("{other:?}"),
    };
    Some(items.iter().map(text).collect())
}

fn stats(record: &AvroValue) -> SimpleStats {
    let counts = items(record, "_NULL_COUNTS").unwrap_or_default();
    SimpleStats {
        min: bytes(record, "_MIN_VALUES").unwrap(),
        max: bytes(record, "_MAX_VALUES").unwrap(),
        null_counts: counts.iter().map(number_of).collect(),
    }
}

/// What a record of a manifest says, name by name.
fn entry(record: &AvroValue) -> ManifestEntry {
    let file = field(record, "_FILE");
    let kinds = [FileKind::Add, FileKind::Delete];
    let sources = [FileSource::Append, FileSource::Compact];
    let source = number(file, "_FILE_SOURCE").map(|code| sources[usize::try_from(code).unwrap()]);
    ManifestEntry {
        kind: kinds[usize::try_from(number(record, "_KIND").unwrap()).unwrap()],
        partition: bytes(record, "_PARTITION").unwrap(),
        bucket: small(record, "_BUCKET").unwrap(),
        total_buckets: small(record, "_TOTAL_BUCKETS").unwrap(),
        file: DataFileMeta {
            file_name: text(file, "_FILE_NAME").unwrap(),
            file_size: number(file, "_FILE_SIZE").unwrap(),
            row_count: number(file, "_ROW_COUNT").unwrap(),
            min_key: bytes(file, "_MIN_KEY").unwrap(),
            max_key: bytes(file, "_MAX_KEY").unwrap(),
            key_stats: stats(field(file, "_KEY_STATS")),
            value_stats: stats(field(file, "_VALUE_STATS")),
            min_sequence_number: number(file, "_MIN_SEQUENCE_NUMBER").unwrap(),
            max_sequence_number: number(file, "_MAX_SEQUENCE_NUMBER").unwrap(),
            schema_id: number(file, "_SCHEMA_ID").unwrap(),
            level: small(file, "_LEVEL").unwrap(),
            extra_files: texts(file, "_EXTRA_FILES").unwrap(),
            creation_time: number(file, "_CREATION_TIME"),
            delete_row_count: number(file, "_DELETE_ROW_COUNT"),
            embedded_file_index: bytes(file, "_EMBEDDED_FILE_INDEX"),
            file_source: source,
            value_stats_cols: texts(file, "_VALUE_STATS_COLS"),
            external_path: text(file, "_EXTERNAL_PATH"),
            first_row_id: number(file, "_FIRST_ROW_ID"),
            write_cols: texts(file, "_WRITE_COLS"),
        },
    }
}

/// What a record of a manifest list says, name by name.
fn manifest(record: &AvroValue) -> ManifestFileMeta {
    ManifestFileMeta {
        file_name: text(record, "_FILE_NAME").unwrap(),
        file_size: number(record, "_FILE_SIZE").unwrap(),
        num_added_files: number(record, "_NUM_ADDED_FILES").unwrap(),
        num_deleted_files: number(record, "_NUM_DELETED_FILES").unwrap(),
        partition_stats: stats(field(record, "_PARTITION_STATS")),
        schema_id: number(record, "_SCHEMA_ID").unwrap(),
        min_bucket: small(record, "_MIN_BUCKET"),
        max_bucket: small(record, "_MAX_BUCKET"),
        min_level: small(record, "_MIN_LEVEL"),
        max_level: small(record, "_MAX_LEVEL"),
    }
}

/// Fields of manifest lists that Paimon 2 has more.
const LATER: [&str; 1] = ["_TOTAL_BUCKETS"];

/// Both versions of a record; where one side has no field, the other must have null.
fn assert_same(ours: &AvroValue, theirs: &AvroValue, at: &str) {
    match (inside(ours), inside(theirs)) {
        (AvroValue::Record(a), AvroValue::Record(b)) => {
            let is_ours = |name: &str| a.iter().any(|(ours, _)| ours == name);
            let names = a.iter().chain(b).map(|(name, _)| name.as_str());
            for name in names.filter(|name| is_ours(name) || !LATER.contains(name)) {
                let (ours, theirs) = (field(ours, name), field(theirs, name));
                assert_same(ours, theirs, &format!("{at}.{name}"));
            }
        }
        (ours, theirs) => assert_eq!(ours, theirs, "{at}"),
    }
}

#[tokio::test]
async fn manifests_of_all_writers_read_and_are_written_as_an_independent_reader_has_them() {
    let mut checked = 0;
    for (database, name) in all_tables() {
        for (file, theirs) in files_of(database, name, "manifest", "manifest-") {
            let records_of_theirs = records(&theirs);
            let again = if file.starts_with("manifest-list") {
                let list = decode_manifest_list(&theirs).unwrap();
                let expected: Vec<_> = records_of_theirs.iter().map(manifest).collect();
                assert_eq!(list, expected, "{database}.{name} {file}");
                encode_manifest_list(&list).unwrap()
            } else {
                let entries = decode_manifest(&theirs).unwrap();
                let expected: Vec<_> = records_of_theirs.iter().map(entry).collect();
                assert_eq!(entries, expected, "{database}.{name} {file}");
                encode_manifest(&entries).unwrap()
            };
            let records_of_ours = records(&again);
            assert_eq!(records_of_ours.len(), records_of_theirs.len());
            for (ours, theirs) in records_of_ours.iter().zip(&records_of_theirs) {
                assert_same(ours, theirs, &format!("{database}.{name} {file}"));
            }
            checked += 1;
        }
    }
    assert!(checked > 30, "{checked}");
}

/// Reads the uncompressed schema from the head of an Avro file.
fn avro_schema(file: &[u8]) -> String {
    let reader = apache_avro::Reader::new(file).unwrap();
    reader.writer_schema().canonical_form()
}

#[tokio::test]
async fn our_manifests_carry_the_schema_of_java() {
    let dir = golden().join("warehouse/g.db/log/manifest");
    for file in std::fs::read_dir(dir).unwrap() {
        let path = file.unwrap().path();
        let java = std::fs::read(&path).unwrap();
        let is_list = path
            .file_name()
            .unwrap()
            .to_string_lossy()
            .starts_with("manifest-list");
        let ours = if is_list {
            encode_manifest_list(&[])
        } else {
            encode_manifest(&[])
        };
        assert_eq!(avro_schema(&ours.unwrap()), avro_schema(&java));
    }
}

#[tokio::test]
async fn statistics_of_a_file_equal_those_that_java_wrote_for_it() {
    let mut checked = 0;
    for (database, name) in APPEND_TABLES
        .into_iter()
        .filter(|(database, _)| *database != "golden_py")
    {
        let table = open(database, name).await;
        let snapshot = table.latest_snapshot().await.unwrap().unwrap();
        for mut split in table.plan(&snapshot, &Filter::default()).await.unwrap() {
            for file in std::mem::take(&mut split.files) {
                let schema = table.schema(file.schema_id).await.unwrap();
                split.files = vec![file.clone()];
                let stream = table.read_split_as(&split, &schema, None).await.unwrap();
                let mut collector = StatsCollector::new(&schema).unwrap();
                for batch in stream.try_collect::<Vec<_>>().await.unwrap() {
                    collector.update(&batch).unwrap();
                }
                let ours = collector.finish().unwrap();
                assert_eq!(ours.columns, file.value_stats_cols, "{database}.{name}");
                let java = DataFileMeta { ..file.clone() };
                let ours = DataFileMeta {
                    value_stats: ours.stats,
                    ..file
                };
                assert_eq!(
                    Table::file_stats(&ours, &schema).unwrap(),
                    Table::file_stats(&java, &schema).unwrap(),
                    "{database}.{name}"
                );
                assert_eq!(ours.value_stats, java.value_stats, "{database}.{name}");
                checked += 1;
            }
        }
    }
    assert!(checked > 10, "{checked}");
}

#[tokio::test]
async fn every_golden_table_passes_the_check() {
    for (database, name) in all_tables() {
        let problems = open(database, name).await.check().await.unwrap();
        assert!(problems.is_empty(), "{database}.{name}: {problems:#?}");
    }
}
