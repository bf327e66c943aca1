use proptest::prelude::*;

use super::*;
use crate::arbitrary::{any_type, record_batch, table};
use crate::ids::{SchemaId, WriterId};
use crate::record::batches;
use crate::schema::{Column, LogicalType, TypeKind};

const INDEXED: &[u8] = include_bytes!("../../../tests/golden/log_indexed_v0_append.bin");
const COMPACTED: &[u8] = include_bytes!("../../../tests/golden/log_compacted_v0_append.bin");

fn schema() -> Schema {
    let column = |name, kind| Column::new(name, LogicalType::nullable(kind));
    Schema::new(
        vec![column("f0", TypeKind::Int), column("f1", TypeKind::String)],
        vec![],
    )
    .unwrap()
}

fn three_rows() -> RecordBatch {
    let text = |text: &str| Datum::String(text.to_owned());
    let rows = [
        vec![Datum::Int(1), text("a")],
        vec![Datum::Int(2), Datum::Null],
        vec![Datum::Int(3), text("ccc")],
    ];
    record_batch(&schema(), &rows)
}

fn id() -> BatchIdentity {
    BatchIdentity {
        schema_id: SchemaId(1),
        writer_id: WriterId(7),
        batch_sequence: 0,
    }
}

fn parse(bytes: &Bytes) -> LogBatch {
    let batch = batches(bytes.clone()).next().unwrap().unwrap();
    batch.verify_crc().unwrap();
    batch
}

#[test]
fn golden_batches_of_rows_are_written_and_read() {
    assert_eq!(
        encode_indexed(id(), None, &three_rows(), &schema()).unwrap(),
        INDEXED
    );
    assert_eq!(
        encode_compacted(id(), None, &three_rows(), &schema()).unwrap(),
        COMPACTED
    );
    for (golden, format) in [
        (INDEXED, RowFormat::Indexed),
        (COMPACTED, RowFormat::Compacted),
    ] {
        let decoded = decode(
            &parse(&Bytes::from_static(golden)),
            &schema(),
            format,
            DecodeLimits::default(),
        )
        .unwrap();
        assert_eq!((decoded.batch, decoded.change_types), (three_rows(), None));
    }
}

#[test]
fn a_changelog_keeps_a_change_type_a_row() {
    let types = [
        ChangeType::Insert,
        ChangeType::UpdateBefore,
        ChangeType::Delete,
    ];
    let bytes = encode_compacted(id(), Some(&types), &three_rows(), &schema()).unwrap();
    let decoded = decode(
        &parse(&bytes),
        &schema(),
        RowFormat::Compacted,
        DecodeLimits::default(),
    )
    .unwrap();
    assert_eq!(decoded.change_types.as_deref(), Some(&types[..]));
    assert!(encode_compacted(id(), Some(&types[..2]), &three_rows(), &schema()).is_err());
}

#[test]
fn a_header_that_claims_records_without_bytes_is_refused() {
    let mut bytes = COMPACTED.to_vec();
    put_at(&mut bytes, 28, &(i32::MAX - 1).to_le_bytes());
    put_at(&mut bytes, 44, &i32::MAX.to_le_bytes());
    let batch = batches(bytes).next().unwrap().unwrap();
    assert!(matches!(
        decode(
            &batch,
            &schema(),
            RowFormat::Compacted,
            DecodeLimits::default()
        ),
        Err(Error::Corrupt { .. })
    ));
}

proptest! {
    #[test]
    fn any_rows_come_back((schema, rows) in table(any_type(), 12)) {
        let expected = record_batch(&schema, &rows);
        prop_assert_eq!(&rows_of(&expected, &schema).unwrap(), &rows);
        for format in [RowFormat::Indexed, RowFormat::Compacted] {
            let bytes = encode(format, id(), None, &rows, &schema).unwrap();
            let decoded = decode(&parse(&bytes), &schema, format, DecodeLimits::default()).unwrap();
            prop_assert_eq!(&decoded.batch, &expected);
        }
    }

    #[test]
    fn damaged_bytes_never_panic(
        damage in proptest::collection::vec((12usize..75, any::<u8>()), 1..5),
    ) {
        for (golden, format) in [(INDEXED, RowFormat::Indexed), (COMPACTED, RowFormat::Compacted)] {
            let mut bytes = golden.to_vec();
            for (at, value) in &damage {
                bytes[*at] = *value;
            }
            for batch in batches(bytes).flatten() {
                let _ = decode(&batch, &schema(), format, DecodeLimits::default());
            }
        }
    }
}

#[test]
fn rows_of_nulls_are_charged_for_the_memory_they_take() {
    let columns =
        (0..64).map(|n| Column::new(format!("f{n}"), LogicalType::nullable(TypeKind::Int)));
    let schema = Schema::new(columns.collect(), vec![]).unwrap();
    let rows = vec![vec![Datum::Null; 64]; 100];
    let bytes = encode(RowFormat::Compacted, id(), None, &rows, &schema).unwrap();
    let needed = (100 * 64 * size_of::<Datum>()) as u64;
    let read = |max_uncompressed_bytes| {
        let limits = DecodeLimits {
            max_uncompressed_bytes,
        };
        decode(&parse(&bytes), &schema, RowFormat::Compacted, limits)
    };
    assert_eq!(read(needed).unwrap().batch.num_rows(), 100);
    let error = read(needed - 1).unwrap_err();
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
}
