//! Alignment: a batch of the log, of whatever schema it was written with, as a batch of the lake
//! table.
//!
//! Columns are found by name. What the log's schema does not have yet is padded with nulls; what
//! the lake table does not have is an error, since the lake is always widened first. Values are not
//! copied unless their width differs.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, Int32Array, Int64Array, ListArray, MapArray, RecordBatch,
    RecordBatchOptions, StructArray, new_null_array,
};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{
    DataType, Decimal128Type, Field, SchemaRef, TimeUnit, TimestampMicrosecondType,
    TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType,
};
use arrow::error::ArrowError;
use weir_lake_format::TableSchema;
use weir_protocol::ids::{BucketId, LogOffset, TableBucket, TableId, TablePath};
use weir_protocol::schema::Schema;

use crate::error::{Error, Result};

/// The columns that tables of release 0.9 end in, in this order.
pub const SYSTEM_COLUMNS: [&str; 3] = ["__bucket", "__offset", "__timestamp"];

/// Where the values of one lake column come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Column(usize),
    Null,
    Bucket,
    Offset,
    Timestamp,
}

/// How batches of one log schema become batches of one lake schema.
#[derive(Clone, Debug)]
pub struct Alignment {
    table: TablePath,
    target: SchemaRef,
    origins: Vec<Origin>,
    /// Of the lake table's primary key, by place.
    keys: Vec<usize>,
}

/// Where a batch stands in its bucket's log.
#[derive(Clone, Copy, Debug)]
pub struct Position {
    /// The bucket.
    pub bucket: TableBucket,
    /// The offset of the batch's first row.
    pub offset: LogOffset,
    /// When the batch was appended, in milliseconds since 1970.
    pub timestamp_ms: i64,
}

impl Position {
    /// Of a batch without rows.
    pub(crate) fn none(table: TableId) -> Self {
        Self {
            bucket: TableBucket {
                table,
                partition: None,
                bucket: BucketId(0),
            },
            offset: LogOffset(0),
            timestamp_ms: 0,
        }
    }
}

/// Whether the lake table ends in the three system columns.
pub fn has_system_columns(lake: &TableSchema) -> bool {
    let names = lake
        .fields
        .iter()
        .rev()
        .take(SYSTEM_COLUMNS.len())
        .map(|f| f.name.as_str());
    names.eq(SYSTEM_COLUMNS.into_iter().rev())
}

impl Alignment {
    /// Plans how batches of `log` are written to a table of `lake`.
    ///
    /// # Errors
    /// [`Error::Schema`] if the lake table lacks a column, or demands one that the log's schema
    /// lacks.
    pub fn new(table: &TablePath, log: &Schema, lake: &TableSchema) -> Result<Self> {
        let system = has_system_columns(lake);
        let users = lake.fields.len() - if system { SYSTEM_COLUMNS.len() } else { 0 };
        let bad = |column: &str, reason: &str| Error::Schema {
            table: table.clone(),
            column: column.to_owned(),
            reason: reason.to_owned(),
        };
        let mut origins = Vec::with_capacity(lake.fields.len());
        let mut found = 0;
        for field in lake.fields.iter().take(users) {
            let origin = match log.column_index(&field.name) {
                Some(index) => Origin::Column(index),
                None if field.data_type.nullable => Origin::Null,
                None => {
                    return Err(bad(
                        &field.name,
                        "the lake table demands it, the log lacks it; make it nullable in the lake table, or \
                         drop it there",
                    ));
                }
            };
            found += usize::from(origin != Origin::Null);
            origins.push(origin);
        }
        if found < log.columns.len() {
            let missing = log
                .columns
                .iter()
                .find(|column| lake.field_index(&column.name).is_none());
            let name = missing.map_or("", |column| column.name.as_str());
            return Err(bad(
                name,
                "the lake table lacks it; add it there as a nullable column of that type",
            ));
        }
        if system {
            origins.extend([Origin::Bucket, Origin::Offset, Origin::Timestamp]);
        }
        Ok(Self {
            table: table.clone(),
            target: lake.arrow_schema(),
            origins,
            keys: lake
                .primary_keys
                .iter()
                .filter_map(|key| lake.field_index(key))
                .collect(),
        })
    }

    /// The table, for messages.
    pub fn table(&self) -> &TablePath {
        &self.table
    }

    /// The rows of `batch` as the lake table takes them.
    ///
    /// # Errors
    /// [`Error::Column`] for a value that the lake's column can't hold, with its offset where one
    /// row is at fault.
    pub fn apply(&self, batch: &RecordBatch, position: Position) -> Result<RecordBatch> {
        let rows = batch.num_rows();
        let mut columns = Vec::with_capacity(self.origins.len());
        for (field, origin) in self.target.fields().iter().zip(&self.origins) {
            let column = match origin {
                Origin::Null => Ok(new_null_array(field.data_type(), rows)),
                Origin::Column(index) => match batch.columns().get(*index) {
                    Some(column) => conform(column, field.data_type()),
                    None => Err(ArrowError::SchemaError("the batch lacks it".to_owned())),
                },
                Origin::Bucket => {
                    let bucket = Int32Array::from_value(position.bucket.bucket.0, rows);
                    Ok(Arc::new(bucket) as ArrayRef)
                }
                Origin::Offset => Ok(offsets(position.offset, rows)),
                Origin::Timestamp => timestamps(position.timestamp_ms, rows, field.data_type()),
            };
            let column = column.map_err(|error| self.misfit(field, position, error))?;
            if !field.is_nullable() && column.null_count() > 0 {
                let row = (0..rows).find(|row| column.is_null(*row)).unwrap_or(0);
                let row = i64::try_from(row).unwrap_or(i64::MAX);
                let offset = LogOffset(position.offset.0.saturating_add(row));
                return Err(self.bad(field, offset, position, "null in a column that forbids it"));
            }
            columns.push(column);
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let batch = RecordBatch::try_new_with_options(Arc::clone(&self.target), columns, &options);
        let batch = batch.map_err(|e| self.bad_batch(position, &e))?;
        self.checked(batch, position)
    }

    /// What the writer of the lake would refuse is refused here, where it is the row's fault and not
    /// the round's.
    fn checked(&self, batch: RecordBatch, position: Position) -> Result<RecordBatch> {
        use weir_lake_format::write::{check_keys, check_rows};
        let checked = check_rows(&batch, &self.target);
        match checked.and_then(|()| check_keys(&batch, &self.keys)) {
            Ok(()) => Ok(batch),
            Err(weir_lake_format::Error::BadValue { column, reason }) => Err(Error::Column {
                table: self.table.clone(),
                bucket: position.bucket,
                offset: position.offset,
                column,
                reason,
            }),
            Err(source) => Err(Error::Lake {
                table: self.table.clone(),
                source,
            }),
        }
    }

    /// A type that can't be written at all is no single row's fault.
    fn misfit(&self, field: &Field, at: Position, error: ArrowError) -> Error {
        match error {
            ArrowError::SchemaError(reason) => Error::Schema {
                table: self.table.clone(),
                column: field.name().clone(),
                reason: format!("{reason}; give the lake table's column its type back"),
            },
            error => self.bad(field, at.offset, at, &error.to_string()),
        }
    }

    fn bad(&self, field: &Field, offset: LogOffset, at: Position, reason: &str) -> Error {
        Error::Column {
            table: self.table.clone(),
            bucket: at.bucket,
            offset,
            column: field.name().clone(),
            reason: reason.to_owned(),
        }
    }

    fn bad_batch(&self, at: Position, error: &ArrowError) -> Error {
        Error::Column {
            table: self.table.clone(),
            bucket: at.bucket,
            offset: at.offset,
            column: "(all)".to_owned(),
            reason: error.to_string(),
        }
    }
}

fn offsets(first: LogOffset, rows: usize) -> ArrayRef {
    let rows = i64::try_from(rows).unwrap_or(i64::MAX);
    Arc::new(Int64Array::from_iter_values(
        first.0..first.0.saturating_add(rows),
    ))
}

fn timestamps(millis: i64, rows: usize, to: &DataType) -> Result<ArrayRef, ArrowError> {
    let array = Arc::new(arrow::array::TimestampMillisecondArray::from_value(
        millis, rows,
    ));
    conform(&(array as ArrayRef), to)
}

/// The same values under another name of their type: no copy where the layout is the same.
fn conform(array: &ArrayRef, to: &DataType) -> Result<ArrayRef, ArrowError> {
    use DataType::{
        Binary, Decimal128, FixedSizeBinary, Float32, Float64, Int8, Int16, Int32, Int64, List,
        Map, Struct, Time32, Time64, Timestamp,
    };
    if array.data_type() == to {
        return Ok(Arc::clone(array));
    }
    match (array.data_type(), to) {
        (List(_), List(element)) => {
            let list = array.as_list::<i32>();
            let values = conform(list.values(), element.data_type())?;
            let (offsets, nulls) = (list.offsets().clone(), list.nulls().cloned());
            Ok(Arc::new(ListArray::try_new(
                Arc::clone(element),
                offsets,
                values,
                nulls,
            )?))
        }
        (Map(..), Map(entries, sorted)) => {
            let map = array.as_map();
            let inner = conform(
                &(Arc::new(map.entries().clone()) as ArrayRef),
                entries.data_type(),
            )?;
            let (offsets, nulls) = (map.offsets().clone(), map.nulls().cloned());
            let inner = inner.as_struct().clone();
            Ok(Arc::new(MapArray::try_new(
                Arc::clone(entries),
                offsets,
                inner,
                nulls,
                *sorted,
            )?))
        }
        (Struct(from), Struct(fields)) if from.len() == fields.len() => {
            let parts = array.as_struct();
            let columns = parts
                .columns()
                .iter()
                .zip(fields)
                .map(|(column, field)| conform(column, field.data_type()))
                .collect::<Result<Vec<_>, _>>()?;
            let nulls = parts.nulls().cloned();
            let length = parts.len();
            Ok(Arc::new(StructArray::try_new_with_length(
                fields.clone(),
                columns,
                nulls,
                length,
            )?))
        }
        (Timestamp(..), Timestamp(unit, zone)) => timestamp(array, *unit, zone.as_ref()),
        (FixedSizeBinary(_), Binary) | (Time32(_) | Time64(_), Time32(TimeUnit::Millisecond)) => {
            let options = CastOptions {
                safe: false,
                ..CastOptions::default()
            };
            cast_with_options(array, to, &options)
        }
        // What another engine has widened in the lake takes all values.
        (Decimal128(from, scale), Decimal128(to, to_scale)) if from <= to && scale == to_scale => {
            let values = array.as_primitive::<Decimal128Type>().clone();
            Ok(Arc::new(values.with_precision_and_scale(*to, *to_scale)?))
        }
        (Int8, Int16 | Int32 | Int64)
        | (Int16, Int32 | Int64)
        | (Int32, Int64)
        | (Float32, Float64) => arrow::compute::cast(array, to),
        (from, to) => Err(ArrowError::SchemaError(format!(
            "{from} cannot be written as {to}"
        ))),
    }
}

fn timestamp(
    array: &ArrayRef,
    unit: TimeUnit,
    zone: Option<&Arc<str>>,
) -> Result<ArrayRef, ArrowError> {
    // Both kinds count from 1970 in UTC: the zone is a name only, and is changed without touching
    // values.
    let options = CastOptions {
        safe: false,
        ..CastOptions::default()
    };
    let plain = DataType::Timestamp(unit, None);
    let values = match array.data_type() {
        DataType::Timestamp(from, _) if *from == unit => Arc::clone(array),
        DataType::Timestamp(from, Some(_)) => {
            cast_with_options(&timestamp(array, *from, None)?, &plain, &options)?
        }
        _ => cast_with_options(array, &plain, &options)?,
    };
    macro_rules! zoned {
        ($unit:ty) => {
            Arc::new(
                values
                    .as_primitive::<$unit>()
                    .clone()
                    .with_timezone_opt(zone.cloned()),
            )
        };
    }
    Ok(match unit {
        TimeUnit::Second => zoned!(TimestampSecondType),
        TimeUnit::Millisecond => zoned!(TimestampMillisecondType),
        TimeUnit::Microsecond => zoned!(TimestampMicrosecondType),
        TimeUnit::Nanosecond => zoned!(TimestampNanosecondType),
    })
}

#[cfg(test)]
mod tests;
