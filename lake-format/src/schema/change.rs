//! Changes of a schema, as one pure function.

use super::{TableSchema, invalid};
use crate::error::Result;
use crate::types::{DataField, DataType};

/// Options that may not change once a table exists (paimon: `CoreOptions.IMMUTABLE_OPTIONS`).
const IMMUTABLE_OPTIONS: [&str; 13] = [
    "type",
    "bucket-key",
    "bucket-function.type",
    "merge-engine",
    "rowkind.field",
    "primary-key",
    "partition",
    "data-file.path-directory",
    "row-tracking.enabled",
    "data-evolution.enabled",
    "deletion-vectors.enabled",
    "force-lookup",
    "path",
];

/// One change of a schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SchemaChange {
    /// Adds a column that takes null, as the last one unless `before` names another.
    AddColumn {
        /// Its name.
        name: String,
        /// Its type.
        data_type: DataType,
        /// Its comment.
        description: Option<String>,
        /// The column it stands before; none for the end.
        before: Option<String>,
    },
    /// Sets an option.
    SetOption {
        /// Its name.
        name: String,
        /// Its value.
        value: String,
    },
    /// Removes an option; one that is not set stays so.
    RemoveOption {
        /// Its name.
        name: String,
    },
}

impl TableSchema {
    /// Whether an option may never change once a table exists.
    pub fn is_immutable_option(name: &str) -> bool {
        IMMUTABLE_OPTIONS.contains(&name)
    }

    /// The next schema: this one with `changes` applied in order, id and time moved on.
    ///
    /// # Errors
    /// [`crate::Error::InvalidSchema`] if a change breaks a rule; nothing is applied then.
    pub fn evolve(&self, changes: &[SchemaChange], time_millis: i64) -> Result<Self> {
        let mut next = Self {
            id: self.id + 1,
            version: super::SCHEMA_VERSION,
            time_millis,
            ..self.clone()
        };
        for change in changes {
            next.apply(change)?;
        }
        next.validate()?;
        Ok(next)
    }

    fn apply(&mut self, change: &SchemaChange) -> Result<()> {
        match change {
            SchemaChange::AddColumn {
                name,
                data_type,
                description,
                before,
            } => {
                if self.field(name).is_some() {
                    return Err(invalid(format!("column `{name}` exists")));
                }
                if !data_type.nullable {
                    return Err(invalid(format!("new column `{name}` must take null")));
                }
                let place = match before {
                    None => self.fields.len(),
                    Some(before) => self
                        .field_index(before)
                        .ok_or_else(|| invalid(format!("no column `{before}` to stand before")))?,
                };
                let id = self.highest_field_id + 1;
                let mut next_id = id + 1;
                let data_type = data_type.with_field_ids(&mut next_id);
                let field = DataField {
                    description: description.clone(),
                    ..DataField::new(id, name, data_type)
                };
                self.highest_field_id = next_id - 1;
                self.fields.insert(place, field);
            }
            SchemaChange::SetOption { name, value } => {
                if self.options.get(name) != Some(value) {
                    self.check_option(name, Some(value))?;
                    self.options.insert(name.clone(), value.clone());
                }
            }
            SchemaChange::RemoveOption { name } => {
                if self.options.contains_key(name) {
                    self.check_option(name, None)?;
                    self.options.remove(name);
                }
            }
        }
        Ok(())
    }

    fn check_option(&self, name: &str, value: Option<&String>) -> Result<()> {
        if Self::is_immutable_option(name) {
            return Err(invalid(format!("option `{name}` cannot change")));
        }
        if name == "bucket" {
            let old = self.options.get(name).map_or("-1", String::as_str);
            let new = value.map_or("-1", String::as_str);
            if old != new && (old.starts_with('-') || new.starts_with('-')) {
                return Err(invalid(format!(
                    "option `bucket` cannot change from {old} to {new}"
                )));
            }
        }
        Ok(())
    }
}
