use arrow::datatypes::{DataType as ArrowType, TimeUnit};

use super::*;

#[test]
fn every_text_of_a_type_reads_back_as_written() {
    let texts = [
        "BOOLEAN",
        "TINYINT",
        "SMALLINT",
        "INT NOT NULL",
        "BIGINT",
        "FLOAT",
        "DOUBLE",
        "DECIMAL(10, 2)",
        "CHAR(4) NOT NULL",
        "VARCHAR(100)",
        "STRING",
        "BINARY(4)",
        "VARBINARY(20)",
        "BYTES",
        "DATE",
        "TIME(3)",
        "TIMESTAMP(0)",
        "TIMESTAMP(9) NOT NULL",
        "TIMESTAMP(6) WITH LOCAL TIME ZONE",
        "TIMESTAMP(3) WITH LOCAL TIME ZONE NOT NULL",
    ];
    for text in texts {
        assert_eq!(text.parse::<DataType>().unwrap().to_string(), text);
    }
}

#[test]
fn other_spellings_mean_the_same() {
    let same = [
        (
            "TIMESTAMP_LTZ(3) NOT NULL",
            "TIMESTAMP(3) WITH LOCAL TIME ZONE NOT NULL",
        ),
        ("decimal(10,2)", "DECIMAL(10, 2)"),
        ("VARCHAR(2147483647)", "STRING"),
        ("VARBINARY(2147483647)", "BYTES"),
        ("INTEGER", "INT"),
        ("TIME", "TIME(0)"),
        ("TIMESTAMP", "TIMESTAMP(6)"),
        ("DECIMAL", "DECIMAL(10, 0)"),
    ];
    for (text, canonical) in same {
        assert_eq!(text.parse::<DataType>().unwrap().to_string(), canonical);
    }
}

#[test]
fn what_is_no_type_is_refused() {
    let texts = [
        "",
        "INT(3)",
        "DECIMAL(39, 2)",
        "DECIMAL(5, 6)",
        "CHAR(0)",
        "TIME(10)",
        "CHAR(1",
        "VARIANT",
        "NOT NULL",
        "INT NOT",
        "VARCHAR(-1)",
        "DECIMAL(1, 2, 3)",
        "FOO",
    ];
    for text in texts {
        assert!(
            matches!(text.parse::<DataType>(), Err(crate::Error::BadType { .. })),
            "{text}"
        );
    }
}

#[test]
fn field_ids_are_given_depth_first() {
    let inner = vec![
        DataField::new(-1, "a", TypeKind::Int.nullable()),
        DataField::new(-1, "b", TypeKind::string().nullable()),
    ];
    let fields = [
        DataField::new(-1, "id", TypeKind::Int.not_null()),
        DataField::new(-1, "row", TypeKind::Row(inner.clone()).nullable()),
        DataField::new(
            -1,
            "rows",
            TypeKind::Array(Box::new(TypeKind::Row(inner).nullable())).nullable(),
        ),
        DataField::new(-1, "last", TypeKind::Int.nullable()),
    ];
    let mut next = 0;
    let fields = assign_field_ids(&fields, &mut next);
    assert_eq!(
        fields.iter().map(|field| field.id).collect::<Vec<_>>(),
        [0, 1, 4, 7]
    );
    assert_eq!(
        fields.iter().map(DataField::highest_id).collect::<Vec<_>>(),
        [0, 3, 6, 7]
    );
    assert_eq!(next, 8);
}

#[test]
fn arrow_types_are_those_that_give_the_parquet_types_of_the_format() {
    let arrow = |text: &str| text.parse::<DataType>().unwrap().arrow_type();
    assert_eq!(arrow("BINARY(4)"), ArrowType::Binary);
    assert_eq!(arrow("CHAR(4)"), ArrowType::Utf8);
    assert_eq!(arrow("TIME(0)"), ArrowType::Time32(TimeUnit::Millisecond));
    assert_eq!(
        arrow("TIMESTAMP(3)"),
        ArrowType::Timestamp(TimeUnit::Millisecond, None)
    );
    assert_eq!(
        arrow("TIMESTAMP(4)"),
        ArrowType::Timestamp(TimeUnit::Microsecond, None)
    );
    assert_eq!(
        arrow("TIMESTAMP_LTZ(7)"),
        ArrowType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into()))
    );
    assert_eq!(arrow("DECIMAL(5, 2)"), ArrowType::Decimal128(5, 2));
}

#[test]
fn nested_types_read_and_write_as_objects() {
    let json = r#"{"type":"MAP NOT NULL","key":"STRING NOT NULL","value":{"type":"ARRAY","element":{"type":"ROW","fields":[{"id":3,"name":"x","type":"INT","description":"why"}]}}}"#;
    let parsed: DataType = serde_json::from_str(json).unwrap();
    assert_eq!(serde_json::to_string(&parsed).unwrap(), json);
    assert!(!parsed.nullable);
}

#[test]
fn a_type_nested_without_end_is_refused() {
    let json = format!(
        "{}\"INT\"{}",
        r#"{"type":"ARRAY","element":"#.repeat(100),
        "}".repeat(100)
    );
    assert!(serde_json::from_str::<DataType>(&json).is_err());
}
