//! The lake's side of DDL: a lake table is made and changed before the table that feeds it.
//!
//! Every call is idempotent, since it runs again in every attempt of a change, and since a
//! coordinator may die between the lake and the metadata.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use object_store::ObjectStore;
use object_store::path::Path;
use weir_lake_format::paths::table_path;
use weir_lake_format::{NewTable, SchemaChange, Table, TableSchema};
use weir_protocol::descriptor::TableDescriptor;
use weir_protocol::ids::{TableId, TablePath, TotalBuckets};
use weir_protocol::schema::Schema;

use crate::clock::Clock;
use crate::convert::{
    LEGACY_COLUMNS, column_difference, has_legacy_columns, incompatibility, lake_column,
    lake_option, new_lake_table, own_columns,
};
use crate::ddl::TableChange;
use crate::ddl::properties::{self, LAKE_DATABASE, LAKE_TABLE};
use crate::{Error, Result};

mod claim;

pub use claim::{Claimed, claim, is_claim};

/// The commit user of tiering, the reference's own.
const TIERING_USER: &str = "__fluss_lake_tiering";
/// The snapshot property in which our tiering notes the table's id down.
const TIERED_TABLE_ID: &str = "weir-table-id";

/// Paimon's option with the bucket count of new partitions.
const BUCKET: &str = "bucket";

/// How often a change of a lake schema is tried against others.
const SCHEMA_ATTEMPTS: u32 = 5;

/// Why a lake table is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LakeCreation {
    /// The table itself is new: an existing lake table must be empty, and is claimed.
    NewTable,
    /// The lake is switched on for a table that exists and was tiered before: an existing lake table
    /// must be its own, by the id that tiering noted down.
    SwitchedOn(TableId),
}

/// What the catalog needs of a lake.
#[async_trait]
pub trait LakeCatalog: Send + Sync + fmt::Debug {
    /// Creates the lake table of a complete descriptor; a compatible one that is there already is
    /// fine.
    ///
    /// # Errors
    /// [`Error::LakeTableAlreadyExist`] if it is there and incompatible, or has rows and `creation`
    /// is [`LakeCreation::NewTable`]; [`Error::InvalidConfig`]; [`Error::Lake`].
    async fn create_table(
        &self,
        path: &TablePath,
        table: &TableDescriptor,
        creation: LakeCreation,
    ) -> Result<()>;

    /// Carries changes of properties over; `table` is what they lead to. `Ok(false)` if there is no
    /// lake table.
    async fn alter_options(
        &self,
        path: &TablePath,
        table: &TableDescriptor,
        changes: &[TableChange],
    ) -> Result<bool>;

    /// Tells the lake table how many buckets new partitions get: its option `bucket`. Its files are
    /// left as they are, each with the count of its own partition.
    ///
    /// # Errors
    /// [`Error::Lake`] if there is no lake table, or if it has no fixed buckets.
    async fn set_bucket_count(
        &self,
        path: &TablePath,
        table: &TableDescriptor,
        count: TotalBuckets,
    ) -> Result<()>;

    /// Adds the columns that `next` has and `current` lacks, at the end. They may be there already.
    ///
    /// # Errors
    /// [`Error::Lake`] if there is no lake table, or if its columns are those of neither schema.
    async fn add_columns(
        &self,
        path: &TablePath,
        table: &TableDescriptor,
        next: &Schema,
    ) -> Result<()>;
}

/// The name of a table in the lake: its own, unless its properties name another.
pub fn lake_path(path: &TablePath, table: &TableDescriptor) -> TablePath {
    let name = |key: &str, own: &String| table.properties.get(key).unwrap_or(own).clone();
    TablePath::new(
        name(LAKE_DATABASE, &path.database),
        name(LAKE_TABLE, &path.table),
    )
}

/// Paimon's file-system catalog: `WAREHOUSE/DATABASE.db/TABLE`.
#[derive(Clone, Debug)]
pub struct PaimonCatalog {
    store: Arc<dyn ObjectStore>,
    warehouse: Path,
    clock: Arc<dyn Clock>,
}

impl PaimonCatalog {
    /// The catalog of the warehouse at `warehouse` in `store`.
    pub fn new(store: Arc<dyn ObjectStore>, warehouse: Path, clock: Arc<dyn Clock>) -> Self {
        Self {
            store,
            warehouse,
            clock,
        }
    }

    /// The folder of a lake table, `path` being its name in the lake (see [`lake_path`]).
    ///
    /// # Errors
    /// [`Error::Lake`] if the name cannot be a folder.
    pub fn table_root(&self, path: &TablePath) -> Result<Path> {
        table_path(&self.warehouse, &path.database, &path.table).map_err(|e| failed(path, e))
    }

    /// Opens the lake table of a table; `None` if there is none.
    pub async fn open(&self, path: &TablePath, table: &TableDescriptor) -> Result<Option<Table>> {
        let root = self.table_root(&lake_path(path, table))?;
        match Table::open(Arc::clone(&self.store), root).await {
            Ok(table) => Ok(Some(table)),
            Err(weir_lake_format::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(failed(path, error)),
        }
    }

    /// Makes a lake table that is there the table's own, if it fits.
    async fn take(
        &self,
        path: &TablePath,
        lake_table: &Table,
        wanted: (&TableDescriptor, &NewTable),
        creation: LakeCreation,
    ) -> Result<()> {
        self.check_existing(path, lake_table, wanted, creation)
            .await?;
        match wanted.1.options.get(BUCKET) {
            Some(count) => self.set_bucket_option(path, lake_table, count).await,
            None => Ok(()),
        }
    }

    async fn set_bucket_option(
        &self,
        path: &TablePath,
        lake_table: &Table,
        count: &String,
    ) -> Result<()> {
        self.evolve(path, lake_table, |schema| {
            if schema.options.get(BUCKET) == Some(count) {
                return Ok(Vec::new());
            }
            Ok(vec![SchemaChange::SetOption {
                name: BUCKET.to_owned(),
                value: count.clone(),
            }])
        })
        .await
    }

    async fn check_existing(
        &self,
        path: &TablePath,
        lake_table: &Table,
        (table, wanted): (&TableDescriptor, &NewTable),
        creation: LakeCreation,
    ) -> Result<()> {
        let exists = |reason: String| Error::LakeTableAlreadyExist {
            path: path.clone(),
            folder: lake_table.root().to_string(),
            reason,
        };
        let schema = lake_table
            .latest_schema()
            .await
            .map_err(|e| failed(path, e))?;
        if let Some(reason) = incompatibility(&schema, wanted) {
            return Err(exists(reason));
        }
        if let LakeCreation::SwitchedOn(id) = creation {
            if properties::adopts_history(&table.properties) {
                return Ok(());
            }
            return match foreign_history(lake_table, id)
                .await
                .map_err(|e| failed(path, e))?
            {
                Some(reason) => Err(exists(format!(
                    "{reason}: its history is not the table's own; set {}=adopt together with the lake to \
                     go on behind its rows, or move that lake table away",
                    properties::LAKE_HISTORY
                ))),
                None => Ok(()),
            };
        }
        match claim(lake_table, self.clock.now_ms())
            .await
            .map_err(|e| failed(path, e))?
        {
            Claimed::Yes => Ok(()),
            Claimed::InUse(snapshot) => Err(exists(format!(
                "it holds rows already, up to snapshot {snapshot}"
            ))),
            Claimed::Busy => Err(Error::Conflict {
                what: format!("lake table {path}"),
                attempts: SCHEMA_ATTEMPTS,
            }),
        }
    }

    /// Publishes what `change` makes of the latest schema, reading it again when another was
    /// faster.
    async fn evolve(
        &self,
        path: &TablePath,
        lake_table: &Table,
        change: impl Fn(&TableSchema) -> Result<Vec<SchemaChange>>,
    ) -> Result<()> {
        for _ in 0..SCHEMA_ATTEMPTS {
            let schema = lake_table
                .latest_schema()
                .await
                .map_err(|e| failed(path, e))?;
            let changes = change(&schema)?;
            if changes.is_empty() {
                return Ok(());
            }
            let next = schema
                .evolve(&changes, self.clock.now_ms())
                .map_err(|e| failed(path, e))?;
            match lake_table.add_schema(&next).await {
                Ok(()) => return Ok(()),
                Err(weir_lake_format::Error::AlreadyExists { .. }) => {}
                Err(error) => return Err(failed(path, error)),
            }
        }
        Err(Error::Conflict {
            what: format!("lake table {path}"),
            attempts: SCHEMA_ATTEMPTS,
        })
    }
}

#[async_trait]
impl LakeCatalog for PaimonCatalog {
    async fn create_table(
        &self,
        path: &TablePath,
        table: &TableDescriptor,
        creation: LakeCreation,
    ) -> Result<()> {
        let wanted = new_lake_table(path, table)?;
        if let Some(existing) = self.open(path, table).await? {
            return self.take(path, &existing, (table, &wanted), creation).await;
        }
        let schema = TableSchema::create(wanted.clone(), self.clock.now_ms())
            .map_err(|error| failed(path, error))?;
        let root = self.table_root(&lake_path(path, table))?;
        match Table::create(Arc::clone(&self.store), root, &schema).await {
            Ok(_) => Ok(()),
            Err(weir_lake_format::Error::AlreadyExists { .. }) => {
                match self.open(path, table).await? {
                    Some(existing) => self.take(path, &existing, (table, &wanted), creation).await,
                    None => Err(gone(path)),
                }
            }
            Err(error) => Err(failed(path, error)),
        }
    }

    async fn alter_options(
        &self,
        path: &TablePath,
        table: &TableDescriptor,
        changes: &[TableChange],
    ) -> Result<bool> {
        let Some(lake_table) = self.open(path, table).await? else {
            return Ok(false);
        };
        let mut wanted = Vec::new();
        for change in changes {
            let (key, value) = match change {
                TableChange::Set { key, value } => (key, Some(value)),
                TableChange::Reset { key } => (key, None),
                _ => continue,
            };
            let Some(option) = lake_option(path, key)? else {
                continue;
            };
            if TableSchema::is_immutable_option(&option) {
                let (path, key) = (path.clone(), key.clone());
                let reason = "paimon never changes it once a table exists".to_owned();
                return Err(Error::InvalidConfig { path, key, reason });
            }
            wanted.push((option, value));
        }
        self.evolve(path, &lake_table, |schema| {
            let differs =
                |(option, value): &&(String, Option<&String>)| schema.options.get(option) != *value;
            let change = |(option, value): &(String, Option<&String>)| match value {
                Some(value) => SchemaChange::SetOption {
                    name: option.clone(),
                    value: (*value).clone(),
                },
                None => SchemaChange::RemoveOption {
                    name: option.clone(),
                },
            };
            Ok(wanted.iter().filter(differs).map(change).collect())
        })
        .await?;
        Ok(true)
    }

    async fn set_bucket_count(
        &self,
        path: &TablePath,
        table: &TableDescriptor,
        count: TotalBuckets,
    ) -> Result<()> {
        let Some(lake_table) = self.open(path, table).await? else {
            return Err(gone(path));
        };
        self.set_bucket_option(path, &lake_table, &count.to_string())
            .await
    }

    async fn add_columns(
        &self,
        path: &TablePath,
        table: &TableDescriptor,
        next: &Schema,
    ) -> Result<()> {
        let Some(lake_table) = self.open(path, table).await? else {
            return Err(gone(path));
        };
        let current: Vec<_> = table.schema.columns.iter().map(lake_column).collect();
        let wanted: Vec<_> = next.columns.iter().map(lake_column).collect();
        self.evolve(path, &lake_table, |schema| {
            let own = own_columns(schema);
            if column_difference(own, &wanted).is_none() {
                return Ok(Vec::new());
            }
            if let Some(reason) = column_difference(own, &current) {
                return Err(mismatch(path, &reason));
            }
            let before = has_legacy_columns(schema).then(|| LEGACY_COLUMNS[0].to_owned());
            let added = wanted
                .iter()
                .skip(current.len())
                .map(|column| SchemaChange::AddColumn {
                    name: column.name.clone(),
                    data_type: column.data_type.clone(),
                    description: column.description.clone(),
                    before: before.clone(),
                });
            Ok(added.collect())
        })
        .await
    }
}

/// Why a lake table's history is not that of the table `id`; a lake table without rows of anybody has
/// none.
async fn foreign_history(
    lake_table: &Table,
    id: TableId,
) -> weir_lake_format::Result<Option<String>> {
    let Some(latest) = lake_table.latest_snapshot().await? else {
        return Ok(None);
    };
    if is_claim(&latest) {
        return Ok(None);
    }
    let latest = latest.id;
    let Some(own) = lake_table.own_latest(TIERING_USER).await? else {
        let reason = format!("it has no snapshot of tiering among those up to {latest}");
        return Ok(Some(reason));
    };
    let found = own.property(TIERED_TABLE_ID);
    Ok(found
        .filter(|found| **found != id.to_string())
        .map(|found| format!("its snapshot {} is of table {found}, not {id}", own.id)))
}

/// What the lake said of a change that may be made again, since each is idempotent: so a change of
/// unknown outcome is one to try again.
fn failed(path: &TablePath, error: weir_lake_format::Error) -> Error {
    let is_unknown = matches!(error, weir_lake_format::Error::OutcomeUnknown { .. });
    let retriable = is_unknown || error.is_retriable();
    Error::Lake {
        path: path.clone(),
        source: Box::new(error),
        retriable,
    }
}

fn gone(path: &TablePath) -> Error {
    let source = "it does not exist: was it deleted by hand?".into();
    Error::Lake {
        path: path.clone(),
        source,
        retriable: false,
    }
}

fn mismatch(path: &TablePath, reason: &str) -> Error {
    let source = format!("its columns are not those of the table: {reason}").into();
    Error::Lake {
        path: path.clone(),
        source,
        retriable: false,
    }
}

#[cfg(test)]
mod tests;
