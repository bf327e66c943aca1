//! The door: what async code may ask of a bucket's state.

use std::fs;
use std::io;
use std::panic;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task;
use weir_protocol::ids::TableBucket;

use crate::cursor::{CursorId, CursorStart, Cursors, Page};
use crate::database::{Database, Scanned};
use crate::environment::KvEnvironment;
use crate::error::{Error, Result};
use crate::pre_write_buffer::FlushBatch;
use crate::state::Position;
use crate::value::StoredValue;

#[cfg(test)]
mod tests;

/// The state of one bucket, in a RocksDB directory of its own. Cheap to clone; all clones are one
/// store.
///
/// Every call that works on files runs on a blocking thread under a permit of the
/// [`KvEnvironment`]. A call whose future is dropped still runs to its end: what it wrote stays
/// written.
#[derive(Clone)]
pub struct KvStore {
    inner: Arc<Inner>,
}

struct Inner {
    directory: PathBuf,
    bucket: TableBucket,
    environment: KvEnvironment,
    database: Mutex<Option<Arc<Database>>>,
    closed: Mutex<Option<oneshot::Receiver<()>>>,
    cursors: Cursors,
}

impl std::fmt::Debug for KvStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KvStore")
            .field("directory", &self.inner.directory)
            .field("bucket", &self.inner.bucket)
            .finish_non_exhaustive()
    }
}

impl KvStore {
    /// Opens the state of a bucket, or begins it in a folder that is empty or missing.
    ///
    /// The store stands at the [position](Self::position) that was durable last; the log from there
    /// on is to be applied again.
    ///
    /// # Errors
    /// [`Error::OtherBucket`] and [`Error::NewerFormat`] for a directory that is not this release's
    /// or bucket's, [`Error::Corrupt`] and [`Error::Disk`] naming the file at fault.
    pub async fn open(
        environment: &KvEnvironment,
        directory: &Path,
        bucket: TableBucket,
    ) -> Result<Self> {
        let (path, shared) = (directory.to_owned(), environment.clone());
        let opened = blocking(environment, directory, move || {
            Database::open(&path, bucket, &shared)
        });
        let (database, closed) = opened.await?;
        Ok(Self {
            inner: Arc::new(Inner {
                directory: directory.to_owned(),
                bucket,
                environment: environment.clone(),
                database: Mutex::new(Some(Arc::new(database))),
                closed: Mutex::new(Some(closed)),
                cursors: Cursors::new(environment.clone()),
            }),
        })
    }

    /// Removes the state of a bucket whose store is closed, or that was never opened here.
    ///
    /// # Errors
    /// [`Error::Disk`]; a part may then be gone, and the directory must be removed again before it
    /// is opened.
    pub async fn remove(environment: &KvEnvironment, directory: &Path) -> Result<()> {
        let path = directory.to_owned();
        let removed = blocking(environment, directory, move || {
            match fs::remove_dir_all(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    Err(Error::of_io(&path, &path, "remove the folder", &error))
                }
                _ => Ok(()),
            }
        });
        removed.await
    }

    /// Whose state it is.
    pub fn bucket(&self) -> TableBucket {
        self.inner.bucket
    }

    /// Where it is.
    pub fn directory(&self) -> &Path {
        &self.inner.directory
    }

    /// How far the log is in what reads see.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn position(&self) -> Result<Position> {
        Ok(self.database()?.position())
    }

    /// What a crash falls back to, or less: the log at and above it must be kept.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn durable_position(&self) -> Result<Position> {
        Ok(self.database()?.durable_position())
    }

    /// The value of a key; `None` if there is none.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Disk`] and [`Error::CorruptValue`] if it can't be read.
    pub async fn get(&self, key: Bytes) -> Result<Option<StoredValue>> {
        self.call(move |database| database.get(&key)).await
    }

    /// The values of keys, in the order of the keys.
    ///
    /// # Errors
    /// As [`Self::get`]; one key that can't be read fails all.
    pub async fn multi_get(&self, keys: Vec<Bytes>) -> Result<Vec<Option<StoredValue>>> {
        self.call(move |database| database.multi_get(&keys)).await
    }

    /// The first `limit` entries whose key begins with `prefix`, in key order; of all keys if it is
    /// empty.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub async fn scan(&self, prefix: Bytes, limit: usize) -> Result<Vec<(Bytes, StoredValue)>> {
        let scanned = self.scan_within(prefix, limit, usize::MAX).await?;
        Ok(scanned.entries)
    }

    /// As [`Self::scan`], but ends before the entry that does not fit into `max_bytes` of keys and rows,
    /// and says so.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub async fn scan_within(
        &self,
        prefix: Bytes,
        limit: usize,
        max_bytes: usize,
    ) -> Result<Scanned> {
        self.call(move |database| database.scan(&prefix, limit, max_bytes))
            .await
    }

    /// Writes a batch and the offset it reaches: all or nothing, seen by every reader at once. It
    /// is durable after the next [flush](Self::flush), which also happens by itself when a write
    /// buffer is full.
    ///
    /// # Errors
    /// [`Error::OffsetOrder`] if the batch ends below the position; nothing was written.
    /// [`Error::Corrupt`] and [`Error::Disk`]: the store takes no more writes and must be opened
    /// again.
    pub async fn apply(&self, batch: Arc<FlushBatch>) -> Result<Position> {
        self.call(move |database| database.apply(&batch)).await
    }

    /// Makes durable what was applied; returns the [durable position](Self::durable_position).
    ///
    /// # Errors
    /// As [`Self::apply`].
    pub async fn flush(&self) -> Result<Position> {
        self.call(Database::flush).await
    }

    /// Links the files of all that was applied into a folder that does not exist yet.
    pub(crate) async fn checkpoint(&self, folder: &Path) -> Result<Position> {
        let folder = folder.to_owned();
        self.call(move |database| database.checkpoint(&folder))
            .await
    }

    /// Opens a cursor over all entries as they are now, at most `limit`.
    ///
    /// # Errors
    /// [`Error::TooManyCursors`]; others as [`Self::get`].
    pub async fn open_cursor(&self, limit: Option<u64>) -> Result<CursorStart> {
        let database = self.database()?;
        self.inner
            .cursors
            .open(database, limit.unwrap_or(u64::MAX))
            .await
    }

    /// The next page of a cursor: at least one entry unless it is at its end, then as many as fit
    /// into `max_bytes` of keys and rows. Pages are asked for as 0, 1, 2, …; a page whose call
    /// failed or was dropped is lost, and with it the scan.
    ///
    /// # Errors
    /// [`Error::PageOrder`], [`Error::CursorExpired`], [`Error::UnknownCursor`]; others as
    /// [`Self::get`], which close the cursor.
    pub async fn next_page(&self, cursor: CursorId, page: u32, max_bytes: usize) -> Result<Page> {
        self.inner.cursors.next_page(cursor, page, max_bytes).await
    }

    /// Closes a cursor; nothing happens if there is none.
    pub fn close_cursor(&self, cursor: CursorId) {
        self.inner.cursors.close(cursor);
    }

    /// Closes cursors that were not used for too long, and says how many. Opening and reading
    /// cursors do so too; call it now and then, so that forgotten ones do not hold files.
    pub fn expire_cursors(&self) -> usize {
        self.inner.cursors.expire()
    }

    /// How many cursors are open.
    pub fn cursor_count(&self) -> usize {
        self.inner.cursors.count()
    }

    /// Closes the store for all clones: cursors end, calls under way finish, what was applied is
    /// flushed. After it the directory may be opened again. Closing twice is no error.
    pub async fn close(&self) {
        self.inner.cursors.close_all();
        let database = self.inner.database.lock().take();
        let closed = self.inner.closed.lock().take();
        if let Some(database) = database {
            // Closing writes files, on whichever thread lets go last.
            let _ = task::spawn_blocking(move || drop(database)).await;
        }
        if let Some(closed) = closed {
            // The sender is dropped with the database, without a word.
            let _ = closed.await;
        }
    }

    fn database(&self) -> Result<Arc<Database>> {
        let database = self.inner.database.lock().clone();
        database.ok_or_else(|| Error::Closed {
            directory: self.inner.directory.clone(),
        })
    }

    async fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Database) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let database = self.database()?;
        let inner = &self.inner;
        blocking(&inner.environment, &inner.directory, move || {
            work(&database)
        })
        .await
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(database) = self.database.get_mut().take()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn_blocking(move || drop(database));
        }
    }
}

/// Runs work on a blocking thread, under a permit that the work keeps though its caller may go.
async fn blocking<T: Send + 'static>(
    environment: &KvEnvironment,
    directory: &Path,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let closed = || Error::Closed {
        directory: directory.to_owned(),
    };
    let permit = Arc::clone(&environment.calls).acquire_owned().await;
    let permit = permit.map_err(|_| closed())?;
    let done = task::spawn_blocking(move || {
        let _permit = permit;
        work()
    });
    match done.await {
        Ok(result) => result,
        Err(error) if error.is_panic() => panic::resume_unwind(error.into_panic()),
        Err(_) => Err(closed()),
    }
}
