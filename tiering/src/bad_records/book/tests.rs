use std::collections::BTreeSet;

use super::*;
use crate::bad_records::POLICY;
use crate::bad_records::replay::all_records;
use crate::runner::RoundReport;
use crate::testing::world::{Shape, TABLE, World, bucket};
use crate::testing::{Fault, Faults};
use crate::verify::audit;
use crate::worker::RoundSignals;

/// A table whose lake forbids rows without a name.
pub(crate) async fn strict_world(policy: &str, buckets: i32) -> World {
    let world = World::new(Shape::plain(buckets)).await;
    world.names_are_required(true).await;
    world.set_property(POLICY, policy);
    world
}

pub(crate) async fn bad_records(world: &World) -> Vec<BadRecord> {
    let warehouse = world.process(&Faults::default()).warehouse;
    let place = warehouse
        .bad_records(&world.path, &BTreeMap::new())
        .unwrap();
    all_records(&place, TABLE).await.unwrap()
}

pub(crate) async fn lake_ids(world: &World) -> Vec<i64> {
    let mut ids: Vec<i64> = world.lake_rows().await.into_values().flatten().collect();
    ids.sort_unstable();
    ids
}

/// Nothing is wrong with the table, says the audit.
pub(crate) async fn assert_sound(world: &World) -> crate::verify::Report {
    let runner = world.process(&Faults::default());
    let report = audit(&runner.resources.client, &runner.warehouse, &world.path).await;
    let report = report.unwrap();
    let findings: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
    assert_eq!(findings, [""; 0]);
    report
}

/// Each of `rows` rows of bucket 0 (a table of one bucket) is in the lake or a bad record, and once.
async fn assert_each_once(world: &World, rows: i64) {
    let mut ids = lake_ids(world).await;
    ids.extend(
        bad_records(world)
            .await
            .iter()
            .map(|record| record.offset.0),
    );
    ids.sort_unstable();
    assert_eq!(ids, (0..rows).collect::<Vec<_>>());
}

#[tokio::test]
async fn fc_108_with_policy_stop_the_rows_before_a_bad_one_are_tiered_and_its_bucket_waits() {
    let mut world = strict_world("stop", 2).await;
    world.append_named(bucket(None, 0), 1_000, |id| id != 499);
    world.append_named(bucket(None, 1), 10, |_| true);
    for _ in 0..2 {
        let report = world.round().await.unwrap();
        let rows = world.lake_rows().await;
        assert_eq!(rows[&(String::new(), 0)], (0..499).collect::<Vec<_>>());
        assert_eq!(rows[&(String::new(), 1)].len(), 10);
        let trouble = report.trouble().unwrap();
        assert!(trouble.lasting);
        let expected = "bucket 0: offset 499, column name: null in a column that forbids it; the rows \
                        before it are in the lake";
        assert!(trouble.reason.starts_with(expected), "{}", trouble.reason);
    }
    assert!(bad_records(&world).await.is_empty());
    assert_sound(&world).await;
    // Once the lake takes it, it goes on.
    world.names_are_required(false).await;
    world.recover().await;
    world.check(true).await;
}

#[tokio::test]
async fn fc_108_with_policy_divert_a_bad_row_goes_into_the_table_of_bad_records_once() {
    let mut world = strict_world("divert", 1).await;
    world.append_named(bucket(None, 0), 1_000, |id| id != 499);
    let report = world.round().await.unwrap();
    assert_eq!(report.trouble(), None);
    assert_eq!(report.committed.unwrap().rows, 999);
    world.append_named(bucket(None, 0), 5, |_| true);
    world.recover().await;
    assert_eq!(lake_ids(&world).await.len(), 1_004);
    let records = bad_records(&world).await;
    assert_eq!(records.len(), 1);
    let record = &records[0];
    assert_eq!(
        (record.bucket, record.offset),
        (bucket(None, 0), LogOffset(499))
    );
    assert_eq!(record.column, "name");
    assert_eq!(record.reason, "null in a column that forbids it");
    assert_eq!(record.batch().unwrap().header.base_offset, LogOffset(499));
    let audit = assert_sound(&world).await;
    assert_eq!(
        (audit.rows, audit.diverted_rows, audit.compared_rows),
        (1_004, 1, 1_004)
    );
}

#[tokio::test]
async fn fc_015_a_null_where_the_log_forbids_it_is_named_and_no_file_holds_it() {
    for (policy, in_lake) in [("stop", 2), ("divert", 4)] {
        let mut world = World::new(Shape::plain(1)).await;
        world.set_property(POLICY, policy);
        world.append_with_null_id(bucket(None, 0), 5, 2);
        let report = world.round().await.unwrap();
        assert_eq!(lake_ids(&world).await.len(), in_lake, "{policy}");
        match report.trouble() {
            Some(trouble) => {
                assert_eq!(policy, "stop");
                assert!(
                    trouble
                        .reason
                        .contains("bucket 0: offset 2, column id: null")
                );
            }
            None => {
                let records = bad_records(&world).await;
                assert_eq!((records.len(), records[0].offset), (1, LogOffset(2)));
                assert_eq!(records[0].column, "id");
            }
        }
    }
}

#[tokio::test]
async fn all_rows_may_be_bad_and_the_round_still_moves() {
    let mut world = strict_world("divert", 1).await;
    world.append_named(bucket(None, 0), 40, |_| false);
    let report = world.round().await.unwrap();
    assert_eq!((report.left_rows, report.committed.unwrap().rows), (0, 0));
    assert_eq!(bad_records(&world).await.len(), 40);
    assert_eq!(assert_sound(&world).await.diverted_rows, 40);
}

#[tokio::test]
async fn a_round_takes_only_so_many_bad_records_and_the_next_goes_on() {
    let mut world = strict_world("divert", 1).await;
    let batch = i64::try_from(crate::bad_records::MAX_RECORDS).unwrap();
    for _ in 0..2 {
        world.append_named(bucket(None, 0), batch, |_| false);
    }
    let report = world.round().await.unwrap();
    let trouble = report.trouble().unwrap();
    assert!(
        !trouble.lasting && trouble.reason.contains("more in the next"),
        "{trouble}"
    );
    world.round().await.unwrap();
    assert_eq!(bad_records(&world).await.len(), 20_000);
    // So many offsets that alternate do not fit a snapshot's property.
    world.append_named(bucket(None, 0), batch * 2 - 2, |id| id % 2 == 0);
    world.recover().await;
    assert_eq!(bad_records(&world).await.len(), 29_999);
    assert_sound(&world).await;
}

#[tokio::test]
async fn a_round_takes_only_so_many_bad_records_of_one_batch() {
    let mut world = strict_world("divert", 1).await;
    let most = crate::bad_records::MAX_RECORDS;
    world.append_named(
        bucket(None, 0),
        i64::try_from(most * 2 + 5).unwrap(),
        |_| false,
    );
    for taken in [most, most * 2, most * 2 + 5] {
        world.round().await.unwrap();
        assert_eq!(bad_records(&world).await.len(), taken);
    }
    assert_sound(&world).await;
}

#[tokio::test]
async fn another_table_of_the_name_pauses_the_table() {
    let mut world = strict_world("divert", 1).await;
    let path = world.path.clone();
    world.add_table("t__weir_bad_records", TableId(9)).await;
    world.path = path;
    world.append_named(bucket(None, 0), 3, |_| false);
    let error = world.round().await.unwrap_err();
    assert!(
        error.to_string().contains("no table of bad records"),
        "{error}"
    );
    assert_eq!(error.verdict(), crate::error::Verdict::Pause);
}

/// A round that meets `fault` at its `at`-th call.
async fn faulty_round(world: &World, fault: Fault, at: u64) -> Option<String> {
    let faults = Faults::default();
    faults.plan(at, fault);
    let runner = world.process(&faults);
    let (lease, signals) = (world.next_lease(), RoundSignals::default());
    let mut done: Option<Result<RoundReport>> = None;
    tokio::select! {
        result = runner.run(lease, &signals, &|_| {}) => done = Some(result),
        () = faults.stopped() => {}
    }
    drop(done);
    faults.fired()
}

/// What becomes of the cause between the round that broke off and the next.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Then {
    Same,
    Mended,
    Stop,
}

async fn sweep(fault: Fault, then: Then) {
    let mut at = 0;
    loop {
        let mut world = strict_world("divert", 1).await;
        world.append_named(bucket(None, 0), 10, |id| id != 3);
        world.recover().await;
        world.append_named(bucket(None, 0), 10, |id| id != 12 && id != 17);
        let fired = faulty_round(&world, fault, at).await;
        match then {
            Then::Same => {}
            Then::Mended => world.names_are_required(false).await,
            Then::Stop => {
                world.set_property(POLICY, "stop");
                world.names_are_required(false).await;
            }
        }
        world.append_named(bucket(None, 0), 2, |_| true);
        world.recover().await;
        assert_each_once(&world, 22).await;
        let audit = assert_sound(&world).await;
        let diverted = bad_records(&world).await.len();
        assert_eq!(
            usize::try_from(audit.diverted_rows).unwrap(),
            diverted,
            "{fired:?}"
        );
        if then == Then::Same {
            assert_eq!(diverted, 3, "{fault:?} at {fired:?}");
        }
        if fired.is_none() {
            assert!(at > 20, "the sweep ended after {at} calls");
            return;
        }
        at += 1;
    }
}

#[tokio::test]
async fn each_bad_row_is_kept_once_whichever_call_fails_or_loses_its_reply() {
    for fault in [Fault::Fail, Fault::LoseReply, Fault::LoseReplyForEver] {
        sweep(fault, Then::Same).await;
    }
}

#[tokio::test]
async fn each_bad_row_is_kept_once_wherever_the_process_dies() {
    for fault in [Fault::CrashBefore, Fault::CrashAfter] {
        sweep(fault, Then::Same).await;
    }
}

#[tokio::test]
async fn a_row_that_was_diverted_stays_so_though_its_cause_was_mended_before_the_next_round() {
    for fault in [Fault::CrashBefore, Fault::LoseReplyForEver] {
        sweep(fault, Then::Mended).await;
        sweep(fault, Then::Stop).await;
    }
}

#[tokio::test]
async fn the_names_of_all_bad_offsets_are_those_of_the_log() {
    let mut world = strict_world("divert", 1).await;
    for _ in 0..4 {
        world.append(bucket(None, 0), 9);
        world.append_empty(bucket(None, 0));
    }
    world.recover().await;
    let offsets: BTreeSet<i64> = bad_records(&world)
        .await
        .iter()
        .map(|r| r.offset.0)
        .collect();
    // Every third row, and each batch of nine is followed by an offset without a row.
    let expected: BTreeSet<i64> = (0..36)
        .filter(|id| id % 3 == 0)
        .map(|id| id + id / 9)
        .collect();
    assert_eq!(offsets, expected);
    assert_sound(&world).await;
}
