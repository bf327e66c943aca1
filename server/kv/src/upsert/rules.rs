//! How a table treats changes of its keys: what its properties say.

use std::collections::BTreeMap;

use weir_protocol::schema::{Schema, TypeKind};

use super::aggregate::Aggregators;
use crate::error::{Error, Result};

const KV_FORMAT: &str = "table.kv.format";
const MERGE_ENGINE: &str = "table.merge-engine";
const VERSION_COLUMN: &str = "table.merge-engine.versioned.ver-column";
const DELETE_BEHAVIOR: &str = "table.delete.behavior";
const CHANGELOG_IMAGE: &str = "table.changelog.image";

/// The format of rows in values (`table.kv.format`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowFormat {
    /// [`weir_protocol::row::compacted`], the default.
    Compacted,
    /// [`weir_protocol::row::indexed`].
    Indexed,
}

/// Which row wins (`table.merge-engine`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MergeEngine {
    /// The last one; no engine is named.
    LastRow,
    /// The first one stays (`first_row`).
    FirstRow,
    /// The one with the highest version, the later one of equal versions (`versioned`).
    Versioned {
        /// The column that holds the version; null is the lowest.
        column: String,
    },
    /// Each column by a function of its own (`aggregation`).
    Aggregation,
}

/// What a delete does (`table.delete.behavior`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeleteBehavior {
    /// It deletes; the default without a merge engine.
    Allow,
    /// Nothing; the default with one.
    Ignore,
    /// It is an error.
    Disable,
}

/// What an update leaves in the changelog (`table.changelog.image`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangelogImage {
    /// The old row, then the new one; the default.
    Full,
    /// The new row alone.
    Wal,
}

/// How a table treats changes of its keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableRules {
    /// The format of its rows.
    pub format: RowFormat,
    /// Which row wins.
    pub engine: MergeEngine,
    /// What a delete does.
    pub deletes: DeleteBehavior,
    /// What an update leaves in the changelog.
    pub image: ChangelogImage,
}

impl TableRules {
    /// The rules that a table's properties state, checked against each other and its schema.
    /// Facts: fluss `RowMerger`, `TableDescriptorValidation`.
    ///
    /// # Errors
    /// [`Error::TableProperty`] for values that are unknown or contradict each other;
    /// [`Error::AggregateFunction`] for functions that columns do not have.
    pub fn of_properties(properties: &BTreeMap<String, String>, schema: &Schema) -> Result<Self> {
        let get = |name: &str| properties.get(name).map(|value| value.to_ascii_lowercase());
        let wrong = |property, value: Option<String>, reason| Error::TableProperty {
            property,
            value: value.unwrap_or_default(),
            reason,
        };
        let format = match get(KV_FORMAT).as_deref() {
            None | Some("compacted") => RowFormat::Compacted,
            Some("indexed") => RowFormat::Indexed,
            _ => return Err(wrong(KV_FORMAT, get(KV_FORMAT), "is no format of rows")),
        };
        let image = match get(CHANGELOG_IMAGE).as_deref() {
            None | Some("full") => ChangelogImage::Full,
            Some("wal") => ChangelogImage::Wal,
            _ => {
                let value = get(CHANGELOG_IMAGE);
                return Err(wrong(CHANGELOG_IMAGE, value, "is neither full nor wal"));
            }
        };
        let engine = match get(MERGE_ENGINE).as_deref() {
            None => MergeEngine::LastRow,
            Some("first_row") => MergeEngine::FirstRow,
            Some("versioned") => MergeEngine::Versioned {
                column: version_column(properties, schema)?,
            },
            Some("aggregation") if image == ChangelogImage::Wal => {
                let value = get(CHANGELOG_IMAGE);
                let reason = "the aggregation engine needs the image full";
                return Err(wrong(CHANGELOG_IMAGE, value, reason));
            }
            Some("aggregation") => {
                Aggregators::of(schema)?;
                MergeEngine::Aggregation
            }
            _ => {
                let value = get(MERGE_ENGINE);
                return Err(wrong(MERGE_ENGINE, value, "is no merge engine"));
            }
        };
        let deletes = match (get(DELETE_BEHAVIOR).as_deref(), &engine) {
            (None, MergeEngine::LastRow) => DeleteBehavior::Allow,
            (Some("allow"), MergeEngine::LastRow | MergeEngine::Aggregation) => {
                DeleteBehavior::Allow
            }
            (None | Some("ignore"), _) => DeleteBehavior::Ignore,
            (Some("disable"), _) => DeleteBehavior::Disable,
            (Some("allow"), _) => {
                let value = get(DELETE_BEHAVIOR);
                let reason = "the table's merge engine takes no deletes";
                return Err(wrong(DELETE_BEHAVIOR, value, reason));
            }
            _ => {
                let value = get(DELETE_BEHAVIOR);
                let reason = "is none of allow, ignore, disable";
                return Err(wrong(DELETE_BEHAVIOR, value, reason));
            }
        };
        Ok(Self {
            format,
            engine,
            deletes,
            image,
        })
    }
}

fn version_column(properties: &BTreeMap<String, String>, schema: &Schema) -> Result<String> {
    let name = properties.get(VERSION_COLUMN).cloned().unwrap_or_default();
    let wrong = |reason| Error::TableProperty {
        property: VERSION_COLUMN,
        value: name.clone(),
        reason,
    };
    if name.is_empty() {
        return Err(wrong("the versioned merge engine needs it"));
    }
    let column = schema.column(&name).ok_or_else(|| wrong("is no column"))?;
    match column.ty.kind {
        TypeKind::Int
        | TypeKind::BigInt
        | TypeKind::Timestamp { .. }
        | TypeKind::TimestampLtz { .. } => Ok(name),
        _ => Err(wrong(
            "is not of type INT, BIGINT, TIMESTAMP or TIMESTAMP_LTZ",
        )),
    }
}
