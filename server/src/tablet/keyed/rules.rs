//! How the rows of a primary-key table become keys, values and changelog: what its properties and its
//! schemas say.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use weir_catalog::ddl::properties::{self, TableProperties};
use weir_kv::upsert::{RowFormat, TableRules, TableSchemas};
use weir_protocol::descriptor::TableDescriptor;
use weir_protocol::ids::{SchemaId, TablePath};
use weir_protocol::partition::{PartitionSpec, parse_value};
use weir_protocol::record::arrow::Compression;
use weir_protocol::record::rows;
use weir_protocol::row::key::KeyFormat;
use weir_protocol::row::{Datum, binary, compacted, indexed, precision};
use weir_protocol::schema::{LogicalType, Schema};

use crate::error::Error;

/// Properties of the time that rows live: `table.kv.ttl` and what begins like it.
const KV_TTL: &str = "table.kv.ttl";
const NUMBERS_AT_ONCE: &str = "table.auto-increment.cache-size";
const DEFAULT_NUMBERS_AT_ONCE: i64 = 100_000;

/// What a table says of its keys. A later schema makes another value of it.
#[derive(Debug)]
pub(crate) struct KeyRules {
    pub(super) table: TableRules,
    pub(super) schemas: TableSchemas,
    pub(super) log: LogFormat,
    /// Whether clients that encode keys by the first version of requests would miss the rows.
    pub(crate) has_new_keys: bool,
    known: BTreeMap<SchemaId, KnownSchema>,
    key: KeyFormat,
    /// Of the physical primary key, in key order.
    key_columns: Vec<usize>,
    key_types: Vec<LogicalType>,
    partition_keys: Vec<String>,
    numbered: Option<Numbered>,
}

/// The column that the server numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Numbered {
    /// The column's id, which its counter is named by.
    pub(crate) column: i32,
    /// How many numbers are taken from the counter at once.
    pub(crate) at_once: u32,
}

/// A schema, in both of its forms.
#[derive(Clone, Debug)]
pub(crate) struct KnownSchema {
    pub(crate) schema: Arc<Schema>,
    pub(crate) arrow: SchemaRef,
}

/// How the changelog is written (`table.log.format`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogFormat {
    Arrow(Compression),
    Rows(rows::RowFormat),
}

impl KeyRules {
    /// The rules of a table; the descriptor's schema is the latest, `known` are earlier ones.
    ///
    /// # Errors
    /// [`Error::Kv`], [`Error::Catalog`], [`Error::Protocol`]: properties that this server does not know,
    /// does not support, or that contradict each other.
    pub(crate) fn new(
        path: &TablePath,
        descriptor: &TableDescriptor,
        latest: SchemaId,
        mut known: BTreeMap<SchemaId, KnownSchema>,
    ) -> Result<Self, Error> {
        refuse_unsupported(path, descriptor)?;
        let schema = &descriptor.schema;
        let table = TableRules::of_properties(&descriptor.properties, schema)?;
        let values = TableProperties::new(path, &descriptor.properties);
        let key = KeyFormat::of_table(descriptor)?;
        // By the first version of requests keys are encoded as bucket keys are.
        let old_key = KeyFormat::of_lake(values.get(properties::DATALAKE_FORMAT));
        let key_columns = schema.column_indexes(&descriptor.physical_primary_key())?;
        let key_types = key_columns
            .iter()
            .filter_map(|index| Some(schema.columns.get(*index)?.ty.clone()))
            .collect();
        let newest = known
            .entry(latest)
            .or_insert_with(|| KnownSchema::new(schema.clone()));
        let newest = TableSchemas::new(latest, Arc::clone(&newest.schema));
        let earlier = known.iter().filter(|(id, _)| **id < latest);
        let schemas = earlier.fold(newest, |all, (id, one)| {
            all.with(*id, Arc::clone(&one.schema))
        });
        Ok(Self {
            log: LogFormat::of(values)?,
            has_new_keys: old_key.ok() != Some(key),
            key,
            table,
            schemas,
            known,
            key_columns,
            key_types,
            partition_keys: descriptor.partition_keys.clone(),
            numbered: numbered(descriptor),
        })
    }

    /// The column that the server numbers, if there is one.
    pub(crate) fn numbered(&self) -> Option<Numbered> {
        self.numbered
    }

    /// The columns of the primary key, by index; those of partitions, too.
    pub(crate) fn primary_key(&self) -> Result<Vec<i32>, Error> {
        let schema = self.schemas.latest();
        let columns = schema.column_indexes(&schema.primary_key)?;
        let narrow = |index: usize| i32::try_from(index).unwrap_or(i32::MAX);
        Ok(columns.into_iter().map(narrow).collect())
    }

    /// The row that a key alone makes in a partition: all else is null.
    ///
    /// # Errors
    /// [`Error::Protocol`] for bytes that are no key of the table; [`Error::Unsupported`].
    pub(crate) fn row_of_key(&self, key: &[u8], partition: Option<&str>) -> Result<Bytes, Error> {
        let schema = self.schemas.latest();
        let values = match self.key {
            KeyFormat::Compacted => {
                let mut row = vec![0; self.key_types.len().div_ceil(8)];
                row.extend_from_slice(key);
                compacted::decode(&row, &self.key_types)?
            }
            KeyFormat::Paimon => binary::decode(key, &self.key_types)?,
            KeyFormat::Iceberg => {
                let what = "making a row of a key in Iceberg's format";
                return Err(Error::Unsupported { what });
            }
        };
        let mut row = vec![Datum::Null; schema.columns.len()];
        for (index, value) in self.key_columns.iter().zip(values) {
            if let Some(place) = row.get_mut(*index) {
                *place = value;
            }
        }
        if let Some(name) = partition {
            let spec = PartitionSpec::from_name(&self.partition_keys, name)?;
            for (key, index) in self
                .partition_keys
                .iter()
                .zip(schema.column_indexes(&self.partition_keys)?)
            {
                let column = schema.columns.get(index);
                if let (Some(column), Some(text), Some(place)) =
                    (column, spec.get(key), row.get_mut(index))
                {
                    *place = parse_value(text, &column.ty.kind)?;
                }
            }
        }
        Ok(self.encode_row(&row, schema)?.into())
    }

    /// Refuses a new table that this server could not serve.
    ///
    /// # Errors
    /// As [`KeyRules::new`].
    pub(crate) fn check_new(path: &TablePath, descriptor: &TableDescriptor) -> Result<(), Error> {
        Self::new(path, descriptor, SchemaId(1), BTreeMap::new()).map(drop)
    }

    /// The schemas that are known.
    pub(crate) fn known(&self) -> &BTreeMap<SchemaId, KnownSchema> {
        &self.known
    }

    /// A schema by its id.
    pub(super) fn schema(&self, id: SchemaId) -> Result<&KnownSchema, Error> {
        let unknown = || weir_kv::Error::UnknownSchema {
            id,
            latest: self.schemas.latest_id(),
        };
        Ok(self.known.get(&id).ok_or_else(unknown)?)
    }

    /// The key of a row of any of the schemas, as clients encode it.
    pub(super) fn key_of(&self, row: &[Datum]) -> Result<Vec<u8>, weir_protocol::Error> {
        let values: Vec<Datum> = self
            .key_columns
            .iter()
            .map(|index| row.get(*index).cloned().unwrap_or(Datum::Null))
            .collect();
        self.key.encode(&values, &self.key_types)
    }

    /// Why a row's key would not come back from the log, or not be one key in the lake.
    pub(super) fn unfit_key(&self, row: &[Datum]) -> Option<String> {
        let schema = self.schemas.latest();
        let mut columns = self
            .key_columns
            .iter()
            .filter_map(|index| Some((schema.columns.get(*index)?, row.get(*index)?)));
        columns.find_map(|(column, value)| {
            let name = &column.name;
            if precision::trim(&mut value.clone(), &column.ty.kind) {
                return Some(format!("key column `{name}` has more digits than its type"));
            }
            is_strange_nan(value).then(|| {
                format!("key column `{name}` is a NaN of other bits than Java's, to which all NaNs are one")
            })
        })
    }

    /// A row of this schema as values hold it.
    pub(super) fn encode_row(
        &self,
        row: &[Datum],
        schema: &Schema,
    ) -> Result<Vec<u8>, weir_protocol::Error> {
        match self.table.format {
            RowFormat::Compacted => compacted::encode(row, &schema.columns),
            RowFormat::Indexed => indexed::encode(row, &schema.columns),
        }
    }
}

impl KnownSchema {
    pub(crate) fn new(schema: Schema) -> Self {
        let arrow = schema.arrow_schema();
        Self {
            schema: Arc::new(schema),
            arrow,
        }
    }
}

impl LogFormat {
    fn of(values: TableProperties<'_>) -> Result<Self, Error> {
        if values.is(properties::LOG_FORMAT, "INDEXED", "ARROW") {
            return Ok(Self::Rows(rows::RowFormat::Indexed));
        }
        if values.is(properties::LOG_FORMAT, "COMPACTED", "ARROW") {
            return Ok(Self::Rows(rows::RowFormat::Compacted));
        }
        let compression = if values.is(properties::COMPRESSION, "NONE", "ZSTD") {
            Compression::None
        } else if values.is(properties::COMPRESSION, "LZ4_FRAME", "ZSTD") {
            Compression::Lz4
        } else {
            Compression::Zstd(values.zstd_level()?)
        };
        Ok(Self::Arrow(compression))
    }
}

fn is_strange_nan(value: &Datum) -> bool {
    match value {
        Datum::Float(value) => value.is_nan() && value.to_bits() != f32::NAN.to_bits(),
        Datum::Double(value) => value.is_nan() && value.to_bits() != f64::NAN.to_bits(),
        _ => false,
    }
}

fn numbered(descriptor: &TableDescriptor) -> Option<Numbered> {
    let schema = &descriptor.schema;
    let column = schema.column(schema.auto_increment.first()?)?.id;
    let at_once = descriptor.properties.get(NUMBERS_AT_ONCE);
    let at_once = at_once.and_then(|text| text.trim().parse::<i64>().ok());
    let at_once = at_once.unwrap_or(DEFAULT_NUMBERS_AT_ONCE);
    Some(Numbered {
        column,
        at_once: u32::try_from(at_once).unwrap_or(u32::MAX).max(1),
    })
}

fn refuse_unsupported(path: &TablePath, descriptor: &TableDescriptor) -> Result<(), Error> {
    let ttl = descriptor
        .properties
        .keys()
        .find(|key| key.starts_with(KV_TTL));
    if let Some(key) = ttl {
        return Err(weir_catalog::Error::InvalidConfig {
            path: path.clone(),
            key: key.clone(),
            reason: "this server does not let rows expire by time yet".to_owned(),
        }
        .into());
    }
    Ok(())
}
