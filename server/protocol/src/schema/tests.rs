use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Fields, Schema as ArrowSchema, TimeUnit};

use super::*;

const GOLDEN: &[u8] = include_bytes!("../../tests/golden/schema.json");

fn nullable(kind: TypeKind) -> LogicalType {
    LogicalType::nullable(kind)
}

#[test]
fn the_golden_schema_is_read_and_written_byte_for_byte() {
    let schema = Schema::from_json(GOLDEN).unwrap();
    assert_eq!(schema.columns.len(), 11);
    assert_eq!(schema.primary_key, ["id", "dt"]);
    assert_eq!(schema.highest_field_id, 12);
    assert_eq!(
        schema.column("name").unwrap().comment.as_deref(),
        Some("the name")
    );
    assert_eq!(schema.to_json(), GOLDEN);
}

#[test]
fn documents_without_ids_are_numbered_depth_first() {
    let mut document: serde_json::Value = serde_json::from_slice(GOLDEN).unwrap();
    let object = document.as_object_mut().unwrap();
    object.remove("highest_field_id");
    for column in object["columns"].as_array_mut().unwrap() {
        column.as_object_mut().unwrap().remove("id");
        if let Some(fields) = column["data_type"].get_mut("fields") {
            for field in fields.as_array_mut().unwrap() {
                field.as_object_mut().unwrap().remove("field_id");
            }
        }
    }
    let bytes = serde_json::to_vec(&document).unwrap();
    assert_eq!(
        Schema::from_json(&bytes).unwrap(),
        Schema::from_json(GOLDEN).unwrap()
    );
}

#[test]
fn unknown_members_are_ignored_and_wrong_documents_are_refused() {
    let with = |column: &str, rest: &str| {
        format!(r#"{{"version":1,"columns":[{column}]{rest}}}"#).into_bytes()
    };
    let a = r#"{"name":"a","data_type":{"type":"INTEGER","later":1},"later":{}}"#;
    let schema = Schema::from_json(&with(a, r#","later":[]"#)).unwrap();
    assert_eq!(
        schema.columns,
        [Column {
            id: 0,
            ..Column::new("a", nullable(TypeKind::Int))
        }]
    );

    let b = r#"{"name":"b","data_type":{"type":"DATE"}}"#;
    let numbered = r#"{"name":"NAME","id":3,"data_type":{"type":"DATE"}}"#;
    let bad = [
        with(r#"{"name":"a","data_type":{"type":"INT"}}"#, ""),
        with(r#"{"name":"a","data_type":{"type":"CHAR"}}"#, ""),
        with(r#"{"name":"a","data_type":{"type":"CHAR","length":0}}"#, ""),
        with(
            r#"{"name":"a","data_type":{"type":"DECIMAL","precision":39,"scale":0}}"#,
            "",
        ),
        with(
            r#"{"name":"a","data_type":{"type":"DECIMAL","precision":3,"scale":4}}"#,
            "",
        ),
        with(
            r#"{"name":"a","data_type":{"type":"TIME_WITHOUT_TIME_ZONE","precision":10}}"#,
            "",
        ),
        with(&format!("{a},{a}"), ""),
        with(a, r#","primary_key":["b"]"#),
        with(a, r#","primary_key":["a","a"]"#),
        with(
            &[r#"{"name":"a","id":0,"data_type":{"type":"DATE"}}"#, b].join(","),
            "",
        ),
        with(
            &["a", "b"]
                .map(|name| numbered.replace("NAME", name))
                .join(","),
            "",
        ),
        br#"{"version":2,"columns":[]}"#.to_vec(),
        b"[]".to_vec(),
        b"".to_vec(),
    ];
    for document in bad {
        assert!(
            Schema::from_json(&document).is_err(),
            "{}",
            String::from_utf8_lossy(&document)
        );
    }
}

#[test]
fn deeply_nested_types_are_refused_without_overflow() {
    let depth = 100_000;
    let mut json = String::from(r#"{"version":1,"columns":[{"name":"a","data_type":"#);
    json.push_str(&r#"{"type":"ARRAY","element_type":"#.repeat(depth));
    assert!(matches!(
        Schema::from_json(json.as_bytes()),
        Err(Error::Json { .. })
    ));
}

#[test]
fn key_columns_become_not_null() {
    let schema = Schema::new(
        vec![Column::new("k", nullable(TypeKind::Int))],
        vec!["k".to_owned()],
    )
    .unwrap();
    assert!(!schema.columns[0].ty.nullable);
}

#[test]
fn an_added_column_takes_the_next_ids_and_must_be_nullable() {
    let schema = Schema::from_json(GOLDEN).unwrap();
    let row = TypeKind::Row(vec![RowField::new("x", nullable(TypeKind::Int))]);
    let longer = schema
        .with_column_added(Column::new("extra", nullable(row.clone())))
        .unwrap();
    let added = longer.columns.last().unwrap();
    assert_eq!((added.id, longer.highest_field_id), (13, 14));
    assert!(
        schema
            .with_column_added(Column::new("extra", LogicalType::not_null(row)))
            .is_err()
    );
    assert!(
        schema
            .with_column_added(Column::new("id", nullable(TypeKind::Int)))
            .is_err()
    );
}

#[test]
fn aggregation_functions_are_kept_upper_case() {
    let json = br#"{"version":1,"columns":[
        {"name":"k","data_type":{"type":"INTEGER","nullable":false},"id":0},
        {"name":"s","data_type":{"type":"STRING"},"id":1,
            "agg_function":{"type":"listagg","parameters":{"delimiter":";"}}}],
        "primary_key":["k"],"highest_field_id":1}"#;
    let schema = Schema::from_json(json).unwrap();
    let agg = schema.columns[1].agg_function.clone().unwrap();
    assert_eq!(
        (agg.kind.as_str(), agg.parameters["delimiter"].as_str()),
        ("LISTAGG", ";")
    );
    assert_eq!(Schema::from_json(&schema.to_json()).unwrap(), schema);
}

#[test]
fn types_map_to_arrow_as_log_batches_have_them() {
    let field = |name: &str, data_type, nullable| Arc::new(Field::new(name, data_type, nullable));
    let cases = [
        (TypeKind::Boolean, DataType::Boolean),
        (TypeKind::TinyInt, DataType::Int8),
        (TypeKind::Char { length: 3 }, DataType::Utf8),
        (TypeKind::Binary { length: 3 }, DataType::FixedSizeBinary(3)),
        (TypeKind::Bytes, DataType::Binary),
        (
            TypeKind::Decimal {
                precision: 10,
                scale: 2,
            },
            DataType::Decimal128(10, 2),
        ),
        (TypeKind::Date, DataType::Date32),
        (
            TypeKind::Time { precision: 0 },
            DataType::Time32(TimeUnit::Second),
        ),
        (
            TypeKind::Time { precision: 1 },
            DataType::Time32(TimeUnit::Millisecond),
        ),
        (
            TypeKind::Time { precision: 4 },
            DataType::Time64(TimeUnit::Microsecond),
        ),
        (
            TypeKind::Time { precision: 9 },
            DataType::Time64(TimeUnit::Nanosecond),
        ),
        (
            TypeKind::Timestamp { precision: 0 },
            DataType::Timestamp(TimeUnit::Second, None),
        ),
        (
            TypeKind::Timestamp { precision: 6 },
            DataType::Timestamp(TimeUnit::Microsecond, None),
        ),
        (
            TypeKind::TimestampLtz { precision: 3 },
            DataType::Timestamp(TimeUnit::Millisecond, None),
        ),
        (
            TypeKind::TimestampLtz { precision: 7 },
            DataType::Timestamp(TimeUnit::Nanosecond, None),
        ),
        (
            TypeKind::Array(Box::new(LogicalType::not_null(TypeKind::Int))),
            DataType::List(field("element", DataType::Int32, false)),
        ),
        (
            TypeKind::Map(
                Box::new(nullable(TypeKind::String)),
                Box::new(nullable(TypeKind::BigInt)),
            ),
            DataType::Map(
                field(
                    "entries",
                    DataType::Struct(Fields::from(vec![
                        Field::new("key", DataType::Utf8, false),
                        Field::new("value", DataType::Int64, true),
                    ])),
                    false,
                ),
                false,
            ),
        ),
        (
            TypeKind::Row(vec![RowField::new(
                "x",
                LogicalType::not_null(TypeKind::Double),
            )]),
            DataType::Struct(Fields::from(vec![Field::new(
                "x",
                DataType::Float64,
                false,
            )])),
        ),
    ];
    for (kind, expected) in cases {
        assert_eq!(nullable(kind).arrow_type(), expected);
    }
}

#[test]
fn an_arrow_schema_gives_columns_that_map_back_to_it() {
    let arrow = Schema::from_json(GOLDEN).unwrap().arrow_schema();
    let schema = Schema::from_arrow(&arrow).unwrap();
    assert_eq!(schema.arrow_schema(), arrow);
    assert_eq!(schema.highest_field_id, 12);

    let utc = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
    let zoned = Schema::from_arrow(&ArrowSchema::new(vec![Field::new("t", utc, true)])).unwrap();
    assert_eq!(
        zoned.columns[0].ty.kind,
        TypeKind::TimestampLtz { precision: 6 }
    );
    let unsigned = ArrowSchema::new(vec![Field::new("u", DataType::UInt64, true)]);
    assert!(matches!(
        Schema::from_arrow(&unsigned),
        Err(Error::UnsupportedType { .. })
    ));
}
