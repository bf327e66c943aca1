//! The schemas of a table, and rows read by the one they were written with.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use weir_protocol::ids::SchemaId;
use weir_protocol::row::{Datum, compacted, indexed};
use weir_protocol::schema::Schema;

use super::rules::RowFormat;
use crate::error::{Error, Result};
use crate::value::StoredValue;

/// All schemas that rows of a table may have. Later ones only add columns at the end.
#[derive(Clone, Debug)]
pub struct TableSchemas {
    latest_id: SchemaId,
    latest: Arc<Schema>,
    earlier: BTreeMap<SchemaId, Arc<Schema>>,
}

impl TableSchemas {
    /// A table whose only schema is this.
    pub fn new(id: SchemaId, schema: Arc<Schema>) -> Self {
        Self {
            latest_id: id,
            latest: schema,
            earlier: BTreeMap::new(),
        }
    }

    /// The same with one more schema, in any order: the highest id is the latest.
    pub fn with(mut self, id: SchemaId, schema: Arc<Schema>) -> Self {
        if id > self.latest_id {
            let (latest_id, latest) = (self.latest_id, self.latest);
            self.earlier.insert(latest_id, latest);
            self.latest_id = id;
            self.latest = schema;
        } else {
            self.earlier.insert(id, schema);
        }
        self
    }

    /// The id of the latest schema.
    pub fn latest_id(&self) -> SchemaId {
        self.latest_id
    }

    /// The latest schema.
    pub fn latest(&self) -> &Schema {
        &self.latest
    }

    /// The schema with this id.
    ///
    /// # Errors
    /// [`Error::UnknownSchema`].
    pub fn get(&self, id: SchemaId) -> Result<&Schema> {
        if id == self.latest_id {
            return Ok(&self.latest);
        }
        let earlier = self.earlier.get(&id).map(AsRef::as_ref);
        earlier.ok_or(Error::UnknownSchema {
            id,
            latest: self.latest_id,
        })
    }

    /// The values of a row in the columns of the latest schema; null for columns that it is too old
    /// for.
    ///
    /// # Errors
    /// [`Error::UnknownSchema`]; [`Error::Row`] for bytes that are no row of their schema.
    pub fn decode(&self, format: RowFormat, value: &StoredValue) -> Result<Vec<Datum>> {
        let columns = &self.get(value.schema_id)?.columns;
        let row = match format {
            RowFormat::Compacted => compacted::decode(&value.row, columns),
            RowFormat::Indexed => indexed::decode(&value.row, columns),
        };
        let mut row = row.map_err(|source| Error::Row {
            schema: value.schema_id,
            source,
        })?;
        row.resize(self.latest.columns.len(), Datum::Null);
        Ok(row)
    }

    /// The value that a row in the columns of the latest schema is stored as.
    ///
    /// # Errors
    /// [`Error::Row`] for values that do not fit their types.
    pub fn encode(&self, format: RowFormat, row: &[Datum]) -> Result<StoredValue> {
        let columns = &self.latest.columns;
        let bytes = match format {
            RowFormat::Compacted => compacted::encode(row, columns),
            RowFormat::Indexed => indexed::encode(row, columns),
        };
        let bytes = bytes.map_err(|source| Error::Row {
            schema: self.latest_id,
            source,
        })?;
        Ok(StoredValue {
            schema_id: self.latest_id,
            row: Bytes::from(bytes),
        })
    }
}
