//! Old rows go: by age and size, but never a row that the lake, or a restart of its keys, still needs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use weir_protocol::ids::{LogOffset, TableId};

use super::{Replica, TabletServer};
use crate::held::Held;
use crate::log::SegmentInfo;

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
            self.tend_keys().await;
            let server = Arc::clone(&self);
            let expired = tokio::task::spawn_blocking(move || server.expire()).await;
            if let Err(error) = expired {
                tracing::error!(%error, "old rows are not removed any more");
                return;
            }
        }
    }

    /// Looks after the keys of all buckets.
    pub(crate) async fn tend_keys(&self) {
        let now_ms = self.parts.clock.now_ms();
        let max_replay_bytes = self.parts.kv.config.max_replay_bytes;
        for replica in self.leaders() {
            if self.parts.shutdown.has_begun() {
                return;
            }
            if let Ok(keyed) = replica.keyed() {
                let wanted = self.wanted_below(&replica, now_ms);
                keyed
                    .tend(replica.log(), max_replay_bytes, wanted, now_ms)
                    .await;
            }
        }
    }

    /// Removes what is too old or too much. Blocks.
    pub(crate) fn expire(&self) {
        let now_ms = self.parts.clock.now_ms();
        let mut held = BTreeMap::new();
        for replica in self.leaders() {
            let wanted = self.wanted_below(&replica, now_ms);
            self.note_held(&replica, wanted, &mut held);
            self.note_cut(&replica);
            let Some(offset) = wanted.and_then(|wanted| expired_below(&replica, wanted)) else {
                continue;
            };
            let before = replica.log().size_bytes();
            match replica.log().delete_segments_below(offset) {
                Ok(start) => {
                    let gone = before.saturating_sub(replica.log().size_bytes());
                    self.parts.metrics.expired_bytes.inc_by(gone);
                    self.note_cut(&replica);
                    if gone > 0 {
                        tracing::info!(bucket = %replica.bucket, %start, gone, "old rows removed");
                    }
                }
                Err(error) => {
                    tracing::warn!(bucket = %replica.bucket, %error, "cannot remove old rows");
                }
            }
        }
        self.parts.metrics.held.looked(self.parts.id, held, now_ms);
    }

    /// Notes down whether the log of a keyed bucket tells all of its rows.
    pub(super) fn note_cut(&self, replica: &Replica) {
        if replica.keyed().is_ok() {
            let (start, lake_end) = (replica.start_offset(), replica.lake_end());
            let cut_logs = &self.parts.reads.cut_logs;
            cut_logs.note(replica.bucket, start, lake_end);
        }
    }

    /// Notes down what would go but for the lake.
    fn note_held(
        &self,
        replica: &Replica,
        wanted: Option<LogOffset>,
        held: &mut BTreeMap<TableId, Held>,
    ) {
        if !replica.table.is_lake_enabled() {
            return;
        }
        let lake_end = replica.lake_end().unwrap_or(LogOffset(0));
        let whole = self.parts.metrics.held.is_waiting(replica.bucket);
        let wanted = if whole {
            Some(replica.end_offset())
        } else {
            wanted
        };
        let Some(wanted) = wanted.filter(|wanted| *wanted > lake_end) else {
            return;
        };
        let stays = |s: &&SegmentInfo| s.end_offset > lake_end && s.end_offset <= wanted;
        let segments = replica.log().segments();
        for segment in segments.iter().filter(stays).filter(|s| s.size_bytes > 0) {
            let of_table = held.entry(replica.bucket.table).or_default();
            of_table.add(segment.size_bytes, segment.newest_ms);
        }
    }

    /// Where the rows begin that are young and few enough; `None` if all are.
    fn wanted_below(&self, replica: &Replica, now_ms: i64) -> Option<LogOffset> {
        let log = replica.log();
        let by_age = replica
            .table
            .ttl_ms()
            .map(|ttl_ms| log.retention_offset(now_ms - ttl_ms));
        let limit_bytes = self.parts.log_config.retention_bytes;
        let by_size = too_much_below(&log.segments(), limit_bytes);
        by_age.into_iter().chain(by_size).max()
    }
}

/// Where the rows begin that must stay, of those below `wanted`; `None` if all must.
fn expired_below(replica: &Replica, wanted: LogOffset) -> Option<LogOffset> {
    let readable = replica.high_watermark();
    let bound = if replica.table.is_lake_enabled() {
        replica.lake_end()?
    } else {
        readable
    };
    let bound = match replica.keyed() {
        Ok(keyed) => bound.min(keyed.durable_end()?),
        Err(_) => bound,
    };
    let offset = wanted.min(bound).min(readable);
    (offset > replica.start_offset()).then_some(offset)
}

/// Where the newest segments begin that together fit `limit_bytes`; `None` if all do. The last one, which
/// takes the appends, is never too much.
fn too_much_below(segments: &[SegmentInfo], limit_bytes: u64) -> Option<LogOffset> {
    if limit_bytes == 0 {
        return None;
    }
    let (last, closed) = segments.split_last()?;
    let mut kept = last.size_bytes;
    for segment in closed.iter().rev() {
        kept = kept.saturating_add(segment.size_bytes);
        if kept > limit_bytes {
            return Some(segment.end_offset);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segments(sizes: &[u64]) -> Vec<SegmentInfo> {
        let segment = |(base, size_bytes): (i64, &u64)| SegmentInfo {
            base_offset: LogOffset(base * 10),
            end_offset: LogOffset(base * 10 + 10),
            size_bytes: *size_bytes,
            newest_ms: Some(0),
        };
        (0..).zip(sizes).map(segment).collect()
    }

    #[test]
    fn retention_by_size_never_takes_the_segment_that_is_written_to() {
        assert_eq!(too_much_below(&segments(&[500]), 100), None);
        let all = segments(&[50, 50, 500]);
        assert_eq!(too_much_below(&all, 100), Some(LogOffset(20)));
        assert_eq!(too_much_below(&all, 550), Some(LogOffset(10)));
        assert_eq!(too_much_below(&all, 600), None);
        assert_eq!(too_much_below(&all, 0), None, "no limit");
        assert_eq!(too_much_below(&[], 1), None);
    }
}
