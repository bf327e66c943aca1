//! Binary rows and bucket hashes against vectors made by Java Paimon.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::cast_possible_truncation,
    reason = "a test that can't go on fails"
)]

use std::collections::BTreeMap;

use serde_json::Value;
use weir_lake_format::bucket::{bucket_of, mod_bucket_of};
use weir_lake_format::{BinaryRow, DataField, DataType, Datum, Timestamp, TypeKind};

/// The type of a vector; the nested ones are spelled as SQL there.
fn type_of(text: &str) -> DataType {
    match text {
        "ARRAY<INT>" => TypeKind::Array(Box::new(TypeKind::Int.nullable())).nullable(),
        "MAP<STRING, INT>" => {
            let key = TypeKind::string().nullable();
            TypeKind::Map(Box::new(key), Box::new(TypeKind::Int.nullable())).nullable()
        }
        "ROW<`a` INT, `b` STRING>" => TypeKind::Row(vec![
            DataField::new(0, "a", TypeKind::Int.nullable()),
            DataField::new(1, "b", TypeKind::string().nullable()),
        ])
        .nullable(),
        text => text.parse().unwrap(),
    }
}

/// A value of canonical JSON.
fn datum_of(value: &Value, kind: &TypeKind) -> Datum {
    let int = || value.as_i64().unwrap();
    let text = || value.as_str().unwrap();
    match kind {
        _ if value.is_null() => Datum::Null,
        TypeKind::Boolean => Datum::Boolean(value.as_bool().unwrap()),
        TypeKind::TinyInt => Datum::TinyInt(int().try_into().unwrap()),
        TypeKind::SmallInt => Datum::SmallInt(int().try_into().unwrap()),
        TypeKind::Int => Datum::Int(int().try_into().unwrap()),
        TypeKind::BigInt => Datum::BigInt(int()),
        TypeKind::Float => Datum::Float(float_of(value) as f32),
        TypeKind::Double => Datum::Double(float_of(value)),
        TypeKind::Decimal { .. } => Datum::Decimal(text().replace('.', "").parse().unwrap()),
        TypeKind::Char { .. } | TypeKind::VarChar { .. } => Datum::String(text().to_owned()),
        TypeKind::Binary { .. } | TypeKind::VarBinary { .. } => Datum::Bytes(bytes_of(text())),
        TypeKind::Date => Datum::Date(days_of(text())),
        TypeKind::Time { .. } => Datum::Time((clock_nanos(text()) / 1_000_000).try_into().unwrap()),
        TypeKind::Timestamp { .. } | TypeKind::TimestampLtz { .. } => {
            let (date, clock) = text().trim_end_matches('Z').split_once('T').unwrap();
            let nanos = clock_nanos(clock);
            Datum::Timestamp(Timestamp {
                millis: i64::from(days_of(date)) * 86_400_000 + nanos / 1_000_000,
                nanos_of_milli: (nanos % 1_000_000).try_into().unwrap(),
            })
        }
        TypeKind::Array(element) => Datum::Array(
            value
                .as_array()
                .unwrap()
                .iter()
                .map(|item| datum_of(item, &element.kind))
                .collect(),
        ),
        TypeKind::Map(key, item) => {
            let entries = value.as_array().unwrap().iter();
            Datum::Map(
                entries
                    .map(|e| (datum_of(&e[0], &key.kind), datum_of(&e[1], &item.kind)))
                    .collect(),
            )
        }
        TypeKind::Row(fields) => Datum::Row(
            fields
                .iter()
                .map(|field| datum_of(&value[&field.name], &field.data_type.kind))
                .collect(),
        ),
        TypeKind::Multiset(_) => unreachable!("no vector has one"),
    }
}

fn float_of(value: &Value) -> f64 {
    match value.as_str() {
        Some("NaN") => f64::NAN,
        Some(text) => text.replace("Infinity", "inf").parse().unwrap(),
        None => value.as_f64().unwrap(),
    }
}

fn bytes_of(hex: &str) -> Vec<u8> {
    (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
        .collect()
}

fn days_of(date: &str) -> i32 {
    let date: jiff::civil::Date = date.parse().unwrap();
    date.since(jiff::civil::date(1970, 1, 1))
        .unwrap()
        .get_days()
}

fn clock_nanos(clock: &str) -> i64 {
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
    let parts: Vec<i64> = clock.split(':').map(|part| part.parse().unwrap()).collect();
    let seconds = parts[0] * 3600 + parts[1] * 60 + parts[2];
    seconds * 1_000_000_000 + format!("{fraction:0<9}").parse::<i64>().unwrap()
}

#[test]
fn every_vector_of_java_has_our_bytes_hash_and_bucket() {
    let file = include_str!("golden/vectors.jsonl");
    let mut checked = 0;
    for line in file.lines() {
        let vector: Value = serde_json::from_str(line).unwrap();
        let types: Vec<DataType> = vector["types"]
            .as_array()
            .unwrap()
            .iter()
            .map(|text| type_of(text.as_str().unwrap()))
            .collect();
        let values: Vec<Datum> = types
            .iter()
            .enumerate()
            .map(|(index, data_type)| {
                datum_of(&vector["row"][format!("f{index}")], &data_type.kind)
            })
            .collect();
        let serialized = bytes_of(vector["serialized"].as_str().unwrap());
        let read = BinaryRow::from_serialized(&serialized).unwrap();
        let decoded = read.decode(types.iter()).unwrap();
        // The JSON shows -0.0 as 0, so what was decoded is encoded there.
        let has_zero = decoded
            .iter()
            .any(|value| matches!(value, Datum::Float(0.0) | Datum::Double(0.0)));
        let values = if has_zero { decoded.clone() } else { values };
        let row = BinaryRow::encode(&values, types.iter()).unwrap();
        assert_eq!(row.to_serialized(), serialized, "{line}");
        assert_eq!(format!("{decoded:?}"), format!("{values:?}"), "{line}");
        assert_eq!(
            i64::from(row.hash()),
            vector["hash"].as_i64().unwrap(),
            "{line}"
        );
        let buckets: BTreeMap<String, i32> =
            serde_json::from_value(vector["bucket_default"].clone()).unwrap();
        for (total, bucket) in buckets {
            assert_eq!(
                bucket_of(row.hash(), total.parse().unwrap()).unwrap(),
                bucket,
                "{line}"
            );
        }
        if let Some(buckets) = vector.get("bucket_mod") {
            let buckets: BTreeMap<String, i32> = serde_json::from_value(buckets.clone()).unwrap();
            for (total, bucket) in buckets {
                assert_eq!(
                    mod_bucket_of(&values[0], total.parse().unwrap()).unwrap(),
                    bucket,
                    "{line}"
                );
            }
        }
        checked += 1;
    }
    assert_eq!(checked, 61);
}

/// The buckets of a key for so many buckets.
fn buckets<const N: usize>(key: &[(Datum, &str)], totals: [i32; N]) -> [i32; N] {
    let types: Vec<DataType> = key.iter().map(|(_, ty)| ty.parse().unwrap()).collect();
    let values: Vec<Datum> = key.iter().map(|(value, _)| value.clone()).collect();
    let row = BinaryRow::encode(&values, types.iter()).unwrap();
    totals.map(|total| bucket_of(row.hash(), total).unwrap())
}

/// The same instant under two precisions is two keys.
#[test]
fn fc_037_a_key_of_milliseconds_and_one_of_microseconds_hash_differently() {
    let noon = Datum::Timestamp(Timestamp::from_millis(1_709_294_400_000));
    let totals = [2, 3, 4, 8];
    assert_eq!(
        buckets(&[(noon.clone(), "TIMESTAMP(3)")], totals),
        [0, 2, 2, 2]
    );
    assert_eq!(buckets(&[(noon, "TIMESTAMP(6)")], totals), [1, 0, 1, 5]);
}

/// Numbers worked out apart from any implementation; texts of 7 bytes lie within the row, longer
/// ones behind it.
#[test]
fn keys_have_the_buckets_of_the_default_function() {
    let numbers = [
        [1, 0, 3, 3],
        [0, 1, 2, 6],
        [0, 2, 0, 0],
        [1, 1, 1, 1],
        [0, 0, 2, 2],
        [0, 2, 0, 4],
        [0, 0, 0, 0],
        [1, 1, 3, 3],
        [0, 0, 0, 0],
        [1, 2, 3, 7],
        [0, 1, 0, 0],
        [1, 1, 1, 5],
    ];
    let totals = [2, 3, 4, 8];
    for (key, expected) in (0_i32..).zip(numbers) {
        let wide = Datum::BigInt(i64::from(key));
        assert_eq!(buckets(&[(wide, "BIGINT")], totals), expected, "{key}");
        assert_eq!(
            buckets(&[(Datum::Int(key), "INT")], totals),
            expected,
            "{key}"
        );
    }
    for (key, expected) in [
        ("a", [0, 0, 2, 6]),
        ("b", [1, 0, 1, 5]),
        ("u-1", [0, 1, 2, 6]),
        ("u-2", [1, 2, 3, 3]),
        ("hello", [0, 2, 2, 2]),
        ("1234567", [0, 2, 0, 4]),
        ("12345678", [1, 1, 1, 1]),
        ("alpha-01", [1, 0, 1, 1]),
        ("alpha-02", [1, 0, 3, 7]),
        ("order-0001", [0, 1, 2, 2]),
    ] {
        let text = Datum::String(key.to_owned());
        assert_eq!(buckets(&[(text, "STRING")], totals), expected, "{key}");
    }
    let pair = [
        (Datum::Int(1), "INT"),
        (Datum::String("a".to_owned()), "STRING"),
    ];
    assert_eq!(buckets(&pair, totals), [0, 2, 2, 6]);
}
