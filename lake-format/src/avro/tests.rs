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
