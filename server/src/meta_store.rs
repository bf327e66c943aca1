//! The durable metadata store of one process: RocksDB behind [`MetadataStore`].
//!
//! One writer thread takes transactions in order, writes what is queued with one synced write, then
//! answers: many transactions, one sync. Readers go to RocksDB directly, on blocking threads. Sessions
//! live in the process; keys of sessions of earlier processes are removed when the store opens. A write
//! that fails is never tried again: the store stops, [`RocksMetadataStore::failed`] resolves, and the
//! process is to end and recover at its next start.

mod database;
mod entry;
mod error;
#[cfg(test)]
mod tests;
mod writer;

use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use weir_catalog::store::{
    Key, Limits, MetadataStore, Page, Result, Revision, Session, SessionId, StoreError, Txn,
    Versioned, WatchHub, WatchStream,
};

pub use error::Error;

use database::Database;
use writer::{Request, Writer};

/// Requests that may wait for the writer; more wait for their place.
const QUEUE_REQUESTS: usize = 1024;
/// Reads that may be on blocking threads at once.
const MAX_READS: usize = 16;

/// The store. Clones share it; the last one dropped closes it.
#[derive(Clone, Debug)]
pub struct RocksMetadataStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    database: Arc<Database>,
    hub: WatchHub,
    reads: Arc<Semaphore>,
    failed: watch::Receiver<Option<String>>,
    /// Taken when the store closes.
    queue: Mutex<Option<mpsc::Sender<Request>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl RocksMetadataStore {
    /// Opens the store in a folder of its own, which is made if it does not exist, and removes the keys
    /// of sessions of earlier processes. Blocks for a few syncs, and for what RocksDB recovers.
    ///
    /// # Errors
    /// [`Error::HeldByAnotherProcess`], [`Error::NewerFormat`], [`Error::Corrupt`]; never opened as if
    /// it was empty.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let database = Arc::new(Database::open(path)?);
        let hub = WatchHub::default();
        let (failed_sender, failed) = watch::channel(None);
        let writer = Writer::start(Arc::clone(&database), hub.clone(), failed_sender.clone())
            .map_err(|error| Error::Corrupt {
                path: path.to_owned(),
                reason: error.to_string(),
            })?;
        let (queue, requests) = mpsc::channel(QUEUE_REQUESTS);
        let thread = std::thread::Builder::new()
            .name("meta-writer".to_owned())
            .spawn(move || {
                let run = AssertUnwindSafe(|| writer.run(requests));
                if std::panic::catch_unwind(run).is_err() {
                    let reason = "the metadata writer hit a broken invariant, see the log";
                    failed_sender.send_replace(Some(reason.to_owned()));
                }
            })
            .map_err(|source| Error::Io {
                path: path.to_owned(),
                action: "start the writer",
                source,
            })?;
        let inner = Inner {
            database,
            hub,
            reads: Arc::new(Semaphore::new(MAX_READS)),
            failed,
            queue: Mutex::new(Some(queue)),
            thread: Mutex::new(Some(thread)),
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// Resolves with the reason when a write has failed: nothing is written any more, and the process is
    /// to end. Never resolves otherwise. Cancel-safe.
    pub async fn failed(&self) -> String {
        let mut failed = self.inner.failed.clone();
        if let Ok(reason) = failed.wait_for(Option::is_some).await
            && let Some(reason) = reason.as_ref()
        {
            return reason.clone();
        }
        // The writer ended because the store was closed.
        std::future::pending().await
    }

    /// The reason why nothing can be written any more, once there is one; see [`Self::failed`].
    pub fn failure(&self) -> watch::Receiver<Option<String>> {
        self.inner.failed.clone()
    }

    /// Ends the writer after what is queued. Later writes are refused; reads go on until the last clone
    /// is dropped, which closes the files and gives up the lock. Blocks for the queue.
    pub fn close(&self) {
        self.inner.close();
    }

    async fn request<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<Result<T>>) -> Request,
    ) -> Result<T> {
        let unavailable = |reason: &str| StoreError::Unavailable {
            reason: reason.to_owned(),
        };
        let Some(queue) = self.inner.queue.lock().clone() else {
            return Err(unavailable("it is closed"));
        };
        if let Some(reason) = self.inner.failed.borrow().as_ref() {
            return Err(unavailable(reason));
        }
        let (reply, answer) = oneshot::channel();
        queue
            .send(request(reply))
            .await
            .map_err(|_| unavailable("its writer has ended"))?;
        // Without an answer the write failed, or the process is ending: it may have happened.
        answer.await.unwrap_or(Err(StoreError::Unknown))
    }

    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Database) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let database = Arc::downgrade(&self.inner.database);
        read_blocking(database, Arc::clone(&self.inner.reads), read).await
    }
}

impl Inner {
    fn close(&self) {
        drop(self.queue.lock().take());
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            tracing::error!("the metadata writer panicked");
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.close();
    }
}

/// Runs a read on a blocking thread, so many at once; a store that was closed meanwhile is unavailable.
async fn read_blocking<T: Send + 'static>(
    database: Weak<Database>,
    permits: Arc<Semaphore>,
    read: impl FnOnce(&Database) -> Result<T> + Send + 'static,
) -> Result<T> {
    let closed = || StoreError::Unavailable {
        reason: "it is closed".to_owned(),
    };
    let permit = permits.acquire_owned().await.map_err(|_| closed())?;
    let reading = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        read(&*database.upgrade().ok_or_else(closed)?)
    });
    reading.await.map_err(|error| StoreError::Unavailable {
        reason: error.to_string(),
    })?
}

#[async_trait]
impl MetadataStore for RocksMetadataStore {
    async fn get(&self, key: &Key) -> Result<Option<Versioned>> {
        let key = entry::encode_key(key);
        self.read(move |database| Ok(database.get(&key)?.map(|entry| entry.versioned)))
            .await
    }

    async fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Versioned>>> {
        let keys: Vec<Vec<u8>> = keys.iter().map(entry::encode_key).collect();
        self.read(move |database| {
            let get = |key: &Vec<u8>| Ok(database.get(key)?.map(|entry| entry.versioned));
            keys.iter().map(get).collect()
        })
        .await
    }

    async fn children(&self, key: &Key) -> Result<Vec<String>> {
        let key = key.clone();
        self.read(move |database| database.children(&key)).await
    }

    async fn scan(&self, prefix: &Key, page: Page) -> Result<Vec<(Key, Versioned)>> {
        let prefix = prefix.clone();
        self.read(move |database| database.scan(None, &prefix, &page))
            .await
    }

    async fn commit(&self, txn: Txn) -> Result<Revision> {
        txn.validate(&self.limits())?;
        self.request(|reply| Request::Commit { txn, reply }).await
    }

    fn watch(&self, prefix: &Key) -> WatchStream {
        // Weak: a watch does not keep a closed store's files open.
        let database = Arc::downgrade(&self.inner.database);
        let reads = Arc::clone(&self.inner.reads);
        let from = prefix.clone();
        let snapshot = move || {
            let from = from.clone();
            read_blocking(
                Weak::clone(&database),
                Arc::clone(&reads),
                move |database| {
                    let (at, snapshot) = database.snapshot()?;
                    let all = Page::first(usize::MAX);
                    Ok((at, database.scan(Some(&snapshot), &from, &all)?))
                },
            )
            .boxed()
        };
        self.inner.hub.watch(prefix.clone(), Arc::new(snapshot))
    }

    async fn open_session(&self, _ttl: Duration) -> Result<Session> {
        self.request(|reply| Request::OpenSession { reply }).await
    }

    async fn close_session(&self, session: SessionId) -> Result<()> {
        self.request(|reply| Request::CloseSession { session, reply })
            .await
    }

    async fn take_ids(&self, counter: &Key, count: u32) -> Result<Range<u64>> {
        let counter = counter.clone();
        self.request(|reply| Request::TakeIds {
            counter,
            count,
            reply,
        })
        .await
    }

    fn limits(&self) -> Limits {
        Limits::EMBEDDED
    }
}
