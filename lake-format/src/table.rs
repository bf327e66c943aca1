//! A table in an object store: its schemas and snapshots.

use std::sync::Arc;

use bytes::Bytes;
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};

use crate::error::{Error, Result, is_refusal};
use crate::paths::{TablePaths, schema_id, snapshot_id};
use crate::schema::TableSchema;
use crate::snapshot::Snapshot;

/// Largest schema, snapshot or hint that is read.
const MAX_JSON_BYTES: u64 = 64 << 20;

/// Which of the tables that were made in one folder, one after the other, a table is.
///
/// What the store tells of the table's first schema: a schema is written once, so it tells two things
/// only of two tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableIdentity(Option<ObjectMeta>);

/// A table by its folder. Cheap to clone; it keeps no state between calls.
#[derive(Clone, Debug)]
pub struct Table {
    store: Arc<dyn ObjectStore>,
    paths: TablePaths,
}

impl Table {
    /// The table at `root`, which must have a schema.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no schema, [`Error::Store`] if that cannot be known.
    pub async fn open(store: Arc<dyn ObjectStore>, root: Path) -> Result<Self> {
        let table = Self {
            store,
            paths: TablePaths::new(root),
        };
        if table.latest_schema_id().await?.is_none() {
            return Err(Error::NotFound {
                path: table.paths.schema_dir().to_string(),
            });
        }
        Ok(table)
    }

    /// The table at `root` with its newest schema: one look for both.
    ///
    /// # Errors
    /// As [`Table::open`] and [`Table::latest_schema`].
    pub async fn open_with_schema(
        store: Arc<dyn ObjectStore>,
        root: Path,
    ) -> Result<(Self, TableSchema)> {
        let table = Self {
            store,
            paths: TablePaths::new(root),
        };
        let schema = table.latest_schema().await?;
        Ok((table, schema))
    }

    /// Makes the table at `root` with its first schema; of several callers one succeeds.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`] if there is one, [`Error::InvalidSchema`] if the schema breaks a
    /// rule or is not number 0.
    pub async fn create(
        store: Arc<dyn ObjectStore>,
        root: Path,
        schema: &TableSchema,
    ) -> Result<Self> {
        let table = Self {
            store,
            paths: TablePaths::new(root),
        };
        if schema.id != 0 {
            return Err(crate::schema::invalid(format!(
                "a new table cannot begin with schema {}",
                schema.id
            )));
        }
        if let Some(id) = table.latest_schema_id().await? {
            return Err(Error::AlreadyExists {
                path: table.paths.schema(id).to_string(),
            });
        }
        table.add_schema(schema).await?;
        Ok(table)
    }

    /// The store it is in.
    pub fn store(&self) -> &Arc<dyn ObjectStore> {
        &self.store
    }

    /// Its file names.
    pub fn paths(&self) -> &TablePaths {
        &self.paths
    }

    /// Its folder.
    pub fn root(&self) -> &Path {
        self.paths.root()
    }

    /// The numbers of its schemas, ascending.
    ///
    /// # Errors
    /// [`Error::Store`] if the folder cannot be listed.
    pub async fn schema_ids(&self) -> Result<Vec<i64>> {
        self.list_numbers(&self.paths.schema_dir(), schema_id).await
    }

    /// Which table is in the folder now.
    ///
    /// # Errors
    /// [`Error::Store`] if that cannot be known.
    pub async fn identity(&self) -> Result<TableIdentity> {
        let first = self.paths.schema(0);
        match self.store.head(&first).await {
            Ok(meta) => Ok(TableIdentity(Some(meta))),
            Err(object_store::Error::NotFound { .. }) => Ok(TableIdentity(None)),
            Err(source) => Err(Error::store(&first, source)),
        }
    }

    /// The schema `id`.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Corrupt`], [`Error::Store`] about its file.
    pub async fn schema(&self, id: i64) -> Result<TableSchema> {
        let path = self.paths.schema(id);
        let schema = TableSchema::from_json(&self.read_json(&path).await?)
            .map_err(|e| e.at(path.as_ref()))?;
        if schema.id != id {
            return Err(Error::corrupt(
                path,
                format!("it says that it is schema {}", schema.id),
            ));
        }
        Ok(schema)
    }

    /// The schema with the highest number.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the table has gone; otherwise as [`Table::schema`].
    pub async fn latest_schema(&self) -> Result<TableSchema> {
        match self.latest_schema_id().await? {
            Some(id) => self.schema(id).await,
            None => Err(Error::NotFound {
                path: self.paths.schema_dir().to_string(),
            }),
        }
    }

    /// The highest number of a schema; `None` for a table without one.
    async fn latest_schema_id(&self) -> Result<Option<i64>> {
        match self.schema_ids().await {
            Ok(ids) => Ok(ids.last().copied()),
            Err(error) if is_denied(&error) => self.probe_latest_schema().await,
            Err(error) => Err(error),
        }
    }

    /// The highest number of a schema where listing is not allowed: numbers have no holes, from 0
    /// or from that of the latest snapshot on.
    async fn probe_latest_schema(&self) -> Result<Option<i64>> {
        let snapshot = match self.probe_latest_snapshot().await? {
            Some(id) => Some(self.snapshot(id).await?),
            None => None,
        };
        let mut latest = match snapshot {
            Some(snapshot) => snapshot.schema_id,
            None if self.exists(&self.paths.schema(0)).await? => 0,
            None => return Ok(None),
        };
        while self.exists(&self.paths.schema(latest + 1)).await? {
            latest += 1;
        }
        Ok(Some(latest))
    }

    /// Publishes a schema under its number. If the very same schema is there, that is success: a
    /// store's client that lost a reply puts again by itself and meets its own file.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`] if another took the number: read the latest and apply the change
    /// anew.
    /// [`Error::OutcomeUnknown`] if the put failed and the file cannot be read, or is not there: it
    /// may still arrive.
    pub async fn add_schema(&self, schema: &TableSchema) -> Result<()> {
        schema.validate()?;
        let path = self.paths.schema(schema.id);
        let json = Bytes::from(schema.to_json()?);
        let options = PutOptions::from(PutMode::Create);
        let Err(source) = self
            .store
            .put_opts(&path, PutPayload::from(json.clone()), options)
            .await
        else {
            return Ok(());
        };
        if is_refusal(&source) {
            return Err(Error::store(&path, source));
        }
        // The put may have taken place: what the file says decides.
        match self.read_json(&path).await {
            Ok(found) if found == json => Ok(()),
            Ok(_) => Err(Error::AlreadyExists {
                path: path.to_string(),
            }),
            Err(_) => Err(Error::OutcomeUnknown {
                path: path.to_string(),
                source,
            }),
        }
    }

    /// The number of the latest snapshot; `None` for a table without one.
    ///
    /// Reads the hint `LATEST`; it is right if the number after it has no snapshot. Otherwise the
    /// folder is listed.
    ///
    /// # Errors
    /// [`Error::Store`] if it cannot be known.
    pub async fn latest_snapshot_id(&self) -> Result<Option<i64>> {
        if let Some(hint) = self.read_hint(&self.paths.latest_hint()).await? {
            let is_there = self.exists(&self.paths.snapshot(hint)).await?;
            if is_there && !self.exists(&self.paths.snapshot(hint + 1)).await? {
                return Ok(Some(hint));
            }
        }
        match self.snapshot_ids().await {
            Ok(ids) => Ok(ids.last().copied()),
            Err(error) if is_denied(&error) => self.probe_latest_snapshot().await,
            Err(error) => Err(error),
        }
    }

    /// The number of the latest snapshot where listing is not allowed: numbers have no holes, from
    /// either hint or from 1 on. [`Error::NotFound`] if there are hints, and nothing is where they say.
    async fn probe_latest_snapshot(&self) -> Result<Option<i64>> {
        let hints = [self.paths.latest_hint(), self.paths.earliest_hint()];
        let mut starts = Vec::new();
        for hint in &hints {
            starts.extend(self.read_hint(hint).await?);
        }
        let hinted = starts.first().copied();
        starts.push(1);
        for start in starts {
            let mut latest = start;
            if !self.exists(&self.paths.snapshot(latest)).await? {
                continue;
            }
            while self.exists(&self.paths.snapshot(latest + 1)).await? {
                latest += 1;
            }
            return Ok(Some(latest));
        }
        match hinted {
            // It has snapshots, then, and only a listing could tell which.
            Some(id) => Err(Error::NotFound {
                path: self.paths.snapshot(id).to_string(),
            }),
            None => Ok(None),
        }
    }

    /// The numbers of all snapshots, ascending, by a listing.
    ///
    /// # Errors
    /// [`Error::Store`] if the folder cannot be listed.
    pub async fn snapshot_ids(&self) -> Result<Vec<i64>> {
        self.list_numbers(&self.paths.snapshot_dir(), snapshot_id)
            .await
    }

    /// The snapshot `id`.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Corrupt`], [`Error::Store`] about its file.
    pub async fn snapshot(&self, id: i64) -> Result<Snapshot> {
        let path = self.paths.snapshot(id);
        let snapshot =
            Snapshot::from_json(&self.read_json(&path).await?).map_err(|e| e.at(path.as_ref()))?;
        if snapshot.id != id {
            return Err(Error::corrupt(
                path,
                format!("it says that it is snapshot {}", snapshot.id),
            ));
        }
        Ok(snapshot)
    }

    /// The latest snapshot; `None` for a table without one.
    ///
    /// # Errors
    /// As [`Table::latest_snapshot_id`] and [`Table::snapshot`].
    pub async fn latest_snapshot(&self) -> Result<Option<Snapshot>> {
        match self.latest_snapshot_id().await? {
            Some(id) => self.snapshot(id).await.map(Some),
            None => Ok(None),
        }
    }

    /// Reads a whole object of at most `max_bytes`.
    pub(crate) async fn read_object(&self, path: &Path, max_bytes: u64) -> Result<Bytes> {
        let found = self
            .store
            .get(path)
            .await
            .map_err(|e| Error::store(path, e))?;
        if found.meta.size > max_bytes {
            return Err(Error::corrupt(
                path.to_string(),
                format!("{} bytes are too many", found.meta.size),
            ));
        }
        found.bytes().await.map_err(|e| Error::store(path, e))
    }

    pub(crate) async fn read_json(&self, path: &Path) -> Result<Bytes> {
        self.read_object(path, MAX_JSON_BYTES).await
    }

    /// A hint; `None` if there is none or it is no number, for then a listing decides.
    pub(crate) async fn read_hint(&self, path: &Path) -> Result<Option<i64>> {
        match self.read_json(path).await {
            Ok(bytes) => {
                let text = std::str::from_utf8(&bytes).ok();
                Ok(text
                    .and_then(|text| text.trim().parse().ok())
                    .filter(|id| (1..i64::MAX).contains(id)))
            }
            Err(Error::NotFound { .. }) => Ok(None),
            Err(e) => Err(e),
        }
    }

    pub(crate) async fn exists(&self, path: &Path) -> Result<bool> {
        match self.store.head(path).await {
            Ok(_) => Ok(true),
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(e) => Err(Error::store(path, e)),
        }
    }

    /// The size of an object in bytes.
    pub(crate) async fn size_of(&self, path: &Path) -> Result<u64> {
        self.store
            .head(path)
            .await
            .map(|meta| meta.size)
            .map_err(|e| Error::store(path, e))
    }

    async fn list_numbers(&self, dir: &Path, number: fn(&str) -> Option<i64>) -> Result<Vec<i64>> {
        let mut numbers = Vec::new();
        let mut listing = self.store.list(Some(dir));
        while let Some(object) = listing.try_next().await.map_err(|e| Error::store(dir, e))? {
            numbers.extend(object.location.filename().and_then(number));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }
}

fn is_denied(error: &Error) -> bool {
    let denied = |source: &object_store::Error| {
        matches!(source, object_store::Error::PermissionDenied { .. })
    };
    matches!(error, Error::Store { source, .. } if denied(source))
}

#[cfg(test)]
mod tests;
