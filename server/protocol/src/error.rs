//! Why a codec of this crate refused its input.

/// Why bytes, documents or values could not be encoded or decoded. None of these is worth a retry
/// with the same input: the caller reports them or asks for the bytes again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A document is no JSON or lacks a required member.
    #[error("{document} cannot be read as JSON")]
    Json {
        /// Which document: `table descriptor`, `schema`, …
        document: &'static str,
        /// What the JSON reader found.
        source: serde_json::Error,
    },
    /// A document or a definition is well-formed but means nothing valid.
    #[error("{document}: {reason} (`{name}`)")]
    Invalid {
        /// Which document or definition.
        document: &'static str,
        /// The member, column or value at fault.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A type that the operation does not take.
    #[error("{operation} does not take values of type {type_name}")]
    UnsupportedType {
        /// What was tried.
        operation: &'static str,
        /// The type, as text.
        type_name: String,
    },
    /// A value that does not fit the declared type.
    #[error("a value of kind {found} does not fit type {expected}")]
    ValueMismatch {
        /// The declared type, as text.
        expected: String,
        /// The kind of the value.
        found: &'static str,
    },
    /// Bytes that don't follow their format.
    #[error("{format}: {reason}")]
    Corrupt {
        /// Which format: `log batch`, `kv batch`, `compacted row`, …
        format: &'static str,
        /// What is wrong.
        reason: &'static str,
    },
    /// A checksum that does not match the bytes it covers.
    #[error("{format}: checksum is {stored:#010x} but the bytes give {computed:#010x}")]
    Checksum {
        /// Which format.
        format: &'static str,
        /// As written in the header.
        stored: u32,
        /// As computed from the bytes.
        computed: u32,
    },
    /// A size above a limit; nothing was allocated for it.
    #[error("{what} is {size} but at most {limit} is allowed")]
    TooLarge {
        /// What is too large, with its unit.
        what: &'static str,
        /// The declared size.
        size: u64,
        /// The limit.
        limit: u64,
    },
    /// A column index outside a schema, or a projection that is empty, unsorted or has doubles.
    #[error("column projection: {reason} (index {index} of {columns} columns)")]
    Projection {
        /// What is wrong.
        reason: &'static str,
        /// The index at fault.
        index: usize,
        /// How many columns there are.
        columns: usize,
    },
    /// Arrow refused arrays or a schema.
    #[error("{what}: arrow arrays do not fit their schema")]
    Arrow {
        /// What was being built.
        what: &'static str,
        /// Arrow's reason.
        source: arrow::error::ArrowError,
    },
    /// A compressor or decompressor failed.
    #[error("{codec} body compression failed")]
    Compression {
        /// `zstd` or `lz4`.
        codec: &'static str,
        /// The codec's reason.
        source: std::io::Error,
    },
}

/// Results of this crate's codecs.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Whether the same call may succeed later, unchanged: never, as codecs are functions of their
    /// input.
    pub fn is_retriable(&self) -> bool {
        false
    }

    pub(crate) fn corrupt(format: &'static str, reason: &'static str) -> Self {
        Self::Corrupt { format, reason }
    }

    pub(crate) fn invalid(
        document: &'static str,
        name: impl Into<String>,
        reason: &'static str,
    ) -> Self {
        Self::Invalid {
            document,
            name: name.into(),
            reason,
        }
    }
}
