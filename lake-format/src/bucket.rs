//! Which bucket a row belongs to (paimon: `MurmurHashUtils`, `DefaultBucketFunction`).

use crate::binary_row::BinaryRow;
use crate::datum::Datum;
use crate::error::{Error, Result};

/// Total buckets that entries of bucket-unaware append tables (and dynamic buckets) are stamped with.
pub const UNAWARE_TOTAL_BUCKETS: i32 = -1;

const SEED: i32 = 42;
const C1: i32 = 0xcc9e_2d51_u32.cast_signed();
const C2: i32 = 0x1b87_3593;

/// Murmur3 of 32 bits, seed 42, over little-endian words; `bytes` is a multiple of 4 long, further
/// bytes are left out.
pub fn murmur_hash(bytes: &[u8]) -> i32 {
    let mut hash = SEED;
    let (words, _) = bytes.as_chunks::<4>();
    for word in words {
        let k = i32::from_le_bytes(*word)
            .wrapping_mul(C1)
            .rotate_left(15)
            .wrapping_mul(C2);
        hash = (hash ^ k)
            .rotate_left(13)
            .wrapping_mul(5)
            .wrapping_add(0xe654_6b64_u32.cast_signed());
    }
    let length = i32::try_from(words.len() * 4).unwrap_or(i32::MAX);
    let mut h = (hash ^ length).cast_unsigned();
    h = (h ^ (h >> 16)).wrapping_mul(0x85eb_ca6b);
    h = (h ^ (h >> 13)).wrapping_mul(0xc2b2_ae35);
    (h ^ (h >> 16)).cast_signed()
}

/// The bucket of a hash under the default function.
///
/// # Errors
/// [`Error::BadValue`] if `total_buckets` is less than 1.
pub fn bucket_of(hash: i32, total_buckets: i32) -> Result<i32> {
    check_total_buckets(total_buckets)?;
    Ok((hash % total_buckets).abs())
}

/// The bucket of a bucket key, an encoded row of the bucket key's columns.
///
/// # Errors
/// [`Error::BadValue`] if `total_buckets` is less than 1.
pub fn bucket_of_key(key: &BinaryRow, total_buckets: i32) -> Result<i32> {
    bucket_of(key.hash(), total_buckets)
}

/// The bucket of a single `INT` or `BIGINT` key under the function `mod`.
///
/// # Errors
/// [`Error::BadValue`] if the key is of another kind or `total_buckets` is less than 1.
pub fn mod_bucket_of(key: &Datum, total_buckets: i32) -> Result<i32> {
    check_total_buckets(total_buckets)?;
    let key = match key {
        Datum::Int(key) => i64::from(*key),
        Datum::BigInt(key) => *key,
        _ => {
            return Err(Error::bad_value(
                "bucket key",
                "the function `mod` takes one INT or BIGINT",
            ));
        }
    };
    let bucket = key.rem_euclid(i64::from(total_buckets));
    i32::try_from(bucket).map_err(|_| Error::bad_value("bucket key", format!("bucket {bucket}")))
}

fn check_total_buckets(total_buckets: i32) -> Result<()> {
    if total_buckets < 1 {
        return Err(Error::bad_value(
            "total buckets",
            format!("{total_buckets} is less than 1"),
        ));
    }
    Ok(())
}
