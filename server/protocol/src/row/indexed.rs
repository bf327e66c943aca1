//! The INDEXED row format: null bits, the lengths of values of variable size, then values of plain
//! width. CHAR(n) and BINARY(n) take exactly n bytes; zeros at the end of a CHAR are not part of
//! it.
//!
//! Source: fluss `IndexedRowWriter`, `IndexedRow`.

use super::slots::{self, Nested};
use super::wire::{
    Budget, Reader, check_decimal, decimal_bytes, decimal_from_bytes, is_null, length_u32,
    owned_bytes, put_null_bits, text, timestamp,
};
use super::{Datum, check_arity, is_compact_decimal, is_compact_timestamp};
use crate::error::{Error, Result};
use crate::record::put_at;
use crate::schema::{LogicalType, TypeKind};

const FORMAT: &str = "indexed row";

/// Whether values of this type take a slot in the list of lengths.
fn is_variable(kind: &TypeKind) -> bool {
    match kind {
        TypeKind::Decimal { precision, .. } => !is_compact_decimal(*precision),
        TypeKind::String
        | TypeKind::Bytes
        | TypeKind::Array(_)
        | TypeKind::Map(..)
        | TypeKind::Row(_) => true,
        _ => false,
    }
}

fn variable_columns<T: AsRef<LogicalType>>(types: &[T]) -> usize {
    types
        .iter()
        .filter(|ty| is_variable(&ty.as_ref().kind))
        .count()
}

/// The bytes of a row. Nulls are taken whatever the column says.
///
/// # Errors
/// As [`super::compacted::encode`]; also [`Error::Invalid`] for a CHAR(n) or BINARY(n) value of
/// more than n bytes.
pub fn encode<T: AsRef<LogicalType>>(row: &[Datum], types: &[T]) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(row.len() * 13);
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
    // Lengths stand packed: a null value takes no slot, so unused slots are the last ones.
    let mut next_length = out.len();
    out.resize(next_length + 4 * variable_columns(types), 0);
    for (value, ty) in row.iter().zip(types) {
        if value.is_null() {
            continue;
        }
        let kind = &ty.as_ref().kind;
        let start = out.len();
        write(out, value, kind)?;
        if is_variable(kind) {
            let length = length_u32(out.len() - start)?;
            put_at(out, next_length, &length.to_le_bytes());
            next_length += 4;
        }
    }
    Ok(())
}

/// The values of a row.
///
/// # Errors
/// [`Error::Corrupt`] for bytes that are no row of these types, down to the last byte.
pub fn decode<T: AsRef<LogicalType>>(bytes: &[u8], types: &[T]) -> Result<Vec<Datum>> {
    decode_within(bytes, types, &Budget::of_row(bytes.len()))
}

/// As [`decode`]; [`Error::TooLarge`] if the values take more memory than the budget has.
pub(crate) fn decode_within<T: AsRef<LogicalType>>(
    bytes: &[u8],
    types: &[T],
    budget: &Budget,
) -> Result<Vec<Datum>> {
    let mut reader = Reader::new(bytes, FORMAT);
    let nulls = reader.take(types.len().div_ceil(8))?;
    budget.charge_values(types.len())?;
    let mut lengths = Reader::new(reader.take(4 * variable_columns(types))?, FORMAT);
    let mut row = Vec::with_capacity(types.len());
    for (index, ty) in types.iter().enumerate() {
        let kind = &ty.as_ref().kind;
        let value = if is_null(nulls, index) {
            Datum::Null
        } else if is_variable(kind) {
            read_variable(reader.take(lengths.length()?)?, kind, budget)?
        } else {
            read_fixed(&mut reader, kind, budget)?
        };
        row.push(value);
    }
    reader.finish()?;
    Ok(row)
}

fn write(out: &mut Vec<u8>, value: &Datum, kind: &TypeKind) -> Result<()> {
    match (value, kind) {
        (Datum::Boolean(value), TypeKind::Boolean) => out.push(u8::from(*value)),
        (Datum::TinyInt(value), TypeKind::TinyInt) => out.extend_from_slice(&value.to_le_bytes()),
        (Datum::SmallInt(value), TypeKind::SmallInt) => out.extend_from_slice(&value.to_le_bytes()),
        (Datum::Int(value), TypeKind::Int)
        | (Datum::Date(value), TypeKind::Date)
        | (Datum::Time(value), TypeKind::Time { .. }) => {
            out.extend_from_slice(&value.to_le_bytes());
        }
        (Datum::BigInt(value), TypeKind::BigInt) => out.extend_from_slice(&value.to_le_bytes()),
        (Datum::Float(value), TypeKind::Float) => out.extend_from_slice(&value.to_le_bytes()),
        (Datum::Double(value), TypeKind::Double) => out.extend_from_slice(&value.to_le_bytes()),
        (Datum::String(value), TypeKind::String) => out.extend_from_slice(value.as_bytes()),
        (Datum::Bytes(value), TypeKind::Bytes) => out.extend_from_slice(value),
        (Datum::String(value), TypeKind::Char { length }) => {
            put_padded(out, value.as_bytes(), *length)?;
        }
        (Datum::Bytes(value), TypeKind::Binary { length }) => put_padded(out, value, *length)?,
        (Datum::Decimal(value), TypeKind::Decimal { precision, .. }) => {
            check_decimal(*value, *precision)?;
            match i64::try_from(*value) {
                Ok(unscaled) if is_compact_decimal(*precision) => {
                    out.extend_from_slice(&unscaled.to_le_bytes());
                }
                _ => {
                    let (bytes, skip) = decimal_bytes(*value);
                    out.extend_from_slice(bytes.get(skip..).unwrap_or_default());
                }
            }
        }
        (
            Datum::Timestamp { millis, nanos },
            TypeKind::Timestamp { precision } | TypeKind::TimestampLtz { precision },
        ) => {
            out.extend_from_slice(&millis.to_le_bytes());
            if !is_compact_timestamp(*precision) {
                out.extend_from_slice(&nanos.to_le_bytes());
            }
        }
        (Datum::Array(items), TypeKind::Array(element)) => {
            out.extend_from_slice(&slots::encode_array(items, element, Nested::Indexed)?);
        }
        (Datum::Map(entries), TypeKind::Map(key, value)) => {
            out.extend_from_slice(&slots::encode_map(entries, key, value, Nested::Indexed)?);
        }
        (Datum::Row(items), TypeKind::Row(fields)) => encode_into(out, items, fields)?,
        _ => return Err(value.mismatch(kind)),
    }
    Ok(())
}

/// Bytes of a fixed length, zeros behind shorter ones.
fn put_padded(out: &mut Vec<u8>, bytes: &[u8], length: i32) -> Result<()> {
    let width = usize::try_from(length).unwrap_or(0);
    if bytes.len() > width {
        return Err(Error::invalid(
            FORMAT,
            bytes.len().to_string(),
            "value has more bytes than its CHAR or BINARY type",
        ));
    }
    let end = out.len() + width;
    out.extend_from_slice(bytes);
    out.resize(end, 0);
    Ok(())
}

fn read_variable(bytes: &[u8], kind: &TypeKind, budget: &Budget) -> Result<Datum> {
    Ok(match kind {
        TypeKind::String => text(bytes, FORMAT, budget)?,
        TypeKind::Decimal { .. } => Datum::Decimal(decimal_from_bytes(bytes, FORMAT)?),
        TypeKind::Array(element) => Datum::Array(slots::decode_array(
            bytes,
            element,
            Nested::Indexed,
            budget,
        )?),
        TypeKind::Map(key, value) => Datum::Map(slots::decode_map(
            bytes,
            key,
            value,
            Nested::Indexed,
            budget,
        )?),
        TypeKind::Row(fields) => Datum::Row(decode_within(bytes, fields, budget)?),
        _ => owned_bytes(bytes, budget)?,
    })
}

fn read_fixed(reader: &mut Reader<'_>, kind: &TypeKind, budget: &Budget) -> Result<Datum> {
    Ok(match kind {
        TypeKind::Boolean => Datum::Boolean(reader.byte()? != 0),
        TypeKind::TinyInt => Datum::TinyInt(i8::from_le_bytes(reader.array()?)),
        TypeKind::SmallInt => Datum::SmallInt(i16::from_le_bytes(reader.array()?)),
        TypeKind::Int => Datum::Int(reader.i32()?),
        TypeKind::Date => Datum::Date(reader.i32()?),
        TypeKind::Time { .. } => Datum::Time(reader.i32()?),
        TypeKind::BigInt => Datum::BigInt(reader.i64()?),
        TypeKind::Float => Datum::Float(f32::from_le_bytes(reader.array()?)),
        TypeKind::Double => Datum::Double(f64::from_le_bytes(reader.array()?)),
        TypeKind::Char { length } => {
            let padded = reader.take(usize::try_from(*length).unwrap_or(0))?;
            let end = padded
                .iter()
                .rposition(|byte| *byte != 0)
                .map_or(0, |last| last + 1);
            text(padded.get(..end).unwrap_or_default(), FORMAT, budget)?
        }
        TypeKind::Binary { length } => {
            owned_bytes(reader.take(usize::try_from(*length).unwrap_or(0))?, budget)?
        }
        TypeKind::Decimal { .. } => Datum::Decimal(i128::from(reader.i64()?)),
        TypeKind::Timestamp { precision } | TypeKind::TimestampLtz { precision } => {
            let millis = reader.i64()?;
            let nanos = if is_compact_timestamp(*precision) {
                0
            } else {
                reader.i32()?
            };
            timestamp(millis, nanos, FORMAT)?
        }
        other => {
            return Err(Error::UnsupportedType {
                operation: "fixed-width read",
                type_name: other.to_string(),
            });
        }
    })
}
