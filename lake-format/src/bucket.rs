//! Which bucket a row belongs to (paimon: `MurmurHashUtils`, `DefaultBucketFunction`).

use crate::binary_row::BinaryRow;
use crate::datum::Datum;
use crate::error::{Error, Result};

/// Total buckets that entries of bucket-unaware append tables (and dynamic buckets) are stamped
/// with.
pub const UNAWARE_TOTAL_BUCKETS: i32 = -1;

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

/// The bucket of a single `INT` or `BIGINT` key under the function `mod`; a null counts as 0.
///
/// # Errors
/// [`Error::BadValue`] if the key is of another kind or `total_buckets` is less than 1.
pub fn mod_bucket_of(key: &Datum, total_buckets: i32) -> Result<i32> {
    check_total_buckets(total_buckets)?;
    let key = match key {
        Datum::Null => 0,
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
