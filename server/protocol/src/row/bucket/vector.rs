//! Buckets of a whole batch at once: keys are written into one buffer that all rows share, straight
//! from the arrays.

use arrow::array::{
    Array, ArrowPrimitiveType, AsArray, BinaryArray, BooleanArray, FixedSizeBinaryArray,
    PrimitiveArray, RecordBatch, StringArray,
};
use arrow::datatypes::{
    DataType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type,
    Int64Type, Time32MillisecondType, Time32SecondType, Time64MicrosecondType,
    Time64NanosecondType, TimeUnit, TimestampMicrosecondType, TimestampMillisecondType,
    TimestampNanosecondType, TimestampSecondType,
};

use super::super::binary::null_bytes;
use super::super::key::{KeyFormat, timestamp_micros};
use super::super::slots::{Nested, Section, set_bit};
use super::super::wire::{decimal_bytes, length_u32, put_var_u32, put_var_u64};
use super::super::{is_compact_decimal, is_compact_timestamp};
use super::positive;
use crate::error::{Error, Result};
use crate::ids::TotalBuckets;
use crate::record::put_at;

/// The bucket of each row by these key columns, the same as encoding and hashing each key alone.
///
/// * `columns`: indexes of the bucket key's columns, in key order, with the plain Arrow types of
///   log batches.
/// * Returns one bucket a row, each `0..total`. Costs no allocation a row.
///
/// # Errors
/// [`Error::Projection`] for an index past the end, [`Error::UnsupportedType`] for a type that
/// cannot be a key in this format, [`Error::Invalid`] for a null key (Paimon's keys may be null) or
/// a `total` below 1.
pub fn bucket_ids(
    batch: &RecordBatch,
    columns: &[usize],
    format: KeyFormat,
    total: TotalBuckets,
) -> Result<Vec<i32>> {
    let total = positive(total)?;
    let known = batch.num_columns();
    let column = |index: &usize| match batch.columns().get(*index) {
        Some(array) => KeyColumn::of(
            array.as_ref(),
            format,
            batch.schema_ref().field(*index).name(),
        ),
        None => Err(Error::Projection {
            reason: "column is past the end",
            index: *index,
            columns: known,
        }),
    };
    let columns: Vec<KeyColumn<'_>> = columns.iter().map(column).collect::<Result<_>>()?;
    if format == KeyFormat::Iceberg && columns.len() != 1 {
        return Err(Error::invalid(
            "key",
            columns.len().to_string(),
            "an iceberg key has one column",
        ));
    }
    let mut key = Vec::with_capacity(64);
    let mut buckets = Vec::with_capacity(batch.num_rows());
    for row in 0..batch.num_rows() {
        key.clear();
        match format {
            KeyFormat::Compacted => {
                for column in &columns {
                    column.write_compacted(&mut key, row)?;
                }
            }
            KeyFormat::Paimon => write_paimon(&mut key, &columns, row)?,
            KeyFormat::Iceberg => {
                for column in &columns {
                    column.write_iceberg(&mut key, row)?;
                }
            }
        }
        buckets.push(format.bucket_of(&key, total));
    }
    Ok(buckets)
}

fn write_paimon(key: &mut Vec<u8>, columns: &[KeyColumn<'_>], row: usize) -> Result<()> {
    let slots_at = null_bytes(columns.len());
    key.resize(slots_at + 8 * columns.len(), 0);
    let mut section = Section {
        out: key,
        start: 0,
        nested: Nested::Aligned,
    };
    for (index, column) in columns.iter().enumerate() {
        if column.is_null(row) {
            set_bit(section.out, 0, index + 8);
        } else {
            column.write_slot(&mut section, slots_at + 8 * index, row)?;
        }
    }
    Ok(())
}

/// A key column, told by how its values are written.
enum KeyColumn<'a> {
    Boolean(&'a BooleanArray),
    TinyInt(&'a PrimitiveArray<Int8Type>),
    SmallInt(&'a PrimitiveArray<Int16Type>),
    Int(&'a PrimitiveArray<Int32Type>),
    BigInt(&'a PrimitiveArray<Int64Type>),
    Float(&'a PrimitiveArray<Float32Type>),
    Double(&'a PrimitiveArray<Float64Type>),
    Date(&'a PrimitiveArray<Date32Type>),
    Decimal(&'a PrimitiveArray<Decimal128Type>, u8),
    String(&'a StringArray),
    Bytes(&'a BinaryArray),
    FixedBytes(&'a FixedSizeBinaryArray),
    /// Milliseconds of the day = value × numerator / denominator.
    Time32(&'a [i32], i32, &'a dyn Array),
    Time64(&'a [i64], i64, &'a dyn Array),
    /// Values a second, and the precision that decides the form.
    Timestamp(&'a [i64], i64, u8, &'a dyn Array),
}

fn numbers<T: ArrowPrimitiveType>(array: &dyn Array) -> Option<&PrimitiveArray<T>> {
    array.as_primitive_opt::<T>()
}

impl<'a> KeyColumn<'a> {
    fn of(array: &'a dyn Array, format: KeyFormat, name: &str) -> Result<Self> {
        if array.null_count() > 0 && format != KeyFormat::Paimon {
            return Err(Error::invalid("key", name, "key columns cannot be null"));
        }
        let column = match array.data_type() {
            DataType::Boolean => array.as_boolean_opt().map(Self::Boolean),
            DataType::Int8 => numbers(array).map(Self::TinyInt),
            DataType::Int16 => numbers(array).map(Self::SmallInt),
            DataType::Int32 => numbers(array).map(Self::Int),
            DataType::Int64 => numbers(array).map(Self::BigInt),
            DataType::Float32 => numbers(array).map(Self::Float),
            DataType::Float64 => numbers(array).map(Self::Double),
            DataType::Date32 => numbers(array).map(Self::Date),
            DataType::Decimal128(precision, _) => {
                numbers(array).map(|array| Self::Decimal(array, *precision))
            }
            DataType::Utf8 => array.as_string_opt().map(Self::String),
            DataType::Binary => array.as_binary_opt().map(Self::Bytes),
            DataType::FixedSizeBinary(_) => array.as_fixed_size_binary_opt().map(Self::FixedBytes),
            DataType::Time32(_) | DataType::Time64(_) => Self::time(array),
            DataType::Timestamp(unit, _) => Self::timestamp(array, *unit),
            _ => None,
        };
        let column =
            column.filter(|column| format != KeyFormat::Iceberg || column.may_be_iceberg());
        column.ok_or_else(|| Error::UnsupportedType {
            operation: "key encoding",
            type_name: array.data_type().to_string(),
        })
    }

    fn time(array: &'a dyn Array) -> Option<Self> {
        Some(match array.data_type() {
            DataType::Time32(TimeUnit::Second) => {
                Self::Time32(numbers::<Time32SecondType>(array)?.values(), 1000, array)
            }
            DataType::Time32(_) => {
                Self::Time32(numbers::<Time32MillisecondType>(array)?.values(), 1, array)
            }
            DataType::Time64(TimeUnit::Microsecond) => Self::Time64(
                numbers::<Time64MicrosecondType>(array)?.values(),
                1000,
                array,
            ),
            _ => Self::Time64(
                numbers::<Time64NanosecondType>(array)?.values(),
                1_000_000,
                array,
            ),
        })
    }

    fn timestamp(array: &'a dyn Array, unit: TimeUnit) -> Option<Self> {
        Some(match unit {
            TimeUnit::Second => {
                Self::Timestamp(numbers::<TimestampSecondType>(array)?.values(), 1, 0, array)
            }
            TimeUnit::Millisecond => Self::Timestamp(
                numbers::<TimestampMillisecondType>(array)?.values(),
                1000,
                3,
                array,
            ),
            TimeUnit::Microsecond => Self::Timestamp(
                numbers::<TimestampMicrosecondType>(array)?.values(),
                1_000_000,
                6,
                array,
            ),
            TimeUnit::Nanosecond => Self::Timestamp(
                numbers::<TimestampNanosecondType>(array)?.values(),
                1_000_000_000,
                9,
                array,
            ),
        })
    }

    fn may_be_iceberg(&self) -> bool {
        !matches!(
            self,
            Self::Boolean(_) | Self::TinyInt(_) | Self::SmallInt(_)
        )
    }

    fn is_null(&self, row: usize) -> bool {
        match self {
            Self::Boolean(array) => array.is_null(row),
            Self::TinyInt(array) => array.is_null(row),
            Self::SmallInt(array) => array.is_null(row),
            Self::Int(array) => array.is_null(row),
            Self::BigInt(array) => array.is_null(row),
            Self::Float(array) => array.is_null(row),
            Self::Double(array) => array.is_null(row),
            Self::Date(array) => array.is_null(row),
            Self::Decimal(array, _) => array.is_null(row),
            Self::String(array) => array.is_null(row),
            Self::Bytes(array) => array.is_null(row),
            Self::FixedBytes(array) => array.is_null(row),
            Self::Time32(_, _, array)
            | Self::Time64(_, _, array)
            | Self::Timestamp(_, _, _, array) => array.is_null(row),
        }
    }

    /// INT, DATE and TIME: 32 bits.
    fn int(&self, row: usize) -> Result<Option<i32>> {
        let millis = match self {
            Self::Int(array) => return Ok(Some(array.value(row))),
            Self::Date(array) => return Ok(Some(array.value(row))),
            Self::Time32(values, factor, _) => {
                values.get(row).and_then(|value| value.checked_mul(*factor))
            }
            Self::Time64(values, divisor, _) => values
                .get(row)
                .and_then(|value| i32::try_from(value.div_euclid(*divisor)).ok()),
            _ => return Ok(None),
        };
        // A time of day fits 32 bits in milliseconds; what does not is no time of day.
        let too_long = || Error::invalid("key", "TIME", "longer than 32 bits of milliseconds");
        millis.map(Some).ok_or_else(too_long)
    }

    /// Text and bytes.
    fn bytes(&self, row: usize) -> Option<&[u8]> {
        match self {
            Self::String(array) => Some(array.value(row).as_bytes()),
            Self::Bytes(array) => Some(array.value(row)),
            Self::FixedBytes(array) => Some(array.value(row)),
            _ => None,
        }
    }

    /// Milliseconds, nanoseconds within, and the precision.
    fn moment(&self, row: usize) -> Option<(i64, i32, u8)> {
        let Self::Timestamp(values, per_second, precision, _) = self else {
            return None;
        };
        let value = *values.get(row)?;
        if *per_second <= 1000 {
            return Some((value.wrapping_mul(1000 / per_second), 0, *precision));
        }
        let per_milli = per_second / 1000;
        let nanos = value.rem_euclid(per_milli) * (1_000_000 / per_milli);
        let nanos = i32::try_from(nanos).unwrap_or_default();
        Some((value.div_euclid(per_milli), nanos, *precision))
    }

    fn write_compacted(&self, key: &mut Vec<u8>, row: usize) -> Result<()> {
        if let Some(value) = self.int(row)? {
            put_var_u32(key, value.cast_unsigned());
        } else if let Some(bytes) = self.bytes(row) {
            put_var_u32(key, length_u32(bytes.len())?);
            key.extend_from_slice(bytes);
        } else if let Some((millis, nanos, precision)) = self.moment(row) {
            put_var_u64(key, millis.cast_unsigned());
            if !is_compact_timestamp(precision) {
                put_var_u32(key, nanos.cast_unsigned());
            }
        } else {
            match self {
                Self::Boolean(array) => key.push(u8::from(array.value(row))),
                Self::TinyInt(array) => key.extend_from_slice(&array.value(row).to_le_bytes()),
                Self::SmallInt(array) => key.extend_from_slice(&array.value(row).to_le_bytes()),
                Self::BigInt(array) => put_var_u64(key, array.value(row).cast_unsigned()),
                Self::Float(array) => key.extend_from_slice(&array.value(row).to_le_bytes()),
                Self::Double(array) => key.extend_from_slice(&array.value(row).to_le_bytes()),
                Self::Decimal(array, precision) => {
                    let value = array.value(row);
                    match i64::try_from(value) {
                        Ok(unscaled) if is_compact_decimal(*precision) => {
                            put_var_u64(key, unscaled.cast_unsigned());
                        }
                        _ => {
                            let (bytes, skip) = decimal_bytes(value);
                            let shortest = bytes.get(skip..).unwrap_or_default();
                            put_var_u32(key, length_u32(shortest.len())?);
                            key.extend_from_slice(shortest);
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn write_slot(&self, section: &mut Section<'_>, at: usize, row: usize) -> Result<()> {
        if let Some(value) = self.int(row)? {
            put_at(section.out, at, &value.to_le_bytes());
        } else if let Some(bytes) = self.bytes(row) {
            section.text(at, bytes)?;
        } else if let Some((millis, nanos, precision)) = self.moment(row) {
            if is_compact_timestamp(precision) {
                put_at(section.out, at, &millis.to_le_bytes());
            } else {
                section.tail(at, &millis.to_le_bytes(), nanos.cast_unsigned())?;
            }
        } else {
            match self {
                Self::Boolean(array) => put_at(section.out, at, &[u8::from(array.value(row))]),
                Self::TinyInt(array) => put_at(section.out, at, &array.value(row).to_le_bytes()),
                Self::SmallInt(array) => put_at(section.out, at, &array.value(row).to_le_bytes()),
                Self::BigInt(array) => put_at(section.out, at, &array.value(row).to_le_bytes()),
                Self::Float(array) => put_at(section.out, at, &array.value(row).to_le_bytes()),
                Self::Double(array) => put_at(section.out, at, &array.value(row).to_le_bytes()),
                Self::Decimal(array, precision) => {
                    section.decimal(at, array.value(row), *precision)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn write_iceberg(&self, key: &mut Vec<u8>, row: usize) -> Result<()> {
        if let Some(bytes) = self.bytes(row) {
            key.extend_from_slice(bytes);
        } else if let Some((millis, nanos, _)) = self.moment(row) {
            key.extend_from_slice(&timestamp_micros(millis, nanos).to_le_bytes());
        } else if let Some(value) = self.int(row)? {
            let is_time = matches!(self, Self::Time32(..) | Self::Time64(..));
            let factor = if is_time { 1000 } else { 1 };
            key.extend_from_slice(&(i64::from(value) * factor).to_le_bytes());
        } else {
            match self {
                Self::BigInt(array) => key.extend_from_slice(&array.value(row).to_le_bytes()),
                Self::Float(array) => key.extend_from_slice(&array.value(row).to_le_bytes()),
                Self::Double(array) => key.extend_from_slice(&array.value(row).to_le_bytes()),
                Self::Decimal(array, _) => {
                    let (bytes, skip) = decimal_bytes(array.value(row));
                    key.extend_from_slice(bytes.get(skip..).unwrap_or_default());
                }
                _ => {}
            }
        }
        Ok(())
    }
}
