//! Why tiering failed, and what that means for the table.

pub use weir_catalog::sentence::sentence;
use weir_protocol::error_code::ErrorCode;
use weir_protocol::ids::{LogOffset, SchemaId, TableBucket, TableId, TablePath, TotalBuckets};

use crate::lease::Epochs;
use crate::phase::Phase;

/// Result with [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A source of any type, kept for the chain of reasons.
pub type Source = Box<dyn std::error::Error + Send + Sync + 'static>;

/// Why a round, or the daemon, failed.
#[allow(
    missing_docs,
    reason = "each field is named for what it holds, and each message uses all of them"
)]
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A partition has no bucket count although the table's was changed: its true count is not
    /// known.
    #[error("{table}: partition {partition} has no bucket count, at bucket layout epoch {epoch}")]
    MissingBucketCount {
        table: TablePath,
        partition: String,
        epoch: i64,
    },
    /// A bucket count below 1.
    #[error("{table} (partition {partition:?}): {count} is no bucket count")]
    BadBucketCount {
        table: TablePath,
        partition: Option<String>,
        count: TotalBuckets,
    },
    /// The lake's offsets name buckets that the partition does not have.
    #[error("{table} (partition {partition:?}, {count} buckets): lake offsets of {}", listed(.buckets))]
    StrayBuckets {
        table: TablePath,
        partition: Option<String>,
        buckets: Vec<TableBucket>,
        count: TotalBuckets,
    },
    /// An offset that enumeration needs was not given.
    #[error("{table}: no offset of {bucket}")]
    MissingOffset {
        table: TablePath,
        bucket: TableBucket,
    },
    /// The log no longer holds offsets that the lake lacks.
    #[error(
        "{bucket}: lost range {from}..{to}: the log goes on at {to}, and the lake lacks what was before; \
         `weir status --accept-loss` gives it up"
    )]
    LostRange {
        bucket: TableBucket,
        from: LogOffset,
        to: LogOffset,
    },
    /// A `weir-ranges` text that is none.
    #[error("weir-ranges is unreadable: {reason}")]
    BadRanges { reason: String },

    /// A round was driven out of turn.
    #[error("the round is {phase:?}, not {wanted:?}")]
    WrongPhase { phase: Phase, wanted: Phase },
    /// Two splits of one bucket in one round.
    #[error("two splits of {bucket}")]
    DuplicateSplit { bucket: TableBucket },
    /// A split without offsets.
    #[error("split {start}..{stop} of {bucket} is empty")]
    EmptySplit {
        bucket: TableBucket,
        start: LogOffset,
        stop: LogOffset,
    },
    /// Two answers of one bucket in one round.
    #[error("two results of {bucket}")]
    DuplicateResult { bucket: TableBucket },
    /// An answer of a bucket that has no split in the round.
    #[error("a result of {bucket}, which has no split")]
    UnknownResult { bucket: TableBucket },
    /// An answer that contradicts its split.
    #[error("result of {bucket} ends at {end:?} for {start}..{stop}: {reason}")]
    BadResult {
        bucket: TableBucket,
        start: LogOffset,
        stop: LogOffset,
        end: Option<LogOffset>,
        reason: &'static str,
    },
    /// A commit was asked for before all splits answered.
    #[error("round {round}: {missing} of {count} splits did not answer")]
    Incomplete {
        round: String,
        missing: usize,
        count: usize,
    },

    /// A call to the cluster failed; `code` is none if no server gave one. An `unanswered` call may
    /// have been carried out.
    #[error("{call} failed")]
    Cluster {
        call: &'static str,
        code: Option<ErrorCode>,
        unanswered: bool,
        source: Source,
    },
    /// An answer of the cluster that makes no sense.
    #[error("{call}: {reason}")]
    BadAnswer { call: &'static str, reason: String },
    /// The lake table or its store failed.
    #[error("lake table {table}")]
    Lake {
        table: TablePath,
        source: weir_lake_format::Error,
    },
    /// The warehouse has no such table.
    #[error(
        "there is no lake table of {table}: {folder} is not in warehouse {warehouse}; is the warehouse \
         that of the cluster, and the lake enabled for the table?"
    )]
    NoLakeTable {
        table: TablePath,
        folder: String,
        warehouse: String,
    },
    /// The warehouse can't be opened.
    #[error("{source}")]
    Warehouse {
        url: String,
        source: weir_lake_format::Error,
    },
    /// Stored bytes of the log don't decode.
    #[error("{table}: the log of {bucket} does not decode at offset {offset}")]
    Log {
        table: TablePath,
        bucket: TableBucket,
        offset: LogOffset,
        source: Source,
    },
    /// A bucket's log gives no more of what it should hold.
    #[error("{bucket} can't be read at offset {offset}: {reason}")]
    LogStuck {
        bucket: TableBucket,
        offset: LogOffset,
        reason: String,
    },
    /// A column of the log that the lake table can't take.
    #[error("{table}: {bucket}, offset {offset}, column {column}: {reason}")]
    Column {
        table: TablePath,
        bucket: TableBucket,
        offset: LogOffset,
        column: String,
        reason: String,
    },
    /// The lake table's columns don't fit the table's.
    #[error("{table}: column {column}: {reason}")]
    Schema {
        table: TablePath,
        column: String,
        reason: String,
    },
    /// Rows of a schema that is newer than the round, and that its lake schema does not fit.
    #[error(
        "{table}: rows of schema {schema} came into a round of schema {planned}; the next one takes them"
    )]
    NewerSchema {
        table: TablePath,
        schema: SchemaId,
        planned: SchemaId,
    },
    /// The table is of a kind that is not tiered.
    #[error("{table}: {reason}")]
    Unsupported {
        table: TablePath,
        reason: &'static str,
    },

    /// The path now leads to another table.
    #[error("{table}: was table {ours}, is now table {found}")]
    Recreated {
        table: TablePath,
        ours: TableId,
        found: TableId,
    },
    /// The lake table was made anew while a round was under way.
    #[error("{table}: the lake table was made anew meanwhile; nothing of the round is in it")]
    LakeReplaced { table: TablePath },
    /// The round was cancelled: the lease is lost, or the daemon stops.
    #[error("{table}: the round was cancelled")]
    Cancelled { table: TablePath },
    /// Another worker committed since the round began, or holds a newer lease.
    #[error("{table}: round under epochs {ours} is fenced: {reason}")]
    Fenced {
        table: TablePath,
        ours: Epochs,
        reason: String,
    },
    /// A lake snapshot that the cluster did not know of was registered; the round starts anew from
    /// there.
    #[error("{table}: lake snapshot {snapshot} was missing in the cluster and is registered now")]
    Repaired { table: TablePath, snapshot: i64 },
    /// Another worker put rows into the table of bad records since the round began.
    #[error("{table}: another worker diverted records meanwhile")]
    Diverted { table: TablePath },
    /// A replay broke off, and the snapshots that could tell whether it took place are gone.
    #[error(
        "{table}: replay {replay} broke off, and lake snapshots {from} to {to} that could tell whether it \
         took place have expired; look whether its rows are in the lake, then say so with \
         `weir replay {table} --assume in-lake` or `--assume not-in-lake`"
    )]
    ReplayUnknown {
        table: TablePath,
        replay: String,
        from: i64,
        to: i64,
    },
    /// The lake is behind what the cluster knows: snapshots were lost or the lake table replaced.
    #[error("{table}: the cluster knows lake snapshot {known}, the lake ends at {latest:?}")]
    LakeBehind {
        table: TablePath,
        known: i64,
        latest: Option<i64>,
    },
    /// A snapshot with our commit user that can't be registered.
    #[error("{table}: lake snapshot {snapshot}: {reason}")]
    ForeignHistory {
        table: TablePath,
        snapshot: i64,
        reason: String,
    },
    /// The cluster knows another end of a bucket than the newest lake snapshot.
    #[error(
        "{table}: lake snapshot {snapshot} ends at offset {end} in {bucket}, the cluster says {}: the offsets \
         file {file} is damaged; put it back from a copy or write {end} there",
        registered.map_or_else(|| "nothing of it".to_owned(), |offset| offset.to_string())
    )]
    EndsDiffer {
        table: TablePath,
        bucket: TableBucket,
        snapshot: i64,
        end: LogOffset,
        registered: Option<LogOffset>,
        file: String,
    },
    /// The lake commit may or may not have happened; the next round reads what is there.
    #[error("{table}: the outcome of the lake commit of round {round} is unknown")]
    UnknownCommit {
        table: TablePath,
        round: String,
        source: weir_lake_format::Error,
    },

    /// The round contradicts what is in the lake table; it will never be committed.
    #[error("{table}: the lake refuses the round: {reason}")]
    LakeConflict { table: TablePath, reason: String },
    /// Other committers were faster each time.
    #[error("{table}: {attempts} attempts to commit lost against others")]
    LakeBusy { table: TablePath, attempts: u32 },

    /// A task of the round panicked.
    #[error("{table}: a worker panicked: {reason}")]
    Panicked { table: TablePath, reason: String },
    /// The daemon stops.
    #[error("the daemon stops")]
    Stopped,
    /// A table that the daemon does not know.
    #[error("{table} is not tiered here")]
    UnknownTable { table: TablePath },
    /// A person holds the table.
    #[error("{table} is paused by a person: resume it first (`weir status --resume {table}`)")]
    PausedByPerson { table: TablePath },
    /// A loss was to be accepted of a table that has none.
    #[error(
        "{table}: the daemon knows of no lost offsets, so there is nothing to accept; a range that is \
         lost is named in the table's reason to pause"
    )]
    NothingLost { table: TablePath },
    /// The daemon's own file can't be read or written.
    #[error("{}: {reason}", .file.display())]
    State {
        file: std::path::PathBuf,
        reason: String,
    },
    /// A configuration value that can't be used.
    #[error("{key}: {reason}")]
    Config { key: &'static str, reason: String },
}

/// What an error means for its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Try again, after a pause that grows.
    Retry,
    /// Try again at once: something was put right.
    Again,
    /// A person must act; the table is tried again only now and then.
    Pause,
    /// The table is someone else's now, or gone: forget it.
    Drop,
}

impl Error {
    /// A failed call: the code, if a server gave one, and whether it may have been carried out all
    /// the same.
    pub fn cluster(
        call: &'static str,
        code: Option<ErrorCode>,
        unanswered: bool,
        source: impl Into<Source>,
    ) -> Self {
        Error::Cluster {
            call,
            code,
            unanswered,
            source: source.into(),
        }
    }

    /// The code, if a server gave one.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Error::Cluster { code, .. } => *code,
            _ => None,
        }
    }

    /// Whether the table that was worked on is no more.
    pub fn is_table_gone(&self) -> bool {
        matches!(
            self,
            Error::Cluster {
                code: Some(ErrorCode::TableNotExist | ErrorCode::DatabaseNotExist),
                ..
            } | Error::Recreated { .. }
        )
    }

    /// Whether a call may have been carried out although it failed.
    pub fn is_unanswered(&self) -> bool {
        matches!(
            self,
            Error::Cluster {
                unanswered: true,
                ..
            }
        )
    }

    /// Whether the same work may succeed later, unchanged.
    pub fn is_retriable(&self) -> bool {
        matches!(self.verdict(), Verdict::Retry | Verdict::Again)
    }

    /// What the error means for its table.
    pub fn verdict(&self) -> Verdict {
        match self {
            Error::Cluster {
                code: Some(ErrorCode::TableNotExist | ErrorCode::DatabaseNotExist),
                ..
            }
            | Error::Cancelled { .. }
            | Error::Fenced { .. }
            | Error::Recreated { .. }
            | Error::Stopped
            | Error::UnknownTable { .. }
            | Error::PausedByPerson { .. }
            | Error::NothingLost { .. } => Verdict::Drop,
            Error::Repaired { .. } | Error::Diverted { .. } => Verdict::Again,
            Error::Cluster { .. }
            | Error::BadAnswer { .. }
            | Error::MissingOffset { .. }
            | Error::UnknownCommit { .. }
            | Error::LogStuck { .. }
            | Error::NewerSchema { .. }
            | Error::LakeBusy { .. }
            | Error::LakeReplaced { .. }
            | Error::Panicked { .. } => Verdict::Retry,
            Error::Lake { source, .. } | Error::Warehouse { source, .. } => {
                if source.is_retriable() {
                    Verdict::Retry
                } else {
                    Verdict::Pause
                }
            }
            Error::MissingBucketCount { .. }
            | Error::BadBucketCount { .. }
            | Error::StrayBuckets { .. }
            | Error::LostRange { .. }
            | Error::BadRanges { .. }
            | Error::WrongPhase { .. }
            | Error::DuplicateSplit { .. }
            | Error::EmptySplit { .. }
            | Error::DuplicateResult { .. }
            | Error::UnknownResult { .. }
            | Error::BadResult { .. }
            | Error::Incomplete { .. }
            | Error::Log { .. }
            | Error::Column { .. }
            | Error::Schema { .. }
            | Error::Unsupported { .. }
            | Error::NoLakeTable { .. }
            | Error::LakeBehind { .. }
            | Error::LakeConflict { .. }
            | Error::ForeignHistory { .. }
            | Error::EndsDiffer { .. }
            | Error::ReplayUnknown { .. }
            | Error::State { .. }
            | Error::Config { .. } => Verdict::Pause,
        }
    }

    /// The error with its chain of sources in one line, each said once.
    pub fn chain(&self) -> String {
        sentence(self)
    }
}

fn listed(buckets: &[TableBucket]) -> String {
    let names: Vec<String> = buckets.iter().map(TableBucket::to_string).collect();
    names.join(", ")
}
