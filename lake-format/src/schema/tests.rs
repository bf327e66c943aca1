use super::*;

fn column(name: &str, text: &str) -> DataField {
    DataField::new(-1, name, text.parse().unwrap())
}

fn orders() -> TableSchema {
    let table = NewTable {
        fields: vec![
            column("id", "BIGINT NOT NULL"),
            column("dt", "STRING"),
            column("price", "DECIMAL(15, 2)"),
        ],
        partition_keys: vec!["dt".to_owned()],
        options: BTreeMap::from([
            ("bucket".to_owned(), "2".to_owned()),
            ("bucket-key".to_owned(), "id".to_owned()),
        ]),
        ..NewTable::default()
    };
    TableSchema::create(table, 17).unwrap()
}

#[test]
fn a_schema_reads_back_as_written() {
    let schema = orders();
    let json = schema.to_json().unwrap();
    assert_eq!(TableSchema::from_json(&json).unwrap(), schema);
    assert!(
        String::from_utf8(json)
            .unwrap()
            .contains(r#""highestFieldId": 2"#)
    );
}

#[test]
fn old_schemas_have_the_defaults_of_their_time() {
    let json = br#"{"id":0,"fields":[{"id":0,"name":"a","type":"INT"}],"highestFieldId":0,
        "partitionKeys":[],"primaryKeys":[],"options":{"bucket-key":"a"}}"#;
    let schema = TableSchema::from_json(json).unwrap();
    assert_eq!(schema.version, 1);
    assert_eq!(schema.options["bucket"], "1");
    assert_eq!(schema.options["file.format"], "orc");
}

#[test]
fn a_newer_version_is_refused() {
    let json = String::from_utf8(orders().to_json().unwrap())
        .unwrap()
        .replace("\"version\": 3", "\"version\": 4");
    assert!(matches!(
        TableSchema::from_json(json.as_bytes()),
        Err(Error::Unsupported { .. })
    ));
}

#[test]
fn adding_a_column_gives_new_ids_and_keeps_the_old() {
    let nested: DataType =
        serde_json::from_str(r#"{"type":"ROW","fields":[{"id":0,"name":"x","type":"INT"}]}"#)
            .unwrap();
    let add = SchemaChange::AddColumn {
        name: "more".to_owned(),
        data_type: nested,
        description: None,
        before: None,
    };
    let next = orders().evolve(&[add], 18).unwrap();
    assert_eq!(
        (next.id, next.highest_field_id, next.time_millis),
        (1, 4, 18)
    );
    assert_eq!(next.fields[3].id, 3);
    assert_eq!(next.fields[3].highest_id(), 4);
}

#[test]
fn a_column_may_be_put_before_another() {
    let add = SchemaChange::AddColumn {
        name: "more".to_owned(),
        data_type: "INT".parse().unwrap(),
        description: None,
        before: Some("price".to_owned()),
    };
    let next = orders().evolve(&[add], 18).unwrap();
    assert_eq!(
        next.fields
            .iter()
            .map(|field| field.name.as_str())
            .collect::<Vec<_>>(),
        ["id", "dt", "more", "price"]
    );
}

#[test]
fn changes_that_break_old_files_are_refused() {
    let set = |name: &str, value: &str| SchemaChange::SetOption {
        name: name.to_owned(),
        value: value.to_owned(),
    };
    let required = SchemaChange::AddColumn {
        name: "more".to_owned(),
        data_type: "INT NOT NULL".parse().unwrap(),
        description: None,
        before: None,
    };
    for change in [
        set("bucket", "-1"),
        set("bucket-key", "price"),
        set("merge-engine", "first-row"),
        required,
    ] {
        assert!(
            matches!(
                orders().evolve(std::slice::from_ref(&change), 18),
                Err(Error::InvalidSchema { .. })
            ),
            "{change:?}"
        );
    }
    assert_eq!(
        orders().evolve(&[set("bucket", "8")], 18).unwrap().options["bucket"],
        "8"
    );
}

#[test]
fn broken_keys_are_refused() {
    let base = || NewTable {
        fields: vec![column("id", "INT NOT NULL"), column("dt", "STRING")],
        ..NewTable::default()
    };
    let key = |name: &str| vec![name.to_owned()];
    let options = |pairs: &[(&str, &str)]| {
        pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect()
    };
    let bad = [
        NewTable {
            partition_keys: key("nope"),
            ..base()
        },
        NewTable {
            primary_keys: key("nope"),
            ..base()
        },
        NewTable {
            options: options(&[("bucket", "4")]),
            ..base()
        },
        NewTable {
            options: options(&[("bucket", "0")]),
            ..base()
        },
        NewTable {
            options: options(&[("bucket", "4"), ("bucket-key", "dt")]),
            partition_keys: key("dt"),
            ..base()
        },
        NewTable {
            options: options(&[("bucket", "4")]),
            partition_keys: key("dt"),
            primary_keys: key("id"),
            ..base()
        },
        NewTable {
            fields: vec![column("a", "INT"), column("a", "INT")],
            ..base()
        },
    ];
    for table in bad {
        assert!(
            matches!(
                TableSchema::create(table.clone(), 0),
                Err(Error::InvalidSchema { .. })
            ),
            "{table:?}"
        );
    }
}
