use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, StringArray, UInt32Array};
use arrow::datatypes::{Field, FieldRef, Schema as ArrowSchema};
use bytes::{Bytes, BytesMut};
use proptest::prelude::*;

use super::super::log_batch::set_stored;
use super::*;
use crate::arbitrary::{any_type, record_batch, table};
use crate::error::Error;
use crate::ids::LogOffset;
use crate::schema::{Column, LogicalType, Schema, TypeKind};

macro_rules! golden {
    ($name:literal) => {
        Bytes::from_static(include_bytes!(concat!(
            "../../../tests/golden/",
            $name,
            ".bin"
        )))
    };
}

const SCHEMA_ID: SchemaId = SchemaId(1);
const WRITER: WriterId = WriterId(7);

fn schema() -> SchemaRef {
    let column = |name, kind| Column::new(name, LogicalType::nullable(kind));
    Schema::new(
        vec![column("f0", TypeKind::Int), column("f1", TypeKind::String)],
        vec![],
    )
    .unwrap()
    .arrow_schema()
}

fn rows_of(ids: Vec<i32>, texts: Vec<Option<&str>>) -> RecordBatch {
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int32Array::from(ids)),
        Arc::new(StringArray::from(texts)),
    ];
    RecordBatch::try_new(schema(), columns).unwrap()
}

fn three_rows() -> RecordBatch {
    rows_of(vec![1, 2, 3], vec![Some("a"), None, Some("ccc")])
}

fn two_hundred_rows() -> RecordBatch {
    let texts: Vec<String> = (0..200).map(|row| format!("value-{}", row % 5)).collect();
    rows_of(
        (0..200).collect(),
        texts.iter().map(|text| Some(text.as_str())).collect(),
    )
}

fn parse(bytes: Bytes) -> LogBatch {
    let mut rest = bytes;
    let batch = LogBatch::parse(&mut rest).unwrap();
    assert!(rest.is_empty());
    batch
}

#[test]
fn golden_batches_of_every_compression_are_read() {
    let cases = [
        (golden!("log_arrow_none_v0_append"), three_rows()),
        (golden!("log_arrow_none_v0_append_stored"), three_rows()),
        (golden!("log_arrow_none_v1_stats_append"), three_rows()),
        (golden!("log_arrow_zstd_v0_append_small"), three_rows()),
        (golden!("log_arrow_zstd_v0_append"), two_hundred_rows()),
        (golden!("log_arrow_lz4_v0_append"), two_hundred_rows()),
    ];
    for (bytes, expected) in cases {
        let decoded = decode(&parse(bytes), &schema()).unwrap();
        assert_eq!((decoded.batch, decoded.change_types), (expected, None));
    }
}

#[test]
fn golden_changelogs_of_every_layout_are_read() {
    let types = Some(vec![
        ChangeType::Insert,
        ChangeType::UpdateBefore,
        ChangeType::UpdateAfter,
    ]);
    for bytes in [
        golden!("log_arrow_none_v0_changelog"),
        golden!("log_arrow_none_v1_changelog_FLUSS091_layout"),
        golden!("log_arrow_none_v2_changelog"),
    ] {
        let decoded = decode(&parse(bytes), &schema()).unwrap();
        assert_eq!(
            (decoded.batch, &decoded.change_types),
            (three_rows(), &types)
        );
    }
    let empty = decode(&parse(golden!("log_arrow_none_v0_empty")), &schema()).unwrap();
    assert_eq!(
        (empty.batch.num_rows(), empty.change_types),
        (0, Some(vec![]))
    );
}

#[test]
fn encoding_gives_the_bytes_of_the_reference() {
    let plain = encode_append(SCHEMA_ID, WRITER, 0, &three_rows(), Compression::None).unwrap();
    assert_eq!(plain, golden!("log_arrow_none_v0_append"));

    let anonymous = BatchIdentity::anonymous(SCHEMA_ID);
    let small = encode_append(
        SCHEMA_ID,
        anonymous.writer_id,
        anonymous.batch_sequence,
        &three_rows(),
        Compression::Zstd(3),
    );
    assert_eq!(small.unwrap(), golden!("log_arrow_zstd_v0_append_small"));

    let types = [
        ChangeType::Insert,
        ChangeType::UpdateBefore,
        ChangeType::UpdateAfter,
    ];
    let id = BatchIdentity {
        schema_id: SCHEMA_ID,
        writer_id: WRITER,
        batch_sequence: 3,
    };
    let changes = encode_changelog(id, &types, &three_rows(), Compression::None).unwrap();
    assert_eq!(changes, golden!("log_arrow_none_v0_changelog"));
    assert!(encode_changelog(id, &types[1..], &three_rows(), Compression::None).is_err());
}

#[test]
fn compressed_messages_have_the_head_of_the_reference() {
    // Compressors may choose other bytes, so only what stands before the spans of buffers is
    // compared.
    for (bytes, sequence, compression) in [
        (golden!("log_arrow_zstd_v0_append"), 1, Compression::Zstd(3)),
        (golden!("log_arrow_lz4_v0_append"), 2, Compression::Lz4),
    ] {
        let ours = encode_append(
            SCHEMA_ID,
            WRITER,
            sequence,
            &two_hundred_rows(),
            compression,
        )
        .unwrap();
        assert_eq!(ours[56..56 + 24], bytes[56..56 + 24]);
        assert_eq!(ours[56 + 32..56 + 104], bytes[56 + 32..56 + 104]);
        let batch = parse(ours);
        batch.verify_crc().unwrap();
        assert_eq!(decode(&batch, &schema()).unwrap().batch, two_hundred_rows());
    }
}

#[test]
fn projection_gives_the_bytes_of_the_reference() {
    let stored = parse(golden!("log_arrow_none_v0_append_stored"));
    let projected = project(&stored, &schema(), &schema(), &[1]).unwrap();
    assert_eq!(
        projected,
        golden!("log_arrow_none_v0_append_projected_col1")
    );
    let narrow = Arc::new(schema().project(&[1]).unwrap());
    let decoded = decode(&parse(projected), &narrow).unwrap();
    assert_eq!(decoded.batch, three_rows().project(&[1]).unwrap());
}

#[test]
fn projection_drops_statistics_and_keeps_change_types() {
    let narrow = Arc::new(schema().project(&[0]).unwrap());
    for bytes in [
        golden!("log_arrow_none_v1_stats_append"),
        golden!("log_arrow_none_v2_changelog"),
        golden!("log_arrow_none_v0_changelog"),
    ] {
        let source = parse(bytes);
        let projected = parse(project(&source, &schema(), &schema(), &[0]).unwrap());
        assert_eq!(projected.header.statistics_length, 0);
        assert_eq!(projected.header.layout, source.header.layout);
        let (whole, part) = (
            decode(&source, &schema()).unwrap(),
            decode(&projected, &narrow).unwrap(),
        );
        assert_eq!(part.batch, whole.batch.project(&[0]).unwrap());
        assert_eq!(part.change_types, whole.change_types);
    }
    let empty = golden!("log_arrow_none_v0_empty");
    assert_eq!(
        project(&parse(empty.clone()), &schema(), &schema(), &[1]).unwrap(),
        empty
    );
}

#[test]
fn bad_projections_are_refused() {
    let batch = parse(golden!("log_arrow_none_v0_append"));
    for columns in [&[][..], &[2], &[1, 0], &[1, 1], &[0, 2]] {
        assert!(
            matches!(
                project(&batch, &schema(), &schema(), columns),
                Err(Error::Projection { .. })
            ),
            "{columns:?}"
        );
    }
}

#[test]
fn a_schema_that_does_not_fit_is_an_error() {
    let batch = parse(golden!("log_arrow_none_v0_append"));
    let fields = |types: &[DataType]| {
        let field = |data_type: &DataType| Field::new("f", data_type.clone(), true);
        Arc::new(ArrowSchema::new(
            types.iter().map(field).collect::<Vec<_>>(),
        ))
    };
    for types in [
        &[DataType::Int32][..],
        &[DataType::Int32, DataType::Utf8, DataType::Int32],
        &[DataType::Utf8, DataType::Int32],
        &[DataType::Int64, DataType::Utf8],
        &[DataType::Int32, DataType::LargeUtf8],
        &[],
    ] {
        assert!(decode(&batch, &fields(types)).is_err(), "{types:?}");
    }
    let unsigned: ArrayRef = Arc::new(UInt32Array::from(vec![1]));
    let unsigned = RecordBatch::try_from_iter([("u", unsigned)]).unwrap();
    let refused = encode_append(SCHEMA_ID, WRITER, 0, &unsigned, Compression::None);
    assert!(matches!(refused, Err(Error::UnsupportedType { .. })));
}

#[test]
fn declared_sizes_above_the_limit_are_refused_before_allocation() {
    let golden = golden!("log_arrow_zstd_v0_append");
    let batch = parse(golden.clone());
    let limits = DecodeLimits {
        max_uncompressed_bytes: 2000,
    };
    assert!(matches!(
        decode_limited(&batch, &schema(), limits),
        Err(Error::TooLarge { .. })
    ));
    let mut bomb = golden.to_vec();
    let first_buffer = 48 + 8 + 224;
    bomb[first_buffer..first_buffer + 8].copy_from_slice(&(1i64 << 60).to_le_bytes());
    let bomb = parse(Bytes::from(bomb));
    assert!(matches!(
        decode(&bomb, &schema()),
        Err(Error::TooLarge { .. })
    ));
}

#[test]
fn uncompressed_columns_share_the_bytes_of_the_batch() {
    let rows = rows_of((0..1000).collect(), vec![Some("x"); 1000]);
    let bytes = encode_append(SCHEMA_ID, WRITER, 0, &rows, Compression::None).unwrap();
    let (start, end) = (
        bytes.as_ptr() as usize,
        bytes.as_ptr() as usize + bytes.len(),
    );
    let decoded = decode(&parse(bytes), &schema()).unwrap();
    for column in decoded.batch.columns() {
        for buffer in column.to_data().buffers() {
            assert!((start..end).contains(&(buffer.as_ptr() as usize)));
        }
    }
}

#[test]
fn bytes_at_any_alignment_are_read() {
    let golden = golden!("log_arrow_none_v0_append");
    for shift in 0..8 {
        let shifted = Bytes::from([&vec![0; shift], golden.as_ref()].concat()).slice(shift..);
        assert_eq!(
            decode(&parse(shifted), &schema()).unwrap().batch,
            three_rows()
        );
    }
}

#[test]
fn no_single_wrong_byte_of_a_golden_batch_makes_a_reader_panic() {
    for golden in [
        golden!("log_arrow_none_v0_append"),
        golden!("log_arrow_none_v0_append_projected_col1"),
        golden!("log_arrow_none_v0_changelog"),
        golden!("log_arrow_none_v1_stats_append"),
        golden!("log_arrow_none_v2_changelog"),
        golden!("log_arrow_zstd_v0_append_small"),
        golden!("log_arrow_zstd_v0_append"),
        golden!("log_arrow_lz4_v0_append"),
    ] {
        for at in 12..golden.len() {
            for change in [0x01, 0x04, 0x80, 0xff] {
                let mut bytes = golden.to_vec();
                bytes[at] ^= change;
                if let Ok(batch) = LogBatch::parse(&mut Bytes::from(bytes)) {
                    let _ = decode(&batch, &schema());
                    let _ = project(&batch, &schema(), &schema(), &[1]);
                }
            }
        }
    }
}

fn compressions() -> impl Strategy<Value = Compression> {
    prop_oneof![
        Just(Compression::None),
        Just(Compression::Lz4),
        Just(Compression::Zstd(1)),
        Just(Compression::Zstd(3))
    ]
}

proptest! {
    #[test]
    fn any_rows_come_back((schema, rows) in table(any_type(), 20), compression in compressions()) {
        let rows = record_batch(&schema, &rows);
        let bytes = encode_append(SCHEMA_ID, WRITER, 9, &rows, compression).unwrap();
        let batch = parse(bytes);
        batch.verify_crc().unwrap();
        prop_assert_eq!(decode(&batch, &schema.arrow_schema()).unwrap().batch, rows);
    }

    #[test]
    fn slices_of_rows_come_back(
        (schema, rows) in table(any_type(), 30), compression in compressions(),
        from in 0usize..30, count in 0usize..30,
    ) {
        let rows = record_batch(&schema, &rows);
        let from = from.min(rows.num_rows());
        let slice = rows.slice(from, count.min(rows.num_rows() - from));
        let batch = parse(encode_append(SCHEMA_ID, WRITER, 9, &slice, compression).unwrap());
        prop_assert_eq!(decode(&batch, &schema.arrow_schema()).unwrap().batch, slice);
    }

    #[test]
    fn projecting_bytes_is_projecting_rows(
        (schema, rows) in table(any_type(), 20), compression in compressions(), mask in 1u8..63,
    ) {
        let rows = record_batch(&schema, &rows);
        let chosen = |index: &usize| mask >> index & 1 == 1;
        let mut columns: Vec<usize> = (0..rows.num_columns()).filter(chosen).collect();
        if columns.is_empty() {
            columns.push(0);
        }
        let sent = encode_append(SCHEMA_ID, WRITER, 9, &rows, compression).unwrap();
        let mut bytes = BytesMut::from(sent.as_ref());
        set_stored(&mut bytes, LogOffset(5), 1).unwrap();
        let (stored, arrow) = (parse(bytes.freeze()), schema.arrow_schema());
        let projected = parse(project(&stored, &arrow, &arrow, &columns).unwrap());
        prop_assert_eq!(projected.header.base_offset, LogOffset(5));
        let narrow = Arc::new(arrow.project(&columns).unwrap());
        let decoded = decode(&projected, &narrow).unwrap().batch;
        prop_assert_eq!(decoded, rows.project(&columns).unwrap());
    }

    #[test]
    fn columns_that_a_batch_is_older_than_are_projected_as_nulls(
        (schema, rows) in table(any_type(), 20), compression in compressions(), mask in 1u8..63,
        known in 1usize..6,
    ) {
        let rows = record_batch(&schema, &rows);
        let target = schema.arrow_schema();
        let known = known.min(rows.num_columns());
        let nullable = |field: &FieldRef| field.as_ref().clone().with_nullable(true);
        let fields: Vec<Field> = target.fields().iter().map(nullable).collect();
        let target: SchemaRef = Arc::new(ArrowSchema::new(fields));
        let written = Arc::new(target.project(&(0..known).collect::<Vec<_>>()).unwrap());
        let old = rows.project(&(0..known).collect::<Vec<_>>()).unwrap();
        let chosen = |index: &usize| mask >> index & 1 == 1;
        let mut columns: Vec<usize> = (0..rows.num_columns()).filter(chosen).collect();
        if columns.is_empty() {
            columns.push(rows.num_columns() - 1);
        }
        let sent = parse(encode_append(SCHEMA_ID, WRITER, 9, &old, compression).unwrap());
        let projected = parse(project(&sent, &written, &target, &columns).unwrap());
        let narrow = Arc::new(target.project(&columns).unwrap());
        let found = decode(&projected, &narrow).unwrap().batch;
        prop_assert_eq!(found.num_rows(), rows.num_rows());
        for (place, column) in columns.iter().enumerate() {
            if *column < known {
                prop_assert_eq!(found.column(place), old.column(*column));
            } else {
                prop_assert_eq!(found.column(place).logical_null_count(), rows.num_rows());
            }
        }
    }

    #[test]
    fn damaged_bytes_never_panic(
        (schema, rows) in table(any_type(), 10), compression in compressions(),
        damage in proptest::collection::vec((12usize..4000, any::<u8>()), 1..6),
    ) {
        let rows = record_batch(&schema, &rows);
        let mut bytes = encode_append(SCHEMA_ID, WRITER, 9, &rows, compression).unwrap().to_vec();
        for (at, value) in damage {
            let at = 12 + at % (bytes.len() - 12);
            bytes[at] = value;
        }
        let arrow = schema.arrow_schema();
        if let Ok(batch) = LogBatch::parse(&mut Bytes::from(bytes)) {
            let limits = DecodeLimits { max_uncompressed_bytes: 1 << 20 };
            let _ = decode_limited(&batch, &arrow, limits);
            let _ = project(&batch, &arrow, &arrow, &[0]);
        }
    }
}
