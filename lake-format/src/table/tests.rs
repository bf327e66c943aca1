#![allow(clippy::clone_on_ref_ptr, reason = "tests: what is cloned can be seen")]

use object_store::memory::InMemory;

use super::*;
use crate::faulty_store::{Fault, FaultyStore};
use crate::schema::NewTable;
use crate::snapshot::CommitKind;
use crate::types::DataField;

fn schema() -> TableSchema {
    let fields = vec![DataField::new(0, "id", "INT".parse().unwrap())];
    TableSchema::create(
        NewTable {
            fields,
            ..NewTable::default()
        },
        1,
    )
    .unwrap()
}

async fn new_table() -> Table {
    Table::create(
        Arc::new(InMemory::new()),
        Path::from("w/db.db/t"),
        &schema(),
    )
    .await
    .unwrap()
}

async fn put(table: &Table, path: Path, bytes: impl Into<PutPayload>) {
    table.store().put(&path, bytes.into()).await.unwrap();
}

fn snapshot_json(id: i64) -> Vec<u8> {
    let snapshot = Snapshot {
        version: 3,
        id,
        schema_id: 0,
        base_manifest_list: "b".to_owned(),
        base_manifest_list_size: None,
        delta_manifest_list: "d".to_owned(),
        delta_manifest_list_size: None,
        changelog_manifest_list: None,
        changelog_manifest_list_size: None,
        index_manifest: None,
        commit_user: "u".to_owned(),
        commit_identifier: 1,
        commit_kind: CommitKind::Append,
        time_millis: 1,
        total_record_count: 0,
        delta_record_count: 0,
        changelog_record_count: None,
        watermark: None,
        statistics: None,
        properties: None,
        next_row_id: None,
    };
    snapshot.to_json().unwrap()
}

#[tokio::test]
async fn a_table_is_made_once() {
    let table = new_table().await;
    let again = Table::create(Arc::clone(table.store()), table.root().clone(), &schema()).await;
    assert!(matches!(again, Err(Error::AlreadyExists { .. })));
    let opened = Table::open(Arc::clone(table.store()), table.root().clone())
        .await
        .unwrap();
    assert_eq!(opened.latest_schema().await.unwrap(), schema());
}

#[tokio::test]
async fn a_folder_without_schema_is_no_table() {
    let opened = Table::open(Arc::new(InMemory::new()), Path::from("t")).await;
    assert!(matches!(opened, Err(Error::NotFound { .. })));
}

#[tokio::test]
async fn the_second_of_two_schemas_of_a_number_is_refused_unless_it_is_the_first_again() {
    let table = new_table().await;
    let next = schema().evolve(&[], 2).unwrap();
    table.add_schema(&next).await.unwrap();
    let other = schema().evolve(&[], 3).unwrap();
    assert!(matches!(
        table.add_schema(&other).await,
        Err(Error::AlreadyExists { .. })
    ));
    table.add_schema(&next).await.unwrap();
    assert_eq!(table.latest_schema().await.unwrap().id, 1);
}

#[tokio::test]
async fn a_schema_whose_put_failed_is_there_or_its_outcome_is_unknown() {
    for (fault, is_added) in [
        (Fault::Before, false),
        (Fault::After, true),
        (Fault::MetItself, true),
    ] {
        let store = FaultyStore::new();
        let table = Table::create(store.clone(), Path::from("t"), &schema())
            .await
            .unwrap();
        store.inject(move |_, verb, _| (verb == "put").then_some(fault));
        let next = schema().evolve(&[], 2).unwrap();
        let added = table.add_schema(&next).await;
        match added {
            Ok(()) if is_added => {}
            Err(Error::OutcomeUnknown { .. }) if !is_added => {}
            other => panic!("{fault:?}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn a_stale_wrong_or_missing_hint_does_not_hide_the_latest_snapshot() {
    let table = new_table().await;
    assert_eq!(table.latest_snapshot_id().await.unwrap(), None);
    for id in 1..=3 {
        put(&table, table.paths().snapshot(id), snapshot_json(id)).await;
    }
    for hint in ["1", "3", "9", "", "many", "-4", "9223372036854775807"] {
        put(
            &table,
            table.paths().latest_hint(),
            hint.to_owned().into_bytes(),
        )
        .await;
        assert_eq!(table.latest_snapshot_id().await.unwrap(), Some(3), "{hint}");
    }
}

#[tokio::test]
async fn an_unreadable_snapshot_is_an_error_that_names_it_not_an_absent_one() {
    let table = new_table().await;
    put(&table, table.paths().snapshot(1), b"{".to_vec()).await;
    let found = table.latest_snapshot().await.unwrap_err();
    assert!(
        matches!(&found, Error::Corrupt { path, .. } if path.ends_with("snapshot/snapshot-1")),
        "{found}"
    );
    put(&table, table.paths().snapshot(2), snapshot_json(3)).await;
    assert!(matches!(
        table.snapshot(2).await,
        Err(Error::Corrupt { .. })
    ));
}
