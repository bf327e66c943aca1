//! Manifests: the changes of data files that a commit made.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};

use crate::data_file::DataFileMeta;
use crate::error::{Error, Result};

pub(crate) mod avro;
pub(crate) mod index;

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
    let entries: Vec<ManifestEntry> = entries.into_iter().collect();
    let mut is_live = vec![false; entries.len()];
    let mut places: HashMap<Identity<'_>, usize> = HashMap::with_capacity(entries.len());
    for (place, entry) in entries.iter().enumerate() {
        let name = &entry.file.file_name;
        let (changed, live) = match entry.kind {
            FileKind::Add => {
                if places.insert(Identity(entry), place).is_some() {
                    return Err(Error::malformed(
                        "manifest",
                        format!("`{name}` is added twice"),
                    ));
                }
                (place, true)
            }
            FileKind::Delete => {
                let added = places.remove(&Identity(entry));
                let added = added.ok_or_else(|| {
                    Error::malformed("manifest", format!("`{name}` is removed but not live"))
                })?;
                (added, false)
            }
        };
        if let Some(slot) = is_live.get_mut(changed) {
            *slot = live;
        }
    }
    drop(places);
    let pairs = entries.into_iter().zip(is_live);
    Ok(pairs
        .filter(|(_, is_live)| *is_live)
        .map(|(entry, _)| entry)
        .collect())
}

/// An entry compared by its [`FileKey`], without copying it.
struct Identity<'a>(&'a ManifestEntry);

impl PartialEq for Identity<'_> {
    fn eq(&self, other: &Self) -> bool {
        let (a, b) = (self.0, other.0);
        a.file.file_name == b.file.file_name
            && (a.bucket, a.file.level) == (b.bucket, b.file.level)
            && a.partition == b.partition
            && a.file.extra_files == b.file.extra_files
            && a.file.embedded_file_index == b.file.embedded_file_index
            && a.file.external_path == b.file.external_path
    }
}

impl Eq for Identity<'_> {}

impl Hash for Identity<'_> {
    /// Names are unique but for a file's levels, so little more than the name is hashed.
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.bucket.hash(state);
        self.0.file.level.hash(state);
        self.0.file.file_name.hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(kind: FileKind, name: &str, level: i32) -> ManifestEntry {
        let file = DataFileMeta {
            level,
            ..DataFileMeta::append(name, 1, 1, 0)
        };
        let partition = crate::BinaryRow::empty().to_serialized();
        ManifestEntry {
            kind,
            partition,
            bucket: 0,
            total_buckets: 1,
            file,
        }
    }

    #[test]
    fn a_file_moved_to_another_level_stays_live_there() {
        let add = |name, level| entry(FileKind::Add, name, level);
        let changes = [
            add("a", 0),
            add("b", 0),
            entry(FileKind::Delete, "a", 0),
            add("a", 5),
        ];
        let live = live_files(changes).unwrap();
        let found: Vec<_> = live
            .iter()
            .map(|e| (e.file.file_name.as_str(), e.file.level))
            .collect();
        assert_eq!(found, [("b", 0), ("a", 5)]);
    }

    #[test]
    fn adding_a_live_file_or_removing_another_is_an_error() {
        let add = || entry(FileKind::Add, "a", 0);
        assert!(live_files([add(), add()]).is_err());
        assert!(live_files([add(), entry(FileKind::Delete, "a", 1)]).is_err());
    }
}
