//! A database.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Document, Unknown};

/// The document of a database, version 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Database {
    /// What its owner says about it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub comment: Option<String>,
    /// The owner's own properties.
    #[serde(default)]
    pub custom_properties: BTreeMap<String, String>,
    /// When it was created, in milliseconds since 1970 UTC.
    pub created_time: i64,
    /// When it was changed last, in milliseconds since 1970 UTC.
    pub modified_time: i64,
    /// Fields we don't know.
    #[serde(flatten)]
    pub unknown: Unknown,
}

impl Document for Database {
    const VERSION: i64 = 1;
}
