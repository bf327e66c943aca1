use weir_protocol::error_code::ErrorCode;

use super::*;
use crate::cluster::Trouble;
use crate::testing::Faults;
use crate::testing::world::{Shape, World, bucket};

/// Two buckets of three batches of five rows each, tiered by one round, and what the audit says
/// after `change`.
async fn audit_after(change: impl AsyncFnOnce(&mut World)) -> Report {
    let mut world = World::new(Shape::plain(2)).await;
    for b in [0, 1] {
        for _ in 0..3 {
            world.append(bucket(None, b), 5);
        }
    }
    world.recover().await;
    change(&mut world).await;
    audit_of(&world).await.unwrap()
}

async fn audit_of(world: &World) -> Result<Report> {
    let runner = world.process(&Faults::default());
    audit(&runner.resources.client, &runner.warehouse, &world.path).await
}

fn gone(offsets: i64, beside: i64) -> Vec<Gone> {
    let bucket = LakeBucket::default();
    vec![Gone {
        bucket,
        offsets,
        beside,
    }]
}

#[tokio::test]
async fn all_rows_are_compared_while_the_log_holds_them_all() {
    let report = audit_after(async |_| {}).await;
    assert_eq!((report.findings, report.gone), (vec![], vec![]));
    assert_eq!(
        (report.rows, report.compared_rows, report.behind_rows),
        (30, 30, 0)
    );
}

#[tokio::test]
async fn what_expired_snapshots_brought_is_said_to_be_unaudited() {
    let report = audit_after(async |world| {
        world.append(bucket(None, 0), 7);
        world.recover().await;
        let lake = world.lake().await;
        let first = lake.paths().snapshot(1);
        lake.store().delete(&first).await.unwrap();
    })
    .await;
    assert_eq!(report.findings, []);
    assert_eq!((report.expired_before, report.rows), (Some(2), 7));
    assert_eq!(audit_after(async |_| {}).await.expired_before, None);
}

#[tokio::test]
async fn what_the_log_lost_is_counted_and_all_the_rest_compared() {
    for lost in 0..3 {
        let report = audit_after(async |world| {
            world.edit_log(bucket(None, 0), |log| {
                log.batches.remove(lost);
                if lost == 0 {
                    log.start = 5;
                }
            });
        })
        .await;
        assert_eq!(report.findings, [], "batch {lost}");
        assert_eq!(report.gone, gone(5, 0), "batch {lost}");
        assert_eq!((report.rows, report.compared_rows), (30, 25));
        assert_eq!(
            report.gone[0].to_string(),
            "5 offsets of bucket 0 are in the lake but no longer in the log (retention or repair); \
             not comparable"
        );
    }
}

#[tokio::test]
async fn a_row_that_differs_beside_a_gap_is_found() {
    for other in [0, 2] {
        let report = audit_after(async |world| {
            // The rows of bucket 1 at the same offsets.
            let mut batches = Vec::new();
            world.edit_log(bucket(None, 1), |log| batches.clone_from(&log.batches));
            world.edit_log(bucket(None, 0), |log| {
                log.batches[other] = batches[other].clone();
                log.batches.remove(1);
            });
        })
        .await;
        let named: Vec<_> = report.findings.iter().map(|f| f.bucket.clone()).collect();
        assert_eq!(named, [Some(LakeBucket::default())], "batch {other}");
        assert!(report.findings[0].reason.contains(".parquet"), "{report:?}");
    }
}

#[tokio::test]
async fn rows_that_cant_be_told_from_lost_ones_are_counted_too() {
    let report = audit_after(async |world| {
        // An empty batch takes an offset, and no row.
        world.append_empty(bucket(None, 0));
        world.append(bucket(None, 0), 4);
        world.recover().await;
        world.edit_log(bucket(None, 0), |log| drop(log.batches.pop()));
    })
    .await;
    assert_eq!((report.findings, report.gone), (vec![], gone(4, 1)));
    assert_eq!(report.compared_rows, 30);
}

#[tokio::test]
async fn rows_of_the_log_that_are_not_tiered_yet_are_counted() {
    let report = audit_after(async |world| world.append(bucket(None, 1), 7)).await;
    assert_eq!((report.findings, report.behind_rows), (vec![], 7));
    let ends: Vec<_> = report
        .ends
        .iter()
        .map(|e| (e.lake_end, e.log_end))
        .collect();
    assert_eq!(ends, [(15, 15), (15, 22)]);
    let mut world = World::new(Shape::plain(1)).await;
    world.append(bucket(None, 0), 3);
    let report = audit_of(&world).await.unwrap();
    assert_eq!((report.snapshot, report.behind_rows), (None, 3));
}

#[tokio::test]
async fn a_damaged_log_is_a_finding_with_the_servers_words_and_the_others_are_compared() {
    let said = "FETCH_LOG: table 7 bucket 1: LOG_STORAGE_EXCEPTION (10): 0.log: corrupt at byte 9";
    let report = audit_after(async |world| {
        let trouble = Trouble {
            code: Some(ErrorCode::LogStorage),
            ..Trouble::passing(said)
        };
        let mut state = world.cluster.state.lock();
        state.failing.insert(bucket(None, 1), trouble);
    })
    .await;
    let found: Vec<_> = report.findings.iter().map(ToString::to_string).collect();
    assert_eq!(
        found,
        [
            "bucket 1: its log can't be read: FETCH_LOG: LOG_STORAGE_EXCEPTION (10): \
          0.log: corrupt at byte 9"
        ]
    );
    assert_eq!((report.compared_rows, report.gone), (15, vec![]));
}

#[tokio::test]
async fn a_log_that_has_no_leader_now_is_an_error_that_may_pass() {
    let mut world = World::new(Shape::plain(1)).await;
    world.append(bucket(None, 0), 3);
    world.recover().await;
    let trouble = Trouble::passing("no leader");
    {
        let mut state = world.cluster.state.lock();
        state.failing.insert(bucket(None, 0), trouble);
    }
    let error = audit_of(&world).await.unwrap_err();
    assert!(error.is_retriable(), "{error}");
    assert!(error.to_string().contains("no leader"), "{error}");
}

#[tokio::test]
async fn a_lake_ahead_of_its_log_is_found() {
    let report = audit_after(async |world| {
        world.edit_log(bucket(None, 1), |log| {
            log.batches.pop();
            log.end = 10;
        });
    })
    .await;
    let found: Vec<_> = report.findings.iter().map(ToString::to_string).collect();
    assert_eq!(
        found,
        ["bucket 1: the lake ends at 15, the log already at 10"]
    );
}

#[tokio::test]
async fn lost_and_unreadable_offsets_are_told_from_rows_that_are_not_tiered_yet() {
    let report = audit_after(async |world| {
        for b in [0, 1] {
            for _ in 0..3 {
                world.append(bucket(None, b), 5);
            }
        }
        // A repair gave up the fifth batch of bucket 0.
        world.edit_log(bucket(None, 0), |log| {
            log.batches.remove(4);
        });
    })
    .await;
    assert_eq!((report.findings.len(), report.behind_rows), (0, 25));
    let lost: Vec<String> = report.ends[0]
        .lost
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(lost, ["bucket 0: offsets 20..25"]);
    assert_eq!(
        (&report.ends[1].lost, &report.ends[1].unreadable),
        (&vec![], &None)
    );

    let report = audit_after(async |world| {
        world.append(bucket(None, 1), 5);
        let trouble = Trouble {
            code: Some(ErrorCode::LogStorage),
            ..Trouble::passing(format!("{}: 0.log: damaged at byte 7", bucket(None, 1)))
        };
        world
            .cluster
            .state
            .lock()
            .failing
            .insert(bucket(None, 1), trouble);
    })
    .await;
    let said = report.ends[1].unreadable.as_deref();
    assert_eq!(said, Some("0.log: damaged at byte 7"));
}

#[tokio::test]
async fn a_lake_that_lost_all_its_snapshots_is_told() {
    let report = audit_after(async |world| {
        let lake = world.lake().await;
        for id in lake.snapshot_ids().await.unwrap() {
            world
                .store
                .delete(&lake.paths().snapshot(id))
                .await
                .unwrap();
        }
    })
    .await;
    let reasons: Vec<_> = report.findings.iter().map(|f| f.reason.as_str()).collect();
    assert!(
        reasons.contains(&"the cluster registered it, the lake has none"),
        "{reasons:?}"
    );
}
