//! The keys of a bucket of a primary-key table: a store beside its log.
//!
//! * A put decides what becomes of its keys and leaves one batch in the log ([`put`]); values wait in a
//!   buffer until the log is durable, then they go to the store, and the high watermark follows
//!   ([`writer`]): what a client was told is in what lookups see.
//! * One task a bucket writes, in the order of its queue. Lookups read the store alone.
//! * The store has no log of its own: at an opening, the bucket's log is applied from where the store
//!   stands ([`replay`]).

mod changelog;
mod opening;
mod put;
mod replay;
mod rules;
#[cfg(test)]
mod tests;
mod writer;

use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use weir_catalog::clock::Clock;
use weir_catalog::sentence::sentence;
use weir_kv::{KvEnvironment, KvStore};
use weir_protocol::ids::{LogOffset, TableBucket};

pub(crate) use put::{Existing, Put};
pub(crate) use rules::{KeyRules, KnownSchema, Numbered};
pub(super) use writer::MAX_OLD_BYTES;
use writer::{Queued, Writer};

use super::TableInfo;
use super::room::Room;
use crate::error::Error;
use crate::log::{Flushed, Log};
use crate::memory::Memory;
use crate::metrics::Metrics;
use crate::notice::Notice;
use crate::reads::Reads;

/// How long a put waits for a place in its bucket's queue. The requests behind it wait with it.
const QUEUE_PATIENCE: Duration = Duration::from_secs(5);

/// The keys of a bucket that this server leads.
pub(crate) struct Keyed {
    bucket: TableBucket,
    store: KvStore,
    queue: mpsc::Sender<Queued>,
    visible: watch::Receiver<Flushed>,
    /// Tells this opening of the store from all others.
    nonce: u64,
    writer: Mutex<Option<Running>>,
    /// Where the store stood when it was looked at last.
    seen: AtomicI64,
    /// Why nothing is written any more.
    failure: Arc<OnceLock<String>>,
    flush_failed: Mutex<Notice>,
}

/// The task that writes.
struct Running {
    end: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

/// What the keys of a bucket need of the server around them.
#[derive(Clone)]
pub(super) struct Surroundings {
    pub(super) environment: KvEnvironment,
    pub(super) reads: Arc<Reads>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) room: Arc<Room>,
    /// For work on blocking threads.
    pub(super) turns: Arc<Semaphore>,
    pub(super) max_batch_bytes: usize,
    /// How many puts of a bucket may wait.
    pub(super) max_waiting: usize,
    /// How many bytes of a bucket may be in the log and not in the store.
    pub(super) max_buffer_bytes: usize,
    /// For old values beyond what each bucket may hold of them.
    pub(super) old_values: Memory,
    /// Told when a bucket writes nothing any more.
    pub(super) failed: Arc<Notify>,
}

/// A put that is in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PutDone {
    /// The offset behind its last change.
    pub(crate) end: LogOffset,
}

/// A put that waits for its turn.
pub(crate) struct Putting {
    bucket: TableBucket,
    answer: oneshot::Receiver<Result<PutDone, Error>>,
}

impl Putting {
    /// Ends once the put is in the log, or refused.
    pub(crate) async fn done(self) -> Result<PutDone, Error> {
        let bucket = self.bucket;
        self.answer
            .await
            .unwrap_or(Err(Error::UnknownBucket { bucket }))
    }
}

impl Keyed {
    /// Opens the keys of a bucket beside its log, which was just opened, and brings them to its end.
    ///
    /// # Errors
    /// [`Error::Kv`] if the store does not open; [`Error::StateApart`] if the log does not fit it.
    pub(super) async fn open(
        log: &Arc<Log>,
        table: &Arc<TableInfo>,
        rules: &Arc<KeyRules>,
        dir: &Path,
        around: Surroundings,
    ) -> Result<Self, Error> {
        let bucket = log.bucket();
        let store = KvStore::open(&around.environment, dir, bucket).await?;
        if let Err(error) = replay::run(log, &store, rules).await {
            store.close().await;
            return Err(error);
        }
        let (queue, queued) = mpsc::channel(around.max_waiting);
        let end = store.position()?.flushed_offset;
        let (published, visible) = watch::channel(Flushed {
            end,
            stopped: false,
        });
        let failure = Arc::<OnceLock<String>>::default();
        let of_table = (Arc::clone(table), Arc::clone(&failure));
        let writer = Writer::new((log, &store), of_table, around, published);
        let (end, ended) = oneshot::channel();
        let task = tokio::spawn(writer.run(queued, ended));
        Ok(Self {
            bucket,
            store,
            queue,
            visible,
            nonce: rand::random(),
            writer: Mutex::new(Some(Running { end, task })),
            seen: AtomicI64::new(-1),
            failure,
            flush_failed: Mutex::default(),
        })
    }

    /// Puts a batch behind those that wait; there is room for it, or it waits for some, a while.
    ///
    /// # Errors
    /// [`Error::UnknownBucket`] if the bucket is being given up; [`Error::TooManyPuts`].
    pub(crate) async fn put(&self, put: Put) -> Result<Putting, Error> {
        let (reply, answer) = oneshot::channel();
        let bucket = self.bucket;
        let sent = timeout_at(
            Instant::now() + QUEUE_PATIENCE,
            self.queue.send((put, reply)),
        )
        .await;
        let sent = sent.map_err(|_| Error::TooManyPuts { bucket })?;
        sent.map_err(|_| Error::UnknownBucket { bucket })?;
        Ok(Putting { bucket, answer })
    }

    /// Why nothing is written any more until the bucket is opened again, if that is so.
    pub(super) fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// What lookups read.
    pub(crate) fn store(&self) -> &KvStore {
        &self.store
    }

    /// A number of this opening of the store.
    pub(crate) fn nonce(&self) -> u64 {
        self.nonce
    }

    /// All changes below it are in what lookups see.
    pub(crate) fn visible_end(&self) -> LogOffset {
        self.visible.borrow().end
    }

    /// Follows [`Keyed::visible_end`].
    pub(crate) fn watch(&self) -> watch::Receiver<Flushed> {
        let mut visible = self.visible.clone();
        visible.mark_unchanged();
        visible
    }

    /// Ends once the changes below `end` are visible; `false` if they never will be.
    pub(crate) async fn reached(&self, end: LogOffset) -> bool {
        let mut visible = self.visible.clone();
        let reached = visible.wait_for(|visible| visible.end >= end || visible.stopped);
        reached.await.is_ok_and(|visible| visible.end >= end)
    }

    /// The log from here on must be kept: a restart may apply it again. None once the store is closed.
    pub(super) fn durable_end(&self) -> Option<LogOffset> {
        let position = self.store.durable_position().ok()?;
        Some(position.flushed_offset)
    }

    /// Ends scans that nobody reads, and makes the keys durable: if nothing was put since the last call, if
    /// a restart would have more than `max_replay_bytes` of the log to apply, or if the log below `wanted`
    /// is to go.
    pub(super) async fn tend(
        &self,
        log: &Log,
        max_replay_bytes: u64,
        wanted: Option<LogOffset>,
        now_ms: i64,
    ) {
        self.store.expire_cursors();
        let (Ok(position), Some(durable)) = (self.store.position(), self.durable_end()) else {
            return;
        };
        let position = position.flushed_offset;
        let is_quiet = self.seen.swap(position.0, Ordering::Relaxed) == position.0;
        let is_wanted = wanted.is_some_and(|wanted| wanted > durable);
        let is_due = is_quiet || is_wanted || log.bytes_from(durable) > max_replay_bytes;
        if durable >= position || !is_due {
            return;
        }
        if let Err(error) = self.store.flush().await {
            let error = sentence(&error);
            if self.flush_failed.lock().is_due(&error, now_ms) {
                tracing::error!(bucket = %self.bucket, error, "a bucket's keys can't be made durable");
            }
        }
    }

    /// Ends the task that writes, closes log and store. What was put is in both then. Closing twice is no
    /// error.
    pub(super) async fn close(&self) {
        let running = self.writer.lock().take();
        let Some(Running { end, task }) = running else {
            return;
        };
        // It may have ended by itself.
        let _gone = end.send(());
        if task.await.is_err() {
            tracing::error!(bucket = %self.bucket, "the writer of a bucket's keys did not end well");
        }
        self.store.close().await;
    }
}

impl std::fmt::Debug for Keyed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keyed")
            .field("bucket", &self.bucket)
            .finish_non_exhaustive()
    }
}
