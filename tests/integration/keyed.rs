//! Tables with a primary key, end to end: upserts and deletes through the protocol, the merged lake,
//! and the audit of both.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::Int64Type;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use weir_lake_format::commit::{BaseView, RetryPolicy};
use weir_lake_format::{
    CommitKind, CommitOutcome, CommitRequest, MergeTreeWriter, Partition, RowKind, WriteTarget,
    WriterOptions,
};
use weir_protocol::descriptor::TableDescriptor;
use weir_protocol::ids::TablePath;
use weir_protocol::schema::{AggFunction, Schema, TypeKind};
use weir_tests::cluster::{Cluster, open_warehouse};
use weir_tests::rows;
use weir_tests::table::{bucketed, column, lake_table, partitioned, path, required};
use weir_tiering::cluster::TieringClient;
use weir_tiering::cluster::wire::WireCluster;
use weir_tiering::verify::{Report, audit};

/// What a key has by the model: partition and id to its amount.
type Model = BTreeMap<(String, i64), i64>;

/// `id`, `region`, `amount`: keyed by `keys`.
fn keyed(keys: &[&str]) -> TableDescriptor {
    let mut table = lake_table(vec![
        required("id", TypeKind::BigInt),
        required("region", TypeKind::String),
        column("amount", TypeKind::BigInt),
    ]);
    let keys = keys.iter().map(|key| (*key).to_owned()).collect();
    table.schema = Schema::new(table.schema.columns, keys).expect("a schema");
    bucketed(table, 2, &[])
}

fn regional() -> TableDescriptor {
    partitioned(keyed(&["id", "region"]), &["region"])
}

async fn create(cluster: &Cluster, path: &TablePath, table: &TableDescriptor) -> Schema {
    let created = cluster.client.create_table(path, table, false).await;
    created.expect("the table is created");
    cluster.client.schema(path, None).await.expect("a schema").1
}

fn batch(schema: &Schema, rows: &[(i64, &str, i64)]) -> RecordBatch {
    let ids = Int64Array::from_iter_values(rows.iter().map(|row| row.0));
    let regions = StringArray::from_iter_values(rows.iter().map(|row| row.1));
    let amounts = Int64Array::from_iter_values(rows.iter().map(|row| row.2));
    let columns: Vec<ArrayRef> = vec![Arc::new(ids), Arc::new(regions), Arc::new(amounts)];
    RecordBatch::try_new(schema.arrow_schema(), columns).expect("the table's rows")
}

/// The merged rows of the lake.
async fn merged(cluster: &Cluster, path: &TablePath) -> Model {
    let lake = cluster.lake(path).await;
    let mut found = Model::new();
    for batch in rows::lake_batches(&lake).await {
        let ids = batch["id"].as_primitive::<Int64Type>();
        let regions = batch["region"].as_string::<i32>();
        let amounts = batch["amount"].as_primitive::<Int64Type>();
        for row in 0..batch.num_rows() {
            let key = (regions.value(row).to_owned(), ids.value(row));
            let before = found.insert(key, amounts.value(row));
            assert_eq!(before, None, "a key has one row");
        }
    }
    found
}

async fn verified(cluster: &Cluster, path: &TablePath) -> Report {
    let client: Arc<dyn TieringClient> = Arc::new(WireCluster::new(&cluster.daemon_config()));
    let warehouse = open_warehouse(&cluster.warehouse());
    let report = audit(&client, &warehouse, path).await;
    report.expect("log and lake can be read")
}

/// What a put leaves of an amount.
type Put = fn(Option<&i64>, i64) -> i64;

fn last(_: Option<&i64>, amount: i64) -> i64 {
    amount
}

fn sum(before: Option<&i64>, amount: i64) -> i64 {
    before.unwrap_or(&0) + amount
}

/// Random upserts and deletes, in several rounds of tiering and over a restart.
async fn histories(table: &TableDescriptor, name: &str, regions: &[&str], put: Put, seed: u64) {
    let mut cluster = Cluster::start().await;
    let path = path(name);
    let schema = create(&cluster, &path, table).await;
    let mut rng = StdRng::seed_from_u64(seed);
    let mut model = Model::new();
    for round in 0..6 {
        cluster.tier().await;
        let writer = cluster.writer(&path).await;
        for _ in 0..20 {
            let is_delete = rng.random_bool(0.3);
            let count = rng.random_range(1..30);
            let mut changes = Vec::new();
            for _ in 0..count {
                let region = regions[rng.random_range(0..regions.len())];
                changes.push((rng.random_range(0..60), region, rng.random_range(0..1000)));
            }
            for (id, region, amount) in &changes {
                let key = ((*region).to_owned(), *id);
                if is_delete {
                    model.remove(&key);
                } else {
                    let amount = put(model.get(&key), *amount);
                    model.insert(key, amount);
                }
            }
            let rows = batch(&schema, &changes);
            let written = if is_delete {
                writer.delete(rows).await
            } else {
                writer.append(rows).await
            };
            drop(written.expect("the rows are the table's"));
            if rng.random_bool(0.2) {
                writer.flush().await.expect("they are acknowledged");
            }
        }
        writer.close().await.expect("they are acknowledged");
        cluster.wait_tiered(&path).await;
        assert_eq!(merged(&cluster, &path).await, model, "round {round}");
        let report = verified(&cluster, &path).await;
        assert_eq!(report.findings, []);
        assert_eq!(usize::try_from(report.compared_rows), Ok(model.len()));
        if round % 2 == 1 {
            cluster.restart().await;
        }
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn upserts_and_deletes_reach_the_lake_merged() {
    histories(&keyed(&["id"]), "upserts", &["here"], last, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn upserts_and_deletes_reach_each_partition_of_the_lake_merged() {
    histories(
        &regional(),
        "regional",
        &["north", "south", "west"],
        last,
        2,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changelog_without_old_rows_leaves_the_same_lake() {
    let table = weir_tests::table::with(keyed(&["id"]), "table.changelog.image", "wal");
    histories(&table, "wal", &["here"], last, 3).await;
}

/// The server adds up; the changelog has whole rows, so that the lake only takes the last one.
#[tokio::test(flavor = "multi_thread")]
async fn sums_reach_the_lake_as_the_server_made_them() {
    let table = weir_tests::table::with(keyed(&["id"]), "table.merge-engine", "aggregation");
    let mut table = weir_tests::table::with(table, "table.delete.behavior", "allow");
    for column in &mut table.schema.columns {
        column.agg_function = (column.name == "amount").then(|| AggFunction {
            kind: "SUM".to_owned(),
            parameters: BTreeMap::new(),
        });
    }
    histories(&table, "sums", &["here"], sum, 4).await;
}

/// Another writer counts sequence numbers on from what it finds; a later change of ours still wins.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_wins_over_an_earlier_one_of_another_writer_of_the_lake() {
    let mut cluster = Cluster::start().await;
    let path = path("others");
    let schema = create(&cluster, &path, &bucketed(keyed(&["id"]), 1, &[])).await;
    let put = async |cluster: &mut Cluster, amount: i64| {
        cluster.tier().await;
        let writer = cluster.writer(&path).await;
        let rows = batch(&schema, &[(1, "here", amount)]);
        drop(writer.append(rows).await.expect("the rows are the table's"));
        writer.close().await.expect("they are acknowledged");
        cluster.wait_tiered(&path).await;
        cluster.stop_tiering().await;
        let model = Model::from([(("here".to_owned(), 1), amount)]);
        assert_eq!(merged(cluster, &path).await, model);
    };
    put(&mut cluster, 10).await;
    let lake = cluster.lake(&path).await;
    let lake_schema = Arc::new(lake.latest_schema().await.expect("a schema"));
    let target = WriteTarget {
        schema: Arc::clone(&lake_schema),
        partition: Partition::unpartitioned(),
        bucket: 0,
        total_buckets: 1,
        // As if it had written so many rows before.
        first_sequence_number: 1_000_000,
    };
    let options = WriterOptions::new(&lake_schema, "theirs".to_owned(), 0).expect("options");
    let (store, root) = (Arc::clone(lake.store()), lake.root().clone());
    let writer = MergeTreeWriter::new(target, options, 1 << 20, store, root);
    let mut writer = writer.expect("a writer");
    let rows = batch(&schema, &[(1, "here", 11)]);
    let written = writer.write(rows, &[RowKind::Insert]).await;
    written.expect("the rows are the table's");
    let request = CommitRequest {
        commit_user: "theirs".to_owned(),
        commit_identifier: 1,
        kind: CommitKind::Append,
        messages: vec![writer.finish().await.expect("files")],
        deletes: Vec::new(),
        properties: BTreeMap::new(),
        allow_empty: false,
        uuid: "theirs".to_owned(),
        now_ms: 0,
    };
    let mut allowed = |_: &BaseView<'_>| Ok(());
    let retry = RetryPolicy::default();
    let committed = lake.commit(&request, &mut allowed, retry).await;
    assert!(matches!(committed, Ok(CommitOutcome::Committed(_))));
    assert_eq!(merged(&cluster, &path).await.values().max(), Some(&11));
    put(&mut cluster, 12).await;
    put(&mut cluster, 13).await;
    cluster.stop().await;
}

/// A row of the lake that is not the log's is found, and its key named.
#[tokio::test(flavor = "multi_thread")]
async fn the_audit_names_a_key_that_differs() {
    let mut cluster = Cluster::start().await;
    let path = path("differs");
    let schema = create(&cluster, &path, &keyed(&["id"])).await;
    cluster.tier().await;
    let writer = cluster.writer(&path).await;
    let rows = batch(
        &schema,
        &[(1, "here", 10), (2, "here", 20), (3, "here", 30)],
    );
    drop(writer.append(rows).await.expect("the rows are the table's"));
    writer.close().await.expect("they are acknowledged");
    cluster.wait_tiered(&path).await;
    cluster.stop_tiering().await;
    assert_eq!(verified(&cluster, &path).await.findings, []);

    // The newest row of a key, as a writer of the lake would have it that is not ours.
    let lake = weir_tests::tamper::Tampered::copy(&cluster.warehouse(), &path).await;
    let snapshot = lake.table.latest_snapshot_id().await.expect("snapshots");
    let snapshot = snapshot.expect("there is one");
    let entries = lake
        .table
        .live_entries(&lake.snapshot(snapshot).await)
        .await;
    let entry = entries.expect("entries").remove(0);
    lake.edit_manifest(snapshot, |entries| {
        entries.retain(|other| other.file.file_name != entry.file.file_name);
    })
    .await;
    let client: Arc<dyn TieringClient> = Arc::new(WireCluster::new(&cluster.daemon_config()));
    let report = audit(&client, &open_warehouse(lake.warehouse()), &path).await;
    let findings = report.expect("log and lake can be read").findings;
    let is_named = |text: &str| findings.iter().any(|finding| finding.reason.contains(text));
    assert!(is_named("missing in the lake"), "{findings:?}");
    cluster.stop().await;
}
