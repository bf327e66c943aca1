//! A server that was stopped goes on where it was.

use bytes::Bytes;
use weir_protocol::ids::{SchemaId, WriterId};
use weir_protocol::proto::{InitWriterRequest, PbTablePath};
use weir_protocol::record::arrow::{Compression, encode_append};
use weir_protocol::schema::Schema;
use weir_tests::cluster::Cluster;
use weir_tests::rows;
use weir_tests::table::{bucketed, path, plain, rows as make_rows};
use weir_tests::wire::{Wire, produce, produce_request};
use weir_tiering::ranges::{RangesProperty, parse};

/// Three rows as batch `sequence` of a writer.
fn batch(schema: &Schema, writer: i64, sequence: i32) -> Bytes {
    let first = i64::from(sequence) * 3;
    let rows = make_rows(schema, first..first + 3);
    let (schema, writer) = (SchemaId(1), WriterId(writer));
    encode_append(schema, writer, sequence, &rows, Compression::None).expect("a batch")
}

async fn init_writer(wire: &mut Wire) -> i64 {
    let table = PbTablePath {
        database_name: "fluss".to_owned(),
        table_name: "t".to_owned(),
    };
    let request = InitWriterRequest {
        table_path: vec![table],
    };
    wire.call(&request).await.expect("an id").writer_id
}

#[tokio::test(flavor = "multi_thread")]
async fn writers_are_remembered_and_offsets_go_on() {
    let mut cluster = Cluster::start().await;
    let path = path("t");
    cluster
        .client
        .create_table(&path, &bucketed(plain(), 1, &[]), false)
        .await
        .expect("made");
    let info = cluster.client.table_info(&path).await.expect("the table");
    let (table, schema) = (info.table_id, info.descriptor.schema);
    let mut wire = Wire::connect(&cluster.tablet_addr()).await;
    let writer = init_writer(&mut wire).await;
    let request = |sequence| produce_request(table, 0, batch(&schema, writer, sequence));
    for sequence in 0..6 {
        let offset = produce(&mut wire, &request(sequence)).await;
        assert_eq!(offset, Ok(i64::from(sequence) * 3));
    }

    cluster.restart().await;
    let mut wire = Wire::connect(&cluster.tablet_addr()).await;
    // The last five batches are known with their offsets, and nothing is written twice.
    for sequence in 1..6 {
        let offset = produce(&mut wire, &request(sequence)).await;
        assert_eq!(
            offset,
            Ok(i64::from(sequence) * 3),
            "batch {sequence} sent again"
        );
    }
    let (code, _) = produce(&mut wire, &request(8))
        .await
        .expect_err("a gap in the sequence");
    assert_eq!(code, 31);
    assert_eq!(produce(&mut wire, &request(6)).await, Ok(18));
    assert!(
        init_writer(&mut wire).await > writer,
        "a writer id is never given out twice"
    );
    let ends: Vec<i64> = cluster
        .log_ends(&path)
        .await
        .values()
        .map(|end| end.0)
        .collect();
    assert_eq!(ends, [21]);

    // Once more, without anything between.
    cluster.restart().await;
    cluster.restart().await;
    let mut wire = Wire::connect(&cluster.tablet_addr()).await;
    assert_eq!(produce(&mut wire, &request(6)).await, Ok(18));
    assert_eq!(produce(&mut wire, &request(7)).await, Ok(21));
    cluster.tier().await;
    cluster.wait_tiered(&path).await;
    let written = rows::texts(&[make_rows(&schema, 0..24)]);
    assert_eq!(rows::lake_texts(&cluster.lake(&path).await).await, written);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tiering_goes_on_from_the_registered_offsets_with_a_higher_epoch() {
    let mut cluster = Cluster::start().await;
    let path = path("rounds");
    cluster
        .client
        .create_table(&path, &bucketed(plain(), 2, &["id"]), false)
        .await
        .expect("made");
    let (_, schema) = cluster.client.schema(&path, None).await.expect("a schema");
    for round in 0..3 {
        let writer = cluster.writer(&path).await;
        let batch = make_rows(&schema, round * 100..round * 100 + 100);
        drop(
            writer
                .append(batch)
                .await
                .expect("the rows are the table's"),
        );
        writer.close().await.expect("the rows are acknowledged");
        cluster.tier().await;
        cluster.wait_tiered(&path).await;
        cluster.restart().await;
    }
    let lake = cluster.lake(&path).await;
    assert_eq!(
        rows::lake_texts(&lake).await,
        rows::texts(&[make_rows(&schema, 0..300)])
    );

    let mut reached = std::collections::BTreeMap::new();
    let mut epochs = Vec::new();
    for id in lake.snapshot_ids().await.expect("snapshots") {
        let snapshot = lake.snapshot(id).await.expect("a snapshot");
        let epoch = snapshot
            .property("weir-coordinator-epoch")
            .expect("a fence");
        epochs.push(epoch.parse::<i32>().expect("a number"));
        let text = snapshot.property("weir-ranges").expect("ranges");
        let RangesProperty::Inline(ranges) = parse(text).expect("ranges") else {
            panic!()
        };
        for range in ranges {
            let before = reached.insert(range.bucket, range.end);
            assert_eq!(
                before.map_or(0, |end| end.0),
                range.start.0,
                "snapshot {id}"
            );
        }
    }
    let ends = cluster.log_ends(&path).await;
    assert!(
        ends.iter()
            .all(|(bucket, end)| reached[&bucket.bucket] == *end),
        "{ends:?}"
    );
    assert!(
        epochs.windows(2).all(|pair| pair[0] <= pair[1]),
        "{epochs:?}"
    );
    assert!(
        epochs.first() < epochs.last(),
        "each start is a new coordinator: {epochs:?}"
    );
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_the_metadata_knows_nothing_of_is_not_taken_over() {
    let mut cluster = Cluster::start().await;
    let path = path("t");
    let create = bucketed(plain(), 1, &[]);
    let made = cluster.client.create_table(&path, &create, false);
    made.await.expect("made");
    let (_, schema) = cluster.client.schema(&path, None).await.expect("a schema");
    let writer = cluster.writer(&path).await;
    let rows = make_rows(&schema, 0..30);
    let appended = writer.append(rows).await;
    drop(appended.expect("the rows are the table's"));
    writer.close().await.expect("acknowledged");
    let before = cluster.client.table_info(&path).await.expect("the table");
    cluster.stop().await;

    // Somebody removes the metadata and the lake, and keeps the logs.
    let meta = cluster.data_dir().join("meta");
    let kept = cluster.data_dir().join("meta-kept");
    std::fs::rename(&meta, &kept).expect("the metadata is there");
    let lake = cluster.warehouse().join("fluss.db");
    std::fs::remove_dir_all(lake).expect("the lake is there");
    cluster.start_again().await;
    let made = cluster.client.create_table(&path, &create, false);
    made.await.expect("made");
    let info = cluster.client.table_info(&path).await.expect("the table");
    assert_eq!(info.table_id, before.table_id);
    let mut wire = Wire::connect(&cluster.tablet_addr()).await;
    let request = produce_request(info.table_id, 0, batch(&schema, -1, 0));
    let (_, text) = produce(&mut wire, &request).await.expect_err("refused");
    assert!(text.contains("put the metadata back"), "{text}");
    assert!(
        text.contains("bucket-0 holds records up to offset 30"),
        "{text}"
    );
    cluster.stop().await;

    // With the metadata back nothing is missing.
    std::fs::remove_dir_all(&meta).expect("the new metadata is there");
    std::fs::rename(&kept, &meta).expect("it was kept");
    cluster.start_again().await;
    let ends: Vec<_> = cluster.log_ends(&path).await.into_values().collect();
    assert_eq!(ends, [weir_protocol::ids::LogOffset(30)]);
    cluster.stop().await;
}
