use arrow::array::{
    BooleanArray, Date32Array, Decimal128Array, Float64Array, Int32Array, Int64Array,
    TimestampMillisecondArray, TimestampNanosecondArray,
};
use arrow::buffer::OffsetBuffer;

use super::*;
use crate::types::arrow_schema;

fn field(id: i32, name: &str, text: &str) -> DataField {
    DataField::new(id, name, text.parse().unwrap())
}

fn adapted(array: ArrayRef, from: &DataField, to: &DataField) -> Result<Vec<Datum>> {
    let target = to.data_type.arrow_type();
    let array = adapt(&array, from, to, &target)?;
    assert_eq!(array.data_type(), &target);
    (0..array.len())
        .map(|row| Datum::from_array(&array, row, &to.data_type))
        .collect()
}

fn between(array: ArrayRef, from: &str, to: &str) -> Result<Vec<Datum>> {
    adapted(array, &field(0, "old", from), &field(0, "new", to))
}

#[test]
fn widened_numbers_keep_their_values() {
    let ints = || Arc::new(Int32Array::from(vec![Some(-7), None])) as ArrayRef;
    assert_eq!(
        between(ints(), "INT", "BIGINT").unwrap(),
        [Datum::BigInt(-7), Datum::Null]
    );
    assert_eq!(
        between(ints(), "INT", "DOUBLE").unwrap(),
        [Datum::Double(-7.0), Datum::Null]
    );
    assert_eq!(
        between(ints(), "INT", "DECIMAL(12, 2)").unwrap(),
        [Datum::Decimal(-700), Datum::Null]
    );
    let decimals = Decimal128Array::from(vec![12345])
        .with_precision_and_scale(5, 2)
        .unwrap();
    assert_eq!(
        between(Arc::new(decimals), "DECIMAL(5, 2)", "DECIMAL(10, 4)").unwrap(),
        [Datum::Decimal(1_234_500)]
    );
}

#[test]
fn times_of_more_digits_keep_their_values_before_1970_too() {
    let millis = Arc::new(TimestampMillisecondArray::from(vec![-1]));
    let found = between(millis, "TIMESTAMP(3)", "TIMESTAMP(6)").unwrap();
    assert_eq!(found, [Datum::Timestamp(crate::Timestamp::from_millis(-1))]);
    let days = Arc::new(Date32Array::from(vec![-1]));
    let found = between(days, "DATE", "TIMESTAMP(3)").unwrap();
    assert_eq!(
        found,
        [Datum::Timestamp(crate::Timestamp::from_millis(-86_400_000))]
    );
}

#[test]
fn instants_that_come_without_a_zone_get_the_label_only() {
    let nanos = Arc::new(TimestampNanosecondArray::from(vec![-1]));
    let found = between(nanos, "TIMESTAMP_LTZ(9)", "TIMESTAMP_LTZ(9)").unwrap();
    assert_eq!(found, [Datum::Timestamp(crate::Timestamp::from_nanos(-1))]);
}

#[test]
fn anything_atomic_becomes_the_text_of_an_sql_cast() {
    let text = |text: &str| Datum::String(text.to_owned());
    let found = between(
        Arc::new(Int64Array::from(vec![Some(7), None])),
        "BIGINT",
        "STRING",
    )
    .unwrap();
    assert_eq!(found, [text("7"), Datum::Null]);
    let found = between(
        Arc::new(BooleanArray::from(vec![true])),
        "BOOLEAN",
        "STRING",
    )
    .unwrap();
    assert_eq!(found, [text("true")]);
    let found = between(Arc::new(Float64Array::from(vec![1e10])), "DOUBLE", "STRING").unwrap();
    assert_eq!(found, [text("1.0E10")]);
    let found = between(Arc::new(Date32Array::from(vec![19000])), "DATE", "STRING").unwrap();
    assert_eq!(found, [text("2022-01-08")]);
}

#[test]
fn narrowed_types_are_refused_not_guessed() {
    for (from, to) in [
        ("BIGINT", "INT"),
        ("STRING", "INT"),
        ("TIMESTAMP(3)", "TIMESTAMP_LTZ(3)"),
    ] {
        let array = new_null_array(&from.parse::<DataType>().unwrap().arrow_type(), 1);
        assert!(
            matches!(between(array, from, to), Err(Error::Unsupported { .. })),
            "{from} to {to}"
        );
    }
}

#[test]
fn a_decimal_that_does_not_fit_is_an_error_not_null() {
    let decimals = Decimal128Array::from(vec![99_999])
        .with_precision_and_scale(5, 0)
        .unwrap();
    let found = between(Arc::new(decimals), "DECIMAL(5, 0)", "DECIMAL(5, 2)");
    assert!(matches!(found, Err(Error::Arrow { .. })), "{found:?}");
}

#[test]
fn fields_of_nested_rows_are_found_by_id() {
    let row = |fields: Vec<DataField>| TypeKind::Row(fields).nullable();
    let from = row(vec![field(2, "a", "INT"), field(3, "b", "INT")]);
    let to = row(vec![field(4, "a", "STRING"), field(3, "renamed", "BIGINT")]);
    let from = DataField::new(1, "rows", TypeKind::Array(Box::new(from)).nullable());
    let to = DataField::new(1, "rows", TypeKind::Array(Box::new(to)).nullable());
    let schema = arrow_schema(std::slice::from_ref(&from));
    let ArrowType::List(element) = schema.field(0).data_type() else {
        panic!()
    };
    let ArrowType::Struct(fields) = element.data_type() else {
        panic!()
    };
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int32Array::from(vec![1, 2])),
        Arc::new(Int32Array::from(vec![10, 20])),
    ];
    let rows = StructArray::new(fields.clone(), columns, None);
    let offsets = OffsetBuffer::from_lengths([2]);
    let list = ListArray::new(Arc::clone(element), offsets, Arc::new(rows), None);
    let found = adapted(Arc::new(list), &from, &to).unwrap();
    let row = |n: i64| Datum::Row(vec![Datum::Null, Datum::BigInt(n)]);
    assert_eq!(found, [Datum::Array(vec![row(10), row(20)])]);
}
