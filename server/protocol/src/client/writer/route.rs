//! Which partition and bucket a row belongs to. Pure; the order of rows is kept within a bucket.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch, UInt32Array, new_null_array};
use arrow::compute::{cast, take_record_batch};
use arrow::datatypes::SchemaRef;
use arrow::row::{RowConverter, SortField};

use crate::client::Error;
use crate::client::metadata::TableMetadata;
use crate::ids::{BucketId, TotalBuckets};
use crate::partition::{self, PartitionSpec};
use crate::record::arrow::Compression;
use crate::row::bucket::bucket_ids;
use crate::row::datum_at;
use crate::row::key::KeyFormat;
use crate::schema::TypeKind;

/// Rows of one partition.
pub(super) struct PartitionRows {
    /// Its keys and values; `None` in a table without partitions.
    pub(super) spec: Option<PartitionSpec>,
    pub(super) rows: RecordBatch,
}

/// What of a table decides where rows go.
#[derive(Debug)]
pub(super) struct Router {
    table: String,
    schema: SchemaRef,
    partition_keys: Vec<String>,
    partition_columns: Vec<(usize, TypeKind)>,
    /// Columns and encoding; the encoding is the lake's, also while the lake is off.
    bucket_key: Option<(Vec<usize>, KeyFormat)>,
}

impl Router {
    pub(super) fn new(table: &TableMetadata) -> Result<Self, Error> {
        let descriptor = &table.descriptor;
        let name = table.path.to_string();
        let refused = |reason: &'static str, value: &str| {
            let source = crate::Error::invalid("table descriptor", value, reason);
            Err(Error::codec(name.clone(), source))
        };
        match property(table, "table.log.format") {
            None => {}
            // The server writes the log of a table with a primary key.
            Some(_) if descriptor.schema.has_primary_key() => {}
            Some(format) if format.eq_ignore_ascii_case("ARROW") => {}
            Some(format) => return refused("log format is not ARROW", format),
        }
        let columns = |names: &[String]| -> Result<Vec<(usize, TypeKind)>, Error> {
            let indexes = descriptor.schema.column_indexes(names);
            let indexes = indexes.map_err(|source| Error::codec(name.clone(), source))?;
            let column = |i: usize| {
                descriptor
                    .schema
                    .columns
                    .get(i)
                    .map(|c| (i, c.ty.kind.clone()))
            };
            Ok(indexes.into_iter().filter_map(column).collect())
        };
        let bucket_key = match descriptor.bucket_keys.as_slice() {
            [] => None,
            keys => {
                let format = KeyFormat::of_lake(property(table, "table.datalake.format"));
                let format = format.map_err(|source| Error::codec(name.clone(), source))?;
                Some((
                    columns(keys)?.into_iter().map(|(index, _)| index).collect(),
                    format,
                ))
            }
        };
        Ok(Self {
            schema: descriptor.schema.arrow_schema(),
            partition_columns: columns(&descriptor.partition_keys)?,
            partition_keys: descriptor.partition_keys.clone(),
            table: name,
            bucket_key,
        })
    }

    /// The rows with the table's columns in the table's order and types.
    pub(super) fn conform(&self, rows: &RecordBatch) -> Result<RecordBatch, Error> {
        let wrong = |column: &str, reason: &'static str| Error::Rows {
            table: self.table.clone(),
            column: column.to_owned(),
            reason,
        };
        for field in rows.schema_ref().fields() {
            if self.schema.column_with_name(field.name()).is_none() {
                return Err(wrong(field.name(), "the table has no such column"));
            }
        }
        let mut columns: Vec<ArrayRef> = Vec::with_capacity(self.schema.fields().len());
        for field in self.schema.fields() {
            let column = match rows.column_by_name(field.name()) {
                Some(column) if column.data_type() == field.data_type() => Arc::clone(column),
                Some(column) if column.data_type().equals_datatype(field.data_type()) => {
                    cast(column, field.data_type())
                        .map_err(|_| wrong(field.name(), "type is not the table's"))?
                }
                Some(_) => return Err(wrong(field.name(), "type is not the table's")),
                None if field.is_nullable() => new_null_array(field.data_type(), rows.num_rows()),
                None => return Err(wrong(field.name(), "column is missing and not nullable")),
            };
            if !field.is_nullable() && column.null_count() > 0 {
                return Err(wrong(field.name(), "null in a column that is not nullable"));
            }
            columns.push(column);
        }
        let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(rows.num_rows()));
        let schema = Arc::clone(&self.schema);
        RecordBatch::try_new_with_options(schema, columns, &options).map_err(|e| self.arrow(e))
    }

    /// The rows by partition, in the order of each partition's first row; nothing for no rows.
    pub(super) fn by_partition(&self, rows: &RecordBatch) -> Result<Vec<PartitionRows>, Error> {
        if rows.num_rows() == 0 {
            return Ok(Vec::new());
        }
        if self.partition_columns.is_empty() {
            return Ok(vec![PartitionRows {
                spec: None,
                rows: rows.clone(),
            }]);
        }
        let columns: Vec<ArrayRef> = self
            .partition_columns
            .iter()
            .map(|(i, _)| Arc::clone(rows.column(*i)))
            .collect();
        let sorts = columns
            .iter()
            .map(|c| SortField::new(c.data_type().clone()))
            .collect();
        let converter = RowConverter::new(sorts).map_err(|e| self.arrow(e))?;
        let keys = converter
            .convert_columns(&columns)
            .map_err(|e| self.arrow(e))?;
        let mut groups = Groups::default();
        let mut seen = HashMap::new();
        for (index, key) in keys.iter().enumerate() {
            let fresh = seen.len();
            groups.push(*seen.entry(key).or_insert(fresh), index);
        }
        let part = |group: &Vec<u32>| {
            let first = group.first().map_or(0, |index| *index as usize);
            Ok(PartitionRows {
                spec: Some(self.spec(rows, first)?),
                rows: self.take(rows, group)?,
            })
        };
        groups.0.iter().map(part).collect()
    }

    fn spec(&self, rows: &RecordBatch, index: usize) -> Result<PartitionSpec, Error> {
        let value = |(column, kind): &(usize, TypeKind)| {
            let datum = datum_at(rows.column(*column), index, kind)?;
            partition::value_text(&datum, kind)
        };
        let values: Result<Vec<String>, crate::Error> =
            self.partition_columns.iter().map(value).collect();
        let spec = values.and_then(|values| PartitionSpec::new(&self.partition_keys, &values));
        spec.map_err(|source| Error::codec(format!("partition of a row of {}", self.table), source))
    }

    /// The rows by bucket, in the order of buckets; `None` for a table without bucket key.
    pub(super) fn by_bucket_key(
        &self,
        rows: &RecordBatch,
        total: TotalBuckets,
    ) -> Result<Option<Vec<(BucketId, RecordBatch)>>, Error> {
        let Some((columns, format)) = &self.bucket_key else {
            return Ok(None);
        };
        if total == TotalBuckets(1) {
            return Ok(Some(vec![(BucketId(0), rows.clone())]));
        }
        let mut groups = Groups::default();
        let buckets = bucket_ids(rows, columns, *format, total).map_err(|source| {
            Error::codec(format!("bucket key of a row of {}", self.table), source)
        })?;
        for (index, bucket) in buckets.into_iter().enumerate() {
            groups.push(usize::try_from(bucket).unwrap_or(0), index);
        }
        let mut routed = Vec::new();
        for (bucket, group) in (0..).zip(&groups.0) {
            if !group.is_empty() {
                routed.push((BucketId(bucket), self.take(rows, group)?));
            }
        }
        Ok(Some(routed))
    }

    fn take(&self, rows: &RecordBatch, group: &[u32]) -> Result<RecordBatch, Error> {
        if group.len() == rows.num_rows() {
            return Ok(rows.clone());
        }
        let indexes = UInt32Array::from_iter_values(group.iter().copied());
        take_record_batch(rows, &indexes).map_err(|e| self.arrow(e))
    }

    fn arrow(&self, source: arrow::error::ArrowError) -> Error {
        let what = "rows of a log table";
        Error::codec(self.table.clone(), crate::Error::Arrow { what, source })
    }
}

/// Row indexes by group number.
#[derive(Default)]
struct Groups(Vec<Vec<u32>>);

impl Groups {
    fn push(&mut self, group: usize, index: usize) {
        if group >= self.0.len() {
            self.0.resize_with(group + 1, Vec::new);
        }
        if let (Some(rows), Ok(index)) = (self.0.get_mut(group), u32::try_from(index)) {
            rows.push(index);
        }
    }
}

/// The compression that the table asks its writers to use; ZSTD 3 if it says nothing.
pub(super) fn table_compression(table: &TableMetadata) -> Result<Compression, Error> {
    let invalid = |value: &str, reason: &'static str| {
        let source = crate::Error::invalid("table descriptor", value, reason);
        Err(Error::codec(table.path.to_string(), source))
    };
    let kind = property(table, "table.log.arrow.compression.type").unwrap_or("ZSTD");
    match kind.to_ascii_uppercase().as_str() {
        "NONE" => Ok(Compression::None),
        "LZ4_FRAME" => Ok(Compression::Lz4),
        "ZSTD" => {
            let level = property(table, "table.log.arrow.compression.zstd.level").unwrap_or("3");
            match level.parse() {
                Ok(level @ 1..=22) => Ok(Compression::Zstd(level)),
                _ => invalid(level, "ZSTD level is not 1 to 22"),
            }
        }
        _ => invalid(kind, "compression is none of NONE, LZ4_FRAME, ZSTD"),
    }
}

pub(super) fn property<'a>(table: &'a TableMetadata, key: &str) -> Option<&'a str> {
    table.descriptor.properties.get(key).map(String::as_str)
}
