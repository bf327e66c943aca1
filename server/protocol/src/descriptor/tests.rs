use super::*;

const FULL: &[u8] = include_bytes!("../../tests/golden/table_descriptor.json");
const MINIMAL: &[u8] = include_bytes!("../../tests/golden/table_descriptor_minimal_log.json");
const DATABASE: &[u8] = include_bytes!("../../tests/golden/database_descriptor.json");

#[test]
fn the_golden_table_descriptor_is_read_and_written() {
    let table = TableDescriptor::from_json(FULL).unwrap();
    assert_eq!(table.partition_keys, ["dt"]);
    assert_eq!(table.bucket_keys, ["id"]);
    assert_eq!(table.bucket_count, Some(3));
    assert_eq!(table.physical_primary_key(), ["id"]);
    assert_eq!(table.properties["table.replication.factor"], "1");
    let value = |json: &[u8]| serde_json::from_slice::<serde_json::Value>(json).unwrap();
    assert_eq!(value(&table.to_json()), value(FULL));
}

#[test]
fn a_descriptor_without_distribution_keeps_lacking_it() {
    let table = TableDescriptor::from_json(MINIMAL).unwrap();
    assert_eq!(
        (
            table.bucket_keys.len(),
            table.bucket_count,
            table.is_partitioned()
        ),
        (0, None, false)
    );
    assert_eq!(table.to_json(), MINIMAL);
}

#[test]
fn a_count_without_key_writes_an_empty_key() {
    let mut table = TableDescriptor::from_json(MINIMAL).unwrap();
    table.bucket_count = Some(2);
    let json = String::from_utf8(table.to_json()).unwrap();
    assert!(
        json.contains(r#""bucket_key":[],"bucket_count":2"#),
        "{json}"
    );
}

#[test]
fn properties_given_as_numbers_are_texts() {
    let json = String::from_utf8(MINIMAL.to_vec()).unwrap();
    let json = json.replace(r#""properties":{}"#, r#""properties":{"a":3,"b":true}"#);
    let table = TableDescriptor::from_json(json.as_bytes()).unwrap();
    assert_eq!(
        (
            table.properties["a"].as_str(),
            table.properties["b"].as_str()
        ),
        ("3", "true")
    );
}

#[test]
fn keys_that_are_no_columns_and_counts_below_one_are_refused() {
    let json = String::from_utf8(MINIMAL.to_vec()).unwrap();
    for (from, to) in [
        (r#""partition_key":[]"#, r#""partition_key":["zz"]"#),
        (
            r#""partition_key":[]"#,
            r#""partition_key":[],"bucket_key":["zz"]"#,
        ),
        (
            r#""partition_key":[]"#,
            r#""partition_key":[],"bucket_key":[],"bucket_count":0"#,
        ),
        (r#"{"version":1,"schema""#, r#"{"version":2,"schema""#),
    ] {
        let bad = json.replacen(from, to, 1);
        assert_ne!(bad, json);
        assert!(
            matches!(
                TableDescriptor::from_json(bad.as_bytes()),
                Err(Error::Invalid { .. })
            ),
            "{bad}"
        );
    }
}

#[test]
fn the_golden_database_descriptor_is_read_and_written_byte_for_byte() {
    let database = DatabaseDescriptor::from_json(DATABASE).unwrap();
    assert_eq!(database.comment.as_deref(), Some("c"));
    assert_eq!(database.custom_properties["k"], "v");
    assert_eq!(database.to_json(), DATABASE);
}
