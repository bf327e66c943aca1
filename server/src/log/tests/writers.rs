//! Idempotent writers.

use super::*;

fn sequence(log: &Arc<Log>, writer: i64, sequence: i32) -> Result<Appended> {
    log.append(&checked(batch(writer, sequence, 2, b"body")), 1_000)
}

#[test]
fn fc_049_a_repeated_batch_is_answered_with_its_first_offsets() {
    let log = open(&MemoryDisk::new());
    let first: Vec<Appended> = (0..5).map(|n| sequence(&log, 9, n).unwrap()).collect();
    sequence(&log, 10, 0).unwrap();
    for (n, first) in (0..5).zip(&first) {
        let again = sequence(&log, 9, n).unwrap();
        assert!(again.duplicate && !first.duplicate);
        assert_eq!(
            (again.base_offset, again.last_offset),
            (first.base_offset, first.last_offset)
        );
        assert_eq!(again.log_end, LogOffset(12));
    }
    assert_eq!(offsets(&log).len(), 6);
}

#[test]
fn a_request_that_ends_in_a_duplicate_is_acknowledged_for_its_new_rows() {
    let log = open(&MemoryDisk::new());
    let first = batch(9, 0, 2, b"body");
    append(&log, first.clone());
    let second = batch(9, 1, 2, b"body");
    let appended = append(&log, [second.clone(), first.clone()].concat());
    assert!(!appended.duplicate);
    assert_eq!(
        (appended.base_offset, appended.last_offset),
        (LogOffset(2), LogOffset(3))
    );
    let both = append(&log, [second, first].concat());
    assert!(both.duplicate);
    assert_eq!(
        (both.base_offset, both.last_offset),
        (LogOffset(2), LogOffset(3))
    );
}

#[test]
fn only_the_last_five_are_remembered_and_gaps_are_refused() {
    let log = open(&MemoryDisk::new());
    for n in 0..6 {
        sequence(&log, 9, n).unwrap();
    }
    for (found, expected) in [(0, 6), (7, 6), (-1, 6), (i32::MAX, 6)] {
        match sequence(&log, 9, found).unwrap_err() {
            Error::OutOfOrderSequence {
                writer,
                found: got,
                expected: due,
                ..
            } => {
                assert_eq!((writer, got, due), (WriterId(9), found, expected));
            }
            other => panic!("{other}"),
        }
    }
    assert!(sequence(&log, 9, 1).unwrap().duplicate);
    assert!(matches!(
        sequence(&log, 11, 1),
        Err(Error::OutOfOrderSequence { expected: 0, .. })
    ));
    assert_eq!(log.log_end(), LogOffset(12));
}

#[test]
fn sequences_wrap_to_zero() {
    let mut entry = writer_state::WriterEntry::default();
    let stored = |sequence| writer_state::StoredBatch {
        sequence,
        base_offset: LogOffset(4),
        last_offset: LogOffset(4),
        timestamp_ms: 1,
    };
    entry.push(stored(i32::MAX));
    assert_eq!(entry.verdict(0), Ok(writer_state::Verdict::Append));
    entry.push(stored(0));
    assert!(matches!(
        entry.verdict(i32::MAX),
        Ok(writer_state::Verdict::Duplicate(_))
    ));
    assert_eq!(entry.verdict(1), Ok(writer_state::Verdict::Append));
}

#[test]
fn a_request_of_several_batches_is_taken_as_a_whole_or_not_at_all() {
    let log = open(&MemoryDisk::new());
    let of = |sequences: &[i32]| -> Vec<u8> {
        sequences
            .iter()
            .flat_map(|n| batch(9, *n, 2, b"body"))
            .collect()
    };
    append(&log, of(&[0, 1]));
    assert!(log.append(&checked(of(&[2, 4])), 1_000).is_err());
    assert_eq!(
        log.log_end(),
        LogOffset(4),
        "the good half is not there either"
    );
    let mixed = append(&log, of(&[1, 2, 3]));
    assert_eq!(
        (mixed.base_offset, mixed.last_offset),
        (LogOffset(2), LogOffset(7))
    );
    assert!(!mixed.duplicate);
    assert_eq!(offsets(&log), [0, 2, 4, 6]);
    assert!(append(&log, of(&[2, 3])).duplicate);
    let twice = append(&log, of(&[4, 4]));
    assert_eq!(
        (twice.base_offset, twice.last_offset),
        (LogOffset(8), LogOffset(9))
    );
}

#[test]
fn duplicates_are_known_after_a_restart_with_or_without_a_snapshot() {
    for damage in ["none", "snapshots", "indexes", "both"] {
        for crash in [Crash::ProcessOnly, Crash::ForgetAll] {
            let disk = MemoryDisk::new();
            let log = open(&disk);
            for n in 0..30 {
                sequence(&log, 9, n).unwrap();
                sequence(&log, 10 + i64::from(n), 0).unwrap();
                if n % 3 == 0 {
                    log.flush().unwrap();
                }
            }
            log.flush().unwrap();
            let end = log.log_end();
            disk.crash(crash);
            assert!(
                disk.files("writers").len() >= 2,
                "{:?}",
                disk.files("writers")
            );
            for extension in ["writers", "index"] {
                if damage == "both" || damage.starts_with(extension) {
                    for path in disk.files(extension) {
                        let mut bytes = disk.bytes(&path);
                        let middle = bytes.len() / 2;
                        bytes[middle] ^= 4;
                        disk.set_bytes(&path, &bytes);
                    }
                }
            }
            let log = open(&disk);
            assert_eq!(log.log_end(), end);
            assert_eq!(
                sequence(&log, 9, 27).unwrap().base_offset,
                LogOffset(27 * 4)
            );
            assert!(sequence(&log, 10, 0).unwrap().duplicate);
            assert!(sequence(&log, 9, 20).is_err());
            assert!(!sequence(&log, 9, 30).unwrap().duplicate);
        }
    }
}

#[test]
fn an_idle_writer_is_forgotten_and_a_full_map_forgets_the_longest_idle() {
    let disk = MemoryDisk::new();
    let log = open(&disk);
    sequence(&log, 9, 0).unwrap();
    let late = 1_000 + small().writer_expiry_ms + 1;
    let again = log.append(&checked(batch(9, 0, 2, b"body")), late).unwrap();
    assert!(
        !again.duplicate,
        "what it did before its expiry is another life"
    );
    for writer in 0..150 {
        let batches = checked(batch(1_000 + writer, 0, 1, b"body"));
        log.append(&batches, late + writer).unwrap();
    }
    let duplicate = |writer| sequence(&log, writer, 0).unwrap().duplicate;
    assert!(duplicate(1_149) && duplicate(1_100));
    assert!(
        !duplicate(1_010),
        "beyond the limit the longest idle is forgotten"
    );
}

#[test]
fn a_snapshot_reads_back_as_it_was() {
    let mut writers = WriterStates::new(1_000, 10);
    for n in 0..7 {
        let mut bytes = batch(n % 3, i32::try_from(n / 3).unwrap(), 2, b"x");
        stamp(&mut bytes, LogOffset(n * 2), 50 + n);
        writers.replay(&BatchHeader::parse(&bytes).unwrap());
    }
    let bytes = writers.encode(LogOffset(14), 56);
    let snapshot = writers.decode(&bytes).unwrap();
    assert_eq!((snapshot.offset, snapshot.newest_ms), (LogOffset(14), 56));
    assert_eq!(snapshot.writers, writers);
    for at in 0..bytes.len() {
        let mut bad = bytes.clone();
        bad[at] ^= 0x10;
        assert!(writers.decode(&bad).is_none(), "byte {at}");
        assert!(writers.decode(&bytes[..at]).is_none(), "cut at {at}");
    }
}
