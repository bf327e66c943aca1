//! What a tablet server needs to know of a table: its schemas, its log format, its retention.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use parking_lot::{Mutex, RwLock};
use weir_catalog::catalog::Table;
use weir_protocol::ids::{SchemaId, TableId, TablePath};
use weir_protocol::proto::UpdateMetadataRequest;

use super::{KeyRules, Numbered, TabletServer};
use crate::error::Error;
use crate::reads::{Reads, TableSettings};

/// A table as a tablet server knows it; shared by all its buckets.
#[derive(Debug)]
pub(crate) struct TableInfo {
    id: TableId,
    path: TablePath,
    settings: RwLock<TableSettings>,
    schemas: Mutex<HashMap<SchemaId, SchemaRef>>,
    /// Of a primary-key table.
    keys: RwLock<Option<Arc<KeyRules>>>,
    /// Numbers taken for the column that the server numbers, and not yet given to a bucket.
    numbers: Mutex<VecDeque<Range<i64>>>,
}

impl TableInfo {
    /// Looks the table up.
    ///
    /// # Errors
    /// [`Error::OtherTable`] if another table has the name now; those of the catalog.
    pub(crate) async fn load(id: TableId, path: TablePath, reads: &Reads) -> Result<Self, Error> {
        let table = reads.table_with_id(&path, id).await?;
        let settings = reads.settings_of(&table)?;
        let keys = load_key_rules(&table, None, reads).await?;
        Ok(Self {
            id,
            path,
            settings: RwLock::new(settings),
            schemas: Mutex::default(),
            keys: RwLock::new(keys),
            numbers: Mutex::default(),
        })
    }

    /// Looks the table up again: a schema was added, or a property changed.
    pub(crate) async fn refresh(&self, reads: &Reads) -> Result<(), Error> {
        let table = reads.table_with_id(&self.path, self.id).await?;
        let settings = reads.settings_of(&table)?;
        let known = self.keys.read().clone();
        let keys = load_key_rules(&table, known, reads).await?;
        // One that read earlier may end later: what is known of the newer schema stays.
        let mut current = self.settings.write();
        if settings.latest_schema >= current.latest_schema {
            *current = settings;
            *self.keys.write() = keys;
        }
        Ok(())
    }

    /// Whether its rows have keys.
    pub(crate) fn has_keys(&self) -> bool {
        self.keys.read().is_some()
    }

    /// Numbers for new rows, which no other row of the table ever gets; there may be gaps.
    pub(crate) async fn take_numbers(
        &self,
        reads: &Reads,
        numbered: Numbered,
        count: usize,
    ) -> Result<Vec<Range<i64>>, Error> {
        let mut missing = i64::try_from(count).unwrap_or(i64::MAX);
        let mut taken = self.take_known_numbers(&mut missing);
        if missing > 0 {
            // Each take is a synced commit: as many as are missing, or more.
            let at_once = u32::try_from(missing).unwrap_or(u32::MAX);
            let at_once = numbered.at_once.max(at_once);
            let fresh = reads.take_numbers(&self.path, numbered.column, at_once);
            let fresh = fresh.await?;
            let end = fresh.start.saturating_add(missing).min(fresh.end);
            taken.push(fresh.start..end);
            self.numbers.lock().push_back(end..fresh.end);
        }
        Ok(taken)
    }

    fn take_known_numbers(&self, missing: &mut i64) -> Vec<Range<i64>> {
        let mut numbers = self.numbers.lock();
        let mut taken = Vec::new();
        while *missing > 0
            && let Some(known) = numbers.front_mut()
        {
            let end = known.start.saturating_add(*missing).min(known.end);
            *missing -= end - known.start;
            taken.push(known.start..end);
            known.start = end;
            if known.is_empty() {
                numbers.pop_front();
            }
        }
        taken
    }

    /// How its rows become keys and values.
    ///
    /// # Errors
    /// [`Error::NoPrimaryKey`] of a log table.
    pub(crate) fn key_rules(&self) -> Result<Arc<KeyRules>, Error> {
        let table = || self.path.to_string();
        let rules = self.keys.read().clone();
        rules.ok_or_else(|| Error::NoPrimaryKey { table: table() })
    }

    /// The newest schema.
    pub(crate) fn latest_schema(&self) -> SchemaId {
        self.settings.read().latest_schema
    }

    /// Whether columns of its batches can be chosen without decoding them.
    pub(crate) fn is_arrow(&self) -> bool {
        self.settings.read().is_arrow
    }

    /// How long rows are kept, ms; `None` for ever.
    pub(crate) fn ttl_ms(&self) -> Option<i64> {
        self.settings.read().ttl_ms
    }

    /// Whether rows must stay until they are in the lake.
    pub(crate) fn is_lake_enabled(&self) -> bool {
        self.settings.read().is_lake_enabled
    }

    /// One of its schemas, from the catalog the first time.
    pub(crate) async fn arrow_schema(
        &self,
        reads: &Reads,
        id: SchemaId,
    ) -> Result<SchemaRef, Error> {
        if let Some(known) = self.schemas.lock().get(&id) {
            return Ok(Arc::clone(known));
        }
        let schema = reads.schema(&self.path, id).await?.arrow_schema();
        self.schemas.lock().insert(id, Arc::clone(&schema));
        Ok(schema)
    }
}

/// The rules of a primary-key table, with all its schemas.
async fn load_key_rules(
    table: &Table,
    known: Option<Arc<KeyRules>>,
    reads: &Reads,
) -> Result<Option<Arc<KeyRules>>, Error> {
    if !table.descriptor.schema.has_primary_key() {
        return Ok(None);
    }
    let known = known.map(|rules| rules.known().clone()).unwrap_or_default();
    let known = reads.schemas(table, known).await?;
    let rules = KeyRules::new(&table.path, &table.descriptor, table.schema_id, known)?;
    Ok(Some(Arc::new(rules)))
}

impl TabletServer {
    /// The shared view of a table, looked up the first time.
    pub(super) async fn table_info(
        &self,
        id: TableId,
        path: &TablePath,
    ) -> Result<Arc<TableInfo>, Error> {
        if let Some(known) = self.tables.lock().get(&id) {
            return Ok(Arc::clone(known));
        }
        let loaded = TableInfo::load(id, path.clone(), &self.parts.reads).await?;
        let mut tables = self.tables.lock();
        let info = tables.entry(id).or_insert_with(|| Arc::new(loaded));
        Ok(Arc::clone(info))
    }

    /// Looks up again each table that an update names; drops those that are gone.
    pub(super) async fn refresh_tables(&self, update: &UpdateMetadataRequest) {
        for table in &update.table_metadata {
            let id = TableId(table.table_id);
            if table.table_path.table_name == crate::cluster::DELETED_NAME {
                self.tables.lock().remove(&id);
                continue;
            }
            let known = self.tables.lock().get(&id).cloned();
            let Some(known) = known else { continue };
            if let Err(error) = known.refresh(&self.parts.reads).await {
                tracing::warn!(table = %id, %error, "cannot look a table up again");
            }
        }
    }
}
