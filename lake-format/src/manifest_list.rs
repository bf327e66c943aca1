//! Manifest lists: which manifests make up a snapshot, and what they cover.

use crate::stats::SimpleStats;

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
