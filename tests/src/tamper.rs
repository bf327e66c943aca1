//! A copy of a lake on which things go wrong on purpose.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use futures::TryStreamExt;
use tempfile::TempDir;
use weir_lake_format::{
    DataFileMeta, DataFileWriter, ManifestEntry, Partition, Snapshot, Split, Table, WriteTarget,
    WriterOptions, encode_manifest,
};
use weir_protocol::ids::TablePath;
use weir_tiering::ranges::{self, BucketRange, RangesProperty};

use crate::cluster::lake_table;

/// The property of a snapshot that says which offsets it added.
const RANGES: &str = "weir-ranges";

/// One table of a lake that was copied elsewhere.
#[derive(Debug)]
pub struct Tampered {
    dir: TempDir,
    /// The copied table.
    pub table: Table,
    folder: PathBuf,
}

impl Tampered {
    /// Copies the lake at `warehouse`.
    pub async fn copy(warehouse: &Path, path: &TablePath) -> Self {
        let dir = TempDir::new().expect("a folder for the copy");
        copy_folder(warehouse, dir.path());
        let table = lake_table(dir.path(), path).await;
        let folder = dir
            .path()
            .join(format!("{}.db", path.database))
            .join(&path.table);
        Self { dir, table, folder }
    }

    /// The root of the copied lake.
    pub fn warehouse(&self) -> &Path {
        self.dir.path()
    }

    /// Snapshot `id`.
    pub async fn snapshot(&self, id: i64) -> Snapshot {
        self.table
            .snapshot(id)
            .await
            .expect("the snapshot is there")
    }

    /// Rewrites what the commit of snapshot `id` changed, in its one manifest file.
    pub async fn edit_manifest(&self, id: i64, edit: impl FnOnce(&mut Vec<ManifestEntry>)) {
        let snapshot = self.snapshot(id).await;
        let list = self
            .table
            .read_manifest_list(&snapshot.delta_manifest_list)
            .await;
        let list = list.expect("the list is there");
        assert_eq!(list.len(), 1, "a commit of a test makes one manifest");
        let name = &list[0].file_name;
        let mut entries = self
            .table
            .read_manifest(name)
            .await
            .expect("the manifest is there");
        edit(&mut entries);
        let bytes = encode_manifest(&entries).expect("a manifest");
        fs::write(self.folder.join("manifest").join(name), bytes).expect("the copy is ours");
    }

    /// Rewrites the ranges of snapshot `id`.
    pub async fn edit_ranges(&self, id: i64, edit: impl FnOnce(&mut Vec<BucketRange>)) {
        let mut snapshot = self.snapshot(id).await;
        let text = snapshot
            .property(RANGES)
            .expect("a snapshot of the daemon has ranges");
        let RangesProperty::Inline(mut ranges) = ranges::parse(text).expect("ranges") else {
            panic!("the ranges of a small table stand in the snapshot")
        };
        edit(&mut ranges);
        let properties = snapshot.properties.get_or_insert_default();
        properties.insert(RANGES.to_owned(), ranges::to_text(&ranges));
        let bytes = snapshot.to_json().expect("a snapshot");
        let name = format!("snapshot-{id}");
        fs::write(self.folder.join("snapshot").join(name), bytes).expect("the copy is ours");
    }

    /// The rows of the file of an entry.
    pub async fn read(&self, entry: &ManifestEntry) -> RecordBatch {
        let schema = self.table.latest_schema().await.expect("a schema");
        let split = Split {
            partition: Partition::from_bytes(&entry.partition, &schema).expect("a partition"),
            bucket: entry.bucket,
            total_buckets: entry.total_buckets,
            files: vec![entry.file.clone()],
            deletions: BTreeMap::new(),
        };
        let stream = self
            .table
            .read_split(&split, None)
            .await
            .expect("the file is there");
        let batches: Vec<RecordBatch> = stream.try_collect().await.expect("the file can be read");
        concat_batches(&schema.arrow_schema(), &batches).expect("batches of one file")
    }

    /// Writes rows as a file of the entry's partition and bucket; what the manifest says of it.
    pub async fn write(&self, entry: &ManifestEntry, rows: RecordBatch) -> DataFileMeta {
        let schema = self.table.latest_schema().await.expect("a schema");
        let uuid = format!("tampered-{}", entry.file.file_name.replace(['.', '/'], "-"));
        let options = WriterOptions::new(&schema, uuid, 0).expect("options");
        let target = WriteTarget {
            partition: Partition::from_bytes(&entry.partition, &schema).expect("a partition"),
            schema: Arc::new(schema),
            bucket: entry.bucket,
            total_buckets: entry.total_buckets,
            first_sequence_number: entry.file.min_sequence_number,
        };
        let (store, root) = (Arc::clone(self.table.store()), self.table.root().clone());
        let mut writer = DataFileWriter::new(target, options, store, root).expect("a writer");
        writer.write(rows).await.expect("the rows are the table's");
        let mut files = writer.finish().await.expect("the copy is ours").new_files;
        files.pop().expect("few rows make one file")
    }
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("the copy is ours");
    for entry in fs::read_dir(from).expect("the lake is there") {
        let entry = entry.expect("the lake is there");
        let target = to.join(entry.file_name());
        if entry.file_type().expect("a type").is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("the copy is ours");
        }
    }
}
