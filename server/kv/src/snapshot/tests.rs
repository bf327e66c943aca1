use object_store::memory::InMemory;
use tempfile::TempDir;
use weir_protocol::ids::{BucketId, LogOffset, SchemaId, TableBucket, TableId};

use super::*;
use crate::environment::{KvConfig, KvEnvironment};
use crate::pre_write_buffer::{FlushBatch, RowCountChange};
use crate::value::StoredValue;

const BUCKET: TableBucket = TableBucket {
    table: TableId(7),
    partition: None,
    bucket: BucketId(0),
};

struct World {
    local: TempDir,
    environment: KvEnvironment,
    remote: Arc<InMemory>,
    folder: SnapshotFolder,
}

impl World {
    fn new() -> Self {
        let remote = Arc::new(InMemory::new());
        let folder = SnapshotFolder::new(Arc::clone(&remote) as _, ObjectPath::from("kv/t-7/0"));
        Self {
            local: TempDir::new().unwrap(),
            environment: KvEnvironment::new(KvConfig::default(), Arc::new(|| 0)),
            remote,
            folder,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.local.path().join(name)
    }

    async fn open(&self, name: &str) -> KvStore {
        KvStore::open(&self.environment, &self.path(name), BUCKET)
            .await
            .unwrap()
    }

    async fn take(&self, store: &KvStore, id: u64, base: Option<&Snapshot>) -> Snapshot {
        let scratch = self.path("scratch");
        let taken = self.folder.take(store, id, base, &scratch).await.unwrap();
        assert!(!scratch.exists());
        taken
    }

    /// Overwrites an object of the remote folder.
    async fn damage(&self, name: &str, bytes: &[u8]) {
        let path = self.folder.path(name);
        self.remote
            .put(&path, Bytes::copy_from_slice(bytes).into())
            .await
            .unwrap();
    }
}

async fn fill(store: &KvStore, end: i64, from: i32, to: i32) {
    let put = |number: i32| {
        let row = Bytes::from(format!("row {number} at {end}"));
        let value = StoredValue {
            schema_id: SchemaId(1),
            row,
        };
        (
            Bytes::from(format!("{number:06}")),
            Some(value.encode().unwrap()),
        )
    };
    let batch = FlushBatch {
        end_offset: LogOffset(end),
        writes: (from..to).map(put).collect(),
        row_count: RowCountChange::By(i64::from(to - from)),
    };
    store.apply(Arc::new(batch)).await.unwrap();
}

async fn all(store: &KvStore) -> Vec<(Bytes, StoredValue)> {
    store.scan(Bytes::new(), usize::MAX).await.unwrap()
}

#[tokio::test]
async fn a_restored_store_is_the_one_the_snapshot_was_taken_of() {
    let world = World::new();
    let store = world.open("one").await;
    fill(&store, 5, 0, 1_000).await;
    let (position, rows) = (store.position().unwrap(), all(&store).await);
    let taken = world.take(&store, 1, None).await;
    fill(&store, 9, 1_000, 2_000).await;
    assert_eq!(taken.position(), position);
    let loaded = world.folder.load(1).await.unwrap();
    assert_eq!(loaded, taken);
    // What was in the directory is replaced.
    fs::create_dir_all(world.path("two")).unwrap();
    fs::write(world.path("two").join("000001.sst"), b"old").unwrap();
    world
        .folder
        .restore(&loaded, &world.path("two"))
        .await
        .unwrap();
    let restored = world.open("two").await;
    assert_eq!(restored.position().unwrap(), position);
    assert_eq!(all(&restored).await, rows);
    assert_eq!(store.position().unwrap().row_count, Some(2_000));
}

#[tokio::test]
async fn a_later_snapshot_sends_only_new_files_and_stands_without_the_earlier_document() {
    let world = World::new();
    let store = world.open("one").await;
    fill(&store, 5, 0, 20_000).await;
    let first = world.take(&store, 1, None).await;
    fill(&store, 6, 20_000, 20_010).await;
    let second = world.take(&store, 2, Some(&first)).await;
    assert!(second.sent_bytes * 4 < first.sent_bytes, "{second:?}");
    let shared = second
        .files
        .iter()
        .filter(|file| file.remote.starts_with("shared/1-"));
    assert_ne!(shared.count(), 0);
    world
        .folder
        .restore(&second, &world.path("two"))
        .await
        .unwrap();
    let restored = world.open("two").await;
    assert_eq!(restored.position().unwrap().row_count, Some(20_010));
    assert_eq!(all(&restored).await, all(&store).await);
}

#[tokio::test]
async fn a_file_of_the_same_name_with_other_bytes_is_sent_again() {
    let world = World::new();
    let store = world.open("one").await;
    fill(&store, 5, 0, 100).await;
    let first = world.take(&store, 1, None).await;
    // Another leader, restored from nothing: the same file numbers, other rows.
    let other = world.open("two").await;
    fill(&other, 6, 50, 150).await;
    let second = world.take(&other, 2, Some(&first)).await;
    world
        .folder
        .restore(&second, &world.path("three"))
        .await
        .unwrap();
    assert_eq!(all(&world.open("three").await).await, all(&other).await);
}

#[tokio::test]
async fn an_id_is_never_used_twice() {
    let world = World::new();
    let store = world.open("one").await;
    world.take(&store, 1, None).await;
    let again = world
        .folder
        .take(&store, 1, None, &world.path("scratch"))
        .await;
    let exists = object_store::Error::AlreadyExists {
        path: String::new(),
        source: "".into(),
    };
    match again {
        Err(Error::Remote { source, .. }) => {
            assert_eq!(
                std::mem::discriminant(&source),
                std::mem::discriminant(&exists)
            );
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_damaged_or_missing_file_is_named_and_the_directory_is_left_alone() {
    let world = World::new();
    let store = world.open("one").await;
    fill(&store, 5, 0, 100).await;
    let taken = world.take(&store, 1, None).await;
    let before = world.open("two").await;
    fill(&before, 1, 0, 1).await;
    before.close().await;
    let largest = taken
        .files
        .iter()
        .max_by_key(|file| file.size_bytes)
        .unwrap();
    let path = world.folder.path(&largest.remote);
    let mut bytes = world.folder.get(&largest.remote).await.unwrap().to_vec();
    bytes[10] ^= 1;
    world.damage(&largest.remote, &bytes).await;
    let flipped = world
        .folder
        .restore(&taken, &world.path("two"))
        .await
        .unwrap_err();
    world.damage(&largest.remote, &bytes[1..]).await;
    let shortened = world
        .folder
        .restore(&taken, &world.path("two"))
        .await
        .unwrap_err();
    for error in [flipped, shortened] {
        match error {
            Error::CorruptSnapshot { path: named, .. } => assert_eq!(named, path.to_string()),
            other => panic!("{other:?}"),
        }
    }
    world.remote.delete(&path).await.unwrap();
    match world.folder.restore(&taken, &world.path("two")).await {
        Err(Error::Remote { path: named, .. }) => assert_eq!(named, path.to_string()),
        other => panic!("{other:?}"),
    }
    assert_eq!(all(&world.open("two").await).await.len(), 1);
}

#[tokio::test]
async fn a_document_of_a_newer_release_or_with_a_path_for_a_name_is_refused() {
    let world = World::new();
    world
        .damage("snap-1/snapshot.json", br#"{"version": 2}"#)
        .await;
    let newer = world.folder.load(1).await;
    assert!(matches!(
        newer,
        Err(Error::NewerSnapshot {
            found: 2,
            supported: 1,
            ..
        })
    ));
    let store = world.open("one").await;
    let mut taken = world.take(&store, 2, None).await;
    taken.files[0].name = "../CURRENT".to_owned();
    world
        .damage("snap-3/snapshot.json", &taken.to_json().unwrap())
        .await;
    let outside = world.folder.load(3).await;
    assert!(matches!(outside, Err(Error::CorruptSnapshot { .. })));
    world.damage("snap-4/snapshot.json", b"{").await;
    assert!(matches!(
        world.folder.load(4).await,
        Err(Error::CorruptSnapshot { .. })
    ));
    assert!(matches!(
        world.folder.load(5).await,
        Err(Error::Remote { .. })
    ));
}
