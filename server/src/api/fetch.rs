//! `FETCH_LOG`.

use std::sync::Arc;
use std::time::Duration;

use weir_protocol::api_key::ApiKey;
use weir_protocol::ids::{BucketId, PartitionId, TableBucket, TableId};
use weir_protocol::proto::{
    FetchLogRequest, FetchLogResponse, PbFetchLogReqForTable, PbFetchLogRespForBucket,
    PbFetchLogRespForTable,
};

use super::{Answer, Call, Failure, Outcome, decode, refuse_too_many};
use crate::error::Error;
use crate::tablet::{Columns, FetchAnswer, FetchBucket, FetchRequest, Fetched, TabletServer};

/// How long a fetch waits that asks for a least number of bytes and names no time.
const DEFAULT_WAIT_MS: i32 = 100;

pub(super) async fn run(tablet: &Arc<TabletServer>, call: Call) -> Outcome {
    let request: FetchLogRequest = decode(call.api, call.body)?;
    let asked = fetch_request(tablet, &request)?;
    let FetchAnswer { buckets, memory } = tablet.fetch(asked).await?;
    Ok(Answer::new(answer_of(&request, buckets)).holding(memory))
}

/// The request in terms of buckets, within the limits.
fn fetch_request(tablet: &TabletServer, request: &FetchLogRequest) -> Result<FetchRequest, Error> {
    if request.follower_server_id >= 0 {
        return Err(Error::Unsupported {
            what: "a follower on a client listener",
        });
    }
    let limits = &tablet.parts.limits;
    let tables = request.tables_req.iter();
    let count = tables.map(|table| table.buckets_req.len()).sum();
    refuse_too_many(ApiKey::FetchLog, count, tablet)?;
    let wait_ms = request.max_wait_ms.unwrap_or(DEFAULT_WAIT_MS).max(0);
    let wait_ms = u64::try_from(wait_ms)
        .unwrap_or(0)
        .min(limits.max_fetch_wait_ms);
    let size = |bytes: i32| usize::try_from(bytes.max(0)).unwrap_or(0);
    Ok(FetchRequest {
        buckets: request.tables_req.iter().flat_map(buckets_of).collect(),
        max_bytes: size(request.max_bytes).min(limits.max_fetch_bytes),
        min_bytes: request.min_bytes.map(size),
        max_wait: Duration::from_millis(wait_ms),
    })
}

fn buckets_of(table: &PbFetchLogReqForTable) -> impl Iterator<Item = FetchBucket> {
    let columns = if table.projection_pushdown_enabled {
        Columns::Some(table.projected_fields.clone().into())
    } else {
        Columns::All
    };
    let id = TableId(table.table_id);
    table.buckets_req.iter().map(move |asked| FetchBucket {
        bucket: TableBucket {
            table: id,
            partition: asked.partition_id.map(PartitionId),
            bucket: BucketId(asked.bucket_id),
        },
        offset: asked.fetch_offset,
        max_bytes: usize::try_from(asked.max_fetch_bytes.max(0)).unwrap_or(0),
        routing_bucket_count: asked.routing_bucket_count,
        columns: columns.clone(),
    })
}

/// The results, grouped as they were asked for.
fn answer_of(request: &FetchLogRequest, fetched: Vec<Result<Fetched, Error>>) -> FetchLogResponse {
    let mut fetched = fetched.into_iter();
    let table = |table: &PbFetchLogReqForTable| {
        let results = fetched.by_ref().take(table.buckets_req.len());
        let buckets_resp = table
            .buckets_req
            .iter()
            .zip(results)
            .map(|(asked, result)| {
                let mut entry = PbFetchLogRespForBucket {
                    partition_id: asked.partition_id,
                    bucket_id: asked.bucket_id,
                    ..PbFetchLogRespForBucket::default()
                };
                match result {
                    Ok(read) => {
                        entry.high_watermark = Some(read.high_watermark.0);
                        // Java clients fail on an entry without the field, silently, and with it they lose
                        // the rows of all other buckets in the answer.
                        entry.records = Some(read.records);
                        entry.log_start_offset = Some(read.start.0);
                    }
                    Err(error) => {
                        (entry.error_code, entry.error_message) = Failure::from(error).fields();
                    }
                }
                entry
            });
        let buckets_resp = buckets_resp.collect();
        PbFetchLogRespForTable {
            table_id: table.table_id,
            buckets_resp,
        }
    };
    FetchLogResponse {
        tables_resp: request.tables_req.iter().map(table).collect(),
    }
}
