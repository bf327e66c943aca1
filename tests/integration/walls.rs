//! Blast walls: what is wrong with one table is that table's trouble, and is told with what to do.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, Int64Array, RecordBatch, TimestampSecondArray};
use weir_lake_format::TableSchema;
use weir_protocol::client::admin::TableChanges;
use weir_protocol::ids::TablePath;
use weir_protocol::schema::{Schema, TypeKind};
use weir_tests::cluster::{Cluster, until};
use weir_tests::rows;
use weir_tests::table::{bucketed, column, lake_table, path, plain, required, rows as make_rows};
use weir_tiering::bad_records::replay::all_records;
use weir_tiering::status::{TableState, TableStatus};

/// Tables, and how many of them are poisoned.
const TABLES: usize = 50;
const POISONED: usize = 3;
/// Rounds of appends.
const WAVES: i64 = 6;

async fn create(cluster: &Cluster, path: &TablePath) -> Schema {
    let table = bucketed(plain(), 1, &[]);
    let created = cluster.client.create_table(path, &table, false).await;
    created.expect("the table is created");
    cluster.client.schema(path, None).await.expect("a schema").1
}

async fn append(cluster: &Cluster, path: &TablePath, batch: RecordBatch) {
    let writer = cluster.writer(path).await;
    drop(
        writer
            .append(batch)
            .await
            .expect("the rows are the table's"),
    );
    writer.close().await.expect("the rows are acknowledged");
}

/// Publishes a changed schema of the lake table, as another engine would.
async fn alter_lake(cluster: &Cluster, path: &TablePath, change: impl FnOnce(&mut TableSchema)) {
    let lake = cluster.lake(path).await;
    let mut schema = lake.latest_schema().await.expect("a schema");
    schema.id += 1;
    change(&mut schema);
    lake.add_schema(&schema)
        .await
        .expect("the schema is published");
}

fn is_paused(status: &TableStatus) -> bool {
    matches!(status.state, TableState::Paused { .. })
}

#[tokio::test(flavor = "multi_thread")]
async fn fc_108_a_year_beyond_the_lakes_range_stops_its_table_or_is_diverted() {
    let mut cluster = Cluster::start().await;
    let path = path("years");
    let columns = vec![
        required("id", TypeKind::BigInt),
        column("at", TypeKind::Timestamp { precision: 0 }),
    ];
    let table = bucketed(lake_table(columns), 1, &[]);
    let created = cluster.client.create_table(&path, &table, false).await;
    created.expect("the table is created");
    let (_, schema) = cluster.client.schema(&path, None).await.expect("a schema");
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..1_000));
    // Seconds that are no milliseconds any more: 2.8 billion years from now.
    let at = (0..1_000).map(|id| {
        if id == 499 {
            90_000_000_000_000_000
        } else {
            id
        }
    });
    let at: ArrayRef = Arc::new(TimestampSecondArray::from_iter_values(at));
    let batch = RecordBatch::try_new(schema.arrow_schema(), vec![ids, at]).expect("a batch");
    append(&cluster, &path, batch).await;
    cluster.tier().await;
    let status = cluster
        .wait_status(&path, "the table stops", is_paused)
        .await;
    let reason = status.last_error.expect("a reason");
    assert!(
        reason.starts_with("bucket 0: offset 499, column at: "),
        "{reason}"
    );
    assert_eq!(
        rows::lake_texts(&cluster.lake(&path).await).await.len(),
        499
    );

    let changes = TableChanges {
        set: vec![("weir.bad-record".to_owned(), "divert".to_owned())],
        ..TableChanges::default()
    };
    let altered = cluster.client.alter_table(&path, &changes, false).await;
    altered.expect("the policy changes");
    cluster.wait_tiered(&path).await;
    cluster
        .wait_status(&path, "the table is well again", |status| {
            status.state == TableState::Healthy
        })
        .await;
    assert_eq!(
        rows::lake_texts(&cluster.lake(&path).await).await.len(),
        999
    );
    let info = cluster.client.table_info(&path).await.expect("the table");
    let place = cluster
        .open_warehouse()
        .bad_records(&path, &BTreeMap::new());
    let records = all_records(&place.expect("a place"), info.table_id)
        .await
        .expect("records");
    let found: Vec<_> = records
        .iter()
        .map(|r| (r.offset.0, r.column.as_str()))
        .collect();
    assert_eq!(found, [(499, "at")]);
    cluster.stop().await;
}

/// When each table's last row was appended.
type Appended = BTreeMap<TablePath, Instant>;

/// Appends one row to each table.
async fn wave(cluster: &Cluster, tables: &[TablePath], schema: &Schema, row: i64) -> Appended {
    let mut appended = Appended::new();
    for path in tables {
        append(cluster, path, make_rows(schema, row..row + 1)).await;
        appended.insert(path.clone(), Instant::now());
    }
    appended
}

/// Waits until the lake has the wave, and says how long each table's row took.
async fn wait_visible(
    cluster: &Cluster,
    tables: &[TablePath],
    appended: &Appended,
) -> Vec<Duration> {
    let ends = futures::future::join_all(tables.iter().map(|path| cluster.log_ends(path))).await;
    let mut waiting: Vec<_> = tables.iter().zip(ends).collect();
    let mut took = Vec::new();
    while !waiting.is_empty() {
        let (path, ends) = waiting.remove(0);
        until(&format!("{path} has its row in the lake"), || async {
            let lake = cluster.lake_ends(path).await;
            ends.iter()
                .all(|(bucket, end)| lake.get(bucket) >= Some(end))
                .then_some(())
        })
        .await;
        took.push(appended[path].elapsed());
    }
    took
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_tables_of_which_three_are_poisoned_and_the_others_keep_their_freshness() {
    let mut cluster = Cluster::start().await;
    let all: Vec<TablePath> = (0..TABLES).map(|n| path(&format!("t{n:02}"))).collect();
    let mut schema = None;
    for path in &all {
        schema = Some(create(&cluster, path).await);
    }
    let schema = schema.expect("tables");
    let (poisoned, well) = all.split_at(POISONED);
    let [bad_row, deleted, blocked] = poisoned else {
        panic!("three are poisoned")
    };
    // A lake that forbids what the rows hold; a lake table that is gone; one whose files can't be
    // written, for a file is where their folder belongs.
    alter_lake(&cluster, bad_row, |schema| {
        let name = &mut schema.fields[1].data_type;
        *name = name.kind.clone().not_null();
    })
    .await;
    let folder = |path: &TablePath| {
        let warehouse = cluster.warehouse();
        warehouse
            .join(format!("{}.db", path.database))
            .join(&path.table)
    };
    std::fs::remove_dir_all(folder(deleted)).expect("the lake table goes");
    std::fs::write(folder(blocked).join("bucket-0"), b"in the way").expect("a file");

    let handle = cluster.tier().await;
    let mut took = Vec::new();
    for row in 0..WAVES {
        // Of every seventh row the name is null.
        let appended = wave(&cluster, &all, &schema, row).await;
        took.extend(wait_visible(&cluster, well, &appended).await);
    }
    let of = |path: &TablePath| {
        let statuses = handle.status();
        statuses
            .into_iter()
            .find(|status| status.path == *path)
            .expect("a status")
    };
    for path in well {
        let status = of(path);
        assert_eq!(
            (status.state, status.last_error),
            (TableState::Healthy, None),
            "{path}"
        );
    }
    for (path, reason) in [
        (bad_row, "column name: null in a column that forbids it"),
        (deleted, "there is no lake table"),
        (blocked, "bucket-0"),
    ] {
        let status = cluster
            .wait_status(path, "a poisoned table says so", |status| {
                status.state != TableState::Healthy
            })
            .await;
        let said = status.last_error.unwrap_or_default();
        assert!(said.contains(reason), "{path}: {said}");
    }
    took.sort_unstable();
    let ms = |part: usize| took[(took.len() - 1) * part / 100].as_millis();
    println!(
        "freshness 1 s, {} tables, {POISONED} poisoned: append to visible p50 {} ms, p99 {} ms, max {} ms",
        TABLES,
        ms(50),
        ms(99),
        ms(100)
    );
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fc_075_idle_tables_cost_no_round_and_delay_no_other() {
    let mut cluster = Cluster::start().await;
    let idle: Vec<TablePath> = (0..10).map(|n| path(&format!("idle{n}"))).collect();
    let busy = path("busy");
    let schema = create(&cluster, &busy).await;
    for path in &idle {
        create(&cluster, path).await;
        append(&cluster, path, make_rows(&schema, 0..1)).await;
    }
    let handle = cluster.tier().await;
    for path in &idle {
        cluster.wait_tiered(path).await;
    }
    let rounds = || {
        let statuses = handle.status().into_iter();
        let rounds = statuses.map(|status| (status.path, status.last_round.map(|round| round.id)));
        rounds
            .filter(|(path, _)| *path != busy)
            .collect::<BTreeMap<_, _>>()
    };
    let before = rounds();
    assert_eq!(before.len(), idle.len());
    let mut took = Vec::new();
    for row in 0..8 {
        let appended = wave(&cluster, std::slice::from_ref(&busy), &schema, row).await;
        took.extend(wait_visible(&cluster, std::slice::from_ref(&busy), &appended).await);
    }
    assert_eq!(
        rounds(),
        before,
        "no idle table had a round that did anything"
    );
    for path in &idle {
        let ids = cluster
            .lake(path)
            .await
            .snapshot_ids()
            .await
            .expect("snapshots");
        assert_eq!(ids, [1], "{path}");
    }
    took.sort_unstable();
    println!(
        "freshness 1 s, 10 idle tables beside it: append to visible at most {:?}",
        took.last()
    );
    cluster.stop().await;
}
