use proptest::prelude::*;

use super::*;

const SCHEMA: &str = r#"{"type":"record","name":"r","fields":[{"name":"n","type":"long"},
    {"name":"s","type":["null","string"],"default":null},{"name":"a","type":{"type":"array","items":"string"}}]}"#;

fn file(records: &[(i64, Option<String>, Vec<String>)]) -> Vec<u8> {
    let mut writer = ContainerWriter::new(SCHEMA);
    for (n, s, a) in records {
        let put = |out: &mut Vec<u8>| {
            put_long(out, *n);
            put_optional(out, s.as_deref(), put_str);
            put_strings(out, a);
        };
        writer.append(put).unwrap();
    }
    writer.finish().unwrap()
}

fn read(file: &[u8]) -> crate::Result<Vec<(i64, Option<String>, Vec<String>)>> {
    let mut records = Vec::new();
    read_records(file, |record| {
        let strings = record.optional_strings("a")?.unwrap_or_default();
        records.push((record.long("n")?, record.optional_string("s")?, strings));
        Ok(())
    })?;
    Ok(records)
}

proptest! {
    #[test]
    fn files_read_as_written_here_and_by_an_independent_reader(
        records in prop::collection::vec(
            (any::<i64>(), prop::option::of(".{0,20}"), prop::collection::vec(".{0,8}", 0..4)), 0..50),
    ) {
        let file = file(&records);
        prop_assert_eq!(&read(&file).unwrap(), &records);
        let independent = apache_avro::Reader::new(&file[..]).unwrap();
        let numbers: Vec<i64> = independent.map(|record| match record.unwrap() {
            apache_avro::types::Value::Record(fields) => match &fields[0].1 {
                apache_avro::types::Value::Long(n) => *n,
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }).collect();
        prop_assert_eq!(numbers, records.iter().map(|record| record.0).collect::<Vec<_>>());
    }

    #[test]
    fn damaged_files_read_or_are_refused(
        place in any::<prop::sample::Index>(),
        bytes in prop::collection::vec(any::<u8>(), 1..12),
    ) {
        let mut damaged = file(&[(1, None, vec!["x".to_owned()]), (2, Some("y".to_owned()), Vec::new())]);
        let at = place.index(damaged.len());
        let end = (at + bytes.len()).min(damaged.len());
        damaged[at..end].copy_from_slice(&bytes[..end - at]);
        let _ = read(&damaged);
        let _ = read(&damaged[..at]);
    }
}

#[test]
fn large_files_have_several_blocks_and_read_back() {
    let records: Vec<_> = (0..40_000)
        .map(|n| (n, Some(format!("some text {n}")), Vec::new()))
        .collect();
    assert_eq!(read(&file(&records)).unwrap(), records);
}

#[test]
fn a_small_file_that_unpacks_without_end_is_refused() {
    let mut out = file(&[]);
    let bomb = zstd::bulk::compress(&vec![0u8; (1 << 30) + 1], 1).unwrap();
    put_long(&mut out, 1);
    put_bytes(&mut out, &bomb);
    out.extend_from_slice(&SYNC_MARKER);
    assert!(matches!(read(&out), Err(crate::Error::Malformed { .. })));
}

#[test]
fn a_schema_that_names_itself_without_end_is_refused() {
    let schema = r#"{"type":"record","name":"r","fields":[{"name":"a","type":"r"}]}"#;
    assert!(read(&ContainerWriter::new(schema).finish().unwrap()).is_err());
}

/// A file of one block with a codec of its own.
fn file_of_block(schema: &str, codec: &str, count: i64, block: &[u8]) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    put_long(&mut out, 2);
    put_str(&mut out, "avro.schema");
    put_str(&mut out, schema);
    put_str(&mut out, "avro.codec");
    put_str(&mut out, codec);
    put_long(&mut out, 0);
    out.extend_from_slice(&SYNC_MARKER);
    put_long(&mut out, count);
    put_bytes(&mut out, block);
    out.extend_from_slice(&SYNC_MARKER);
    out
}

/// What a file is refused for.
fn refusal(file: &[u8]) -> String {
    match read_records(file, |_| Ok(())) {
        Err(error @ crate::Error::Malformed { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn blocks_of_all_codecs_that_another_writer_packed_are_read() {
    use apache_avro::{Codec, types};
    let schema = apache_avro::Schema::parse_str(SCHEMA).unwrap();
    let deflate = Codec::Deflate(apache_avro::DeflateSettings::default());
    for codec in [Codec::Null, deflate, Codec::Snappy] {
        let mut writer = apache_avro::Writer::with_codec(&schema, Vec::new(), codec);
        let mut record = types::Record::new(&schema).unwrap();
        record.put("n", 7i64);
        record.put("s", Some("text"));
        let items = vec![types::Value::String("x".to_owned()); 1000];
        record.put("a", types::Value::Array(items));
        writer.append(record).unwrap();
        let found = read(&writer.into_inner().unwrap()).unwrap();
        let expected = (7, Some("text".to_owned()), vec!["x".to_owned(); 1000]);
        assert_eq!(found, [expected], "{codec:?}");
    }
}

#[test]
fn a_snappy_block_is_refused_if_it_is_short_or_says_that_it_unpacks_to_much_or_is_damaged() {
    for block in [&b""[..], b"abc"] {
        let found = refusal(&file_of_block(SCHEMA, "snappy", 1, block));
        assert!(found.contains("shorter than its checksum"), "{found}");
    }
    // The length of the unpacked block, 4 GiB less one, then a checksum.
    let found = refusal(&file_of_block(
        SCHEMA,
        "snappy",
        1,
        b"\xff\xff\xff\xff\x0f\0\0\0\0",
    ));
    assert!(found.contains("hold more than"), "{found}");
    let mut block = snap::raw::Encoder::new().compress_vec(&[2, 0, 0]).unwrap();
    block.extend_from_slice(&[0; 4]);
    let found = refusal(&file_of_block(SCHEMA, "snappy", 1, &block));
    assert!(found.contains("checksum"), "{found}");
}

#[test]
fn a_deflate_block_that_unpacks_without_end_is_refused() {
    use std::io::Write as _;
    let mut packed = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::fast());
    let zeros = vec![0; 1 << 20];
    for _ in 0..=1024 {
        packed.write_all(&zeros).unwrap();
    }
    let found = refusal(&file_of_block(
        SCHEMA,
        "deflate",
        1,
        &packed.finish().unwrap(),
    ));
    assert!(found.contains("hold more than"), "{found}");
}

#[test]
fn items_that_take_no_bytes_are_refused_when_they_are_many() {
    let schema = |item: &str| {
        format!(
            r#"{{"type":"record","name":"r","fields":[{{"name":"n","type":"long"}},
            {{"name":"a","type":{{"type":"array","items":{item}}}}}]}}"#
        )
    };
    // One record: blocks of as many items as bytes follow, without a byte for any of them.
    let mut block = vec![0];
    let filler = 40_000;
    for _ in 0..filler / 4 {
        put_long(&mut block, 8_000);
    }
    block.resize(block.len() + filler, 0);
    for item in [
        r#""null""#,
        r#"{"type":"fixed","name":"f","size":0}"#,
        r#"{"type":"record","name":"e","fields":[]}"#,
    ] {
        let found = refusal(&file_of_block(&schema(item), "null", 1, &block));
        assert!(found.contains("too many values"), "{item}: {found}");
    }
    // Many records below the limit of each: what they hold in all is limited as well.
    let mut block = Vec::new();
    for _ in 0..1000 {
        block.push(0);
        put_long(&mut block, 1_000_000);
        put_long(&mut block, 0);
    }
    block.resize(block.len() + 1_000_000, 0);
    let found = refusal(&file_of_block(&schema(r#""null""#), "null", 1000, &block));
    assert!(found.contains("hold more than"), "{found}");
}
