use proptest::prelude::*;

use super::*;

const TIMEOUT_MS: i64 = 120_000;
const FRESHNESS_MS: i64 = 5_000;
const TABLE: TableId = TableId(7);

fn registration(epoch: i64, tiered_ms: i64) -> Registration {
    Registration {
        path: TablePath::new("db", "t"),
        freshness_ms: FRESHNESS_MS,
        epoch: TieringEpoch(epoch),
        tiered_ms,
    }
}

fn scheduler() -> Scheduler {
    let mut scheduler = Scheduler::new(TIMEOUT_MS);
    scheduler.register(TABLE, registration(0, 0), 0);
    scheduler
}

fn take(scheduler: &mut Scheduler, now_ms: i64) -> Offer {
    scheduler.advance(now_ms);
    let offer = scheduler.next_offer().unwrap();
    assert!(scheduler.hand_out(&offer, offer.epoch, now_ms));
    offer
}

#[test]
fn a_table_is_offered_once_its_freshness_has_passed() {
    let mut scheduler = scheduler();
    scheduler.advance(FRESHNESS_MS - 1);
    assert_eq!(scheduler.next_offer(), None);
    let offer = take(&mut scheduler, FRESHNESS_MS);
    assert_eq!((offer.table, offer.epoch), (TABLE, TieringEpoch(1)));
    assert_eq!(scheduler.next_offer(), None, "one table is with one worker");
}

#[test]
fn an_epoch_goes_on_after_the_highest_that_was_ever_handed_out() {
    let mut scheduler = Scheduler::new(TIMEOUT_MS);
    scheduler.register(TABLE, registration(41, 0), FRESHNESS_MS);
    assert_eq!(scheduler.next_offer().unwrap().epoch, TieringEpoch(42));
}

#[test]
fn disabling_and_enabling_leaves_no_stale_entry_in_the_queue() {
    let mut scheduler = scheduler();
    scheduler.advance(FRESHNESS_MS);
    scheduler.remove(TABLE);
    scheduler.register(TABLE, registration(1, FRESHNESS_MS), FRESHNESS_MS);
    assert_eq!(scheduler.next_offer(), None);
    assert!(matches!(
        scheduler.table(TABLE).unwrap().state,
        State::Scheduled { .. }
    ));
}

#[test]
fn a_silent_worker_loses_its_table_and_is_fenced() {
    let mut scheduler = scheduler();
    let offer = take(&mut scheduler, FRESHNESS_MS);
    let silent_ms = FRESHNESS_MS + TIMEOUT_MS;
    assert!(scheduler.advance(silent_ms).is_empty());
    assert_eq!(scheduler.advance(silent_ms + 1), [TABLE]);
    let refused = scheduler.renew(TABLE, offer.epoch, silent_ms + 2);
    assert!(matches!(refused, Err(Refusal::Fenced { .. })));
    let second = take(&mut scheduler, silent_ms + FIRST_BACKOFF_MS + 1);
    assert!(second.epoch > offer.epoch);
}

#[test]
fn a_heartbeat_keeps_a_round_alive() {
    let mut scheduler = scheduler();
    let offer = take(&mut scheduler, FRESHNESS_MS);
    for beat in 1..10 {
        let now_ms = FRESHNESS_MS + beat * TIMEOUT_MS;
        assert!(scheduler.advance(now_ms).is_empty());
        scheduler.renew(TABLE, offer.epoch, now_ms).unwrap();
    }
}

#[test]
fn a_second_ending_of_the_same_round_is_refused() {
    let mut scheduler = scheduler();
    let offer = take(&mut scheduler, FRESHNESS_MS);
    let stats = RoundStats {
        file_size: Some(1),
        record_count: Some(2),
    };
    scheduler
        .finish(TABLE, offer.epoch, Ending::Complete(stats), 6_000)
        .unwrap();
    let again = RoundStats::default();
    let refused = scheduler.finish(TABLE, offer.epoch, Ending::Complete(again), 6_001);
    assert!(matches!(refused, Err(Refusal::Fenced { .. })));
    assert_eq!(scheduler.table(TABLE).unwrap().last_round, stats);
}

#[test]
fn a_failing_table_waits_longer_each_time_and_recovers() {
    let mut scheduler = scheduler();
    let mut now_ms = FRESHNESS_MS;
    let mut waits = Vec::new();
    for _ in 0..12 {
        let offer = take(&mut scheduler, now_ms);
        scheduler
            .finish(TABLE, offer.epoch, Ending::Failed, now_ms)
            .unwrap();
        let retry_ms = scheduler.next_deadline_ms().unwrap();
        waits.push(retry_ms - now_ms);
        now_ms = retry_ms;
    }
    assert_eq!(waits[..4], [1_000, 2_000, 4_000, 8_000]);
    assert_eq!(*waits.last().unwrap(), MAX_BACKOFF_MS);
    let offer = take(&mut scheduler, now_ms);
    let done = Ending::Complete(RoundStats::default());
    scheduler.finish(TABLE, offer.epoch, done, now_ms).unwrap();
    assert_eq!(scheduler.table(TABLE).unwrap().failures, 0);
}

#[test]
fn a_cut_round_is_offered_again_at_once() {
    let mut scheduler = scheduler();
    let offer = take(&mut scheduler, FRESHNESS_MS);
    scheduler
        .finish(
            TABLE,
            offer.epoch,
            Ending::Cut(RoundStats::default()),
            6_000,
        )
        .unwrap();
    assert_eq!(scheduler.next_offer().unwrap().epoch, TieringEpoch(2));
}

#[test]
fn a_new_freshness_moves_the_next_round() {
    let mut scheduler = scheduler();
    let mut change = registration(0, 0);
    change.freshness_ms = 1_000;
    scheduler.register(TABLE, change, 1_000);
    assert!(scheduler.next_offer().is_some());
}

#[test]
fn an_offer_that_could_not_be_persisted_comes_back() {
    let mut scheduler = scheduler();
    scheduler.advance(FRESHNESS_MS);
    let offer = scheduler.next_offer().unwrap();
    scheduler.give_back(&offer);
    assert_eq!(scheduler.next_offer().unwrap(), offer);
    scheduler.remove(TABLE);
    scheduler.give_back(&offer);
    assert_eq!(scheduler.next_offer(), None);
    assert!(!scheduler.hand_out(&offer, offer.epoch, 0));
}

#[derive(Clone, Debug)]
enum Step {
    Wait(i64),
    Ask,
    Renew(usize),
    Finish(usize),
    Cut(usize),
    Fail(usize),
    Remove(i64),
    Register(i64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (1..200_000_i64).prop_map(Step::Wait),
        Just(Step::Ask),
        (0..8_usize).prop_map(Step::Renew),
        (0..8_usize).prop_map(Step::Finish),
        (0..8_usize).prop_map(Step::Cut),
        (0..8_usize).prop_map(Step::Fail),
        (0..3_i64).prop_map(Step::Remove),
        (0..3_i64).prop_map(Step::Register),
    ];
    proptest::collection::vec(step, 1..80)
}

proptest! {
    /// Epochs rise for ever, one worker has a table, and only the newest owner is listened to.
    #[test]
    fn a_table_has_one_owner_and_its_epochs_rise(steps in steps()) {
        let mut scheduler = Scheduler::new(TIMEOUT_MS);
        let mut now_ms = 0;
        let mut durable: BTreeMap<TableId, TieringEpoch> = BTreeMap::new();
        let mut handed: Vec<Offer> = Vec::new();
        for step in steps {
            match step {
                Step::Wait(ms) => { now_ms += ms; scheduler.advance(now_ms); }
                Step::Ask => if let Some(offer) = scheduler.next_offer() {
                    let last = durable.get(&offer.table).copied().unwrap_or(TieringEpoch(0));
                    prop_assert!(offer.epoch > last);
                    durable.insert(offer.table, offer.epoch);
                    prop_assert!(scheduler.hand_out(&offer, offer.epoch, now_ms));
                    handed.push(offer);
                },
                Step::Renew(i) | Step::Finish(i) | Step::Cut(i) | Step::Fail(i) => {
                    let Some(offer) = handed.iter().rev().nth(i).cloned() else { continue };
                    let stats = RoundStats::default();
                    let result = match step {
                        Step::Renew(_) => scheduler.renew(offer.table, offer.epoch, now_ms),
                        Step::Finish(_) =>
                            scheduler.finish(offer.table, offer.epoch, Ending::Complete(stats), now_ms),
                        Step::Cut(_) =>
                            scheduler.finish(offer.table, offer.epoch, Ending::Cut(stats), now_ms),
                        _ => scheduler.finish(offer.table, offer.epoch, Ending::Failed, now_ms),
                    };
                    if result.is_ok() {
                        prop_assert_eq!(durable.get(&offer.table), Some(&offer.epoch));
                    }
                }
                Step::Remove(t) => scheduler.remove(TableId(t)),
                Step::Register(t) => {
                    let table = TableId(t);
                    let epoch = durable.get(&table).copied().unwrap_or(TieringEpoch(0)).0;
                    scheduler.register(table, registration(epoch, now_ms), now_ms);
                }
            }
            for (id, entry) in scheduler.tables() {
                let queued = scheduler.queue.iter().filter(|(q, e)| *q == id && *e == entry.epoch);
                let pending = matches!(entry.state, State::Pending { .. });
                prop_assert_eq!(queued.count(), usize::from(pending));
            }
        }
    }
}
