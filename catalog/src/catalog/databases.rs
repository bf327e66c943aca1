//! Databases.

use futures::FutureExt;
use serde_json::Value;
use weir_protocol::descriptor::DatabaseDescriptor;
use weir_protocol::ids::{PartitionId, TableId, TablePath};

use super::tables::DroppedTable;
use super::{Catalog, Created, IfExists, IfMissing, bad_key};
use crate::ddl::names;
use crate::model::database::Database;
use crate::model::{Document, Stored, Unknown};
use crate::occ::{self, DEFAULT_ATTEMPTS, Decision};
use crate::store::{Expect, Key, StoreError, Txn};
use crate::{Error, Result};

/// The database that every cluster has.
pub const DEFAULT_DATABASE: &str = "fluss";
/// Our private field of a database that may be about to go: creating a table or a partition in it
/// then rewrites it, which makes the drop look again.
const DROPPING: &str = "x_dropping";

/// One change of a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DatabaseChange {
    /// Sets or removes the comment.
    Comment(Option<String>),
    /// Sets a custom property.
    Set {
        /// Its name.
        key: String,
        /// Its value.
        value: String,
    },
    /// Removes a custom property.
    Reset {
        /// Its name.
        key: String,
    },
}

/// What to do with the tables of a database that is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// There may be none.
    MustBeEmpty,
    /// They go too.
    Drop,
}

/// What went with a database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DroppedDatabase {
    /// Its tables; their buckets are still to be deleted.
    pub tables: Vec<(TablePath, TableId, Vec<PartitionId>)>,
}

impl Catalog {
    /// Creates a database.
    ///
    /// # Errors
    /// [`Error::InvalidDatabase`], [`Error::DatabaseAlreadyExist`].
    pub async fn create_database(
        &self,
        name: &str,
        descriptor: &DatabaseDescriptor,
        if_exists: IfExists,
    ) -> Result<Created<()>> {
        let invalid = |reason| Error::InvalidDatabase {
            database: name.to_owned(),
            reason,
        };
        names::check_new(name).map_err(invalid)?;
        let key = Key::database(name).map_err(bad_key(name))?;
        let what = format!("creating database `{name}`");
        let created = occ::update(&*self.store, &what, DEFAULT_ATTEMPTS, |_| {
            let key = key.clone();
            async move {
                if self.get::<Database>(&key).await?.is_some() {
                    return match if_exists {
                        IfExists::Ignore => Ok(Decision::Done(Created::Existing(()))),
                        IfExists::Fail => Err(Error::DatabaseAlreadyExist {
                            database: name.to_owned(),
                        }),
                    };
                }
                let now_ms = self.clock.now_ms();
                let database = Database {
                    comment: descriptor.comment.clone(),
                    custom_properties: descriptor.custom_properties.clone(),
                    created_time: now_ms,
                    modified_time: now_ms,
                    unknown: Unknown::new(),
                };
                let txn = self.txn().put(key, database.encode()?, Expect::Absent);
                Ok(Decision::Commit(txn, Created::New(())))
            }
            .boxed()
        })
        .await?;
        Ok(created.value)
    }

    /// A database; `None` if there is none.
    pub async fn find_database(&self, name: &str) -> Result<Option<Stored<Database>>> {
        match Key::database(name) {
            Ok(key) => self.get(&key).await,
            Err(_) => Ok(None),
        }
    }

    /// Names of all databases, sorted.
    pub async fn list_databases(&self) -> Result<Vec<String>> {
        self.children(&Key::databases()).await
    }

    /// Changes the comment and custom properties of a database.
    ///
    /// # Errors
    /// [`Error::DatabaseNotExist`].
    pub async fn alter_database(
        &self,
        name: &str,
        changes: &[DatabaseChange],
        if_missing: IfMissing,
    ) -> Result<()> {
        let what = format!("altering database `{name}`");
        let altered = occ::update(&*self.store, &what, DEFAULT_ATTEMPTS, |_| {
            async move {
                let Some(found) = self.database_or(name, if_missing).await? else {
                    return Ok(Decision::Done(()));
                };
                let mut next = found.document.clone();
                for change in changes {
                    match change.clone() {
                        DatabaseChange::Comment(comment) => next.comment = comment,
                        DatabaseChange::Set { key, value } => {
                            next.custom_properties.insert(key, value);
                        }
                        DatabaseChange::Reset { key } => {
                            next.custom_properties.remove(&key);
                        }
                    }
                }
                if next == found.document {
                    return Ok(Decision::Done(()));
                }
                next.modified_time = self.clock.now_ms();
                let key = Key::database(name).map_err(bad_key(name))?;
                let txn = self
                    .txn()
                    .put(key, next.encode()?, Expect::At(found.modified));
                Ok(Decision::Commit(txn, ()))
            }
            .boxed()
        })
        .await?;
        let _: () = altered.value;
        Ok(())
    }

    /// Drops a database.
    ///
    /// Two transactions: the first marks the database, so that a table or partition created meanwhile
    /// is not lost; the second deletes it. A crash in between leaves a database that works as before.
    ///
    /// # Errors
    /// [`Error::DatabaseProtected`], [`Error::DatabaseNotExist`], [`Error::DatabaseNotEmpty`].
    pub async fn drop_database(
        &self,
        name: &str,
        if_missing: IfMissing,
        contents: Contents,
    ) -> Result<DroppedDatabase> {
        if name == DEFAULT_DATABASE {
            return Err(Error::DatabaseProtected {
                database: name.to_owned(),
            });
        }
        let what = format!("dropping database `{name}`");
        let dropped = occ::update(&*self.store, &what, DEFAULT_ATTEMPTS, |_| {
            self.decide_drop(name, if_missing, contents).boxed()
        })
        .await?;
        Ok(dropped.value)
    }

    async fn decide_drop(
        &self,
        name: &str,
        if_missing: IfMissing,
        contents: Contents,
    ) -> Result<Decision<DroppedDatabase>> {
        let Some(found) = self.database_or(name, if_missing).await? else {
            return Ok(Decision::Done(DroppedDatabase::default()));
        };
        let not_empty = || Error::DatabaseNotEmpty {
            database: name.to_owned(),
        };
        let key = Key::database(name).map_err(bad_key(name))?;
        let tables_key = Key::tables(name).map_err(bad_key(name))?;
        if contents == Contents::MustBeEmpty && !self.children(&tables_key).await?.is_empty() {
            return Err(not_empty());
        }
        let mut marked = found.document.clone();
        marked
            .unknown
            .insert(DROPPING.to_owned(), Value::Bool(true));
        let mark = self
            .txn()
            .put(key.clone(), marked.encode()?, Expect::At(found.modified));
        let marked_at = match self.store.commit(mark).await {
            Ok(at) => at,
            Err(StoreError::Conflict { .. } | StoreError::Unknown) => {
                return Ok(Decision::Again);
            }
            Err(error) => return Err(Error::from_store(key.as_str(), error)),
        };
        let mut dropped = DroppedDatabase::default();
        for table in self.children(&tables_key).await? {
            if contents == Contents::MustBeEmpty {
                return Err(not_empty());
            }
            let path = TablePath::new(name, table);
            if let Some(DroppedTable {
                table_id,
                partitions,
            }) = self.contents(&path).await?
            {
                dropped.tables.push((path, table_id, partitions));
            }
        }
        let txn = self.txn().delete_tree(key, Expect::At(marked_at));
        Ok(Decision::Commit(txn, dropped))
    }

    /// The database, or what `if_missing` makes of its absence.
    async fn database_or(
        &self,
        name: &str,
        if_missing: IfMissing,
    ) -> Result<Option<Stored<Database>>> {
        match (self.find_database(name).await?, if_missing) {
            (None, IfMissing::Fail) => Err(Error::DatabaseNotExist {
                database: name.to_owned(),
            }),
            (found, _) => Ok(found),
        }
    }

    /// Adds to a transaction what a table or partition created in `database` needs of it.
    pub(super) fn keep_database(txn: Txn, name: &str, database: &Stored<Database>) -> Result<Txn> {
        let key = Key::database(name).map_err(bad_key(name))?;
        let expect = Expect::At(database.modified);
        if !database.document.unknown.contains_key(DROPPING) {
            return Ok(txn.check(key, expect));
        }
        let mut unmarked = database.document.clone();
        unmarked.unknown.remove(DROPPING);
        Ok(txn.put(key, unmarked.encode()?, expect))
    }
}
