//! The columns of the files of a writer, and what is gathered of their rows for the manifest.

use std::sync::Arc;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::compute::{max, min};
use arrow::datatypes::{Int8Type, Int64Type, SchemaRef};

use crate::binary_row::BinaryRow;
use crate::data_file::DataFileMeta;
use crate::datum::Datum;
use crate::error::{Error, Result};
use crate::merge::{SEQUENCE_NUMBER, VALUE_KIND};
use crate::options::TableOptions;
use crate::row_kind::RowKind;
use crate::schema::TableSchema;
use crate::stats::StatsCollector;
use crate::types::{DataField, DataType, TypeKind, arrow_schema};

/// What the names of key columns begin with in files (paimon: `SpecialFields`).
const KEY_PREFIX: &str = "_KEY_";

/// The field id of a key column in files is this more than that of its column.
const KEY_ID_OFFSET: i32 = (1 << 30) - 1;

/// The columns of files.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    schema: Arc<TableSchema>,
    arrow_schema: SchemaRef,
    /// With a primary key.
    keyed: Option<Keyed>,
}

/// The columns before the values.
#[derive(Clone, Debug)]
struct Keyed {
    columns: KeyedColumns,
    /// Whether files leave out the key columns: the values tell them (`data-file.thin-mode`).
    is_thin: bool,
}

/// What files of tables with a primary key have beside the table's columns.
#[derive(Clone, Debug)]
pub(crate) struct KeyedColumns {
    /// The columns of the trimmed primary key, as their files have them.
    pub(crate) key: Vec<DataField>,
    /// Their places among the table's columns.
    pub(crate) key_places: Vec<usize>,
    /// Sequence number and row kind.
    pub(crate) system: [DataField; 2],
}

impl KeyedColumns {
    /// # Errors
    /// [`Error::InvalidSchema`] if a key is no column.
    pub(crate) fn new(schema: &TableSchema) -> Result<Self> {
        let (mut key, mut key_places) = (Vec::new(), Vec::new());
        for name in schema.trimmed_primary_keys() {
            let place = schema.field_index(name);
            let field = place.and_then(|place| schema.fields.get(place));
            let no_column = || crate::schema::invalid(format!("no column `{name}`"));
            let (place, field) = place.zip(field).ok_or_else(no_column)?;
            let id = field.id.saturating_add(KEY_ID_OFFSET);
            let name = format!("{KEY_PREFIX}{name}");
            key.push(DataField::new(id, name, field.data_type.clone()));
            key_places.push(place);
        }
        let system = [
            (SEQUENCE_NUMBER, TypeKind::BigInt),
            (VALUE_KIND, TypeKind::TinyInt),
        ];
        Ok(Self {
            key,
            key_places,
            system: system.map(|((name, id), kind)| DataField::new(id, name, kind.not_null())),
        })
    }
}

impl Layout {
    /// Of append tables: their columns.
    pub(crate) fn append(schema: &Arc<TableSchema>) -> Self {
        Self {
            schema: Arc::clone(schema),
            arrow_schema: schema.arrow_schema(),
            keyed: None,
        }
    }

    /// Of tables with a primary key: key, sequence number, row kind, values (paimon: `KeyValue`).
    ///
    /// # Errors
    /// [`Error::InvalidSchema`] if the option `data-file.thin-mode` has no meaning.
    pub(crate) fn keyed(schema: &Arc<TableSchema>) -> Result<Self> {
        let options = TableOptions::new(&schema.options);
        let is_thin = options.is_true("data-file.thin-mode", false)?;
        let columns = KeyedColumns::new(schema)?;
        let mut fields = Vec::new();
        if !is_thin {
            fields.extend(columns.key.iter().cloned());
        }
        fields.extend(columns.system.iter().cloned());
        fields.extend(schema.fields.iter().cloned());
        let keyed = Keyed { columns, is_thin };
        Ok(Self {
            schema: Arc::clone(schema),
            arrow_schema: arrow_schema(&fields),
            keyed: Some(keyed),
        })
    }

    /// The schema that its rows have.
    pub(crate) fn schema(&self) -> &Arc<TableSchema> {
        &self.schema
    }

    /// The columns of a file.
    pub(crate) fn arrow_schema(&self) -> &SchemaRef {
        &self.arrow_schema
    }

    /// The rows of a file from the table's columns, then sequence number and row kind, as merged
    /// changes have them. No value is copied.
    ///
    /// # Errors
    /// [`Error::Arrow`] if the columns are others.
    pub(crate) fn file_rows(&self, changes: &RecordBatch) -> Result<RecordBatch> {
        let values = self.schema.fields.len();
        let mut places: Vec<usize> = Vec::with_capacity(self.arrow_schema.fields().len());
        if let Some(keyed) = &self.keyed {
            if !keyed.is_thin {
                places.extend(&keyed.columns.key_places);
            }
            places.extend([values, values + 1]);
        }
        places.extend(0..values);
        let failed = |source| Error::Arrow {
            what: "the rows of a file".to_owned(),
            source,
        };
        let rows = changes.project(&places).map_err(failed)?;
        let columns = rows.columns().to_vec();
        RecordBatch::try_new(SchemaRef::clone(&self.arrow_schema), columns).map_err(failed)
    }
}

/// What a manifest says of the rows of a file.
#[derive(Debug)]
pub(super) struct Summary {
    values: StatsCollector,
    /// The first of the value columns.
    first_value: usize,
    keyed: Option<KeyedSummary>,
}

#[derive(Debug)]
struct KeyedSummary {
    key: Vec<DataField>,
    /// Where the key columns are in a file.
    places: Vec<usize>,
    stats: StatsCollector,
    /// First and last key of a file.
    bounds: Option<(Vec<u8>, Vec<u8>)>,
    /// Lowest and highest sequence number.
    numbers: Option<(i64, i64)>,
    retractions: i64,
}

impl Summary {
    pub(super) fn new(layout: &Layout) -> Result<Self> {
        let all = layout.arrow_schema.fields().len();
        let first_value = all - layout.schema.fields.len();
        let columns = layout.keyed.as_ref().map(|keyed| &keyed.columns);
        let keyed = columns.map(|columns| KeyedSummary {
            key: columns.key.clone(),
            places: columns
                .key_places
                .iter()
                .map(|at| at + first_value)
                .collect(),
            stats: StatsCollector::of_keys(&columns.key),
            bounds: None,
            numbers: None,
            retractions: 0,
        });
        Ok(Self {
            values: StatsCollector::new(&layout.schema)?,
            first_value,
            keyed,
        })
    }

    /// Takes in rows of the file, in their order.
    pub(super) fn update(&mut self, batch: &RecordBatch) -> Result<()> {
        let Some(keyed) = &mut self.keyed else {
            return self.values.update(batch);
        };
        keyed.update(batch, self.first_value)?;
        let values: Vec<usize> = (self.first_value..batch.num_columns()).collect();
        self.values.update(&project(batch, &values)?)
    }

    /// Fills in what the rows tell.
    pub(super) fn finish(self, meta: &mut DataFileMeta) -> Result<()> {
        let values = self.values.finish()?;
        meta.value_stats = values.stats;
        meta.value_stats_cols = values.columns;
        let Some(keyed) = self.keyed else {
            return Ok(());
        };
        meta.key_stats = keyed.stats.finish()?.stats;
        if let Some((min, max)) = keyed.bounds {
            (meta.min_key, meta.max_key) = (min, max);
        }
        if let Some((min, max)) = keyed.numbers {
            (meta.min_sequence_number, meta.max_sequence_number) = (min, max);
        }
        meta.delete_row_count = Some(keyed.retractions);
        Ok(())
    }
}

impl KeyedSummary {
    fn update(&mut self, batch: &RecordBatch, first_value: usize) -> Result<()> {
        let Some(last_row) = batch.num_rows().checked_sub(1) else {
            return Ok(());
        };
        let keys = project(batch, &self.places)?;
        self.stats.update(&keys)?;
        let last = key_at(&keys, last_row, &self.key)?;
        self.bounds = match self.bounds.take() {
            Some((first, _)) => Some((first, last)),
            None => Some((key_at(&keys, 0, &self.key)?, last)),
        };
        let system = first_value.saturating_sub(2);
        let columns = batch.columns();
        let numbers = columns.get(system);
        let numbers = numbers.and_then(|array| array.as_primitive_opt::<Int64Type>());
        let kinds = columns.get(system + 1);
        let kinds = kinds.and_then(|array| array.as_primitive_opt::<Int8Type>());
        let (Some(numbers), Some(kinds)) = (numbers, kinds) else {
            return Err(Error::bad_value(SEQUENCE_NUMBER.0, "is not in the batch"));
        };
        if let (Some(low), Some(high)) = (min(numbers), max(numbers)) {
            let known = self.numbers.unwrap_or((low, high));
            self.numbers = Some((known.0.min(low), known.1.max(high)));
        }
        for kind in kinds.values() {
            self.retractions += i64::from(RowKind::try_from(*kind)?.is_retraction());
        }
        Ok(())
    }
}

/// A key as manifests have it.
pub(crate) fn key_at(keys: &RecordBatch, row: usize, fields: &[DataField]) -> Result<Vec<u8>> {
    let columns = keys.columns().iter().zip(fields);
    let values =
        columns.map(|(array, field)| Datum::from_array(array as &dyn Array, row, &field.data_type));
    let values: Vec<Datum> = values.collect::<Result<_>>()?;
    let types = fields.iter().map(|field| -> &DataType { &field.data_type });
    Ok(BinaryRow::encode(&values, types)?.to_serialized())
}

fn project(batch: &RecordBatch, places: &[usize]) -> Result<RecordBatch> {
    batch.project(places).map_err(|source| Error::Arrow {
        what: "the columns of a file".to_owned(),
        source,
    })
}
