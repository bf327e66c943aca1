use std::time::Duration;

use prometheus_client::registry::Registry;

use super::*;
use crate::status::{RoundOutcome, TableState};
use crate::testing::Faults;
use crate::testing::world::{Shape, World, bucket};

mod others;

fn config() -> DaemonConfig {
    let mut config = DaemonConfig {
        warehouse: "lake".to_owned(),
        ..DaemonConfig::default()
    };
    config.heartbeat_ms = 20;
    config.retry.first_ms = 20;
    config.retry.max_ms = 200;
    config.lag_ms = 20;
    config.rpc_timeout_ms = 2_000;
    config.stop_ms = 2_000;
    config
}

fn start(world: &World, faults: &Faults) -> Handle {
    let runner = world.process(faults);
    let components = Components {
        client: runner.resources.client,
        warehouse: runner.warehouse,
        clock: Arc::new(SystemClock),
    };
    Daemon::start_with(config(), components, &mut Registry::default()).unwrap()
}

/// Waits until the table's status is as wanted.
async fn until(handle: &Handle, wanted: impl Fn(&TableStatus) -> bool) -> TableStatus {
    let mut statuses = handle.watch();
    let found = tokio::time::timeout(Duration::from_secs(30), async {
        loop {
            let status = statuses.borrow_and_update().first().cloned();
            match status {
                Some(status) if wanted(&status) => return status,
                _ => statuses.changed().await.unwrap(),
            }
        }
    });
    found
        .await
        .unwrap_or_else(|_| panic!("not in time: {:?}", handle.status()))
}

fn committed(status: &TableStatus) -> bool {
    let outcome = status.last_round.as_ref().map(|round| &round.outcome);
    matches!(outcome, Some(RoundOutcome::Committed { .. }))
}

#[tokio::test]
async fn a_table_that_is_handed_out_is_tiered_and_reported() {
    let mut world = World::new(Shape::plain(2)).await;
    world.append(bucket(None, 0), 5);
    world.append(bucket(None, 1), 5);
    world.cluster.state.lock().offer(&world.path);
    let handle = start(&world, &Faults::default());
    handle.ready().await.unwrap();
    let status = until(&handle, committed).await;
    assert_eq!(
        (status.lag_rows, status.state),
        (Some(0), TableState::Healthy)
    );
    world.check(true).await;
    handle.shutdown().await;
    let state = world.cluster.state.lock();
    assert_eq!(state.heartbeats[0], crate::cluster::Heartbeat::default());
    assert!(
        state
            .heartbeats
            .iter()
            .any(|sent| !sent.finished.is_empty())
    );
    assert!(!state.tables[&world.path].held);
}

#[tokio::test]
async fn a_daemon_goes_on_after_any_one_call_failed() {
    for at in 0..30 {
        let mut world = World::new(Shape::plain(1)).await;
        world.append(bucket(None, 0), 5);
        world.cluster.state.lock().offer(&world.path);
        let faults = Faults::default();
        faults.plan(at, crate::testing::Fault::LoseReply);
        let handle = start(&world, &faults);
        until(&handle, |status| {
            status.lag_rows == Some(0) && status.lake_snapshot.is_some()
        })
        .await;
        handle.shutdown().await;
        world.recover().await;
        world.check(true).await;
    }
}

#[tokio::test]
async fn a_new_coordinator_is_registered_with_and_gives_the_table_out_again() {
    let mut world = World::new(Shape::plain(1)).await;
    world.append(bucket(None, 0), 5);
    world.cluster.state.lock().offer(&world.path);
    let handle = start(&world, &Faults::default());
    until(&handle, committed).await;
    world.append(bucket(None, 0), 5);
    {
        let mut state = world.cluster.state.lock();
        state.coordinator = 2;
        state.offer(&world.path);
    }
    until(&handle, |status| status.lake_snapshot == Some(2)).await;
    world.check(true).await;
    handle.shutdown().await;
}

#[tokio::test]
async fn pause_holds_a_table_and_resume_lets_it_go_on() {
    let mut world = World::new(Shape::plain(1)).await;
    world.append(bucket(None, 0), 5);
    world.cluster.state.lock().auto = true;
    world.cluster.state.lock().offer(&world.path);
    let handle = start(&world, &Faults::default());
    until(&handle, committed).await;
    handle.pause(&world.path).await.unwrap();
    until(&handle, |status| {
        let paused = matches!(status.state, TableState::Paused { .. });
        paused && status.activity == crate::status::Activity::Held
    })
    .await;
    world.append(bucket(None, 0), 3);
    until(&handle, |status| status.lag_rows == Some(3)).await;
    handle.resume(&world.path).await.unwrap();
    until(&handle, |status| {
        status.lag_rows == Some(0) && status.lake_snapshot == Some(2)
    })
    .await;
    world.check(true).await;
    handle.shutdown().await;
}

#[tokio::test]
async fn a_pause_outlives_the_daemon_and_holds_against_tier_now() {
    let mut world = World::new(Shape::plain(1)).await;
    world.append(bucket(None, 0), 5);
    world.cluster.state.lock().auto = true;
    world.cluster.state.lock().offer(&world.path);
    let dir = tempfile::tempdir().unwrap();
    let start = |world: &World| {
        let runner = world.process(&Faults::default());
        let components = Components {
            client: runner.resources.client,
            warehouse: runner.warehouse,
            clock: Arc::new(SystemClock),
        };
        let config = DaemonConfig {
            state_file: Some(dir.path().join("tiering.json")),
            ..config()
        };
        Daemon::start_with(config, components, &mut Registry::default()).unwrap()
    };
    let first = start(&world);
    until(&first, committed).await;
    first.pause(&world.path).await.unwrap();
    first.shutdown().await;
    world.append(bucket(None, 0), 3);
    let second = start(&world);
    let status = until(&second, |status| {
        status.activity == crate::status::Activity::Held
    })
    .await;
    assert!(
        matches!(status.state, TableState::Paused { .. }),
        "{status:?}"
    );
    let refused = second.tier_now(&world.path).await;
    assert!(
        matches!(refused, Err(Error::PausedByPerson { .. })),
        "{refused:?}"
    );
    second.resume(&world.path).await.unwrap();
    until(&second, |status| status.lake_snapshot == Some(2)).await;
    world.check(true).await;
    second.shutdown().await;
    let third = start(&world);
    world.append(bucket(None, 0), 3);
    until(&third, |status| status.lake_snapshot == Some(3)).await;
    third.shutdown().await;
}

#[tokio::test]
async fn tier_now_of_a_table_without_a_lake_leaves_no_entry() {
    let world = World::new(Shape::plain(1)).await;
    world.set_property("table.datalake.enabled", "false");
    let handle = start(&world, &Faults::default());
    handle.ready().await.unwrap();
    let refused = handle.tier_now(&world.path).await.unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("set table.datalake.enabled=true"),
        "{refused}"
    );
    assert_eq!(handle.fresh_status(Duration::from_secs(10)).await, []);
    handle.shutdown().await;
}

#[tokio::test]
async fn tier_now_does_not_wait_for_the_coordinator() {
    let mut world = World::new(Shape::plain(1)).await;
    world.append(bucket(None, 0), 5);
    let handle = start(&world, &Faults::default());
    handle.ready().await.unwrap();
    // Never handed out: the world's lease is of epoch 1, nobody offers it.
    handle.tier_now(&world.path).await.unwrap();
    until(&handle, committed).await;
    world.append(bucket(None, 0), 2);
    let fresh = handle.fresh_status(Duration::from_secs(10)).await;
    assert_eq!(fresh[0].lag_rows, Some(2));
    handle.tier_now(&world.path).await.unwrap();
    until(&handle, |status| status.lake_snapshot == Some(2)).await;
    world.check(true).await;
    let unknown = handle.tier_now(&TablePath::new("d", "none")).await;
    assert!(matches!(unknown, Err(Error::Cluster { .. })), "{unknown:?}");
    handle.shutdown().await;
    assert!(matches!(
        handle.pause(&world.path).await,
        Err(Error::Stopped)
    ));
}

#[tokio::test]
async fn tier_now_works_after_a_restart_over_a_lake_that_was_written_under_a_lease() {
    let mut world = World::new(Shape::plain(1)).await;
    world.append(bucket(None, 0), 5);
    world.cluster.state.lock().offer(&world.path);
    let first = start(&world, &Faults::default());
    until(&first, committed).await;
    first.shutdown().await;
    world.append(bucket(None, 0), 2);
    let second = start(&world, &Faults::default());
    second.ready().await.unwrap();
    second.tier_now(&world.path).await.unwrap();
    until(&second, |status| status.lake_snapshot == Some(2)).await;
    world.check(true).await;
    second.shutdown().await;
}

#[tokio::test]
async fn lag_is_not_told_while_a_bucket_cannot_be_read() {
    let mut world = World::new(Shape::plain(2)).await;
    world.append(bucket(None, 0), 5);
    world.cluster.state.lock().offer(&world.path);
    let handle = start(&world, &Faults::default());
    until(&handle, |status| {
        committed(status) && status.lag_rows == Some(0)
    })
    .await;
    world.append(bucket(None, 1), 4);
    until(&handle, |status| status.lag_rows == Some(4)).await;
    let unreadable = bucket(None, 1);
    world.cluster.state.lock().no_offsets.push(unreadable);
    let fresh = handle.fresh_status(Duration::from_secs(10)).await;
    assert_eq!(fresh[0].lag_rows, None);
    handle.shutdown().await;
}

#[tokio::test]
async fn a_daemon_that_ended_is_not_ready() {
    let world = World::new(Shape::plain(1)).await;
    let handle = start(&world, &Faults::default());
    handle.ready().await.unwrap();
    assert!(handle.is_ready());
    handle.shutdown().await;
    handle.ended().await;
    assert!(!handle.is_ready());
}

#[tokio::test]
async fn a_broken_table_does_not_keep_the_daemon_from_stopping() {
    let mut shape = Shape::plain(1);
    shape.epoch = 1;
    shape.partitions = Some(vec![(31, None)]);
    let world = World::new(shape).await;
    world.cluster.state.lock().offer(&world.path);
    let handle = start(&world, &Faults::default());
    let status = until(&handle, |status| {
        matches!(status.state, TableState::Paused { .. })
    })
    .await;
    assert!(status.last_error.unwrap().contains("p31"));
    handle.shutdown().await;
    let state = world.cluster.state.lock();
    assert!(
        state.heartbeats.last().unwrap().failed.len() == 1,
        "it was given back"
    );
}

#[tokio::test]
async fn a_dropped_table_leaves_status_and_metrics_and_a_new_one_of_its_name_stands_alone() {
    let mut world = World::new(Shape::plain(1)).await;
    world.append(bucket(None, 0), 5);
    world.cluster.state.lock().offer(&world.path);
    let runner = world.process(&Faults::default());
    let components = Components {
        client: runner.resources.client,
        warehouse: runner.warehouse,
        clock: Arc::new(SystemClock),
    };
    let mut registry = Registry::default();
    let handle = Daemon::start_with(config(), components, &mut registry).unwrap();
    until(&handle, committed).await;
    let metrics = || {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text
    };
    assert!(metrics().contains("table=\"d.t\""), "{}", metrics());
    let mut table = world
        .cluster
        .state
        .lock()
        .tables
        .remove(&world.path)
        .unwrap();
    // Whoever looks keeps the daemon looking.
    let ids = |statuses: &[TableStatus]| statuses.iter().map(|s| s.table_id.0).collect::<Vec<_>>();
    let wait = async |wanted: &[i64]| {
        let mut statuses = handle.watch();
        let found = statuses.wait_for(|statuses| ids(statuses) == wanted);
        let found = tokio::time::timeout(Duration::from_secs(20), found).await;
        found.expect("not in time").unwrap();
    };
    wait(&[]).await;
    assert!(!metrics().contains("table=\"d.t\""), "{}", metrics());
    table.info.id = TableId(8);
    table.logs.clear();
    {
        let mut state = world.cluster.state.lock();
        state.tables.insert(world.path.clone(), table);
        state.offer(&world.path);
    }
    wait(&[8]).await;
    handle.shutdown().await;
}

#[tokio::test]
async fn a_table_whose_writes_fail_leaves_another_its_freshness() {
    let mut world = World::new(Shape::plain(1)).await;
    let small = world.path.clone();
    world.add_table("big", TableId(6)).await;
    let big = world.path.clone();
    let of_big = weir_protocol::ids::TableBucket {
        table: TableId(6),
        ..bucket(None, 0)
    };
    for _ in 0..50 {
        world.append(of_big, 100);
    }
    let faults = Faults::default();
    faults.refuse("d.db/big/bucket-0");
    {
        let mut state = world.cluster.state.lock();
        state.auto = true;
        state.offer(&big);
        state.offer(&small);
    }
    let runner = world.process(&faults);
    let components = Components {
        client: runner.resources.client,
        warehouse: runner.warehouse,
        clock: Arc::new(SystemClock),
    };
    // One slot for both.
    let config = DaemonConfig {
        tables: 1,
        ..config()
    };
    let handle = Daemon::start_with(config, components, &mut Registry::default()).unwrap();
    let of = |statuses: &[TableStatus], path: &TablePath| {
        statuses.iter().find(|status| status.path == *path).cloned()
    };
    let failures = |status: &TableStatus| match status.state {
        TableState::Retrying { failures, .. } => failures,
        _ => 0,
    };
    world.path = small.clone();
    for snapshot in 1..=5 {
        world.append(bucket(None, 0), 1);
        let mut statuses = handle.watch();
        let tiered = statuses.wait_for(|statuses| {
            let tiered = of(statuses, &small).and_then(|status| status.lake_snapshot);
            let failed = of(statuses, &big).map_or(0, |status| failures(&status));
            // As often as the small one is tiered, the big one has failed.
            tiered >= Some(snapshot) && i64::from(failed) >= snapshot
        });
        let tiered = tokio::time::timeout(Duration::from_secs(20), tiered).await;
        drop(tiered.expect("not in time").unwrap());
        handle.status();
    }
    let status = of(&handle.status(), &small).unwrap();
    assert_eq!(
        (status.state, status.last_error),
        (TableState::Healthy, None)
    );
    let error = of(&handle.status(), &big).unwrap().last_error.unwrap();
    assert!(error.contains("d.db/big/bucket-0"), "{error}");
    handle.shutdown().await;
}

#[tokio::test]
async fn fc_061_a_person_accepts_a_loss_and_the_table_goes_on() {
    let mut world = World::new(Shape::plain(1)).await;
    world.append_named(bucket(None, 0), 100, |_| true);
    world.append_named(bucket(None, 0), 150, |_| true);
    world.append_named(bucket(None, 0), 50, |_| true);
    world.cluster.state.lock().offer(&world.path);
    world.edit_log(bucket(None, 0), |log| {
        log.batches.remove(1);
    });
    let handle = start(&world, &Faults::default());
    let status = until(&handle, |status| {
        matches!(status.state, TableState::Paused { .. })
    })
    .await;
    let reason = status.last_error.unwrap();
    assert!(reason.contains("bucket 0: lost range 100..250"), "{reason}");
    let lost = handle.accept_loss(&world.path).await.unwrap();
    let expected = LostOffsets {
        partition: None,
        bucket: 0,
        from: 100,
        to: 250,
    };
    assert_eq!(lost, [expected]);
    until(&handle, |status| {
        status.state == TableState::Healthy && status.lag_rows == Some(0)
    })
    .await;
    let nothing = handle.accept_loss(&world.path).await;
    assert!(
        matches!(nothing, Err(Error::NothingLost { .. })),
        "{nothing:?}"
    );
    handle.shutdown().await;
    crate::bad_records::book::tests::assert_sound(&world).await;
}

/// Two tables, `slow` and `quick`, of one daemon; `quick` is the world's.
async fn two_tables(
    faults: &Faults,
) -> (World, TablePath, weir_protocol::ids::TableBucket, Handle) {
    let mut world = World::new(Shape::plain(1)).await;
    let quick = world.path.clone();
    world.add_table("slow", TableId(6)).await;
    let slow = std::mem::replace(&mut world.path, quick.clone());
    {
        let mut state = world.cluster.state.lock();
        state.auto = true;
        state.offer(&slow);
        state.offer(&quick);
    }
    let handle = start(&world, faults);
    let of_slow = weir_protocol::ids::TableBucket {
        table: TableId(6),
        ..bucket(None, 0)
    };
    (world, slow, of_slow, handle)
}

/// Waits until the status of `path` is as wanted.
async fn until_of(
    handle: &Handle,
    path: &TablePath,
    wanted: impl Fn(&TableStatus) -> bool,
) -> TableStatus {
    let mut statuses = handle.watch();
    let found = statuses.wait_for(|all| all.iter().any(|one| one.path == *path && wanted(one)));
    let found = tokio::time::timeout(Duration::from_secs(30), found).await;
    let found = found
        .unwrap_or_else(|_| panic!("not in time: {:?}", handle.status()))
        .unwrap();
    found.iter().find(|one| one.path == *path).cloned().unwrap()
}

#[tokio::test]
async fn fc_074_a_slow_commit_of_one_table_delays_no_other() {
    let faults = Faults::default();
    faults.hold(Some("put lake/d.db/slow/snapshot/"));
    let (mut world, slow, of_slow, handle) = two_tables(&faults).await;
    let quick = std::mem::replace(&mut world.path, slow.clone());
    world.append(of_slow, 4);
    until_of(&handle, &slow, |status| {
        status.activity == crate::status::Activity::Committing
    })
    .await;
    world.path = quick.clone();
    for snapshot in 1..=5 {
        world.append(bucket(None, 0), 1);
        world.cluster.state.lock().offer(&quick);
        until_of(&handle, &quick, |status| {
            status.lake_snapshot == Some(snapshot)
        })
        .await;
    }
    let status = until_of(&handle, &slow, |_| true).await;
    assert_eq!(status.activity, crate::status::Activity::Committing);
    assert_eq!(status.lake_snapshot, None);
    faults.hold(None);
    until_of(&handle, &slow, |status| status.lake_snapshot == Some(1)).await;
    handle.shutdown().await;
}

#[tokio::test]
async fn fc_054_a_store_that_fails_for_a_while_ends_nothing_and_its_cause_is_shown() {
    let faults = Faults::default();
    faults.refuse("lake/d.db/t/bucket-0");
    let mut world = World::new(Shape::plain(1)).await;
    world.append(bucket(None, 0), 5);
    world.cluster.state.lock().auto = true;
    world.cluster.state.lock().offer(&world.path);
    let handle = start(&world, &faults);
    let mut pauses = Vec::new();
    for wanted in 1..=4 {
        let status = until(&handle, |status| {
            matches!(status.state, TableState::Retrying { failures, .. } if failures >= wanted)
        })
        .await;
        let TableState::Retrying {
            next_attempt_ms, ..
        } = status.state
        else {
            unreachable!()
        };
        let round = status.last_round.unwrap();
        pauses.push(next_attempt_ms - round.started_ms - round.duration_ms);
        let cause = status.last_error.unwrap();
        assert!(
            cause.contains("connection lost") && cause.contains("bucket-0"),
            "{cause}"
        );
    }
    assert!(pauses[3] > pauses[0], "pauses grow: {pauses:?}");
    faults.allow();
    until(&handle, |status| {
        status.state == TableState::Healthy && status.lag_rows == Some(0)
    })
    .await;
    world.check(true).await;
    handle.shutdown().await;
}

#[tokio::test]
async fn fc_078_lag_is_unknown_before_the_buckets_were_looked_at_and_zero_after_catching_up() {
    let mut world = World::new(Shape::plain(2)).await;
    world.append(bucket(None, 0), 100);
    world.cluster.state.lock().no_offsets.push(bucket(None, 1));
    world.cluster.state.lock().offer(&world.path);
    let faults = Faults::default();
    faults.hold(Some("table info"));
    let handle = start(&world, &faults);
    let status = until(&handle, |status| {
        status.activity == crate::status::Activity::Splitting
    })
    .await;
    assert_eq!((status.state, status.lag_rows), (TableState::Unknown, None));
    faults.hold(None);
    // One bucket is in the lake, the other may hold rows.
    let status = until(&handle, committed).await;
    assert_eq!(status.lag_rows, None);
    assert!(
        matches!(status.state, TableState::Retrying { .. }),
        "{status:?}"
    );
    world.cluster.state.lock().no_offsets.clear();
    until(&handle, |status| {
        (status.state == TableState::Healthy) && status.lag_rows == Some(0)
    })
    .await;
    handle.shutdown().await;
}

#[tokio::test]
async fn a_bucket_that_stopped_for_good_leaves_the_others_their_freshness() {
    let mut world = World::new(Shape::plain(2)).await;
    world.names_are_required(true).await;
    world.append_named(bucket(None, 0), 3, |_| false);
    world.set_property("table.datalake.freshness", "1s");
    world.cluster.state.lock().offer(&world.path);
    let runner = world.process(&Faults::default());
    let components = Components {
        client: runner.resources.client,
        warehouse: runner.warehouse,
        clock: Arc::new(SystemClock),
    };
    // Whoever waits for the longest pause waits in vain.
    let mut config = config();
    config.retry.max_ms = 3_600_000;
    let handle = Daemon::start_with(config, components, &mut Registry::default()).unwrap();
    for snapshot in 1..=2 {
        world.append_named(bucket(None, 1), 2, |_| true);
        let status = until(&handle, |status| status.lake_snapshot == Some(snapshot)).await;
        assert!(
            matches!(status.state, TableState::Paused { .. }),
            "{status:?}"
        );
    }
    handle.shutdown().await;
}
