//! Key-value requests. All tables of this version are log tables: each bucket answers so itself,
//! after the checks that come before it.

use std::sync::Arc;

use weir_protocol::api_key::ApiKey;
use weir_protocol::ids::{BucketId, PartitionId, TableBucket, TableId};
use weir_protocol::proto::{
    LookupRequest, LookupResponse, PbLookupRespForBucket, PbPrefixLookupRespForBucket,
    PbPutKvRespForBucket, PrefixLookupRequest, PrefixLookupResponse, PutKvRequest, PutKvResponse,
    ScanKvRequest, ScanKvResponse,
};

use super::{Call, Failure, Outcome, answer};
use crate::error::Error;
use crate::tablet::TabletServer;

pub(super) async fn run(tablet: &Arc<TabletServer>, call: Call) -> Outcome {
    match call.api {
        ApiKey::PutKv => answer(call.body, |request| put(tablet, request)).await,
        ApiKey::Lookup => answer(call.body, |request| lookup(tablet, request)).await,
        ApiKey::PrefixLookup => answer(call.body, |request| prefix_lookup(tablet, request)).await,
        _ => answer(call.body, |request| scan(tablet, request)).await,
    }
}

/// Why this bucket has no keys.
fn refuse(
    tablet: &TabletServer,
    bucket: TableBucket,
    count: Option<i32>,
) -> (Option<i32>, Option<String>) {
    let error = match tablet.leader_for(bucket, count) {
        Ok(replica) => Error::NoPrimaryKey {
            table: replica.path.to_string(),
        },
        Err(error) => error,
    };
    Failure::from(error).fields()
}

fn bucket_of(table: i64, partition: Option<i64>, bucket: i32) -> TableBucket {
    TableBucket {
        table: TableId(table),
        partition: partition.map(PartitionId),
        bucket: BucketId(bucket),
    }
}

async fn put(tablet: &TabletServer, request: PutKvRequest) -> Result<PutKvResponse, Error> {
    if !(-1..=1).contains(&request.acks) {
        return Err(Error::InvalidAcks { acks: request.acks });
    }
    let entry = |asked: &weir_protocol::proto::PbPutKvReqForBucket| {
        let bucket = bucket_of(request.table_id, asked.partition_id, asked.bucket_id);
        let (error_code, error_message) = refuse(tablet, bucket, asked.routing_bucket_count);
        PbPutKvRespForBucket {
            partition_id: asked.partition_id,
            bucket_id: asked.bucket_id,
            error_code,
            error_message,
            ..PbPutKvRespForBucket::default()
        }
    };
    Ok(PutKvResponse {
        buckets_resp: request.buckets_req.iter().map(entry).collect(),
    })
}

async fn lookup(tablet: &TabletServer, request: LookupRequest) -> Result<LookupResponse, Error> {
    let entry = |asked: &weir_protocol::proto::PbLookupReqForBucket| {
        let bucket = bucket_of(request.table_id, asked.partition_id, asked.bucket_id);
        let (error_code, error_message) = refuse(tablet, bucket, asked.routing_bucket_count);
        PbLookupRespForBucket {
            partition_id: asked.partition_id,
            bucket_id: asked.bucket_id,
            error_code,
            error_message,
            ..PbLookupRespForBucket::default()
        }
    };
    Ok(LookupResponse {
        buckets_resp: request.buckets_req.iter().map(entry).collect(),
    })
}

async fn prefix_lookup(
    tablet: &TabletServer,
    request: PrefixLookupRequest,
) -> Result<PrefixLookupResponse, Error> {
    let entry = |asked: &weir_protocol::proto::PbPrefixLookupReqForBucket| {
        let bucket = bucket_of(request.table_id, asked.partition_id, asked.bucket_id);
        let (error_code, error_message) = refuse(tablet, bucket, asked.routing_bucket_count);
        PbPrefixLookupRespForBucket {
            partition_id: asked.partition_id,
            bucket_id: asked.bucket_id,
            error_code,
            error_message,
            ..PbPrefixLookupRespForBucket::default()
        }
    };
    Ok(PrefixLookupResponse {
        buckets_resp: request.buckets_req.iter().map(entry).collect(),
    })
}

async fn scan(tablet: &TabletServer, request: ScanKvRequest) -> Result<ScanKvResponse, Error> {
    let Some(asked) = &request.bucket_scan_req else {
        let reason = "no scanner is open".to_owned();
        return Err(Error::BadRequest {
            api: ApiKey::ScanKv,
            reason,
        });
    };
    let bucket = bucket_of(asked.table_id, asked.partition_id, asked.bucket_id);
    let (error_code, error_message) = refuse(tablet, bucket, asked.routing_bucket_count);
    Ok(ScanKvResponse {
        error_code,
        error_message,
        ..ScanKvResponse::default()
    })
}
