use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::row::{Datum, compacted, indexed, key};
use crate::schema::{LogicalType, TypeKind};

const COMPACTED: &[u8] = include_bytes!("../../../tests/golden/kv_batch_compacted.bin");
const INDEXED: &[u8] = include_bytes!("../../../tests/golden/kv_batch_indexed.bin");
const LOOKUP: &[u8] = include_bytes!("../../../tests/golden/lookup_value.bin");
const VALUE_BATCH: &[u8] = include_bytes!("../../../tests/golden/value_record_batch.bin");

fn id() -> BatchIdentity {
    BatchIdentity {
        schema_id: SchemaId(1),
        writer_id: WriterId(7),
        batch_sequence: 0,
    }
}

fn types() -> [LogicalType; 2] {
    [
        LogicalType::not_null(TypeKind::Int),
        LogicalType::nullable(TypeKind::String),
    ]
}

fn rows() -> [Vec<Datum>; 3] {
    let text = |text: &str| Datum::String(text.to_owned());
    [
        vec![Datum::Int(1), text("a")],
        vec![Datum::Int(2), text("bb")],
        vec![Datum::Int(300), Datum::Null],
    ]
}

fn golden_records(encode_row: impl Fn(&[Datum]) -> Vec<u8>) -> Vec<KvRecord> {
    let key = |value: &Datum| {
        Bytes::from(key::encode_compacted_key(std::slice::from_ref(value), &types()[..1]).unwrap())
    };
    let upsert = |row: &Vec<Datum>| KvRecord {
        key: key(&row[0]),
        row: Some(encode_row(row).into()),
    };
    let mut records: Vec<KvRecord> = rows().iter().map(upsert).collect();
    records.push(KvRecord {
        key: key(&Datum::Int(2)),
        row: None,
    });
    records
}

#[test]
fn golden_batches_are_written_and_read() {
    for (golden, records) in [
        (
            COMPACTED,
            golden_records(|row| compacted::encode(row, &types()).unwrap()),
        ),
        (
            INDEXED,
            golden_records(|row| indexed::encode(row, &types()).unwrap()),
        ),
    ] {
        assert_eq!(encode(id(), &records).unwrap(), golden);
        let mut rest = Bytes::from_static(golden);
        let batch = KvBatch::parse(&mut rest).unwrap();
        batch.verify_crc().unwrap();
        assert!(rest.is_empty());
        assert_eq!(
            (batch.schema_id, batch.writer_id, batch.batch_sequence),
            (SchemaId(1), WriterId(7), 0)
        );
        assert_eq!(batch.records().unwrap(), records);
    }
}

#[test]
fn golden_values_are_written_and_read() {
    let value = |row: &Vec<Datum>| Value {
        schema_id: SchemaId(1),
        row: compacted::encode(row, &types()).unwrap().into(),
    };
    let [one, _, null] = rows();
    let lookup = Value::decode(&Bytes::from_static(LOOKUP)).unwrap();
    assert_eq!(lookup, value(&one));
    assert_eq!(lookup.encode().unwrap(), LOOKUP);
    let values = [value(&one), value(&null)];
    assert_eq!(
        decode_values(&Bytes::from_static(VALUE_BATCH)).unwrap(),
        values
    );
    assert_eq!(encode_values(&values).unwrap(), VALUE_BATCH);
}

#[test]
fn a_flipped_bit_is_seen() {
    for at in 9..COMPACTED.len() {
        let mut bytes = COMPACTED.to_vec();
        bytes[at] ^= 1;
        let seen = KvBatch::parse(&mut Bytes::from(bytes)).and_then(|batch| batch.verify_crc());
        assert!(seen.is_err(), "byte {at}");
    }
}

#[test]
fn cut_batches_are_refused_and_left_alone() {
    for end in 0..COMPACTED.len() {
        let mut bytes = Bytes::from_static(&COMPACTED[..end]);
        assert!(KvBatch::parse(&mut bytes).is_err());
        assert_eq!(bytes.len(), end);
    }
    for end in 0..VALUE_BATCH.len() {
        assert!(decode_values(&Bytes::from_static(&VALUE_BATCH[..end])).is_err());
    }
}

proptest! {
    #[test]
    fn any_records_come_back(
        keys in vec(vec(any::<u8>(), 0..200), 0..20), sequence in any::<i32>(),
        row in vec(any::<u8>(), 1..40),
    ) {
        // Every other key is deleted.
        let row = |index: usize| index.is_multiple_of(2).then(|| Bytes::from(row.clone()));
        let record = |(index, key): (usize, Vec<u8>)| KvRecord { key: key.into(), row: row(index) };
        let records: Vec<KvRecord> = keys.into_iter().enumerate().map(record).collect();
        let id = BatchIdentity { batch_sequence: sequence, ..id() };
        let batch = KvBatch::parse(&mut encode(id, &records).unwrap()).unwrap();
        batch.verify_crc().unwrap();
        prop_assert_eq!(batch.batch_sequence, sequence);
        prop_assert_eq!(batch.records().unwrap(), records);
    }

    #[test]
    fn no_bytes_make_the_readers_panic(
        bytes in vec(any::<u8>(), 0..120), at in 0usize..65, value in any::<u8>(),
    ) {
        let mut damaged = COMPACTED.to_vec();
        damaged[at] = value;
        for bytes in [Bytes::from(bytes), Bytes::from(damaged)] {
            let _ = decode_values(&bytes);
            let _ = Value::decode(&bytes);
            if let Ok(batch) = KvBatch::parse(&mut bytes.clone()) {
                let _ = (batch.verify_crc(), batch.records());
            }
        }
    }
}

#[test]
fn a_batch_given_another_writer_is_as_if_that_one_had_written_it() {
    let records = [KvRecord {
        key: Bytes::from_static(b"k"),
        row: Some(Bytes::from_static(b"row")),
    }];
    let other = BatchIdentity {
        writer_id: WriterId(9),
        batch_sequence: 4,
        ..id()
    };
    let mut bytes = encode(id(), &records).unwrap().to_vec();
    set_writer(&mut bytes, other.writer_id, other.batch_sequence).unwrap();
    assert_eq!(Bytes::from(bytes), encode(other, &records).unwrap());
    assert!(set_writer(&mut [0; 27], WriterId(9), 4).is_err());
}
