//! Which lake snapshots a table has: a pointer to offsets files, bounded.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use weir_protocol::ids::{BucketId, LogOffset, PartitionId, TableId};

use super::lake_offsets::LakeOffsets;
use super::{Document, Unknown};

/// Most snapshots that the document keeps: the newest.
pub const MAX_SNAPSHOTS: usize = 64;
/// Position in the history that says: keep everything.
pub const KEEP_ALL: i64 = -1;

/// The lake snapshots of a table, oldest first.
///
/// Version 2 names offsets files. Version 1 held one snapshot with all offsets inline, see
/// [`LakeSnapshot::inline`].
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct LakeTable {
    /// The snapshots; the last is the current one.
    pub lake_snapshots: Vec<LakeSnapshot>,
    /// Fields we don't know.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// One lake snapshot that was committed to the coordinator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LakeSnapshot {
    /// The lake's own number of it.
    pub snapshot_id: i64,
    /// The file with the offsets it holds rows up to.
    pub tiered_offsets: String,
    /// The file with the offsets it can be read up to, if known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub readable_offsets: Option<String>,
    /// The offsets themselves, in a document of version 1; [`Self::tiered_offsets`] is empty then.
    #[serde(rename = "x_inline", skip_serializing, default)]
    pub inline: Option<LakeOffsets>,
    /// Fields we don't know.
    #[serde(flatten)]
    pub unknown: Unknown,
}

impl LakeSnapshot {
    /// A snapshot whose offsets are in a file.
    pub fn new(snapshot_id: i64, tiered_offsets: String, readable_offsets: Option<String>) -> Self {
        let unknown = Unknown::new();
        Self {
            snapshot_id,
            tiered_offsets,
            readable_offsets,
            inline: None,
            unknown,
        }
    }

    /// The URIs of its offsets files.
    fn uris(&self) -> impl Iterator<Item = &str> {
        let tiered = Some(self.tiered_offsets.as_str()).filter(|uri| !uri.is_empty());
        tiered.into_iter().chain(self.readable_offsets.as_deref())
    }
}

impl LakeTable {
    /// The current snapshot.
    pub fn latest(&self) -> Option<&LakeSnapshot> {
        self.lake_snapshots.last()
    }

    /// The newest snapshot that is known to be readable; one of version 1 always is.
    pub fn latest_readable(&self) -> Option<&LakeSnapshot> {
        let readable = |s: &&LakeSnapshot| s.readable_offsets.is_some() || s.inline.is_some();
        self.lake_snapshots.iter().rev().find(readable)
    }

    /// The snapshot with this lake id.
    pub fn find(&self, snapshot_id: i64) -> Option<&LakeSnapshot> {
        self.lake_snapshots
            .iter()
            .rev()
            .find(|snapshot| snapshot.snapshot_id == snapshot_id)
    }

    /// The document with `snapshot` as the current one, and the URIs of the offsets files that this
    /// document names and that one does not.
    ///
    /// * `earliest_to_keep`: `None` keeps only the new one; an id that stands in the history keeps
    ///   from there on, by position; [`KEEP_ALL`] and unknown ids keep all. Never more than
    ///   [`MAX_SNAPSHOTS`].
    /// * A snapshot that stands last already with the same id is replaced.
    pub fn with(
        &self,
        snapshot: LakeSnapshot,
        earliest_to_keep: Option<i64>,
    ) -> (Self, BTreeSet<String>) {
        let mut kept = self.lake_snapshots.clone();
        kept.retain(|old| old.inline.is_none() && old.snapshot_id != snapshot.snapshot_id);
        let first_kept = match earliest_to_keep {
            None => kept.len(),
            Some(id) => kept
                .iter()
                .position(|old| old.snapshot_id == id)
                .unwrap_or(0),
        };
        kept.drain(..first_kept);
        kept.push(snapshot);
        let excess = kept.len().saturating_sub(MAX_SNAPSHOTS);
        kept.drain(..excess);
        let next = Self {
            lake_snapshots: kept,
            unknown: self.unknown.clone(),
        };
        let unnamed = self.uris().filter(|uri| !next.names(uri));
        let unnamed = unnamed.map(str::to_owned).collect();
        (next, unnamed)
    }

    /// Whether one of the snapshots names this offsets file.
    pub fn names(&self, uri: &str) -> bool {
        let uri = normalized(uri);
        self.uris().any(|named| normalized(named) == uri)
    }

    /// The URIs of all offsets files, one of several snapshots as often as it is named.
    fn uris(&self) -> impl Iterator<Item = &str> {
        self.lake_snapshots.iter().flat_map(LakeSnapshot::uris)
    }
}

/// A URI as all ways to write it end: `file:///x` is `file:/x`.
pub(crate) fn normalized(uri: &str) -> String {
    match uri.strip_prefix("file:///") {
        Some(rest) => format!("file:/{rest}"),
        None => uri.to_owned(),
    }
}

impl Document for LakeTable {
    const VERSION: i64 = 2;

    fn upgrade(version: i64, fields: &mut Map<String, Value>) -> Result<(), String> {
        if version >= 2 {
            return Ok(());
        }
        let fields_of_v1 = Value::Object(std::mem::take(fields));
        let old: VersionOne =
            serde_json::from_value(fields_of_v1).map_err(|error| error.to_string())?;
        let offsets = old.offsets().map(|offsets| offsets.encode());
        let inline = match offsets {
            Some(Ok(bytes)) => serde_json::from_slice(&bytes).map_err(|error| error.to_string())?,
            Some(Err(error)) => return Err(error.to_string()),
            None => Value::Null,
        };
        let snapshot = serde_json::json!({
            "snapshot_id": old.snapshot_id, "tiered_offsets": "", "x_inline": inline,
        });
        fields.insert("lake_snapshots".to_owned(), Value::Array(vec![snapshot]));
        Ok(())
    }
}

/// The document of version 1.
#[derive(Deserialize)]
struct VersionOne {
    snapshot_id: i64,
    /// Missing if no bucket is named.
    table_id: Option<TableId>,
    buckets: Vec<VersionOneBucket>,
}

#[derive(Deserialize)]
struct VersionOneBucket {
    partition_id: Option<PartitionId>,
    bucket_id: BucketId,
    log_end_offset: Option<LogOffset>,
}

impl VersionOne {
    fn offsets(&self) -> Option<LakeOffsets> {
        let mut offsets = LakeOffsets::new(self.table_id?);
        for bucket in &self.buckets {
            if let Some(end) = bucket.log_end_offset {
                offsets
                    .end_offsets
                    .insert((bucket.partition_id, bucket.bucket_id), end);
            }
        }
        Some(offsets)
    }
}
