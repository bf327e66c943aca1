//! The files of a lake table: any bytes in the place of any of them.

use std::collections::BTreeMap;
use std::path::Path as FilePath;
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use futures::TryStreamExt;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutPayload};
use tokio::runtime::Runtime;
use weir_lake_format::{
    BinaryRow, DataType, Filter, Partition, Snapshot, Table, TableSchema, canonical_json,
    decode_manifest, decode_manifest_list, encode_manifest, encode_manifest_list,
};

use crate::golden;
use crate::target::Target;

const WAREHOUSE: &str = "lake-format/tests/golden/warehouse";

/// The files of tables of other writers, by path below the warehouse.
static TABLES: LazyLock<Vec<BTreeMap<String, Bytes>>> = LazyLock::new(|| {
    [
        "golden.db/append_alltypes",
        "golden.db/evolved_append",
        "g.db/part",
    ]
    .map(read_table)
    .to_vec()
});

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .max_blocking_threads(1)
        .build()
        .expect("threads can be made")
});

pub(crate) fn targets() -> Vec<Target> {
    vec![
        Target {
            name: "manifest",
            run: manifest,
            seeds: || of_tables("manifest-", false),
        },
        Target {
            name: "manifest_list",
            run: manifest_list,
            seeds: || of_tables("manifest-list-", true),
        },
        Target {
            name: "snapshot",
            run: snapshot,
            seeds: || of_tables("snapshot-", true),
        },
        Target {
            name: "lake_schema",
            run: schema,
            seeds: || of_tables("schema-", true),
        },
        Target {
            name: "lake_row",
            run: row,
            seeds: rows,
        },
        Target {
            name: "lake_type",
            run: data_type,
            seeds: types,
        },
        Target {
            name: "data_file",
            run: data_file,
            seeds: || of_tables("data-", true),
        },
        Target {
            name: "lake_flip",
            run: lake_flip,
            seeds: || {
                (0..40)
                    .map(|file| vec![file % 3, file, 0, 200, 1])
                    .collect()
            },
        },
    ]
}

fn read_table(name: &str) -> BTreeMap<String, Bytes> {
    fn walk(root: &FilePath, folder: &FilePath, files: &mut BTreeMap<String, Bytes>) {
        for entry in std::fs::read_dir(folder).expect("the golden tables are in the checkout") {
            let path = entry.expect("a folder can be listed").path();
            if path.is_dir() {
                walk(root, &path, files);
            } else {
                let name = path
                    .strip_prefix(root)
                    .expect("it lies below")
                    .to_string_lossy()
                    .into_owned();
                files.insert(
                    name,
                    std::fs::read(&path)
                        .expect("a golden file is readable")
                        .into(),
                );
            }
        }
    }
    let root = golden::folder(WAREHOUSE).join(name);
    let mut files = BTreeMap::new();
    walk(&root, &root, &mut files);
    files
}

fn of_tables(prefix: &str, lists: bool) -> Vec<Vec<u8>> {
    golden::files(WAREHOUSE, |name| {
        name.starts_with(prefix) && (lists || !name.starts_with("manifest-list"))
    })
}

fn manifest(data: &[u8]) {
    if let Ok(entries) = decode_manifest(data)
        && let Ok(bytes) = encode_manifest(&entries)
    {
        assert_eq!(
            decode_manifest(&bytes).expect("what was written is readable"),
            entries
        );
    }
}

fn manifest_list(data: &[u8]) {
    if let Ok(files) = decode_manifest_list(data)
        && let Ok(bytes) = encode_manifest_list(&files)
    {
        assert_eq!(
            decode_manifest_list(&bytes).expect("what was written is readable"),
            files
        );
    }
}

fn snapshot(data: &[u8]) {
    if let Ok(snapshot) = Snapshot::from_json(data) {
        let again = Snapshot::from_json(&snapshot.to_json().expect("writable"));
        assert_eq!(again.expect("what was written is readable"), snapshot);
    }
}

fn schema(data: &[u8]) {
    if let Ok(schema) = TableSchema::from_json(data) {
        let again = TableSchema::from_json(&schema.to_json().expect("writable"));
        assert_eq!(again.expect("what was written is readable"), schema);
        let _arrow = schema.arrow_schema();
    }
}

fn golden_schema() -> TableSchema {
    let schema = TABLES
        .first()
        .and_then(|files| files.get("schema/schema-0"));
    TableSchema::from_json(schema.expect("the table has a schema")).expect("a right schema")
}

fn rows() -> Vec<Vec<u8>> {
    let files = of_tables("manifest-", false);
    let entries = files
        .iter()
        .filter_map(|file| decode_manifest(file).ok())
        .flatten();
    let mut rows: Vec<Vec<u8>> = Vec::new();
    for entry in entries {
        rows.push(entry.partition.clone());
        rows.push(entry.file.value_stats.min.clone());
        rows.push(entry.file.value_stats.max.clone());
    }
    rows
}

/// A row of all types, and the same bytes as a partition.
fn row(data: &[u8]) {
    let schema = golden_schema();
    let types: Vec<&DataType> = schema.fields.iter().map(|field| &field.data_type).collect();
    if let Ok(row) = BinaryRow::from_serialized(data) {
        assert_eq!(row.to_serialized(), data);
        for count in [1, 3, types.len()] {
            let part = types.get(..count).unwrap_or_default();
            if let Ok(values) = row.decode(part.iter().copied()) {
                let again = BinaryRow::encode(&values, part.iter().copied());
                let again = again.and_then(|row| row.decode(part.iter().copied()));
                if let Ok(again) = again {
                    assert_eq!(format!("{again:?}"), format!("{values:?}"));
                }
            }
        }
    }
    let partitioned = TABLES.get(2).and_then(|files| files.get("schema/schema-0"));
    let partitioned =
        TableSchema::from_json(partitioned.expect("a schema")).expect("a right schema");
    if let Ok(partition) = Partition::from_bytes(data, &partitioned) {
        let _shown = (
            partition.path(&partitioned),
            partition.describe(&partitioned),
        );
    }
}

fn types() -> Vec<Vec<u8>> {
    let texts = [
        "INT",
        "DECIMAL(10, 2) NOT NULL",
        "TIMESTAMP(9) WITH LOCAL TIME ZONE",
        "ARRAY<INT>",
        "MAP<STRING NOT NULL, ROW<`a` INT>>",
        "VARCHAR(10)",
        "CHAR(3)",
    ];
    texts.map(|text| text.as_bytes().to_vec()).to_vec()
}

fn data_type(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(data_type) = text.parse::<DataType>()
    {
        let again: DataType = data_type
            .to_string()
            .parse()
            .expect("what was written is readable");
        assert_eq!(again, data_type);
    }
}

/// Other bytes in the place of the data files of a table of all types.
fn data_file(data: &[u8]) {
    let mut files = TABLES.first().expect("there are tables").clone();
    for (name, bytes) in &mut files {
        if name.contains("/data-") {
            *bytes = Bytes::copy_from_slice(data);
        }
    }
    RUNTIME.block_on(read(&files));
}

/// The first byte chooses the table, the second the file; then 3 bytes a flip, a position and a mask.
fn lake_flip(data: &[u8]) {
    let [table, file, flips @ ..] = data else {
        return;
    };
    let mut files = TABLES[usize::from(*table) % TABLES.len()].clone();
    let count = files.len();
    if let Some((_, content)) = files.iter_mut().nth(usize::from(*file) % count) {
        let mut bytes = content.to_vec();
        for flip in flips.chunks_exact(3) {
            let position = usize::from(flip[0]) << 8 | usize::from(flip[1]);
            if let Some(last) = bytes.len().checked_sub(1) {
                bytes[position % (last + 1)] ^= flip[2];
            }
        }
        *content = bytes.into();
    }
    RUNTIME.block_on(read(&files));
}

/// Opens, checks and reads a table; errors are right, panics are not.
async fn read(files: &BTreeMap<String, Bytes>) {
    let store = Arc::new(InMemory::new());
    for (name, bytes) in files {
        let path = Path::from(format!("t/{name}"));
        store
            .put(&path, PutPayload::from(bytes.clone()))
            .await
            .expect("memory takes it");
    }
    let Ok(table) = Table::open(store, Path::from("t")).await else {
        return;
    };
    let _problems = table.check().await;
    let Ok(Some(snapshot)) = table.latest_snapshot().await else {
        return;
    };
    let Ok(splits) = table.plan(&snapshot, &Filter::default()).await else {
        return;
    };
    let Ok(schema) = table.latest_schema().await else {
        return;
    };
    for split in &splits {
        let Ok(mut batches) = table.read_split(split, None).await else {
            continue;
        };
        while let Ok(Some(batch)) = batches.try_next().await {
            let _rows = canonical_json::rows(&batch, &schema.fields);
        }
    }
}
