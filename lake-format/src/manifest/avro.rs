//! Manifest files (paimon: `ManifestFile`, `ManifestEntrySerializer`, `DataFileMetaSerializer`).

use super::{FileKind, ManifestEntry};
use crate::avro::{
    ContainerWriter, Record, put_bytes, put_int, put_long, put_optional, put_str, put_strings,
    read_records,
};
use crate::binary_row::BinaryRow;
use crate::data_file::{DataFileMeta, FileSource};
use crate::error::{Error, Result};
use crate::stats::SimpleStats;

/// The version that every entry of a data manifest carries.
const ENTRY_VERSION: i32 = 2;

/// Names, order and defaults of Paimon 1.3; later fields are left out so that every reader knows
/// all.
const SCHEMA: &str = concat!(
    r#"{"type":"record","name":"record","namespace":"org.apache.paimon.avro.generated","fields":["#,
    r#"{"name":"_VERSION","type":"int"},{"name":"_KIND","type":"int"},{"name":"_PARTITION","type":"bytes"},"#,
    r#"{"name":"_BUCKET","type":"int"},{"name":"_TOTAL_BUCKETS","type":"int"},"#,
    r#"{"name":"_FILE","type":{"type":"record","name":"record__FILE","fields":["#,
    r#"{"name":"_FILE_NAME","type":"string"},{"name":"_FILE_SIZE","type":"long"},"#,
    r#"{"name":"_ROW_COUNT","type":"long"},{"name":"_MIN_KEY","type":"bytes"},{"name":"_MAX_KEY","type":"bytes"},"#,
    r#"{"name":"_KEY_STATS","type":{"type":"record","name":"record__FILE__KEY_STATS","fields":["#,
    r#"{"name":"_MIN_VALUES","type":"bytes"},{"name":"_MAX_VALUES","type":"bytes"},"#,
    r#"{"name":"_NULL_COUNTS","type":["null",{"type":"array","items":["null","long"]}],"default":null}]}},"#,
    r#"{"name":"_VALUE_STATS","type":{"type":"record","name":"record__FILE__VALUE_STATS","fields":["#,
    r#"{"name":"_MIN_VALUES","type":"bytes"},{"name":"_MAX_VALUES","type":"bytes"},"#,
    r#"{"name":"_NULL_COUNTS","type":["null",{"type":"array","items":["null","long"]}],"default":null}]}},"#,
    r#"{"name":"_MIN_SEQUENCE_NUMBER","type":"long"},{"name":"_MAX_SEQUENCE_NUMBER","type":"long"},"#,
    r#"{"name":"_SCHEMA_ID","type":"long"},{"name":"_LEVEL","type":"int"},"#,
    r#"{"name":"_EXTRA_FILES","type":{"type":"array","items":"string"}},"#,
    r#"{"name":"_CREATION_TIME","type":["null",{"type":"long","logicalType":"timestamp-millis"}],"default":null},"#,
    r#"{"name":"_DELETE_ROW_COUNT","type":["null","long"],"default":null},"#,
    r#"{"name":"_EMBEDDED_FILE_INDEX","type":["null","bytes"],"default":null},"#,
    r#"{"name":"_FILE_SOURCE","type":["null","int"],"default":null},"#,
    r#"{"name":"_VALUE_STATS_COLS","type":["null",{"type":"array","items":"string"}],"default":null},"#,
    r#"{"name":"_EXTERNAL_PATH","type":["null","string"],"default":null},"#,
    r#"{"name":"_FIRST_ROW_ID","type":["null","long"],"default":null},"#,
    r#"{"name":"_WRITE_COLS","type":["null",{"type":"array","items":"string"}],"default":null}]}}]}"#,
);

/// The bytes of a manifest file with these entries, in this order.
///
/// # Errors
/// [`Error::Malformed`] if compression fails.
pub fn encode_manifest(entries: &[ManifestEntry]) -> Result<Vec<u8>> {
    let failed = |e: std::io::Error| Error::malformed("manifest", e.to_string());
    let mut writer = ContainerWriter::new(SCHEMA);
    for entry in entries {
        writer.append(|out| put_entry(out, entry)).map_err(failed)?;
    }
    writer.finish().map_err(failed)
}

/// The entries of a manifest file, whoever wrote it.
///
/// # Errors
/// [`Error::Malformed`] if the bytes are no manifest; any bytes give entries or this error.
pub fn decode_manifest(file: &[u8]) -> Result<Vec<ManifestEntry>> {
    let mut entries = Vec::new();
    read_records(file, |record| {
        entries.push(entry_of(&record)?);
        Ok(())
    })?;
    Ok(entries)
}

fn put_entry(out: &mut Vec<u8>, entry: &ManifestEntry) {
    put_int(out, ENTRY_VERSION);
    put_int(out, entry.kind.code());
    put_bytes(out, &entry.partition);
    put_int(out, entry.bucket);
    put_int(out, entry.total_buckets);
    put_file(out, &entry.file);
}

fn put_file(out: &mut Vec<u8>, file: &DataFileMeta) {
    put_str(out, &file.file_name);
    put_long(out, file.file_size);
    put_long(out, file.row_count);
    put_bytes(out, &file.min_key);
    put_bytes(out, &file.max_key);
    put_stats(out, &file.key_stats);
    put_stats(out, &file.value_stats);
    put_long(out, file.min_sequence_number);
    put_long(out, file.max_sequence_number);
    put_long(out, file.schema_id);
    put_int(out, file.level);
    put_strings(out, &file.extra_files);
    put_optional(out, file.creation_time, put_long);
    put_optional(out, file.delete_row_count, put_long);
    put_optional(out, file.embedded_file_index.as_deref(), put_bytes);
    put_optional(out, file.file_source.map(FileSource::code), put_int);
    put_optional(out, file.value_stats_cols.as_deref(), put_strings);
    put_optional(out, file.external_path.as_deref(), put_str);
    put_optional(out, file.first_row_id, put_long);
    put_optional(out, file.write_cols.as_deref(), put_strings);
}

/// Puts a statistics record.
pub(crate) fn put_stats(out: &mut Vec<u8>, stats: &SimpleStats) {
    put_bytes(out, &stats.min);
    put_bytes(out, &stats.max);
    put_optional(out, Some(&stats.null_counts), |out, counts| {
        if !counts.is_empty() {
            put_long(out, i64::try_from(counts.len()).unwrap_or(i64::MAX));
            for count in counts {
                put_optional(out, *count, put_long);
            }
        }
        put_long(out, 0);
    });
}

fn entry_of(record: &Record<'_>) -> Result<ManifestEntry> {
    check_version(record, ENTRY_VERSION)?;
    let kind = FileKind::from_code(record.int("_KIND")?);
    let partition = record.bytes("_PARTITION")?;
    // Here the error still knows which manifest it is about.
    BinaryRow::from_serialized(&partition)?;
    Ok(ManifestEntry {
        kind: kind
            .ok_or_else(|| Error::malformed("manifest", "an entry neither adds nor removes"))?,
        partition,
        bucket: record.int("_BUCKET")?,
        total_buckets: record.int("_TOTAL_BUCKETS")?,
        file: file_of(record.record("_FILE")?)?,
    })
}

fn file_of(record: &Record<'_>) -> Result<DataFileMeta> {
    let source = record.optional_int("_FILE_SOURCE")?;
    let unknown = || Error::malformed("manifest", "an unknown file source");
    Ok(DataFileMeta {
        file_name: record.string("_FILE_NAME")?,
        file_size: record.long("_FILE_SIZE")?,
        row_count: record.long("_ROW_COUNT")?,
        min_key: record.bytes("_MIN_KEY")?,
        max_key: record.bytes("_MAX_KEY")?,
        key_stats: stats_of(record.record("_KEY_STATS")?)?,
        value_stats: stats_of(record.record("_VALUE_STATS")?)?,
        min_sequence_number: record.long("_MIN_SEQUENCE_NUMBER")?,
        max_sequence_number: record.long("_MAX_SEQUENCE_NUMBER")?,
        schema_id: record.long("_SCHEMA_ID")?,
        level: record.int("_LEVEL")?,
        extra_files: record.optional_strings("_EXTRA_FILES")?.unwrap_or_default(),
        creation_time: record.optional_long("_CREATION_TIME")?,
        delete_row_count: record.optional_long("_DELETE_ROW_COUNT")?,
        embedded_file_index: record.optional_bytes("_EMBEDDED_FILE_INDEX")?,
        file_source: source
            .map(|code| FileSource::from_code(code).ok_or_else(unknown))
            .transpose()?,
        value_stats_cols: record.optional_strings("_VALUE_STATS_COLS")?,
        external_path: record.optional_string("_EXTERNAL_PATH")?,
        first_row_id: record.optional_long("_FIRST_ROW_ID")?,
        write_cols: record.optional_strings("_WRITE_COLS")?,
    })
}

/// Reads a statistics record.
pub(crate) fn stats_of(record: &Record<'_>) -> Result<SimpleStats> {
    Ok(SimpleStats {
        min: record.bytes("_MIN_VALUES")?,
        max: record.bytes("_MAX_VALUES")?,
        null_counts: record.longs("_NULL_COUNTS")?,
    })
}

/// Refuses records of another version.
pub(crate) fn check_version(record: &Record<'_>, expected: i32) -> Result<()> {
    let version = record.int("_VERSION")?;
    if version != expected {
        return Err(Error::malformed(
            "manifest",
            format!("version {version} where {expected} is read"),
        ));
    }
    Ok(())
}
