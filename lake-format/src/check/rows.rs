//! The rows of a data file against its entry: statistics, partition and bucket.

use arrow::array::{Array, ArrayRef, RecordBatch};
use futures::TryStreamExt;

use super::Check;
use crate::binary_row::BinaryRow;
use crate::bucket::bucket_of_key;
use crate::datum::Datum;
use crate::error::{Error, Result};
use crate::manifest::ManifestEntry;
use crate::options::TableOptions;
use crate::partition::Partition;
use crate::read::{DataFileReader, Split};
use crate::schema::TableSchema;
use crate::stats::{ColumnStats, StatsCollector};
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
        let partition = Partition::from_bytes(&entry.partition, schema)?;
        let split = Split {
            partition,
            bucket: entry.bucket,
            total_buckets: entry.total_buckets,
            files: vec![entry.file.clone()],
        };
        let stream = self.table.read_split_as(&split, schema, None).await;
        let Some(mut stream) = self.note(&object, stream)? else {
            return Ok(());
        };
        let mut collector = full_stats(schema)?;
        let mut is_placed = true;
        loop {
            let next = stream.try_next().await;
            let Some(Some(batch)) = self.note(&object, next)? else {
                break;
            };
            collector.update(&batch)?;
            if is_placed && let Some(reason) = misplaced(&batch, &split, schema)? {
                self.problem(&object, reason);
                is_placed = false;
            }
        }
        let found = collector.finish()?;
        let real = crate::DataFileMeta {
            value_stats: found.stats,
            value_stats_cols: found.columns,
            ..entry.file.clone()
        };
        let stated = Table::file_stats(&entry.file, schema);
        let Some(stated) = self.note(&object, stated)? else {
            return Ok(());
        };
        let real = Table::file_stats(&real, schema)?;
        for (name, stated) in stated {
            let real = real.iter().find(|(column, _)| *column == name);
            if let Some(reason) = real.and_then(|(_, real)| wrong_stats(&stated, real)) {
                self.problem(&object, format!("column `{name}`: {reason}"));
            }
        }
        Ok(())
    }
}

/// A collector that cuts no bound.
fn full_stats(schema: &TableSchema) -> Result<StatsCollector> {
    let mut schema = schema.clone();
    schema.options.retain(|name, _| !name.contains("stats"));
    schema
        .options
        .insert("metadata.stats-mode".to_owned(), "full".to_owned());
    StatsCollector::new(&schema)
}

/// How stated statistics are wrong of what is there, if they are.
fn wrong_stats(stated: &ColumnStats, real: &ColumnStats) -> Option<String> {
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
fn misplaced(batch: &RecordBatch, split: &Split, schema: &TableSchema) -> Result<Option<String>> {
    let partition = Columns::new(
        batch,
        schema,
        schema.partition_keys.iter().map(String::as_str),
    )?;
    let uses_hash = TableOptions::new(&schema.options)
        .get("bucket-function.type")
        .is_none_or(|f| f == "default");
    let key = if split.total_buckets > 0 && uses_hash {
        let fields = schema.bucket_key_fields()?;
        Some(Columns::new(
            batch,
            schema,
            fields.iter().map(|field| field.name.as_str()),
        )?)
    } else {
        None
    };
    for row in 0..batch.num_rows() {
        if partition.row(row)? != *split.partition.row() {
            return Ok(Some("a row is of another partition".to_owned()));
        }
        if let Some(key) = &key {
            let bucket = bucket_of_key(&key.row(row)?, split.total_buckets)?;
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

    fn row(&self, row: usize) -> Result<BinaryRow> {
        let pairs = self.arrays.iter().zip(&self.types);
        let values =
            pairs.map(|(array, data_type)| Datum::from_array(*array as &dyn Array, row, data_type));
        BinaryRow::encode(&values.collect::<Result<Vec<_>>>()?, self.types.iter())
    }
}
