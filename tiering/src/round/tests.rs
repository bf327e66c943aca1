use proptest::prelude::*;
use weir_protocol::ids::{CoordinatorEpoch, TableId, TablePath, TieringEpoch, TotalBuckets};

use super::*;
use crate::lease::Epochs;

const LIMITS: Limits = Limits {
    max_duration: Duration::from_secs(5),
    max_rows: 1_000,
    max_bytes: 10_000,
};

fn lease() -> Lease {
    Lease {
        table: TableId(7),
        path: TablePath::new("d", "t"),
        epochs: Epochs {
            coordinator: CoordinatorEpoch(1),
            tiering: TieringEpoch(2),
        },
    }
}

fn bucket(bucket: i32) -> TableBucket {
    TableBucket {
        table: TableId(7),
        partition: None,
        bucket: BucketId(bucket),
    }
}

fn split(b: i32, start: i64, stop: i64) -> Split {
    Split {
        bucket: bucket(b),
        partition: None,
        total_buckets: TotalBuckets(4),
        start: LogOffset(start),
        stop: LogOffset(stop),
        read_from: LogOffset(start),
    }
}

fn result(b: i32, end: Option<i64>, rows: i64) -> SplitResult<&'static str> {
    SplitResult {
        bucket: bucket(b),
        end: end.map(LogOffset),
        rows,
        max_timestamp_ms: end,
        files: if rows > 0 { vec!["file"] } else { vec![] },
        apart: Apart::default(),
        bad: Vec::new(),
        fault: None,
    }
}

fn writing(splits: Vec<Split>) -> Round<&'static str> {
    let mut round = Round::new(lease(), "r".to_owned(), LIMITS, 1_000);
    round.split().unwrap();
    round.write(splits).unwrap();
    round
}

#[test]
fn a_round_walks_its_phases_once() {
    let mut round = Round::<()>::new(lease(), "r".to_owned(), LIMITS, 0);
    assert_eq!(round.phase(), Phase::Requested);
    assert!(matches!(round.write(vec![]), Err(Error::WrongPhase { .. })));
    assert!(matches!(round.commit(), Err(Error::WrongPhase { .. })));
    round.split().unwrap();
    assert!(matches!(round.split(), Err(Error::WrongPhase { .. })));
    round.write(vec![]).unwrap();
    assert_eq!(round.phase(), Phase::Reporting);
}

#[test]
fn a_second_answer_of_a_bucket_is_refused() {
    let mut round = writing(vec![split(0, 0, 5), split(1, 0, 5)]);
    assert_eq!(round.add(result(0, Some(5), 5)).unwrap(), 1);
    assert!(matches!(
        round.add(result(0, Some(5), 5)),
        Err(Error::DuplicateResult { .. })
    ));
    assert!(matches!(
        round.add(result(2, Some(5), 5)),
        Err(Error::UnknownResult { .. })
    ));
}

#[test]
fn a_round_with_answers_out_cannot_be_committed() {
    let mut round = writing(vec![split(0, 0, 5), split(1, 0, 5)]);
    round.add(result(0, Some(5), 5)).unwrap();
    assert!(matches!(
        round.commit(),
        Err(Error::Incomplete {
            missing: 1,
            count: 2,
            ..
        })
    ));
    assert_eq!(round.add(result(1, Some(5), 0)).unwrap(), 0);
    let committable = round.commit().unwrap();
    assert_eq!(committable.files, ["file"]);
    assert_eq!(committable.ends().len(), 2);
    assert!(matches!(round.commit(), Err(Error::WrongPhase { .. })));
}

#[test]
fn an_uncut_split_must_reach_its_stop() {
    let mut round = writing(vec![split(0, 3, 9), split(1, 0, 5)]);
    for (end, rows) in [
        (Some(8), 1),
        (Some(3), 0),
        (Some(10), 1),
        (Some(9), 7),
        (None, 0),
    ] {
        assert!(
            matches!(
                round.add(result(0, end, rows)),
                Err(Error::BadResult { .. })
            ),
            "{end:?}"
        );
    }
    round.cut(Cut::Stop);
    round.add(result(0, Some(8), 1)).unwrap();
    round.add(result(1, None, 0)).unwrap();
    let committable = round.commit().unwrap();
    assert_eq!(committable.cut, Some(Cut::Stop));
    assert_eq!(
        committable.ends(),
        BTreeMap::from([(bucket(0), LogOffset(8))])
    );
}

#[test]
fn a_bucket_with_a_fault_keeps_the_others_progress() {
    let mut round = writing(vec![split(0, 0, 5), split(1, 0, 5)]);
    round.add(result(0, Some(5), 5)).unwrap();
    let fault = Some(Trouble::passing("no answer"));
    round
        .add(SplitResult {
            fault,
            ..result(1, None, 0)
        })
        .unwrap();
    let committable = round.commit().unwrap();
    assert_eq!(
        committable.faults,
        [(bucket(1), Trouble::passing("no answer"))]
    );
    assert_eq!(committable.ranges.len(), 1);
}

#[test]
fn a_round_that_was_cut_but_read_to_the_end_is_not_cut() {
    let mut round = writing(vec![split(0, 0, 5)]);
    assert_eq!(round.progress(5, 1, 6_000), Some(Cut::Duration));
    round.add(result(0, Some(5), 5)).unwrap();
    assert_eq!(round.commit().unwrap().cut, None);
}

#[test]
fn each_limit_cuts_a_round_and_the_first_reason_stays() {
    let fresh = || writing(vec![split(0, 0, 5)]);
    assert_eq!(fresh().progress(1, 1, 5_999), None);
    assert_eq!(fresh().progress(1, 1, 6_000), Some(Cut::Duration));
    assert_eq!(fresh().progress(1_000, 1, 1_000), Some(Cut::Rows));
    let mut round = fresh();
    assert_eq!(round.progress(1, 10_000, 1_000), Some(Cut::Bytes));
    assert_eq!(round.progress(1, 1, 9_000), Some(Cut::Bytes));
}

#[test]
fn epochs_compare_by_coordinator_first() {
    let epochs = |c, t| Epochs {
        coordinator: CoordinatorEpoch(c),
        tiering: TieringEpoch(t),
    };
    assert!(epochs(1, 9) < epochs(2, 1));
    assert!(epochs(2, 1) < epochs(2, 2));
}

proptest! {
    /// Whatever order and however cut: what is committed is a prefix of each split, and rows add
    /// up.
    #[test]
    fn committed_ranges_are_prefixes_of_the_splits(
        plan in proptest::collection::vec((0..9_i64, 1..9_i64, 0..9_i64), 1..9),
        order in any::<u64>(),
    ) {
        let splits: Vec<Split> = plan
            .iter()
            .enumerate()
            .map(|(i, (start, len, _))| split(i32::try_from(i).unwrap(), *start, start + len))
            .collect();
        let mut round = writing(splits.clone());
        round.cut(Cut::Duration);
        let mut answers: Vec<_> = plan
            .iter()
            .enumerate()
            .map(|(i, (start, len, read))| {
                let read = *read.min(len);
                let end = (read > 0).then_some(start + read);
                result(i32::try_from(i).unwrap(), end, read)
            })
            .collect();
        let turn = usize::try_from(order % 9).unwrap() % answers.len();
        answers.rotate_left(turn);
        let rows: i64 = answers.iter().map(|a| a.rows).sum();
        for answer in answers {
            round.add(answer).unwrap();
        }
        let committable = round.commit().unwrap();
        prop_assert_eq!(committable.rows, rows);
        for range in &committable.ranges {
            let split = splits.iter().find(|s| s.bucket.bucket == range.bucket).unwrap();
            prop_assert_eq!(range.start, split.start);
            prop_assert!(range.end > range.start && range.end <= split.stop);
        }
    }
}
