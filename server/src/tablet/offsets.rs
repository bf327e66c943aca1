//! Offsets that clients ask for.

use std::sync::Arc;

use weir_protocol::ids::{BucketId, LogOffset, PartitionId, TableBucket, TableId};
use weir_protocol::proto::{ListOffsetsRequest, ListOffsetsResponse, PbListOffsetsRespForBucket};

use super::{TabletServer, on_blocking_thread};
use crate::error::Error;

/// Which offset of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OffsetSpec {
    /// The first that is held.
    Earliest,
    /// The high watermark: the first that clients cannot read yet.
    Latest,
    /// The first batch with a commit time at or after this, epoch ms.
    Timestamp(i64),
}

impl TabletServer {
    /// Where the logs of the buckets named end that are led here, flushed or not.
    pub(super) fn log_ends(&self, request: &ListOffsetsRequest) -> ListOffsetsResponse {
        let (table, partition) = (
            TableId(request.table_id),
            request.partition_id.map(PartitionId),
        );
        let end = |bucket_id: &i32| {
            let bucket = TableBucket {
                table,
                partition,
                bucket: BucketId(*bucket_id),
            };
            let replica = self.leader_for(bucket, request.routing_bucket_count).ok()?;
            let offset = Some(replica.end_offset().0);
            Some(PbListOffsetsRespForBucket {
                bucket_id: *bucket_id,
                offset,
                ..Default::default()
            })
        };
        ListOffsetsResponse {
            buckets_resp: request.bucket_id.iter().filter_map(end).collect(),
        }
    }

    /// An offset of a bucket that this server leads.
    ///
    /// # Errors
    /// Those of [`TabletServer::leader_for`]; [`Error::FutureTimestamp`].
    pub(crate) async fn offset(
        self: &Arc<Self>,
        bucket: TableBucket,
        routing_bucket_count: Option<i32>,
        spec: OffsetSpec,
    ) -> Result<LogOffset, Error> {
        let replica = self.leader_for(bucket, routing_bucket_count)?;
        let timestamp = match spec {
            OffsetSpec::Earliest => return Ok(replica.start_offset()),
            OffsetSpec::Latest => return Ok(replica.high_watermark()),
            OffsetSpec::Timestamp(timestamp) => timestamp,
        };
        let now = self.parts.clock.now_ms();
        if timestamp > now {
            return Err(Error::FutureTimestamp {
                bucket,
                timestamp,
                now,
            });
        }
        let search = Arc::clone(&replica);
        let search = move || search.offset_at(timestamp);
        let found = on_blocking_thread(&self.reads, search).await??;
        let latest = replica.high_watermark();
        Ok(found.map_or(latest, |offset| offset.min(latest)))
    }
}
