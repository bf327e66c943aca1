use super::*;
use crate::commit::{CommitOutcome, CommitRequest, RetryPolicy};
use crate::data_file::DataFileMeta;
use crate::faulty_store::{Fault, FaultyStore};
use crate::partition::Partition;
use crate::schema::{NewTable, TableSchema};
use crate::snapshot::{BATCH_COMMIT_IDENTIFIER, CommitKind};
use crate::types::DataField;
use crate::write::CommitMessage;
use crate::{CheckDepth, Datum};
use object_store::ObjectStore;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Later than any object of a test.
const FUTURE_MS: i64 = 4_000_000_000_000;

fn schema() -> TableSchema {
    let table = NewTable {
        fields: vec![
            DataField::new(-1, "id", "BIGINT".parse().unwrap()),
            DataField::new(-1, "dt", "STRING".parse().unwrap()),
        ],
        partition_keys: vec!["dt".to_owned()],
        ..NewTable::default()
    };
    TableSchema::create(table, 0).unwrap()
}

fn own_files(snapshot: &Snapshot) -> Vec<Path> {
    let name = snapshot.property("beside");
    name.map(|name| Path::from(format!("t/weir/{name}")))
        .into_iter()
        .collect()
}

async fn table_in(store: Arc<dyn ObjectStore>) -> Table {
    Table::create(store, Path::from("t"), &schema())
        .await
        .unwrap()
}

/// A whole commit of one file; what names it is written last.
async fn commit(table: &Table, number: usize) {
    let partition = Partition::new(vec![Datum::String("a=b/c".into())], &schema()).unwrap();
    let name = format!("data-{number}.parquet");
    let dir = partition.path(&schema()).unwrap();
    let folder = table.paths().bucket_dir(None, &dir, 0).unwrap();
    let file = crate::paths::named(&folder, &name).unwrap();
    table.store().put(&file, "ten bytes.".into()).await.unwrap();
    let beside = format!("ranges-{number}.json");
    let ranges = table.paths().own_dir().join(beside.as_str());
    table.store().put(&ranges, "{}".into()).await.unwrap();
    let request = CommitRequest {
        commit_user: "us".to_owned(),
        commit_identifier: BATCH_COMMIT_IDENTIFIER,
        kind: CommitKind::Append,
        messages: vec![CommitMessage {
            partition,
            bucket: 0,
            total_buckets: -1,
            new_files: vec![DataFileMeta::append(name, 10, 3, 0)],
            changelog_files: Vec::new(),
        }],
        deletes: Vec::new(),
        properties: BTreeMap::from([("beside".to_owned(), beside)]),
        allow_empty: false,
        uuid: format!("u{number}"),
        now_ms: 7,
    };
    let mut free = |_: &crate::commit::BaseView<'_>| Ok(());
    let outcome = table.commit(&request, &mut free, RetryPolicy::default());
    assert!(matches!(
        outcome.await.unwrap(),
        CommitOutcome::Committed(_)
    ));
}

/// Names of files that were never named, each in a place of its own; and one in a place where
/// anything may be.
const STRAYS: [&str; 8] = [
    "t/manifest/manifest-lost-0",
    "t/manifest/manifest-list-lost-0",
    "t/index/index-lost-0",
    "t/statistics/stat-lost",
    "t/dt=x/bucket-0/data-lost.parquet",
    "t/snapshot/.snapshot-9.lost.tmp",
    "t/weir/ranges-lost.json",
    "t/weir/clock-lost",
];
const NOT_OURS: [&str; 7] = [
    "t/README",
    "t/schema/.schema-1.tmp",
    "t/tag/note",
    "t/_SUCCESS/x",
    "t/dt=x/notes.txt",
    "t/bucket-0/unpartitioned.parquet",
    "t/weir/expiring.json.bak",
];

async fn put_all(store: &dyn ObjectStore, paths: &[&str]) {
    for path in paths {
        store.put(&Path::from(*path), "x".into()).await.unwrap();
    }
    tick(store).await;
}

/// Writes until the store's clock shows another millisecond: what was written before is older then,
/// if only by that.
async fn tick(store: &dyn ObjectStore) {
    let probe = Path::from("probe");
    let mut first = None;
    loop {
        store.put(&probe, "".into()).await.unwrap();
        let now_ms = store
            .head(&probe)
            .await
            .unwrap()
            .last_modified
            .timestamp_millis();
        if now_ms > *first.get_or_insert(now_ms) {
            store.delete(&probe).await.unwrap();
            return;
        }
    }
}

fn request(older_than: Duration) -> OrphanRequest<'static> {
    OrphanRequest {
        older_than,
        now_ms: FUTURE_MS,
        uuid: "sweep",
        own_files: &own_files,
    }
}

fn paths_of(orphans: &[Orphan]) -> Vec<String> {
    orphans.iter().map(|o| o.path.to_string()).collect()
}

async fn objects(store: &dyn ObjectStore) -> Vec<String> {
    let objects: Vec<_> = store.list(None).try_collect().await.unwrap();
    objects.iter().map(|o| o.location.to_string()).collect()
}

#[tokio::test]
async fn only_what_nothing_names_is_swept() {
    let store = FaultyStore::new();
    let table = table_in(Arc::clone(&store) as Arc<dyn ObjectStore>).await;
    for number in 1..=3 {
        commit(&table, number).await;
    }
    let before = objects(store.sound().as_ref()).await;
    put_all(store.sound().as_ref(), &STRAYS).await;
    put_all(store.sound().as_ref(), &NOT_OURS).await;
    let found = table.find_orphans(&request(DEFAULT_AGE)).await.unwrap();
    let mut strays: Vec<_> = STRAYS.iter().map(|s| (*s).to_owned()).collect();
    strays.sort();
    assert_eq!(paths_of(&found), strays);
    // By the store's own clock none of them is a day old.
    let deleted = table.delete_orphans(&request(DEFAULT_AGE)).await.unwrap();
    assert_eq!(paths_of(&deleted), [""; 0]);
    let deleted = table
        .delete_orphans(&request(Duration::ZERO))
        .await
        .unwrap();
    assert_eq!(paths_of(&deleted), strays);
    let mut left = objects(store.sound().as_ref()).await;
    left.retain(|path| !NOT_OURS.contains(&path.as_str()));
    assert_eq!(left, before);
    let problems = table.check_to(CheckDepth::Metadata).await.unwrap();
    assert_eq!(problems, []);
}

#[tokio::test]
async fn files_of_tags_branches_and_changelogs_are_named() {
    let store = FaultyStore::new();
    let table = table_in(Arc::clone(&store) as Arc<dyn ObjectStore>).await;
    for number in 1..=4 {
        commit(&table, number).await;
    }
    let sound = store.sound();
    for (id, to) in [
        (1, "t/tag/tag-a"),
        (2, "t/branch/branch-b/tag/tag-a"),
        (3, "t/branch/branch-b/snapshot/snapshot-3"),
    ] {
        let from = table.paths().snapshot(id);
        sound.copy(&from, &Path::from(to)).await.unwrap();
        sound.delete(&from).await.unwrap();
    }
    tick(sound.as_ref()).await;
    let before = objects(sound.as_ref()).await;
    let deleted = table
        .delete_orphans(&request(Duration::ZERO))
        .await
        .unwrap();
    assert_eq!(paths_of(&deleted), [""; 0]);
    assert_eq!(objects(sound.as_ref()).await, before);
    // Each of them is needed.
    sound.delete(&Path::from("t/tag/tag-a")).await.unwrap();
    let found = table.find_orphans(&request(DEFAULT_AGE)).await.unwrap();
    // Its lists and its file of ours; its manifest is in the base of the others.
    assert_eq!(found.len(), 3, "{:?}", paths_of(&found));
}

#[tokio::test]
async fn nothing_is_deleted_if_anything_can_not_be_read() {
    for damaged in [
        "t/snapshot/snapshot-2",
        "t/manifest/manifest-list-u2-0",
        "t/manifest/manifest-u1-0",
        "t/tag/tag-a",
    ] {
        let store = FaultyStore::new();
        let table = table_in(Arc::clone(&store) as Arc<dyn ObjectStore>).await;
        for number in 1..=3 {
            commit(&table, number).await;
        }
        let sound = store.sound();
        put_all(sound.as_ref(), &STRAYS).await;
        put_all(sound.as_ref(), &[damaged]).await;
        let before = objects(sound.as_ref()).await;
        let error = table.delete_orphans(&request(Duration::ZERO)).await;
        let error = error.unwrap_err().to_string();
        assert!(error.contains(damaged), "{damaged}: {error}");
        assert_eq!(objects(sound.as_ref()).await, before);
        // Missing is no better than damaged, as long as something names it.
        if damaged.contains("manifest") {
            sound.delete(&Path::from(damaged)).await.unwrap();
            let before = objects(sound.as_ref()).await;
            table
                .delete_orphans(&request(Duration::ZERO))
                .await
                .unwrap_err();
            assert_eq!(objects(sound.as_ref()).await, before);
        }
    }
}

#[tokio::test]
async fn a_table_that_lost_its_snapshots_is_not_swept() {
    let store = FaultyStore::new().sound();
    let table = table_in(Arc::clone(&store) as Arc<dyn ObjectStore>).await;
    for number in 1..=2 {
        commit(&table, number).await;
    }
    for name in ["snapshot-1", "snapshot-2", "LATEST"] {
        let path = Path::from(format!("t/snapshot/{name}"));
        store.delete(&path).await.unwrap();
    }
    tick(store.as_ref()).await;
    let before = objects(store.as_ref()).await;
    let error = table.delete_orphans(&request(Duration::ZERO)).await;
    let error = error.unwrap_err().to_string();
    assert!(error.contains("no snapshot that could tell"), "{error}");
    assert_eq!(objects(store.as_ref()).await, before);
}

#[tokio::test]
async fn a_sweep_that_is_cut_short_has_deleted_orphans_only() {
    let mut cut = 0;
    loop {
        let store = FaultyStore::new();
        let table = table_in(Arc::clone(&store) as Arc<dyn ObjectStore>).await;
        for number in 1..=2 {
            commit(&table, number).await;
        }
        let sound = store.sound();
        let named = objects(sound.as_ref()).await;
        put_all(sound.as_ref(), &STRAYS).await;
        store.inject(move |number, _, _| (number >= cut).then_some(Fault::Before));
        let ended = table.delete_orphans(&request(Duration::ZERO)).await;
        store.inject(|_, _, _| None);
        let left = objects(sound.as_ref()).await;
        assert!(named.iter().all(|path| left.contains(path)), "cut at {cut}");
        if ended.is_ok() {
            assert!(cut > 10, "{cut}");
            return;
        }
        cut += 1;
    }
}

/// Between its listing of candidates and its look at what is named, and between all its other
/// calls, whole commits go on.
#[tokio::test]
async fn fc_065_commits_during_the_sweep_lose_no_file() {
    let store = FaultyStore::new();
    let table = table_in(Arc::clone(&store) as Arc<dyn ObjectStore>).await;
    for number in 1..=3 {
        commit(&table, number).await;
    }
    put_all(store.sound().as_ref(), &STRAYS).await;
    let quiet = Table::open(store.sound(), Path::from("t")).await.unwrap();
    let committed = Arc::new(AtomicUsize::new(3));
    let counter = Arc::clone(&committed);
    store.inject(move |_, _, _| {
        let number = counter.fetch_add(1, Ordering::Relaxed) + 1;
        if number <= 40 {
            futures::executor::block_on(commit(&quiet, number));
        }
        None
    });
    let deleted = table
        .delete_orphans(&request(Duration::ZERO))
        .await
        .unwrap();
    let mut strays: Vec<_> = STRAYS.iter().map(|s| (*s).to_owned()).collect();
    strays.sort();
    assert_eq!(paths_of(&deleted), strays);
    assert!(committed.load(Ordering::Relaxed) > 20);
    store.inject(|_, _, _| None);
    let problems = table.check_to(CheckDepth::Metadata).await.unwrap();
    assert_eq!(problems, []);
}
