//! Where logs begin and end, and how far they are in the lake.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::join_all;
use tokio::time::Instant;

use super::metadata::wire_path;
use super::{Backoff, Client, Error};
use crate::api_key::ApiKey;
use crate::error_code::ErrorCode;
use crate::ids::{
    BucketId, LogOffset, PartitionId, ServerId, TableBucket, TableId, TablePath, TotalBuckets,
};
use crate::proto;

/// Which offset LIST_OFFSETS looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffsetSpec {
    /// The first offset the log still holds.
    Earliest,
    /// The high watermark.
    Latest,
    /// The first batch committed at or after these epoch milliseconds.
    Timestamp(i64),
}

/// The buckets whose offsets are asked for, all of one table or one partition.
#[derive(Clone, Debug)]
pub struct OffsetsRequest {
    /// The table's path, to find leaders.
    pub path: TablePath,
    /// The table.
    pub table: TableId,
    /// The partition, of a partitioned table.
    pub partition: Option<PartitionId>,
    /// The buckets.
    pub buckets: Vec<BucketId>,
    /// Which offset.
    pub spec: OffsetSpec,
    /// The count by which `buckets` were chosen.
    pub routing_count: TotalBuckets,
}

/// One entry per bucket asked for.
pub type Offsets = BTreeMap<BucketId, Result<LogOffset, Error>>;

impl OffsetsRequest {
    fn bucket(&self, bucket: BucketId) -> TableBucket {
        TableBucket {
            table: self.table,
            partition: self.partition,
            bucket,
        }
    }
}

/// The newest lake snapshot of a table, as the coordinator recorded it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LakeSnapshot {
    /// The table.
    pub table_id: TableId,
    /// The snapshot's id in the lake.
    pub snapshot_id: i64,
    /// Per bucket, the end (exclusive) of what is in the lake, and the partition's name if told.
    pub buckets: Vec<(TableBucket, LogOffset, Option<String>)>,
}

impl Client {
    /// Offsets of buckets, asked of all leaders at the same time. Every bucket has an entry;
    /// retriable failures were retried within `retry_timeout`, with fresh metadata where needed.
    ///
    /// # Errors
    /// [`Error::TableReplaced`] if the path now names another table, or why metadata could not be
    /// had; all else is per bucket.
    pub async fn list_offsets(&self, request: &OffsetsRequest) -> Result<Offsets, Error> {
        let patience = self.config().retry_timeout;
        self.list_offsets_within(request, patience).await
    }

    /// As [`Client::list_offsets`], trying again for so long only: what the other buckets answered
    /// need not wait for one in trouble.
    ///
    /// # Errors
    /// As [`Client::list_offsets`].
    pub async fn list_offsets_within(
        &self,
        request: &OffsetsRequest,
        patience: Duration,
    ) -> Result<Offsets, Error> {
        let give_up = Instant::now() + patience.min(self.config().retry_timeout);
        let mut backoff = Backoff::new(self.config().first_backoff);
        let mut offsets = Offsets::new();
        let mut open = request.buckets.clone();
        loop {
            offsets.extend(self.list_offsets_once(request, &open).await?);
            open.retain(|bucket| match offsets.get(bucket) {
                Some(Err(error)) => error.is_retriable(),
                _ => false,
            });
            let pause = backoff.next();
            if open.is_empty() || Instant::now() + pause > give_up {
                return Ok(offsets);
            }
            tokio::time::sleep(pause).await;
            let partitions = request.partition.into_iter().collect();
            self.refresh_buckets(&request.path, request.table, partitions)
                .await?;
        }
    }

    async fn list_offsets_once(
        &self,
        request: &OffsetsRequest,
        buckets: &[BucketId],
    ) -> Result<Offsets, Error> {
        let mut cluster = self.cluster();
        let leads = |bucket: &BucketId| cluster.leader(request.bucket(*bucket)).is_some();
        if !buckets.iter().all(leads) {
            let partitions = request.partition.into_iter().collect();
            cluster = self
                .refresh_buckets(&request.path, request.table, partitions)
                .await?;
        }
        let mut offsets = Offsets::new();
        let mut by_leader = BTreeMap::<ServerId, Vec<BucketId>>::new();
        for &id in buckets {
            let bucket = request.bucket(id);
            match cluster.leader(bucket) {
                Some(leader) => by_leader.entry(leader).or_default().push(id),
                None => drop(offsets.insert(id, Err(Error::NoLeader { bucket }))),
            }
        }
        let calls = by_leader
            .into_iter()
            .map(|(leader, ids)| self.ask(request, leader, ids));
        for (ids, answer) in join_all(calls).await {
            read_offsets(request, &ids, answer, &mut offsets);
        }
        Ok(offsets)
    }

    async fn ask(
        &self,
        request: &OffsetsRequest,
        leader: ServerId,
        buckets: Vec<BucketId>,
    ) -> (Vec<BucketId>, Result<proto::ListOffsetsResponse, Error>) {
        let (offset_type, start_timestamp) = match request.spec {
            OffsetSpec::Earliest => (0, None),
            OffsetSpec::Latest => (1, None),
            OffsetSpec::Timestamp(timestamp) => (2, Some(timestamp)),
        };
        let wire = proto::ListOffsetsRequest {
            follower_server_id: -1,
            offset_type,
            table_id: request.table.0,
            partition_id: request.partition.map(|id| id.0),
            bucket_id: buckets.iter().map(|id| id.0).collect(),
            start_timestamp,
            routing_bucket_count: Some(request.routing_count.0),
        };
        (buckets, self.server(leader, wire).await)
    }

    /// The newest lake snapshot of a table; `None` while there is none (53).
    pub async fn lake_snapshot(&self, path: &TablePath) -> Result<Option<LakeSnapshot>, Error> {
        let request = proto::GetLakeSnapshotRequest {
            table_path: wire_path(path),
            snapshot_id: None,
            readable: None,
        };
        let answer = match self.read_coordinator(request).await {
            Ok(answer) => answer,
            Err(Error::Server {
                code: ErrorCode::LakeSnapshotNotExist,
                ..
            }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let table = TableId(answer.table_id);
        let mut buckets = Vec::with_capacity(answer.bucket_snapshots.len());
        for entry in answer.bucket_snapshots {
            let partition = entry.partition_id.map(PartitionId);
            let bucket = TableBucket {
                table,
                partition,
                bucket: BucketId(entry.bucket_id),
            };
            // A bucket without an offset has nothing in the lake.
            if let Some(offset) = entry.log_offset.filter(|offset| *offset >= 0) {
                buckets.push((bucket, LogOffset(offset), entry.partition_name));
            }
        }
        Ok(Some(LakeSnapshot {
            table_id: table,
            snapshot_id: answer.snapshot_id,
            buckets,
        }))
    }
}

fn read_offsets(
    request: &OffsetsRequest,
    asked: &[BucketId],
    answer: Result<proto::ListOffsetsResponse, Error>,
    offsets: &mut Offsets,
) {
    let api = ApiKey::ListOffsets;
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => {
            offsets.extend(asked.iter().map(|id| (*id, Err(error.clone()))));
            return;
        }
    };
    for entry in answer.buckets_resp {
        let id = BucketId(entry.bucket_id);
        let bucket = request.bucket(id);
        let failed = bucket_error(api, bucket, entry.error_code, entry.error_message);
        let result = match (failed, entry.offset) {
            (Some(error), _) => Err(error),
            (None, Some(offset)) if offset >= 0 => Ok(LogOffset(offset)),
            (None, _) => Err(Error::Incomplete {
                api,
                missing: "an offset",
            }),
        };
        offsets.insert(id, result);
    }
    for id in asked {
        let missing = "an entry per bucket";
        offsets
            .entry(*id)
            .or_insert(Err(Error::Incomplete { api, missing }));
    }
}

/// The error of one bucket's entry, if it holds one; some servers write 0 on success.
pub(crate) fn bucket_error(
    api: ApiKey,
    bucket: TableBucket,
    code: Option<i32>,
    message: Option<String>,
) -> Option<Error> {
    let code = code
        .filter(|code| *code != ErrorCode::None.code())
        .map(ErrorCode::from_code)?;
    Some(Error::Bucket {
        api,
        bucket,
        code,
        message: message.unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offset_below_zero_is_none() {
        let request = OffsetsRequest {
            path: TablePath::new("d", "t"),
            table: TableId(1),
            partition: None,
            buckets: vec![BucketId(0), BucketId(1)],
            spec: OffsetSpec::Latest,
            routing_count: TotalBuckets(2),
        };
        let entry = |bucket_id, offset| proto::PbListOffsetsRespForBucket {
            bucket_id,
            offset: Some(offset),
            ..Default::default()
        };
        let buckets_resp = vec![entry(0, -1), entry(1, 0)];
        let answer = proto::ListOffsetsResponse { buckets_resp };
        let mut offsets = Offsets::new();
        read_offsets(&request, &request.buckets, Ok(answer), &mut offsets);
        assert!(matches!(
            offsets[&BucketId(0)],
            Err(Error::Incomplete { .. })
        ));
        assert_eq!(offsets[&BucketId(1)].as_ref().unwrap(), &LogOffset(0));
    }
}
