//! Versioned entries under paths, changed by small transactions: the seam to whatever keeps them.
//!
//! # Laws
//!
//! Every backend obeys these, and runs [`conformance`] to show it.
//!
//! * **L1** A read sees every write that was answered before it began.
//! * **L2** A transaction happens as a whole or not at all, also across a crash.
//! * **L3** [`Expect::At`] holds if and only if nothing wrote the key since that revision, deletion
//!   and re-creation included: a revision never comes back.
//! * **L4** Two transactions never share a revision; one that names a key twice is refused.
//! * **L5** A failed transaction writes nothing and names the operation that failed.
//! * **L6** A failed fence is reported before any conflict.
//! * **L7** After [`StoreError::Unknown`] the same transaction may be sent again: it is applied
//!   once or not at all.
//! * **L8** A watcher sees every change after [`WatchEvent::CaughtUp`], in revision order, or
//!   [`WatchEvent::Reset`]; never a silent gap.
//! * **L9** The keys of a lost session vanish, and the owner's [`Session::lost`] resolves before
//!   anyone can see them gone.
//! * **L10** [`MetadataStore::take_ids`] never hands out a number twice, also across a crash.
//! * **L11** A value of [`Limits::max_value_bytes`] works; one byte more is
//!   [`StoreError::TooLarge`], and the store goes on working.
//! * **L12** [`MetadataStore::children`] returns direct children only.

use std::fmt;
use std::ops::Range;
use std::pin::Pin;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::Stream;
use tokio::sync::watch;

pub mod conformance;
mod key;
pub mod memory;
mod txn;
mod watch_hub;

pub use key::{Key, MAX_KEY_BYTES, MAX_KEY_DEPTH};
pub use txn::{Expect, Fence, Op, Txn};
pub use watch_hub::{Change, SnapshotFn, WatchHub};

/// What the store answers.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// A moment of the store's history. Equal means: the very same transaction.
#[derive(Clone, Copy, Debug)]
pub struct Revision {
    id: u64,
    aux: u32,
}

impl Revision {
    /// The revision of the transaction numbered `id`; numbers rise with time and are never used
    /// again.
    pub fn new(id: u64) -> Self {
        Self { id, aux: 0 }
    }

    /// As [`Self::new`], with a number that the backend needs to find the entry again.
    pub fn with_aux(id: u64, aux: u32) -> Self {
        Self { id, aux }
    }

    /// The transaction's number.
    pub fn id(self) -> u64 {
        self.id
    }

    /// The backend's own number; 0 where it has none.
    pub fn aux(self) -> u32 {
        self.aux
    }
}

impl PartialEq for Revision {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for Revision {}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "revision {}", self.id)
    }
}

/// A value with its history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versioned {
    /// The bytes.
    pub value: Bytes,
    /// The transaction that wrote them.
    pub modified: Revision,
    /// The transaction that created the key, since it was last absent.
    pub created: Revision,
}

/// An ephemeral owner of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub u64);

/// An open session; clones are the same session. Dropping it does not end it, see
/// [`MetadataStore::close_session`].
#[derive(Clone, Debug)]
pub struct Session {
    id: SessionId,
    lost: watch::Receiver<bool>,
}

/// The backend's side of a [`Session`]: dropping it ends the session for its owner.
#[derive(Debug)]
pub struct SessionEnd(watch::Sender<bool>);

impl Session {
    /// A session and the handle that ends it. For backends.
    pub fn new(id: SessionId) -> (Self, SessionEnd) {
        let (sender, lost) = watch::channel(false);
        (Self { id, lost }, SessionEnd(sender))
    }

    /// The session's number, for [`Op::Put`].
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// Whether the session has ended.
    pub fn is_lost(&self) -> bool {
        *self.lost.borrow() || self.lost.has_changed().is_err()
    }

    /// Resolves when the session has ended, before its keys can be seen gone. Cancel-safe.
    pub async fn lost(&self) {
        let mut lost = self.lost.clone();
        // An error means that the backend is gone, and the session with it.
        let _ = lost.wait_for(|lost| *lost).await;
    }
}

impl SessionEnd {
    /// Tells the owner that the session has ended.
    pub fn end(self) {
        self.0.send_replace(true);
    }
}

/// What a store can take; decided before anything is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest value, in bytes.
    pub max_value_bytes: usize,
    /// Most operations in a transaction.
    pub max_ops: usize,
    /// Most bytes of keys and values in a transaction.
    pub max_txn_bytes: usize,
}

impl Limits {
    /// The limits of the stores that live in this process: documents of 256 KiB.
    pub const EMBEDDED: Limits = Limits {
        max_value_bytes: 256 << 10,
        max_ops: 8192,
        max_txn_bytes: 8 << 20,
    };
}

/// A limit of [`Limits`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Bytes of one value.
    ValueBytes,
    /// Operations of one transaction.
    Ops,
    /// Bytes of one transaction.
    TxnBytes,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Limit::ValueBytes => "bytes of a value",
            Limit::Ops => "operations of a transaction",
            Limit::TxnBytes => "bytes of a transaction",
        })
    }
}

/// Why the store refused.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum StoreError {
    /// An expectation failed; nothing was written.
    #[error("operation {op} expected another revision, found {found:?}")]
    Conflict {
        /// Index of the operation.
        op: usize,
        /// What its key holds now.
        found: Option<Revision>,
    },
    /// The fence failed: another coordinator is active. Nothing was written; never tried again.
    #[error("another coordinator has become active")]
    Fenced,
    /// Larger than the store takes; nothing was sent.
    #[error("{size} {what}, but the metadata store takes at most {max}")]
    TooLarge {
        /// Which limit.
        what: Limit,
        /// The size asked for.
        size: usize,
        /// The limit.
        max: usize,
    },
    /// Sent, and not known to have happened: it may have, or may still.
    #[error("the outcome of a metadata transaction is unknown")]
    Unknown,
    /// The session of an ephemeral key has ended.
    #[error("the session has ended")]
    SessionLost,
    /// The store can't be reached now; nothing was written.
    #[error("the metadata store is unavailable: {reason}")]
    Unavailable {
        /// What the backend said.
        reason: String,
    },
    /// Stored bytes can't be read. Never the same as absent.
    #[error("the metadata store is corrupt: {reason}")]
    Corrupt {
        /// What can't be read.
        reason: String,
    },
    /// Text that makes no key.
    #[error("`{path}` is no key: {reason}")]
    BadKey {
        /// The path as built.
        path: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A transaction names a key twice, or one below a tree it deletes.
    #[error("a transaction names {key} twice")]
    KeyTwice {
        /// The key.
        key: Key,
    },
}

impl StoreError {
    /// Whether the same call may succeed later, unchanged.
    pub fn is_retriable(&self) -> bool {
        matches!(self, StoreError::Unavailable { .. })
    }
}

/// One page of a scan.
#[derive(Clone, Debug)]
pub struct Page {
    /// Only keys after this one, in [`Key`] order.
    pub after: Option<Key>,
    /// At most so many entries, at least 1.
    pub limit: usize,
}

impl Page {
    /// The first page.
    pub fn first(limit: usize) -> Self {
        Self { after: None, limit }
    }
}

/// What a watcher sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchEvent {
    /// An entry that was there when the watch began (or began again after a reset).
    Snapshot {
        /// The key.
        key: Key,
        /// Its value.
        entry: Versioned,
    },
    /// All entries were listed; every change after this is seen.
    CaughtUp,
    /// A key was written.
    Put {
        /// The key.
        key: Key,
        /// Its value.
        entry: Versioned,
    },
    /// A key was deleted.
    Delete {
        /// The key.
        key: Key,
        /// The transaction that deleted it.
        at: Revision,
    },
    /// Changes were missed: forget everything, the list follows again.
    Reset,
}

/// The events of a watch. Ends only when the store is closed.
pub type WatchStream = Pin<Box<dyn Stream<Item = WatchEvent> + Send>>;

/// A store of versioned entries. See the module's laws.
#[async_trait]
pub trait MetadataStore: Send + Sync + fmt::Debug {
    /// The entry of `key`; `None` if there is none. Linearizable.
    async fn get(&self, key: &Key) -> Result<Option<Versioned>>;

    /// The entries of `keys`, in their order. Each is linearizable; together they are no snapshot.
    async fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Versioned>>>;

    /// Names of the direct children of `key` that hold a value, sorted as bytes.
    async fn children(&self, key: &Key) -> Result<Vec<String>>;

    /// Entries of `prefix` itself and everything below it, in [`Key`] order.
    async fn scan(&self, prefix: &Key, page: Page) -> Result<Vec<(Key, Versioned)>>;

    /// Applies a transaction, all or nothing, and returns its revision.
    async fn commit(&self, txn: Txn) -> Result<Revision>;

    /// The entries of `prefix` and below, then their changes.
    fn watch(&self, prefix: &Key) -> WatchStream;

    /// Opens a session whose keys vanish within `ttl` + 5 s after its owner is gone. A store that
    /// lives in this process ends its sessions with [`Self::close_session`] and with the process,
    /// not by time.
    async fn open_session(&self, ttl: Duration) -> Result<Session>;

    /// Ends a session: its owner is told, then its keys are deleted. Ending it twice is fine.
    async fn close_session(&self, session: SessionId) -> Result<()>;

    /// Takes `count` numbers that nobody else gets, from 0 upwards, maybe with gaps. The counter's
    /// value is the next number as an 8-byte big-endian long.
    async fn take_ids(&self, counter: &Key, count: u32) -> Result<Range<u64>>;

    /// What this store can take.
    fn limits(&self) -> Limits;
}
