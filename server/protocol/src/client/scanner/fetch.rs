//! One FETCH_LOG: its request, and the answer taken apart by bucket.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;

use super::LogFetcherConfig;
use crate::api_key::ApiKey;
use crate::client::offsets::bucket_error;
use crate::client::{Client, Error};
use crate::error_code::ErrorCode;
use crate::ids::{BucketId, LogOffset, PartitionId, ServerId, TableBucket, TableId, TotalBuckets};
use crate::proto;
use crate::record::LogBatch;

#[derive(Clone, Copy, Debug)]
pub(super) struct FetchOfBucket {
    pub(super) bucket: TableBucket,
    pub(super) offset: LogOffset,
    pub(super) routing_count: TotalBuckets,
}

#[derive(Clone, Debug)]
pub(super) struct FetchLimits {
    max_bytes: i32,
    max_bucket_bytes: i32,
    min_bytes: i32,
    max_wait: Duration,
    projection: Option<Vec<i32>>,
    verify_crc: bool,
}

impl FetchLimits {
    pub(super) fn of(config: &LogFetcherConfig) -> Self {
        Self {
            max_bytes: config.max_bytes,
            max_bucket_bytes: config.max_bucket_bytes,
            min_bytes: config.min_bytes,
            max_wait: config.max_wait,
            projection: config.projection.clone(),
            verify_crc: config.verify_crc && config.projection.is_none(),
        }
    }
}

/// A fetch that has come back: an entry per bucket asked for.
#[derive(Debug)]
pub(super) struct Fetch {
    pub(super) leader: ServerId,
    pub(super) answers: Vec<AnswerOfBucket>,
}

#[derive(Debug)]
pub(super) struct AnswerOfBucket {
    pub(super) bucket: TableBucket,
    pub(super) asked: LogOffset,
    pub(super) result: Result<BucketAnswer, Error>,
}

#[derive(Debug)]
pub(super) struct BucketAnswer {
    pub(super) batches: Vec<LogBatch>,
    pub(super) high_watermark: Option<LogOffset>,
    /// From the asked offset up to here the log holds nothing.
    pub(super) nothing_below: Option<LogOffset>,
}

pub(super) async fn fetch(
    client: Client,
    leader: ServerId,
    table: TableId,
    parts: Vec<FetchOfBucket>,
    limits: FetchLimits,
) -> Fetch {
    let request = wire_request(table, &parts, &limits);
    let deadline = limits.max_wait + client.config().request_timeout;
    let answer = match client.tablet_connection(leader).await {
        Ok(connection) => connection.call(&request, deadline).await,
        Err(error) => Err(error),
    };
    let mut found = match answer {
        Ok(answer) => by_bucket(answer),
        Err(error) => {
            let failed = |part: FetchOfBucket| AnswerOfBucket {
                bucket: part.bucket,
                asked: part.offset,
                result: Err(error.clone()),
            };
            return Fetch {
                leader,
                answers: parts.into_iter().map(failed).collect(),
            };
        }
    };
    let answers = parts.into_iter().enumerate().map(|(index, part)| {
        let missing = Error::Incomplete {
            api: ApiKey::FetchLog,
            missing: "an entry per bucket",
        };
        let entry = found.remove(&part.bucket).ok_or(missing);
        let mut result = entry.and_then(|entry| read_bucket(part, entry, limits.verify_crc));
        // The first bucket of a request is given a batch, however large, if there is one.
        if let Ok(found) = &mut result
            && index == 0
            && found.batches.is_empty()
        {
            found.nothing_below = found.high_watermark;
        }
        AnswerOfBucket {
            bucket: part.bucket,
            asked: part.offset,
            result,
        }
    });
    Fetch {
        leader,
        answers: answers.collect(),
    }
}

fn wire_request(
    table: TableId,
    parts: &[FetchOfBucket],
    limits: &FetchLimits,
) -> proto::FetchLogRequest {
    let bucket = |part: &FetchOfBucket| proto::PbFetchLogReqForBucket {
        partition_id: part.bucket.partition.map(|id| id.0),
        bucket_id: part.bucket.bucket.0,
        fetch_offset: part.offset.0,
        max_fetch_bytes: limits.max_bucket_bytes,
        routing_bucket_count: Some(part.routing_count.0),
    };
    proto::FetchLogRequest {
        follower_server_id: -1,
        max_bytes: limits.max_bytes,
        tables_req: vec![proto::PbFetchLogReqForTable {
            table_id: table.0,
            projection_pushdown_enabled: limits.projection.is_some(),
            projected_fields: limits.projection.clone().unwrap_or_default(),
            buckets_req: parts.iter().map(bucket).collect(),
            ..Default::default()
        }],
        max_wait_ms: Some(i32::try_from(limits.max_wait.as_millis()).unwrap_or(i32::MAX)),
        min_bytes: Some(limits.min_bytes),
        read_preference: None,
    }
}

fn by_bucket(
    answer: proto::FetchLogResponse,
) -> BTreeMap<TableBucket, proto::PbFetchLogRespForBucket> {
    let mut found = BTreeMap::new();
    for table in answer.tables_resp {
        for entry in table.buckets_resp {
            let bucket = TableBucket {
                table: TableId(table.table_id),
                partition: entry.partition_id.map(PartitionId),
                bucket: BucketId(entry.bucket_id),
            };
            found.insert(bucket, entry);
        }
    }
    found
}

fn read_bucket(
    part: FetchOfBucket,
    entry: proto::PbFetchLogRespForBucket,
    verify_crc: bool,
) -> Result<BucketAnswer, Error> {
    let FetchOfBucket { bucket, offset, .. } = part;
    let failed = bucket_error(
        ApiKey::FetchLog,
        bucket,
        entry.error_code,
        entry.error_message,
    );
    match failed {
        Some(Error::Bucket {
            code: ErrorCode::LogOffsetOutOfRange,
            message,
            ..
        }) => {
            return Err(Error::OffsetOutOfRange {
                bucket,
                offset,
                message,
            });
        }
        Some(error) => return Err(error),
        None => {}
    }
    if let Some(remote) = entry.remote_log_fetch_info {
        let directory = remote.remote_log_tablet_dir;
        return Err(Error::RemoteLog {
            bucket,
            offset,
            directory,
        });
    }
    Ok(BucketAnswer {
        batches: read_batches(bucket, entry.records.unwrap_or_default(), verify_crc)?,
        high_watermark: entry
            .high_watermark
            .filter(|offset| *offset >= 0)
            .map(LogOffset),
        nothing_below: None,
    })
}

/// Cuts records into batches. A tail that is cut off is left for the next fetch, which begins with
/// it; only at the beginning is it an error.
fn read_batches(
    bucket: TableBucket,
    mut records: Bytes,
    verify_crc: bool,
) -> Result<Vec<LogBatch>, Error> {
    let corrupt = |source| Error::codec(format!("batch of {bucket}"), source);
    let mut batches = Vec::new();
    while !records.is_empty() {
        let whole = crate::record::log_batch::claimed_size(&records)
            .is_some_and(|size| size <= records.len());
        if !whole && !batches.is_empty() {
            break;
        }
        let batch = LogBatch::parse(&mut records).map_err(corrupt)?;
        if verify_crc {
            batch.verify_crc().map_err(corrupt)?;
        }
        batches.push(batch);
    }
    Ok(batches)
}
