//! The primary-key state of one bucket, behind one door that keeps RocksDB off the async threads.
//!
//! * [`value`]: how a value is stored: layout version, schema id, row.
//! * [`environment`]: what all buckets of a process share: memory, permits, cursors, the clock.
//! * [`store`]: [`KvStore`], one RocksDB directory per bucket: point reads, prefix and limited
//!   scans, whole scans by [`cursor`]s, and one atomic write for all that became durable in the
//!   log.
//! * [`pre_write_buffer`]: what is in the log already but not in the store yet. Pure.
//! * [`snapshot`]: snapshots in an object store that share files with earlier ones, and restoring
//!   from them.
//! * [`upsert`]: what a put or a delete makes of a key, and the changelog it leaves. Pure.
//!
//! A put goes this way: look for the old value in the pre-write buffer, then in the store; let
//! [`upsert`] decide; buffer the new value at the offset of its last change; append the changes to
//! the log. If the append fails, [`PreWriteBuffer::truncate_from`] takes the values back. Once the
//! log is durable and replicated, [`PreWriteBuffer::flush_up_to`] gives one batch, and
//! [`KvStore::apply`] writes it together with the offset that it reaches. The log is the
//! write-ahead log of the store: after a crash the store stands at an earlier offset that it tells
//! ([`KvStore::position`]), and the log from there on is applied again.
//!
//! What this crate does not do: it appends to no log, knows no leaders, and serves no requests.

mod cursor_thread;
mod database;
mod error;
mod state;

pub mod cursor;
pub mod environment;
pub mod pre_write_buffer;
pub mod snapshot;
pub mod store;
pub mod upsert;
pub mod value;

pub use cursor::{CursorId, CursorStart, Page};
pub use database::Scanned;
pub use environment::{Clock, KvConfig, KvEnvironment};
pub use error::{Error, Result};
pub use pre_write_buffer::{FlushBatch, Newest, PreWriteBuffer, RowCountChange};
pub use snapshot::{Snapshot, SnapshotFolder};
pub use state::Position;
pub use store::KvStore;
pub use value::StoredValue;
