//! The newest rows of a bucket.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use weir_protocol::api_key::ApiKey;
use weir_protocol::ids::{LogOffset, TableBucket};

use super::TabletServer;
use crate::error::Error;

impl TabletServer {
    /// Batches that hold the last `limit` rows below the high watermark, and maybe some before.
    ///
    /// # Errors
    /// Those of [`TabletServer::leader_for`]; [`Error::BadRequest`] for a limit that is not positive.
    pub(crate) async fn newest(
        self: &Arc<Self>,
        bucket: TableBucket,
        routing_bucket_count: Option<i32>,
        limit: i32,
    ) -> Result<Bytes, Error> {
        let replica = self.leader_for(bucket, routing_bucket_count)?;
        if limit <= 0 {
            let reason = format!("limit {limit} is not positive");
            return Err(Error::BadRequest {
                api: ApiKey::LimitScan,
                reason,
            });
        }
        let max_bytes = self.parts.limits.max_fetch_bytes;
        let read = move || {
            let end = replica.high_watermark();
            let start = replica.start_offset();
            let mut from = LogOffset((end.0 - i64::from(limit)).max(start.0));
            let mut all = BytesMut::new();
            while from < end && all.len() < max_bytes {
                let piece = replica.read(from, max_bytes - all.len(), end)?;
                if piece.batches.is_empty() {
                    break;
                }
                all.extend_from_slice(&piece.batches);
                from = piece.next_offset;
            }
            Ok(all.freeze())
        };
        tokio::task::spawn_blocking(read).await?
    }
}
