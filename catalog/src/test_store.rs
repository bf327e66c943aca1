//! A store that loses requests and replies when told to. Tests only.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;

use crate::store::memory::MemoryStore;
use crate::store::{
    Key, Limits, MetadataStore, Page, Result, Revision, Session, SessionId, StoreError, Txn,
    Versioned, WatchStream,
};

/// What happens to a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// It is done, and its answer lost.
    LostReply,
    /// It never arrives, and the caller can't tell.
    LostRequest,
    /// It is refused.
    Unavailable,
}

type Hook = Box<dyn FnOnce(&MemoryStore) + Send>;

/// Counts calls from 1 and lets chosen ones fail.
#[derive(Default)]
pub(crate) struct FaultyStore {
    inner: MemoryStore,
    script: Mutex<Script>,
}

#[derive(Default)]
struct Script {
    calls: u32,
    commits: u32,
    failing_call: Option<(u32, Fault)>,
    failing_commits: BTreeMap<u32, Fault>,
    hooks: BTreeMap<u32, Hook>,
}

impl std::fmt::Debug for FaultyStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FaultyStore")
    }
}

impl FaultyStore {
    pub(crate) fn new(inner: MemoryStore) -> Self {
        Self {
            inner,
            script: Mutex::default(),
        }
    }

    /// Starts counting again, and forgets all faults.
    pub(crate) fn forget_calls(&self) {
        *self.script.lock() = Script::default();
    }

    /// How many calls were made.
    pub(crate) fn calls(&self) -> u32 {
        self.script.lock().calls
    }

    /// How many commits were tried.
    pub(crate) fn commits(&self) -> u32 {
        self.script.lock().commits
    }

    /// Call number `call`, of any kind, fails.
    pub(crate) fn fail_call(&self, call: u32, fault: Fault) {
        self.script.lock().failing_call = Some((call, fault));
    }

    /// Commit number `commit` fails.
    pub(crate) fn fail_commit(&self, commit: u32, fault: Fault) {
        self.script.lock().failing_commits.insert(commit, fault);
    }

    /// Runs `hook` right before commit number `commit`.
    pub(crate) fn before_commit(
        &self,
        commit: u32,
        hook: impl FnOnce(&MemoryStore) + Send + 'static,
    ) {
        self.script.lock().hooks.insert(commit, Box::new(hook));
    }

    fn count_call(&self) -> Option<Fault> {
        let mut script = self.script.lock();
        script.calls += 1;
        script
            .failing_call
            .filter(|(call, _)| *call == script.calls)
            .map(|(_, fault)| fault)
    }

    fn read(&self) -> Result<()> {
        match self.count_call() {
            Some(_) => Err(StoreError::Unavailable {
                reason: "told to fail".to_owned(),
            }),
            None => Ok(()),
        }
    }
}

#[async_trait]
impl MetadataStore for FaultyStore {
    async fn get(&self, key: &Key) -> Result<Option<Versioned>> {
        self.read()?;
        self.inner.get(key).await
    }

    async fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Versioned>>> {
        self.read()?;
        self.inner.get_many(keys).await
    }

    async fn children(&self, key: &Key) -> Result<Vec<String>> {
        self.read()?;
        self.inner.children(key).await
    }

    async fn scan(&self, prefix: &Key, page: Page) -> Result<Vec<(Key, Versioned)>> {
        self.read()?;
        self.inner.scan(prefix, page).await
    }

    async fn commit(&self, txn: Txn) -> Result<Revision> {
        let call_fault = self.count_call();
        let (fault, hook) = {
            let mut script = self.script.lock();
            script.commits += 1;
            let commit = script.commits;
            (
                script.failing_commits.remove(&commit),
                script.hooks.remove(&commit),
            )
        };
        if let Some(hook) = hook {
            hook(&self.inner);
        }
        match call_fault.or(fault) {
            None => self.inner.commit(txn).await,
            Some(Fault::LostRequest) => Err(StoreError::Unknown),
            Some(Fault::Unavailable) => Err(StoreError::Unavailable {
                reason: "told to fail".to_owned(),
            }),
            Some(Fault::LostReply) => match self.inner.commit(txn).await {
                Ok(_) => Err(StoreError::Unknown),
                error => error,
            },
        }
    }

    fn watch(&self, prefix: &Key) -> WatchStream {
        self.inner.watch(prefix)
    }

    async fn open_session(&self, ttl: Duration) -> Result<Session> {
        self.inner.open_session(ttl).await
    }

    async fn close_session(&self, session: SessionId) -> Result<()> {
        self.inner.close_session(session).await
    }

    async fn take_ids(&self, counter: &Key, count: u32) -> Result<Range<u64>> {
        self.read()?;
        self.inner.take_ids(counter, count).await
    }

    fn limits(&self) -> Limits {
        self.inner.limits()
    }
}
