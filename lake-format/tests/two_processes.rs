//! Two processes that commit to one table on a local disk.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test may panic"
)]

use std::collections::BTreeMap;
use std::path::Path as Folder;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Duration;

use object_store::ObjectStore;
use object_store::path::Path;
use weir_lake_format::commit::{BaseView, CommitOutcome, CommitRequest, RetryPolicy};
use weir_lake_format::{
    BATCH_COMMIT_IDENTIFIER, CommitKind, CommitMessage, DataField, DataFileMeta, DurableLocal,
    NewTable, Partition, Table, TableCommitter, TableSchema,
};

/// This test, as its own children call it.
const NAME: &str = "fc_039_two_processes_make_consecutive_snapshots";
/// Set for a child: who it is, and the folder.
const USER: &str = "WEIR_TEST_COMMITS_AS";
const FOLDER: &str = "WEIR_TEST_COMMITS_IN";

const USERS: [&str; 2] = ["one", "other"];
const COMMITS: i64 = 50;

fn store(folder: &str) -> Arc<dyn ObjectStore> {
    Arc::new(DurableLocal::open(Folder::new(folder)).unwrap())
}

fn append(user: &str, number: i64) -> CommitRequest {
    let name = format!("{user}-{number}");
    CommitRequest {
        commit_user: user.to_owned(),
        commit_identifier: BATCH_COMMIT_IDENTIFIER,
        kind: CommitKind::Append,
        messages: vec![CommitMessage {
            partition: Partition::unpartitioned(),
            bucket: 0,
            total_buckets: -1,
            new_files: vec![DataFileMeta::append(&name, 10, 100, 0)],
            changelog_files: Vec::new(),
        }],
        deletes: Vec::new(),
        properties: BTreeMap::new(),
        allow_empty: false,
        uuid: name,
        now_ms: 7,
    }
}

/// What a child does: each of its commits begins when the other one's of the same number does.
async fn commit_as(user: &str, folder: &str) {
    let marker = |user: &str, number: i64| Folder::new(folder).join(format!("{user}-{number}"));
    let table = Table::open(store(folder), Path::from("t")).await.unwrap();
    let mut committer = TableCommitter::new(table);
    let patient = RetryPolicy {
        max_retries: 1_000,
        min_wait: Duration::from_millis(1),
        max_wait: Duration::from_millis(5),
    };
    for number in 0..COMMITS {
        std::fs::write(marker(user, number), "").unwrap();
        let both_are_here = async {
            while !USERS.iter().all(|user| marker(user, number).exists()) {
                tokio::task::yield_now().await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_mins(1), both_are_here).await;
        waited.expect("the other one is there");
        let mut free = |_: &BaseView<'_>| Ok(());
        let request = append(user, number);
        let outcome = committer.commit(&request, &mut free, patient).await;
        let outcome = outcome.unwrap();
        assert!(
            matches!(outcome, CommitOutcome::Committed(_)),
            "{outcome:?}"
        );
    }
}

fn start(user: &str, folder: &str) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child
        .args(["--exact", NAME])
        .env(USER, user)
        .env(FOLDER, folder);
    child.spawn().unwrap()
}

#[tokio::test]
async fn fc_039_two_processes_make_consecutive_snapshots() {
    if let (Ok(user), Ok(folder)) = (std::env::var(USER), std::env::var(FOLDER)) {
        return commit_as(&user, &folder).await;
    }
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().to_str().unwrap();
    let new = NewTable {
        fields: vec![DataField::new(-1, "id", "BIGINT".parse().unwrap())],
        ..NewTable::default()
    };
    let schema = TableSchema::create(new, 0).unwrap();
    let table = Table::create(store(folder), Path::from("t"), &schema)
        .await
        .unwrap();
    let mut children = USERS.map(|user| start(user, folder));
    for child in &mut children {
        assert!(child.wait().unwrap().success());
    }
    let ids: Vec<i64> = (1..=2 * COMMITS).collect();
    assert_eq!(table.snapshot_ids().await.unwrap(), ids);
    let latest = table.latest_snapshot().await.unwrap().unwrap();
    assert_eq!(latest.total_record_count, 2 * COMMITS * 100);
    assert_eq!(table.live_entries(&latest).await.unwrap().len(), ids.len());
    for first in (1..=2 * COMMITS).step_by(2) {
        let mut users = Vec::new();
        for id in [first, first + 1] {
            users.push(table.snapshot(id).await.unwrap().commit_user);
        }
        users.sort();
        assert_eq!(users, USERS, "snapshots {first} and {}", first + 1);
    }
}
