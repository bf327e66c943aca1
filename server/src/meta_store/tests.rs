//! The laws on RocksDB, across crashes, and what it refuses to open.

use std::fs;
use std::path::PathBuf;

use futures::StreamExt;
use tempfile::TempDir;
use weir_catalog::store::{Expect, WatchEvent, conformance};
use weir_protocol::ids::TablePath;

use super::*;

fn folder() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data/meta");
    (folder, path)
}

fn open(path: &Path) -> RocksMetadataStore {
    RocksMetadataStore::open(path).unwrap()
}

/// What the disk would hold if the process was killed now.
fn killed(path: &Path, to: &Path) -> PathBuf {
    fs::create_dir_all(to).unwrap();
    for file in fs::read_dir(path).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
    to.to_owned()
}

fn producer(name: &str) -> Key {
    Key::producer(name).unwrap()
}

async fn put(store: &RocksMetadataStore, name: &str, value: String) -> Revision {
    let txn = Txn::new(None).put(producer(name), value, Expect::Any);
    store.commit(txn).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rocksdb_store_keeps_the_laws() {
    let (_folder, path) = folder();
    let store = open(&path);
    conformance::all(&store).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_laws_hold_across_a_restart_and_a_kill() {
    let (folder, path) = folder();
    let store = open(&path);
    let before = conformance::before_reopen(&store).await.unwrap();
    drop(store);
    conformance::after_reopen(&open(&path), before)
        .await
        .unwrap();
    let store = open(&path);
    let before = conformance::before_reopen(&store).await.unwrap();
    let copy = killed(&path, &folder.path().join("copy"));
    conformance::after_reopen(&open(&copy), before)
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_torn_tail_loses_only_the_last_transactions_and_each_as_a_whole() {
    let (folder, path) = folder();
    let store = open(&path);
    let mut revisions = Vec::new();
    for n in 0..30 {
        let txn = Txn::new(None)
            .put(producer("a"), n.to_string(), Expect::Any)
            .put(producer("b"), n.to_string(), Expect::Any);
        revisions.push(store.commit(txn).await.unwrap());
    }
    let copy = killed(&path, &folder.path().join("copy"));
    let wal = fs::read_dir(&copy)
        .unwrap()
        .map(|file| file.unwrap().path());
    let wal = wal.filter(|path| path.extension().is_some_and(|found| found == "log"));
    let wal = wal
        .max_by_key(|path| fs::metadata(path).unwrap().len())
        .unwrap();
    let name = wal.file_name().unwrap().to_owned();
    let bytes = fs::read(&wal).unwrap();
    for (round, cut) in (1..bytes.len().min(1_500)).step_by(97).enumerate() {
        let torn = killed(&copy, &folder.path().join(format!("torn-{round}")));
        fs::write(torn.join(&name), &bytes[..bytes.len() - cut]).unwrap();
        let store = open(&torn);
        let entries = store
            .get_many(&[producer("a"), producer("b")])
            .await
            .unwrap();
        let values: Vec<_> = entries.iter().flatten().map(|entry| &entry.value).collect();
        assert!(matches!(values.as_slice(), [] | [_, _]) && values.first() == values.last());
        let last = entries[0].as_ref().map(|entry| entry.modified);
        assert!(last.is_none_or(|last| revisions.contains(&last)));
        let next = put(&store, "c", "new".to_owned()).await;
        assert!(last.is_none_or(|last| next.id() > last.id()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_before_the_tail_is_refused() {
    let (folder, path) = folder();
    let store = open(&path);
    for n in 0..50 {
        put(&store, "a", "x".repeat(500 + n)).await;
    }
    let copy = killed(&path, &folder.path().join("copy"));
    drop(store);
    let wal = fs::read_dir(&copy)
        .unwrap()
        .map(|file| file.unwrap().path());
    let wal = wal.filter(|path| path.extension().is_some_and(|found| found == "log"));
    let wal = wal
        .max_by_key(|path| fs::metadata(path).unwrap().len())
        .unwrap();
    let mut bytes = fs::read(&wal).unwrap();
    bytes[5_000] ^= 1;
    fs::write(&wal, bytes).unwrap();
    let opened = RocksMetadataStore::open(&copy);
    assert!(matches!(opened, Err(Error::Corrupt { .. })), "{opened:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_open_is_held() {
    let (_folder, path) = folder();
    let store = open(&path);
    let second = RocksMetadataStore::open(&path).unwrap_err();
    assert!(
        matches!(second, Error::HeldByAnotherProcess { .. }),
        "{second}"
    );
    assert!(
        second.to_string().ends_with("held by another process"),
        "{second}"
    );
    put(&store, "a", "still works".to_owned()).await;
    drop(store);
    open(&path);
}

#[test]
fn a_newer_format_and_a_folder_that_is_not_ours_are_refused() {
    let (_folder, path) = folder();
    drop(open(&path));
    fs::write(path.join("format"), "2\n").unwrap();
    let refused = RocksMetadataStore::open(&path).unwrap_err();
    assert!(
        matches!(
            refused,
            Error::NewerFormat {
                found: 2,
                supported: 1,
                ..
            }
        ),
        "{refused}"
    );
    fs::write(path.join("format"), "").unwrap();
    let refused = RocksMetadataStore::open(&path).unwrap_err();
    assert!(matches!(refused, Error::Corrupt { .. }), "{refused}");
    fs::write(path.join("format"), "1\n").unwrap();
    drop(open(&path));
    fs::remove_file(path.join("CURRENT")).unwrap();
    let refused = RocksMetadataStore::open(&path).unwrap_err();
    assert!(
        matches!(refused, Error::Corrupt { .. } | Error::Open { .. }),
        "{refused}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn transactions_of_one_group_see_each_other() {
    let (_folder, path) = folder();
    let store = open(&path);
    let key = producer("counter");
    put(&store, "counter", "0".to_owned()).await;
    // Many read-modify-writes at once: each conflict is one that another's success explains.
    let mut takers = tokio::task::JoinSet::new();
    for _ in 0..32 {
        let (store, key) = (store.clone(), key.clone());
        takers.spawn(async move {
            let mut conflicts = 0;
            loop {
                let entry = store.get(&key).await.unwrap().unwrap();
                let value: u64 = std::str::from_utf8(&entry.value).unwrap().parse().unwrap();
                let next = (value + 1).to_string();
                let txn = Txn::new(None).put(key.clone(), next, Expect::At(entry.modified));
                match store.commit(txn).await {
                    Ok(_) => return conflicts,
                    Err(StoreError::Conflict { op: 0, .. }) => conflicts += 1,
                    Err(other) => panic!("{other}"),
                }
            }
        });
    }
    while let Some(done) = takers.join_next().await {
        done.unwrap();
    }
    let entry = store.get(&key).await.unwrap().unwrap();
    assert_eq!(entry.value, "32");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tree_made_and_deleted_in_one_group_leaves_nothing() {
    let (_folder, path) = folder();
    let store = open(&path);
    for round in 0..20 {
        let table = TablePath::new("db", format!("t{round}"));
        let (root, tree) = (Key::table(&table).unwrap(), Key::database("db").unwrap());
        let creation = Txn::new(None).put(root.clone(), "t", Expect::Any).put(
            Key::partition(&table, "p").unwrap(),
            "p",
            Expect::Any,
        );
        let delete = Txn::new(None).delete_tree(tree.clone(), Expect::Any);
        let (made, gone) = tokio::join!(store.commit(creation), store.commit(delete));
        let left = store.scan(&tree, Page::first(10)).await.unwrap();
        let expected = if made.unwrap().id() < gone.unwrap().id() {
            0
        } else {
            2
        };
        assert_eq!(left.len(), expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_store_refuses_and_lets_its_sessions_go() {
    let (_folder, path) = folder();
    let store = open(&path);
    let session = store.open_session(Duration::from_secs(1)).await.unwrap();
    let txn = Txn::new(None).put_ephemeral(producer("e"), "x", Expect::Any, session.id());
    store.commit(txn).await.unwrap();
    let mut watch = store.watch(&producer("e"));
    assert!(matches!(
        watch.next().await,
        Some(WatchEvent::Snapshot { .. })
    ));
    store.close();
    session.lost().await;
    let late = store
        .commit(Txn::new(None).put(producer("a"), "x", Expect::Any))
        .await;
    assert!(
        matches!(late, Err(StoreError::Unavailable { .. })),
        "{late:?}"
    );
    drop(store);
    // The watch is still there, and does not hold the folder.
    let store = open(&path);
    assert!(store.get(&producer("e")).await.unwrap().is_none());
}
