use object_store::ObjectStore as _;

use super::*;
use crate::cluster::Trouble;
use crate::committer::OFFSETS;
use crate::testing::world::{Shape, World, bucket};
use crate::testing::{Fault, Faults};

mod recreated;
mod retries;
mod walls;

/// A world with something in the lake already, and something new in several buckets.
async fn world() -> World {
    let mut world = World::new(Shape::plain(3)).await;
    world.append(bucket(None, 0), 3);
    world.append(bucket(None, 1), 2);
    world.recover().await;
    world.append(bucket(None, 0), 2);
    world.append_empty(bucket(None, 0));
    world.append(bucket(None, 2), 4);
    world
}

/// Runs one round of a process that meets `fault` at its `at`-th call. `None` if it never came to
/// that call.
async fn faulty_round(world: &World, fault: Fault, at: u64) -> Option<String> {
    let faults = Faults::default();
    faults.plan(at, fault);
    let runner = world.process(&faults);
    let (lease, signals) = (world.next_lease(), RoundSignals::default());
    // Dropped when it has died: nothing of it goes on.
    tokio::select! {
        _ = runner.run(lease, &signals, &|_| {}) => {}
        () = faults.stopped() => {}
    }
    faults.fired()
}

async fn sweep(fault: Fault) {
    let (mut at, mut was_found_again) = (0, false);
    loop {
        let world = world().await;
        let before = world.registered();
        let fired = faulty_round(&world, fault, at).await;
        let published = "put lake/d.db/t/snapshot/snapshot-2";
        if fault == Fault::LoseReplyForEver && fired.as_deref() == Some(published) {
            retries::found_again(&world, 2).await;
            was_found_again = true;
        }
        world.recover().await;
        world.check(true).await;
        let (snapshot, ends) = world.registered().unwrap();
        let (old_snapshot, old_ends) = before.unwrap();
        assert!(snapshot >= old_snapshot, "{fault:?} at {fired:?}");
        for (bucket, end) in old_ends {
            assert!(
                ends[&bucket] >= end,
                "{fault:?} at {fired:?}: {bucket} fell back"
            );
        }
        if fired.is_none() {
            assert!(at > 15, "the sweep ended after {at} calls");
            assert_eq!(was_found_again, fault == Fault::LoseReplyForEver);
            return;
        }
        at += 1;
    }
}

#[tokio::test]
async fn each_row_is_in_the_lake_once_whichever_call_fails() {
    sweep(Fault::Fail).await;
}

#[tokio::test]
async fn each_row_is_in_the_lake_once_whichever_reply_is_lost() {
    sweep(Fault::LoseReply).await;
}

#[tokio::test]
async fn fc_042_each_row_is_in_the_lake_once_after_a_lost_reply_that_nothing_can_tell_about() {
    sweep(Fault::LoseReplyForEver).await;
}

#[tokio::test]
async fn each_row_is_in_the_lake_once_wherever_the_process_dies() {
    sweep(Fault::CrashBefore).await;
    sweep(Fault::CrashAfter).await;
}

/// A process is frozen at each of its calls, another one takes over and commits, then the first
/// goes on.
async fn zombies(fault: Fault, fence: EpochFence) {
    let mut at = 0;
    loop {
        let mut world = world().await;
        let faults = Faults::default();
        faults.plan(at, fault);
        let zombie = Runner {
            fence,
            ..world.process(&faults)
        };
        let lease = world.next_lease();
        let round =
            tokio::spawn(async move { zombie.run(lease, &RoundSignals::default(), &|_| {}).await });
        tokio::select! {
            () = faults.stopped() => {}
            () = async { while !round.is_finished() { tokio::task::yield_now().await; } } => {}
        }
        let fired = faults.fired();
        world.recover().await;
        world.append(bucket(None, 1), 2);
        world.recover().await;
        let before = world.snapshots().await.len();
        faults.thaw();
        let result = round.await.unwrap();
        if fired.is_none() {
            result.unwrap();
            assert!(at > 15, "the sweep ended after {at} calls");
            return;
        }
        let after = world.snapshots().await.len();
        if result.is_ok_and(|report| report.committed.is_some()) {
            // It had committed before it was frozen.
            assert_eq!(before, after, "{fault:?} at {fired:?}");
        }
        world.append(bucket(None, 0), 1);
        world.recover().await;
        world.check(true).await;
        at += 1;
    }
}

#[tokio::test]
async fn a_zombie_that_wakes_up_after_another_committed_changes_nothing() {
    zombies(Fault::FreezeBefore, EpochFence::Refuse).await;
    zombies(Fault::FreezeAfter, EpochFence::Refuse).await;
}

#[tokio::test]
async fn a_zombie_changes_nothing_on_a_cluster_whose_epochs_only_warn() {
    zombies(Fault::FreezeBefore, EpochFence::Warn).await;
    zombies(Fault::FreezeAfter, EpochFence::Warn).await;
}

#[tokio::test]
async fn a_lower_lease_than_the_lakes_is_refused_on_our_own_server() {
    let world = world().await;
    let mut stale = world.lease();
    stale.epochs.tiering.0 -= 1;
    let runner = world.process(&Faults::default());
    let result = runner
        .run(stale.clone(), &RoundSignals::default(), &|_| {})
        .await;
    assert!(matches!(result, Err(Error::Fenced { .. })), "{result:?}");
    // A foreign cluster's epochs restart: there it only warns.
    let runner = Runner {
        fence: EpochFence::Warn,
        ..runner
    };
    runner
        .run(stale, &RoundSignals::default(), &|_| {})
        .await
        .unwrap();
    world.check(true).await;
}

#[tokio::test]
async fn a_partition_of_three_under_a_table_of_four_is_written_as_three() {
    let mut shape = Shape::plain(4);
    shape.epoch = 1;
    shape.partitions = Some(vec![(31, Some(3)), (32, Some(4))]);
    let mut world = World::new(shape).await;
    for b in 0..3 {
        world.append(bucket(Some(31), b), 2);
        world.append(bucket(Some(32), b + 1), 1);
    }
    world.recover().await;
    world.check(true).await;
    let lake = world.lake().await;
    let schema = lake.latest_schema().await.unwrap();
    let snapshot = lake.latest_snapshot().await.unwrap().unwrap();
    let entries = lake.live_entries(&snapshot).await.unwrap();
    assert_eq!(entries.len(), 6);
    for entry in entries {
        let partition = weir_lake_format::Partition::from_bytes(&entry.partition, &schema).unwrap();
        let expected = if partition.path(&schema).unwrap() == "day=p31" {
            3
        } else {
            4
        };
        assert_eq!(entry.total_buckets, expected);
    }
}

#[tokio::test]
async fn a_partition_without_count_fails_the_round_once_the_count_was_changed() {
    let mut shape = Shape::plain(4);
    shape.epoch = 1;
    shape.partitions = Some(vec![(31, None)]);
    let mut world = World::new(shape).await;
    world.append(bucket(Some(31), 0), 2);
    let error = world.round().await.unwrap_err();
    assert!(matches!(error, Error::MissingBucketCount { .. }), "{error}");
    assert!(world.snapshots().await.is_empty());
}

#[tokio::test]
async fn a_table_without_bucket_key_goes_to_bucket_zero_with_no_count() {
    let mut shape = Shape::plain(3);
    shape.bucket_aware = false;
    let mut world = World::new(shape).await;
    for b in 0..3 {
        world.append(bucket(None, b), 2);
    }
    world.recover().await;
    world.check(false).await;
    let lake = world.lake().await;
    let snapshot = lake.latest_snapshot().await.unwrap().unwrap();
    for entry in lake.live_entries(&snapshot).await.unwrap() {
        assert_eq!((entry.bucket, entry.total_buckets), (0, -1));
    }
}

#[tokio::test]
async fn buckets_with_empty_batches_only_move_on() {
    let mut world = World::new(Shape::plain(4)).await;
    world.append(bucket(None, 0), 2);
    for b in 1..4 {
        world.append_empty(bucket(None, b));
        world.append_empty(bucket(None, b));
    }
    let report = world.round().await.unwrap();
    assert_eq!(report.buckets, 4);
    world.check(true).await;
    assert_eq!(world.round().await.unwrap().committed, None);
    // Nothing but empty batches: an empty snapshot carries the progress.
    world.append_empty(bucket(None, 2));
    let report = world.round().await.unwrap();
    assert_eq!(report.committed.unwrap().files, 0);
    world.check(true).await;
    assert_eq!(world.round().await.unwrap().committed, None);
}

#[tokio::test]
async fn an_idle_round_commits_nothing() {
    let world = World::new(Shape::plain(4)).await;
    let report = world.round().await.unwrap();
    assert_eq!((report.committed, report.left_rows), (None, 0));
    assert!(world.snapshots().await.is_empty());
}

#[tokio::test]
async fn a_table_of_release_0_9_is_fed_with_its_system_columns() {
    let mut shape = Shape::plain(1);
    shape.system_columns = true;
    let mut world = World::new(shape).await;
    world.append(bucket(None, 0), 3);
    world.recover().await;
    world.check(true).await;
    let lake = world.lake().await;
    let snapshot = lake.latest_snapshot().await.unwrap().unwrap();
    let splits = lake
        .plan(&snapshot, &weir_lake_format::Filter::default())
        .await
        .unwrap();
    let columns = ["__bucket", "__offset", "__timestamp"];
    let stream = lake.read_split(&splits[0], Some(&columns)).await.unwrap();
    let batches: Vec<arrow::array::RecordBatch> = stream.try_collect().await.unwrap();
    assert_eq!(batches[0].num_rows(), 3);
    assert!(
        batches[0]
            .columns()
            .iter()
            .all(|column| arrow::array::Array::null_count(column) == 0)
    );
}

#[tokio::test]
async fn a_log_that_lost_what_the_lake_lacks_is_an_error_that_names_the_range() {
    let mut world = world().await;
    world.recover().await;
    for _ in 0..3 {
        world.append(bucket(None, 1), 5);
    }
    {
        let mut state = world.cluster.state.lock();
        let table = state.tables.get_mut(&world.path).unwrap();
        let log = table.logs.get_mut(&bucket(None, 1)).unwrap();
        log.start = 7;
        log.batches.drain(..2);
    }
    world.append(bucket(None, 0), 3);
    let report = world.round().await.unwrap();
    let trouble = report.trouble().unwrap();
    assert_eq!(
        trouble,
        Trouble::lasting(
            "bucket 1: lost range 2..7: the log goes on at 7, and the lake lacks what was before; \
             `weir status --accept-loss` gives it up"
        )
    );
    // The other bucket is in the lake, the lost range is never stepped over.
    assert_eq!((report.buckets, report.left_rows), (1, 15));
    let report = world.round().await.unwrap();
    assert_eq!((report.committed, report.faults.len()), (None, 1));
}

#[tokio::test]
async fn a_bucket_whose_reads_fail_is_named_with_the_servers_words_and_the_others_go_on() {
    let words = "LOG_STORAGE_EXCEPTION (10): 00000.log: damaged at byte 77";
    let name = format!("FETCH_LOG: {}: {words}", bucket(Some(32), 1));
    // Tried again by itself until the round is over, or given up by the reader.
    for again in [true, false] {
        let mut shape = Shape::plain(2);
        shape.partitions = Some(vec![(31, None), (32, None)]);
        let mut world = World::new(shape).await;
        for (partition, b) in [(31, 0), (31, 1), (32, 0), (32, 1)] {
            world.append(bucket(Some(partition), b), 4);
        }
        let trouble = Trouble::passing(&name);
        {
            let mut state = world.cluster.state.lock();
            let place = if again {
                &mut state.troubled
            } else {
                &mut state.failing
            };
            place.insert(bucket(Some(32), 1), trouble);
        }
        let mut runner = world.process(&Faults::default());
        runner.limits.max_duration = Some(Duration::from_millis(300));
        let lease = world.next_lease();
        let report = runner
            .run(lease, &RoundSignals::default(), &|_| {})
            .await
            .unwrap();
        assert_eq!((report.buckets, report.left_rows), (3, 4));
        assert_eq!(report.committed.as_ref().unwrap().rows, 12);
        let trouble = report.trouble().unwrap();
        assert_eq!(
            trouble.reason,
            format!("partition p32 bucket 1: FETCH_LOG: {words}")
        );
        {
            let mut state = world.cluster.state.lock();
            state.troubled.clear();
            state.failing.clear();
        }
        world.recover().await;
        world.check(true).await;
    }
}

#[tokio::test]
async fn a_batch_that_does_not_decode_ends_its_bucket_alone_and_is_never_stepped_over() {
    let mut world = World::new(Shape::plain(2)).await;
    for _ in 0..3 {
        world.append(bucket(None, 0), 4);
        world.append(bucket(None, 1), 4);
    }
    let whole = {
        let mut state = world.cluster.state.lock();
        let table = state.tables.get_mut(&world.path).unwrap();
        let batch = &mut table.logs.get_mut(&bucket(None, 1)).unwrap().batches[1];
        let whole = batch.clone();
        let mut bytes = batch.to_vec();
        *bytes.last_mut().unwrap() ^= 1;
        *batch = bytes.into();
        whole
    };
    for rows in [12 + 4, 0] {
        let report = world.round().await.unwrap();
        assert_eq!(report.committed.as_ref().map_or(0, |c| c.rows), rows);
        let trouble = report.trouble().unwrap();
        assert!(trouble.lasting, "{trouble:?}");
        let expected = "bucket 1: d.t: the log of table 7 bucket 1 does not decode at offset 4: ";
        assert!(trouble.reason.starts_with(expected), "{trouble:?}");
        assert_eq!(report.left_rows, 8);
    }
    {
        let mut state = world.cluster.state.lock();
        let table = state.tables.get_mut(&world.path).unwrap();
        table.logs.get_mut(&bucket(None, 1)).unwrap().batches[1] = whole;
    }
    world.recover().await;
    world.check(true).await;
}

#[tokio::test]
async fn a_round_is_cut_at_its_row_limit_and_the_next_goes_on_from_there() {
    let mut world = World::new(Shape::plain(2)).await;
    for _ in 0..10 {
        world.append(bucket(None, 0), 10);
        world.append(bucket(None, 1), 10);
    }
    let mut runner = world.process(&Faults::default());
    runner.limits.max_rows = 30;
    runner.resources.fetch_bytes = 600;
    let mut rounds = 0;
    loop {
        let lease = world.next_lease();
        let report = runner
            .run(lease, &RoundSignals::default(), &|_| {})
            .await
            .unwrap();
        rounds += 1;
        if report.left_rows == 0 {
            break;
        }
        assert!(matches!(report.cut, Some(Cut::Rows)), "{report:?}");
    }
    assert!(rounds > 2, "{rounds}");
    world.check(true).await;
}

#[tokio::test]
async fn fc_076_a_bucket_that_gives_no_answer_is_named_and_keeps_nobody_waiting() {
    let mut world = World::new(Shape::plain(3)).await;
    for b in 0..3 {
        world.append(bucket(None, b), 4);
    }
    world.cluster.state.lock().mute.push(bucket(None, 1));
    let mut runner = world.process(&Faults::default());
    runner.limits.max_duration = Some(Duration::from_millis(300));
    let lease = world.next_lease();
    let report = runner
        .run(lease, &RoundSignals::default(), &|_| {})
        .await
        .unwrap();
    assert_eq!((report.buckets, report.left_rows), (2, 4));
    assert_eq!(report.faults.len(), 1);
    assert_eq!(report.faults[0].0, bucket(None, 1));
    world.cluster.state.lock().mute.clear();
    world.recover().await;
    world.check(true).await;
}

#[tokio::test]
async fn a_stopped_round_commits_what_it_has() {
    let mut world = World::new(Shape::plain(1)).await;
    world.append(bucket(None, 0), 4);
    let runner = world.process(&Faults::default());
    let signals = RoundSignals::default();
    let stop = signals.stop.clone();
    let phase = move |phase| {
        if phase == Phase::Writing {
            stop.cancel();
        }
    };
    let report = runner
        .run(world.next_lease(), &signals, &phase)
        .await
        .unwrap();
    assert!(
        report.cut == Some(Cut::Stop) || report.left_rows == 0,
        "{report:?}"
    );
    world.recover().await;
    world.check(true).await;
}

#[tokio::test]
async fn a_cancelled_round_leaves_no_file() {
    let mut world = World::new(Shape::plain(2)).await;
    world.append(bucket(None, 0), 4);
    world.append(bucket(None, 1), 4);
    let runner = world.process(&Faults::default());
    let signals = RoundSignals::default();
    let cancel = signals.cancel.clone();
    let phase = move |phase| {
        if phase == Phase::Committing {
            cancel.cancel();
        }
    };
    let result = runner.run(world.next_lease(), &signals, &phase).await;
    assert!(matches!(result, Err(Error::Cancelled { .. })), "{result:?}");
    let files: Vec<object_store::ObjectMeta> =
        object_store::ObjectStore::list(world.store.as_ref(), None)
            .try_collect()
            .await
            .unwrap();
    let data = files
        .iter()
        .filter(|file| file.location.as_ref().contains("bucket-"));
    assert_eq!(data.count(), 0, "{files:?}");
}

#[tokio::test]
async fn a_missing_snapshot_is_registered_with_its_own_offsets_file() {
    let world = world().await;
    let own = world.snapshots().await.pop().unwrap();
    world
        .cluster
        .state
        .lock()
        .tables
        .get_mut(&world.path)
        .unwrap()
        .registered
        .clear();
    let report = world.round().await.unwrap();
    assert_eq!(report.buckets, 2);
    let offsets = own.property(OFFSETS).unwrap();
    assert!(world.cluster.state.lock().files.contains_key(offsets));
    world.check(true).await;
}

#[tokio::test]
async fn a_dropped_partition_is_no_longer_carried_in_offsets_files() {
    let mut shape = Shape::plain(1);
    shape.partitions = Some(vec![(31, None), (32, None)]);
    let mut world = World::new(shape).await;
    world.append(bucket(Some(31), 0), 2);
    world.append(bucket(Some(32), 0), 2);
    world.recover().await;
    {
        let mut state = world.cluster.state.lock();
        let table = state.tables.get_mut(&world.path).unwrap();
        table.partitions.retain(|partition| partition.id.0 != 31);
    }
    world.append(bucket(Some(32), 0), 1);
    world.recover().await;
    let sent = world.cluster.state.lock().prepared.pop().unwrap();
    assert_eq!(
        sent.keys().copied().collect::<Vec<_>>(),
        [bucket(Some(32), 0)]
    );
}

#[tokio::test]
async fn a_lake_behind_the_cluster_stops_the_table() {
    let world = world().await;
    let file = world.snapshots().await[0]
        .property(OFFSETS)
        .unwrap()
        .to_owned();
    world
        .cluster
        .state
        .lock()
        .tables
        .get_mut(&world.path)
        .unwrap()
        .registered
        .push((99, file));
    let error = world.round().await.unwrap_err();
    assert!(
        matches!(error, Error::LakeBehind { known: 99, .. }),
        "{error}"
    );
}

#[tokio::test]
async fn a_table_that_was_made_anew_is_left_alone() {
    let world = world().await;
    let lease = world.next_lease();
    world
        .cluster
        .state
        .lock()
        .tables
        .get_mut(&world.path)
        .unwrap()
        .info
        .id
        .0 += 1;
    let runner = world.process(&Faults::default());
    let result = runner.run(lease, &RoundSignals::default(), &|_| {}).await;
    assert!(matches!(result, Err(Error::Recreated { .. })), "{result:?}");
}

#[tokio::test]
async fn fc_070_many_partitions_fit_in_a_small_budget() {
    let partitions: Vec<(i64, Option<i32>)> = (0..500).map(|id| (id, Some(1))).collect();
    let shape = Shape {
        partitions: Some(partitions),
        ..Shape::plain(1)
    };
    let mut world = World::new(shape).await;
    for id in 0..500 {
        world.append(bucket(Some(id), 0), 10);
    }
    let mut runner = world.process(&Faults::default());
    runner.resources.budget = crate::memory::MemoryBudget::new(1 << 20);
    runner.resources.fetch_bytes = 64 << 10;
    let lease = world.next_lease();
    let report = runner
        .run(lease, &RoundSignals::default(), &|_| {})
        .await
        .unwrap();
    let committed = report.committed.unwrap();
    assert_eq!(committed.rows, 5_000);
    assert!(committed.files <= 1_000, "{} files", committed.files);
    assert_eq!(runner.resources.budget.used_bytes(), 0);
    world.check(true).await;
}

#[tokio::test]
async fn ranges_of_many_buckets_stand_in_a_file() {
    let mut world = World::new(Shape::plain(6_000)).await;
    for b in 0..6_000 {
        world.append_empty(bucket(None, b));
    }
    world.recover().await;
    let snapshots = world.snapshots().await;
    let text = snapshots[0].property(crate::committer::RANGES).unwrap();
    assert!(text.contains("\"file\":\"weir/ranges-"), "{text}");
    world.check(true).await;
}

#[tokio::test]
async fn batches_of_an_old_schema_are_padded_to_the_lakes_columns() {
    let mut world = World::new(Shape::plain(1)).await;
    world.append(bucket(None, 0), 3);
    world.add_column("extra").await;
    world.append(bucket(None, 0), 2);
    world.recover().await;
    world.check(true).await;
    let lake = world.lake().await;
    let snapshot = lake.latest_snapshot().await.unwrap().unwrap();
    let splits = lake
        .plan(&snapshot, &weir_lake_format::Filter::default())
        .await
        .unwrap();
    let stream = lake.read_split(&splits[0], Some(&["extra"])).await.unwrap();
    let batches: Vec<arrow::array::RecordBatch> = stream.try_collect().await.unwrap();
    let nulls: usize = batches
        .iter()
        .map(|batch| arrow::array::Array::null_count(batch.column(0)))
        .sum();
    assert_eq!(nulls, 3, "the two newer rows have a value");
}

#[derive(Clone, Debug)]
enum Step {
    Append(i32, i64),
    Empty(i32),
    Round,
    Faulty(Fault, u64),
    /// By somebody else, in the lake.
    Compact,
}

fn steps() -> impl proptest::strategy::Strategy<Value = Vec<Step>> {
    use proptest::prelude::*;
    let fault = prop_oneof![
        Just(Fault::Fail),
        Just(Fault::LoseReply),
        Just(Fault::LoseReplyForEver),
        Just(Fault::CrashBefore),
        Just(Fault::CrashAfter),
    ];
    let step = prop_oneof![
        3 => (0..3_i32, 1..9_i64).prop_map(|(b, rows)| Step::Append(b, rows)),
        1 => (0..3_i32).prop_map(Step::Empty),
        1 => Just(Step::Round),
        1 => Just(Step::Compact),
        3 => (fault, 0..45_u64).prop_map(|(fault, at)| Step::Faulty(fault, at)),
    ];
    proptest::collection::vec(step, 1..25)
}

async fn walk(steps: Vec<Step>) {
    let mut world = World::new(Shape::plain(3)).await;
    for step in steps {
        match step {
            Step::Append(b, rows) => world.append(bucket(None, b), rows),
            Step::Empty(b) => world.append_empty(bucket(None, b)),
            // May find something to put right first.
            Step::Round => drop(world.round().await),
            Step::Faulty(fault, at) => drop(faulty_round(&world, fault, at).await),
            Step::Compact => world.compact_lake().await,
        }
    }
    world.recover().await;
    world.check(true).await;
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(40))]
    #[test]
    fn fc_059_tiered_rows_equal_the_log_after_any_history(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(walk(steps));
    }
}
