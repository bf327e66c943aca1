#![allow(
    clippy::clone_on_ref_ptr,
    clippy::cast_possible_wrap,
    clippy::single_match_else,
    clippy::unnecessary_wraps,
    reason = "tests: what is cloned and how large it is can be seen"
)]

use super::*;
use crate::data_file::DataFileMeta;
use crate::datum::Datum;
use crate::error::Error;
use crate::faulty_store::{Fault, FaultyStore};
use crate::manifest::{FileKind, live_files};
use crate::partition::Partition;
use crate::schema::{NewTable, SchemaChange, TableSchema};
use crate::snapshot::BATCH_COMMIT_IDENTIFIER;
use crate::types::DataField;
use futures::TryStreamExt;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use std::sync::Arc;

const QUICK: RetryPolicy = RetryPolicy {
    max_retries: 4,
    min_wait: Duration::ZERO,
    max_wait: Duration::ZERO,
};

fn schema() -> TableSchema {
    let table = NewTable {
        fields: vec![
            DataField::new(-1, "id", "BIGINT".parse().unwrap()),
            DataField::new(-1, "dt", "STRING".parse().unwrap()),
        ],
        partition_keys: vec!["dt".to_owned()],
        options: BTreeMap::from([
            ("bucket".to_owned(), "2".to_owned()),
            ("bucket-key".to_owned(), "id".to_owned()),
        ]),
        ..NewTable::default()
    };
    TableSchema::create(table, 0).unwrap()
}

async fn table_in(store: Arc<dyn ObjectStore>) -> Table {
    Table::create(store, Path::from("t"), &schema())
        .await
        .unwrap()
}

async fn table() -> Table {
    table_in(Arc::new(InMemory::new())).await
}

fn partition(dt: &str) -> Partition {
    let value = if dt == "null" {
        Datum::Null
    } else {
        Datum::String(dt.to_owned())
    };
    Partition::new(vec![value], &schema()).unwrap()
}

fn message(dt: &str, total_buckets: i32, files: &[&str]) -> CommitMessage {
    let files = files
        .iter()
        .map(|name| DataFileMeta::append(*name, 10, 3, 0));
    let new_files = files.collect();
    CommitMessage {
        partition: partition(dt),
        bucket: 1,
        total_buckets,
        new_files,
        changelog_files: Vec::new(),
    }
}

/// An append by the user "us"; the name of the commit is its UUID and its property `round`.
fn append(name: &str, messages: Vec<CommitMessage>) -> CommitRequest {
    CommitRequest {
        commit_user: "us".to_owned(),
        commit_identifier: BATCH_COMMIT_IDENTIFIER,
        kind: CommitKind::Append,
        messages,
        deletes: Vec::new(),
        properties: BTreeMap::from([("round".to_owned(), name.to_owned())]),
        allow_empty: false,
        uuid: name.to_owned(),
        now_ms: 7,
    }
}

fn by(user: &str, request: CommitRequest) -> CommitRequest {
    CommitRequest {
        commit_user: user.to_owned(),
        ..request
    }
}

fn free(_: &BaseView<'_>) -> Result<(), GuardRefusal> {
    Ok(())
}

async fn commit(committer: &mut TableCommitter, request: &CommitRequest) -> CommitOutcome {
    committer.commit(request, &mut free, QUICK).await.unwrap()
}

async fn committed(table: &Table, request: &CommitRequest) -> Snapshot {
    match table.commit(request, &mut free, QUICK).await.unwrap() {
        CommitOutcome::Committed(snapshot) => snapshot,
        other => panic!("{other:?}"),
    }
}

async fn live(table: &Table) -> Vec<ManifestEntry> {
    let Some(latest) = table.latest_snapshot().await.unwrap() else {
        return Vec::new();
    };
    let mut entries = Vec::new();
    for manifest in table.manifests(&latest).await.unwrap() {
        entries.extend(table.read_manifest(&manifest.file_name).await.unwrap());
    }
    live_files(entries).unwrap()
}

async fn live_names(table: &Table) -> Vec<String> {
    let mut names: Vec<_> = live(table)
        .await
        .into_iter()
        .map(|e| e.file.file_name)
        .collect();
    names.sort();
    names
}

async fn manifests_on_disk(table: &Table) -> Vec<String> {
    let dir = table.paths().manifest_dir();
    let objects: Vec<_> = table.store().list(Some(&dir)).try_collect().await.unwrap();
    let mut names: Vec<_> = objects
        .iter()
        .map(|object| object.location.filename().unwrap().to_owned())
        .collect();
    names.sort();
    names
}

/// Every file that a snapshot names is there and readable, counts add up, and numbers have no
/// holes.
async fn check_history(table: &Table) {
    let ids = table.snapshot_ids().await.unwrap();
    assert_eq!(ids, (1..=ids.len() as i64).collect::<Vec<_>>());
    let mut total = 0;
    for id in ids {
        let snapshot = table.snapshot(id).await.unwrap();
        let delta = table.delta_entries(&snapshot).await.unwrap();
        let sign = |entry: &ManifestEntry| match entry.kind {
            FileKind::Add => entry.file.row_count,
            FileKind::Delete => -entry.file.row_count,
        };
        let rows: i64 = delta.iter().map(sign).sum();
        total += rows;
        assert_eq!(
            (snapshot.delta_record_count, snapshot.total_record_count),
            (rows, total)
        );
        let mut entries = Vec::new();
        for manifest in table.manifests(&snapshot).await.unwrap() {
            let read = table.read_manifest(&manifest.file_name).await.unwrap();
            let path = table.paths().manifest(&manifest.file_name).unwrap();
            let size = table.store().head(&path).await.unwrap().size;
            assert_eq!(manifest.file_size, size as i64);
            entries.extend(read);
        }
        let live = live_files(entries).unwrap();
        assert_eq!(
            live.iter().map(|entry| entry.file.row_count).sum::<i64>(),
            total
        );
    }
}

#[tokio::test]
async fn the_first_commit_is_snapshot_1_and_carries_what_was_asked() {
    let table = table().await;
    let snapshot = committed(&table, &append("a", vec![message("x", 2, &["f", "g"])])).await;
    assert_eq!(
        (snapshot.id, snapshot.schema_id, snapshot.time_millis),
        (1, 0, 7)
    );
    assert_eq!(
        (snapshot.total_record_count, snapshot.delta_record_count),
        (6, 6)
    );
    assert_eq!(snapshot.commit_kind, CommitKind::Append);
    assert_eq!(snapshot.property("round"), Some("a"));
    assert_eq!(table.latest_snapshot().await.unwrap(), Some(snapshot));
    let hint = table
        .store()
        .get(&table.paths().latest_hint())
        .await
        .unwrap();
    assert_eq!(hint.bytes().await.unwrap(), "1");
    let live = live(&table).await;
    assert_eq!(live[0].partition, partition("x").to_bytes());
    assert_eq!((live[0].bucket, live[0].total_buckets), (1, 2));
    check_history(&table).await;
}

#[tokio::test]
async fn an_empty_commit_is_made_only_when_asked_for() {
    let table = table().await;
    let request = append("a", vec![message("x", 2, &[])]);
    let outcome = table.commit(&request, &mut free, QUICK).await.unwrap();
    assert_eq!(outcome, CommitOutcome::Nothing);
    let request = CommitRequest {
        allow_empty: true,
        ..request
    };
    assert_eq!(committed(&table, &request).await.id, 1);
    assert_eq!(committed(&table, &request).await.id, 2);
    check_history(&table).await;
}

#[tokio::test]
async fn a_lost_race_is_retried_on_the_new_snapshot_and_leaves_no_list_behind() {
    let table = table().await;
    let mut views = Vec::new();
    let mut rival = |view: &BaseView<'_>| {
        let ids = (view.latest.map(|s| s.id), view.own_latest.map(|s| s.id));
        views.push(ids);
        if views.len() == 1 {
            let request = by("them", append("b", vec![message("y", 2, &["theirs"])]));
            let _ = futures::executor::block_on(committed(&table, &request));
        }
        Ok(())
    };
    let request = append("a", vec![message("x", 2, &["ours"])]);
    let outcome = table.commit(&request, &mut rival, QUICK).await.unwrap();
    assert!(matches!(outcome, CommitOutcome::Committed(snapshot) if snapshot.id == 2));
    assert_eq!(views, [(None, None), (Some(1), None)]);
    assert_eq!(live_names(&table).await, ["ours", "theirs"]);
    let lists = manifests_on_disk(&table).await;
    let ours: Vec<_> = lists.iter().filter(|name| name.contains("-a-")).collect();
    assert_eq!(
        ours,
        ["manifest-a-0", "manifest-list-a-0", "manifest-list-a-2"]
    );
    check_history(&table).await;
}

#[tokio::test]
async fn a_guard_that_refuses_in_a_retry_leaves_the_table_as_it_was() {
    let table = table().await;
    let mut rival = |view: &BaseView<'_>| match view.own_latest {
        Some(_) => Err(GuardRefusal {
            reason: "a newer round is in".to_owned(),
        }),
        None => {
            let request = append("zombie", vec![message("y", 2, &["theirs"])]);
            let _ = futures::executor::block_on(committed(&table, &request));
            Ok(())
        }
    };
    let request = append("a", vec![message("x", 2, &["ours"])]);
    let outcome = table.commit(&request, &mut rival, QUICK).await.unwrap();
    assert!(matches!(outcome, CommitOutcome::Refused(_)), "{outcome:?}");
    assert_eq!(live_names(&table).await, ["theirs"]);
    assert!(
        manifests_on_disk(&table)
            .await
            .iter()
            .all(|name| !name.contains("-a-"))
    );
}

#[tokio::test]
async fn a_commit_that_always_loses_gives_up_and_cleans_up() {
    let table = table().await;
    let mut round = 0;
    let mut rival = |_: &BaseView<'_>| {
        round += 1;
        let name = format!("rival{round}");
        let request = by("them", append(&name, vec![message("y", 2, &[&name])]));
        let _ = futures::executor::block_on(committed(&table, &request));
        Ok(())
    };
    let request = append("a", vec![message("x", 2, &["ours"])]);
    let outcome = table.commit(&request, &mut rival, QUICK).await.unwrap();
    assert_eq!(outcome, CommitOutcome::Exhausted { attempts: 5 });
    assert!(
        manifests_on_disk(&table)
            .await
            .iter()
            .all(|name| !name.contains("-a-"))
    );
    check_history(&table).await;
}

#[tokio::test]
async fn a_reply_lost_after_the_put_commits_once() {
    for fault in [Fault::Before, Fault::After, Fault::MetItself] {
        let store = FaultyStore::new();
        let table = table_in(store.clone()).await;
        let mut times = 0;
        store.inject(move |_, verb, path| {
            let hit = verb == "put" && path.filename() == Some("snapshot-1");
            times += usize::from(hit);
            (hit && times == 1).then_some(fault)
        });
        let snapshot = committed(&table, &append("a", vec![message("x", 2, &["f"])])).await;
        assert_eq!(
            (snapshot.id, table.snapshot_ids().await.unwrap()),
            (1, vec![1])
        );
        check_history(&table).await;
    }
}

#[tokio::test]
async fn a_put_in_doubt_that_cannot_be_read_back_is_unknown_and_keeps_its_files() {
    let store = FaultyStore::new();
    let table = table_in(store.clone()).await;
    store.inject(move |_, _, path| (path.filename() == Some("snapshot-1")).then_some(Fault::After));
    let request = append("a", vec![message("x", 2, &["f"])]);
    let error = table.commit(&request, &mut free, QUICK).await.unwrap_err();
    assert!(matches!(error, Error::OutcomeUnknown { .. }), "{error}");
    store.inject(|_, _, _| None);
    assert_eq!(table.own_latest("us").await.unwrap().unwrap().id, 1);
    check_history(&table).await;
    let again = table.commit(&request, &mut free, QUICK).await.unwrap();
    assert!(
        matches!(&again, CommitOutcome::AlreadyCommitted(snapshot) if snapshot.id == 1),
        "{again:?}"
    );
}

#[tokio::test]
async fn fc_048_a_commit_that_is_made_again_is_answered_with_the_snapshot_there_is() {
    let table = table().await;
    let mut committer = TableCommitter::new(table.clone());
    committed_by(
        &mut committer,
        &append("z", vec![message("x", 2, &["old"])]),
    )
    .await;
    let request = append("a", vec![message("x", 2, &["f"]), message("y", 2, &["g"])]);
    let done = committed_by(&mut committer, &request).await;
    // By the one that made it, by one that has forgotten, and with others in between.
    let again = commit(&mut committer, &request).await;
    assert_eq!(again, CommitOutcome::AlreadyCommitted(done.clone()));
    committed(
        &table,
        &by("them", append("b", vec![message("x", 2, &["h"])])),
    )
    .await;
    let again = table.commit(&request, &mut free, QUICK).await.unwrap();
    assert_eq!(again, CommitOutcome::AlreadyCommitted(done.clone()));
    assert_eq!(table.snapshot_ids().await.unwrap(), [1, 2, 3]);
    assert_eq!(live_names(&table).await, ["f", "g", "h", "old"]);
    // Another commit that shares a file, or has another number, is none.
    let number = CommitRequest {
        commit_identifier: 5,
        ..request.clone()
    };
    let shares = append("c", vec![message("x", 2, &["f", "new"])]);
    for other in [number, shares] {
        let outcome = commit(&mut committer, &other).await;
        let conflict = Conflict::AddedBefore {
            file_name: "f".to_owned(),
        };
        assert_eq!(outcome, CommitOutcome::Conflict(conflict));
    }
    check_history(&table).await;
}

#[tokio::test]
async fn a_guard_that_refuses_while_a_put_is_in_doubt_makes_it_unknown() {
    let store = FaultyStore::new();
    let table = table_in(store.clone()).await;
    store.inject(|_, verb, path| {
        (verb == "put" && path.filename() == Some("snapshot-1")).then_some(Fault::Before)
    });
    let mut asked = 0;
    let mut guard = |_: &BaseView<'_>| {
        asked += 1;
        if asked == 1 {
            Ok(())
        } else {
            Err(GuardRefusal {
                reason: "late".to_owned(),
            })
        }
    };
    let request = append("a", vec![message("x", 2, &["f"])]);
    let error = table.commit(&request, &mut guard, QUICK).await.unwrap_err();
    assert!(matches!(error, Error::OutcomeUnknown { .. }), "{error}");
}

/// Lets call after call fail, in each way. Whatever happens, the commit is in the table once or not
/// at all, the table is sound, and doing it again gets it there.
#[tokio::test]
async fn whichever_call_fails_the_commit_happens_once_or_not_at_all() {
    for fault in [Fault::Before, Fault::After, Fault::MetItself] {
        for attempts in [0, 4] {
            let mut number = 0;
            while fail_call(number, fault, attempts).await {
                number += 1;
            }
            assert!(number > 12, "{number} calls");
        }
    }
}

async fn fail_call(failing: usize, fault: Fault, max_retries: u32) -> bool {
    let store = FaultyStore::new();
    let sound = Table::create(store.sound(), Path::from("t"), &schema())
        .await
        .unwrap();
    committed(
        &sound,
        &by("them", append("old", vec![message("x", 2, &["old"])])),
    )
    .await;
    let table = Table::open(store.clone(), Path::from("t")).await.unwrap();
    let mut committer = TableCommitter::new(table);
    committed_by(&mut committer, &append("a", vec![message("x", 2, &["a"])])).await;
    committed(
        &sound,
        &by("them", append("other", vec![message("y", 2, &["other"])])),
    )
    .await;
    let hit = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let seen = Arc::clone(&hit);
    store.inject(move |number, _, _| {
        let fails = number == failing;
        seen.fetch_or(fails, std::sync::atomic::Ordering::SeqCst);
        fails.then_some(fault)
    });
    let before = sound.latest_snapshot_id().await.unwrap();
    let request = append("b", vec![message("x", 2, &["b"]), message("z", 2, &["c"])]);
    let retry = RetryPolicy {
        max_retries,
        ..QUICK
    };
    let outcome = committer.commit(&request, &mut free, retry).await;
    store.inject(|_, _, _| None);
    check_history(&sound).await;
    let is_in = sound.latest_snapshot_id().await.unwrap() != before;
    match &outcome {
        Ok(CommitOutcome::Committed(_)) => assert!(is_in),
        Err(Error::OutcomeUnknown { .. }) => {}
        other => assert!(!is_in, "call {failing}: {other:?}"),
    }
    if !is_in {
        let mut guard = |view: &BaseView<'_>| {
            assert_eq!(view.own_latest.unwrap().property("round"), Some("a"));
            Ok(())
        };
        let outcome = committer.commit(&request, &mut guard, QUICK).await.unwrap();
        assert!(
            matches!(outcome, CommitOutcome::Committed(_)),
            "{outcome:?}"
        );
    }
    check_history(&sound).await;
    assert_eq!(live_names(&sound).await, ["a", "b", "c", "old", "other"]);
    hit.load(std::sync::atomic::Ordering::SeqCst)
}

async fn committed_by(committer: &mut TableCommitter, request: &CommitRequest) -> Snapshot {
    match commit(committer, request).await {
        CommitOutcome::Committed(snapshot) => snapshot,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn racing_committers_lose_nothing() {
    let table = table().await;
    let tasks: Vec<_> = (0..4)
        .map(|user| {
            let mut committer = TableCommitter::new(table.clone());
            tokio::spawn(async move {
                for round in 0..10 {
                    let name = format!("{user}-{round}");
                    let messages = vec![message(&format!("p{round}"), 2, &[&name])];
                    let request = by(&user.to_string(), append(&name, messages));
                    let retry = RetryPolicy {
                        max_retries: 1000,
                        ..QUICK
                    };
                    let outcome = committer.commit(&request, &mut free, retry).await.unwrap();
                    assert!(
                        matches!(outcome, CommitOutcome::Committed(_)),
                        "{outcome:?}"
                    );
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(table.latest_snapshot_id().await.unwrap(), Some(40));
    assert_eq!(live(&table).await.len(), 40);
    check_history(&table).await;
}

#[tokio::test]
async fn a_partition_keeps_one_bucket_count() {
    let table = table().await;
    committed(
        &table,
        &append(
            "a",
            vec![message("x", 2, &["a"]), message("null", 3, &["n"])],
        ),
    )
    .await;
    let mut known = TableCommitter::new(table.clone());
    committed_by(&mut known, &append("b", vec![message("y", 5, &["b"])])).await;
    for (name, dt, live, ours) in [("1", "x", 2, 4), ("2", "y", 5, 2), ("3", "null", 3, 2)] {
        let request = append(name, vec![message(dt, ours, &[name])]);
        let partition = partition(dt).to_bytes();
        let expected = CommitOutcome::Conflict(Conflict::TotalBuckets {
            partition,
            live,
            ours,
        });
        assert_eq!(commit(&mut known, &request).await, expected);
        assert_eq!(
            commit(&mut TableCommitter::new(table.clone()), &request).await,
            expected
        );
    }
    committed_by(
        &mut known,
        &append("c", vec![message("w", 4, &["c"]), message("x", 2, &["d"])]),
    )
    .await;
    let mixed = append("d", vec![message("v", 2, &["e"]), message("v", 3, &["f"])]);
    let error = known.commit(&mixed, &mut free, QUICK).await.unwrap_err();
    assert!(matches!(error, Error::BadValue { .. }));
    check_history(&table).await;
}

#[tokio::test]
async fn an_overwrite_of_another_job_frees_the_bucket_count() {
    let table = table().await;
    let mut committer = TableCommitter::new(table.clone());
    committed_by(&mut committer, &append("a", vec![message("x", 2, &["a"])])).await;
    let rescale = CommitRequest {
        kind: CommitKind::Overwrite,
        deletes: live(&table).await,
        ..by("them", append("b", vec![message("x", 4, &["b"])]))
    };
    committed(&table, &rescale).await;
    let stale = append("c", vec![message("x", 2, &["c"])]);
    assert!(matches!(
        commit(&mut committer, &stale).await,
        CommitOutcome::Conflict(_)
    ));
    committed_by(&mut committer, &append("d", vec![message("x", 4, &["d"])])).await;
    let drop_all = CommitRequest {
        kind: CommitKind::Overwrite,
        deletes: live(&table).await,
        ..by("them", append("e", vec![]))
    };
    committed(&table, &drop_all).await;
    committed_by(&mut committer, &append("f", vec![message("x", 8, &["f"])])).await;
    assert_eq!(live_names(&table).await, ["f"]);
    check_history(&table).await;
}

#[tokio::test]
async fn a_file_is_removed_once_and_never_added_twice() {
    let table = table().await;
    committed(&table, &append("a", vec![message("x", 2, &["a", "b"])])).await;
    let files = live(&table).await;
    let compact = |name: &str, deletes: Vec<ManifestEntry>, files: &[&str]| CommitRequest {
        kind: CommitKind::Compact,
        deletes,
        ..append(name, vec![message("x", 2, files)])
    };
    committed(&table, &compact("b", files.clone(), &["ab"])).await;
    let late = compact("c", files.clone(), &["late"]);
    let outcome = table.commit(&late, &mut free, QUICK).await.unwrap();
    let conflict = Conflict::NotLive {
        file_name: "a".to_owned(),
    };
    assert_eq!(outcome, CommitOutcome::Conflict(conflict));
    let twice = compact("d", live(&table).await, &["ab"]);
    assert!(matches!(
        table.commit(&twice, &mut free, QUICK).await,
        Err(Error::BadValue { .. })
    ));
    let append_with_deletes = CommitRequest {
        deletes: files,
        ..append("e", vec![])
    };
    let refused = table.commit(&append_with_deletes, &mut free, QUICK).await;
    assert!(matches!(refused, Err(Error::BadValue { .. })));
    assert_eq!(live_names(&table).await, ["ab"]);
    check_history(&table).await;
}

#[tokio::test]
async fn many_commits_keep_manifests_few_and_calls_constant() {
    let store = FaultyStore::new();
    let table = table_in(store.clone()).await;
    let mut committer = TableCommitter::new(table.clone());
    let mut calls = Vec::new();
    for round in 0..150 {
        let name = format!("r{round}");
        store.take_calls();
        committed_by(
            &mut committer,
            &append(&name, vec![message("x", 2, &[&name])]),
        )
        .await;
        calls.push(store.take_calls().len());
        assert!(committer.base.manifests().len() < 40);
    }
    let usual = calls[1];
    assert!(usual <= 9, "{usual} calls");
    let more: Vec<_> = calls
        .iter()
        .skip(1)
        .filter(|calls| **calls != usual)
        .collect();
    assert!(more.len() <= 150 / 29, "{more:?}");
    assert_eq!(live(&table).await.len(), 150);
    check_history(&table).await;
}

#[tokio::test]
async fn a_snapshot_taken_back_by_another_is_noticed() {
    let table = table().await;
    let mut committer = TableCommitter::new(table.clone());
    committed_by(&mut committer, &append("a", vec![message("x", 2, &["a"])])).await;
    committed_by(&mut committer, &append("b", vec![message("x", 2, &["b"])])).await;
    table
        .store()
        .delete(&table.paths().snapshot(2))
        .await
        .unwrap();
    let snapshot = committed_by(&mut committer, &append("c", vec![message("x", 2, &["c"])])).await;
    assert_eq!(snapshot.id, 2);
    assert_eq!(live_names(&table).await, ["a", "c"]);
    check_history(&table).await;
}

#[tokio::test]
async fn a_snapshot_names_the_latest_schema() {
    let table = table().await;
    let mut committer = TableCommitter::new(table.clone());
    committed_by(&mut committer, &append("a", vec![message("x", 2, &["a"])])).await;
    let option = SchemaChange::SetOption {
        name: "k".to_owned(),
        value: "v".to_owned(),
    };
    let evolved = schema().evolve(&[option], 1).unwrap();
    table.add_schema(&evolved).await.unwrap();
    let snapshot = committed_by(&mut committer, &append("b", vec![message("x", 2, &["b"])])).await;
    assert_eq!(snapshot.schema_id, evolved.id);
}

#[test]
fn waits_grow_to_the_limit_and_differ_between_commits() {
    let policy = RetryPolicy::default();
    for retry in 0..20 {
        let longest = Duration::from_millis(10 << retry).min(Duration::from_secs(10));
        let wait = policy.wait(retry, "a");
        assert!(wait <= longest && wait >= longest / 2, "{retry}: {wait:?}");
    }
    assert_ne!(policy.wait(3, "a"), policy.wait(3, "b"));
}

#[tokio::test]
async fn buckets_that_the_table_cannot_have_are_refused_and_leave_nothing() {
    let fixed = table().await;
    let with = |bucket: i32, total_buckets: i32| {
        let message = CommitMessage {
            bucket,
            ..message("x", total_buckets, &["f"])
        };
        append("a", vec![message])
    };
    for (bucket, total_buckets) in [(0, 0), (0, -7), (0, -1), (2, 2), (-1, 2), (1, -2)] {
        let outcome = fixed
            .commit(&with(bucket, total_buckets), &mut free, QUICK)
            .await;
        assert!(
            matches!(outcome, Err(Error::BadValue { .. })),
            "{bucket} of {total_buckets}"
        );
    }
    assert!(manifests_on_disk(&fixed).await.is_empty());
    let unset = ["bucket", "bucket-key"].map(|name| SchemaChange::RemoveOption {
        name: name.to_owned(),
    });
    let table = table().await;
    let unaware = schema().evolve(&unset, 1);
    let unaware = match unaware {
        Ok(unaware) => unaware,
        // A table is of one mode for ever: make one of the other.
        Err(_) => TableSchema {
            options: BTreeMap::new(),
            id: 1,
            ..schema()
        },
    };
    table.add_schema(&unaware).await.unwrap();
    for (bucket, total_buckets) in [(1, -1), (0, 1), (0, 2)] {
        let outcome = table
            .commit(&with(bucket, total_buckets), &mut free, QUICK)
            .await;
        assert!(
            matches!(outcome, Err(Error::BadValue { .. })),
            "{bucket} of {total_buckets}"
        );
    }
    committed(&table, &with(0, -1)).await;
}

mod manifests;
