//! `PUT_KV`: puts are queued before the next request of the connection is read; waiting for them does
//! not hold up anything.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use weir_kv::upsert::MergeMode;
use weir_protocol::api_key::ApiKey;
use weir_protocol::proto::{PbPutKvRespForBucket, PutKvRequest, PutKvResponse};

use super::bucket_of;
use crate::api::{Answer, Call, Failure, Started, decode, refuse_too_many};
use crate::error::Error;
use crate::tablet::{Existing, Put, PutBucket, PutPending, TabletServer};

/// `agg_mode`: the table's merge engine counts.
const ENGINE: i32 = 0;
/// `agg_mode`: the last row wins.
const OVERWRITE: i32 = 1;

pub(in crate::api) async fn start(tablet: &Arc<TabletServer>, call: Call) -> Started {
    match begin(tablet, call).await {
        Ok(pending) => Started::finish(async move { Ok(Answer::new(pending.end().await)) }),
        Err(error) => Started::finish(async move { Err(Failure::from(error)) }),
    }
}

/// What is queued and waits for its acknowledgement.
struct Pending {
    tablet: Arc<TabletServer>,
    wait: bool,
    timeout_ms: i32,
    deadline: Instant,
    buckets: Vec<(Option<i64>, i32, PutPending)>,
}

async fn begin(tablet: &Arc<TabletServer>, call: Call) -> Result<Pending, Error> {
    let request: PutKvRequest = decode(call.api, call.body)?;
    if !(-1..=1).contains(&request.acks) {
        return Err(Error::InvalidAcks { acks: request.acks });
    }
    refuse_too_many(ApiKey::PutKv, request.buckets_req.len(), tablet)?;
    let mode = match request.agg_mode.unwrap_or(ENGINE) {
        ENGINE => MergeMode::Engine,
        OVERWRITE => MergeMode::Overwrite,
        other => {
            let reason = format!("merge mode {other} is none of 0, 1");
            let api = ApiKey::PutKv;
            return Err(Error::BadRequest { api, reason });
        }
    };
    let targets = Some(request.target_columns).filter(|targets| !targets.is_empty());
    let target_columns = targets.map(Arc::from);
    let timeout_ms = request.timeout_ms.max(0);
    let patience = Duration::from_millis(u64::try_from(timeout_ms).unwrap_or_default());
    let deadline = Instant::now() + patience;
    let mut buckets = Vec::with_capacity(request.buckets_req.len());
    for asked in request.buckets_req {
        let (partition, bucket) = (asked.partition_id, asked.bucket_id);
        let put = PutBucket {
            bucket: bucket_of(request.table_id, partition, bucket),
            put: Put {
                records: asked.records,
                target_columns: target_columns.clone(),
                mode,
                existing: Existing::Merge,
            },
            routing_bucket_count: asked.routing_bucket_count,
        };
        buckets.push((partition, bucket, tablet.put(put, call.version).await));
    }
    Ok(Pending {
        tablet: Arc::clone(tablet),
        wait: request.acks == -1,
        timeout_ms,
        deadline,
        buckets,
    })
}

impl Pending {
    async fn end(self) -> PutKvResponse {
        let tablet = &*self.tablet;
        let mut buckets_resp = Vec::with_capacity(self.buckets.len());
        for (partition_id, bucket_id, put) in self.buckets {
            let result = if self.wait {
                put.acknowledged(tablet, self.deadline, self.timeout_ms)
                    .await
            } else {
                put.written(tablet).await
            };
            let mut entry = PbPutKvRespForBucket {
                partition_id,
                bucket_id,
                ..PbPutKvRespForBucket::default()
            };
            match result {
                Ok(end) => entry.log_end_offset = Some(end.0),
                Err(error) => {
                    let failure = Failure::from(error);
                    tablet.parts.metrics.error(failure.code);
                    (entry.error_code, entry.error_message) = failure.fields();
                }
            }
            buckets_resp.push(entry);
        }
        PutKvResponse { buckets_resp }
    }
}
