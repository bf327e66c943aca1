//! A partition.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use weir_protocol::ids::{PartitionId, TableId, TotalBuckets};

use super::{Document, Unknown};

/// The document of a partition.
///
/// Version 2 adds `bucket_count`, which a version-1 document lacks. The name `bucket_count_actual`
/// of an earlier draft is read too.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Partition {
    /// The table it belongs to.
    pub table_id: TableId,
    /// The id.
    pub partition_id: PartitionId,
    /// Its own number of buckets, for ever; `None` in version 1 only.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub bucket_count: Option<TotalBuckets>,
    /// Where its remote files live, if not at the default.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub remote_data_dir: Option<String>,
    /// Fields we don't know.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// The partition of a table that was made last, version 1: our own document, beside what else is
/// kept by the table's id. Whoever drops a table learns by it that a partition came meanwhile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LastPartition {
    /// The partition.
    pub partition_id: PartitionId,
    /// Fields we don't know.
    #[serde(flatten)]
    pub unknown: Unknown,
}

impl Document for LastPartition {
    const VERSION: i64 = 1;
}

impl Document for Partition {
    const VERSION: i64 = 2;

    fn upgrade(_version: i64, fields: &mut Map<String, Value>) -> Result<(), String> {
        if let Some(count) = fields.remove("bucket_count_actual") {
            fields.entry("bucket_count").or_insert(count);
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        match self.bucket_count {
            Some(count) if count.0 < 1 => Err(format!("its bucket count is {count}")),
            _ => Ok(()),
        }
    }
}
