mod databases;
mod failures;
mod histories;
mod lake_snapshots;
mod leaders;
mod partitions;
mod rescale;
mod tables;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use async_trait::async_trait;
use object_store::memory::InMemory;
use object_store::path::Path;
use proptest::prelude::*;
use weir_protocol::descriptor::DatabaseDescriptor;
use weir_protocol::ids::{
    BucketId, CoordinatorEpoch, LogOffset, ServerId, TableBucket, TieringEpoch,
};
use weir_protocol::schema::{Column, LogicalType, Schema, TypeKind};

use super::*;
use crate::clock::ManualClock;
use crate::ddl::{ColumnPosition, TableChange};
use crate::lake::LakeCreation;
use crate::leader::take_over;
use crate::model::Unknown;
use crate::model::lake_offsets::LakeOffsets;
use crate::model::leader_isr::LeaderIsr;
use crate::model::partition as documents;
use crate::model::table as table_documents;
use crate::model::tablet_server::TabletServer;
use crate::store::memory::MemoryStore;
use crate::store::{Expect, MetadataStore};
use crate::test_store::{Fault, FaultyStore};

const SERVERS: [ServerId; 2] = [ServerId(1), ServerId(2)];

/// A lake that keeps names only, and fails when told to.
#[derive(Debug, Default)]
struct FakeLake {
    calls: AtomicU32,
    fail_call: AtomicU32,
    tables: parking_lot::Mutex<BTreeMap<TablePath, usize>>,
    /// What it was told last; 0 before.
    buckets: AtomicI32,
}

impl FakeLake {
    fn buckets(&self) -> Option<i32> {
        Some(self.buckets.load(Ordering::SeqCst)).filter(|count| *count > 0)
    }

    fn call(&self, path: &TablePath) -> Result<()> {
        let call = self.calls.fetch_add(1, Ordering::SeqCst) + 1;
        if call == self.fail_call.load(Ordering::SeqCst) {
            let source = "told to fail".into();
            return Err(Error::Lake {
                path: path.clone(),
                source,
                retriable: true,
            });
        }
        Ok(())
    }
}

#[async_trait]
impl LakeCatalog for FakeLake {
    async fn create_table(
        &self,
        path: &TablePath,
        table: &TableDescriptor,
        _creation: LakeCreation,
    ) -> Result<()> {
        self.call(path)?;
        self.tables
            .lock()
            .insert(path.clone(), table.schema.columns.len());
        self.call(path)
    }

    async fn alter_options(
        &self,
        path: &TablePath,
        _table: &TableDescriptor,
        _changes: &[TableChange],
    ) -> Result<bool> {
        self.call(path)?;
        Ok(self.tables.lock().contains_key(path))
    }

    async fn set_bucket_count(
        &self,
        path: &TablePath,
        _table: &TableDescriptor,
        count: TotalBuckets,
    ) -> Result<()> {
        self.call(path)?;
        self.buckets.store(count.0, Ordering::SeqCst);
        self.call(path)
    }

    async fn add_columns(
        &self,
        path: &TablePath,
        _: &TableDescriptor,
        next: &Schema,
    ) -> Result<()> {
        self.call(path)?;
        self.tables.lock().insert(path.clone(), next.columns.len());
        self.call(path)
    }
}

struct World {
    store: Arc<FaultyStore>,
    lake: Arc<FakeLake>,
    clock: Arc<ManualClock>,
    catalog: Catalog,
}

impl World {
    async fn new() -> Self {
        let store = Arc::new(FaultyStore::new(MemoryStore::new()));
        let (lake, clock) = (
            Arc::new(FakeLake::default()),
            Arc::new(ManualClock::new(1000)),
        );
        let leadership = take_over(&*store).await.unwrap();
        let remote = OffsetsFiles::new(Arc::new(InMemory::new()), Path::from("r"), "file:/r");
        let catalog = Catalog::new(Arc::clone(&store) as _, Arc::clone(&clock) as _)
            .with_lake(Arc::clone(&lake) as _)
            .with_fence(leadership.fence)
            .with_offsets_files(remote);
        let none = DatabaseDescriptor::default();
        catalog
            .create_database("db", &none, IfExists::Fail)
            .await
            .unwrap();
        store.forget_calls();
        Self {
            store,
            lake,
            clock,
            catalog,
        }
    }

    async fn create(&self, path: &TablePath, table: &TableDescriptor) -> Result<Created<Table>> {
        let request = NewTable {
            path,
            descriptor: table,
            servers: &SERVERS,
        };
        self.catalog.create_table(request, IfExists::Fail).await
    }

    async fn table(&self, table: &TableDescriptor) -> Table {
        self.create(&path(), table).await.unwrap().into_inner()
    }

    async fn create_partition(&self, value: &str) -> Result<Created<Partition>> {
        let (path, spec) = (&path(), &spec(value));
        let request = NewPartition {
            path,
            spec,
            servers: &SERVERS,
        };
        self.catalog.create_partition(request, IfExists::Fail).await
    }

    async fn partition(&self, value: &str) -> Partition {
        self.create_partition(value).await.unwrap().into_inner()
    }
}

fn path() -> TablePath {
    TablePath::new("db", "t")
}

fn spec(value: &str) -> PartitionSpec {
    PartitionSpec(vec![("dt".to_owned(), value.to_owned())])
}

fn column(name: &str, kind: TypeKind) -> Column {
    Column::new(name, LogicalType::nullable(kind))
}

fn log_table() -> TableDescriptor {
    let columns = vec![
        column("id", TypeKind::BigInt),
        column("dt", TypeKind::String),
    ];
    let mut table = TableDescriptor::new(Schema::new(columns, Vec::new()).unwrap());
    table.bucket_count = Some(4);
    table
}

fn partitioned() -> TableDescriptor {
    let mut table = log_table();
    table.partition_keys = vec!["dt".to_owned()];
    table
}

/// Partitioned, with a lake that has fixed buckets.
fn keyed() -> TableDescriptor {
    let mut table = lake_enabled(partitioned());
    table.bucket_keys = vec!["id".to_owned()];
    table
}

fn lake_enabled(mut table: TableDescriptor) -> TableDescriptor {
    table
        .properties
        .insert("table.datalake.enabled".to_owned(), "true".to_owned());
    table
}

fn set(key: &str, value: &str) -> TableChange {
    TableChange::Set {
        key: key.to_owned(),
        value: value.to_owned(),
    }
}

fn add(name: &str) -> TableChange {
    let position = ColumnPosition::Last;
    TableChange::AddColumn {
        column: column(name, TypeKind::Int),
        position,
    }
}
