//! Offsets files in remote storage: how far a lake snapshot is, written once and named by URI.
//!
//! `REMOTE/lake/DATABASE/TABLE-ID/metadata/UUID.offsets`, as the reference lays them out.

use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{GetOptions, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use weir_protocol::ids::{TableId, TablePath};

use crate::clock::unique_name;
use crate::model::Document;
use crate::model::lake_offsets::LakeOffsets;
use crate::model::lake_snapshot::normalized;
use crate::{Error, Result};

/// Largest file that is read.
const MAX_FILE_BYTES: u64 = 64 << 20;
/// The most files that are listed.
pub const MAX_LISTED: usize = 1_000_000;
/// Longest wait for the remote store.
const DEADLINE: Duration = Duration::from_mins(1);

/// A file that is there, named by nobody or by somebody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredFile {
    /// The table's name when it was written.
    pub path: TablePath,
    /// The table.
    pub table: TableId,
    /// As [`OffsetsFiles::write`] named it.
    pub uri: String,
    /// When it was written by the remote store's clock, epoch ns.
    pub modified: i64,
}

/// The folder of offsets files.
#[derive(Clone, Debug)]
pub struct OffsetsFiles {
    store: Arc<dyn ObjectStore>,
    root: Path,
    uri: String,
}

impl OffsetsFiles {
    /// Files below `root` in `store`; `uri` names the same place for others, like
    /// `file:/data/remote`.
    pub fn new(store: Arc<dyn ObjectStore>, root: Path, uri: impl AsRef<str>) -> Self {
        let uri = normalized(uri.as_ref()).trim_end_matches('/').to_owned();
        Self { store, root, uri }
    }

    /// Writes a new file and returns its URI.
    ///
    /// # Errors
    /// [`Error::Lake`] if the remote store fails.
    pub async fn write(&self, path: &TablePath, offsets: &LakeOffsets) -> Result<String> {
        let name = format!("{}.offsets", unique_name());
        let folder = folder(path, offsets.table_id);
        let bytes = offsets.encode()?;
        let object = self.object(&folder, &name);
        let put = self
            .store
            .put_opts(&object, bytes.into(), PutOptions::from(PutMode::Create));
        match tokio::time::timeout(DEADLINE, put).await {
            Ok(Ok(_)) => Ok(format!("{}/{folder}/{name}", self.uri)),
            Ok(Err(error)) => Err(failed(path, error)),
            Err(elapsed) => Err(failed(path, elapsed)),
        }
    }

    /// Reads the file `uri` of a table.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the file is not below the table's folder, is missing, too large,
    /// unreadable or of another table; [`Error::Lake`] if the remote store fails.
    pub async fn read(&self, path: &TablePath, table: TableId, uri: &str) -> Result<LakeOffsets> {
        let corrupt = |reason: String| Error::Corrupt {
            what: uri.to_owned(),
            reason,
        };
        let folder = folder(path, table);
        let prefix = format!("{}/{folder}/", self.uri);
        let normal = normalized(uri);
        let name = normal
            .strip_prefix(&prefix)
            .filter(|name| is_file_name(name));
        let Some(name) = name else {
            return Err(corrupt(format!("it is not below {prefix}")));
        };
        let object = self.object(&folder, name);
        let read = async {
            let result = self.store.get_opts(&object, GetOptions::default()).await?;
            if result.meta.size > MAX_FILE_BYTES {
                return Ok(Err(result.meta.size));
            }
            Ok(Ok(result.bytes().await?))
        };
        let bytes = match tokio::time::timeout(DEADLINE, read).await {
            Ok(Ok(Ok(bytes))) => bytes,
            Ok(Ok(Err(size))) => return Err(corrupt(format!("it has {size} bytes"))),
            Ok(Err(object_store::Error::NotFound { .. })) => {
                return Err(corrupt("it does not exist".to_owned()));
            }
            Ok(Err(error)) => return Err(failed(path, error)),
            Err(elapsed) => return Err(failed(path, elapsed)),
        };
        let offsets = LakeOffsets::decode(uri, &bytes)?;
        if offsets.table_id != table {
            return Err(corrupt(format!(
                "it is of table {}, not {table}",
                offsets.table_id
            )));
        }
        Ok(offsets)
    }

    /// Deletes a file that nothing names any more; one that is gone already is fine.
    ///
    /// # Errors
    /// [`Error::Lake`] if the remote store fails; the file is then left behind.
    pub async fn delete(&self, path: &TablePath, table: TableId, uri: &str) -> Result<()> {
        let folder = folder(path, table);
        let normal = normalized(uri);
        let name = normal.strip_prefix(&format!("{}/{folder}/", self.uri));
        let Some(name) = name.filter(|name| is_file_name(name)) else {
            return Ok(());
        };
        let object = self.object(&folder, name);
        match tokio::time::timeout(DEADLINE, self.store.delete(&object)).await {
            Ok(Ok(()) | Err(object_store::Error::NotFound { .. })) => Ok(()),
            Ok(Err(error)) => Err(failed(path, error)),
            Err(elapsed) => Err(failed(path, elapsed)),
        }
    }

    /// All files below the root, of whatever table, at most [`MAX_LISTED`]; without what has another
    /// name.
    ///
    /// # Errors
    /// [`Error::Lake`] if the remote store fails.
    pub async fn list(&self) -> Result<Vec<StoredFile>> {
        let prefix = self.root.clone().join("lake");
        let stored = |meta: ObjectMeta| self.stored_file(&meta);
        let all = self.store.list(Some(&prefix)).take(MAX_LISTED);
        let all = all.try_collect::<Vec<_>>();
        let failed = |source: Box<dyn std::error::Error + Send + Sync>| Error::Lake {
            path: TablePath::new("", ""),
            source,
            retriable: true,
        };
        match tokio::time::timeout(DEADLINE, all).await {
            Ok(Ok(all)) => Ok(all.into_iter().filter_map(stored).collect()),
            Ok(Err(error)) => Err(failed(Box::new(error))),
            Err(elapsed) => Err(failed(Box::new(elapsed))),
        }
    }

    /// Reads the name of a file: `lake/DATABASE/TABLE-ID/metadata/UUID.offsets`.
    fn stored_file(&self, meta: &ObjectMeta) -> Option<StoredFile> {
        let parts: Vec<_> = meta.location.prefix_match(&self.root)?.collect();
        let [lake, database, folder, metadata, name] = parts.as_slice() else {
            return None;
        };
        let (table, id) = folder.as_ref().rsplit_once('-')?;
        let is_ours = lake.as_ref() == "lake" && metadata.as_ref() == "metadata";
        let name = Some(name.as_ref()).filter(|name| is_ours && is_file_name(name))?;
        let path = TablePath::new(database.as_ref(), table);
        let table = TableId(id.parse().ok()?);
        Some(StoredFile {
            uri: format!("{}/{}/{name}", self.uri, self::folder(&path, table)),
            path,
            table,
            modified: meta.last_modified.timestamp_nanos_opt()?,
        })
    }

    fn object(&self, folder: &str, name: &str) -> Path {
        let segments = folder.split('/').chain([name]);
        segments.fold(self.root.clone(), Path::join)
    }
}

fn folder(path: &TablePath, table: TableId) -> String {
    format!("lake/{}/{}-{table}/metadata", path.database, path.table)
}

fn is_file_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
    name.ends_with(".offsets") && name.bytes().all(allowed)
}

fn failed(path: &TablePath, source: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::Lake {
        path: path.clone(),
        source: Box::new(source),
        retriable: true,
    }
}
