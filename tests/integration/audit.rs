//! `verify` can fail: each kind of damage to a lake is found, and its bucket named.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{RecordBatch, UInt32Array};
use arrow::compute::{concat_batches, take_record_batch};
use weir_lake_format::{ManifestEntry, Partition, TableSchema};
use weir_protocol::ids::{LogOffset, TablePath};
use weir_protocol::schema::{Schema, TypeKind};
use weir_tests::cluster::{Cluster, open_warehouse};
use weir_tests::table::{bucketed, column, lake_table, partitioned, path, required, rows_of};
use weir_tests::tamper::Tampered;
use weir_tests::{binary, rows};
use weir_tiering::cluster::TieringClient;
use weir_tiering::cluster::wire::WireCluster;
use weir_tiering::ranges::BucketRange;
use weir_tiering::verify::{LakeBucket, Report, audit};

/// A server with a table in two partitions of two buckets, tiered by two snapshots, and a copy of
/// its lake to do harm to.
struct Fixture {
    cluster: Cluster,
    path: TablePath,
    lake: Tampered,
    schema: TableSchema,
}

impl Fixture {
    async fn new() -> Self {
        let mut cluster = Cluster::start().await;
        let path = path("audited");
        let columns = vec![
            required("id", TypeKind::BigInt),
            required("region", TypeKind::String),
            column("name", TypeKind::String),
        ];
        let table = bucketed(partitioned(lake_table(columns), &["region"]), 2, &["id"]);
        cluster
            .client
            .create_table(&path, &table, false)
            .await
            .expect("the table is created");
        let (_, schema) = cluster.client.schema(&path, None).await.expect("a schema");
        for from in [0, 100] {
            append(&cluster, &path, &schema, from).await;
            // One round a snapshot: the daemon runs only while nothing is appended.
            cluster.tier().await;
            cluster.wait_tiered(&path).await;
            cluster.stop_tiering().await;
        }
        let lake = Tampered::copy(&cluster.warehouse(), &path).await;
        let ids = lake.table.snapshot_ids().await.expect("snapshots");
        assert_eq!(ids, [1, 2], "a round each");
        let schema = lake.table.latest_schema().await.expect("a schema");
        Self {
            cluster,
            path,
            lake,
            schema,
        }
    }

    async fn audit(&self) -> Report {
        self.audit_of(&self.lake).await
    }

    async fn audit_of(&self, lake: &Tampered) -> Report {
        let client: Arc<dyn TieringClient> =
            Arc::new(WireCluster::new(&self.cluster.daemon_config()));
        let warehouse = open_warehouse(lake.warehouse());
        audit(&client, &warehouse, &self.path)
            .await
            .expect("the lake can be read")
    }

    /// The buckets that the audit names; every finding is a sentence.
    async fn named(&self) -> BTreeSet<LakeBucket> {
        let report = self.audit().await;
        assert!(!report.findings.is_empty(), "the damage is not found");
        report
            .findings
            .into_iter()
            .filter_map(|finding| finding.bucket)
            .collect()
    }

    fn bucket(&self, entry: &ManifestEntry) -> LakeBucket {
        let region = region(entry, &self.schema);
        LakeBucket {
            partition: Some(region),
            bucket: entry.bucket,
        }
    }

    async fn stop(mut self) {
        self.cluster.stop().await;
    }
}

async fn append(cluster: &Cluster, path: &TablePath, schema: &Schema, from: i64) {
    let writer = cluster.writer(path).await;
    for (region, at) in [("north", 0), ("south", 50)] {
        let batch = rows_of(schema, from + at..from + at + 50, "region", region);
        drop(
            writer
                .append(batch)
                .await
                .expect("the rows are the table's"),
        );
    }
    writer.close().await.expect("the rows are acknowledged");
}

fn region(entry: &ManifestEntry, schema: &TableSchema) -> String {
    let partition = Partition::from_bytes(&entry.partition, schema).expect("a partition");
    let weir_lake_format::Datum::String(region) = &partition.values()[0] else {
        panic!("regions are texts")
    };
    region.clone()
}

/// `left` with its first row replaced by the first row of `right`.
fn with_first_row_of(left: &RecordBatch, right: &RecordBatch) -> RecordBatch {
    let last = u32::try_from(left.num_rows()).expect("few rows");
    let kept = take_record_batch(left, &UInt32Array::from_iter_values(1..last)).expect("rows");
    concat_batches(&left.schema(), &[right.slice(0, 1), kept]).expect("rows of one table")
}

#[tokio::test(flavor = "multi_thread")]
async fn an_untouched_copy_passes_with_all_rows_compared() {
    let fixture = Fixture::new().await;
    let report = fixture.audit().await;
    assert_eq!(report.findings, []);
    assert_eq!((report.rows, report.compared_rows), (200, 200));
    assert_eq!((report.snapshots, report.buckets), (2, 4));
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_dropped_from_a_manifest_is_found() {
    let fixture = Fixture::new().await;
    for snapshot in [2, 1] {
        let mut dropped = None;
        fixture
            .lake
            .edit_manifest(snapshot, |entries| dropped = entries.pop())
            .await;
        let dropped = dropped.expect("the commit added files");
        let named = fixture.named().await;
        assert!(named.contains(&fixture.bucket(&dropped)), "{named:?}");
        fixture
            .lake
            .edit_manifest(snapshot, |entries| entries.push(dropped))
            .await;
        assert_eq!(fixture.audit().await.findings, [], "put right, it passes");
    }
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_added_twice_is_found() {
    let fixture = Fixture::new().await;
    // In the manifest that added it, and in a later one.
    let mut first = Vec::new();
    fixture
        .lake
        .edit_manifest(1, |entries| first = entries.clone())
        .await;
    for snapshot in [1, 2] {
        let twice = first[0].clone();
        fixture
            .lake
            .edit_manifest(snapshot, |entries| entries.push(twice.clone()))
            .await;
        let named = fixture.named().await;
        assert_eq!(
            named,
            BTreeSet::from([fixture.bucket(&twice)]),
            "snapshot {snapshot}"
        );
        fixture
            .lake
            .edit_manifest(snapshot, |entries| drop(entries.pop()))
            .await;
        assert_eq!(fixture.audit().await.findings, [], "put right, it passes");
    }
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_swapped_between_partitions_are_found_in_both() {
    let fixture = Fixture::new().await;
    let lake = &fixture.lake;
    let entries = rows::entries(&lake.table).await;
    let find = |wanted: &str| {
        let of = |entry: &&ManifestEntry| region(entry, &fixture.schema) == wanted;
        entries
            .iter()
            .find(of)
            .expect("each partition has files")
            .clone()
    };
    let (north, south) = (find("north"), find("south"));
    let (north_rows, south_rows) = (lake.read(&north).await, lake.read(&south).await);
    // Files of as many rows as before, with names, sizes and statistics as they should be.
    let new_north = lake
        .write(&north, with_first_row_of(&north_rows, &south_rows))
        .await;
    let new_south = lake
        .write(&south, with_first_row_of(&south_rows, &north_rows))
        .await;
    assert_eq!(new_north.row_count, north.file.row_count);
    for snapshot in [1, 2] {
        lake.edit_manifest(snapshot, |entries| {
            for entry in entries {
                if entry.file.file_name == north.file.file_name {
                    entry.file = new_north.clone();
                } else if entry.file.file_name == south.file.file_name {
                    entry.file = new_south.clone();
                }
            }
        })
        .await;
    }
    let named = fixture.named().await;
    assert_eq!(
        named,
        BTreeSet::from([fixture.bucket(&north), fixture.bucket(&south)])
    );
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shortened_range_is_found() {
    let fixture = Fixture::new().await;
    for snapshot in [1, 2] {
        for shorten in [
            |range: &mut BucketRange| range.end = LogOffset(range.end.0 - 1),
            |range: &mut BucketRange| range.start = LogOffset(range.start.0 + 1),
        ] {
            let lake = Tampered::copy(&fixture.cluster.warehouse(), &fixture.path).await;
            let mut shortened = None;
            lake.edit_ranges(snapshot, |ranges| {
                let range = &mut ranges[0];
                shorten(range);
                range.rows -= 1;
                let partition = range.partition.clone();
                shortened = Some(LakeBucket {
                    partition,
                    bucket: range.bucket.0,
                });
            })
            .await;
            let report = fixture.audit_of(&lake).await;
            let named = report
                .findings
                .into_iter()
                .filter_map(|finding| finding.bucket);
            let expected = BTreeSet::from([shortened.expect("a range")]);
            assert_eq!(
                named.collect::<BTreeSet<_>>(),
                expected,
                "snapshot {snapshot}"
            );
        }
    }
    fixture.stop().await;
}

async fn verify(fixture: &Fixture) -> binary::Ended {
    let (table, addr) = (fixture.path.to_string(), fixture.cluster.addr());
    let warehouse = fixture.lake.warehouse().to_str().expect("a plain name");
    binary::run([
        "verify",
        &table,
        "--bootstrap",
        &addr,
        "--warehouse",
        warehouse,
    ])
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_exits_0_on_a_good_lake_and_1_with_the_bucket_on_a_damaged_one() {
    let fixture = Fixture::new().await;
    let good = verify(&fixture).await;
    assert_eq!(good.code, Some(0), "{good:?}");
    assert!(good.data.contains("verify: ok"), "{good:?}");
    let mut dropped = None;
    fixture
        .lake
        .edit_manifest(2, |entries| dropped = entries.pop())
        .await;
    let damaged = verify(&fixture).await;
    assert_eq!(damaged.code, Some(1), "{damaged:?}");
    let bucket = fixture.bucket(&dropped.expect("the commit added files"));
    assert!(damaged.data.contains(&bucket.to_string()), "{damaged:?}");
    assert!(!damaged.data.contains("verify: ok"), "{damaged:?}");
    fixture.stop().await;
}
