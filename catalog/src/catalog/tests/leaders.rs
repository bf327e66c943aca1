//! Tablet servers and the leaders of buckets.

use super::*;

#[tokio::test]
async fn leaders_and_servers_are_kept() {
    let world = World::new().await;
    let table = world.table(&log_table()).await;
    let bucket = |b| TableBucket {
        table: table.table_id,
        partition: None,
        bucket: BucketId(b),
    };
    let leader = LeaderIsr::first(ServerId(1), vec![ServerId(1)], CoordinatorEpoch(0));
    let leaders = [(bucket(0), leader.clone(), Expect::Absent)];
    world.catalog.put_leaders(&leaders).await.unwrap();
    let error = world.catalog.put_leaders(&leaders).await.unwrap_err();
    assert!(matches!(error, Error::Conflict { .. }), "{error}");
    let found = world
        .catalog
        .get_leaders(&[bucket(1), bucket(0)])
        .await
        .unwrap();
    assert!(found[0].is_none());
    assert_eq!(found[1].as_ref().unwrap().document, leader);

    let session = world
        .store
        .open_session(std::time::Duration::from_secs(10))
        .await
        .unwrap();
    let server = TabletServer {
        listeners: "FLUSS://h:1".to_owned(),
        register_timestamp: 1,
        rack: None,
        cpu_cores: None,
        memory_bytes: None,
        unknown: Unknown::new(),
    };
    world
        .catalog
        .register_server(ServerId(3), &server, session.id())
        .await
        .unwrap();
    assert_eq!(
        world.catalog.list_servers().await.unwrap(),
        [(ServerId(3), server)]
    );
    world.store.close_session(session.id()).await.unwrap();
    assert_eq!(world.catalog.list_servers().await.unwrap(), []);
    let wrong = Key::from_stored("/tabletservers/ids/4294967297").unwrap();
    let txn = Txn::new(None).put(wrong, "{}", Expect::Absent);
    world.store.commit(txn).await.unwrap();
    let error = world.catalog.list_servers().await.unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    let ids = world.catalog.take_writer_ids(3).await.unwrap();
    assert_eq!(
        world.catalog.take_writer_ids(1).await.unwrap().start,
        ids.end
    );
}
