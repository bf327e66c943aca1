use super::*;
use crate::committer::TABLE_ID;
use crate::testing::others::Folder;
use weir_protocol::ids::TableId;

const NEXT: TableId = TableId(8);

fn next(number: i32) -> TableBucket {
    TableBucket {
        table: NEXT,
        ..bucket(None, number)
    }
}

/// When the round of the table before goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Thaw {
    BeforeTheFirstRound,
    AfterIt,
}

/// What a table had in the lake before the round in question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    Nothing,
    /// The claim of a table that used the lake table again.
    Claim,
    Rows,
}

/// A round is frozen at its `at`-th call, its table is dropped and made again, then it goes on. `None`
/// if it never came to that call, else how the round ended.
async fn overtaken(
    (before, folder): (Before, Folder),
    thaw: Thaw,
    (at, fault): (u64, Fault),
) -> Option<Option<Error>> {
    let mut world = World::new(Shape::plain(2)).await;
    if before == Before::Claim {
        world
            .recreate(crate::testing::world::TABLE, Folder::UsedAgain)
            .await
            .unwrap();
    }
    world.append(bucket(None, 0), 5);
    if before == Before::Rows {
        world.recover().await;
        world.append(bucket(None, 1), 4);
    }
    let faults = Faults::default();
    faults.plan(at, fault);
    let (zombie, lease) = (world.process(&faults), world.next_lease());
    let round =
        tokio::spawn(async move { zombie.run(lease, &RoundSignals::default(), &|_| {}).await });
    tokio::select! {
        () = faults.stopped() => {}
        () = async { while !round.is_finished() { tokio::task::yield_now().await; } } => {}
    }
    let fired = faults.fired()?;
    let is_in = world.lake_rows().await.into_values().flatten().any(|id| {
        // The rows of the round in question.
        before != Before::Rows || id >= 5
    });
    if let Err(latest) = world.recreate(NEXT, folder).await {
        assert!(
            is_in,
            "at {fired}: snapshot {latest} keeps an empty lake table from being used"
        );
        return Some(None);
    }
    world.append(next(0), 10);
    if thaw == Thaw::AfterIt {
        world.recover().await;
    }
    faults.thaw();
    let result = round.await.unwrap();
    if thaw == Thaw::BeforeTheFirstRound {
        world.recover().await;
    }
    world.append(next(1), 1);
    world.recover().await;
    world.check(true).await;
    let ids: Vec<_> = world.snapshots().await;
    let ids = ids.iter().map(|snapshot| snapshot.property(TABLE_ID));
    assert!(
        ids.clone().all(|id| id == Some("8")),
        "at {fired}: {:?}",
        ids.collect::<Vec<_>>()
    );
    let lake = world.lake().await;
    let latest = lake.latest_snapshot().await.unwrap().unwrap();
    let live = lake.live_entries(&latest).await.unwrap().len();
    let listed = world.store.list(Some(&world.root()));
    let files: Vec<_> = listed.try_collect().await.unwrap();
    let files = files
        .iter()
        .filter(|file| file.location.as_ref().contains("/bucket-"));
    assert_eq!(files.count(), live, "at {fired}: files of the table before");
    match result {
        // It had nothing to do any more, or had committed before it was frozen.
        Ok(report) => {
            assert!(
                report.committed.is_none() || is_in,
                "at {fired}: {report:?}"
            );
            Some(None)
        }
        Err(error) => Some(Some(error)),
    }
}

#[tokio::test]
async fn fc_055_a_table_that_is_made_again_takes_nothing_of_a_round_of_the_one_before() {
    let mut refused = BTreeSet::new();
    for history in [
        (Before::Nothing, Folder::UsedAgain),
        (Before::Claim, Folder::UsedAgain),
        (Before::Nothing, Folder::MadeAnew),
        (Before::Rows, Folder::MadeAnew),
    ] {
        for thaw in [Thaw::BeforeTheFirstRound, Thaw::AfterIt] {
            for fault in [Fault::FreezeBefore, Fault::FreezeAfter] {
                let mut at = 0;
                while let Some(error) = overtaken(history, thaw, (at, fault)).await {
                    refused.extend(error.map(|error| match error {
                        Error::Recreated { .. } => "recreated",
                        Error::LakeReplaced { .. } => "lake replaced",
                        Error::Fenced { .. } => "fenced",
                        _ => "by the cluster or the store",
                    }));
                    at += 1;
                }
                assert!(at > 15, "the sweep ended after {at} calls");
            }
        }
    }
    for each in ["recreated", "lake replaced", "fenced"] {
        assert!(refused.contains(each), "{refused:?}");
    }
}
