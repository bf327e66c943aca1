//! The batches of one bucket, from open to acknowledged. Pure: no IO, time is an argument.
//!
//! Order is kept by two rules: no more than five batches lie between the first that is not
//! acknowledged and the last that was sent, and after a failure nothing is sent until everything in
//! flight has come back. Then the batches that are left are sent again, in order, as they were.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::RecordBatch;
use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::Instant;

use super::{Appended, Piece, Target};
use crate::client::{Backoff, Error};
use crate::error_code::ErrorCode;
use crate::ids::{BucketId, LogOffset, TableBucket};

/// Batches between the first unacknowledged and the last sent; a server remembers as many.
pub(super) const MAX_IN_FLIGHT: usize = 5;

/// Who waits for a batch, and the memory it holds until then.
#[derive(Debug, Default)]
struct Waiters {
    acks: Vec<oneshot::Sender<Result<Appended, Error>>>,
    memory: Vec<OwnedSemaphorePermit>,
}

impl Waiters {
    fn tell(self, result: &Result<Appended, Error>) {
        for ack in self.acks {
            // Nobody listens if the caller dropped its acknowledgement.
            drop(ack.send(result.clone()));
        }
    }
}

/// Rows that wait for more rows.
#[derive(Debug)]
struct Open {
    pieces: Vec<RecordBatch>,
    bytes: usize,
    since: Instant,
    waiters: Waiters,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    Encoding,
    Waiting,
    InFlight,
    Done,
}

#[derive(Debug)]
struct Batch {
    number: u64,
    sequence: i32,
    bytes: Bytes,
    state: State,
    /// Sent while nothing before it was unacknowledged.
    sent_first: bool,
    /// An attempt ended without an answer.
    in_doubt: bool,
    last_error: Option<Error>,
    closed_at: Instant,
    waiters: Waiters,
}

impl Batch {
    /// It could not be encoded: it is never sent, and fails when its turn comes.
    fn is_broken(&self) -> bool {
        self.state == State::Waiting && self.bytes.is_empty()
    }
}

/// A batch to encode: its sequence, its rows.
#[derive(Debug)]
pub(super) struct Closed {
    pub(super) sequence: i32,
    pub(super) pieces: Vec<RecordBatch>,
}

/// What a bucket in trouble needs, once nothing of it is in flight.
#[derive(Debug)]
pub(super) enum Verdict {
    /// Nothing: it sends on, after its rest.
    SendOn,
    /// The server does not know this writer's sequence: the writer needs a new id.
    NewWriter { error: Error },
    /// All that is left has failed; nothing more is taken.
    Failed { batches: Vec<u64>, error: Error },
}

/// The batches of one bucket.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) bucket: TableBucket,
    pub(super) target: Arc<Target>,
    open: Option<Open>,
    batches: VecDeque<Batch>,
    next_sequence: i32,
    draining: bool,
    rest_until: Option<Instant>,
    backoff: Backoff,
    failed: Option<Error>,
    /// What the newest attempt met, until one succeeds.
    pub(super) trouble: Option<Error>,
    /// Batches closed since the last flush.
    pub(super) unflushed: usize,
    /// Ask for the leader before the next attempt.
    pub(super) wants_leader: bool,
}

impl Queue {
    pub(super) fn new(
        bucket: TableBucket,
        target: Arc<Target>,
        next_sequence: i32,
        backoff: Backoff,
    ) -> Self {
        Self {
            bucket,
            target,
            open: None,
            batches: VecDeque::new(),
            next_sequence,
            draining: false,
            rest_until: None,
            backoff,
            failed: None,
            trouble: None,
            unflushed: 0,
            wants_leader: false,
        }
    }

    /// Adds rows to the open batch; its size afterwards.
    ///
    /// # Errors
    /// That the bucket has failed before; the rows' caller is told too.
    pub(super) fn push(&mut self, piece: Piece, now: Instant) -> Result<usize, Error> {
        if let Some(error) = &self.failed {
            let error = earlier(self.bucket.bucket, error);
            drop(piece.ack.send(Err(error.clone())));
            return Err(error);
        }
        let open = self.open.get_or_insert_with(|| Open {
            pieces: Vec::new(),
            bytes: 0,
            since: now,
            waiters: Waiters::default(),
        });
        open.pieces.push(piece.rows);
        open.bytes += piece.bytes;
        open.waiters.acks.push(piece.ack);
        open.waiters.memory.push(piece.memory);
        Ok(open.bytes)
    }

    pub(super) fn open_bytes(&self) -> usize {
        self.open.as_ref().map_or(0, |open| open.bytes)
    }

    pub(super) fn open_since(&self) -> Option<Instant> {
        self.open.as_ref().map(|open| open.since)
    }

    /// Closes the open batch under `number`, if there is one, and gives it its sequence.
    pub(super) fn close(&mut self, number: u64, now: Instant) -> Option<Closed> {
        let open = self.open.take()?;
        let sequence = self.next_sequence;
        self.next_sequence = following(sequence);
        self.unflushed += 1;
        self.batches.push_back(Batch {
            number,
            sequence,
            bytes: Bytes::new(),
            state: State::Encoding,
            sent_first: false,
            in_doubt: false,
            last_error: None,
            closed_at: now,
            waiters: open.waiters,
        });
        Some(Closed {
            sequence,
            pieces: open.pieces,
        })
    }

    /// The batch's bytes are ready, or cannot be made.
    pub(super) fn encoded(&mut self, number: u64, result: Result<Bytes, Error>) {
        let Some(batch) = self.batches.iter_mut().find(|batch| batch.number == number) else {
            return;
        };
        batch.state = State::Waiting;
        match result {
            Ok(bytes) => batch.bytes = bytes,
            Err(error) => {
                batch.last_error = Some(error);
                self.draining = true;
            }
        }
    }

    pub(super) fn encoding(&self) -> bool {
        self.batches
            .iter()
            .any(|batch| batch.state == State::Encoding)
    }

    pub(super) fn in_flight(&self) -> bool {
        self.batches
            .iter()
            .any(|batch| batch.state == State::InFlight)
    }

    /// Whether an attempt of a batch that is left ended without an answer.
    pub(super) fn in_doubt(&self) -> bool {
        self.batches
            .iter()
            .any(|batch| batch.in_doubt && batch.state != State::Done)
    }

    /// Size of the next batch to send, if one may be sent now.
    pub(super) fn sendable(&self, now: Instant) -> Option<usize> {
        if self.draining || self.rest_until.is_some_and(|until| until > now) {
            return None;
        }
        let sent = |batch: &&Batch| matches!(batch.state, State::InFlight | State::Done);
        let next = self
            .batches
            .iter()
            .take(MAX_IN_FLIGHT)
            .find(|batch| !sent(batch))?;
        (next.state == State::Waiting && !next.is_broken()).then_some(next.bytes.len())
    }

    /// Takes the next batch to send: its number and bytes. Ask [`Queue::sendable`] first.
    pub(super) fn send(&mut self) -> Option<(u64, Bytes)> {
        let first = self
            .batches
            .iter()
            .position(|batch| batch.state != State::Done)?;
        let next = self
            .batches
            .iter()
            .position(|batch| batch.state == State::Waiting)?;
        let batch = self.batches.get_mut(next)?;
        batch.state = State::InFlight;
        batch.sent_first = next == first;
        Some((batch.number, batch.bytes.clone()))
    }

    /// The answer to a batch; the numbers of batches that are done with it.
    pub(super) fn answered(
        &mut self,
        number: u64,
        result: Result<Option<LogOffset>, Error>,
        now: Instant,
    ) -> Option<u64> {
        let bucket = self.bucket;
        let later = |batch: &Batch| batch.number > number && batch.state == State::Done;
        // A server takes no batch before the one that comes before it: this one is stored, but no
        // longer remembered.
        let is_overtaken = self.batches.iter().any(later);
        let batch = self
            .batches
            .iter_mut()
            .find(|batch| batch.number == number)?;
        let base_offset = match result {
            Ok(base_offset) => base_offset,
            Err(error) if error.code() == Some(ErrorCode::DuplicateSequence) => None,
            Err(error) if error.code() == Some(ErrorCode::OutOfOrderSequence) && is_overtaken => {
                None
            }
            Err(error) => {
                batch.in_doubt |= error.outcome_is_unknown();
                batch.state = State::Waiting;
                self.wants_leader |= error.wants_fresh_metadata();
                self.trouble = Some(error.clone());
                batch.last_error = Some(error);
                if !self.draining {
                    self.draining = true;
                    self.rest_until = Some(now + self.backoff.next());
                }
                return None;
            }
        };
        self.trouble = None;
        batch.state = State::Done;
        batch.bytes = Bytes::new();
        std::mem::take(&mut batch.waiters).tell(&Ok(Appended {
            bucket,
            base_offset,
        }));
        while self
            .batches
            .front()
            .is_some_and(|batch| batch.state == State::Done)
        {
            self.batches.pop_front();
        }
        if !self.draining {
            self.backoff.reset();
        }
        Some(number)
    }

    /// Decides how a bucket in trouble goes on; `None` while something of it is in flight, or if
    /// it is in no trouble.
    pub(super) fn judge(&mut self, now: Instant, patience: Duration) -> Option<Verdict> {
        if self.in_flight() {
            return None;
        }
        let Some(first) = self.batches.iter().find(|batch| batch.state != State::Done) else {
            self.draining = false;
            return None;
        };
        let late = first.closed_at + patience <= now;
        if !self.draining && !late && !first.is_broken() {
            return None;
        }
        let verdict = match &first.last_error {
            // Only troubles of later batches: they are sent again behind it.
            None if !late => Verdict::SendOn,
            None => self.fail(Error::NoLeader {
                bucket: self.bucket,
            }),
            Some(error) => match error.code() {
                Some(ErrorCode::OutOfOrderSequence) if !first.sent_first => Verdict::SendOn,
                Some(ErrorCode::OutOfOrderSequence | ErrorCode::UnknownWriterId) => {
                    return Some(Verdict::NewWriter {
                        error: error.clone(),
                    });
                }
                _ if error.is_retriable() && !late => Verdict::SendOn,
                _ => {
                    let error = error.clone();
                    self.fail(error)
                }
            },
        };
        if let Verdict::SendOn = verdict {
            self.draining = false;
            // What a later batch met counts only when it is the first one and meets it again.
            for batch in self.batches.iter_mut().filter(|batch| !batch.is_broken()) {
                batch.last_error = None;
            }
        }
        Some(verdict)
    }

    /// Fails all that is left: the first with `error`, the others because of it.
    pub(super) fn fail(&mut self, error: Error) -> Verdict {
        let after = earlier(self.bucket.bucket, &error);
        let mut numbers = Vec::new();
        for batch in self.batches.drain(..) {
            if batch.state != State::Done {
                let error = if numbers.is_empty() {
                    error.clone()
                } else {
                    after.clone()
                };
                batch.waiters.tell(&Err(error));
                numbers.push(batch.number);
            }
        }
        if let Some(open) = self.open.take() {
            open.waiters.tell(&Err(after));
        }
        self.failed = Some(error.clone());
        self.trouble = None;
        self.draining = false;
        // Nothing is left to be sent: nobody asks for the leader again and again.
        self.wants_leader = false;
        Verdict::Failed {
            batches: numbers,
            error,
        }
    }

    /// Counts sequences from 0 again for a new writer; `restamp` rewrites a batch for a sequence.
    pub(super) fn renumber(&mut self, mut restamp: impl FnMut(&Bytes, i32) -> Bytes) {
        self.next_sequence = 0;
        for batch in &mut self.batches {
            if batch.state == State::Waiting && !batch.is_broken() {
                batch.sequence = self.next_sequence;
                batch.bytes = restamp(&batch.bytes, batch.sequence);
                batch.last_error = None;
                self.next_sequence = following(self.next_sequence);
            }
        }
        self.draining = false;
    }

    /// The sequence of the first batch that is not acknowledged.
    pub(super) fn acknowledged_sequence(&self) -> i32 {
        let first = self.batches.iter().find(|batch| batch.state != State::Done);
        first.map_or(self.next_sequence, |batch| batch.sequence)
    }

    /// When something may happen without an answer: the end of a rest, or of patience.
    pub(super) fn wakes_at(&self, patience: Duration, now: Instant) -> Option<Instant> {
        if self.in_flight() {
            return None;
        }
        let first = self
            .batches
            .iter()
            .find(|batch| batch.state != State::Done)?;
        let late = first.closed_at + patience;
        let rest_ends = self.rest_until.filter(|until| *until > now);
        Some(rest_ends.map_or(late, |until| until.min(late)))
    }

    /// Forgets a rest that has ended; whether the bucket rests.
    pub(super) fn rests(&mut self, now: Instant) -> bool {
        if self.rest_until.is_some_and(|until| until <= now) {
            self.rest_until = None;
        }
        self.rest_until.is_some()
    }

    /// Rests, longer each time, and asks for the leader: there was no one to send to.
    pub(super) fn rest(&mut self, error: Error, now: Instant) {
        self.rest_until = Some(now + self.backoff.next());
        self.wants_leader = true;
        self.trouble = Some(error.clone());
        if let Some(first) = self
            .batches
            .iter_mut()
            .find(|batch| batch.state == State::Waiting)
        {
            first.last_error.get_or_insert(error);
        }
    }
}

fn following(sequence: i32) -> i32 {
    sequence.checked_add(1).unwrap_or(0)
}

fn earlier(bucket: BucketId, error: &Error) -> Error {
    match error {
        Error::EarlierBatchFailed { .. } => error.clone(),
        _ => Error::EarlierBatchFailed {
            bucket,
            source: Arc::new(error.clone()),
        },
    }
}
