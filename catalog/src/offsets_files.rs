//! Offsets files in remote storage: how far a lake snapshot is, written once and named by URI.
//!
//! `REMOTE/lake/DATABASE/TABLE-ID/metadata/UUID.offsets`, as the reference lays them out.

use std::sync::Arc;
use std::time::Duration;

use object_store::path::Path;
use object_store::{GetOptions, ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use weir_protocol::ids::{TableId, TablePath};

use crate::clock::unique_name;
use crate::model::Document;
use crate::model::lake_offsets::LakeOffsets;
use crate::model::lake_snapshot::normalized;
use crate::{Error, Result};

/// Largest file that is read.
const MAX_FILE_BYTES: u64 = 64 << 20;
/// Longest wait for the remote store.
const DEADLINE: Duration = Duration::from_mins(1);

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
