//! Rows of a table with a primary key → batches of puts.
//!
//! Within the writer a batch of such rows has one more column at its end: whether the row's key is
//! deleted. So upserts and deletes keep their order.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, BooleanArray, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema as ArrowSchema, SchemaRef};
use bytes::Bytes;

use super::route::property;
use crate::client::Error;
use crate::client::metadata::TableMetadata;
use crate::record::BatchIdentity;
use crate::record::kv_batch::{self, KvRecord};
use crate::record::rows::RowFormat;
use crate::row::key::KeyFormat;
use crate::row::{Datum, datum_at};
use crate::schema::{LogicalType, Schema};

/// The name of the column that says which rows go.
const GONE: &str = "";

/// What of a table with a primary key decides how its rows are put.
#[derive(Debug)]
pub(super) struct ChangeForm {
    table: String,
    schema: Schema,
    arrow: SchemaRef,
    row_format: RowFormat,
    key_format: KeyFormat,
    /// The primary key without partition columns.
    key_columns: Vec<usize>,
}

impl ChangeForm {
    /// `None` for a log table.
    ///
    /// # Errors
    /// [`Error::Codec`] for properties that this client does not know.
    pub(super) fn of(table: &TableMetadata) -> Result<Option<Self>, Error> {
        let descriptor = &table.descriptor;
        if !descriptor.schema.has_primary_key() {
            return Ok(None);
        }
        let name = table.path.to_string();
        let failed = |source| Error::codec(name.clone(), source);
        let row_format = match property(table, "table.kv.format") {
            None => RowFormat::Compacted,
            Some(format) if format.eq_ignore_ascii_case("COMPACTED") => RowFormat::Compacted,
            Some(format) if format.eq_ignore_ascii_case("INDEXED") => RowFormat::Indexed,
            Some(format) => {
                let reason = "row format is neither COMPACTED nor INDEXED";
                return Err(failed(crate::Error::invalid(
                    "table descriptor",
                    format,
                    reason,
                )));
            }
        };
        let physical = descriptor.physical_primary_key();
        let key_format = KeyFormat::of_table(descriptor).map_err(failed)?;
        let key_columns = descriptor.schema.column_indexes(&physical);
        let arrow = with_gone(&descriptor.schema.arrow_schema());
        Ok(Some(Self {
            row_format,
            key_format,
            key_columns: key_columns.map_err(failed)?,
            schema: descriptor.schema.clone(),
            arrow,
            table: name,
        }))
    }

    /// The rows with what becomes of each.
    pub(super) fn mark(&self, rows: &RecordBatch, is_gone: bool) -> Result<RecordBatch, Error> {
        let gone = BooleanArray::from(vec![is_gone; rows.num_rows()]);
        let mut columns: Vec<ArrayRef> = rows.columns().to_vec();
        columns.push(Arc::new(gone));
        let marked = RecordBatch::try_new(Arc::clone(&self.arrow), columns);
        marked.map_err(|source| {
            let what = "rows of a table with a primary key";
            Error::codec(self.table.clone(), crate::Error::Arrow { what, source })
        })
    }

    /// A batch of puts of marked rows.
    ///
    /// # Errors
    /// A null in the key; values that are none of their types; sizes beyond 2 GiB.
    pub(super) fn encode(
        &self,
        id: BatchIdentity,
        rows: &RecordBatch,
    ) -> Result<Bytes, crate::Error> {
        let columns = &self.schema.columns;
        let gone = rows.columns().last().and_then(|gone| gone.as_boolean_opt());
        let types: Vec<&LogicalType> = self
            .key_columns
            .iter()
            .filter_map(|index| columns.get(*index).map(|column| &column.ty))
            .collect();
        let mut records = Vec::with_capacity(rows.num_rows());
        for index in 0..rows.num_rows() {
            let pairs = rows.columns().iter().zip(columns);
            let row = pairs.map(|(array, column)| datum_at(array.as_ref(), index, &column.ty.kind));
            let row = row.collect::<Result<Vec<Datum>, _>>()?;
            let key: Vec<Datum> = self
                .key_columns
                .iter()
                .filter_map(|index| row.get(*index).cloned())
                .collect();
            let is_gone = gone.is_some_and(|gone| gone.value(index));
            let bytes = if is_gone {
                None
            } else {
                let mut bytes = Vec::new();
                self.row_format
                    .encode_into(&mut bytes, &row, &self.schema)?;
                Some(bytes.into())
            };
            records.push(KvRecord {
                key: self.key_format.encode(&key, &types)?.into(),
                row: bytes,
            });
        }
        kv_batch::encode(id, &records)
    }
}

fn with_gone(schema: &SchemaRef) -> SchemaRef {
    let mut fields: Vec<_> = schema.fields().iter().cloned().collect();
    fields.push(Arc::new(Field::new(GONE, DataType::Boolean, false)));
    Arc::new(ArrowSchema::new(fields))
}
