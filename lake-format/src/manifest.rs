//! Manifests: the changes of data files that a commit made.

use std::collections::HashMap;

use crate::data_file::DataFileMeta;
use crate::error::{Error, Result};

pub(crate) mod avro;

pub use avro::{decode_manifest, encode_manifest};

/// Whether an entry adds or removes its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// The file is part of the table from here on.
    Add,
    /// The file is no longer part of the table.
    Delete,
}

impl FileKind {
    /// The number in manifests.
    pub fn code(self) -> i32 {
        match self {
            Self::Add => 0,
            Self::Delete => 1,
        }
    }

    /// The kind of a number in manifests.
    pub fn from_code(code: i32) -> Option<Self> {
        match code {
            0 => Some(Self::Add),
            1 => Some(Self::Delete),
            _ => None,
        }
    }
}

/// One change of one data file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestEntry {
    /// What happens to the file.
    pub kind: FileKind,
    /// The partition, a serialized binary row ([`crate::Partition::to_bytes`]).
    pub partition: Vec<u8>,
    /// The bucket, from 0; 0 in bucket-unaware tables.
    pub bucket: i32,
    /// The bucket count that the file was written under; −1 in bucket-unaware tables.
    pub total_buckets: i32,
    /// The file.
    pub file: DataFileMeta,
}

/// What makes a file in a table the same file. A file moved to another level is another one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileKey {
    /// The partition, a serialized binary row.
    pub partition: Vec<u8>,
    /// The bucket.
    pub bucket: i32,
    /// Level in the merge tree.
    pub level: i32,
    /// Name within the folder of its bucket.
    pub file_name: String,
    /// Files beside it.
    pub extra_files: Vec<String>,
    /// A small file index kept in the manifest.
    pub embedded_file_index: Option<Vec<u8>>,
    /// The whole path, if it is kept outside the table.
    pub external_path: Option<String>,
}

impl ManifestEntry {
    /// The identity of its file.
    pub fn key(&self) -> FileKey {
        FileKey {
            partition: self.partition.clone(),
            bucket: self.bucket,
            level: self.file.level,
            file_name: self.file.file_name.clone(),
            extra_files: self.file.extra_files.clone(),
            embedded_file_index: self.file.embedded_file_index.clone(),
            external_path: self.file.external_path.clone(),
        }
    }
}

/// The files that are left when entries are applied in order, in the order of their adding.
///
/// # Errors
/// [`Error::Malformed`] if a file is added that is live, or removed that is not.
pub fn live_files(entries: impl IntoIterator<Item = ManifestEntry>) -> Result<Vec<ManifestEntry>> {
    let mut slots: Vec<Option<ManifestEntry>> = Vec::new();
    let mut places: HashMap<FileKey, usize> = HashMap::new();
    for entry in entries {
        let key = entry.key();
        match entry.kind {
            FileKind::Add => {
                let name = entry.file.file_name.clone();
                if places.insert(key, slots.len()).is_some() {
                    return Err(Error::malformed(
                        "manifest",
                        format!("`{name}` is added twice"),
                    ));
                }
                slots.push(Some(entry));
            }
            FileKind::Delete => {
                let place = places.remove(&key).and_then(|place| slots.get_mut(place));
                let Some(slot) = place else {
                    let name = &entry.file.file_name;
                    return Err(Error::malformed(
                        "manifest",
                        format!("`{name}` is removed but not live"),
                    ));
                };
                *slot = None;
            }
        }
    }
    Ok(slots.into_iter().flatten().collect())
}
