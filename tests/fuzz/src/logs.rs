//! The files of a log: any bytes in the place of any of them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use weir_protocol::ids::{BucketId, LogOffset, SchemaId, TableBucket, TableId, WriterId};
use weir_protocol::record::arrow::{Compression, encode_append};
use weir_protocol::schema::Schema;
use weir_server::log::{Batches, Disk, Log, LogConfig, LogOptions};
use weir_tests::table;

use crate::disk::MemoryDisk;
use crate::target::Target;

const BUCKET: TableBucket = TableBucket {
    table: TableId(1),
    partition: None,
    bucket: BucketId(0),
};

/// A small log of some segments, after a clean end and after none.
static LOGS: LazyLock<[BTreeMap<PathBuf, Vec<u8>>; 2]> =
    LazyLock::new(|| [made(true), made(false)]);

pub(crate) fn targets() -> Vec<Target> {
    vec![
        Target {
            name: "log_file",
            run: log_file,
            seeds: || choices(<[u8]>::to_vec),
        },
        Target {
            name: "log_flip",
            run: log_flip,
            seeds: || choices(|_| vec![0, 40, 1, 0, 90, 128]),
        },
        Target {
            name: "appended",
            run: appended,
            seeds: || vec![batch(0), [batch(0), batch(1)].concat()],
        },
    ]
}

fn config() -> LogConfig {
    LogConfig {
        segment_bytes: 2 << 10,
        index_interval_bytes: 256,
        checkpoint_bytes: 3 << 10,
        max_batch_bytes: 64 << 10,
        ..LogConfig::default()
    }
}

fn options(disk: &MemoryDisk) -> LogOptions {
    LogOptions {
        disk: Arc::new(disk.clone()),
        config: config(),
        flusher: None,
    }
}

fn folder() -> &'static Path {
    Path::new("/log")
}

fn batch(sequence: i32) -> Vec<u8> {
    let schema = Schema::new(
        table::every_type().into_iter().take(3).collect(),
        Vec::new(),
    );
    let schema = schema.expect("three columns are a schema");
    let first = i64::from(sequence) * 5;
    let rows = table::rows(&schema, first..first + 5);
    let batch = encode_append(SchemaId(1), WriterId(9), sequence, &rows, Compression::None);
    batch.expect("rows can be encoded").to_vec()
}

fn made(is_clean: bool) -> BTreeMap<PathBuf, Vec<u8>> {
    let disk = MemoryDisk::default();
    disk.create_dir(Path::new("/"))
        .expect("a disk in memory takes folders");
    let log = Log::open(folder(), BUCKET, options(&disk)).expect("an empty log opens");
    for sequence in 0..24 {
        let batches = Batches::check(BUCKET, Bytes::from(batch(sequence)), 64 << 10);
        let batches = batches.expect("the batch is right");
        log.append(&batches, 1_000 + i64::from(sequence))
            .expect("there is room");
        if sequence % 5 == 4 {
            log.flush().expect("a disk in memory syncs");
        }
    }
    if is_clean {
        log.close().expect("a disk in memory syncs");
    }
    disk.files()
}

/// The first byte chooses the log, the second the file.
fn chosen(data: &[u8]) -> Option<(&'static BTreeMap<PathBuf, Vec<u8>>, &'static Path, &[u8])> {
    let [log, file, rest @ ..] = data else {
        return None;
    };
    let files = &LOGS[usize::from(*log) % LOGS.len()];
    let (path, _) = files.iter().nth(usize::from(*file) % files.len())?;
    Some((files, path, rest))
}

fn choices(content: impl Fn(&[u8]) -> Vec<u8>) -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for (log, files) in (0..).zip(LOGS.iter()) {
        for (file, bytes) in (0..).zip(files.values()) {
            seeds.push([vec![log, file], content(bytes)].concat());
        }
    }
    seeds
}

/// Other bytes in the place of one file.
fn log_file(data: &[u8]) {
    if let Some((files, path, bytes)) = chosen(data) {
        let mut files = files.clone();
        files.insert(path.to_owned(), bytes.to_vec());
        open(&files);
    }
}

/// Some bits of one file flipped: 3 bytes each, a position and a mask.
fn log_flip(data: &[u8]) {
    if let Some((files, path, flips)) = chosen(data) {
        let mut files = files.clone();
        let content = files.get_mut(path).expect("the file was chosen of them");
        for flip in flips.chunks_exact(3) {
            let position = usize::from(flip[0]) << 8 | usize::from(flip[1]);
            if let Some(byte) = content
                .len()
                .checked_sub(1)
                .map(|last| position % (last + 1))
            {
                content[byte] ^= flip[2];
            }
        }
        open(&files);
    }
}

/// A log that opens can be read to its end and appended to; what it serves stands still.
fn open(files: &BTreeMap<PathBuf, Vec<u8>>) {
    let disk = MemoryDisk::with(files);
    let Ok(log) = Log::open(folder(), BUCKET, options(&disk)) else {
        return;
    };
    assert!(log.log_start() <= log.log_end());
    let mut offset = log.log_start();
    while offset < log.log_end() {
        let Ok(read) = log.read(offset, 4 << 10, log.log_end()) else {
            return;
        };
        let batches = weir_protocol::record::batches(read.batches.clone());
        let Some(Ok(last)) = batches.last() else {
            return;
        };
        assert!(
            last.next_offset() > offset,
            "reading at {offset} goes nowhere"
        );
        assert_eq!(last.next_offset(), read.next_offset);
        offset = read.next_offset;
    }
    let _time = log.offset_for_time(1_010);
    let end: LogOffset = log.log_end();
    let checked = Batches::check(BUCKET, Bytes::from(batch(500)), 64 << 10).expect("a right batch");
    if let Ok(appended) = log.append(&checked, 2_000) {
        assert!(appended.base_offset >= end, "an offset is used twice");
    }
}

/// Bytes of a produce request.
fn appended(data: &[u8]) {
    let Ok(batches) = Batches::check(BUCKET, Bytes::copy_from_slice(data), 64 << 10) else {
        return;
    };
    let disk = MemoryDisk::with(&BTreeMap::from([(PathBuf::from("/x"), Vec::new())]));
    let log = Log::open(folder(), BUCKET, options(&disk)).expect("an empty log opens");
    if let Ok(appended) = log.append(&batches, 1_000) {
        log.flush().expect("a disk in memory syncs");
        drop(log);
        let again =
            Log::open(folder(), BUCKET, options(&disk)).expect("what was taken is readable");
        assert_eq!(
            again.log_end(),
            appended.log_end,
            "what was taken is not there again"
        );
    }
}
