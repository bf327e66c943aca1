use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutPayload};

use super::*;
use crate::manifest::encode_manifest;
use crate::manifest_list::encode_manifest_list;
use crate::schema::NewTable;
use crate::snapshot::CommitKind;
use crate::types::DataField;

/// A table whose one snapshot adds `entries`; the data files are of 4 bytes.
async fn table_of(entries: Vec<ManifestEntry>, total: i64) -> Table {
    table_with(entries, total, b"PAR1".to_vec()).await
}

/// A schema of the column `id`, by which rows find one of 2 buckets.
fn schema_of(data_type: &str, options: &[(&str, &str)]) -> TableSchema {
    let all = [("bucket", "2"), ("bucket-key", "id")];
    let options = all.iter().chain(options);
    let options = options.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let new = NewTable {
        fields: vec![DataField::new(0, "id", data_type.parse().unwrap())],
        options: options.collect(),
        ..NewTable::default()
    };
    TableSchema::create(new, 1).unwrap()
}

/// A table whose one snapshot adds `entries`, all with the same bytes.
async fn table_with(entries: Vec<ManifestEntry>, total: i64, data: Vec<u8>) -> Table {
    table_as(&schema_of("INT", &[]), entries, total, data).await
}

async fn table_as(
    schema: &TableSchema,
    entries: Vec<ManifestEntry>,
    total: i64,
    data: Vec<u8>,
) -> Table {
    // A name that `Path::from` would spell otherwise.
    let root = Path::parse("t~").unwrap();
    let table = Table::create(Arc::new(InMemory::new()), root, schema)
        .await
        .unwrap();
    let put = async |path: Path, bytes: Vec<u8>| {
        table
            .store()
            .put(&path, PutPayload::from(bytes))
            .await
            .unwrap();
    };
    for entry in &entries {
        let dir = table.paths().bucket_dir(None, "", entry.bucket).unwrap();
        put(named(&dir, &entry.file.file_name).unwrap(), data.clone()).await;
    }
    let manifest = encode_manifest(&entries).unwrap();
    let size = i64::try_from(manifest.len()).unwrap();
    let meta = ManifestFileMeta::describe("m", size, &entries, schema).unwrap();
    put(table.paths().manifest("m").unwrap(), manifest).await;
    put(
        table.paths().manifest("base").unwrap(),
        encode_manifest_list(&[]).unwrap(),
    )
    .await;
    put(
        table.paths().manifest("delta").unwrap(),
        encode_manifest_list(&[meta]).unwrap(),
    )
    .await;
    let snapshot = Snapshot {
        version: 3,
        id: 1,
        schema_id: 0,
        base_manifest_list: "base".to_owned(),
        base_manifest_list_size: None,
        delta_manifest_list: "delta".to_owned(),
        delta_manifest_list_size: None,
        changelog_manifest_list: None,
        changelog_manifest_list_size: None,
        index_manifest: None,
        commit_user: "u".to_owned(),
        commit_identifier: 1,
        commit_kind: CommitKind::Append,
        time_millis: 1,
        total_record_count: total,
        delta_record_count: total,
        changelog_record_count: None,
        watermark: None,
        statistics: None,
        properties: None,
        next_row_id: None,
    };
    put(table.paths().snapshot(1), snapshot.to_json().unwrap()).await;
    table
}

fn entry(name: &str, bucket: i32, total_buckets: i32) -> ManifestEntry {
    ManifestEntry {
        kind: FileKind::Add,
        partition: crate::BinaryRow::empty().to_serialized(),
        bucket,
        total_buckets,
        file: DataFileMeta::append(format!("{name}.parquet"), 4, 5, 0),
    }
}

async fn problems(entries: Vec<ManifestEntry>, total: i64) -> Vec<String> {
    let table = table_of(entries, total).await;
    let found = table.check_to(CheckDepth::Metadata).await.unwrap();
    found.iter().map(ToString::to_string).collect()
}

#[tokio::test]
async fn a_sound_table_has_no_problem() {
    assert_eq!(
        problems(vec![entry("a", 0, 2), entry("b", 1, 2)], 10).await,
        [""; 0]
    );
}

#[tokio::test]
async fn each_fault_is_named() {
    let removed = ManifestEntry {
        kind: FileKind::Delete,
        ..entry("gone", 0, 2)
    };
    let longer = DataFileMeta {
        file_size: 5,
        ..entry("a", 0, 2).file
    };
    let longer = ManifestEntry {
        file: longer,
        ..entry("a", 0, 2)
    };
    let faults = [
        (
            vec![entry("a", 0, 2)],
            6,
            "5 rows in its files where 6 are stated",
        ),
        (
            vec![entry("a", 0, 2), entry("a", 0, 2)],
            10,
            "`a.parquet` is added though it is live",
        ),
        (
            vec![removed],
            -5,
            "`gone.parquet` is removed though it is not live",
        ),
        (
            vec![entry("a", 0, 2), entry("b", 1, 3)],
            10,
            "written under 3 buckets",
        ),
        (vec![entry("a", 2, 2)], 5, "in bucket 2 of 2"),
        (vec![longer], 5, "4 bytes where 5 are stated"),
    ];
    for (entries, total, reason) in faults {
        let found = problems(entries, total).await;
        assert!(
            found.iter().any(|problem| problem.contains(reason)),
            "{reason}: {found:?}"
        );
    }
}

#[tokio::test]
async fn keys_that_overlap_on_a_level_are_named() {
    let mut schema = schema_of("INT NOT NULL", &[]);
    schema.primary_keys = vec!["id".to_owned()];
    let keyed = |name: &str, (min, max): (i32, i32), level: i32| {
        let key = |value: i32| {
            let row = crate::BinaryRow::encode(&[crate::Datum::Int(value)], schema.types());
            row.unwrap().to_serialized()
        };
        let mut entry = entry(name, 0, 2);
        (entry.file.min_key, entry.file.max_key) = (key(min), key(max));
        entry.file.level = level;
        entry
    };
    for (levels, overlaps) in [([1, 1], true), ([0, 0], false), ([1, 2], false)] {
        let entries = vec![keyed("a", (1, 5), levels[0]), keyed("b", (5, 9), levels[1])];
        let table = table_as(&schema, entries, 10, b"PAR1".to_vec()).await;
        let found = table.check_to(CheckDepth::Metadata).await.unwrap();
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        let is_found = found.iter().any(|problem| problem.contains("overlap"));
        assert_eq!(is_found, overlaps, "{levels:?}: {found:?}");
    }
}

#[tokio::test]
async fn files_beside_a_data_file_are_looked_for_where_it_is() {
    let with_index = || {
        let mut entry = entry("a", 0, 2);
        entry.file.extra_files = vec!["a.index".to_owned()];
        entry
    };
    let table = table_of(vec![with_index()], 5).await;
    let absent = table.check_to(CheckDepth::Metadata).await.unwrap();
    assert_eq!(absent.len(), 1, "{absent:?}");
    assert_eq!(absent[0].object, "t~/bucket-0/a.index");
    let path = Path::parse("t~/bucket-0/a.index").unwrap();
    table.store().put(&path, "x".into()).await.unwrap();
    let found = table.check_to(CheckDepth::Metadata).await.unwrap();
    assert!(found.is_empty(), "{found:?}");
}

#[tokio::test]
async fn an_absent_file_is_a_problem_and_a_damaged_one_too() {
    let table = table_of(vec![entry("a", 0, 2)], 5).await;
    let damaged = table.check().await.unwrap();
    assert_eq!(damaged.len(), 1, "{damaged:?}");
    let path = table
        .paths()
        .bucket_dir(None, "", 0)
        .unwrap()
        .join("a.parquet");
    table.store().delete(&path).await.unwrap();
    let absent = table.check().await.unwrap();
    assert!(
        absent[0].to_string().contains("does not exist"),
        "{absent:?}"
    );
}

/// A Parquet file of the column `id`.
fn parquet_of(ids: &[i32]) -> Vec<u8> {
    let array: arrow::array::ArrayRef = Arc::new(arrow::array::Int32Array::from(ids.to_vec()));
    let batch = arrow::array::RecordBatch::try_from_iter([("id", array)]).unwrap();
    let mut file = Vec::new();
    let mut writer = parquet::arrow::ArrowWriter::try_new(&mut file, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    file
}

/// The bucket of an `id` in 2 buckets.
fn bucket_of_id(id: i32) -> i32 {
    let types = [crate::TypeKind::Int.nullable()];
    let key = crate::BinaryRow::encode(&[crate::Datum::Int(id)], types.iter()).unwrap();
    crate::bucket::bucket_of_key(&key, 2).unwrap()
}

/// What a check finds of a file of `ids` in bucket 0 with these statistics.
async fn problems_of_rows(ids: &[i32], min: i32, max: i32, null_count: i64) -> Vec<String> {
    let data = parquet_of(ids);
    let stats = crate::ColumnStats {
        min: crate::Datum::Int(min),
        max: crate::Datum::Int(max),
        null_count: Some(null_count),
    };
    let types = [crate::TypeKind::Int.nullable()];
    let file = DataFileMeta {
        value_stats: crate::SimpleStats::encode(&[stats], types.iter()).unwrap(),
        value_stats_cols: None,
        ..DataFileMeta::append(
            "a.parquet",
            i64::try_from(data.len()).unwrap(),
            i64::try_from(ids.len()).unwrap(),
            0,
        )
    };
    let entry = ManifestEntry {
        file,
        ..entry("a", 0, 2)
    };
    let total = entry.file.row_count;
    let table = table_with(vec![entry], total, data).await;
    table
        .check()
        .await
        .unwrap()
        .iter()
        .map(ToString::to_string)
        .collect()
}

#[tokio::test]
async fn wrong_statistics_and_misplaced_rows_are_found() {
    let of_bucket_0: Vec<i32> = (0..100)
        .filter(|id| bucket_of_id(*id) == 0)
        .take(3)
        .collect();
    let [low, _, high] = of_bucket_0[..] else {
        panic!()
    };
    assert_eq!(problems_of_rows(&of_bucket_0, low, high, 0).await, [""; 0]);
    assert_eq!(
        problems_of_rows(&of_bucket_0, low - 9, high + 9, 0).await,
        [""; 0]
    );
    let other = (0..100).find(|id| bucket_of_id(*id) == 1).unwrap();
    let faults = [
        (
            problems_of_rows(&of_bucket_0, low + 1, high, 0).await,
            "the lowest value is",
        ),
        (
            problems_of_rows(&of_bucket_0, low, high - 1, 0).await,
            "the highest value is",
        ),
        (
            problems_of_rows(&of_bucket_0, low, high, 1).await,
            "0 nulls where 1 are stated",
        ),
        (
            problems_of_rows(&[other], other, other, 0).await,
            "belongs to bucket 1",
        ),
    ];
    for (found, reason) in faults {
        assert!(
            found.len() == 1 && found[0].contains(reason),
            "{reason}: {found:?}"
        );
    }
}

#[tokio::test]
async fn a_file_with_other_rows_than_stated_is_found() {
    let data = parquet_of(&[1, 2]);
    let file_size = i64::try_from(data.len()).unwrap();
    let file = DataFileMeta {
        file_size,
        ..entry("a", 0, 2).file
    };
    let table = table_with(
        vec![ManifestEntry {
            file,
            ..entry("a", 0, 2)
        }],
        5,
        data,
    )
    .await;
    let found = table.check().await.unwrap();
    assert!(
        found[0]
            .to_string()
            .contains("2 rows where its manifest says 5"),
        "{found:?}"
    );
}

#[tokio::test]
async fn a_file_whose_rows_cannot_be_judged_hides_no_other() {
    // The function `mod` knows no text.
    let schema = schema_of("STRING", &[("bucket-function.type", "mod")]);
    let array: arrow::array::ArrayRef = Arc::new(arrow::array::StringArray::from(vec!["x"]));
    let batch = arrow::array::RecordBatch::try_from_iter([("id", array)]).unwrap();
    let mut data = Vec::new();
    let mut writer = parquet::arrow::ArrowWriter::try_new(&mut data, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let of = |name: &str| {
        let file_size = i64::try_from(data.len()).unwrap();
        ManifestEntry {
            file: DataFileMeta::append(format!("{name}.parquet"), file_size, 1, 0),
            ..entry(name, 0, 2)
        }
    };
    let table = table_as(&schema, vec![of("a"), of("b")], 2, data.clone()).await;
    let found = table.check().await.unwrap();
    let objects: Vec<_> = found
        .iter()
        .map(|problem| problem.object.as_str())
        .collect();
    assert_eq!(
        objects,
        ["t~/bucket-0/a.parquet", "t~/bucket-0/b.parquet"],
        "{found:?}"
    );
}

#[tokio::test]
async fn rows_are_placed_by_the_function_that_the_table_names() {
    let schema = schema_of("INT", &[("bucket-function.type", "mod")]);
    for (ids, misplaced) in [(vec![2, 4], 0), (vec![2, 3], 1)] {
        let data = parquet_of(&ids);
        let file_size = i64::try_from(data.len()).unwrap();
        let file = ManifestEntry {
            file: DataFileMeta::append("a.parquet", file_size, 2, 0),
            ..entry("a", 0, 2)
        };
        let table = table_as(&schema, vec![file], 2, data).await;
        let found = table.check().await.unwrap();
        assert_eq!(found.len(), misplaced, "{found:?}");
    }
}

#[tokio::test]
async fn a_table_that_lost_its_snapshots_is_not_well() {
    let table = table_of(vec![entry("a", 0, 2)], 5).await;
    let snapshot = table.paths().snapshot(1);
    table.store().delete(&snapshot).await.unwrap();
    let found = table.check_to(CheckDepth::Metadata).await.unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].object.starts_with("t~/manifest/"), "{found:?}");
    let text = found[0].to_string();
    assert!(text.contains("its snapshots were lost"), "{text}");
}
