//! From an append to rows in the lake.

use arrow::array::RecordBatch;
use weir_protocol::client::admin::TableChanges;
use weir_protocol::descriptor::TableDescriptor;
use weir_protocol::ids::TablePath;
use weir_protocol::proto::{GetLakeSnapshotRequest, PbTablePath};
use weir_protocol::schema::{Schema, TypeKind};
use weir_tests::cluster::{Cluster, until};
use weir_tests::rows;
use weir_tests::table::{
    bucketed, column, every_type, lake_table, partitioned, path, plain, required,
    rows as make_rows, rows_of, with,
};
use weir_tiering::status::TableState;

async fn create(cluster: &Cluster, path: &TablePath, descriptor: &TableDescriptor) -> Schema {
    cluster
        .client
        .create_table(path, descriptor, false)
        .await
        .expect("the table is created");
    let (_, schema) = cluster
        .client
        .schema(path, None)
        .await
        .expect("the table has a schema");
    schema
}

async fn append(cluster: &Cluster, path: &TablePath, batches: &[RecordBatch]) {
    let writer = cluster.writer(path).await;
    for batch in batches {
        // Each append is a batch of its own, so that logs have several.
        drop(
            writer
                .append(batch.clone())
                .await
                .expect("the rows are the table's"),
        );
        writer.flush().await.expect("the rows are acknowledged");
    }
    writer.close().await.expect("nothing is left");
}

/// Appends these batches to a new table, tiers it and compares.
async fn comes_back(
    name: &str,
    descriptor: TableDescriptor,
    make: impl Fn(&Schema) -> Vec<RecordBatch>,
) {
    let mut cluster = Cluster::start().await;
    let path = path(name);
    let schema = create(&cluster, &path, &descriptor).await;
    let batches = make(&schema);
    append(&cluster, &path, &batches).await;
    cluster.tier().await;
    cluster.wait_tiered(&path).await;
    let lake = cluster.lake(&path).await;
    let (written, read) = (rows::texts(&batches), rows::lake_texts(&lake).await);
    assert!(!written.is_empty());
    assert_eq!(read, written);
    let snapshot = async |readable: bool| {
        let request = GetLakeSnapshotRequest {
            table_path: PbTablePath {
                database_name: path.database.clone(),
                table_name: path.table.clone(),
            },
            readable: readable.then_some(true),
            ..GetLakeSnapshotRequest::default()
        };
        let told = cluster.client.any_server(request).await;
        told.expect("a snapshot is told")
    };
    // Readers of the reference ask for the snapshot that can be read; of a log table that is each.
    assert_eq!(snapshot(true).await, snapshot(false).await);
    for entry in rows::entries(&lake).await {
        let count = descriptor
            .bucket_count
            .filter(|_| !descriptor.bucket_keys.is_empty());
        assert_eq!(entry.total_buckets, count.unwrap_or(-1), "{entry:?}");
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_type_comes_back_from_a_table_without_partitions_and_bucket_key() {
    comes_back("types", lake_table(every_type()), |schema| {
        vec![
            make_rows(schema, 0..100),
            make_rows(schema, 100..101),
            make_rows(schema, 101..300),
        ]
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_type_comes_back_from_buckets_chosen_by_a_key() {
    comes_back(
        "keyed",
        bucketed(lake_table(every_type()), 3, &["id"]),
        |schema| vec![make_rows(schema, 0..200), make_rows(schema, 200..350)],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_type_comes_back_from_partitions_with_buckets() {
    let mut columns = every_type();
    columns.push(required("region", TypeKind::String));
    let table = bucketed(partitioned(lake_table(columns), &["region"]), 2, &["id"]);
    comes_back("regions", table, |schema| {
        ["north", "south", "a-b_C"]
            .iter()
            .zip(0_i64..)
            .map(|(region, at)| rows_of(schema, at * 100..at * 100 + 80, "region", region))
            .collect()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn partitions_of_two_columns_without_bucket_key_come_back() {
    let columns = vec![
        required("id", TypeKind::BigInt),
        required("day", TypeKind::Date),
        required("site", TypeKind::String),
        column("name", TypeKind::String),
    ];
    let table = bucketed(partitioned(lake_table(columns), &["site", "day"]), 3, &[]);
    // Ten days are ten partitions.
    comes_back("sites", table, |schema| {
        vec![
            rows_of(schema, 0..10, "site", "x"),
            rows_of(schema, 5..10, "site", "y"),
        ]
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_column_added_midway_is_null_in_rows_from_before() {
    let mut cluster = Cluster::start().await;
    let path = path("grows");
    let before = create(&cluster, &path, &bucketed(plain(), 2, &["id"])).await;
    let old = make_rows(&before, 0..50);
    append(&cluster, &path, std::slice::from_ref(&old)).await;
    cluster.tier().await;
    cluster.wait_tiered(&path).await;

    // A writer with the old schema goes on beside the new one.
    let late = cluster.writer(&path).await;
    let changes = TableChanges {
        add_columns: vec![column("score", TypeKind::Double)],
        ..TableChanges::default()
    };
    cluster
        .client
        .alter_table(&path, &changes, false)
        .await
        .expect("the column is added");
    let (_, after) = cluster.client.schema(&path, None).await.expect("a schema");
    let new = make_rows(&after, 50..120);
    append(&cluster, &path, std::slice::from_ref(&new)).await;
    let later = make_rows(&before, 120..140);
    drop(
        late.append(later.clone())
            .await
            .expect("the rows are of a schema of the table"),
    );
    late.close().await.expect("an old schema stays good");
    cluster.wait_tiered(&path).await;

    let padded = |batch: &RecordBatch| {
        let mut columns = batch.columns().to_vec();
        columns.push(arrow::array::new_null_array(
            &arrow::datatypes::DataType::Float64,
            batch.num_rows(),
        ));
        RecordBatch::try_new(after.arrow_schema(), columns).expect("a column more")
    };
    let written = rows::texts(&[padded(&old), new, padded(&later)]);
    assert_eq!(rows::lake_texts(&cluster.lake(&path).await).await, written);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_are_tiered_side_by_side_and_idle_ones_get_no_snapshot() {
    let mut cluster = Cluster::start_with(weir_tests::cluster::Setup {
        tune: |config| config.tablets = 2,
        ..weir_tests::cluster::Setup::default()
    })
    .await;
    cluster.tier().await;
    let paths: Vec<TablePath> = (0..4)
        .map(|number| path(&format!("side_{number}")))
        .collect();
    let mut written = Vec::new();
    for path in &paths {
        let schema = create(&cluster, path, &bucketed(plain(), 2, &["id"])).await;
        written.push(make_rows(&schema, 0..200));
    }
    let appends = paths.iter().zip(&written).skip(1);
    let appends = appends.map(|(path, batch)| append(&cluster, path, std::slice::from_ref(batch)));
    futures::future::join_all(appends).await;
    for (path, batch) in paths.iter().zip(&written).skip(1) {
        cluster.wait_tiered(path).await;
        assert_eq!(
            rows::lake_texts(&cluster.lake(path).await).await,
            rows::texts([batch])
        );
    }
    let idle = cluster.lake(&paths[0]).await;
    assert_eq!(
        idle.latest_snapshot_id().await.expect("the lake is there"),
        None
    );
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_whose_lake_table_was_replaced_does_not_hold_up_others() {
    let mut cluster = Cluster::start().await;
    let (poisoned, healthy) = (path("poisoned"), path("healthy"));
    let schema = create(&cluster, &poisoned, &plain()).await;
    create(&cluster, &healthy, &plain()).await;
    let lake = cluster.lake(&poisoned).await;
    let folder = cluster.warehouse().join("fluss.db/poisoned");
    // Another table of the same name, whose `id` is a text.
    let mut other = lake.latest_schema().await.expect("a schema");
    other.fields[0].data_type = weir_lake_format::TypeKind::string().not_null();
    std::fs::write(
        folder.join("schema/schema-0"),
        other.to_json().expect("a schema"),
    )
    .unwrap();

    append(&cluster, &poisoned, &[make_rows(&schema, 0..10)]).await;
    cluster.tier().await;
    for round in 0..3 {
        append(
            &cluster,
            &healthy,
            &[make_rows(&schema, round * 10..round * 10 + 10)],
        )
        .await;
        cluster.wait_tiered(&healthy).await;
    }
    let status = cluster
        .wait_status(&poisoned, "the poisoned table is known as such", |status| {
            status.last_error.is_some()
        })
        .await;
    assert!(!matches!(status.state, TableState::Healthy), "{status:?}");
    let error = status.last_error.expect("it says why");
    assert!(
        error.contains("poisoned") && error.contains("id"),
        "{error}"
    );
    assert!(cluster.lake_ends(&poisoned).await.is_empty());

    // Put right, it goes on by itself: nothing was lost.
    let right = cluster
        .lake(&healthy)
        .await
        .latest_schema()
        .await
        .expect("a schema");
    std::fs::write(
        folder.join("schema/schema-0"),
        right.to_json().expect("a schema"),
    )
    .unwrap();
    cluster.wait_tiered(&poisoned).await;
    let rows = rows::lake_texts(&cluster.lake(&poisoned).await).await;
    assert_eq!(rows, rows::texts([&make_rows(&schema, 0..10)]));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_is_not_for_the_lake_is_left_alone() {
    let mut cluster = Cluster::start().await;
    cluster.tier().await;
    let (out, control) = (path("out"), path("control"));
    let schema = create(
        &cluster,
        &out,
        &with(plain(), "table.datalake.enabled", "false"),
    )
    .await;
    create(&cluster, &control, &plain()).await;
    append(&cluster, &out, &[make_rows(&schema, 0..10)]).await;
    append(&cluster, &control, &[make_rows(&schema, 0..10)]).await;
    cluster.wait_tiered(&control).await;
    assert!(cluster.lake_ends(&out).await.is_empty());
    assert!(!cluster.warehouse().join("fluss.db/out").exists());
    // Enabled later, it is tiered from its beginning.
    let changes = TableChanges {
        set: vec![("table.datalake.enabled".to_owned(), "true".to_owned())],
        ..TableChanges::default()
    };
    cluster
        .client
        .alter_table(&out, &changes, false)
        .await
        .expect("it is enabled");
    cluster.wait_tiered(&out).await;
    let rows = rows::lake_texts(&cluster.lake(&out).await).await;
    assert_eq!(rows, rows::texts([&make_rows(&schema, 0..10)]));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn empty_batches_advance_progress_without_rows() {
    let mut cluster = Cluster::start().await;
    let path = path("hollow");
    let schema = create(&cluster, &path, &bucketed(plain(), 1, &["id"])).await;
    let table = cluster
        .client
        .table_info(&path)
        .await
        .expect("the table")
        .table_id;
    let mut wire = weir_tests::wire::Wire::connect(&cluster.tablet_addr()).await;
    let before = weir_tests::wire::produce_empty(&mut wire, table, 2).await;
    assert_eq!(before, 0);
    append(&cluster, &path, &[make_rows(&schema, 0..5)]).await;
    weir_tests::wire::produce_empty(&mut wire, table, 3).await;
    cluster.tier().await;
    cluster.wait_tiered(&path).await;
    let ends: Vec<i64> = cluster
        .lake_ends(&path)
        .await
        .values()
        .map(|end| end.0)
        .collect();
    assert_eq!(ends, [10]);
    let rows = rows::lake_texts(&cluster.lake(&path).await).await;
    assert_eq!(rows, rows::texts([&make_rows(&schema, 0..5)]));

    // Nothing but empty batches: the round moves the table on all the same.
    weir_tests::wire::produce_empty(&mut wire, table, 1).await;
    until("progress passes the last batch", || async {
        cluster
            .lake_ends(&path)
            .await
            .values()
            .all(|end| end.0 == 11)
            .then_some(())
    })
    .await;
    cluster.stop().await;
}
