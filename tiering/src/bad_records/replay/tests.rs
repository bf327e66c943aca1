use super::super::book::tests::{assert_sound, bad_records, lake_ids, strict_world};
use super::*;
use crate::testing::world::{World, bucket};
use crate::testing::{Fault, Faults};

async fn run(world: &World, faults: &Faults) -> Result<Replayed> {
    let runner = world.process(faults);
    let clock: Arc<dyn Clock> = Arc::clone(&runner.resources.clock);
    let (client, warehouse) = (&runner.resources.client, &runner.warehouse);
    replay(client, warehouse, &world.path, &clock).await
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
async fn records_that_still_do_not_fit_stay_and_the_others_go() {
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

#[tokio::test]
async fn where_nothing_can_tell_a_replay_refuses_to_guess() {
    let world = world().await;
    world.names_are_required(false).await;
    let mut at = 0;
    // Dies right after its lake commit.
    loop {
        let faults = Faults::default();
        faults.plan(at, Fault::CrashBefore);
        tokio::select! {
            _ = run(&world, &faults) => panic!("it was to die"),
            () = faults.stopped() => {}
        }
        if lake_ids(&world).await.len() == 20 {
            break;
        }
        at += 1;
    }
    let lake = world.lake().await;
    let replayed = lake.own_latest(COMMIT_USER).await.unwrap().unwrap();
    world.append_and_expire(replayed.id).await;
    let error = run(&world, &Faults::default()).await.unwrap_err();
    assert!(matches!(error, Error::ReplayUnknown { .. }), "{error}");
    assert_eq!(bad_records(&world).await.len(), 3);
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
            assert!(
                other > before_the_put,
                "the sweep ended after {other} calls"
            );
            break;
        }
    }
}
