//! Old rows go, but never one that is not in the lake yet.

use std::sync::Arc;
use std::time::Duration;

use weir_catalog::clock::ManualClock;
use weir_protocol::descriptor::TableDescriptor;
use weir_protocol::ids::TablePath;
use weir_protocol::schema::{Schema, TypeKind};
use weir_tests::cluster::{Cluster, Setup, until};
use weir_tests::rows;
use weir_tests::table::{
    bucketed, column, lake_table, partitioned, path, plain, required, rows as make_rows, rows_of,
    with,
};

const HOUR: Duration = Duration::from_hours(1);
const DAY: Duration = Duration::from_hours(24);
/// 2024-03-10T12:00:00Z.
const NOON: i64 = 1_710_072_000_000;

async fn start(clock: &Arc<ManualClock>) -> Cluster {
    let (clock, tune) = (
        Arc::clone(clock),
        |config: &mut weir_server::ServerConfig| {
            config.log.retention_check_ms = 50;
        },
    );
    Cluster::start_with(Setup {
        clock,
        tune,
        store: None,
    })
    .await
}

async fn create(cluster: &Cluster, path: &TablePath, table: &TableDescriptor) -> Schema {
    cluster
        .client
        .create_table(path, table, false)
        .await
        .expect("the table is created");
    cluster.client.schema(path, None).await.expect("a schema").1
}

async fn append(cluster: &Cluster, path: &TablePath, batch: arrow::array::RecordBatch) {
    let writer = cluster.writer(path).await;
    drop(
        writer
            .append(batch)
            .await
            .expect("the rows are the table's"),
    );
    writer.close().await.expect("the rows are acknowledged");
}

fn without_lake(table: TableDescriptor) -> TableDescriptor {
    with(table, "table.datalake.enabled", "false")
}

async fn starts(cluster: &Cluster, path: &TablePath) -> Vec<i64> {
    cluster
        .log_starts(path)
        .await
        .values()
        .map(|start| start.0)
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn fc_079_log_retention_waits_for_the_lake_and_says_how_much() {
    let clock = Arc::new(ManualClock::new(NOON));
    let mut cluster = start(&clock).await;
    let (lake, control) = (path("lake"), path("control"));
    let table = with(bucketed(plain(), 1, &[]), "table.log.ttl", "1h");
    let schema = create(&cluster, &lake, &table).await;
    create(&cluster, &control, &without_lake(table)).await;
    append(&cluster, &lake, make_rows(&schema, 0..100)).await;
    append(&cluster, &control, make_rows(&schema, 0..100)).await;

    clock.advance(2 * HOUR);
    // The control's rows are gone: retention has looked at both, maybe more than once.
    until("old rows without a lake go", || async {
        (starts(&cluster, &control).await == [100]).then_some(())
    })
    .await;
    assert_eq!(starts(&cluster, &lake).await, [0]);
    let id = cluster
        .client
        .table_info(&lake)
        .await
        .expect("the table")
        .table_id;
    let held = until("what is held is told", || async {
        cluster.held().get(&id).copied()
    })
    .await;
    assert!(held.bytes > 100 && held.partitions == 0, "{held:?}");
    assert_eq!(held.oldest_ms, Some(NOON));
    append(&cluster, &control, make_rows(&schema, 100..110)).await;
    clock.advance(2 * HOUR);
    until("retention looks again", || async {
        (starts(&cluster, &control).await == [110]).then_some(())
    })
    .await;
    assert_eq!(starts(&cluster, &lake).await, [0]);

    // A restart changes nothing about it.
    cluster.restart().await;
    append(&cluster, &lake, make_rows(&schema, 100..150)).await;
    append(&cluster, &control, make_rows(&schema, 110..120)).await;
    clock.advance(2 * HOUR);
    until("retention looks after the restart", || async {
        (starts(&cluster, &control).await == [120]).then_some(())
    })
    .await;
    assert_eq!(starts(&cluster, &lake).await, [0]);

    cluster.tier().await;
    cluster.wait_tiered(&lake).await;
    until("tiered rows go", || async {
        (starts(&cluster, &lake).await == [150]).then_some(())
    })
    .await;
    until("nothing is held any more", || async {
        cluster.held().is_empty().then_some(())
    })
    .await;
    append(&cluster, &lake, make_rows(&schema, 150..160)).await;
    cluster.wait_tiered(&lake).await;
    let written = rows::texts(&[make_rows(&schema, 0..160)]);
    assert_eq!(rows::lake_texts(&cluster.lake(&lake).await).await, written);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fc_079_partition_retention_waits_for_the_lake_and_says_how_much() {
    let clock = Arc::new(ManualClock::new(NOON));
    let mut cluster = start(&clock).await;
    let (lake, control) = (path("days"), path("days_control"));
    let columns = vec![
        required("id", TypeKind::BigInt),
        required("dt", TypeKind::String),
        column("name", TypeKind::String),
    ];
    let mut table = partitioned(bucketed(lake_table(columns), 2, &["id"]), &["dt"]);
    for (key, value) in [
        ("enabled", "true"),
        ("time-unit", "DAY"),
        ("time-zone", "UTC"),
        ("num-precreate", "1"),
        ("num-retention", "2"),
    ] {
        table = with(table, &format!("table.auto-partition.{key}"), value);
    }
    let schema = create(&cluster, &lake, &table).await;
    create(&cluster, &control, &without_lake(table)).await;
    for path in [&lake, &control] {
        wait_partitions(&cluster, path, |names| names == ["20240310"]).await;
        append(&cluster, path, rows_of(&schema, 0..60, "dt", "20240310")).await;
    }

    clock.advance(10 * DAY);
    wait_partitions(&cluster, &control, |names| names == ["20240320"]).await;
    wait_partitions(&cluster, &lake, |names| names == ["20240310", "20240320"]).await;
    let id = cluster
        .client
        .table_info(&lake)
        .await
        .expect("the table")
        .table_id;
    let held = until("what is held is told", || async {
        let held = cluster.held().get(&id).copied();
        held.filter(|held| held.bytes > 0)
    })
    .await;
    assert_eq!((held.partitions, held.oldest_ms), (1, Some(NOON)));
    clock.advance(DAY);
    wait_partitions(&cluster, &control, |names| {
        names == ["20240320", "20240321"]
    })
    .await;
    wait_partitions(&cluster, &lake, |names| {
        names == ["20240310", "20240320", "20240321"]
    })
    .await;

    cluster.tier().await;
    wait_partitions(&cluster, &lake, |names| names == ["20240320", "20240321"]).await;
    // Gone from the stream, kept in the lake.
    let written = rows::texts(&[rows_of(&schema, 0..60, "dt", "20240310")]);
    assert_eq!(rows::lake_texts(&cluster.lake(&lake).await).await, written);
    append(&cluster, &lake, rows_of(&schema, 60..70, "dt", "20240321")).await;
    cluster.wait_tiered(&lake).await;
    cluster.stop().await;
}

async fn wait_partitions(cluster: &Cluster, path: &TablePath, look: impl Fn(&[String]) -> bool) {
    let what = format!("partitions of {path} follow the time");
    until(&what, || async {
        let found = cluster
            .client
            .list_partitions(path)
            .await
            .expect("partitions are listed");
        let mut names: Vec<String> = found.into_iter().map(|one| one.name).collect();
        names.sort_unstable();
        look(&names).then_some(())
    })
    .await;
}
