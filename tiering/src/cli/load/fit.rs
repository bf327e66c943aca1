//! Whether a source and the options of `--create` are those of the table, told before a row is sent.

use arrow::array::RecordBatch;
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Field, Schema as ArrowSchema, SchemaRef};
use arrow::error::ArrowError;
use std::sync::Arc;
use weir_lake_format::parse_duration;
use weir_protocol::client::admin::TableInfo;
use weir_protocol::ids::TablePath;
use weir_protocol::schema::{LogicalType, Schema};

use crate::cli::Load;
use crate::cli::columns::type_text;
use crate::cli::exit::{Failure, Outcome};
use crate::cli::table::in_lake;

/// Columns of a source that a table takes.
#[derive(Debug)]
pub(super) struct Fit {
    /// The source's columns in the table's types.
    target: SchemaRef,
}

impl Fit {
    /// Compares the columns of `source` with those of the table.
    ///
    /// # Errors
    /// One sentence that names source, table, column and both types.
    pub(super) fn new(
        source: &str,
        columns: &ArrowSchema,
        table: &TablePath,
        schema: &Schema,
    ) -> Outcome<Self> {
        let wanted = schema.arrow_schema();
        let mut target = Vec::with_capacity(columns.fields().len());
        for (index, field) in columns.fields().iter().enumerate() {
            let name = field.name();
            if columns
                .fields()
                .iter()
                .skip(index + 1)
                .any(|other| other.name() == name)
            {
                return Err(Failure::failed(format!(
                    "{source}: column `{name}` occurs twice"
                )));
            }
            let Some(column) = schema.columns.iter().find(|column| &column.name == name) else {
                return Err(Failure::failed(format!(
                    "{source}: column `{name}` is not in table {table}, which has {}",
                    names(schema)
                )));
            };
            let ours = wanted.field_with_name(name).map_err(Failure::error)?;
            if !takes(field, ours, &column.ty) {
                return Err(Failure::failed(format!(
                    "{source}: column `{name}` is {}, in table {table} it is {}: mend the file, or \
                     load it into another table",
                    source_type(field),
                    type_text(&column.ty),
                )));
            }
            target.push(Field::new(name, ours.data_type().clone(), true));
        }
        let missing = schema
            .columns
            .iter()
            .find(|column| !column.ty.nullable && columns.field_with_name(&column.name).is_err());
        match missing {
            Some(column) => Err(Failure::failed(format!(
                "{source}: lacks column `{}`, which is {} in table {table}",
                column.name,
                type_text(&column.ty),
            ))),
            None => Ok(Self {
                target: Arc::new(ArrowSchema::new(target)),
            }),
        }
    }

    /// The rows in the table's types; they are the same values in another layout.
    pub(super) fn apply(&self, rows: &RecordBatch) -> Result<RecordBatch, ArrowError> {
        let options = CastOptions {
            safe: false,
            ..CastOptions::default()
        };
        let columns = rows.columns().iter().zip(self.target.fields());
        let columns = columns
            .map(|(column, field)| cast_with_options(column, field.data_type(), &options))
            .collect::<Result<Vec<_>, _>>()?;
        RecordBatch::try_new(Arc::clone(&self.target), columns)
    }
}

/// Whether a column has the type of the table's, in any of its layouts.
fn takes(field: &Field, ours: &Field, ty: &LogicalType) -> bool {
    if field.data_type() == &DataType::Null {
        return ty.nullable;
    }
    field.data_type().equals_datatype(ours.data_type())
        || LogicalType::from_arrow(field).is_ok_and(|found| found.kind == ty.kind)
}

/// A column's type in the words of a table's, where there are any.
fn source_type(field: &Field) -> String {
    match LogicalType::from_arrow(field) {
        Ok(ty) => type_text(&LogicalType::nullable(ty.kind)),
        Err(_) if field.data_type() == &DataType::Null => "without any value".to_owned(),
        Err(_) => field.data_type().to_string(),
    }
}

/// The first columns of a table.
fn names(schema: &Schema) -> String {
    const SHOWN: usize = 20;
    let names: Vec<_> = schema
        .columns
        .iter()
        .take(SHOWN)
        .map(|column| format!("`{}`", column.name))
        .collect();
    let more = if schema.columns.len() > SHOWN {
        ", …"
    } else {
        ""
    };
    format!("{}{more}", names.join(", "))
}

/// Checks that a table which is there already is as the given options of `--create` say.
///
/// # Errors
/// One sentence that names the option, its value in the table and the wanted one.
pub(super) fn check_options(arguments: &Load, info: &TableInfo) -> Outcome {
    let there = &info.descriptor;
    let listed = |names: &[String]| match names {
        [] => "not set".to_owned(),
        names => names.join(","),
    };
    let differs = |option: &str, found: String, wanted: String| {
        Err(Failure::failed(format!(
            "table {} exists, and its {option} is {found} where {wanted} is wanted: leave that option \
             out, or load into another table",
            info.path
        )))
    };
    for (option, found, wanted) in [
        (
            "--partition-by",
            &there.partition_keys,
            &arguments.partition_by,
        ),
        ("--bucket-key", &there.bucket_keys, &arguments.bucket_key),
        (
            "--primary-key",
            &there.schema.primary_key,
            &arguments.primary_key,
        ),
    ] {
        if !wanted.is_empty() && wanted != found {
            return differs(option, listed(found), listed(wanted));
        }
    }
    if let Some(wanted) = arguments.buckets
        && there.bucket_count != Some(wanted)
    {
        let found = there
            .bucket_count
            .map_or("not set".to_owned(), |n| n.to_string());
        return differs("--buckets", found, wanted.to_string());
    }
    let enabled = in_lake(there);
    if arguments.no_lake && enabled {
        return differs(
            "table.datalake.enabled",
            "true".to_owned(),
            "false (--no-lake)".to_owned(),
        );
    }
    if let Some(wanted) = &arguments.freshness {
        let found = match there.properties.get("table.datalake.freshness") {
            _ if !enabled => "not set, for it is not in the lake,".to_owned(),
            Some(found) => found.clone(),
            None => "not set".to_owned(),
        };
        let same = &found == wanted
            || parse_duration(&found).is_some_and(|it| Some(it) == parse_duration(wanted));
        if !same {
            return differs("--freshness", found, wanted.clone());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
