//! What a log promises, on a disk that forgets, tears, fills up and fails.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use weir_protocol::ids::{BucketId, LogOffset, PartitionId, TableBucket, TableId, WriterId};
use weir_protocol::record::log_batch;

use super::batch::BatchHeader;
use super::disk::memory::{Crash, MemoryDisk};
use super::*;

mod between;
mod crashes;
mod damage;
mod model;
mod ranges;
mod repair;
mod writers;

pub(super) const BUCKET: TableBucket = TableBucket {
    table: TableId(7),
    partition: Some(PartitionId(3)),
    bucket: BucketId(0),
};

pub(super) fn dir() -> PathBuf {
    PathBuf::from("/data/log/7-3-0")
}

/// Small figures, so that a few batches roll segments and write checkpoints.
pub(super) fn small() -> LogConfig {
    LogConfig {
        segment_bytes: 2_000,
        index_interval_bytes: 300,
        checkpoint_bytes: 700,
        max_batch_bytes: 100_000,
        writer_expiry_ms: 1_000_000,
        max_writers: 100,
        max_cut_files: 8,
        max_cut_bytes: 1 << 20,
    }
}

pub(super) fn options(disk: &MemoryDisk, config: LogConfig) -> LogOptions {
    LogOptions {
        disk: Arc::new(disk.process()),
        config,
        flusher: None,
    }
}

pub(super) fn open(disk: &MemoryDisk) -> Arc<Log> {
    Log::open(&dir(), BUCKET, options(disk, small())).unwrap()
}

/// A batch of `records` records whose body has `body_bytes` bytes of `fill`.
pub(super) fn batch(writer: i64, sequence: i32, records: i32, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 48];
    bytes.extend_from_slice(body);
    let length = i32::try_from(bytes.len() - 12).unwrap();
    bytes[8..12].copy_from_slice(&length.to_le_bytes());
    bytes[25..27].copy_from_slice(&1_i16.to_le_bytes());
    bytes[27] = 1;
    bytes[28..32].copy_from_slice(&(records - 1).max(0).to_le_bytes());
    bytes[32..40].copy_from_slice(&writer.to_le_bytes());
    bytes[40..44].copy_from_slice(&sequence.to_le_bytes());
    bytes[44..48].copy_from_slice(&records.to_le_bytes());
    let crc = crc32c::crc32c(&bytes[25..]);
    bytes[21..25].copy_from_slice(&crc.to_le_bytes());
    bytes
}

pub(super) fn stamp(batch: &mut [u8], base_offset: LogOffset, timestamp_ms: i64) {
    log_batch::set_stored(batch, base_offset, timestamp_ms).unwrap();
}

pub(super) fn plain(records: i32, body_bytes: usize) -> Vec<u8> {
    batch(
        -1,
        -1,
        records,
        &vec![u8::try_from(records % 251).unwrap(); body_bytes],
    )
}

pub(super) fn checked(bytes: Vec<u8>) -> Batches {
    Batches::check(BUCKET, Bytes::from(bytes), small().max_batch_bytes).unwrap()
}

pub(super) fn append(log: &Arc<Log>, bytes: Vec<u8>) -> Appended {
    log.append(&checked(bytes), 1_000).unwrap()
}

/// All batches from the start, as (base offset, bytes).
pub(super) fn read_all(log: &Log) -> Result<Vec<(i64, Vec<u8>)>> {
    let mut found = Vec::new();
    let mut from = log.log_start();
    loop {
        let read = log.read(from, 1_000, log.log_end())?;
        if read.batches.is_empty() {
            return Ok(found);
        }
        let mut rest: &[u8] = &read.batches;
        while !rest.is_empty() {
            let header = BatchHeader::parse(rest).unwrap();
            let (batch, after) = rest.split_at(header.size_bytes);
            found.push((header.base_offset.0, batch.to_vec()));
            rest = after;
        }
        from = read.next_offset;
    }
}

pub(super) fn offsets(log: &Log) -> Vec<i64> {
    read_all(log)
        .unwrap()
        .into_iter()
        .map(|(offset, _)| offset)
        .collect()
}

const APPEND: &[u8] = include_bytes!("../../tests/golden/log_arrow_none_v0_append.bin");
const STORED: &[u8] = include_bytes!("../../tests/golden/log_arrow_none_v0_append_stored.bin");
const EMPTY: &[u8] = include_bytes!("../../tests/golden/log_arrow_none_v0_empty.bin");
const STATISTICS: &[u8] = include_bytes!("../../tests/golden/log_arrow_none_v1_stats_append.bin");
const MAGIC_2: &[u8] = include_bytes!("../../tests/golden/log_arrow_none_v2_changelog.bin");
const LAYOUT_091: &[u8] =
    include_bytes!("../../tests/golden/log_arrow_none_v1_changelog_FLUSS091_layout.bin");

#[test]
fn a_batch_is_stored_as_the_reference_stores_it() {
    let log = open(&MemoryDisk::new());
    append(&log, plain(100, 10));
    let batches = Batches::check(BUCKET, Bytes::from_static(APPEND), 1_000).unwrap();
    let appended = log.append(&batches, 1_700_000_000_000).unwrap();
    assert_eq!(
        (appended.base_offset, appended.last_offset),
        (LogOffset(100), LogOffset(102))
    );
    let read = log.read(LogOffset(101), 10, log.log_end()).unwrap();
    assert_eq!(read.batches, STORED);
    assert_eq!(read.next_offset, LogOffset(103));
}

#[test]
fn an_empty_batch_takes_one_offset() {
    let log = open(&MemoryDisk::new());
    let empty = Batches::check(BUCKET, Bytes::from_static(EMPTY), 1_000);
    // Its writer is not known and does not begin at 0.
    assert!(matches!(
        log.append(&empty.unwrap(), 5),
        Err(Error::OutOfOrderSequence { .. })
    ));
    let appended = append(&log, plain(0, 0));
    assert_eq!(appended.log_end, LogOffset(1));
    assert_eq!(append(&log, plain(2, 0)).base_offset, LogOffset(1));
}

#[test]
fn the_magics_that_are_stored_are_0_and_1_of_the_newest_release() {
    let check = |bytes: &'static [u8]| Batches::check(BUCKET, Bytes::from_static(bytes), 1_000);
    let fault = |bytes| match check(bytes) {
        Err(Error::BadBatch { fault, .. }) => fault,
        other => panic!("{other:?}"),
    };
    check(STATISTICS).unwrap();
    assert_eq!(fault(MAGIC_2), BatchFault::Magic(2));
    let fault = fault(LAYOUT_091);
    assert!(
        matches!(fault, BatchFault::Checksum | BatchFault::RecordCount { .. }),
        "{fault}"
    );
}

#[test]
fn headers_are_read_as_the_protocol_reads_them() {
    let made = batch(5, 6, 7, b"body");
    for bytes in [APPEND, STORED, EMPTY, STATISTICS, &made] {
        let ours = BatchHeader::parse(&bytes[..48]).unwrap();
        let theirs = log_batch::LogBatchHeader::parse(bytes).unwrap();
        assert_eq!(ours.base_offset, theirs.base_offset);
        assert_eq!(
            ours.size_bytes,
            usize::try_from(theirs.length).unwrap() + 12
        );
        assert_eq!(ours.timestamp_ms, theirs.commit_timestamp_ms);
        assert_eq!((ours.crc, ours.schema_id), (theirs.crc, theirs.schema_id));
        assert_eq!(
            ours.writer.map_or(-1, |writer| writer.0),
            theirs.writer_id.0
        );
        assert_eq!(ours.sequence, theirs.batch_sequence);
        assert_eq!(ours.record_count, theirs.record_count);
        assert_eq!(ours.next_offset(), Some(theirs.next_offset()));
        assert!(ours.crc_holds(bytes));
    }
}

#[test]
fn a_broken_batch_is_refused_with_its_place_and_nothing_is_appended() {
    let good = plain(2, 50);
    let refused = |bytes: Vec<u8>| match Batches::check(BUCKET, bytes.into(), 1_000) {
        Err(Error::BadBatch { index, fault, .. }) => (index, fault),
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(Vec::new()), (0, BatchFault::Empty));
    assert_eq!(refused(good[..47].to_vec()), (0, BatchFault::Truncated));
    assert_eq!(refused(good[..97].to_vec()), (0, BatchFault::Truncated));
    for at in 25..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1;
        refused([good.clone(), bad].concat());
    }
    let mut flipped = good.clone();
    flipped[60] ^= 1;
    assert_eq!(
        refused([good.clone(), flipped].concat()),
        (1, BatchFault::Checksum)
    );
    assert!(matches!(
        refused(plain(2, 2_000)),
        (0, BatchFault::Length(2_048))
    ));
    let mut short = good.clone();
    short[8..12].copy_from_slice(&(-1_i32).to_le_bytes());
    assert_eq!(refused(short), (0, BatchFault::Length(-1)));
    let mut counts = good;
    counts[44..48].copy_from_slice(&5_i32.to_le_bytes());
    let fault = BatchFault::RecordCount {
        records: 5,
        last_offset_delta: 1,
    };
    assert_eq!(refused(counts), (0, fault));
}

#[test]
fn a_client_appends_one_record_an_offset_or_none_at_all() {
    let check = |bytes: Vec<u8>| Batches::check(BUCKET, bytes.into(), 1_000);
    let counted = |records: i32, last_offset_delta: i32, attributes: u8| {
        let mut bytes = plain(1, 5);
        bytes[27] = attributes;
        bytes[28..32].copy_from_slice(&last_offset_delta.to_le_bytes());
        bytes[44..48].copy_from_slice(&records.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[25..]);
        bytes[21..25].copy_from_slice(&crc.to_le_bytes());
        match check(bytes) {
            Ok(_) => None,
            Err(Error::BadBatch { fault, .. }) => Some(fault),
            Err(other) => panic!("{other}"),
        }
    };
    let sparse = |records, last_offset_delta| {
        Some(BatchFault::RecordCount {
            records,
            last_offset_delta,
        })
    };
    assert_eq!(counted(3, 2, 1), None);
    assert_eq!(counted(0, 2, 1), None, "offsets without rows are lawful");
    assert_eq!(counted(0, 0, 0), None);
    assert_eq!(counted(2, 2, 1), sparse(2, 2));
    assert_eq!(counted(1, 6, 1), sparse(1, 6));
    assert_eq!(counted(3, 2, 0), Some(BatchFault::Changes));
    assert_eq!(counted(3, 2, 2), Some(BatchFault::Changes));
}

#[test]
fn batches_are_read_whole_from_the_one_that_contains_the_offset() {
    let log = open(&MemoryDisk::new());
    for _ in 0..40 {
        append(&log, plain(10, 152));
    }
    assert!(log.segments().len() >= 4, "{:?}", log.segments());
    assert_eq!(offsets(&log), (0..40).map(|n| n * 10).collect::<Vec<_>>());
    let end = log.log_end();
    for from in 0..400 {
        let read = log.read(LogOffset(from), 1, end).unwrap();
        assert_eq!(
            read.batches.len(),
            200,
            "one batch at least, and no more than fits"
        );
        assert_eq!(read.next_offset, LogOffset(from / 10 * 10 + 10));
    }
    assert_eq!(log.read(LogOffset(5), 600, end).unwrap().batches.len(), 600);
    assert!(log.read(end, 600, end).unwrap().batches.is_empty());
    let held_back = log.read(LogOffset(0), 10_000, LogOffset(25)).unwrap();
    assert_eq!(held_back.next_offset, LogOffset(20));
    assert!(
        log.read(LogOffset(20), 10_000, LogOffset(25))
            .unwrap()
            .batches
            .is_empty()
    );
    for outside in [-1, 401] {
        let read = log.read(LogOffset(outside), 1, end);
        assert!(matches!(read, Err(Error::OutOfRange { .. })), "{read:?}");
    }
}

#[test]
fn a_batch_larger_than_segment_and_chunk_is_read_and_recovered() {
    let disk = MemoryDisk::new();
    let config = LogConfig {
        max_batch_bytes: 1 << 20,
        ..small()
    };
    let log = Log::open(&dir(), BUCKET, options(&disk, config.clone())).unwrap();
    let large = batch(-1, -1, 3, &vec![9; 600_000]);
    for _ in 0..3 {
        let batches = Batches::check(BUCKET, large.clone().into(), 1 << 20).unwrap();
        log.append(&batches, 1).unwrap();
        append(&log, plain(1, 3));
    }
    drop(log);
    disk.crash(Crash::ProcessOnly);
    let log = Log::open(&dir(), BUCKET, options(&disk, config)).unwrap();
    assert_eq!(offsets(&log), [0, 3, 4, 7, 8, 11]);
    assert_eq!(
        log.read(LogOffset(9), 5, log.log_end())
            .unwrap()
            .batches
            .len(),
        600_048
    );
}

#[test]
fn commit_times_never_fall_and_find_their_offsets() {
    let disk = MemoryDisk::new();
    let log = open(&disk);
    for n in 0..50_i64 {
        // The clock falls far back for two readings of five.
        let now_ms = if n % 5 >= 3 { n } else { 1_000 + n * 10 };
        log.append(&checked(plain(1, 60)), now_ms).unwrap();
    }
    let times = |log: &Log| {
        let all = read_all(log).unwrap();
        all.iter()
            .map(|(_, bytes)| BatchHeader::parse(bytes).unwrap().timestamp_ms)
            .collect()
    };
    let expected: Vec<i64> = times(&log);
    assert!(expected.is_sorted());
    let check = |log: &Log| {
        for timestamp_ms in 990..1_500 {
            let wanted = expected.iter().position(|time| *time >= timestamp_ms);
            let wanted = wanted.map(|at| LogOffset(i64::try_from(at).unwrap()));
            assert_eq!(
                log.offset_for_time(timestamp_ms).unwrap(),
                wanted,
                "{timestamp_ms}"
            );
        }
    };
    check(&log);
    log.close().unwrap();
    let log = open(&disk);
    check(&log);
    assert_eq!(log.newest_ms(), Some(1_470));
    assert_eq!(
        log.append(&checked(plain(1, 0)), 5).unwrap().base_offset,
        LogOffset(50)
    );
    assert_eq!(times(&log).last(), Some(&1_470));
}

#[test]
fn a_folder_of_a_newer_format_or_of_another_bucket_is_refused() {
    let disk = MemoryDisk::new();
    append(&open(&disk), plain(1, 1));
    let other = TableBucket {
        bucket: BucketId(1),
        ..BUCKET
    };
    let refused = Log::open(&dir(), other, options(&disk, small())).unwrap_err();
    assert!(matches!(refused, Error::WrongBucket { .. }), "{refused}");
    disk.set_bytes(&dir().join("log.meta"), br#"{"version":2,"shape":"new"}"#);
    let refused = Log::open(&dir(), BUCKET, options(&disk, small())).unwrap_err();
    assert!(
        matches!(refused, Error::NewerFormat { found: 2, .. }),
        "{refused}"
    );
    disk.set_bytes(&dir().join("log.meta"), b"");
    let refused = Log::open(&dir(), BUCKET, options(&disk, small())).unwrap_err();
    assert!(matches!(refused, Error::Corrupt { .. }), "{refused}");
}

#[test]
fn the_real_file_system_keeps_a_log_too() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("tablet-0/log/7-3-0");
    let disk: Arc<dyn Disk> = Arc::new(FileSystem);
    let flusher = Flusher::start(FlushPolicy::Always, 2).unwrap();
    let options = LogOptions {
        disk: Arc::clone(&disk),
        config: small(),
        flusher: Some(flusher.handle()),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let log = Log::open(&dir, BUCKET, options.clone()).unwrap();
    for _ in 0..30 {
        let appended = append(&log, plain(10, 152));
        runtime
            .block_on(log.wait_flushed(appended.log_end))
            .unwrap();
    }
    assert_eq!(log.flushed_end(), LogOffset(300));
    log.close().unwrap();
    assert!(matches!(
        log.append(&checked(plain(1, 1)), 1),
        Err(Error::Closed { .. })
    ));
    drop(log);
    let log = Log::open(&dir, BUCKET, options.clone()).unwrap();
    assert_eq!(
        log.recovery_report(),
        RecoveryReport::default(),
        "a clean log reads nothing"
    );
    assert_eq!(offsets(&log), (0..30).map(|n| n * 10).collect::<Vec<_>>());
    append(&log, plain(1, 1));
    log.delete().unwrap();
    assert!(!dir.exists());
    let waiting = runtime.block_on(log.wait_flushed(LogOffset(1_000)));
    assert!(matches!(waiting, Err(Error::Closed { .. })), "{waiting:?}");
    let log = Log::open(&dir, BUCKET, options).unwrap();
    assert_eq!(log.log_end(), LogOffset(0));
}
