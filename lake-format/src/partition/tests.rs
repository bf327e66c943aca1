use super::text::{decimal_text, value_text};
use super::*;
use crate::datum::Timestamp;
use crate::types::TypeKind;

#[test]
fn unsafe_characters_are_escaped_and_others_kept() {
    assert_eq!(escape("a b/c=d:e%f\"g"), "a b%2Fc%3Dd%3Ae%25f%22g");
    assert_eq!(
        escape("longer-than-seven-bytes{x}[y]^?"),
        "longer-than-seven-bytes%7Bx%7D%5By%5D%5E%3F"
    );
    assert_eq!(escape("中é\u{1}"), "中é%01");
}

#[test]
fn dates_are_day_numbers_by_the_old_names_and_dates_by_the_new() {
    let date = Datum::Date(19000);
    assert_eq!(
        value_text(&date, &TypeKind::Date, Names::Legacy)
            .unwrap()
            .unwrap(),
        "19000"
    );
    assert_eq!(
        value_text(&date, &TypeKind::Date, Names::Sql)
            .unwrap()
            .unwrap(),
        "2022-01-08"
    );
    assert_eq!(
        value_text(&Datum::Date(-5), &TypeKind::Date, Names::Sql)
            .unwrap()
            .unwrap(),
        "1969-12-27"
    );
}

#[test]
fn numbers_and_times_are_spelled_as_java_does() {
    let sql =
        |datum: Datum, kind: TypeKind| value_text(&datum, &kind, Names::Sql).unwrap().unwrap();
    assert_eq!(decimal_text(-1230, 2), "-12.30");
    assert_eq!(decimal_text(5, 3), "0.005");
    assert_eq!(sql(Datum::Double(1.0), TypeKind::Double), "1.0");
    assert_eq!(sql(Datum::Double(1e10), TypeKind::Double), "1.0E10");
    assert_eq!(sql(Datum::Double(1.25e-5), TypeKind::Double), "1.25E-5");
    assert_eq!(sql(Datum::Float(0.1), TypeKind::Float), "0.1");
    for (value, text) in [
        (5e-324, "4.9E-324"),
        (1e-323, "9.9E-324"),
        (-1e23, "-1.0E23"),
    ] {
        assert_eq!(sql(Datum::Double(value), TypeKind::Double), text);
    }
    let smallest = f32::from_bits(1);
    assert_eq!(sql(Datum::Float(smallest), TypeKind::Float), "1.4E-45");
    let time = Timestamp::from_nanos(-1);
    assert_eq!(
        sql(Datum::Timestamp(time), TypeKind::Timestamp { precision: 6 }),
        "1969-12-31 23:59:59.999999"
    );
    assert_eq!(
        sql(Datum::Time(3_723_004), TypeKind::Time { precision: 3 }),
        "01:02:03.004"
    );
    let legacy = value_text(
        &Datum::Timestamp(Timestamp::from_millis(60_000)),
        &TypeKind::Timestamp { precision: 3 },
        Names::Legacy,
    );
    assert_eq!(legacy.unwrap().unwrap(), "1970-01-01T00:01");
}

#[test]
fn different_partitions_are_told_apart_in_listings() {
    let listed = |ty: &str, value: Datum| {
        let field = DataField::new(-1, "p", ty.parse().unwrap());
        let table = crate::schema::NewTable {
            fields: vec![field],
            partition_keys: vec!["p".to_owned()],
            ..crate::schema::NewTable::default()
        };
        let schema = TableSchema::create(table, 0).unwrap();
        Partition::new(vec![value], &schema)
            .unwrap()
            .describe(&schema)
    };
    let text = |text: &str| listed("STRING", Datum::String(text.to_owned()));
    assert_eq!(listed("STRING", Datum::Null), "p=null");
    for (value, expected) in [
        ("null", "p='null'"),
        ("", "p=''"),
        (" ", "p=' '"),
        ("a,q=b", "p='a,q=b'"),
        ("it's", "p='it''s'"),
        ("2024-03-01", "p=2024-03-01"),
        ("a/b", "p=a/b"),
    ] {
        assert_eq!(text(value), expected);
    }
    assert_eq!(listed("TIME(0)", Datum::Time(1)), "p=00:00:00.001");
    assert_eq!(listed("BYTES", Datum::Bytes(vec![0xff, 0])), "p=ff00");
}
