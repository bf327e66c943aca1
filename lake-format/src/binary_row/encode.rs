//! Values to binary rows.

use super::{HEADER_BITS, bitset_len, fixed_len};
use crate::datum::Datum;
use crate::error::{Error, Result};
use crate::types::{DataType, TypeKind};

/// Longest text or bytes kept in the slot itself.
const MAX_INLINE: usize = 7;

/// Bytes reserved for a decimal of more than 18 digits.
const LARGE_DECIMAL_LEN: usize = 16;

/// Encodes the fields of one row.
pub(super) fn row<'a>(
    values: &[Datum],
    types: impl ExactSizeIterator<Item = &'a DataType>,
) -> Result<Vec<u8>> {
    let arity = values.len();
    if types.len() != arity {
        return Err(Error::bad_value(
            "binary row",
            format!("{arity} values for {} fields", types.len()),
        ));
    }
    let mut out = vec![0u8; fixed_len(arity)];
    for (index, (value, data_type)) in values.iter().zip(types).enumerate() {
        let slot = bitset_len(arity) + index * 8;
        if value.is_null() {
            set_bit(&mut out, index + HEADER_BITS);
        }
        let word = slot_of(&mut out, value, &data_type.kind)?;
        store(&mut out, slot, &word.to_le_bytes());
    }
    Ok(out)
}

/// The 8 bytes of a field's slot; what does not fit there is appended to `out`.
fn slot_of(out: &mut Vec<u8>, value: &Datum, kind: &TypeKind) -> Result<u64> {
    match (value, kind) {
        (
            Datum::Null,
            TypeKind::Decimal {
                precision: 19.., ..
            },
        ) => {
            // A later update in place must find room: the space is reserved for null as well.
            let offset = append(out, &[0; LARGE_DECIMAL_LEN])?;
            Ok(offset << 32)
        }
        (
            Datum::Null,
            TypeKind::Timestamp { precision: 4.. } | TypeKind::TimestampLtz { precision: 4.. },
        ) => {
            let offset = append(out, &[0; 8])?;
            Ok(offset << 32)
        }
        (Datum::Null, _) => Ok(0),
        (
            Datum::Decimal(unscaled),
            TypeKind::Decimal {
                precision: 19.., ..
            },
        ) => {
            let minimal = minimal_be_bytes(*unscaled);
            let mut padded = [0; LARGE_DECIMAL_LEN];
            store(&mut padded, 0, &minimal);
            let offset = append(out, &padded)?;
            Ok((offset << 32) | minimal.len() as u64)
        }
        (
            Datum::Timestamp(time),
            TypeKind::Timestamp { precision: 4.. } | TypeKind::TimestampLtz { precision: 4.. },
        ) => {
            let offset = append(out, &time.millis.to_le_bytes())?;
            Ok((offset << 32) | u64::from(time.nanos_of_milli.cast_unsigned()))
        }
        (Datum::String(text), TypeKind::Char { .. } | TypeKind::VarChar { .. }) => {
            text_slot(out, text.as_bytes())
        }
        (Datum::Bytes(bytes), TypeKind::Binary { .. } | TypeKind::VarBinary { .. }) => {
            text_slot(out, bytes)
        }
        (value, kind) if kind.is_nested() => {
            let bytes = nested(value, kind)?;
            let offset = append(out, &bytes)?;
            Ok((offset << 32) | bytes.len() as u64)
        }
        (value, kind) => {
            let mut word = [0; 8];
            store(&mut word, 0, &fixed(value, kind)?);
            Ok(u64::from_le_bytes(word))
        }
    }
}

/// The little-endian bytes of a value of fixed width, in its natural width.
fn fixed(value: &Datum, kind: &TypeKind) -> Result<Vec<u8>> {
    Ok(match (value, kind) {
        (Datum::Boolean(v), TypeKind::Boolean) => vec![u8::from(*v)],
        (Datum::TinyInt(v), TypeKind::TinyInt) => v.to_le_bytes().to_vec(),
        (Datum::SmallInt(v), TypeKind::SmallInt) => v.to_le_bytes().to_vec(),
        (Datum::Int(v), TypeKind::Int)
        | (Datum::Date(v), TypeKind::Date)
        | (Datum::Time(v), TypeKind::Time { .. }) => v.to_le_bytes().to_vec(),
        (Datum::BigInt(v), TypeKind::BigInt) => v.to_le_bytes().to_vec(),
        (Datum::Float(v), TypeKind::Float) => v.to_bits().to_le_bytes().to_vec(),
        (Datum::Double(v), TypeKind::Double) => v.to_bits().to_le_bytes().to_vec(),
        (Datum::Decimal(v), TypeKind::Decimal { .. }) => {
            let small = i64::try_from(*v);
            let small =
                small.map_err(|_| Error::bad_value("binary row", format!("{v} is no {kind}")))?;
            small.to_le_bytes().to_vec()
        }
        (Datum::Timestamp(v), TypeKind::Timestamp { .. } | TypeKind::TimestampLtz { .. }) => {
            if v.nanos_of_milli != 0 {
                return Err(Error::bad_value(
                    "binary row",
                    format!("{v:?} has more digits than {kind}"),
                ));
            }
            v.millis.to_le_bytes().to_vec()
        }
        _ => {
            return Err(Error::bad_value(
                "binary row",
                format!("{value:?} is no {kind}"),
            ));
        }
    })
}

fn text_slot(out: &mut Vec<u8>, bytes: &[u8]) -> Result<u64> {
    if bytes.len() <= MAX_INLINE {
        let mut word = [0; 8];
        store(&mut word, 0, bytes);
        let mark = 0x80 | bytes.len() as u64;
        return Ok(u64::from_le_bytes(word) | (mark << 56));
    }
    let offset = append(out, bytes)?;
    Ok((offset << 32) | bytes.len() as u64)
}

/// Encodes a nested value by itself.
fn nested(value: &Datum, kind: &TypeKind) -> Result<Vec<u8>> {
    match (value, kind) {
        (Datum::Array(items), TypeKind::Array(element)) => {
            array(items.iter(), items.len(), element)
        }
        (Datum::Map(entries), TypeKind::Map(key, value)) => map(entries, key, value),
        (Datum::Map(entries), TypeKind::Multiset(element)) => {
            map(entries, element, &TypeKind::Int.not_null())
        }
        (Datum::Row(values), TypeKind::Row(fields)) => {
            row(values, fields.iter().map(|field| &field.data_type))
        }
        _ => Err(Error::bad_value(
            "binary row",
            format!("{value:?} is no {kind}"),
        )),
    }
}

fn map(entries: &[(Datum, Datum)], key: &DataType, value: &DataType) -> Result<Vec<u8>> {
    let keys = array(entries.iter().map(|(key, _)| key), entries.len(), key)?;
    let values = array(entries.iter().map(|(_, value)| value), entries.len(), value)?;
    let mut out = length_u32(keys.len())?.to_le_bytes().to_vec();
    out.extend_from_slice(&keys);
    out.extend_from_slice(&values);
    Ok(out)
}

fn array<'a>(
    items: impl Iterator<Item = &'a Datum>,
    count: usize,
    element: &DataType,
) -> Result<Vec<u8>> {
    let width = super::decode::element_width(&element.kind);
    let header = super::decode::array_header_len(count);
    let mut out = vec![0u8; (header + count * width).next_multiple_of(8)];
    store(&mut out, 0, &length_u32(count)?.to_le_bytes());
    for (index, item) in items.enumerate() {
        if item.is_null() {
            set_bit(&mut out, 32 + index);
            continue;
        }
        let word = slot_of(&mut out, item, &element.kind)?.to_le_bytes();
        let slot = header + index * width;
        store(&mut out, slot, word.get(..width).unwrap_or(&word));
    }
    Ok(out)
}

/// Appends bytes padded to 8; their offset.
fn append(out: &mut Vec<u8>, bytes: &[u8]) -> Result<u64> {
    let offset = length_u32(out.len())?;
    length_u32(out.len() + bytes.len())?;
    out.extend_from_slice(bytes);
    out.resize(out.len().next_multiple_of(8), 0);
    Ok(u64::from(offset))
}

fn length_u32(length: usize) -> Result<u32> {
    let fits = i32::try_from(length)
        .ok()
        .and_then(|length| u32::try_from(length).ok());
    fits.ok_or_else(|| Error::bad_value("binary row", format!("{length} bytes pass 2 GiB")))
}

/// Big-endian two's complement without redundant leading bytes.
fn minimal_be_bytes(value: i128) -> Vec<u8> {
    let bytes = value.to_be_bytes();
    let sign_bits = if value < 0 {
        value.leading_ones()
    } else {
        value.leading_zeros()
    };
    let redundant = (sign_bits.saturating_sub(1) / 8) as usize;
    bytes
        .get(redundant.min(bytes.len() - 1)..)
        .unwrap_or(&bytes)
        .to_vec()
}

fn set_bit(out: &mut [u8], bit: usize) {
    if let Some(byte) = out.get_mut(bit / 8) {
        *byte |= 1 << (bit % 8);
    }
}

/// Copies `bytes` into `out` at `at`, where the caller made room.
fn store(out: &mut [u8], at: usize, bytes: &[u8]) {
    let place = out.get_mut(at..at + bytes.len());
    assert!(place.is_some(), "no room for {} bytes at {at}", bytes.len());
    if let Some(place) = place {
        place.copy_from_slice(bytes);
    }
}
