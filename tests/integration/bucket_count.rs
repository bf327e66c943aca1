//! The bucket count is the partition's, from the metadata document to the manifest entry.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::RecordBatch;
use bytes::Bytes;
use serde_json::{Value, json};
use weir_catalog::model::assignment::Assignment;
use weir_catalog::model::{Document, Unknown, partition};
use weir_catalog::store::memory::MemoryStore;
use weir_catalog::store::{Expect, Key, MetadataStore, Txn};
use weir_lake_format::Table;
use weir_protocol::descriptor::TableDescriptor;
use weir_protocol::ids::{BucketId, PartitionId, ServerId, TableId, TablePath, TotalBuckets};
use weir_protocol::schema::{Schema, TypeKind};
use weir_tests::cluster::{Cluster, Setup};
use weir_tests::table::{bucketed, column, lake_table, partitioned, path, required, rows_of};
use weir_tests::{avro, rows};
use weir_tiering::status::TableState;

/// A table of 4 buckets, partitioned by `region`.
fn regional() -> TableDescriptor {
    let columns = vec![
        required("id", TypeKind::BigInt),
        required("region", TypeKind::String),
        column("name", TypeKind::String),
    ];
    bucketed(partitioned(lake_table(columns), &["region"]), 4, &["id"])
}

/// A server over metadata that the test can write.
async fn start(store: &MemoryStore) -> Cluster {
    let store: Arc<dyn MetadataStore> = Arc::new(store.clone());
    Cluster::start_with(Setup {
        store: Some(store),
        ..Setup::default()
    })
    .await
}

async fn create(cluster: &Cluster, path: &TablePath) -> (TableId, Schema) {
    cluster
        .client
        .create_table(path, &regional(), false)
        .await
        .expect("the table is created");
    let info = cluster
        .client
        .table_info(path)
        .await
        .expect("the table is there");
    (info.table_id, info.descriptor.schema)
}

/// Stores a partition of `count` buckets, as if an earlier layout of the table had made it.
async fn store_partition(store: &MemoryStore, path: &TablePath, table: TableId, count: i32) {
    let id = store
        .take_ids(&Key::partition_ids(), 1)
        .await
        .expect("an id")
        .start;
    let id = PartitionId(i64::try_from(id).expect("a small id"));
    let count = TotalBuckets(count);
    let document = partition::Partition {
        table_id: table,
        partition_id: id,
        bucket_count: Some(count),
        remote_data_dir: None,
        unknown: Unknown::new(),
    };
    // The kit's one tablet server.
    let assignment = Assignment::spread(Some(table), count, 1, &[ServerId(0)], 0);
    let key = Key::partition(path, "north").expect("a name");
    let txn = Txn::new(None)
        .put(key, document.encode().expect("a document"), Expect::Absent)
        .put(
            Key::partition_assignment(id),
            assignment.encode().expect("a document"),
            Expect::Absent,
        );
    store.commit(txn).await.expect("it is stored");
}

/// Rewrites a stored document.
async fn edit(store: &MemoryStore, key: Key, change: impl FnOnce(&mut Value)) {
    let entry = store
        .get(&key)
        .await
        .expect("the store works")
        .expect("the document is there");
    let mut document = serde_json::from_slice(&entry.value).expect("a JSON document");
    change(&mut document);
    let bytes = Bytes::from(serde_json::to_vec(&document).expect("JSON"));
    store
        .commit(Txn::new(None).put(key, bytes, Expect::Any))
        .await
        .expect("it is stored");
}

/// Loses the count of partition `north` of a table whose count was changed once.
async fn lose_count(store: &MemoryStore, path: &TablePath) {
    edit(store, Key::table(path).expect("a name"), |table| {
        table["bucket_layout_epoch"] = json!(1);
    })
    .await;
    edit(
        store,
        Key::partition(path, "north").expect("a name"),
        |partition| {
            let fields = partition.as_object_mut().expect("an object");
            fields.remove("bucket_count").expect("it had a count");
            partition["version"] = json!(1);
        },
    )
    .await;
}

async fn append(cluster: &Cluster, path: &TablePath, batch: &RecordBatch) {
    let writer = cluster.writer(path).await;
    drop(
        writer
            .append(batch.clone())
            .await
            .expect("the rows are the table's"),
    );
    writer.close().await.expect("the rows are acknowledged");
}

/// What every manifest of the newest snapshot says, by our reader and by another one.
async fn assert_entries(lake: &Table, region: &str, expected: i32, buckets: &BTreeSet<i32>) {
    let schema = lake.latest_schema().await.expect("a schema");
    let of_region: Vec<_> = rows::entries(lake)
        .await
        .into_iter()
        .filter(|entry| {
            let partition = weir_lake_format::Partition::from_bytes(&entry.partition, &schema);
            partition
                .expect("a partition")
                .describe(&schema)
                .contains(region)
        })
        .collect();
    let counts: BTreeSet<i32> = of_region.iter().map(|entry| entry.total_buckets).collect();
    assert_eq!(counts, BTreeSet::from([expected]));
    let found: BTreeSet<i32> = of_region.iter().map(|entry| entry.bucket).collect();
    assert_eq!(found, *buckets);
    let mut independent: Vec<(Vec<u8>, i32, i32)> = avro::entries(lake).await;
    let partition = of_region[0].partition.clone();
    independent.retain(|(of, ..)| *of == partition);
    assert_eq!(independent.len(), of_region.len());
    assert!(
        independent.iter().all(|(_, _, total)| *total == expected),
        "{independent:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_of_three_buckets_in_a_table_of_four_is_tiered_as_three() {
    let store = MemoryStore::new();
    let mut cluster = start(&store).await;
    let path = path("regions");
    let (table, schema) = create(&cluster, &path).await;
    store_partition(&store, &path, table, 3).await;
    // A server learns of partitions it did not make when it starts.
    cluster.restart().await;

    let listed = cluster
        .client
        .list_partitions(&path)
        .await
        .expect("partitions are listed");
    assert_eq!(listed[0].bucket_count, Some(TotalBuckets(3)));
    let north = rows_of(&schema, 0..300, "region", "north");
    let south = rows_of(&schema, 300..600, "region", "south");
    append(&cluster, &path, &north).await;
    append(&cluster, &path, &south).await;
    let buckets = cluster.log_ends(&path).await;
    let of_north = |bucket: &BucketId| bucket.0;
    let enumerated: BTreeSet<i32> = buckets
        .keys()
        .filter(|bucket| bucket.partition == Some(listed[0].id))
        .map(|bucket| of_north(&bucket.bucket))
        .collect();
    assert_eq!(enumerated, BTreeSet::from([0, 1, 2]));

    cluster.tier().await;
    cluster.wait_tiered(&path).await;
    let tiered: BTreeSet<i32> = cluster
        .lake_ends(&path)
        .await
        .keys()
        .filter(|bucket| bucket.partition == Some(listed[0].id))
        .map(|bucket| bucket.bucket.0)
        .collect();
    assert_eq!(tiered, BTreeSet::from([0, 1, 2]));
    let lake = cluster.lake(&path).await;
    // The template of the lake table says 4, and nobody takes the count from there.
    let options = lake.latest_schema().await.expect("a schema").options;
    assert_eq!(options.get("bucket").map(String::as_str), Some("4"));
    assert_entries(&lake, "north", 3, &BTreeSet::from([0, 1, 2])).await;
    assert_entries(&lake, "south", 4, &BTreeSet::from([0, 1, 2, 3])).await;
    assert_eq!(rows::lake_texts(&lake).await, rows::texts([&north, &south]));

    // A second round keeps to it.
    let more = rows_of(&schema, 600..900, "region", "north");
    append(&cluster, &path, &more).await;
    cluster.wait_tiered(&path).await;
    assert_entries(&lake, "north", 3, &BTreeSet::from([0, 1, 2])).await;
    assert_eq!(
        rows::lake_texts(&lake).await,
        rows::texts([&north, &south, &more])
    );
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_count_above_epoch_0_stops_that_table_with_a_sentence_and_no_other() {
    let store = MemoryStore::new();
    let mut cluster = start(&store).await;
    let (lost, other) = (path("lost"), path("other"));
    let (table, schema) = create(&cluster, &lost).await;
    create(&cluster, &other).await;
    store_partition(&store, &lost, table, 3).await;
    cluster.restart().await;
    append(
        &cluster,
        &lost,
        &rows_of(&schema, 0..100, "region", "north"),
    )
    .await;
    lose_count(&store, &lost).await;

    cluster.tier().await;
    assert_stuck_beside(&mut cluster, (&lost, &other), &schema, 0).await;
    // The same after a start on such metadata: one table never keeps the others from their work.
    cluster.restart().await;
    cluster.tier().await;
    assert_stuck_beside(&mut cluster, (&lost, &other), &schema, 50).await;
    cluster.stop_tiering().await;

    // Put right, nothing is lost.
    edit(
        &store,
        Key::partition(&lost, "north").expect("a name"),
        |partition| {
            partition["version"] = json!(2);
            partition["bucket_count"] = json!(3);
        },
    )
    .await;
    cluster.restart().await;
    cluster.tier().await;
    cluster.wait_tiered(&lost).await;
    let lake = cluster.lake(&lost).await;
    assert_entries(&lake, "north", 3, &BTreeSet::from([0, 1, 2])).await;
    let written = rows_of(&schema, 0..100, "region", "north");
    assert_eq!(rows::lake_texts(&lake).await, rows::texts([&written]));
    cluster.stop().await;
}

/// The daemon says why `lost` is not tiered, while rows of `other` get to the lake.
async fn assert_stuck_beside(
    cluster: &mut Cluster,
    (lost, other): (&TablePath, &TablePath),
    schema: &Schema,
    from: i64,
) {
    let status = cluster
        .wait_status(lost, "the lost count is known as such", |status| {
            status.last_error.is_some()
        })
        .await;
    let error = status.last_error.clone().expect("it says why");
    assert!(!matches!(status.state, TableState::Healthy), "{status:?}");
    assert!(
        error.contains("north") || error.contains("partition"),
        "{error}"
    );
    assert!(
        error.contains("bucket count") || error.contains("metadata"),
        "{error}"
    );
    append(
        cluster,
        other,
        &rows_of(schema, from..from + 50, "region", "south"),
    )
    .await;
    cluster.wait_tiered(other).await;
    let lake = cluster.lake(lost).await;
    assert_eq!(
        lake.latest_snapshot_id().await.expect("the lake is there"),
        None
    );
}
