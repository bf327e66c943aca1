//! What can go wrong with a table, by what the caller can do about it.

use std::error::Error as StdError;

/// Shorthand of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call on a lake table failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The object store failed or could not be reached; nothing is known about the object.
    #[error("{path}: the object store failed: {source}")]
    Store {
        /// The object.
        path: String,
        /// What the store said.
        source: object_store::Error,
    },
    /// The object does not exist.
    #[error("{path} does not exist")]
    NotFound {
        /// The object.
        path: String,
    },
    /// The snapshot was expired while it was used. Begin again with a newer one.
    #[error("snapshot {id} has expired; begin again with a newer one")]
    SnapshotExpired {
        /// The snapshot.
        id: i64,
    },
    /// An object that must be created by us alone exists.
    #[error("{path} exists already")]
    AlreadyExists {
        /// The object.
        path: String,
    },
    /// A write may or may not have taken place. Read before writing again.
    #[error("{path}: the outcome of the write is unknown: {source}")]
    OutcomeUnknown {
        /// The object.
        path: String,
        /// What the store said.
        source: object_store::Error,
    },
    /// A stored object does not say what it must. Never retried, never papered over.
    #[error("{path} is corrupt: {reason}")]
    Corrupt {
        /// The object.
        path: String,
        /// What is wrong in it.
        reason: String,
        /// The decoder's own error, if it has one.
        source: Option<Box<dyn StdError + Send + Sync>>,
    },
    /// Bytes handed to a decoder are not what it decodes.
    #[error("malformed {what}: {reason}")]
    Malformed {
        /// What was decoded, such as "binary row".
        what: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// The text of a type cannot be read.
    #[error("type `{text}`: {reason}")]
    BadType {
        /// The text.
        text: String,
        /// What is wrong.
        reason: String,
    },
    /// A value or column does not fit the type it is used with.
    #[error("`{column}`: {reason}")]
    BadValue {
        /// The column or the place of the value.
        column: String,
        /// What does not fit.
        reason: String,
    },
    /// An earlier call of this writer failed or was cancelled; what it holds can only be aborted.
    #[error("{path}: the writer is broken by an earlier failure")]
    WriterBroken {
        /// The data file, or the folder it would be in.
        path: String,
    },
    /// A schema, or a change of one, breaks a rule of the format.
    #[error("invalid schema: {reason}")]
    InvalidSchema {
        /// The rule, with the names that break it.
        reason: String,
    },
    /// The table is well formed but uses something this library does not do.
    #[error("{what} is not supported: {reason}")]
    Unsupported {
        /// What it is, with its name.
        what: String,
        /// Why, or what to do instead.
        reason: String,
    },
    /// An Arrow computation failed.
    #[error("{what}: {source}")]
    Arrow {
        /// What was computed.
        what: String,
        /// Arrow's own error.
        source: arrow::error::ArrowError,
    },
    /// Writing a Parquet file failed.
    #[error("{path}: Parquet failed: {source}")]
    Parquet {
        /// The data file.
        path: String,
        /// Parquet's own error.
        source: parquet::errors::ParquetError,
    },
}

/// Whether a store has certainly not done what it was asked, and never will.
pub(crate) fn is_refusal(error: &object_store::Error) -> bool {
    matches!(
        error,
        object_store::Error::PermissionDenied { .. }
            | object_store::Error::Unauthenticated { .. }
            | object_store::Error::NotSupported { .. }
            | object_store::Error::NotImplemented { .. }
            | object_store::Error::InvalidPath { .. }
            | object_store::Error::UnknownConfigurationKey { .. }
    )
}

impl Error {
    /// Whether the same call may succeed later, unchanged.
    pub fn is_retriable(&self) -> bool {
        match self {
            Self::Store { source, .. } => !is_refusal(source),
            Self::NotFound { .. }
            | Self::SnapshotExpired { .. }
            | Self::AlreadyExists { .. }
            | Self::OutcomeUnknown { .. }
            | Self::Corrupt { .. }
            | Self::Malformed { .. }
            | Self::BadType { .. }
            | Self::BadValue { .. }
            | Self::WriterBroken { .. }
            | Self::InvalidSchema { .. }
            | Self::Unsupported { .. }
            | Self::Arrow { .. }
            | Self::Parquet { .. } => false,
        }
    }

    /// Names the object in which malformed bytes were found; other errors stay as they are.
    pub fn at(self, path: &str) -> Self {
        match self {
            Self::Malformed { what, reason } => Self::Corrupt {
                path: path.to_owned(),
                reason: format!("{what}: {reason}"),
                source: None,
            },
            Self::BadType { text, reason } => Self::Corrupt {
                path: path.to_owned(),
                reason: format!("type `{text}`: {reason}"),
                source: None,
            },
            other => other,
        }
    }

    /// An object store's error about `path`, with absence and presence told apart from failure.
    pub fn store(path: &object_store::path::Path, source: object_store::Error) -> Self {
        let path = path.to_string();
        match source {
            object_store::Error::NotFound { .. } => Self::NotFound { path },
            object_store::Error::AlreadyExists { .. } => Self::AlreadyExists { path },
            source => Self::Store { path, source },
        }
    }

    pub(crate) fn malformed(what: &'static str, reason: impl Into<String>) -> Self {
        Self::Malformed {
            what,
            reason: reason.into(),
        }
    }

    pub(crate) fn corrupt(path: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Corrupt {
            path: path.into(),
            reason: reason.into(),
            source: None,
        }
    }

    pub(crate) fn bad_value(column: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::BadValue {
            column: column.into(),
            reason: reason.into(),
        }
    }
}
