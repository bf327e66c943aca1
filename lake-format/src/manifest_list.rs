//! Manifest lists: which manifests make up a snapshot, and what they cover.

use crate::avro::{
    ContainerWriter, Record, put_int, put_long, put_optional, put_str, read_records,
};
use crate::error::{Error, Result};
use crate::manifest::avro::{check_version, put_stats, stats_of};
use crate::manifest::{FileKind, ManifestEntry};
use crate::schema::TableSchema;
use crate::stats::{ColumnStats, SimpleStats};
use crate::types::DataType;

/// The version that every record of a manifest list carries.
const LIST_VERSION: i32 = 2;

/// Names, order and defaults of Paimon 1.3.
const SCHEMA: &str = concat!(
    r#"{"type":"record","name":"record","namespace":"org.apache.paimon.avro.generated","fields":["#,
    r#"{"name":"_VERSION","type":"int"},{"name":"_FILE_NAME","type":"string"},"#,
    r#"{"name":"_FILE_SIZE","type":"long"},{"name":"_NUM_ADDED_FILES","type":"long"},"#,
    r#"{"name":"_NUM_DELETED_FILES","type":"long"},"#,
    r#"{"name":"_PARTITION_STATS","type":{"type":"record","name":"record__PARTITION_STATS","fields":["#,
    r#"{"name":"_MIN_VALUES","type":"bytes"},{"name":"_MAX_VALUES","type":"bytes"},"#,
    r#"{"name":"_NULL_COUNTS","type":["null",{"type":"array","items":["null","long"]}],"default":null}]}},"#,
    r#"{"name":"_SCHEMA_ID","type":"long"},{"name":"_MIN_BUCKET","type":["null","int"],"default":null},"#,
    r#"{"name":"_MAX_BUCKET","type":["null","int"],"default":null},"#,
    r#"{"name":"_MIN_LEVEL","type":["null","int"],"default":null},"#,
    r#"{"name":"_MAX_LEVEL","type":["null","int"],"default":null}]}"#,
);

/// One manifest of a snapshot (paimon: `ManifestFileMeta`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestFileMeta {
    /// Name within `manifest/`.
    pub file_name: String,
    /// Exact size in bytes.
    pub file_size: i64,
    /// Entries that add a file.
    pub num_added_files: i64,
    /// Entries that remove a file.
    pub num_deleted_files: i64,
    /// Bounds of each partition column over all entries, never cut.
    pub partition_stats: SimpleStats,
    /// The latest schema when it was written.
    pub schema_id: i64,
    /// Lowest bucket, if known.
    pub min_bucket: Option<i32>,
    /// Highest bucket, if known.
    pub max_bucket: Option<i32>,
    /// Lowest level, if known.
    pub min_level: Option<i32>,
    /// Highest level, if known.
    pub max_level: Option<i32>,
}

impl ManifestFileMeta {
    /// Describes a manifest file of `entries` in a table of `schema`.
    ///
    /// # Errors
    /// [`Error::Malformed`] if an entry's partition is not one of the table.
    pub fn describe(
        file_name: impl Into<String>,
        file_size: i64,
        entries: &[ManifestEntry],
        schema: &TableSchema,
    ) -> Result<Self> {
        let added = entries
            .iter()
            .filter(|entry| entry.kind == FileKind::Add)
            .count();
        let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        Ok(Self {
            file_name: file_name.into(),
            file_size,
            num_added_files: count(added),
            num_deleted_files: count(entries.len() - added),
            partition_stats: partition_stats(entries, schema)?,
            schema_id: schema.id,
            min_bucket: entries.iter().map(|entry| entry.bucket).min(),
            max_bucket: entries.iter().map(|entry| entry.bucket).max(),
            min_level: entries.iter().map(|entry| entry.file.level).min(),
            max_level: entries.iter().map(|entry| entry.file.level).max(),
        })
    }
}

/// Bounds and null counts of the partition columns over all entries.
fn partition_stats(entries: &[ManifestEntry], schema: &TableSchema) -> Result<SimpleStats> {
    let fields = schema.partition_fields()?;
    let types: Vec<&DataType> = fields.iter().map(|field| &field.data_type).collect();
    let mut columns: Vec<ColumnStats> = types
        .iter()
        .map(|_| ColumnStats {
            null_count: Some(0),
            ..ColumnStats::unknown()
        })
        .collect();
    let mut last: Option<&[u8]> = None;
    let mut values = Vec::new();
    for entry in entries {
        // Entries come in runs of one partition: decode each run once.
        if last != Some(entry.partition.as_slice()) {
            let row = crate::binary_row::BinaryRow::from_serialized(&entry.partition)?;
            values = row.decode(types.iter().copied())?;
            last = Some(&entry.partition);
        }
        for (column, value) in columns.iter_mut().zip(&values) {
            column.include(value);
        }
    }
    SimpleStats::encode(&columns, types.iter().copied())
}

/// The bytes of a manifest list.
///
/// # Errors
/// [`Error::Malformed`] if compression fails.
pub fn encode_manifest_list(manifests: &[ManifestFileMeta]) -> Result<Vec<u8>> {
    let failed = |e: std::io::Error| Error::malformed("manifest list", e.to_string());
    let mut writer = ContainerWriter::new(SCHEMA);
    for manifest in manifests {
        writer
            .append(|out| put_manifest(out, manifest))
            .map_err(failed)?;
    }
    writer.finish().map_err(failed)
}

/// The manifests of a manifest list, whoever wrote it.
///
/// # Errors
/// [`Error::Malformed`] if the bytes are no manifest list; any bytes give a list or this error.
pub fn decode_manifest_list(file: &[u8]) -> Result<Vec<ManifestFileMeta>> {
    let mut manifests = Vec::new();
    read_records(file, |record| {
        manifests.push(manifest_of(&record)?);
        Ok(())
    })?;
    Ok(manifests)
}

fn put_manifest(out: &mut Vec<u8>, manifest: &ManifestFileMeta) {
    put_int(out, LIST_VERSION);
    put_str(out, &manifest.file_name);
    put_long(out, manifest.file_size);
    put_long(out, manifest.num_added_files);
    put_long(out, manifest.num_deleted_files);
    put_stats(out, &manifest.partition_stats);
    put_long(out, manifest.schema_id);
    put_optional(out, manifest.min_bucket, put_int);
    put_optional(out, manifest.max_bucket, put_int);
    put_optional(out, manifest.min_level, put_int);
    put_optional(out, manifest.max_level, put_int);
}

fn manifest_of(record: &Record<'_>) -> Result<ManifestFileMeta> {
    check_version(record, LIST_VERSION)?;
    Ok(ManifestFileMeta {
        file_name: record.string("_FILE_NAME")?,
        file_size: record.long("_FILE_SIZE")?,
        num_added_files: record.long("_NUM_ADDED_FILES")?,
        num_deleted_files: record.long("_NUM_DELETED_FILES")?,
        partition_stats: stats_of(record.record("_PARTITION_STATS")?)?,
        schema_id: record.long("_SCHEMA_ID")?,
        min_bucket: record.optional_int("_MIN_BUCKET")?,
        max_bucket: record.optional_int("_MAX_BUCKET")?,
        min_level: record.optional_int("_MIN_LEVEL")?,
        max_level: record.optional_int("_MAX_LEVEL")?,
    })
}
