//! What both roles may ask of the catalog, and how far the lake is.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;
use std::time::Duration;

use weir_catalog::catalog::{Partition, Table, Which};
use weir_catalog::ddl::properties::{LOG_FORMAT, TableProperties, parse_bool};
use weir_catalog::model::database::Database;
use weir_catalog::model::lake_offsets::LakeOffsets;
use weir_catalog::store::Key;
use weir_catalog::{Catalog, Error as CatalogError};
use weir_protocol::descriptor::TableDescriptor;
use weir_protocol::ids::{LogOffset, PartitionId, SchemaId, TableBucket, TableId, TablePath};
use weir_protocol::schema::Schema;

use crate::cut_logs::CutLogs;
use crate::error::Error;
use crate::tablet::KnownSchema;

/// The prefix under which a lake table's descriptor names the lake's own options.
const LAKE_OPTION_PREFIX: &str = "table.datalake.paimon.";

/// Reads of the catalog, for both roles.
#[derive(Debug)]
pub(crate) struct Reads {
    catalog: Catalog,
    warehouse: String,
    settings: Vec<(String, String)>,
    /// What tablet servers of this process know of their keyed buckets.
    pub(crate) cut_logs: CutLogs,
}

/// What the servers need of a table's properties.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TableSettings {
    pub(crate) latest_schema: SchemaId,
    pub(crate) is_arrow: bool,
    pub(crate) ttl_ms: Option<i64>,
    pub(crate) is_lake_enabled: bool,
    pub(crate) freshness_ms: i64,
}

/// A lake snapshot with how far each bucket is in it.
#[derive(Clone, Debug)]
pub(crate) struct LakeProgress {
    pub(crate) snapshot_id: i64,
    /// Exclusive ends.
    pub(crate) ends: BTreeMap<TableBucket, LogOffset>,
}

impl Reads {
    /// `settings` are what `DESCRIBE_CLUSTER_CONFIGS` tells: no secrets.
    pub(crate) fn new(
        catalog: Catalog,
        warehouse: String,
        settings: Vec<(String, String)>,
    ) -> Self {
        Self {
            catalog,
            warehouse,
            settings,
            cut_logs: CutLogs::default(),
        }
    }

    pub(crate) fn settings(&self) -> &[(String, String)] {
        &self.settings
    }

    pub(crate) async fn list_databases(&self) -> Result<Vec<String>, Error> {
        Ok(self.catalog.list_databases().await?)
    }

    pub(crate) async fn database(&self, name: &str) -> Result<Database, Error> {
        let found = self
            .catalog
            .find_database(name)
            .await?
            .map(|stored| stored.document);
        let database = name.to_owned();
        Ok(found.ok_or(CatalogError::DatabaseNotExist { database })?)
    }

    pub(crate) async fn database_exists(&self, name: &str) -> Result<bool, Error> {
        Ok(self.catalog.find_database(name).await?.is_some())
    }

    pub(crate) async fn list_tables(&self, database: &str) -> Result<Vec<String>, Error> {
        Ok(self.catalog.list_tables(database).await?)
    }

    /// The paths of all tables of all databases.
    pub(crate) async fn all_tables(&self) -> Result<Vec<TablePath>, Error> {
        let mut paths = Vec::new();
        for database in self.list_databases().await? {
            let names = self.list_tables(&database).await?.into_iter();
            paths.extend(names.map(|name| TablePath::new(database.clone(), name)));
        }
        Ok(paths)
    }

    pub(crate) async fn table(&self, path: &TablePath) -> Result<Table, Error> {
        Ok(self.catalog.get_table(path).await?)
    }

    pub(crate) async fn table_exists(&self, path: &TablePath) -> Result<bool, Error> {
        Ok(self.catalog.find_table(path).await?.is_some())
    }

    pub(crate) async fn schema(&self, path: &TablePath, id: SchemaId) -> Result<Schema, Error> {
        Ok(self.catalog.get_schema(path, Some(id)).await?.1)
    }

    /// A table and its partitions, the table read first: a bucket count that changes meanwhile is
    /// never taken for theirs.
    pub(crate) async fn partitions(
        &self,
        path: &TablePath,
    ) -> Result<(Table, Vec<Partition>), Error> {
        Ok(self.catalog.list_partitions(path).await?)
    }

    pub(crate) async fn partition(&self, path: &TablePath, name: &str) -> Result<Partition, Error> {
        let found = self.catalog.find_partition(path, name).await?;
        let (path, partition) = (path.clone(), name.to_owned());
        Ok(found.ok_or(CatalogError::PartitionNotExist { path, partition })?)
    }

    /// Names of all partitions; empty for a table without.
    pub(crate) async fn partition_names(
        &self,
        table: &Table,
    ) -> Result<BTreeMap<PartitionId, String>, Error> {
        if !table.descriptor.is_partitioned() {
            return Ok(BTreeMap::new());
        }
        let (_, partitions) = self.partitions(&table.path).await?;
        let pair = |partition: Partition| (partition.id, partition.name);
        Ok(partitions.into_iter().map(pair).collect())
    }

    /// A table, which must still have this id.
    pub(crate) async fn table_with_id(
        &self,
        path: &TablePath,
        id: TableId,
    ) -> Result<Table, Error> {
        let table = self.table(path).await?;
        if table.table_id != id {
            let (given, actual) = (id, table.table_id);
            return Err(Error::OtherTable {
                path: path.clone(),
                given,
                actual,
            });
        }
        Ok(table)
    }

    /// All schemas of a table, by id; those that are known are not read again.
    pub(crate) async fn schemas(
        &self,
        table: &Table,
        mut known: BTreeMap<SchemaId, KnownSchema>,
    ) -> Result<BTreeMap<SchemaId, KnownSchema>, Error> {
        for id in (1..=table.schema_id.0).map(SchemaId) {
            if let Entry::Vacant(missing) = known.entry(id) {
                let schema = self.schema(&table.path, id).await?;
                missing.insert(KnownSchema::new(schema));
            }
        }
        Ok(known)
    }

    /// What the servers need of a table.
    pub(crate) fn settings_of(&self, table: &Table) -> Result<TableSettings, Error> {
        let properties = TableProperties::new(&table.path, &table.descriptor.properties);
        let ms = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        let ttl_ms = ms(properties.log_ttl()?);
        Ok(TableSettings {
            latest_schema: table.schema_id,
            is_arrow: properties.is(LOG_FORMAT, "ARROW", "ARROW"),
            ttl_ms: (ttl_ms > 0).then_some(ttl_ms),
            is_lake_enabled: properties.datalake_enabled()?,
            freshness_ms: ms(properties.freshness()?),
        })
    }

    /// Adds what a lake worker must know to open the lake; nothing secret.
    pub(crate) fn add_lake_options(&self, descriptor: &mut TableDescriptor) {
        let enabled = descriptor.properties.get("table.datalake.enabled");
        if !enabled.is_some_and(|value| parse_bool(value).unwrap_or(false)) {
            return;
        }
        let options = [
            ("metastore", "filesystem"),
            ("warehouse", self.warehouse.as_str()),
        ];
        for (key, value) in options {
            let key = format!("{LAKE_OPTION_PREFIX}{key}");
            descriptor.properties.insert(key, value.to_owned());
        }
    }

    /// Takes `count` writer ids that nobody else gets.
    pub(crate) async fn take_writer_ids(&self, count: u32) -> Result<Range<i64>, Error> {
        Ok(self.catalog.take_writer_ids(count).await?)
    }

    /// Takes numbers for a column that the server numbers, from 1 on, that nobody else gets.
    pub(crate) async fn take_numbers(
        &self,
        path: &TablePath,
        column: i32,
        count: u32,
    ) -> Result<Range<i64>, Error> {
        let failed = |source| {
            let what = format!("numbers of a column of {path}");
            Error::from(CatalogError::Store { what, source })
        };
        let counter = Key::auto_increment(path, column).map_err(failed)?;
        let taken = self.catalog.store().take_ids(&counter, count).await;
        let taken = taken.map_err(failed)?;
        let number = |id: u64| i64::try_from(id).unwrap_or(i64::MAX).saturating_add(1);
        Ok(number(taken.start)..number(taken.end))
    }

    /// A lake snapshot of a table.
    ///
    /// # Errors
    /// [`CatalogError::LakeSnapshotNotExist`]; [`CatalogError::Corrupt`] if its file cannot be used.
    pub(crate) async fn lake_snapshot(
        &self,
        table: &Table,
        which: Which,
    ) -> Result<LakeProgress, Error> {
        let id = table.table_id;
        let (snapshot, offsets) = self
            .catalog
            .get_lake_snapshot(&table.path, id, which)
            .await?;
        Ok(LakeProgress {
            snapshot_id: snapshot.snapshot_id,
            ends: by_bucket(offsets),
        })
    }

    /// How far each bucket is in the lake; empty without a snapshot.
    pub(crate) async fn lake_ends(
        &self,
        path: &TablePath,
        table: TableId,
    ) -> Result<BTreeMap<TableBucket, LogOffset>, Error> {
        Ok(by_bucket(self.catalog.get_lake_offsets(path, table).await?))
    }
}

fn by_bucket(offsets: LakeOffsets) -> BTreeMap<TableBucket, LogOffset> {
    let table = offsets.table_id;
    let named = |((partition, bucket), end)| {
        let bucket = TableBucket {
            table,
            partition,
            bucket,
        };
        (bucket, end)
    };
    offsets.end_offsets.into_iter().map(named).collect()
}
