use std::time::Duration;

use weir_protocol::error_code::ErrorCode;
use weir_protocol::ids::{TieringEpoch, TotalBuckets};

use super::*;
use crate::cluster::Trouble;
use crate::enumerate::TableView;
use crate::round::Cut;
use crate::status::{RoundOutcome, TableState};

const RETRY: RetryConfig = RetryConfig {
    first_ms: 100,
    max_ms: 1_000,
};

fn lease(table: i64, coordinator: i32, tiering: i64) -> Lease {
    let epochs = Epochs {
        coordinator: CoordinatorEpoch(coordinator),
        tiering: TieringEpoch(tiering),
    };
    Lease {
        table: TableId(table),
        path: TablePath::new("d", format!("t{table}")),
        epochs,
    }
}

fn answer(coordinator: i32, offered: Option<Lease>) -> HeartbeatAnswer {
    HeartbeatAnswer {
        coordinator: CoordinatorEpoch(coordinator),
        offered,
        refused: vec![],
    }
}

fn report(cut: Option<Cut>, faults: usize) -> RoundReport {
    let view = TableView {
        id: TableId(1),
        path: TablePath::new("d", "t1"),
        bucket_count: TotalBuckets(1),
        bucket_layout_epoch: 0,
        is_keyed: false,
        partitions: None,
    };
    let bucket = TableBucket {
        table: TableId(1),
        partition: None,
        bucket: weir_protocol::ids::BucketId(0),
    };
    RoundReport {
        round: "r".to_owned(),
        started_ms: 0,
        committed: None,
        lake_snapshot: None,
        buckets: 0,
        cut,
        faults: vec![(bucket, Trouble::passing("no leader")); faults],
        left_rows: 0,
        is_whole: true,
        as_of_ms: 5,
        freshness: Duration::from_millis(300),
        view,
        lake_ends: BTreeMap::new(),
    }
}

/// A registered board that holds the given leases.
fn board(slots: usize, leases: &[Lease]) -> Board {
    let mut board = Board::new(slots, RETRY);
    assert_eq!(board.answered(&Heartbeat::default(), answer(1, None)), []);
    for lease in leases {
        let sent = board.heartbeat(true);
        board.answered(&sent, answer(1, Some(lease.clone())));
    }
    board
}

#[test]
fn the_first_heartbeat_is_empty_and_registers() {
    let mut board = Board::new(2, RETRY);
    assert_eq!(board.heartbeat(true), Heartbeat::default());
    board.answered(&Heartbeat::default(), answer(1, None));
    assert!(board.is_registered());
    assert!(board.heartbeat(true).request_table);
}

#[test]
fn a_table_runs_under_its_lease_and_is_reported_finished() {
    let mut board = board(2, &[lease(1, 1, 4)]);
    assert_eq!(board.due(0), [Action::Start(lease(1, 1, 4))]);
    assert_eq!(board.due(0), []);
    assert_eq!(board.heartbeat(true).tiering.len(), 1);
    board.ended(&lease(1, 1, 4), Ok(report(None, 0)), 10);
    let sent = board.heartbeat(true);
    assert_eq!(
        (
            sent.tiering.len(),
            sent.finished.len(),
            sent.force_finished.len()
        ),
        (0, 1, 0)
    );
    assert!(board.has_news());
    board.answered(&sent, answer(1, None));
    assert!(!board.has_news());
}

#[test]
fn a_cut_round_is_reported_as_having_more() {
    let mut board = board(2, &[lease(1, 1, 4)]);
    board.due(0);
    board.ended(&lease(1, 1, 4), Ok(report(Some(Cut::Rows), 0)), 10);
    assert_eq!(board.heartbeat(true).force_finished, [TableId(1)]);
}

#[test]
fn a_report_is_repeated_until_it_is_answered() {
    let mut board = board(2, &[lease(1, 1, 4)]);
    board.due(0);
    board.ended(&lease(1, 1, 4), Ok(report(None, 0)), 10);
    assert_eq!(
        board.heartbeat(true).finished,
        board.heartbeat(true).finished
    );
    let sent = board.heartbeat(true);
    // The reply was lost once; the second time the coordinator has gone on.
    let code = Some(ErrorCode::FencedTieringEpoch);
    let refusal = Refusal {
        table: TableId(1),
        code,
        message: String::new(),
    };
    let refused = vec![refusal];
    let actions = board.answered(
        &sent,
        HeartbeatAnswer {
            refused,
            ..answer(1, None)
        },
    );
    assert_eq!(actions, []);
    assert!(!board.has_news());
}

#[test]
fn a_failed_table_stays_held_and_waits_longer_each_time() {
    let mut board = board(2, &[lease(1, 1, 4)]);
    let fail = || Error::cluster("x", None, true, "lost");
    for (now, wait) in [(0, 100), (100, 200), (300, 400), (700, 800), (1_500, 1_000)] {
        assert_eq!(board.due(now).len(), 1, "at {now}");
        board.ended(&lease(1, 1, 4), Err(fail()), now);
        assert_eq!(board.due(now + wait - 1), [], "at {now}");
        assert_eq!(board.next_due_ms(), Some(now + wait));
        assert_eq!(board.heartbeat(true).tiering.len(), 1);
        assert!(!board.has_news());
    }
    let status = &board.statuses(2_000)[0];
    assert!(
        matches!(status.state, TableState::Retrying { failures: 5, .. }),
        "{status:?}"
    );
    assert!(status.last_error.as_ref().unwrap().contains("lost"));
    board.due(9_000);
    board.ended(&lease(1, 1, 4), Ok(report(None, 0)), 9_000);
    let status = &board.statuses(9_000)[0];
    assert_eq!(
        (&status.state, &status.last_error),
        (&TableState::Healthy, &None)
    );
}

#[test]
fn buckets_that_could_not_be_read_are_tried_again_under_the_same_lease() {
    let mut board = board(2, &[lease(1, 1, 4)]);
    board.due(0);
    board.ended(&lease(1, 1, 4), Ok(report(None, 1)), 10);
    assert!(!board.has_news());
    assert!(matches!(
        board.statuses(10)[0].state,
        TableState::Retrying { .. }
    ));
    assert_eq!(board.due(109), []);
    assert_eq!(board.due(110).len(), 1);
}

#[test]
fn buckets_that_can_t_be_read_are_named_and_keep_the_others_waiting_for_a_freshness_at_most() {
    let mut board = board(2, &[lease(1, 1, 4)]);
    let mut now = 0;
    for wait in [100, 200, 300, 300] {
        assert_eq!(board.due(now).len(), 1, "at {now}");
        board.ended(&lease(1, 1, 4), Ok(report(None, 5)), now);
        assert_eq!(board.due(now + wait - 1), [], "at {now}");
        now += wait;
    }
    let status = &board.statuses(now)[0];
    let error = status.last_error.as_ref().unwrap();
    assert_eq!(
        error,
        "bucket 0: no leader; bucket 0: no leader; bucket 0: no leader; and 2 more buckets"
    );
    assert_eq!(status.failing_buckets, 5);
    let outcome = &status.last_round.as_ref().unwrap().outcome;
    let failed = RoundOutcome::Failed {
        error: error.clone(),
    };
    assert_eq!(
        outcome, &failed,
        "a round without a row is no empty success"
    );
    board.due(now);
    board.ended(&lease(1, 1, 4), Ok(report(None, 0)), now);
    let status = &board.statuses(now)[0];
    assert_eq!((status.failing_buckets, &status.last_error), (0, &None));
}

#[test]
fn a_bucket_that_a_person_must_mend_pauses_its_table_alone() {
    let mut board = board(2, &[lease(1, 1, 4), lease(2, 1, 7)]);
    board.due(0);
    let mut lost = report(None, 1);
    lost.faults[0].1 = Trouble::lasting("these rows are lost");
    board.ended(&lease(1, 1, 4), Ok(lost), 0);
    board.ended(&lease(2, 1, 7), Ok(report(None, 0)), 0);
    let states: Vec<TableState> = board
        .statuses(0)
        .into_iter()
        .map(|status| status.state)
        .collect();
    let paused = TableState::Paused {
        reason: "bucket 0: these rows are lost".to_owned(),
    };
    assert_eq!(states, [paused, TableState::Healthy]);
    // Its other buckets wait no longer than their freshness.
    assert_eq!(board.due(99), []);
    assert_eq!(board.due(300).len(), 1);
}

#[test]
fn a_refused_renewal_cancels_that_table_only() {
    let mut board = board(4, &[lease(1, 1, 4), lease(2, 1, 7)]);
    board.due(0);
    let sent = board.heartbeat(true);
    let code = Some(ErrorCode::FencedTieringEpoch);
    let refused = vec![Refusal {
        table: TableId(2),
        code,
        message: String::new(),
    }];
    let actions = board.answered(
        &sent,
        HeartbeatAnswer {
            refused,
            ..answer(1, None)
        },
    );
    assert_eq!(actions, [Action::Cancel(TableId(2))]);
    assert_eq!(board.heartbeat(true).tiering.len(), 1);
    let cancelled = Error::Cancelled {
        table: TablePath::new("d", "t2"),
    };
    board.ended(&lease(2, 1, 7), Err(cancelled), 5);
    // It is not ours any more: nothing is reported, and nothing went wrong.
    assert!(!board.has_news());
    assert_eq!(board.statuses(5)[1].state, TableState::Unknown);
}

#[test]
fn a_refusal_of_an_old_lease_does_not_touch_the_new_one() {
    let mut board = board(4, &[lease(1, 1, 4)]);
    let sent = board.heartbeat(true);
    board.hold(lease(1, 1, 5));
    let code = Some(ErrorCode::FencedTieringEpoch);
    let refused = vec![Refusal {
        table: TableId(1),
        code,
        message: String::new(),
    }];
    board.answered(
        &sent,
        HeartbeatAnswer {
            refused,
            ..answer(1, None)
        },
    );
    assert_eq!(board.due(0), [Action::Start(lease(1, 1, 5))]);
}

#[test]
fn a_new_coordinator_voids_all_leases() {
    let mut board = board(4, &[lease(1, 1, 4), lease(2, 1, 7)]);
    board.due(0);
    let sent = board.heartbeat(true);
    let actions = board.answered(&sent, answer(2, None));
    assert_eq!(
        actions,
        [Action::Cancel(TableId(1)), Action::Cancel(TableId(2))]
    );
    assert_eq!(board.heartbeat(true).tiering, []);
    board.ended(&lease(1, 1, 4), Ok(report(None, 0)), 5);
    assert!(
        !board.has_news(),
        "the old coordinator's rounds are nobody's business"
    );
}

#[test]
fn slots_bound_what_runs_and_what_is_asked_for() {
    let mut board = board(1, &[lease(1, 1, 4)]);
    assert!(!board.heartbeat(true).request_table);
    assert_eq!(board.due(0).len(), 1);
    assert!(!board.heartbeat(true).request_table);
    board.ended(
        &lease(1, 1, 4),
        Err(Error::cluster("x", None, true, "lost")),
        0,
    );
    assert!(
        board.heartbeat(true).request_table,
        "a table that waits takes no slot"
    );
}

#[test]
fn a_paused_table_stays_held_and_does_nothing_until_it_is_resumed() {
    let mut board = board(2, &[lease(1, 1, 4)]);
    let path = TablePath::new("d", "t1");
    board.due(0);
    assert_eq!(board.pause(&path).unwrap(), Some(Action::Stop(TableId(1))));
    board.ended(&lease(1, 1, 4), Ok(report(Some(Cut::Stop), 0)), 5);
    board.hold(lease(1, 1, 5));
    assert_eq!(board.due(10), []);
    assert_eq!(board.next_due_ms(), None);
    assert!(matches!(
        board.statuses(10)[0].state,
        TableState::Paused { .. }
    ));
    assert_eq!(board.heartbeat(true).tiering.len(), 1);
    board.resume(&path).unwrap();
    assert_eq!(board.due(10).len(), 1);
    assert!(matches!(
        board.pause(&TablePath::new("d", "x")),
        Err(Error::UnknownTable { .. })
    ));
}

#[test]
fn a_fault_that_needs_a_person_pauses_with_its_reason() {
    let mut board = board(2, &[lease(1, 1, 4)]);
    board.due(0);
    let error = Error::MissingBucketCount {
        table: TablePath::new("d", "t1"),
        partition: "p".to_owned(),
        epoch: 1,
    };
    board.ended(&lease(1, 1, 4), Err(error), 0);
    let state = board.statuses(0)[0].state.clone();
    assert!(
        matches!(state, TableState::Paused { reason } if reason.contains("bucket layout epoch"))
    );
    assert_eq!(board.due(999), []);
    board.resume(&TablePath::new("d", "t1")).unwrap();
    assert_eq!(board.due(999).len(), 1);
}

#[test]
fn a_table_is_tiered_now_under_its_last_lease_although_it_is_not_due() {
    let mut board = board(2, &[lease(1, 1, 4)]);
    board.due(0);
    board.ended(&lease(1, 1, 4), Ok(report(None, 0)), 10);
    let path = TablePath::new("d", "t1");
    assert_eq!(board.due(20), []);
    board.tier_now(&path, None).unwrap();
    assert_eq!(board.due(20), [Action::Start(lease(1, 1, 4))]);
    let sent = board.heartbeat(true);
    assert_eq!(sent.tiering, [], "a round without lease is not renewed");
    board.answered(&sent, answer(1, None));
    board.ended(&lease(1, 1, 4), Ok(report(None, 0)), 30);
    assert!(!board.has_news());
}

#[test]
fn a_table_that_was_never_handed_out_is_tiered_below_every_lease() {
    let mut board = board(2, &[]);
    let path = TablePath::new("d", "t9");
    assert!(matches!(
        board.tier_now(&path, None),
        Err(Error::UnknownTable { .. })
    ));
    board.tier_now(&path, Some(TableId(9))).unwrap();
    assert_eq!(board.due(0), [Action::Start(lease(9, 1, 0))]);
}

#[test]
fn a_dropped_table_leaves_the_board() {
    let mut board = board(2, &[lease(1, 1, 4)]);
    board.due(0);
    let gone = Error::cluster("table info", Some(ErrorCode::TableNotExist), false, "gone");
    board.ended(&lease(1, 1, 4), Err(gone), 10);
    assert!(!board.knows(TableId(1)));
    assert_eq!(board.heartbeat(true).failed.len(), 1);
}

#[test]
fn a_table_that_is_gone_is_forgotten_and_its_round_cancelled() {
    let mut board = board(2, &[lease(1, 1, 4), lease(2, 1, 7)]);
    board.due(0);
    board.ended(&lease(2, 1, 7), Ok(report(None, 0)), 10);
    assert_eq!(board.gone(TableId(2)), None);
    assert_eq!(board.gone(TableId(1)), Some(Action::Cancel(TableId(1))));
    assert_eq!(board.statuses(10), []);
    let cancelled = Error::Cancelled {
        table: TablePath::new("d", "t1"),
    };
    board.ended(&lease(1, 1, 4), Err(cancelled), 20);
    assert_eq!((board.statuses(20), board.has_news()), (vec![], false));
}

#[test]
fn a_table_made_anew_stands_in_the_place_of_the_dropped_one() {
    let mut board = board(2, &[lease(1, 1, 4)]);
    board.due(0);
    board.ended(&lease(1, 1, 4), Ok(report(None, 0)), 10);
    let anew = Lease {
        table: TableId(9),
        ..lease(1, 1, 8)
    };
    board.hold(anew);
    let ids: Vec<TableId> = board.statuses(10).iter().map(|s| s.table_id).collect();
    assert_eq!(ids, [TableId(9)]);
}

#[test]
fn whoever_waited_longest_goes_first() {
    let leases = [lease(1, 1, 4), lease(2, 1, 7), lease(3, 1, 5)];
    let mut board = board(1, &[]);
    leases.iter().for_each(|lease| board.hold(lease.clone()));
    let mut order = Vec::new();
    for now in 1..7 {
        let [Action::Start(lease)] = &board.due(now)[..] else {
            panic!("one slot, and all have something to do")
        };
        order.push(lease.table.0);
        board.ended(lease, Ok(report(Some(Cut::Rows), 0)), now);
        // It has more to give, and is handed out again at once.
        board.hold(leases[usize::try_from(lease.table.0).unwrap() - 1].clone());
    }
    assert_eq!(order, [1, 2, 3, 1, 2, 3]);
}

#[test]
fn at_the_end_all_held_tables_are_given_back() {
    let mut board = board(4, &[lease(1, 1, 4), lease(2, 1, 7)]);
    board.give_back();
    let sent = board.heartbeat(false);
    assert_eq!(
        (sent.failed.len(), sent.tiering.len(), sent.request_table),
        (2, 0, false)
    );
}

#[test]
fn lag_is_zero_when_nothing_is_missing_and_unknown_before_the_first_look() {
    let mut board = board(2, &[lease(1, 1, 4)]);
    let lag = |board: &Board, now| {
        let status = board.statuses(now).remove(0);
        (status.lag_rows, status.lag_seconds)
    };
    assert_eq!(lag(&board, 0), (None, None));
    board.due(0);
    board.ended(&lease(1, 1, 4), Ok(report(None, 0)), 10);
    assert_eq!(lag(&board, 90_000), (Some(0), Some(0)));
    board.lagged(TableId(1), Some(7), 60_005);
    assert_eq!(lag(&board, 90_005), (Some(7), Some(90)));
    board.lagged(TableId(1), Some(0), 60_005);
    board.lagged(TableId(1), Some(3), 80_005);
    assert_eq!(lag(&board, 90_005), (Some(3), Some(30)));
}
