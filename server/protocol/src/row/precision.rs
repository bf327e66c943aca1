//! Times with more digits than their type: rows carry milliseconds or more whatever the precision,
//! Arrow has a unit for each (fluss: `ArrowUtils`, `CompactedRowWriter`).

use super::Datum;
use crate::schema::TypeKind;

/// Takes away the digits that Arrow's unit for the type has no place for, towards the past, also in
/// nested values; says whether there were any.
pub fn trim(value: &mut Datum, kind: &TypeKind) -> bool {
    match (value, kind) {
        (Datum::Time(millis), TypeKind::Time { precision: 0 }) => {
            let exact = millis.div_euclid(1000) * 1000;
            std::mem::replace(millis, exact) != exact
        }
        (
            Datum::Timestamp { millis, nanos },
            TypeKind::Timestamp { precision } | TypeKind::TimestampLtz { precision },
        ) => {
            let exact = match precision {
                0 => (millis.div_euclid(1000) * 1000, 0),
                1..=3 => (*millis, 0),
                4..=6 => (*millis, *nanos / 1000 * 1000),
                _ => (*millis, *nanos),
            };
            let before = (*millis, *nanos);
            (*millis, *nanos) = exact;
            before != exact
        }
        (Datum::Array(values), TypeKind::Array(element)) => {
            let trimmed = values.iter_mut().map(|value| trim(value, &element.kind));
            trimmed.fold(false, |any, one| any | one)
        }
        (Datum::Map(entries), TypeKind::Map(key, value)) => {
            let trimmed = entries
                .iter_mut()
                .map(|(k, v)| trim(k, &key.kind) | trim(v, &value.kind));
            trimmed.fold(false, |any, one| any | one)
        }
        (Datum::Row(values), TypeKind::Row(fields)) => {
            let both = values.iter_mut().zip(fields);
            let trimmed = both.map(|(value, field)| trim(value, &field.ty.kind));
            trimmed.fold(false, |any, one| any | one)
        }
        _ => false,
    }
}

/// Whether values of the type may have digits that [`trim`] takes away.
pub fn may_be_inexact(kind: &TypeKind) -> bool {
    match kind {
        TypeKind::Time { precision } => *precision == 0,
        TypeKind::Timestamp { precision } | TypeKind::TimestampLtz { precision } => *precision < 7,
        TypeKind::Array(element) => may_be_inexact(&element.kind),
        TypeKind::Map(key, value) => may_be_inexact(&key.kind) || may_be_inexact(&value.kind),
        TypeKind::Row(fields) => fields.iter().any(|field| may_be_inexact(&field.ty.kind)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::row::arrow_values::{array_of, datum_at};
    use crate::schema::LogicalType;

    proptest! {
        /// What is trimmed is what a way through Arrow takes away, and nothing else.
        #[test]
        fn a_trimmed_time_is_the_one_that_comes_back_from_arrow(
            precision in 0_u8..=9,
            millis in -5_000_000_i64..5_000_000,
            nanos in 0_i32..1_000_000,
            of_day in 0_i32..86_400_000,
        ) {
            // Compacted rows have no nanoseconds at 3 digits and fewer.
            for (kind, value) in [
                (TypeKind::Timestamp { precision }, Datum::Timestamp { millis, nanos }),
                (TypeKind::TimestampLtz { precision }, Datum::Timestamp { millis, nanos }),
                (TypeKind::Time { precision }, Datum::Time(of_day)),
            ] {
                let ty = LogicalType::nullable(kind.clone());
                let mut trimmed = value.clone();
                let changed = trim(&mut trimmed, &kind);
                prop_assert_eq!(changed, trimmed != value);
                prop_assert!(!changed || may_be_inexact(&kind));
                let array = array_of(std::slice::from_ref(&value), &ty).unwrap();
                prop_assert_eq!(datum_at(&*array, 0, &kind).unwrap(), trimmed);
            }
        }
    }

    #[test]
    fn times_within_nested_values_are_trimmed() {
        let time = LogicalType::nullable(TypeKind::Time { precision: 0 });
        let kind = TypeKind::Array(Box::new(time));
        let mut value = Datum::Array(vec![Datum::Null, Datum::Time(1_500), Datum::Time(2_000)]);
        assert!(may_be_inexact(&kind));
        assert!(trim(&mut value, &kind));
        assert!(!trim(&mut value, &kind));
        let exact = Datum::Array(vec![Datum::Null, Datum::Time(1_000), Datum::Time(2_000)]);
        assert_eq!(value, exact);
    }
}
