//! `PRODUCE_LOG`: the append happens before the next request of the connection is read; waiting
//! for the high watermark does not hold up anything.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use weir_protocol::api_key::ApiKey;
use weir_protocol::ids::{BucketId, PartitionId, TableBucket, TableId};
use weir_protocol::proto::{
    PbProduceLogReqForBucket, PbProduceLogRespForBucket, ProduceLogRequest, ProduceLogResponse,
};

use super::{Answer, Call, Failure, Started, decode, refuse_too_many};
use crate::error::Error;
use crate::tablet::{Append, Appending, TabletServer};

pub(super) async fn start(tablet: &Arc<TabletServer>, call: Call) -> Started {
    match begin(tablet, call).await {
        Ok(pending) => Started::finish(async move { Ok(Answer::new(pending.end().await)) }),
        Err(error) => Started::finish(async move { Err(Failure::from(error)) }),
    }
}

/// What is appended and waits for its acknowledgement.
struct Pending {
    tablet: Arc<TabletServer>,
    wait: bool,
    timeout_ms: i32,
    deadline: Instant,
    buckets: Vec<(Option<i64>, i32, Appending)>,
}

async fn begin(tablet: &Arc<TabletServer>, call: Call) -> Result<Pending, Error> {
    let request: ProduceLogRequest = decode(call.api, call.body)?;
    if !(-1..=1).contains(&request.acks) {
        return Err(Error::InvalidAcks { acks: request.acks });
    }
    refuse_too_many(ApiKey::ProduceLog, request.buckets_req.len(), tablet)?;
    let table = TableId(request.table_id);
    let names: Vec<_> = request
        .buckets_req
        .iter()
        .map(|asked| (asked.partition_id, asked.bucket_id))
        .collect();
    let appends = request
        .buckets_req
        .into_iter()
        .map(|asked| append_of(table, asked))
        .collect();
    let appended = tablet.append(appends).await?;
    let buckets = names.into_iter().zip(appended);
    let timeout_ms = request.timeout_ms.max(0);
    Ok(Pending {
        tablet: Arc::clone(tablet),
        wait: request.acks == -1,
        timeout_ms,
        deadline: Instant::now()
            + Duration::from_millis(u64::try_from(timeout_ms).unwrap_or_default()),
        buckets: buckets
            .map(|((partition, bucket), one)| (partition, bucket, one))
            .collect(),
    })
}

fn append_of(table: TableId, asked: PbProduceLogReqForBucket) -> Append {
    let partition = asked.partition_id.map(PartitionId);
    Append {
        bucket: TableBucket {
            table,
            partition,
            bucket: BucketId(asked.bucket_id),
        },
        records: asked.records,
        routing_bucket_count: asked.routing_bucket_count,
    }
}

impl Pending {
    async fn end(self) -> ProduceLogResponse {
        let mut buckets_resp = Vec::with_capacity(self.buckets.len());
        for (partition_id, bucket_id, appending) in self.buckets {
            let result = if self.wait {
                appending.acknowledged(self.deadline, self.timeout_ms).await
            } else {
                appending.base_offset()
            };
            let mut entry = PbProduceLogRespForBucket {
                partition_id,
                bucket_id,
                ..PbProduceLogRespForBucket::default()
            };
            match result {
                Ok(base_offset) => entry.base_offset = Some(base_offset.0),
                Err(error) => {
                    let failure = Failure::from(error);
                    self.tablet.parts.metrics.error(failure.code);
                    (entry.error_code, entry.error_message) = failure.fields();
                }
            }
            buckets_resp.push(entry);
        }
        ProduceLogResponse { buckets_resp }
    }
}
