use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

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
}

impl FakeLake {
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

#[tokio::test]
async fn a_table_is_created_whole_and_dropped_whole() {
    let world = World::new().await;
    let table = world.table(&log_table()).await;
    assert_eq!(world.catalog.get_table(&path()).await.unwrap(), table);
    assert_eq!(
        (table.schema_id, table.bucket_count),
        (SchemaId(1), TotalBuckets(4))
    );
    assert_eq!((table.created_ms, table.bucket_layout_epoch), (1000, 0));
    let assignment = world
        .catalog
        .get_assignment(table.table_id, None)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(assignment.document.bucket_count(), TotalBuckets(4));
    let error = world.create(&path(), &log_table()).await.unwrap_err();
    assert!(matches!(error, Error::TableAlreadyExist { .. }), "{error}");
    let request = NewTable {
        path: &path(),
        descriptor: &partitioned(),
        servers: &SERVERS,
    };
    let again = world
        .catalog
        .create_table(request, IfExists::Ignore)
        .await
        .unwrap();
    assert_eq!(again, Created::Existing(table.clone()));

    let dropped = world
        .catalog
        .drop_table(&path(), IfMissing::Fail)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        dropped,
        DroppedTable {
            table_id: table.table_id,
            partitions: Vec::new()
        }
    );
    assert_eq!(world.catalog.find_table(&path()).await.unwrap(), None);
    let unfinished = world.catalog.list_assignments().await.unwrap();
    assert_eq!(unfinished, (vec![table.table_id], Vec::new()));
    world
        .catalog
        .finish_table_drop(table.table_id)
        .await
        .unwrap();
    assert_eq!(
        world.catalog.list_assignments().await.unwrap(),
        (Vec::new(), Vec::new())
    );
    assert!(
        world
            .catalog
            .drop_table(&path(), IfMissing::Ignore)
            .await
            .unwrap()
            .is_none()
    );
    let error = world
        .catalog
        .drop_table(&path(), IfMissing::Fail)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::TableNotExist { .. }), "{error}");
    let reborn = world.table(&log_table()).await;
    assert!(reborn.table_id > table.table_id, "ids are never used again");
}

#[tokio::test]
async fn databases_come_change_and_go() {
    let world = World::new().await;
    let (catalog, none) = (&world.catalog, DatabaseDescriptor::default());
    let error = catalog
        .create_database("db", &none, IfExists::Fail)
        .await
        .unwrap_err();
    assert!(
        matches!(error, Error::DatabaseAlreadyExist { .. }),
        "{error}"
    );
    catalog
        .create_database("db", &none, IfExists::Ignore)
        .await
        .unwrap();
    let error = catalog
        .create_database("a/b", &none, IfExists::Fail)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::InvalidDatabase { .. }), "{error}");
    let changes = [
        DatabaseChange::Comment(Some("c".to_owned())),
        DatabaseChange::Set {
            key: "k".to_owned(),
            value: "v".to_owned(),
        },
    ];
    catalog
        .alter_database("db", &changes, IfMissing::Fail)
        .await
        .unwrap();
    let database = catalog.get_database("db").await.unwrap().unwrap().document;
    assert_eq!(
        (
            database.comment.as_deref(),
            database.custom_properties["k"].as_str()
        ),
        (Some("c"), "v")
    );

    let table = world.table(&partitioned()).await;
    let partition = world.partition("a").await;
    let error = catalog
        .drop_database("db", IfMissing::Fail, Contents::MustBeEmpty)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::DatabaseNotEmpty { .. }), "{error}");
    let dropped = catalog
        .drop_database("db", IfMissing::Fail, Contents::Drop)
        .await
        .unwrap();
    assert_eq!(
        dropped.tables,
        [(path(), table.table_id, vec![partition.id])]
    );
    assert_eq!(
        catalog.list_databases().await.unwrap(),
        Vec::<String>::new()
    );
    let error = catalog.list_tables("db").await.unwrap_err();
    assert!(matches!(error, Error::DatabaseNotExist { .. }), "{error}");
    let error = world.create(&path(), &log_table()).await.unwrap_err();
    assert!(matches!(error, Error::DatabaseNotExist { .. }), "{error}");
    let error = catalog
        .drop_database("fluss", IfMissing::Fail, Contents::Drop)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::DatabaseProtected { .. }), "{error}");
}

#[tokio::test]
async fn a_table_created_while_its_database_is_dropped_is_not_lost() {
    let world = World::new().await;
    let catalog = world.catalog.clone();
    // Commit 1 marks the database, commit 2 deletes it: the table comes right between.
    world.store.before_commit(2, move |store| {
        let inner = Catalog {
            store: Arc::new(store.clone()),
            lake: None,
            ..catalog
        };
        let (path, descriptor) = (path(), log_table());
        let request = NewTable {
            path: &path,
            descriptor: &descriptor,
            servers: &SERVERS,
        };
        let create = inner.create_table(request, IfExists::Fail);
        futures::executor::block_on(create).unwrap();
    });
    let dropped = world
        .catalog
        .drop_database("db", IfMissing::Fail, Contents::MustBeEmpty)
        .await;
    assert!(
        matches!(dropped, Err(Error::DatabaseNotEmpty { .. })),
        "{dropped:?}"
    );
    assert!(world.catalog.find_table(&path()).await.unwrap().is_some());
}

#[tokio::test]
async fn a_table_that_was_decided_before_its_database_was_marked_looks_again() {
    let world = World::new().await;
    let before = world.catalog.get_database("db").await.unwrap().unwrap();
    let descriptor = crate::ddl::complete(&path(), log_table(), &Rules::default()).unwrap();
    let table = tables::new_table(&path(), TableId(7), &descriptor, 0);
    let txn = world.catalog.creation(&table, &SERVERS).unwrap();
    let txn = Catalog::keep_database(txn, "db", &before).unwrap();
    world.store.before_commit(2, move |store| {
        let late = futures::executor::block_on(store.commit(txn));
        assert!(
            matches!(late, Err(crate::store::StoreError::Conflict { .. })),
            "{late:?}"
        );
    });
    world
        .catalog
        .drop_database("db", IfMissing::Fail, Contents::MustBeEmpty)
        .await
        .unwrap();
}

#[tokio::test]
async fn the_lake_table_of_a_table_that_was_tiered_is_never_another() {
    let world = World::new().await;
    let table = world.table(&lake_enabled(log_table())).await;
    let alter = async |changes: &[TableChange]| {
        let path = path();
        let altered = world.catalog.alter_table(&path, changes, IfMissing::Fail);
        altered.await.map(drop)
    };
    let off = set("table.datalake.enabled", "false");
    let rename = set("table.datalake.table-name", "other");
    alter(&[off.clone(), rename]).await.unwrap();
    world
        .catalog
        .next_tiering_epoch(table.table_id)
        .await
        .unwrap();
    let error = alter(&[set("table.datalake.table-name", "third")])
        .await
        .unwrap_err();
    assert!(matches!(error, Error::InvalidAlterTable { .. }), "{error}");
    alter(&[set("table.datalake.enabled", "true")])
        .await
        .unwrap();
}

#[tokio::test]
async fn a_partition_owns_its_bucket_count() {
    let world = World::new().await;
    let table = world.table(&partitioned()).await;
    assert!(
        world
            .catalog
            .get_assignment(table.table_id, None)
            .await
            .unwrap()
            .is_none()
    );
    let partition = world.partition("a").await;
    assert_eq!(
        (partition.name.as_str(), partition.bucket_count),
        ("a", TotalBuckets(4))
    );
    let assignment = world
        .catalog
        .get_assignment(table.table_id, Some(partition.id))
        .await
        .unwrap();
    let assignment = assignment.unwrap().document;
    assert_eq!(
        (assignment.bucket_count(), assignment.table_id),
        (TotalBuckets(4), Some(table.table_id))
    );
    let error = world.create_partition("a").await.unwrap_err();
    assert!(
        matches!(error, Error::PartitionAlreadyExist { .. }),
        "{error}"
    );

    // A table whose count was altered: the old partition stays, one without a count is an error.
    let key = Key::table(&path()).unwrap();
    let stored = world
        .catalog
        .get::<table_documents::Table>(&key)
        .await
        .unwrap()
        .unwrap();
    let mut altered = stored.document;
    (altered.bucket_count, altered.bucket_layout_epoch) = (TotalBuckets(8), 1);
    let txn = Txn::new(None).put(key, altered.encode().unwrap(), Expect::Any);
    world.store.commit(txn).await.unwrap();
    assert_eq!(world.partition("b").await.bucket_count, TotalBuckets(8));
    let (_, partitions) = world.catalog.list_partitions(&path()).await.unwrap();
    let counts: Vec<_> = partitions.iter().map(|p| p.bucket_count.0).collect();
    assert_eq!(counts, [4, 8]);
    let legacy = documents::Partition {
        table_id: table.table_id,
        partition_id: PartitionId(99),
        bucket_count: None,
        remote_data_dir: None,
        unknown: Unknown::new(),
    };
    let key = Key::partition(&path(), "c").unwrap();
    let txn = Txn::new(None).put(key, legacy.encode().unwrap(), Expect::Absent);
    world.store.commit(txn).await.unwrap();
    let error = world.catalog.list_partitions(&path()).await.unwrap_err();
    assert!(matches!(error, Error::StaleMetadata { .. }), "{error}");
    assert!(
        world
            .catalog
            .find_partition(&path(), "a")
            .await
            .unwrap()
            .is_some()
    );
}

#[tokio::test]
async fn partitions_are_checked_limited_and_dropped() {
    let world = World::new().await;
    world.table(&partitioned()).await;
    for (bad, reason) in [("", "empty"), ("a/b", "character"), ("__x", "system")] {
        let error = world.create_partition(bad).await.unwrap_err();
        assert!(matches!(error, Error::InvalidPartition { .. }), "{error}");
        assert!(error.to_string().contains(reason), "{error}");
    }
    let catalog = world.catalog.clone().with_rules(Rules {
        max_partition_count: 2,
        ..Rules::default()
    });
    let create = async |value: &str, if_exists| {
        let request = NewPartition {
            path: &path(),
            spec: &spec(value),
            servers: &SERVERS,
        };
        catalog.create_partition(request, if_exists).await
    };
    let first = create("a", IfExists::Fail).await.unwrap().into_inner();
    create("b", IfExists::Fail).await.unwrap();
    let error = create("c", IfExists::Fail).await.unwrap_err();
    assert!(
        matches!(error, Error::TooManyPartitions { max: 2, .. }),
        "{error}"
    );
    assert_eq!(
        create("a", IfExists::Ignore).await.unwrap(),
        Created::Existing(first.clone())
    );
    let dropped = catalog
        .drop_partition(&path(), &spec("a"), IfMissing::Fail)
        .await
        .unwrap();
    assert_eq!(dropped, Some(first.id));
    let again = catalog
        .drop_partition(&path(), &spec("a"), IfMissing::Ignore)
        .await
        .unwrap();
    assert_eq!(again, None);
    let error = catalog
        .drop_partition(&path(), &spec("a"), IfMissing::Fail)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::PartitionNotExist { .. }), "{error}");
    assert!(create("a", IfExists::Fail).await.unwrap().into_inner().id > first.id);
}

#[tokio::test]
async fn a_partition_of_a_table_that_was_created_anew_meanwhile_is_not_made() {
    let world = World::new().await;
    world.table(&partitioned()).await;
    let catalog = world.catalog.clone();
    world.store.forget_calls();
    world.store.before_commit(1, move |store| {
        let inner = Catalog {
            store: Arc::new(store.clone()),
            ..catalog
        };
        let (path, descriptor) = (path(), partitioned());
        let request = NewTable {
            path: &path,
            descriptor: &descriptor,
            servers: &SERVERS,
        };
        futures::executor::block_on(async {
            inner.drop_table(&path, IfMissing::Fail).await.unwrap();
            inner.create_table(request, IfExists::Fail).await.unwrap();
        });
    });
    let error = world.create_partition("a").await.unwrap_err();
    assert!(matches!(error, Error::TableNotExist { .. }), "{error}");
    assert_eq!(world.catalog.list_partitions(&path()).await.unwrap().1, []);
}

#[tokio::test]
async fn columns_and_properties_change_the_lake_first() {
    let world = World::new().await;
    world.table(&lake_enabled(log_table())).await;
    assert_eq!(world.lake.tables.lock().get(&path()), Some(&2));
    world.clock.set_ms(2000);
    let alter = async |changes: &[TableChange]| {
        world
            .catalog
            .alter_table(&path(), changes, IfMissing::Fail)
            .await
            .map(Option::unwrap)
    };
    let table = alter(&[add("x")]).await.unwrap();
    assert_eq!(
        (table.schema_id, table.descriptor.schema.columns.len()),
        (SchemaId(2), 3)
    );
    assert_eq!(world.lake.tables.lock().get(&path()), Some(&3));
    let (_, first) = world
        .catalog
        .get_schema(&path(), Some(SchemaId(1)))
        .await
        .unwrap();
    assert_eq!(first.columns.len(), 2, "older schemas stay");
    let error = world
        .catalog
        .get_schema(&path(), Some(SchemaId(3)))
        .await
        .unwrap_err();
    assert!(matches!(error, Error::SchemaNotExist { .. }), "{error}");
    let table = alter(&[set("owner", "me")]).await.unwrap();
    assert_eq!((table.modified_ms, table.schema_id), (2000, SchemaId(2)));
    assert_eq!(table.descriptor.custom_properties["owner"], "me");
    let calls = world.lake.calls.load(Ordering::SeqCst);
    alter(&[set("owner", "me")]).await.unwrap();
    assert_eq!(
        world.lake.calls.load(Ordering::SeqCst),
        calls,
        "no change, no call"
    );

    world.lake.tables.lock().clear();
    let error = alter(&[set("owner", "you")]).await.unwrap_err();
    assert!(matches!(error, Error::Lake { .. }), "{error}");
    let no_lake = Catalog {
        lake: None,
        ..world.catalog.clone()
    };
    let error = no_lake
        .alter_table(&path(), &[add("y")], IfMissing::Fail)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::LakeNotConfigured { .. }), "{error}");
    assert_eq!(
        world.catalog.get_table(&path()).await.unwrap().schema_id,
        SchemaId(2)
    );
}

#[tokio::test]
async fn two_columns_added_at_once_both_arrive() {
    let world = World::new().await;
    world.table(&log_table()).await;
    let (one, two) = ([add("x")], [add("y")]);
    let (path, catalog) = (path(), &world.catalog);
    let (one, two) = tokio::join!(
        catalog.alter_table(&path, &one, IfMissing::Fail),
        catalog.alter_table(&path, &two, IfMissing::Fail),
    );
    one.unwrap();
    two.unwrap();
    let table = world.catalog.get_table(&path).await.unwrap();
    assert_eq!(
        (table.schema_id, table.descriptor.schema.columns.len()),
        (SchemaId(3), 4)
    );
}

#[tokio::test]
async fn a_deposed_coordinator_changes_nothing() {
    let world = World::new().await;
    let table = world.table(&partitioned()).await;
    let newer = take_over(&*world.store).await.unwrap();
    assert_eq!(newer.epoch, CoordinatorEpoch(1));
    let catalog = &world.catalog;
    let errors = [
        world
            .create(&TablePath::new("db", "u"), &log_table())
            .await
            .map(drop)
            .unwrap_err(),
        world.create_partition("a").await.map(drop).unwrap_err(),
        catalog
            .drop_table(&path(), IfMissing::Fail)
            .await
            .map(drop)
            .unwrap_err(),
        catalog
            .alter_table(&path(), &[add("x")], IfMissing::Fail)
            .await
            .map(drop)
            .unwrap_err(),
        catalog
            .next_tiering_epoch(table.table_id)
            .await
            .map(drop)
            .unwrap_err(),
        catalog.finish_table_drop(table.table_id).await.unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(error, Error::Fenced { .. }), "{error}");
    }
    assert_eq!(catalog.get_table(&path()).await.unwrap(), table);
}

#[tokio::test]
async fn too_few_servers_are_told() {
    let world = World::new().await;
    let mut table = log_table();
    table
        .properties
        .insert("table.replication.factor".to_owned(), "3".to_owned());
    let error = world.create(&path(), &table).await.unwrap_err();
    let fits = matches!(
        error,
        Error::InvalidReplicationFactor {
            found: 3,
            servers: 2,
            ..
        }
    );
    assert!(fits, "{error}");
}

#[tokio::test]
async fn leaders_and_servers_are_kept() {
    let world = World::new().await;
    let table = world.table(&log_table()).await;
    let bucket = |b| TableBucket {
        table: table.table_id,
        partition: None,
        bucket: BucketId(b),
    };
    let leader = LeaderIsr::first(ServerId(1), vec![ServerId(1)], CoordinatorEpoch(0));
    let leaders = [(bucket(0), leader.clone(), Expect::Absent)];
    world.catalog.put_leaders(&leaders).await.unwrap();
    let error = world.catalog.put_leaders(&leaders).await.unwrap_err();
    assert!(matches!(error, Error::Conflict { .. }), "{error}");
    let found = world
        .catalog
        .get_leaders(&[bucket(1), bucket(0)])
        .await
        .unwrap();
    assert!(found[0].is_none());
    assert_eq!(found[1].as_ref().unwrap().document, leader);

    let session = world
        .store
        .open_session(std::time::Duration::from_secs(10))
        .await
        .unwrap();
    let server = TabletServer {
        listeners: "FLUSS://h:1".to_owned(),
        register_timestamp: 1,
        rack: None,
        cpu_cores: None,
        memory_bytes: None,
        unknown: Unknown::new(),
    };
    world
        .catalog
        .register_server(ServerId(3), &server, session.id())
        .await
        .unwrap();
    assert_eq!(
        world.catalog.list_servers().await.unwrap(),
        [(ServerId(3), server)]
    );
    world.store.close_session(session.id()).await.unwrap();
    assert_eq!(world.catalog.list_servers().await.unwrap(), []);
    let ids = world.catalog.take_writer_ids(3).await.unwrap();
    assert_eq!(
        world.catalog.take_writer_ids(1).await.unwrap().start,
        ids.end
    );
}

fn offsets(table: TableId, ends: &[(Option<PartitionId>, i32, i64)]) -> LakeOffsets {
    let end = |(partition, bucket, end): &(_, i32, i64)| {
        ((*partition, BucketId(*bucket)), LogOffset(*end))
    };
    LakeOffsets {
        table_id: table,
        end_offsets: ends.iter().map(end).collect(),
    }
}

#[tokio::test]
async fn lake_snapshots_are_committed_once_and_only_forward() {
    let world = World::new().await;
    let table = world.table(&log_table()).await;
    let (catalog, path, id) = (&world.catalog, path(), table.table_id);
    let prepare = async |ends: &[(Option<PartitionId>, i32, i64)]| {
        catalog
            .prepare_lake_offsets(&path, &offsets(id, ends), OffsetsPolicy::OnlyRise)
            .await
            .unwrap()
    };
    let commit = |snapshot_id, tiered_offsets| LakeCommit {
        path: &path,
        table_id: id,
        snapshot_id,
        tiered_offsets,
        readable_offsets: None,
        earliest_to_keep: None,
        policy: OffsetsPolicy::OnlyRise,
    };
    let none = catalog
        .get_lake_snapshot(&path, id, Which::Latest)
        .await
        .unwrap_err();
    assert!(matches!(none, Error::LakeSnapshotNotExist { .. }), "{none}");
    let first = prepare(&[(None, 0, 10), (None, 1, 5)]).await;
    assert!(
        first.starts_with(&format!("file:/r/lake/db/t-{id}/metadata/")),
        "{first}"
    );
    for _ in 0..2 {
        assert_eq!(
            catalog
                .commit_lake_snapshot(commit(1, &first))
                .await
                .unwrap(),
            []
        );
    }
    let second = prepare(&[(None, 0, 20)]).await;
    let dropped = catalog
        .commit_lake_snapshot(commit(2, &second))
        .await
        .unwrap();
    assert_eq!(dropped[0].tiered_offsets, first);
    let (snapshot, found) = catalog
        .get_lake_snapshot(&path, id, Which::Latest)
        .await
        .unwrap();
    assert_eq!(snapshot.snapshot_id, 2);
    assert_eq!(
        found,
        offsets(id, &[(None, 0, 20), (None, 1, 5)]),
        "new offsets win, others stay"
    );
    let readable = catalog.get_lake_snapshot(&path, id, Which::Readable).await;
    assert!(matches!(readable, Err(Error::LakeSnapshotNotExist { .. })));

    let stale = catalog
        .commit_lake_snapshot(commit(3, &first))
        .await
        .unwrap_err();
    assert!(
        matches!(stale, Error::InvalidLakeSnapshot { .. }),
        "{stale}"
    );
    let back = LakeCommit {
        policy: OffsetsPolicy::MayFall,
        ..commit(3, &first)
    };
    catalog.commit_lake_snapshot(back).await.unwrap();
    let only_one = offsets(id, &[(None, 0, 30)]);
    let partial = catalog
        .prepare_lake_offsets(&path, &only_one, OffsetsPolicy::MayFall)
        .await
        .unwrap();
    let forgotten = catalog
        .commit_lake_snapshot(commit(4, &partial))
        .await
        .unwrap_err();
    assert!(
        forgotten.to_string().contains("would be forgotten"),
        "{forgotten}"
    );

    let above = format!("{first}/../x");
    for uri in [
        "file:/r/lake/db/t-999/metadata/x.offsets",
        "file:/etc/passwd",
        "",
        &above,
    ] {
        let error = catalog
            .commit_lake_snapshot(commit(5, uri))
            .await
            .unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }), "{uri}: {error}");
    }
    let wrong = LakeCommit {
        table_id: TableId(id.0 + 1),
        ..commit(5, &first)
    };
    let error = catalog.commit_lake_snapshot(wrong).await.unwrap_err();
    assert!(matches!(error, Error::TableIdNotExist { .. }), "{error}");
}

#[tokio::test]
async fn offsets_of_dropped_partitions_are_pruned() {
    let world = World::new().await;
    let table = world.table(&partitioned()).await;
    let (catalog, path, id) = (&world.catalog, path(), table.table_id);
    let (a, b) = (world.partition("a").await.id, world.partition("b").await.id);
    let tier = async |snapshot_id, ends: &[(Option<PartitionId>, i32, i64)]| {
        let new = offsets(id, ends);
        let uri = catalog
            .prepare_lake_offsets(&path, &new, OffsetsPolicy::OnlyRise)
            .await
            .unwrap();
        let commit = LakeCommit {
            path: &path,
            table_id: id,
            snapshot_id,
            tiered_offsets: &uri,
            readable_offsets: Some(&uri),
            earliest_to_keep: Some(-1),
            policy: OffsetsPolicy::OnlyRise,
        };
        catalog.commit_lake_snapshot(commit).await.unwrap();
        catalog.get_lake_offsets(&path, id).await.unwrap()
    };
    tier(1, &[(Some(a), 0, 1), (Some(b), 0, 2)]).await;
    catalog
        .drop_partition(&path, &spec("a"), IfMissing::Fail)
        .await
        .unwrap();
    assert_eq!(
        tier(2, &[(Some(b), 1, 3)]).await,
        offsets(id, &[(Some(b), 0, 2), (Some(b), 1, 3)])
    );
    assert_eq!(
        catalog
            .get_lake_table(id)
            .await
            .unwrap()
            .unwrap()
            .document
            .lake_snapshots
            .len(),
        2
    );
    let old = catalog
        .get_lake_snapshot(&path, id, Which::Id(1))
        .await
        .unwrap();
    assert_eq!(old.1.end_offsets.len(), 2);
}

#[tokio::test]
async fn two_committers_of_a_lake_snapshot_never_overwrite_each_other() {
    let world = World::new().await;
    let table = world.table(&log_table()).await;
    let (path, id) = (path(), table.table_id);
    let low = offsets(id, &[(None, 0, 10)]);
    let high = offsets(id, &[(None, 0, 20)]);
    let low = world
        .catalog
        .prepare_lake_offsets(&path, &low, OffsetsPolicy::OnlyRise)
        .await
        .unwrap();
    let high = world
        .catalog
        .prepare_lake_offsets(&path, &high, OffsetsPolicy::OnlyRise)
        .await
        .unwrap();
    let other = world.catalog.clone();
    world.store.forget_calls();
    let commit = |snapshot_id, tiered_offsets| LakeCommit {
        path: &path,
        table_id: id,
        snapshot_id,
        tiered_offsets,
        readable_offsets: None,
        earliest_to_keep: None,
        policy: OffsetsPolicy::OnlyRise,
    };
    let (path_2, high_2) = (path.clone(), high.clone());
    world.store.before_commit(1, move |store| {
        let inner = Catalog {
            store: Arc::new(store.clone()),
            ..other
        };
        let commit = LakeCommit {
            path: &path_2,
            table_id: id,
            snapshot_id: 2,
            tiered_offsets: &high_2,
            readable_offsets: None,
            earliest_to_keep: None,
            policy: OffsetsPolicy::OnlyRise,
        };
        futures::executor::block_on(inner.commit_lake_snapshot(commit)).unwrap();
    });
    let error = world
        .catalog
        .commit_lake_snapshot(commit(1, &low))
        .await
        .unwrap_err();
    assert!(
        matches!(error, Error::InvalidLakeSnapshot { .. }),
        "{error}"
    );
    let found = world.catalog.get_lake_offsets(&path, id).await.unwrap();
    assert_eq!(found, offsets(id, &[(None, 0, 20)]));
}

#[tokio::test]
async fn tiering_epochs_only_rise_also_across_coordinators() {
    let world = World::new().await;
    let table = world.table(&log_table()).await.table_id;
    let catalog = &world.catalog;
    assert_eq!(
        catalog.get_tiering_epoch(table).await.unwrap(),
        TieringEpoch(0)
    );
    assert_eq!(
        catalog.next_tiering_epoch(table).await.unwrap(),
        TieringEpoch(1)
    );
    world.store.forget_calls();
    world.store.fail_commit(1, Fault::LostReply);
    assert_eq!(
        catalog.next_tiering_epoch(table).await.unwrap(),
        TieringEpoch(2)
    );
    let newer = take_over(&*world.store).await.unwrap();
    let newer = catalog.clone().with_fence(newer.fence);
    assert_eq!(
        newer.next_tiering_epoch(table).await.unwrap(),
        TieringEpoch(3)
    );
    newer
        .check_tiering_epoch(table, TieringEpoch(3))
        .await
        .unwrap();
    let error = newer
        .check_tiering_epoch(table, TieringEpoch(2))
        .await
        .unwrap_err();
    assert!(
        matches!(
            error,
            Error::FencedTieringEpoch {
                current: TieringEpoch(3),
                ..
            }
        ),
        "{error}"
    );
}

/// Checks that no table or partition is half made.
async fn check_whole(world: &World) {
    let catalog = &world.catalog;
    let Some(table) = catalog.find_table(&path()).await.unwrap() else {
        return;
    };
    if !table.descriptor.is_partitioned() {
        let assignment = catalog
            .get_assignment(table.table_id, None)
            .await
            .unwrap()
            .unwrap();
        assert_eq!(assignment.document.bucket_count(), table.bucket_count);
        return;
    }
    let (_, partitions) = catalog.list_partitions(&path()).await.unwrap();
    for partition in partitions {
        let id = Some(partition.id);
        let assignment = catalog
            .get_assignment(table.table_id, id)
            .await
            .unwrap()
            .unwrap();
        assert_eq!(assignment.document.bucket_count(), partition.bucket_count);
    }
}

/// Lets the n-th store call, then the n-th lake call, fail for every n, and checks that nothing is
/// half made and that the same call succeeds afterwards.
async fn sweep<F>(before: bool, call: F)
where
    F: AsyncFn(&World, IfExists) -> Result<()>,
{
    let mut faults = 0;
    for fault in [Fault::Unavailable, Fault::LostReply, Fault::LostRequest] {
        for n in 1.. {
            let world = World::new().await;
            if before {
                world.table(&lake_enabled(partitioned())).await;
            }
            world.store.forget_calls();
            world.store.fail_call(n, fault);
            let outcome = call(&world, IfExists::Fail).await;
            let calls = world.store.calls();
            world.store.forget_calls();
            check_whole(&world).await;
            call(&world, IfExists::Ignore).await.unwrap();
            check_whole(&world).await;
            if n > calls {
                outcome.unwrap();
                break;
            }
            faults += 1;
        }
    }
    for n in 1.. {
        let world = World::new().await;
        if before {
            world.table(&lake_enabled(partitioned())).await;
        }
        world.lake.calls.store(0, Ordering::SeqCst);
        world.lake.fail_call.store(n, Ordering::SeqCst);
        let table = world.catalog.find_table(&path()).await.unwrap();
        let outcome = call(&world, IfExists::Fail).await;
        let calls = world.lake.calls.load(Ordering::SeqCst);
        if n > calls {
            outcome.unwrap();
            break;
        }
        assert!(matches!(outcome, Err(Error::Lake { .. })), "{outcome:?}");
        let unchanged = world.catalog.find_table(&path()).await.unwrap();
        assert_eq!(
            unchanged, table,
            "the lake failed, so the table did not change"
        );
        call(&world, IfExists::Ignore).await.unwrap();
        faults += 1;
    }
    assert!(faults > 6, "only {faults} faults were met");
}

#[tokio::test]
async fn creating_a_table_survives_the_failure_of_any_call() {
    sweep(false, async |world, if_exists| {
        let (path, descriptor) = (path(), lake_enabled(log_table()));
        let request = NewTable {
            path: &path,
            descriptor: &descriptor,
            servers: &SERVERS,
        };
        world
            .catalog
            .create_table(request, if_exists)
            .await
            .map(drop)
    })
    .await;
}

#[tokio::test]
async fn creating_a_partition_survives_the_failure_of_any_call() {
    sweep(true, async |world, if_exists| {
        let request = NewPartition {
            path: &path(),
            spec: &spec("a"),
            servers: &SERVERS,
        };
        world
            .catalog
            .create_partition(request, if_exists)
            .await
            .map(drop)
    })
    .await;
}

#[tokio::test]
async fn altering_properties_survives_the_failure_of_any_call() {
    sweep(true, async |world, _| {
        let changes = [set("owner", "me"), set("table.log.ttl", "1 d")];
        world
            .catalog
            .alter_table(&path(), &changes, IfMissing::Fail)
            .await
            .map(drop)
    })
    .await;
}

#[tokio::test]
async fn adding_a_column_survives_the_failure_of_any_call() {
    sweep(true, async |world, if_exists| {
        let added = world
            .catalog
            .alter_table(&path(), &[add("x")], IfMissing::Fail)
            .await;
        match added {
            // Done by the call that failed: the reference says so too.
            Err(Error::InvalidAlterTable { .. }) if if_exists == IfExists::Ignore => Ok(()),
            other => other.map(drop),
        }
    })
    .await;
}

#[derive(Clone, Debug)]
enum Step {
    CreateDatabase(u8),
    DropDatabase(u8, bool),
    CreateTable(u8, u8, bool),
    DropTable(u8, u8),
    CreatePartition(u8, u8, u8),
    DropPartition(u8, u8, u8),
    AddColumn(u8, u8, u8),
    SetProperty(u8, u8, u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (db, table, value) = (0..2_u8, 0..3_u8, 0..3_u8);
    let (d, t) = (db.clone(), table.clone());
    let step = prop_oneof![
        2 => db.clone().prop_map(Step::CreateDatabase),
        1 => (db.clone(), any::<bool>()).prop_map(|(d, c)| Step::DropDatabase(d, c)),
        4 => (db.clone(), table.clone(), any::<bool>()).prop_map(|(d, t, p)| Step::CreateTable(d, t, p)),
        1 => (db.clone(), table.clone()).prop_map(|(d, t)| Step::DropTable(d, t)),
        4 => (db.clone(), table.clone(), value.clone()).prop_map(|(d, t, v)| Step::CreatePartition(d, t, v)),
        2 => (db, table, value.clone()).prop_map(|(d, t, v)| Step::DropPartition(d, t, v)),
        2 => (d.clone(), t.clone(), value.clone()).prop_map(|(d, t, v)| Step::AddColumn(d, t, v)),
        1 => (d, t, value).prop_map(|(d, t, v)| Step::SetProperty(d, t, v)),
    ];
    prop::collection::vec(step, 1..60)
}

/// What the oracle knows of a table.
#[derive(Clone, Debug, Default, PartialEq)]
struct Known {
    is_partitioned: bool,
    partitions: std::collections::BTreeSet<String>,
    columns: Vec<String>,
    owner: Option<String>,
}

type Oracle = BTreeMap<String, BTreeMap<String, Known>>;

/// Applies one step to the catalog and to the oracle, which must agree whether it succeeds.
async fn apply(world: &World, oracle: &mut Oracle, step: &Step) {
    let (catalog, none) = (&world.catalog, DatabaseDescriptor::default());
    let name = |d: u8, t: u8| TablePath::new(format!("d{d}"), format!("t{t}"));
    match *step {
        Step::CreateDatabase(d) => {
            let name = format!("d{d}");
            let done = catalog.create_database(&name, &none, IfExists::Fail).await;
            assert_eq!(done.is_ok(), !oracle.contains_key(&name), "{done:?}");
            oracle.entry(name).or_default();
        }
        Step::DropDatabase(d, cascade) => {
            let name = format!("d{d}");
            let contents = if cascade {
                Contents::Drop
            } else {
                Contents::MustBeEmpty
            };
            let done = catalog
                .drop_database(&name, IfMissing::Fail, contents)
                .await;
            let may = oracle
                .get(&name)
                .is_some_and(|tables| cascade || tables.is_empty());
            assert_eq!(done.is_ok(), may, "{done:?}");
            if may {
                oracle.remove(&name);
            }
        }
        Step::CreateTable(d, t, is_partitioned) => {
            let path = name(d, t);
            let table = if is_partitioned {
                partitioned()
            } else {
                log_table()
            };
            let done = world.create(&path, &table).await;
            let tables = oracle
                .get_mut(&path.database)
                .filter(|tables| !tables.contains_key(&path.table));
            assert_eq!(done.is_ok(), tables.is_some(), "{done:?}");
            if let Some(tables) = tables {
                tables.insert(
                    path.table,
                    Known {
                        is_partitioned,
                        ..Known::default()
                    },
                );
            }
        }
        Step::DropTable(d, t) => {
            let path = name(d, t);
            let done = catalog.drop_table(&path, IfMissing::Fail).await;
            let was_there = oracle
                .get_mut(&path.database)
                .and_then(|tables| tables.remove(&path.table));
            assert_eq!(done.is_ok(), was_there.is_some(), "{done:?}");
        }
        Step::CreatePartition(..) | Step::DropPartition(..) => {
            apply_partition(world, oracle, step).await;
        }
        Step::AddColumn(d, t, c) => {
            let (path, column) = (name(d, t), format!("c{c}"));
            let done = catalog
                .alter_table(&path, &[add(&column)], IfMissing::Fail)
                .await;
            let known = oracle
                .get_mut(&path.database)
                .and_then(|tables| tables.get_mut(&path.table));
            let known = known.filter(|known| !known.columns.contains(&column));
            assert_eq!(done.is_ok(), known.is_some(), "{done:?}");
            if let Some(known) = known {
                known.columns.push(column);
            }
        }
        Step::SetProperty(d, t, v) => {
            let (path, owner) = (name(d, t), format!("o{v}"));
            let done = catalog
                .alter_table(&path, &[set("owner", &owner)], IfMissing::Fail)
                .await;
            let known = oracle
                .get_mut(&path.database)
                .and_then(|tables| tables.get_mut(&path.table));
            assert_eq!(done.is_ok(), known.is_some(), "{done:?}");
            if let Some(known) = known {
                known.owner = Some(owner);
            }
        }
    }
}

async fn apply_partition(world: &World, oracle: &mut Oracle, step: &Step) {
    let (Step::CreatePartition(d, t, v) | Step::DropPartition(d, t, v)) = *step else {
        return;
    };
    let (path, value) = (
        TablePath::new(format!("d{d}"), format!("t{t}")),
        format!("p{v}"),
    );
    let spec = spec(&value);
    let known = oracle
        .get_mut(&path.database)
        .and_then(|tables| tables.get_mut(&path.table));
    let known = known.filter(|known| known.is_partitioned);
    if matches!(step, Step::CreatePartition(..)) {
        let request = NewPartition {
            path: &path,
            spec: &spec,
            servers: &SERVERS,
        };
        let done = world
            .catalog
            .create_partition(request, IfExists::Fail)
            .await;
        let is_new = known.is_some_and(|known| known.partitions.insert(value));
        assert_eq!(done.is_ok(), is_new, "{done:?}");
    } else {
        let done = world
            .catalog
            .drop_partition(&path, &spec, IfMissing::Fail)
            .await;
        let was_there = known.is_some_and(|known| known.partitions.remove(&value));
        assert_eq!(done.is_ok(), was_there, "{done:?}");
    }
}

/// Reads everything back as the oracle knows it.
async fn read_all(catalog: &Catalog) -> Oracle {
    let mut oracle = Oracle::new();
    for database in catalog.list_databases().await.unwrap() {
        if database == "db" {
            continue;
        }
        let mut tables = BTreeMap::new();
        for name in catalog.list_tables(&database).await.unwrap() {
            let path = TablePath::new(&database, &name);
            let table = catalog.get_table(&path).await.unwrap();
            let columns = table.descriptor.schema.columns.iter().skip(2);
            let mut known = Known {
                is_partitioned: table.descriptor.is_partitioned(),
                columns: columns.map(|column| column.name.clone()).collect(),
                owner: table.descriptor.custom_properties.get("owner").cloned(),
                ..Known::default()
            };
            if known.is_partitioned {
                let (_, partitions) = catalog.list_partitions(&path).await.unwrap();
                known.partitions = partitions
                    .into_iter()
                    .map(|partition| partition.name)
                    .collect();
            }
            tables.insert(name, known);
        }
        oracle.insert(database, tables);
    }
    oracle
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_sequence_of_changes_leaves_what_the_oracle_says(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let (found, oracle) = runtime.block_on(async {
            let (world, mut oracle) = (World::new().await, Oracle::new());
            for step in &steps {
                apply(&world, &mut oracle, step).await;
            }
            (read_all(&world.catalog).await, oracle)
        });
        prop_assert_eq!(found, oracle);
    }
}
