//! Strategies that the property tests share: any type, any value of it, any table of them.

use std::sync::Arc;

use arrow::array::RecordBatch;
use proptest::collection::vec;
use proptest::prelude::*;

use crate::row::{Datum, array_of};
use crate::schema::{Column, LogicalType, RowField, Schema, TypeKind};

fn scalar_kind() -> impl Strategy<Value = TypeKind> {
    prop_oneof![
        Just(TypeKind::Boolean),
        Just(TypeKind::TinyInt),
        Just(TypeKind::SmallInt),
        Just(TypeKind::Int),
        Just(TypeKind::BigInt),
        Just(TypeKind::Float),
        Just(TypeKind::Double),
        (1u8..=38).prop_flat_map(|precision| {
            (0..=precision).prop_map(move |scale| TypeKind::Decimal { precision, scale })
        }),
        (1i32..20).prop_map(|length| TypeKind::Char { length }),
        Just(TypeKind::String),
        (1i32..20).prop_map(|length| TypeKind::Binary { length }),
        Just(TypeKind::Bytes),
        Just(TypeKind::Date),
        (0u8..=9).prop_map(|precision| TypeKind::Time { precision }),
        (0u8..=9).prop_map(|precision| TypeKind::Timestamp { precision }),
        (0u8..=9).prop_map(|precision| TypeKind::TimestampLtz { precision }),
    ]
}

/// Any scalar type.
pub(crate) fn scalar_type() -> impl Strategy<Value = LogicalType> {
    (scalar_kind(), any::<bool>()).prop_map(|(kind, nullable)| LogicalType { kind, nullable })
}

/// Any type, nested up to three deep.
pub(crate) fn any_type() -> impl Strategy<Value = LogicalType> {
    scalar_type().prop_recursive(3, 8, 3, |inner| {
        let with_null = |(kind, nullable)| LogicalType { kind, nullable };
        prop_oneof![
            (
                inner.clone().prop_map(|ty| TypeKind::Array(Box::new(ty))),
                any::<bool>()
            )
                .prop_map(with_null),
            (
                (scalar_kind(), inner.clone()).prop_map(|(key, value)| {
                    TypeKind::Map(Box::new(LogicalType::not_null(key)), Box::new(value))
                }),
                any::<bool>()
            )
                .prop_map(with_null),
            (
                vec(inner, 1..4).prop_map(|types| {
                    let field = |(index, ty)| RowField::new(format!("f{index}"), ty);
                    TypeKind::Row(types.into_iter().enumerate().map(field).collect())
                }),
                any::<bool>()
            )
                .prop_map(with_null),
        ]
    })
}

/// Any value of this type, within what its Arrow form and its precision hold.
pub(crate) fn datum(ty: &LogicalType) -> BoxedStrategy<Datum> {
    let value = value_of(&ty.kind);
    if ty.nullable {
        prop_oneof![1 => Just(Datum::Null), 4 => value].boxed()
    } else {
        value
    }
}

fn value_of(kind: &TypeKind) -> BoxedStrategy<Datum> {
    match kind {
        TypeKind::Boolean => any::<bool>().prop_map(Datum::Boolean).boxed(),
        TypeKind::TinyInt => any::<i8>().prop_map(Datum::TinyInt).boxed(),
        TypeKind::SmallInt => any::<i16>().prop_map(Datum::SmallInt).boxed(),
        TypeKind::Int => any::<i32>().prop_map(Datum::Int).boxed(),
        TypeKind::BigInt => any::<i64>().prop_map(Datum::BigInt).boxed(),
        TypeKind::Float => proptest::num::f32::NORMAL.prop_map(Datum::Float).boxed(),
        TypeKind::Double => proptest::num::f64::NORMAL.prop_map(Datum::Double).boxed(),
        TypeKind::Decimal { precision, .. } => {
            let limit = 10i128.pow(u32::from(*precision)) - 1;
            (-limit..=limit).prop_map(Datum::Decimal).boxed()
        }
        TypeKind::Char { length } => {
            // INDEXED rows hold n bytes of CHAR(n).
            let letters = vec(
                proptest::char::range('a', 'z'),
                0..=usize::try_from(*length).unwrap(),
            );
            letters
                .prop_map(|letters| Datum::String(letters.into_iter().collect()))
                .boxed()
        }
        TypeKind::String => "[a-zé中😀]{0,12}".prop_map(Datum::String).boxed(),
        TypeKind::Binary { length } => vec(any::<u8>(), usize::try_from(*length).unwrap())
            .prop_map(Datum::Bytes)
            .boxed(),
        TypeKind::Bytes => vec(any::<u8>(), 0..20).prop_map(Datum::Bytes).boxed(),
        TypeKind::Date => any::<i32>().prop_map(Datum::Date).boxed(),
        TypeKind::Time { precision: 0 } => (0i32..86_400)
            .prop_map(|second| Datum::Time(second * 1000))
            .boxed(),
        TypeKind::Time { .. } => (0i32..86_400_000).prop_map(Datum::Time).boxed(),
        TypeKind::Timestamp { precision } | TypeKind::TimestampLtz { precision } => {
            timestamp(*precision)
        }
        TypeKind::Array(element) => vec(datum(element), 0..4).prop_map(Datum::Array).boxed(),
        TypeKind::Map(key, value) => vec((datum(key), datum(value)), 0..4)
            .prop_map(Datum::Map)
            .boxed(),
        TypeKind::Row(fields) => {
            let fields: Vec<BoxedStrategy<Datum>> =
                fields.iter().map(|field| datum(&field.ty)).collect();
            fields.prop_map(Datum::Row).boxed()
        }
    }
}

fn timestamp(precision: u8) -> BoxedStrategy<Datum> {
    let (millis_step, nanos_step) = match precision {
        0 => (1000, 1_000_000),
        1..=3 => (1, 1_000_000),
        4..=6 => (1, 1000),
        _ => (1, 1),
    };
    // Nanoseconds since 1970 in 64 bits reach from 1677 to 2262.
    (-9_000_000_000_000i64..9_000_000_000_000, 0i32..1_000_000)
        .prop_map(move |(millis, nanos)| Datum::Timestamp {
            millis: millis / millis_step * millis_step,
            nanos: nanos / nanos_step * nanos_step,
        })
        .boxed()
}

/// A schema of `types` and up to `rows` rows of it.
pub(crate) fn table(
    types: impl Strategy<Value = LogicalType>,
    rows: usize,
) -> impl Strategy<Value = (Schema, Vec<Vec<Datum>>)> {
    vec(types, 1..6).prop_flat_map(move |types| {
        let column =
            |(index, ty): (usize, &LogicalType)| Column::new(format!("c{index}"), ty.clone());
        let schema =
            Schema::new(types.iter().enumerate().map(column).collect(), Vec::new()).unwrap();
        let row: Vec<BoxedStrategy<Datum>> = types.iter().map(datum).collect();
        (Just(schema), vec(row, 0..=rows))
    })
}

/// The rows as Arrow.
pub(crate) fn record_batch(schema: &Schema, rows: &[Vec<Datum>]) -> RecordBatch {
    let column = |(index, column): (usize, &Column)| {
        let values: Vec<Datum> = rows.iter().map(|row| row[index].clone()).collect();
        array_of(&values, &column.ty).unwrap()
    };
    let arrays = schema.columns.iter().enumerate().map(column).collect();
    RecordBatch::try_new(Arc::clone(&schema.arrow_schema()), arrays).unwrap()
}
