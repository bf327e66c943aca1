use arrow::array::{ArrayRef, Float64Array, Int32Array, StringArray};
use proptest::prelude::*;
use std::sync::Arc;

use super::*;
use crate::datum::Timestamp;
use crate::schema::NewTable;
use crate::types::{DataField, TypeKind};

fn schema(columns: &[(&str, &str)]) -> TableSchema {
    let field = |(name, ty): &(&str, &str)| DataField::new(-1, *name, ty.parse().unwrap());
    let table = NewTable {
        fields: columns.iter().map(field).collect(),
        ..NewTable::default()
    };
    TableSchema::create(table, 0).unwrap()
}

fn condition(ty: &str, text: &str) -> Predicate {
    Predicate::parse(&format!("c {text}"), &schema(&[("c", ty)])).unwrap()
}

fn timestamp(text: &str) -> Datum {
    let condition = condition("TIMESTAMP(9)", &format!("= '{text}'"));
    match condition.test {
        Test::Compare(_, value) => value,
        other => panic!("{other:?}"),
    }
}

#[test]
fn literals_of_every_type_are_read() {
    for (ty, literal, value) in [
        ("BOOLEAN", "TRUE", Datum::Boolean(true)),
        ("TINYINT", "-128", Datum::TinyInt(-128)),
        ("SMALLINT", "+5", Datum::SmallInt(5)),
        ("INT", "7.00", Datum::Int(7)),
        ("BIGINT", "-9223372036854775808", Datum::BigInt(i64::MIN)),
        ("FLOAT", "0.1", Datum::Float(0.1)),
        ("DOUBLE", "-Infinity", Datum::Double(f64::NEG_INFINITY)),
        ("DECIMAL(9, 2)", "-.5", Datum::Decimal(-50)),
        ("CHAR(3)", "'a''b'", Datum::String("a'b".to_owned())),
        ("STRING", "''", Datum::String(String::new())),
        ("BYTES", "00ff", Datum::Bytes(vec![0, 255])),
        ("DATE", "1960-06-15", Datum::Date(-3487)),
        ("TIME(3)", "'12:00:00.001'", Datum::Time(43_200_001)),
        (
            "TIMESTAMP_LTZ(6)",
            "'2025-05-06T11:00:00Z'",
            Datum::Timestamp(Timestamp::from_millis(1_746_529_200_000)),
        ),
    ] {
        let found = condition(ty, &format!("<= {literal}"));
        assert_eq!(
            found.test,
            Test::Compare(Comparison::LessOrEqual, value),
            "{ty} {literal}"
        );
    }
    assert_eq!(
        timestamp("1969-12-31 23:59:59.999999999"),
        Datum::Timestamp(Timestamp::from_nanos(-1))
    );
}

#[test]
fn what_is_no_condition_is_refused_with_the_column_s_name() {
    let mut schema = schema(&[("n", "INT"), ("a b", "INT"), ("d", "DATE")]);
    schema.fields[1].data_type = TypeKind::Array(Box::new(TypeKind::Int.nullable())).nullable();
    for text in [
        "n = x",
        "n = '5",
        "n",
        "n ~ 5",
        "n =",
        "d = 2024-3-1",
        "d = 2024-02-30",
        "`a b` = 1",
        "z = 1",
        "n IS NOT",
        "n = 1e5",
        "n = --5",
    ] {
        let error = Predicate::parse(text, &schema).unwrap_err();
        assert!(matches!(error, Error::BadValue { .. }), "{text}: {error}");
    }
    let nested = Predicate::parse("`a b` is not null", &schema).unwrap();
    assert_eq!(nested.column(), "a b");
    assert_eq!(nested.test, Test::IsNotNull);
}

/// A literal with more digits than the column, or beyond its range, lies between its values.
#[test]
fn a_literal_that_is_no_value_of_the_column_is_compared_exactly() {
    let passing = |ty: &str, text: &str, values: &[i32]| -> Vec<i32> {
        let condition = condition(ty, text);
        let pass = |value: &&i32| condition.lets_through(&Datum::Int(**value));
        values.iter().filter(pass).copied().collect()
    };
    let all = [i32::MIN, -2, -1, 0, 1, 2, i32::MAX];
    for (text, expected) in [
        ("> 0.5", &all[4..]),
        (">= 0.5", &all[4..]),
        ("< -0.5", &all[..3]),
        ("<= -0.5", &all[..3]),
        ("> -1.5", &all[2..]),
        ("= 0.5", &[]),
        ("!= 0.5", &all),
        ("<> -1.0", &[i32::MIN, -2, 0, 1, 2, i32::MAX]),
        ("< 99999999999", &all),
        ("> 99999999999", &[]),
        ("> -99999999999", &all),
        ("<= -99999999999", &[]),
        ("< 1000000000000000000000000000000000000000000", &all),
        ("< -1000000000000000000000000000000000000000000", &[]),
    ] {
        assert_eq!(passing("INT", text, &all), expected, "{text}");
    }
    let wide = condition(
        "DECIMAL(38, 38)",
        "> 0.99999999999999999999999999999999999999",
    );
    assert!(!wide.lets_through(&Datum::Decimal(10_i128.pow(38) - 1)));
}

#[test]
fn nulls_meet_no_comparison_and_zeros_are_equal_and_nan_is_above_all() {
    for text in ["= 0", "!= 0", "< 0", ">= 0", "IS NOT NULL"] {
        assert!(
            !condition("DOUBLE", text).lets_through(&Datum::Null),
            "{text}"
        );
    }
    assert!(condition("DOUBLE", "IS NULL").lets_through(&Datum::Null));
    assert!(condition("DOUBLE", "= 0").lets_through(&Datum::Double(-0.0)));
    assert!(!condition("DOUBLE", "< 0").lets_through(&Datum::Double(-0.0)));
    let nan = Datum::Double(f64::NAN);
    assert!(condition("DOUBLE", "> Infinity").lets_through(&nan));
    assert!(condition("DOUBLE", "= NaN").lets_through(&nan));
    assert!(!condition("DOUBLE", "< NaN").lets_through(&nan));
}

#[test]
fn rows_are_picked_by_all_conditions() {
    let schema = schema(&[("n", "INT"), ("s", "STRING")]);
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int32Array::from(vec![Some(1), Some(2), None, Some(4)])),
        Arc::new(StringArray::from(vec![
            Some("a"),
            None,
            Some("c"),
            Some("d"),
        ])),
    ];
    let batch = RecordBatch::try_new(schema.arrow_schema(), columns).unwrap();
    let parse = |text| Predicate::parse(text, &schema).unwrap();
    let picked = Predicate::pick(&[parse("n >= 1"), parse("s IS NOT NULL")], &batch).unwrap();
    assert_eq!(picked, BooleanArray::from(vec![true, false, false, true]));
}

/// Bounds of floats by writers that leave NaN out of them.
#[test]
fn a_file_that_may_hold_a_nan_is_kept() {
    let stats = ColumnStats {
        min: Datum::Double(1.0),
        max: Datum::Double(2.0),
        null_count: Some(0),
    };
    for (text, may_pass) in [
        ("> 5", true),
        (">= 5", true),
        ("= NaN", true),
        ("!= 1", true),
        ("= 5", false),
        ("< 1", false),
        ("<= 1", true),
    ] {
        assert_eq!(
            condition("DOUBLE", text).may_pass(&stats, 3),
            may_pass,
            "{text}"
        );
    }
}

fn statistics(values: &[Option<f64>]) -> ColumnStats {
    let schema = schema(&[("c", "DOUBLE")]);
    let column: ArrayRef = Arc::new(Float64Array::from(values.to_vec()));
    let batch = RecordBatch::try_new(schema.arrow_schema(), vec![column]).unwrap();
    let mut collector = crate::stats::StatsCollector::new(&schema).unwrap();
    collector.update(&batch).unwrap();
    let found = collector.finish().unwrap().stats;
    found.decode(schema.types()).unwrap().remove(0)
}

proptest! {
    /// No file is left out that holds a row that passes.
    #[test]
    fn statistics_never_lose_a_row(
        values in prop::collection::vec(
            prop::option::of(prop::sample::select(vec![-1.5, -0.0, 0.0, 1.0, 2.5, f64::NAN, f64::INFINITY])),
            1..6,
        ),
        operator in prop::sample::select(vec!["=", "!=", "<", "<=", ">", ">="]),
        literal in prop::sample::select(vec!["-1.5", "0", "-0.0", "1", "2", "NaN", "Infinity"]),
    ) {
        let stats = statistics(&values);
        let rows = i64::try_from(values.len()).unwrap();
        for text in [format!("{operator} {literal}"), "IS NULL".to_owned(), "IS NOT NULL".to_owned()] {
            let condition = condition("DOUBLE", &text);
            let datum = |value: &Option<f64>| value.map_or(Datum::Null, Datum::Double);
            let passes = values.iter().any(|value| condition.lets_through(&datum(value)));
            prop_assert!(!passes || condition.may_pass(&stats, rows), "{} of {:?}", text, values);
        }
    }

    /// Texts longer than statistics keep.
    #[test]
    fn cut_bounds_never_lose_a_text(
        texts in prop::collection::vec("[ab\u{10ffff}]{0,20}", 1..5),
        literal in "[ab\u{10ffff}]{0,20}",
        operator in prop::sample::select(vec!["=", "!=", "<", "<=", ">", ">="]),
    ) {
        let schema = schema(&[("c", "STRING")]);
        let column: ArrayRef = Arc::new(StringArray::from(texts.clone()));
        let batch = RecordBatch::try_new(schema.arrow_schema(), vec![column]).unwrap();
        let mut collector = crate::stats::StatsCollector::new(&schema).unwrap();
        collector.update(&batch).unwrap();
        let stats = collector.finish().unwrap().stats.decode(schema.types()).unwrap().remove(0);
        let condition = condition("STRING", &format!("{operator} '{literal}'"));
        let passes = texts.iter().any(|text| condition.lets_through(&Datum::String(text.clone())));
        prop_assert!(!passes || condition.may_pass(&stats, i64::try_from(texts.len()).unwrap()));
    }
}
