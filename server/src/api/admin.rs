//! What the coordinator answers besides tables: tags, and features that a log-only server of one
//! replica does not have, each refused by its own code.

use std::sync::Arc;

use weir_protocol::api_key::ApiKey;
use weir_protocol::proto::{
    AcquireKvSnapshotLeaseRequest, AcquireKvSnapshotLeaseResponse, AddServerTagRequest,
    AddServerTagResponse, CancelRebalanceRequest, DropKvSnapshotLeaseRequest,
    DropKvSnapshotLeaseResponse, ListKvSnapshotsRequest, ListKvSnapshotsResponse,
    ListRebalanceProgressRequest, ListRemoteLogManifestsRequest, ListRemoteLogManifestsResponse,
    RebalanceRequest, ReleaseKvSnapshotLeaseRequest, ReleaseKvSnapshotLeaseResponse,
    RemoveServerTagRequest, RemoveServerTagResponse,
};

use super::{Call, Outcome, answer};
use crate::coordinator::Coordinator;
use crate::error::Error;

pub(super) async fn run(coordinator: &Arc<Coordinator>, call: Call) -> Outcome {
    use ApiKey as K;
    let body = call.body;
    match call.api {
        K::CreateAcls | K::DropAcls => Err(Error::SecurityDisabled.into()),
        K::AddServerTag => {
            answer(body, |request: AddServerTagRequest| async move {
                coordinator
                    .add_server_tag(&request.server_ids, request.server_tag)
                    .await?;
                Ok(AddServerTagResponse {})
            })
            .await
        }
        K::RemoveServerTag => {
            answer(body, |request: RemoveServerTagRequest| async move {
                coordinator
                    .remove_server_tag(&request.server_ids, request.server_tag)
                    .await?;
                Ok(RemoveServerTagResponse {})
            })
            .await
        }
        K::Rebalance => {
            answer(body, |_: RebalanceRequest| async {
                Err(Error::NoRebalancer)
            })
            .await
        }
        K::ListRebalanceProgress => {
            answer(body, |_: ListRebalanceProgressRequest| async {
                Err(Error::NoRebalance)
            })
            .await
        }
        K::CancelRebalance => {
            answer(body, |_: CancelRebalanceRequest| async {
                Err(Error::NoRebalance)
            })
            .await
        }
        _ => run_empty(call.api, body).await,
    }
}

/// Requests about things of which there are none, and features that are missing.
async fn run_empty(api: ApiKey, body: bytes::Bytes) -> Outcome {
    use ApiKey as K;
    match api {
        K::AcquireKvSnapshotLease => {
            answer(body, |_: AcquireKvSnapshotLeaseRequest| async {
                Ok(AcquireKvSnapshotLeaseResponse::default())
            })
            .await
        }
        K::ReleaseKvSnapshotLease => {
            answer(body, |_: ReleaseKvSnapshotLeaseRequest| async {
                Ok(ReleaseKvSnapshotLeaseResponse {})
            })
            .await
        }
        K::DropKvSnapshotLease => {
            answer(body, |_: DropKvSnapshotLeaseRequest| async {
                Ok(DropKvSnapshotLeaseResponse {})
            })
            .await
        }
        K::ListRemoteLogManifests => {
            answer(body, |_: ListRemoteLogManifestsRequest| async {
                Ok(ListRemoteLogManifestsResponse::default())
            })
            .await
        }
        K::ListKvSnapshots => {
            answer(body, |request: ListKvSnapshotsRequest| async move {
                let (table_id, partition_id) = (request.table_id, request.partition_id);
                Ok(ListKvSnapshotsResponse {
                    table_id,
                    partition_id,
                    active_snapshots: vec![],
                })
            })
            .await
        }
        K::AlterClusterConfigs => Err(Error::Unsupported {
            what: "changing the cluster's configuration",
        }
        .into()),
        K::AddServerTagByRack | K::RemoveServerTagByRack => Err(Error::Unsupported {
            what: "tagging servers by rack",
        }
        .into()),
        _ => Err(Error::Unsupported {
            what: "keeping the offsets of producers",
        }
        .into()),
    }
}
