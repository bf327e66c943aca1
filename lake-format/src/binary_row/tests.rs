use proptest::prelude::*;

use super::*;
use crate::datum::Timestamp;
use crate::types::{DataField, TypeKind};

fn types(texts: &[&str]) -> Vec<DataType> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn the_worked_example_of_the_format_is_met() {
    let types = types(&["INT", "STRING"]);
    let row = BinaryRow::encode(
        &[Datum::Int(2), Datum::String("key-2".to_owned())],
        types.iter(),
    )
    .unwrap();
    let expected = [
        &[0, 0, 0, 2][..],
        &[0; 8],
        &[2, 0, 0, 0, 0, 0, 0, 0],
        b"key-2\0\0\x85",
    ]
    .concat();
    assert_eq!(row.to_serialized(), expected);
    assert_eq!(BinaryRow::empty().to_serialized(), [0; 12]);
}

#[test]
fn a_value_of_another_type_is_refused() {
    let types = types(&["INT"]);
    assert!(BinaryRow::encode(&[Datum::BigInt(2)], types.iter()).is_err());
    assert!(BinaryRow::encode(&[], types.iter()).is_err());
}

#[test]
fn decimals_keep_their_value_at_every_length() {
    let types = types(&["DECIMAL(38, 0)"]);
    for bits in 0..126 {
        for value in [
            1i128 << bits,
            -(1i128 << bits),
            (1i128 << bits) - 1,
            -(1i128 << bits) - 1,
        ] {
            let row = BinaryRow::encode(&[Datum::Decimal(value)], types.iter()).unwrap();
            assert_eq!(row.decode(types.iter()).unwrap(), [Datum::Decimal(value)]);
        }
    }
}

fn arb_atomic() -> impl Strategy<Value = (TypeKind, Datum)> {
    prop_oneof![
        any::<bool>().prop_map(|v| (TypeKind::Boolean, Datum::Boolean(v))),
        any::<i8>().prop_map(|v| (TypeKind::TinyInt, Datum::TinyInt(v))),
        any::<i16>().prop_map(|v| (TypeKind::SmallInt, Datum::SmallInt(v))),
        any::<i32>().prop_map(|v| (TypeKind::Int, Datum::Int(v))),
        any::<i64>().prop_map(|v| (TypeKind::BigInt, Datum::BigInt(v))),
        (-1e9f32..1e9).prop_map(|v| (TypeKind::Float, Datum::Float(v))),
        (-1e9f64..1e9).prop_map(|v| (TypeKind::Double, Datum::Double(v))),
        any::<i64>().prop_map(|v| (
            TypeKind::Decimal {
                precision: 18,
                scale: 4
            },
            Datum::Decimal(v.into())
        )),
        any::<i128>().prop_map(|v| (
            TypeKind::Decimal {
                precision: 38,
                scale: 4
            },
            Datum::Decimal(v)
        )),
        ".{0,20}".prop_map(|v| (TypeKind::string(), Datum::String(v))),
        prop::collection::vec(any::<u8>(), 0..20)
            .prop_map(|v| (TypeKind::bytes(), Datum::Bytes(v))),
        any::<i32>().prop_map(|v| (TypeKind::Date, Datum::Date(v))),
        any::<i64>().prop_map(|v| {
            (
                TypeKind::Timestamp { precision: 3 },
                Datum::Timestamp(Timestamp::from_millis(v)),
            )
        }),
        any::<i64>().prop_map(|v| {
            (
                TypeKind::TimestampLtz { precision: 9 },
                Datum::Timestamp(Timestamp::from_nanos(v)),
            )
        }),
    ]
}

fn arb_value() -> impl Strategy<Value = (DataType, Datum)> {
    let leaf = (arb_atomic(), any::<bool>()).prop_map(|((kind, datum), is_null)| {
        (kind.nullable(), if is_null { Datum::Null } else { datum })
    });
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            (inner.clone(), 0usize..5).prop_map(|((element, item), count)| {
                (
                    TypeKind::Array(Box::new(element)).nullable(),
                    Datum::Array(vec![item; count]),
                )
            }),
            (inner.clone(), inner.clone()).prop_map(|((key, k), (value, v))| {
                (
                    TypeKind::Map(Box::new(key), Box::new(value)).nullable(),
                    Datum::Map(vec![(k, v)]),
                )
            }),
            prop::collection::vec(inner, 0..4).prop_map(|fields| {
                let (types, values): (Vec<_>, Vec<_>) = fields.into_iter().unzip();
                let fields = types
                    .into_iter()
                    .map(|data_type| DataField::new(0, "f", data_type));
                (
                    TypeKind::Row(fields.collect()).nullable(),
                    Datum::Row(values),
                )
            }),
        ]
    })
}

proptest! {
    #[test]
    fn rows_decode_to_what_was_encoded(fields in prop::collection::vec(arb_value(), 0..70)) {
        let (types, values): (Vec<_>, Vec<_>) = fields.into_iter().unzip();
        let row = BinaryRow::encode(&values, types.iter()).unwrap();
        prop_assert_eq!(row.as_bytes().len() % 8, 0);
        let read = BinaryRow::from_serialized(&row.to_serialized()).unwrap();
        prop_assert_eq!(&read, &row);
        prop_assert_eq!(read.decode(types.iter()).unwrap(), values);
    }

    #[test]
    fn any_bytes_decode_or_are_refused(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        fields in prop::collection::vec(arb_value(), 0..4),
    ) {
        let types: Vec<DataType> = fields.into_iter().map(|(data_type, _)| data_type).collect();
        let _ = BinaryRow::from_serialized(&bytes).map(|row| row.decode(types.iter()));
        let _ = decode::row(&bytes, types.iter());
    }

    #[test]
    fn damaged_rows_decode_or_are_refused(
        fields in prop::collection::vec(arb_value(), 1..6),
        place in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let (types, values): (Vec<_>, Vec<_>) = fields.into_iter().unzip();
        let mut bytes = BinaryRow::encode(&values, types.iter()).unwrap().to_serialized();
        let at = place.index(bytes.len());
        bytes[at] = byte;
        let _ = BinaryRow::from_serialized(&bytes).map(|row| row.decode(types.iter()));
    }
}

/// An array of `width` slots that all point at the `length` bytes behind them.
fn array_of_one_tail(width: usize, tail: &[u8]) -> Vec<u8> {
    let header = decode::array_header_len(width);
    let mut array = vec![0; header];
    array[..4].copy_from_slice(&u32::try_from(width).unwrap().to_le_bytes());
    let offset = (header + 8 * width) as u64;
    for _ in 0..width {
        array.extend_from_slice(&((offset << 32) | tail.len() as u64).to_le_bytes());
    }
    array.extend_from_slice(tail);
    array
}

#[test]
fn parts_that_lie_over_each_other_are_refused_before_they_multiply() {
    let mut bytes = b"a text of more than seven bytes".to_vec();
    let mut data_type = TypeKind::string().nullable();
    for _ in 0..20 {
        bytes = array_of_one_tail(16, &bytes);
        data_type = TypeKind::Array(Box::new(data_type)).nullable();
    }
    let offset = 16u64;
    let mut row = vec![0; 8];
    row.extend_from_slice(&((offset << 32) | bytes.len() as u64).to_le_bytes());
    row.extend_from_slice(&bytes);
    let found = decode::row(&row, [&data_type].into_iter()).unwrap_err();
    assert!(found.to_string().contains("overlap"), "{found}");
}
