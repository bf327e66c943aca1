//! The row-wise log formats, INDEXED and COMPACTED: after the header, each record as length, change
//! type and row.
//!
//! Source: fluss `IndexedLogRecord`, `CompactedLogRecord`.

use std::sync::Arc;

use arrow::array::RecordBatch;
use bytes::Bytes;

use super::arrow::{DecodeLimits, DecodedBatch};
use super::log_batch::{HEADER_SIZE, LogBatch, RecordsHeader, finish};
use super::{BatchIdentity, ChangeType, put_at};
use crate::error::{Error, Result};
use crate::row::{Budget, Datum, Reader, array_of, compacted, datum_at, indexed};
use crate::schema::Schema;

const FORMAT: &str = "row log batch";

/// How rows are written one by one (`table.log.format`, `table.kv.format`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowFormat {
    /// [`crate::row::indexed`].
    Indexed,
    /// [`crate::row::compacted`].
    Compacted,
}

impl RowFormat {
    /// Appends a row of this schema.
    ///
    /// # Errors
    /// As [`compacted::encode`] and [`indexed::encode`].
    pub fn encode_into(self, out: &mut Vec<u8>, row: &[Datum], schema: &Schema) -> Result<()> {
        match self {
            Self::Indexed => indexed::encode_into(out, row, &schema.columns),
            Self::Compacted => compacted::encode_into(out, row, &schema.columns),
        }
    }

    /// Reads a row of this schema.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for bytes that are no such row.
    pub fn decode(self, bytes: &[u8], schema: &Schema) -> Result<Vec<Datum>> {
        self.decode_within(bytes, schema, &Budget::of_row(bytes.len()))
    }

    fn decode_within(self, bytes: &[u8], schema: &Schema, budget: &Budget) -> Result<Vec<Datum>> {
        match self {
            Self::Indexed => indexed::decode_within(bytes, &schema.columns, budget),
            Self::Compacted => compacted::decode_within(bytes, &schema.columns, budget),
        }
    }
}

/// A log batch of INDEXED rows. `change_types`: one a row, or `None` for a log table.
///
/// # Errors
/// As [`encode`].
pub fn encode_indexed(
    id: BatchIdentity,
    change_types: Option<&[ChangeType]>,
    rows: &RecordBatch,
    schema: &Schema,
) -> Result<Bytes> {
    encode(
        RowFormat::Indexed,
        id,
        change_types,
        &rows_of(rows, schema)?,
        schema,
    )
}

/// A log batch of COMPACTED rows. `change_types`: one a row, or `None` for a log table.
///
/// # Errors
/// As [`encode`].
pub fn encode_compacted(
    id: BatchIdentity,
    change_types: Option<&[ChangeType]>,
    rows: &RecordBatch,
    schema: &Schema,
) -> Result<Bytes> {
    encode(
        RowFormat::Compacted,
        id,
        change_types,
        &rows_of(rows, schema)?,
        schema,
    )
}

/// A log batch of rows in either format.
///
/// # Errors
/// [`Error::ValueMismatch`] and [`Error::Invalid`] for values that are none of the schema's,
/// [`Error::Corrupt`] for change types that are not as many as the rows, [`Error::TooLarge`] beyond
/// 2 GiB.
pub fn encode(
    format: RowFormat,
    id: BatchIdentity,
    change_types: Option<&[ChangeType]>,
    rows: &[Vec<Datum>],
    schema: &Schema,
) -> Result<Bytes> {
    if change_types.is_some_and(|types| types.len() != rows.len()) {
        return Err(Error::corrupt(
            FORMAT,
            "number of change types differs from rows",
        ));
    }
    let mut out = vec![0; HEADER_SIZE];
    for (index, row) in rows.iter().enumerate() {
        let start = out.len();
        let change = change_types
            .and_then(|types| types.get(index))
            .copied()
            .unwrap_or(ChangeType::AppendOnly);
        out.extend_from_slice(&[0; 4]);
        out.push(change.byte());
        format.encode_into(&mut out, row, schema)?;
        put_record_length(&mut out, start)?;
    }
    finish(
        &mut out,
        id,
        RecordsHeader {
            append_only: change_types.is_none(),
            record_count: rows.len(),
        },
    )?;
    Ok(out.into())
}

/// Writes the length of the record that began at `start` with 4 bytes for it.
pub(super) fn put_record_length(out: &mut [u8], start: usize) -> Result<()> {
    let length = out.len() - start - 4;
    let length = i32::try_from(length).map_err(|_| Error::TooLarge {
        what: "bytes of a record",
        size: length as u64,
        limit: i32::MAX as u64,
    })?;
    put_at(out, start, &length.to_le_bytes());
    Ok(())
}

/// The rows of a batch, as Arrow. Change types are there for changelogs only.
///
/// # Errors
/// [`Error::Corrupt`] for bytes that are no batch of that schema and format;
/// [`Error::ValueMismatch`] for a null where the schema forbids it; [`Error::TooLarge`] for values,
/// nulls among them, that take more memory than the limits say.
pub fn decode(
    batch: &LogBatch,
    schema: &Schema,
    format: RowFormat,
    limits: DecodeLimits,
) -> Result<DecodedBatch> {
    let budget = Budget::new(usize::try_from(limits.max_uncompressed_bytes).unwrap_or(usize::MAX));
    let records = batch.records();
    let mut reader = Reader::new(&records, FORMAT);
    // A record has 5 bytes at least; more records than that are a lie, and nothing is allocated for
    // them.
    let count = batch.record_count();
    if count > records.len() / 5 {
        return Err(reader.corrupt("more records than bytes"));
    }
    let mut columns = vec![Vec::new(); schema.columns.len()];
    let mut change_types = Vec::with_capacity(count);
    for _ in 0..count {
        let length = reader.length()?;
        let mut record = Reader::new(reader.take(length)?, FORMAT);
        let change = ChangeType::from_byte(record.byte()?);
        change_types.push(change.ok_or_else(|| reader.corrupt("change type is above 4"))?);
        let row = format.decode_within(record.rest(), schema, &budget)?;
        for (column, value) in columns.iter_mut().zip(row) {
            column.push(value);
        }
    }
    reader.finish()?;
    let change_types = (!batch.header.append_only).then_some(change_types);
    Ok(DecodedBatch {
        batch: as_arrow(&columns, schema)?,
        change_types,
    })
}

/// Columns of values as one Arrow batch of the schema.
fn as_arrow(columns: &[Vec<Datum>], schema: &Schema) -> Result<RecordBatch> {
    let arrow = schema.arrow_schema();
    if columns.is_empty() {
        return Ok(RecordBatch::new_empty(arrow));
    }
    let pairs = columns.iter().zip(&schema.columns);
    let arrays = pairs
        .map(|(values, column)| array_of(values, &column.ty))
        .collect::<Result<_>>()?;
    RecordBatch::try_new(Arc::clone(&arrow), arrays).map_err(|source| Error::Arrow {
        what: FORMAT,
        source,
    })
}

/// The rows of an Arrow batch of the schema, value by value.
///
/// # Errors
/// [`Error::ValueMismatch`] if the batch has other columns than the schema.
pub fn rows_of(batch: &RecordBatch, schema: &Schema) -> Result<Vec<Vec<Datum>>> {
    if batch.num_columns() != schema.columns.len() {
        return Err(Error::invalid(
            FORMAT,
            batch.num_columns().to_string(),
            "number of columns differs from the schema",
        ));
    }
    let value = |index| {
        let pairs = batch.columns().iter().zip(&schema.columns);
        pairs
            .map(|(array, column)| datum_at(array.as_ref(), index, &column.ty.kind))
            .collect::<Result<_>>()
    };
    (0..batch.num_rows()).map(value).collect()
}

#[cfg(test)]
mod tests;
