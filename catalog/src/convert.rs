//! A Fluss table as a Paimon table: types, columns and options. (The reference's
//! `PaimonConversions`.)

use std::collections::BTreeMap;

use weir_lake_format as lake;
use weir_lake_format::{DataField, DataType, NewTable, TableSchema};
use weir_protocol::descriptor::TableDescriptor;
use weir_protocol::ids::TablePath;
use weir_protocol::schema::{Column, LogicalType, RowField, TypeKind};

use crate::ddl::properties::{is_lake_option, parse_bool};
use crate::{Error, Result};

/// Columns that releases before 1.0 added to lake tables, in this order, last.
pub const LEGACY_COLUMNS: [&str; 3] = ["__bucket", "__offset", "__timestamp"];
/// Paimon options that follow from the table and that nobody sets.
const RESERVED_OPTIONS: [&str; 3] = ["bucket", "bucket-key", "partition.legacy-name"];
/// Prefix of properties that are Paimon options.
const PAIMON_PREFIX: &str = "paimon.";
/// Prefix under which Paimon keeps a copy of the table's properties.
const FLUSS_PREFIX: &str = "fluss.";
/// Parts of names whose values are nobody's business.
const SECRET_WORDS: [&str; 6] = [
    "secret",
    "password",
    "access-key",
    "access.key",
    "accesskey",
    "token",
];

/// The Paimon type of a Fluss type. TIME loses its precision: Paimon keeps milliseconds under
/// precision 0.
///
/// Field ids are left open; [`TableSchema::create`] and `evolve` give them.
pub fn lake_type(ty: &LogicalType) -> DataType {
    use lake::TypeKind as Lake;
    // A length below 1 is none of a Fluss type; Paimon refuses it by the same rule.
    let length = |length: i32| u32::try_from(length).unwrap_or(0);
    let kind = match &ty.kind {
        TypeKind::Boolean => Lake::Boolean,
        TypeKind::TinyInt => Lake::TinyInt,
        TypeKind::SmallInt => Lake::SmallInt,
        TypeKind::Int => Lake::Int,
        TypeKind::BigInt => Lake::BigInt,
        TypeKind::Float => Lake::Float,
        TypeKind::Double => Lake::Double,
        TypeKind::Decimal { precision, scale } => Lake::Decimal {
            precision: *precision,
            scale: *scale,
        },
        TypeKind::Char { length: n } => Lake::Char { length: length(*n) },
        TypeKind::String => Lake::string(),
        TypeKind::Binary { length: n } => Lake::Binary { length: length(*n) },
        TypeKind::Bytes => Lake::bytes(),
        TypeKind::Date => Lake::Date,
        TypeKind::Time { .. } => Lake::Time { precision: 0 },
        TypeKind::Timestamp { precision } => Lake::Timestamp {
            precision: *precision,
        },
        TypeKind::TimestampLtz { precision } => Lake::TimestampLtz {
            precision: *precision,
        },
        TypeKind::Array(element) => Lake::Array(Box::new(lake_type(element))),
        TypeKind::Map(key, value) => {
            Lake::Map(Box::new(lake_type(key)), Box::new(lake_type(value)))
        }
        TypeKind::Row(fields) => Lake::Row(fields.iter().map(lake_field).collect()),
    };
    DataType {
        kind,
        nullable: ty.nullable,
    }
}

fn lake_field(field: &RowField) -> DataField {
    let mut lake = DataField::new(0, field.name.clone(), lake_type(&field.ty));
    lake.description.clone_from(&field.description);
    lake
}

/// The Paimon column of a Fluss column.
pub fn lake_column(column: &Column) -> DataField {
    let mut lake = DataField::new(0, column.name.clone(), lake_type(&column.ty));
    lake.description.clone_from(&column.comment);
    lake
}

/// The Paimon table of a Fluss table, `table` being complete (see [`crate::ddl::complete`]).
///
/// # Errors
/// [`Error::InvalidConfig`] if a property sets a reserved option.
pub fn new_lake_table(path: &TablePath, table: &TableDescriptor) -> Result<NewTable> {
    Ok(NewTable {
        fields: table.schema.columns.iter().map(lake_column).collect(),
        partition_keys: table.partition_keys.clone(),
        primary_keys: table.schema.primary_key.clone(),
        options: lake_options(path, table)?,
        comment: table.comment.clone(),
    })
}

/// The Paimon options of a Fluss table.
///
/// `bucket` is the count of new partitions and nothing more: each file carries the count of its own
/// partition.
///
/// # Errors
/// [`Error::InvalidConfig`] if a property sets a reserved option.
pub fn lake_options(path: &TablePath, table: &TableDescriptor) -> Result<BTreeMap<String, String>> {
    let mut options = BTreeMap::new();
    let mut set = |key: &str, value: String| options.insert(key.to_owned(), value);
    set("partition.legacy-name", "false".to_owned());
    if table.bucket_keys.is_empty() {
        set("bucket", "-1".to_owned());
    } else {
        set("bucket", table.bucket_count.unwrap_or(1).to_string());
        set("bucket-key", table.bucket_keys.join(","));
    }
    if table.schema.has_primary_key() {
        set("changelog-producer", "input".to_owned());
    }
    for (key, value) in table.properties.iter().chain(&table.custom_properties) {
        if let Some(option) = lake_option(path, key)? {
            options.insert(option, value.clone());
        }
    }
    check_deletion_vectors(path, table, &options)?;
    Ok(options)
}

/// The Paimon option that a Fluss property becomes; `None` if it stays out of the lake.
///
/// # Errors
/// [`Error::InvalidConfig`] if it is a reserved option.
pub fn lake_option(path: &TablePath, key: &str) -> Result<Option<String>> {
    let option = key.strip_prefix(PAIMON_PREFIX);
    if RESERVED_OPTIONS.contains(&option.unwrap_or(key)) {
        let reason = "it follows from the table and can't be set";
        return Err(refused(path, key, reason));
    }
    if option == Some("path") {
        return Err(refused(path, key, "lake tables live in the warehouse only"));
    }
    let lower = key.to_ascii_lowercase();
    let is_secret = SECRET_WORDS.iter().any(|word| lower.contains(word));
    if is_lake_option(key) || is_secret {
        return Ok(None);
    }
    Ok(Some(option.map_or_else(
        || format!("{FLUSS_PREFIX}{key}"),
        str::to_owned,
    )))
}

fn check_deletion_vectors(
    path: &TablePath,
    table: &TableDescriptor,
    options: &BTreeMap<String, String>,
) -> Result<()> {
    const KEY: &str = "deletion-vectors.enabled";
    if options
        .get(KEY)
        .is_none_or(|text| parse_bool(text) != Ok(true))
    {
        return Ok(());
    }
    for key in &table.partition_keys {
        let kind = table.schema.column(key).map(|column| &column.ty.kind);
        if kind != Some(&TypeKind::String) {
            let reason = format!("partition key `{key}` is no STRING");
            return Err(refused(path, "paimon.deletion-vectors.enabled", &reason));
        }
    }
    Ok(())
}

fn refused(path: &TablePath, key: &str, reason: &str) -> Error {
    Error::InvalidConfig {
        path: path.clone(),
        key: key.to_owned(),
        reason: reason.to_owned(),
    }
}

/// Whether a lake table ends in the system columns of releases before 1.0, which its writers go on
/// feeding.
pub fn has_legacy_columns(schema: &TableSchema) -> bool {
    let names: Vec<&str> = schema
        .fields
        .iter()
        .map(|field| field.name.as_str())
        .collect();
    names.ends_with(&LEGACY_COLUMNS)
}

/// The table's own columns in a lake table: all but the legacy system columns.
pub fn own_columns(schema: &TableSchema) -> &[DataField] {
    let system = if has_legacy_columns(schema) {
        LEGACY_COLUMNS.len()
    } else {
        0
    };
    schema
        .fields
        .get(..schema.fields.len().saturating_sub(system))
        .unwrap_or_default()
}

/// Why an existing lake table can't take the rows of `wanted`; `None` if it can.
///
/// Names, types, nullability and order of the columns must be equal, ids and comments needn't; so
/// must keys, `bucket-key`, partition names, and every option that Paimon never changes. Bucket counts
/// must be equal too, or the table partitioned: the lake's is then that of new partitions and can follow.
pub fn incompatibility(existing: &TableSchema, wanted: &NewTable) -> Option<String> {
    let columns = own_columns(existing);
    if let Some(reason) = column_difference(columns, &wanted.fields) {
        return Some(reason);
    }
    if existing.partition_keys != wanted.partition_keys {
        let (theirs, ours) = (&existing.partition_keys, &wanted.partition_keys);
        return Some(format!(
            "its partition keys are {theirs:?} instead of {ours:?}"
        ));
    }
    if existing.primary_keys != wanted.primary_keys {
        let (theirs, ours) = (&existing.primary_keys, &wanted.primary_keys);
        return Some(format!("its primary key is {theirs:?} instead of {ours:?}"));
    }
    let keys = existing.options.keys().chain(wanted.options.keys());
    for key in keys {
        if !RESERVED_OPTIONS.contains(&key.as_str()) && !TableSchema::is_immutable_option(key) {
            continue;
        }
        let value = |options: &BTreeMap<String, String>| {
            let default = if key == "bucket" { "-1" } else { "" };
            options.get(key).map_or(default.to_owned(), Clone::clone)
        };
        let (theirs, ours) = (value(&existing.options), value(&wanted.options));
        let is_fixed = |count: &String| count.parse().is_ok_and(|count: i32| count > 0);
        let follows = key == "bucket"
            && !wanted.partition_keys.is_empty()
            && is_fixed(&theirs)
            && is_fixed(&ours);
        if theirs != ours && !follows {
            return Some(format!(
                "its option `{key}` is `{theirs}` instead of `{ours}`"
            ));
        }
    }
    None
}

/// The first difference between the columns of a lake table and those wanted.
pub fn column_difference(existing: &[DataField], wanted: &[DataField]) -> Option<String> {
    if existing.len() != wanted.len() {
        return Some(format!(
            "it has {} columns instead of {}",
            existing.len(),
            wanted.len()
        ));
    }
    for (theirs, ours) in existing.iter().zip(wanted) {
        if theirs.name != ours.name {
            return Some(format!(
                "it has column `{}` where `{}` belongs",
                theirs.name, ours.name
            ));
        }
        if bare(&theirs.data_type) != bare(&ours.data_type) {
            let (name, theirs, ours) = (&ours.name, &theirs.data_type, &ours.data_type);
            return Some(format!("its column `{name}` is {theirs} instead of {ours}"));
        }
    }
    None
}

/// A type without field ids, comments and defaults of nested fields.
fn bare(ty: &DataType) -> DataType {
    use lake::TypeKind as Lake;
    let kind = match &ty.kind {
        Lake::Array(element) => Lake::Array(Box::new(bare(element))),
        Lake::Multiset(element) => Lake::Multiset(Box::new(bare(element))),
        Lake::Map(key, value) => Lake::Map(Box::new(bare(key)), Box::new(bare(value))),
        Lake::Row(fields) => {
            let field = |f: &DataField| DataField::new(0, f.name.clone(), bare(&f.data_type));
            Lake::Row(fields.iter().map(field).collect())
        }
        atomic => atomic.clone(),
    };
    DataType {
        kind,
        nullable: ty.nullable,
    }
}
