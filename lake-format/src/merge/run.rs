//! A sorted run while it is merged: its batch at hand and the row that comes next.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int8Array, Int64Array, RecordBatch};
use arrow::datatypes::{Int8Type, Int64Type};
use arrow::error::ArrowError;
use arrow::row::{RowConverter, Rows};

use super::cell::{Held, Place};
use super::{Input, Rule, Version};
use crate::error::{Error, Result};
use crate::row_kind::RowKind;

/// A run; without a batch it has ended or waits for the next.
#[derive(Debug, Default)]
pub(super) struct Run {
    batch: Option<Batch>,
    last_key: Option<Vec<u8>>,
}

/// A batch of a run, which has a row at least.
#[derive(Debug)]
pub(super) struct Batch {
    columns: RecordBatch,
    keys: Rows,
    sequence_fields: Option<Rows>,
    sequence_numbers: Int64Array,
    kinds: Int8Array,
    level: i32,
    age: usize,
    /// The row that comes next.
    next: usize,
    /// Its name in places, if any row of it was taken since the last flush.
    held: Option<usize>,
}

impl Batch {
    pub(super) fn new(
        rule: &Rule,
        keys: &RowConverter,
        sequence_fields: Option<&RowConverter>,
        input: Input,
    ) -> Result<Self> {
        let columns = input.batch;
        let failed = |source: ArrowError| Error::Arrow {
            what: format!("the keys of {}", rule.table()),
            source,
        };
        let rows = |converter: &RowConverter, of: &[usize]| {
            let arrays = of.iter().map(|column| column_of(&columns, *column));
            let arrays: Vec<ArrayRef> = arrays.collect::<Result<_>>()?;
            converter.convert_columns(&arrays).map_err(failed)
        };
        let keys = rows(keys, rule.key())?;
        let by_fields = |converter: &RowConverter| rows(converter, rule.sequence());
        let sequence_fields = sequence_fields.map(by_fields).transpose()?;
        let (numbers, kinds) = rule.system_columns();
        let numbers = column_of(&columns, numbers)?;
        let kinds = column_of(&columns, kinds)?;
        let (Some(numbers), Some(kinds)) = (
            numbers.as_primitive_opt::<Int64Type>(),
            kinds.as_primitive_opt::<Int8Type>(),
        ) else {
            return Err(malformed(
                "its sequence numbers or row kinds are no numbers",
            ));
        };
        if numbers.null_count() > 0 || kinds.null_count() > 0 {
            return Err(malformed("a row has no sequence number or no kind"));
        }
        let (numbers, kinds) = (numbers.clone(), kinds.clone());
        let mut in_order = (1..keys.num_rows()).map(|row| keys.row(row - 1) <= keys.row(row));
        if !in_order.all(|in_order| in_order) {
            return Err(unsorted());
        }
        Ok(Self {
            sequence_numbers: numbers,
            kinds,
            columns,
            keys,
            sequence_fields,
            level: input.level,
            age: input.age,
            next: 0,
            held: None,
        })
    }

    fn key(&self) -> Option<&[u8]> {
        (self.next < self.keys.num_rows()).then(|| self.keys.row(self.next).data())
    }

    fn version(&mut self, held: &mut Held) -> Result<Version> {
        let row = self.next;
        let batch = match self.held {
            Some(batch) => batch,
            None => *self.held.insert(held.hold(self.columns.clone())),
        };
        let kind = RowKind::try_from(self.kinds.value(row))?;
        let fields = self.sequence_fields.as_ref();
        Ok(Version {
            place: Place { batch, row },
            fields: fields.map_or_else(Vec::new, |rows| rows.row(row).data().to_vec()),
            sequence: self.sequence_numbers.value(row),
            kind,
            level: self.level,
            age: self.age,
        })
    }
}

impl Run {
    pub(super) fn feed(&mut self, batch: Batch) -> Result<()> {
        let last_key = self.last_key.as_deref();
        if last_key.is_some_and(|last| batch.key().is_some_and(|key| key < last)) {
            return Err(unsorted());
        }
        self.batch = Some(batch);
        Ok(())
    }

    /// The key of the row that comes next.
    pub(super) fn key(&self) -> Option<&[u8]> {
        self.batch.as_ref().and_then(Batch::key)
    }

    /// Takes the next row.
    pub(super) fn take(&mut self, held: &mut Held) -> Result<Option<Version>> {
        let Some(batch) = &mut self.batch else {
            return Ok(None);
        };
        let version = batch.version(held)?;
        let is_last = batch.next + 1 == batch.keys.num_rows();
        if is_last {
            self.last_key = batch.key().map(<[u8]>::to_vec);
            held.is_spent(&batch.columns);
            self.batch = None;
        } else {
            batch.next += 1;
        }
        Ok(Some(version))
    }

    /// Forgets the name of its batch, which is held no longer.
    pub(super) fn let_go(&mut self) {
        if let Some(batch) = &mut self.batch {
            batch.held = None;
        }
    }
}

fn column_of(batch: &RecordBatch, column: usize) -> Result<ArrayRef> {
    let array = batch.columns().get(column).map(Arc::clone);
    array.ok_or_else(|| malformed("it lacks a column of its key, sequence or kind"))
}

fn unsorted() -> Error {
    malformed("its rows are not in the order of their keys")
}

fn malformed(reason: impl Into<String>) -> Error {
    Error::malformed("data file", reason)
}
