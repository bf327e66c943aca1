//! `LIMIT_SCAN`: the newest rows of a log, or the first rows of keys. Its errors are told inside of the
//! answer.

use std::sync::Arc;

use weir_protocol::ids::{BucketId, PartitionId, TableBucket, TableId};
use weir_protocol::proto::{LimitScanRequest, LimitScanResponse};

use super::{Answer, Call, Failure, Outcome, decode};
use crate::tablet::{LimitScan, TabletServer};

pub(super) async fn run(tablet: &Arc<TabletServer>, call: Call) -> Outcome {
    let request: LimitScanRequest = decode(call.api, call.body)?;
    let bucket = TableBucket {
        table: TableId(request.table_id),
        partition: request.partition_id.map(PartitionId),
        bucket: BucketId(request.bucket_id),
    };
    let found = tablet
        .limit_scan(bucket, request.routing_bucket_count, request.limit)
        .await;
    let mut response = LimitScanResponse::default();
    match found {
        Ok(LimitScan {
            records,
            is_log_table,
            memory,
        }) => {
            response.is_log_table = Some(is_log_table);
            response.records = Some(records);
            Ok(Answer::new(response).holding(memory))
        }
        Err(error) => {
            (response.error_code, response.error_message) = Failure::from(error).fields();
            Ok(Answer::new(response))
        }
    }
}
