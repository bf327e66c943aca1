//! Table and database descriptors: what a client asks for and what a server answers (`table_json`,
//! `database_json`).
//!
//! Source: fluss `TableDescriptorJsonSerde`, `DatabaseDescriptorJsonSerde`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::schema::{Schema, SchemaDocument};

/// A table as defined by its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableDescriptor {
    /// Columns and primary key.
    pub schema: Schema,
    /// A comment.
    pub comment: Option<String>,
    /// Partition columns, in order; empty for a table without partitions.
    pub partition_keys: Vec<String>,
    /// Columns that choose the bucket. May be empty: the client chooses (log table) or the server
    /// fills the default.
    pub bucket_keys: Vec<String>,
    /// How many buckets the table (or each new partition) has; filled by the server if absent.
    pub bucket_count: Option<i32>,
    /// Properties that Fluss knows, `table.*`.
    pub properties: BTreeMap<String, String>,
    /// All others.
    pub custom_properties: BTreeMap<String, String>,
}

/// A database as defined by its owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DatabaseDescriptor {
    /// A comment.
    pub comment: Option<String>,
    /// Free properties.
    pub custom_properties: BTreeMap<String, String>,
}

#[derive(Serialize, Deserialize)]
struct TableDocument {
    version: i32,
    schema: SchemaDocument,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    comment: Option<String>,
    #[serde(default)]
    partition_key: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bucket_key: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bucket_count: Option<i32>,
    #[serde(default, deserialize_with = "crate::schema::texts")]
    properties: BTreeMap<String, String>,
    #[serde(default, deserialize_with = "crate::schema::texts")]
    custom_properties: BTreeMap<String, String>,
}

#[derive(Serialize, Deserialize)]
struct DatabaseDocument {
    version: i32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    comment: Option<String>,
    #[serde(default, deserialize_with = "crate::schema::texts")]
    custom_properties: BTreeMap<String, String>,
}

impl TableDescriptor {
    /// A table of this schema without partitions, buckets and properties.
    pub fn new(schema: Schema) -> Self {
        Self {
            schema,
            comment: None,
            partition_keys: Vec::new(),
            bucket_keys: Vec::new(),
            bucket_count: None,
            properties: BTreeMap::new(),
            custom_properties: BTreeMap::new(),
        }
    }

    /// Reads a `table_json` document.
    ///
    /// # Errors
    /// [`Error::Json`] for a wrong form, [`Error::Invalid`] for a bad schema, a version other than
    /// 1, a partition or bucket key that is no column, or a bucket count below 1.
    pub fn from_json(json: &[u8]) -> Result<Self> {
        let document: TableDocument =
            serde_json::from_slice(json).map_err(|source| Error::Json {
                document: "table descriptor",
                source,
            })?;
        check_version("table descriptor", document.version)?;
        let descriptor = Self {
            schema: document.schema.try_into()?,
            comment: document.comment,
            partition_keys: document.partition_key,
            bucket_keys: document.bucket_key.unwrap_or_default(),
            bucket_count: document.bucket_count,
            properties: document.properties,
            custom_properties: document.custom_properties,
        };
        for name in descriptor
            .partition_keys
            .iter()
            .chain(&descriptor.bucket_keys)
        {
            if descriptor.schema.column_index(name).is_none() {
                return Err(Error::invalid(
                    "table descriptor",
                    name.as_str(),
                    "key column is missing",
                ));
            }
        }
        if let Some(count) = descriptor.bucket_count.filter(|count| *count < 1) {
            return Err(Error::invalid(
                "table descriptor",
                count.to_string(),
                "bucket count must be at least 1",
            ));
        }
        Ok(descriptor)
    }

    /// The `table_json` document. `bucket_key` is written as soon as there is a key or a count, as
    /// readers ask.
    pub fn to_json(&self) -> Vec<u8> {
        let distributed = self.bucket_count.is_some() || !self.bucket_keys.is_empty();
        crate::schema::to_bytes(&TableDocument {
            version: 1,
            schema: (&self.schema).into(),
            comment: self.comment.clone(),
            partition_key: self.partition_keys.clone(),
            bucket_key: distributed.then(|| self.bucket_keys.clone()),
            bucket_count: self.bucket_count,
            properties: self.properties.clone(),
            custom_properties: self.custom_properties.clone(),
        })
    }

    /// Whether the table has partitions.
    pub fn is_partitioned(&self) -> bool {
        !self.partition_keys.is_empty()
    }

    /// The primary key without partition columns, in key order: what identifies a row inside a
    /// partition.
    pub fn physical_primary_key(&self) -> Vec<String> {
        let physical = |name: &&String| !self.partition_keys.contains(name);
        self.schema
            .primary_key
            .iter()
            .filter(physical)
            .cloned()
            .collect()
    }
}

impl DatabaseDescriptor {
    /// Reads a `database_json` document.
    ///
    /// # Errors
    /// [`Error::Json`] for a wrong form, [`Error::Invalid`] for a version other than 1.
    pub fn from_json(json: &[u8]) -> Result<Self> {
        let document: DatabaseDocument =
            serde_json::from_slice(json).map_err(|source| Error::Json {
                document: "database descriptor",
                source,
            })?;
        check_version("database descriptor", document.version)?;
        Ok(Self {
            comment: document.comment,
            custom_properties: document.custom_properties,
        })
    }

    /// The `database_json` document.
    pub fn to_json(&self) -> Vec<u8> {
        crate::schema::to_bytes(&DatabaseDocument {
            version: 1,
            comment: self.comment.clone(),
            custom_properties: self.custom_properties.clone(),
        })
    }
}

fn check_version(document: &'static str, version: i32) -> Result<()> {
    if version == 1 {
        return Ok(());
    }
    Err(Error::invalid(
        document,
        version.to_string(),
        "document version is not 1",
    ))
}

#[cfg(test)]
mod tests;
