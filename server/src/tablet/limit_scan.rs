//! Some rows of a bucket: the newest of a log, the first of keys.

use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use tokio::sync::OwnedSemaphorePermit;
use weir_protocol::api_key::ApiKey;
use weir_protocol::ids::{LogOffset, TableBucket};

use super::{Replica, TabletServer, on_blocking_thread};
use crate::error::Error;
use crate::memory::give_back_beyond;

/// Rows of a bucket.
pub(crate) struct LimitScan {
    /// Log batches, or a batch of values.
    pub(crate) records: Bytes,
    pub(crate) is_log_table: bool,
    /// Given back once the answer is sent.
    pub(crate) memory: Option<OwnedSemaphorePermit>,
}

impl TabletServer {
    /// Some rows of a bucket: the last `limit` of a log, the first `limit` of keys. With the memory they
    /// take.
    ///
    /// # Errors
    /// Those of [`TabletServer::leader_for`]; [`Error::BadRequest`] for a limit that is not positive.
    pub(crate) async fn limit_scan(
        self: &Arc<Self>,
        bucket: TableBucket,
        routing_bucket_count: Option<i32>,
        limit: i32,
    ) -> Result<LimitScan, Error> {
        let replica = self.leader_for(bucket, routing_bucket_count)?;
        let rows = usize::try_from(limit).ok().filter(|rows| *rows > 0);
        let rows = rows.ok_or_else(|| Error::BadRequest {
            api: ApiKey::LimitScan,
            reason: format!("limit {limit} is not positive"),
        })?;
        let is_log_table = !replica.table.has_keys();
        let (records, memory) = if is_log_table {
            self.newest(replica, limit).await?
        } else {
            self.first_rows(&replica, rows).await?
        };
        Ok(LimitScan {
            records,
            is_log_table,
            memory,
        })
    }

    /// Batches that hold the last `limit` rows below the high watermark, and maybe some before; the newest of
    /// them if all are more than one answer may have. With the memory they take.
    async fn newest(
        self: &Arc<Self>,
        replica: Arc<Replica>,
        limit: i32,
    ) -> Result<(Bytes, Option<OwnedSemaphorePermit>), Error> {
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
