//! A table's bucket count changes while it is in use: partitions that are there keep theirs.

use std::collections::{BTreeMap, BTreeSet};

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::Int64Type;
use futures::TryStreamExt;
use futures::future::join_all;
use weir_lake_format::{Filter, Table};
use weir_protocol::client::admin::TableChanges;
use weir_protocol::descriptor::TableDescriptor;
use weir_protocol::ids::{TablePath, TotalBuckets};
use weir_protocol::partition::PartitionSpec;
use weir_protocol::proto::{FetchLogRequest, PbFetchLogReqForBucket, PbFetchLogReqForTable};
use weir_protocol::schema::{Schema, TypeKind};
use weir_tests::cluster::{Cluster, until};
use weir_tests::table::{
    bucketed, column, lake_table, partitioned, path, plain, required, rows_of,
};
use weir_tests::wire::Wire;
use weir_tests::{avro, rows};

/// A table of `count` buckets in each partition, partitioned by `dt` and keyed by `id`.
fn daily(count: i32) -> TableDescriptor {
    let columns = vec![
        required("id", TypeKind::BigInt),
        required("dt", TypeKind::String),
        column("name", TypeKind::String),
    ];
    bucketed(partitioned(lake_table(columns), &["dt"]), count, &["id"])
}

async fn create(cluster: &Cluster, path: &TablePath, table: &TableDescriptor) -> Schema {
    let created = cluster.client.create_table(path, table, false).await;
    created.expect("the table is created");
    cluster.client.schema(path, None).await.expect("a schema").1
}

async fn rescale(cluster: &Cluster, path: &TablePath, count: i32) {
    let changes = TableChanges {
        bucket_count: Some(TotalBuckets(count)),
        ..TableChanges::default()
    };
    let altered = cluster.client.alter_table(path, &changes, false).await;
    altered.expect("the count changes");
}

async fn append(cluster: &Cluster, path: &TablePath, batches: &[RecordBatch]) {
    let writer = cluster.writer(path).await;
    for batch in batches {
        let appended = writer.append(batch.clone()).await;
        drop(appended.expect("the rows are the table's"));
    }
    writer.close().await.expect("the rows are acknowledged");
}

fn of_day(schema: &Schema, ids: impl IntoIterator<Item = i64>, day: &str) -> Vec<RecordBatch> {
    let ids = ids.into_iter();
    ids.map(|id| rows_of(schema, id..id + 1, "dt", day))
        .collect()
}

/// The ids in each bucket of a partition of the lake.
async fn ids_by_bucket(lake: &Table, day: &str) -> BTreeMap<i32, BTreeSet<i64>> {
    let schema = lake.latest_schema().await.expect("a schema");
    let snapshot = lake.latest_snapshot().await.expect("snapshots can be read");
    let snapshot = snapshot.expect("there is a snapshot");
    let plan = lake.plan(&snapshot, &Filter::default()).await;
    let mut found = BTreeMap::<i32, BTreeSet<i64>>::new();
    for split in plan.expect("a plan") {
        if !split.partition.describe(&schema).contains(day) {
            continue;
        }
        let batches = lake.read_split(&split, Some(&["id"])).await;
        let batches: Vec<_> = batches.expect("a split").try_collect().await.expect("rows");
        let ids = batches
            .iter()
            .flat_map(|batch| batch.column(0).as_primitive::<Int64Type>().values().iter());
        found.entry(split.bucket).or_default().extend(ids);
    }
    found
}

/// What another reader finds stamped on the files of each partition: bucket counts.
async fn stamps(lake: &Table) -> BTreeMap<String, BTreeSet<i32>> {
    let schema = lake.latest_schema().await.expect("a schema");
    let mut found = BTreeMap::<String, BTreeSet<i32>>::new();
    for (bytes, _, total) in avro::entries(lake).await {
        let partition = weir_lake_format::Partition::from_bytes(&bytes, &schema);
        let name = partition.expect("a partition").describe(&schema);
        found.entry(name).or_default().insert(total);
    }
    found
}

async fn files(lake: &Table, day: &str) -> BTreeSet<String> {
    let schema = lake.latest_schema().await.expect("a schema");
    let entries = rows::entries(lake).await.into_iter();
    let of_day = entries.filter(|entry| {
        let partition = weir_lake_format::Partition::from_bytes(&entry.partition, &schema);
        partition
            .expect("a partition")
            .describe(&schema)
            .contains(day)
    });
    of_day.map(|entry| entry.file.file_name).collect()
}

fn buckets<const N: usize>(of: [(i32, &[i64]); N]) -> BTreeMap<i32, BTreeSet<i64>> {
    of.map(|(bucket, ids)| (bucket, ids.iter().copied().collect()))
        .into()
}

/// FC-033 as far as tables without a primary key go; then up, down, and down to one.
#[tokio::test(flavor = "multi_thread")]
async fn fc_033_a_partition_keeps_its_buckets_when_the_count_changes() {
    let mut cluster = Cluster::start().await;
    let path = path("layout");
    let schema = create(&cluster, &path, &daily(2)).await;
    cluster.tier().await;
    append(&cluster, &path, &of_day(&schema, 0..8, "20240301")).await;
    cluster.wait_tiered(&path).await;
    let lake = cluster.lake(&path).await;
    let old = files(&lake, "20240301").await;

    rescale(&cluster, &path, 4).await;
    let template = || async {
        let options = lake.latest_schema().await.expect("a schema").options;
        options.get("bucket").cloned()
    };
    assert_eq!(template().await.as_deref(), Some("4"));
    append(&cluster, &path, &of_day(&schema, 0..8, "20240302")).await;
    append(&cluster, &path, &of_day(&schema, [8], "20240301")).await;
    cluster.wait_tiered(&path).await;
    let first = buckets([(0, &[1, 2, 4, 5, 6, 8]), (1, &[0, 3, 7])]);
    let second = buckets([(0, &[2, 5, 6]), (1, &[3]), (2, &[1, 4]), (3, &[0, 7])]);
    assert_eq!(ids_by_bucket(&lake, "20240301").await, first);
    assert_eq!(ids_by_bucket(&lake, "20240302").await, second);
    assert!(files(&lake, "20240301").await.is_superset(&old));

    for (count, day) in [(8, "20240303"), (4, "20240304"), (1, "20240305")] {
        rescale(&cluster, &path, count).await;
        append(&cluster, &path, &of_day(&schema, 0..8, day)).await;
    }
    // A round of a partition of before, with the count of after.
    append(&cluster, &path, &of_day(&schema, [9], "20240302")).await;
    cluster.wait_tiered(&path).await;
    assert_eq!(ids_by_bucket(&lake, "20240304").await, second);
    let one = buckets([(0, &[0, 1, 2, 3, 4, 5, 6, 7])]);
    assert_eq!(ids_by_bucket(&lake, "20240305").await, one);
    let stamps: Vec<_> = stamps(&lake).await.into_values().collect();
    let wanted = [2, 4, 8, 4, 1].map(|count| BTreeSet::from([count]));
    assert_eq!(stamps, wanted);
    assert_eq!(rows::lake_texts(&lake).await.len(), 17 + 3 * 8 + 1);
    assert_eq!(template().await.as_deref(), Some("1"));

    // After a start everything is as it was.
    cluster.restart().await;
    cluster.tier().await;
    append(&cluster, &path, &of_day(&schema, [10], "20240301")).await;
    cluster.wait_tiered(&path).await;
    let found = ids_by_bucket(&lake, "20240301").await;
    assert_eq!(found.keys().copied().collect::<Vec<_>>(), [0, 1]);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fc_035_an_empty_bucket_of_an_old_partition_is_stamped_with_the_partitions_count() {
    let mut cluster = Cluster::start().await;
    let path = path("empty_bucket");
    let schema = create(&cluster, &path, &daily(4)).await;
    cluster.tier().await;
    append(&cluster, &path, &of_day(&schema, [0, 2, 3, 5], "old")).await;
    cluster.wait_tiered(&path).await;
    rescale(&cluster, &path, 8).await;
    append(&cluster, &path, &of_day(&schema, [1, 4], "old")).await;
    cluster.wait_tiered(&path).await;
    let lake = cluster.lake(&path).await;
    let found = ids_by_bucket(&lake, "old").await;
    assert_eq!(found.get(&2), Some(&BTreeSet::from([1, 4])));
    let stamps: Vec<_> = stamps(&lake).await.into_values().collect();
    assert_eq!(stamps, [BTreeSet::from([4])]);
    cluster.stop().await;
}

/// One fetch for a partition with the right count, one with a wrong count, and another table.
#[tokio::test(flavor = "multi_thread")]
async fn fc_036_one_stale_bucket_fails_alone() {
    let mut cluster = Cluster::start().await;
    let (table, other) = (path("stale"), path("other"));
    let schema = create(&cluster, &table, &daily(2)).await;
    let other_schema = create(&cluster, &other, &bucketed(plain(), 1, &[])).await;
    append(&cluster, &table, &of_day(&schema, 0..8, "old")).await;
    rescale(&cluster, &table, 4).await;
    append(&cluster, &table, &of_day(&schema, 0..8, "new")).await;
    let other_rows = weir_tests::table::rows(&other_schema, 0..5);
    append(&cluster, &other, &[other_rows]).await;

    let client = &cluster.client;
    let info = client.table_info(&table).await.expect("the table is there");
    let partitions = client.list_partitions(&table).await.expect("partitions");
    let id_of = |name: &str| {
        let found = partitions.iter().find(|one| one.name == name);
        found.expect("it is listed").id
    };
    let other_id = client
        .table_info(&other)
        .await
        .expect("it is there")
        .table_id;
    let bucket = |partition: Option<&str>, count: Option<i32>| PbFetchLogReqForBucket {
        partition_id: partition.map(|name| id_of(name).0),
        bucket_id: 0,
        fetch_offset: 0,
        max_fetch_bytes: 1 << 20,
        routing_bucket_count: count,
    };
    let of_table = |table_id: i64, buckets_req| PbFetchLogReqForTable {
        table_id,
        buckets_req,
        ..PbFetchLogReqForTable::default()
    };
    let request = |new: Option<i32>| FetchLogRequest {
        follower_server_id: -1,
        max_bytes: 1 << 20,
        max_wait_ms: Some(0),
        min_bytes: Some(0),
        tables_req: vec![
            of_table(
                info.table_id.0,
                vec![bucket(Some("old"), Some(2)), bucket(Some("new"), new)],
            ),
            of_table(other_id.0, vec![bucket(None, None)]),
        ],
        ..FetchLogRequest::default()
    };
    let mut wire = Wire::connect(&cluster.tablet_addr()).await;
    for (count, code) in [(Some(2), 74), (None, 74), (Some(8), 74), (Some(4), 0)] {
        let answer = wire.call(&request(count)).await.expect("a whole answer");
        let answers: Vec<_> = answer
            .tables_resp
            .iter()
            .flat_map(|of| &of.buckets_resp)
            .collect();
        let codes: Vec<_> = answers
            .iter()
            .map(|of| of.error_code.unwrap_or(0))
            .collect();
        assert_eq!(codes, [0, code, 0], "{count:?}");
        for of in answers.iter().filter(|of| of.error_code.unwrap_or(0) == 0) {
            assert!(of.records.as_ref().is_some_and(|bytes| !bytes.is_empty()));
        }
    }
    cluster.stop().await;
}

/// Four writers and the daemon work while the count changes ten times and partitions come and go.
#[tokio::test(flavor = "multi_thread")]
async fn a_rescale_under_load_loses_and_doubles_no_row() {
    const WRITERS: i64 = 4;
    const CHANGES: i32 = 10;
    const ROWS: i64 = 40;
    let mut cluster = Cluster::start().await;
    let path = path("busy");
    let schema = create(&cluster, &path, &daily(3)).await;
    cluster.tier().await;
    // The writers never stop for a change, and go on until all changes are made.
    let (changed, is_changed) = tokio::sync::watch::channel(0);
    let write = |writer: i64| {
        let (client, schema, is_changed) = (&cluster, schema.clone(), is_changed.clone());
        let path = path.clone();
        async move {
            let log = client.writer(&path).await;
            let mut written = Vec::new();
            let mut wave = 0;
            loop {
                let change = *is_changed.borrow();
                let start = (writer * 1_000_000 + wave) * ROWS;
                // One partition that is always there, one of each time.
                for (day, from) in [
                    ("always".to_owned(), start),
                    (format!("d{change}"), -start - ROWS),
                ] {
                    let batch = rows_of(&schema, from..from + ROWS, "dt", &day);
                    let appended = log.append(batch.clone()).await;
                    drop(appended.expect("the rows are the table's"));
                    written.push(batch);
                }
                log.flush().await.expect("the rows are acknowledged");
                wave += 1;
                if change == CHANGES {
                    log.close().await.expect("nothing is left");
                    return written;
                }
            }
        }
    };
    let change = async {
        let counts = [8, 4, 8, 1, 16, 2, 3, 12, 5, 7];
        for (at, count) in (1..).zip(counts) {
            // A partition that nobody writes to comes before and goes after.
            let spec = PartitionSpec::new(&["dt"], &[format!("gone{at}")]).expect("a partition");
            let made = cluster.client.create_partition(&path, &spec, false).await;
            made.expect("it is created");
            rescale(&cluster, &path, count).await;
            let dropped = cluster.client.drop_partition(&path, &spec, false).await;
            dropped.expect("it is dropped");
            changed.send_replace(at);
            // All writers work with each count for a while.
            until("rows of this count are in the log", || async {
                let partitions = cluster.client.list_partitions(&path).await;
                let partitions = partitions.expect("partitions are listed");
                let name = format!("d{at}");
                partitions.iter().any(|one| one.name == name).then_some(())
            })
            .await;
        }
    };
    let (written, ()) = tokio::join!(join_all((0..WRITERS).map(write)), change);
    let written: Vec<RecordBatch> = written.into_iter().flatten().collect();
    cluster.wait_tiered(&path).await;
    let lake = cluster.lake(&path).await;
    assert_eq!(rows::lake_texts(&lake).await, rows::texts(&written));
    let partitions = cluster.client.list_partitions(&path).await;
    for partition in partitions.expect("partitions are listed") {
        let stamps = stamps(&lake).await;
        let (_, found) = stamps
            .iter()
            .find(|(name, _)| name.ends_with(&partition.name))
            .expect("it is in the lake");
        let count = partition.bucket_count.expect("a count").0;
        assert_eq!(*found, BTreeSet::from([count]), "{}", partition.name);
    }
    cluster.stop().await;
}
