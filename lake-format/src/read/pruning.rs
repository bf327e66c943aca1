//! Which manifests and files cannot hold a row that passes conditions.

use crate::binary_row::BinaryRow;
use crate::error::{Error, Result};
use crate::manifest::ManifestEntry;
use crate::manifest_list::ManifestFileMeta;
use crate::predicate::Predicate;
use crate::schema::TableSchema;
use crate::stats::ColumnStats;
use crate::table::Table;
use crate::types::DataType;

use super::schemas_of;

/// Conditions against the partitions and files of one table.
pub(super) struct Pruning<'a> {
    partition_types: Vec<DataType>,
    /// Conditions on partition columns, with the column's place among them.
    on_partition: Vec<(usize, &'a Predicate)>,
    on_files: Vec<&'a Predicate>,
}

/// Whether a file may be left out if no row of it passes. The rows of a key must be kept together.
fn may_prune(condition: &Predicate, schema: &TableSchema) -> bool {
    let id = condition.field().id;
    let field = schema.field_by_id(id);
    !schema.is_primary_key_table()
        || field.is_some_and(|field| schema.primary_keys.contains(&field.name))
}

impl<'a> Pruning<'a> {
    pub(super) fn new(conditions: &'a [Predicate], schema: &TableSchema) -> Result<Self> {
        let fields = schema.partition_fields()?;
        let mut found = Self {
            partition_types: fields.iter().map(|field| field.data_type.clone()).collect(),
            on_partition: Vec::new(),
            on_files: Vec::new(),
        };
        for condition in conditions {
            match fields
                .iter()
                .position(|field| field.id == condition.field().id)
            {
                Some(place) => found.on_partition.push((place, condition)),
                None if may_prune(condition, schema) => found.on_files.push(condition),
                None => {}
            }
        }
        Ok(found)
    }

    /// Whether a manifest can hold an entry of a partition that passes, by its list's record.
    pub(super) fn may_hold(&self, manifest: &ManifestFileMeta) -> Result<bool> {
        if self.on_partition.is_empty() {
            return Ok(true);
        }
        let bounds = manifest
            .partition_stats
            .decode(self.partition_types.iter())?;
        let entries = manifest.num_added_files + manifest.num_deleted_files;
        let may_pass = |(place, condition): &(usize, &Predicate)| {
            let bounds = bounds.get(*place);
            bounds.is_none_or(|bounds| condition.may_pass(bounds, entries))
        };
        Ok(self.on_partition.iter().all(may_pass))
    }

    /// Whether the rows of an entry's partition pass the conditions on partition columns.
    pub(super) fn passes_partition(&self, entry: &ManifestEntry) -> Result<bool> {
        if self.on_partition.is_empty() {
            return Ok(true);
        }
        let row = BinaryRow::from_serialized(&entry.partition)?;
        let values = row.decode(self.partition_types.iter())?;
        let passes = |(place, condition): &(usize, &Predicate)| {
            let value = values.get(*place);
            value.is_none_or(|value| condition.lets_through(value))
        };
        Ok(self.on_partition.iter().all(passes))
    }

    /// The entries whose files may hold a row that passes, by their statistics.
    pub(super) async fn keep_files(
        &self,
        table: &Table,
        entries: Vec<ManifestEntry>,
    ) -> Result<Vec<ManifestEntry>> {
        if self.on_files.is_empty() {
            return Ok(entries);
        }
        let schemas = schemas_of(table, entries.iter().map(|entry| entry.file.schema_id)).await?;
        let mut kept = Vec::with_capacity(entries.len());
        for entry in entries {
            let schema = schemas.get(&entry.file.schema_id).ok_or_else(|| {
                Error::malformed("manifest entry", "the schema of its file was not read")
            })?;
            if self.may_pass(&entry, schema)? {
                kept.push(entry);
            }
        }
        Ok(kept)
    }

    fn may_pass(&self, entry: &ManifestEntry, schema: &TableSchema) -> Result<bool> {
        let stats = Table::file_stats(&entry.file, schema)?;
        Ok(self.on_files.iter().all(|condition| {
            let wanted = condition.field();
            let Some(field) = schema.field_by_id(wanted.id) else {
                // The column came later, so that it is null in all of the file.
                return condition.lets_through(&crate::datum::Datum::Null);
            };
            // Bounds of another type are in another order, or of another scale.
            let of_column = stats.iter().find(|(name, _)| *name == field.name);
            match of_column {
                Some((_, stats)) if field.data_type.kind == wanted.data_type.kind => {
                    condition.may_pass(stats, entry.file.row_count)
                }
                Some((_, stats)) => {
                    let nulls = ColumnStats {
                        null_count: stats.null_count,
                        ..ColumnStats::unknown()
                    };
                    condition.may_pass(&nulls, entry.file.row_count)
                }
                None => true,
            }
        }))
    }
}
