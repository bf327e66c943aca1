//! Rows one at a time: values, and the row formats of keys, primary-key values and row-wise logs.

use crate::error::{Error, Result};
use crate::schema::{LogicalType, TypeKind};

mod arrow_values;
pub mod binary;
pub mod bucket;
pub mod compacted;
pub mod indexed;
pub mod key;
pub mod precision;
mod slots;
mod wire;

#[cfg(test)]
mod tests;

pub use arrow_values::{array_of, datum_at};
pub(crate) use wire::{Budget, Reader, put_var_u32};

/// One value of any type. The type stands beside it, in the schema.
#[derive(Clone, Debug, PartialEq)]
pub enum Datum {
    /// No value.
    Null,
    /// BOOLEAN.
    Boolean(bool),
    /// TINYINT.
    TinyInt(i8),
    /// SMALLINT.
    SmallInt(i16),
    /// INT.
    Int(i32),
    /// BIGINT.
    BigInt(i64),
    /// FLOAT.
    Float(f32),
    /// DOUBLE.
    Double(f64),
    /// DECIMAL: the unscaled value; precision and scale are the type's.
    Decimal(i128),
    /// CHAR and STRING.
    String(String),
    /// BINARY and BYTES.
    Bytes(Vec<u8>),
    /// DATE: days since 1970-01-01.
    Date(i32),
    /// TIME: milliseconds of the day, whatever the precision (as the reference's rows).
    Time(i32),
    /// TIMESTAMP (wall clock read as UTC) and `TIMESTAMP_LTZ` (an instant).
    Timestamp {
        /// Milliseconds since 1970-01-01T00:00:00.
        millis: i64,
        /// Nanoseconds within the millisecond, 0..=999 999.
        nanos: i32,
    },
    /// ARRAY.
    Array(Vec<Datum>),
    /// MAP, in order of its entries.
    Map(Vec<(Datum, Datum)>),
    /// ROW.
    Row(Vec<Datum>),
}

impl Datum {
    /// Whether there is no value.
    pub fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    /// The kind of value, for messages.
    pub fn kind_name(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Boolean(_) => "boolean",
            Self::TinyInt(_) => "tinyint",
            Self::SmallInt(_) => "smallint",
            Self::Int(_) => "int",
            Self::BigInt(_) => "bigint",
            Self::Float(_) => "float",
            Self::Double(_) => "double",
            Self::Decimal(_) => "decimal",
            Self::String(_) => "string",
            Self::Bytes(_) => "bytes",
            Self::Date(_) => "date",
            Self::Time(_) => "time",
            Self::Timestamp { .. } => "timestamp",
            Self::Array(_) => "array",
            Self::Map(_) => "map",
            Self::Row(_) => "row",
        }
    }

    pub(crate) fn mismatch(&self, kind: &TypeKind) -> Error {
        Error::ValueMismatch {
            expected: kind.to_string(),
            found: self.kind_name(),
        }
    }

    /// Null where the type forbids it.
    pub(crate) fn check_null(ty: &LogicalType) -> Result<()> {
        if ty.nullable {
            return Ok(());
        }
        Err(Error::ValueMismatch {
            expected: ty.to_string(),
            found: "null",
        })
    }
}

/// How many values a row must have; an error if it has others.
fn check_arity(format: &'static str, values: usize, types: usize) -> Result<()> {
    if values == types {
        return Ok(());
    }
    Err(Error::invalid(
        format,
        values.to_string(),
        "number of values differs from the schema's columns",
    ))
}

/// Whether a decimal of this precision is stored as 64 bits in row formats.
fn is_compact_decimal(precision: u8) -> bool {
    precision <= 18
}

/// Whether a timestamp of this precision is stored as milliseconds alone in row formats.
fn is_compact_timestamp(precision: u8) -> bool {
    precision <= 3
}
