//! Tables and their schemas.

use std::sync::OnceLock;
use std::time::Duration;

use futures::FutureExt;
use weir_protocol::descriptor::TableDescriptor;
use weir_protocol::ids::{PartitionId, SchemaId, ServerId, TableId, TablePath};
use weir_protocol::schema::Schema;

use super::{Catalog, Created, IfExists, IfMissing, READ_ATTEMPTS, Table, bad_key};
use crate::ddl::{self, Altered, TableChange, properties};
use crate::lake::{LakeCatalog, LakeCreation, lake_path};
use crate::model::assignment::Assignment;
use crate::model::{Document, Stored, Unknown, table};
use crate::occ::{self, DEFAULT_ATTEMPTS, Decision};
use crate::store::{Expect, Key, Txn, Versioned};
use crate::{Error, Result};

/// Longest wait for the lake in one attempt.
const LAKE_DEADLINE: Duration = Duration::from_mins(1);

/// A table to create.
#[derive(Clone, Debug)]
pub struct NewTable<'a> {
    /// Its name.
    pub path: &'a TablePath,
    /// What the client asked for; defaults are filled in.
    pub descriptor: &'a TableDescriptor,
    /// Live tablet servers that may hold its buckets.
    pub servers: &'a [ServerId],
}

/// What went with a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DroppedTable {
    /// Its id; its buckets are still to be deleted.
    pub table_id: TableId,
    /// Its partitions; their buckets are still to be deleted.
    pub partitions: Vec<PartitionId>,
}

impl Catalog {
    /// Creates a table: its lake table first, then all its documents in one transaction.
    ///
    /// The assignment of an unpartitioned table is among them; leaders follow, see
    /// [`Catalog::put_leaders`].
    ///
    /// # Errors
    /// [`Error::DatabaseNotExist`], [`Error::TableAlreadyExist`], those of [`ddl::complete`],
    /// [`Error::InvalidReplicationFactor`], [`Error::LakeNotConfigured`],
    /// [`Error::LakeTableAlreadyExist`], [`Error::Lake`].
    pub async fn create_table(
        &self,
        request: NewTable<'_>,
        if_exists: IfExists,
    ) -> Result<Created<Table>> {
        let NewTable {
            path,
            descriptor,
            servers,
        } = request;
        let descriptor = ddl::complete(path, descriptor.clone(), &self.rules)?;
        let (descriptor, table_id) = (&descriptor, &OnceLock::new());
        let what = format!("creating table {path}");
        let created = occ::update(&*self.store, &what, DEFAULT_ATTEMPTS, |_| {
            async move {
                let Some(database) = self.find_database(&path.database).await? else {
                    return Err(Error::DatabaseNotExist {
                        database: path.database.clone(),
                    });
                };
                if let Some(existing) = self.find_table(path).await? {
                    return match if_exists {
                        IfExists::Ignore => Ok(Decision::Done(Created::Existing(existing))),
                        IfExists::Fail => Err(Error::TableAlreadyExist { path: path.clone() }),
                    };
                }
                check_replication(path, descriptor, servers)?;
                self.create_in_lake(path, descriptor, LakeCreation::NewTable)
                    .await?;
                let id = self.table_id(table_id).await?;
                let table = new_table(path, id, descriptor, self.clock.now_ms());
                let txn = self.creation(&table, servers)?;
                let txn = Self::keep_database(txn, &path.database, &database)?;
                Ok(Decision::Commit(txn, Created::New(table)))
            }
            .boxed()
        })
        .await?;
        Ok(match (created.value, created.revision) {
            (Created::New(mut table), Some(at)) => {
                (table.created, table.modified) = (at, at);
                Created::New(table)
            }
            // Ours only on a second look: read what stands there.
            (Created::New(table), None) => {
                Created::New(self.find_table(path).await?.unwrap_or(table))
            }
            (existing, _) => existing,
        })
    }

    /// The id of a table to create, taken once for all attempts.
    async fn table_id(&self, id: &OnceLock<TableId>) -> Result<TableId> {
        if let Some(id) = id.get() {
            return Ok(*id);
        }
        let taken = TableId(self.take_id(Key::table_ids()).await?);
        Ok(*id.get_or_init(|| taken))
    }

    /// All documents of a new table in one transaction.
    pub(super) fn creation(&self, table: &Table, servers: &[ServerId]) -> Result<Txn> {
        let path = &table.path;
        let key = Key::table(path).map_err(bad_key(path))?;
        let schema_key = Key::schema(path, table.schema_id).map_err(bad_key(path))?;
        let txn = self
            .txn()
            .put(key, to_document(table).encode()?, Expect::Absent)
            .put(
                schema_key,
                table.descriptor.schema.to_json(),
                Expect::Absent,
            );
        if table.descriptor.is_partitioned() {
            return Ok(txn);
        }
        let assignment = place(table, None, servers)?;
        Ok(txn.put(
            Key::table_assignment(table.table_id),
            assignment.encode()?,
            Expect::Absent,
        ))
    }

    /// A table.
    ///
    /// # Errors
    /// [`Error::TableNotExist`].
    pub async fn get_table(&self, path: &TablePath) -> Result<Table> {
        let found = self.find_table(path).await?;
        found.ok_or_else(|| Error::TableNotExist { path: path.clone() })
    }

    /// A table with its current schema, both of one moment; `None` if there is none.
    pub async fn find_table(&self, path: &TablePath) -> Result<Option<Table>> {
        let (Ok(key), Ok(schemas)) = (Key::table(path), Key::schemas(path)) else {
            return Ok(None);
        };
        for _ in 0..READ_ATTEMPTS {
            let Some(before) = self.store.get(&key).await.map_err(Error::store(&key))? else {
                return Ok(None);
            };
            let latest = newest_schema(&schemas, &self.children(&schemas).await?)?;
            let schema_key = Key::schema(path, latest).map_err(bad_key(path))?;
            let keys = [key.clone(), schema_key];
            let found = self
                .store
                .get_many(&keys)
                .await
                .map_err(Error::store(&key))?;
            if let [Some(entry), Some(schema)] = found.as_slice()
                && entry.created == before.created
            {
                return from_entries(path, latest, entry, schema).map(Some);
            }
        }
        let reason = "its table has no current schema".to_owned();
        Err(Error::Corrupt {
            what: schemas.to_string(),
            reason,
        })
    }

    /// Names of a database's tables, sorted.
    ///
    /// # Errors
    /// [`Error::DatabaseNotExist`].
    pub async fn list_tables(&self, database: &str) -> Result<Vec<String>> {
        if self.find_database(database).await?.is_none() {
            return Err(Error::DatabaseNotExist {
                database: database.to_owned(),
            });
        }
        self.children(&Key::tables(database).map_err(bad_key(database))?)
            .await
    }

    /// One schema of a table, the current one for `None`.
    ///
    /// # Errors
    /// [`Error::TableNotExist`], [`Error::SchemaNotExist`].
    pub async fn get_schema(
        &self,
        path: &TablePath,
        id: Option<SchemaId>,
    ) -> Result<(SchemaId, Schema)> {
        let Some(id) = id else {
            let table = self.get_table(path).await?;
            return Ok((table.schema_id, table.descriptor.schema));
        };
        let (Ok(key), Ok(schema_key)) = (Key::table(path), Key::schema(path, id)) else {
            return Err(Error::TableNotExist { path: path.clone() });
        };
        let keys = [key.clone(), schema_key.clone()];
        let found = self
            .store
            .get_many(&keys)
            .await
            .map_err(Error::store(&key))?;
        match found.as_slice() {
            [Some(_), Some(schema)] => Ok((id, decode_schema(&schema_key, schema)?)),
            [Some(_), _] => Err(Error::SchemaNotExist {
                path: path.clone(),
                schema: id,
            }),
            _ => Err(Error::TableNotExist { path: path.clone() }),
        }
    }

    /// Drops a table in one transaction. Its lake table stays. Its buckets are deleted afterwards,
    /// see [`Catalog::finish_table_drop`]. `None` if there was none.
    ///
    /// # Errors
    /// [`Error::TableNotExist`].
    pub async fn drop_table(
        &self,
        path: &TablePath,
        if_missing: IfMissing,
    ) -> Result<Option<DroppedTable>> {
        let first_id = &OnceLock::new();
        let what = format!("dropping table {path}");
        let dropped = occ::update(&*self.store, &what, DEFAULT_ATTEMPTS, |_| {
            async move {
                let missing = || match if_missing {
                    IfMissing::Ignore => Ok(Decision::Done(None)),
                    IfMissing::Fail => Err(Error::TableNotExist { path: path.clone() }),
                };
                let Ok(key) = Key::table(path) else {
                    return missing();
                };
                let Some(found) = self.get::<table::Table>(&key).await? else {
                    return missing();
                };
                let table_id = found.document.table_id;
                if *first_id.get_or_init(|| table_id) != table_id {
                    return missing();
                }
                let last = self.get(&Key::last_partition(table_id)).await?;
                let contents = self.contents(path).await?;
                let txn = self.txn().delete_tree(key, Expect::At(found.modified));
                let txn = Self::no_new_partition(txn, table_id, last.as_ref());
                Ok(Decision::Commit(txn, contents))
            }
            .boxed()
        })
        .await?;
        Ok(dropped.value)
    }

    /// Changes a table: its lake table first, then one transaction. Returns the table as it is
    /// then.
    ///
    /// # Errors
    /// [`Error::TableNotExist`] (also if it was dropped and created anew meanwhile), those of
    /// [`ddl::alter`], [`Error::LakeNotConfigured`], [`Error::LakeTableAlreadyExist`],
    /// [`Error::Lake`].
    pub async fn alter_table(
        &self,
        path: &TablePath,
        changes: &[TableChange],
        if_missing: IfMissing,
    ) -> Result<Option<Table>> {
        let first_id = &OnceLock::new();
        let what = format!("altering table {path}");
        let altered = occ::update(&*self.store, &what, DEFAULT_ATTEMPTS, |attempt| {
            async move {
                let Some(table) = self.find_table(path).await? else {
                    return match if_missing {
                        IfMissing::Ignore => Ok(Decision::Done(false)),
                        IfMissing::Fail => Err(Error::TableNotExist { path: path.clone() }),
                    };
                };
                if *first_id.get_or_init(|| table.table_id) != table.table_id {
                    return Err(Error::TableNotExist { path: path.clone() });
                }
                match ddl::alter(path, &table.descriptor, changes, &self.rules)? {
                    Altered::Unchanged => Ok(Decision::Done(true)),
                    Altered::Properties(next) => self.decide_properties(table, next, changes).await,
                    Altered::Schema(next) => self.decide_schema(table, next).await,
                    Altered::BucketCount(next) => {
                        self.decide_bucket_count(table, next, attempt).await
                    }
                }
            }
            .boxed()
        })
        .await?;
        if altered.value {
            self.find_table(path).await
        } else {
            Ok(None)
        }
    }

    async fn decide_properties(
        &self,
        table: Table,
        next: TableDescriptor,
        changes: &[TableChange],
    ) -> Result<Decision<bool>> {
        let path = &table.path;
        let is_enabled = is_lake_enabled(path, &next)?;
        let was_enabled = is_lake_enabled(path, &table.descriptor)?;
        // Never given out for tiering: rows that the lake has already would be another table's.
        let creation = match self.get_tiering_epoch(table.table_id).await?.0 {
            0 => LakeCreation::NewTable,
            _ => LakeCreation::SwitchedOn(table.table_id),
        };
        let moves = lake_path(path, &table.descriptor) != lake_path(path, &next);
        if moves && creation != LakeCreation::NewTable {
            let reason = "its lake table can't get another name: it may hold rows".to_owned();
            return Err(Error::InvalidAlterTable {
                path: path.clone(),
                reason,
            });
        }
        if is_enabled && !was_enabled {
            self.create_in_lake(path, &next, creation).await?;
        }
        let knows_lake = table
            .descriptor
            .properties
            .contains_key(properties::DATALAKE_ENABLED);
        if let Some(lake) = &self.lake
            && (is_enabled || knows_lake)
        {
            let found = within(path, lake.alter_options(path, &next, changes)).await?;
            if is_enabled && !found {
                let source = "it does not exist: was it deleted by hand?".into();
                return Err(Error::Lake {
                    path: path.clone(),
                    source,
                    retriable: false,
                });
            }
        }
        let key = Key::table(path).map_err(bad_key(path))?;
        let Some(mut stored) = self.get::<table::Table>(&key).await? else {
            return Ok(Decision::Again);
        };
        stored.document.properties = next.properties;
        stored.document.custom_properties = next.custom_properties;
        stored.document.modified_time = self.clock.now_ms();
        let txn = self
            .txn()
            .put(key, stored.document.encode()?, Expect::At(table.modified));
        Ok(Decision::Commit(txn, true))
    }

    async fn decide_schema(&self, table: Table, next: Schema) -> Result<Decision<bool>> {
        let path = &table.path;
        if is_lake_enabled(path, &table.descriptor)? {
            let lake = self.lake_of(path)?;
            within(path, lake.add_columns(path, &table.descriptor, &next)).await?;
        }
        let id = SchemaId(table.schema_id.0 + 1);
        let key = Key::table(path).map_err(bad_key(path))?;
        let schema_key = Key::schema(path, id).map_err(bad_key(path))?;
        let txn = self
            .txn()
            .put(schema_key, next.to_json(), Expect::Absent)
            .check(key, Expect::Incarnation(table.created));
        Ok(Decision::Commit(txn, true))
    }

    async fn create_in_lake(
        &self,
        path: &TablePath,
        table: &TableDescriptor,
        creation: LakeCreation,
    ) -> Result<()> {
        if !is_lake_enabled(path, table)? {
            return Ok(());
        }
        within(
            path,
            self.lake_of(path)?.create_table(path, table, creation),
        )
        .await
    }

    pub(super) fn lake_of(&self, path: &TablePath) -> Result<&dyn LakeCatalog> {
        match &self.lake {
            Some(lake) => Ok(&**lake),
            None => Err(Error::LakeNotConfigured { path: path.clone() }),
        }
    }

    /// Ids of a table and its partitions, whatever state its schema is in.
    pub(super) async fn contents(&self, path: &TablePath) -> Result<Option<DroppedTable>> {
        let key = Key::table(path).map_err(bad_key(path))?;
        let Some(table) = self.get::<table::Table>(&key).await? else {
            return Ok(None);
        };
        let documents = self.partition_documents(path).await?;
        let partitions = documents
            .into_iter()
            .map(|(_, partition)| partition.document.partition_id);
        let partitions = partitions.collect();
        Ok(Some(DroppedTable {
            table_id: table.document.table_id,
            partitions,
        }))
    }
}

/// Whether the lake gets the rows of this table.
pub(super) fn is_lake_enabled(path: &TablePath, table: &TableDescriptor) -> Result<bool> {
    properties::TableProperties::new(path, &table.properties).datalake_enabled()
}

pub(super) async fn within<T>(
    path: &TablePath,
    call: impl Future<Output = Result<T>>,
) -> Result<T> {
    match tokio::time::timeout(LAKE_DEADLINE, call).await {
        Ok(result) => result,
        Err(elapsed) => Err(Error::Lake {
            path: path.clone(),
            source: Box::new(elapsed),
            retriable: true,
        }),
    }
}

fn check_replication(
    path: &TablePath,
    table: &TableDescriptor,
    servers: &[ServerId],
) -> Result<()> {
    let properties = properties::TableProperties::new(path, &table.properties);
    let factor = properties.replication_factor()?;
    match usize::try_from(factor) {
        Ok(replicas) if (1..=servers.len()).contains(&replicas) => Ok(()),
        _ => Err(Error::InvalidReplicationFactor {
            path: path.clone(),
            found: i64::from(factor),
            servers: servers.len(),
        }),
    }
}

/// Spreads the buckets of a new table or partition, starting at a server that depends on its id.
pub(super) fn place(
    table: &Table,
    partition: Option<PartitionId>,
    servers: &[ServerId],
) -> Result<Assignment> {
    check_replication(&table.path, &table.descriptor, servers)?;
    let properties = properties::TableProperties::new(&table.path, &table.descriptor.properties);
    let replicas = usize::try_from(properties.replication_factor()?).unwrap_or(1);
    let id = partition.map_or(table.table_id.0, |partition| partition.0);
    let start = usize::try_from(id.unsigned_abs()).unwrap_or(0) % servers.len().max(1);
    let table_id = partition.map(|_| table.table_id);
    Ok(Assignment::spread(
        table_id,
        table.bucket_count,
        replicas,
        servers,
        start,
    ))
}

pub(super) fn new_table(
    path: &TablePath,
    table_id: TableId,
    descriptor: &TableDescriptor,
    now_ms: i64,
) -> Table {
    let unwritten = crate::store::Revision::new(0);
    Table {
        path: path.clone(),
        table_id,
        schema_id: SchemaId(1),
        descriptor: descriptor.clone(),
        bucket_count: weir_protocol::ids::TotalBuckets(descriptor.bucket_count.unwrap_or(1)),
        bucket_layout_epoch: 0,
        created_ms: now_ms,
        modified_ms: now_ms,
        remote_data_dir: None,
        created: unwritten,
        modified: unwritten,
    }
}

fn to_document(table: &Table) -> table::Table {
    let descriptor = &table.descriptor;
    table::Table {
        table_id: table.table_id,
        comment: descriptor.comment.clone(),
        partition_keys: descriptor.partition_keys.clone(),
        bucket_keys: descriptor.bucket_keys.clone(),
        bucket_count: table.bucket_count,
        bucket_layout_epoch: table.bucket_layout_epoch,
        properties: descriptor.properties.clone(),
        custom_properties: descriptor.custom_properties.clone(),
        remote_data_dir: table.remote_data_dir.clone(),
        created_time: table.created_ms,
        modified_time: table.modified_ms,
        unknown: Unknown::new(),
    }
}

fn from_entries(
    path: &TablePath,
    schema_id: SchemaId,
    entry: &Versioned,
    schema: &Versioned,
) -> Result<Table> {
    let key = Key::table(path).map_err(bad_key(path))?;
    let schema_key = Key::schema(path, schema_id).map_err(bad_key(path))?;
    let Stored {
        document,
        modified,
        created,
    } = Stored::<table::Table>::decode(&key, entry)?;
    Ok(Table {
        path: path.clone(),
        table_id: document.table_id,
        schema_id,
        descriptor: TableDescriptor {
            schema: decode_schema(&schema_key, schema)?,
            comment: document.comment,
            partition_keys: document.partition_keys,
            bucket_keys: document.bucket_keys,
            bucket_count: Some(document.bucket_count.0),
            properties: document.properties,
            custom_properties: document.custom_properties,
        },
        bucket_count: document.bucket_count,
        bucket_layout_epoch: document.bucket_layout_epoch,
        created_ms: document.created_time,
        modified_ms: document.modified_time,
        remote_data_dir: document.remote_data_dir,
        created,
        modified,
    })
}

fn decode_schema(key: &Key, entry: &Versioned) -> Result<Schema> {
    Schema::from_json(&entry.value).map_err(|error| Error::Corrupt {
        what: key.to_string(),
        reason: error.to_string(),
    })
}

fn newest_schema(key: &Key, names: &[String]) -> Result<SchemaId> {
    let mut newest = None;
    for name in names {
        let id: i32 = name.parse().map_err(|_| Error::Corrupt {
            what: key.to_string(),
            reason: format!("`{name}` is no schema id"),
        })?;
        newest = newest.max(Some(id));
    }
    // A table without schema is torn: the read that follows finds nothing and looks again.
    Ok(SchemaId(newest.unwrap_or(1)))
}
