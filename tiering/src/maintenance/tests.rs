use super::*;
use crate::status::TableState;
use crate::testing::Faults;
use crate::testing::world::{Shape, TABLE, World, bucket};
use object_store::ObjectStoreExt as _;
use object_store::path::Path;
use weir_lake_format::SchemaChange;

/// A world whose lake table keeps two snapshots of any age, with its maintenance.
async fn world(partitions: Option<Vec<(i64, Option<i32>)>>) -> World {
    let shape = Shape {
        partitions,
        ..Shape::plain(1)
    };
    let world = World::new(shape).await;
    set(&world, "snapshot.num-retained.min", "2").await;
    set(&world, "snapshot.num-retained.max", "2").await;
    world
}

async fn set(world: &World, key: &str, value: &str) {
    let lake = world.lake().await;
    let change = SchemaChange::SetOption {
        name: key.to_owned(),
        value: value.to_owned(),
    };
    let schema = lake.latest_schema().await.unwrap();
    let next = schema.evolve(&[change], 0).unwrap();
    lake.add_schema(&next).await.unwrap();
}

fn asks(world: &World) {
    let mut state = world.cluster.state.lock();
    let table = state.tables.get_mut(&world.path).unwrap();
    table
        .info
        .properties
        .insert(AUTO_EXPIRE.to_owned(), "true".to_owned());
}

fn maintenance(world: &World, faults: &Faults, config: MaintenanceConfig) -> Maintenance {
    let runner = world.process(faults);
    let clock = Arc::clone(&world.clock) as Arc<dyn Clock>;
    Maintenance::new(runner.resources.client, runner.warehouse, clock, config)
}

fn at_once() -> MaintenanceConfig {
    MaintenanceConfig {
        interval_ms: 0,
        ..MaintenanceConfig::default()
    }
}

/// Commits rounds with one row each, tells of the last, and waits for what comes of it.
async fn commit_and_maintain(world: &mut World, maintenance: &mut Maintenance, rounds: usize) {
    let partition = {
        let state = world.cluster.state.lock();
        let partitions = &state.tables[&world.path].partitions;
        partitions.first().map(|partition| partition.id.0)
    };
    let mut snapshot = 0;
    for _ in 0..rounds {
        world.append(bucket(partition, 0), 1);
        let report = world.round().await.unwrap();
        snapshot = report.committed.unwrap().snapshot;
    }
    maintenance.committed(&world.path, TABLE, snapshot);
    while let Some(ended) = maintenance.running.join_next().await {
        ended.unwrap();
    }
}

async fn ids(world: &World) -> Vec<i64> {
    world.lake().await.snapshot_ids().await.unwrap()
}

#[tokio::test]
async fn old_snapshots_expire_only_where_the_table_or_the_daemon_asks() {
    let mut world = world(None).await;
    let mut silent = maintenance(&world, &Faults::default(), at_once());
    commit_and_maintain(&mut world, &mut silent, 5).await;
    assert_eq!(ids(&world).await, [1, 2, 3, 4, 5]);
    let config = MaintenanceConfig {
        auto_expire_snapshot: true,
        ..at_once()
    };
    let mut daemons = maintenance(&world, &Faults::default(), config);
    commit_and_maintain(&mut world, &mut daemons, 1).await;
    assert_eq!(ids(&world).await, [5, 6]);
    asks(&world);
    commit_and_maintain(&mut world, &mut silent, 2).await;
    assert_eq!(ids(&world).await, [7, 8]);
    let counts = silent.counts(TABLE);
    assert_eq!((counts.expired_snapshots, counts.failures), (2, 0));
    assert_eq!(silent.warning(TABLE), None);
    assert_eq!(world.lake_rows().await, world.log_rows(true));
}

#[tokio::test]
async fn a_run_comes_no_sooner_than_its_interval() {
    let mut world = world(None).await;
    asks(&world);
    let mut hourly = maintenance(
        &world,
        &Faults::default(),
        MaintenanceConfig {
            interval_ms: 3_600_000,
            ..MaintenanceConfig::default()
        },
    );
    commit_and_maintain(&mut world, &mut hourly, 3).await;
    assert_eq!(ids(&world).await, [2, 3]);
    commit_and_maintain(&mut world, &mut hourly, 3).await;
    assert_eq!(ids(&world).await.len(), 5);
    world.clock.advance(Duration::from_millis(3_600_000));
    commit_and_maintain(&mut world, &mut hourly, 1).await;
    assert_eq!(ids(&world).await.len(), 2);
}

#[tokio::test]
async fn what_goes_wrong_is_a_warning_of_the_table_and_no_rounds_trouble() {
    let mut world = world(None).await;
    asks(&world);
    let mut maintenance = maintenance(&world, &Faults::default(), at_once());
    let consumer = Path::from("lake/d.db/t/consumer/consumer-odd");
    world.store.put(&consumer, "odd".into()).await.unwrap();
    commit_and_maintain(&mut world, &mut maintenance, 4).await;
    let warning = maintenance.warning(TABLE).unwrap();
    assert!(warning.contains("consumer-odd"), "{warning}");
    assert_eq!(maintenance.counts(TABLE).failures, 1);
    assert_eq!(ids(&world).await.len(), 4);
    world.store.delete(&consumer).await.unwrap();
    commit_and_maintain(&mut world, &mut maintenance, 1).await;
    assert_eq!(maintenance.warning(TABLE), None);
    assert_eq!(ids(&world).await, [4, 5]);
    maintenance.forget(TABLE);
    assert_eq!(maintenance.counts(TABLE), Counts::default());
}

#[tokio::test]
async fn partitions_that_say_no_time_stay_and_are_told() {
    let mut world = world(Some(vec![(1, Some(1))])).await;
    asks(&world);
    set(&world, "partition.expiration-time", "1 d").await;
    let mut maintenance = maintenance(&world, &Faults::default(), at_once());
    commit_and_maintain(&mut world, &mut maintenance, 3).await;
    let warning = maintenance.warning(TABLE).unwrap();
    assert!(warning.contains("say no time"), "{warning}");
    assert_eq!(ids(&world).await, [2, 3]);
    assert_eq!(world.lake_rows().await, world.log_rows(true));
}

/// Time to live is a question of the table's own options: `values-time` with a formatter that reads
/// the partition as a day long ago.
#[tokio::test]
async fn fc_064_old_partitions_go_after_the_next_commit_and_tiering_goes_on() {
    let mut world = world(Some(vec![(19_990_101, Some(1))])).await;
    asks(&world);
    set(&world, "partition.expiration-time", "1 d").await;
    set(&world, "partition.expiration-check-interval", "0").await;
    set(&world, "partition.timestamp-formatter", "'p'yyyyMMdd").await;
    // Later than that day: the clock of a test begins in 1970.
    world.clock.set_ms(1_700_000_000_000);
    let mut maintenance = maintenance(&world, &Faults::default(), at_once());
    commit_and_maintain(&mut world, &mut maintenance, 2).await;
    let lake = world.lake().await;
    let latest = lake.latest_snapshot().await.unwrap().unwrap();
    assert_eq!(latest.commit_user, MAINTENANCE_USER);
    assert_eq!(latest.total_record_count, 0);
    // The newest snapshot of tiering is still what the next round builds on.
    commit_and_maintain(&mut world, &mut maintenance, 1).await;
    let own = lake.own_latest(COMMIT_USER).await.unwrap().unwrap();
    assert_eq!(own.delta_record_count, 1);
    assert_eq!(maintenance.warning(TABLE), None);
}

#[tokio::test]
async fn the_daemon_shows_the_warning_and_the_table_stays_healthy() {
    let mut world = world(None).await;
    asks(&world);
    let consumer = Path::from("lake/d.db/t/consumer/consumer-odd");
    world.store.put(&consumer, "odd".into()).await.unwrap();
    world.append(bucket(None, 0), 5);
    world.cluster.state.lock().offer(&world.path);
    let runner = world.process(&Faults::default());
    let components = crate::daemon::Components {
        client: runner.resources.client,
        warehouse: runner.warehouse,
        clock: Arc::new(weir_catalog::clock::SystemClock),
    };
    let config = crate::config::DaemonConfig {
        warehouse: "lake".to_owned(),
        heartbeat_ms: 20,
        ..crate::config::DaemonConfig::default()
    };
    let mut registry = prometheus_client::registry::Registry::default();
    let handle = crate::daemon::Daemon::start_with(config, components, &mut registry).unwrap();
    let mut statuses = handle.watch();
    let warned = statuses.wait_for(|statuses| {
        let warning = statuses.first().and_then(|status| status.warning.as_ref());
        warning.is_some_and(|warning| warning.contains("consumer-odd"))
    });
    let status = warned.await.unwrap().first().cloned().unwrap();
    assert_eq!(status.state, TableState::Healthy);
    assert_eq!(status.last_error, None);
    world.check(true).await;
    handle.shutdown().await;
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    assert!(
        text.contains("weir_tiering_maintenance_failures{table=\"d.t\"} 1"),
        "{text}"
    );
    let requests = text
        .lines()
        .find_map(|line| line.strip_prefix("weir_tiering_lake_requests_total{table=\"d.t\"} "));
    let requests: u64 = requests.unwrap().parse().unwrap();
    assert!((10..80).contains(&requests), "{requests}");
}
