//! Rows by the beginning of their keys, the first ones, and all of them page by page.

use weir_protocol::error_code::ErrorCode;
use weir_protocol::row::key::encode_compacted_key;

use super::*;

fn limit_scan(table_id: i64, limit: i32) -> LimitScanRequest {
    LimitScanRequest {
        table_id,
        bucket_id: 0,
        limit,
        ..Default::default()
    }
}

fn values(records: Option<Bytes>) -> Vec<Vec<Datum>> {
    let Some(records) = records else {
        return Vec::new();
    };
    let values = kv_batch::decode_values(&records).unwrap();
    values.iter().map(decode_row).collect()
}

async fn fill(wire: &mut Wire, table: i64, ids: std::ops::Range<i64>) -> Vec<Vec<Datum>> {
    let rows: Vec<Row> = ids.map(|id| (id, Some("x"), None)).collect();
    let records: Vec<KvRecord> = rows.iter().map(|row| upsert(*row)).collect();
    put_rows(wire, table, &records).await;
    rows.iter().map(datums).collect()
}

#[tokio::test]
async fn a_limit_scan_gives_the_first_rows_by_key() {
    let home = Home::new();
    let server = home.start().await;
    let (_, table) = create(&server, "t", &keyed(&[])).await;
    let mut wire = Wire::tablet(&server).await;
    let empty = wire.call(limit_scan(table, 5)).await.unwrap();
    assert_eq!(empty.is_log_table, Some(false));
    assert!(values(empty.records).is_empty());
    let rows = fill(&mut wire, table, 0..9).await;
    let some = wire.call(limit_scan(table, 4)).await.unwrap();
    assert_eq!(values(some.records), rows[..4]);
    let all = wire.call(limit_scan(table, i32::MAX)).await.unwrap();
    assert_eq!(values(all.records), rows);
    let none = wire.call(limit_scan(table, 0)).await.unwrap();
    assert!(none.error_code.is_some());
    server.shutdown().await;
}

fn scan_request(table_id: i64, batch_size_bytes: i32) -> ScanKvRequest {
    ScanKvRequest {
        bucket_scan_req: Some(PbScanReqForBucket {
            table_id,
            ..Default::default()
        }),
        call_seq_id: Some(0),
        batch_size_bytes: Some(batch_size_bytes),
        ..Default::default()
    }
}

fn next_request(scanner_id: Option<&Bytes>, call: i32) -> ScanKvRequest {
    ScanKvRequest {
        scanner_id: scanner_id.cloned(),
        call_seq_id: Some(call),
        batch_size_bytes: Some(64),
        ..Default::default()
    }
}

async fn scan(wire: &mut Wire, request: ScanKvRequest) -> Result<ScanKvResponse, ErrorCode> {
    let response = wire.call(request).await.unwrap();
    match response.error_code {
        None => Ok(response),
        Some(code) => Err(ErrorCode::from_code(code)),
    }
}

#[tokio::test]
async fn a_scan_sees_the_rows_as_they_were_when_it_began_each_once() {
    let home = Home::new();
    let server = home.start().await;
    let (_, table) = create(&server, "t", &keyed(&[])).await;
    let mut wire = Wire::tablet(&server).await;
    let empty = scan(&mut wire, scan_request(table, 64)).await.unwrap();
    assert_eq!(
        (empty.has_more_results, empty.log_offset),
        (Some(false), Some(0))
    );
    assert!(empty.records.is_none() && empty.scanner_id.is_none());

    let rows = fill(&mut wire, table, 0..50).await;
    let mut page = scan(&mut wire, scan_request(table, 64)).await.unwrap();
    assert_eq!(page.log_offset, Some(50));
    fill(&mut wire, table, 30..70).await;
    let mut seen = values(page.records.take());
    let mut call = 0;
    while page.has_more_results == Some(true) {
        call += 1;
        let request = next_request(page.scanner_id.as_ref(), call);
        page = scan(&mut wire, request).await.unwrap();
        let more = values(page.records.take());
        assert!(!more.is_empty());
        assert_eq!(page.log_offset, None);
        seen.extend(more);
    }
    assert!(call > 5, "it came in pages");
    assert_eq!(seen, rows);

    let limited = ScanKvRequest {
        bucket_scan_req: Some(PbScanReqForBucket {
            table_id: table,
            limit: Some(3),
            ..Default::default()
        }),
        ..scan_request(table, 1 << 20)
    };
    let few = scan(&mut wire, limited).await.unwrap();
    assert_eq!(values(few.records), rows[..3]);
    assert_eq!(few.has_more_results, Some(false));
    server.shutdown().await;
}

#[tokio::test]
async fn scans_that_are_wrong_too_many_or_over_are_refused_by_their_codes() {
    let home = Home::new();
    let mut config = home.config();
    config.kv.bucket_scans = 2;
    let server = home.start_with(config.clone()).await;
    let (_, table) = create(&server, "t", &keyed(&[])).await;
    let mut wire = Wire::tablet(&server).await;
    fill(&mut wire, table, 0..50).await;
    let first = scan(&mut wire, scan_request(table, 64)).await.unwrap();
    let second = scan(&mut wire, scan_request(table, 64)).await.unwrap();
    let third = scan(&mut wire, scan_request(table, 64)).await;
    assert_eq!(third.unwrap_err(), ErrorCode::TooManyScanners);
    let early = scan(&mut wire, next_request(first.scanner_id.as_ref(), 2)).await;
    assert_eq!(early.unwrap_err(), ErrorCode::InvalidScanRequest);
    let close = ScanKvRequest {
        close_scanner: Some(true),
        ..next_request(first.scanner_id.as_ref(), 1)
    };
    let closed = scan(&mut wire, close).await.unwrap();
    assert_eq!(closed.has_more_results, Some(false));
    let over = scan(&mut wire, next_request(first.scanner_id.as_ref(), 1)).await;
    assert_eq!(over.unwrap_err(), ErrorCode::UnknownScannerId);
    let rubbish = Some(Bytes::from_static(b"rubbish"));
    let unknown = scan(&mut wire, next_request(rubbish.as_ref(), 1)).await;
    assert_eq!(unknown.unwrap_err(), ErrorCode::UnknownScannerId);
    let invalid = [
        ScanKvRequest::default(),
        scan_request(table, 0),
        ScanKvRequest {
            call_seq_id: Some(1),
            ..scan_request(table, 64)
        },
        ScanKvRequest {
            scanner_id: second.scanner_id.clone(),
            ..scan_request(table, 64)
        },
    ];
    for request in invalid {
        let refused = scan(&mut wire, request.clone()).await;
        assert_eq!(
            refused.unwrap_err(),
            ErrorCode::InvalidScanRequest,
            "{request:?}"
        );
    }
    let missing = scan(&mut wire, scan_request(99, 64)).await;
    assert_eq!(missing.unwrap_err(), ErrorCode::UnknownTableOrBucket);
    server.shutdown().await;

    let server = home.start_with(config).await;
    let mut wire = Wire::tablet(&server).await;
    let over = scan(&mut wire, next_request(second.scanner_id.as_ref(), 1)).await;
    assert_eq!(over.unwrap_err(), ErrorCode::UnknownScannerId);
    server.shutdown().await;
}

#[tokio::test]
async fn rows_are_found_by_the_beginning_of_their_keys() {
    let home = Home::new();
    let server = home.start().await;
    let mut two = keyed(&[]);
    let primary_key = vec!["id".to_owned(), "n".to_owned()];
    two.schema = Schema::new(keyed_schema().columns, primary_key).unwrap();
    two.bucket_keys = vec!["id".to_owned()];
    let (_, table) = create(&server, "t", &two).await;
    let mut wire = Wire::tablet(&server).await;
    let big = LogicalType::not_null(TypeKind::BigInt);
    let int = LogicalType::not_null(TypeKind::Int);
    let prefix =
        |id: i64| Bytes::from(encode_compacted_key(&[Datum::BigInt(id)], &[&big]).unwrap());
    let record = |id: i64, n: i32| {
        let values = [Datum::BigInt(id), Datum::Int(n)];
        let key = encode_compacted_key(&values, &[&big, &int]).unwrap();
        let row = [Datum::BigInt(id), Datum::Null, Datum::Int(n)];
        KvRecord {
            key: key.into(),
            row: Some(compacted::encode(&row, &two.schema.columns).unwrap().into()),
        }
    };
    let records = [record(1, 1), record(1, 2), record(2, 1), record(300, 1)];
    let id = wire
        .send(1, &put_request(table, 0, kv_batch(&records, None)))
        .await;
    let answer = wire.answer::<PutKvRequest>(id).await.unwrap();
    assert_eq!(answer.buckets_resp[0].error_code, None, "{answer:?}");
    let request = PrefixLookupRequest {
        table_id: table,
        buckets_req: vec![PbPrefixLookupReqForBucket {
            keys: vec![prefix(1), prefix(3), prefix(300)],
            ..Default::default()
        }],
    };
    let id = wire.send(1, &request).await;
    let answer = wire.answer::<PrefixLookupRequest>(id).await.unwrap();
    let lists = &answer.buckets_resp[0].value_lists;
    let found: Vec<Vec<Vec<Datum>>> = lists
        .iter()
        .map(|list| {
            let row = |bytes: &Bytes| {
                let value = Value::decode(bytes).unwrap();
                compacted::decode(&value.row, &two.schema.columns).unwrap()
            };
            list.values.iter().map(row).collect()
        })
        .collect();
    let row = |id: i64, n: i32| vec![Datum::BigInt(id), Datum::Null, Datum::Int(n)];
    let expected = [vec![row(1, 1), row(1, 2)], vec![], vec![row(300, 1)]];
    assert_eq!(found, expected);
    server.shutdown().await;
}

#[tokio::test]
async fn an_answer_that_would_be_too_large_is_refused_and_leaves_its_neighbours_alone() {
    let home = Home::new();
    let mut config = home.config();
    config.limits.max_fetch_bytes = 200_000;
    let server = home.start_with(config).await;
    let (_, table) = create(&server, "t", &keyed(&[])).await;
    let mut wire = Wire::tablet(&server).await;
    let name: &'static str = Box::leak("x".repeat(50_000).into_boxed_str());
    for id in 0..6 {
        put_rows(&mut wire, table, &[upsert((id, Some(name), None))]).await;
    }
    let request = put_request(table, 1, kv_batch(&[upsert((7, Some("b"), None))], None));
    put(&mut wire, request).await.unwrap();
    let some = lookup(&mut wire, table, &[0, 1, 2]).await.unwrap();
    assert_eq!(some.iter().flatten().count(), 3);
    let refused = lookup(&mut wire, table, &[0, 0, 0, 0, 0])
        .await
        .unwrap_err();
    assert_eq!(refused.code, ErrorCode::RecordTooLarge);

    // The bucket that asks for too much is the first, and takes most of the room before it is refused.
    let of_bucket = |bucket_id, keys: Vec<Bytes>| PbLookupReqForBucket {
        bucket_id,
        keys,
        ..Default::default()
    };
    let both = LookupRequest {
        table_id: table,
        buckets_req: vec![of_bucket(0, vec![key(0); 5]), of_bucket(1, vec![key(7)])],
        ..Default::default()
    };
    let answer = wire.call(both).await.unwrap();
    let code = answer.buckets_resp[0].error_code.map(ErrorCode::from_code);
    assert_eq!(code, Some(ErrorCode::RecordTooLarge));
    let neighbour = &answer.buckets_resp[1];
    assert_eq!(neighbour.error_code, None);
    assert_eq!(neighbour.values.len(), 1);
    let of_bucket = |bucket_id| PbPrefixLookupReqForBucket {
        bucket_id,
        keys: vec![Bytes::new()],
        ..Default::default()
    };
    let both = PrefixLookupRequest {
        table_id: table,
        buckets_req: vec![of_bucket(0), of_bucket(1)],
    };
    let answer = wire.call(both).await.unwrap();
    let code = answer.buckets_resp[0].error_code.map(ErrorCode::from_code);
    assert_eq!(code, Some(ErrorCode::RecordTooLarge));
    let neighbour = &answer.buckets_resp[1];
    assert_eq!(neighbour.error_code, None);
    assert_eq!(neighbour.value_lists[0].values.len(), 1);

    let first = wire.call(limit_scan(table, 3)).await.unwrap();
    assert_eq!(values(first.records).len(), 3);
    // Fewer rows than asked for would look like all there are.
    let refused = wire.call(limit_scan(table, 6)).await;
    let code = match refused {
        Ok(answer) => answer.error_code.map(ErrorCode::from_code),
        Err(refused) => Some(refused.code),
    };
    assert_eq!(code, Some(ErrorCode::RecordTooLarge));
    server.shutdown().await;
}
