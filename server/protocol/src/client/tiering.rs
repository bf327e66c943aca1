//! What a lake worker says to the coordinator: heartbeats, offsets files, committed snapshots.

use std::collections::BTreeMap;

use super::metadata::{read_path, wire_path};
use super::{Client, Error};
use crate::api_key::ApiKey;
use crate::error_code::ErrorCode;
use crate::ids::{
    BucketId, CoordinatorEpoch, LogOffset, PartitionId, TableId, TablePath, TieringEpoch,
};
use crate::proto;

/// A table in a heartbeat, with the epochs under which the worker holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeartbeatTable {
    /// The table.
    pub table_id: TableId,
    /// As learned from the coordinator; a stale one fails this entry with 23.
    pub coordinator_epoch: CoordinatorEpoch,
    /// As handed out with the table; a stale one fails this entry with 50.
    pub tiering_epoch: TieringEpoch,
    /// What the round wrote, of a finished table.
    pub stats: Option<TieringStats>,
}

/// What one round wrote to the lake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TieringStats {
    /// Bytes of the new files.
    pub file_bytes: i64,
    /// Rows in them.
    pub record_count: i64,
}

/// One heartbeat. The default one registers the worker and learns the coordinator's epoch.
#[derive(Clone, Debug, Default)]
pub struct Heartbeat {
    /// Tables being tiered: keep them.
    pub tiering: Vec<HeartbeatTable>,
    /// Tables whose round is done.
    pub finished: Vec<HeartbeatTable>,
    /// Tables whose round failed.
    pub failed: Vec<HeartbeatTable>,
    /// Of `finished`, those cut short by the longest round duration.
    pub force_finished: Vec<TableId>,
    /// Ask for a table to tier.
    pub request_table: bool,
}

/// A table handed out to this worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TieringTable {
    /// The table.
    pub table_id: TableId,
    /// Its path.
    pub path: TablePath,
    /// Of this round; raised with each hand-out.
    pub tiering_epoch: TieringEpoch,
}

/// What the coordinator answers to a heartbeat. Tables without an entry were accepted.
#[derive(Clone, Debug)]
pub struct HeartbeatAnswer {
    /// To be echoed in later heartbeats.
    pub coordinator_epoch: CoordinatorEpoch,
    /// A table to tier, if one was asked for and is due.
    pub table: Option<TieringTable>,
    /// Entries that were refused, by table; of all three lists.
    pub refused: BTreeMap<TableId, Error>,
}

/// The ends of one table's buckets, to be written to an offsets file.
#[derive(Clone, Debug)]
pub struct PrepareLakeSnapshot {
    /// The table.
    pub table_id: TableId,
    /// Its path.
    pub path: TablePath,
    /// Per bucket, the end (exclusive) of what the new lake snapshot holds.
    pub offsets: BTreeMap<(Option<PartitionId>, BucketId), LogOffset>,
    /// Write exactly these; else they are laid over the last committed ones.
    pub ignore_previous: bool,
}

/// Which registered snapshots the coordinator keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepSnapshots {
    /// Only the new one.
    New,
    /// From this one on, in the order of registration.
    From(i64),
    /// All.
    All,
}

/// The progress of one bucket in a committed snapshot; the coordinator tells its leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LakeProgress {
    /// The partition, of a partitioned table.
    pub partition: Option<PartitionId>,
    /// The bucket.
    pub bucket: BucketId,
    /// The end (exclusive) of what is in the lake.
    pub end: LogOffset,
    /// The newest commit time among the rows, epoch milliseconds; `None` if nothing was read.
    pub max_timestamp_ms: Option<i64>,
}

/// A snapshot that is in the lake, to be registered.
#[derive(Clone, Debug)]
pub struct CommitLakeSnapshot {
    /// The table.
    pub table_id: TableId,
    /// Its path.
    pub path: TablePath,
    /// The snapshot's id in the lake.
    pub snapshot_id: i64,
    /// The offsets file of [`Client::prepare_lake_snapshot`].
    pub tiered_offsets_path: String,
    /// The offsets file of the newest snapshot that readers without merging may use.
    pub readable_offsets_path: Option<String>,
    /// Which registered snapshots stay.
    pub keep: KeepSnapshots,
    /// The buckets that moved.
    pub progress: Vec<LakeProgress>,
}

impl Client {
    /// Sends one heartbeat, once.
    ///
    /// # Errors
    /// Of the whole call; a refused entry is in [`HeartbeatAnswer::refused`].
    pub async fn tiering_heartbeat(&self, heartbeat: &Heartbeat) -> Result<HeartbeatAnswer, Error> {
        let tables = |list: &[HeartbeatTable]| list.iter().map(wire_heartbeat).collect();
        let request = proto::LakeTieringHeartbeatRequest {
            tiering_tables: tables(&heartbeat.tiering),
            finished_tables: tables(&heartbeat.finished),
            failed_tables: tables(&heartbeat.failed),
            request_table: heartbeat.request_table.then_some(true),
            force_finished_tables: heartbeat.force_finished.iter().map(|id| id.0).collect(),
        };
        let answer = self.coordinator(request).await?;
        let entries = answer.tiering_table_resp.into_iter();
        let entries = entries
            .chain(answer.finished_table_resp)
            .chain(answer.failed_table_resp);
        let refused = entries.filter_map(|entry| {
            let error = entry.error?;
            let code = Some(error.error_code);
            let error = entry_error(ApiKey::LakeTieringHeartbeat, code, error.error_message)?;
            Some((TableId(entry.table_id), error))
        });
        Ok(HeartbeatAnswer {
            coordinator_epoch: CoordinatorEpoch(answer.coordinator_epoch),
            table: answer.tiering_table.map(|table| TieringTable {
                table_id: TableId(table.table_id),
                path: read_path(&table.table_path),
                tiering_epoch: TieringEpoch(table.tiering_epoch),
            }),
            refused: refused.collect(),
        })
    }

    /// Has the coordinator write an offsets file; answers its path. Sent once: a repeated call
    /// writes a second file, which is harmless.
    pub async fn prepare_lake_snapshot(
        &self,
        prepare: &PrepareLakeSnapshot,
    ) -> Result<String, Error> {
        let api = ApiKey::PrepareLakeTableSnapshot;
        let offsets =
            prepare
                .offsets
                .iter()
                .map(|((partition, bucket), end)| proto::PbBucketOffset {
                    partition_id: partition.map(|id| id.0),
                    bucket_id: bucket.0,
                    log_end_offset: Some(end.0),
                });
        let request = proto::PrepareLakeTableSnapshotRequest {
            bucket_offsets: vec![proto::PbTableOffsets {
                table_id: prepare.table_id.0,
                table_path: wire_path(&prepare.path),
                bucket_offsets: offsets.collect(),
            }],
            ignore_previous_table_offsets: prepare.ignore_previous.then_some(true),
        };
        let answer = self.coordinator(request).await?;
        let entry = answer.prepare_lake_table_resp.into_iter().next();
        let entry = entry.ok_or(Error::Incomplete {
            api,
            missing: "the table's entry",
        })?;
        if let Some(error) = entry_error(api, entry.error_code, entry.error_message) {
            return Err(error);
        }
        entry.lake_table_offsets_path.ok_or(Error::Incomplete {
            api,
            missing: "the file's path",
        })
    }

    /// Registers a snapshot that is in the lake. Sent once; repeating it is harmless.
    pub async fn commit_lake_snapshot(&self, commit: &CommitLakeSnapshot) -> Result<(), Error> {
        let api = ApiKey::CommitLakeTableSnapshot;
        let answer = self.coordinator(wire_commit(commit)).await?;
        let mut entries = answer.table_resp.into_iter();
        let entry = entries
            .find(|entry| entry.table_id == commit.table_id.0)
            .ok_or(Error::Incomplete {
                api,
                missing: "the table's entry",
            })?;
        match entry_error(api, entry.error_code, entry.error_message) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}

fn wire_heartbeat(table: &HeartbeatTable) -> proto::PbHeartbeatReqForTable {
    proto::PbHeartbeatReqForTable {
        table_id: table.table_id.0,
        coordinator_epoch: table.coordinator_epoch.0,
        tiering_epoch: table.tiering_epoch.0,
        lake_tiering_stats: table.stats.map(|stats| proto::PbLakeTieringStats {
            file_size: Some(stats.file_bytes),
            record_count: Some(stats.record_count),
        }),
    }
}

fn wire_commit(commit: &CommitLakeSnapshot) -> proto::CommitLakeTableSnapshotRequest {
    let progress = commit
        .progress
        .iter()
        .map(|progress| proto::PbLakeTableOffsetForBucket {
            partition_id: progress.partition.map(|id| id.0),
            bucket_id: progress.bucket.0,
            log_end_offset: Some(progress.end.0),
            max_timestamp: progress.max_timestamp_ms,
        });
    proto::CommitLakeTableSnapshotRequest {
        tables_req: vec![proto::PbLakeTableSnapshotInfo {
            table_id: Some(commit.table_id.0),
            snapshot_id: commit.snapshot_id,
            buckets_req: progress.collect(),
            table_path: Some(wire_path(&commit.path)),
        }],
        lake_table_snapshot_metadata: vec![proto::PbLakeTableSnapshotMetadata {
            table_id: commit.table_id.0,
            snapshot_id: commit.snapshot_id,
            tiered_bucket_offsets_file_path: commit.tiered_offsets_path.clone(),
            readable_bucket_offsets_file_path: commit.readable_offsets_path.clone(),
            earliest_snapshot_id_to_keep: match commit.keep {
                KeepSnapshots::New => None,
                KeepSnapshots::From(id) => Some(id),
                KeepSnapshots::All => Some(-1),
            },
        }],
    }
}

fn entry_error(api: ApiKey, code: Option<i32>, message: Option<String>) -> Option<Error> {
    let code = code
        .filter(|code| *code != ErrorCode::None.code())
        .map(ErrorCode::from_code)?;
    Some(Error::Server {
        api,
        code,
        message: message.unwrap_or_default(),
    })
}
