//! The aligned row: null bits in words of 8 bytes behind a byte for the row kind, one slot of 8
//! bytes a field, a tail. Paimon's keys have this form, as have the bounds in a batch's statistics.
//!
//! Source: fluss `AlignedRowWriter`, `PaimonBinaryRowWriter`.

use super::slots::{self, Nested, Section, set_bit};
use super::wire::{Budget, is_null};
use super::{Datum, check_arity};
use crate::error::{Error, Result};
use crate::schema::LogicalType;

const FORMAT: &str = "binary row";
/// Null bits begin after the row kind.
const HEADER_BITS: usize = 8;

/// Bytes of row kind and null bits.
pub(super) fn null_bytes(arity: usize) -> usize {
    (arity + 63 + HEADER_BITS) / 64 * 8
}

/// The bytes of a row of kind `+I`. Nulls are taken whatever the column says.
///
/// # Errors
/// As [`super::compacted::encode`].
pub fn encode<T: AsRef<LogicalType>>(row: &[Datum], types: &[T]) -> Result<Vec<u8>> {
    check_arity(FORMAT, row.len(), types.len())?;
    let slots_at = null_bytes(row.len());
    let mut out = vec![0; slots_at + 8 * row.len()];
    let mut section = Section {
        out: &mut out,
        start: 0,
        nested: Nested::Aligned,
    };
    for (index, (value, ty)) in row.iter().zip(types).enumerate() {
        if value.is_null() {
            set_bit(section.out, 0, index + HEADER_BITS);
        } else {
            section.write(slots_at + 8 * index, value, &ty.as_ref().kind)?;
        }
    }
    Ok(out)
}

/// The values of a row, whatever its kind.
///
/// # Errors
/// [`Error::Corrupt`] for bytes that are no row of these types.
pub fn decode<T: AsRef<LogicalType>>(bytes: &[u8], types: &[T]) -> Result<Vec<Datum>> {
    decode_within(bytes, types, &Budget::of_row(bytes.len()))
}

/// As [`decode`]; [`Error::TooLarge`] if the values take more memory than the budget has.
pub(super) fn decode_within<T: AsRef<LogicalType>>(
    bytes: &[u8],
    types: &[T],
    budget: &Budget,
) -> Result<Vec<Datum>> {
    let slots_at = null_bytes(types.len());
    if bytes.len() < slots_at + 8 * types.len() {
        return Err(Error::corrupt(FORMAT, "bytes are cut off"));
    }
    budget.charge_values(types.len())?;
    let value = |(index, ty): (usize, &T)| {
        if is_null(bytes, index + HEADER_BITS) {
            return Ok(Datum::Null);
        }
        slots::read(
            bytes,
            slots_at + 8 * index,
            &ty.as_ref().kind,
            Nested::Aligned,
            budget,
        )
    };
    types.iter().enumerate().map(value).collect()
}
