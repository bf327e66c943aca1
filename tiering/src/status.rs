//! What the daemon says about its tables.

use serde::{Deserialize, Serialize};
use weir_protocol::ids::{TableId, TablePath};

use crate::phase::Phase;
use crate::round::Cut;

/// How a table fares.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum TableState {
    /// No round has looked at the table's buckets yet.
    Unknown,
    /// The last round worked, or none was needed.
    Healthy,
    /// The last rounds failed; the next is tried at `next_attempt_ms`.
    Retrying {
        /// Failed rounds in a row.
        failures: u32,
        /// Wall time of the next attempt, in milliseconds since 1970.
        next_attempt_ms: i64,
    },
    /// Nothing is done until a person acts.
    Paused {
        /// Why.
        reason: String,
    },
}

/// What the daemon does for a table right now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activity {
    /// Nothing: its next turn comes with new rows.
    Idle,
    /// The table was handed out and waits: for its pause to end, or for a person.
    Held,
    /// Offsets are read and splits planned.
    Splitting,
    /// Rows are read and written.
    Writing,
    /// The lake commit is under way.
    Committing,
}

impl From<Phase> for Activity {
    fn from(phase: Phase) -> Self {
        match phase {
            Phase::Requested | Phase::Splitting => Activity::Splitting,
            Phase::Writing => Activity::Writing,
            Phase::Committing => Activity::Committing,
            Phase::Reporting => Activity::Idle,
        }
    }
}

/// How a round ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum RoundOutcome {
    /// A lake snapshot was committed and registered.
    Committed {
        /// The snapshot.
        snapshot: i64,
    },
    /// There was nothing to write.
    Nothing,
    /// The round failed.
    Failed {
        /// Why.
        error: String,
    },
}

/// One finished round.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundSummary {
    /// The round's id, as in the snapshot property `weir-round`.
    pub id: String,
    /// Wall time it began, in milliseconds since 1970.
    pub started_ms: i64,
    /// How long it took, in milliseconds.
    pub duration_ms: i64,
    /// How it ended.
    #[serde(flatten)]
    pub outcome: RoundOutcome,
    /// Buckets that moved.
    pub buckets: usize,
    /// Rows written.
    pub rows: i64,
    /// Files written.
    pub files: usize,
    /// Bytes of those files.
    pub bytes: i64,
    /// Rows that went into the table of bad records instead.
    pub diverted: i64,
    /// What cut the round short, if anything: `duration`, `rows`, `bytes` or `stop`.
    pub cut: Option<String>,
}

/// Offsets of a bucket that the log has lost and the lake lacks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostOffsets {
    /// The partition's name, of a partitioned table.
    pub partition: Option<String>,
    /// The bucket's number in the log.
    pub bucket: i32,
    /// The first of them.
    pub from: i64,
    /// The offset after the last.
    pub to: i64,
}

/// Rows that are past retention and stay until the lake has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldBack {
    /// Bytes of logs.
    pub bytes: u64,
    /// When the oldest of these rows was appended at the latest, in milliseconds since 1970.
    pub oldest_ms: Option<i64>,
    /// Partitions past retention.
    pub partitions: usize,
}

/// A table as the daemon sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableStatus {
    /// The table.
    pub path: TablePath,
    /// Its id.
    pub table_id: TableId,
    /// How it fares.
    #[serde(flatten)]
    pub state: TableState,
    /// What is done right now.
    pub activity: Activity,
    /// Offsets between the lake and the high watermarks; for log tables with rows only, the rows
    /// that are missing in the lake. Unknown before the first look.
    pub lag_rows: Option<u64>,
    /// How old the oldest missing row can be at most, in seconds; 0 if none is missing. Unknown
    /// before the first look.
    pub lag_seconds: Option<u64>,
    /// The last lake snapshot that this daemon committed or found.
    pub lake_snapshot: Option<i64>,
    /// Buckets that the last round could not read; `last_error` names them.
    pub failing_buckets: usize,
    /// What retention keeps because the lake lacks it; unknown if the cluster does not tell.
    pub held: Option<HeldBack>,
    /// The last finished round that did something or failed.
    pub last_round: Option<RoundSummary>,
    /// The last error; stays until a round works.
    pub last_error: Option<String>,
    /// What does not keep rows from the lake, but should be looked at: the table's maintenance
    /// fails.
    #[serde(default)]
    pub warning: Option<String>,
}

/// The name of a cut, as status and metrics show it.
pub fn cut_name(cut: Cut) -> &'static str {
    match cut {
        Cut::Duration => "duration",
        Cut::Rows => "rows",
        Cut::Bytes => "bytes",
        Cut::Stop => "stop",
    }
}
