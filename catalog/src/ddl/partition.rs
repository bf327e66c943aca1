//! A new partition: whether its values make one of the table.

use weir_protocol::descriptor::TableDescriptor;
use weir_protocol::ids::TablePath;
use weir_protocol::partition::{PartitionSpec, parse_value, value_text};

use super::names;
use super::properties::TableProperties;
use crate::{Error, Result};

/// The values of a partition in the order of the table's partition keys.
///
/// # Errors
/// [`Error::TableNotPartitioned`], and [`Error::InvalidPartition`] for keys that are missing or too
/// many and for values that make no name.
pub fn ordered_spec(
    path: &TablePath,
    partition_keys: &[String],
    spec: &PartitionSpec,
) -> Result<PartitionSpec> {
    if partition_keys.is_empty() {
        return Err(Error::TableNotPartitioned { path: path.clone() });
    }
    let invalid = |reason: String| Error::InvalidPartition {
        path: path.clone(),
        reason,
    };
    let ordered = spec
        .ordered(partition_keys)
        .map_err(|error| invalid(error.to_string()))?;
    for (_, value) in &ordered.0 {
        names::check(value).map_err(invalid)?;
    }
    Ok(ordered)
}

/// Checks a partition that is to be created, `spec` being ordered already.
///
/// * The text of each value is the one that writers of rows make of a value of its column's type:
///   any other would be a second partition of the same rows.
/// * In an auto-partitioned table the time has the table's format and is not older than what is
///   kept.
///
/// # Errors
/// [`Error::InvalidPartition`].
pub fn check_partition(
    path: &TablePath,
    table: &TableDescriptor,
    spec: &PartitionSpec,
    now_ms: i64,
) -> Result<()> {
    let invalid = |reason: String| Error::InvalidPartition {
        path: path.clone(),
        reason,
    };
    for (key, value) in &spec.0 {
        names::check_new(value).map_err(invalid)?;
        let Some(column) = table.schema.column(key) else {
            return Err(invalid(format!("`{key}` is no column")));
        };
        let kind = &column.ty.kind;
        match parse_value(value, kind).and_then(|parsed| value_text(&parsed, kind)) {
            Err(error) => return Err(invalid(format!("`{value}` of `{key}`: {error}"))),
            Ok(canonical) if canonical != *value => {
                return Err(invalid(format!(
                    "`{value}` of `{key}`: write `{canonical}`"
                )));
            }
            Ok(_) => {}
        }
    }
    let properties = TableProperties::new(path, &table.properties);
    let auto = properties.auto_partition(&table.partition_keys)?;
    if !auto.is_enabled && properties.get(super::properties::TIME_FORMAT).is_none() {
        return Ok(());
    }
    let time = spec.get(&auto.key).unwrap_or_default();
    if !auto.format.fits(time) {
        let pattern = auto.format.pattern();
        return Err(invalid(format!(
            "`{time}` is no time in the format {pattern}"
        )));
    }
    match auto.oldest_kept(now_ms).filter(|_| auto.is_enabled) {
        Some(oldest) if time < oldest.as_str() => Err(invalid(format!(
            "`{time}` is older than `{oldest}`, the oldest that is kept"
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use weir_protocol::schema::{Column, LogicalType, Schema, TypeKind};

    use super::*;

    #[test]
    fn fc_028_a_partition_of_another_pattern_or_beyond_retention_is_refused_with_what_is_right() {
        let column = |name: &str| Column::new(name, LogicalType::not_null(TypeKind::String));
        let schema = Schema::new(vec![column("id"), column("year")], Vec::new()).unwrap();
        let mut table = TableDescriptor::new(schema);
        table.partition_keys = vec!["year".to_owned()];
        for (key, value) in [
            ("table.auto-partition.enabled", "true"),
            ("table.auto-partition.time-unit", "YEAR"),
            ("table.auto-partition.num-retention", "2"),
            ("table.auto-partition.time-zone", "UTC"),
        ] {
            table.properties.insert(key.to_owned(), value.to_owned());
        }
        let path = TablePath::new("d", "t");
        let in_2026 = 1_780_000_000_000;
        let check = |value: &str| {
            let spec = PartitionSpec::new(&["year"], &[value]).unwrap();
            let checked = check_partition(&path, &table, &spec, in_2026);
            checked.map_err(|error| error.to_string())
        };
        let pattern = check("2024-03-25").unwrap_err();
        assert!(
            pattern.contains("`2024-03-25` is no time in the format yyyy"),
            "{pattern}"
        );
        let old = check("2020").unwrap_err();
        assert!(old.contains("`2020` is older than `2024`"), "{old}");
        assert_eq!(check("2026"), Ok(()));
        assert_eq!(check("2024"), Ok(()));
    }
}
