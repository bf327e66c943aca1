//! Scans of a whole bucket: cursors over the state at one moment, read page by page.
//!
//! Limits and meanings follow fluss `ScannerManager` and `ScannerContext`: at most so many cursors
//! a bucket and a server, pages counted from 0, and an end to cursors that nobody uses.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use crate::cursor_thread::{self, PageRequest};
use crate::database::Database;
use crate::environment::KvEnvironment;
use crate::error::{Error, Result};
use crate::state::Position;
use crate::value::StoredValue;

/// Expired cursors that are still told apart from unknown ones.
const REMEMBERED_EXPIRED: usize = 1024;

/// A cursor of one store, never used again by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CursorId(pub u64);

impl fmt::Display for CursorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A cursor that was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CursorStart {
    /// The cursor; its first page is page 0.
    pub id: CursorId,
    /// What the scan sees: exactly the changes below this position.
    pub position: Position,
}

/// Some entries of a scan, in key order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Keys and values; none only at the end.
    pub entries: Vec<(Bytes, StoredValue)>,
    /// Whether there are more; if not, the cursor is closed.
    pub has_more: bool,
}

/// The open cursors of one store.
pub(crate) struct Cursors {
    environment: KvEnvironment,
    registry: Mutex<Registry>,
}

#[derive(Default)]
struct Registry {
    next_id: u64,
    open: HashMap<CursorId, Open>,
    expired: VecDeque<CursorId>,
}

/// Dropping it ends the cursor's thread.
struct Open {
    pages: mpsc::Sender<PageRequest>,
    next_page: u32,
    used_ms: i64,
}

impl Cursors {
    pub(crate) fn new(environment: KvEnvironment) -> Self {
        Self {
            environment,
            registry: Mutex::default(),
        }
    }

    /// Opens a cursor that ends after `limit` entries.
    pub(crate) async fn open(&self, database: Arc<Database>, limit: u64) -> Result<CursorStart> {
        self.expire();
        let permit = Arc::clone(&self.environment.cursors).try_acquire_owned();
        let permit = permit.map_err(|_| Error::TooManyCursors {
            scope: "the server",
            limit: self.environment.config.cursors,
        })?;
        let directory = database.directory().to_owned();
        let (pages, requests) = mpsc::channel(1);
        let id = self.register(pages)?;
        let unless_opened = Closer { cursors: self, id };
        let (started, start) = oneshot::channel();
        cursor_thread::spawn(database, limit, started, requests, permit)?;
        let position = start.await.map_err(|_| Error::Closed { directory })??;
        unless_opened.keep();
        Ok(CursorStart { id, position })
    }

    fn register(&self, pages: mpsc::Sender<PageRequest>) -> Result<CursorId> {
        let now_ms = (self.environment.clock)();
        let limit = self.environment.config.bucket_cursors;
        let mut registry = self.registry.lock();
        if registry.open.len() >= limit {
            return Err(Error::TooManyCursors {
                scope: "the bucket",
                limit,
            });
        }
        let id = CursorId(registry.next_id);
        registry.next_id += 1;
        let open = Open {
            pages,
            next_page: 0,
            used_ms: now_ms,
        };
        registry.open.insert(id, open);
        Ok(id)
    }

    /// The next page: at least one entry, then as many as fit into `max_bytes` of keys and rows.
    pub(crate) async fn next_page(
        &self,
        id: CursorId,
        page: u32,
        max_bytes: usize,
    ) -> Result<Page> {
        self.expire();
        let pages = self.turn_to(id, page)?;
        let (reply, answer) = oneshot::channel();
        let request = PageRequest { max_bytes, reply };
        let unknown = || Error::UnknownCursor { cursor: id };
        pages.send(request).await.map_err(|_| unknown())?;
        let answer = answer.await.map_err(|_| unknown())?;
        if answer.as_ref().is_ok_and(|page| page.has_more) {
            self.touch(id);
        } else {
            self.close(id);
        }
        answer
    }

    /// Counts the page before it is read: a caller that gives up must not get the page behind it
    /// unknowingly.
    fn turn_to(&self, id: CursorId, page: u32) -> Result<mpsc::Sender<PageRequest>> {
        let now_ms = (self.environment.clock)();
        let mut registry = self.registry.lock();
        let was_expired = registry.expired.contains(&id);
        let Some(open) = registry.open.get_mut(&id) else {
            return Err(if was_expired {
                Error::CursorExpired { cursor: id }
            } else {
                Error::UnknownCursor { cursor: id }
            });
        };
        if open.next_page != page {
            return Err(Error::PageOrder {
                cursor: id,
                expected: open.next_page,
                found: page,
            });
        }
        open.next_page = open.next_page.wrapping_add(1);
        open.used_ms = now_ms;
        Ok(open.pages.clone())
    }

    fn touch(&self, id: CursorId) {
        let now_ms = (self.environment.clock)();
        if let Some(open) = self.registry.lock().open.get_mut(&id) {
            open.used_ms = now_ms;
        }
    }

    /// Ends cursors that were not used for too long; how many.
    pub(crate) fn expire(&self) -> usize {
        let now_ms = (self.environment.clock)();
        let idle_ms = i64::try_from(self.environment.config.cursor_idle.as_millis());
        let oldest_ms = now_ms.saturating_sub(idle_ms.unwrap_or(i64::MAX));
        let mut registry = self.registry.lock();
        let idle = |(id, open): (&CursorId, &Open)| (open.used_ms < oldest_ms).then_some(*id);
        let expired: Vec<CursorId> = registry.open.iter().filter_map(idle).collect();
        for id in &expired {
            registry.open.remove(id);
            registry.expired.push_back(*id);
        }
        let forgotten = registry.expired.len().saturating_sub(REMEMBERED_EXPIRED);
        registry.expired.drain(..forgotten);
        expired.len()
    }

    /// Ends a cursor; nothing happens if there is none.
    pub(crate) fn close(&self, id: CursorId) {
        self.registry.lock().open.remove(&id);
    }

    /// Ends all.
    pub(crate) fn close_all(&self) {
        self.registry.lock().open.clear();
    }

    pub(crate) fn count(&self) -> usize {
        self.registry.lock().open.len()
    }
}

/// Closes a cursor whose opening failed or was given up.
struct Closer<'a> {
    cursors: &'a Cursors,
    id: CursorId,
}

impl Closer<'_> {
    fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Closer<'_> {
    fn drop(&mut self) {
        self.cursors.close(self.id);
    }
}
