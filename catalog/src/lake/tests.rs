use std::collections::BTreeMap;

use object_store::ObjectStoreExt;
use object_store::memory::InMemory;
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

    async fn add_snapshot(&self) {
        let file = Path::from("wh/db.db/t/snapshot/snapshot-1");
        self.store.put(&file, "{}".into()).await.unwrap();
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
    for _ in 0..2 {
        world.create(&table, LakeCreation::NewTable).await.unwrap();
    }
    world.add_snapshot().await;
    let error = world
        .create(&table, LakeCreation::NewTable)
        .await
        .unwrap_err();
    assert!(
        matches!(error, Error::LakeTableAlreadyExist { .. }),
        "{error}"
    );
    world
        .create(&table, LakeCreation::SwitchedOn)
        .await
        .unwrap();
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
            .create(&completed(other), LakeCreation::SwitchedOn)
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
        .create(&lineitem(), LakeCreation::SwitchedOn)
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
