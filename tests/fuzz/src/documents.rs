//! JSON documents and the small texts in them.

use weir_catalog::auto_partition;
use weir_catalog::ddl::{names, properties};
use weir_catalog::model::Document;
use weir_catalog::model::assignment::Assignment;
use weir_catalog::model::coordinator::decode_epoch;
use weir_catalog::model::database::Database;
use weir_catalog::model::lake_offsets::LakeOffsets;
use weir_catalog::model::lake_snapshot::LakeTable;
use weir_catalog::model::leader_isr::LeaderIsr;
use weir_catalog::model::partition::{LastPartition, Partition};
use weir_catalog::model::table::Table;
use weir_catalog::model::tablet_server::TabletServer;
use weir_catalog::model::tiering::Tiering;
use weir_catalog::store::Key;
use weir_protocol::descriptor::{DatabaseDescriptor, TableDescriptor};
use weir_protocol::partition::{self, PartitionSpec};
use weir_protocol::schema::{Schema, TypeKind};
use weir_tests::table;

use crate::golden;
use crate::target::Target;

pub(crate) fn targets() -> Vec<Target> {
    vec![
        Target {
            name: "descriptor",
            run: descriptor,
            seeds: descriptors,
        },
        Target {
            name: "document",
            run: document,
            seeds: documents,
        },
        Target {
            name: "partition_text",
            run: partition_text,
            seeds: partition_texts,
        },
        Target {
            name: "property",
            run: property,
            seeds: property_texts,
        },
    ]
}

fn descriptors() -> Vec<Vec<u8>> {
    let mut seeds = golden::files("server/protocol/tests/golden", |name| {
        name.ends_with(".json")
    });
    let all = Schema::new(table::every_type(), Vec::new()).expect("the columns are a schema");
    seeds.push(all.to_json());
    seeds.push(TableDescriptor::new(all).to_json());
    seeds
}

/// What is read is written and read again as the same.
fn descriptor(data: &[u8]) {
    if let Ok(schema) = Schema::from_json(data) {
        let again = Schema::from_json(&schema.to_json());
        assert_eq!(again.expect("what was written is readable"), schema);
        let _arrow = schema.arrow_schema();
    }
    if let Ok(descriptor) = TableDescriptor::from_json(data) {
        let again = TableDescriptor::from_json(&descriptor.to_json());
        assert_eq!(again.expect("what was written is readable"), descriptor);
    }
    if let Ok(database) = DatabaseDescriptor::from_json(data) {
        let again = DatabaseDescriptor::from_json(&database.to_json());
        assert_eq!(again.expect("what was written is readable"), database);
    }
}

fn documents() -> Vec<Vec<u8>> {
    let mut seeds = golden::files("catalog/tests/golden", |name| name.ends_with(".json"));
    let texts: [&str; 8] = [
        r#"{"version":1,"comment":"c","custom_properties":{"a":"b"},"created_time":1,"modified_time":2}"#,
        r#"{"version":1,"table_id":7,"buckets":[{"id":0,"replicas":[1]},{"id":1,"replicas":[2]}]}"#,
        r#"{"version":1,"leader":1,"leader_epoch":3,"isr":[1],"coordinator_epoch":2,"bucket_epoch":4}"#,
        r#"{"version":1,"table_id":7,"partition_id":3}"#,
        r#"{"version":2,"table_id":7,"partition_id":3,"remote_data_dir":"file:/d","bucket_count":2}"#,
        r#"{"version":2,"lake_snapshots":[{"snapshot_id":4,"tiered_offsets":"file:/o","readable_offsets":"file:/o"}]}"#,
        r#"{"version":1,"listeners":"CLIENT://localhost:9124","register_timestamp":1}"#,
        r#"{"version":1,"epoch":3}"#,
    ];
    seeds.extend(texts.map(|text| text.as_bytes().to_vec()));
    seeds
}

fn round<D: Document + PartialEq + std::fmt::Debug>(data: &[u8]) {
    if let Ok(document) = D::decode("the document under test", data) {
        let bytes = document.encode().expect("a document can be written");
        let again = D::decode("the same document", &bytes);
        assert_eq!(again.expect("what was written is readable"), document);
    }
}

fn document(data: &[u8]) {
    round::<Assignment>(data);
    round::<Database>(data);
    round::<LakeOffsets>(data);
    round::<LakeTable>(data);
    round::<LeaderIsr>(data);
    round::<LastPartition>(data);
    round::<Partition>(data);
    round::<Table>(data);
    round::<TabletServer>(data);
    round::<Tiering>(data);
    let _epoch = decode_epoch("the epoch", data);
    if let Ok(text) = std::str::from_utf8(data) {
        let _key = Key::from_stored(text);
    }
}

fn partition_texts() -> Vec<Vec<u8>> {
    let texts = [
        "7",
        "true",
        "2024-03-01",
        "2024-01-01-12-30-00_",
        "2024-01-01-01-02-03_000456",
        "12-30-00_001",
        "a$b",
        "00ff",
        "1.5",
        "-9223372036854775808",
        "1969-12-31",
    ];
    texts.map(|text| text.as_bytes().to_vec()).to_vec()
}

fn partition_text(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    for column in table::every_type() {
        let kind: &TypeKind = &column.ty.kind;
        if let Ok(value) = partition::parse_value(text, kind) {
            let back =
                partition::value_text(&value, kind).expect("a value of a partition has a text");
            let again = partition::parse_value(&back, kind).expect("its text is readable");
            assert_eq!(
                format!("{again:?}"),
                format!("{value:?}"),
                "{text} of {kind:?}"
            );
        }
    }
    if let Ok(spec) = PartitionSpec::from_name(&["a", "b"], text) {
        assert_eq!(spec.name(), text);
    }
}

fn property_texts() -> Vec<Vec<u8>> {
    let texts = [
        "3min",
        "10 s",
        "P1D",
        "true",
        "yyyyMMdd",
        "yyyy-MM-dd-HH",
        "1 kb",
        "__x",
        "db.table",
        "-1",
    ];
    texts.map(|text| text.as_bytes().to_vec()).to_vec()
}

fn property(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let _duration = properties::parse_duration(text);
    let _bool = properties::parse_bool(text);
    let _name = (names::check(text), names::check_new(text));
    if let Ok(unit) = auto_partition::TimeUnit::parse(text) {
        let _shown = format!("{unit:?}");
    }
}
