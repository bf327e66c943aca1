//! Somebody else compacts the lake table while the daemon writes to it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::TryStreamExt;
use weir_lake_format::commit::{CommitOutcome, RetryPolicy};
use weir_lake_format::{
    BATCH_COMMIT_IDENTIFIER, CommitKind, CommitRequest, DataFileWriter, Filter, Partition, Table,
    TableCommitter, WriteTarget, WriterOptions,
};
use weir_tests::cluster::{Cluster, until};
use weir_tests::table::{path, plain, rows as make_rows};
use weir_tests::{binary, rows};
use weir_tiering::status::TableState;

/// Writes the rows of all live files into one, and commits that in their place; whether there was
/// something to do and nobody was quicker.
async fn compact(table: &Table) -> bool {
    static ATTEMPTS: AtomicUsize = AtomicUsize::new(0);
    let Some(snapshot) = table.latest_snapshot().await.unwrap() else {
        return false;
    };
    let entries = table.live_entries(&snapshot).await.unwrap();
    if entries.len() < 2 {
        return false;
    }
    let number = ATTEMPTS.fetch_add(1, Ordering::Relaxed);
    let uuid = format!("00000000-0000-4000-8000-{number:012}");
    let schema = Arc::new(table.latest_schema().await.unwrap());
    let options = WriterOptions::new(&schema, uuid.clone(), 0).unwrap();
    let target = WriteTarget {
        schema,
        partition: Partition::unpartitioned(),
        bucket: 0,
        total_buckets: -1,
        first_sequence_number: 0,
    };
    let store = Arc::clone(table.store());
    let mut writer = DataFileWriter::new(target, options, store, table.root().clone()).unwrap();
    for split in table.plan(&snapshot, &Filter::default()).await.unwrap() {
        let mut batches = table.read_split(&split, None).await.unwrap();
        while let Some(batch) = batches.try_next().await.unwrap() {
            writer.write(batch).await.unwrap();
        }
    }
    let request = CommitRequest {
        commit_user: "somebody-else".to_owned(),
        commit_identifier: BATCH_COMMIT_IDENTIFIER,
        kind: CommitKind::Compact,
        messages: vec![writer.finish().await.unwrap()],
        deletes: entries,
        properties: BTreeMap::new(),
        allow_empty: false,
        uuid,
        now_ms: snapshot.time_millis + 1,
    };
    let mut committer = TableCommitter::new(table.clone());
    let outcome = committer
        .commit(&request, &mut |_| Ok(()), RetryPolicy::default())
        .await;
    matches!(outcome, Ok(CommitOutcome::Committed(_)))
}

#[tokio::test]
async fn fc_041_compactions_by_others_beside_tiering_lose_and_double_nothing() {
    const APPENDS: i64 = 12;
    let mut cluster = Cluster::start().await;
    let path = path("compacted");
    cluster
        .client
        .create_table(&path, &plain(), false)
        .await
        .unwrap();
    let (_, schema) = cluster.client.schema(&path, None).await.unwrap();
    let daemon = cluster.tier().await;
    let writer = cluster.writer(&path).await;
    let mut written = Vec::new();
    let mut compactions = 0;
    for append in 0..APPENDS {
        let batch = make_rows(&schema, append * 50..append * 50 + 50);
        let acknowledgement = writer.append(batch.clone()).await.unwrap();
        writer.flush().await.unwrap();
        acknowledgement.wait().await.unwrap();
        written.push(batch);
        let known = || async { daemon.tier_now(&path).await.ok() };
        until("the daemon knows the table", known).await;
        // As soon as there are two files again, while the next round may be at work.
        let lake = cluster.lake(&path).await;
        if append == 0 {
            // Else the next rows might come with these in one file, and nothing be there to compact.
            cluster.wait_tiered(&path).await;
        } else {
            let lake = &lake;
            let done = until("a compaction wins", || async move {
                compact(lake).await.then_some(())
            });
            done.await;
            compactions += 1;
        }
    }
    writer.close().await.unwrap();
    cluster.wait_tiered(&path).await;
    assert_eq!(compactions, APPENDS - 1);
    let lake = cluster.lake(&path).await;
    assert_eq!(rows::lake_texts(&lake).await, rows::texts(&written));
    let status = cluster
        .wait_status(&path, "the table is healthy", |status| {
            status.state == TableState::Healthy
        })
        .await;
    assert_eq!(status.last_error, None);
    let warehouse = cluster.warehouse().display().to_string();
    let verified = binary::run([
        "verify".to_owned(),
        path.to_string(),
        "--bootstrap".to_owned(),
        cluster.addr(),
        "--warehouse".to_owned(),
        warehouse,
    ])
    .await;
    assert_eq!(verified.code, Some(0), "{}{}", verified.data, verified.log);
    cluster.stop().await;
}
