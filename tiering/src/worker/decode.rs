//! One batch of the log → the rows of a range of offsets, as Arrow columns of the log's schema, and
//! what each does to its key if the table has keys.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, FieldRef, Fields, Schema as ArrowSchema, SchemaRef};
use weir_lake_format::RowKind;
use weir_protocol::ids::LogOffset;
use weir_protocol::record::arrow::DecodeLimits;
use weir_protocol::record::rows::RowFormat;
use weir_protocol::record::{self, ChangeType, LogBatch};
use weir_protocol::schema::Schema;

use crate::error::Source;

/// The property that names how batches are encoded.
const LOG_FORMAT: &str = "table.log.format";

/// How batches of one schema are decoded.
#[derive(Clone, Debug)]
pub(crate) struct LogForm {
    schema: Arc<Schema>,
    arrow: SchemaRef,
    format: LogFormat,
    limits: DecodeLimits,
    /// Whether rows change keys.
    is_keyed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LogFormat {
    Arrow,
    Rows(RowFormat),
}

/// Why a batch is no batch of its table.
#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error("{records} records between offsets {base} and {next}")]
    Sparse {
        records: i32,
        base: LogOffset,
        next: LogOffset,
    },
    #[error("{decoded} rows decoded, {records} announced")]
    Rows { decoded: usize, records: i32 },
    #[error("a row that is no append")]
    Change,
}

impl LogForm {
    /// How a table with these properties encodes batches of `schema`; Arrow if nothing is said.
    pub(crate) fn new(
        schema: &Arc<Schema>,
        properties: &BTreeMap<String, String>,
        max_batch_bytes: u64,
    ) -> Self {
        let format = match properties
            .get(LOG_FORMAT)
            .map(|name| name.to_ascii_uppercase())
        {
            Some(name) if name == "INDEXED" => LogFormat::Rows(RowFormat::Indexed),
            Some(name) if name == "COMPACTED" => LogFormat::Rows(RowFormat::Compacted),
            _ => LogFormat::Arrow,
        };
        Self {
            schema: Arc::clone(schema),
            arrow: lenient(&schema.arrow_schema()),
            format,
            limits: DecodeLimits {
                max_uncompressed_bytes: max_batch_bytes,
            },
            is_keyed: schema.has_primary_key(),
        }
    }
}

impl LogForm {
    /// Of batches in Arrow, whatever the table's own are.
    pub(crate) fn in_arrow(self) -> Self {
        Self {
            format: LogFormat::Arrow,
            ..self
        }
    }
}

/// The same columns, all nullable: a null where none may be is one row's fault, not its batch's, and
/// is found where rows are fitted to the lake.
fn lenient(schema: &SchemaRef) -> SchemaRef {
    Arc::new(ArrowSchema::new(lenient_fields(schema.fields())))
}

fn lenient_fields(fields: &Fields) -> Fields {
    fields.iter().map(lenient_field).collect()
}

fn lenient_field(field: &FieldRef) -> FieldRef {
    let data_type = match field.data_type() {
        DataType::List(element) => DataType::List(lenient_field(element)),
        DataType::Struct(fields) => DataType::Struct(lenient_fields(fields)),
        // Arrow allows no null among entries and keys.
        other => other.clone(),
    };
    Arc::new(Field::new(field.name(), data_type, true))
}

/// The rows of a range of offsets.
#[derive(Clone, Debug)]
pub(crate) struct LogRows {
    /// The rows in the columns of the log's schema.
    pub rows: RecordBatch,
    /// What each does to its key; `None` if the table has no keys.
    pub kinds: Option<Vec<RowKind>>,
}

/// The rows of `range`, which lies within the batch; not copied.
pub(crate) fn decode(
    form: &LogForm,
    batch: &LogBatch,
    range: &Range<LogOffset>,
) -> Result<LogRows, Source> {
    batch.verify_crc()?;
    let (base, next) = (batch.header.base_offset, batch.next_offset());
    let records = batch.header.record_count;
    if next.0 - base.0 != i64::from(records) {
        return Err(Fault::Sparse {
            records,
            base,
            next,
        }
        .into());
    }
    let decoded = match form.format {
        LogFormat::Arrow => record::arrow::decode_limited(batch, &form.arrow, form.limits)?,
        LogFormat::Rows(format) => record::rows::decode(batch, &form.schema, format, form.limits)?,
    };
    let appends = |types: &Vec<ChangeType>| types.iter().all(|t| *t == ChangeType::AppendOnly);
    if !form.is_keyed && !decoded.change_types.as_ref().is_none_or(appends) {
        return Err(Fault::Change.into());
    }
    let rows = decoded.batch;
    if usize::try_from(records) != Ok(rows.num_rows()) {
        return Err(Fault::Rows {
            decoded: rows.num_rows(),
            records,
        }
        .into());
    }
    // The range lies within the batch, so both differences fit.
    let skip = usize::try_from(range.start.0 - base.0)?;
    let length = usize::try_from(range.end.0 - range.start.0)?;
    let kinds = form.is_keyed.then(|| match &decoded.change_types {
        Some(types) => types
            .iter()
            .skip(skip)
            .take(length)
            .copied()
            .map(kind)
            .collect(),
        None => vec![RowKind::Insert; length],
    });
    let rows = rows.slice(skip, length);
    Ok(LogRows { rows, kinds })
}

/// A change of the log as the lake names it (reference: its Paimon writer).
fn kind(change: ChangeType) -> RowKind {
    match change {
        ChangeType::AppendOnly | ChangeType::Insert => RowKind::Insert,
        ChangeType::UpdateBefore => RowKind::UpdateBefore,
        ChangeType::UpdateAfter => RowKind::UpdateAfter,
        ChangeType::Delete => RowKind::Delete,
    }
}
