//! `LIST_OFFSETS`, `INIT_WRITER`, `GET_TABLE_STATS`.

use std::sync::Arc;

use weir_protocol::api_key::ApiKey;
use weir_protocol::ids::{BucketId, PartitionId, TableBucket, TableId};
use weir_protocol::proto::{
    GetTableStatsRequest, GetTableStatsResponse, InitWriterRequest, InitWriterResponse,
    ListOffsetsRequest, ListOffsetsResponse, PbListOffsetsRespForBucket, PbTableStatsRespForBucket,
};

use super::{Call, Failure, Outcome, answer, refuse_too_many};
use crate::error::Error;
use crate::tablet::{OffsetSpec, TabletServer};

pub(super) async fn run(tablet: &Arc<TabletServer>, call: Call) -> Outcome {
    match call.api {
        ApiKey::ListOffsets => answer(call.body, |request| list(tablet, request)).await,
        ApiKey::InitWriter => {
            answer(call.body, |_: InitWriterRequest| async {
                Ok(InitWriterResponse {
                    writer_id: tablet.new_writer_id().await?,
                })
            })
            .await
        }
        _ => answer(call.body, |request| stats(tablet, request)).await,
    }
}

async fn list(
    tablet: &Arc<TabletServer>,
    request: ListOffsetsRequest,
) -> Result<ListOffsetsResponse, Error> {
    let bad = |reason: String| Error::BadRequest {
        api: ApiKey::ListOffsets,
        reason,
    };
    if request.follower_server_id >= 0 {
        return Err(Error::Unsupported {
            what: "a follower on a client listener",
        });
    }
    let spec = match (request.offset_type, request.start_timestamp) {
        (0, _) => OffsetSpec::Earliest,
        (1, _) => OffsetSpec::Latest,
        (2, Some(timestamp_ms)) => OffsetSpec::Timestamp(timestamp_ms),
        (2, None) => return Err(bad("a timestamp is missing".to_owned())),
        (other, _) => return Err(bad(format!("offset type {other} is none of 0, 1, 2"))),
    };
    let count = request.bucket_id.len();
    refuse_too_many(ApiKey::ListOffsets, count, tablet)?;
    let table = TableId(request.table_id);
    let partition = request.partition_id.map(PartitionId);
    let mut buckets_resp = Vec::with_capacity(count);
    for bucket_id in request.bucket_id {
        let bucket = TableBucket {
            table,
            partition,
            bucket: BucketId(bucket_id),
        };
        let found = tablet
            .offset(bucket, request.routing_bucket_count, spec)
            .await;
        // A wrong count is wrong for every bucket: the whole request fails.
        if let Err(error @ Error::StaleRouting { .. }) = found {
            return Err(error);
        }
        let mut entry = PbListOffsetsRespForBucket {
            bucket_id,
            ..Default::default()
        };
        match found {
            Ok(offset) => entry.offset = Some(offset.0),
            Err(error) => {
                (entry.error_code, entry.error_message) = Failure::from(error).fields();
            }
        }
        buckets_resp.push(entry);
    }
    Ok(ListOffsetsResponse { buckets_resp })
}

async fn stats(
    tablet: &Arc<TabletServer>,
    request: GetTableStatsRequest,
) -> Result<GetTableStatsResponse, Error> {
    refuse_too_many(ApiKey::GetTableStats, request.buckets_req.len(), tablet)?;
    let table = TableId(request.table_id);
    let entry = |asked: &weir_protocol::proto::PbTableStatsReqForBucket| {
        let partition = asked.partition_id.map(PartitionId);
        let bucket = TableBucket {
            table,
            partition,
            bucket: BucketId(asked.bucket_id),
        };
        let mut entry = PbTableStatsRespForBucket {
            partition_id: asked.partition_id,
            bucket_id: asked.bucket_id,
            ..PbTableStatsRespForBucket::default()
        };
        match tablet.leader_for(bucket, asked.routing_bucket_count) {
            Ok(replica) => entry.row_count = replica.row_count(),
            Err(error) => {
                (entry.error_code, entry.error_message) = Failure::from(error).fields();
            }
        }
        entry
    };
    Ok(GetTableStatsResponse {
        buckets_resp: request.buckets_req.iter().map(entry).collect(),
    })
}
