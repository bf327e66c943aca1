//! Binary rows to values. Any bytes give values or an error.

use super::{HEADER_BITS, bitset_len, fixed_len};
use crate::datum::{Datum, NANOS_PER_MILLI, Timestamp};
use crate::error::{Error, Result};
use crate::types::{DataType, MAX_DEPTH, TypeKind};

fn malformed(reason: impl Into<String>) -> Error {
    Error::malformed("binary row", reason)
}

/// Decodes the fields of one row.
///
/// What lies apart in a row may be laid over each other in bytes that only look like one, and then
/// few bytes stand for many values. So the parts of variable length may be no longer in all than
/// they are in a row of these types: on each level of nesting, no longer than the row.
pub(super) fn row<'a>(
    bytes: &[u8],
    types: impl ExactSizeIterator<Item = &'a DataType>,
) -> Result<Vec<Datum>> {
    let types: Vec<&DataType> = types.collect();
    let levels = types.iter().map(|data_type| levels_of(&data_type.kind));
    let bytes_left = bytes.len().saturating_mul(levels.max().unwrap_or(0));
    Decoder { bytes_left }.row(bytes, types.into_iter(), 0)
}

/// How many parts of variable length lie around a value at most, itself included.
fn levels_of(kind: &TypeKind) -> usize {
    1 + match kind {
        TypeKind::Array(element) | TypeKind::Multiset(element) => levels_of(&element.kind),
        TypeKind::Map(key, value) => levels_of(&key.kind).max(levels_of(&value.kind)),
        TypeKind::Row(fields) => {
            let fields = fields.iter().map(|field| levels_of(&field.data_type.kind));
            fields.max().unwrap_or(0)
        }
        _ => 0,
    }
}

/// The decoding of one row.
struct Decoder {
    /// What parts of variable length may still take.
    bytes_left: usize,
}

impl Decoder {
    fn row<'a>(
        &mut self,
        bytes: &[u8],
        types: impl ExactSizeIterator<Item = &'a DataType>,
        depth: usize,
    ) -> Result<Vec<Datum>> {
        let arity = types.len();
        if bytes.len() < fixed_len(arity) {
            return Err(malformed(format!(
                "{} bytes are too few for {arity} fields",
                bytes.len()
            )));
        }
        let mut values = Vec::with_capacity(arity);
        for (index, data_type) in types.enumerate() {
            if bit(bytes, index + HEADER_BITS) {
                values.push(Datum::Null);
                continue;
            }
            let slot = read::<8>(bytes, bitset_len(arity) + index * 8)?;
            values.push(self.value(bytes, slot, &data_type.kind, depth)?);
        }
        Ok(values)
    }

    /// Decodes what a slot holds or points to within `bytes`.
    fn value(
        &mut self,
        bytes: &[u8],
        slot: [u8; 8],
        kind: &TypeKind,
        depth: usize,
    ) -> Result<Datum> {
        let word = u64::from_le_bytes(slot);
        let [b0, b1, b2, b3, ..] = slot;
        Ok(match kind {
            TypeKind::Boolean => Datum::Boolean(b0 != 0),
            TypeKind::TinyInt => Datum::TinyInt(i8::from_le_bytes([b0])),
            TypeKind::SmallInt => Datum::SmallInt(i16::from_le_bytes([b0, b1])),
            TypeKind::Int => Datum::Int(i32::from_le_bytes([b0, b1, b2, b3])),
            TypeKind::Date => Datum::Date(i32::from_le_bytes([b0, b1, b2, b3])),
            TypeKind::Time { .. } => Datum::Time(i32::from_le_bytes([b0, b1, b2, b3])),
            TypeKind::BigInt => Datum::BigInt(word.cast_signed()),
            TypeKind::Float => Datum::Float(f32::from_le_bytes([b0, b1, b2, b3])),
            TypeKind::Double => Datum::Double(f64::from_bits(word)),
            TypeKind::Decimal {
                precision: 19.., ..
            } => Datum::Decimal(large_decimal(self.span(bytes, word)?)?),
            TypeKind::Decimal { .. } => Datum::Decimal(i128::from(word.cast_signed())),
            TypeKind::Timestamp { precision: 4.. } | TypeKind::TimestampLtz { precision: 4.. } => {
                let nanos = i32::from_le_bytes([b0, b1, b2, b3]);
                if !(0..NANOS_PER_MILLI).contains(&i64::from(nanos)) {
                    return Err(malformed(format!("{nanos} nanoseconds of a millisecond")));
                }
                let millis = i64::from_le_bytes(read::<8>(bytes, offset_of(word))?);
                Datum::Timestamp(Timestamp {
                    millis,
                    nanos_of_milli: nanos,
                })
            }
            TypeKind::Timestamp { .. } | TypeKind::TimestampLtz { .. } => {
                Datum::Timestamp(Timestamp::from_millis(word.cast_signed()))
            }
            TypeKind::Char { .. } | TypeKind::VarChar { .. } => {
                let text = String::from_utf8(self.text_bytes(bytes, slot)?);
                Datum::String(text.map_err(|_| malformed("text is not UTF-8"))?)
            }
            TypeKind::Binary { .. } | TypeKind::VarBinary { .. } => {
                Datum::Bytes(self.text_bytes(bytes, slot)?)
            }
            nested => {
                let span = self.span(bytes, word)?;
                return self.nested_value(span, nested, depth + 1);
            }
        })
    }

    fn nested_value(&mut self, bytes: &[u8], kind: &TypeKind, depth: usize) -> Result<Datum> {
        if depth > MAX_DEPTH {
            return Err(malformed("nested too deep"));
        }
        match kind {
            TypeKind::Array(element) => Ok(Datum::Array(self.array(bytes, element, depth)?)),
            TypeKind::Map(key, value) => self.map(bytes, key, value, depth),
            TypeKind::Multiset(element) => {
                self.map(bytes, element, &TypeKind::Int.not_null(), depth)
            }
            TypeKind::Row(fields) => {
                let types = fields.iter().map(|field| &field.data_type);
                self.row(bytes, types, depth).map(Datum::Row)
            }
            _ => Err(malformed(format!("{kind} is not nested"))),
        }
    }

    fn map(
        &mut self,
        bytes: &[u8],
        key: &DataType,
        value: &DataType,
        depth: usize,
    ) -> Result<Datum> {
        let keys_len = i32::from_le_bytes(read::<4>(bytes, 0)?);
        let keys_len =
            usize::try_from(keys_len).map_err(|_| malformed("negative size of map keys"))?;
        let rest = bytes.get(4..).unwrap_or_default();
        let Some((keys, values)) = rest.split_at_checked(keys_len) else {
            return Err(malformed("map keys pass the end"));
        };
        let keys = self.array(keys, key, depth)?;
        let values = self.array(values, value, depth)?;
        if keys.len() != values.len() {
            return Err(malformed(format!(
                "{} map keys and {} values",
                keys.len(),
                values.len()
            )));
        }
        Ok(Datum::Map(keys.into_iter().zip(values).collect()))
    }

    fn array(&mut self, bytes: &[u8], element: &DataType, depth: usize) -> Result<Vec<Datum>> {
        let count = i32::from_le_bytes(read::<4>(bytes, 0)?);
        let count = usize::try_from(count).map_err(|_| malformed("negative array length"))?;
        let width = element_width(&element.kind);
        let header = array_header_len(count);
        if bytes.len() < header + count * width {
            return Err(malformed(format!(
                "{} bytes are too few for {count} elements",
                bytes.len()
            )));
        }
        let mut items = Vec::with_capacity(count);
        for index in 0..count {
            if bit(bytes, 32 + index) {
                items.push(Datum::Null);
                continue;
            }
            let at = header + index * width;
            let mut slot = [0u8; 8];
            for (to, from) in slot
                .iter_mut()
                .zip(bytes.get(at..at + width).unwrap_or_default())
            {
                *to = *from;
            }
            items.push(self.value(bytes, slot, &element.kind, depth)?);
        }
        Ok(items)
    }

    /// Text or bytes: up to 7 in the slot itself, longer ones elsewhere in `bytes`.
    fn text_bytes(&mut self, bytes: &[u8], slot: [u8; 8]) -> Result<Vec<u8>> {
        let [.., mark] = slot;
        if mark & 0x80 == 0 {
            return self
                .span(bytes, u64::from_le_bytes(slot))
                .map(<[u8]>::to_vec);
        }
        let length = usize::from(mark & 0x7f);
        match slot.get(..length) {
            Some(inline) if length < slot.len() => Ok(inline.to_vec()),
            _ => Err(malformed(format!("{length} bytes of text in a slot"))),
        }
    }

    /// The bytes that a slot of offset and length points to.
    fn span<'b>(&mut self, bytes: &'b [u8], word: u64) -> Result<&'b [u8]> {
        let offset = offset_of(word);
        let length = usize::try_from(word & 0xffff_ffff).unwrap_or(usize::MAX);
        let left = self.bytes_left.checked_sub(length);
        self.bytes_left = left.ok_or_else(|| malformed("its parts overlap"))?;
        let end = offset.checked_add(length);
        let span = end.and_then(|end| bytes.get(offset..end));
        span.ok_or_else(|| {
            malformed(format!(
                "{length} bytes at {offset} pass the end at {}",
                bytes.len()
            ))
        })
    }
}

/// Bytes of one element of an array.
pub(super) fn element_width(kind: &TypeKind) -> usize {
    match kind {
        TypeKind::Boolean | TypeKind::TinyInt => 1,
        TypeKind::SmallInt => 2,
        TypeKind::Int | TypeKind::Date | TypeKind::Time { .. } | TypeKind::Float => 4,
        _ => 8,
    }
}

/// Bytes of an array before its elements: their count and the null bits, in words of 4.
pub(super) fn array_header_len(count: usize) -> usize {
    4 + count.div_ceil(32) * 4
}

fn large_decimal(bytes: &[u8]) -> Result<i128> {
    if bytes.is_empty() || bytes.len() > 16 {
        return Err(malformed(format!("a decimal of {} bytes", bytes.len())));
    }
    let negative = bytes.first().is_some_and(|byte| byte & 0x80 != 0);
    let start = if negative { -1i128 } else { 0 };
    Ok(bytes
        .iter()
        .fold(start, |value, byte| (value << 8) | i128::from(*byte)))
}

fn offset_of(word: u64) -> usize {
    usize::try_from(word >> 32).unwrap_or(usize::MAX)
}

fn bit(bytes: &[u8], bit: usize) -> bool {
    bytes
        .get(bit / 8)
        .is_some_and(|byte| byte & (1 << (bit % 8)) != 0)
}

fn read<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N]> {
    let tail = bytes.get(at..).and_then(|tail| tail.first_chunk::<N>());
    tail.copied()
        .ok_or_else(|| malformed(format!("{N} bytes at {at} pass the end at {}", bytes.len())))
}
