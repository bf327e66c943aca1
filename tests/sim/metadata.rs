//! The metadata store as one process reaches it.

use std::ops::Range;
use std::time::Duration;

use async_trait::async_trait;
use weir_catalog::store::memory::MemoryStore;
use weir_catalog::store::{
    Key, Limits, MetadataStore, Page, Result, Revision, Session, SessionId, StoreError, Txn,
    Versioned, WatchStream,
};

use crate::chaos::Kind;
use crate::process::{Process, Trouble};

#[derive(Clone, Debug)]
pub(crate) struct Metadata {
    pub(crate) store: MemoryStore,
    pub(crate) process: Process,
}

fn failed(trouble: Trouble) -> StoreError {
    match trouble {
        Trouble::Refused => StoreError::Unavailable {
            reason: "refused".to_owned(),
        },
        Trouble::Unknown | Trouble::MetItself => StoreError::Unknown,
    }
}

impl Metadata {
    async fn read<T, W>(&self, what: &str, work: W) -> Result<T>
    where
        T: Send + 'static,
        W: Future<Output = Result<T>> + Send + 'static,
    {
        let called = self.process.call(Kind::Metadata, what, work).await;
        called.map_err(|_| failed(Trouble::Refused))?
    }
}

#[async_trait]
impl MetadataStore for Metadata {
    async fn get(&self, key: &Key) -> Result<Option<Versioned>> {
        let (store, key) = (self.store.clone(), key.clone());
        self.read("get", async move { store.get(&key).await }).await
    }

    async fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Versioned>>> {
        let (store, keys) = (self.store.clone(), keys.to_vec());
        self.read("get many", async move { store.get_many(&keys).await })
            .await
    }

    async fn children(&self, key: &Key) -> Result<Vec<String>> {
        let (store, key) = (self.store.clone(), key.clone());
        self.read("children", async move { store.children(&key).await })
            .await
    }

    async fn scan(&self, prefix: &Key, page: Page) -> Result<Vec<(Key, Versioned)>> {
        let (store, prefix) = (self.store.clone(), prefix.clone());
        self.read("scan", async move { store.scan(&prefix, page).await })
            .await
    }

    async fn commit(&self, txn: Txn) -> Result<Revision> {
        let store = self.store.clone();
        let what = format!("commit {:?}", txn.ops.first());
        let what: String = what.chars().take(160).collect();
        let called = self
            .process
            .call(Kind::Commit, &what, async move { store.commit(txn).await });
        called.await.map_err(failed)?
    }

    async fn take_ids(&self, counter: &Key, count: u32) -> Result<Range<u64>> {
        let (store, counter) = (self.store.clone(), counter.clone());
        let called = self.process.call(Kind::Commit, "take ids", async move {
            store.take_ids(&counter, count).await
        });
        called.await.map_err(failed)?
    }

    fn watch(&self, prefix: &Key) -> WatchStream {
        self.store.watch(prefix)
    }

    async fn open_session(&self, ttl: Duration) -> Result<Session> {
        self.store.open_session(ttl).await
    }

    async fn close_session(&self, session: SessionId) -> Result<()> {
        self.process.runs().await;
        self.store.close_session(session).await
    }

    fn limits(&self) -> Limits {
        self.store.limits()
    }
}
