//! Old rows go: by age and size, but never a row that the lake still needs.

use std::sync::Arc;
use std::time::Duration;

use weir_protocol::ids::LogOffset;

use super::{Replica, TabletServer};

impl TabletServer {
    /// Looks for old segments from time to time, until the shutdown begins.
    pub(crate) async fn retention_loop(self: Arc<Self>) {
        let every = Duration::from_millis(self.parts.log_config.retention_check_ms);
        let mut ticks = tokio::time::interval(every);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = self.parts.shutdown.begun() => return,
                _ = ticks.tick() => {}
            }
            let server = Arc::clone(&self);
            if tokio::task::spawn_blocking(move || server.expire())
                .await
                .is_err()
            {
                return;
            }
        }
    }

    /// Removes what is too old or too much. Blocks.
    pub(crate) fn expire(&self) {
        let now_ms = self.parts.clock.now_ms();
        for replica in self.leaders() {
            let Some(offset) = self.expired_below(&replica, now_ms) else {
                continue;
            };
            let before = replica.log().size_bytes();
            match replica.log().delete_segments_below(offset) {
                Ok(start) => {
                    let gone = before.saturating_sub(replica.log().size_bytes());
                    self.parts.metrics.expired_bytes.inc_by(gone);
                    if gone > 0 {
                        tracing::info!(bucket = %replica.bucket, %start, gone, "old rows removed");
                    }
                }
                Err(error) => {
                    tracing::warn!(bucket = %replica.bucket, %error, "cannot remove old rows");
                }
            }
        }
    }

    /// Where the rows begin that must stay; `None` if all must.
    fn expired_below(&self, replica: &Replica, now_ms: i64) -> Option<LogOffset> {
        let log = replica.log();
        let by_age = replica
            .table
            .ttl_ms()
            .map(|ttl_ms| log.retention_offset(now_ms - ttl_ms));
        let by_size = self.too_much_below(replica);
        let wanted = by_age.into_iter().chain(by_size).max()?;
        let readable = replica.high_watermark();
        let bound = if replica.table.is_lake_enabled() {
            replica.lake_end()?
        } else {
            readable
        };
        let offset = wanted.min(bound).min(readable);
        (offset > replica.start_offset()).then_some(offset)
    }

    /// Where the newest segments begin that together fit the configured size.
    fn too_much_below(&self, replica: &Replica) -> Option<LogOffset> {
        let limit = self.parts.log_config.retention_bytes;
        if limit == 0 {
            return None;
        }
        let mut kept = 0_u64;
        for segment in replica.log().segments().iter().rev() {
            kept = kept.saturating_add(segment.size_bytes);
            if kept > limit {
                return Some(segment.end_offset);
            }
        }
        None
    }
}
