//! What is damaged can be taken out, and the log goes on around it.

use super::super::repair::{ClosedLog, Inspection, Repaired};
use super::*;

const BATCH_BYTES: usize = 200;

fn segment_path(base: i64) -> PathBuf {
    dir().join(format!("{base:020}.log"))
}

/// Flushed batches of 10 records each, ten to a segment; the process is dead.
fn killed(batches: i64) -> (MemoryDisk, Vec<(i64, Vec<u8>)>) {
    let disk = MemoryDisk::new();
    let log = open(&disk);
    for n in 0..i32::try_from(batches).unwrap() {
        append(&log, batch(9, n, 10, &[7; BATCH_BYTES - 48]));
        log.flush().unwrap();
    }
    let all = read_all(&log).unwrap();
    disk.crash(Crash::ProcessOnly);
    (disk, all)
}

fn inspect(disk: &MemoryDisk) -> Inspection {
    let config = small();
    let disk = disk.process();
    let (dir, bucket) = (dir(), BUCKET);
    let log = ClosedLog {
        disk: &disk,
        dir: &dir,
        bucket,
        config: &config,
    };
    log.inspect().unwrap()
}

fn repair(disk: &MemoryDisk) -> Result<Repaired> {
    let config = small();
    let disk = disk.process();
    let (dir, bucket) = (dir(), BUCKET);
    ClosedLog {
        disk: &disk,
        dir: &dir,
        bucket,
        config: &config,
    }
    .repair()
}

fn damage(disk: &MemoryDisk, base: i64, batches: &[usize]) {
    let mut bytes = disk.bytes(&segment_path(base));
    for batch in batches {
        bytes[batch * BATCH_BYTES + 60] ^= 1;
    }
    disk.set_bytes(&segment_path(base), &bytes);
}

const fn gap(from: i64, to: i64) -> Gap {
    Gap {
        from: LogOffset(from),
        to: LogOffset(to),
    }
}

/// Opens and reads: the batches that begin at `lost` are missing, and no other.
fn assert_lost(disk: &MemoryDisk, all: &[(i64, Vec<u8>)], lost: &[i64]) {
    let log = open(disk);
    let kept = all.iter().filter(|(base, _)| !lost.contains(base));
    assert_eq!(read_all(&log).unwrap(), kept.cloned().collect::<Vec<_>>());
    let end = all.last().unwrap().0 + 10;
    assert_eq!(log.log_end(), LogOffset(end), "no offset is used twice");
    assert_eq!(append(&log, plain(1, 1)).base_offset, LogOffset(end));
    assert_eq!(inspect(disk).damage, None);
}

#[test]
fn a_whole_log_is_looked_over_without_a_change() {
    let (disk, _) = killed(25);
    let names = disk.list(&dir()).unwrap();
    let found = inspect(&disk);
    assert_eq!(found.damage, None);
    assert_eq!((found.segments, found.size_bytes), (3, 5_000));
    assert_eq!((found.start, found.end), (LogOffset(0), LogOffset(250)));
    assert_eq!(found.synced, Some(LogOffset(250)));
    assert_eq!(disk.list(&dir()).unwrap(), names);
}

#[test]
fn damage_below_a_checkpoint_is_found_too() {
    let (disk, _) = killed(25);
    damage(&disk, 100, &[4]);
    let damage = inspect(&disk).damage.unwrap();
    assert_eq!(damage.path, segment_path(100));
    assert_eq!(damage.position, 4 * BATCH_BYTES as u64);
    assert_eq!(damage.reason, "checksum does not hold");
}

/// Batches damaged in segments, the batches then lost, and the gaps.
type Case = (
    &'static [(i64, &'static [usize])],
    &'static [i64],
    &'static [Gap],
);

const CASES: [Case; 6] = [
    (&[(0, &[4])], &[40], &[gap(40, 50)]),
    (&[(0, &[0])], &[0], &[gap(0, 10)]),
    (&[(100, &[9])], &[190], &[gap(190, 200)]),
    (&[(200, &[4])], &[240], &[gap(240, 250)]),
    (
        &[(0, &[2, 3, 7]), (200, &[0])],
        &[20, 30, 70, 200],
        &[gap(20, 40), gap(70, 80), gap(200, 210)],
    ),
    (
        &[(100, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9])],
        &[100, 110, 120, 130, 140, 150, 160, 170, 180, 190],
        &[gap(100, 200)],
    ),
];

#[test]
fn damaged_batches_are_set_aside_and_all_others_stay() {
    for (places, lost, gaps) in CASES {
        let (disk, all) = killed(25);
        for (base, batches) in places {
            damage(&disk, *base, batches);
        }
        let repaired = repair(&disk).unwrap();
        assert_eq!(repaired.gaps, gaps, "{places:?}");
        let aside: usize = repaired
            .set_aside
            .iter()
            .map(|path| disk.bytes(path).len())
            .sum();
        assert_eq!(aside, lost.len() * BATCH_BYTES, "{places:?}");
        assert_lost(&disk, &all, lost);
    }
}

#[test]
fn a_segment_or_an_end_that_is_gone_becomes_a_gap() {
    let (disk, all) = killed(25);
    disk.remove(&segment_path(100)).unwrap();
    let lost: Vec<i64> = (10..20).map(|n| n * 10).collect();
    assert_eq!(repair(&disk).unwrap().gaps, [gap(100, 200)]);
    assert_lost(&disk, &all, &lost);

    let (disk, all) = killed(25);
    disk.set_bytes(&segment_path(200), &disk.bytes(&segment_path(200))[..450]);
    assert_eq!(repair(&disk).unwrap().gaps, [gap(220, 250)]);
    assert_lost(&disk, &all, &[220, 230, 240]);
}

#[test]
fn a_repair_cut_short_at_any_sync_goes_on_when_it_is_called_again() {
    for good_syncs in 0.. {
        let (disk, all) = killed(25);
        damage(&disk, 0, &[2, 3, 7]);
        disk.fail_syncs_after(good_syncs);
        let finished = repair(&disk).is_ok();
        disk.crash(Crash::ForgetAll);
        repair(&disk).unwrap();
        assert_lost(&disk, &all, &[20, 30, 70]);
        if finished {
            assert!(good_syncs > 5);
            return;
        }
    }
}

#[test]
fn a_log_that_is_well_is_left_as_it_is() {
    let (disk, all) = killed(25);
    assert_eq!(repair(&disk).unwrap(), Repaired::default());
    assert_lost(&disk, &all, &[]);
}
