use proptest::prelude::*;

use super::*;

#[test]
fn values_have_the_text_of_the_reference() {
    let timestamp = TypeKind::Timestamp { precision: 9 };
    let cases = [
        (Datum::String("a-b".into()), TypeKind::String, "a-b"),
        (Datum::Boolean(true), TypeKind::Boolean, "true"),
        (Datum::Bytes(vec![0x0f, 0xa0]), TypeKind::Bytes, "0fa0"),
        (Datum::TinyInt(-1), TypeKind::TinyInt, "-1"),
        (
            Datum::BigInt(i64::MIN),
            TypeKind::BigInt,
            "-9223372036854775808",
        ),
        (Datum::Date(19_000), TypeKind::Date, "2022-01-08"),
        (Datum::Date(-1), TypeKind::Date, "1969-12-31"),
        (
            Datum::Time(3_600_001),
            TypeKind::Time { precision: 3 },
            "01-00-00_001",
        ),
        (Datum::Float(1.5), TypeKind::Float, "1_5"),
        (Datum::Float(0.1), TypeKind::Float, "0_1"),
        (Datum::Double(0.001), TypeKind::Double, "0_001"),
        (Datum::Double(0.000_99), TypeKind::Double, "9_9E-4"),
        (Datum::Double(-12_345.678), TypeKind::Double, "-12345_678"),
        (Datum::Double(9_999_999.0), TypeKind::Double, "9999999_0"),
        (Datum::Double(1e7), TypeKind::Double, "1_0E7"),
        (Datum::Double(5e-324), TypeKind::Double, "4_9E-324"),
        (
            Datum::Float(-f32::from_bits(1)),
            TypeKind::Float,
            "-1_4E-45",
        ),
        (Datum::Double(0.0), TypeKind::Double, "0_0"),
        (Datum::Double(-0.0), TypeKind::Double, "-0_0"),
        (Datum::Double(1.25e-300), TypeKind::Double, "1_25E-300"),
        (Datum::Float(f32::NAN), TypeKind::Float, "NaN"),
        (Datum::Double(f64::NEG_INFINITY), TypeKind::Double, "-Inf"),
        (
            Datum::Timestamp {
                millis: 1_700_000_000_123,
                nanos: 456_000,
            },
            timestamp.clone(),
            "2023-11-14-22-13-20_123456",
        ),
        (
            Datum::Timestamp {
                millis: 1_700_000_000_000,
                nanos: 0,
            },
            timestamp.clone(),
            "2023-11-14-22-13-20_",
        ),
        (
            Datum::Timestamp {
                millis: -1,
                nanos: 1,
            },
            timestamp,
            "1969-12-31-23-59-59_999000001",
        ),
    ];
    for (value, kind, text) in cases {
        assert_eq!(value_text(&value, &kind).unwrap(), text, "{value:?}");
    }
}

#[test]
fn null_decimal_nested_and_mistyped_values_are_refused() {
    let decimal = TypeKind::Decimal {
        precision: 5,
        scale: 1,
    };
    assert!(matches!(
        value_text(&Datum::Null, &TypeKind::Int),
        Err(Error::ValueMismatch { .. })
    ));
    assert!(matches!(
        value_text(&Datum::Int(1), &TypeKind::BigInt),
        Err(Error::ValueMismatch { .. })
    ));
    assert!(matches!(
        value_text(&Datum::Decimal(1), &decimal),
        Err(Error::UnsupportedType { .. })
    ));
    assert!(matches!(
        parse_value("1", &decimal),
        Err(Error::UnsupportedType { .. })
    ));
    assert!(value_text(&Datum::Date(i32::MAX), &TypeKind::Date).is_err());
}

#[test]
fn texts_that_are_no_value_are_refused() {
    for (text, kind) in [
        ("x", TypeKind::Int),
        ("300", TypeKind::TinyInt),
        ("2022-02-30", TypeKind::Date),
        ("2022-13-01", TypeKind::Date),
        ("2022", TypeKind::Date),
        ("abc", TypeKind::Bytes),
        ("é", TypeKind::Bytes),
        ("25-00-00_000", TypeKind::Time { precision: 0 }),
        (
            "2022-01-01-00-00-00_1234567890",
            TypeKind::Timestamp { precision: 9 },
        ),
        ("", TypeKind::Boolean),
    ] {
        assert!(parse_value(text, &kind).is_err(), "{text} as {kind}");
    }
}

#[test]
fn a_name_joins_values_in_key_order() {
    let keys = ["region", "day"];
    let asked = PartitionSpec(vec![
        ("day".into(), "20240101".into()),
        ("region".into(), "eu".into()),
    ]);
    let ordered = asked.ordered(&keys).unwrap();
    assert_eq!(ordered.name(), "eu$20240101");
    assert_eq!(ordered.to_string(), "region=eu/day=20240101");
    assert_eq!(
        PartitionSpec::from_name(&keys, "eu$20240101").unwrap(),
        ordered
    );
    assert!(PartitionSpec::from_name(&keys, "eu").is_err());
    assert!(asked.ordered(&["region", "hour"]).is_err());
    assert!(asked.ordered(&["region"]).is_err());
}

proptest! {
    #[test]
    fn a_value_comes_back_from_its_text(
        millis in -62_135_596_800_000i64..253_402_300_800_000, nanos in 0i32..1_000_000,
        double in any::<f64>(), float in any::<f32>(),
        bytes in proptest::collection::vec(any::<u8>(), 0..9),
        time in 0i32..86_400_000,
    ) {
        let cases = [
            (Datum::Timestamp { millis, nanos }, TypeKind::TimestampLtz { precision: 9 }),
            (Datum::Double(double), TypeKind::Double),
            (Datum::Float(float), TypeKind::Float),
            (Datum::Bytes(bytes), TypeKind::Bytes),
            (Datum::Date(i32::try_from(millis.div_euclid(86_400_000)).unwrap()), TypeKind::Date),
            (Datum::Time(time), TypeKind::Time { precision: 3 }),
        ];
        for (value, kind) in cases {
            let text = value_text(&value, &kind).unwrap();
            let back = parse_value(&text, &kind).unwrap();
            let is_nan = text == "NaN";
            prop_assert!(back == value || is_nan, "{value:?} became {text} became {back:?}");
        }
    }

    #[test]
    fn parsing_never_panics(text in ".{0,40}") {
        let moments = [TypeKind::Time { precision: 3 }, TypeKind::Timestamp { precision: 3 }];
        let others = [TypeKind::Date, TypeKind::Bytes, TypeKind::Double, TypeKind::Int];
        for kind in moments.into_iter().chain(others) {
            let _ = parse_value(&text, &kind);
        }
    }
}
