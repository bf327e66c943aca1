//! Files that people load, and properties that others may have written.

use std::fs;

use tempfile::TempDir;
use weir_protocol::schema::Schema;
use weir_tests::table;
use weir_tiering::load::file::Source;
use weir_tiering::ranges;

use crate::golden;
use crate::target::Target;

pub(crate) fn targets() -> Vec<Target> {
    vec![
        Target {
            name: "load_csv",
            run: |data| load("rows.csv", data),
            seeds: || texts(&["id,c_int\n1,2\n", "id\n\"a\"\n"]),
        },
        Target {
            name: "load_json",
            run: |data| load("rows.jsonl", data),
            seeds: || texts(&["{\"id\":1}\n{\"id\":null}\n", "{\"c_row\":{\"a\":1}}\n"]),
        },
        Target {
            name: "load_parquet",
            run: |data| load("rows.parquet", data),
            seeds: parquet,
        },
        Target {
            name: "ranges",
            run: ranges,
            seeds: || {
                texts(&[
                    r#"{"version":1,"groups":[{"buckets":[[0,0,10,10]]}]}"#,
                    r#"{"version":1,"groups":[{"partition_id":1,"partition":"p","buckets":[[0,5,10,3],[1,0,0,0]]}]}"#,
                    r#"{"version":1,"file":"weir/x.ranges"}"#,
                ])
            },
        },
    ]
}

fn texts(all: &[&str]) -> Vec<Vec<u8>> {
    all.iter().map(|text| text.as_bytes().to_vec()).collect()
}

fn parquet() -> Vec<Vec<u8>> {
    golden::files("lake-format/tests/golden/warehouse", |name| {
        name.ends_with(".parquet")
    })
}

fn load(name: &str, data: &[u8]) {
    let folder = TempDir::new().expect("there is room for small files");
    let path = folder.path().join(name);
    fs::write(&path, data).expect("there is room for small files");
    let Ok(mut source) = Source::open(&path) else {
        return;
    };
    read(&source);
    let schema = Schema::new(table::every_type(), Vec::new()).expect("the columns are a schema");
    source.read_as(&schema.arrow_schema());
    read(&source);
}

fn read(source: &Source) {
    if let Ok(batches) = source.batches() {
        for batch in batches.take_while(Result::is_ok).flatten() {
            assert_eq!(batch.num_columns(), source.schema().fields().len());
        }
    }
}

/// What is read is written and read again as the same, in its own order.
fn ranges(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if let Ok(ranges::RangesProperty::Inline(found)) = ranges::parse(text) {
        let written = ranges::to_text(&found);
        let again = ranges::parse(&written).expect("what was written is readable");
        let ranges::RangesProperty::Inline(again) = again else {
            panic!("ranges became a file");
        };
        assert_eq!(ranges::to_text(&again), written);
    }
}
