//! Partitions and their bucket counts.

use super::*;

#[tokio::test]
async fn a_partition_owns_its_bucket_count() {
    let world = World::new().await;
    let table = world.table(&partitioned()).await;
    assert!(
        world
            .catalog
            .find_assignment(table.table_id, None)
            .await
            .unwrap()
            .is_none()
    );
    let partition = world.partition("a").await;
    assert_eq!(
        (partition.name.as_str(), partition.bucket_count),
        ("a", TotalBuckets(4))
    );
    let assignment = world
        .catalog
        .find_assignment(table.table_id, Some(partition.id))
        .await
        .unwrap();
    let assignment = assignment.unwrap().document;
    assert_eq!(
        (assignment.bucket_count(), assignment.table_id),
        (TotalBuckets(4), Some(table.table_id))
    );
    let error = world.create_partition("a").await.unwrap_err();
    assert!(
        matches!(error, Error::PartitionAlreadyExist { .. }),
        "{error}"
    );

    // A table whose count was altered: the old partition stays, one without a count is an error.
    let key = Key::table(&path()).unwrap();
    let stored = world
        .catalog
        .get::<table_documents::Table>(&key)
        .await
        .unwrap()
        .unwrap();
    let mut altered = stored.document;
    (altered.bucket_count, altered.bucket_layout_epoch) = (TotalBuckets(8), 1);
    let txn = Txn::new(None).put(key, altered.encode().unwrap(), Expect::Any);
    world.store.commit(txn).await.unwrap();
    assert_eq!(world.partition("b").await.bucket_count, TotalBuckets(8));
    let (_, partitions) = world.catalog.list_partitions(&path()).await.unwrap();
    let counts: Vec<_> = partitions.iter().map(|p| p.bucket_count.0).collect();
    assert_eq!(counts, [4, 8]);
    let legacy = documents::Partition {
        table_id: table.table_id,
        partition_id: PartitionId(99),
        bucket_count: None,
        remote_data_dir: None,
        unknown: Unknown::new(),
    };
    let key = Key::partition(&path(), "c").unwrap();
    let txn = Txn::new(None).put(key, legacy.encode().unwrap(), Expect::Absent);
    world.store.commit(txn).await.unwrap();
    let error = world.catalog.list_partitions(&path()).await.unwrap_err();
    assert!(matches!(error, Error::StaleMetadata { .. }), "{error}");
    assert!(
        world
            .catalog
            .find_partition(&path(), "a")
            .await
            .unwrap()
            .is_some()
    );
}

#[tokio::test]
async fn partitions_are_checked_limited_and_dropped() {
    let world = World::new().await;
    world.table(&partitioned()).await;
    for (bad, reason) in [("", "empty"), ("a/b", "character"), ("__x", "system")] {
        let error = world.create_partition(bad).await.unwrap_err();
        assert!(matches!(error, Error::InvalidPartition { .. }), "{error}");
        assert!(error.to_string().contains(reason), "{error}");
    }
    let catalog = world.catalog.clone().with_rules(Rules {
        max_partition_count: 2,
        ..Rules::default()
    });
    let create = async |value: &str, if_exists| {
        let request = NewPartition {
            path: &path(),
            spec: &spec(value),
            servers: &SERVERS,
        };
        catalog.create_partition(request, if_exists).await
    };
    let first = create("a", IfExists::Fail).await.unwrap().into_inner();
    create("b", IfExists::Fail).await.unwrap();
    let error = create("c", IfExists::Fail).await.unwrap_err();
    assert!(
        matches!(error, Error::TooManyPartitions { max: 2, .. }),
        "{error}"
    );
    assert_eq!(
        create("a", IfExists::Ignore).await.unwrap(),
        Created::Existing(first.clone())
    );
    let dropped = catalog
        .drop_partition(&path(), &spec("a"), IfMissing::Fail)
        .await
        .unwrap();
    assert_eq!(dropped, Some(first.id));
    let again = catalog
        .drop_partition(&path(), &spec("a"), IfMissing::Ignore)
        .await
        .unwrap();
    assert_eq!(again, None);
    let error = catalog
        .drop_partition(&path(), &spec("a"), IfMissing::Fail)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::PartitionNotExist { .. }), "{error}");
    assert!(create("a", IfExists::Fail).await.unwrap().into_inner().id > first.id);
}

/// Lets a partition `late` come right before commit number `commit`.
fn partition_before_commit(world: &World, commit: u32) {
    let catalog = world.catalog.clone();
    world.store.forget_calls();
    world.store.before_commit(commit, move |store| {
        let inner = Catalog {
            store: Arc::new(store.clone()),
            ..catalog
        };
        let request = NewPartition {
            path: &path(),
            spec: &spec("late"),
            servers: &SERVERS,
        };
        let create = inner.create_partition(request, IfExists::Fail);
        futures::executor::block_on(create).unwrap();
    });
}

#[tokio::test]
async fn a_partition_that_comes_while_its_table_is_dropped_is_dropped_with_it() {
    let world = World::new().await;
    world.table(&partitioned()).await;
    let early = world.partition("early").await.id;
    partition_before_commit(&world, 1);
    let dropped = world.catalog.drop_table(&path(), IfMissing::Fail).await;
    let dropped = dropped.unwrap().unwrap();
    let late = PartitionId(early.0 + 1);
    assert_eq!(dropped.partitions, [early, late]);
    let catalog = &world.catalog;
    catalog.finish_table_drop(dropped.table_id).await.unwrap();
    for partition in dropped.partitions {
        catalog.finish_partition_drop(partition).await.unwrap();
    }
    assert_eq!(catalog.list_assignments().await.unwrap(), (vec![], vec![]));
}

#[tokio::test]
async fn a_partition_that_comes_while_its_database_is_dropped_is_dropped_with_it() {
    let world = World::new().await;
    world.table(&partitioned()).await;
    let early = world.partition("early").await.id;
    // Commit 1 marks the database, commit 2 deletes it.
    partition_before_commit(&world, 2);
    let dropped = world
        .catalog
        .drop_database("db", IfMissing::Fail, Contents::Drop)
        .await
        .unwrap();
    let late = PartitionId(early.0 + 1);
    assert_eq!(dropped.tables[0].2, [early, late]);
}

#[tokio::test]
async fn a_partition_of_a_table_that_was_created_anew_meanwhile_is_not_made() {
    let world = World::new().await;
    world.table(&partitioned()).await;
    let catalog = world.catalog.clone();
    world.store.forget_calls();
    world.store.before_commit(1, move |store| {
        let inner = Catalog {
            store: Arc::new(store.clone()),
            ..catalog
        };
        let (path, descriptor) = (path(), partitioned());
        let request = NewTable {
            path: &path,
            descriptor: &descriptor,
            servers: &SERVERS,
        };
        futures::executor::block_on(async {
            inner.drop_table(&path, IfMissing::Fail).await.unwrap();
            inner.create_table(request, IfExists::Fail).await.unwrap();
        });
    });
    let error = world.create_partition("a").await.unwrap_err();
    assert!(matches!(error, Error::TableNotExist { .. }), "{error}");
    assert_eq!(world.catalog.list_partitions(&path()).await.unwrap().1, []);
}
