//! The newest rows of a bucket.

use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use tokio::sync::OwnedSemaphorePermit;
use weir_protocol::api_key::ApiKey;
use weir_protocol::ids::{LogOffset, TableBucket};

use super::{Replica, TabletServer, on_blocking_thread};
use crate::error::Error;
use crate::memory::give_back_beyond;

impl TabletServer {
    /// Batches that hold the last `limit` rows below the high watermark, and maybe some before; the newest of
    /// them if all are more than one answer may have. With the memory they take.
    ///
    /// # Errors
    /// Those of [`TabletServer::leader_for`]; [`Error::BadRequest`] for a limit that is not positive.
    pub(crate) async fn newest(
        self: &Arc<Self>,
        bucket: TableBucket,
        routing_bucket_count: Option<i32>,
        limit: i32,
    ) -> Result<(Bytes, Option<OwnedSemaphorePermit>), Error> {
        let replica = self.leader_for(bucket, routing_bucket_count)?;
        if limit <= 0 {
            let reason = format!("limit {limit} is not positive");
            return Err(Error::BadRequest {
                api: ApiKey::LimitScan,
                reason,
            });
        }
        let max_bytes = self.parts.limits.max_fetch_bytes;
        let (end, start) = (replica.high_watermark(), replica.start_offset());
        let oldest = LogOffset(end.0.saturating_sub(i64::from(limit)).max(start.0));
        let there = usize::try_from(replica.log().bytes_from(oldest)).unwrap_or(usize::MAX);
        let mut memory = self.answers.reserve(there.min(max_bytes)).await;
        let read = move || read_newest(&replica, oldest..end, max_bytes);
        let records = on_blocking_thread(&self.reads, read).await??;
        if let Some(memory) = &mut memory {
            give_back_beyond(memory, records.len());
        }
        self.parts
            .metrics
            .fetched_bytes
            .inc_by(u64::try_from(records.len()).unwrap_or(0));
        Ok((records, memory))
    }
}

/// The newest batches of a range that have at most `max_bytes`, one at least. Blocks.
fn read_newest(
    replica: &Replica,
    range: Range<LogOffset>,
    max_bytes: usize,
) -> Result<Bytes, Error> {
    let most = u64::try_from(max_bytes).unwrap_or(u64::MAX);
    let log = replica.log();
    let mut from = log.newest_within(range.start, range.end, most)?;
    let mut all = BytesMut::new();
    while from < range.end && (all.is_empty() || all.len() < max_bytes) {
        let piece = replica.read(from, max_bytes - all.len().min(max_bytes), range.end)?;
        if piece.batches.is_empty() {
            break;
        }
        all.extend_from_slice(&piece.batches);
        from = piece.next_offset;
    }
    Ok(all.freeze())
}
