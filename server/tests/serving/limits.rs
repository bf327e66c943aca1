//! What clients may use up, and what those get who use up more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::{BufMut, BytesMut};
use prost::Message;
use tokio::io::AsyncWriteExt;
use weir_catalog::clock::Clock;
use weir_protocol::api_key::ApiKey;
use weir_protocol::error_code::ErrorCode;
use weir_protocol::frame::Answer;
use weir_protocol::message::Request;
use weir_protocol::proto::*;
use weir_server::{Components, Server};

use crate::rig::*;

/// The frame of a request, in two halves.
fn halves(request: &ProduceLogRequest) -> (BytesMut, BytesMut) {
    let body = request.encode_to_vec();
    let mut frame = BytesMut::new();
    frame.put_i32(i32::try_from(8 + body.len()).unwrap());
    frame.put_i16(ApiKey::ProduceLog.key());
    frame.put_i16(0);
    frame.put_i32(0);
    frame.put_slice(&body);
    let second = frame.split_off(frame.len() / 2);
    (frame, second)
}

#[tokio::test]
async fn sockets_that_announce_much_and_send_nothing_keep_nobody_waiting() {
    let home = Home::new();
    let mut config = home.config();
    config.limits.max_frame_bytes = 1 << 20;
    config.limits.request_memory_bytes = 1 << 20;
    config.limits.slow_frame_ms = 600_000;
    let server = home.start_with(config).await;
    let mut idle = Vec::new();
    for _ in 0..6 {
        let mut wire = Wire::tablet(&server).await;
        let mut announced = BytesMut::new();
        announced.put_i32(1 << 20);
        announced.put_i16(ApiKey::ProduceLog.key());
        wire.stream.write_all(&announced).await.unwrap();
        idle.push(wire);
        for _ in 0..10 {
            let mut other = Wire::tablet(&server).await;
            other.call(MetadataRequest::default()).await.unwrap();
        }
    }
    server.shutdown().await;
}

#[tokio::test]
async fn requests_that_together_are_more_than_the_memory_are_all_answered() {
    let home = Home::new();
    let mut config = home.config();
    config.limits.max_frame_bytes = 1 << 20;
    config.limits.request_memory_bytes = 1 << 20;
    config.limits.slow_frame_ms = 600_000;
    let server = home.start_with(config).await;
    let request = produce(1, 0, vec![0; 1_000_000].into());
    let mut wires = Vec::new();
    for _ in 0..4 {
        let mut wire = Wire::tablet(&server).await;
        let (first, second) = halves(&request);
        wire.stream.write_all(&first).await.unwrap();
        wires.push((wire, second));
    }
    for (wire, second) in &mut wires {
        wire.stream.write_all(second).await.unwrap();
    }
    for (mut wire, _) in wires {
        let answer = wire.next().await;
        assert!(matches!(answer, Some(Answer::Success { .. })), "{answer:?}");
    }
    server.shutdown().await;
}

/// Connects until there is a place.
async fn connect_in_time(address: &str) -> Wire {
    let trying = async {
        loop {
            let mut wire = Wire::connect(address).await;
            wire.send(0, &MetadataRequest::default()).await;
            if wire.next().await.is_some() {
                return wire;
            }
        }
    };
    tokio::time::timeout(PATIENCE, trying)
        .await
        .expect("a place is free")
}

#[tokio::test]
async fn a_connection_whose_requests_all_wait_ends_with_its_peer() {
    let home = Home::new();
    let mut config = home.config();
    config.limits.in_flight_per_connection = 2;
    config.limits.max_fetch_wait_ms = 600_000;
    let server = home.start_with(config.clone()).await;
    let (_, table) = create(&server, "t", &descriptor(1)).await;
    server.shutdown().await;

    config.limits.connections_per_address = 1;
    let server = home.start_with(config).await;
    let address = &server.tablet_addrs()[0];
    let mut waiting = connect_in_time(address).await;
    let patient = FetchLogRequest {
        min_bytes: Some(1),
        max_wait_ms: Some(600_000),
        ..fetch(table, 0, 0)
    };
    for _ in 0..2 {
        waiting.send(0, &patient).await;
    }
    drop(waiting);
    connect_in_time(address).await;
    server.shutdown().await;
}

#[tokio::test]
async fn a_flood_of_empty_messages_is_counted_before_it_is_decoded() {
    let home = Home::new();
    let mut config = home.config();
    config.limits.max_buckets_per_request = 1_000;
    let server = home.start_with(config).await;
    let mut wire = Wire::tablet(&server).await;
    // Field 4 of a produce and field 1 of the others, empty, again and again.
    for (api, tag) in [
        (ApiKey::ProduceLog, 0x22),
        (ApiKey::PutKv, 0x22),
        (ApiKey::Lookup, 0x12),
        (ApiKey::GetMetadata, 0x0a),
        (ApiKey::FetchLog, 0x1a),
    ] {
        let flood = [tag, 0].repeat(1_000_000);
        let refused = wire.call_raw(api.key(), 0, &flood).await;
        assert_eq!(refused.code, ErrorCode::UnknownServerError, "{refused:?}");
        let counted = refused.message.contains("names 1000000");
        assert!(counted, "{}: {}", api.name(), refused.message);
    }
    server.shutdown().await;
}

#[tokio::test]
async fn only_requests_that_carry_rows_may_be_large() {
    let home = Home::new();
    let mut config = home.config();
    config.limits.max_small_frame_bytes = 4096;
    let server = home.start_with(config).await;
    let body = vec![0; 5000];
    let mut wire = Wire::tablet(&server).await;
    wire.send_raw(MetadataRequest::API_KEY.key(), 0, &body)
        .await;
    assert_eq!(wire.next().await, None);
    let mut wire = Wire::tablet(&server).await;
    let broken = wire.call_raw(ApiKey::ProduceLog.key(), 0, &body).await;
    assert_eq!(broken.code, ErrorCode::CorruptMessage);
    server.shutdown().await;
}

#[tokio::test]
async fn the_newest_rows_are_told_where_there_are_too_many_for_one_answer() {
    let home = Home::new();
    let mut config = home.config();
    config.limits.max_fetch_bytes = 4096;
    let server = home.start_with(config).await;
    let (_, table) = create(&server, "t", &descriptor(1)).await;
    let mut wire = Wire::tablet(&server).await;
    for n in 0..100 {
        append(&mut wire, produce(table, 0, batch(n..n + 1, None)))
            .await
            .unwrap();
    }
    let mut newest = async |limit| {
        let request = LimitScanRequest {
            table_id: table,
            limit,
            ..Default::default()
        };
        let answer = wire.call(request).await.unwrap();
        assert_eq!(answer.error_code, None);
        let records = answer.records.unwrap();
        (records.len(), ids_of(Some(records)))
    };
    let (bytes, ids) = newest(1_000).await;
    assert_eq!(ids.last(), Some(&99), "{ids:?}");
    assert!(ids.len() > 1 && ids.len() < 100, "{ids:?}");
    assert!(bytes <= 4096, "{bytes}");
    assert_eq!(newest(3).await.1, [97, 98, 99]);
    server.shutdown().await;
}

#[tokio::test]
async fn a_partition_id_that_is_asked_for_twice_is_told_twice() {
    let home = Home::new();
    let server = home.start().await;
    let mut partitioned = descriptor(1);
    partitioned.partition_keys = vec!["name".to_owned()];
    let (path, _) = create(&server, "t", &partitioned).await;
    let mut wire = Wire::coordinator(&server).await;
    let spec = PbPartitionSpec {
        partition_key_values: vec![PbKeyValue {
            key: "name".into(),
            value: "a".into(),
        }],
    };
    wire.call(CreatePartitionRequest {
        table_path: pb_path(&path),
        partition_spec: spec,
        ignore_if_not_exists: false,
    })
    .await
    .unwrap();
    let listed = wire
        .call(ListPartitionInfosRequest {
            table_path: pb_path(&path),
            ..Default::default()
        })
        .await
        .unwrap();
    let id = listed.partitions_info[0].partition_id;
    let asked = |ids: Vec<i64>| MetadataRequest {
        table_path: vec![pb_path(&path)],
        partitions_id: ids,
        ..Default::default()
    };
    let answer = wire.call(asked(vec![id, id])).await.unwrap();
    assert_eq!(answer.partition_metadata.len(), 2);
    let unknown = wire.call(asked(vec![id, id + 1])).await.unwrap_err();
    assert_eq!(unknown.code, ErrorCode::PartitionNotExists);
    server.shutdown().await;
}

/// A clock that breaks when it is told to.
#[derive(Debug, Default)]
struct Breaking(AtomicBool);

impl Clock for Breaking {
    fn now_ms(&self) -> i64 {
        assert!(!self.0.load(Ordering::Relaxed), "for this test");
        1
    }
}

#[tokio::test]
async fn a_server_that_lost_a_part_is_not_ready_and_says_why() {
    let home = Home::new();
    let mut config = home.config();
    config.log.retention_check_ms = 1;
    let clock = Arc::new(Breaking::default());
    let components = Components {
        clock: Arc::clone(&clock) as _,
        ..home.components()
    };
    let server = Server::start(config, components).await.unwrap();
    assert!(server.is_ready());
    clock.0.store(true, Ordering::Relaxed);
    let reason = tokio::time::timeout(PATIENCE, server.failed())
        .await
        .expect("it is told");
    assert!(reason.contains("retention"), "{reason}");
    assert!(!server.is_ready());
    server.shutdown().await;
}
