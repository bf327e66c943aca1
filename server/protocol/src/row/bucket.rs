//! Which bucket a key belongs to.
//!
//! Source: fluss `FlussBucketingFunction`, `PaimonBucketingFunction`, `IcebergBucketingFunction`,
//! `MurmurHashUtils`.

use super::key::KeyFormat;
use crate::error::{Error, Result};
use crate::ids::{BucketId, TotalBuckets};

mod vector;

pub use vector::bucket_ids;

const SEED: u32 = 42;
const C1: u32 = 0xcc9e_2d51;
const C2: u32 = 0x1b87_3593;

fn mix_k1(k1: u32) -> u32 {
    k1.wrapping_mul(C1).rotate_left(15).wrapping_mul(C2)
}

fn mix_h1(h1: u32, k1: u32) -> u32 {
    (h1 ^ k1)
        .rotate_left(13)
        .wrapping_mul(5)
        .wrapping_add(0xe654_6b64)
}

fn finish(mut h1: u32) -> u32 {
    h1 ^= h1 >> 16;
    h1 = h1.wrapping_mul(0x85eb_ca6b);
    h1 ^= h1 >> 13;
    h1 = h1.wrapping_mul(0xc2b2_ae35);
    h1 ^ h1 >> 16
}

/// The length as hashes mix it in; keys beyond 4 GiB cannot be.
fn length_u32(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}

/// Murmur3 of 32 bits as Flink, Fluss and Paimon have it, seed 42. Not the standard: each byte past
/// the last whole word is sign-extended and mixed as a word of its own.
pub(super) fn murmur(bytes: &[u8]) -> i32 {
    let (words, rest) = bytes.as_chunks::<4>();
    let mut h1 = SEED;
    for word in words {
        h1 = mix_h1(h1, mix_k1(u32::from_le_bytes(*word)));
    }
    for byte in rest {
        h1 = mix_h1(h1, mix_k1(i32::from(byte.cast_signed()).cast_unsigned()));
    }
    finish(h1 ^ length_u32(bytes)).cast_signed()
}

/// Standard `murmur3_x86_32` with seed 0: Iceberg's.
fn murmur_standard(bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<4>();
    let mut h1 = 0;
    for word in words {
        h1 = mix_h1(h1, mix_k1(u32::from_le_bytes(*word)));
    }
    if !rest.is_empty() {
        let mut word = [0; 4];
        for (place, byte) in word.iter_mut().zip(rest) {
            *place = *byte;
        }
        h1 ^= mix_k1(u32::from_le_bytes(word));
    }
    finish(h1 ^ length_u32(bytes))
}

/// Fluss's second mix of a hash: never negative.
fn remix(hash: i32) -> i32 {
    let mixed = finish(mix_h1(0, mix_k1(hash.cast_unsigned())) ^ 4).cast_signed();
    // The one number without a positive counterpart becomes 0.
    if mixed == i32::MIN { 0 } else { mixed.abs() }
}

/// A count by which keys are spread.
///
/// # Errors
/// [`Error::Invalid`] for one below 1.
pub(crate) fn positive(total: TotalBuckets) -> Result<i32> {
    if total.0 >= 1 {
        return Ok(total.0);
    }
    Err(Error::invalid(
        "bucket count",
        total.to_string(),
        "must be at least 1",
    ))
}

impl KeyFormat {
    /// The bucket of a key in this format: Fluss's own way for compacted keys (tables without lake,
    /// or of lance), else the lake's.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a `total` below 1.
    pub fn bucket(self, key: &[u8], total: TotalBuckets) -> Result<BucketId> {
        Ok(BucketId(self.bucket_of(key, positive(total)?)))
    }

    /// As [`Self::bucket`] of a `total` that is [`positive`].
    fn bucket_of(self, key: &[u8], total: i32) -> i32 {
        match self {
            Self::Compacted => remix(murmur(key)) % total,
            Self::Paimon => (murmur(key) % total).abs(),
            Self::Iceberg => (murmur_standard(key) & 0x7fff_ffff).cast_signed() % total,
        }
    }
}
