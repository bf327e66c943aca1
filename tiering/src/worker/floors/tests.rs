use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use object_store::memory::InMemory;
use object_store::path::Path;
use weir_lake_format::commit::{BaseView, RetryPolicy};
use weir_lake_format::expire::{ExpireRequest, Retention};
use weir_lake_format::{
    CommitKind, CommitOutcome, CommitRequest, DataField, MergeTreeWriter, NewTable, RowKind,
    TableOptions, TableSchema, TypeKind, WriteTarget, WriterOptions,
};
use weir_protocol::ids::TablePath;

use super::*;
use crate::lake_table::Warehouse;

/// A keyed lake table of one column, and whoever writes to it.
struct Lake {
    table: LakeTable,
    commits: i64,
}

fn schema() -> TableSchema {
    let new = NewTable {
        fields: vec![DataField::new(0, "id", TypeKind::BigInt.not_null())],
        partition_keys: Vec::new(),
        primary_keys: vec!["id".to_owned()],
        options: BTreeMap::from([("bucket".to_owned(), "2".to_owned())]),
        comment: None,
    };
    TableSchema::create(new, 0).unwrap()
}

impl Lake {
    async fn new() -> Self {
        let warehouse = Warehouse::new(Arc::new(InMemory::new()), Path::from("lake"));
        let place = warehouse.bad_records(&TablePath::new("db", "t"), &BTreeMap::new());
        Self {
            table: place.unwrap().create(&schema()).await.unwrap(),
            commits: 0,
        }
    }

    /// Commits one row whose sequence number is this.
    async fn write(&mut self, bucket: i32, first_sequence_number: i64) {
        let lake = &self.table;
        self.commits += 1;
        let name = format!("w{}", self.commits);
        let target = WriteTarget {
            schema: Arc::clone(&lake.schema),
            partition: Partition::unpartitioned(),
            bucket,
            total_buckets: 2,
            first_sequence_number,
        };
        let options = WriterOptions::new(&lake.schema, name.clone(), 0).unwrap();
        let (store, root) = (Arc::clone(lake.table.store()), lake.table.root().clone());
        let mut writer = MergeTreeWriter::new(target, options, 1 << 20, store, root).unwrap();
        let ids: ArrayRef = Arc::new(Int64Array::from(vec![1]));
        let rows = RecordBatch::try_new(lake.schema.arrow_schema(), vec![ids]).unwrap();
        writer.write(rows, &[RowKind::Insert]).await.unwrap();
        let request = CommitRequest {
            commit_user: "anyone".to_owned(),
            commit_identifier: self.commits,
            kind: CommitKind::Append,
            messages: vec![writer.finish().await.unwrap()],
            deletes: Vec::new(),
            properties: BTreeMap::new(),
            allow_empty: false,
            uuid: name,
            now_ms: self.commits,
        };
        let mut allowed = |_: &BaseView<'_>| Ok(());
        let committed = lake
            .table
            .commit(&request, &mut allowed, RetryPolicy::default());
        assert!(matches!(committed.await, Ok(CommitOutcome::Committed(_))));
    }

    async fn expire_all_but_the_newest(&self) {
        let options = BTreeMap::from(
            [
                ("snapshot.num-retained.min", "1"),
                ("snapshot.num-retained.max", "1"),
                ("snapshot.expire.limit", "1000"),
            ]
            .map(|(key, value)| (key.to_owned(), value.to_owned())),
        );
        let retention = Retention::of(TableOptions::new(&options)).unwrap();
        let request = ExpireRequest {
            retention: &retention,
            keep_newest_of: "nobody",
            keep_from: None,
            now_ms: 1_000_000,
            own_files: &|_| Vec::new(),
        };
        self.table.table.expire(&request).await.unwrap();
        assert_eq!(self.table.table.snapshot_ids().await.unwrap().len(), 1);
    }
}

fn next(floors: &Floors) -> [i64; 2] {
    [0, 1].map(|bucket| floors.next_sequence(&Partition::unpartitioned(), bucket))
}

#[tokio::test]
async fn the_next_number_is_above_all_that_any_writer_gave() {
    let mut lake = Lake::new().await;
    let mut floors = Floors::default();
    floors.advance(&lake.table).await.unwrap();
    assert_eq!(next(&floors), [0, 0], "there is no snapshot");
    lake.write(0, 41).await;
    floors.advance(&lake.table).await.unwrap();
    assert_eq!(next(&floors), [42, 0]);
    // Later, of another writer, and lower: the highest counts.
    lake.write(0, 7).await;
    lake.write(1, 99).await;
    floors.advance(&lake.table).await.unwrap();
    assert_eq!(next(&floors), [42, 100]);
    floors.advance(&lake.table).await.unwrap();
    assert_eq!(next(&floors), [42, 100], "nothing came");
}

#[tokio::test]
async fn what_expired_meanwhile_is_found_in_the_newest_snapshot() {
    let mut lake = Lake::new().await;
    let mut floors = Floors::default();
    lake.write(0, 1).await;
    floors.advance(&lake.table).await.unwrap();
    lake.write(0, 500).await;
    lake.write(1, 3).await;
    lake.expire_all_but_the_newest().await;
    floors.advance(&lake.table).await.unwrap();
    assert_eq!(next(&floors), [501, 4]);
}

#[tokio::test]
async fn after_many_snapshots_all_files_are_looked_at() {
    let mut lake = Lake::new().await;
    let mut floors = Floors::default();
    lake.write(0, 1).await;
    floors.advance(&lake.table).await.unwrap();
    for number in 0..=MOST_SNAPSHOTS {
        lake.write(0, 1000 - number).await;
    }
    floors.advance(&lake.table).await.unwrap();
    assert_eq!(next(&floors), [1001, 0]);
}

#[tokio::test]
async fn another_table_begins_anew() {
    let mut lake = Lake::new().await;
    let mut floors = Floors::default();
    lake.write(0, 41).await;
    floors.advance(&lake.table).await.unwrap();
    let mut other = Lake::new().await;
    other.write(1, 5).await;
    assert_ne!(lake.table.identity, other.table.identity);
    floors.advance(&other.table).await.unwrap();
    assert_eq!(next(&floors), [0, 6]);
}
