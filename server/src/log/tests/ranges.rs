//! Retention, truncation, and going on at the lake's end.

use super::*;

fn filled(disk: &MemoryDisk, batches: i64) -> Arc<Log> {
    let log = open(disk);
    for n in 0..batches {
        log.append(&checked(plain(10, 152)), 1_000 + n).unwrap();
    }
    log.flush().unwrap();
    log
}

fn reopen(disk: &MemoryDisk, log: Arc<Log>) -> Arc<Log> {
    drop(log);
    disk.crash(Crash::ForgetAll);
    open(disk)
}

#[test]
fn retention_removes_whole_segments_below_an_offset() {
    let disk = MemoryDisk::new();
    let log = filled(&disk, 40);
    let bases: Vec<i64> = log
        .segments()
        .iter()
        .map(|found| found.base_offset.0)
        .collect();
    assert_eq!(bases, [0, 100, 200, 300]);
    assert_eq!(
        log.delete_segments_below(LogOffset(99)).unwrap(),
        LogOffset(0)
    );
    assert_eq!(
        log.delete_segments_below(LogOffset(250)).unwrap(),
        LogOffset(200)
    );
    assert!(matches!(
        log.read(LogOffset(150), 1, log.log_end()),
        Err(Error::OutOfRange { .. })
    ));
    assert_eq!(log.size_bytes(), 20 * 200);
    let log = reopen(&disk, log);
    assert_eq!(
        (log.log_start(), log.log_end()),
        (LogOffset(200), LogOffset(400))
    );
    assert_eq!(disk.files("log").len(), 2);
    assert_eq!(
        log.delete_segments_below(LogOffset(400)).unwrap(),
        LogOffset(400)
    );
    assert_eq!(
        log.size_bytes(),
        0,
        "an idle log gives up its last segment too"
    );
    assert_eq!(append(&log, plain(5, 5)).base_offset, LogOffset(400));
    log.flush().unwrap();
    let log = reopen(&disk, log);
    assert_eq!(
        (log.log_start(), log.log_end()),
        (LogOffset(400), LogOffset(405))
    );
}

#[test]
fn retention_never_takes_what_is_not_durable_and_keeps_the_writers() {
    let disk = MemoryDisk::new();
    let log = open(&disk);
    append(&log, batch(9, 0, 10, &[1; 100]));
    assert_eq!(
        log.delete_segments_below(LogOffset(10)).unwrap(),
        LogOffset(0)
    );
    log.flush().unwrap();
    assert_eq!(
        log.delete_segments_below(LogOffset(10)).unwrap(),
        LogOffset(10)
    );
    let log = reopen(&disk, log);
    assert!(append(&log, batch(9, 0, 10, &[1; 100])).duplicate);
    assert_eq!(
        append(&log, batch(9, 1, 10, &[1; 100])).base_offset,
        LogOffset(10)
    );
}

#[test]
fn a_retention_cut_short_is_completed_at_the_next_opening() {
    let disk = MemoryDisk::new();
    let log = filled(&disk, 40);
    let before = disk.copy();
    log.delete_segments_below(LogOffset(200)).unwrap();
    // The start moved, the files are still there.
    let meta = dir().join("log.meta");
    before.set_bytes(&meta, &disk.bytes(&meta));
    let log = open(&before);
    assert_eq!(log.log_start(), LogOffset(200));
    assert_eq!(offsets(&log).first(), Some(&200));
    assert_eq!(before.files("log").len(), 2);
}

#[test]
fn the_newest_batches_that_fit_begin_where_they_do() {
    // Batches of 200 bytes and 10 records, ten in a segment.
    let disk = MemoryDisk::new();
    let log = filled(&disk, 40);
    let newest = |from: i64, upto: i64, max_bytes: u64| {
        let (from, upto) = (LogOffset(from), LogOffset(upto));
        log.newest_within(from, upto, max_bytes).unwrap().0
    };
    assert_eq!(newest(0, 400, 200), 390);
    assert_eq!(newest(0, 400, 1), 390, "one at least");
    assert_eq!(newest(0, 400, 399), 390);
    assert_eq!(newest(0, 400, 2_000), 300);
    assert_eq!(newest(0, 400, 2_100), 300, "no part of a batch");
    assert_eq!(newest(0, 400, 2_400), 280);
    assert_eq!(newest(0, 400, 1 << 20), 0);
    assert_eq!(newest(395, 400, 1 << 20), 395);
    assert_eq!(newest(0, 0, 10), 0);
    for from in [0, 5, 100, 250, 399] {
        let bytes = log.bytes_from(LogOffset(from));
        let exact = u64::try_from((400 - from / 10 * 10) / 10 * 200).unwrap();
        assert!((exact..exact + 600).contains(&bytes), "{from}: {bytes}");
    }
}

#[test]
fn retention_by_time_keeps_young_segments() {
    let log = filled(&MemoryDisk::new(), 40);
    assert_eq!(log.retention_offset(0), LogOffset(0));
    assert_eq!(log.retention_offset(1_009), LogOffset(0));
    assert_eq!(log.retention_offset(1_010), LogOffset(100));
    assert_eq!(log.retention_offset(9_999), LogOffset(400));
}

#[test]
fn truncation_cuts_at_the_batch_and_forgets_its_writers() {
    for offset in [0, 5, 10, 95, 100, 105, 195, 200, 399] {
        let disk = MemoryDisk::new();
        let log = open(&disk);
        for n in 0..40 {
            append(&log, batch(9, n, 10, &[7; 152]));
        }
        log.flush().unwrap();
        let cut = offset / 10 * 10;
        assert_eq!(
            log.truncate_to(LogOffset(offset)).unwrap(),
            LogOffset(cut),
            "{offset}"
        );
        assert_eq!(
            (log.log_end(), log.flushed_end()),
            (LogOffset(cut), LogOffset(cut))
        );
        let log = reopen(&disk, log);
        assert_eq!(log.log_end(), LogOffset(cut));
        let sequence = i32::try_from(cut / 10).unwrap();
        let appended = append(&log, batch(9, sequence, 10, &[7; 152]));
        assert_eq!(
            (appended.base_offset, appended.duplicate),
            (LogOffset(cut), false)
        );
        log.flush().unwrap();
        let log = reopen(&disk, log);
        assert_eq!(
            offsets(&log),
            (0..=cut / 10).map(|n| n * 10).collect::<Vec<_>>()
        );
    }
}

#[test]
fn a_log_below_its_lake_end_goes_on_there_and_keeps_what_it_has() {
    let disk = MemoryDisk::new();
    let log = filled(&disk, 12);
    assert_eq!(log.continue_at(LogOffset(120)).unwrap(), None);
    let gap = Gap {
        from: LogOffset(120),
        to: LogOffset(500),
    };
    assert_eq!(log.continue_at(LogOffset(500)).unwrap(), Some(gap));
    assert_eq!(
        (log.log_start(), log.log_end()),
        (LogOffset(0), LogOffset(500))
    );
    assert_eq!(log.flushed_end(), LogOffset(500));
    let log = reopen(&disk, log);
    assert_eq!(
        log.log_end(),
        LogOffset(500),
        "the gap is remembered without any append"
    );
    assert_eq!(append(&log, plain(10, 20)).base_offset, LogOffset(500));
    log.flush().unwrap();
    let log = reopen(&disk, log);
    let mut expected: Vec<i64> = (0..12).map(|n| n * 10).collect();
    expected.push(500);
    assert_eq!(offsets(&log), expected);
    let inside = log.read(LogOffset(300), 10, log.log_end()).unwrap();
    assert_eq!(inside.next_offset, LogOffset(510));
    assert_eq!(
        log.delete_segments_below(LogOffset(500)).unwrap(),
        LogOffset(500)
    );
    let log = reopen(&disk, log);
    assert_eq!(offsets(&log), [500]);
}

#[test]
fn an_empty_log_begins_at_its_lake_end() {
    let disk = MemoryDisk::new();
    let log = open(&disk);
    log.continue_at(LogOffset(70)).unwrap();
    assert_eq!(
        (log.log_start(), log.log_end()),
        (LogOffset(70), LogOffset(70))
    );
    let log = reopen(&disk, log);
    assert_eq!(
        (log.log_start(), log.log_end()),
        (LogOffset(70), LogOffset(70))
    );
    assert_eq!(append(&log, plain(1, 1)).base_offset, LogOffset(70));
    log.flush().unwrap();
    assert_eq!(offsets(&reopen(&disk, log)), [70]);
}
