//! A table.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use weir_protocol::ids::{TableId, TotalBuckets};

use super::{Document, Unknown};

/// The document of a table: everything but its schema.
///
/// Version 2 adds `bucket_layout_epoch`; version 1 stands for epoch 0. The name
/// `bucket_count_epoch` of the released wire format is read too.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// The id.
    pub table_id: TableId,
    /// What its owner says about it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub comment: Option<String>,
    /// Columns it is partitioned by, in order; empty if it isn't.
    #[serde(
        rename = "partition_key",
        skip_serializing_if = "Vec::is_empty",
        default
    )]
    pub partition_keys: Vec<String>,
    /// Columns whose hash chooses the bucket; empty if any bucket will do.
    #[serde(rename = "bucket_key", skip_serializing_if = "Vec::is_empty", default)]
    pub bucket_keys: Vec<String>,
    /// Buckets of an unpartitioned table; of a partitioned one the count that a *new* partition
    /// copies.
    pub bucket_count: TotalBuckets,
    /// How often `bucket_count` was altered. Above 0 a partition without a count of its own is an
    /// error.
    #[serde(default)]
    pub bucket_layout_epoch: i64,
    /// The properties that the server knows.
    #[serde(default)]
    pub properties: BTreeMap<String, String>,
    /// The owner's own properties.
    #[serde(default)]
    pub custom_properties: BTreeMap<String, String>,
    /// Where its remote files live, if not at the default.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub remote_data_dir: Option<String>,
    /// When it was created, in milliseconds since 1970 UTC.
    pub created_time: i64,
    /// When it was changed last, in milliseconds since 1970 UTC.
    pub modified_time: i64,
    /// Fields we don't know.
    #[serde(flatten)]
    pub unknown: Unknown,
}

impl Table {
    /// Whether it has partitions.
    pub fn is_partitioned(&self) -> bool {
        !self.partition_keys.is_empty()
    }
}

impl Document for Table {
    const VERSION: i64 = 2;

    fn upgrade(_version: i64, fields: &mut Map<String, Value>) -> Result<(), String> {
        if let Some(epoch) = fields.remove("bucket_count_epoch") {
            fields.entry("bucket_layout_epoch").or_insert(epoch);
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        if self.bucket_count.0 < 1 {
            return Err(format!("its bucket count is {}", self.bucket_count));
        }
        if self.bucket_layout_epoch < 0 {
            return Err(format!(
                "its bucket layout epoch is {}",
                self.bucket_layout_epoch
            ));
        }
        Ok(())
    }
}
