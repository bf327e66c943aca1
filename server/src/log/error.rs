//! Why a call on a bucket's log failed.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use weir_protocol::ids::{LogOffset, TableBucket, WriterId};

/// Why a call on a bucket's log failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file system refused. The log is as it was before the call.
    #[error("{}: {action} failed: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What the file system said.
        source: io::Error,
    },
    /// No space left. Nothing was appended; the same call may succeed once there is space.
    #[error("cannot write {}: {source}", path.display())]
    DiskFull {
        /// The file that could not grow.
        path: PathBuf,
        /// What the file system said.
        source: io::Error,
    },
    /// Stored bytes are damaged. Never retried, never served, never taken for absent.
    #[error("{}: corrupt at byte {position}: {reason}", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Where the damage was met, in bytes from the start of the file.
        position: u64,
        /// What does not hold.
        reason: Cow<'static, str>,
    },
    /// More was cut off and set aside than a bucket may keep; nothing was changed.
    #[error(
        "{}: {files} files of {bytes} bytes in `*.cut` would be more than a bucket may keep; \
         look into them, move them away, and the log opens again",
        path.display()
    )]
    TooMuchAside {
        /// The log's folder.
        path: PathBuf,
        /// How many files there would be.
        files: usize,
        /// How many bytes.
        bytes: u64,
    },
    /// A newer release wrote this folder.
    #[error(
        "{}: format version {found} is newer than {supported}; start the newer release",
        path.display()
    )]
    NewerFormat {
        /// The file that carries the version.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The newest version this release reads.
        supported: u32,
    },
    /// The folder holds the log of another bucket.
    #[error("{}: holds the log of {found}, not of {wanted}", path.display())]
    WrongBucket {
        /// The folder.
        path: PathBuf,
        /// Whose log it is.
        found: TableBucket,
        /// Whose log was asked for.
        wanted: TableBucket,
    },
    /// A client's batch is refused; nothing of the request was appended.
    #[error("{bucket}: batch {index} of the request is refused: {fault}")]
    BadBatch {
        /// The bucket.
        bucket: TableBucket,
        /// Which batch of the request, from 0.
        index: usize,
        /// What is wrong with it.
        fault: BatchFault,
    },
    /// An idempotent writer left out a sequence number; nothing was appended.
    #[error("{bucket}: writer {writer} sent sequence {found} where {expected} follows")]
    OutOfOrderSequence {
        /// The bucket.
        bucket: TableBucket,
        /// The writer.
        writer: WriterId,
        /// What it sent.
        found: i32,
        /// What was due; 0 for a writer that the log does not know.
        expected: i32,
    },
    /// The offset is below the log's start or above its end.
    #[error("{bucket}: offset {offset} is outside of {start}..{end}")]
    OutOfRange {
        /// The bucket.
        bucket: TableBucket,
        /// The offset asked for.
        offset: LogOffset,
        /// The first offset held.
        start: LogOffset,
        /// The offset the next record gets.
        end: LogOffset,
    },
    /// An fsync failed before: what the disk holds is unknown until the log is opened again.
    #[error("{bucket}: the log takes no more appends since a sync failed: {reason}")]
    Failed {
        /// The bucket.
        bucket: TableBucket,
        /// The first failure.
        reason: String,
    },
    /// The log was closed or deleted.
    #[error("{bucket}: the log is closed")]
    Closed {
        /// The bucket.
        bucket: TableBucket,
    },
}

impl Error {
    /// Whether the same call may succeed later, unchanged.
    pub fn is_retriable(&self) -> bool {
        match self {
            Error::Io { .. } | Error::DiskFull { .. } | Error::Closed { .. } => true,
            Error::Corrupt { .. }
            | Error::TooMuchAside { .. }
            | Error::NewerFormat { .. }
            | Error::WrongBucket { .. }
            | Error::BadBatch { .. }
            | Error::OutOfOrderSequence { .. }
            | Error::OutOfRange { .. }
            | Error::Failed { .. } => false,
        }
    }

    /// Whether it is the disk's fault, not the request's: a person must act.
    pub(crate) fn is_of_disk(&self) -> bool {
        matches!(
            self,
            Error::Io { .. } | Error::DiskFull { .. } | Error::Failed { .. }
        )
    }

    /// Names the file and the step that failed; a full disk becomes [`Error::DiskFull`].
    pub(crate) fn io(path: &Path, action: &'static str, source: io::Error) -> Self {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Error::DiskFull { path, source }
            }
            _ => Error::Io {
                path,
                action,
                source,
            },
        }
    }

    /// Names a damaged file.
    pub(crate) fn corrupt(
        path: &Path,
        position: u64,
        reason: impl Into<Cow<'static, str>>,
    ) -> Self {
        Error::Corrupt {
            path: path.to_owned(),
            position,
            reason: reason.into(),
        }
    }

    /// Names damage amid records that were acknowledged, and what to do about it.
    pub(crate) fn acknowledged_lost(path: &Path, position: u64, reason: &str) -> Self {
        let reason = format!(
            "{reason}, and acknowledged records are lost by it; nothing was changed: put the file \
             back, or stop the server and see `weir log check` and `weir log repair`"
        );
        Self::corrupt(path, position, reason)
    }
}

/// Why a batch is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchFault {
    /// The request carries no batch.
    Empty,
    /// The bytes end inside of the batch.
    Truncated,
    /// The length is below a header or above the limit.
    Length(i64),
    /// The magic is not one that is stored (0 and 1).
    Magic(i8),
    /// The checksum does not hold.
    Checksum,
    /// Record count and last offset delta contradict each other.
    RecordCount {
        /// The count of records in the header.
        records: i32,
        /// The last offset delta in the header.
        last_offset_delta: i32,
    },
    /// Its records are changes: a log table takes appends alone.
    Changes,
}

impl fmt::Display for BatchFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BatchFault::Empty => write!(f, "no batch"),
            BatchFault::Truncated => write!(f, "the bytes end inside of it"),
            BatchFault::Length(length) => write!(f, "length {length} is out of bounds"),
            BatchFault::Magic(magic) => write!(f, "magic {magic} is not stored (0 and 1 are)"),
            BatchFault::Checksum => write!(f, "checksum does not hold"),
            BatchFault::Changes => write!(f, "its records are changes, not appends"),
            BatchFault::RecordCount {
                records,
                last_offset_delta,
            } => {
                write!(
                    f,
                    "{records} records with last offset delta {last_offset_delta}"
                )
            }
        }
    }
}

/// What a call on a log gives.
pub type Result<T, E = Error> = std::result::Result<T, E>;
