//! Merging the sorted runs of a bucket, by primary key: batches in, batches out, no IO.
//!
//! A run gives rows in ascending key order, each with its sequence number and row kind. All versions
//! of a key are taken from the runs, put in their order, and made one row by the table's merge
//! engine ([`Rule`]); keys whose row is retracted are left out (paimon: `SortMergeReader`,
//! `ReducerMergeFunctionWrapper`, `DropDeleteReader`).

use std::cmp::Ordering;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::row::{RowConverter, SortField};

use crate::error::{Error, Result};
use crate::row_kind::RowKind;

mod aggregate;
pub(crate) mod buffer;
mod cell;
mod heap;
mod output;
mod partial_update;
mod rule;
mod run;

pub(crate) use buffer::{ChangeBuffer, SortedChanges};
use cell::{Cell, Held, Place};
use output::Output;
pub(crate) use rule::{Rule, SEQUENCE_NUMBER, VALUE_KIND, ignore_delete, is_system_column};
use run::{Batch, Run};

/// Rows of a merged batch, at most.
const OUTPUT_ROWS: usize = 8192;

/// Bytes of batches that are read to their end and that rows of the next merged batch still lie in.
const SPENT_BYTES: usize = 64 << 20;

/// What an engine that merges column by column makes of the versions of a key.
#[derive(Debug)]
struct Merged {
    /// The columns that are read, sequence number and row kind aside.
    cells: Vec<Cell>,
    sequence: i64,
    kind: RowKind,
}

/// One version of a key.
#[derive(Clone, Debug)]
struct Version {
    place: Place,
    /// The values of `sequence.field`, as bytes in their order; empty without that option.
    fields: Vec<u8>,
    sequence: i64,
    kind: RowKind,
    level: i32,
    /// Which file is newer, where nothing else tells.
    age: usize,
}

impl Version {
    /// Older before newer; of equal numbers a retraction comes first.
    fn order(&self, other: &Self) -> Ordering {
        let by_fields = self.fields.cmp(&other.fields);
        let is_retraction = self.kind.is_retraction();
        by_fields
            .then(self.sequence.cmp(&other.sequence))
            .then(other.kind.is_retraction().cmp(&is_retraction))
            .then(self.age.cmp(&other.age))
    }
}

/// What a merge does next.
#[derive(Debug)]
pub(crate) enum Step {
    /// These runs must be fed or ended.
    Need(Vec<usize>),
    /// Merged rows.
    Rows(RecordBatch),
    /// All is merged.
    Done,
}

/// A batch of a run.
#[derive(Debug)]
pub(crate) struct Input {
    /// The columns of [`Rule::fields`].
    pub(crate) batch: RecordBatch,
    /// The level of its file.
    pub(crate) level: i32,
    /// The higher, the newer its file.
    pub(crate) age: usize,
}

/// A merge of several runs.
#[derive(Debug)]
pub(crate) struct Merge {
    rule: Arc<Rule>,
    keys: RowConverter,
    sequence_fields: Option<RowConverter>,
    runs: Vec<Run>,
    /// The runs that have a row, the lowest key first.
    heap: Vec<usize>,
    hungry: Vec<usize>,
    /// The key at hand and its versions so far.
    key: Vec<u8>,
    versions: Vec<Version>,
    /// The key before it.
    last_key: Option<Vec<u8>>,
    held: Held,
    output: Output,
}

impl Merge {
    /// A merge of so many runs. All keys must be above `last_key`, what an earlier merge of the
    /// same rule ended with.
    ///
    /// # Errors
    /// [`Error::Arrow`] if keys are of types that have no order.
    pub(crate) fn new(rule: Arc<Rule>, runs: usize, last_key: Option<Vec<u8>>) -> Result<Self> {
        let sort_fields = |fields: Vec<SortField>| {
            RowConverter::new(fields).map_err(|source| Error::Arrow {
                what: format!("the order of keys in {}", rule.table()),
                source,
            })
        };
        let keys = sort_fields(rule.key_order())?;
        let sequence_fields = rule.sequence_order().map(sort_fields).transpose()?;
        Ok(Self {
            keys,
            sequence_fields,
            runs: (0..runs).map(|_| Run::default()).collect(),
            heap: Vec::with_capacity(runs),
            hungry: (0..runs).collect(),
            key: Vec::new(),
            versions: Vec::new(),
            last_key,
            held: Held::default(),
            output: Output::new(&rule),
            rule,
        })
    }

    /// Gives a run that was asked for its next batch.
    ///
    /// # Errors
    /// [`Error::Malformed`] if the rows are not in the order of their keys, or lack a number or
    /// kind.
    pub(crate) fn feed(&mut self, run: usize, input: Input) -> Result<()> {
        if input.batch.num_rows() == 0 {
            self.hungry.push(run);
            return Ok(());
        }
        let sequence_fields = self.sequence_fields.as_ref();
        let batch = Batch::new(&self.rule, &self.keys, sequence_fields, input)?;
        if let Some(slot) = self.runs.get_mut(run) {
            slot.feed(batch)?;
            let runs = &self.runs;
            heap::push(&mut self.heap, run, |a, b| is_before(runs, a, b));
        }
        Ok(())
    }

    /// Goes on until runs must be fed or rows are there. A run that was asked for and is not fed
    /// has ended.
    ///
    /// # Errors
    /// What the merge engine makes of the rows; [`Error::Malformed`] if a key is not above the last.
    pub(crate) fn step(&mut self) -> Result<Step> {
        loop {
            if !self.hungry.is_empty() {
                return Ok(Step::Need(std::mem::take(&mut self.hungry)));
            }
            match self.heap.first().copied() {
                Some(run) if self.goes_on_with(run) => self.take_version(run)?,
                _ if !self.versions.is_empty() => {
                    self.finish_key()?;
                    if self.output.len() >= OUTPUT_ROWS || self.held.spent_bytes() >= SPENT_BYTES {
                        let rows = self.flush()?;
                        if rows.num_rows() > 0 {
                            return Ok(Step::Rows(rows));
                        }
                    }
                }
                _ if self.output.len() > 0 => return Ok(Step::Rows(self.flush()?)),
                _ => return Ok(Step::Done),
            }
        }
    }

    /// The last key that it saw.
    pub(crate) fn into_last_key(self) -> Option<Vec<u8>> {
        self.last_key
    }

    /// Whether the next row of the run is a version of the key at hand, or begins the next one.
    fn goes_on_with(&self, run: usize) -> bool {
        self.versions.is_empty() || self.key_of(run) == Some(self.key.as_slice())
    }

    fn key_of(&self, run: usize) -> Option<&[u8]> {
        self.runs.get(run).and_then(Run::key)
    }

    fn take_version(&mut self, index: usize) -> Result<()> {
        let Some(run) = self.runs.get_mut(index) else {
            return Ok(());
        };
        if self.versions.is_empty() {
            self.key.clear();
            self.key.extend_from_slice(run.key().unwrap_or_default());
            if self.last_key.as_ref().is_some_and(|last| *last >= self.key) {
                let reason = "a key lies outside of the bounds that its file states";
                return Err(Error::malformed("data file", reason));
            }
        }
        self.versions.extend(run.take(&mut self.held)?);
        let runs = &self.runs;
        let is_before = |a, b| is_before(runs, a, b);
        if runs.get(index).is_some_and(|run| run.key().is_some()) {
            heap::sink(&mut self.heap, is_before);
        } else {
            heap::pop(&mut self.heap, is_before);
            self.hungry.push(index);
        }
        Ok(())
    }

    fn finish_key(&mut self) -> Result<()> {
        self.versions.sort_by(Version::order);
        self.rule
            .merge(&self.versions, &self.held, &mut self.output)?;
        self.versions.clear();
        let last_key = self.last_key.get_or_insert_default();
        std::mem::swap(last_key, &mut self.key);
        Ok(())
    }

    fn flush(&mut self) -> Result<RecordBatch> {
        let rows = self.output.build(&self.rule, &self.held)?;
        self.held.clear();
        self.runs.iter_mut().for_each(Run::let_go);
        Ok(rows)
    }
}

fn is_before(runs: &[Run], a: usize, b: usize) -> bool {
    let key = |run: usize| runs.get(run).and_then(Run::key);
    (key(a), a) < (key(b), b)
}

#[cfg(test)]
mod tests;
