//! The binary row: the encoding of partition values, keys, statistics and whatever is hashed into
//! buckets (paimon: `BinaryRow`, `BinaryRowWriter`, `BinaryArray`).
//!
//! A row is a null bitset, an 8-byte slot per field and a part of variable length, all little
//! endian. Manifests store it behind its field count as 4 big-endian bytes
//! ([`BinaryRow::to_serialized`]).

use crate::datum::Datum;
use crate::error::{Error, Result};
use crate::murmur::murmur_hash;
use crate::types::DataType;

mod decode;
mod encode;

/// Bits of the null bitset before the first field's.
const HEADER_BITS: usize = 8;

/// Most fields a row is read with.
const MAX_ARITY: usize = 1 << 16;

/// One encoded row.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BinaryRow {
    arity: usize,
    bytes: Vec<u8>,
}

impl BinaryRow {
    /// The row without fields: the partition of an unpartitioned table, the key of an append file.
    pub fn empty() -> Self {
        Self {
            arity: 0,
            bytes: vec![0; bitset_len(0)],
        }
    }

    /// Encodes `values` as fields of `types`; nulls are taken whether or not the types allow them.
    ///
    /// # Errors
    /// [`Error::BadValue`] if the counts differ, a value is not of its type, or the row would
    /// pass 2 GiB.
    pub fn encode<'a>(
        values: &[Datum],
        types: impl ExactSizeIterator<Item = &'a DataType>,
    ) -> Result<Self> {
        let arity = values.len();
        let bytes = encode::row(values, types)?;
        Ok(Self { arity, bytes })
    }

    /// Decodes all fields.
    ///
    /// # Errors
    /// [`Error::Malformed`] if `types` has another number of fields or the bytes are no such row;
    /// any bytes give a row or this error.
    pub fn decode<'a>(
        &self,
        types: impl ExactSizeIterator<Item = &'a DataType>,
    ) -> Result<Vec<Datum>> {
        if types.len() != self.arity {
            let reason = format!("{} fields where {} are expected", self.arity, types.len());
            return Err(Error::malformed("binary row", reason));
        }
        decode::row(&self.bytes, types)
    }

    /// The row itself, without the field count; a multiple of 8 bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The form in manifests: the field count as 4 big-endian bytes, then the row.
    pub fn to_serialized(&self) -> Vec<u8> {
        let arity = u32::try_from(self.arity).unwrap_or(u32::MAX);
        let mut serialized = Vec::with_capacity(4 + self.bytes.len());
        serialized.extend_from_slice(&arity.to_be_bytes());
        serialized.extend_from_slice(&self.bytes);
        serialized
    }

    /// Reads the form in manifests. The fields are looked at by [`BinaryRow::decode`] only.
    ///
    /// # Errors
    /// [`Error::Malformed`] if the bytes are too short for the stated field count.
    pub fn from_serialized(serialized: &[u8]) -> Result<Self> {
        let Some((arity, bytes)) = serialized.split_first_chunk::<4>() else {
            return Err(Error::malformed(
                "binary row",
                "shorter than its field count",
            ));
        };
        let arity = usize::try_from(u32::from_be_bytes(*arity)).unwrap_or(usize::MAX);
        if arity > MAX_ARITY {
            return Err(Error::malformed("binary row", format!("{arity} fields")));
        }
        if bytes.len() < fixed_len(arity) {
            let reason = format!("{} bytes are too few for {arity} fields", bytes.len());
            return Err(Error::malformed("binary row", reason));
        }
        Ok(Self {
            arity,
            bytes: bytes.to_vec(),
        })
    }

    /// The hash that chooses a bucket: Murmur3, 32 bits, seed 42, over the whole row.
    pub fn hash(&self) -> i32 {
        murmur_hash(&self.bytes)
    }
}

/// Bytes of the null bitset of a row.
fn bitset_len(arity: usize) -> usize {
    (arity + HEADER_BITS).div_ceil(64) * 8
}

/// Bytes of a row before its part of variable length.
fn fixed_len(arity: usize) -> usize {
    bitset_len(arity) + arity * 8
}

#[cfg(test)]
mod tests;
