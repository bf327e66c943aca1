//! Every call of the store and of the lake fails once.

use super::*;

/// Checks that no table or partition is half made.
async fn check_whole(world: &World) {
    let catalog = &world.catalog;
    let Some(table) = catalog.find_table(&path()).await.unwrap() else {
        return;
    };
    if !table.descriptor.is_partitioned() {
        let assignment = catalog
            .find_assignment(table.table_id, None)
            .await
            .unwrap()
            .unwrap();
        assert_eq!(assignment.document.bucket_count(), table.bucket_count);
        return;
    }
    let (_, partitions) = catalog.list_partitions(&path()).await.unwrap();
    for partition in partitions {
        let id = Some(partition.id);
        let assignment = catalog
            .find_assignment(table.table_id, id)
            .await
            .unwrap()
            .unwrap();
        assert_eq!(assignment.document.bucket_count(), partition.bucket_count);
    }
}

/// Lets the n-th store call, then the n-th lake call, fail for every n, and checks that nothing is
/// half made and that the same call succeeds afterwards.
async fn sweep<F>(before: bool, call: F)
where
    F: AsyncFn(&World, IfExists) -> Result<()>,
{
    let mut faults = 0;
    for fault in [Fault::Unavailable, Fault::LostReply, Fault::LostRequest] {
        for n in 1.. {
            let world = World::new().await;
            if before {
                world.table(&keyed()).await;
            }
            world.store.forget_calls();
            world.store.fail_call(n, fault);
            let outcome = call(&world, IfExists::Fail).await;
            let calls = world.store.calls();
            world.store.forget_calls();
            check_whole(&world).await;
            call(&world, IfExists::Ignore).await.unwrap();
            check_whole(&world).await;
            if n > calls {
                outcome.unwrap();
                break;
            }
            faults += 1;
        }
    }
    for n in 1.. {
        let world = World::new().await;
        if before {
            world.table(&keyed()).await;
        }
        world.lake.calls.store(0, Ordering::SeqCst);
        world.lake.fail_call.store(n, Ordering::SeqCst);
        let table = world.catalog.find_table(&path()).await.unwrap();
        let outcome = call(&world, IfExists::Fail).await;
        let calls = world.lake.calls.load(Ordering::SeqCst);
        if n > calls {
            outcome.unwrap();
            break;
        }
        assert!(matches!(outcome, Err(Error::Lake { .. })), "{outcome:?}");
        let unchanged = world.catalog.find_table(&path()).await.unwrap();
        assert_eq!(
            unchanged, table,
            "the lake failed, so the table did not change"
        );
        call(&world, IfExists::Ignore).await.unwrap();
        faults += 1;
    }
    assert!(faults > 6, "only {faults} faults were met");
}

#[tokio::test]
async fn creating_a_table_survives_the_failure_of_any_call() {
    sweep(false, async |world, if_exists| {
        let (path, descriptor) = (path(), lake_enabled(log_table()));
        let request = NewTable {
            path: &path,
            descriptor: &descriptor,
            servers: &SERVERS,
        };
        world
            .catalog
            .create_table(request, if_exists)
            .await
            .map(drop)
    })
    .await;
}

#[tokio::test]
async fn creating_a_partition_survives_the_failure_of_any_call() {
    sweep(true, async |world, if_exists| {
        let request = NewPartition {
            path: &path(),
            spec: &spec("a"),
            servers: &SERVERS,
        };
        world
            .catalog
            .create_partition(request, if_exists)
            .await
            .map(drop)
    })
    .await;
}

#[tokio::test]
async fn altering_properties_survives_the_failure_of_any_call() {
    sweep(true, async |world, _| {
        let changes = [set("owner", "me"), set("table.log.ttl", "1 d")];
        world
            .catalog
            .alter_table(&path(), &changes, IfMissing::Fail)
            .await
            .map(drop)
    })
    .await;
}

#[tokio::test]
async fn adding_a_column_survives_the_failure_of_any_call() {
    sweep(true, async |world, if_exists| {
        let added = world
            .catalog
            .alter_table(&path(), &[add("x")], IfMissing::Fail)
            .await;
        match added {
            // Done by the call that failed: the reference says so too.
            Err(Error::InvalidAlterTable { .. }) if if_exists == IfExists::Ignore => Ok(()),
            other => other.map(drop),
        }
    })
    .await;
}

#[tokio::test]
async fn changing_the_bucket_count_survives_the_failure_of_any_call() {
    sweep(true, async |world, _| {
        let (path, changes) = (path(), [TableChange::BucketCount { count: 8 }]);
        let altered = world.catalog.alter_table(&path, &changes, IfMissing::Fail);
        altered.await.map(drop)
    })
    .await;
}
