//! Snapshots of a store in an object store, and restoring from them.
//!
//! ```text
//! PREFIX/shared/ID-000012.sst        a table file, first in snapshot ID, shared with later ones
//! PREFIX/snap-ID/MANIFEST-000005     what belongs to snapshot ID alone
//! PREFIX/snap-ID/snapshot.json       which files make it up; written last
//! ```
//!
//! A snapshot exists once its document does, and counts once its owner has recorded its id; both
//! are never changed. Ids are unique in a bucket and rise. Files that no recorded snapshot names
//! may be removed by whoever keeps the record. Facts: fluss `RocksIncrementalSnapshot`, whose
//! layout this resembles.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutPayload};
use tokio::task;

use crate::error::{Error, Result};
use crate::store::KvStore;

mod document;
#[cfg(test)]
mod tests;

pub use document::{Snapshot, SnapshotFile};

/// The document of a snapshot.
const DOCUMENT: &str = "snapshot.json";

/// Where the snapshots of one bucket are.
#[derive(Clone, Debug)]
pub struct SnapshotFolder {
    remote: Arc<dyn ObjectStore>,
    prefix: ObjectPath,
}

impl SnapshotFolder {
    /// The folder of a bucket; nothing is read yet.
    pub fn new(remote: Arc<dyn ObjectStore>, prefix: ObjectPath) -> Self {
        Self { remote, prefix }
    }

    /// Takes a snapshot of all that was applied; writes wait while its files are linked, not while
    /// they are sent. Files that `base` has already are not sent again.
    ///
    /// * `id`: never used before in this folder, also not by a failed attempt.
    /// * `base`: any earlier snapshot of this bucket.
    /// * `scratch`: a folder that does not exist, on the disk of the store; gone afterwards.
    ///
    /// One file at a time is held in memory.
    ///
    /// # Errors
    /// [`Error::Remote`]: what was sent stays and is named by no document, unless sending the
    /// document itself had no answer. [`Error::Corrupt`] and [`Error::Disk`] of the store.
    pub async fn take(
        &self,
        store: &KvStore,
        id: u64,
        base: Option<&Snapshot>,
        scratch: &Path,
    ) -> Result<Snapshot> {
        let taken = self.send_all(store, id, base, scratch).await;
        let scratch = scratch.to_owned();
        // What is left of it is swept with the bucket's directory.
        let _ = task::spawn_blocking(move || fs::remove_dir_all(scratch)).await;
        taken
    }

    async fn send_all(
        &self,
        store: &KvStore,
        id: u64,
        base: Option<&Snapshot>,
        scratch: &Path,
    ) -> Result<Snapshot> {
        let position = store.checkpoint(scratch).await?;
        let (directory, folder) = (store.directory(), scratch.to_owned());
        let names = blocking(directory, move || names_in(&folder)).await?;
        let mut snapshot = Snapshot::new(store.bucket(), id, position);
        for name in names {
            let path = scratch.join(&name);
            let bytes = blocking(directory, move || read_file(&path)).await?;
            let is_shared = Path::new(&name)
                .extension()
                .is_some_and(|kind| kind == "sst");
            let mut file = SnapshotFile {
                remote: format!("snap-{id}/{name}"),
                size_bytes: bytes.len() as u64,
                crc32c: crc32c::crc32c(&bytes),
                name,
            };
            if is_shared {
                file.remote = format!("shared/{id}-{}", file.name);
                if let Some(same) = base.and_then(|base| base.same_file(&file)) {
                    snapshot.files.push(same.clone());
                    continue;
                }
            }
            self.put(&file.remote, bytes).await?;
            snapshot.sent_bytes += file.size_bytes;
            snapshot.files.push(file);
        }
        let document = snapshot.to_json()?;
        self.put(&format!("snap-{id}/{DOCUMENT}"), Bytes::from(document))
            .await?;
        Ok(snapshot)
    }

    /// The snapshot with this id.
    ///
    /// # Errors
    /// [`Error::Remote`] if it can't be read or there is none, [`Error::CorruptSnapshot`] for a
    /// document that means nothing, [`Error::NewerSnapshot`].
    pub async fn load(&self, id: u64) -> Result<Snapshot> {
        let name = format!("snap-{id}/{DOCUMENT}");
        let bytes = self.get(&name).await?;
        Snapshot::from_json(&bytes, self.path(&name).as_ref())
    }

    /// Brings the files of a snapshot into a directory, in which [`KvStore::open`] then finds the
    /// state at its position. Whatever is in the directory is replaced, but only once all is there; no
    /// store may be open on it.
    ///
    /// One file at a time is held in memory.
    ///
    /// # Errors
    /// [`Error::Remote`] and [`Error::CorruptSnapshot`] name the file; [`Error::Disk`]. The
    /// directory is as it was, or gone.
    pub async fn restore(&self, snapshot: &Snapshot, directory: &Path) -> Result<()> {
        let mut arriving = directory.as_os_str().to_owned();
        arriving.push(".restoring");
        let arriving = PathBuf::from(arriving);
        let folder = arriving.clone();
        blocking(directory, move || begin_folder(&folder)).await?;
        for file in &snapshot.files {
            let bytes = self.get(&file.remote).await?;
            let reason = if bytes.len() as u64 != file.size_bytes {
                Some("its size differs from the snapshot's document")
            } else if crc32c::crc32c(&bytes) != file.crc32c {
                Some("its checksum differs from the snapshot's document")
            } else {
                None
            };
            if let Some(reason) = reason {
                return Err(Error::CorruptSnapshot {
                    path: self.path(&file.remote).to_string(),
                    reason: reason.to_owned(),
                });
            }
            let path = arriving.join(&file.name);
            blocking(directory, move || write_file(&path, &bytes)).await?;
        }
        let target = directory.to_owned();
        blocking(directory, move || replace_folder(&arriving, &target)).await
    }

    fn path(&self, name: &str) -> ObjectPath {
        let parts = name.split('/');
        parts.fold(self.prefix.clone(), ObjectPath::join)
    }

    async fn put(&self, name: &str, bytes: Bytes) -> Result<()> {
        let path = self.path(name);
        let payload = PutPayload::from_bytes(bytes);
        let sent = self
            .remote
            .put_opts(&path, payload, PutMode::Create.into())
            .await;
        sent.map(drop).map_err(|source| remote(&path, source))
    }

    async fn get(&self, name: &str) -> Result<Bytes> {
        let path = self.path(name);
        let failed = |source| remote(&path, source);
        let found = self.remote.get(&path).await.map_err(failed)?;
        found.bytes().await.map_err(failed)
    }
}

fn remote(path: &ObjectPath, source: object_store::Error) -> Error {
    Error::Remote {
        path: path.to_string(),
        source,
    }
}

/// Runs work on files on a blocking thread.
async fn blocking<T: Send + 'static>(
    directory: &Path,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => Err(Error::Closed {
            directory: directory.to_owned(),
        }),
    }
}

fn failed(path: &Path, action: &'static str) -> impl Fn(io::Error) -> Error {
    move |source| Error::of_io(path.parent().unwrap_or(path), path, action, &source)
}

fn names_in(folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed(folder, "list the folder"))? {
        let entry = entry.map_err(failed(folder, "list the folder"))?;
        names.push(entry.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

fn read_file(path: &Path) -> Result<Bytes> {
    fs::read(path)
        .map(Bytes::from)
        .map_err(failed(path, "read the file"))
}

fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let written = fs::File::create(path).and_then(|mut file| {
        io::Write::write_all(&mut file, bytes)?;
        file.sync_all()
    });
    written.map_err(failed(path, "write the file"))
}

fn begin_folder(folder: &Path) -> Result<()> {
    remove_folder(folder)?;
    fs::create_dir_all(folder).map_err(failed(folder, "create the folder"))
}

fn remove_folder(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(failed(folder, "remove the folder")(error))
        }
        _ => Ok(()),
    }
}

fn replace_folder(arrived: &Path, target: &Path) -> Result<()> {
    let sync = |folder: &Path| {
        let synced = fs::File::open(folder).and_then(|folder| folder.sync_all());
        synced.map_err(failed(folder, "sync the folder"))
    };
    sync(arrived)?;
    remove_folder(target)?;
    fs::rename(arrived, target).map_err(failed(arrived, "rename the folder"))?;
    target.parent().map_or(Ok(()), sync)
}
