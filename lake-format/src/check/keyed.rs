//! The rows of a data file with a primary key against its entry: their order, keys, sequence numbers
//! and kinds, and what tables without a key are checked for too.

use std::collections::BTreeMap;

use arrow::array::{ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{Int8Type, Int64Type};
use arrow::row::{RowConverter, SortField};
use futures::TryStreamExt;

use super::Check;
use super::rows::{full_stats, misplaced, wrong_stats};
use crate::data_file::DataFileMeta;
use crate::error::{Error, Result};
use crate::manifest::ManifestEntry;
use crate::partition::Partition;
use crate::paths::POSTPONE_BUCKET;
use crate::read::{DataFileReader, Split};
use crate::row_kind::RowKind;
use crate::schema::TableSchema;
use crate::snapshot::Snapshot;
use crate::stats::{SimpleStats, StatsCollector};
use crate::types::DataField;
use crate::write::layout::{KeyedColumns, key_at};

impl Check<'_> {
    /// Reads a file and notes the first problem of each sort.
    pub(super) async fn keyed_rows(
        &mut self,
        entry: &ManifestEntry,
        schema: &TableSchema,
        reader: DataFileReader,
    ) -> Result<()> {
        let object = reader.path.to_string();
        let found = self.table.read_keyed(entry, schema, reader).await;
        let Some(found) = self.note(&object, found)? else {
            return Ok(());
        };
        for reason in found.reasons {
            self.problem(&object, reason);
        }
        let real = DataFileMeta {
            value_stats: found.values.stats,
            value_stats_cols: found.values.columns,
            ..entry.file.clone()
        };
        self.value_stats(&object, entry, &real, schema)
    }

    /// The changelog files of a snapshot: that they exist, and how many rows they have.
    pub(super) async fn changelog(&mut self, name: &str, snapshot: &Snapshot) -> Result<()> {
        let Some(list) = &snapshot.changelog_manifest_list else {
            return Ok(());
        };
        let size = snapshot.changelog_manifest_list_size;
        let Some(manifests) = self.list(list, size).await? else {
            return Ok(());
        };
        let entries = self.entries(&manifests).await?;
        let rows: i64 = entries.iter().map(|entry| entry.file.row_count).sum();
        if let Some(stated) = snapshot.changelog_record_count
            && stated != rows
        {
            let reason = format!("{rows} rows in its changelog files where {stated} are stated");
            self.problem(name, reason);
        }
        for entry in &entries {
            let Some(schema) = self.schema(entry.file.schema_id).await? else {
                continue;
            };
            let Some(reader) = self.reader(entry, &schema)? else {
                continue;
            };
            if self.seen.insert(reader.path.to_string()) {
                self.size(&reader.path, entry.file.file_size).await?;
                self.sequence(&entry.file);
            }
        }
        Ok(())
    }
}

/// What the rows of a file are.
struct Found {
    /// The first problem of each sort.
    reasons: Vec<String>,
    values: crate::stats::ValueStats,
}

impl crate::table::Table {
    /// The rows of a file against its entry.
    async fn read_keyed(
        &self,
        entry: &ManifestEntry,
        schema: &TableSchema,
        reader: DataFileReader,
    ) -> Result<Found> {
        let names = reader.column_names().await?;
        let columns = KeyedColumns::new(schema)?;
        // Files of the thin mode leave the key columns out.
        let has_keys = columns.key.iter().all(|key| names.contains(&key.name));
        let mut fields = schema.fields.clone();
        fields.extend(columns.system.clone());
        if has_keys {
            fields.extend(columns.key.iter().cloned());
        }
        let split = Split {
            partition: Partition::from_bytes(&entry.partition, schema)?,
            bucket: entry.bucket,
            total_buckets: entry.total_buckets,
            files: vec![entry.file.clone()],
            deletions: BTreeMap::new(),
        };
        let mut rows = Rows::new(schema, &columns, has_keys)?;
        let mut batches = self.read_columns(reader, fields).await?;
        while let Some(batch) = batches.try_next().await? {
            rows.batch(&batch, &split, schema)?;
        }
        rows.finish(&entry.file)
    }
}

/// The rows of a file so far.
struct Rows<'a> {
    columns: &'a KeyedColumns,
    has_keys: bool,
    order: RowConverter,
    /// First and last key, as manifests have them.
    bounds: Option<(Vec<u8>, Vec<u8>)>,
    last_key: Option<Vec<u8>>,
    numbers: Option<(i64, i64)>,
    retractions: i64,
    keys: StatsCollector,
    values: StatsCollector,
    /// The first problem of each sort.
    found: BTreeMap<Sort, String>,
}

/// Sorts of problems that more than one row may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Sort {
    Order,
    KeyColumns,
    Place,
}

impl<'a> Rows<'a> {
    fn new(schema: &TableSchema, columns: &'a KeyedColumns, has_keys: bool) -> Result<Self> {
        let types = columns.key.iter().map(|key| key.data_type.arrow_type());
        let order = RowConverter::new(types.map(SortField::new).collect());
        Ok(Self {
            columns,
            has_keys,
            order: order.map_err(arrow_error)?,
            bounds: None,
            last_key: None,
            numbers: None,
            retractions: 0,
            keys: StatsCollector::of_keys(&columns.key),
            values: full_stats(schema)?,
            found: BTreeMap::new(),
        })
    }

    fn batch(&mut self, batch: &RecordBatch, split: &Split, schema: &TableSchema) -> Result<()> {
        let Some(last_row) = batch.num_rows().checked_sub(1) else {
            return Ok(());
        };
        let width = schema.fields.len();
        let values: Vec<usize> = (0..width).collect();
        self.values.update(&project(batch, &values)?)?;
        let keys = project(batch, &self.columns.key_places)?;
        self.keys.update(&keys)?;
        let key_types: &[DataField] = &self.columns.key;
        let last = key_at(&keys, last_row, key_types)?;
        self.bounds = match self.bounds.take() {
            Some((first, _)) => Some((first, last)),
            None => Some((key_at(&keys, 0, key_types)?, last)),
        };
        self.order_of(keys.columns(), split.bucket)?;
        let twins = batch.columns().get(width + 2..).unwrap_or_default();
        if self.has_keys && twins != keys.columns() {
            let reason = "a key column has another value than the column it is of".to_owned();
            self.found.entry(Sort::KeyColumns).or_insert(reason);
        }
        self.system(batch, width)?;
        if !self.found.contains_key(&Sort::Place)
            && let Some(reason) = misplaced(batch, split, schema)?
        {
            self.found.insert(Sort::Place, reason);
        }
        Ok(())
    }

    /// Whether each key is above the one before.
    fn order_of(&mut self, keys: &[ArrayRef], bucket: i32) -> Result<()> {
        let rows = self.order.convert_columns(keys).map_err(arrow_error)?;
        for row in &rows {
            let is_above = self
                .last_key
                .as_deref()
                .is_none_or(|last| last < row.data());
            // Rows that wait for a bucket are as they came.
            if !is_above && bucket != POSTPONE_BUCKET {
                let is_twice = self.last_key.as_deref() == Some(row.data());
                let reason = if is_twice {
                    "two rows have the same key"
                } else {
                    "its rows are not in the order of their keys"
                };
                let found = self.found.entry(Sort::Order);
                found.or_insert_with(|| reason.to_owned());
            }
            let last_key = self.last_key.get_or_insert_default();
            last_key.clear();
            last_key.extend_from_slice(row.data());
        }
        Ok(())
    }

    fn system(&mut self, batch: &RecordBatch, width: usize) -> Result<()> {
        let column = |place: usize| batch.columns().get(place);
        let numbers = column(width).and_then(|array| array.as_primitive_opt::<Int64Type>());
        let kinds = column(width + 1).and_then(|array| array.as_primitive_opt::<Int8Type>());
        let (Some(numbers), Some(kinds)) = (numbers, kinds) else {
            let reason = "its sequence numbers or row kinds are no numbers";
            return Err(Error::malformed("data file", reason));
        };
        for number in numbers.values() {
            let (low, high) = self.numbers.unwrap_or((*number, *number));
            self.numbers = Some((low.min(*number), high.max(*number)));
        }
        for kind in kinds.values() {
            self.retractions += i64::from(RowKind::try_from(*kind)?.is_retraction());
        }
        Ok(())
    }

    fn finish(self, file: &DataFileMeta) -> Result<Found> {
        let is_sorted = !self.found.contains_key(&Sort::Order);
        let mut reasons: Vec<String> = self.found.into_values().collect();
        if let Some((min, max)) = &self.bounds
            && is_sorted
        {
            let bounds = [
                (min, &file.min_key, "lowest"),
                (max, &file.max_key, "highest"),
            ];
            for (_, _, what) in bounds.iter().filter(|(key, stated, _)| key != stated) {
                reasons.push(format!("its {what} key is another than the stated one"));
            }
        }
        let stated = (file.min_sequence_number, file.max_sequence_number);
        if let Some(numbers) = self.numbers
            && numbers != stated
        {
            reasons.push(format!(
                "sequence numbers {} to {} where {} to {} are stated",
                numbers.0, numbers.1, stated.0, stated.1
            ));
        }
        if let Some(stated) = file.delete_row_count
            && stated != self.retractions
        {
            let found = self.retractions;
            reasons.push(format!("{found} retractions where {stated} are stated"));
        }
        let real = self.keys.finish()?.stats;
        if file.key_stats != SimpleStats::empty() {
            let types = || self.columns.key.iter().map(|key| &key.data_type);
            let pairs = file.key_stats.decode(types())?.into_iter();
            for ((stated, real), key) in pairs.zip(real.decode(types())?).zip(&self.columns.key) {
                if let Some(reason) = wrong_stats(&stated, &real) {
                    reasons.push(format!("column `{}`: {reason}", key.name));
                }
            }
        }
        Ok(Found {
            reasons,
            values: self.values.finish()?,
        })
    }
}

fn project(batch: &RecordBatch, places: &[usize]) -> Result<RecordBatch> {
    batch.project(places).map_err(arrow_error)
}

fn arrow_error(source: arrow::error::ArrowError) -> Error {
    Error::Arrow {
        what: "the keys of a data file".to_owned(),
        source,
    }
}
