//! Why a call of the client failed.

use std::sync::Arc;
use std::time::Duration;

use crate::api_key::ApiKey;
use crate::error_code::{ErrorCode, Retry};
use crate::frame;
use crate::ids::{BucketId, LogOffset, PartitionId, TableBucket, TableId};

use super::connection::ServerRole;

/// Why a call of the client failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The server answered with an error code.
    #[error("{}: {code}: {message}", api.name())]
    Server {
        /// The call.
        api: ApiKey,
        /// The meaning.
        code: ErrorCode,
        /// The server's words, maybe empty.
        message: String,
    },
    /// One bucket of a call failed; the others may have worked.
    #[error("{}: {bucket}: {code}: {message}", api.name())]
    Bucket {
        /// The call.
        api: ApiKey,
        /// The bucket.
        bucket: TableBucket,
        /// The meaning.
        code: ErrorCode,
        /// The server's words, maybe empty.
        message: String,
    },
    /// No answer within the deadline. Whether the server did it is unknown.
    #[error("{}: no answer from {address} within {after:?}", api.name())]
    Timeout {
        /// The call.
        api: ApiKey,
        /// Who was asked.
        address: Arc<str>,
        /// The deadline.
        after: Duration,
    },
    /// The connection had no room for another request within the deadline; nothing was sent.
    #[error("{}: {address} took no further request within {after:?}", api.name())]
    Busy {
        /// The call.
        api: ApiKey,
        /// Who was to be asked.
        address: Arc<str>,
        /// The deadline.
        after: Duration,
    },
    /// No connection came about; nothing was sent.
    #[error("{address}: cannot connect")]
    Connect {
        /// Who was dialled.
        address: Arc<str>,
        /// What the socket said.
        source: Arc<std::io::Error>,
    },
    /// The connection broke after the request was handed to it. Whether the server did it is unknown.
    #[error("{}: connection to {address} was lost", api.name())]
    ConnectionLost {
        /// The call.
        api: ApiKey,
        /// Who was asked.
        address: Arc<str>,
        /// What broke it; `None` when a side closed it.
        source: Option<Arc<frame::Error>>,
    },
    /// The server gave up on the whole connection. Whether it did the request is unknown.
    #[error("{}: {address} failed the connection: {code}: {message}", api.name())]
    ServerFailure {
        /// The call.
        api: ApiKey,
        /// Who was asked.
        address: Arc<str>,
        /// The meaning.
        code: ErrorCode,
        /// The server's words, maybe empty.
        message: String,
    },
    /// The server does not offer the API in a version that does what is asked.
    #[error("{address} does not offer {} in version {needed} or above", api.name())]
    UnsupportedVersion {
        /// The call.
        api: ApiKey,
        /// Who was asked.
        address: Arc<str>,
        /// The lowest version that would do.
        needed: i16,
    },
    /// Someone of another role listens at the address.
    #[error("{address} is no {expected}: it names server type {found}")]
    WrongRole {
        /// Who was dialled.
        address: Arc<str>,
        /// Whom the metadata named.
        expected: ServerRole,
        /// What the server called itself.
        found: i32,
    },
    /// The server asks for more than PLAIN has to say.
    #[error("{address}: authentication asks for an answer that PLAIN does not have")]
    Challenge {
        /// Who was dialled.
        address: Arc<str>,
    },
    /// A successful answer does not parse.
    #[error("{}: answer of {address} does not parse", api.name())]
    Answer {
        /// The call.
        api: ApiKey,
        /// Who answered.
        address: Arc<str>,
        /// What the parser says.
        source: Arc<prost::DecodeError>,
    },
    /// A successful answer lacks what the protocol promises.
    #[error("{}: answer lacks {missing}", api.name())]
    Incomplete {
        /// The call.
        api: ApiKey,
        /// What is not there.
        missing: &'static str,
    },
    /// A document, a type, a value or a batch cannot be read or written.
    #[error("{what}: cannot be encoded or decoded")]
    Codec {
        /// What it belongs to.
        what: String,
        /// Why.
        source: Arc<crate::Error>,
    },
    /// The cluster's metadata names no such server (yet).
    #[error("metadata names no {role} to ask")]
    NoServer {
        /// Which role is missing.
        role: ServerRole,
    },
    /// The bucket has no leader (yet), or metadata does not know it.
    #[error("{bucket} has no known leader")]
    NoLeader {
        /// The bucket.
        bucket: TableBucket,
    },
    /// A partition's bucket count is unknown although the table's was altered: guessing would misroute rows.
    #[error("{}: bucket count is unknown at layout epoch {epoch}", owner(*table, *partition))]
    MissingBucketCount {
        /// The table.
        table: TableId,
        /// Its partition, of a partitioned table.
        partition: Option<PartitionId>,
        /// The table's bucket layout epoch.
        epoch: i64,
    },
    /// The table behind a path is not the one the caller works on: dropped and made again.
    #[error("table {expected} was replaced by table {found}")]
    TableReplaced {
        /// The caller's table.
        expected: TableId,
        /// The table now behind the path.
        found: TableId,
    },
    /// Rows do not have the table's columns.
    #[error("{table}: {reason} (column `{column}`)")]
    Rows {
        /// The table.
        table: String,
        /// The column.
        column: String,
        /// What is wrong.
        reason: &'static str,
    },
    /// A record batch of one row is larger than a batch may be.
    #[error("{bucket}: one row needs {size_bytes} bytes, a batch holds {max_bytes}")]
    RowTooLarge {
        /// The bucket.
        bucket: TableBucket,
        /// Its encoded size.
        size_bytes: usize,
        /// The limit.
        max_bytes: usize,
    },
    /// The log no longer (or not yet) holds the offset.
    #[error("{bucket}: offset {offset} is outside of the log: {message}")]
    OffsetOutOfRange {
        /// The bucket.
        bucket: TableBucket,
        /// The asked offset.
        offset: LogOffset,
        /// The server's words.
        message: String,
    },
    /// The server wants a range read from remote storage, which this client does not do.
    #[error("{bucket}: offset {offset} is in remote log segments under {directory}")]
    RemoteLog {
        /// The bucket.
        bucket: TableBucket,
        /// The asked offset.
        offset: LogOffset,
        /// Where the segments are.
        directory: String,
    },
    /// An earlier batch of the bucket failed for good, so this one was not sent: order is kept.
    #[error("bucket {bucket}: an earlier batch failed")]
    EarlierBatchFailed {
        /// The bucket.
        bucket: BucketId,
        /// Why the earlier one failed.
        source: Arc<Error>,
    },
    /// The writer was closed, or its task is gone.
    #[error("writer is closed")]
    Closed,
}

fn owner(table: TableId, partition: Option<PartitionId>) -> String {
    match partition {
        Some(partition) => format!("table {table} partition {partition}"),
        None => format!("table {table}"),
    }
}

impl Error {
    /// The wire code, when a server gave one.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Error::Server { code, .. }
            | Error::Bucket { code, .. }
            | Error::ServerFailure { code, .. } => Some(*code),
            Error::OffsetOutOfRange { .. } => Some(ErrorCode::LogOffsetOutOfRange),
            _ => None,
        }
    }

    /// Whether the same call may succeed later, unchanged. Ask [`Error::outcome_is_unknown`] before
    /// a call that must not happen twice.
    pub fn is_retriable(&self) -> bool {
        match self {
            Error::Server { code, .. } | Error::Bucket { code, .. } => {
                code.is_retriable()
                    || matches!(
                        code,
                        ErrorCode::RetriableAuthenticate | ErrorCode::NotCoordinatorLeader
                    )
            }
            Error::Timeout { .. }
            | Error::Busy { .. }
            | Error::Connect { .. }
            | Error::ConnectionLost { .. }
            | Error::ServerFailure { .. }
            | Error::NoServer { .. }
            | Error::NoLeader { .. }
            | Error::WrongRole { .. } => true,
            Error::UnsupportedVersion { .. }
            | Error::Challenge { .. }
            | Error::Answer { .. }
            | Error::Incomplete { .. }
            | Error::Codec { .. }
            | Error::MissingBucketCount { .. }
            | Error::TableReplaced { .. }
            | Error::Rows { .. }
            | Error::RowTooLarge { .. }
            | Error::OffsetOutOfRange { .. }
            | Error::RemoteLog { .. }
            | Error::EarlierBatchFailed { .. }
            | Error::Closed => false,
        }
    }

    /// Whether the server may have done what was asked although the call failed.
    pub fn outcome_is_unknown(&self) -> bool {
        match self {
            Error::Timeout { .. }
            | Error::ConnectionLost { .. }
            | Error::ServerFailure { .. }
            | Error::Answer { .. }
            | Error::Incomplete { .. } => true,
            Error::Server { code, .. } | Error::Bucket { code, .. } => matches!(
                code,
                ErrorCode::RequestTimeOut
                    | ErrorCode::NotEnoughReplicasAfterAppend
                    | ErrorCode::UnknownServerError
                    | ErrorCode::Network
            ),
            _ => false,
        }
    }

    /// Whether fresh metadata is needed before the next attempt.
    pub(crate) fn wants_fresh_metadata(&self) -> bool {
        match self {
            Error::Server { code, .. } | Error::Bucket { code, .. } => {
                code.retry() == Retry::AfterRefresh || *code == ErrorCode::NotCoordinatorLeader
            }
            Error::Timeout { .. }
            | Error::Busy { .. }
            | Error::Connect { .. }
            | Error::ConnectionLost { .. }
            | Error::ServerFailure { .. }
            | Error::NoServer { .. }
            | Error::NoLeader { .. }
            | Error::WrongRole { .. } => true,
            _ => false,
        }
    }

    pub(crate) fn codec(what: impl Into<String>, source: crate::Error) -> Self {
        Error::Codec {
            what: what.into(),
            source: Arc::new(source),
        }
    }
}
