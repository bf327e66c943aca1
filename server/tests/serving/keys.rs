//! Tables with a primary key: what is put is looked up, and what changed is read.

use std::collections::BTreeMap;

use bytes::Bytes;
use weir_protocol::descriptor::TableDescriptor;
use weir_protocol::ids::{SchemaId, WriterId};
use weir_protocol::proto::*;
use weir_protocol::record::kv_batch::{self, KvRecord, Value};
use weir_protocol::record::{BatchIdentity, ChangeType, arrow as arrow_batch, batches, rows};
use weir_protocol::row::key::KeyFormat;
use weir_protocol::row::{Datum, compacted};
use weir_protocol::schema::{Column, LogicalType, Schema, TypeKind};

use crate::rig::*;

mod crash;
mod formats;
mod model;
mod numbers;
mod scans;
mod wrong;

/// `id BIGINT, name STRING, n INT`, by `id`.
fn keyed_schema() -> Schema {
    let columns = vec![
        Column::new("id", LogicalType::nullable(TypeKind::BigInt)),
        Column::new("name", LogicalType::nullable(TypeKind::String)),
        Column::new("n", LogicalType::nullable(TypeKind::Int)),
    ];
    Schema::new(columns, vec!["id".to_owned()]).unwrap()
}

fn keyed(properties: &[(&str, &str)]) -> TableDescriptor {
    let mut descriptor = TableDescriptor::new(keyed_schema());
    descriptor.bucket_count = Some(2);
    for (key, value) in properties {
        let (key, value) = ((*key).to_owned(), (*value).to_owned());
        descriptor.properties.insert(key, value);
    }
    descriptor
}

type Row = (i64, Option<&'static str>, Option<i32>);

fn datums((id, name, n): &Row) -> Vec<Datum> {
    let name = name.map_or(Datum::Null, |name| Datum::String(name.to_owned()));
    vec![Datum::BigInt(*id), name, n.map_or(Datum::Null, Datum::Int)]
}

fn key(id: i64) -> Bytes {
    let ty = [LogicalType::not_null(TypeKind::BigInt)];
    let key = KeyFormat::Paimon.encode(&[Datum::BigInt(id)], &ty);
    key.unwrap().into()
}

fn row_of(row: &Row) -> Bytes {
    compacted::encode(&datums(row), &keyed_schema().columns)
        .unwrap()
        .into()
}

fn upsert(row: Row) -> KvRecord {
    KvRecord {
        key: key(row.0),
        row: Some(row_of(&row)),
    }
}

fn delete(id: i64) -> KvRecord {
    KvRecord {
        key: key(id),
        row: None,
    }
}

fn kv_batch(records: &[KvRecord], writer: Option<(i64, i32)>) -> Bytes {
    kv_batch_of(1, records, writer)
}

fn kv_batch_of(schema: i32, records: &[KvRecord], writer: Option<(i64, i32)>) -> Bytes {
    let (writer, batch_sequence) = writer.unwrap_or((-1, -1));
    let id = BatchIdentity {
        schema_id: SchemaId(schema),
        writer_id: WriterId(writer),
        batch_sequence,
    };
    kv_batch::encode(id, records).unwrap()
}

fn put_request(table_id: i64, bucket_id: i32, records: Bytes) -> PutKvRequest {
    PutKvRequest {
        acks: -1,
        table_id,
        timeout_ms: 20_000,
        target_columns: vec![],
        buckets_req: vec![PbPutKvReqForBucket {
            bucket_id,
            records,
            ..Default::default()
        }],
        agg_mode: None,
    }
}

/// Puts, and returns the offset behind the last change.
async fn put(wire: &mut Wire, request: PutKvRequest) -> Result<i64, Refused> {
    let response = wire.call(request).await?;
    let bucket = &response.buckets_resp[0];
    match bucket.error_code {
        None => Ok(bucket.log_end_offset.unwrap()),
        Some(code) => Err(refused(code, bucket.error_message.clone())),
    }
}

async fn put_rows(wire: &mut Wire, table: i64, records: &[KvRecord]) -> i64 {
    let request = put_request(table, 0, kv_batch(records, None));
    put(wire, request).await.unwrap()
}

fn lookup_request(table_id: i64, bucket_id: i32, keys: Vec<Bytes>) -> LookupRequest {
    LookupRequest {
        table_id,
        buckets_req: vec![PbLookupReqForBucket {
            bucket_id,
            keys,
            ..Default::default()
        }],
        ..Default::default()
    }
}

/// The rows of some ids, in their order.
async fn lookup(
    wire: &mut Wire,
    table: i64,
    ids: &[i64],
) -> Result<Vec<Option<Vec<Datum>>>, Refused> {
    let keys = ids.iter().map(|id| key(*id)).collect();
    let response = wire.call(lookup_request(table, 0, keys)).await?;
    let bucket = &response.buckets_resp[0];
    if let Some(code) = bucket.error_code {
        return Err(refused(code, bucket.error_message.clone()));
    }
    let row = |value: &PbValue| Some(decode_value(value.values.as_ref()?));
    Ok(bucket.values.iter().map(row).collect())
}

fn decode_value(bytes: &Bytes) -> Vec<Datum> {
    decode_row(&Value::decode(bytes).unwrap())
}

fn decode_row(value: &Value) -> Vec<Datum> {
    assert_eq!(value.schema_id, SchemaId(1));
    compacted::decode(&value.row, &keyed_schema().columns).unwrap()
}

/// All changes that can be read, as text, by offset.
async fn changes(wire: &mut Wire, table: i64) -> Vec<(i64, String)> {
    let read = read(wire, fetch(table, 0, -2)).await.unwrap();
    changes_of(&keyed_schema(), read.records.unwrap())
}

fn changes_of(schema: &Schema, records: Bytes) -> Vec<(i64, String)> {
    let mut all = Vec::new();
    for batch in batches(records) {
        let batch = batch.unwrap();
        batch.verify_crc().unwrap();
        assert!(!batch.header.append_only);
        if batch.record_count() == 0 {
            all.push((batch.header.base_offset.0, "nothing".to_owned()));
            continue;
        }
        let decoded = arrow_batch::decode(&batch, &schema.arrow_schema()).unwrap();
        let rows = rows::rows_of(&decoded.batch, schema).unwrap();
        let types = decoded.change_types.unwrap();
        for (at, (change, row)) in (batch.header.base_offset.0..).zip(types.iter().zip(rows)) {
            all.push((at, format!("{} {}", sign(*change), show(&row))));
        }
    }
    all
}

fn sign(change: ChangeType) -> &'static str {
    match change {
        ChangeType::AppendOnly => "+A",
        ChangeType::Insert => "+I",
        ChangeType::UpdateBefore => "-U",
        ChangeType::UpdateAfter => "+U",
        ChangeType::Delete => "-D",
    }
}

fn show(row: &[Datum]) -> String {
    let values = row.iter().map(|value| match value {
        Datum::BigInt(value) => value.to_string(),
        Datum::Int(value) => value.to_string(),
        Datum::String(value) => value.clone(),
        Datum::Null => "-".to_owned(),
        other => panic!("{other:?}"),
    });
    values.collect::<Vec<_>>().join(",")
}

fn texts(changes: &[(i64, String)]) -> Vec<&str> {
    changes.iter().map(|(_, text)| text.as_str()).collect()
}

#[tokio::test]
async fn what_is_put_is_looked_up_read_as_changes_and_there_after_a_restart() {
    let home = Home::new();
    let server = home.start().await;
    let (_, table) = create(&server, "t", &keyed(&[])).await;
    let mut wire = Wire::tablet(&server).await;

    let first = [
        upsert((1, Some("a"), Some(1))),
        upsert((2, Some("b"), None)),
    ];
    assert_eq!(put_rows(&mut wire, table, &first).await, 2);
    let second = [
        upsert((1, Some("c"), Some(2))),
        delete(2),
        delete(3),
        upsert((1, Some("c"), Some(2))),
    ];
    assert_eq!(put_rows(&mut wire, table, &second).await, 7);
    assert_eq!(put_rows(&mut wire, table, &[delete(2)]).await, 8);

    let expected = vec![Some(datums(&(1, Some("c"), Some(2)))), None, None];
    let found = lookup(&mut wire, table, &[1, 2, 3]).await.unwrap();
    assert_eq!(found, expected);
    let all = changes(&mut wire, table).await;
    let told = [
        "+I 1,a,1", "+I 2,b,-", "-U 1,a,1", "+U 1,c,2", "-D 2,b,-", "-U 1,c,2", "+U 1,c,2",
        "nothing",
    ];
    assert_eq!(texts(&all), told);
    let offsets: Vec<i64> = all.iter().map(|(offset, _)| *offset).collect();
    assert_eq!(offsets, (0..8).collect::<Vec<_>>());
    assert_eq!(latest(&mut wire, table).await, 8);
    server.shutdown().await;

    let server = home.start().await;
    let mut wire = Wire::tablet(&server).await;
    let found = lookup(&mut wire, table, &[1, 2, 3]).await.unwrap();
    assert_eq!(found, expected);
    assert_eq!(changes(&mut wire, table).await, all);
    let after = put_rows(&mut wire, table, &[upsert((2, None, None))]).await;
    assert_eq!(after, 9);
    server.shutdown().await;
}

async fn latest(wire: &mut Wire, table_id: i64) -> i64 {
    let request = ListOffsetsRequest {
        follower_server_id: -1,
        offset_type: 1,
        table_id,
        bucket_id: vec![0],
        ..Default::default()
    };
    let response = wire.call(request).await.unwrap();
    response.buckets_resp[0].offset.unwrap()
}
