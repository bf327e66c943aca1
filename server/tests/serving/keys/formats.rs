//! Values of every type in every format, and a schema that grows.

use weir_protocol::schema::RowField;

use super::*;

/// A column of each type that rows have, `c0` being the key.
fn all_types() -> Schema {
    let text = || Box::new(LogicalType::nullable(TypeKind::String));
    let key = || Box::new(LogicalType::not_null(TypeKind::Int));
    let field = RowField {
        name: "f".to_owned(),
        ty: LogicalType::nullable(TypeKind::BigInt),
        description: None,
        field_id: -1,
    };
    let kinds = vec![
        TypeKind::Int,
        TypeKind::Boolean,
        TypeKind::TinyInt,
        TypeKind::SmallInt,
        TypeKind::BigInt,
        TypeKind::Float,
        TypeKind::Double,
        TypeKind::Decimal {
            precision: 5,
            scale: 2,
        },
        TypeKind::Decimal {
            precision: 25,
            scale: 3,
        },
        TypeKind::Char { length: 3 },
        TypeKind::String,
        TypeKind::Binary { length: 2 },
        TypeKind::Bytes,
        TypeKind::Date,
        TypeKind::Time { precision: 3 },
        TypeKind::Timestamp { precision: 3 },
        TypeKind::Timestamp { precision: 6 },
        TypeKind::TimestampLtz { precision: 9 },
        TypeKind::Array(text()),
        TypeKind::Map(key(), text()),
        TypeKind::Row(vec![field]),
    ];
    let columns = kinds.into_iter().enumerate();
    let column = |(index, kind)| Column::new(format!("c{index}"), LogicalType::nullable(kind));
    Schema::new(columns.map(column).collect(), vec!["c0".to_owned()]).unwrap()
}

fn full_row(id: i32) -> Vec<Datum> {
    let text = |text: &str| Datum::String(text.to_owned());
    let timestamp = |nanos| Datum::Timestamp {
        millis: -1_234_567_890_123,
        nanos,
    };
    vec![
        Datum::Int(id),
        Datum::Boolean(true),
        Datum::TinyInt(-1),
        Datum::SmallInt(i16::MIN),
        Datum::BigInt(i64::MIN),
        Datum::Float(-0.0),
        Datum::Double(f64::INFINITY),
        Datum::Decimal(-12_345),
        Datum::Decimal(-1_234_567_890_123_456_789_012_345),
        text("ab"),
        text("détente 水路"),
        Datum::Bytes(vec![0, 255]),
        Datum::Bytes(vec![]),
        Datum::Date(-1),
        Datum::Time(86_399_999),
        timestamp(0),
        timestamp(999_000),
        timestamp(999_999),
        Datum::Array(vec![text("x"), Datum::Null, text("longer than seven")]),
        Datum::Map(vec![
            (Datum::Int(1), text("y")),
            (Datum::Int(2), Datum::Null),
        ]),
        Datum::Row(vec![Datum::BigInt(7)]),
    ]
}

/// The values of keys 0, 1, 2 as they come over the wire.
async fn raw(wire: &mut Wire, table: i64) -> Vec<Option<Bytes>> {
    let keys = (0..3).map(int_key).collect();
    let answer = wire.call(lookup_request(table, 0, keys)).await.unwrap();
    let bucket = &answer.buckets_resp[0];
    assert_eq!(bucket.error_code, None, "{:?}", bucket.error_message);
    bucket
        .values
        .iter()
        .map(|value| value.values.clone())
        .collect()
}

fn int_key(id: i32) -> Bytes {
    let ty = [LogicalType::not_null(TypeKind::Int)];
    let key = KeyFormat::Paimon.encode(&[Datum::Int(id)], &ty);
    key.unwrap().into()
}

#[tokio::test]
async fn keys_made_anew_from_the_log_are_what_was_put_in_every_format() {
    let schema = all_types();
    for (kv, log) in [
        ("COMPACTED", "ARROW"),
        ("COMPACTED", "COMPACTED"),
        ("INDEXED", "INDEXED"),
        ("INDEXED", "ARROW"),
    ] {
        let home = Home::new();
        let server = home.start().await;
        let mut descriptor = keyed(&[("table.kv.format", kv), ("table.log.format", log)]);
        descriptor.schema = schema.clone();
        let (_, table) = create(&server, "t", &descriptor).await;
        let mut wire = Wire::tablet(&server).await;
        let format = match kv {
            "INDEXED" => rows::RowFormat::Indexed,
            _ => rows::RowFormat::Compacted,
        };
        let record = |id: i32, row: &[Datum]| {
            let mut bytes = Vec::new();
            format.encode_into(&mut bytes, row, &schema).unwrap();
            KvRecord {
                key: int_key(id),
                row: Some(bytes.into()),
            }
        };
        let mut nulls = vec![Datum::Null; schema.columns.len()];
        nulls[0] = Datum::Int(1);
        let records = [record(0, &full_row(0)), record(1, &nulls)];
        put_rows(&mut wire, table, &records).await;
        let found = raw(&mut wire, table).await;
        let put: Vec<Bytes> = records
            .iter()
            .map(|record| record.row.clone().unwrap())
            .collect();
        let rows: Vec<Bytes> = found
            .iter()
            .flatten()
            .map(|value| value.slice(2..))
            .collect();
        assert_eq!(rows, put, "{kv} {log}");
        server.shutdown().await;
        std::fs::remove_dir_all(home.dir.path().join("tablet-0/kv")).unwrap();
        let server = home.start().await;
        let mut wire = Wire::tablet(&server).await;
        assert_eq!(raw(&mut wire, table).await, found, "{kv} {log}");
        server.shutdown().await;
    }
}

/// Clients may send more digits of a time than its type has; a log in Arrow has no place for them.
#[tokio::test]
async fn a_time_is_the_same_before_and_after_a_restart() {
    let home = Home::new();
    let server = home.start().await;
    let column = |name: &str, kind| Column::new(name, LogicalType::nullable(kind));
    let columns = vec![
        column("id", TypeKind::Int),
        column("t", TypeKind::Time { precision: 0 }),
        column("s", TypeKind::Timestamp { precision: 5 }),
    ];
    let mut descriptor = keyed(&[]);
    descriptor.schema = Schema::new(columns, vec!["id".to_owned()]).unwrap();
    let schema = descriptor.schema.clone();
    let (_, table) = create(&server, "t", &descriptor).await;
    let mut wire = Wire::tablet(&server).await;
    let row = |millis: i32, nanos: i32| {
        let s = Datum::Timestamp { millis: -1, nanos };
        let row = [Datum::Int(0), Datum::Time(millis), s];
        Bytes::from(compacted::encode(&row, &schema.columns).unwrap())
    };
    let record = KvRecord {
        key: int_key(0),
        row: Some(row(43_200_123, 123_456)),
    };
    put_rows(&mut wire, table, &[record]).await;
    let found = raw(&mut wire, table).await;
    let exact = row(43_200_000, 123_000);
    assert_eq!(found[0].as_ref().map(|value| value.slice(2..)), Some(exact));
    server.shutdown().await;
    std::fs::remove_dir_all(home.dir.path().join("tablet-0/kv")).unwrap();
    let server = home.start().await;
    let mut wire = Wire::tablet(&server).await;
    assert_eq!(raw(&mut wire, table).await, found);
    server.shutdown().await;
}

#[tokio::test]
async fn rows_of_an_older_schema_are_updated_under_the_newer_one() {
    let home = Home::new();
    let server = home.start().await;
    let (path, table) = create(&server, "t", &keyed(&[])).await;
    let mut wire = Wire::tablet(&server).await;
    put_rows(
        &mut wire,
        table,
        &[upsert((1, Some("a"), None)), upsert((2, None, None))],
    )
    .await;
    let add = PbAddColumn {
        column_name: "more".to_owned(),
        data_type_json: Bytes::from_static(br#"{"type":"INTEGER"}"#),
        ..Default::default()
    };
    let alter = AlterTableRequest {
        table_path: pb_path(&path),
        add_columns: vec![add],
        ..Default::default()
    };
    let mut coordinator = Wire::coordinator(&server).await;
    coordinator.call(alter).await.unwrap();
    let more = Column::new("more", LogicalType::nullable(TypeKind::Int));
    let wider = keyed_schema().with_column_added(more).unwrap();
    let mut row = datums(&(1, Some("b"), None));
    row.push(Datum::Int(9));
    let record = KvRecord {
        key: key(1),
        row: Some(compacted::encode(&row, &wider.columns).unwrap().into()),
    };
    let request = put_request(table, 0, kv_batch_of(2, &[record], None));
    assert_eq!(put(&mut wire, request).await.unwrap(), 4);
    put_rows(&mut wire, table, &[upsert((2, Some("old writer"), None))]).await;
    server.shutdown().await;

    std::fs::remove_dir_all(home.dir.path().join("tablet-0/kv")).unwrap();
    let server = home.start().await;
    let mut wire = Wire::tablet(&server).await;
    let answer = lookup_request(table, 0, vec![key(1), key(2)]);
    let answer = wire.call(answer).await.unwrap();
    let found = answer.buckets_resp[0].values.iter().map(|value| {
        let value = Value::decode(value.values.as_ref().unwrap()).unwrap();
        assert_eq!(value.schema_id, SchemaId(2));
        show(&compacted::decode(&value.row, &wider.columns).unwrap())
    });
    assert_eq!(found.collect::<Vec<_>>(), ["1,b,-,9", "2,old writer,-,-"]);
    let records = read(&mut wire, fetch(table, 0, 2)).await.unwrap().records;
    let told = [
        "-U 1,a,-,-",
        "+U 1,b,-,9",
        "-U 2,-,-,-",
        "+U 2,old writer,-,-",
    ];
    assert_eq!(texts(&changes_of(&wider, records.unwrap())), told);
    server.shutdown().await;
}
