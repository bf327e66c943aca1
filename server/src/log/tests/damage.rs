//! Damage amid what was acknowledged is refused; what was never synced is cut, and kept if in doubt.

use proptest::prelude::*;

use super::*;

const BATCH_BYTES: usize = 200;

fn segment_path(base: i64) -> PathBuf {
    dir().join(format!("{base:020}.log"))
}

/// A log in one segment without a checkpoint: `synced` batches, then others that were never synced.
/// All of them are on the disk, the process is dead.
fn killed(synced: usize, unsynced: usize) -> (MemoryDisk, Vec<(i64, Vec<u8>)>) {
    let disk = MemoryDisk::new();
    let log = Log::open(&dir(), BUCKET, options(&disk, one_segment())).unwrap();
    for _ in 0..synced {
        append(&log, plain(10, BATCH_BYTES - 48));
    }
    log.flush().unwrap();
    for _ in 0..unsynced {
        append(&log, plain(10, BATCH_BYTES - 48));
    }
    let all = read_all(&log).unwrap();
    disk.crash(Crash::ProcessOnly);
    (disk, all)
}

fn one_segment() -> LogConfig {
    LogConfig {
        segment_bytes: 1 << 20,
        checkpoint_bytes: 1 << 20,
        ..small()
    }
}

fn try_open(disk: &MemoryDisk) -> Result<Arc<Log>> {
    Log::open(&dir(), BUCKET, options(disk, one_segment()))
}

fn flip(disk: &MemoryDisk, path: &Path, bit: usize) {
    let mut bytes = disk.bytes(path);
    bytes[bit / 8] ^= 1 << (bit % 8);
    disk.set_bytes(path, &bytes);
}

fn corrupt(opened: Result<Arc<Log>>) -> (PathBuf, u64, String) {
    match opened {
        Err(Error::Corrupt {
            path,
            position,
            reason,
        }) => (path, position, reason.into_owned()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn after_a_kill_a_bit_flipped_amid_acknowledged_batches_is_refused_with_file_and_byte() {
    let (disk, _) = killed(5, 0);
    flip(&disk, &segment_path(0), (2 * BATCH_BYTES + 70) * 8);
    let before = disk.bytes(&segment_path(0));
    let (path, position, reason) = corrupt(try_open(&disk));
    assert_eq!((path, position), (segment_path(0), 2 * BATCH_BYTES as u64));
    for said in [
        "checksum does not hold",
        "acknowledged",
        "nothing was changed",
        "weir log repair",
    ] {
        assert!(reason.contains(said), "{reason}");
    }
    assert_eq!(disk.bytes(&segment_path(0)), before);
    assert!(disk.files("cut").is_empty());
    flip(&disk, &segment_path(0), (2 * BATCH_BYTES + 70) * 8);
    assert_eq!(offsets(&try_open(&disk).unwrap()), [0, 10, 20, 30, 40]);
}

#[test]
fn after_a_kill_an_acknowledged_end_or_segment_that_is_gone_is_refused() {
    let (disk, _) = killed(5, 0);
    let bytes = disk.bytes(&segment_path(0));
    for len in 0..bytes.len() {
        let copy = disk.copy();
        copy.set_bytes(&segment_path(0), &bytes[..len]);
        let (path, position, _) = corrupt(try_open(&copy));
        assert_eq!(path, segment_path(0));
        assert_eq!(position, (len / BATCH_BYTES * BATCH_BYTES) as u64, "{len}");
    }
    disk.remove(&segment_path(0)).unwrap();
    assert_eq!(corrupt(try_open(&disk)).0, segment_path(0));
}

#[test]
fn after_a_kill_a_missing_segment_is_named() {
    let disk = MemoryDisk::new();
    let config = LogConfig {
        checkpoint_bytes: 1 << 20,
        ..small()
    };
    let log = Log::open(&dir(), BUCKET, options(&disk, config)).unwrap();
    for _ in 0..25 {
        append(&log, plain(10, BATCH_BYTES - 48));
    }
    log.flush().unwrap();
    disk.crash(Crash::ProcessOnly);
    for kind in ["index", "writers"] {
        for path in disk.files(kind) {
            disk.remove(&path).unwrap();
        }
    }
    disk.remove(&segment_path(100)).unwrap();
    assert_eq!(corrupt(try_open(&disk)).0, segment_path(100));
    assert!(!disk.bytes(&segment_path(200)).is_empty());
}

/// Whether a bit is one that no checksum covers and that moves no record: a timestamp only shows
/// another time, and magic 1 only another layout.
fn is_uncovered(bit: usize) -> bool {
    (12..21).contains(&(bit / 8 % BATCH_BYTES))
}

#[test]
fn any_bit_of_acknowledged_batches_flipped_after_a_kill_is_refused() {
    let (disk, _) = killed(3, 0);
    for bit in (0..3 * BATCH_BYTES * 8).filter(|bit| !is_uncovered(*bit)) {
        let copy = disk.copy();
        flip(&copy, &segment_path(0), bit);
        let (path, position, _) = corrupt(try_open(&copy));
        let batch = bit / 8 / BATCH_BYTES * BATCH_BYTES;
        assert_eq!((path, position), (segment_path(0), batch as u64), "{bit}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..Default::default() })]

    /// With segments, checkpoints, indexes and snapshots: refused at the opening or at the reading, or
    /// all records are there.
    #[test]
    fn one_bit_flipped_anywhere_after_a_kill_is_told_or_harmless(
        sizes in proptest::collection::vec(1_usize..600, 1..30),
        flush_every in 1_usize..5,
        file in any::<prop::sample::Index>(),
        bit in any::<prop::sample::Index>(),
    ) {
        let disk = MemoryDisk::new();
        let log = open(&disk);
        for (n, size) in sizes.iter().enumerate() {
            append(&log, plain(3, *size));
            if n % flush_every == 0 {
                log.flush().unwrap();
            }
        }
        log.flush().unwrap();
        let all = read_all(&log).unwrap();
        disk.crash(Crash::ProcessOnly);
        let names = disk.list(&dir()).unwrap();
        let path = dir().join(file.get(&names));
        let bits = disk.bytes(&path).len() * 8;
        if bits > 0 {
            flip(&disk, &path, bit.index(bits));
        }
        match Log::open(&dir(), BUCKET, options(&disk, small())) {
            Err(Error::Corrupt { .. } | Error::NewerFormat { .. } | Error::WrongBucket { .. }) => {}
            Err(other) => panic!("{other}"),
            Ok(log) => match read_all(&log) {
                Err(error) => prop_assert!(matches!(error, Error::Corrupt { .. }), "{error}"),
                Ok(found) => {
                    let places = |all: &[(i64, Vec<u8>)]| -> Vec<(i64, Vec<u8>)> {
                        // Without magic and time, which nothing covers.
                        let covered = |bytes: &[u8]| [&bytes[..12], &bytes[21..]].concat();
                        all.iter().map(|(base, bytes)| (*base, covered(bytes))).collect()
                    };
                    prop_assert_eq!(places(&found), places(&all));
                }
            },
        }
    }
}

#[test]
fn a_middle_page_lost_by_a_power_cut_is_cut_off_and_what_stands_behind_it_is_kept() {
    let (disk, all) = killed(2, 3);
    let mut bytes = disk.bytes(&segment_path(0));
    bytes[2 * BATCH_BYTES..3 * BATCH_BYTES].fill(0);
    disk.set_bytes(&segment_path(0), &bytes);
    let log = try_open(&disk).unwrap();
    assert_eq!(read_all(&log).unwrap(), all[..2]);
    let report = log.recovery_report();
    assert_eq!(report.truncated_bytes, 3 * BATCH_BYTES as u64);
    assert_eq!((report.set_aside_files, report.set_aside_bytes), (1, 600));
    let cut = dir().join("00000000000000000000-400.cut");
    assert_eq!(disk.files("cut"), std::slice::from_ref(&cut));
    assert_eq!(disk.bytes(&cut), bytes[2 * BATCH_BYTES..]);
    assert_eq!(append(&log, plain(1, 9)).base_offset, LogOffset(20));
    log.flush().unwrap();
    disk.crash(Crash::ForgetAll);
    assert_eq!(offsets(&try_open(&disk).unwrap()), [0, 10, 20]);
    assert_eq!(disk.bytes(&cut), bytes[2 * BATCH_BYTES..], "durable");
}

#[test]
fn a_torn_tail_with_nothing_whole_in_it_is_cut_off_and_not_kept() {
    for torn_bytes in 1..BATCH_BYTES {
        let (disk, all) = killed(2, 1);
        let bytes = disk.bytes(&segment_path(0));
        let mut torn = bytes[..2 * BATCH_BYTES + torn_bytes].to_vec();
        // As file systems do: the size was there before the bytes.
        torn.resize(4 * BATCH_BYTES, 0);
        disk.set_bytes(&segment_path(0), &torn);
        let log = try_open(&disk).unwrap();
        assert_eq!(read_all(&log).unwrap(), all[..2], "{torn_bytes}");
        assert_eq!(log.recovery_report().set_aside_files, 0);
        assert!(disk.files("cut").is_empty());
    }
}

#[test]
fn what_was_set_aside_is_never_written_over_and_bounded() {
    let (disk, _) = killed(1, 3);
    let whole = disk.bytes(&segment_path(0));
    let most = small().max_cut_files;
    let damage = |n: u8| {
        let mut bytes = whole.clone();
        bytes[BATCH_BYTES + 60] ^= n;
        disk.set_bytes(&segment_path(0), &bytes);
        bytes.split_off(BATCH_BYTES)
    };
    let mut kept = Vec::new();
    for n in 1..=u8::try_from(most).unwrap() {
        kept.push(damage(n));
        try_open(&disk).unwrap();
    }
    let mut found: Vec<Vec<u8>> = disk
        .files("cut")
        .iter()
        .map(|path| disk.bytes(path))
        .collect();
    found.sort();
    kept.sort();
    assert_eq!(found, kept);
    damage(100);
    let before = disk.bytes(&segment_path(0));
    let refused = try_open(&disk);
    assert!(
        matches!(refused, Err(Error::TooMuchAside { files, .. }) if files == most + 1),
        "{refused:?}"
    );
    assert_eq!(disk.bytes(&segment_path(0)), before);
    disk.remove(&disk.files("cut")[0]).unwrap();
    assert_eq!(offsets(&try_open(&disk).unwrap()), [0]);
}

#[test]
fn a_full_disk_keeps_a_log_closed_rather_than_cutting_what_cannot_be_set_aside() {
    let (disk, all) = killed(1, 3);
    flip(&disk, &segment_path(0), (BATCH_BYTES + 60) * 8);
    let before = disk.bytes(&segment_path(0));
    disk.run_full_after(100);
    let refused = try_open(&disk);
    assert!(
        matches!(refused, Err(Error::DiskFull { .. })),
        "{refused:?}"
    );
    disk.make_room();
    assert_eq!(disk.bytes(&segment_path(0)), before);
    let log = try_open(&disk).unwrap();
    assert_eq!(read_all(&log).unwrap(), all[..1]);
    assert_eq!(log.recovery_report().set_aside_files, 1);
}

#[test]
fn without_a_record_of_the_last_sync_later_segments_are_set_aside_whole() {
    let disk = MemoryDisk::new();
    let config = LogConfig {
        checkpoint_bytes: 1 << 20,
        ..small()
    };
    let log = Log::open(&dir(), BUCKET, options(&disk, config.clone())).unwrap();
    for _ in 0..25 {
        append(&log, plain(10, BATCH_BYTES - 48));
    }
    disk.crash(Crash::ProcessOnly);
    flip(&disk, &segment_path(100), 60 * 8);
    let (second, third) = (
        disk.bytes(&segment_path(100)),
        disk.bytes(&segment_path(200)),
    );
    let log = Log::open(&dir(), BUCKET, options(&disk, config)).unwrap();
    assert_eq!(log.log_end(), LogOffset(100));
    let report = log.recovery_report();
    assert_eq!((report.removed_segments, report.set_aside_files), (1, 2));
    let kept: Vec<Vec<u8>> = disk
        .files("cut")
        .iter()
        .map(|path| disk.bytes(path))
        .collect();
    assert_eq!(kept, [second, third]);
    assert!(!disk.exists(&segment_path(200)).unwrap());
}

#[test]
fn a_record_of_the_last_sync_that_is_lost_or_damaged_says_nothing() {
    let (disk, all) = killed(3, 1);
    let path = dir().join("synced");
    for bytes in [None, Some(&b""[..]), Some(&b"WEIRSYN\0nonsense"[..])] {
        let copy = disk.copy();
        match bytes {
            None => copy.remove(&path).unwrap(),
            Some(bytes) => copy.set_bytes(&path, bytes),
        }
        assert_eq!(read_all(&try_open(&copy).unwrap()).unwrap(), all);
        assert_eq!(copy.bytes(&path).len(), 40, "it is written again");
    }
}

#[test]
fn a_power_cut_makes_the_record_of_the_last_sync_stale_and_never_wrong() {
    let disk = MemoryDisk::new();
    let log = try_open(&disk).unwrap();
    append(&log, plain(10, 100));
    log.flush().unwrap();
    append(&log, plain(10, 100));
    log.close().unwrap();
    let log = try_open(&disk).unwrap();
    append(&log, plain(10, 100));
    log.flush().unwrap();
    disk.crash(Crash::ForgetAll);
    assert_eq!(offsets(&try_open(&disk).unwrap()), [0, 10, 20]);
}

#[test]
fn a_log_that_went_on_beyond_a_gap_says_at_no_later_kill_that_it_was_cut() {
    for kept in [0, 1] {
        // A power cut took the tail; with it, in one case, all of the only segment.
        let (disk, _) = killed(0, 3);
        let bytes = disk.bytes(&segment_path(0));
        disk.set_bytes(&segment_path(0), &bytes[..kept * BATCH_BYTES]);
        let log = open(&disk);
        log.continue_at(LogOffset(30)).unwrap().unwrap();
        for round in 0..3 {
            disk.crash(Crash::ProcessOnly);
            let log = open(&disk);
            let report = log.recovery_report();
            assert_eq!(
                (report.truncated_bytes, report.removed_segments),
                (0, 0),
                "{kept} kept, round {round}"
            );
            append(&log, plain(10, 100));
            log.flush().unwrap();
            assert_eq!(log.log_end(), LogOffset(40 + 10 * round));
        }
    }
}

#[test]
fn a_start_that_a_flipped_bit_moved_removes_nothing() {
    let disk = MemoryDisk::new();
    let log = open(&disk);
    for _ in 0..40 {
        append(&log, plain(10, BATCH_BYTES - 48));
    }
    log.flush().unwrap();
    log.delete_segments_below(LogOffset(100)).unwrap();
    log.close().unwrap();
    let path = dir().join("log.meta");
    let text = String::from_utf8(disk.bytes(&path)).unwrap();
    let moved = text.replace("\"log_start\":100", "\"log_start\":300");
    assert_ne!(text, moved);
    disk.set_bytes(&path, moved.as_bytes());
    assert_eq!(corrupt(try_open(&disk)).0, path);
    assert_eq!(disk.files("log").len(), 3);
}
