//! Snapshots: the versions of a table, one JSON file each.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The version of snapshot files that is written.
pub const SNAPSHOT_VERSION: i32 = 3;

/// The identifier that batch jobs commit under.
pub const BATCH_COMMIT_IDENTIFIER: i64 = i64::MAX;

/// Why a snapshot was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum CommitKind {
    /// Files were added.
    Append,
    /// Files were replaced by others with the same rows.
    Compact,
    /// Files were removed, or removed and added.
    Overwrite,
    /// Statistics were collected.
    Analyze,
}

/// One version of a table, as `snapshot/snapshot-N` holds it. Unknown fields are ignored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    /// The version of the file's format.
    #[serde(default = "first_version")]
    pub version: i32,
    /// Its number, from 1.
    pub id: i64,
    /// The latest schema at its commit.
    pub schema_id: i64,
    /// Lists the manifests of all before this commit.
    pub base_manifest_list: String,
    /// Its size in bytes; absent in older files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_manifest_list_size: Option<i64>,
    /// Lists the manifests of this commit's changes.
    pub delta_manifest_list: String,
    /// Its size in bytes; absent in older files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delta_manifest_list_size: Option<i64>,
    /// Lists the manifests of this commit's changelog files.
    #[serde(default)]
    pub changelog_manifest_list: Option<String>,
    /// Its size in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changelog_manifest_list_size: Option<i64>,
    /// Names all index files of the table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index_manifest: Option<String>,
    /// The job that wrote it.
    pub commit_user: String,
    /// The job's number of the commit; it does not go down.
    pub commit_identifier: i64,
    /// Why it was made.
    pub commit_kind: CommitKind,
    /// When, in milliseconds since 1970.
    pub time_millis: i64,
    /// Rows of all live files.
    #[serde(default)]
    pub total_record_count: i64,
    /// Rows added less rows removed by this commit.
    #[serde(default)]
    pub delta_record_count: i64,
    /// Rows of this commit's changelog files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changelog_record_count: Option<i64>,
    /// The watermark in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watermark: Option<i64>,
    /// The file of the table's statistics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub statistics: Option<String>,
    /// What writers note down; the offsets of tiering are here.
    #[serde(default, skip_serializing_if = "is_none_or_empty")]
    pub properties: Option<BTreeMap<String, String>>,
    /// The next row id, with row tracking.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_row_id: Option<i64>,
}

fn first_version() -> i32 {
    1
}

#[expect(clippy::ref_option, reason = "the form that serde calls")]
fn is_none_or_empty(properties: &Option<BTreeMap<String, String>>) -> bool {
    properties.as_ref().is_none_or(BTreeMap::is_empty)
}

impl Snapshot {
    /// Reads a snapshot file.
    ///
    /// # Errors
    /// [`Error::Malformed`] if it is no snapshot, [`Error::Unsupported`] if a newer version wrote
    /// it.
    pub fn from_json(json: &[u8]) -> Result<Self> {
        let parsed: Self = serde_json::from_slice(json)
            .map_err(|e| Error::malformed("snapshot", e.to_string()))?;
        if parsed.version > SNAPSHOT_VERSION {
            return Err(Error::Unsupported {
                what: format!("snapshot version {}", parsed.version),
                reason: format!("versions up to {SNAPSHOT_VERSION} are read"),
            });
        }
        Ok(parsed)
    }

    /// The bytes of a snapshot file.
    ///
    /// # Errors
    /// Never in practice: the parts all have a JSON form.
    pub fn to_json(&self) -> Result<Vec<u8>> {
        serde_json::to_vec_pretty(self).map_err(|e| Error::malformed("snapshot", e.to_string()))
    }

    /// What a writer noted down under `name`.
    pub fn property(&self, name: &str) -> Option<&str> {
        self.properties.as_ref()?.get(name).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JAVA: &str = r#"{"version":3,"id":2,"schemaId":0,"baseManifestList":"manifest-list-a-2",
        "baseManifestListSize":986,"deltaManifestList":"manifest-list-a-3","deltaManifestListSize":984,
        "changelogManifestList":null,"commitUser":"u","commitIdentifier":1,"commitKind":"APPEND",
        "timeMillis":1796018556859,"logOffsets":{},"totalRecordCount":6,"deltaRecordCount":3,
        "changelogRecordCount":0,"nextRowId":0}"#;

    #[test]
    fn a_snapshot_of_java_reads_as_it_says() {
        let snapshot = Snapshot::from_json(JAVA.as_bytes()).unwrap();
        assert_eq!((snapshot.id, snapshot.total_record_count), (2, 6));
        assert_eq!(snapshot.commit_kind, CommitKind::Append);
    }

    #[test]
    fn an_unknown_commit_kind_is_an_error() {
        let json = JAVA.replace("APPEND", "MAGIC");
        assert!(matches!(
            Snapshot::from_json(json.as_bytes()),
            Err(Error::Malformed { .. })
        ));
    }

    #[test]
    fn properties_are_left_out_when_there_are_none() {
        let mut snapshot = Snapshot::from_json(JAVA.as_bytes()).unwrap();
        snapshot.properties = Some(BTreeMap::new());
        assert!(
            !String::from_utf8(snapshot.to_json().unwrap())
                .unwrap()
                .contains("properties")
        );
    }
}
