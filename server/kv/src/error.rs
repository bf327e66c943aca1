//! Why a call of this crate failed.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

use weir_protocol::ids::{LogOffset, SchemaId, TableBucket};

use crate::cursor::CursorId;

/// The result of a call of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call of this crate failed. What can't be read is one of these, never an absent key.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The directory holds the state of another bucket; nothing in it was changed.
    #[error(
        "{}: holds the state of {found}, not of {expected}",
        directory.display()
    )]
    OtherBucket {
        /// The bucket's directory.
        directory: PathBuf,
        /// Whose state was asked for.
        expected: TableBucket,
        /// Whose state it is.
        found: TableBucket,
    },
    /// A newer release wrote the directory.
    #[error(
        "{}: key-value format version {found} is newer than {supported}; start the newer release",
        directory.display()
    )]
    NewerFormat {
        /// The bucket's directory.
        directory: PathBuf,
        /// Its version.
        found: u32,
        /// The newest version this release reads.
        supported: u32,
    },
    /// Stored bytes contradict themselves. The bucket must be restored, from a snapshot or from the
    /// log.
    #[error("{}: corrupt{}: {reason}", directory.display(), of_file(file.as_deref()))]
    Corrupt {
        /// The bucket's directory.
        directory: PathBuf,
        /// The file at fault, where RocksDB names one.
        file: Option<PathBuf>,
        /// What was met.
        reason: String,
    },
    /// The disk refused: full, gone, or not permitted. After a write that failed so, the store must
    /// be opened again and the log applied from its [position](crate::KvStore::position).
    #[error("{}: {action} failed{}: {reason}", directory.display(), of_file(file.as_deref()))]
    Disk {
        /// The bucket's directory.
        directory: PathBuf,
        /// The file at fault, where it is known.
        file: Option<PathBuf>,
        /// What was tried.
        action: &'static str,
        /// What the system said.
        reason: String,
    },
    /// RocksDB refused for another reason than its files.
    #[error("{}: {action} failed: {source}", directory.display())]
    RocksDb {
        /// The bucket's directory.
        directory: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What RocksDB said.
        source: rocksdb::Error,
    },
    /// The store was closed, or the process is stopping.
    #[error("{}: the store is closed", directory.display())]
    Closed {
        /// The bucket's directory.
        directory: PathBuf,
    },
    /// A stored value whose bytes are no value.
    #[error("value of key 0x{}: corrupt: {reason}", hex(key))]
    CorruptValue {
        /// The key.
        key: Vec<u8>,
        /// What is wrong.
        reason: &'static str,
    },
    /// A stored value in a layout of a newer release.
    #[error(
        "value of key 0x{}: layout {found} is newer than {supported}",
        hex(key)
    )]
    NewerValueLayout {
        /// The key.
        key: Vec<u8>,
        /// Its layout version.
        found: u8,
        /// The newest layout this release reads.
        supported: u8,
    },
    /// A schema id that no value can carry: below 0 or above 32 767.
    #[error("schema id {id} is not within 0 to 32767")]
    SchemaIdRange {
        /// The id.
        id: SchemaId,
    },
    /// Offsets that go back, or a flush or truncation that contradicts one under way.
    #[error("log offset {offset}: {reason} ({bound})")]
    OffsetOrder {
        /// The offset at fault.
        offset: LogOffset,
        /// The offset it contradicts.
        bound: LogOffset,
        /// How.
        reason: &'static str,
    },
    /// A row's schema is not known: newer than the latest, or never registered.
    #[error("schema {id} is not known; the latest is {latest}")]
    UnknownSchema {
        /// The row's schema.
        id: SchemaId,
        /// The latest schema.
        latest: SchemaId,
    },
    /// Target columns that this table does not take.
    #[error("target columns: {reason} (column `{column}`)")]
    TargetColumns {
        /// The column at fault, or its index if there is no such column.
        column: String,
        /// What is wrong.
        reason: &'static str,
    },
    /// The table's merge engine takes whole rows only.
    #[error("merge engine {engine} does not take partial updates; write all columns")]
    PartialUpdate {
        /// The engine.
        engine: &'static str,
    },
    /// A column that the server numbers has no number left in its type.
    #[error("column `{column}`: the next number, {number}, does not fit its type")]
    NumbersUsedUp {
        /// The column.
        column: String,
        /// The next number.
        number: i64,
    },
    /// A column names an aggregate function that the server does not have for it.
    #[error("column `{column}`: aggregate function {function}: {reason}")]
    AggregateFunction {
        /// The column.
        column: String,
        /// The function.
        function: String,
        /// What is wrong.
        reason: &'static str,
    },
    /// A value that can't be aggregated into its column; nothing of the batch was written.
    #[error("column `{column}`: {reason}")]
    Aggregate {
        /// The column.
        column: String,
        /// What is wrong.
        reason: &'static str,
    },
    /// The table's properties contradict each other or its schema.
    #[error("{property}: {reason} (`{value}`)")]
    TableProperty {
        /// The property.
        property: &'static str,
        /// Its value.
        value: String,
        /// What is wrong.
        reason: &'static str,
    },
    /// The table does not take deletes (`table.delete.behavior` = `disable`).
    #[error("deletes are disabled for this table")]
    DeletesDisabled,
    /// A row with null in a column that is NOT NULL.
    #[error("column `{column}` is NOT NULL but the row has no value for it")]
    NullValue {
        /// The column.
        column: String,
    },
    /// A row that does not follow its schema.
    #[error("a row of schema {schema} can't be read: {source}")]
    Row {
        /// The schema it claims.
        schema: SchemaId,
        /// What the codec found.
        source: weir_protocol::Error,
    },
    /// The object store did not do what it was asked for; whether it did a write is not known.
    #[error("{path}: {source}")]
    Remote {
        /// The object.
        path: String,
        /// What the object store said.
        source: object_store::Error,
    },
    /// A file of a snapshot, or the document that names them, is not what was written.
    #[error("{path}: corrupt: {reason}")]
    CorruptSnapshot {
        /// The object.
        path: String,
        /// What is wrong.
        reason: String,
    },
    /// A newer release wrote the snapshot.
    #[error("{path}: snapshot version {found} is newer than {supported}; start the newer release")]
    NewerSnapshot {
        /// The document.
        path: String,
        /// Its version.
        found: u32,
        /// The newest version this release reads.
        supported: u32,
    },
    /// Too many cursors are open; one will be free once a scan ends or expires.
    #[error("{scope} has {limit} open cursors already")]
    TooManyCursors {
        /// `the bucket` or `the server`.
        scope: &'static str,
        /// The limit that is reached.
        limit: usize,
    },
    /// The cursor was not used for longer than it may idle; start the scan again.
    #[error("cursor {cursor} expired")]
    CursorExpired {
        /// The cursor.
        cursor: CursorId,
    },
    /// No such cursor: never opened, at its end, or closed.
    #[error("cursor {cursor} is not known")]
    UnknownCursor {
        /// The cursor.
        cursor: CursorId,
    },
    /// A page was asked for out of order; the cursor did not move.
    #[error("cursor {cursor}: page {found} was asked for but {expected} is next")]
    PageOrder {
        /// The cursor.
        cursor: CursorId,
        /// The page that comes next.
        expected: u32,
        /// The page asked for.
        found: u32,
    },
}

impl Error {
    /// Whether the same call may succeed later, unchanged.
    pub fn is_retriable(&self) -> bool {
        match self {
            Self::TooManyCursors { .. } => true,
            Self::Remote { source, .. } => !matches!(
                source,
                object_store::Error::NotFound { .. } | object_store::Error::AlreadyExists { .. }
            ),
            Self::OtherBucket { .. }
            | Self::NewerFormat { .. }
            | Self::Corrupt { .. }
            | Self::Disk { .. }
            | Self::RocksDb { .. }
            | Self::Closed { .. }
            | Self::CorruptValue { .. }
            | Self::NewerValueLayout { .. }
            | Self::SchemaIdRange { .. }
            | Self::OffsetOrder { .. }
            | Self::UnknownSchema { .. }
            | Self::TargetColumns { .. }
            | Self::AggregateFunction { .. }
            | Self::Aggregate { .. }
            | Self::TableProperty { .. }
            | Self::PartialUpdate { .. }
            | Self::NumbersUsedUp { .. }
            | Self::DeletesDisabled
            | Self::NullValue { .. }
            | Self::Row { .. }
            | Self::CorruptSnapshot { .. }
            | Self::NewerSnapshot { .. }
            | Self::CursorExpired { .. }
            | Self::UnknownCursor { .. }
            | Self::PageOrder { .. } => false,
        }
    }

    /// What RocksDB said about a directory, with the file that its message names.
    pub(crate) fn of_rocksdb(
        directory: &Path,
        action: &'static str,
        source: rocksdb::Error,
    ) -> Self {
        let directory = directory.to_owned();
        match source.kind() {
            rocksdb::ErrorKind::Corruption => {
                let reason = source.into_string();
                Self::Corrupt {
                    file: named_file(&directory, &reason),
                    directory,
                    reason,
                }
            }
            rocksdb::ErrorKind::IOError => {
                let reason = source.into_string();
                Self::Disk {
                    file: named_file(&directory, &reason),
                    directory,
                    action,
                    reason,
                }
            }
            _ => Self::RocksDb {
                directory,
                action,
                source,
            },
        }
    }

    /// What the system said about a file or folder of a bucket.
    pub(crate) fn of_io(
        directory: &Path,
        file: &Path,
        action: &'static str,
        source: &io::Error,
    ) -> Self {
        Self::Disk {
            directory: directory.to_owned(),
            file: Some(file.to_owned()),
            action,
            reason: source.to_string(),
        }
    }
}

/// The file below `directory` that a message of RocksDB speaks of; it has no field for it.
fn named_file(directory: &Path, message: &str) -> Option<PathBuf> {
    let name = message
        .split(|c: char| c.is_whitespace() || c == ':' || c == ',' || c == '\'')
        .filter_map(|word| Path::new(word).file_name()?.to_str())
        .find(|name| {
            let kind = Path::new(name).extension().and_then(|kind| kind.to_str());
            matches!(kind, Some("sst" | "log" | "dbtmp"))
                || name.starts_with("MANIFEST-")
                || name.starts_with("OPTIONS-")
                || *name == "CURRENT"
                || *name == "LOCK"
        })?;
    Some(directory.join(name))
}

fn of_file(file: Option<&Path>) -> String {
    let name = file.and_then(Path::file_name);
    name.map_or_else(String::new, |name| format!(" ({})", name.to_string_lossy()))
}

/// At most 32 bytes as hexadecimal digits.
fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes.iter().take(32) {
        // Writing into a string does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    if bytes.len() > 32 {
        text.push('…');
    }
    text
}
