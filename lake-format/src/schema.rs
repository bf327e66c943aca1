//! A table's schema as `schema/schema-N` holds it, and the changes it allows.

use std::collections::{BTreeMap, BTreeSet};

use arrow::datatypes::SchemaRef;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::options::{BucketMode, TableOptions};
use crate::types::{DataField, DataType, TypeKind, arrow_schema, assign_field_ids};

mod change;

pub use change::SchemaChange;

/// The version of schema files that is written.
pub const SCHEMA_VERSION: i32 = 3;

/// One schema of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TableSchema {
    /// The version of the file's format, 1 to 3; older ones have other defaults.
    #[serde(default = "first_version")]
    pub version: i32,
    /// Its number, from 0.
    pub id: i64,
    /// The columns.
    pub fields: Vec<DataField>,
    /// The highest field id ever given, nested ones included; it never goes down.
    pub highest_field_id: i32,
    /// The partition columns, in path order.
    pub partition_keys: Vec<String>,
    /// The primary key, partition columns included; empty for append tables.
    pub primary_keys: Vec<String>,
    /// The options; values are always text.
    #[serde(default)]
    pub options: BTreeMap<String, String>,
    /// The table's comment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// When it was made, milliseconds since 1970.
    #[serde(default)]
    pub time_millis: i64,
}

/// What a new table is made from.
#[derive(Clone, Debug, Default)]
pub struct NewTable {
    /// The columns; their ids are given by [`TableSchema::create`].
    pub fields: Vec<DataField>,
    /// The partition columns, in path order.
    pub partition_keys: Vec<String>,
    /// The primary key, partition columns included; empty for append tables.
    pub primary_keys: Vec<String>,
    /// The options.
    pub options: BTreeMap<String, String>,
    /// The table's comment.
    pub comment: Option<String>,
}

fn first_version() -> i32 {
    1
}

impl TableSchema {
    /// The first schema of a new table: ids are given depth first from 0, primary-key columns
    /// become not null.
    ///
    /// # Errors
    /// [`Error::InvalidSchema`] with the rule that is broken.
    pub fn create(table: NewTable, time_millis: i64) -> Result<Self> {
        let mut next_id = 0;
        let mut fields = assign_field_ids(&table.fields, &mut next_id);
        for field in &mut fields {
            if table.primary_keys.contains(&field.name) {
                field.data_type.nullable = false;
            }
        }
        let schema = Self {
            version: SCHEMA_VERSION,
            id: 0,
            fields,
            highest_field_id: next_id - 1,
            partition_keys: table.partition_keys,
            primary_keys: table.primary_keys,
            options: table.options,
            comment: table.comment,
            time_millis,
        };
        schema.validate()?;
        Ok(schema)
    }

    /// Reads a schema file.
    ///
    /// # Errors
    /// [`Error::Malformed`] if it is no schema or breaks a rule of the format,
    /// [`Error::Unsupported`] if a newer version wrote it.
    pub fn from_json(json: &[u8]) -> Result<Self> {
        let parsed: Self =
            serde_json::from_slice(json).map_err(|e| Error::malformed("schema", e.to_string()))?;
        if parsed.version > SCHEMA_VERSION {
            return Err(Error::Unsupported {
                what: format!("schema version {}", parsed.version),
                reason: format!("versions up to {SCHEMA_VERSION} are read"),
            });
        }
        let mut schema = parsed;
        schema.apply_old_defaults();
        schema
            .validate()
            .map_err(|e| Error::malformed("schema", e.to_string()))?;
        Ok(schema)
    }

    /// The bytes of a schema file.
    ///
    /// # Errors
    /// Never in practice: the parts all have a JSON form.
    pub fn to_json(&self) -> Result<Vec<u8>> {
        serde_json::to_vec_pretty(self).map_err(|e| Error::malformed("schema", e.to_string()))
    }

    /// The Arrow schema of the table's rows.
    pub fn arrow_schema(&self) -> SchemaRef {
        arrow_schema(&self.fields)
    }

    /// The place of a column by name.
    pub fn field_index(&self, name: &str) -> Option<usize> {
        self.fields.iter().position(|field| field.name == name)
    }

    /// A column by name.
    pub fn field(&self, name: &str) -> Option<&DataField> {
        self.fields.iter().find(|field| field.name == name)
    }

    /// A column by id.
    pub fn field_by_id(&self, id: i32) -> Option<&DataField> {
        self.fields.iter().find(|field| field.id == id)
    }

    /// The types of the columns.
    pub fn types(&self) -> impl ExactSizeIterator<Item = &DataType> + Clone {
        self.fields.iter().map(|field| &field.data_type)
    }

    /// The partition columns, in path order.
    ///
    /// # Errors
    /// [`Error::InvalidSchema`] if a partition key is no column; schemas made or read here have
    /// none such.
    pub fn partition_fields(&self) -> Result<Vec<&DataField>> {
        self.named_fields(self.partition_keys.iter().map(String::as_str))
    }

    /// The primary key without the partition columns: what files are sorted and merged by.
    pub fn trimmed_primary_keys(&self) -> Vec<&str> {
        let keys = self.primary_keys.iter();
        keys.filter(|key| !self.partition_keys.contains(key))
            .map(String::as_str)
            .collect()
    }

    /// The columns that are hashed into buckets: `bucket-key`, else the trimmed primary key.
    ///
    /// # Errors
    /// [`Error::InvalidSchema`] if one is no column.
    pub fn bucket_key_fields(&self) -> Result<Vec<&DataField>> {
        let keys = TableOptions::new(&self.options).bucket_key();
        if keys.is_empty() {
            self.named_fields(self.trimmed_primary_keys())
        } else {
            self.named_fields(keys)
        }
    }

    /// How rows find their bucket.
    ///
    /// # Errors
    /// [`Error::InvalidSchema`] if the option `bucket` has no meaning.
    pub fn bucket_mode(&self) -> Result<BucketMode> {
        match (
            TableOptions::new(&self.options).bucket()?,
            self.is_primary_key_table(),
        ) {
            (count @ 1.., _) => Ok(BucketMode::Fixed(count)),
            (-1, false) => Ok(BucketMode::Unaware),
            (-1, true) => Ok(BucketMode::Dynamic),
            (-2, true) => Ok(BucketMode::Postpone),
            (other, _) => Err(invalid(format!("option `bucket` cannot be {other}"))),
        }
    }

    /// Whether it has a primary key, and so merge trees for buckets.
    pub fn is_primary_key_table(&self) -> bool {
        !self.primary_keys.is_empty()
    }

    fn named_fields<'a>(
        &self,
        names: impl IntoIterator<Item = &'a str>,
    ) -> Result<Vec<&DataField>> {
        let field = |name: &str| {
            self.field(name)
                .ok_or_else(|| invalid(format!("no column `{name}`")))
        };
        names.into_iter().map(field).collect()
    }

    /// What absent options meant in older files (paimon: `SchemaSerializer`).
    fn apply_old_defaults(&mut self) {
        if self.version <= 1 {
            self.options
                .entry("bucket".to_owned())
                .or_insert_with(|| "1".to_owned());
        }
        if self.version <= 2 {
            self.options
                .entry("file.format".to_owned())
                .or_insert_with(|| "orc".to_owned());
        }
    }

    /// Checks the rules that hold for every schema.
    ///
    /// # Errors
    /// [`Error::InvalidSchema`] with the first rule that is broken.
    pub fn validate(&self) -> Result<()> {
        let mut names = BTreeSet::new();
        let mut ids = BTreeSet::new();
        for field in &self.fields {
            if field.name.trim().is_empty() {
                return Err(invalid("a column has no name"));
            }
            if !names.insert(field.name.as_str()) {
                return Err(invalid(format!("two columns are named `{}`", field.name)));
            }
            check_ids(field, &mut ids)?;
            if field.highest_id() > self.highest_field_id {
                return Err(invalid(format!(
                    "`{}` has an id above the highest one",
                    field.name
                )));
            }
        }
        self.validate_keys()
    }

    fn validate_keys(&self) -> Result<()> {
        for (keys, what) in [
            (&self.partition_keys, "partition"),
            (&self.primary_keys, "primary"),
        ] {
            let mut seen = BTreeSet::new();
            for key in keys {
                let Some(field) = self.field(key) else {
                    return Err(invalid(format!("{what} key `{key}` is no column")));
                };
                if !seen.insert(key) {
                    return Err(invalid(format!("{what} key `{key}` is named twice")));
                }
                if field.data_type.kind.is_nested() {
                    return Err(invalid(format!(
                        "{what} key `{key}` is {}",
                        field.data_type.kind
                    )));
                }
                if what == "primary" && field.data_type.nullable {
                    return Err(invalid(format!("primary key `{key}` takes null")));
                }
            }
        }
        if self.is_primary_key_table() && self.trimmed_primary_keys().is_empty() {
            return Err(invalid(
                "the primary key has no column beside the partition columns",
            ));
        }
        self.validate_buckets()
    }

    fn validate_buckets(&self) -> Result<()> {
        let mode = self.bucket_mode()?;
        let keys = self.bucket_key_fields()?;
        if !self.is_primary_key_table() && matches!(mode, BucketMode::Fixed(_)) && keys.is_empty() {
            return Err(invalid(
                "a fixed number of buckets needs the option `bucket-key`",
            ));
        }
        for key in keys {
            if self.is_primary_key_table() && !self.primary_keys.contains(&key.name) {
                return Err(invalid(format!(
                    "bucket key `{}` is not in the primary key",
                    key.name
                )));
            }
            if self.partition_keys.contains(&key.name) {
                return Err(invalid(format!(
                    "bucket key `{}` is a partition column",
                    key.name
                )));
            }
            if key.data_type.kind.is_nested() {
                return Err(invalid(format!(
                    "bucket key `{}` is {}",
                    key.name, key.data_type.kind
                )));
            }
        }
        let partitions_in_key = self
            .partition_keys
            .iter()
            .all(|key| self.primary_keys.contains(key));
        if self.is_primary_key_table() && matches!(mode, BucketMode::Fixed(_)) && !partitions_in_key
        {
            return Err(invalid(
                "the primary key must contain all partition columns",
            ));
        }
        Ok(())
    }
}

fn check_ids(field: &DataField, ids: &mut BTreeSet<i32>) -> Result<()> {
    if !ids.insert(field.id) {
        return Err(invalid(format!(
            "the id {} of `{}` is taken",
            field.id, field.name
        )));
    }
    let mut pending = vec![&field.data_type];
    while let Some(data_type) = pending.pop() {
        match &data_type.kind {
            TypeKind::Array(element) | TypeKind::Multiset(element) => pending.push(element),
            TypeKind::Map(key, value) => pending.extend([key.as_ref(), value.as_ref()]),
            TypeKind::Row(fields) => {
                for nested in fields {
                    if !ids.insert(nested.id) {
                        return Err(invalid(format!(
                            "the id {} of `{}` is taken",
                            nested.id, nested.name
                        )));
                    }
                    pending.push(&nested.data_type);
                }
            }
            _ => {}
        }
    }
    Ok(())
}

pub(crate) fn invalid(reason: impl Into<String>) -> Error {
    Error::InvalidSchema {
        reason: reason.into(),
    }
}

#[cfg(test)]
mod tests;
