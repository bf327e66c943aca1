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

use arrow::array::RecordBatch;
use futures::TryStreamExt;
use object_store::local::LocalFileSystem;
use weir_lake_format::{
    Datum, Error, Filter, StatsCollector, Table, canonical_json, decode_manifest,
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
async fn rows_of_a_primary_key_table_are_refused_in_a_sentence() {
    let table = open("golden", "pk_compact").await;
    let snapshot = table.latest_snapshot().await.unwrap().unwrap();
    let splits = table.plan(&snapshot, &Filter::default()).await.unwrap();
    assert!(!splits.is_empty());
    let found = table.read_split(&splits[0], None).await;
    assert!(matches!(found.err(), Some(Error::Unsupported { .. })));
}

#[tokio::test]
async fn manifests_of_all_writers_read_back_as_written() {
    let mut checked = 0;
    for (database, name) in APPEND_TABLES.into_iter().chain([("golden", "pk_compact")]) {
        let dir = golden().join(format!("warehouse/{database}.db/{name}/manifest"));
        for file in std::fs::read_dir(dir).unwrap() {
            let path = file.unwrap().path();
            let bytes = std::fs::read(&path).unwrap();
            if path
                .file_name()
                .unwrap()
                .to_string_lossy()
                .starts_with("manifest-list")
            {
                let list = decode_manifest_list(&bytes).unwrap();
                let again = encode_manifest_list(&list).unwrap();
                assert_eq!(decode_manifest_list(&again).unwrap(), list);
            } else {
                let entries = decode_manifest(&bytes).unwrap();
                let again = encode_manifest(&entries).unwrap();
                assert_eq!(decode_manifest(&again).unwrap(), entries);
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
                let java = weir_lake_format::DataFileMeta { ..file.clone() };
                let ours = weir_lake_format::DataFileMeta {
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
    for (database, name) in APPEND_TABLES.into_iter().chain([("golden", "pk_compact")]) {
        let problems = open(database, name).await.check().await.unwrap();
        assert!(problems.is_empty(), "{database}.{name}: {problems:#?}");
    }
}
