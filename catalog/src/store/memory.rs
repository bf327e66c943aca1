//! A store that forgets everything with the process: the reference of the laws.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::FutureExt;
use parking_lot::Mutex;

use super::{
    Change, Key, Limits, MetadataStore, Op, Page, Result, Revision, Session, SessionEnd, SessionId,
    StoreError, Txn, Versioned, WatchHub, WatchStream,
};

/// The store. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    state: Arc<Mutex<State>>,
    hub: WatchHub,
}

#[derive(Debug, Default)]
struct State {
    entries: BTreeMap<Key, Entry>,
    sessions: HashMap<SessionId, SessionEnd>,
    last_revision: u64,
    last_session: u64,
}

#[derive(Clone, Debug)]
struct Entry {
    versioned: Versioned,
    session: Option<SessionId>,
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }
}

#[async_trait]
impl MetadataStore for MemoryStore {
    async fn get(&self, key: &Key) -> Result<Option<Versioned>> {
        Ok(self.state.lock().find(key).cloned())
    }

    async fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Versioned>>> {
        let state = self.state.lock();
        Ok(keys.iter().map(|key| state.find(key).cloned()).collect())
    }

    async fn children(&self, key: &Key) -> Result<Vec<String>> {
        let state = self.state.lock();
        let children = state.entries.keys().filter(|child| child.is_child_of(key));
        Ok(children.map(|child| child.name().to_owned()).collect())
    }

    async fn scan(&self, prefix: &Key, page: Page) -> Result<Vec<(Key, Versioned)>> {
        let state = self.state.lock();
        let after = |key: &Key| page.after.as_ref().is_none_or(|after| key > after);
        let entries = state.below(prefix).filter(|(key, _)| after(key));
        Ok(entries.take(page.limit).collect())
    }

    async fn commit(&self, txn: Txn) -> Result<Revision> {
        txn.validate(&self.limits())?;
        let mut state = self.state.lock();
        state.check(&txn)?;
        let at = state.next_revision();
        let mut changes = Vec::new();
        for op in txn.ops {
            state.apply(op, at, &mut changes);
        }
        // Published under the lock, so that watchers see revisions in order.
        self.hub.publish(at, changes);
        Ok(at)
    }

    fn watch(&self, prefix: &Key) -> WatchStream {
        let (state, from) = (Arc::clone(&self.state), prefix.clone());
        let snapshot = move || {
            let state = state.lock();
            let entries = state.below(&from).collect();
            let at = Revision::new(state.last_revision);
            futures::future::ready(Ok((at, entries))).boxed()
        };
        self.hub.watch(prefix.clone(), Arc::new(snapshot))
    }

    async fn open_session(&self, _ttl: Duration) -> Result<Session> {
        let mut state = self.state.lock();
        state.last_session += 1;
        let (session, end) = Session::new(SessionId(state.last_session));
        state.sessions.insert(session.id(), end);
        Ok(session)
    }

    async fn close_session(&self, session: SessionId) -> Result<()> {
        let mut state = self.state.lock();
        let Some(end) = state.sessions.remove(&session) else {
            return Ok(());
        };
        end.end();
        let owned = state
            .entries
            .iter()
            .filter(|(_, entry)| entry.session == Some(session));
        let keys: Vec<Key> = owned.map(|(key, _)| key.clone()).collect();
        let at = state.next_revision();
        let mut changes = Vec::new();
        for key in keys {
            state.apply(
                Op::Delete {
                    key,
                    expect: super::Expect::Any,
                },
                at,
                &mut changes,
            );
        }
        self.hub.publish(at, changes);
        Ok(())
    }

    async fn take_ids(&self, counter: &Key, count: u32) -> Result<Range<u64>> {
        let mut state = self.state.lock();
        let start = match state.find(counter) {
            Some(entry) => decode_counter(counter, &entry.value)?,
            None => 0,
        };
        let end = start
            .checked_add(u64::from(count))
            .ok_or_else(|| StoreError::Corrupt {
                reason: format!("the counter {counter} is used up at {start}"),
            })?;
        let at = state.next_revision();
        let value = Bytes::copy_from_slice(&end.to_be_bytes());
        let mut changes = Vec::new();
        let expect = super::Expect::Any;
        state.apply(
            Op::Put {
                key: counter.clone(),
                value,
                expect,
                session: None,
            },
            at,
            &mut changes,
        );
        self.hub.publish(at, changes);
        Ok(start..end)
    }

    fn limits(&self) -> Limits {
        Limits::EMBEDDED
    }
}

fn decode_counter(counter: &Key, value: &[u8]) -> Result<u64> {
    let bytes = value.try_into().map_err(|_| StoreError::Corrupt {
        reason: format!(
            "the counter {counter} holds {} bytes instead of 8",
            value.len()
        ),
    })?;
    Ok(u64::from_be_bytes(bytes))
}

impl State {
    fn find(&self, key: &Key) -> Option<&Versioned> {
        self.entries.get(key).map(|entry| &entry.versioned)
    }

    fn below(&self, prefix: &Key) -> impl Iterator<Item = (Key, Versioned)> {
        let entries = self
            .entries
            .iter()
            .filter(move |(key, _)| key.is_under(prefix));
        entries.map(|(key, entry)| (key.clone(), entry.versioned.clone()))
    }

    fn next_revision(&mut self) -> Revision {
        self.last_revision += 1;
        Revision::new(self.last_revision)
    }

    fn check(&self, txn: &Txn) -> Result<()> {
        if let Some(fence) = &txn.fence
            && self.find(&fence.key).map(|entry| entry.modified) != Some(fence.at)
        {
            return Err(StoreError::Fenced);
        }
        for (op_index, op) in txn.ops.iter().enumerate() {
            if let Op::Put {
                session: Some(session),
                ..
            } = op
                && !self.sessions.contains_key(session)
            {
                return Err(StoreError::SessionLost);
            }
            let found = self.find(op.key());
            if !op.expect().holds(found) {
                let found = found.map(|entry| entry.modified);
                return Err(StoreError::Conflict {
                    op: op_index,
                    found,
                });
            }
        }
        Ok(())
    }

    fn apply(&mut self, op: Op, at: Revision, changes: &mut Vec<Change>) {
        match op {
            Op::Check { .. } => {}
            Op::Put {
                key,
                value,
                session,
                ..
            } => {
                let created = self.find(&key).map_or(at, |entry| entry.created);
                let versioned = Versioned {
                    value,
                    modified: at,
                    created,
                };
                changes.push(Change {
                    key: key.clone(),
                    entry: Some(versioned.clone()),
                });
                self.entries.insert(key, Entry { versioned, session });
            }
            Op::Delete { key, .. } => {
                if self.entries.remove(&key).is_some() {
                    changes.push(Change { key, entry: None });
                }
            }
            Op::DeleteTree { key: root, .. } => {
                let below = self.entries.keys().filter(|key| key.is_under(&root));
                for key in below.cloned().collect::<Vec<_>>() {
                    self.entries.remove(&key);
                    changes.push(Change { key, entry: None });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;

    use super::*;
    use crate::store::{Expect, WatchEvent};

    #[tokio::test]
    async fn the_memory_store_keeps_the_laws() {
        crate::store::conformance::all(&MemoryStore::new())
            .await
            .unwrap();
    }

    #[tokio::test]
    async fn a_watcher_that_lags_is_told_and_gets_the_list_again() {
        let store = MemoryStore::new();
        let (key, other) = (Key::rebalance(), Key::server_tags());
        let mut events = store.watch(&Key::rebalance());
        assert_eq!(events.next().await, Some(WatchEvent::CaughtUp));
        for round in 0..3000 {
            let txn = Txn::new(None).put(key.clone(), round.to_string(), Expect::Any);
            store.commit(txn).await.unwrap();
        }
        let txn = Txn::new(None).put(other, "not watched", Expect::Any);
        store.commit(txn).await.unwrap();
        assert_eq!(events.next().await, Some(WatchEvent::Reset));
        match events.next().await {
            Some(WatchEvent::Snapshot { entry, .. }) => assert_eq!(entry.value, "2999"),
            other => panic!("{other:?}"),
        }
        assert_eq!(events.next().await, Some(WatchEvent::CaughtUp));
        store
            .commit(Txn::new(None).delete(key, Expect::Present))
            .await
            .unwrap();
        assert!(matches!(
            events.next().await,
            Some(WatchEvent::Delete { .. })
        ));
    }
}
