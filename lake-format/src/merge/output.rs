//! Merged rows until they are a batch: where their values are, column by column.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Decimal128Array, Float32Array, Float64Array, Int8Array, Int16Array,
    Int32Array, Int64Array, RecordBatch, RecordBatchOptions, StringArray, new_null_array,
};
use arrow::compute::interleave;
use arrow::error::ArrowError;

use super::Rule;
use super::cell::{Cell, Held, Place};
use crate::datum::Datum;
use crate::error::{Error, Result};
use crate::types::{DataType, TypeKind};

/// Merged rows.
#[derive(Debug)]
pub(super) enum Output {
    /// Of engines that pick one version of a key.
    Whole(Vec<Place>),
    /// Of engines that merge column by column.
    Columns(Vec<Vec<Cell>>, usize),
}

impl Output {
    pub(super) fn new(rule: &Rule) -> Self {
        if rule.picks_whole_rows() {
            Self::Whole(Vec::new())
        } else {
            Self::Columns(rule.wanted().iter().map(|_| Vec::new()).collect(), 0)
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Whole(places) => places.len(),
            Self::Columns(_, rows) => *rows,
        }
    }

    /// Adds the row of a version as it is.
    pub(super) fn push_whole(&mut self, rule: &Rule, held: &Held, place: Place) -> Result<()> {
        match self {
            Self::Whole(places) => places.push(place),
            Self::Columns(columns, rows) => {
                for (column, cells) in rule.wanted().iter().zip(columns) {
                    cells.push(held.cell(*column, place)?);
                }
                *rows += 1;
            }
        }
        Ok(())
    }

    /// Adds a row, given as the cells of all columns that are read.
    pub(super) fn push_cells(&mut self, rule: &Rule, row: &[Cell]) {
        if let Self::Columns(columns, rows) = self {
            for (column, cells) in rule.wanted().iter().zip(columns) {
                cells.push(row.get(*column).cloned().unwrap_or(Cell::Null));
            }
            *rows += 1;
        }
    }

    /// The rows as a batch of the wanted columns; none are left.
    pub(super) fn build(&mut self, rule: &Rule, held: &Held) -> Result<RecordBatch> {
        let row_count = self.len();
        let failed = |source: ArrowError| Error::Arrow {
            what: format!("merged rows of {}", rule.table()),
            source,
        };
        let mut arrays: Vec<ArrayRef> = Vec::with_capacity(rule.wanted().len());
        match self {
            Self::Whole(places) => {
                let indices: Vec<(usize, usize)> = places.drain(..).map(index).collect();
                for column in rule.wanted().iter().filter(|_| row_count > 0) {
                    let sources = held.column(*column)?;
                    arrays.push(interleave(&sources, &indices).map_err(failed)?);
                }
            }
            Self::Columns(columns, rows) => {
                *rows = 0;
                for (column, cells) in rule.wanted().iter().zip(columns) {
                    let cells = std::mem::take(cells);
                    if row_count > 0 {
                        arrays.push(array(rule, held, *column, &cells)?);
                    }
                }
            }
        }
        let schema = rule.wanted_schema();
        if row_count == 0 {
            return Ok(RecordBatch::new_empty(schema));
        }
        let options = RecordBatchOptions::new().with_row_count(Some(row_count));
        RecordBatch::try_new_with_options(schema, arrays, &options).map_err(failed)
    }
}

fn index(place: Place) -> (usize, usize) {
    (place.batch, place.row)
}

fn array(rule: &Rule, held: &Held, column: usize, cells: &[Cell]) -> Result<ArrayRef> {
    let data_type = rule.data_type(column)?;
    if cells.iter().any(|cell| matches!(cell, Cell::Computed(_))) {
        let data = cells.iter().map(|cell| held.datum(column, data_type, cell));
        return computed(rule, data_type, data.collect::<Result<_>>()?);
    }
    let mut sources = held.column(column)?;
    // The type of the arrays, not of the field: what nested parts are called counts.
    let null_type = sources.first().map(|array| array.data_type().clone());
    let nulls = new_null_array(&null_type.unwrap_or_else(|| data_type.arrow_type()), 1);
    let null = (sources.len(), 0);
    sources.push(nulls.as_ref());
    let indices = cells.iter().map(|cell| match cell {
        Cell::At(place) => index(*place),
        Cell::Null | Cell::Computed(_) => null,
    });
    let indices: Vec<(usize, usize)> = indices.collect();
    interleave(&sources, &indices).map_err(|source| Error::Arrow {
        what: format!("merged rows of {}", rule.table()),
        source,
    })
}

/// An array of values that aggregate functions compute.
fn computed(rule: &Rule, data_type: &DataType, data: Vec<Datum>) -> Result<ArrayRef> {
    macro_rules! values {
        ($array:ident, $variant:ident) => {
            $array::from_iter(data.into_iter().map(|datum| match datum {
                Datum::$variant(value) => Some(value),
                _ => None,
            }))
        };
    }
    Ok(match &data_type.kind {
        TypeKind::Boolean => Arc::new(values!(BooleanArray, Boolean)),
        TypeKind::TinyInt => Arc::new(values!(Int8Array, TinyInt)),
        TypeKind::SmallInt => Arc::new(values!(Int16Array, SmallInt)),
        TypeKind::Int => Arc::new(values!(Int32Array, Int)),
        TypeKind::BigInt => Arc::new(values!(Int64Array, BigInt)),
        TypeKind::Float => Arc::new(values!(Float32Array, Float)),
        TypeKind::Double => Arc::new(values!(Float64Array, Double)),
        TypeKind::Char { .. } | TypeKind::VarChar { .. } => Arc::new(values!(StringArray, String)),
        TypeKind::Decimal { precision, scale } => {
            let array = values!(Decimal128Array, Decimal);
            let scale = i8::try_from(*scale).unwrap_or(i8::MAX);
            let array = array.with_precision_and_scale(*precision, scale);
            Arc::new(array.map_err(|source| Error::Arrow {
                what: format!("merged rows of {}", rule.table()),
                source,
            })?)
        }
        other => {
            return Err(Error::Unsupported {
                what: format!("an aggregate of {other} in {}", rule.table()),
                reason: "no function computes such values".to_owned(),
            });
        }
    })
}
