//! One value of any column type.

use std::cmp::Ordering;

use crate::types::{DataType, TypeKind};

mod arrow_value;

/// Milliseconds of a day.
pub(crate) const MILLIS_PER_DAY: i32 = 86_400_000;

/// Nanoseconds of a millisecond.
pub(crate) const NANOS_PER_MILLI: i64 = 1_000_000;

/// One value; which type it belongs to is known from the column.
#[derive(Clone, Debug, PartialEq)]
pub enum Datum {
    /// No value.
    Null,
    /// `BOOLEAN`.
    Boolean(bool),
    /// `TINYINT`.
    TinyInt(i8),
    /// `SMALLINT`.
    SmallInt(i16),
    /// `INT`.
    Int(i32),
    /// `BIGINT`.
    BigInt(i64),
    /// `FLOAT`.
    Float(f32),
    /// `DOUBLE`.
    Double(f64),
    /// `DECIMAL`: the unscaled value; precision and scale are the column's.
    Decimal(i128),
    /// `CHAR`, `VARCHAR`, `STRING`.
    String(String),
    /// `BINARY`, `VARBINARY`, `BYTES`.
    Bytes(Vec<u8>),
    /// `DATE`: days since 1970-01-01.
    Date(i32),
    /// `TIME`: milliseconds of the day.
    Time(i32),
    /// `TIMESTAMP` and `TIMESTAMP WITH LOCAL TIME ZONE`.
    Timestamp(Timestamp),
    /// `ARRAY`.
    Array(Vec<Datum>),
    /// `MAP` and `MULTISET`, entries in the order of the file.
    Map(Vec<(Datum, Datum)>),
    /// `ROW`.
    Row(Vec<Datum>),
}

/// A point of time: milliseconds since 1970, rounded down, and the nanoseconds within the
/// millisecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// Milliseconds since 1970-01-01T00:00:00, rounded down.
    pub millis: i64,
    /// Nanoseconds within the millisecond, 0 to 999,999.
    pub nanos_of_milli: i32,
}

impl Timestamp {
    /// From milliseconds since 1970.
    pub fn from_millis(millis: i64) -> Self {
        Self {
            millis,
            nanos_of_milli: 0,
        }
    }

    /// From microseconds since 1970.
    pub fn from_micros(micros: i64) -> Self {
        let nanos = i32::try_from(micros.rem_euclid(1000) * 1000).unwrap_or(0);
        Self {
            millis: micros.div_euclid(1000),
            nanos_of_milli: nanos,
        }
    }

    /// From nanoseconds since 1970.
    pub fn from_nanos(nanos: i64) -> Self {
        let rest = i32::try_from(nanos.rem_euclid(NANOS_PER_MILLI)).unwrap_or(0);
        Self {
            millis: nanos.div_euclid(NANOS_PER_MILLI),
            nanos_of_milli: rest,
        }
    }

    /// Nanoseconds since 1970; `None` beyond 64 bits.
    pub fn to_nanos(self) -> Option<i64> {
        let nanos =
            i128::from(self.millis) * i128::from(NANOS_PER_MILLI) + i128::from(self.nanos_of_milli);
        i64::try_from(nanos).ok()
    }
}

impl Datum {
    /// Whether it is null.
    pub fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    /// Whether a column of `data_type` can hold it, as far as kinds and nullability go.
    pub fn fits(&self, data_type: &DataType) -> bool {
        match (self, &data_type.kind) {
            (Self::Null, _) => data_type.nullable,
            (datum, kind) => datum.fits_kind(kind),
        }
    }

    fn fits_kind(&self, kind: &TypeKind) -> bool {
        match (self, kind) {
            (Self::Boolean(_), TypeKind::Boolean)
            | (Self::TinyInt(_), TypeKind::TinyInt)
            | (Self::SmallInt(_), TypeKind::SmallInt)
            | (Self::Int(_), TypeKind::Int)
            | (Self::BigInt(_), TypeKind::BigInt)
            | (Self::Float(_), TypeKind::Float)
            | (Self::Double(_), TypeKind::Double)
            | (Self::String(_), TypeKind::Char { .. } | TypeKind::VarChar { .. })
            | (Self::Bytes(_), TypeKind::Binary { .. } | TypeKind::VarBinary { .. })
            | (Self::Date(_), TypeKind::Date)
            | (Self::Timestamp(_), TypeKind::Timestamp { .. } | TypeKind::TimestampLtz { .. }) => {
                true
            }
            (Self::Decimal(unscaled), TypeKind::Decimal { precision, .. }) => {
                unscaled.unsigned_abs() < 10u128.pow(u32::from((*precision).min(38)))
            }
            (Self::Time(millis), TypeKind::Time { .. }) => (0..MILLIS_PER_DAY).contains(millis),
            (Self::Array(items), TypeKind::Array(element)) => {
                items.iter().all(|item| item.fits(element))
            }
            (Self::Map(entries), TypeKind::Map(key, value)) => entries
                .iter()
                .all(|(k, v)| (k.is_null() || k.fits(key)) && v.fits(value)),
            (Self::Map(entries), TypeKind::Multiset(element)) => {
                entries.iter().all(|(k, count)| {
                    (k.is_null() || k.fits(element)) && matches!(count, Self::Int(_))
                })
            }
            (Self::Row(values), TypeKind::Row(fields)) => {
                values.len() == fields.len()
                    && values
                        .iter()
                        .zip(fields)
                        .all(|(value, field)| value.fits(&field.data_type))
            }
            _ => false,
        }
    }

    /// Compares two values of one column as the format orders them: numbers and times by value,
    /// text and bytes by unsigned bytes, NaN behind all numbers. `None` for nulls, nested values
    /// and values of different kinds.
    pub fn compare(&self, other: &Self) -> Option<Ordering> {
        match (self, other) {
            (Self::Boolean(a), Self::Boolean(b)) => Some(a.cmp(b)),
            (Self::TinyInt(a), Self::TinyInt(b)) => Some(a.cmp(b)),
            (Self::SmallInt(a), Self::SmallInt(b)) => Some(a.cmp(b)),
            (Self::Int(a), Self::Int(b))
            | (Self::Date(a), Self::Date(b))
            | (Self::Time(a), Self::Time(b)) => Some(a.cmp(b)),
            (Self::BigInt(a), Self::BigInt(b)) => Some(a.cmp(b)),
            (Self::Float(a), Self::Float(b)) => Some(float_order(f64::from(*a), f64::from(*b))),
            (Self::Double(a), Self::Double(b)) => Some(float_order(*a, *b)),
            (Self::Decimal(a), Self::Decimal(b)) => Some(a.cmp(b)),
            (Self::String(a), Self::String(b)) => Some(a.as_bytes().cmp(b.as_bytes())),
            (Self::Bytes(a), Self::Bytes(b)) => Some(a.cmp(b)),
            (Self::Timestamp(a), Self::Timestamp(b)) => Some(a.cmp(b)),
            _ => None,
        }
    }
}

/// Java's `Double.compare`: −0.0 before 0.0, NaN behind all numbers.
fn float_order(a: f64, b: f64) -> Ordering {
    match (a.is_nan(), b.is_nan()) {
        (false, false) => a.total_cmp(&b),
        (a_is_nan, b_is_nan) => a_is_nan.cmp(&b_is_nan),
    }
}
