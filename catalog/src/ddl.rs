//! What may be created and altered, as pure functions from documents to documents.
//!
//! Nothing here reads or writes: the facade reads, decides with these functions, and commits.
//! Rules and their order follow the reference's `TableDescriptorValidation` and `MetadataManager`.

mod alter;
mod create;
pub mod names;
mod partition;
pub mod properties;
mod rescale;

pub use alter::{Altered, ColumnPosition, TableChange, alter};
pub use create::complete;
pub use partition::{check_partition, ordered_spec};
pub use rescale::{Counted, Rescale, rescale};

/// What a cluster allows, and what it fills in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Buckets of a table that names none.
    pub default_bucket_count: i32,
    /// Most buckets of a table or partition.
    pub max_bucket_count: i32,
    /// Most partitions of a table.
    pub max_partition_count: usize,
    /// Replicas of a table that names no number.
    pub default_replication_factor: i32,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            default_bucket_count: 1,
            max_bucket_count: 4096,
            max_partition_count: 1000,
            default_replication_factor: 1,
        }
    }
}

/// Columns that engines add to what they read; no table may have one of these names.
pub const SYSTEM_COLUMNS: [&str; 6] = [
    "__offset",
    "__timestamp",
    "__bucket",
    "_change_type",
    "_log_offset",
    "_commit_timestamp",
];

#[cfg(test)]
mod tests;
