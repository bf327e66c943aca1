//! Columns that the server numbers, and lookups that insert.

use std::collections::BTreeSet;

use weir_protocol::error_code::ErrorCode;

use super::*;

/// The table of [`keyed`] whose column `n` the server numbers.
fn numbered(properties: &[(&str, &str)]) -> TableDescriptor {
    let mut table = keyed(properties);
    table.schema.auto_increment = vec!["n".to_owned()];
    table
}

fn insert_request(table: i64, bucket: i32, ids: &[i64]) -> LookupRequest {
    let keys = ids.iter().map(|id| key(*id)).collect();
    LookupRequest {
        insert_if_not_exists: Some(true),
        acks: Some(-1),
        timeout_ms: Some(20_000),
        ..lookup_request(table, bucket, keys)
    }
}

async fn insert(wire: &mut Wire, request: LookupRequest) -> Result<Vec<Vec<Datum>>, ErrorCode> {
    let answer = wire.call(request).await.unwrap();
    let bucket = &answer.buckets_resp[0];
    if let Some(code) = bucket.error_code {
        return Err(ErrorCode::from_code(code));
    }
    let values = bucket.values.iter();
    let values = values.map(|value| decode_value(value.values.as_ref().unwrap()));
    Ok(values.collect())
}

fn number(row: &[Datum]) -> i32 {
    match row[2] {
        Datum::Int(number) => number,
        ref other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn new_rows_are_numbered_once_each_over_all_buckets_and_restarts() {
    let home = Home::new();
    let mut server = home.start().await;
    let cache = ("table.auto-increment.cache-size", "3");
    let (_, table) = create(&server, "t", &numbered(&[cache])).await;
    let mut wire = Wire::tablet(&server).await;
    let mut numbers = BTreeSet::new();
    let mut count = 0;
    for round in 0..3 {
        for bucket in 0..2 {
            let ids: Vec<i64> = (0..5).map(|id| id + 10 * (2 * round + bucket)).collect();
            let bucket = i32::try_from(bucket).unwrap();
            let request = || insert_request(table, bucket, &ids);
            let rows = insert(&mut wire, request()).await.unwrap();
            count += rows.len();
            numbers.extend(rows.iter().map(|row| number(row)));
            let again = insert(&mut wire, request()).await.unwrap();
            assert_eq!(again, rows, "they are there");
        }
        server.shutdown().await;
        server = home.start().await;
        wire = Wire::tablet(&server).await;
    }
    assert_eq!(
        numbers.len(),
        count,
        "no number is given twice: {numbers:?}"
    );
    assert_eq!(numbers.first(), Some(&1));

    let partial = |columns: Vec<i32>, row: Row| PutKvRequest {
        target_columns: columns,
        ..put_request(table, 0, kv_batch(&[upsert(row)], None))
    };
    let before = lookup(&mut wire, table, &[0]).await.unwrap();
    let row = (0, Some("a"), None);
    put(&mut wire, partial(vec![0, 1], row)).await.unwrap();
    let after = lookup(&mut wire, table, &[0]).await.unwrap();
    let (before, after) = (before[0].clone().unwrap(), after[0].clone().unwrap());
    assert_eq!(
        number(&before),
        number(&after),
        "an update keeps the number"
    );
    assert_eq!(after[1], Datum::String("a".to_owned()));
    for columns in [vec![], vec![0, 2]] {
        let refused = put(&mut wire, partial(columns, row)).await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::InvalidTargetColumn);
    }
    server.shutdown().await;
}

#[tokio::test]
async fn a_lookup_inserts_what_is_not_there_once_and_refuses_what_is_no_key() {
    let home = Home::new();
    let server = home.start().await;
    let (_, table) = create(&server, "t", &keyed(&[])).await;
    let mut wire = Wire::tablet(&server).await;
    put_rows(&mut wire, table, &[upsert((1, Some("a"), Some(1)))]).await;
    let request = insert_request(table, 0, &[2, 1, 2]);
    let rows = insert(&mut wire, request).await.unwrap();
    let new = datums(&(2, None, None));
    assert_eq!(rows, [new.clone(), datums(&(1, Some("a"), Some(1))), new]);
    let told = ["+I 1,a,1", "+I 2,-,-"];
    assert_eq!(texts(&changes(&mut wire, table).await), told);
    let mut request = insert_request(table, 0, &[3]);
    request.buckets_req[0]
        .keys
        .push(Bytes::from_static(b"rubbish"));
    let refused = insert(&mut wire, request).await.unwrap_err();
    assert_eq!(refused, ErrorCode::UnknownServerError);
    assert_eq!(lookup(&mut wire, table, &[3]).await.unwrap(), [None]);
    let acks = LookupRequest {
        acks: Some(2),
        ..insert_request(table, 0, &[3])
    };
    let refused = wire.call(acks).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::InvalidRequiredAcks);
    server.shutdown().await;
}
