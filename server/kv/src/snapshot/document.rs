//! What a snapshot consists of, as a document.

use serde::{Deserialize, Serialize};
use weir_protocol::ids::{LogOffset, TableBucket};

use crate::error::{Error, Result};
use crate::state::Position;

/// The newest version that is written and read.
const VERSION: u32 = 1;

/// A snapshot: whose, how far, and which files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    version: u32,
    bucket: TableBucket,
    /// Its id, unique in the bucket.
    pub id: u64,
    flushed_offset: LogOffset,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    row_count: Option<u64>,
    /// Its files.
    pub files: Vec<SnapshotFile>,
    /// Bytes that were sent for it; the rest was there.
    pub sent_bytes: u64,
}

/// A file of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotFile {
    /// Its name in the bucket's directory.
    pub name: String,
    /// Where it is, below the bucket's folder.
    pub remote: String,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// The CRC-32C of its bytes.
    pub crc32c: u32,
}

impl Snapshot {
    pub(super) fn new(bucket: TableBucket, id: u64, position: Position) -> Self {
        Self {
            version: VERSION,
            bucket,
            id,
            flushed_offset: position.flushed_offset,
            row_count: position.row_count,
            files: Vec::new(),
            sent_bytes: 0,
        }
    }

    /// Whose state it is.
    pub fn bucket(&self) -> TableBucket {
        self.bucket
    }

    /// The position it was taken at: the log from there on is to be applied to it.
    pub fn position(&self) -> Position {
        Position {
            flushed_offset: self.flushed_offset,
            row_count: self.row_count,
        }
    }

    /// A file of this snapshot with the same name and bytes.
    pub(super) fn same_file(&self, file: &SnapshotFile) -> Option<&SnapshotFile> {
        self.files.iter().find(|own| {
            own.name == file.name && own.size_bytes == file.size_bytes && own.crc32c == file.crc32c
        })
    }

    pub(super) fn to_json(&self) -> Result<Vec<u8>> {
        serde_json::to_vec_pretty(self).map_err(|error| corrupt("snapshot", error.to_string()))
    }

    pub(super) fn from_json(bytes: &[u8], path: &str) -> Result<Self> {
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let failed = |error: serde_json::Error| corrupt(path, error.to_string());
        let Version { version } = serde_json::from_slice(bytes).map_err(failed)?;
        if version > VERSION {
            return Err(Error::NewerSnapshot {
                path: path.to_owned(),
                found: version,
                supported: VERSION,
            });
        }
        let snapshot: Self = serde_json::from_slice(bytes).map_err(failed)?;
        for file in &snapshot.files {
            // It becomes the name of a local file.
            if file.name.is_empty() || file.name.contains(['/', '\\']) || file.name.starts_with('.')
            {
                return Err(corrupt(
                    path,
                    format!("`{}` is no name of a file", file.name),
                ));
            }
        }
        Ok(snapshot)
    }
}

fn corrupt(path: &str, reason: String) -> Error {
    Error::CorruptSnapshot {
        path: path.to_owned(),
        reason,
    }
}
