//! What is wrong is refused by its own code; other buckets, and what came before, are not touched.

use weir_protocol::error_code::ErrorCode;
use weir_protocol::frame::Answer;

use super::*;

async fn code_of(wire: &mut Wire, request: PutKvRequest) -> ErrorCode {
    put(wire, request).await.unwrap_err().code
}

#[tokio::test]
async fn bad_batches_are_refused_and_change_nothing() {
    let home = Home::new();
    let server = home.start().await;
    let (_, table) = create(&server, "t", &keyed(&[])).await;
    let mut wire = Wire::tablet(&server).await;
    put_rows(&mut wire, table, &[upsert((1, Some("a"), None))]).await;
    let other_key = KvRecord {
        key: key(2),
        ..upsert((1, Some("b"), None))
    };
    let no_row = KvRecord {
        key: key(1),
        row: Some(Bytes::from_static(b"\x00")),
    };
    let null_key = KvRecord {
        key: key(1),
        row: Some(Bytes::from_static(b"\x07")),
    };
    let good = upsert((1, Some("c"), None));
    let only = [good.clone()];
    let batch = |records: &[KvRecord]| put_request(table, 0, kv_batch(records, None));
    let newer = put_request(table, 0, kv_batch_of(2, &only, None));
    let negative = put_request(table, 0, kv_batch_of(-1, &only, None));
    let mut flipped = kv_batch(&only, None).to_vec();
    *flipped.last_mut().unwrap() ^= 1;
    let twice = [kv_batch(&only, None), kv_batch(&only, None)].concat();
    let raw = |bytes: Vec<u8>| put_request(table, 0, bytes.into());
    let targets = |columns: Vec<i32>| PutKvRequest {
        target_columns: columns,
        ..batch(&only)
    };
    let mode = PutKvRequest {
        agg_mode: Some(2),
        ..batch(&only)
    };
    let acks = PutKvRequest {
        acks: 2,
        ..batch(&only)
    };
    for (what, request, code) in [
        (
            "other key",
            batch(&[good.clone(), other_key]),
            ErrorCode::UnknownServerError,
        ),
        (
            "no row",
            batch(&[good.clone(), no_row]),
            ErrorCode::UnknownServerError,
        ),
        (
            "null key",
            batch(&[good.clone(), null_key]),
            ErrorCode::UnknownServerError,
        ),
        ("newer schema", newer, ErrorCode::SchemaNotExist),
        ("negative schema", negative, ErrorCode::SchemaNotExist),
        ("flipped", raw(flipped), ErrorCode::CorruptRecord),
        (
            "cut",
            raw(kv_batch(&only, None)[..40].to_vec()),
            ErrorCode::CorruptRecord,
        ),
        ("empty", raw(Vec::new()), ErrorCode::CorruptRecord),
        ("two batches", raw(twice), ErrorCode::UnknownServerError),
        ("no key", targets(vec![1]), ErrorCode::InvalidTargetColumn),
        (
            "unknown column",
            targets(vec![0, 3]),
            ErrorCode::InvalidTargetColumn,
        ),
        (
            "negative column",
            targets(vec![0, -1]),
            ErrorCode::InvalidTargetColumn,
        ),
        (
            "unknown bucket",
            put_request(table, 2, kv_batch(&[], None)),
            ErrorCode::UnknownTableOrBucket,
        ),
        (
            "unknown table",
            put_request(99, 0, kv_batch(&[], None)),
            ErrorCode::UnknownTableOrBucket,
        ),
        ("mode", mode, ErrorCode::UnknownServerError),
        ("acks", acks, ErrorCode::InvalidRequiredAcks),
    ] {
        let refused = put(&mut wire, request).await.unwrap_err();
        assert_eq!(refused.code, code, "{what}: {refused:?}");
    }
    let appended = append(
        &mut wire,
        produce(table, 0, super::super::rig::batch(0..1, None)),
    )
    .await;
    assert_eq!(appended.unwrap_err().code, ErrorCode::InvalidTable);
    let found = lookup(&mut wire, table, &[1, 2]).await.unwrap();
    assert_eq!(found, [Some(datums(&(1, Some("a"), None))), None]);
    assert_eq!(latest(&mut wire, table).await, 1);
    server.shutdown().await;
}

#[tokio::test]
async fn a_bucket_that_fails_fails_alone() {
    let home = Home::new();
    let server = home.start().await;
    let (_, table) = create(&server, "t", &keyed(&[])).await;
    let mut wire = Wire::tablet(&server).await;
    let mut request = put_request(table, 0, Bytes::from_static(b"rubbish"));
    let good = kv_batch(&[upsert((1, Some("a"), None))], None);
    let bucket = |bucket_id, records: &Bytes, routing_bucket_count| PbPutKvReqForBucket {
        bucket_id,
        records: records.clone(),
        routing_bucket_count,
        ..Default::default()
    };
    request.buckets_req.push(bucket(1, &good, Some(2)));
    request.buckets_req.push(bucket(0, &good, Some(4)));
    let answer = wire.call(request).await.unwrap().buckets_resp;
    let codes: Vec<_> = answer.iter().map(|bucket| bucket.error_code).collect();
    let code = |code: ErrorCode| Some(code.code());
    let expected = [
        code(ErrorCode::CorruptRecord),
        None,
        code(ErrorCode::InvalidBucketRouting),
    ];
    assert_eq!(codes, expected);
    assert_eq!(answer[1].log_end_offset, Some(1));

    let mut request = lookup_request(table, 7, vec![key(1)]);
    let good = lookup_request(table, 1, vec![key(1), key(2)]);
    request.buckets_req.extend(good.buckets_req);
    let answer = wire.call(request).await.unwrap().buckets_resp;
    assert_eq!(answer[0].error_code, code(ErrorCode::UnknownTableOrBucket));
    assert_eq!(answer[1].error_code, None);
    let found: Vec<bool> = answer[1]
        .values
        .iter()
        .map(|one| one.values.is_some())
        .collect();
    assert_eq!(found, [true, false]);
    server.shutdown().await;
}

#[tokio::test]
async fn a_batch_that_is_sent_twice_is_stored_once_and_one_out_of_order_is_refused() {
    let home = Home::new();
    let mut server = home.start().await;
    let (_, table) = create(&server, "t", &keyed(&[])).await;
    let mut wire = Wire::tablet(&server).await;
    let batch = |sequence: i32, n: i32| {
        put_request(
            table,
            0,
            kv_batch(&[upsert((1, None, Some(n)))], Some((7, sequence))),
        )
    };
    assert_eq!(put(&mut wire, batch(0, 0)).await.unwrap(), 1);
    assert_eq!(put(&mut wire, batch(1, 1)).await.unwrap(), 3);
    assert_eq!(put(&mut wire, batch(2, 2)).await.unwrap(), 5);
    for _ in 0..2 {
        assert_eq!(put(&mut wire, batch(0, 0)).await.unwrap(), 1);
        assert_eq!(put(&mut wire, batch(1, 1)).await.unwrap(), 3);
        let late = code_of(&mut wire, batch(9, 9)).await;
        assert_eq!(late, ErrorCode::OutOfOrderSequence);
        let found = lookup(&mut wire, table, &[1]).await.unwrap();
        assert_eq!(found, [Some(datums(&(1, None, Some(2))))]);
        assert_eq!(latest(&mut wire, table).await, 5);
        server.shutdown().await;
        server = home.start().await;
        wire = Wire::tablet(&server).await;
    }
    assert_eq!(put(&mut wire, batch(3, 3)).await.unwrap(), 7);
    server.shutdown().await;
}

#[tokio::test]
async fn puts_of_one_connection_are_done_in_their_order_without_waiting_for_answers() {
    let home = Home::new();
    let server = home.start().await;
    let (_, table) = create(&server, "t", &keyed(&[])).await;
    let mut wire = Wire::tablet(&server).await;
    let mut sent = Vec::new();
    for n in 0..50 {
        let records = kv_batch(&[upsert((1, None, Some(n)))], Some((7, n)));
        let request = PutKvRequest {
            acks: if n % 2 == 0 { 1 } else { -1 },
            ..put_request(table, 0, records)
        };
        sent.push(wire.send(0, &request).await);
    }
    let mut ends = BTreeMap::new();
    for _ in &sent {
        match wire.next().await.unwrap() {
            Answer::Success { request_id, body } => {
                let answer: PutKvResponse = prost::Message::decode(body).unwrap();
                ends.insert(request_id, answer.buckets_resp[0].log_end_offset.unwrap());
            }
            other => panic!("{other:?}"),
        }
    }
    let ends: Vec<i64> = ends.into_values().collect();
    assert_eq!(ends, (0..50).map(|n| 1 + 2 * n).collect::<Vec<_>>());
    server.shutdown().await;
}

#[tokio::test]
async fn kv_requests_to_a_log_table_and_snapshots_are_answered_by_their_codes() {
    let home = Home::new();
    let server = home.start().await;
    let (path, table) = create(&server, "log", &descriptor(1)).await;
    let mut wire = Wire::tablet(&server).await;
    let no_keys = ErrorCode::NonPrimaryKeyTable;
    let refused = code_of(&mut wire, put_request(table, 0, kv_batch(&[], None))).await;
    assert_eq!(refused, no_keys);
    let refused = lookup(&mut wire, table, &[1]).await.unwrap_err();
    assert_eq!(refused.code, no_keys);
    let snapshots = |path: &weir_protocol::ids::TablePath| GetLatestKvSnapshotsRequest {
        table_path: pb_path(path),
        partition_name: None,
    };
    let refused = wire.call(snapshots(&path)).await.unwrap_err();
    assert_eq!(refused.code, no_keys);

    let (path, _) = create(&server, "keys", &keyed(&[])).await;
    let found = wire.call(snapshots(&path)).await.unwrap().latest_snapshots;
    let none = |bucket_id| PbKvSnapshot {
        bucket_id,
        ..Default::default()
    };
    assert_eq!(found, [none(0), none(1)]);
    let of_partition = GetLatestKvSnapshotsRequest {
        partition_name: Some("p".to_owned()),
        ..snapshots(&path)
    };
    let refused = wire.call(of_partition).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::TableNotPartitioned);
    server.shutdown().await;
}

/// To Java, and so to readers of the lake, all NaNs are one key; by their bytes they are several.
#[tokio::test]
async fn a_key_that_is_a_nan_of_other_bits_than_javas_is_refused() {
    let home = Home::new();
    let server = home.start().await;
    let mut descriptor = keyed(&[]);
    let column = Column::new("id", LogicalType::nullable(TypeKind::Double));
    descriptor.schema = Schema::new(vec![column], vec!["id".to_owned()]).unwrap();
    let schema = descriptor.schema.clone();
    let (_, table) = create(&server, "t", &descriptor).await;
    let mut wire = Wire::tablet(&server).await;
    for (value, is_taken) in [(f64::NAN, true), (-f64::NAN, false), (-0.0, true)] {
        let row = [Datum::Double(value)];
        let key = KeyFormat::Paimon.encode(&row, &schema.columns).unwrap();
        let record = KvRecord {
            key: key.into(),
            row: Some(compacted::encode(&row, &schema.columns).unwrap().into()),
        };
        let done = put(&mut wire, put_request(table, 0, kv_batch(&[record], None))).await;
        match done {
            Ok(_) => assert!(is_taken, "{value}"),
            Err(refused) => {
                assert!(!is_taken, "{value}: {refused:?}");
                assert!(refused.message.contains("NaN"), "{refused:?}");
            }
        }
    }
    server.shutdown().await;
}

#[tokio::test]
async fn requests_of_the_first_version_are_refused_where_they_encode_other_keys() {
    let home = Home::new();
    let server = home.start().await;
    let mut two = keyed(&[]);
    two.schema = Schema::new(
        keyed_schema().columns,
        vec!["id".to_owned(), "n".to_owned()],
    )
    .unwrap();
    two.bucket_keys = vec!["id".to_owned()];
    let (_, table) = create(&server, "t", &two).await;
    let mut wire = Wire::tablet(&server).await;
    let refused = code_of(&mut wire, put_request(table, 0, kv_batch(&[], None))).await;
    assert_eq!(refused, ErrorCode::UnsupportedVersion);
    let refused = lookup(&mut wire, table, &[1]).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::UnsupportedVersion);
    let id = wire.send(1, &lookup_request(table, 0, vec![key(1)])).await;
    let answer = wire.answer::<LookupRequest>(id).await.unwrap();
    assert_eq!(answer.buckets_resp[0].error_code, None);
    server.shutdown().await;
}
