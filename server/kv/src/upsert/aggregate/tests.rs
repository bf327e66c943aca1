use std::collections::BTreeMap;

use proptest::prelude::*;
use weir_protocol::schema::Column;

use super::*;

/// A table of `id` and one column `c` with a function.
fn schema(kind: TypeKind, function: &str, parameters: &[(&str, &str)]) -> Schema {
    let mut column = Column::new("c", LogicalType::nullable(kind));
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    column.agg_function = Some(AggFunction {
        kind: function.to_owned(),
        parameters: parameters.iter().map(owned).collect(),
    });
    let id = Column::new("id", LogicalType::not_null(TypeKind::Int));
    Schema::new(vec![id, column], vec!["id".to_owned()]).unwrap()
}

/// What the function makes of values that come one after the other.
fn fold(kind: TypeKind, function: &str, values: &[Datum]) -> Result<Datum> {
    let aggregators = Aggregators::of(&schema(kind, function, &[]))?;
    let (first, rest) = values.split_first().unwrap();
    let mut held = first.clone();
    for value in rest {
        held = aggregators.merge(1, &held, value.clone())?;
    }
    Ok(held)
}

fn text(text: &str) -> Datum {
    Datum::String(text.to_owned())
}

fn decimal(precision: u8, scale: u8) -> TypeKind {
    TypeKind::Decimal { precision, scale }
}

#[test]
fn each_function_makes_of_values_what_the_reference_makes() {
    use Datum::{BigInt, Boolean, Date, Decimal, Double, Int, Null, SmallInt, TinyInt};
    let (two, cent) = (decimal(5, 2), decimal(38, 2));
    let cases = [
        (
            TypeKind::TinyInt,
            "SUM",
            vec![TinyInt(1), Null, TinyInt(-3)],
            TinyInt(-2),
        ),
        (
            TypeKind::SmallInt,
            "SUM",
            vec![SmallInt(7), SmallInt(8)],
            SmallInt(15),
        ),
        (TypeKind::Int, "SUM", vec![Null, Int(4), Int(5)], Int(9)),
        (
            TypeKind::BigInt,
            "SUM",
            vec![BigInt(i64::MAX), BigInt(-1)],
            BigInt(i64::MAX - 1),
        ),
        (
            TypeKind::Double,
            "SUM",
            vec![Double(0.5), Double(0.25)],
            Double(0.75),
        ),
        (
            two.clone(),
            "SUM",
            vec![Decimal(99_998), Decimal(1)],
            Decimal(99_999),
        ),
        (
            TypeKind::Int,
            "PRODUCT",
            vec![Int(4), Null, Int(5)],
            Int(20),
        ),
        // 1.50 * 0.01 is 0.015, -1.50 * 0.01 is -0.015: half goes away from zero.
        (
            two.clone(),
            "PRODUCT",
            vec![Decimal(150), Decimal(1)],
            Decimal(2),
        ),
        (
            two.clone(),
            "PRODUCT",
            vec![Decimal(-150), Decimal(1)],
            Decimal(-2),
        ),
        (two, "PRODUCT", vec![Decimal(149), Decimal(1)], Decimal(1)),
        (
            cent,
            "PRODUCT",
            vec![Decimal(10_i128.pow(37)), Decimal(300)],
            Decimal(3 * 10_i128.pow(37)),
        ),
        (
            TypeKind::Int,
            "MAX",
            vec![Int(1), Int(9), Null, Int(3)],
            Int(9),
        ),
        (
            TypeKind::String,
            "MAX",
            vec![text("a"), text("\u{e9}"), text("b")],
            text("\u{e9}"),
        ),
        (
            TypeKind::Date,
            "MIN",
            vec![Date(4), Date(-4), Date(0)],
            Date(-4),
        ),
        (
            TypeKind::Double,
            "MIN",
            vec![Double(f64::NAN), Double(1.0)],
            Double(1.0),
        ),
        (TypeKind::Int, "LAST_VALUE", vec![Int(1), Null], Null),
        (
            TypeKind::Int,
            "LAST_VALUE_IGNORE_NULLS",
            vec![Int(1), Null],
            Int(1),
        ),
        (
            TypeKind::Int,
            "FIRST_VALUE",
            vec![Null, Int(1), Int(2)],
            Int(1),
        ),
        (
            TypeKind::Int,
            "FIRST_VALUE_IGNORE_NULLS",
            vec![Null, Int(1), Int(2)],
            Int(1),
        ),
        (
            TypeKind::String,
            "LISTAGG",
            vec![text("a"), Null, text(""), text("b")],
            text("a,,b"),
        ),
        (
            TypeKind::String,
            "STRING_AGG",
            vec![text("a"), text("a")],
            text("a,a"),
        ),
        (
            TypeKind::Boolean,
            "BOOL_AND",
            vec![Boolean(true), Null, Boolean(true)],
            Boolean(true),
        ),
        (
            TypeKind::Boolean,
            "bool-and",
            vec![Boolean(true), Boolean(false)],
            Boolean(false),
        ),
        (
            TypeKind::Boolean,
            "BOOL_OR",
            vec![Boolean(false), Boolean(true)],
            Boolean(true),
        ),
    ];
    for (kind, function, values, expected) in cases {
        let found = fold(kind, function, &values).unwrap();
        assert_eq!(found, expected, "{function} of {values:?}");
    }
    let most = fold(TypeKind::Double, "MAX", &[Double(f64::NAN), Double(1.0)]);
    assert!(matches!(most.unwrap(), Double(most) if most.is_nan()));
}

#[test]
fn a_number_beyond_its_column_is_refused() {
    use Datum::{BigInt, Decimal, Int, TinyInt};
    for (kind, function, values) in [
        (TypeKind::TinyInt, "SUM", [TinyInt(127), TinyInt(1)]),
        (TypeKind::Int, "PRODUCT", [Int(i32::MAX), Int(2)]),
        (TypeKind::BigInt, "SUM", [BigInt(i64::MIN), BigInt(-1)]),
        (decimal(5, 2), "SUM", [Decimal(99_999), Decimal(1)]),
        (
            decimal(38, 0),
            "PRODUCT",
            [Decimal(10_i128.pow(37)), Decimal(10_i128.pow(37))],
        ),
    ] {
        let found = fold(kind, function, &values);
        let refused = matches!(&found, Err(Error::Aggregate { column, .. }) if column == "c");
        assert!(refused, "{function} of {values:?}: {found:?}");
    }
}

/// Bytes as the reference writes them: the portable form, with a run of 100 to 199 (made by hand after
/// the format's specification).
#[test]
fn bitmaps_are_united() {
    let mut runs = vec![];
    runs.extend(12_347_u32.to_le_bytes());
    runs.extend([1, 0, 0, 99, 0, 1, 0, 100, 0, 99, 0]);
    let mut plain = vec![];
    let few: RoaringBitmap = [7, 150, 70_000].into_iter().collect();
    few.serialize_into(&mut plain).unwrap();
    let values = [Datum::Bytes(runs), Datum::Bytes(plain)];
    let Datum::Bytes(found) = fold(TypeKind::Bytes, "RBM32", &values).unwrap() else {
        panic!("no bytes");
    };
    let found = RoaringBitmap::deserialize_from(found.as_slice()).unwrap();
    let expected: RoaringBitmap = (100..200).chain([7, 70_000]).collect();
    assert_eq!(found, expected);
    let wrong = fold(
        TypeKind::Bytes,
        "RBM32",
        &[Datum::Bytes(vec![1]), Datum::Bytes(vec![2])],
    );
    assert!(matches!(wrong, Err(Error::Aggregate { .. })), "{wrong:?}");
}

#[test]
fn functions_that_a_column_does_not_have_are_refused() {
    for (kind, function, parameters) in [
        (TypeKind::String, "SUM", &[][..]),
        (TypeKind::Boolean, "MAX", &[]),
        (TypeKind::Int, "LISTAGG", &[]),
        (TypeKind::Int, "BOOL_OR", &[]),
        (TypeKind::Int, "RBM32", &[]),
        (TypeKind::Bytes, "RBM64", &[]),
        (TypeKind::Int, "MEDIAN", &[]),
        (TypeKind::Int, "SUM", &[("delimiter", ";")]),
        (TypeKind::String, "LISTAGG", &[("delimiter", "")]),
        (TypeKind::String, "LISTAGG", &[("separator", ";")]),
    ] {
        let found = Aggregators::of(&schema(kind, function, parameters));
        let named = matches!(
            &found,
            Err(Error::AggregateFunction { column, function: named, .. })
                if column == "c" && named == function
        );
        assert!(named, "{function} {parameters:?}: {found:?}");
    }
}

#[test]
fn texts_are_joined_by_the_delimiter_that_is_named() {
    let schema = schema(TypeKind::String, "LISTAGG", &[("delimiter", " | ")]);
    let aggregators = Aggregators::of(&schema).unwrap();
    let joined = aggregators.merge(1, &text("a"), text("b")).unwrap();
    assert_eq!(joined, text("a | b"));
    // The key stays, whatever it says of functions; so does what has none, unless it is null.
    assert_eq!(
        aggregators.merge(0, &Datum::Int(1), Datum::Int(1)).unwrap(),
        Datum::Int(1)
    );
}

proptest! {
    /// The order in which values come changes nothing, where the reference says so.
    #[test]
    fn sums_and_bounds_do_not_depend_on_the_order(
        mut values in prop::collection::vec(prop::option::of(-1000_i32..1000), 1..20),
    ) {
        let mut found = BTreeMap::new();
        for _ in 0..2 {
            for function in ["SUM", "MAX", "MIN"] {
                let datums = values.iter().map(|value| value.map_or(Datum::Null, Datum::Int));
                let datums: Vec<_> = datums.collect();
                let result = fold(TypeKind::Int, function, &datums).unwrap();
                let before = found.insert(function, result.clone());
                prop_assert!(before.is_none_or(|before| before == result));
            }
            values.reverse();
        }
        let known = values.iter().flatten();
        let sum = known.clone().copied().reduce(|a, b| a + b).map_or(Datum::Null, Datum::Int);
        let most = known.max().map_or(Datum::Null, |most| Datum::Int(*most));
        prop_assert_eq!(&found["SUM"], &sum);
        prop_assert_eq!(&found["MAX"], &most);
    }
}
