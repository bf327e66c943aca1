//! The changelog of a bucket: changes as one batch of its log, and back.

use std::sync::Arc;

use arrow::array::{Array, RecordBatch};
use bytes::Bytes;
use weir_kv::upsert::ChangeRecord;
use weir_protocol::record::arrow::{self as arrow_batch, DecodeLimits};
use weir_protocol::record::{BatchIdentity, ChangeType, LogBatch, log_batch, rows};
use weir_protocol::row::{Datum, array_of};
use weir_protocol::schema::Schema;

use super::rules::{KeyRules, LogFormat};
use crate::error::Error;

/// The most that the rows of one batch may take in memory; readers accept twice that.
const MAX_ROWS_BYTES: usize = 128 << 20;
const LIMITS: DecodeLimits = DecodeLimits {
    max_uncompressed_bytes: 2 * (MAX_ROWS_BYTES as u64),
};

/// One batch of these changes, which have the latest schema; one without records takes an offset, too.
///
/// # Errors
/// [`Error::TooManyChanges`] if readers would not take it.
pub(super) fn encode(
    rules: &KeyRules,
    id: BatchIdentity,
    records: &[ChangeRecord],
) -> Result<Bytes, Error> {
    if records.is_empty() {
        return Ok(log_batch::encode_empty(id)?);
    }
    let types: Vec<ChangeType> = records.iter().map(|record| record.change_type).collect();
    let known = rules.schema(id.schema_id)?;
    match rules.log {
        LogFormat::Arrow(compression) => {
            let rows = columns_of(records, &known.schema)?;
            let rows = RecordBatch::try_new(Arc::clone(&known.arrow), rows);
            let rows = rows.map_err(|source| weir_protocol::Error::Arrow {
                what: "changelog",
                source,
            })?;
            Ok(arrow_batch::encode_changelog(
                id,
                &types,
                &rows,
                compression,
            )?)
        }
        LogFormat::Rows(format) => {
            let rows: Vec<Vec<Datum>> = records.iter().map(|record| record.row.clone()).collect();
            let made = rows::encode(format, id, Some(&types), &rows, &known.schema)?;
            Ok(made)
        }
    }
}

fn columns_of(
    records: &[ChangeRecord],
    schema: &Schema,
) -> Result<Vec<arrow::array::ArrayRef>, Error> {
    let mut columns = Vec::with_capacity(schema.columns.len());
    let mut bytes = 0_usize;
    for (index, column) in schema.columns.iter().enumerate() {
        let value = |record: &ChangeRecord| record.row.get(index).cloned().unwrap_or(Datum::Null);
        let values: Vec<Datum> = records.iter().map(value).collect();
        let array = array_of(&values, &column.ty)?;
        bytes = bytes.saturating_add(array.get_array_memory_size());
        if bytes > MAX_ROWS_BYTES {
            let max = MAX_ROWS_BYTES;
            return Err(Error::TooManyChanges { bytes, max });
        }
        columns.push(array);
    }
    Ok(columns)
}

/// The changes of a stored batch, in order, each row in the columns of the batch's schema.
///
/// # Errors
/// [`Error::Protocol`] for a batch that is no changelog of the table.
pub(super) fn decode(
    rules: &KeyRules,
    batch: &LogBatch,
) -> Result<Vec<(ChangeType, Vec<Datum>)>, Error> {
    if batch.record_count() == 0 {
        return Ok(Vec::new());
    }
    let known = rules.schema(batch.header.schema_id)?;
    let decoded = match rules.log {
        LogFormat::Arrow(_) => arrow_batch::decode_limited(batch, &known.arrow, LIMITS)?,
        LogFormat::Rows(format) => rows::decode(batch, &known.schema, format, LIMITS)?,
    };
    let types = decoded.change_types.ok_or(weir_protocol::Error::Corrupt {
        format: "changelog",
        reason: "the batch is of a log table",
    })?;
    let rows = rows::rows_of(&decoded.batch, &known.schema)?;
    Ok(types.into_iter().zip(rows).collect())
}
