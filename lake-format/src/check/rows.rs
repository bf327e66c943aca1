//! The rows of a data file against its entry: statistics, partition and bucket.

use std::collections::BTreeMap;

use arrow::array::{Array, ArrayRef, RecordBatch};
use futures::TryStreamExt;

use super::Check;
use crate::binary_row::BinaryRow;
use crate::bucket::{bucket_of_key, mod_bucket_of};
use crate::data_file::DataFileMeta;
use crate::datum::Datum;
use crate::error::{Error, Result};
use crate::manifest::ManifestEntry;
use crate::options::TableOptions;
use crate::partition::Partition;
use crate::read::{DataFileReader, Split};
use crate::schema::TableSchema;
use crate::stats::{ColumnStats, StatsCollector, ValueStats};
use crate::table::Table;
use crate::types::DataType;

impl Check<'_> {
    /// Reads a file and notes the first problem of each sort.
    pub(super) async fn rows(
        &mut self,
        entry: &ManifestEntry,
        schema: &TableSchema,
        reader: DataFileReader,
    ) -> Result<()> {
        let object = reader.path.to_string();
        let partition = Partition::from_bytes(&entry.partition, schema);
        let Some(partition) = self.note(&object, partition)? else {
            return Ok(());
        };
        let split = Split {
            partition,
            bucket: entry.bucket,
            total_buckets: entry.total_buckets,
            files: vec![entry.file.clone()],
            deletions: BTreeMap::new(),
        };
        let Some(found) = self.read_rows(&object, &split, schema).await? else {
            return Ok(());
        };
        let real = DataFileMeta {
            value_stats: found.stats,
            value_stats_cols: found.columns,
            ..entry.file.clone()
        };
        self.value_stats(&object, entry, &real, schema)
    }

    /// The stated statistics of a file against the real ones.
    pub(super) fn value_stats(
        &mut self,
        object: &str,
        entry: &ManifestEntry,
        real: &DataFileMeta,
        schema: &TableSchema,
    ) -> Result<()> {
        let stated = Table::file_stats(&entry.file, schema);
        let Some(stated) = self.note(object, stated)? else {
            return Ok(());
        };
        let real = Table::file_stats(real, schema);
        let Some(real) = self.note(object, real)? else {
            return Ok(());
        };
        for (name, stated) in stated {
            let real = real.iter().find(|(column, _)| *column == name);
            if let Some(reason) = real.and_then(|(_, real)| wrong_stats(&stated, real)) {
                self.problem(object, format!("column `{name}`: {reason}"));
            }
        }
        Ok(())
    }

    /// The real statistics of a file's rows, each row looked at; `None` if that cannot be done,
    /// which is noted.
    async fn read_rows(
        &mut self,
        object: &str,
        split: &Split,
        schema: &TableSchema,
    ) -> Result<Option<ValueStats>> {
        let stream = self.table.read_split_as(split, schema, None).await;
        let collector = full_stats(schema);
        let (Some(mut stream), Some(mut collector)) =
            (self.note(object, stream)?, self.note(object, collector)?)
        else {
            return Ok(None);
        };
        let mut is_placed = true;
        loop {
            let next = stream.try_next().await;
            let Some(next) = self.note(object, next)? else {
                return Ok(None);
            };
            let Some(batch) = next else {
                let found = collector.finish();
                return self.note(object, found);
            };
            let counted = collector.update(&batch);
            if self.note(object, counted)?.is_none() {
                return Ok(None);
            }
            if is_placed {
                let reason = misplaced(&batch, split, schema);
                let reason = self.note(object, reason)?;
                is_placed = matches!(reason, Some(None));
                if let Some(Some(reason)) = reason {
                    self.problem(object, reason);
                }
            }
        }
    }
}

/// A collector that cuts no bound.
pub(super) fn full_stats(schema: &TableSchema) -> Result<StatsCollector> {
    let mut schema = schema.clone();
    schema.options.retain(|name, _| !name.contains("stats"));
    schema
        .options
        .insert("metadata.stats-mode".to_owned(), "full".to_owned());
    StatsCollector::new(&schema)
}

/// How stated statistics are wrong of what is there, if they are.
pub(super) fn wrong_stats(stated: &ColumnStats, real: &ColumnStats) -> Option<String> {
    if let (Some(stated), Some(real)) = (stated.null_count, real.null_count)
        && stated != real
    {
        return Some(format!("{real} nulls where {stated} are stated"));
    }
    if stated.min.compare(&real.min) == Some(std::cmp::Ordering::Greater)
        && !are_equal_zeros(&stated.min, &real.min)
    {
        return Some(format!(
            "the lowest value is {:?}, below the stated {:?}",
            real.min, stated.min
        ));
    }
    if stated.max.compare(&real.max) == Some(std::cmp::Ordering::Less)
        && !are_equal_zeros(&stated.max, &real.max)
    {
        return Some(format!(
            "the highest value is {:?}, above the stated {:?}",
            real.max, stated.max
        ));
    }
    None
}

/// Zeros of both signs are equal in filters.
fn are_equal_zeros(a: &Datum, b: &Datum) -> bool {
    let is_zero = |value: &Datum| match value {
        Datum::Float(value) => value.abs().to_bits() == 0,
        Datum::Double(value) => value.abs().to_bits() == 0,
        _ => false,
    };
    is_zero(a) && is_zero(b)
}

/// The first row of a batch that is not of the split's partition and bucket.
pub(super) fn misplaced(
    batch: &RecordBatch,
    split: &Split,
    schema: &TableSchema,
) -> Result<Option<String>> {
    let partition = Columns::new(
        batch,
        schema,
        schema.partition_keys.iter().map(String::as_str),
    )?;
    let function = TableOptions::new(&schema.options).get("bucket-function.type");
    let bucket_of = match function.unwrap_or("default") {
        "default" => Some(bucket_by_hash as BucketOf),
        "mod" => Some(bucket_by_mod as BucketOf),
        _ => None,
    };
    let bucket_of = bucket_of.filter(|_| split.total_buckets > 0);
    let key = if let Some(bucket_of) = bucket_of {
        let fields = schema.bucket_key_fields()?;
        let names = fields.iter().map(|field| field.name.as_str());
        Some((bucket_of, Columns::new(batch, schema, names)?))
    } else {
        None
    };
    for row in 0..batch.num_rows() {
        if partition.row(row)? != *split.partition.row() {
            return Ok(Some("a row is of another partition".to_owned()));
        }
        if let Some((bucket_of, key)) = &key {
            let bucket = bucket_of(key, row, split.total_buckets)?;
            if bucket != split.bucket {
                return Ok(Some(format!(
                    "a row in bucket {} belongs to bucket {bucket}",
                    split.bucket
                )));
            }
        }
    }
    Ok(None)
}

/// The bucket of a row by its bucket key and the bucket count.
type BucketOf = fn(&Columns<'_>, usize, i32) -> Result<i32>;

fn bucket_by_hash(key: &Columns<'_>, row: usize, total_buckets: i32) -> Result<i32> {
    bucket_of_key(&key.row(row)?, total_buckets)
}

fn bucket_by_mod(key: &Columns<'_>, row: usize, total_buckets: i32) -> Result<i32> {
    match key.values(row)?.as_slice() {
        [key] => mod_bucket_of(key, total_buckets),
        keys => {
            let reason = format!("the function `mod` takes one column, not {}", keys.len());
            Err(Error::bad_value("bucket key", reason))
        }
    }
}

/// Some columns of a batch, as binary rows.
struct Columns<'a> {
    arrays: Vec<&'a ArrayRef>,
    types: Vec<DataType>,
}

impl<'a> Columns<'a> {
    fn new<'n>(
        batch: &'a RecordBatch,
        schema: &TableSchema,
        names: impl Iterator<Item = &'n str>,
    ) -> Result<Self> {
        let mut columns = Self {
            arrays: Vec::new(),
            types: Vec::new(),
        };
        for name in names {
            let field = schema.field(name).zip(batch.column_by_name(name));
            let (field, array) =
                field.ok_or_else(|| Error::bad_value(name, "is not in the batch"))?;
            columns.arrays.push(array);
            columns.types.push(field.data_type.clone());
        }
        Ok(columns)
    }

    fn values(&self, row: usize) -> Result<Vec<Datum>> {
        let pairs = self.arrays.iter().zip(&self.types);
        let values =
            pairs.map(|(array, data_type)| Datum::from_array(*array as &dyn Array, row, data_type));
        values.collect()
    }

    fn row(&self, row: usize) -> Result<BinaryRow> {
        BinaryRow::encode(&self.values(row)?, self.types.iter())
    }
}
