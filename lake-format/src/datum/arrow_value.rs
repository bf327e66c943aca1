//! Values out of Arrow arrays.

use arrow::array::{Array, AsArray};
use arrow::datatypes::{
    DataType as ArrowType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int8Type,
    Int16Type, Int32Type, Int64Type, Time32MillisecondType, TimeUnit, TimestampMicrosecondType,
    TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType,
};

use super::{Datum, Timestamp};
use crate::error::{Error, Result};
use crate::types::{DataType, TypeKind};

impl Datum {
    /// The value of a row of an array, which is of the Arrow type of `data_type`
    /// ([`DataType::arrow_type`]; bytes in any binary type, timestamps in any unit).
    ///
    /// # Errors
    /// [`Error::BadValue`] if the array is of another type or has no such row.
    pub fn from_array(array: &dyn Array, row: usize, data_type: &DataType) -> Result<Self> {
        if row >= array.len() {
            return Err(Error::bad_value(
                "array",
                format!("no row {row} of {}", array.len()),
            ));
        }
        if array.is_null(row) {
            return Ok(Self::Null);
        }
        let found = match atomic(array, row, &data_type.kind) {
            Some(datum) => Some(datum),
            None => nested(array, row, &data_type.kind)?,
        };
        found.ok_or_else(|| {
            let reason = format!("an Arrow array of {} for {data_type}", array.data_type());
            Error::bad_value("array", reason)
        })
    }
}

fn atomic(array: &dyn Array, row: usize, kind: &TypeKind) -> Option<Datum> {
    Some(match kind {
        TypeKind::Boolean => Datum::Boolean(array.as_boolean_opt()?.value(row)),
        TypeKind::TinyInt => Datum::TinyInt(array.as_primitive_opt::<Int8Type>()?.value(row)),
        TypeKind::SmallInt => Datum::SmallInt(array.as_primitive_opt::<Int16Type>()?.value(row)),
        TypeKind::Int => Datum::Int(array.as_primitive_opt::<Int32Type>()?.value(row)),
        TypeKind::BigInt => Datum::BigInt(array.as_primitive_opt::<Int64Type>()?.value(row)),
        TypeKind::Float => Datum::Float(array.as_primitive_opt::<Float32Type>()?.value(row)),
        TypeKind::Double => Datum::Double(array.as_primitive_opt::<Float64Type>()?.value(row)),
        TypeKind::Decimal { .. } => {
            Datum::Decimal(array.as_primitive_opt::<Decimal128Type>()?.value(row))
        }
        TypeKind::Char { .. } | TypeKind::VarChar { .. } => {
            Datum::String(array.as_string_opt::<i32>()?.value(row).to_owned())
        }
        TypeKind::Binary { .. } | TypeKind::VarBinary { .. } => {
            Datum::Bytes(bytes(array, row)?.to_vec())
        }
        TypeKind::Date => Datum::Date(array.as_primitive_opt::<Date32Type>()?.value(row)),
        TypeKind::Time { .. } => Datum::Time(
            array
                .as_primitive_opt::<Time32MillisecondType>()?
                .value(row),
        ),
        TypeKind::Timestamp { .. } | TypeKind::TimestampLtz { .. } => {
            Datum::Timestamp(timestamp(array, row)?)
        }
        _ => return None,
    })
}

fn bytes(array: &dyn Array, row: usize) -> Option<&[u8]> {
    match array.data_type() {
        ArrowType::Binary => Some(array.as_binary_opt::<i32>()?.value(row)),
        ArrowType::LargeBinary => Some(array.as_binary_opt::<i64>()?.value(row)),
        ArrowType::FixedSizeBinary(_) => Some(array.as_fixed_size_binary_opt()?.value(row)),
        _ => None,
    }
}

fn timestamp(array: &dyn Array, row: usize) -> Option<Timestamp> {
    let ArrowType::Timestamp(unit, _) = array.data_type() else {
        return None;
    };
    Some(match unit {
        TimeUnit::Second => {
            let seconds = array.as_primitive_opt::<TimestampSecondType>()?.value(row);
            Timestamp::from_millis(seconds.checked_mul(1000)?)
        }
        TimeUnit::Millisecond => Timestamp::from_millis(
            array
                .as_primitive_opt::<TimestampMillisecondType>()?
                .value(row),
        ),
        TimeUnit::Microsecond => Timestamp::from_micros(
            array
                .as_primitive_opt::<TimestampMicrosecondType>()?
                .value(row),
        ),
        TimeUnit::Nanosecond => Timestamp::from_nanos(
            array
                .as_primitive_opt::<TimestampNanosecondType>()?
                .value(row),
        ),
    })
}

/// `None` if the array is not of this kind.
fn nested(array: &dyn Array, row: usize, kind: &TypeKind) -> Result<Option<Datum>> {
    match kind {
        TypeKind::Array(element) => {
            let Some(list) = array.as_list_opt::<i32>() else {
                return Ok(None);
            };
            let items = list.value(row);
            let items = (0..items.len()).map(|item| Datum::from_array(&items, item, element));
            Ok(Some(Datum::Array(items.collect::<Result<_>>()?)))
        }
        TypeKind::Map(key, value) => map(array, row, key, value),
        TypeKind::Multiset(element) => map(array, row, element, &TypeKind::Int.not_null()),
        TypeKind::Row(fields) => {
            let Some(columns) = array.as_struct_opt() else {
                return Ok(None);
            };
            if columns.num_columns() != fields.len() {
                return Ok(None);
            }
            let values = columns.columns().iter().zip(fields);
            let values =
                values.map(|(column, field)| Datum::from_array(column, row, &field.data_type));
            Ok(Some(Datum::Row(values.collect::<Result<_>>()?)))
        }
        _ => Ok(None),
    }
}

fn map(array: &dyn Array, row: usize, key: &DataType, value: &DataType) -> Result<Option<Datum>> {
    let Some(map) = array.as_map_opt() else {
        return Ok(None);
    };
    let entries = map.value(row);
    let [keys, values] = entries.columns() else {
        return Ok(None);
    };
    let mut pairs = Vec::with_capacity(entries.len());
    for entry in 0..entries.len() {
        pairs.push((
            Datum::from_array(keys, entry, key)?,
            Datum::from_array(values, entry, value)?,
        ));
    }
    Ok(Some(Datum::Map(pairs)))
}
