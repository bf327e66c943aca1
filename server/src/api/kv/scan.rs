//! `SCAN_KV`: a scan is opened, read page by page, and closed by its last page or by the client. Its
//! errors are told inside of the answer.

use std::sync::Arc;

use weir_protocol::proto::{ScanKvRequest, ScanKvResponse};

use super::bucket_of;
use crate::api::{Answer, Call, Failure, Outcome, decode};
use crate::error::Error;
use crate::tablet::{ScanPage, ScannerId, TabletServer};

pub(super) async fn run(tablet: &Arc<TabletServer>, call: Call) -> Outcome {
    let request: ScanKvRequest = decode(call.api, call.body)?;
    let mut response = ScanKvResponse::default();
    match scan(tablet, request).await {
        Ok(Some(page)) => {
            response.has_more_results = Some(page.scanner.is_some());
            response.scanner_id = page.scanner.map(|id| id.encode());
            response.records = page.records;
            response.log_offset = page.log_offset.map(|offset| offset.0);
            Ok(Answer::new(response).holding(page.memory))
        }
        Ok(None) => {
            response.has_more_results = Some(false);
            Ok(Answer::new(response))
        }
        Err(error) => {
            let failure = Failure::from(error);
            tablet.parts.metrics.error(failure.code);
            (response.error_code, response.error_message) = failure.fields();
            Ok(Answer::new(response))
        }
    }
}

/// A page, or `None` once the scan is closed.
async fn scan(tablet: &TabletServer, request: ScanKvRequest) -> Result<Option<ScanPage>, Error> {
    let invalid = |reason: String| Error::InvalidScan { reason };
    let scanner = request.scanner_id.filter(|id| !id.is_empty());
    let known = scanner.map(|bytes| ScannerId::decode(&bytes).ok_or(Error::UnknownScanner));
    let known = known.transpose()?;
    if request.close_scanner == Some(true) {
        if let Some(id) = known {
            tablet.close_scan(id);
        }
        return Ok(None);
    }
    let size = request.batch_size_bytes.unwrap_or(0);
    let max_bytes = usize::try_from(size).ok().filter(|size| *size > 0);
    let max_bytes =
        max_bytes.ok_or_else(|| invalid(format!("batch size {size} is not positive")))?;
    let page = request.call_seq_id.unwrap_or(0);
    match (known, request.bucket_scan_req) {
        (Some(id), None) => {
            let page = u32::try_from(page)
                .map_err(|_| invalid(format!("call {page} of a scan is below 0")))?;
            tablet.next_page(id, page, max_bytes).await.map(Some)
        }
        (None, Some(asked)) => {
            if page != 0 {
                return Err(invalid(format!("a scan begins with call 0, not {page}")));
            }
            let limit = asked.limit.filter(|limit| *limit > 0);
            let limit = limit.and_then(|limit| u64::try_from(limit).ok());
            let bucket = bucket_of(asked.table_id, asked.partition_id, asked.bucket_id);
            let opened = tablet
                .open_scan(bucket, asked.routing_bucket_count, limit, max_bytes)
                .await;
            opened.map(Some)
        }
        (Some(_), Some(_)) => Err(invalid("it names a scan and begins another".to_owned())),
        (None, None) => Err(invalid("it names no scan and begins none".to_owned())),
    }
}
