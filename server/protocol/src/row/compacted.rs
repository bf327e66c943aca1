//! The COMPACTED row format: default of primary-key values, also of row-wise logs; and compacted
//! keys.
//!
//! Source: fluss `CompactedRowWriter`, `CompactedRowReader`. Null bits, then the values that are
//! not null, small.

use super::slots::{self, Nested};
use super::wire::{
    Budget, Reader, check_decimal, decimal_bytes, decimal_from_bytes, is_null, length_u32,
    owned_bytes, put_null_bits, put_var_u32, put_var_u64, text, timestamp,
};
use super::{Datum, check_arity, is_compact_decimal, is_compact_timestamp};
use crate::error::Result;
use crate::schema::{LogicalType, TypeKind};

const FORMAT: &str = "compacted row";

/// The bytes of a row. Nulls are taken whatever the column says: partial updates leave columns out.
///
/// # Errors
/// [`crate::Error::ValueMismatch`] for a value of another type, [`crate::Error::Invalid`] for
/// another number of values or a decimal beyond its precision.
pub fn encode<T: AsRef<LogicalType>>(row: &[Datum], types: &[T]) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(row.len() * 9);
    encode_into(&mut out, row, types)?;
    Ok(out)
}

/// Appends the bytes of a row; see [`encode`].
///
/// # Errors
/// As [`encode`]; `out` may then hold a part of the row.
pub fn encode_into<T: AsRef<LogicalType>>(
    out: &mut Vec<u8>,
    row: &[Datum],
    types: &[T],
) -> Result<()> {
    check_arity(FORMAT, row.len(), types.len())?;
    put_null_bits(out, row);
    for (value, ty) in row.iter().zip(types) {
        if !value.is_null() {
            write(out, value, &ty.as_ref().kind)?;
        }
    }
    Ok(())
}

/// The values of a row.
///
/// # Errors
/// [`crate::Error::Corrupt`] for bytes that are no row of these types, down to the last byte.
pub fn decode<T: AsRef<LogicalType>>(bytes: &[u8], types: &[T]) -> Result<Vec<Datum>> {
    decode_within(bytes, types, &Budget::of_row(bytes.len()))
}

/// As [`decode`]; [`crate::Error::TooLarge`] if the values take more memory than the budget has.
pub(crate) fn decode_within<T: AsRef<LogicalType>>(
    bytes: &[u8],
    types: &[T],
    budget: &Budget,
) -> Result<Vec<Datum>> {
    let mut reader = Reader::new(bytes, FORMAT);
    let nulls = reader.take(types.len().div_ceil(8))?;
    budget.charge_values(types.len())?;
    let mut row = Vec::with_capacity(types.len());
    for (index, ty) in types.iter().enumerate() {
        row.push(if is_null(nulls, index) {
            Datum::Null
        } else {
            read(&mut reader, &ty.as_ref().kind, budget)?
        });
    }
    reader.finish()?;
    Ok(row)
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) -> Result<()> {
    put_var_u32(out, length_u32(bytes.len())?);
    out.extend_from_slice(bytes);
    Ok(())
}

/// Appends one value that is not null.
pub(super) fn write(out: &mut Vec<u8>, value: &Datum, kind: &TypeKind) -> Result<()> {
    match (value, kind) {
        (Datum::Boolean(value), TypeKind::Boolean) => out.push(u8::from(*value)),
        (Datum::TinyInt(value), TypeKind::TinyInt) => out.extend_from_slice(&value.to_le_bytes()),
        (Datum::SmallInt(value), TypeKind::SmallInt) => out.extend_from_slice(&value.to_le_bytes()),
        (Datum::Int(value), TypeKind::Int)
        | (Datum::Date(value), TypeKind::Date)
        | (Datum::Time(value), TypeKind::Time { .. }) => put_var_u32(out, value.cast_unsigned()),
        (Datum::BigInt(value), TypeKind::BigInt) => put_var_u64(out, value.cast_unsigned()),
        (Datum::Float(value), TypeKind::Float) => out.extend_from_slice(&value.to_le_bytes()),
        (Datum::Double(value), TypeKind::Double) => out.extend_from_slice(&value.to_le_bytes()),
        (Datum::String(value), TypeKind::Char { .. } | TypeKind::String) => {
            put_bytes(out, value.as_bytes())?;
        }
        (Datum::Bytes(value), TypeKind::Binary { .. } | TypeKind::Bytes) => put_bytes(out, value)?,
        (Datum::Decimal(value), TypeKind::Decimal { precision, .. }) => {
            check_decimal(*value, *precision)?;
            match i64::try_from(*value) {
                Ok(unscaled) if is_compact_decimal(*precision) => {
                    put_var_u64(out, unscaled.cast_unsigned());
                }
                _ => {
                    let (bytes, skip) = decimal_bytes(*value);
                    put_bytes(out, bytes.get(skip..).unwrap_or_default())?;
                }
            }
        }
        (
            Datum::Timestamp { millis, nanos },
            TypeKind::Timestamp { precision } | TypeKind::TimestampLtz { precision },
        ) => {
            put_var_u64(out, millis.cast_unsigned());
            if !is_compact_timestamp(*precision) {
                put_var_u32(out, nanos.cast_unsigned());
            }
        }
        (Datum::Array(items), TypeKind::Array(element)) => {
            put_bytes(
                out,
                &slots::encode_array(items, element, Nested::Compacted)?,
            )?;
        }
        (Datum::Map(entries), TypeKind::Map(key, value)) => {
            put_bytes(
                out,
                &slots::encode_map(entries, key, value, Nested::Compacted)?,
            )?;
        }
        (Datum::Row(items), TypeKind::Row(fields)) => put_bytes(out, &encode(items, fields)?)?,
        _ => return Err(value.mismatch(kind)),
    }
    Ok(())
}

/// Reads one value that is not null.
fn read(reader: &mut Reader<'_>, kind: &TypeKind, budget: &Budget) -> Result<Datum> {
    Ok(match kind {
        TypeKind::Boolean => Datum::Boolean(reader.byte()? != 0),
        TypeKind::TinyInt => Datum::TinyInt(i8::from_le_bytes(reader.array()?)),
        TypeKind::SmallInt => Datum::SmallInt(i16::from_le_bytes(reader.array()?)),
        TypeKind::Int => Datum::Int(reader.var_u32()?.cast_signed()),
        TypeKind::Date => Datum::Date(reader.var_u32()?.cast_signed()),
        TypeKind::Time { .. } => Datum::Time(reader.var_u32()?.cast_signed()),
        TypeKind::BigInt => Datum::BigInt(reader.var_u64()?.cast_signed()),
        TypeKind::Float => Datum::Float(f32::from_le_bytes(reader.array()?)),
        TypeKind::Double => Datum::Double(f64::from_le_bytes(reader.array()?)),
        TypeKind::Char { .. } | TypeKind::String => text(reader.var_bytes()?, FORMAT, budget)?,
        TypeKind::Binary { .. } | TypeKind::Bytes => owned_bytes(reader.var_bytes()?, budget)?,
        TypeKind::Decimal { precision, .. } if is_compact_decimal(*precision) => {
            Datum::Decimal(i128::from(reader.var_u64()?.cast_signed()))
        }
        TypeKind::Decimal { .. } => {
            Datum::Decimal(decimal_from_bytes(reader.var_bytes()?, FORMAT)?)
        }
        TypeKind::Timestamp { precision } | TypeKind::TimestampLtz { precision } => {
            let millis = reader.var_u64()?.cast_signed();
            let nanos = if is_compact_timestamp(*precision) {
                0
            } else {
                reader.var_u32()?.cast_signed()
            };
            timestamp(millis, nanos, FORMAT)?
        }
        TypeKind::Array(element) => Datum::Array(slots::decode_array(
            reader.var_bytes()?,
            element,
            Nested::Compacted,
            budget,
        )?),
        TypeKind::Map(key, value) => Datum::Map(slots::decode_map(
            reader.var_bytes()?,
            key,
            value,
            Nested::Compacted,
            budget,
        )?),
        TypeKind::Row(fields) => Datum::Row(decode_within(reader.var_bytes()?, fields, budget)?),
    })
}
