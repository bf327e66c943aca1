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
    let fields = vec![DataField::new(0, "id", "INT".parse().unwrap())];
    let options = BTreeMap::from([
        ("bucket".to_owned(), "2".to_owned()),
        ("bucket-key".to_owned(), "id".to_owned()),
    ]);
    let new = NewTable {
        fields,
        options,
        ..NewTable::default()
    };
    let schema = TableSchema::create(new, 1).unwrap();
    let table = Table::create(Arc::new(InMemory::new()), Path::from("t"), &schema)
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
        put(dir.join(entry.file.file_name.as_str()), b"PAR1".to_vec()).await;
    }
    let manifest = encode_manifest(&entries).unwrap();
    let size = i64::try_from(manifest.len()).unwrap();
    let meta = ManifestFileMeta::describe("m", size, &entries, &schema).unwrap();
    put(table.paths().manifest("m"), manifest).await;
    put(
        table.paths().manifest("base"),
        encode_manifest_list(&[]).unwrap(),
    )
    .await;
    put(
        table.paths().manifest("delta"),
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
