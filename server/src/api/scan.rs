//! `LIMIT_SCAN`: the newest rows of a bucket. Its errors are told inside of the answer.

use std::sync::Arc;

use weir_protocol::ids::{BucketId, PartitionId, TableBucket, TableId};
use weir_protocol::proto::{LimitScanRequest, LimitScanResponse};

use super::{Call, Failure, Outcome, answer};
use crate::error::Error;
use crate::tablet::TabletServer;

pub(super) async fn run(tablet: &Arc<TabletServer>, call: Call) -> Outcome {
    answer(call.body, |request| limit_scan(tablet, request)).await
}

async fn limit_scan(
    tablet: &Arc<TabletServer>,
    request: LimitScanRequest,
) -> Result<LimitScanResponse, Error> {
    let bucket = TableBucket {
        table: TableId(request.table_id),
        partition: request.partition_id.map(PartitionId),
        bucket: BucketId(request.bucket_id),
    };
    let found = tablet
        .newest(bucket, request.routing_bucket_count, request.limit)
        .await;
    let mut response = LimitScanResponse::default();
    match found {
        Ok(records) => {
            response.is_log_table = Some(true);
            response.records = Some(records);
        }
        Err(error) => {
            (response.error_code, response.error_message) = Failure::from(error).fields();
        }
    }
    Ok(response)
}
