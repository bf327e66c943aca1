//! One tiering round of one table as a pure state machine: Requested → Splitting → Writing →
//! Committing → Reporting.
//!
//! It owns what makes a round right and nothing else: each split answers exactly once, an uncut
//! split ends at its stop offset, a cut one where it was consumed to, and only a complete round can
//! be committed.

use std::collections::BTreeMap;
use std::time::Duration;

use weir_protocol::ids::{BucketId, LogOffset, PartitionId, TableBucket};

use crate::bad_records::BadRecord;
use crate::cluster::Trouble;
use crate::error::{Error, Result};
use crate::lease::Lease;
use crate::phase::Phase;
use crate::ranges::{Apart, BucketRange};
use crate::split::Split;

/// When a round ends although its splits have more to give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Time since the round began.
    pub max_duration: Duration,
    /// Rows written.
    pub max_rows: u64,
    /// Bytes read from the log.
    pub max_bytes: u64,
}

/// What ended the reading of a round early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The time limit.
    Duration,
    /// The row limit.
    Rows,
    /// The byte limit.
    Bytes,
    /// The daemon stops.
    Stop,
}

/// The answer of one split; `F` is what names its written files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitResult<F> {
    /// The bucket.
    pub bucket: TableBucket,
    /// The offset after the last one consumed (empty batches count); `None` if nothing was
    /// consumed.
    pub end: Option<LogOffset>,
    /// Rows written.
    pub rows: i64,
    /// The newest commit timestamp consumed, in milliseconds since 1970.
    pub max_timestamp_ms: Option<i64>,
    /// The files, empty if no rows came.
    pub files: Vec<F>,
    /// Offsets that were consumed and have no row in the files: bad records, and what was lost.
    pub apart: Apart,
    /// The bad records among them that are to be kept.
    pub bad: Vec<BadRecord>,
    /// Why the bucket could not be read to its stop offset.
    pub fault: Option<Trouble>,
}

impl<F> SplitResult<F> {
    /// The answer of a split of which nothing was consumed.
    pub fn nothing(bucket: TableBucket) -> Self {
        let (max_timestamp_ms, fault) = (None, None);
        Self {
            bucket,
            end: None,
            rows: 0,
            max_timestamp_ms,
            files: Vec::new(),
            apart: Apart::default(),
            bad: Vec::new(),
            fault,
        }
    }
}

/// A complete round, ready for the committer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committable<F> {
    /// Under which lease the rows were read.
    pub lease: Lease,
    /// The round's id, unique for ever.
    pub round: String,
    /// Per bucket that moved: what was taken from it.
    pub ranges: Vec<BucketRange>,
    /// Per bucket that moved: the newest commit timestamp, if known.
    pub max_timestamps_ms: BTreeMap<TableBucket, i64>,
    /// All files of the round.
    pub files: Vec<F>,
    /// Rows in them.
    pub rows: i64,
    /// Bad records of the round: for the bad-record table, before anything is committed.
    pub bad: Vec<BadRecord>,
    /// Whether offsets below the planned stops are left.
    pub cut: Option<Cut>,
    /// Buckets that could not be read, with the reason.
    pub faults: Vec<(TableBucket, Trouble)>,
}

/// The state machine; `F` is what names written files.
#[derive(Debug)]
pub struct Round<F> {
    lease: Lease,
    id: String,
    limits: Limits,
    started_ms: i64,
    phase: Phase,
    cut: Option<Cut>,
    rows: u64,
    bytes: u64,
    splits: BTreeMap<TableBucket, Split>,
    results: BTreeMap<TableBucket, SplitResult<F>>,
}

impl<F> Round<F> {
    /// A round that begins at `started_ms` (wall time) under `lease`.
    pub fn new(lease: Lease, id: String, limits: Limits, started_ms: i64) -> Self {
        Self {
            lease,
            id,
            limits,
            started_ms,
            phase: Phase::Requested,
            cut: None,
            rows: 0,
            bytes: 0,
            splits: BTreeMap::new(),
            results: BTreeMap::new(),
        }
    }

    /// Where the round stands.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// The round's id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Offsets are going to be read.
    ///
    /// # Errors
    /// [`Error::WrongPhase`] if that was done before.
    pub fn split(&mut self) -> Result<()> {
        self.step(Phase::Requested, Phase::Splitting)
    }

    /// The plan is there: the phase is Writing, or Reporting if there is nothing to do.
    ///
    /// # Errors
    /// [`Error::WrongPhase`] out of turn; [`Error::DuplicateSplit`] if two splits name one bucket;
    /// [`Error::EmptySplit`] if one has no offsets.
    pub fn write(&mut self, splits: Vec<Split>) -> Result<()> {
        let next = if splits.is_empty() {
            Phase::Reporting
        } else {
            Phase::Writing
        };
        self.step(Phase::Splitting, next)?;
        for split in splits {
            let bucket = split.bucket;
            if split.start >= split.stop {
                return Err(Error::EmptySplit {
                    bucket,
                    start: split.start,
                    stop: split.stop,
                });
            }
            if self.splits.insert(bucket, split).is_some() {
                return Err(Error::DuplicateSplit { bucket });
            }
        }
        Ok(())
    }

    /// Counts what was read, and says whether the round has to end now. The first limit met stays.
    pub fn progress(&mut self, rows: u64, bytes: u64, now_ms: i64) -> Option<Cut> {
        self.rows = self.rows.saturating_add(rows);
        self.bytes = self.bytes.saturating_add(bytes);
        let elapsed = u64::try_from(now_ms.saturating_sub(self.started_ms)).unwrap_or(0);
        let reached = if u128::from(elapsed) >= self.limits.max_duration.as_millis() {
            Some(Cut::Duration)
        } else if self.rows >= self.limits.max_rows {
            Some(Cut::Rows)
        } else if self.bytes >= self.limits.max_bytes {
            Some(Cut::Bytes)
        } else {
            None
        };
        if let Some(cut) = reached {
            self.cut(cut);
        }
        self.cut
    }

    /// Ends the reading: from now on splits may answer below their stop offset. The first reason
    /// stays.
    pub fn cut(&mut self, reason: Cut) {
        if self.phase == Phase::Writing {
            self.cut.get_or_insert(reason);
        }
    }

    /// Takes the answer of one split; says how many are still out.
    ///
    /// # Errors
    /// [`Error::WrongPhase`] out of turn, [`Error::UnknownResult`] for a bucket without split,
    /// [`Error::DuplicateResult`] for a second answer, [`Error::BadResult`] for one that
    /// contradicts its split: the round must fail.
    pub fn add(&mut self, result: SplitResult<F>) -> Result<usize> {
        if self.phase != Phase::Writing {
            return Err(Error::WrongPhase {
                phase: self.phase,
                wanted: Phase::Writing,
            });
        }
        let bucket = result.bucket;
        let split = self
            .splits
            .get(&bucket)
            .ok_or(Error::UnknownResult { bucket })?;
        if self.results.contains_key(&bucket) {
            return Err(Error::DuplicateResult { bucket });
        }
        check(split, &result, self.cut.is_some())?;
        self.results.insert(bucket, result);
        Ok(self.splits.len() - self.results.len())
    }

    /// Hands over everything for the commit, once each split has answered.
    ///
    /// # Errors
    /// [`Error::WrongPhase`] out of turn, [`Error::Incomplete`] while answers are out.
    pub fn commit(&mut self) -> Result<Committable<F>> {
        if self.phase != Phase::Writing {
            return Err(Error::WrongPhase {
                phase: self.phase,
                wanted: Phase::Writing,
            });
        }
        let missing = self.splits.len() - self.results.len();
        if missing > 0 {
            let count = self.splits.len();
            return Err(Error::Incomplete {
                round: self.id.clone(),
                missing,
                count,
            });
        }
        self.step(Phase::Writing, Phase::Committing)?;
        let mut out = Committable {
            lease: self.lease.clone(),
            round: self.id.clone(),
            ranges: Vec::new(),
            max_timestamps_ms: BTreeMap::new(),
            files: Vec::new(),
            rows: 0,
            bad: Vec::new(),
            cut: None,
            faults: Vec::new(),
        };
        for (bucket, result) in std::mem::take(&mut self.results) {
            let Some(split) = self.splits.get(&bucket) else {
                continue;
            };
            if result.end.is_none_or(|end| end < split.stop) {
                out.cut = self.cut;
            }
            take(&mut out, split, result);
        }
        Ok(out)
    }

    /// Gives the round up: the files of all results that were in.
    pub fn discard(&mut self) -> Vec<F> {
        self.phase = Phase::Reporting;
        std::mem::take(&mut self.results)
            .into_values()
            .flat_map(|result| result.files)
            .collect()
    }

    /// The round is over, whichever way; legal in every phase.
    pub fn report(&mut self) {
        self.phase = Phase::Reporting;
    }

    fn step(&mut self, from: Phase, to: Phase) -> Result<()> {
        if self.phase != from {
            return Err(Error::WrongPhase {
                phase: self.phase,
                wanted: from,
            });
        }
        self.phase = to;
        Ok(())
    }
}

impl<F> Committable<F> {
    /// Per bucket that moved, the exclusive end of what the lake holds after the commit.
    pub fn ends(&self) -> BTreeMap<TableBucket, LogOffset> {
        let table = self.lease.table;
        let key = |partition: Option<PartitionId>, bucket: BucketId| TableBucket {
            table,
            partition,
            bucket,
        };
        self.ranges
            .iter()
            .map(|r| (key(r.partition_id, r.bucket), r.end))
            .collect()
    }
}

fn check<F>(split: &Split, result: &SplitResult<F>, cut: bool) -> Result<()> {
    let bad = |reason: &'static str| {
        Err(Error::BadResult {
            bucket: split.bucket,
            start: split.start,
            stop: split.stop,
            end: result.end,
            reason,
        })
    };
    let Some(end) = result.end else {
        return if result.rows != 0 || !result.files.is_empty() || !result.apart.is_empty() {
            bad("rows without an end offset")
        } else if !cut && result.fault.is_none() {
            bad("nothing was read, and nothing says why")
        } else {
            Ok(())
        };
    };
    if end <= split.start || end > split.stop {
        return bad("the end is outside the split");
    }
    if end < split.stop && !cut && result.fault.is_none() {
        return bad("the split ended early, and nothing says why");
    }
    if result.rows < 0 || result.rows > end.0 - split.start.0 - result.apart.count() {
        return bad("more rows than offsets");
    }
    if (result.rows == 0) != result.files.is_empty() {
        return bad("rows and files contradict each other");
    }
    let within = |o: &crate::ranges::Offsets| split.start <= o.start && o.end <= end;
    if !result.apart.all().iter().all(within) {
        return bad("offsets apart are outside of it");
    }
    let diverted = |offset| result.apart.diverted.iter().any(|o| o.contains(&offset));
    if !result.bad.iter().all(|record| diverted(record.offset)) {
        return bad("a bad record is not among its offsets");
    }
    Ok(())
}

fn take<F>(out: &mut Committable<F>, split: &Split, result: SplitResult<F>) {
    if let Some(fault) = result.fault {
        out.faults.push((split.bucket, fault));
    }
    let Some(end) = result.end else { return };
    out.ranges.push(BucketRange {
        partition_id: split.bucket.partition,
        partition: split.partition.clone(),
        bucket: split.bucket.bucket,
        start: split.start,
        end,
        rows: result.rows,
        apart: result.apart,
    });
    out.bad.extend(result.bad);
    if let Some(timestamp) = result.max_timestamp_ms {
        out.max_timestamps_ms.insert(split.bucket, timestamp);
    }
    out.rows += result.rows;
    out.files.extend(result.files);
}

#[cfg(test)]
mod tests;
