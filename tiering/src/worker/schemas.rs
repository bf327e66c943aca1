//! The log's schemas that a round meets, each with its way into the lake table.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use weir_protocol::ids::SchemaId;

use super::decode::LogForm;
use crate::align::Alignment;
use crate::cluster::{TableInfo, TieringClient};
use crate::error::Result;
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
        let alignment = Alignment::new(self.lake.path(), &schema, &self.lake.schema)?;
        let form = Arc::new(Form {
            log: LogForm::new(&schema, &self.info.properties, self.max_batch_bytes),
            alignment,
        });
        self.known.lock().insert(id, Arc::clone(&form));
        Ok(form)
    }
}
