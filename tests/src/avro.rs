//! Manifests read by another Avro library than ours.

use apache_avro::Reader;
use apache_avro::types::Value;
use object_store::ObjectStoreExt;
use weir_lake_format::Table;

/// Partition, bucket and total buckets of every entry of all manifests of the newest snapshot.
pub async fn entries(lake: &Table) -> Vec<(Vec<u8>, i32, i32)> {
    let snapshot = lake.latest_snapshot().await.expect("snapshots can be read");
    let snapshot = snapshot.expect("there is a snapshot");
    let mut found = Vec::new();
    for list in [&snapshot.base_manifest_list, &snapshot.delta_manifest_list] {
        for manifest in records(lake, list).await {
            let Value::String(name) = field(&manifest, "_FILE_NAME") else {
                panic!("a manifest without name")
            };
            found.extend(records(lake, name).await.iter().map(entry));
        }
    }
    found
}

async fn records(lake: &Table, name: &str) -> Vec<Value> {
    let file = lake
        .store()
        .get(&lake.paths().manifest(name).expect("a file name"))
        .await
        .expect("the file is there");
    let bytes = file.bytes().await.expect("the file can be read");
    let reader = Reader::new(&bytes[..]).expect("an Avro file");
    reader.collect::<Result<_, _>>().expect("records")
}

fn entry(record: &Value) -> (Vec<u8>, i32, i32) {
    let number = |name| match field(record, name) {
        Value::Int(number) => *number,
        other => panic!("{name} is {other:?}"),
    };
    let Value::Bytes(partition) = field(record, "_PARTITION") else {
        panic!("no partition")
    };
    (
        partition.clone(),
        number("_BUCKET"),
        number("_TOTAL_BUCKETS"),
    )
}

fn field<'a>(record: &'a Value, name: &str) -> &'a Value {
    let Value::Record(fields) = record else {
        panic!("{record:?} is no record")
    };
    let found = fields.iter().find(|(field, _)| field == name);
    let (_, value) = found.unwrap_or_else(|| panic!("no {name} in {record:?}"));
    if let Value::Union(_, inner) = value {
        inner
    } else {
        value
    }
}
