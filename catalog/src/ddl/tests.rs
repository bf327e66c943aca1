use std::time::Duration;

use weir_protocol::descriptor::TableDescriptor;
use weir_protocol::ids::TablePath;
use weir_protocol::partition::PartitionSpec;
use weir_protocol::schema::{AggFunction, Column, LogicalType, Schema, TypeKind};

use super::properties::{TableProperties, parse_duration};
use super::*;
use crate::Error;

fn path() -> TablePath {
    TablePath::new("db", "t")
}

fn columns() -> Vec<Column> {
    let column = |name: &str, kind: TypeKind| Column::new(name, LogicalType::nullable(kind));
    vec![
        column("id", TypeKind::BigInt),
        column("name", TypeKind::String),
        column("dt", TypeKind::String),
        column("day", TypeKind::Date),
        column(
            "price",
            TypeKind::Decimal {
                precision: 10,
                scale: 2,
            },
        ),
        column(
            "tags",
            TypeKind::Array(Box::new(LogicalType::nullable(TypeKind::String))),
        ),
    ]
}

fn log_table() -> TableDescriptor {
    TableDescriptor::new(Schema::new(columns(), Vec::new()).unwrap())
}

fn key_table(keys: &[&str]) -> TableDescriptor {
    let keys = keys.iter().map(|key| (*key).to_owned()).collect();
    TableDescriptor::new(Schema::new(columns(), keys).unwrap())
}

fn with(mut table: TableDescriptor, properties: &[(&str, &str)]) -> TableDescriptor {
    let properties = properties
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    table.properties.extend(properties);
    table
}

fn partitioned(mut table: TableDescriptor, keys: &[&str]) -> TableDescriptor {
    table.partition_keys = keys.iter().map(|key| (*key).to_owned()).collect();
    table
}

fn bucketed(mut table: TableDescriptor, keys: &[&str], count: i32) -> TableDescriptor {
    table.bucket_keys = keys.iter().map(|key| (*key).to_owned()).collect();
    table.bucket_count = Some(count);
    table
}

fn create(table: TableDescriptor) -> crate::Result<TableDescriptor> {
    complete(&path(), table, &Rules::default())
}

#[test]
fn a_log_table_gets_its_defaults() {
    let table = create(log_table()).unwrap();
    assert_eq!((table.bucket_count, table.bucket_keys.len()), (Some(1), 0));
    let properties: Vec<_> = table
        .properties
        .iter()
        .map(|(k, v)| format!("{k}={v}"))
        .collect();
    assert_eq!(
        properties,
        ["table.datalake.format=paimon", "table.replication.factor=1"]
    );
}

#[test]
fn a_primary_key_table_gets_its_defaults() {
    let table = partitioned(key_table(&["id", "dt"]), &["dt"]);
    let table = with(table, &[(properties::MERGE_ENGINE, "first_row")]);
    let table = create(table).unwrap();
    assert_eq!(table.bucket_keys, ["id"]);
    assert_eq!(table.properties[properties::KV_FORMAT_VERSION], "2");
    assert_eq!(table.properties[properties::STANDBY_REPLICA], "true");
    assert_eq!(table.properties[properties::DELETE_BEHAVIOR], "IGNORE");
}

#[test]
fn what_the_client_chose_is_kept() {
    let table = with(
        log_table(),
        &[
            ("table.replication.factor", "3"),
            ("table.datalake.format", "lance"),
        ],
    );
    let table = create(bucketed(table, &["id"], 7)).unwrap();
    assert_eq!(table.properties["table.replication.factor"], "3");
    assert_eq!(table.properties["table.datalake.format"], "lance");
    assert_eq!(table.bucket_count, Some(7));
}

#[test]
fn bad_tables_are_refused_with_the_references_code() {
    let invalid_table = [
        bucketed(log_table(), &["tags"], 1),
        bucketed(log_table(), &["nosuch"], 1),
        bucketed(log_table(), &["id", "id"], 1),
        bucketed(log_table(), &["id"], 0),
        partitioned(bucketed(log_table(), &["dt"], 1), &["dt"]),
        partitioned(log_table(), &["price"]),
        partitioned(log_table(), &["dt", "dt"]),
        partitioned(key_table(&["id"]), &["dt"]),
        partitioned(key_table(&["dt"]), &["dt"]),
        bucketed(key_table(&["id"]), &["name"], 1),
        with(
            partitioned(log_table(), &["day"]),
            &[
                ("table.auto-partition.enabled", "true"),
                ("table.auto-partition.time-unit", "DAY"),
            ],
        ),
        with(
            partitioned(log_table(), &["dt", "name"]),
            &[("table.auto-partition.enabled", "true")],
        ),
    ];
    for table in invalid_table {
        let error = create(table.clone()).unwrap_err();
        assert!(
            matches!(error, Error::InvalidTable { .. }),
            "{error}: {table:?}"
        );
    }
    for name in SYSTEM_COLUMNS {
        let column = Column::new(name, LogicalType::nullable(TypeKind::Int));
        let table = TableDescriptor::new(Schema::new(vec![column], Vec::new()).unwrap());
        assert!(
            matches!(create(table).unwrap_err(), Error::InvalidTable { .. }),
            "{name}"
        );
    }
    let error = create(bucketed(log_table(), &[], 4097)).unwrap_err();
    assert!(
        matches!(
            error,
            Error::TooManyBuckets {
                found: 4097,
                max: 4096,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn bad_properties_are_refused_by_name() {
    for (key, value) in [
        ("table.nosuch", "1"),
        ("owner", "me"),
        ("client.x", "1"),
        ("bucket.num", "4"),
        ("table.replication.factor", "0"),
        ("table.replication.factor", "three"),
        ("table.log.format", "json"),
        ("table.log.arrow.compression.zstd.level", "23"),
        ("table.log.ttl", "7"),
        ("table.log.ttl", "7 weeks"),
        ("table.log.tiered.local-segments", "0"),
        ("table.kv.format-version", "3"),
        ("table.datalake.enabled", "yes"),
        ("table.datalake.freshness", "soon"),
        ("table.merge-engine", "first_row"),
        ("table.delete.behavior", "ignore"),
        ("table.auto-partition.enabled", "true"),
        ("table.auto-partition.time-unit", "week"),
        ("table.auto-partition.time-format", "yyMMdd"),
        ("table.auto-partition.time-zone", "Mars/Olympus"),
        ("table.statistics.columns", "id,nosuch"),
        ("table.datalake.table-name", "../x"),
        ("table.datalake.historical-partition.enabled", "true"),
        ("weir.bad-record", "skip"),
        ("weir.lake-history", "any"),
    ] {
        match create(with(log_table(), &[(key, value)])).unwrap_err() {
            Error::InvalidConfig { key: named, .. } => assert_eq!(named, key),
            error => panic!("{key}={value}: {error}"),
        }
    }
    let keyed = with(key_table(&["id"]), &[("weir.bad-record", "divert")]);
    let refused = create(keyed).unwrap_err();
    assert!(matches!(refused, Error::InvalidConfig { ref key, .. } if key == "weir.bad-record"));
    for (key, value) in [
        ("weir.anything", "1"),
        ("weir.bad-record", "divert"),
        ("weir.bad-record", "Stop"),
        ("table.datalake.paimon.warehouse", "s3://x"),
        ("table.log.ttl", "0ms"),
        ("table.log.format", "indexed"),
        ("table.datalake.enabled", "TRUE"),
        ("table.auto-partition.time-zone", "+08:00"),
        ("table.auto-partition.time-zone", "Asia/Shanghai"),
        ("table.statistics.columns", "*"),
        ("table.statistics.columns", "id, name"),
    ] {
        let table = create(with(log_table(), &[(key, value)]));
        assert!(table.is_ok(), "{key}={value}: {table:?}");
    }
    let both = [
        ("table.datalake.enabled", "true"),
        ("table.datalake.format", "iceberg"),
    ];
    assert!(matches!(
        create(with(log_table(), &both)),
        Err(Error::InvalidConfig { .. })
    ));
    let local = [("table.log.local-ttl", "8 d"), ("table.log.ttl", "7 d")];
    assert!(matches!(
        create(with(log_table(), &local)),
        Err(Error::InvalidConfig { .. })
    ));
}

#[test]
fn a_column_that_aggregates_needs_the_engine() {
    let mut table = key_table(&["id"]);
    table.schema.columns[1].agg_function = Some(AggFunction {
        kind: "LISTAGG".to_owned(),
        parameters: std::collections::BTreeMap::default(),
    });
    assert!(matches!(
        create(table.clone()),
        Err(Error::InvalidConfig { .. })
    ));
    let table = with(table, &[("table.merge-engine", "aggregation")]);
    assert!(create(table).is_ok());
}

#[test]
fn names_follow_the_reference() {
    for name in ["a", "A-b_9", &"x".repeat(200)] {
        assert!(names::check_new(name).is_ok(), "{name}");
    }
    for name in [
        "",
        ".",
        "..",
        "a.b",
        "a b",
        "ä",
        "a/b",
        "a$b",
        &"x".repeat(201),
    ] {
        assert!(names::check(name).is_err(), "{name}");
    }
    assert!(names::check("__x").is_ok() && names::check_new("__x").is_err());
    let error = complete(&TablePath::new("db", "__t"), log_table(), &Rules::default()).unwrap_err();
    assert!(matches!(error, Error::InvalidTable { .. }), "{error}");
}

#[test]
fn durations_have_a_unit() {
    assert_eq!(parse_duration("7 d"), Ok(Duration::from_hours(168)));
    assert_eq!(parse_duration(" 3min "), Ok(Duration::from_mins(3)));
    assert_eq!(parse_duration("5s"), Ok(Duration::from_secs(5)));
    assert_eq!(parse_duration("0ms"), Ok(Duration::ZERO));
    assert_eq!(
        parse_duration("1500 Micros"),
        Ok(Duration::from_micros(1500))
    );
    for text in [
        "",
        "d",
        "7",
        "-1 d",
        "1.5 h",
        "7 fortnights",
        "99999999999999999999 d",
    ] {
        assert!(parse_duration(text).is_err(), "{text}");
    }
}

#[test]
fn typed_access_has_the_references_defaults() {
    let (path, table) = (path(), create(log_table()).unwrap());
    let values = TableProperties::new(&path, &table.properties);
    assert!(!values.datalake_enabled().unwrap());
    assert_eq!(values.freshness().unwrap(), Duration::from_mins(3));
    assert_eq!(values.log_ttl().unwrap(), Duration::from_hours(168));
    assert!(values.is(properties::LOG_FORMAT, "arrow", "ARROW"));
}

fn set(key: &str, value: &str) -> TableChange {
    TableChange::Set {
        key: key.to_owned(),
        value: value.to_owned(),
    }
}

fn reset(key: &str) -> TableChange {
    TableChange::Reset {
        key: key.to_owned(),
    }
}

fn add(name: &str, ty: LogicalType) -> TableChange {
    TableChange::AddColumn {
        column: Column::new(name, ty),
        position: ColumnPosition::Last,
    }
}

fn altered(table: &TableDescriptor, changes: &[TableChange]) -> crate::Result<Altered> {
    alter(&path(), table, changes, &Rules::default())
}

#[test]
fn properties_are_set_and_reset_where_the_reference_allows_it() {
    let table = create(log_table()).unwrap();
    let changes = [
        set("table.datalake.enabled", "true"),
        set("owner", "me"),
        reset("nosuch"),
    ];
    let Altered::Properties(next) = altered(&table, &changes).unwrap() else {
        panic!()
    };
    assert_eq!(next.properties["table.datalake.enabled"], "true");
    assert_eq!(next.custom_properties["owner"], "me");
    assert_eq!(altered(&next, &changes[..2]).unwrap(), Altered::Unchanged);
    let Altered::Properties(back) = altered(&next, &[reset("owner")]).unwrap() else {
        panic!()
    };
    assert!(back.custom_properties.is_empty());
    for change in [
        set("table.datalake.format", "iceberg"),
        set("table.replication.factor", "2"),
        set("table.nosuch", "1"),
        set("table.kv.standby-replica.enabled", "true"),
        reset("table.log.format"),
    ] {
        let error = altered(&table, std::slice::from_ref(&change)).unwrap_err();
        assert!(
            matches!(error, Error::InvalidAlterTable { .. }),
            "{change:?}: {error}"
        );
    }
    let error = altered(&table, &[set("table.log.ttl", "never")]).unwrap_err();
    assert!(matches!(error, Error::InvalidConfig { .. }), "{error}");
}

#[test]
fn a_table_without_a_recorded_format_keeps_out_of_the_lake_unless_nothing_is_hashed() {
    let mut table = create(bucketed(log_table(), &["id"], 2)).unwrap();
    table.properties.remove(properties::DATALAKE_FORMAT);
    let error = altered(&table, &[set("table.datalake.enabled", "true")]).unwrap_err();
    assert!(matches!(error, Error::InvalidAlterTable { .. }), "{error}");
    table.bucket_keys.clear();
    let next = altered(&table, &[set("table.datalake.enabled", "true")]).unwrap();
    let Altered::Properties(next) = next else {
        panic!("{next:?}")
    };
    assert_eq!(next.properties[properties::DATALAKE_FORMAT], "paimon");
}

#[test]
fn columns_are_only_added_last_and_nullable() {
    let table = create(log_table()).unwrap();
    let int = LogicalType::nullable(TypeKind::Int);
    let Altered::Schema(schema) = altered(&table, &[add("x", int.clone())]).unwrap() else {
        panic!()
    };
    assert_eq!(
        schema.columns.last().unwrap().id,
        table.schema.highest_field_id + 1
    );
    let column = Column::new("x", int.clone());
    for change in [
        add("id", int.clone()),
        add("x", LogicalType::not_null(TypeKind::Int)),
        TableChange::AddColumn {
            column: column.clone(),
            position: ColumnPosition::First,
        },
        TableChange::AddColumn {
            column,
            position: ColumnPosition::After("id".to_owned()),
        },
        TableChange::DropColumn {
            name: "id".to_owned(),
        },
        TableChange::RenameColumn {
            name: "id".to_owned(),
        },
        TableChange::ModifyColumn {
            name: "id".to_owned(),
        },
    ] {
        let error = altered(&table, std::slice::from_ref(&change)).unwrap_err();
        assert!(
            matches!(error, Error::InvalidAlterTable { .. }),
            "{change:?}: {error}"
        );
    }
    let mixed = [add("x", int.clone()), set("owner", "me")];
    assert!(matches!(
        altered(&table, &mixed),
        Err(Error::InvalidAlterTable { .. })
    ));
    let system = altered(&table, &[add("__offset", int)]);
    assert!(matches!(system, Err(Error::InvalidTable { .. })));
    assert_eq!(altered(&table, &[]).unwrap(), Altered::Unchanged);
}

#[test]
fn fc_019_a_column_that_differs_from_another_only_by_case_is_refused_with_both_names() {
    let table = create(log_table()).unwrap();
    let added = altered(
        &table,
        &[add("ID", LogicalType::nullable(TypeKind::String))],
    );
    let error = added.unwrap_err().to_string();
    assert!(
        error.contains("`ID` differs from `id` only by case"),
        "{error}"
    );
}

fn spec(pairs: &[(&str, &str)]) -> PartitionSpec {
    PartitionSpec(
        pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect(),
    )
}

#[test]
fn partition_values_are_ordered_by_key_and_checked() {
    let keys = ["dt".to_owned(), "name".to_owned()];
    let ordered = ordered_spec(&path(), &keys, &spec(&[("name", "b"), ("dt", "a")])).unwrap();
    assert_eq!(ordered.name(), "a$b");
    for bad in [
        spec(&[("dt", "a")]),
        spec(&[("dt", "a"), ("id", "1")]),
        spec(&[("dt", "a"), ("name", "b"), ("id", "1")]),
        spec(&[("dt", "a"), ("name", "")]),
        spec(&[("dt", "a"), ("name", "x/y")]),
        spec(&[("dt", "a"), ("name", "x$y")]),
    ] {
        let error = ordered_spec(&path(), &keys, &bad).unwrap_err();
        assert!(
            matches!(error, Error::InvalidPartition { .. }),
            "{bad}: {error}"
        );
    }
    let none = ordered_spec(&path(), &[], &spec(&[("dt", "a")])).unwrap_err();
    assert!(matches!(none, Error::TableNotPartitioned { .. }));
}

#[test]
fn a_partition_value_has_one_text_only() {
    let cases = [
        (TypeKind::Int, ["7", "-7", "0"], ["007", "+7", "-0"]),
        (
            TypeKind::Binary { length: 2 },
            ["07ff", "0000", "abcd"],
            ["07FF", "aBcd", "07fF"],
        ),
        (
            TypeKind::Date,
            ["2024-01-05", "0001-01-01", "9999-12-31"],
            ["2024-1-5", "02024-01-05", "+2024-01-05"],
        ),
        (
            TypeKind::Float,
            ["1_5", "-0_25", "1_0E10"],
            ["1_50", "1.5", "10000000000"],
        ),
        (
            TypeKind::String,
            ["007", "A", "2024-1-5"],
            ["", "a/b", "__x"],
        ),
    ];
    for (kind, good, bad) in cases {
        let columns = vec![
            Column::new("id", LogicalType::nullable(TypeKind::Int)),
            Column::new("p", LogicalType::nullable(kind.clone())),
        ];
        let table = TableDescriptor::new(Schema::new(columns, Vec::new()).unwrap());
        let table = create(partitioned(table, &["p"])).unwrap();
        let check = |value| check_partition(&path(), &table, &spec(&[("p", value)]), 0);
        for value in good {
            assert!(check(value).is_ok(), "{kind} {value}");
        }
        for value in bad {
            let error = check(value).unwrap_err();
            assert!(
                matches!(error, Error::InvalidPartition { .. }),
                "{kind} {value}: {error}"
            );
        }
    }
}

#[test]
fn no_more_partitions_are_made_ahead_than_a_table_may_have() {
    let ahead = |count: &str| {
        let properties = [
            ("table.auto-partition.enabled", "true"),
            ("table.auto-partition.num-precreate", count),
        ];
        create(with(partitioned(log_table(), &["dt"]), &properties))
    };
    assert!(ahead("1000").is_ok());
    match ahead("1001").unwrap_err() {
        Error::InvalidConfig { key, .. } => {
            assert_eq!(key, "table.auto-partition.num-precreate");
        }
        error => panic!("{error}"),
    }
}

#[test]
fn a_partition_must_be_of_its_columns_type_and_time() {
    const JAN_10: i64 = 1_704_880_800_000;
    let check = |table: &TableDescriptor, key: &str, value: &str| {
        check_partition(&path(), table, &spec(&[(key, value)]), JAN_10)
    };
    let by_day = create(partitioned(log_table(), &["day"])).unwrap();
    assert!(check(&by_day, "day", "2024-01-10").is_ok());
    assert!(check(&by_day, "day", "2024-1-10").is_err());
    assert!(matches!(
        check(&by_day, "day", "tomorrow"),
        Err(Error::InvalidPartition { .. })
    ));
    let by_text = create(partitioned(log_table(), &["dt"])).unwrap();
    assert!(check(&by_text, "dt", "anything").is_ok());
    assert!(matches!(
        check(&by_text, "dt", "__historical__"),
        Err(Error::InvalidPartition { .. })
    ));
    let auto = with(
        partitioned(log_table(), &["dt"]),
        &[("table.auto-partition.enabled", "true")],
    );
    let auto = create(auto).unwrap();
    assert!(check(&auto, "dt", "20240110").is_ok());
    assert!(check(&auto, "dt", "20240103").is_ok());
    for value in ["20240102", "2024-01-10", "anything"] {
        let error = check(&auto, "dt", value).unwrap_err();
        assert!(
            matches!(error, Error::InvalidPartition { .. }),
            "{value}: {error}"
        );
    }
}
