//! Between single values and Arrow arrays. For rows only: batches of Arrow data never pass here.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, AsArray, BinaryBuilder, BooleanBuilder,
    FixedSizeBinaryBuilder, ListArray, MapArray, PrimitiveArray, PrimitiveBuilder, StringBuilder,
    StructArray,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::{
    DataType, Date32Type, Decimal128Type, Field, Fields, Float32Type, Float64Type, Int8Type,
    Int16Type, Int32Type, Int64Type, Time32MillisecondType, Time32SecondType,
    Time64MicrosecondType, Time64NanosecondType, TimeUnit, TimestampMicrosecondType,
    TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType,
};
use arrow::error::ArrowError;

use super::Datum;
use crate::error::{Error, Result};
use crate::schema::{LogicalType, TypeKind};

/// The value at `index` of an array that has the Arrow type of `kind` (see
/// [`LogicalType::arrow_type`]).
///
/// # Errors
/// [`Error::ValueMismatch`] if the array has another type, [`Error::Projection`] if `index` is past
/// its end, and [`Error::Invalid`] for a timestamp too far away for milliseconds.
pub fn datum_at(array: &dyn Array, index: usize, kind: &TypeKind) -> Result<Datum> {
    if index >= array.len() {
        return Err(Error::Projection {
            reason: "row is past the end of the array",
            index,
            columns: array.len(),
        });
    }
    if array.is_null(index) {
        return Ok(Datum::Null);
    }
    let mismatch = || Error::ValueMismatch {
        expected: kind.to_string(),
        found: "arrow array of another type",
    };
    let datum = match kind {
        TypeKind::Boolean => array
            .as_boolean_opt()
            .map(|array| Datum::Boolean(array.value(index))),
        TypeKind::TinyInt => primitive::<Int8Type>(array, index).map(Datum::TinyInt),
        TypeKind::SmallInt => primitive::<Int16Type>(array, index).map(Datum::SmallInt),
        TypeKind::Int => primitive::<Int32Type>(array, index).map(Datum::Int),
        TypeKind::BigInt => primitive::<Int64Type>(array, index).map(Datum::BigInt),
        TypeKind::Float => primitive::<Float32Type>(array, index).map(Datum::Float),
        TypeKind::Double => primitive::<Float64Type>(array, index).map(Datum::Double),
        TypeKind::Decimal { .. } => primitive::<Decimal128Type>(array, index).map(Datum::Decimal),
        TypeKind::Char { .. } | TypeKind::String => array
            .as_string_opt::<i32>()
            .map(|array| Datum::String(array.value(index).to_owned())),
        TypeKind::Binary { .. } => array
            .as_fixed_size_binary_opt()
            .map(|array| Datum::Bytes(array.value(index).to_vec())),
        TypeKind::Bytes => array
            .as_binary_opt::<i32>()
            .map(|array| Datum::Bytes(array.value(index).to_vec())),
        TypeKind::Date => primitive::<Date32Type>(array, index).map(Datum::Date),
        TypeKind::Time { .. } => time_at(array, index),
        TypeKind::Timestamp { .. } | TypeKind::TimestampLtz { .. } => {
            return timestamp_at(array, index, kind);
        }
        TypeKind::Array(element) => match array.as_list_opt::<i32>() {
            Some(list) => Some(Datum::Array(datums(
                list.value(index).as_ref(),
                &element.kind,
            )?)),
            None => None,
        },
        TypeKind::Map(key, value) => match array.as_map_opt() {
            Some(map) => {
                let entries = map.value(index);
                let keys = datums(entries.column(0).as_ref(), &key.kind)?;
                let values = datums(entries.column(1).as_ref(), &value.kind)?;
                Some(Datum::Map(keys.into_iter().zip(values).collect()))
            }
            None => None,
        },
        TypeKind::Row(fields) => match array.as_struct_opt() {
            Some(row) if row.num_columns() == fields.len() => {
                let pairs = row.columns().iter().zip(fields);
                let values =
                    pairs.map(|(column, field)| datum_at(column.as_ref(), index, &field.ty.kind));
                Some(Datum::Row(values.collect::<Result<_>>()?))
            }
            _ => None,
        },
    };
    datum.ok_or_else(mismatch)
}

fn datums(array: &dyn Array, kind: &TypeKind) -> Result<Vec<Datum>> {
    (0..array.len())
        .map(|index| datum_at(array, index, kind))
        .collect()
}

fn primitive<T: ArrowPrimitiveType>(array: &dyn Array, index: usize) -> Option<T::Native> {
    array
        .as_primitive_opt::<T>()
        .map(|array| array.value(index))
}

fn time_at(array: &dyn Array, index: usize) -> Option<Datum> {
    let millis = match array.data_type() {
        DataType::Time32(TimeUnit::Second) => {
            primitive::<Time32SecondType>(array, index)?.checked_mul(1000)?
        }
        DataType::Time32(TimeUnit::Millisecond) => {
            primitive::<Time32MillisecondType>(array, index)?
        }
        DataType::Time64(TimeUnit::Microsecond) => {
            i32::try_from(primitive::<Time64MicrosecondType>(array, index)?.div_euclid(1000))
                .ok()?
        }
        DataType::Time64(TimeUnit::Nanosecond) => {
            i32::try_from(primitive::<Time64NanosecondType>(array, index)?.div_euclid(1_000_000))
                .ok()?
        }
        _ => return None,
    };
    Some(Datum::Time(millis))
}

fn timestamp_at(array: &dyn Array, index: usize, kind: &TypeKind) -> Result<Datum> {
    let mismatch = || Error::ValueMismatch {
        expected: kind.to_string(),
        found: "arrow array of another type",
    };
    let DataType::Timestamp(unit, _) = array.data_type() else {
        return Err(mismatch());
    };
    let datum = match unit {
        TimeUnit::Second => {
            let seconds = primitive::<TimestampSecondType>(array, index).ok_or_else(mismatch)?;
            let millis = seconds.checked_mul(1000).ok_or_else(|| {
                Error::invalid(
                    "timestamp",
                    seconds.to_string(),
                    "beyond the range of milliseconds",
                )
            })?;
            Datum::Timestamp { millis, nanos: 0 }
        }
        TimeUnit::Millisecond => {
            let millis =
                primitive::<TimestampMillisecondType>(array, index).ok_or_else(mismatch)?;
            Datum::Timestamp { millis, nanos: 0 }
        }
        TimeUnit::Microsecond => {
            let micros =
                primitive::<TimestampMicrosecondType>(array, index).ok_or_else(mismatch)?;
            split_timestamp(micros, 1000, 1000)
        }
        TimeUnit::Nanosecond => {
            let nanos = primitive::<TimestampNanosecondType>(array, index).ok_or_else(mismatch)?;
            split_timestamp(nanos, 1_000_000, 1)
        }
    };
    Ok(datum)
}

fn split_timestamp(value: i64, per_milli: i64, nanos_each: i64) -> Datum {
    let nanos = i32::try_from(value.rem_euclid(per_milli) * nanos_each).unwrap_or_default();
    Datum::Timestamp {
        millis: value.div_euclid(per_milli),
        nanos,
    }
}

/// The array of these values, with the Arrow type of `ty`.
///
/// # Errors
/// [`Error::ValueMismatch`] for a value of another kind or a null that the type forbids;
/// [`Error::Invalid`] for a value outside what the Arrow type holds; [`Error::Arrow`] for sizes
/// beyond its offsets.
pub fn array_of(values: &[Datum], ty: &LogicalType) -> Result<ArrayRef> {
    if !ty.nullable && values.iter().any(Datum::is_null) {
        Datum::check_null(ty)?;
    }
    let kind = &ty.kind;
    match kind {
        TypeKind::Boolean => {
            let mut builder = BooleanBuilder::with_capacity(values.len());
            for value in values {
                match value {
                    Datum::Null => builder.append_null(),
                    Datum::Boolean(value) => builder.append_value(*value),
                    other => return Err(other.mismatch(kind)),
                }
            }
            Ok(Arc::new(builder.finish()))
        }
        TypeKind::Char { .. } | TypeKind::String => strings(values, kind),
        TypeKind::Bytes => bytes(values, kind),
        TypeKind::Binary { length } => fixed_bytes(values, kind, *length),
        TypeKind::Array(element) => list(values, kind, element),
        TypeKind::Map(key, value) => map(values, kind, key, value),
        TypeKind::Row(_) => row(values, ty),
        TypeKind::Time { .. } => times(values, ty),
        TypeKind::Timestamp { .. } | TypeKind::TimestampLtz { .. } => timestamps(values, ty),
        _ => numbers(values, ty),
    }
}

fn numbers(values: &[Datum], ty: &LogicalType) -> Result<ArrayRef> {
    macro_rules! of {
        ($arrow:ty, $variant:ident) => {
            build::<$arrow>(values, ty, |datum| match datum {
                Datum::$variant(value) => Ok(*value),
                other => Err(other.mismatch(&ty.kind)),
            })
        };
    }
    match ty.kind {
        TypeKind::TinyInt => of!(Int8Type, TinyInt),
        TypeKind::SmallInt => of!(Int16Type, SmallInt),
        TypeKind::Int => of!(Int32Type, Int),
        TypeKind::BigInt => of!(Int64Type, BigInt),
        TypeKind::Float => of!(Float32Type, Float),
        TypeKind::Double => of!(Float64Type, Double),
        TypeKind::Date => of!(Date32Type, Date),
        TypeKind::Decimal { .. } => of!(Decimal128Type, Decimal),
        _ => Err(Error::UnsupportedType {
            operation: "number array",
            type_name: ty.to_string(),
        }),
    }
}

fn build<T: ArrowPrimitiveType>(
    values: &[Datum],
    ty: &LogicalType,
    convert: impl Fn(&Datum) -> Result<T::Native>,
) -> Result<ArrayRef> {
    let mut builder = PrimitiveBuilder::<T>::with_capacity(values.len());
    for value in values {
        match value {
            Datum::Null => builder.append_null(),
            value => builder.append_value(convert(value)?),
        }
    }
    let array: PrimitiveArray<T> = builder.finish().with_data_type(ty.arrow_type());
    Ok(Arc::new(array))
}

fn times(values: &[Datum], ty: &LogicalType) -> Result<ArrayRef> {
    let millis = |datum: &Datum| match datum {
        Datum::Time(millis) => Ok(*millis),
        other => Err(other.mismatch(&ty.kind)),
    };
    match ty.arrow_type() {
        DataType::Time32(TimeUnit::Second) => {
            build::<Time32SecondType>(values, ty, |datum| Ok(millis(datum)?.div_euclid(1000)))
        }
        DataType::Time32(_) => build::<Time32MillisecondType>(values, ty, millis),
        DataType::Time64(TimeUnit::Microsecond) => {
            build::<Time64MicrosecondType>(values, ty, |datum| Ok(i64::from(millis(datum)?) * 1000))
        }
        _ => build::<Time64NanosecondType>(values, ty, |datum| {
            Ok(i64::from(millis(datum)?) * 1_000_000)
        }),
    }
}

fn timestamps(values: &[Datum], ty: &LogicalType) -> Result<ArrayRef> {
    let parts = |datum: &Datum| match datum {
        Datum::Timestamp { millis, nanos } => Ok((*millis, i64::from(*nanos))),
        other => Err(other.mismatch(&ty.kind)),
    };
    let scaled = |datum: &Datum, per_milli: i64, nanos_each: i64| {
        let (millis, nanos) = parts(datum)?;
        let value = millis
            .checked_mul(per_milli)
            .and_then(|value| value.checked_add(nanos / nanos_each));
        value.ok_or_else(|| {
            Error::invalid(
                "timestamp",
                millis.to_string(),
                "beyond the range of its precision",
            )
        })
    };
    match ty.arrow_type() {
        DataType::Timestamp(TimeUnit::Second, _) => {
            build::<TimestampSecondType>(values, ty, |datum| Ok(parts(datum)?.0.div_euclid(1000)))
        }
        DataType::Timestamp(TimeUnit::Millisecond, _) => {
            build::<TimestampMillisecondType>(values, ty, |datum| Ok(parts(datum)?.0))
        }
        DataType::Timestamp(TimeUnit::Microsecond, _) => {
            build::<TimestampMicrosecondType>(values, ty, |datum| scaled(datum, 1000, 1000))
        }
        _ => build::<TimestampNanosecondType>(values, ty, |datum| scaled(datum, 1_000_000, 1)),
    }
}

fn strings(values: &[Datum], kind: &TypeKind) -> Result<ArrayRef> {
    let mut builder = StringBuilder::new();
    for value in values {
        match value {
            Datum::Null => builder.append_null(),
            Datum::String(text) => builder.append_value(text),
            other => return Err(other.mismatch(kind)),
        }
    }
    Ok(Arc::new(builder.finish()))
}

fn bytes(values: &[Datum], kind: &TypeKind) -> Result<ArrayRef> {
    let mut builder = BinaryBuilder::new();
    for value in values {
        match value {
            Datum::Null => builder.append_null(),
            Datum::Bytes(bytes) => builder.append_value(bytes),
            other => return Err(other.mismatch(kind)),
        }
    }
    Ok(Arc::new(builder.finish()))
}

fn fixed_bytes(values: &[Datum], kind: &TypeKind, length: i32) -> Result<ArrayRef> {
    let mut builder = FixedSizeBinaryBuilder::with_capacity(values.len(), length);
    for value in values {
        match value {
            Datum::Null => builder.append_null(),
            Datum::Bytes(bytes) => builder
                .append_value(bytes)
                .map_err(|source| built("BINARY column", source))?,
            other => return Err(other.mismatch(kind)),
        }
    }
    Ok(Arc::new(builder.finish()))
}

/// Offsets and validity of nested values; each value's length comes from `length`, `None` for null.
fn nested(lengths: &[Option<usize>]) -> Result<(OffsetBuffer<i32>, Option<NullBuffer>)> {
    let total: usize = lengths.iter().flatten().sum();
    if i32::try_from(total).is_err() {
        let (size, limit) = (total as u64, u64::from(i32::MAX.unsigned_abs()));
        return Err(Error::TooLarge {
            what: "elements of a nested column",
            size,
            limit,
        });
    }
    let offsets = OffsetBuffer::from_lengths(lengths.iter().map(|length| length.unwrap_or(0)));
    let nulls = lengths.iter().any(Option::is_none);
    let validity = nulls.then(|| lengths.iter().map(Option::is_some).collect::<NullBuffer>());
    Ok((offsets, validity))
}

fn list(values: &[Datum], kind: &TypeKind, element: &LogicalType) -> Result<ArrayRef> {
    let (mut lengths, mut elements) = (Vec::with_capacity(values.len()), Vec::new());
    for value in values {
        match value {
            Datum::Null => lengths.push(None),
            Datum::Array(items) => {
                lengths.push(Some(items.len()));
                elements.extend_from_slice(items);
            }
            other => return Err(other.mismatch(kind)),
        }
    }
    let (offsets, validity) = nested(&lengths)?;
    let field = Arc::new(element.arrow_field("element"));
    let array = ListArray::try_new(field, offsets, array_of(&elements, element)?, validity);
    Ok(Arc::new(
        array.map_err(|source| built("ARRAY column", source))?,
    ))
}

fn map(
    values: &[Datum],
    kind: &TypeKind,
    key: &LogicalType,
    value: &LogicalType,
) -> Result<ArrayRef> {
    let (mut lengths, mut keys, mut items) =
        (Vec::with_capacity(values.len()), Vec::new(), Vec::new());
    for datum in values {
        match datum {
            Datum::Null => lengths.push(None),
            Datum::Map(entries) => {
                lengths.push(Some(entries.len()));
                for (key, item) in entries {
                    keys.push(key.clone());
                    items.push(item.clone());
                }
            }
            other => return Err(other.mismatch(kind)),
        }
    }
    let (offsets, validity) = nested(&lengths)?;
    let key = LogicalType::not_null(key.kind.clone());
    let fields = Fields::from(vec![key.arrow_field("key"), value.arrow_field("value")]);
    let arrays = vec![array_of(&keys, &key)?, array_of(&items, value)?];
    let entries = StructArray::try_new(fields.clone(), arrays, None)
        .map_err(|source| built("MAP column", source))?;
    let field = Arc::new(Field::new("entries", DataType::Struct(fields), false));
    let array = MapArray::try_new(field, offsets, entries, validity, false);
    Ok(Arc::new(
        array.map_err(|source| built("MAP column", source))?,
    ))
}

fn row(values: &[Datum], ty: &LogicalType) -> Result<ArrayRef> {
    let TypeKind::Row(fields) = &ty.kind else {
        return Err(Error::UnsupportedType {
            operation: "row array",
            type_name: ty.to_string(),
        });
    };
    let mut columns = vec![Vec::with_capacity(values.len()); fields.len()];
    for value in values {
        match value {
            // Under a null row the fields hold nothing, whatever their nullability.
            Datum::Null => columns
                .iter_mut()
                .for_each(|column| column.push(Datum::Null)),
            Datum::Row(items) if items.len() == fields.len() => {
                for (column, item) in columns.iter_mut().zip(items) {
                    column.push(item.clone());
                }
            }
            other => return Err(other.mismatch(&ty.kind)),
        }
    }
    let validity: NullBuffer = values.iter().map(|value| !value.is_null()).collect();
    let mut arrays = Vec::with_capacity(fields.len());
    for (column, field) in columns.iter().zip(fields) {
        // Nulls under a present row are checked by `StructArray::try_new`, which knows the parent's
        // validity.
        arrays.push(array_of(
            column,
            &LogicalType::nullable(field.ty.kind.clone()),
        )?);
    }
    let arrow_fields: Fields = fields
        .iter()
        .map(|field| field.ty.arrow_field(&field.name))
        .collect();
    let validity = (validity.null_count() > 0).then_some(validity);
    let rows = values.len();
    let array = StructArray::try_new_with_length(arrow_fields, arrays, validity, rows);
    Ok(Arc::new(
        array.map_err(|source| built("ROW column", source))?,
    ))
}

fn built(what: &'static str, source: ArrowError) -> Error {
    Error::Arrow { what, source }
}
