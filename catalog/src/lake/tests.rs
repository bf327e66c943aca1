use std::collections::BTreeMap;

use object_store::ObjectStoreExt;
use object_store::memory::InMemory;
use weir_protocol::ids::TableId;
use weir_protocol::schema::{Column, LogicalType, RowField, TypeKind};

use super::*;
use crate::clock::ManualClock;
use crate::convert::lake_options;
use crate::ddl::{ColumnPosition, Rules, complete};

fn path() -> TablePath {
    TablePath::new("db", "t")
}

fn column(name: &str, kind: TypeKind) -> Column {
    Column::new(name, LogicalType::nullable(kind))
}

fn table(columns: Vec<Column>, keys: &[&str]) -> TableDescriptor {
    let keys = keys.iter().map(|key| (*key).to_owned()).collect();
    TableDescriptor::new(Schema::new(columns, keys).unwrap())
}

fn small() -> TableDescriptor {
    table(
        vec![
            column("id", TypeKind::BigInt),
            column("name", TypeKind::String),
        ],
        &[],
    )
}

fn completed(table: TableDescriptor) -> TableDescriptor {
    complete(&path(), table, &Rules::default()).unwrap()
}

fn set(key: &str, value: &str) -> TableChange {
    TableChange::Set {
        key: key.to_owned(),
        value: value.to_owned(),
    }
}

#[test]
fn a_change_of_unknown_outcome_is_one_to_try_again() {
    let source = object_store::Error::Generic {
        store: "test",
        source: "lost".into(),
    };
    let unknown = weir_lake_format::Error::OutcomeUnknown {
        path: "schema/schema-1".to_owned(),
        source,
    };
    assert!(failed(&path(), unknown).is_retriable());
}

struct World {
    store: Arc<InMemory>,
    lake: PaimonCatalog,
}

impl World {
    fn new() -> Self {
        let store = Arc::new(InMemory::new());
        let dyn_store: Arc<dyn ObjectStore> = Arc::clone(&store) as Arc<dyn ObjectStore>;
        let lake = PaimonCatalog::new(dyn_store, Path::from("wh"), Arc::new(ManualClock::new(7)));
        Self { store, lake }
    }

    async fn create(&self, table: &TableDescriptor, creation: LakeCreation) -> Result<()> {
        self.lake.create_table(&path(), table, creation).await
    }

    async fn schema(&self, table: &TableDescriptor) -> TableSchema {
        let lake_table = self.lake.open(&path(), table).await.unwrap().unwrap();
        lake_table.latest_schema().await.unwrap()
    }
}

#[tokio::test]
async fn a_table_is_made_in_the_layout_of_paimons_file_system_catalog() {
    let (world, table) = (World::new(), completed(small()));
    world.create(&table, LakeCreation::NewTable).await.unwrap();
    assert!(
        world
            .store
            .head(&Path::from("wh/db.db/t/schema/schema-0"))
            .await
            .is_ok()
    );
    let schema = world.schema(&table).await;
    assert_eq!(
        (schema.id, schema.time_millis, schema.fields.len()),
        (0, 7, 2)
    );
}

#[tokio::test]
async fn making_it_again_is_fine_until_it_holds_rows_of_another() {
    let (world, table) = (World::new(), completed(small()));
    for _ in 0..3 {
        world.create(&table, LakeCreation::NewTable).await.unwrap();
    }
    commit(&world, &table, "somebody", None).await;
    let error = world
        .create(&table, LakeCreation::NewTable)
        .await
        .unwrap_err();
    assert!(
        matches!(error, Error::LakeTableAlreadyExist { .. }),
        "{error}"
    );
    assert!(error.to_string().contains("up to snapshot 3"), "{error}");
}

#[tokio::test]
async fn a_lake_table_that_is_used_again_is_claimed_against_rounds_of_the_table_before() {
    let (world, table) = (World::new(), completed(small()));
    world.create(&table, LakeCreation::NewTable).await.unwrap();
    let lake_table = world.lake.open(&path(), &table).await.unwrap().unwrap();
    assert_eq!(lake_table.latest_snapshot().await.unwrap(), None);
    for id in 1..3 {
        world.create(&table, LakeCreation::NewTable).await.unwrap();
        let latest = lake_table.latest_snapshot().await.unwrap().unwrap();
        assert_eq!(latest.id, id);
        assert!(is_claim(&latest), "{latest:?}");
    }
    // Switched on again before a round of it was committed.
    let switched_on = LakeCreation::SwitchedOn(TableId(7));
    world.create(&table, switched_on).await.unwrap();
    assert_eq!(lake_table.latest_snapshot_id().await.unwrap(), Some(2));
}

#[tokio::test]
async fn an_incompatible_table_is_told_by_its_difference() {
    let world = World::new();
    world
        .create(&completed(small()), LakeCreation::NewTable)
        .await
        .unwrap();
    let mut partitioned = small();
    partitioned.partition_keys = vec!["name".to_owned()];
    let mut bucketed = small();
    bucketed.bucket_keys = vec!["id".to_owned()];
    let others = [
        (table(vec![column("id", TypeKind::BigInt)], &[]), "columns"),
        (
            table(
                vec![
                    column("id", TypeKind::Int),
                    column("name", TypeKind::String),
                ],
                &[],
            ),
            "BIGINT",
        ),
        (
            table(
                vec![
                    column("id", TypeKind::BigInt),
                    column("n", TypeKind::String),
                ],
                &[],
            ),
            "`n`",
        ),
        (table(small().schema.columns, &["id"]), "id"),
        (partitioned, "partition keys"),
        (bucketed, "`bucket"),
    ];
    for (other, word) in others {
        let error = world
            .create(&completed(other), LakeCreation::SwitchedOn(TableId(7)))
            .await
            .unwrap_err();
        assert!(
            matches!(error, Error::LakeTableAlreadyExist { .. }),
            "{error}"
        );
        for word in [word, ".db/", "table.datalake.table-name"] {
            assert!(error.to_string().contains(word), "{error} lacks {word}");
        }
    }
}

#[tokio::test]
async fn columns_are_added_once_and_a_stranger_is_told() {
    let (world, table) = (World::new(), completed(small()));
    world.create(&table, LakeCreation::NewTable).await.unwrap();
    let next = table
        .schema
        .with_column_added(column("x", TypeKind::Time { precision: 3 }))
        .unwrap();
    for _ in 0..2 {
        world
            .lake
            .add_columns(&path(), &table, &next)
            .await
            .unwrap();
    }
    let schema = world.schema(&table).await;
    assert_eq!((schema.id, schema.fields[2].id), (1, 2));
    assert_eq!(schema.fields[2].data_type.to_string(), "TIME(0)");
    let other = table
        .schema
        .with_column_added(column("y", TypeKind::Int))
        .unwrap();
    let error = world
        .lake
        .add_columns(&path(), &table, &other)
        .await
        .unwrap_err();
    assert!(
        matches!(
            error,
            Error::Lake {
                retriable: false,
                ..
            }
        ),
        "{error}"
    );
    let gone = World::new()
        .lake
        .add_columns(&path(), &table, &next)
        .await
        .unwrap_err();
    assert!(matches!(gone, Error::Lake { .. }), "{gone}");
}

#[tokio::test]
async fn options_follow_and_what_paimon_never_changes_is_refused() {
    let (world, table) = (World::new(), completed(small()));
    assert!(
        !world
            .lake
            .alter_options(&path(), &table, &[set("a", "1")])
            .await
            .unwrap()
    );
    world.create(&table, LakeCreation::NewTable).await.unwrap();
    let changes = [
        set("paimon.file.format", "orc"),
        set("owner", "me"),
        set("my.secret.key", "x"),
        TableChange::Reset {
            key: "table.datalake.format".to_owned(),
        },
    ];
    for _ in 0..2 {
        assert!(
            world
                .lake
                .alter_options(&path(), &table, &changes)
                .await
                .unwrap()
        );
    }
    let schema = world.schema(&table).await;
    assert_eq!(schema.id, 1, "the second time changes nothing");
    let options: Vec<_> = schema
        .options
        .iter()
        .map(|(k, v)| format!("{k}={v}"))
        .collect();
    assert_eq!(
        options,
        [
            "bucket=-1",
            "file.format=orc",
            "fluss.owner=me",
            "fluss.table.replication.factor=1",
            "partition.legacy-name=false",
        ]
    );
    for key in [
        "paimon.bucket",
        "bucket-key",
        "paimon.merge-engine",
        "paimon.path",
    ] {
        let error = world
            .lake
            .alter_options(&path(), &table, &[set(key, "x")])
            .await
            .unwrap_err();
        assert!(
            matches!(error, Error::InvalidConfig { .. }),
            "{key}: {error}"
        );
    }
}

#[tokio::test]
async fn the_lakes_own_names_are_used() {
    let world = World::new();
    let mut table = completed(small());
    table
        .properties
        .insert(LAKE_DATABASE.to_owned(), "other".to_owned());
    table
        .properties
        .insert(LAKE_TABLE.to_owned(), "name".to_owned());
    world.create(&table, LakeCreation::NewTable).await.unwrap();
    assert!(
        world
            .store
            .head(&Path::from("wh/other.db/name/schema/schema-0"))
            .await
            .is_ok()
    );
}

#[test]
fn options_of_a_new_table_are_those_of_the_reference() {
    let mut table = table(
        vec![
            column("id", TypeKind::BigInt),
            column("dt", TypeKind::String),
        ],
        &["id", "dt"],
    );
    table.partition_keys = vec!["dt".to_owned()];
    table.bucket_count = Some(4);
    for (key, value) in [
        ("table.datalake.paimon.warehouse", "s3://w"),
        ("table.datalake.enabled", "true"),
    ] {
        table.properties.insert(key.to_owned(), value.to_owned());
    }
    for (key, value) in [
        ("paimon.changelog-producer", "none"),
        ("s3.secret-key", "x"),
        ("a", "b"),
    ] {
        table
            .custom_properties
            .insert(key.to_owned(), value.to_owned());
    }
    let options = lake_options(&path(), &completed(table)).unwrap();
    let options: Vec<_> = options.iter().map(|(k, v)| format!("{k}={v}")).collect();
    assert_eq!(
        options,
        [
            "bucket=4",
            "bucket-key=id",
            "changelog-producer=none",
            "fluss.a=b",
            "fluss.table.datalake.enabled=true",
            "fluss.table.datalake.format=paimon",
            "fluss.table.kv.format-version=2",
            "fluss.table.kv.standby-replica.enabled=true",
            "fluss.table.replication.factor=1",
            "partition.legacy-name=false",
        ]
    );
}

#[test]
fn every_type_has_its_paimon_type() {
    let row = TypeKind::Row(vec![RowField::new(
        "f",
        LogicalType::not_null(TypeKind::Int),
    )]);
    let string = || Box::new(LogicalType::not_null(TypeKind::String));
    let types = [
        (TypeKind::Boolean, "BOOLEAN"),
        (TypeKind::TinyInt, "TINYINT"),
        (TypeKind::SmallInt, "SMALLINT"),
        (TypeKind::Int, "INT"),
        (TypeKind::BigInt, "BIGINT"),
        (TypeKind::Float, "FLOAT"),
        (TypeKind::Double, "DOUBLE"),
        (
            TypeKind::Decimal {
                precision: 15,
                scale: 2,
            },
            "DECIMAL(15, 2)",
        ),
        (TypeKind::Char { length: 4 }, "CHAR(4)"),
        (TypeKind::String, "STRING"),
        (TypeKind::Binary { length: 8 }, "BINARY(8)"),
        (TypeKind::Bytes, "BYTES"),
        (TypeKind::Date, "DATE"),
        (TypeKind::Time { precision: 3 }, "TIME(0)"),
        (TypeKind::Timestamp { precision: 6 }, "TIMESTAMP(6)"),
        (
            TypeKind::TimestampLtz { precision: 3 },
            "TIMESTAMP(3) WITH LOCAL TIME ZONE",
        ),
        (TypeKind::Array(string()), "ARRAY<STRING NOT NULL>"),
        (
            TypeKind::Map(string(), Box::new(LogicalType::nullable(TypeKind::Int))),
            "MAP<STRING NOT NULL, INT>",
        ),
    ];
    for (kind, text) in types {
        assert_eq!(
            crate::convert::lake_type(&LogicalType::nullable(kind.clone())).to_string(),
            text
        );
        let not_null = crate::convert::lake_type(&LogicalType::not_null(kind)).to_string();
        assert_eq!(not_null, format!("{text} NOT NULL"));
    }
    let nested = crate::convert::lake_type(&LogicalType::nullable(row));
    assert!(
        matches!(&nested.kind, weir_lake_format::TypeKind::Row(fields) if !fields[0].data_type.nullable)
    );
}

/// `part` of the captured Flink job: TPC-H lineitem by `l_returnflag`.
fn lineitem() -> TableDescriptor {
    let decimal = TypeKind::Decimal {
        precision: 15,
        scale: 2,
    };
    let columns = [
        ("l_orderkey", TypeKind::BigInt),
        ("l_partkey", TypeKind::BigInt),
        ("l_suppkey", TypeKind::BigInt),
        ("l_linenumber", TypeKind::Int),
        ("l_quantity", decimal.clone()),
        ("l_extendedprice", decimal.clone()),
        ("l_discount", decimal.clone()),
        ("l_tax", decimal),
        ("l_returnflag", TypeKind::String),
        ("l_linestatus", TypeKind::String),
        ("l_shipdate", TypeKind::Date),
        ("l_commitdate", TypeKind::Date),
        ("l_receiptdate", TypeKind::Date),
        ("l_shipinstruct", TypeKind::String),
        ("l_shipmode", TypeKind::String),
        ("l_comment", TypeKind::String),
    ];
    let mut table = table(columns.map(|(name, kind)| column(name, kind)).to_vec(), &[]);
    table.partition_keys = vec!["l_returnflag".to_owned()];
    table.bucket_count = Some(2);
    let properties = [
        ("table.datalake.enabled", "true"),
        ("table.datalake.freshness", "5s"),
    ];
    table.properties = BTreeMap::from(properties.map(|(k, v)| (k.to_owned(), v.to_owned())));
    completed(table)
}

#[tokio::test]
async fn a_table_of_the_flink_job_is_taken_over_with_its_system_columns() {
    let golden = include_bytes!("../../tests/golden/paimon_schema_flink_part.json");
    let schema = TableSchema::from_json(golden).unwrap();
    assert!(has_legacy_columns(&schema));
    assert_eq!(lake_options(&path(), &lineitem()).unwrap(), schema.options);
    let wanted = new_lake_table(&path(), &lineitem()).unwrap();
    assert_eq!(incompatibility(&schema, &wanted), None);

    let world = World::new();
    let file = Path::from("wh/db.db/t/schema/schema-0");
    world
        .store
        .put(&file, golden.to_vec().into())
        .await
        .unwrap();
    world
        .create(&lineitem(), LakeCreation::SwitchedOn(TableId(7)))
        .await
        .unwrap();
    let next = lineitem()
        .schema
        .with_column_added(column("x", TypeKind::Int))
        .unwrap();
    world
        .lake
        .add_columns(&path(), &lineitem(), &next)
        .await
        .unwrap();
    let names: Vec<_> = world
        .schema(&lineitem())
        .await
        .fields
        .into_iter()
        .map(|f| f.name)
        .collect();
    assert_eq!(
        names[15..],
        ["l_comment", "x", "__bucket", "__offset", "__timestamp"]
    );
    let position = ColumnPosition::Last;
    let change = TableChange::AddColumn {
        column: column("x", TypeKind::Int),
        position,
    };
    assert!(
        world
            .lake
            .alter_options(&path(), &lineitem(), &[change])
            .await
            .unwrap()
    );
}

/// Somebody commits an empty snapshot to the lake table.
async fn commit(world: &World, table: &TableDescriptor, user: &str, id: Option<i64>) {
    let lake_table = world.lake.open(&path(), table).await.unwrap().unwrap();
    let properties = id.map(|id| (TIERED_TABLE_ID.to_owned(), id.to_string()));
    let request = weir_lake_format::CommitRequest {
        commit_user: user.to_owned(),
        commit_identifier: 1,
        kind: weir_lake_format::CommitKind::Append,
        messages: Vec::new(),
        deletes: Vec::new(),
        properties: properties.into_iter().collect(),
        allow_empty: true,
        uuid: format!("{user}-{id:?}"),
        now_ms: 0,
    };
    let retry = weir_lake_format::commit::RetryPolicy::default();
    let outcome = lake_table
        .commit(&request, &mut |_| Ok(()), retry)
        .await
        .unwrap();
    assert!(matches!(
        outcome,
        weir_lake_format::CommitOutcome::Committed(_)
    ));
}

#[tokio::test]
async fn fc_044_a_history_of_others_is_refused_when_the_lake_is_switched_on_unless_it_is_adopted() {
    let switched_on = LakeCreation::SwitchedOn(TableId(7));
    let adopting = |table: &TableDescriptor| {
        let mut table = table.clone();
        let (key, adopt) = (properties::LAKE_HISTORY, "adopt");
        table.properties.insert(key.to_owned(), adopt.to_owned());
        table
    };
    let table = completed(small());
    for (user, id, reason) in [
        ("spark", None, "no snapshot of tiering"),
        (TIERING_USER, Some(6), "of table 6"),
    ] {
        let world = World::new();
        world.create(&table, LakeCreation::NewTable).await.unwrap();
        commit(&world, &table, user, id).await;
        let error = world
            .create(&table, switched_on)
            .await
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(reason) && error.contains("weir.lake-history=adopt"),
            "{error}"
        );
        world.create(&adopting(&table), switched_on).await.unwrap();
    }
    // Its own, also where the reference's job made it, which notes no id down.
    for id in [Some(7), None] {
        let world = World::new();
        world.create(&table, LakeCreation::NewTable).await.unwrap();
        commit(&world, &table, TIERING_USER, id).await;
        commit(&world, &table, "compaction", None).await;
        world.create(&table, switched_on).await.unwrap();
    }
}

#[tokio::test]
async fn fc_021_comments_and_options_of_the_lake_are_in_nobodys_way_and_survive() {
    let world = World::new();
    let table = completed(small());
    world.create(&table, LakeCreation::NewTable).await.unwrap();
    let lake_table = world.lake.open(&path(), &table).await.unwrap().unwrap();
    let mut schema = lake_table.latest_schema().await.unwrap();
    schema.id += 1;
    schema.fields[1].description = Some("as another engine says".to_owned());
    let (option, value) = ("snapshot.num-retained.min", "20");
    schema.options.insert(option.to_owned(), value.to_owned());
    lake_table.add_schema(&schema).await.unwrap();
    let next = table
        .schema
        .with_column_added(column("extra", TypeKind::Int))
        .unwrap();
    world
        .lake
        .add_columns(&path(), &table, &next)
        .await
        .unwrap();
    let schema = world.schema(&table).await;
    assert_eq!(schema.fields[2].name, "extra");
    assert_eq!(
        schema.fields[1].description.as_deref(),
        Some("as another engine says")
    );
    assert_eq!(schema.options[option], value);
}
