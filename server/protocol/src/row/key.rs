//! Keys as bytes: what identifies a row of a primary-key table, and what chooses the bucket of any
//! row.
//!
//! Source: fluss `CompactedKeyEncoder`, `PaimonKeyEncoder`, `IcebergKeyEncoder`, `KeyEncoder`.

use super::wire::decimal_bytes;
use super::{Datum, binary, check_arity, compacted};
use crate::descriptor::TableDescriptor;
use crate::error::{Error, Result};
use crate::schema::{LogicalType, TypeKind};

const FORMAT: &str = "key";
/// The property that names the lake, and with it how keys are encoded.
const LAKE_FORMAT: &str = "table.datalake.format";
const KV_FORMAT_VERSION: &str = "table.kv.format-version";

/// How keys become bytes, and with them how buckets are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyFormat {
    /// Fluss's own.
    Compacted,
    /// Paimon's.
    Paimon,
    /// Iceberg's: one column alone.
    Iceberg,
}

impl KeyFormat {
    /// The format of bucket keys for a table's `table.datalake.format`, which counts even if the
    /// lake is disabled.
    ///
    /// # Errors
    /// [`Error::UnsupportedType`] for a lake other than paimon, iceberg and lance.
    pub fn of_lake(lake: Option<&str>) -> Result<Self> {
        match lake.map(str::to_ascii_lowercase).as_deref() {
            None | Some("lance") => Ok(Self::Compacted),
            Some("paimon") => Ok(Self::Paimon),
            Some("iceberg") => Ok(Self::Iceberg),
            Some(other) => Err(Error::UnsupportedType {
                operation: "key encoding",
                type_name: other.to_owned(),
            }),
        }
    }

    /// The format of primary-key bytes: the lake's, except for tables of `table.kv.format-version`
    /// 2 whose bucket key is not the whole physical primary key; there prefixes must be looked up.
    ///
    /// # Errors
    /// As [`KeyFormat::of_lake`], and [`Error::Invalid`] for a format version above 2.
    pub fn of_primary_key(
        lake: Option<&str>,
        kv_format_version: Option<i32>,
        bucket_key: BucketKey,
    ) -> Result<Self> {
        match (kv_format_version.unwrap_or(1), bucket_key) {
            (1, _) | (2, BucketKey::WholePrimaryKey) => Self::of_lake(lake),
            (2, BucketKey::Other) => Ok(Self::Compacted),
            (version, _) => Err(Error::invalid(
                "key",
                version.to_string(),
                "kv format version is not 1 or 2",
            )),
        }
    }

    /// The format of a table's primary keys: what [`KeyFormat::of_primary_key`] makes of its
    /// properties and keys.
    ///
    /// # Errors
    /// As [`KeyFormat::of_primary_key`]; [`Error::Invalid`] too for a format version that is no
    /// number.
    pub fn of_table(table: &TableDescriptor) -> Result<Self> {
        let property = |key: &str| table.properties.get(key).map(String::as_str);
        let version = property(KV_FORMAT_VERSION).map(|text| {
            let reason = "kv format version is no number";
            let version = text.trim().parse::<i32>();
            version.map_err(|_| Error::invalid("key", text, reason))
        });
        let is_whole =
            table.bucket_keys.is_empty() || table.bucket_keys == table.physical_primary_key();
        let bucket_key = if is_whole {
            BucketKey::WholePrimaryKey
        } else {
            BucketKey::Other
        };
        Self::of_primary_key(property(LAKE_FORMAT), version.transpose()?, bucket_key)
    }

    /// The bytes of a key.
    ///
    /// # Errors
    /// As [`encode_compacted_key`], [`encode_paimon_key`] and [`encode_iceberg_key`].
    pub fn encode<T: AsRef<LogicalType>>(self, values: &[Datum], types: &[T]) -> Result<Vec<u8>> {
        match self {
            Self::Compacted => encode_compacted_key(values, types),
            Self::Paimon => encode_paimon_key(values, types),
            Self::Iceberg => encode_iceberg_key(values, types),
        }
    }
}

/// What a table's bucket key is to its physical primary key (the primary key without partition
/// columns).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BucketKey {
    /// The same columns in the same order.
    WholePrimaryKey,
    /// A part of it.
    Other,
}

fn check_scalar(kind: &TypeKind) -> Result<()> {
    if matches!(
        kind,
        TypeKind::Array(_) | TypeKind::Map(..) | TypeKind::Row(_)
    ) {
        return Err(Error::UnsupportedType {
            operation: "key encoding",
            type_name: kind.to_string(),
        });
    }
    Ok(())
}

fn null_key() -> Error {
    Error::invalid(FORMAT, "null", "key columns cannot be null")
}

/// Fluss's own key: values in COMPACTED form, back to back, so that the key of leading columns is a
/// prefix.
///
/// # Errors
/// [`Error::Invalid`] for null, [`Error::ValueMismatch`] for other values than the types say,
/// [`Error::UnsupportedType`] for nested types.
pub fn encode_compacted_key<T: AsRef<LogicalType>>(
    values: &[Datum],
    types: &[T],
) -> Result<Vec<u8>> {
    check_arity(FORMAT, values.len(), types.len())?;
    let mut out = Vec::with_capacity(values.len() * 8);
    for (value, ty) in values.iter().zip(types) {
        let kind = &ty.as_ref().kind;
        check_scalar(kind)?;
        if value.is_null() {
            return Err(null_key());
        }
        compacted::write(&mut out, value, kind)?;
    }
    Ok(out)
}

/// Paimon's key: a [`binary`] row of the key columns; null only where the type allows.
///
/// # Errors
/// As [`encode_compacted_key`].
pub fn encode_paimon_key<T: AsRef<LogicalType>>(values: &[Datum], types: &[T]) -> Result<Vec<u8>> {
    for (value, ty) in values.iter().zip(types) {
        check_scalar(&ty.as_ref().kind)?;
        if value.is_null() && !ty.as_ref().nullable {
            return Err(null_key());
        }
    }
    binary::encode(values, types)
}

/// Iceberg's key, of exactly one column: integers and dates as 64 bits, times as microseconds, text
/// bare.
///
/// # Errors
/// [`Error::Invalid`] for null or another number of columns than one, [`Error::ValueMismatch`],
/// [`Error::UnsupportedType`] for BOOLEAN, TINYINT, SMALLINT, `TIMESTAMP_LTZ` and nested types.
pub fn encode_iceberg_key<T: AsRef<LogicalType>>(values: &[Datum], types: &[T]) -> Result<Vec<u8>> {
    let ([value], [ty]) = (values, types) else {
        return Err(Error::invalid(
            FORMAT,
            values.len().to_string(),
            "an iceberg key has one column",
        ));
    };
    let kind = &ty.as_ref().kind;
    let long = |value: i64| value.to_le_bytes().to_vec();
    Ok(match (value, kind) {
        (
            _,
            TypeKind::Boolean
            | TypeKind::TinyInt
            | TypeKind::SmallInt
            | TypeKind::TimestampLtz { .. }
            | TypeKind::Array(_)
            | TypeKind::Map(..)
            | TypeKind::Row(_),
        ) => {
            return Err(Error::UnsupportedType {
                operation: "iceberg key encoding",
                type_name: kind.to_string(),
            });
        }
        (Datum::Null, _) => return Err(null_key()),
        (Datum::Int(value), TypeKind::Int) | (Datum::Date(value), TypeKind::Date) => {
            long(i64::from(*value))
        }
        (Datum::BigInt(value), TypeKind::BigInt) => long(*value),
        (Datum::Time(millis), TypeKind::Time { .. }) => long(i64::from(*millis) * 1000),
        (Datum::Timestamp { millis, nanos }, TypeKind::Timestamp { .. }) => {
            long(timestamp_micros(*millis, *nanos))
        }
        (Datum::Float(value), TypeKind::Float) => value.to_le_bytes().to_vec(),
        (Datum::Double(value), TypeKind::Double) => value.to_le_bytes().to_vec(),
        (Datum::String(value), TypeKind::Char { .. } | TypeKind::String) => {
            value.as_bytes().to_vec()
        }
        (Datum::Bytes(value), TypeKind::Binary { .. } | TypeKind::Bytes) => value.clone(),
        (Datum::Decimal(value), TypeKind::Decimal { .. }) => {
            let (bytes, skip) = decimal_bytes(*value);
            bytes.get(skip..).unwrap_or_default().to_vec()
        }
        _ => return Err(value.mismatch(kind)),
    })
}

/// Microseconds, wrapping as the reference's arithmetic does.
pub(super) fn timestamp_micros(millis: i64, nanos: i32) -> i64 {
    millis
        .wrapping_mul(1000)
        .wrapping_add(i64::from(nanos / 1000))
}
