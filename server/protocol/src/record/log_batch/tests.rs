use bytes::{Bytes, BytesMut};
use proptest::prelude::*;

use super::*;

macro_rules! golden {
    ($name:literal) => {
        Bytes::from_static(include_bytes!(concat!(
            "../../../tests/golden/",
            $name,
            ".bin"
        )))
    };
}

fn parse(bytes: Bytes) -> LogBatch {
    let mut rest = bytes;
    let batch = LogBatch::parse(&mut rest).unwrap();
    assert!(rest.is_empty());
    batch
}

#[test]
fn a_header_of_magic_0_is_read_field_by_field() {
    let batch = parse(golden!("log_arrow_none_v0_append_stored"));
    let expected = LogBatchHeader {
        base_offset: LogOffset(100),
        length: 300,
        magic: 0,
        layout: Layout::Plain,
        commit_timestamp_ms: 1_700_000_000_000,
        leader_epoch: None,
        crc: 0x5510_1649,
        schema_id: SchemaId(1),
        append_only: true,
        last_offset_delta: 2,
        writer_id: WriterId(7),
        batch_sequence: 0,
        record_count: 3,
        statistics_length: 0,
    };
    assert_eq!(batch.header, expected);
    assert_eq!(batch.next_offset(), LogOffset(103));
    assert_eq!(batch.header.last_offset(), LogOffset(102));
    batch.verify_crc().unwrap();
}

#[test]
fn every_layout_is_told_by_its_own_checksum() {
    let cases = [
        (
            golden!("log_arrow_none_v1_stats_append"),
            Layout::Statistics,
            None,
            71,
            5,
        ),
        (
            golden!("log_arrow_none_v1_changelog_FLUSS091_layout"),
            Layout::LeaderEpoch,
            Some(-1),
            0,
            3,
        ),
        (
            golden!("log_arrow_none_v2_changelog"),
            Layout::LeaderEpochAndStatistics,
            Some(-1),
            0,
            3,
        ),
        (
            golden!("log_arrow_none_v0_changelog"),
            Layout::Plain,
            None,
            0,
            3,
        ),
    ];
    for (bytes, layout, leader_epoch, statistics, sequence) in cases {
        let batch = parse(bytes);
        let header = &batch.header;
        assert_eq!((header.layout, header.leader_epoch), (layout, leader_epoch));
        assert_eq!(
            (
                header.statistics_length,
                header.batch_sequence,
                header.record_count
            ),
            (statistics, sequence, 3)
        );
        batch.verify_crc().unwrap();
    }
}

#[test]
fn every_golden_batch_but_the_projected_one_has_a_good_checksum() {
    for bytes in [
        golden!("log_arrow_lz4_v0_append"),
        golden!("log_arrow_zstd_v0_append"),
        golden!("log_arrow_zstd_v0_append_small"),
        golden!("log_arrow_none_v0_append"),
        golden!("log_arrow_none_v0_empty"),
        golden!("log_indexed_v0_append"),
        golden!("log_compacted_v0_append"),
    ] {
        parse(bytes).verify_crc().unwrap();
    }
    let projected = parse(golden!("log_arrow_none_v0_append_projected_col1"));
    assert!(matches!(
        projected.verify_crc(),
        Err(Error::Checksum { .. })
    ));
}

#[test]
fn storing_sets_offset_and_time_and_keeps_the_checksum() {
    let mut sent = BytesMut::from(golden!("log_arrow_none_v0_append").as_ref());
    set_stored(&mut sent, LogOffset(100), 1_700_000_000_000).unwrap();
    assert_eq!(sent.freeze(), golden!("log_arrow_none_v0_append_stored"));
    assert!(set_stored(&mut [0; 47], LogOffset(0), 0).is_err());
}

#[test]
fn an_empty_batch_still_takes_one_offset() {
    let golden = golden!("log_arrow_none_v0_empty");
    let batch = parse(golden.clone());
    assert_eq!(
        (batch.record_count(), batch.next_offset()),
        (0, LogOffset(1))
    );
    assert!(!batch.header.append_only);
    let id = BatchIdentity {
        schema_id: SchemaId(1),
        writer_id: WriterId(7),
        batch_sequence: 4,
    };
    assert_eq!(encode_empty(id).unwrap(), golden);
    assert!(
        encode_empty(BatchIdentity {
            schema_id: SchemaId(40_000),
            ..id
        })
        .is_err()
    );
}

#[test]
fn batches_follow_each_other_and_a_cut_one_is_an_error() {
    let one = golden!("log_arrow_none_v0_append");
    let two = golden!("log_arrow_none_v0_empty");
    let both = [one.as_ref(), two.as_ref()].concat();
    let read: Vec<LogBatch> = batches(both.clone()).map(Result::unwrap).collect();
    assert_eq!(
        (read[0].bytes.clone(), read[1].bytes.clone()),
        (one.clone(), two)
    );
    for end in 1..both.len() {
        let results: Vec<_> = batches(both[..end].to_vec()).collect();
        let failed = results.iter().filter(|result| result.is_err()).count();
        assert_eq!(failed, usize::from(end != one.len()), "cut at {end}");
        assert!(
            results
                .last()
                .is_some_and(|last| last.is_err() == (end != one.len()))
        );
    }
}

#[test]
fn a_flipped_bit_behind_the_checksum_is_seen() {
    let golden = golden!("log_arrow_none_v0_append");
    for at in 25..golden.len() {
        let mut broken = golden.to_vec();
        broken[at] ^= 0x10;
        let mut rest = Bytes::from(broken);
        let seen = LogBatch::parse(&mut rest).and_then(|batch| batch.verify_crc());
        assert!(seen.is_err(), "byte {at}");
    }
}

#[test]
fn headers_that_contradict_themselves_are_refused() {
    let golden = golden!("log_arrow_none_v0_append");
    let cases: [(usize, &[u8]); 7] = [
        (8, &(-1i32).to_le_bytes()),
        (8, &(35i32).to_le_bytes()),
        (12, &[3]),
        (28, &(-1i32).to_le_bytes()),
        (28, &(1i32).to_le_bytes()),
        (44, &(-1i32).to_le_bytes()),
        (0, &(i64::MAX).to_le_bytes()),
    ];
    for (at, value) in cases {
        let mut bytes = golden.to_vec();
        put_at(&mut bytes, at, value);
        let mut rest = Bytes::from(bytes);
        assert!(LogBatch::parse(&mut rest).is_err(), "field at {at}");
        assert_eq!(rest.len(), golden.len(), "a refused batch is not taken off");
    }
}

proptest! {
    #[test]
    fn no_bytes_make_the_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        for batch in batches(bytes).flatten() {
            let _ = (batch.verify_crc(), batch.records(), batch.next_offset());
        }
    }

    #[test]
    fn a_damaged_batch_is_an_error_or_a_batch_of_its_length(
        at in 0usize..387, value in any::<u8>(),
    ) {
        let mut bytes = golden!("log_arrow_none_v1_stats_append").to_vec();
        bytes[at] = value;
        for batch in batches(bytes).flatten() {
            prop_assert!(batch.records().len() <= 387);
        }
    }
}
