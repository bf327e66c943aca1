//! Tables from creation to drop.

use super::*;

#[tokio::test]
async fn a_table_is_created_whole_and_dropped_whole() {
    let world = World::new().await;
    let table = world.table(&log_table()).await;
    assert_eq!(world.catalog.get_table(&path()).await.unwrap(), table);
    assert_eq!(
        (table.schema_id, table.bucket_count),
        (SchemaId(1), TotalBuckets(4))
    );
    assert_eq!((table.created_ms, table.bucket_layout_epoch), (1000, 0));
    let assignment = world
        .catalog
        .find_assignment(table.table_id, None)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(assignment.document.bucket_count(), TotalBuckets(4));
    let error = world.create(&path(), &log_table()).await.unwrap_err();
    assert!(matches!(error, Error::TableAlreadyExist { .. }), "{error}");
    let request = NewTable {
        path: &path(),
        descriptor: &partitioned(),
        servers: &SERVERS,
    };
    let again = world
        .catalog
        .create_table(request, IfExists::Ignore)
        .await
        .unwrap();
    assert_eq!(again, Created::Existing(table.clone()));

    let dropped = world
        .catalog
        .drop_table(&path(), IfMissing::Fail)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        dropped,
        DroppedTable {
            table_id: table.table_id,
            partitions: Vec::new()
        }
    );
    assert_eq!(world.catalog.find_table(&path()).await.unwrap(), None);
    let unfinished = world.catalog.list_assignments().await.unwrap();
    assert_eq!(unfinished, (vec![table.table_id], Vec::new()));
    world
        .catalog
        .finish_table_drop(table.table_id)
        .await
        .unwrap();
    assert_eq!(
        world.catalog.list_assignments().await.unwrap(),
        (Vec::new(), Vec::new())
    );
    assert!(
        world
            .catalog
            .drop_table(&path(), IfMissing::Ignore)
            .await
            .unwrap()
            .is_none()
    );
    let error = world
        .catalog
        .drop_table(&path(), IfMissing::Fail)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::TableNotExist { .. }), "{error}");
    let reborn = world.table(&log_table()).await;
    assert!(reborn.table_id > table.table_id, "ids are never used again");
}

#[tokio::test]
async fn the_lake_table_of_a_table_that_was_tiered_is_never_another() {
    let world = World::new().await;
    let table = world.table(&lake_enabled(log_table())).await;
    let alter = async |changes: &[TableChange]| {
        let path = path();
        let altered = world.catalog.alter_table(&path, changes, IfMissing::Fail);
        altered.await.map(drop)
    };
    let off = set("table.datalake.enabled", "false");
    let rename = set("table.datalake.table-name", "other");
    alter(&[off.clone(), rename]).await.unwrap();
    world
        .catalog
        .next_tiering_epoch(table.table_id)
        .await
        .unwrap();
    let error = alter(&[set("table.datalake.table-name", "third")])
        .await
        .unwrap_err();
    assert!(matches!(error, Error::InvalidAlterTable { .. }), "{error}");
    alter(&[set("table.datalake.enabled", "true")])
        .await
        .unwrap();
}

#[tokio::test]
async fn columns_and_properties_change_the_lake_first() {
    let world = World::new().await;
    world.table(&lake_enabled(log_table())).await;
    assert_eq!(world.lake.tables.lock().get(&path()), Some(&2));
    world.clock.set_ms(2000);
    let alter = async |changes: &[TableChange]| {
        world
            .catalog
            .alter_table(&path(), changes, IfMissing::Fail)
            .await
            .map(Option::unwrap)
    };
    let table = alter(&[add("x")]).await.unwrap();
    assert_eq!(
        (table.schema_id, table.descriptor.schema.columns.len()),
        (SchemaId(2), 3)
    );
    assert_eq!(world.lake.tables.lock().get(&path()), Some(&3));
    let (_, first) = world
        .catalog
        .get_schema(&path(), Some(SchemaId(1)))
        .await
        .unwrap();
    assert_eq!(first.columns.len(), 2, "older schemas stay");
    let error = world
        .catalog
        .get_schema(&path(), Some(SchemaId(3)))
        .await
        .unwrap_err();
    assert!(matches!(error, Error::SchemaNotExist { .. }), "{error}");
    let table = alter(&[set("owner", "me")]).await.unwrap();
    assert_eq!((table.modified_ms, table.schema_id), (2000, SchemaId(2)));
    assert_eq!(table.descriptor.custom_properties["owner"], "me");
    let calls = world.lake.calls.load(Ordering::SeqCst);
    alter(&[set("owner", "me")]).await.unwrap();
    assert_eq!(
        world.lake.calls.load(Ordering::SeqCst),
        calls,
        "no change, no call"
    );

    world.lake.tables.lock().clear();
    let error = alter(&[set("owner", "you")]).await.unwrap_err();
    assert!(matches!(error, Error::Lake { .. }), "{error}");
    let no_lake = Catalog {
        lake: None,
        ..world.catalog.clone()
    };
    let error = no_lake
        .alter_table(&path(), &[add("y")], IfMissing::Fail)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::LakeNotConfigured { .. }), "{error}");
    assert_eq!(
        world.catalog.get_table(&path()).await.unwrap().schema_id,
        SchemaId(2)
    );
}

#[tokio::test]
async fn two_columns_added_at_once_both_arrive() {
    let world = World::new().await;
    world.table(&log_table()).await;
    let (one, two) = ([add("x")], [add("y")]);
    let (path, catalog) = (path(), &world.catalog);
    let (one, two) = tokio::join!(
        catalog.alter_table(&path, &one, IfMissing::Fail),
        catalog.alter_table(&path, &two, IfMissing::Fail),
    );
    one.unwrap();
    two.unwrap();
    let table = world.catalog.get_table(&path).await.unwrap();
    assert_eq!(
        (table.schema_id, table.descriptor.schema.columns.len()),
        (SchemaId(3), 4)
    );
}

#[tokio::test]
async fn a_deposed_coordinator_changes_nothing() {
    let world = World::new().await;
    let table = world.table(&partitioned()).await;
    let newer = take_over(&*world.store).await.unwrap();
    assert_eq!(newer.epoch, CoordinatorEpoch(1));
    let catalog = &world.catalog;
    let errors = [
        world
            .create(&TablePath::new("db", "u"), &log_table())
            .await
            .map(drop)
            .unwrap_err(),
        world.create_partition("a").await.map(drop).unwrap_err(),
        catalog
            .drop_table(&path(), IfMissing::Fail)
            .await
            .map(drop)
            .unwrap_err(),
        catalog
            .alter_table(&path(), &[add("x")], IfMissing::Fail)
            .await
            .map(drop)
            .unwrap_err(),
        catalog
            .next_tiering_epoch(table.table_id)
            .await
            .map(drop)
            .unwrap_err(),
        catalog.finish_table_drop(table.table_id).await.unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(error, Error::Fenced { .. }), "{error}");
    }
    assert_eq!(catalog.get_table(&path()).await.unwrap(), table);
}

#[tokio::test]
async fn too_few_servers_are_told() {
    let world = World::new().await;
    let mut table = log_table();
    table
        .properties
        .insert("table.replication.factor".to_owned(), "3".to_owned());
    let error = world.create(&path(), &table).await.unwrap_err();
    let fits = matches!(
        error,
        Error::InvalidReplicationFactor {
            found: 3,
            servers: 2,
            ..
        }
    );
    assert!(fits, "{error}");
}
