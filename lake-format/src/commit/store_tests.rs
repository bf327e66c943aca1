//! What commits ask of a store, and what they do in any.

use super::*;
use crate::data_file::DataFileMeta;
use crate::durable::DurableLocal;
use crate::faulty_store::{Fault, FaultyStore};
use crate::partition::Partition;
use crate::schema::{NewTable, SchemaChange, TableSchema};
use crate::snapshot::BATCH_COMMIT_IDENTIFIER;
use crate::types::DataField;
use futures::TryStreamExt;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use std::sync::Arc;

fn schema() -> TableSchema {
    let table = NewTable {
        fields: vec![DataField::new(-1, "id", "BIGINT".parse().unwrap())],
        ..NewTable::default()
    };
    TableSchema::create(table, 0).unwrap()
}

async fn table_in(store: Arc<dyn ObjectStore>) -> Table {
    Table::create(store, Path::from("t"), &schema())
        .await
        .unwrap()
}

/// An append of `rows` rows in a file of its own.
fn append(user: &str, name: &str, rows: i64) -> CommitRequest {
    CommitRequest {
        commit_user: user.to_owned(),
        commit_identifier: BATCH_COMMIT_IDENTIFIER,
        kind: CommitKind::Append,
        messages: vec![CommitMessage {
            partition: Partition::unpartitioned(),
            bucket: 0,
            total_buckets: -1,
            new_files: vec![DataFileMeta::append(name, 10, rows, 0)],
            changelog_files: Vec::new(),
        }],
        deletes: Vec::new(),
        properties: BTreeMap::new(),
        allow_empty: false,
        uuid: name.to_owned(),
        now_ms: 7,
    }
}

async fn committed(committer: &mut TableCommitter, request: &CommitRequest) -> Snapshot {
    let patient = RetryPolicy {
        max_retries: 1_000,
        min_wait: Duration::ZERO,
        max_wait: Duration::ZERO,
    };
    let mut free = |_: &BaseView<'_>| Ok(());
    match committer.commit(request, &mut free, patient).await.unwrap() {
        CommitOutcome::Committed(snapshot) => snapshot,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fc_039_two_committers_make_consecutive_snapshots() {
    let folder = tempfile::tempdir().unwrap();
    let local = DurableLocal::open(folder.path()).unwrap();
    let stores: [Arc<dyn ObjectStore>; 2] = [Arc::new(local), Arc::new(InMemory::new())];
    for store in stores {
        let table = table_in(store).await;
        let race = |user: &'static str| {
            let mut committer = TableCommitter::new(table.clone());
            tokio::spawn(async move {
                let mut ids = Vec::new();
                for number in 0..50 {
                    let request = append(user, &format!("{user}-{number}"), 100);
                    ids.push(committed(&mut committer, &request).await.id);
                }
                ids
            })
        };
        let (one, other) = (race("one"), race("other"));
        let mut ids = one.await.unwrap();
        ids.extend(other.await.unwrap());
        ids.sort_unstable();
        assert_eq!(ids, (1..=100).collect::<Vec<_>>());
        assert_eq!(table.snapshot_ids().await.unwrap(), ids);
        let latest = table.latest_snapshot().await.unwrap().unwrap();
        assert_eq!((latest.id, latest.total_record_count), (100, 10_000));
        assert_eq!(table.live_entries(&latest).await.unwrap().len(), 100);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fc_040_a_foreign_snapshot_of_the_next_number_stays_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let local = DurableLocal::open(folder.path()).unwrap();
    let stores: [Arc<dyn ObjectStore>; 2] = [Arc::new(local), Arc::new(InMemory::new())];
    for store in stores {
        let table = table_in(Arc::clone(&store)).await;
        let mut committer = TableCommitter::new(table.clone());
        committed(&mut committer, &append("us", "a", 3)).await;
        let theirs = append("them", "foreign", 5);
        let bytes = async |id: i64| {
            let found = store.get(&table.paths().snapshot(id)).await.unwrap();
            found.bytes().await.unwrap()
        };
        // The other publishes after our last look, just before our put.
        let mut foreign = None;
        let mut guard = |_: &BaseView<'_>| {
            if foreign.is_none() {
                let mut other = TableCommitter::new(table.clone());
                let placed = tokio::task::block_in_place(|| {
                    tokio::runtime::Handle::current().block_on(async {
                        let id = committed(&mut other, &theirs).await.id;
                        (id, bytes(id).await)
                    })
                });
                foreign = Some(placed);
            }
            Ok(())
        };
        let ours = append("us", "b", 7);
        let outcome = committer
            .commit(&ours, &mut guard, RetryPolicy::default())
            .await;
        let Ok(CommitOutcome::Committed(ours)) = outcome else {
            panic!("{outcome:?}")
        };
        assert_eq!((ours.id, ours.total_record_count), (3, 15));
        let (id, placed) = foreign.unwrap();
        assert_eq!(id, 2);
        assert_eq!(bytes(2).await, placed, "not a byte of it has changed");
    }
}

#[tokio::test]
async fn fc_080_two_committers_need_no_permission_to_list() {
    let store = FaultyStore::new();
    let table = table_in(Arc::clone(&store) as Arc<dyn ObjectStore>).await;
    let wider = SchemaChange::SetOption {
        name: "x".to_owned(),
        value: "y".to_owned(),
    };
    table
        .add_schema(&schema().evolve(&[wider], 0).unwrap())
        .await
        .unwrap();
    store.inject(|_, verb, _| (verb == "list").then_some(Fault::Denied));
    let erased = Arc::clone(&store) as Arc<dyn ObjectStore>;
    let open = |root| Table::open(Arc::clone(&erased), Path::from(root));
    open("t").await.unwrap();
    let none = open("none").await.unwrap_err();
    assert!(matches!(none, crate::Error::NotFound { .. }), "{none}");
    let first = Table::open_with_schema(Arc::clone(&erased), Path::from("t")).await;
    let (table, newest) = first.unwrap();
    assert_eq!(newest.id, 1);
    committed(
        &mut TableCommitter::new(table.clone()),
        &append("us", "first", 1),
    )
    .await;
    let mut one = TableCommitter::new(table.clone());
    let mut other = TableCommitter::new(table.clone());
    for number in 0..5 {
        committed(&mut one, &append("one", &format!("one-{number}"), 10)).await;
        // This one builds on what it remembers, and loses first.
        committed(&mut other, &append("other", &format!("other-{number}"), 10)).await;
    }
    let latest = table.latest_snapshot().await.unwrap().unwrap();
    assert_eq!((latest.id, latest.total_record_count), (11, 101));
    assert_eq!(
        table.own_latest("one").await.unwrap().map(|own| own.id),
        Some(10)
    );
    let (_, newest) = Table::open_with_schema(erased, Path::from("t"))
        .await
        .unwrap();
    assert_eq!(newest.id, 1);
    // Hints that lead nowhere: it has snapshots, and nothing tells which.
    for id in 1..=11 {
        let path = table.paths().snapshot(id);
        table.store().delete(&path).await.unwrap();
    }
    let lost = table.latest_snapshot().await.unwrap_err();
    assert!(matches!(&lost, crate::Error::NotFound { path } if path.ends_with("snapshot-11")));
}

#[tokio::test]
async fn fc_085_a_start_reads_few_of_ten_thousand_snapshots() {
    let store = FaultyStore::new();
    let table = table_in(Arc::clone(&store) as Arc<dyn ObjectStore>).await;
    let first = committed(
        &mut TableCommitter::new(table.clone()),
        &append("us", "a", 1),
    )
    .await;
    let sound = store.sound();
    for id in 2..=10_000 {
        // The newest few are another's.
        let commit_user = if id > 9_995 { "them" } else { "us" };
        let snapshot = Snapshot {
            id,
            commit_user: commit_user.to_owned(),
            ..first.clone()
        };
        let path = table.paths().snapshot(id);
        let json = snapshot.to_json().unwrap();
        sound.put(&path, json.into()).await.unwrap();
    }
    let hint = |text: &'static str| {
        let (sound, path) = (Arc::clone(&sound), table.paths().latest_hint());
        async move {
            match text {
                "" => sound.delete(&path).await.unwrap(),
                text => drop(sound.put(&path, text.into()).await.unwrap()),
            }
        }
    };
    for (text, lists) in [("10000", 0), ("9000", 1), ("", 1), ("20000", 1), ("odd", 1)] {
        hint(text).await;
        store.inject(|_, _, _| None);
        let own = table.own_latest("us").await.unwrap().unwrap();
        assert_eq!(own.id, 9_995, "hint `{text}`");
        let calls = store.take_calls();
        let of = |verb: &str| calls.iter().filter(|call| call.starts_with(verb)).count();
        assert!(of("get") + of("head") < 20, "{calls:?}");
        assert_eq!(of("list"), lists, "hint `{text}`: {calls:?}");
    }
}

/// Deletes the table's folder and makes a table in it, as it was in the beginning.
async fn replace(store: &Arc<InMemory>) {
    let folder = Path::from("t");
    for object in objects(store).await {
        store.delete(&object).await.unwrap();
    }
    Table::create(Arc::clone(store) as _, folder, &schema())
        .await
        .unwrap();
}

async fn objects(store: &Arc<InMemory>) -> Vec<Path> {
    let listed = store.list(Some(&Path::from("t")));
    let paths = listed.map_ok(|object| object.location);
    paths.try_collect().await.unwrap()
}

/// A committer that has made `earlier` commits to a table, and holds to it.
async fn holding(store: &Arc<FaultyStore>, earlier: i64) -> TableCommitter {
    let table = table_in(Arc::clone(store) as Arc<dyn ObjectStore>).await;
    let mut committer = TableCommitter::new(table.clone());
    committer.hold_to(&table.identity().await.unwrap());
    for number in 0..earlier {
        committed(&mut committer, &append("us", &number.to_string(), 1)).await;
    }
    committer
}

#[tokio::test]
async fn a_commit_never_stays_in_a_table_that_was_made_in_its_folder_meanwhile() {
    let retry = RetryPolicy {
        min_wait: Duration::ZERO,
        ..RetryPolicy::default()
    };
    for earlier in [0, 2] {
        let mut replaced = 0;
        for at in 0.. {
            let store = FaultyStore::new();
            let mut committer = holding(&store, earlier).await;
            let sound = store.sound();
            store.inject(move |number, _, _| {
                if number == at {
                    futures::executor::block_on(replace(&sound));
                }
                None
            });
            let request = append("us", "late", 1);
            let outcome = committer.commit(&request, &mut |_| Ok(()), retry).await;
            let was_replaced = store.take_calls().len() > at;
            let left: Vec<_> = objects(&store.sound()).await;
            if !was_replaced {
                assert!(matches!(outcome, Ok(CommitOutcome::Committed(_))));
                break;
            }
            replaced += usize::from(matches!(
                outcome,
                Ok(CommitOutcome::Replaced | CommitOutcome::TakenBack)
            ));
            let strange = left.iter().map(Path::as_ref).filter(|path| {
                // The hint may come late: it is only a hint.
                !matches!(*path, "t/schema/schema-0" | "t/snapshot/LATEST")
            });
            let strange: Vec<_> = strange.collect();
            assert!(strange.is_empty(), "{at}: {outcome:?} leaves {strange:?}");
        }
        assert!(replaced > 4, "{replaced} commits met another table");
    }
}

#[tokio::test]
async fn a_snapshot_in_another_table_stays_if_somebody_built_on_it() {
    let store = FaultyStore::new();
    let mut committer = holding(&store, 1).await;
    let (sound, mut is_put) = (store.sound(), false);
    store.inject(move |_, verb, path| {
        let meets_schema = path.as_ref() == "t/schema/schema-0";
        if verb == "put" && path.as_ref() == "t/snapshot/snapshot-2" {
            is_put = true;
            futures::executor::block_on(replace(&sound));
        } else if is_put && meets_schema {
            is_put = false;
            let built = Snapshot {
                id: 3,
                ..futures::executor::block_on(stored(&sound))
            };
            let path = Path::from("t/snapshot/snapshot-3");
            let json = built.to_json().unwrap();
            futures::executor::block_on(sound.put(&path, json.into())).unwrap();
        }
        None
    });
    let outcome = committer
        .commit(
            &append("us", "late", 1),
            &mut |_| Ok(()),
            RetryPolicy::default(),
        )
        .await;
    assert!(
        matches!(outcome, Err(crate::Error::OutcomeUnknown { .. })),
        "{outcome:?}"
    );
    assert_eq!(stored(&store.sound()).await.id, 2);
}

async fn stored(store: &Arc<InMemory>) -> Snapshot {
    let found = store.get(&Path::from("t/snapshot/snapshot-2")).await;
    Snapshot::from_json(&found.unwrap().bytes().await.unwrap()).unwrap()
}

#[tokio::test]
async fn a_table_that_is_made_anew_has_another_identity_in_any_store() {
    let folder = tempfile::tempdir().unwrap();
    let local = DurableLocal::open(folder.path()).unwrap();
    let stores: [Arc<dyn ObjectStore>; 2] = [Arc::new(local), Arc::new(InMemory::new())];
    for store in stores {
        let table = table_in(Arc::clone(&store)).await;
        let before = table.identity().await.unwrap();
        committed(
            &mut TableCommitter::new(table.clone()),
            &append("us", "a", 1),
        )
        .await;
        assert_eq!(table.identity().await.unwrap(), before);
        let first = table.paths().schema(0);
        store.delete(&first).await.unwrap();
        assert_ne!(table.identity().await.unwrap(), before);
        // Longer by a digit: times of files may be coarser than this test is quick.
        let later = TableSchema {
            time_millis: 10,
            ..schema()
        };
        table.add_schema(&later).await.unwrap();
        assert_ne!(table.identity().await.unwrap(), before);
    }
}
