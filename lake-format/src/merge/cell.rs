//! Values of rows that are being merged: where they are, or what they became.

use arrow::array::{Array, ArrayRef, RecordBatch};

use crate::datum::Datum;
use crate::error::{Error, Result};
use crate::types::DataType;

/// A row of a held batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) batch: usize,
    pub(super) row: usize,
}

/// A value of a column.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Cell {
    Null,
    /// The value, which is not null, of a row.
    At(Place),
    /// A value that no row has; never null.
    Computed(Datum),
}

impl Cell {
    pub(super) fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }
}

/// The batches that places are in.
#[derive(Debug, Default)]
pub(super) struct Held {
    batches: Vec<RecordBatch>,
    spent_bytes: usize,
}

impl Held {
    /// Holds a batch from now on; the number is its name in places.
    pub(super) fn hold(&mut self, batch: RecordBatch) -> usize {
        self.batches.push(batch);
        self.batches.len() - 1
    }

    /// Notes that its run has come to the end of a batch.
    pub(super) fn is_spent(&mut self, batch: &RecordBatch) {
        self.spent_bytes += batch.get_array_memory_size();
    }

    /// Bytes of batches whose runs are at their end.
    pub(super) fn spent_bytes(&self) -> usize {
        self.spent_bytes
    }

    /// Lets all batches go: places have no meaning any more.
    pub(super) fn clear(&mut self) {
        self.batches.clear();
        self.spent_bytes = 0;
    }

    /// A column of all batches, in their order.
    pub(super) fn column(&self, column: usize) -> Result<Vec<&dyn Array>> {
        let arrays = self.batches.iter().map(|batch| array(batch, column));
        arrays.map(|array| array.map(AsRef::as_ref)).collect()
    }

    /// The value of a row.
    pub(super) fn cell(&self, column: usize, place: Place) -> Result<Cell> {
        let array = self.array(column, place)?;
        Ok(if array.is_null(place.row) {
            Cell::Null
        } else {
            Cell::At(place)
        })
    }

    pub(super) fn datum(&self, column: usize, data_type: &DataType, cell: &Cell) -> Result<Datum> {
        match cell {
            Cell::Null => Ok(Datum::Null),
            Cell::Computed(datum) => Ok(datum.clone()),
            Cell::At(place) => Datum::from_array(self.array(column, *place)?, place.row, data_type),
        }
    }

    fn array(&self, column: usize, place: Place) -> Result<&ArrayRef> {
        let batch = self.batches.get(place.batch).ok_or_else(lost)?;
        array(batch, column)
    }
}

fn array(batch: &RecordBatch, column: usize) -> Result<&ArrayRef> {
    batch.columns().get(column).ok_or_else(lost)
}

fn lost() -> Error {
    Error::malformed("merged batch", "a row lies in no column that is held")
}
