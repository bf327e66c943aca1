//! Hands the changes of a store that lives in this process to its watchers.

use std::collections::VecDeque;
use std::sync::Arc;

use futures::future::BoxFuture;
use futures::stream;
use tokio::sync::broadcast::{self, error::RecvError};

use super::{Key, Result, Revision, Versioned, WatchEvent, WatchStream};

/// Transactions a watcher may lag behind before it gets [`WatchEvent::Reset`].
const BACKLOG_TXNS: usize = 1024;

/// One changed key.
#[derive(Clone, Debug)]
pub struct Change {
    /// The key.
    pub key: Key,
    /// Its new value; `None` if it was deleted.
    pub entry: Option<Versioned>,
}

/// Reads all entries of the watched prefix, with the revision that they stand at.
pub type SnapshotFn =
    Arc<dyn Fn() -> BoxFuture<'static, Result<(Revision, Vec<(Key, Versioned)>)>> + Send + Sync>;

/// Hands changes to watchers. The store calls [`Self::publish`] once a transaction, in revision
/// order.
#[derive(Clone, Debug)]
pub struct WatchHub {
    sender: broadcast::Sender<Arc<Published>>,
}

#[derive(Debug)]
struct Published {
    at: Revision,
    changes: Vec<Change>,
}

impl Default for WatchHub {
    fn default() -> Self {
        Self {
            sender: broadcast::channel(BACKLOG_TXNS).0,
        }
    }
}

impl WatchHub {
    /// Tells all watchers what the transaction `at` changed. Never waits.
    pub fn publish(&self, at: Revision, changes: Vec<Change>) {
        if !changes.is_empty() {
            // No receiver is no error: nobody watches.
            let _ = self.sender.send(Arc::new(Published { at, changes }));
        }
    }

    /// A stream for `prefix`: the entries that `snapshot` reads, then every later change.
    ///
    /// A snapshot that fails is read again, with a pause, until it works: the watcher sees nothing
    /// in between.
    pub fn watch(&self, prefix: Key, snapshot: SnapshotFn) -> WatchStream {
        let watcher = Watcher {
            prefix,
            snapshot,
            receiver: self.sender.subscribe(),
            seen: None,
            ready: VecDeque::new(),
        };
        Box::pin(stream::unfold(watcher, |mut watcher| async move {
            let event = watcher.next().await?;
            Some((event, watcher))
        }))
    }
}

struct Watcher {
    prefix: Key,
    snapshot: SnapshotFn,
    receiver: broadcast::Receiver<Arc<Published>>,
    /// Revision of the last snapshot; `None` until it was read.
    seen: Option<Revision>,
    ready: VecDeque<WatchEvent>,
}

impl Watcher {
    async fn next(&mut self) -> Option<WatchEvent> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            let Some(seen) = self.seen else {
                self.read_snapshot().await;
                continue;
            };
            match self.receiver.recv().await {
                Ok(published) if published.at.id() > seen.id() => self.take(&published),
                Ok(_) => {}
                Err(RecvError::Lagged(_)) => {
                    // What is left of the backlog is older than the list that follows.
                    self.receiver = self.receiver.resubscribe();
                    self.seen = None;
                    self.ready.push_back(WatchEvent::Reset);
                }
                Err(RecvError::Closed) => return None,
            }
        }
    }

    async fn read_snapshot(&mut self) {
        let mut attempt = 0;
        loop {
            match (self.snapshot)().await {
                Ok((at, entries)) => {
                    let events = entries
                        .into_iter()
                        .map(|(key, entry)| WatchEvent::Snapshot { key, entry });
                    self.ready.extend(events);
                    self.ready.push_back(WatchEvent::CaughtUp);
                    self.seen = Some(at);
                    return;
                }
                Err(error) => {
                    tracing::warn!(prefix = %self.prefix, %error, "watch can't read its entries");
                    attempt += 1;
                    crate::clock::back_off(attempt).await;
                }
            }
        }
    }

    fn take(&mut self, published: &Published) {
        for change in &published.changes {
            if !change.key.is_under(&self.prefix) {
                continue;
            }
            let key = change.key.clone();
            self.ready.push_back(match &change.entry {
                Some(entry) => WatchEvent::Put {
                    key,
                    entry: entry.clone(),
                },
                None => WatchEvent::Delete {
                    key,
                    at: published.at,
                },
            });
        }
    }
}
