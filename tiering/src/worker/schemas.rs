//! The log's schemas that a round meets, each with its way into the lake table.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::RecordBatch;
use parking_lot::Mutex;
use weir_protocol::ids::SchemaId;

use super::decode::LogForm;
use crate::align::{Alignment, Position};
use crate::cluster::{TableInfo, TieringClient};
use crate::error::{Error, Result};
use crate::lake_table::LakeTable;

/// How batches of one schema are decoded and aligned.
#[derive(Debug)]
pub(crate) struct Form {
    /// How they are decoded.
    pub log: LogForm,
    /// How their columns become the lake's.
    pub alignment: Alignment,
}

/// All forms of one round; a table has few schemas, each is looked up once.
#[derive(Debug)]
pub(crate) struct Schemas {
    client: Arc<dyn TieringClient>,
    max_batch_bytes: u64,
    info: Arc<TableInfo>,
    lake: Arc<LakeTable>,
    known: Mutex<HashMap<SchemaId, Arc<Form>>>,
}

impl Schemas {
    /// Knows the table's current schema without asking.
    pub(crate) fn new(
        client: Arc<dyn TieringClient>,
        max_batch_bytes: u64,
        info: Arc<TableInfo>,
        lake: Arc<LakeTable>,
    ) -> Self {
        Self {
            client,
            max_batch_bytes,
            info,
            lake,
            known: Mutex::new(HashMap::new()),
        }
    }

    /// The form of a schema id that a batch names.
    pub(crate) async fn get(&self, id: SchemaId) -> Result<Arc<Form>> {
        if let Some(form) = self.known.lock().get(&id) {
            return Ok(Arc::clone(form));
        }
        let schema = if id == self.info.schema_id {
            Arc::clone(&self.info.schema)
        } else {
            self.client.schema(self.lake.path(), id).await?
        };
        let alignment = match Alignment::new(self.lake.path(), &schema, &self.lake.schema) {
            Ok(alignment) => alignment,
            Err(error) => return Err(self.misfit(id, error)),
        };
        // A column that no row fits is found now, and not taken for the fault of each row.
        let none = RecordBatch::new_empty(schema.arrow_schema());
        let applied = alignment.apply(&none, Position::none(self.info.id));
        applied.map_err(|error| self.misfit(id, error))?;
        let form = Arc::new(Form {
            log: LogForm::new(&schema, &self.info.properties, self.max_batch_bytes),
            alignment,
        });
        self.known.lock().insert(id, Arc::clone(&form));
        Ok(form)
    }

    /// Why a schema of the log does not fit the lake's: perhaps only because it is newer than the
    /// round, whose next one reads the lake's newest.
    fn misfit(&self, id: SchemaId, error: Error) -> Error {
        match error {
            Error::Schema { table, .. } if id > self.info.schema_id => Error::NewerSchema {
                table,
                schema: id,
                planned: self.info.schema_id,
            },
            Error::Schema {
                table,
                column,
                reason,
            } => {
                let lake = self.lake.schema.id;
                let reason = format!("{reason} (log schema {id}, lake schema {lake})");
                Error::Schema {
                    table,
                    column,
                    reason,
                }
            }
            error => error,
        }
    }
}
