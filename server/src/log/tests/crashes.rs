//! Torn tails, flipped bits, full disks, failed syncs.

use super::*;

/// A log with durable batches, then ones that were never synced; all on the disk as it is.
fn half_synced() -> (MemoryDisk, Vec<(i64, Vec<u8>)>, LogOffset) {
    let disk = MemoryDisk::new();
    let config = LogConfig {
        segment_bytes: 1 << 20,
        checkpoint_bytes: 30_000,
        ..small()
    };
    let log = Log::open(&dir(), BUCKET, options(&disk, config)).unwrap();
    for _ in 0..20 {
        append(&log, plain(3, 2_000));
    }
    log.flush().unwrap();
    let durable = log.log_end();
    for _ in 0..33 {
        append(&log, plain(3, 2_000));
    }
    let all = read_all(&log).unwrap();
    (disk, all, durable)
}

/// What a damaged copy recovers to: a prefix of what was written, or a refusal.
fn assert_prefix(
    disk: &MemoryDisk,
    all: &[(i64, Vec<u8>)],
    durable: Option<LogOffset>,
    what: &str,
) {
    match Log::open(&dir(), BUCKET, options(disk, small())) {
        Ok(log) => {
            if let Some(durable) = durable {
                assert!(
                    log.log_end() >= durable,
                    "{what}: ends at {}",
                    log.log_end()
                );
            }
            match read_all(&log) {
                Ok(found) => assert_eq!(found, all[..found.len()], "{what}"),
                Err(error) => assert!(matches!(error, Error::Corrupt { .. }), "{what}: {error}"),
            }
        }
        Err(error) => {
            assert!(matches!(error, Error::Corrupt { .. }), "{what}: {error}");
            assert!(durable.is_none(), "{what}: {error}");
        }
    }
}

#[test]
fn a_tail_torn_at_any_byte_recovers_to_a_prefix_with_all_that_was_synced() {
    let (disk, all, durable) = half_synced();
    let path = dir().join("00000000000000000000.log");
    let bytes = disk.bytes(&path);
    let synced_bytes = 20 * 2_048;
    assert!(bytes.len() - synced_bytes > 64 << 10);
    for len in (synced_bytes..bytes.len()).rev().step_by(step(7)) {
        let copy = disk.copy();
        copy.set_bytes(&path, &bytes[..len]);
        assert_prefix(&copy, &all, Some(durable), &format!("cut at {len}"));
    }
    for len in (synced_bytes - 500..synced_bytes).rev() {
        let copy = disk.copy();
        copy.set_bytes(&path, &bytes[..len]);
        assert_prefix(&copy, &all, None, &format!("cut at {len}"));
    }
}

/// Every byte when `WEIR_TEST_EXHAUSTIVE` is set, else a step that is coprime to all sizes here.
fn step(default: usize) -> usize {
    if std::env::var_os("WEIR_TEST_EXHAUSTIVE").is_some() {
        1
    } else {
        default
    }
}

#[test]
fn a_byte_flipped_anywhere_is_never_served() {
    let (disk, all, durable) = half_synced();
    let path = dir().join("00000000000000000000.log");
    let bytes = disk.bytes(&path);
    for at in (0..bytes.len()).rev().step_by(step(13)) {
        let copy = disk.copy();
        let mut bad = bytes.clone();
        // Magic and commit timestamp are the two fields that neither the checksum nor the place covers.
        if (12..21).contains(&(at % 2_048)) {
            continue;
        }
        bad[at] ^= 1 << (at % 8);
        copy.set_bytes(&path, &bad);
        let durable = (at >= 20 * 2_048).then_some(durable);
        assert_prefix(&copy, &all, durable, &format!("byte {at}"));
    }
}

#[test]
fn any_damage_to_index_snapshot_or_meta_loses_no_record() {
    let (disk, all, durable) = half_synced();
    for extension in ["index", "writers"] {
        for path in disk.files(extension) {
            let bytes = disk.bytes(&path);
            for at in 0..bytes.len() {
                for bad in [bytes[..at].to_vec(), {
                    let mut flipped = bytes.clone();
                    flipped[at] ^= 0x40;
                    flipped
                }] {
                    let copy = disk.copy();
                    copy.set_bytes(&path, &bad);
                    assert_prefix(&copy, &all, Some(durable), &format!("{extension} {at}"));
                }
            }
        }
    }
}

#[test]
fn durable_records_that_are_gone_make_the_log_refuse_to_open() {
    let disk = MemoryDisk::new();
    let log = open(&disk);
    for _ in 0..40 {
        append(&log, plain(10, 152));
    }
    log.close().unwrap();
    for what in ["cut", "lost", "empty"] {
        for base in [0, 100, 300] {
            let copy = disk.copy();
            let path = dir().join(format!("{base:020}.log"));
            match what {
                "cut" => copy.set_bytes(&path, &copy.bytes(&path)[..150]),
                "lost" => copy.remove(&path).unwrap(),
                _ => copy.set_bytes(&path, b""),
            }
            let opened = Log::open(&dir(), BUCKET, options(&copy, small()));
            assert!(
                matches!(opened, Err(Error::Corrupt { .. })),
                "{what} {base}: {opened:?}"
            );
        }
    }
}

#[test]
fn a_full_disk_refuses_appends_and_leaves_the_log_as_it_was() {
    for free_bytes in (0..450).step_by(9) {
        let disk = MemoryDisk::new();
        let log = open(&disk);
        append(&log, plain(10, 152));
        log.flush().unwrap();
        disk.run_full_after(free_bytes);
        let several: Vec<u8> = [plain(1, 100), plain(2, 200), plain(3, 50)].concat();
        let refused = log.append(&checked(several.clone()), 1_000);
        assert!(
            matches!(refused, Err(Error::DiskFull { .. })),
            "{free_bytes}: {refused:?}"
        );
        assert!(refused.unwrap_err().is_retriable());
        assert_eq!(log.log_end(), LogOffset(10));
        assert_eq!(offsets(&log), [0]);
        let copy = disk.copy();
        assert_eq!(
            offsets(&open(&copy)),
            [0],
            "{free_bytes}: nothing of it after a restart"
        );
        disk.make_room();
        assert_eq!(append(&log, several).base_offset, LogOffset(10));
        log.flush().unwrap();
        disk.crash(Crash::ForgetAll);
        assert_eq!(offsets(&open(&disk)), [0, 10, 11, 13]);
    }
}

#[test]
fn a_disk_full_at_any_byte_while_rolling_and_checkpointing_loses_nothing() {
    for free_bytes in (0..9_000).step_by(37) {
        let disk = MemoryDisk::new();
        let log = open(&disk);
        disk.run_full_after(free_bytes);
        let mut appended = 0;
        for n in 0..40 {
            match log.append(&checked(batch(9, n, 10, &[7; 152])), 1_000) {
                Ok(_) => appended += 1,
                Err(Error::DiskFull { .. }) => break,
                Err(other) => panic!("{other}"),
            }
            log.flush().unwrap();
        }
        disk.make_room();
        for n in appended..40 {
            append(&log, batch(9, n, 10, &[7; 152]));
            log.flush().unwrap();
        }
        disk.crash(Crash::ForgetAll);
        let log = open(&disk);
        assert_eq!(
            offsets(&log),
            (0..40).map(|n| n * 10).collect::<Vec<_>>(),
            "{free_bytes}"
        );
        assert!(append(&log, batch(9, 39, 10, &[7; 152])).duplicate);
    }
}

#[tokio::test]
async fn a_failed_sync_is_final_and_whoever_waits_is_told() {
    for good_syncs in 0..2 {
        let disk = MemoryDisk::new();
        let log = open(&disk);
        append(&log, plain(10, 152));
        let end = log.flush().unwrap();
        append(&log, plain(10, 2_000));
        disk.fail_syncs_after(good_syncs);
        let failed = log.flush();
        assert!(matches!(failed, Err(Error::Failed { .. })), "{failed:?}");
        disk.make_room();
        let calls = disk.syncs();
        assert!(matches!(log.flush(), Err(Error::Failed { .. })));
        assert_eq!(disk.syncs(), calls, "it is never tried again");
        let append = log.append(&checked(plain(1, 1)), 1_000);
        assert!(matches!(append, Err(Error::Failed { .. })), "{append:?}");
        assert!(matches!(
            log.wait_flushed(log.log_end()).await,
            Err(Error::Failed { .. })
        ));
        log.wait_flushed(end).await.unwrap();
        assert_eq!(log.flushed_end(), end);
        assert_eq!(offsets(&log).len(), 2, "reads go on");
    }
}

fn flushed_log(disk: &MemoryDisk, policy: FlushPolicy) -> (Flusher, Arc<Log>) {
    let flusher = Flusher::start(policy, 2).unwrap();
    let options = LogOptions {
        flusher: Some(flusher.handle()),
        ..options(disk, small())
    };
    (flusher, Log::open(&dir(), BUCKET, options).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_append_acknowledged_after_its_flush_survives_a_power_cut() {
    let policies = [
        FlushPolicy::Always,
        FlushPolicy::Interval(std::time::Duration::from_millis(3)),
    ];
    for policy in policies {
        for seed in 0..12 {
            let disk = MemoryDisk::new();
            let (_flusher, log) = flushed_log(&disk, policy);
            let mut writers = tokio::task::JoinSet::new();
            for writer in 0..4_i64 {
                let log = Arc::clone(&log);
                writers.spawn(async move {
                    let mut acknowledged = Vec::new();
                    for sequence in 0..200 {
                        let batches = checked(batch(writer, sequence, 3, &[1; 90]));
                        let Ok(appended) = log.append(&batches, 1_000) else {
                            break;
                        };
                        if log.wait_flushed(appended.log_end).await.is_err() {
                            break;
                        }
                        acknowledged.push((writer, sequence, appended.base_offset));
                    }
                    acknowledged
                });
            }
            let mut flushed = log.subscribe_flushed();
            let some = LogOffset(seed * 60);
            flushed
                .wait_for(|flushed| flushed.end >= some)
                .await
                .unwrap();
            disk.crash(Crash::Torn(seed.unsigned_abs()));
            let mut acknowledged = Vec::new();
            while let Some(writer) = writers.join_next().await {
                acknowledged.extend(writer.unwrap());
            }
            let log = open(&disk);
            let found = read_all(&log).unwrap();
            for (writer, sequence, offset) in acknowledged {
                let header = found
                    .iter()
                    .find(|(base, _)| *base == offset.0)
                    .map(|(_, bytes)| BatchHeader::parse(bytes).unwrap());
                let header = header.unwrap_or_else(|| panic!("{policy:?} {seed}: lost {offset}"));
                assert_eq!(
                    (header.writer, header.sequence),
                    (Some(WriterId(writer)), sequence)
                );
            }
        }
    }
}

#[tokio::test]
async fn an_append_is_not_acknowledged_before_its_flush() {
    let disk = MemoryDisk::new();
    let hour = FlushPolicy::Interval(std::time::Duration::from_hours(1));
    let (flusher, log) = flushed_log(&disk, hour);
    let appended = append(&log, plain(10, 100));
    assert_eq!(log.flushed_end(), LogOffset(0));
    let mut wait = Box::pin(log.wait_flushed(appended.log_end));
    assert!(futures::poll!(&mut wait).is_pending());
    drop(flusher);
    wait.await.unwrap();
    disk.crash(Crash::ForgetAll);
    assert_eq!(offsets(&open(&disk)), [0]);
}

#[test]
fn appends_between_two_flushes_share_one_sync() {
    let disk = MemoryDisk::new();
    let config = LogConfig {
        segment_bytes: 1 << 20,
        checkpoint_bytes: 1 << 20,
        ..small()
    };
    let log = Log::open(&dir(), BUCKET, options(&disk, config)).unwrap();
    append(&log, plain(1, 100));
    log.flush().unwrap();
    let before = disk.syncs();
    for _ in 0..500 {
        append(&log, plain(1, 100));
    }
    log.flush().unwrap();
    log.flush().unwrap();
    assert_eq!(disk.syncs() - before, 1);
}

#[test]
fn with_the_os_policy_the_flushed_end_follows_the_log_end() {
    let disk = MemoryDisk::new();
    let (_flusher, log) = flushed_log(&disk, FlushPolicy::Os);
    append(&log, plain(10, 100));
    assert_eq!(log.flushed_end(), LogOffset(10));
}

#[test]
fn names_that_a_dead_process_had_not_made_durable_are_before_anything_is_acknowledged() {
    for good_syncs in 0..12 {
        let disk = MemoryDisk::new();
        // It dies at that sync: files and folders are there, and no power cut spares them.
        disk.fail_syncs_after(good_syncs);
        let died = Log::open(&dir(), BUCKET, options(&disk, small()))
            .and_then(|log| log.append(&checked(plain(10, 152)), 1_000).map(|_| log))
            .and_then(|log| log.flush());
        disk.crash(Crash::ProcessOnly);
        let log = open(&disk);
        let from = log.log_end();
        assert!(died.is_err() || from == LogOffset(10), "{good_syncs}");
        append(&log, plain(7, 152));
        log.flush().unwrap();
        disk.crash(Crash::ForgetAll);
        assert_eq!(
            open(&disk).log_end(),
            LogOffset(from.0 + 7),
            "{good_syncs} syncs"
        );
    }
}
