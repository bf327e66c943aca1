//! Changes of a table.

use weir_protocol::descriptor::TableDescriptor;
use weir_protocol::ids::{TablePath, TotalBuckets};
use weir_protocol::schema::{Column, Schema};

use super::Rules;
use super::create::{check_column_name, check_table};
use super::properties::{self, TABLE_PREFIX, TableProperties, WEIR_PREFIX};
use crate::{Error, Result};

/// Where a new column stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ColumnPosition {
    /// After all others: the only place that is allowed.
    Last,
    /// Before all others.
    First,
    /// After this one.
    After(String),
}

/// One change that a client asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TableChange {
    /// Sets a property.
    Set {
        /// Its name.
        key: String,
        /// Its value.
        value: String,
    },
    /// Removes a property, back to its default.
    Reset {
        /// Its name.
        key: String,
    },
    /// Adds a column.
    AddColumn {
        /// The column; its id is given here.
        column: Column,
        /// Where it stands.
        position: ColumnPosition,
    },
    /// Removes a column: refused.
    DropColumn {
        /// The column.
        name: String,
    },
    /// Renames a column: refused.
    RenameColumn {
        /// The column.
        name: String,
    },
    /// Changes a column: refused.
    ModifyColumn {
        /// The column.
        name: String,
    },
    /// Changes how many buckets new partitions get; alone in its request.
    BucketCount {
        /// The new count.
        count: i32,
    },
}

impl TableChange {
    /// Whether it is about the bucket count, in either form of it.
    pub fn is_of_bucket_count(&self) -> bool {
        match self {
            Self::BucketCount { .. } => true,
            Self::Set { key, .. } | Self::Reset { key } => key == BUCKET_NUMBER,
            _ => false,
        }
    }
}

/// What changes make of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Altered {
    /// Nothing: it is so already.
    Unchanged,
    /// Other properties.
    Properties(TableDescriptor),
    /// Another schema, which gets the next schema id.
    Schema(Schema),
    /// This many buckets for new partitions, perhaps as many as before; see [`super::rescale`].
    BucketCount(TotalBuckets),
}

/// Name of the connector's option that stands for [`TableChange::BucketCount`].
const BUCKET_NUMBER: &str = "bucket.num";

/// Decides what `changes` make of a table.
///
/// * Properties and columns can't change in one request, and the bucket count with nothing else.
///
/// # Errors
/// [`Error::InvalidAlterTable`], [`Error::TooManyBuckets`], and those of [`super::complete`] for what the
/// table would become.
pub fn alter(
    path: &TablePath,
    table: &TableDescriptor,
    changes: &[TableChange],
    rules: &Rules,
) -> Result<Altered> {
    let refused = |reason: String| {
        Err(Error::InvalidAlterTable {
            path: path.clone(),
            reason,
        })
    };
    if let Some(count) = bucket_count(path, changes)? {
        check_bucket_count(path, table, count, rules)?;
        return Ok(Altered::BucketCount(TotalBuckets(count)));
    }
    let is_property = |change: &TableChange| {
        matches!(change, TableChange::Set { .. } | TableChange::Reset { .. })
    };
    let property_count = changes.iter().filter(|change| is_property(change)).count();
    if property_count == 0 {
        return alter_schema(path, table, changes);
    }
    if property_count < changes.len() {
        return refused("properties and columns can't change in one request".to_owned());
    }
    alter_properties(path, table, changes, rules)
}

/// The bucket count that the changes ask for, in either form.
fn bucket_count(path: &TablePath, changes: &[TableChange]) -> Result<Option<i32>> {
    let refused = |reason: String| {
        Err(Error::InvalidAlterTable {
            path: path.clone(),
            reason,
        })
    };
    if !changes.iter().any(TableChange::is_of_bucket_count) {
        return Ok(None);
    }
    match changes {
        [TableChange::BucketCount { count }] => Ok(Some(*count)),
        [TableChange::Set { value, .. }] => match value.trim().parse() {
            Ok(count) => Ok(Some(count)),
            Err(_) => refused(format!(
                "`{BUCKET_NUMBER}` is `{value}`, which is no integer"
            )),
        },
        [_] => refused(format!("`{BUCKET_NUMBER}` can be set, not reset")),
        _ => refused(format!(
            "`{BUCKET_NUMBER}` changes alone: send the other changes in a request of their own"
        )),
    }
}

fn check_bucket_count(
    path: &TablePath,
    table: &TableDescriptor,
    count: i32,
    rules: &Rules,
) -> Result<()> {
    let refused = |reason: &str| {
        Err(Error::InvalidAlterTable {
            path: path.clone(),
            reason: format!("`{BUCKET_NUMBER}` can't change: {reason}"),
        })
    };
    if !table.is_partitioned() {
        return refused("the table has no partitions, and the rows it holds are not moved");
    }
    if count < 1 {
        return refused("it must be at least 1");
    }
    if count > rules.max_bucket_count {
        return Err(Error::TooManyBuckets {
            path: path.clone(),
            found: i64::from(count),
            max: rules.max_bucket_count,
        });
    }
    let is = |key: &str, wanted: &str| {
        let value = table.properties.get(key);
        value.is_some_and(|value| value.eq_ignore_ascii_case(wanted))
    };
    if is(properties::MERGE_ENGINE, "aggregation") {
        return refused("the merge engine `aggregation` does not allow it");
    }
    let has_lake = TableProperties::new(path, &table.properties).datalake_enabled()?;
    if has_lake && !is(properties::DATALAKE_FORMAT, "paimon") {
        return refused("the table's lake format has one bucket count for all partitions");
    }
    Ok(())
}

fn alter_properties(
    path: &TablePath,
    table: &TableDescriptor,
    changes: &[TableChange],
    rules: &Rules,
) -> Result<Altered> {
    let mut next = table.clone();
    for change in changes {
        let (key, value) = match change {
            TableChange::Set { key, value } => (key, Some(value)),
            TableChange::Reset { key } => (key, None),
            _ => continue,
        };
        check_alterable(path, table, key)?;
        let is_known = key.starts_with(TABLE_PREFIX) || key.starts_with(WEIR_PREFIX);
        let map = if is_known {
            &mut next.properties
        } else {
            &mut next.custom_properties
        };
        match value {
            Some(value) => map.insert(key.clone(), value.clone()),
            None => map.remove(key),
        };
    }
    if next == *table {
        return Ok(Altered::Unchanged);
    }
    let was_enabled = TableProperties::new(path, &table.properties).datalake_enabled()?;
    let is_enabled = TableProperties::new(path, &next.properties).datalake_enabled()?;
    if is_enabled && !was_enabled {
        let format = properties::DATALAKE_FORMAT.to_owned();
        next.properties
            .entry(format)
            .or_insert_with(|| "paimon".to_owned());
    }
    check_table(path, &next, rules)?;
    Ok(Altered::Properties(next))
}

fn check_alterable(path: &TablePath, table: &TableDescriptor, key: &str) -> Result<()> {
    let refused = |reason: String| {
        Err(Error::InvalidAlterTable {
            path: path.clone(),
            reason,
        })
    };
    if !properties::is_alterable(key) {
        return refused(format!("property `{key}` can't change"));
    }
    if key == properties::STANDBY_REPLICA && !table.schema.has_primary_key() {
        return refused(format!("property `{key}` needs a primary key"));
    }
    let has_format = table.properties.contains_key(properties::DATALAKE_FORMAT);
    let hashes = table.schema.has_primary_key() || !table.bucket_keys.is_empty();
    let is_harmless = key == properties::DATALAKE_ENABLED && !hashes;
    if key.starts_with(properties::DATALAKE_PREFIX) && !has_format && !is_harmless {
        return refused(format!(
            "property `{key}` can't change: the table was created without `{}`, so its rows \
             are hashed another way than the lake's",
            properties::DATALAKE_FORMAT
        ));
    }
    Ok(())
}

fn alter_schema(
    path: &TablePath,
    table: &TableDescriptor,
    changes: &[TableChange],
) -> Result<Altered> {
    let refused = |reason: String| {
        Err(Error::InvalidAlterTable {
            path: path.clone(),
            reason,
        })
    };
    let mut schema = table.schema.clone();
    for change in changes {
        let (column, position) = match change {
            TableChange::AddColumn { column, position } => (column, position),
            TableChange::DropColumn { name }
            | TableChange::RenameColumn { name }
            | TableChange::ModifyColumn { name } => {
                return refused(format!("column `{name}` can't change, only be added"));
            }
            TableChange::Set { .. }
            | TableChange::Reset { .. }
            | TableChange::BucketCount { .. } => {
                continue;
            }
        };
        if *position != ColumnPosition::Last {
            return refused(format!(
                "column `{}` can only be added as the last one",
                column.name
            ));
        }
        if !column.ty.nullable {
            return refused(format!("column `{}` must be nullable", column.name));
        }
        check_column_name(path, &column.name)?;
        if schema.column_index(&column.name).is_some() {
            return refused(format!("column `{}` already exists", column.name));
        }
        // Most readers of the lake take both names for one column.
        let same = |other: &&Column| other.name.eq_ignore_ascii_case(&column.name);
        if let Some(other) = schema.columns.iter().find(same) {
            return refused(format!(
                "column `{}` differs from `{}` only by case, which readers of the lake don't tell apart",
                column.name, other.name
            ));
        }
        schema = match schema.with_column_added(column.clone()) {
            Ok(schema) => schema,
            Err(error) => return refused(error.to_string()),
        };
    }
    if schema == table.schema {
        return Ok(Altered::Unchanged);
    }
    Ok(Altered::Schema(schema))
}
