//! A new table: what the server fills in, and what it refuses.

use std::collections::BTreeMap;

use weir_protocol::descriptor::TableDescriptor;
use weir_protocol::ids::TablePath;
use weir_protocol::partition::is_partition_type;
use weir_protocol::schema::{Column, TypeKind};

use super::properties::{self, TableProperties};
use super::{Rules, SYSTEM_COLUMNS, names};
use crate::{Error, Result};

/// The descriptor of a table as it will be stored: defaults filled in the reference's order, then
/// checked.
///
/// * `table.datalake.format` is always recorded, lake or not: it fixes how keys are hashed into
///   buckets. So is `table.kv.format-version` for primary-key tables.
///
/// # Errors
/// [`Error::InvalidTable`], [`Error::InvalidConfig`], [`Error::TooManyBuckets`].
pub fn complete(
    path: &TablePath,
    mut table: TableDescriptor,
    rules: &Rules,
) -> Result<TableDescriptor> {
    for name in [&path.database, &path.table] {
        names::check_new(name).map_err(|reason| invalid(path, reason))?;
    }
    fill_defaults(&mut table, rules);
    check_table(path, &table, rules)?;
    Ok(table)
}

fn fill_defaults(table: &mut TableDescriptor, rules: &Rules) {
    table.bucket_count.get_or_insert(rules.default_bucket_count);
    let has_primary_key = table.schema.has_primary_key();
    let has_engine = table.properties.contains_key(properties::MERGE_ENGINE);
    let splits_by_several =
        table.partition_keys.len() > 1 && is_true(&table.properties, properties::AUTO_PARTITION);
    let replication_factor = rules.default_replication_factor.to_string();
    let defaults = [
        (
            true,
            properties::REPLICATION_FACTOR,
            replication_factor.as_str(),
        ),
        (splits_by_several, properties::NUM_PRECREATE, "0"),
        (true, properties::DATALAKE_FORMAT, "paimon"),
        (
            has_primary_key && has_engine,
            properties::DELETE_BEHAVIOR,
            "IGNORE",
        ),
        (has_primary_key, properties::KV_FORMAT_VERSION, "2"),
        (has_primary_key, properties::STANDBY_REPLICA, "true"),
    ];
    for (applies, key, value) in defaults {
        if applies {
            table
                .properties
                .entry(key.to_owned())
                .or_insert_with(|| value.to_owned());
        }
    }
    if has_primary_key && table.bucket_keys.is_empty() {
        table.bucket_keys = table.physical_primary_key();
    }
}

fn is_true(map: &BTreeMap<String, String>, key: &str) -> bool {
    map.get(key)
        .is_some_and(|text| properties::parse_bool(text) == Ok(true))
}

/// Checks a whole table, new or altered.
pub(super) fn check_table(path: &TablePath, table: &TableDescriptor, rules: &Rules) -> Result<()> {
    for (key, value) in &table.properties {
        properties::check(path, key, value)?;
    }
    // Clients of other clusters make ours custom properties.
    for (key, value) in &table.custom_properties {
        if [properties::BAD_RECORD, properties::LAKE_HISTORY].contains(&key.as_str()) {
            properties::check(path, key, value)?;
        }
    }
    check_bad_records(path, table)?;
    check_distribution(path, table, rules)?;
    check_columns(path, table)?;
    let values = TableProperties::new(path, &table.properties);
    check_formats(path, table, values)?;
    check_merge_engine(path, table, values)?;
    check_log(path, values)?;
    check_historical(path, table, values)?;
    check_partitioning(path, table, values, rules)?;
    check_statistics(path, table, values)?;
    check_lake(path, values)
}

/// A change that is put back later would overwrite those that came after it.
fn check_bad_records(path: &TablePath, table: &TableDescriptor) -> Result<()> {
    let all = [&table.properties, &table.custom_properties];
    let mut policies = all
        .into_iter()
        .filter_map(|of| of.get(properties::BAD_RECORD));
    if table.schema.has_primary_key()
        && policies.any(|policy| policy.trim().eq_ignore_ascii_case("divert"))
    {
        let reason = "a table with a primary key can't divert bad records: use stop";
        return Err(bad_property(path, properties::BAD_RECORD, reason));
    }
    Ok(())
}

fn check_distribution(path: &TablePath, table: &TableDescriptor, rules: &Rules) -> Result<()> {
    let count = table.bucket_count.unwrap_or(rules.default_bucket_count);
    if count < 1 {
        return Err(invalid(
            path,
            format!("{count} buckets, but there must be at least 1"),
        ));
    }
    if count > rules.max_bucket_count {
        let (path, found) = (path.clone(), i64::from(count));
        return Err(Error::TooManyBuckets {
            path,
            found,
            max: rules.max_bucket_count,
        });
    }
    for (keys, what) in [
        (&table.bucket_keys, "bucket"),
        (&table.partition_keys, "partition"),
    ] {
        for (index, key) in keys.iter().enumerate() {
            if keys.iter().skip(index + 1).any(|other| other == key) {
                return Err(invalid(path, format!("the {what} key names `{key}` twice")));
            }
        }
    }
    let primary_key = &table.schema.primary_key;
    for key in &table.bucket_keys {
        let kind = key_kind(path, table, key, "bucket")?;
        if is_nested(kind) {
            return Err(invalid(
                path,
                format!("bucket key `{key}` is of type {kind}"),
            ));
        }
        if table.partition_keys.contains(key) {
            return Err(invalid(
                path,
                format!("`{key}` is both bucket key and partition key"),
            ));
        }
        if table.schema.has_primary_key() && !primary_key.contains(key) {
            return Err(invalid(
                path,
                format!("bucket key `{key}` is not in the primary key"),
            ));
        }
    }
    if table.schema.has_primary_key() && table.physical_primary_key().is_empty() {
        let reason = "the primary key has no column beside the partition keys";
        return Err(invalid(path, reason.to_owned()));
    }
    Ok(())
}

fn key_kind<'a>(
    path: &TablePath,
    table: &'a TableDescriptor,
    key: &str,
    what: &str,
) -> Result<&'a TypeKind> {
    match table.schema.column(key) {
        Some(column) => Ok(&column.ty.kind),
        None => Err(invalid(path, format!("{what} key `{key}` is no column"))),
    }
}

fn is_nested(kind: &TypeKind) -> bool {
    matches!(
        kind,
        TypeKind::Array(_) | TypeKind::Map(..) | TypeKind::Row(_)
    )
}

fn check_columns(path: &TablePath, table: &TableDescriptor) -> Result<()> {
    if table.schema.columns.is_empty() {
        return Err(invalid(path, "it has no column".to_owned()));
    }
    for key in &table.schema.primary_key {
        let kind = key_kind(path, table, key, "primary")?;
        if is_nested(kind) {
            return Err(invalid(
                path,
                format!("primary key column `{key}` is of type {kind}"),
            ));
        }
    }
    for column in &table.schema.columns {
        check_column_name(path, &column.name)?;
    }
    if !table.schema.auto_increment.is_empty() && !table.schema.has_primary_key() {
        let reason = "auto-increment columns need a primary key";
        return Err(invalid(path, reason.to_owned()));
    }
    Ok(())
}

pub(super) fn check_column_name(path: &TablePath, name: &str) -> Result<()> {
    if SYSTEM_COLUMNS.contains(&name) {
        return Err(invalid(
            path,
            format!("column `{name}` is named like a column of the system"),
        ));
    }
    if name.trim().is_empty() {
        return Err(invalid(path, "a column has no name".to_owned()));
    }
    Ok(())
}

fn check_formats(
    path: &TablePath,
    table: &TableDescriptor,
    values: TableProperties<'_>,
) -> Result<()> {
    let kv_is_compacted = values.is(properties::KV_FORMAT, "COMPACTED", "COMPACTED");
    let log_is_indexed = values.is(properties::LOG_FORMAT, "INDEXED", "ARROW");
    if table.schema.has_primary_key() && kv_is_compacted && log_is_indexed {
        let reason = "a primary-key table with compacted rows has an ARROW or COMPACTED log";
        return Err(bad_property(path, properties::LOG_FORMAT, reason));
    }
    Ok(())
}

fn check_merge_engine(
    path: &TablePath,
    table: &TableDescriptor,
    values: TableProperties<'_>,
) -> Result<()> {
    let aggregates = values.is(properties::MERGE_ENGINE, "AGGREGATION", "");
    let with_function = |column: &&Column| column.agg_function.is_some();
    if let Some(column) = table.schema.columns.iter().find(with_function)
        && !aggregates
    {
        let reason = format!(
            "column `{}` aggregates, but the merge engine does not",
            column.name
        );
        return Err(bad_property(path, properties::MERGE_ENGINE, &reason));
    }
    for key in [properties::MERGE_ENGINE, properties::DELETE_BEHAVIOR] {
        if values.get(key).is_some() && !table.schema.has_primary_key() {
            return Err(bad_property(path, key, "it needs a primary key"));
        }
    }
    if aggregates && values.is(properties::CHANGELOG_IMAGE, "WAL", "FULL") {
        let reason = "the aggregation engine needs the image FULL";
        return Err(bad_property(path, properties::CHANGELOG_IMAGE, reason));
    }
    let has_engine = values.get(properties::MERGE_ENGINE).is_some();
    if has_engine && values.is(properties::DELETE_BEHAVIOR, "ALLOW", "") && !aggregates {
        let reason = "this merge engine can't delete: use ignore or disable";
        return Err(bad_property(path, properties::DELETE_BEHAVIOR, reason));
    }
    if !values.is(properties::MERGE_ENGINE, "VERSIONED", "") {
        return Ok(());
    }
    let Some(name) = values.get(properties::VERSION_COLUMN) else {
        return Err(bad_property(
            path,
            properties::VERSION_COLUMN,
            "the versioned engine needs it",
        ));
    };
    match table.schema.column(name).map(|column| &column.ty.kind) {
        Some(
            TypeKind::Int
            | TypeKind::BigInt
            | TypeKind::Timestamp { .. }
            | TypeKind::TimestampLtz { .. },
        ) => Ok(()),
        Some(kind) => {
            let reason = format!("`{name}` is {kind}, not INT, BIGINT, TIMESTAMP or TIMESTAMP_LTZ");
            Err(bad_property(path, properties::VERSION_COLUMN, &reason))
        }
        None => Err(bad_property(
            path,
            properties::VERSION_COLUMN,
            &format!("`{name}` is no column"),
        )),
    }
}

fn check_log(path: &TablePath, values: TableProperties<'_>) -> Result<()> {
    let Some(local) = values.get(properties::LOG_LOCAL_TTL) else {
        return Ok(());
    };
    let local = properties::parse_duration(local)
        .map_err(|reason| bad_property(path, properties::LOG_LOCAL_TTL, &reason))?;
    let whole = values.log_ttl()?;
    if !local.is_zero() && !whole.is_zero() && local > whole {
        let reason = format!("it is longer than `{}`", properties::LOG_TTL);
        return Err(bad_property(path, properties::LOG_LOCAL_TTL, &reason));
    }
    Ok(())
}

fn check_historical(
    path: &TablePath,
    table: &TableDescriptor,
    values: TableProperties<'_>,
) -> Result<()> {
    let is_on = |key: &str| {
        values
            .get(key)
            .is_some_and(|v| properties::parse_bool(v) == Ok(true))
    };
    if !is_on(properties::HISTORICAL_PARTITION) {
        return Ok(());
    }
    let requirements = [
        (is_on(properties::AUTO_PARTITION), "auto partitioning"),
        (values.datalake_enabled()?, "the lake"),
        (
            values.is(properties::DATALAKE_FORMAT, "PAIMON", ""),
            "the lake format paimon",
        ),
        (table.schema.has_primary_key(), "a primary key"),
        (table.partition_keys.len() == 1, "exactly one partition key"),
    ];
    match requirements.iter().find(|(is_met, _)| !is_met) {
        Some((_, what)) => Err(bad_property(
            path,
            properties::HISTORICAL_PARTITION,
            &format!("it needs {what}"),
        )),
        None => Ok(()),
    }
}

fn check_partitioning(
    path: &TablePath,
    table: &TableDescriptor,
    values: TableProperties<'_>,
    rules: &Rules,
) -> Result<()> {
    let keys = &table.partition_keys;
    for key in keys {
        let kind = key_kind(path, table, key, "partition")?;
        if !is_partition_type(kind) {
            return Err(invalid(
                path,
                format!("partition key `{key}` is of type {kind}"),
            ));
        }
        if table.schema.has_primary_key() && !table.schema.primary_key.contains(key) {
            return Err(invalid(
                path,
                format!("partition key `{key}` is not in the primary key"),
            ));
        }
    }
    let auto = values.auto_partition(keys)?;
    if !auto.is_enabled {
        return Ok(());
    }
    if keys.is_empty() {
        return Err(bad_property(
            path,
            properties::AUTO_PARTITION,
            "the table has no partition key",
        ));
    }
    if keys.len() > 1
        && values
            .get(properties::AUTO_PARTITION_KEY)
            .is_none_or(str::is_empty)
    {
        let reason = format!(
            "several partition keys: name one by `{}`",
            properties::AUTO_PARTITION_KEY
        );
        return Err(invalid(path, reason));
    }
    if !keys.contains(&auto.key) {
        return Err(invalid(
            path,
            format!("auto-partition key `{}` is no partition key", auto.key),
        ));
    }
    if keys.len() > 1 && auto.precreate > 0 {
        let reason = format!(
            "several partition keys: `{}` must be 0",
            properties::NUM_PRECREATE
        );
        return Err(invalid(path, reason));
    }
    let max = rules.max_partition_count;
    if usize::try_from(auto.precreate).is_ok_and(|precreate| precreate > max) {
        let reason = format!(
            "{} partitions ahead, but a table has at most {max}",
            auto.precreate
        );
        return Err(bad_property(path, properties::NUM_PRECREATE, &reason));
    }
    let is_date = *key_kind(path, table, &auto.key, "partition")? == TypeKind::Date;
    if is_date && auto.format.pattern() != "yyyy-MM-dd" {
        let reason = format!(
            "auto-partition key `{}` is a DATE: it needs the unit DAY and the format yyyy-MM-dd",
            auto.key
        );
        return Err(invalid(path, reason));
    }
    Ok(())
}

fn check_statistics(
    path: &TablePath,
    table: &TableDescriptor,
    values: TableProperties<'_>,
) -> Result<()> {
    let names = values
        .get(properties::STATISTICS_COLUMNS)
        .unwrap_or("*")
        .trim();
    if names == "*" {
        return Ok(());
    }
    for name in names.split(',').map(str::trim) {
        if table.schema.column(name).is_none() {
            let reason = format!("`{name}` is no column");
            return Err(bad_property(path, properties::STATISTICS_COLUMNS, &reason));
        }
    }
    Ok(())
}

fn check_lake(path: &TablePath, values: TableProperties<'_>) -> Result<()> {
    for key in [properties::LAKE_DATABASE, properties::LAKE_TABLE] {
        if let Some(Err(reason)) = values.get(key).map(names::check) {
            return Err(bad_property(path, key, &reason));
        }
    }
    if values.datalake_enabled()? && !values.is(properties::DATALAKE_FORMAT, "PAIMON", "PAIMON") {
        let reason = "this cluster's lake is paimon";
        return Err(bad_property(path, properties::DATALAKE_FORMAT, reason));
    }
    Ok(())
}

pub(super) fn invalid(path: &TablePath, reason: String) -> Error {
    Error::InvalidTable {
        path: path.clone(),
        reason,
    }
}

fn bad_property(path: &TablePath, key: &str, reason: &str) -> Error {
    Error::InvalidConfig {
        path: path.clone(),
        key: key.to_owned(),
        reason: reason.to_owned(),
    }
}
