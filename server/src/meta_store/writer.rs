//! The one writer: takes queued requests in order, writes many with one sync, then answers.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot, watch};
use weir_catalog::store::{
    Change, Expect, Key, Op, Result, Revision, Session, SessionEnd, SessionId, StoreError, Txn,
    Versioned, WatchHub,
};

use super::database::Database;
use super::entry::{self, Entry};

/// Requests written with one sync at most.
const MAX_GROUP: usize = 256;

/// What the writer is asked for; the sender is dropped unanswered if the outcome is unknown.
#[derive(Debug)]
pub(super) enum Request {
    Commit {
        txn: Txn,
        reply: oneshot::Sender<Result<Revision>>,
    },
    TakeIds {
        counter: Key,
        count: u32,
        reply: oneshot::Sender<Result<Range<u64>>>,
    },
    OpenSession {
        reply: oneshot::Sender<Result<Session>>,
    },
    CloseSession {
        session: SessionId,
        reply: oneshot::Sender<Result<()>>,
    },
}

/// The writer's own state.
pub(super) struct Writer {
    database: Arc<Database>,
    hub: WatchHub,
    sessions: HashMap<SessionId, SessionEnd>,
    last_revision: u64,
    next_session: u64,
    failed: watch::Sender<Option<String>>,
}

/// Requests of one sync.
struct Group<'a> {
    database: &'a Database,
    sessions: &'a HashMap<SessionId, SessionEnd>,
    last_revision: u64,
    /// Stored keys that the group changes: what is on disk, and what will be.
    overlay: BTreeMap<Vec<u8>, Slot>,
    published: Vec<(Revision, Vec<Change>)>,
    answers: Vec<Answer>,
}

/// A change of one key: its stored form, the key, and what it gets; None deletes it.
type Write = (Vec<u8>, Key, Option<(Bytes, Option<SessionId>)>);

struct Slot {
    stored: Option<Entry>,
    current: Option<Entry>,
}

enum Answer {
    Commit(oneshot::Sender<Result<Revision>>, Result<Revision>),
    Ids(oneshot::Sender<Result<Range<u64>>>, Result<Range<u64>>),
    Closed(oneshot::Sender<Result<()>>, Result<()>),
}

impl Writer {
    /// Removes the keys of sessions of earlier processes and begins a new incarnation.
    pub(super) fn start(
        database: Arc<Database>,
        hub: WatchHub,
        failed: watch::Sender<Option<String>>,
    ) -> Result<Self> {
        let incarnation = database.incarnation()? + 1;
        let at = Revision::new(database.last_revision()?.id() + 1);
        let orphans = database.session_keys()?;
        let mut batch = database.batch()?;
        for (_, key) in &orphans {
            let old = database.get(key)?;
            batch.set(key, old.as_ref(), None);
        }
        batch.note(at, orphans.iter().map(|(_, key)| key.as_slice()));
        batch.set_last_revision(at);
        batch.set_incarnation(incarnation);
        database
            .write(batch)
            .map_err(|error| StoreError::Unavailable {
                reason: error.into_string(),
            })?;
        let next_session = (incarnation << 32) + 1;
        let last_revision = at.id();
        let sessions = HashMap::new();
        Ok(Self {
            database,
            hub,
            sessions,
            last_revision,
            next_session,
            failed,
        })
    }

    /// Runs until the queue is closed or a write fails.
    pub(super) fn run(mut self, mut queue: mpsc::Receiver<Request>) {
        let mut requests = Vec::with_capacity(MAX_GROUP);
        while let Some(first) = queue.blocking_recv() {
            requests.push(first);
            while requests.len() < MAX_GROUP
                && let Ok(next) = queue.try_recv()
            {
                requests.push(next);
            }
            if let Err(reason) = self.write_group(requests.drain(..)) {
                tracing::error!(reason, "the metadata store can't write any more");
                self.failed.send_replace(Some(reason));
                return;
            }
        }
    }

    /// Nobody is answered before all is durable: what a refusal saw must not vanish either.
    fn write_group(&mut self, requests: impl Iterator<Item = Request>) -> Result<(), String> {
        let database = Arc::clone(&self.database);
        let mut ended = Vec::new();
        let mut opened = Vec::new();
        let mut rest = Vec::new();
        for request in requests {
            match request {
                Request::OpenSession { reply } => opened.push(reply),
                Request::CloseSession { session, .. } => {
                    // Its owner knows before anyone can see the keys gone.
                    if let Some(end) = self.sessions.remove(&session) {
                        end.end();
                        ended.push(session);
                    }
                    rest.push(request);
                }
                Request::Commit { .. } | Request::TakeIds { .. } => rest.push(request),
            }
        }
        for reply in opened {
            self.open_session(reply);
        }
        let mut group = Group {
            database: &database,
            sessions: &self.sessions,
            last_revision: self.last_revision,
            overlay: BTreeMap::new(),
            published: Vec::new(),
            answers: Vec::new(),
        };
        for request in rest {
            group.take(request, &ended);
        }
        self.last_revision = group.write()?;
        for (at, changes) in group.published {
            self.hub.publish(at, changes);
        }
        for answer in group.answers {
            answer.send();
        }
        Ok(())
    }

    fn open_session(&mut self, reply: oneshot::Sender<Result<Session>>) {
        let (session, end) = Session::new(SessionId(self.next_session));
        self.next_session += 1;
        self.sessions.insert(session.id(), end);
        if let Err(Ok(unwanted)) = reply.send(Ok(session)) {
            self.sessions.remove(&unwanted.id());
        }
    }
}

impl Answer {
    /// Whoever no longer waits does not want it.
    fn send(self) {
        match self {
            Answer::Commit(reply, result) => drop(reply.send(result)),
            Answer::Ids(reply, result) => drop(reply.send(result)),
            Answer::Closed(reply, result) => drop(reply.send(result)),
        }
    }
}

impl Group<'_> {
    fn take(&mut self, request: Request, ended: &[SessionId]) {
        let answer = match request {
            Request::Commit { txn, reply } => Answer::Commit(reply, self.commit(txn)),
            Request::TakeIds {
                counter,
                count,
                reply,
            } => Answer::Ids(reply, self.take_ids(counter, count)),
            Request::CloseSession { session, reply } => {
                let closed = if ended.contains(&session) {
                    self.close(session)
                } else {
                    Ok(())
                };
                Answer::Closed(reply, closed)
            }
            // Answered before the group began.
            Request::OpenSession { .. } => return,
        };
        self.answers.push(answer);
    }

    fn commit(&mut self, txn: Txn) -> Result<Revision> {
        self.check(&txn)?;
        self.apply(txn.ops)
    }

    fn check(&mut self, txn: &Txn) -> Result<()> {
        if let Some(fence) = &txn.fence
            && self.find(&fence.key)?.map(|entry| entry.modified) != Some(fence.at)
        {
            return Err(StoreError::Fenced);
        }
        for (index, op) in txn.ops.iter().enumerate() {
            if let Op::Put {
                session: Some(session),
                ..
            } = op
                && !self.sessions.contains_key(session)
            {
                return Err(StoreError::SessionLost);
            }
            if op.expect() == Expect::Any {
                continue;
            }
            let found = self.find(op.key())?;
            if !op.expect().holds(found.as_ref()) {
                let found = found.map(|entry| entry.modified);
                return Err(StoreError::Conflict { op: index, found });
            }
        }
        Ok(())
    }

    /// Applies checked operations under the next revision. Everything is read before anything changes,
    /// so that a failed read changes nothing.
    fn apply(&mut self, ops: Vec<Op>) -> Result<Revision> {
        let at = Revision::new(self.last_revision + 1);
        let mut writes: Vec<Write> = Vec::new();
        for op in ops {
            match op {
                Op::Check { .. } => {}
                Op::Put {
                    key,
                    value,
                    session,
                    ..
                } => {
                    writes.push((entry::encode_key(&key), key, Some((value, session))));
                }
                Op::Delete { key, .. } => writes.push((entry::encode_key(&key), key, None)),
                Op::DeleteTree { key, .. } => {
                    for stored in self.stored_under(&key)? {
                        let key = entry::decode_key(&stored)?;
                        writes.push((stored, key, None));
                    }
                }
            }
        }
        for (stored, _, _) in &writes {
            self.load(stored)?;
        }
        let mut changes = Vec::with_capacity(writes.len());
        for (stored, key, value) in writes {
            let Some(slot) = self.overlay.get_mut(&stored) else {
                continue;
            };
            if value.is_none() && slot.current.is_none() {
                continue;
            }
            let entry = value.map(|(value, session)| Entry {
                versioned: Versioned {
                    value,
                    modified: at,
                    created: slot
                        .current
                        .as_ref()
                        .map_or(at, |entry| entry.versioned.created),
                },
                session,
            });
            changes.push(Change {
                key,
                entry: entry.as_ref().map(|entry| entry.versioned.clone()),
            });
            slot.current = entry;
        }
        self.last_revision = at.id();
        self.published.push((at, changes));
        Ok(at)
    }

    fn take_ids(&mut self, counter: Key, count: u32) -> Result<Range<u64>> {
        let start = match self.find(&counter)? {
            None => 0,
            Some(entry) => {
                let bytes = entry
                    .value
                    .as_ref()
                    .try_into()
                    .map_err(|_| StoreError::Corrupt {
                        reason: format!("the counter {counter} holds no number of 8 bytes"),
                    })?;
                u64::from_be_bytes(bytes)
            }
        };
        let end = start
            .checked_add(u64::from(count))
            .ok_or_else(|| StoreError::Corrupt {
                reason: format!("the counter {counter} is used up at {start}"),
            })?;
        let value = Bytes::copy_from_slice(&end.to_be_bytes());
        self.apply(vec![Op::Put {
            key: counter,
            value,
            expect: Expect::Any,
            session: None,
        }])?;
        Ok(start..end)
    }

    fn close(&mut self, session: SessionId) -> Result<()> {
        let stored = self.database.session_keys()?.into_iter();
        let mut keys: Vec<Vec<u8>> = stored
            .filter(|(owner, _)| *owner == session.0)
            .map(|(_, key)| key)
            .collect();
        keys.extend(self.overlay.keys().cloned());
        keys.sort_unstable();
        keys.dedup();
        let mut ops = Vec::new();
        for key in keys {
            if self
                .load(&key)?
                .current
                .as_ref()
                .is_some_and(|entry| entry.session == Some(session))
            {
                ops.push(Op::Delete {
                    key: entry::decode_key(&key)?,
                    expect: Expect::Any,
                });
            }
        }
        self.apply(ops).map(drop)
    }

    fn find(&mut self, key: &Key) -> Result<Option<Versioned>> {
        let slot = self.load(&entry::encode_key(key))?;
        Ok(slot.current.as_ref().map(|entry| entry.versioned.clone()))
    }

    fn load(&mut self, stored: &[u8]) -> Result<&Slot> {
        if !self.overlay.contains_key(stored) {
            let found = self.database.get(stored)?;
            let slot = Slot {
                stored: found.clone(),
                current: found,
            };
            self.overlay.insert(stored.to_vec(), slot);
        }
        self.overlay.get(stored).ok_or(StoreError::Unknown)
    }

    /// A key and all below, on disk or in this group.
    fn stored_under(&self, root: &Key) -> Result<Vec<Vec<u8>>> {
        let mut keys = self.database.keys_below(root)?;
        for stored in self.overlay.keys() {
            if entry::decode_key(stored)?.is_under(root) {
                keys.push(stored.clone());
            }
        }
        keys.push(entry::encode_key(root));
        keys.sort_unstable();
        keys.dedup();
        Ok(keys)
    }

    /// One synced write for all that changed; returns the last revision.
    fn write(&self) -> Result<u64, String> {
        if self.published.is_empty() {
            return Ok(self.last_revision);
        }
        let mut batch = self.database.batch().map_err(|error| error.to_string())?;
        for (key, slot) in &self.overlay {
            if slot.stored != slot.current {
                batch.set(key, slot.stored.as_ref(), slot.current.as_ref());
            }
        }
        for (at, changes) in &self.published {
            let keys: Vec<Vec<u8>> = changes
                .iter()
                .map(|change| entry::encode_key(&change.key))
                .collect();
            batch.note(*at, keys.iter().map(Vec::as_slice));
        }
        batch.set_last_revision(Revision::new(self.last_revision));
        self.database
            .write(batch)
            .map_err(rocksdb::Error::into_string)?;
        Ok(self.last_revision)
    }
}
