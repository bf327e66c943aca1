use super::*;
use arrow::array::{Array as _, ArrayRef, AsArray as _, LargeStringArray, NullArray};
use clap::Parser as _;
use weir_protocol::descriptor::TableDescriptor;
use weir_protocol::ids::{SchemaId, TableId};

use crate::cli::columns::parse;
use crate::cli::{Cli, Command};

fn schema(columns: &[&str]) -> Schema {
    let columns = columns.iter().map(|text| parse(text).unwrap()).collect();
    Schema::new(columns, Vec::new()).unwrap()
}

fn fit(fields: Vec<Field>, columns: &[&str]) -> Outcome<Fit> {
    let path = TablePath::new("d", "t");
    Fit::new(
        "a.parquet",
        &ArrowSchema::new(fields),
        &path,
        &schema(columns),
    )
}

fn refusal(fields: Vec<Field>, columns: &[&str]) -> String {
    fit(fields, columns).unwrap_err().to_string()
}

#[test]
fn a_type_that_differs_is_told_with_both_types_and_the_table_once() {
    let price = Field::new("price", DataType::Utf8, true);
    assert_eq!(
        refusal(vec![price], &["price DECIMAL(10, 2) NOT NULL"]),
        "a.parquet: column `price` is STRING, in table d.t it is DECIMAL(10, 2) NOT NULL: mend the \
         file, or load it into another table"
    );
    let unsigned = Field::new("n", DataType::UInt64, true);
    let told = refusal(vec![unsigned], &["n BIGINT"]);
    assert!(
        told.contains("`n` is UInt64, in table d.t it is BIGINT"),
        "{told}"
    );
}

#[test]
fn columns_that_are_unknown_missing_or_doubled_are_told() {
    let id = || Field::new("id", DataType::Int64, true);
    let x = Field::new("x", DataType::Int64, true);
    assert_eq!(
        refusal(vec![id(), x], &["id BIGINT", "name STRING"]),
        "a.parquet: column `x` is not in table d.t, which has `id`, `name`"
    );
    let told = refusal(vec![id()], &["id BIGINT", "day DATE NOT NULL"]);
    assert_eq!(
        told,
        "a.parquet: lacks column `day`, which is DATE NOT NULL in table d.t"
    );
    let told = refusal(vec![id(), id()], &["id BIGINT"]);
    assert_eq!(told, "a.parquet: column `id` occurs twice");
    let nulls = Field::new("id", DataType::Null, true);
    let told = refusal(vec![nulls], &["id BIGINT NOT NULL"]);
    assert!(
        told.contains("`id` is without any value, in table"),
        "{told}"
    );
}

#[test]
fn other_layouts_of_the_same_type_are_taken() {
    let fields = vec![
        Field::new("name", DataType::LargeUtf8, true),
        Field::new("note", DataType::Null, true),
    ];
    let fit = fit(fields, &["name STRING", "note BIGINT"]).unwrap();
    let columns: [(&str, ArrayRef); 2] = [
        ("name", Arc::new(LargeStringArray::from(vec!["x"]))),
        ("note", Arc::new(NullArray::new(1))),
    ];
    let rows = fit
        .apply(&RecordBatch::try_from_iter(columns).unwrap())
        .unwrap();
    assert_eq!(rows.column(0).as_string::<i32>().value(0), "x");
    assert_eq!(
        (rows.column(1).data_type(), rows.column(1).null_count()),
        (&DataType::Int64, 1)
    );
}

/// What `weir load --create` with these options says of a table of `day`, 2 buckets, in the lake
/// within 5 s.
fn told(options: &str) -> String {
    let line = format!("weir load --table d.t a.csv --create {options}");
    let Command::Load(load) = Cli::try_parse_from(line.split_whitespace())
        .unwrap()
        .command
    else {
        panic!("{line}");
    };
    let mut descriptor = TableDescriptor::new(schema(&["id BIGINT", "day STRING"]));
    descriptor.partition_keys = vec!["day".to_owned()];
    descriptor.bucket_count = Some(2);
    for (key, value) in [("enabled", "true"), ("freshness", "5s")] {
        let key = format!("table.datalake.{key}");
        descriptor.properties.insert(key, value.to_owned());
    }
    let info = TableInfo {
        path: TablePath::new("d", "t"),
        table_id: TableId(1),
        schema_id: SchemaId(1),
        descriptor,
        created_ms: 0,
        modified_ms: 0,
        bucket_layout_epoch: 0,
        remote_data_dir: None,
    };
    check_options(&load, &info).map_or_else(|failure| failure.to_string(), |()| String::new())
}

#[test]
fn an_option_that_the_table_does_not_have_is_told_with_both_values() {
    for same in ["", "--partition-by day --buckets 2", "--freshness 5000ms"] {
        assert_eq!(told(same), "", "{same}");
    }
    for (options, words) in [
        (
            "--partition-by id",
            "its --partition-by is day where id is wanted",
        ),
        (
            "--bucket-key id",
            "its --bucket-key is not set where id is wanted",
        ),
        ("--buckets 4", "its --buckets is 2 where 4 is wanted"),
        (
            "--no-lake",
            "its table.datalake.enabled is true where false (--no-lake) is wanted",
        ),
        (
            "--freshness 1min",
            "its --freshness is 5s where 1min is wanted",
        ),
    ] {
        let told = told(options);
        assert!(told.starts_with("table d.t exists, and "), "{told}");
        assert!(told.contains(words), "{told}");
    }
}
