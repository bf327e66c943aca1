//! Requests of lake workers.

use std::sync::Arc;

use weir_protocol::api_key::ApiKey;
use weir_protocol::proto::{
    CommitLakeTableSnapshotRequest, CommitLakeTableSnapshotResponse,
    PbCommitLakeTableSnapshotRespForTable, PbPrepareLakeTableRespForTable,
    PrepareLakeTableSnapshotRequest, PrepareLakeTableSnapshotResponse,
};

use super::{Call, Failure, Outcome, answer};
use crate::coordinator::Coordinator;
use crate::error::Error;

pub(super) async fn run(coordinator: &Arc<Coordinator>, call: Call) -> Outcome {
    let body = call.body;
    match call.api {
        ApiKey::LakeTieringHeartbeat => {
            answer(body, |request| coordinator.parts.rounds.heartbeat(request)).await
        }
        ApiKey::PrepareLakeTableSnapshot => {
            answer(body, |request| prepare(coordinator, request)).await
        }
        _ => answer(body, |request| commit(coordinator, request)).await,
    }
}

/// One entry a table, in the order of the request.
async fn prepare(
    coordinator: &Coordinator,
    request: PrepareLakeTableSnapshotRequest,
) -> Result<PrepareLakeTableSnapshotResponse, Error> {
    let ignore_previous = request.ignore_previous_table_offsets.unwrap_or(false);
    let mut response = PrepareLakeTableSnapshotResponse::default();
    for given in &request.bucket_offsets {
        let mut entry = PbPrepareLakeTableRespForTable {
            table_id: Some(given.table_id),
            ..PbPrepareLakeTableRespForTable::default()
        };
        match coordinator
            .prepare_lake_snapshot(given, ignore_previous)
            .await
        {
            Ok(uri) => entry.lake_table_offsets_path = Some(uri),
            Err(error) => {
                (entry.error_code, entry.error_message) = Failure::from(error).fields();
            }
        }
        response.prepare_lake_table_resp.push(entry);
    }
    Ok(response)
}

/// The metadata entries count; the offsets beside them are for display. Without metadata the
/// request is of a client up to 0.8, and its offsets are what is recorded.
async fn commit(
    coordinator: &Coordinator,
    request: CommitLakeTableSnapshotRequest,
) -> Result<CommitLakeTableSnapshotResponse, Error> {
    let mut response = CommitLakeTableSnapshotResponse::default();
    let mut add = |table_id: i64, result: Result<(), Error>| {
        let mut entry = PbCommitLakeTableSnapshotRespForTable {
            table_id,
            ..PbCommitLakeTableSnapshotRespForTable::default()
        };
        if let Err(error) = result {
            tracing::warn!(table_id, %error, "a lake snapshot was not recorded");
            coordinator.parts.metrics.lake_commits_refused.inc();
            (entry.error_code, entry.error_message) = Failure::from(error).fields();
        }
        response.table_resp.push(entry);
    };
    for given in &request.lake_table_snapshot_metadata {
        add(
            given.table_id,
            coordinator.commit_lake_snapshot(given).await,
        );
    }
    if request.lake_table_snapshot_metadata.is_empty() {
        for given in &request.tables_req {
            let result = coordinator.commit_lake_offsets(given).await;
            let table_id = result
                .as_ref()
                .map_or(given.table_id.unwrap_or(-1), |table| table.0);
            add(table_id, result.map(|_| ()));
        }
    }
    Ok(response)
}
