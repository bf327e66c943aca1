use super::*;
use crate::committer::{COMMIT_USER, RANGES};
use arrow::array::AsArray as _;
use arrow::datatypes::{Int32Type, Int64Type};

/// Starts a round that is frozen at the first call that names `call`.
async fn frozen_at(
    world: &World,
    call: &str,
) -> (tokio::task::JoinHandle<Result<RoundReport>>, Faults) {
    let faults = Faults::default();
    faults.hold(Some(call));
    let (runner, lease) = (world.process(&faults), world.next_lease());
    let round =
        tokio::spawn(async move { runner.run(lease, &RoundSignals::default(), &|_| {}).await });
    faults.holds().await;
    (round, faults)
}

#[tokio::test]
async fn fc_043_a_worker_whose_start_is_no_longer_the_end_of_the_lake_is_refused() {
    // Held before it prepares the commit, or before the very put.
    for call in ["prepare", "put lake/d.db/t/snapshot/snapshot-1"] {
        let mut world = World::new(Shape::plain(1)).await;
        world.append(bucket(None, 0), 60);
        world.append(bucket(None, 0), 40);
        let (planned, faults) = frozen_at(&world, call).await;
        let mut owner = world.process(&Faults::default());
        owner.limits.max_rows = 60;
        // One batch at a time.
        owner.resources.fetch_bytes = 1;
        let lease = world.next_lease();
        let report = owner.run(lease, &RoundSignals::default(), &|_| {}).await;
        assert_eq!(report.unwrap().committed.unwrap().rows, 60);
        faults.hold(None);
        let error = planned.await.unwrap().unwrap_err();
        assert!(matches!(error, Error::Fenced { .. }), "{call}: {error}");
        assert!(error.to_string().contains("is 1, it was none"), "{error}");
        assert_eq!(world.snapshots().await.len(), 1);
        world.recover().await;
        world.check(true).await;
        let ranges = world.snapshots().await;
        let ranges: Vec<_> = ranges.iter().map(|s| s.property(RANGES).unwrap()).collect();
        assert_eq!(ranges.len(), 2);
        let ids: Vec<i64> = world.lake_rows().await.into_values().flatten().collect();
        assert_eq!(ids, (0..100).collect::<Vec<_>>());
    }
}

/// A commit was published and returned an error: its files stay, and the next round finds it by its
/// user, registers it and writes nothing again.
pub(super) async fn found_again(world: &World, published: i64) {
    let files = async || {
        let listed = world.store.list(Some(&world.root()));
        let all: Vec<_> = listed.try_collect().await.unwrap();
        let paths = all.into_iter().map(|file| file.location.to_string());
        let data = |path: &String| path.contains("/bucket-");
        paths.filter(data).collect::<Vec<_>>()
    };
    let before = files().await;
    assert!(world.registered().unwrap().0 < published);
    let newest = world.snapshots().await.pop().unwrap();
    assert_eq!(
        (newest.id, newest.commit_user.as_str()),
        (published, COMMIT_USER)
    );
    let report = world.round().await.unwrap();
    assert_eq!(
        (report.committed, report.lake_snapshot),
        (None, Some(published))
    );
    assert_eq!(world.registered().unwrap().0, published);
    assert_eq!(files().await, before, "nothing is deleted or written again");
    world.check(true).await;
}

#[tokio::test]
async fn fc_047_a_worker_that_is_restarted_again_and_again_adds_no_file_twice() {
    let mut world = World::new(Shape::plain(3)).await;
    let mut chance = 0x2545_f491_u64;
    let mut draw = |below: u64| {
        chance ^= chance << 13;
        chance ^= chance >> 7;
        chance ^= chance << 17;
        chance % below
    };
    for restart in 0..50 {
        world.append(bucket(None, restart % 3), 400);
        let fault = [Fault::CrashBefore, Fault::CrashAfter][usize::try_from(draw(2)).unwrap()];
        faulty_round(&world, fault, draw(40)).await;
    }
    world.recover().await;
    let lake = world.lake().await;
    let latest = lake.latest_snapshot().await.unwrap().unwrap();
    let live = lake.live_entries(&latest).await.unwrap();
    let names: BTreeSet<_> = live.iter().map(|entry| &entry.file.file_name).collect();
    assert_eq!(names.len(), live.len(), "each file is live once");
    let ids: Vec<i64> = world.lake_rows().await.into_values().flatten().collect();
    assert_eq!(ids.len(), 20_000);
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), 20_000);
    world.check(true).await;
}

#[tokio::test]
async fn fc_052_a_restart_at_any_call_reads_nothing_before_the_offset_to_start_from() {
    let mut at = 0;
    loop {
        let shape = Shape {
            system_columns: true,
            ..Shape::plain(1)
        };
        let mut world = World::new(shape).await;
        // The offset to start from lies amid a batch.
        for _ in 0..8 {
            world.append(bucket(None, 0), 125);
        }
        world.tiered_by_others(bucket(None, 0), 560).await;
        let fired = faulty_round(&world, Fault::CrashBefore, at).await;
        world.recover().await;
        let lake = world.lake().await;
        let snapshot = lake.latest_snapshot().await.unwrap().unwrap();
        let mut offsets = Vec::new();
        for split in lake
            .plan(&snapshot, &weir_lake_format::Filter::default())
            .await
            .unwrap()
        {
            let rows = lake.read_split(&split, Some(&["__offset"])).await.unwrap();
            let batches: Vec<arrow::array::RecordBatch> = rows.try_collect().await.unwrap();
            for batch in batches {
                offsets.extend_from_slice(batch.column(0).as_primitive::<Int64Type>().values());
            }
        }
        offsets.sort_unstable();
        assert_eq!(offsets, (560..1_000).collect::<Vec<_>>(), "at {fired:?}");
        if fired.is_none() {
            assert!(at > 15, "the sweep ended after {at} calls");
            return;
        }
        at += 1;
    }
}

#[tokio::test]
async fn fc_038_rows_of_a_table_without_bucket_key_keep_the_number_of_their_bucket() {
    let shape = Shape {
        bucket_aware: false,
        system_columns: true,
        ..Shape::plain(3)
    };
    let mut world = World::new(shape).await;
    for number in 0..3 {
        world.append(bucket(None, number), 3);
    }
    world.recover().await;
    let lake = world.lake().await;
    let schema = lake.latest_schema().await.unwrap();
    assert_eq!(schema.options.get("bucket").map(String::as_str), Some("-1"));
    let snapshot = lake.latest_snapshot().await.unwrap().unwrap();
    let mut buckets = Vec::new();
    for split in lake
        .plan(&snapshot, &weir_lake_format::Filter::default())
        .await
        .unwrap()
    {
        assert_eq!((split.bucket, split.total_buckets), (0, -1));
        let rows = lake.read_split(&split, Some(&["__bucket"])).await.unwrap();
        let batches: Vec<arrow::array::RecordBatch> = rows.try_collect().await.unwrap();
        for batch in batches {
            buckets.extend_from_slice(batch.column(0).as_primitive::<Int32Type>().values());
        }
    }
    buckets.sort_unstable();
    assert_eq!(buckets, [0, 0, 0, 1, 1, 1, 2, 2, 2]);
    let files = world.store.list(Some(&world.root()));
    let files: Vec<_> = files.try_collect().await.unwrap();
    let folders = files
        .iter()
        .filter(|file| file.location.as_ref().contains("/bucket-"));
    let mut folders = folders.map(|file| file.location.as_ref());
    assert!(folders.all(|path| path.starts_with("lake/d.db/t/bucket-0/")));
}

#[tokio::test]
async fn a_registered_end_that_the_newest_snapshot_denies_pauses_the_table() {
    for damage in [Some(1_000), Some(7_000), None] {
        let mut world = World::new(Shape::plain(1)).await;
        world.append(bucket(None, 0), 3_000);
        world.round().await.unwrap();
        {
            let mut state = world.cluster.state.lock();
            let (_, ends) = state.files.values_mut().last().unwrap();
            match damage {
                Some(end) => ends.insert(bucket(None, 0), LogOffset(end)),
                None => ends.remove(&bucket(None, 0)),
            };
        }
        world.append(bucket(None, 0), 10);
        let error = world.round().await.unwrap_err();
        assert!(matches!(error, Error::EndsDiffer { .. }), "{error}");
        assert!(error.to_string().contains("write 3000 there"), "{error}");
        assert_eq!(
            world.lake_rows().await.into_values().flatten().count(),
            3_000
        );
    }
}
