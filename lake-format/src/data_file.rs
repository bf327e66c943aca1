//! What manifests say of a data file.

use crate::binary_row::BinaryRow;
use crate::stats::SimpleStats;

/// How a file came to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileSource {
    /// Written with new rows.
    Append,
    /// Made of other files by compaction.
    Compact,
}

impl FileSource {
    /// The number in manifests.
    pub fn code(self) -> i32 {
        match self {
            Self::Append => 0,
            Self::Compact => 1,
        }
    }

    /// The source of a number in manifests.
    pub fn from_code(code: i32) -> Option<Self> {
        match code {
            0 => Some(Self::Append),
            1 => Some(Self::Compact),
            _ => None,
        }
    }
}

/// One data file (paimon: `DataFileMeta`, fields 0 to 19 of `_FILE`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataFileMeta {
    /// Name within the folder of its bucket.
    pub file_name: String,
    /// Exact size in bytes.
    pub file_size: i64,
    /// Rows, retractions included.
    pub row_count: i64,
    /// First trimmed primary key, a serialized binary row; the empty row in append tables.
    pub min_key: Vec<u8>,
    /// Last trimmed primary key, likewise.
    pub max_key: Vec<u8>,
    /// Statistics of the key columns; empty in append tables.
    pub key_stats: SimpleStats,
    /// Statistics of the columns that `value_stats_cols` names.
    pub value_stats: SimpleStats,
    /// Lowest sequence number in it.
    pub min_sequence_number: i64,
    /// Highest sequence number in it, inclusive.
    pub max_sequence_number: i64,
    /// The schema whose columns it has.
    pub schema_id: i64,
    /// Level in the merge tree; 0 in append tables.
    pub level: i32,
    /// Files beside it, such as its index.
    pub extra_files: Vec<String>,
    /// When it was written: milliseconds of the writer's local clock, as if that were UTC.
    pub creation_time: Option<i64>,
    /// Rows that retract.
    pub delete_row_count: Option<i64>,
    /// A small file index kept in the manifest.
    pub embedded_file_index: Option<Vec<u8>>,
    /// How it came to be.
    pub file_source: Option<FileSource>,
    /// The columns of `value_stats`; `None` for all columns of its schema (or of `write_cols`).
    pub value_stats_cols: Option<Vec<String>>,
    /// The whole path, if it is kept outside the table.
    pub external_path: Option<String>,
    /// The id of its first row, with row tracking.
    pub first_row_id: Option<i64>,
    /// The columns it holds; `None` for all of its schema.
    pub write_cols: Option<Vec<String>>,
}

impl DataFileMeta {
    /// An append file of level 0 with neither keys nor statistics; the other fields are to be
    /// filled.
    pub fn append(
        file_name: impl Into<String>,
        file_size: i64,
        row_count: i64,
        schema_id: i64,
    ) -> Self {
        let no_key = BinaryRow::empty().to_serialized();
        Self {
            file_name: file_name.into(),
            file_size,
            row_count,
            min_key: no_key.clone(),
            max_key: no_key,
            key_stats: SimpleStats::empty(),
            value_stats: SimpleStats::empty(),
            min_sequence_number: 0,
            max_sequence_number: (row_count - 1).max(0),
            schema_id,
            level: 0,
            extra_files: Vec::new(),
            creation_time: None,
            delete_row_count: Some(0),
            embedded_file_index: None,
            file_source: Some(FileSource::Append),
            value_stats_cols: Some(Vec::new()),
            external_path: None,
            first_row_id: None,
            write_cols: None,
        }
    }
}
