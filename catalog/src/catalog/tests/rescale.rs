//! Another bucket count for the partitions to come.

use super::*;

async fn rescale(catalog: &Catalog, count: i32) -> Result<Option<Table>> {
    let change = [TableChange::BucketCount { count }];
    catalog.alter_table(&path(), &change, IfMissing::Fail).await
}

/// The catalog beneath the faults, as of another client.
fn beneath(world: &World) -> impl Fn(&MemoryStore) -> Catalog + Send + use<> {
    let catalog = world.catalog.clone();
    move |store| Catalog {
        store: Arc::new(store.clone()),
        ..catalog.clone()
    }
}

/// Takes the count out of a partition's document, as version 1 had it.
async fn make_legacy(catalog: &Catalog, value: &str) {
    let key = Key::partition(&path(), value).unwrap();
    let stored = catalog.get::<documents::Partition>(&key).await.unwrap();
    let mut document = stored.unwrap().document;
    document.bucket_count = None;
    let txn = Txn::new(None).put(key, document.encode().unwrap(), Expect::Any);
    catalog.store.commit(txn).await.unwrap();
}

async fn counts(catalog: &Catalog) -> BTreeMap<String, i32> {
    let (_, partitions) = catalog.list_partitions(&path()).await.unwrap();
    let counts = partitions.into_iter();
    counts.map(|p| (p.name, p.bucket_count.0)).collect()
}

fn named<const N: usize>(counts: [(&str, i32); N]) -> BTreeMap<String, i32> {
    counts.map(|(name, count)| (name.to_owned(), count)).into()
}

/// I-1, I-3, I-5, I-15.
#[tokio::test]
async fn only_later_partitions_get_another_count_and_each_change_raises_the_epoch_by_one() {
    let world = World::new().await;
    world.table(&keyed()).await;
    world.partition("a").await;
    for (count, epoch, name) in [(8, 1, "b"), (4, 2, "c"), (4, 2, "d"), (1, 3, "e")] {
        let table = rescale(&world.catalog, count).await.unwrap().unwrap();
        assert_eq!(table.bucket_count, TotalBuckets(count));
        assert_eq!(table.bucket_layout_epoch, epoch);
        assert_eq!(world.lake.buckets(), Some(count));
        world.partition(name).await;
    }
    let wanted = named([("a", 4), ("b", 8), ("c", 4), ("d", 4), ("e", 1)]);
    assert_eq!(counts(&world.catalog).await, wanted);
}

/// I-4, I-6, FC-103.
#[tokio::test]
async fn fc_103_the_first_change_fills_in_the_counts_of_old_partitions_in_the_same_transaction() {
    let world = World::new().await;
    world.table(&partitioned()).await;
    for name in ["a", "b", "c"] {
        world.partition(name).await;
    }
    make_legacy(&world.catalog, "a").await;
    make_legacy(&world.catalog, "c").await;
    let wanted = named([("a", 4), ("b", 4), ("c", 4)]);
    assert_eq!(counts(&world.catalog).await, wanted, "epoch 0");
    world.store.forget_calls();
    let reader = beneath(&world);
    world.store.before_commit(1, move |store| {
        let (catalog, store) = (reader(store), store.clone());
        futures::executor::block_on(async move {
            // Nothing is half done before the one transaction.
            assert_eq!(counts(&catalog).await.len(), 3);
            let key = Key::partition(&path(), "a").unwrap();
            let entry = store.get(&key).await.unwrap().unwrap();
            assert!(!String::from_utf8_lossy(&entry.value).contains("bucket_count"));
        });
    });
    rescale(&world.catalog, 8).await.unwrap();
    assert_eq!(counts(&world.catalog).await, wanted, "epoch 1");
    make_legacy(&world.catalog, "b").await;
    let error = world.catalog.list_partitions(&path()).await.unwrap_err();
    assert!(matches!(error, Error::StaleMetadata { .. }), "{error}");
}

/// I-7, I-9, I-14: whatever comes right before the commit, in every combination with one before the
/// second attempt.
#[tokio::test]
async fn changes_that_come_between_reading_and_committing_end_in_one_order_of_both() {
    type Step = (&'static str, fn(Catalog));
    fn create(catalog: Catalog) {
        let request = NewPartition {
            path: &path(),
            spec: &spec("late"),
            servers: &SERVERS,
        };
        let made = catalog.create_partition(request, IfExists::Ignore);
        futures::executor::block_on(made).unwrap();
    }
    fn drop_one(catalog: Catalog) {
        let (path, spec) = (path(), spec("a"));
        let dropped = catalog.drop_partition(&path, &spec, IfMissing::Ignore);
        futures::executor::block_on(dropped).unwrap();
    }
    fn drop_and_create(catalog: Catalog) {
        drop_one(catalog.clone());
        let request = NewPartition {
            path: &path(),
            spec: &spec("a"),
            servers: &SERVERS,
        };
        futures::executor::block_on(catalog.create_partition(request, IfExists::Fail)).unwrap();
    }
    fn other(catalog: Catalog) {
        futures::executor::block_on(rescale(&catalog, 16)).unwrap();
    }
    fn property(catalog: Catalog) {
        let (path, changes) = (path(), [set("owner", "me")]);
        let altered = catalog.alter_table(&path, &changes, IfMissing::Fail);
        futures::executor::block_on(altered).unwrap();
    }
    fn nothing(_: Catalog) {}
    let steps: [Step; 6] = [
        ("nothing", nothing),
        ("a partition is created", create),
        ("one without a count is dropped", drop_one),
        ("it is dropped and created anew", drop_and_create),
        ("the count changes to another", other),
        ("a property changes", property),
    ];
    let mut conflicts = 0;
    for (first, run_first) in &steps {
        for (second, run_second) in &steps {
            let what = format!("{first}, then {second}");
            let world = World::new().await;
            world.table(&keyed()).await;
            for name in ["a", "b"] {
                world.partition(name).await;
            }
            make_legacy(&world.catalog, "a").await;
            world.store.forget_calls();
            for (commit, run) in [(1, *run_first), (2, *run_second)] {
                let inner = beneath(&world);
                world
                    .store
                    .before_commit(commit, move |store| run(inner(store)));
            }
            let table = rescale(&world.catalog, 8).await.unwrap().unwrap();
            conflicts += u32::from(world.store.commits() > 1);
            assert_eq!(table.bucket_count, TotalBuckets(8), "{what}");
            // Another change that loses later may have told the lake its count last.
            let reconciled = world.catalog.reconcile_bucket_count(&path()).await;
            reconciled.unwrap();
            assert_eq!(world.lake.buckets(), Some(8), "{what}");
            let (_, partitions) = world.catalog.list_partitions(&path()).await.unwrap();
            for partition in partitions {
                let id = Some(partition.id);
                let assignment = world.catalog.find_assignment(table.table_id, id).await;
                let assigned = assignment.unwrap().unwrap().document.bucket_count();
                assert_eq!(
                    assigned, partition.bucket_count,
                    "{what}: {}",
                    partition.name
                );
            }
        }
    }
    assert!(conflicts > 20, "only {conflicts} conflicts");
}

/// I-9: the table that the caller meant is gone; another one of its name is left alone.
#[tokio::test]
async fn a_table_that_is_made_anew_meanwhile_keeps_its_count() {
    let world = World::new().await;
    world.table(&partitioned()).await;
    world.store.forget_calls();
    let inner = beneath(&world);
    world.store.before_commit(1, move |store| {
        let catalog = inner(store);
        futures::executor::block_on(async {
            let path = path();
            let dropped = catalog.drop_table(&path, IfMissing::Fail);
            dropped.await.unwrap();
            let request = NewTable {
                path: &path,
                descriptor: &partitioned(),
                servers: &SERVERS,
            };
            let made = catalog.create_table(request, IfExists::Fail);
            made.await.unwrap();
        });
    });
    let error = rescale(&world.catalog, 8).await.unwrap_err();
    assert!(matches!(error, Error::TableNotExist { .. }), "{error}");
    let table = world.catalog.get_table(&path()).await.unwrap();
    assert_eq!(
        (table.bucket_count, table.bucket_layout_epoch),
        (TotalBuckets(4), 0)
    );
}

/// I-7: a coordinator that was deposed changes nothing.
#[tokio::test]
async fn a_deposed_coordinator_changes_no_count() {
    let world = World::new().await;
    world.table(&partitioned()).await;
    world.store.forget_calls();
    world.store.before_commit(1, move |store| {
        futures::executor::block_on(take_over(store)).unwrap();
    });
    let error = rescale(&world.catalog, 8).await.unwrap_err();
    assert!(matches!(error, Error::Fenced { .. }), "{error}");
    let table = world.catalog.get_table(&path()).await.unwrap();
    assert_eq!(
        (table.bucket_count, table.bucket_layout_epoch),
        (TotalBuckets(4), 0)
    );
}

/// I-8.
#[tokio::test]
async fn a_partition_whose_buckets_cannot_be_counted_stops_the_change_by_name() {
    let world = World::new().await;
    world.table(&partitioned()).await;
    let partition = world.partition("a").await;
    make_legacy(&world.catalog, "a").await;
    let key = Key::partition_assignment(partition.id);
    let txn = Txn::new(None).delete(key, Expect::Any);
    world.store.commit(txn).await.unwrap();
    let error = rescale(&world.catalog, 8).await.unwrap_err();
    assert!(matches!(error, Error::InvalidAlterTable { .. }), "{error}");
    assert!(error.to_string().contains("partition a,"), "{error}");
    let table = world.catalog.get_table(&path()).await.unwrap();
    assert_eq!(
        (table.bucket_count, table.bucket_layout_epoch),
        (TotalBuckets(4), 0)
    );
}

/// I-11, I-15: the same count again heals the lake.
#[tokio::test]
async fn the_same_count_again_carries_it_into_a_lake_that_was_left_behind() {
    let world = World::new().await;
    world.table(&keyed()).await;
    rescale(&world.catalog, 8).await.unwrap();
    world.lake.buckets.store(2, Ordering::SeqCst);
    let table = rescale(&world.catalog, 8).await.unwrap().unwrap();
    assert_eq!(table.bucket_layout_epoch, 1);
    assert_eq!(world.lake.buckets(), Some(8));
}

/// I-12: what is invalid touches neither store nor lake.
#[tokio::test]
async fn an_invalid_change_touches_nothing() {
    let one = |count| vec![TableChange::BucketCount { count }];
    let reset = TableChange::Reset {
        key: "bucket.num".to_owned(),
    };
    let invalid = [
        one(0),
        one(-3),
        one(4097),
        vec![set("bucket.num", "many")],
        vec![set("bucket.num", "1.5")],
        vec![reset],
        vec![set("bucket.num", "8"), set("owner", "me")],
        vec![add("more"), TableChange::BucketCount { count: 8 }],
    ];
    let world = World::new().await;
    let before = world.table(&keyed()).await;
    let lake_calls = world.lake.calls.load(Ordering::SeqCst);
    for changes in &invalid {
        let path = path();
        let altered = world.catalog.alter_table(&path, changes, IfMissing::Fail);
        let error = altered.await.unwrap_err();
        let is_typed = matches!(
            error,
            Error::InvalidAlterTable { .. }
                | Error::TooManyBuckets { .. }
                | Error::InvalidConfig { .. }
        );
        assert!(is_typed, "{changes:?}: {error}");
    }
    assert_eq!(world.catalog.get_table(&path()).await.unwrap(), before);
    assert_eq!(world.lake.calls.load(Ordering::SeqCst), lake_calls);

    let whole = World::new().await;
    whole.table(&log_table()).await;
    let error = rescale(&whole.catalog, 8).await.unwrap_err();
    assert!(error.to_string().contains("no partitions"), "{error}");
}
