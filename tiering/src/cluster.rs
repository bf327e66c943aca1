//! The cluster as tiering sees it: the calls it makes, behind one seam, with the wire client and a
//! test double behind it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use weir_protocol::error_code::ErrorCode;
use weir_protocol::ids::{
    BucketId, CoordinatorEpoch, LogOffset, SchemaId, TableBucket, TableId, TablePath, TotalBuckets,
};
use weir_protocol::record::LogBatch;
use weir_protocol::schema::Schema;

use crate::enumerate::{BucketGroup, PartitionView};
use crate::error::Result;
use crate::lease::{Epochs, Lease};
use crate::ranges;
use crate::split::Split;

pub mod wire;

/// What tiering needs to know of a table.
#[derive(Clone, Debug)]
pub struct TableInfo {
    /// The table.
    pub id: TableId,
    /// Its current schema.
    pub schema_id: SchemaId,
    /// The columns of that schema.
    pub schema: Arc<Schema>,
    /// Partition columns, empty if the table has none.
    pub partition_keys: Vec<String>,
    /// The table's bucket count.
    pub bucket_count: TotalBuckets,
    /// 0 until the bucket count is changed for the first time.
    pub bucket_layout_epoch: i64,
    /// Properties of the table, `table.…`, and ours, `weir.…`.
    pub properties: BTreeMap<String, String>,
}

/// What the cluster knows of the lake.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LakeProgress {
    /// The newest registered lake snapshot.
    pub snapshot: Option<i64>,
    /// Per bucket, the end of what that snapshot holds.
    pub ends: BTreeMap<TableBucket, LogOffset>,
}

/// Which offset to look up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffsetKind {
    /// The first offset the log holds.
    Earliest,
    /// The high watermark.
    Latest,
}

/// Figures of a finished round, for the coordinator's metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoundStats {
    /// Bytes of data files written.
    pub bytes: i64,
    /// Rows written.
    pub rows: i64,
}

/// One table in a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeartbeatEntry {
    /// The table.
    pub table: TableId,
    /// The epochs under which it is held.
    pub epochs: Epochs,
    /// Figures, of a finished table.
    pub stats: Option<RoundStats>,
}

/// What the daemon tells the coordinator; empty to register.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heartbeat {
    /// Tables that are worked on: their leases are renewed.
    pub tiering: Vec<HeartbeatEntry>,
    /// Tables whose round is done.
    pub finished: Vec<HeartbeatEntry>,
    /// Tables whose round failed.
    pub failed: Vec<HeartbeatEntry>,
    /// Tables among `finished` that have more to give.
    pub force_finished: Vec<TableId>,
    /// Whether a table is wanted.
    pub request_table: bool,
}

/// An entry of a heartbeat that the coordinator refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The table.
    pub table: TableId,
    /// The code, if it can be read.
    pub code: Option<ErrorCode>,
    /// What the coordinator says.
    pub message: String,
}

/// The coordinator's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeartbeatAnswer {
    /// The coordinator's epoch now.
    pub coordinator: CoordinatorEpoch,
    /// A table to tier, if one was wanted and is due.
    pub offered: Option<Lease>,
    /// Refused entries, of all lists.
    pub refused: Vec<Refusal>,
}

/// A lake snapshot to register.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// The table.
    pub table: TableId,
    /// Its path.
    pub path: TablePath,
    /// The lake snapshot.
    pub snapshot: i64,
    /// The offsets file that was prepared for it.
    pub offsets_path: String,
    /// Whether the cluster keeps all older entries (−1 on the wire) and not only this one.
    pub keep_all: bool,
    /// Per bucket, the new end and the newest timestamp, for metrics and notifications.
    pub ends: Vec<(TableBucket, LogOffset, Option<i64>)>,
}

/// Why a bucket can't be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// What the cluster says.
    pub reason: String,
    /// The code, if a server gave one.
    pub code: Option<ErrorCode>,
    /// Whether it will not pass by itself: a person must act.
    pub lasting: bool,
    /// The offsets that the log has lost, if that is the trouble: a person may let them go.
    pub lost: Option<ranges::Offsets>,
}

impl Trouble {
    /// Trouble that may pass by itself.
    pub fn passing(reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            code: None,
            lasting: false,
            lost: None,
        }
    }

    /// Trouble that stays until a person acts.
    pub fn lasting(reason: impl Into<String>) -> Self {
        Self {
            lasting: true,
            ..Self::passing(reason)
        }
    }

    /// Whether the server says that what it stored is damaged or can't be read. It may be tried
    /// again all the same, for the server may mend it.
    pub fn is_damage(&self) -> bool {
        self.lasting || self.code.is_some_and(is_damage)
    }
}

/// Whether a code means that stored bytes are damaged or can't be read.
pub fn is_damage(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::LogStorage
            | ErrorCode::KvStorage
            | ErrorCode::Storage
            | ErrorCode::CorruptMessage
            | ErrorCode::CorruptRecord
    )
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

/// What ended the reading of a bucket before its stop; what may pass was tried again before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BucketFault {
    /// The log does not hold the wanted offset.
    OutOfRange,
    /// It has no leader, gives no answer, or is gone: for a later round.
    Failed(Trouble),
}

/// What one read brought of one bucket.
#[derive(Clone, Debug)]
pub struct Fetched {
    /// The bucket.
    pub bucket: TableBucket,
    /// Whole batches, in order; the first may begin below the wanted offset.
    pub batches: Vec<LogBatch>,
    /// The log holds nothing from the end of the batches up to here, although it once did.
    pub gap_to: Option<LogOffset>,
    /// Why it is read no more, if it is.
    pub fault: Option<BucketFault>,
    /// Why nothing comes at the moment; it is tried again by itself. Batches end it.
    pub trouble: Option<Trouble>,
}

/// Reads the logs of several buckets of one table.
#[async_trait]
pub trait LogReader: Send {
    /// Reads `split` too, from its start; reading goes on by itself from what was brought.
    fn add(&mut self, split: &Split);

    /// Reads the bucket no more.
    fn remove(&mut self, bucket: TableBucket);

    /// What came since the last call; waits up to `max_wait` for something. Cancelling loses
    /// nothing.
    async fn poll(&mut self, max_wait: Duration) -> Vec<Fetched>;
}

/// The calls of tiering. Each has a deadline of its own; errors are [`crate::Error::Cluster`].
#[async_trait]
pub trait TieringClient: Send + Sync + fmt::Debug {
    /// The table behind a path.
    async fn table_info(&self, path: &TablePath) -> Result<TableInfo>;

    /// A schema that batches name.
    async fn schema(&self, path: &TablePath, id: SchemaId) -> Result<Arc<Schema>>;

    /// All partitions of a partitioned table, each with its own bucket count if it has one.
    async fn partitions(&self, path: &TablePath) -> Result<Vec<PartitionView>>;

    /// Offsets of all buckets of a group; an inner error concerns one bucket.
    async fn offsets(
        &self,
        path: &TablePath,
        table: TableId,
        group: &BucketGroup,
        kind: OffsetKind,
    ) -> Result<BTreeMap<BucketId, Result<LogOffset>>>;

    /// The newest registered lake snapshot and its offsets; empty if there is none.
    async fn lake_progress(&self, path: &TablePath, table: TableId) -> Result<LakeProgress>;

    /// One heartbeat.
    async fn heartbeat(&self, heartbeat: Heartbeat) -> Result<HeartbeatAnswer>;

    /// Has the cluster write the offsets file of a coming lake snapshot; answers its path.
    async fn prepare(
        &self,
        path: &TablePath,
        table: TableId,
        ends: &BTreeMap<TableBucket, LogOffset>,
    ) -> Result<String>;

    /// Registers a lake snapshot; safe to repeat.
    async fn register(&self, registration: &Registration) -> Result<()>;

    /// A reader of the table's logs; one read brings at most `max_bytes`, or one batch.
    async fn reader(
        &self,
        path: &TablePath,
        table: TableId,
        max_bytes: u64,
    ) -> Result<Box<dyn LogReader>>;

    /// Whether the cluster is an embedded server of ours, whose epochs never restart.
    async fn is_ours(&self) -> Result<bool>;
}
