//! Changes as they come to the order of a sorted run.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::interleave_record_batch;
use arrow::datatypes::{DataType as ArrowType, Float32Type, Float64Type};
use arrow::error::ArrowError;
use arrow::row::{RowConverter, Rows};

use super::Rule;
use crate::error::{Error, Result};

/// Rows of a sorted batch, at most.
const SORTED_ROWS: usize = 8192;

/// Changes in the order of their coming, which is that of their sequence numbers.
#[derive(Debug)]
pub(crate) struct ChangeBuffer {
    rule: Arc<Rule>,
    keys: RowConverter,
    sequence_fields: Option<RowConverter>,
    batches: Vec<Buffered>,
    bytes: usize,
}

#[derive(Debug)]
struct Buffered {
    /// The columns of [`Rule::fields`].
    changes: RecordBatch,
    keys: Rows,
    sequence_fields: Option<Rows>,
}

impl ChangeBuffer {
    /// An empty buffer.
    ///
    /// # Errors
    /// [`Error::Arrow`] if keys are of types that have no order.
    pub(crate) fn new(rule: Arc<Rule>) -> Result<Self> {
        let failed = |source: ArrowError| failed(&rule, source);
        let keys = RowConverter::new(rule.key_order()).map_err(failed)?;
        let sequence_fields = rule.sequence_order().map(RowConverter::new);
        let sequence_fields = sequence_fields.transpose().map_err(failed)?;
        Ok(Self {
            keys,
            sequence_fields,
            rule,
            batches: Vec::new(),
            bytes: 0,
        })
    }

    /// Bytes that it holds, without those of the columns.
    pub(crate) fn order_bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// Adds changes in the columns of [`Rule::fields`].
    ///
    /// # Errors
    /// [`Error::BadValue`] if a key is a NaN that the format's order does not tell from others.
    pub(crate) fn push(&mut self, changes: RecordBatch) -> Result<()> {
        if changes.num_rows() == 0 {
            return Ok(());
        }
        let column = |place: &usize| changes.columns().get(*place).map(Arc::clone);
        let keys: Vec<ArrayRef> = self.rule.key().iter().filter_map(column).collect();
        for (array, field) in keys.iter().zip(self.rule.key_fields()) {
            check_key(&field.name, array)?;
        }
        let fields: Vec<ArrayRef> = self.rule.sequence().iter().filter_map(column).collect();
        let rule = &self.rule;
        let rows = |converter: &RowConverter, arrays: &[ArrayRef]| {
            let rows = converter.convert_columns(arrays);
            rows.map_err(|source| failed(rule, source))
        };
        let keys = rows(&self.keys, &keys)?;
        let sequence_fields = self.sequence_fields.as_ref();
        let sequence_fields = sequence_fields.map(|converter| rows(converter, &fields));
        let sequence_fields = sequence_fields.transpose()?;
        let place_bytes = size_of::<(u32, u32)>() * changes.num_rows();
        self.bytes += keys.size() + sequence_fields.as_ref().map_or(0, Rows::size) + place_bytes;
        self.batches.push(Buffered {
            changes,
            keys,
            sequence_fields,
        });
        Ok(())
    }

    /// Takes the changes out, sorted by key, then `sequence.field`, then sequence number (paimon:
    /// `SortBufferWriteBuffer`).
    pub(crate) fn take_sorted(&mut self) -> SortedChanges {
        self.bytes = 0;
        let batches = std::mem::take(&mut self.batches);
        let mut order: Vec<(u32, u32)> = Vec::new();
        for (batch, buffered) in (0..).zip(&batches) {
            let rows = (0..).take(buffered.changes.num_rows());
            order.extend(rows.map(|row| (batch, row)));
        }
        order.sort_unstable_by(|a, b| {
            let key_of = |place: &(u32, u32)| {
                let (batch, row) = index(*place);
                let buffered = batches.get(batch)?;
                let fields = buffered.sequence_fields.as_ref();
                Some((buffered.keys.row(row), fields.map(|rows| rows.row(row))))
            };
            key_of(a).cmp(&key_of(b)).then(a.cmp(b))
        });
        let batches = batches.into_iter().map(|buffered| buffered.changes);
        SortedChanges {
            rule: Arc::clone(&self.rule),
            batches: batches.collect(),
            order,
            next: 0,
        }
    }
}

/// Changes in their order.
#[derive(Debug)]
pub(crate) struct SortedChanges {
    rule: Arc<Rule>,
    batches: Vec<RecordBatch>,
    order: Vec<(u32, u32)>,
    next: usize,
}

impl SortedChanges {
    /// The next changes, which are copied; `None` behind the last.
    ///
    /// # Errors
    /// [`Error::Arrow`] if the columns cannot be copied.
    pub(crate) fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        let left = self.order.get(self.next..).unwrap_or_default();
        let places: Vec<(usize, usize)> =
            left.iter().take(SORTED_ROWS).copied().map(index).collect();
        if places.is_empty() {
            return Ok(None);
        }
        self.next += places.len();
        let batches: Vec<&RecordBatch> = self.batches.iter().collect();
        let sorted = interleave_record_batch(&batches, &places);
        sorted
            .map(Some)
            .map_err(|source| failed(&self.rule, source))
    }
}

fn index((batch, row): (u32, u32)) -> (usize, usize) {
    (batch as usize, row as usize)
}

/// Whether the values of a key column can be told apart as all readers do.
///
/// # Errors
/// [`Error::BadValue`].
pub(crate) fn check_key(column: &str, values: &ArrayRef) -> Result<()> {
    if has_strange_nan(values) {
        let reason = "a key is a NaN of other bits than Java's, which equals all NaNs there";
        return Err(Error::bad_value(column, reason));
    }
    Ok(())
}

/// Java holds all NaNs equal and highest; in our order that is so of the one NaN that Java makes.
fn has_strange_nan(array: &ArrayRef) -> bool {
    match array.data_type() {
        ArrowType::Float32 => {
            let mut values = array.as_primitive::<Float32Type>().values().iter();
            values.any(|value| value.is_nan() && value.to_bits() != f32::NAN.to_bits())
        }
        ArrowType::Float64 => {
            let mut values = array.as_primitive::<Float64Type>().values().iter();
            values.any(|value| value.is_nan() && value.to_bits() != f64::NAN.to_bits())
        }
        _ => false,
    }
}

fn failed(rule: &Rule, source: ArrowError) -> Error {
    Error::Arrow {
        what: format!("sorting changes of {}", rule.table()),
        source,
    }
}
