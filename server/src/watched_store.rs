//! A metadata store for tests, where something happens between two calls.

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use weir_catalog::store::memory::MemoryStore;
use weir_catalog::store::{
    Key, Limits, MetadataStore, Page, Result as StoreResult, Revision, Session, SessionId, Txn,
    Versioned, WatchStream,
};

pub(crate) type Between = Pin<Box<dyn Future<Output = StoreResult<()>> + Send>>;
pub(crate) type Before = Box<dyn Fn(&Key) -> Option<Between> + Send + Sync>;
pub(crate) type After = Box<dyn Fn(&Txn) -> Option<Between> + Send + Sync>;

/// A store where something happens before a read, or after a transaction.
#[derive(Default)]
pub(crate) struct Watched {
    pub(crate) store: MemoryStore,
    pub(crate) before_get: Mutex<Option<Before>>,
    pub(crate) after_commit: Mutex<Option<After>>,
}

impl std::fmt::Debug for Watched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watched")
    }
}

#[async_trait]
impl MetadataStore for Watched {
    async fn get(&self, key: &Key) -> StoreResult<Option<Versioned>> {
        let between = self
            .before_get
            .lock()
            .as_ref()
            .and_then(|before| before(key));
        if let Some(between) = between {
            between.await?;
        }
        self.store.get(key).await
    }

    async fn get_many(&self, keys: &[Key]) -> StoreResult<Vec<Option<Versioned>>> {
        self.store.get_many(keys).await
    }

    async fn children(&self, key: &Key) -> StoreResult<Vec<String>> {
        self.store.children(key).await
    }

    async fn scan(&self, prefix: &Key, page: Page) -> StoreResult<Vec<(Key, Versioned)>> {
        self.store.scan(prefix, page).await
    }

    async fn commit(&self, txn: Txn) -> StoreResult<Revision> {
        let between = self
            .after_commit
            .lock()
            .as_ref()
            .and_then(|after| after(&txn));
        let committed = self.store.commit(txn).await?;
        if let Some(between) = between {
            between.await?;
        }
        Ok(committed)
    }

    fn watch(&self, prefix: &Key) -> WatchStream {
        self.store.watch(prefix)
    }

    async fn open_session(&self, ttl: Duration) -> StoreResult<Session> {
        self.store.open_session(ttl).await
    }

    async fn close_session(&self, session: SessionId) -> StoreResult<()> {
        self.store.close_session(session).await
    }

    async fn take_ids(&self, counter: &Key, count: u32) -> StoreResult<Range<u64>> {
        self.store.take_ids(counter, count).await
    }

    fn limits(&self) -> Limits {
        self.store.limits()
    }
}

/// Runs a future at the first call alone.
pub(crate) fn once(
    future: impl Fn() -> Between + Send + Sync + 'static,
) -> impl Fn() -> Option<Between> + Send + Sync {
    let done = AtomicBool::new(false);
    move || (!done.swap(true, Ordering::Relaxed)).then(&future)
}
