//! Values in slots of fixed width with a tail for what is longer: arrays, maps, and the rows of
//! [`super::binary`].
//!
//! Source: fluss `AbstractBinaryWriter`, `BinaryArrayWriter`, `BinaryArray`, `BinaryMap`.

use super::wire::{
    Budget, Reader, check_decimal, decimal_bytes, decimal_from_bytes, is_null, length_u32,
    owned_bytes, text, timestamp,
};
use super::{Datum, binary, compacted, indexed, is_compact_decimal, is_compact_timestamp};
use crate::error::{Error, Result};
use crate::record::{bytes_at, put_at};
use crate::schema::{LogicalType, TypeKind};

const FORMAT: &str = "binary array";
/// The longest text or bytes that stand in the slot itself.
const MAX_INLINE: usize = 7;

/// The format of rows inside arrays and maps: that of the row around them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nested {
    Compacted,
    Indexed,
    Aligned,
}

impl Nested {
    fn encode(self, row: &[Datum], fields: &[crate::schema::RowField]) -> Result<Vec<u8>> {
        match self {
            Self::Compacted => compacted::encode(row, fields),
            Self::Indexed => indexed::encode(row, fields),
            Self::Aligned => binary::encode(row, fields),
        }
    }

    fn decode(
        self,
        bytes: &[u8],
        fields: &[crate::schema::RowField],
        budget: &Budget,
    ) -> Result<Vec<Datum>> {
        match self {
            Self::Compacted => compacted::decode_within(bytes, fields, budget),
            Self::Indexed => indexed::decode_within(bytes, fields, budget),
            Self::Aligned => binary::decode_within(bytes, fields, budget),
        }
    }
}

/// A row or array that grows at its end: where it starts in `out`, since offsets in slots count
/// from there.
pub(super) struct Section<'a> {
    pub(super) out: &'a mut Vec<u8>,
    pub(super) start: usize,
    pub(super) nested: Nested,
}

impl Section<'_> {
    /// Writes a value that is not null into the slot at `at` (from the start of `out`), which is
    /// zero.
    pub(super) fn write(&mut self, at: usize, value: &Datum, kind: &TypeKind) -> Result<()> {
        match (value, kind) {
            (Datum::Boolean(value), TypeKind::Boolean) => put_at(self.out, at, &[u8::from(*value)]),
            (Datum::TinyInt(value), TypeKind::TinyInt) => {
                put_at(self.out, at, &value.to_le_bytes());
            }
            (Datum::SmallInt(value), TypeKind::SmallInt) => {
                put_at(self.out, at, &value.to_le_bytes());
            }
            (Datum::Int(value), TypeKind::Int)
            | (Datum::Date(value), TypeKind::Date)
            | (Datum::Time(value), TypeKind::Time { .. }) => {
                put_at(self.out, at, &value.to_le_bytes());
            }
            (Datum::BigInt(value), TypeKind::BigInt) => put_at(self.out, at, &value.to_le_bytes()),
            (Datum::Float(value), TypeKind::Float) => put_at(self.out, at, &value.to_le_bytes()),
            (Datum::Double(value), TypeKind::Double) => put_at(self.out, at, &value.to_le_bytes()),
            (Datum::String(value), TypeKind::Char { .. } | TypeKind::String) => {
                self.text(at, value.as_bytes())?;
            }
            (Datum::Bytes(value), TypeKind::Binary { .. } | TypeKind::Bytes) => {
                self.text(at, value)?;
            }
            (Datum::Decimal(value), TypeKind::Decimal { precision, .. }) => {
                self.decimal(at, *value, *precision)?;
            }
            (
                Datum::Timestamp { millis, nanos },
                TypeKind::Timestamp { precision } | TypeKind::TimestampLtz { precision },
            ) => {
                if is_compact_timestamp(*precision) {
                    put_at(self.out, at, &millis.to_le_bytes());
                } else {
                    let nanos = u32::try_from(*nanos).map_err(|_| value.mismatch(kind))?;
                    self.tail(at, &millis.to_le_bytes(), nanos)?;
                }
            }
            (Datum::Array(items), TypeKind::Array(element)) => {
                self.tail_of(at, &encode_array(items, element, self.nested)?)?;
            }
            (Datum::Map(entries), TypeKind::Map(key, value)) => {
                self.tail_of(at, &encode_map(entries, key, value, self.nested)?)?;
            }
            (Datum::Row(items), TypeKind::Row(fields)) => {
                self.tail_of(at, &self.nested.encode(items, fields)?)?;
            }
            _ => return Err(value.mismatch(kind)),
        }
        Ok(())
    }

    /// Text or bytes, in the slot if they are short.
    pub(super) fn text(&mut self, at: usize, bytes: &[u8]) -> Result<()> {
        if bytes.len() > MAX_INLINE {
            return self.tail_of(at, bytes);
        }
        put_at(self.out, at, bytes);
        // At most 7, so the length fits beside the mark.
        let [length, ..] = bytes.len().to_le_bytes();
        put_at(self.out, at + 7, &[0x80 | length]);
        Ok(())
    }

    pub(super) fn decimal(&mut self, at: usize, value: i128, precision: u8) -> Result<()> {
        check_decimal(value, precision)?;
        match i64::try_from(value) {
            Ok(unscaled) if is_compact_decimal(precision) => {
                put_at(self.out, at, &unscaled.to_le_bytes());
                Ok(())
            }
            _ => {
                let (bytes, skip) = decimal_bytes(value);
                let shortest = bytes.get(skip..).unwrap_or_default();
                let mut padded = [0; 16];
                put_at(&mut padded, 0, shortest);
                self.tail(at, &padded, length_u32(shortest.len())?)
            }
        }
    }

    fn tail_of(&mut self, at: usize, bytes: &[u8]) -> Result<()> {
        self.tail(at, bytes, length_u32(bytes.len())?)
    }

    /// Appends bytes, padded to 8, and writes where they are and `low` into the slot.
    pub(super) fn tail(&mut self, at: usize, bytes: &[u8], low: u32) -> Result<()> {
        let offset = length_u32(self.out.len() - self.start)?;
        self.out.extend_from_slice(bytes);
        let end = self.start + (self.out.len() - self.start).next_multiple_of(8);
        self.out.resize(end, 0);
        put_at(
            self.out,
            at,
            &(u64::from(offset) << 32 | u64::from(low)).to_le_bytes(),
        );
        Ok(())
    }
}

/// Reads a value that is not null from its slot at `at` in the row or array `section`.
pub(super) fn read(
    section: &[u8],
    at: usize,
    kind: &TypeKind,
    nested: Nested,
    budget: &Budget,
) -> Result<Datum> {
    let mut slot = Reader::new(section.get(at..).unwrap_or_default(), FORMAT);
    Ok(match kind {
        TypeKind::Boolean => Datum::Boolean(slot.byte()? != 0),
        TypeKind::TinyInt => Datum::TinyInt(i8::from_le_bytes(slot.array()?)),
        TypeKind::SmallInt => Datum::SmallInt(i16::from_le_bytes(slot.array()?)),
        TypeKind::Int => Datum::Int(slot.i32()?),
        TypeKind::Date => Datum::Date(slot.i32()?),
        TypeKind::Time { .. } => Datum::Time(slot.i32()?),
        TypeKind::BigInt => Datum::BigInt(slot.i64()?),
        TypeKind::Float => Datum::Float(f32::from_le_bytes(slot.array()?)),
        TypeKind::Double => Datum::Double(f64::from_le_bytes(slot.array()?)),
        TypeKind::Char { .. } | TypeKind::String => text(text_at(section, at)?, FORMAT, budget)?,
        TypeKind::Binary { .. } | TypeKind::Bytes => owned_bytes(text_at(section, at)?, budget)?,
        TypeKind::Decimal { precision, .. } if is_compact_decimal(*precision) => {
            Datum::Decimal(i128::from(slot.i64()?))
        }
        TypeKind::Decimal { .. } => Datum::Decimal(decimal_from_bytes(
            tail_at(section, slot.array()?)?,
            FORMAT,
        )?),
        TypeKind::Timestamp { precision } | TypeKind::TimestampLtz { precision } => {
            if is_compact_timestamp(*precision) {
                return timestamp(slot.i64()?, 0, FORMAT);
            }
            let (nanos, offset) = (slot.i32()?, slot.length()?);
            let millis = bytes_at(section, offset)
                .ok_or_else(|| Error::corrupt(FORMAT, "tail is cut off"))?;
            timestamp(i64::from_le_bytes(millis), nanos, FORMAT)?
        }
        TypeKind::Array(element) => Datum::Array(decode_array(
            tail_at(section, slot.array()?)?,
            element,
            nested,
            budget,
        )?),
        TypeKind::Map(key, value) => Datum::Map(decode_map(
            tail_at(section, slot.array()?)?,
            key,
            value,
            nested,
            budget,
        )?),
        TypeKind::Row(fields) => {
            Datum::Row(nested.decode(tail_at(section, slot.array()?)?, fields, budget)?)
        }
    })
}

/// Text or bytes whose slot stands at `at`: in the slot itself, marked in its last byte, or in the
/// tail.
fn text_at(section: &[u8], at: usize) -> Result<&[u8]> {
    let slot = section.get(at..).and_then(|rest| rest.first_chunk::<8>());
    let slot = slot.ok_or_else(|| Error::corrupt(FORMAT, "slot is cut off"))?;
    let [.., mark] = slot;
    if mark & 0x80 == 0 {
        return tail_at(section, *slot);
    }
    let inline = slot
        .get(..usize::from(mark & 0x7f))
        .filter(|inline| inline.len() <= MAX_INLINE);
    inline.ok_or_else(|| Error::corrupt(FORMAT, "text in a slot is longer than the slot"))
}

fn tail_at(section: &[u8], slot: [u8; 8]) -> Result<&[u8]> {
    let value = u64::from_le_bytes(slot);
    let cut = || Error::corrupt(FORMAT, "tail is cut off");
    let (offset, length) = (
        usize::try_from(value >> 32),
        usize::try_from(value & 0xffff_ffff),
    );
    let (Ok(offset), Ok(length)) = (offset, length) else {
        return Err(cut());
    };
    let end = offset.checked_add(length).ok_or_else(cut)?;
    section.get(offset..end).ok_or_else(cut)
}

/// The width of an element's slot.
fn width(kind: &TypeKind) -> usize {
    match kind {
        TypeKind::Boolean | TypeKind::TinyInt => 1,
        TypeKind::SmallInt => 2,
        TypeKind::Int | TypeKind::Float | TypeKind::Date | TypeKind::Time { .. } => 4,
        _ => 8,
    }
}

/// An array: count, null bits in words of 4 bytes, slots, tail.
pub(super) fn encode_array(
    items: &[Datum],
    element: &LogicalType,
    nested: Nested,
) -> Result<Vec<u8>> {
    let kind = &element.kind;
    let header = 4 + items.len().div_ceil(32) * 4;
    let mut out = vec![0; (header + width(kind) * items.len()).next_multiple_of(8)];
    put_at(&mut out, 0, &length_u32(items.len())?.to_le_bytes());
    let mut section = Section {
        out: &mut out,
        start: 0,
        nested,
    };
    for (index, item) in items.iter().enumerate() {
        if item.is_null() {
            set_bit(section.out, 4, index);
        } else {
            section.write(header + width(kind) * index, item, kind)?;
        }
    }
    Ok(out)
}

/// Sets bit `index` of the bits that begin at byte `at`.
pub(super) fn set_bit(bytes: &mut [u8], at: usize, index: usize) {
    if let Some(byte) = bytes.get_mut(at + index / 8) {
        *byte |= 1 << (index % 8);
    }
}

pub(super) fn decode_array(
    bytes: &[u8],
    element: &LogicalType,
    nested: Nested,
    budget: &Budget,
) -> Result<Vec<Datum>> {
    let mut reader = Reader::new(bytes, FORMAT);
    let count = reader.length()?;
    let nulls = reader.take(count.div_ceil(32) * 4)?;
    let header = 4 + nulls.len();
    let kind = &element.kind;
    // Checked before anything is allocated for the elements.
    let size = count
        .checked_mul(width(kind))
        .ok_or_else(|| reader.corrupt("count is too large"))?;
    reader.take(size)?;
    budget.charge_values(count)?;
    let item = |index: usize| {
        if is_null(nulls, index) {
            return Ok(Datum::Null);
        }
        read(bytes, header + width(kind) * index, kind, nested, budget)
    };
    (0..count).map(item).collect()
}

/// A map: size of the key array, key array, value array.
pub(super) fn encode_map(
    entries: &[(Datum, Datum)],
    key: &LogicalType,
    value: &LogicalType,
    nested: Nested,
) -> Result<Vec<u8>> {
    let (keys, values): (Vec<Datum>, Vec<Datum>) = entries.iter().cloned().unzip();
    let keys = encode_array(&keys, key, nested)?;
    let mut out = length_u32(keys.len())?.to_le_bytes().to_vec();
    out.extend_from_slice(&keys);
    out.extend_from_slice(&encode_array(&values, value, nested)?);
    Ok(out)
}

pub(super) fn decode_map(
    bytes: &[u8],
    key: &LogicalType,
    value: &LogicalType,
    nested: Nested,
    budget: &Budget,
) -> Result<Vec<(Datum, Datum)>> {
    let mut reader = Reader::new(bytes, "binary map");
    let length = reader.length()?;
    let keys = decode_array(reader.take(length)?, key, nested, budget)?;
    let values = decode_array(reader.clone().rest(), value, nested, budget)?;
    if keys.len() != values.len() {
        return Err(reader.corrupt("number of keys differs from values"));
    }
    Ok(keys.into_iter().zip(values).collect())
}
