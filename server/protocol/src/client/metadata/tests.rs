use super::*;
use crate::schema::{Column, LogicalType, Schema, TypeKind};

const BUCKET: TableBucket = TableBucket {
    table: TableId(1),
    partition: None,
    bucket: BucketId(0),
};

fn bucket(leader: i32, epoch: Option<i32>) -> proto::PbBucketMetadata {
    proto::PbBucketMetadata {
        bucket_id: 0,
        leader_id: Some(leader),
        leader_epoch: epoch,
        ..Default::default()
    }
}

/// A picture of table 1 with its leader, in a cluster of these tablet servers.
fn answer(
    servers: &[i32],
    (layout, count): (i64, i32),
    leader: proto::PbBucketMetadata,
) -> proto::MetadataResponse {
    let columns = vec![Column::new("n", LogicalType::nullable(TypeKind::Int))];
    let mut descriptor = TableDescriptor::new(Schema::new(columns, Vec::new()).unwrap());
    descriptor.bucket_count = Some(count);
    let node = |id: &i32| proto::PbServerNode {
        node_id: *id,
        ..Default::default()
    };
    proto::MetadataResponse {
        tablet_servers: servers.iter().map(node).collect(),
        table_metadata: vec![proto::PbTableMetadata {
            table_path: wire_path(&TablePath::new("d", "t")),
            table_id: 1,
            schema_id: 1,
            table_json: descriptor.to_json().into(),
            bucket_count_epoch: Some(layout),
            bucket_metadata: vec![leader],
            ..Default::default()
        }],
        ..Default::default()
    }
}

fn partition(id: i64, leader: proto::PbBucketMetadata) -> proto::PbPartitionMetadata {
    proto::PbPartitionMetadata {
        table_id: 1,
        partition_id: id,
        partition_name: format!("p{id}"),
        bucket_count: Some(1),
        bucket_metadata: vec![leader],
    }
}

#[test]
fn an_answer_that_comes_late_brings_no_older_leader_or_count_back() {
    let mut cluster = Cluster::default();
    let mut newer = answer(&[1, 2], (1, 8), bucket(2, Some(5)));
    newer.partition_metadata = vec![partition(7, bucket(2, Some(5)))];
    cluster.merge(&newer).unwrap();
    let mut older = answer(&[1, 2], (0, 4), bucket(1, Some(4)));
    older.partition_metadata = vec![partition(7, bucket(1, Some(4)))];
    cluster.merge(&older).unwrap();
    let of_partition = TableBucket {
        partition: Some(PartitionId(7)),
        ..BUCKET
    };
    assert_eq!(cluster.leader(BUCKET), Some(ServerId(2)));
    assert_eq!(cluster.leader(of_partition), Some(ServerId(2)));
    let table = cluster.table_by_id(TableId(1)).unwrap();
    assert_eq!(table.bucket_layout_epoch, 1);
    assert_eq!(table.descriptor.bucket_count, Some(8));
}

#[test]
fn a_leader_is_replaced_by_one_of_the_same_or_no_epoch_and_when_its_server_is_gone() {
    for (servers, next) in [
        (&[1, 2][..], bucket(1, Some(5))),
        (&[1, 2], bucket(1, None)),
        (&[1], bucket(1, Some(4))),
    ] {
        let mut cluster = Cluster::default();
        let first = answer(&[1, 2], (0, 1), bucket(2, Some(5)));
        cluster.merge(&first).unwrap();
        cluster.merge(&answer(servers, (0, 1), next)).unwrap();
        assert_eq!(cluster.leader(BUCKET), Some(ServerId(1)), "{servers:?}");
    }
}

#[test]
fn a_full_cache_keeps_what_was_asked_for_last() {
    let mut cluster = Cluster::default();
    for id in 1..=4 {
        let mut found = answer(&[1], (0, 1), bucket(1, None));
        found.partition_metadata = vec![partition(id, bucket(1, None))];
        cluster.merge(&found).unwrap();
        cluster.forget_beyond(3, &found);
    }
    let known = |id| cluster.partition_by_id(PartitionId(id)).is_some();
    assert_eq!([1, 2, 3, 4].map(known), [false, false, false, true]);
    assert!(cluster.table(&TablePath::new("d", "t")).is_some());
}
