//! Rows of the log → rows of the lake table, and what is done with those that don't fit.
//!
//! Most batches fit as a whole. In one that does not, the rows at fault are found by halving, so a
//! bad row costs a few passes over its batch and leaves its neighbours alone.

use arrow::array::RecordBatch;
use weir_lake_format::RowKind;
use weir_protocol::ids::{LogOffset, SchemaId};

use super::decode::LogRows;
use super::schemas::Form;
use crate::align::Position;
use crate::bad_records::{BadRecord, Policy, stored_record};
use crate::cluster::Trouble;
use crate::error::{Error, Result};
use crate::ranges::Offsets;

#[cfg(test)]
mod tests;

/// How a bucket's rows are converted.
#[derive(Clone, Debug)]
pub(super) struct Convert {
    pub policy: Policy,
    /// The bucket's partition, by name.
    pub partition: Option<String>,
    /// Offsets that are left out whatever their rows are like.
    pub diverted: Vec<Offsets>,
    /// How much of bad records is taken.
    pub room: Room,
}

/// How much of bad records is still taken: the one that fills it is the last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub records: usize,
    pub bytes: usize,
}

/// A batch after conversion.
#[derive(Debug)]
pub(super) struct Converted {
    /// Rows in the lake's columns, each run with the offset of its first row.
    pub good: Vec<(LogOffset, RecordBatch)>,
    /// What each row from `first` on does to its key, good or not; `None` if the table has no keys.
    kinds: Option<Vec<RowKind>>,
    /// The offset of the first row.
    first: LogOffset,
    /// Offsets that were left out.
    pub diverted: Vec<Offsets>,
    /// The rows of those that were not left out before.
    pub bad: Vec<BadRecord>,
    /// Why nothing was taken from `reached` on, if a row stopped it.
    pub stopped: Option<Trouble>,
    /// The offset after the last one taken: below the batch's end if a row stopped it or the bad
    /// records have filled their room.
    pub reached: LogOffset,
}

/// A row that does not fit, by its place in the batch.
struct Misfit {
    row: usize,
    column: String,
    reason: String,
}

impl Converted {
    /// What the rows of the run do to their keys; `None` if the table has no keys.
    pub(super) fn kinds_of(&self, (first, rows): &(LogOffset, RecordBatch)) -> Option<&[RowKind]> {
        let from = usize::try_from(first.0 - self.first.0).ok()?;
        self.kinds.as_ref()?.get(from..from + rows.num_rows())
    }

    /// Bytes that the rows hold.
    pub(super) fn memory_bytes(&self) -> u64 {
        let good = self
            .good
            .iter()
            .map(|(_, rows)| rows.get_array_memory_size());
        let bytes = good.sum::<usize>() + self.bad_bytes();
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// Bytes that the bad records hold.
    pub(super) fn bad_bytes(&self) -> usize {
        self.bad.iter().map(|record| record.record.len()).sum()
    }
}

impl Convert {
    /// Converts `rows`, which are in the log's columns, the first at `position`.
    ///
    /// # Errors
    /// What is not the fault of single rows.
    pub(super) fn run(
        &self,
        form: &Form,
        rows: LogRows,
        position: Position,
        schema: SchemaId,
    ) -> Result<Converted> {
        let LogRows { rows, kinds } = rows;
        let work = Work {
            form,
            rows: &rows,
            position,
        };
        let mut out = Converted {
            good: Vec::new(),
            kinds,
            first: position.offset,
            diverted: Vec::new(),
            bad: Vec::new(),
            stopped: None,
            reached: work.offset(rows.num_rows()),
        };
        if self.diverted.is_empty()
            && let Some(all) = work.apply(0, rows.num_rows())?.ok()
        {
            out.good.push((position.offset, all));
            return Ok(out);
        }
        let mut from = 0;
        while from < rows.num_rows() {
            let known = self
                .diverted
                .iter()
                .find(|o| o.contains(&work.offset(from)));
            if let Some(known) = known {
                let to = work.row(known.end);
                out.leave_out(work.offset(from)..work.offset(to));
                from = to;
                continue;
            }
            let starts = self.diverted.iter().map(|o| o.start);
            let next = starts.filter(|start| *start > work.offset(from)).min();
            let to = next.map_or(rows.num_rows(), |next| work.row(next));
            if !self.run_part(&work, (from, to), schema, &mut out)? {
                return Ok(out);
            }
            from = to;
        }
        Ok(out)
    }

    /// Converts rows `from..to`; says whether to go on.
    fn run_part(
        &self,
        work: &Work<'_>,
        (from, to): (usize, usize),
        schema: SchemaId,
        out: &mut Converted,
    ) -> Result<bool> {
        let mut misfits = Vec::new();
        let limit = match self.policy {
            Policy::Stop => 1,
            Policy::Divert => self.room.records.saturating_sub(out.bad.len()).max(1),
        };
        work.misfits(from, to, limit, &mut misfits)?;
        let is_cut = misfits.len() == limit;
        let mut left = self.room.bytes.saturating_sub(out.bad_bytes());
        let mut next = from;
        for misfit in misfits {
            let offset = work.offset(misfit.row);
            if self.policy == Policy::Stop {
                let end = out.whole_before(misfit.row).max(next);
                work.take_good(next, end, out)?;
                out.stopped = Some(stopped(offset, &misfit, out.kinds.is_some()));
                out.reached = work.offset(end);
                return Ok(false);
            }
            work.take_good(next, misfit.row, out)?;
            let bad = self.bad_record(work, &misfit, schema)?;
            left = left.saturating_sub(bad.record.len());
            out.bad.push(bad);
            out.leave_out(offset..LogOffset(offset.0.saturating_add(1)));
            next = misfit.row + 1;
            if left == 0 {
                out.reached = work.offset(next);
                return Ok(false);
            }
        }
        if is_cut {
            // What is behind the last of them was not looked at.
            out.reached = work.offset(next);
            return Ok(false);
        }
        work.take_good(next, to, out)?;
        Ok(true)
    }

    fn bad_record(&self, work: &Work<'_>, misfit: &Misfit, schema: SchemaId) -> Result<BadRecord> {
        let offset = work.offset(misfit.row);
        let stamp = (offset, work.position.timestamp_ms);
        let record = stored_record(work.rows, misfit.row, schema, stamp);
        let record = record.map_err(|source| Error::Log {
            table: work.form.alignment.table().clone(),
            bucket: work.position.bucket,
            offset,
            source,
        })?;
        Ok(BadRecord {
            bucket: work.position.bucket,
            partition: self.partition.clone(),
            offset,
            column: misfit.column.clone(),
            reason: misfit.reason.clone(),
            record,
        })
    }
}

impl Converted {
    /// How many rows can be taken if this one can't: not the old row of its update alone, which would
    /// take the key away.
    fn whole_before(&self, row: usize) -> usize {
        let before = row.checked_sub(1);
        let kind = before.and_then(|before| self.kinds.as_ref()?.get(before).copied());
        match (before, kind) {
            (Some(before), Some(RowKind::UpdateBefore)) => before,
            _ => row,
        }
    }

    fn leave_out(&mut self, offsets: Offsets) {
        match self.diverted.last_mut() {
            Some(last) if last.end == offsets.start => last.end = offsets.end,
            _ => self.diverted.push(offsets),
        }
    }
}

struct Work<'a> {
    form: &'a Form,
    rows: &'a RecordBatch,
    position: Position,
}

impl Work<'_> {
    fn offset(&self, row: usize) -> LogOffset {
        let row = i64::try_from(row).unwrap_or(i64::MAX);
        LogOffset(self.position.offset.0.saturating_add(row))
    }

    /// The row at an offset that is not below the batch; its end for all beyond.
    fn row(&self, offset: LogOffset) -> usize {
        let row = offset.0.saturating_sub(self.position.offset.0);
        usize::try_from(row).unwrap_or(0).min(self.rows.num_rows())
    }

    /// Rows `from..to` in the lake's columns, or the first thing in them that does not fit.
    fn apply(&self, from: usize, to: usize) -> Result<Result<RecordBatch, Misfit>> {
        let position = Position {
            offset: self.offset(from),
            ..self.position
        };
        let rows = self.rows.slice(from, to - from);
        match self.form.alignment.apply(&rows, position) {
            Ok(rows) => Ok(Ok(rows)),
            Err(Error::Column { column, reason, .. }) => Ok(Err(Misfit {
                row: from,
                column,
                reason,
            })),
            Err(error) => Err(error),
        }
    }

    fn take_good(&self, from: usize, to: usize, out: &mut Converted) -> Result<()> {
        if from == to {
            return Ok(());
        }
        match self.apply(from, to)? {
            Ok(rows) => {
                out.good.push((self.offset(from), rows));
                Ok(())
            }
            // Each of them fits by itself.
            Err(misfit) => Err(Error::Schema {
                table: self.form.alignment.table().clone(),
                column: misfit.column,
                reason: misfit.reason,
            }),
        }
    }

    /// The rows among `from..to` that do not fit, ascending, until there are `limit`.
    fn misfits(&self, from: usize, to: usize, limit: usize, found: &mut Vec<Misfit>) -> Result<()> {
        if from == to || found.len() == limit {
            return Ok(());
        }
        let Err(misfit) = self.apply(from, to)? else {
            return Ok(());
        };
        if to - from == 1 {
            found.push(misfit);
            return Ok(());
        }
        let middle = from + (to - from) / 2;
        self.misfits(from, middle, limit, found)?;
        self.misfits(middle, to, limit, found)
    }
}

fn stopped(offset: LogOffset, misfit: &Misfit, has_keys: bool) -> Trouble {
    let Misfit { column, reason, .. } = misfit;
    let remedy = if has_keys {
        "its bucket goes on once the lake table's column takes it".to_owned()
    } else {
        let policy = crate::bad_records::POLICY;
        format!("with the property {policy}=divert tiering goes on behind it")
    };
    Trouble::lasting(format!(
        "offset {offset}, column {column}: {reason}; the rows before it are in the lake, and {remedy}"
    ))
}
