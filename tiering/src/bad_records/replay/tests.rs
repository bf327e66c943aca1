use object_store::{ObjectStore as _, ObjectStoreExt as _};

use super::super::book;
use super::super::book::tests::{assert_sound, bad_records, lake_ids, strict_world};
use super::*;
use crate::testing::world::{TABLE, World, bucket};
use crate::testing::{Fault, Faults};

async fn run(world: &World, faults: &Faults) -> Result<Replayed> {
    run_assuming(world, faults, None).await
}

async fn run_assuming(
    world: &World,
    faults: &Faults,
    assumed: Option<Outcome>,
) -> Result<Replayed> {
    let runner = world.process(faults);
    let clock: Arc<dyn Clock> = Arc::clone(&runner.resources.clock);
    let (client, warehouse) = (&runner.resources.client, &runner.warehouse);
    replay(client, warehouse, &world.path, &clock, assumed).await
}

/// Twenty rows of which three are bad, all tiered.
async fn world() -> World {
    let mut world = strict_world("divert", 1).await;
    for _ in 0..2 {
        world.append_named(bucket(None, 0), 10, |id| ![3, 4, 12].contains(&id));
        world.recover().await;
    }
    world
}

#[tokio::test]
async fn fc_108_a_replay_puts_bad_records_back_once_after_their_cause_is_mended() {
    let mut world = world().await;
    let still = run(&world, &Faults::default()).await.unwrap();
    let offsets: Vec<i64> = still.still_bad.iter().map(|bad| bad.offset).collect();
    assert_eq!((still.rows, offsets), (0, vec![3, 4, 12]));
    world.names_are_required(false).await;
    let done = run(&world, &Faults::default()).await.unwrap();
    assert_eq!((done.rows, done.still_bad, done.pending), (3, vec![], 0));
    assert_eq!(lake_ids(&world).await, (0..20).collect::<Vec<_>>());
    assert!(bad_records(&world).await.is_empty());
    let audit = assert_sound(&world).await;
    assert_eq!(
        (audit.rows, audit.diverted_rows, audit.replayed_rows),
        (20, 3, 3)
    );
    assert_eq!(audit.compared_rows, 20);
    assert_eq!(
        run(&world, &Faults::default()).await.unwrap(),
        Replayed::default()
    );
    // Tiering goes on, and so does its audit.
    world.append_named(bucket(None, 0), 3, |_| true);
    world.recover().await;
    assert_eq!(lake_ids(&world).await, (0..23).collect::<Vec<_>>());
    assert_sound(&world).await;
}

#[tokio::test]
async fn a_column_that_the_log_cannot_fill_ends_the_replay_and_nothing_goes() {
    let mut world = world().await;
    world.names_are_required(false).await;
    world.recover().await;
    // Another column now forbids what only later records lack.
    world.add_column("extra").await;
    world
        .alter_lake(|schema| {
            let extra = &mut schema.fields[2].data_type;
            *extra = extra.kind.clone().not_null();
        })
        .await;
    let error = run(&world, &Faults::default()).await.unwrap_err();
    assert!(matches!(error, Error::Schema { .. }), "{error}");
    assert_eq!(bad_records(&world).await.len(), 3);
}

#[tokio::test]
async fn a_record_that_cannot_be_read_or_placed_stays_and_the_others_go() {
    let world = world().await;
    world.names_are_required(false).await;
    let warehouse = world.process(&Faults::default()).warehouse;
    let place = warehouse.bad_records(&world.path, &BTreeMap::new());
    let kept = bad_records(&world).await;
    let damaged = BadRecord {
        offset: LogOffset(6),
        record: bytes::Bytes::from_static(b"no batch"),
        ..kept[0].clone()
    };
    let mut book = book::Book::read(place.unwrap(), TABLE).await.unwrap();
    let stamp = super::super::Stamp {
        table: "d.t",
        round: "r",
        now_ms: 1,
    };
    book.commit(&[damaged], &BTreeMap::new(), stamp)
        .await
        .unwrap();
    let done = run(&world, &Faults::default()).await.unwrap();
    let still: Vec<_> = done.still_bad.iter().map(|bad| bad.offset).collect();
    assert_eq!((done.rows, still), (3, vec![6]));
    assert_eq!(bad_records(&world).await.len(), 1);
    assert_eq!(lake_ids(&world).await, (0..20).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_flipped_bit_in_a_file_of_bad_records_loses_doubles_and_moves_no_row() {
    let mut world = world().await;
    world.names_are_required(false).await;
    let base = Arc::clone(&world.store);
    let objects: Vec<_> = base.list(None).try_collect().await.unwrap();
    let is_bad = |path: &str| path.contains("__weir_bad_records/") && path.ends_with(".parquet");
    let file = objects.iter().find(|o| is_bad(o.location.as_ref()));
    let file = file.unwrap().location.clone();
    let sound = base.get(&file).await.unwrap().bytes().await.unwrap();
    let mut refused = 0;
    for at in (0..sound.len()).step_by(23) {
        world.store = Arc::new(base.fork());
        let mut bytes = sound.to_vec();
        bytes[at] ^= 1 << (at % 8);
        world.store.put(&file, bytes.into()).await.unwrap();
        match run(&world, &Faults::default()).await {
            Ok(done) => assert_eq!((done.rows, done.pending), (3, 0), "byte {at}"),
            Err(error) => {
                refused += 1;
                let text = error.chain();
                let name = file.filename().unwrap();
                assert!(text.contains(name), "byte {at}: {text}");
                world.store.put(&file, sound.clone().into()).await.unwrap();
                assert_eq!(bad_records(&world).await.len(), 3, "byte {at}");
                run(&world, &Faults::default()).await.unwrap();
            }
        }
        assert_eq!(lake_ids(&world).await, (0..20).collect::<Vec<_>>(), "{at}");
        assert!(bad_records(&world).await.is_empty(), "byte {at}");
        assert_sound(&world).await;
    }
    assert!(refused > 20, "{refused} of {}", sound.len() / 23);
}

async fn sweep(fault: Fault) {
    let mut at = 0;
    loop {
        let world = world().await;
        world.names_are_required(false).await;
        let faults = Faults::default();
        faults.plan(at, fault);
        tokio::select! {
            _ = run(&world, &faults) => {}
            () = faults.stopped() => {}
        }
        let fired = faults.fired();
        run(&world, &Faults::default()).await.unwrap();
        assert_eq!(
            lake_ids(&world).await,
            (0..20).collect::<Vec<_>>(),
            "{fault:?} at {fired:?}"
        );
        assert!(
            bad_records(&world).await.is_empty(),
            "{fault:?} at {fired:?}"
        );
        assert_sound(&world).await;
        if fired.is_none() {
            assert!(at > 20, "the sweep ended after {at} calls");
            return;
        }
        at += 1;
    }
}

#[tokio::test]
async fn each_record_is_put_back_once_whichever_call_fails_or_loses_its_reply() {
    for fault in [Fault::Fail, Fault::LoseReply, Fault::LoseReplyForEver] {
        sweep(fault).await;
    }
}

#[tokio::test]
async fn each_record_is_put_back_once_wherever_the_replay_dies() {
    for fault in [Fault::CrashBefore, Fault::CrashAfter] {
        sweep(fault).await;
    }
}

#[tokio::test]
async fn a_replay_that_wakes_up_after_another_one_changes_nothing() {
    let mut at = 0;
    loop {
        let world = world().await;
        world.names_are_required(false).await;
        let faults = Faults::default();
        faults.plan(at, Fault::FreezeBefore);
        let sleeper = run(&world, &faults);
        tokio::pin!(sleeper);
        tokio::select! {
            _ = &mut sleeper => {}
            () = faults.stopped() => {}
        }
        let fired = faults.fired();
        run(&world, &Faults::default()).await.unwrap();
        faults.thaw();
        if fired.is_some() {
            // It may fail, or find nothing left to do.
            drop(sleeper.await);
        }
        run(&world, &Faults::default()).await.unwrap();
        assert_eq!(
            lake_ids(&world).await,
            (0..20).collect::<Vec<_>>(),
            "at {fired:?}"
        );
        assert_sound(&world).await;
        if fired.is_none() {
            return;
        }
        at += 1;
    }
}

/// Whether three records that a replay claimed are in the lake (it died after its lake commit, or
/// right before), which no snapshot tells any more.
async fn untold(in_lake: bool) -> World {
    for at in 0.. {
        let mut world = world().await;
        world.names_are_required(false).await;
        let faults = Faults::default();
        faults.plan(at, Fault::CrashBefore);
        tokio::select! {
            _ = run(&world, &faults) => panic!("it was to die"),
            () = faults.stopped() => {}
        }
        let warehouse = world.process(&Faults::default()).warehouse;
        let place = warehouse.bad_records(&world.path, &BTreeMap::new());
        let bad = place.unwrap().open().await.unwrap().unwrap();
        let is_claimed = bad.table.own_latest(COMMIT_USER).await.unwrap().is_some();
        if is_claimed && (lake_ids(&world).await.len() == 20) == in_lake {
            let latest = world.lake().await.latest_snapshot_id().await.unwrap();
            if !in_lake {
                world.append_named(bucket(None, 0), 1, |_| true);
                world.round().await.unwrap();
            }
            let seen = latest.unwrap() + i64::from(!in_lake);
            world.append_and_expire(seen).await;
            return world;
        }
    }
    unreachable!("a replay claims, then commits")
}

#[tokio::test]
async fn where_nothing_can_tell_a_replay_refuses_to_guess_and_a_person_decides() {
    for (in_lake, assumed) in [(true, Outcome::InLake), (false, Outcome::NotInLake)] {
        let world = untold(in_lake).await;
        let error = run(&world, &Faults::default()).await.unwrap_err();
        assert!(matches!(error, Error::ReplayUnknown { .. }), "{error}");
        assert_eq!(bad_records(&world).await.len(), 3);
        let before = lake_ids(&world).await.len();
        let done = run_assuming(&world, &Faults::default(), Some(assumed)).await;
        let rows = if in_lake { 0 } else { 3 };
        assert_eq!(done.unwrap().rows, rows);
        assert_eq!(lake_ids(&world).await.len(), before + rows);
        assert!(bad_records(&world).await.is_empty());
        // That is settled, then.
        run(&world, &Faults::default()).await.unwrap();
    }
}

/// Runs a replay until it freezes at that call; `None` if it ended before.
async fn frozen<'a>(
    world: &'a World,
    faults: &'a Faults,
    at: u64,
) -> Option<std::pin::Pin<Box<dyn Future<Output = Result<Replayed>> + 'a>>> {
    faults.plan(at, Fault::FreezeBefore);
    let mut sleeper: std::pin::Pin<Box<dyn Future<Output = Result<Replayed>> + 'a>> =
        Box::pin(run(world, faults));
    tokio::select! {
        _ = &mut sleeper => None,
        () = faults.stopped() => Some(sleeper),
    }
}

/// The last call at which a replay has claimed its records and not put them back yet.
async fn last_call_before_the_put() -> u64 {
    let mut last = None;
    for at in 0.. {
        let world = world().await;
        world.names_are_required(false).await;
        let faults = Faults::default();
        let is_frozen = frozen(&world, &faults, at).await.is_some();
        if !is_frozen || lake_ids(&world).await.len() == 20 {
            break;
        }
        let info = world.process(&Faults::default());
        let place = info
            .warehouse
            .bad_records(&world.path, &BTreeMap::new())
            .unwrap();
        let bad = place.open().await.unwrap().unwrap();
        if bad.table.own_latest(COMMIT_USER).await.unwrap().is_some() {
            last = Some(at);
        }
    }
    last.expect("a replay claims before it puts back")
}

#[tokio::test]
async fn two_replays_that_both_wake_up_late_put_nothing_back_twice() {
    let before_the_put = last_call_before_the_put().await;
    for other in 0.. {
        let world = world().await;
        world.names_are_required(false).await;
        let (first, second) = (Faults::default(), Faults::default());
        let early = frozen(&world, &first, before_the_put).await.unwrap();
        let late = frozen(&world, &second, other).await;
        let is_over = late.is_none();
        if is_over {
            // The sweep went through a whole replay, whose rows are there already.
            assert_eq!(lake_ids(&world).await.len(), 20, "after {other} calls");
        }
        first.thaw();
        drop(early.await);
        if let Some(late) = late {
            second.thaw();
            drop(late.await);
        }
        run(&world, &Faults::default()).await.unwrap();
        let what = format!("{:?}", second.fired());
        assert_eq!(
            lake_ids(&world).await,
            (0..20).collect::<Vec<_>>(),
            "{what}"
        );
        assert!(bad_records(&world).await.is_empty(), "{what}");
        assert_sound(&world).await;
        if is_over {
            break;
        }
    }
}
