//! A table's place in the lake: its folder, its columns, and the partition and bucket that a
//! split's rows go to.

use std::collections::BTreeMap;
use std::sync::Arc;

use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use weir_lake_format::paths::{named, table_path};
use weir_lake_format::store::{open_existing_warehouse, open_warehouse};
use weir_lake_format::write::CommitMessage;
use weir_lake_format::{BucketMode, Partition, Table, TableIdentity, TableOptions, TableSchema};
use weir_lake_format::{Datum as LakeDatum, Timestamp};
use weir_protocol::ids::TablePath;
use weir_protocol::partition::{PartitionSpec, parse_value};
use weir_protocol::row::Datum;

use crate::bad_records::TABLE_SUFFIX;
use crate::cluster::TableInfo;
use crate::counted_store::CountedStore;
use crate::error::{Error, Result};
use crate::metrics::TableLabel;
use crate::ranges;
use crate::split::Split;

/// The property that names another lake database than the table's own.
const DATABASE_NAME: &str = "table.datalake.database-name";
/// The property that names another lake table than the table's own name.
const TABLE_NAME: &str = "table.datalake.table-name";

/// Where lake tables are: `ROOT/DATABASE.db/TABLE`. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Warehouse {
    store: Arc<dyn ObjectStore>,
    root: Path,
    /// How a person knows it.
    name: String,
    /// The requests of each table are counted here.
    requests: Option<Family<TableLabel, Counter>>,
}

/// An open lake table, with its schema as of the round's begin.
#[derive(Clone, Debug)]
pub struct LakeTable {
    /// The table.
    pub table: Table,
    /// Its newest schema.
    pub schema: Arc<TableSchema>,
    /// Commits go to this very table, not to one that is made in its folder meanwhile.
    pub identity: TableIdentity,
    path: TablePath,
    mode: BucketMode,
}

/// Where a table beside a lake table is, or would be.
#[derive(Clone, Debug)]
pub struct Place {
    store: Arc<dyn ObjectStore>,
    root: Path,
    /// Its name, as a table of the cluster would have it.
    path: TablePath,
}

impl Place {
    /// Opens the table; `None` if there is none.
    ///
    /// # Errors
    /// [`Error::Lake`] if that can't be known, or it can't be read.
    pub async fn open(&self) -> Result<Option<LakeTable>> {
        let opened = Table::open(Arc::clone(&self.store), self.root.clone()).await;
        match opened {
            Ok(table) => LakeTable::of(table, self.path.clone()).await.map(Some),
            Err(weir_lake_format::Error::NotFound { .. }) => Ok(None),
            Err(source) => Err(self.error(source)),
        }
    }

    /// Makes the table; one that somebody made meanwhile is fine, whatever it looks like.
    ///
    /// # Errors
    /// [`Error::Lake`].
    pub async fn create(&self, schema: &TableSchema) -> Result<LakeTable> {
        let created = Table::create(Arc::clone(&self.store), self.root.clone(), schema).await;
        let table = match created {
            Err(weir_lake_format::Error::AlreadyExists { .. }) => {
                Table::open(Arc::clone(&self.store), self.root.clone()).await
            }
            created => created,
        };
        let table = table.map_err(|source| self.error(source))?;
        LakeTable::of(table, self.path.clone()).await
    }

    /// The error of a call about it.
    pub fn error(&self, source: weir_lake_format::Error) -> Error {
        Error::Lake {
            table: self.path.clone(),
            source,
        }
    }
}

impl Warehouse {
    /// A warehouse in a store that is open already.
    pub fn new(store: Arc<dyn ObjectStore>, root: Path) -> Self {
        let name = store.to_string();
        Self {
            store,
            root,
            name,
            requests: None,
        }
    }

    /// The same warehouse, with the requests of each table counted.
    #[must_use]
    pub fn counted(self, requests: Family<TableLabel, Counter>) -> Self {
        Self {
            requests: Some(requests),
            ..self
        }
    }

    fn store_of(&self, path: &TablePath) -> Arc<dyn ObjectStore> {
        let store = Arc::clone(&self.store);
        let Some(requests) = &self.requests else {
            return store;
        };
        let label = TableLabel {
            table: path.to_string(),
        };
        Arc::new(CountedStore::new(
            store,
            requests.get_or_create(&label).clone(),
        ))
    }

    /// Opens the warehouse at `url` with options of its store.
    ///
    /// # Errors
    /// [`Error::Warehouse`] if the address or an option makes no sense.
    pub fn open(url: &str, options: &BTreeMap<String, String>) -> Result<Self> {
        let (store, root) = open_warehouse(url, options).map_err(|source| Error::Warehouse {
            url: url.to_owned(),
            source,
        })?;
        Ok(Self::named(url, store, root))
    }

    fn named(url: &str, store: Arc<dyn ObjectStore>, root: Path) -> Self {
        let name = url.to_owned();
        Self {
            name,
            ..Self::new(store, root)
        }
    }

    /// Opens the warehouse at `url`, which must be there, for reading.
    ///
    /// # Errors
    /// As [`Warehouse::open`], and if it is a local folder that is missing.
    pub fn open_existing(url: &str) -> Result<Self> {
        let opened = open_existing_warehouse(url, &BTreeMap::new());
        let (store, root) = opened.map_err(|source| Error::Warehouse {
            url: url.to_owned(),
            source,
        })?;
        Ok(Self::named(url, store, root))
    }

    /// The lake table of `path`, which the cluster made when tiering was enabled.
    ///
    /// # Errors
    /// [`Error::NoLakeTable`] if it does not exist, [`Error::Lake`] if it can't be read.
    pub async fn table(
        &self,
        path: &TablePath,
        properties: &BTreeMap<String, String>,
    ) -> Result<LakeTable> {
        let lake = |source| Error::Lake {
            table: path.clone(),
            source,
        };
        let (database, name) = lake_name(path, properties);
        let root = table_path(&self.root, database, name).map_err(lake)?;
        let (table, schema) = Table::open_with_schema(self.store_of(path), root.clone())
            .await
            .map_err(|source| match source {
                weir_lake_format::Error::NotFound { .. } => Error::NoLakeTable {
                    table: path.clone(),
                    folder: root.to_string(),
                    warehouse: self.name.clone(),
                },
                source => lake(source),
            })?;
        LakeTable::with_schema(table, schema, path.clone()).await
    }

    /// Where the bad records of `path` are, beside its lake table.
    ///
    /// # Errors
    /// [`Error::Lake`] if the name can't be a folder.
    pub fn bad_records(
        &self,
        path: &TablePath,
        properties: &BTreeMap<String, String>,
    ) -> Result<Place> {
        let store = self.store_of(path);
        let (database, name) = lake_name(path, properties);
        let path = TablePath::new(database, format!("{name}{TABLE_SUFFIX}"));
        let root = table_path(&self.root, &path.database, &path.table);
        let root = root.map_err(|source| Error::Lake {
            table: path.clone(),
            source,
        })?;
        Ok(Place { store, root, path })
    }
}

/// Database and name of a table in the lake: its own, unless its properties name others.
fn lake_name<'a>(
    path: &'a TablePath,
    properties: &'a BTreeMap<String, String>,
) -> (&'a str, &'a str) {
    let database = properties.get(DATABASE_NAME).unwrap_or(&path.database);
    (database, properties.get(TABLE_NAME).unwrap_or(&path.table))
}

impl LakeTable {
    /// An open table with its newest schema; `path` is its name for people.
    async fn of(table: Table, path: TablePath) -> Result<Self> {
        let lake = |source| Error::Lake {
            table: path.clone(),
            source,
        };
        let schema = table.latest_schema().await.map_err(lake)?;
        Self::with_schema(table, schema, path).await
    }

    async fn with_schema(table: Table, schema: TableSchema, path: TablePath) -> Result<Self> {
        let lake = |source| Error::Lake {
            table: path.clone(),
            source,
        };
        let schema = Arc::new(schema);
        let mode = schema.bucket_mode().map_err(lake)?;
        let identity = table.identity().await.map_err(lake)?;
        Ok(Self {
            table,
            schema,
            identity,
            path,
            mode,
        })
    }

    /// The table's path in the cluster.
    pub fn path(&self) -> &TablePath {
        &self.path
    }

    /// The error of a lake call.
    pub fn error(&self, source: weir_lake_format::Error) -> Error {
        Error::Lake {
            table: self.path.clone(),
            source,
        }
    }

    /// The lake bucket of a split, and the count that its files are stamped with: of bucket-unaware
    /// tables 0 and −1, else the split's own bucket and its partition's own count. The count in the
    /// table's options is never used.
    pub fn bucket(&self, split: &Split) -> (i32, i32) {
        match self.mode {
            BucketMode::Unaware => (0, -1),
            _ => (split.bucket.bucket.0, split.total_buckets.0),
        }
    }

    /// The size at which data files are closed, `default` if the table says none.
    ///
    /// # Errors
    /// [`Error::Lake`] if the table's option is no size.
    pub fn target_file_bytes(&self, default: u64) -> Result<u64> {
        let options = TableOptions::new(&self.schema.options);
        match options.get("target-file-size") {
            Some(_) => {
                let has_keys = self.schema.is_primary_key_table();
                options
                    .target_file_size(has_keys)
                    .map_err(|e| self.error(e))
            }
            None => Ok(default),
        }
    }

    /// Whether all buckets of the log share bucket 0 of the lake.
    pub fn is_bucket_unaware(&self) -> bool {
        self.mode == BucketMode::Unaware
    }

    /// Deletes data files that no snapshot names, as far as possible: what is left is swept by name
    /// later.
    pub async fn discard(&self, files: Vec<CommitMessage>) {
        let options = TableOptions::new(&self.schema.options);
        for message in files {
            let folder = message.partition.path(&self.schema).and_then(|partition| {
                let paths = self.table.paths();
                paths.bucket_dir(options.data_directory(), &partition, message.bucket)
            });
            let Ok(folder) = folder else { continue };
            for file in message.new_files.into_iter().chain(message.changelog_files) {
                let Ok(path) = named(&folder, &file.file_name) else {
                    continue;
                };
                if let Err(error) = self.table.store().delete(&path).await {
                    tracing::warn!(table = %self.path, %path, %error, "left a file of a failed round");
                }
            }
        }
    }

    /// What stands in a snapshot's property for `text`: the text itself, or the name of `file`, in
    /// which a long one is put.
    ///
    /// # Errors
    /// [`Error::Lake`] if the store fails.
    pub async fn property(&self, text: String, file: &str) -> Result<String> {
        if text.len() <= ranges::INLINE_MAX_BYTES {
            return Ok(text);
        }
        self.put(file, text).await?;
        Ok(ranges::file_reference(file))
    }

    /// Writes a small file below the table's folder.
    ///
    /// # Errors
    /// [`Error::Lake`] if the store fails.
    pub async fn put(&self, name: &str, text: String) -> Result<()> {
        let path = name.split('/').fold(self.table.root().clone(), Path::join);
        let put = self.table.store().put(&path, text.into()).await;
        put.map_err(|source| self.error(weir_lake_format::Error::store(&path, source)))?;
        Ok(())
    }

    /// Looks whether the table has the same primary key here and in the cluster.
    ///
    /// # Errors
    /// [`Error::Schema`] if not.
    pub fn check_primary_key(&self, info: &TableInfo) -> Result<()> {
        let (ours, lakes) = (&info.schema.primary_key, &self.schema.primary_keys);
        if ours == lakes {
            return Ok(());
        }
        Err(Error::Schema {
            table: self.path.clone(),
            column: "(primary key)".to_owned(),
            reason: format!("{ours:?} here, {lakes:?} in the lake"),
        })
    }

    /// The partition of that name.
    ///
    /// # Errors
    /// [`Error::Schema`] if the name does not fit the partition columns of both sides.
    pub fn partition(&self, info: &TableInfo, name: Option<&str>) -> Result<Partition> {
        let bad = |column: &str, reason: String| Error::Schema {
            table: self.path.clone(),
            column: column.to_owned(),
            reason,
        };
        if info.partition_keys != self.schema.partition_keys {
            let (ours, lakes) = (&info.partition_keys, &self.schema.partition_keys);
            return Err(bad(
                "(partition keys)",
                format!("{ours:?} here, {lakes:?} in the lake"),
            ));
        }
        let Some(name) = name else {
            return Ok(Partition::unpartitioned());
        };
        let spec = PartitionSpec::from_name(&info.partition_keys, name)
            .map_err(|e| bad("(partition keys)", e.to_string()))?;
        let mut values = Vec::with_capacity(spec.0.len());
        for (key, text) in &spec.0 {
            let column = info
                .schema
                .column(key)
                .ok_or_else(|| bad(key, "is no column".to_owned()))?;
            let value = parse_value(text, &column.ty.kind).map_err(|e| bad(key, e.to_string()))?;
            let value = lake_value(value)
                .ok_or_else(|| bad(key, "is of no type to partition by".to_owned()))?;
            values.push(value);
        }
        Partition::new(values, &self.schema).map_err(|e| self.error(e))
    }
}

fn lake_value(value: Datum) -> Option<LakeDatum> {
    Some(match value {
        Datum::Null => LakeDatum::Null,
        Datum::Boolean(value) => LakeDatum::Boolean(value),
        Datum::TinyInt(value) => LakeDatum::TinyInt(value),
        Datum::SmallInt(value) => LakeDatum::SmallInt(value),
        Datum::Int(value) => LakeDatum::Int(value),
        Datum::BigInt(value) => LakeDatum::BigInt(value),
        Datum::Float(value) => LakeDatum::Float(value),
        Datum::Double(value) => LakeDatum::Double(value),
        Datum::Decimal(value) => LakeDatum::Decimal(value),
        Datum::String(value) => LakeDatum::String(value),
        Datum::Bytes(value) => LakeDatum::Bytes(value),
        Datum::Date(value) => LakeDatum::Date(value),
        Datum::Time(value) => LakeDatum::Time(value),
        Datum::Timestamp { millis, nanos } => LakeDatum::Timestamp(Timestamp {
            millis,
            nanos_of_milli: nanos,
        }),
        Datum::Array(_) | Datum::Map(_) | Datum::Row(_) => return None,
    })
}
