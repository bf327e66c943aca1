use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::json;
use weir_protocol::ids::{
    BucketId, CoordinatorEpoch, LogOffset, PartitionId, ServerId, TableId, TotalBuckets,
};

use super::assignment::Assignment;
use super::coordinator::{decode_epoch, encode_epoch};
use super::database::Database;
use super::lake_offsets::LakeOffsets;
use super::lake_snapshot::{KEEP_ALL, LakeSnapshot, LakeTable, MAX_SNAPSHOTS};
use super::leader_isr::LeaderIsr;
use super::partition::Partition;
use super::table::Table;
use super::tablet_server::{Listener, TabletServer};
use super::tiering::Tiering;
use super::*;

fn read<T: Document>(text: &str) -> T {
    T::decode("a test document", text.as_bytes()).unwrap()
}

fn written(document: &impl Document) -> String {
    String::from_utf8(document.encode().unwrap().to_vec()).unwrap()
}

/// Reads `text` and expects to write exactly `text` again.
fn golden<T: Document>(text: &str) -> T {
    let document = read::<T>(text);
    assert_eq!(written(&document), text);
    document
}

#[test]
fn documents_are_written_as_the_reference_writes_them() {
    golden::<Database>(
        r#"{"version":1,"comment":"c","custom_properties":{"k":"v"},"created_time":1,"modified_time":2}"#,
    );
    let table: Table = golden(concat!(
        r#"{"version":2,"table_id":7,"comment":"c","partition_key":["dt"],"bucket_key":["id"],"#,
        r#""bucket_count":4,"bucket_layout_epoch":1,"properties":{"table.replication.factor":"1"},"#,
        r#""custom_properties":{},"remote_data_dir":"file:/r","created_time":1,"modified_time":2}"#,
    ));
    assert!(table.is_partitioned());
    golden::<Partition>(r#"{"version":2,"table_id":7,"partition_id":31,"bucket_count":3}"#);
    golden::<Assignment>(r#"{"version":1,"buckets":{"0":[1,2,3],"1":[2,3,1]}}"#);
    golden::<Assignment>(r#"{"version":1,"table_id":7,"buckets":{"0":[1]}}"#);
    golden::<LeaderIsr>(concat!(
        r#"{"version":2,"leader":1,"leader_epoch":0,"isr":[1,2],"coordinator_epoch":3,"#,
        r#""bucket_epoch":4,"standby_replicas":[]}"#,
    ));
    golden::<LakeTable>(concat!(
        r#"{"version":2,"lake_snapshots":[{"snapshot_id":41,"tiered_offsets":"file:/a"},"#,
        r#"{"snapshot_id":42,"tiered_offsets":"file:/b","readable_offsets":"file:/b"}]}"#,
    ));
    golden::<Tiering>(r#"{"version":1,"table_id":7,"tiering_epoch":3,"given_time":9}"#);
    let server: TabletServer = golden(concat!(
        r#"{"version":4,"listeners":"FLUSS://h:9124,INTERNAL://h:9125","register_timestamp":5,"#,
        r#""rack":"r1","cpu_cores":2.0,"memory_bytes":1024}"#,
    ));
    let listeners = server.parse_listeners().unwrap();
    assert_eq!(TabletServer::listeners_text(&listeners), server.listeners);
    let second = Listener {
        name: "INTERNAL".to_owned(),
        host: "h".to_owned(),
        port: 9125,
    };
    assert_eq!(listeners[1], second);
}

#[test]
fn offsets_files_of_the_reference_are_read_and_written_again() {
    let golden_files = [
        include_str!("../../tests/golden/lake_offsets_nonpartitioned.json"),
        include_str!("../../tests/golden/lake_offsets_partitioned.json"),
        include_str!("../../tests/golden/lake_offsets_flink_partitioned.json"),
    ];
    for text in golden_files {
        golden::<LakeOffsets>(text);
    }
    let offsets = read::<LakeOffsets>(golden_files[2]);
    assert_eq!(offsets.table_id, TableId(8));
    assert_eq!(
        offsets.end_offset(Some(PartitionId(5)), BucketId(1)),
        Some(LogOffset(19))
    );
    assert_eq!(offsets.end_offset(Some(PartitionId(5)), BucketId(0)), None);
    golden::<LakeOffsets>(r#"{"version":1,"table_id":11}"#);
}

#[test]
fn offsets_merge_by_bucket_and_tell_regressions() {
    let old = read::<LakeOffsets>(r#"{"version":1,"table_id":1,"bucket_offsets":[5,7,-1]}"#);
    let new = read::<LakeOffsets>(r#"{"version":1,"table_id":1,"bucket_offsets":[-1,6,2]}"#);
    assert_eq!(
        written(&old.merged(&new)),
        r#"{"version":1,"table_id":1,"bucket_offsets":[5,6,2]}"#
    );
    let lower = new.first_regression(&old);
    assert_eq!(
        lower,
        Some(((None, BucketId(1)), LogOffset(7), LogOffset(6)))
    );
    assert_eq!(old.merged(&old).first_regression(&old), None);
}

#[test]
fn older_documents_are_read() {
    let table = read::<Table>(
        r#"{"version":1,"table_id":7,"bucket_count":4,"properties":{},"custom_properties":{},
            "created_time":1,"modified_time":2}"#,
    );
    assert_eq!(
        (table.bucket_layout_epoch, table.is_partitioned()),
        (0, false)
    );
    let partition = read::<Partition>(r#"{"version":1,"table_id":7,"partition_id":31}"#);
    assert_eq!(partition.bucket_count, None);
    let leader = read::<LeaderIsr>(
        r#"{"version":1,"leader":-1,"leader_epoch":0,"isr":[],"coordinator_epoch":0,"bucket_epoch":0}"#,
    );
    assert_eq!((leader.leader(), leader.standby_replicas.len()), (None, 0));
    let server =
        read::<TabletServer>(r#"{"version":1,"host":"h","port":1,"register_timestamp":5}"#);
    assert_eq!(server.listeners, "FLUSS://h:1");
    let lake = read::<LakeTable>(
        r#"{"version":1,"snapshot_id":3,"table_id":7,
            "buckets":[{"partition_id":31,"bucket_id":0,"log_end_offset":9},{"bucket_id":1,"partition_id":31}]}"#,
    );
    let inline = lake.latest_readable().unwrap().inline.as_ref().unwrap();
    assert_eq!(
        inline.end_offset(Some(PartitionId(31)), BucketId(0)),
        Some(LogOffset(9))
    );
    assert_eq!(lake.latest().unwrap().snapshot_id, 3);
    let (next, dropped) = lake.with(LakeSnapshot::new(4, "f".to_owned(), None), Some(KEEP_ALL));
    assert_eq!(
        (next.lake_snapshots.len(), dropped.len()),
        (1, 0),
        "version 1 is replaced, and named no file"
    );
}

#[test]
fn earlier_names_of_the_bucket_layout_are_read_and_the_seeds_written() {
    let table = read::<Table>(
        r#"{"version":2,"table_id":7,"bucket_count":4,"bucket_count_epoch":5,"created_time":1,
            "modified_time":2}"#,
    );
    assert_eq!(table.bucket_layout_epoch, 5);
    assert!(written(&table).contains(r#""bucket_layout_epoch":5"#));
    assert!(!written(&table).contains("bucket_count_epoch"));
    let partition = read::<Partition>(
        r#"{"version":2,"table_id":7,"partition_id":31,"bucket_count_actual":3}"#,
    );
    assert_eq!(partition.bucket_count, Some(TotalBuckets(3)));
    assert!(written(&partition).contains(r#""bucket_count":3"#));
}

#[test]
fn unreadable_is_not_absent_and_newer_is_refused() {
    let newer = Partition::decode("p", br#"{"version":3,"table_id":7,"partition_id":31}"#);
    let newer = newer.unwrap_err();
    assert!(
        matches!(
            newer,
            Error::NewerVersion {
                found: 3,
                known: 2,
                ..
            }
        ),
        "{newer}"
    );
    for text in [
        "",
        "{",
        "[]",
        "null",
        "{}",
        r#"{"version":"1"}"#,
        r#"{"version":0,"table_id":7,"partition_id":31}"#,
        r#"{"version":1,"partition_id":31}"#,
        r#"{"version":2,"table_id":7,"partition_id":31,"bucket_count":0}"#,
    ] {
        let error = Partition::decode("p", text.as_bytes()).unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }), "{text}: {error}");
    }
    for buckets in [r#"{"1":[1]}"#, r#"{"x":[1]}"#, r#"{"0":[1],"00":[2]}"#] {
        let text = format!(r#"{{"version":1,"buckets":{buckets}}}"#);
        assert!(Assignment::decode("a", text.as_bytes()).is_err(), "{text}");
    }
    for offsets in [
        r#""bucket_offsets":[1],"partition_offsets":[{"partition_id":1,"bucket_offsets":[1]}]"#,
        r#""partition_offsets":[{"partition_id":1,"bucket_offsets":[1]},{"partition_id":1,"bucket_offsets":[2]}]"#,
    ] {
        let text = format!(r#"{{"version":1,"table_id":1,{offsets}}}"#);
        assert!(LakeOffsets::decode("o", text.as_bytes()).is_err(), "{text}");
    }
}

#[test]
fn the_coordinator_epoch_is_decimal_text() {
    assert_eq!(&encode_epoch(CoordinatorEpoch(-1))[..], b"-1");
    assert_eq!(decode_epoch("e", b"12").unwrap(), CoordinatorEpoch(12));
    assert!(decode_epoch("e", b"").is_err());
    assert!(decode_epoch("e", b"12.5").is_err());
}

#[test]
fn snapshots_are_kept_by_position_and_never_more_than_the_limit() {
    let snapshot = |id: i64| LakeSnapshot::new(id, format!("file-{id}"), None);
    let ids = |table: &LakeTable| -> Vec<i64> {
        table
            .lake_snapshots
            .iter()
            .map(|snapshot| snapshot.snapshot_id)
            .collect()
    };
    let history = LakeTable {
        lake_snapshots: [5, 9, 7].map(snapshot).to_vec(),
        unknown: Unknown::new(),
    };
    let with = |earliest| {
        let (table, dropped) = history.with(snapshot(8), earliest);
        (ids(&table), dropped.len())
    };
    assert_eq!(with(None), (vec![8], 3));
    assert_eq!(with(Some(KEEP_ALL)), (vec![5, 9, 7, 8], 0));
    assert_eq!(
        with(Some(1234)),
        (vec![5, 9, 7, 8], 0),
        "an unknown id keeps all"
    );
    assert_eq!(
        with(Some(9)),
        (vec![9, 7, 8], 1),
        "by position, not by number"
    );
    let (again, _) = history.with(snapshot(7), Some(KEEP_ALL));
    assert_eq!(
        ids(&again),
        [5, 9, 7],
        "the same snapshot twice stands once"
    );
    let mut table = LakeTable::default();
    for id in 0..200 {
        table = table.with(snapshot(id), Some(KEEP_ALL)).0;
    }
    assert_eq!(table.lake_snapshots.len(), MAX_SNAPSHOTS);
    assert_eq!(table.latest().unwrap().snapshot_id, 199);
}

#[test]
fn an_assignment_gives_each_bucket_replicas_on_servers_of_their_own() {
    let servers = [1, 2, 3].map(ServerId);
    let assignment = Assignment::spread(None, TotalBuckets(4), 2, &servers, 5);
    assert_eq!(assignment.bucket_count(), TotalBuckets(4));
    let text = r#"{"version":1,"buckets":{"0":[3,1],"1":[1,2],"2":[2,3],"3":[3,1]}}"#;
    assert_eq!(written(&assignment), text);
    let alone = Assignment::spread(None, TotalBuckets(2), 3, &servers[..1], 0);
    assert_eq!(
        written(&alone),
        r#"{"version":1,"buckets":{"0":[1],"1":[1]}}"#
    );
}

fn unknown_fields() -> impl Strategy<Value = Unknown> {
    let value = prop_oneof![
        any::<i64>().prop_map(|n| json!(n)),
        ".*".prop_map(|text| json!(text)),
        Just(json!({"deep": [1, null, {"er": 2.5}]})),
    ];
    prop::collection::btree_map("x_[a-z]{1,8}", value, 0..4)
        .prop_map(|map| map.into_iter().collect())
}

prop_compose! {
    fn tables()(
        numbers in (any::<i64>(), 1..i32::MAX, 0..i64::MAX, any::<i64>(), any::<i64>()),
        comment in prop::option::of(".*"),
        keys in prop::collection::vec("[a-z]{1,5}", 0..3),
        properties in prop::collection::btree_map(".*", ".*", 0..4),
        unknown in unknown_fields(),
    ) -> Table {
        Table {
            table_id: TableId(numbers.0),
            bucket_count: TotalBuckets(numbers.1),
            bucket_layout_epoch: numbers.2,
            created_time: numbers.3,
            modified_time: numbers.4,
            remote_data_dir: comment.clone(),
            comment,
            partition_keys: keys.clone(),
            bucket_keys: keys,
            custom_properties: properties.clone(),
            properties,
            unknown,
        }
    }
}

prop_compose! {
    fn lake_offsets()(
        table in any::<i64>(),
        partitioned in any::<bool>(),
        ends in prop::collection::btree_map((0..5_i64, 0..40_i32), 0..i64::MAX, 0..20),
    ) -> LakeOffsets {
        let key = |(partition, bucket)| (partitioned.then_some(PartitionId(partition)), BucketId(bucket));
        let ends: BTreeMap<_, _> = ends.into_iter().map(|(k, end)| (key(k), LogOffset(end))).collect();
        LakeOffsets { table_id: TableId(table), end_offsets: ends }
    }
}

proptest! {
    #[test]
    fn tables_survive_and_keep_what_they_do_not_know(table in tables()) {
        let back = Table::decode("t", &table.encode().unwrap()).unwrap();
        prop_assert_eq!(back, table);
    }

    #[test]
    fn offsets_survive(offsets in lake_offsets()) {
        let back = LakeOffsets::decode("o", &offsets.encode().unwrap()).unwrap();
        prop_assert_eq!(back, offsets);
    }

    #[test]
    fn partitions_keep_what_they_do_not_know(
        count in prop::option::of(1..i32::MAX), unknown in unknown_fields(),
    ) {
        let partition = Partition {
            table_id: TableId(1),
            partition_id: PartitionId(2),
            bucket_count: count.map(TotalBuckets),
            remote_data_dir: None,
            unknown,
        };
        let back = Partition::decode("p", &partition.encode().unwrap()).unwrap();
        prop_assert_eq!(back, partition);
    }

    #[test]
    fn any_bytes_are_refused_or_read_but_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Table::decode("t", &bytes);
        let _ = LakeTable::decode("l", &bytes);
        let _ = LakeOffsets::decode("o", &bytes);
        let _ = Assignment::decode("a", &bytes);
    }
}
