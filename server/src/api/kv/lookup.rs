//! `LOOKUP` and `PREFIX_LOOKUP`.

use std::sync::Arc;

use weir_protocol::api_key::ApiKey;
use weir_protocol::ids::TableBucket;
use weir_protocol::proto::{
    LookupRequest, LookupResponse, PbLookupRespForBucket, PbPrefixLookupRespForBucket, PbValue,
    PbValueList, PrefixLookupRequest, PrefixLookupResponse,
};

use super::bucket_of;
use crate::api::{Answer, Call, Failure, Outcome, decode, refuse_too_many};
use crate::error::Error;
use crate::tablet::{self, LookupBucket, LookupBy, TabletServer};

/// How long rows that a lookup inserts may take, if it does not say, ms.
const DEFAULT_INSERT_MS: i32 = 30_000;

pub(super) async fn run(tablet: &Arc<TabletServer>, call: Call) -> Outcome {
    let request: LookupRequest = decode(call.api, call.body)?;
    refuse_too_many(ApiKey::Lookup, request.buckets_req.len(), tablet)?;
    let acks = request.acks.unwrap_or(-1);
    if !(-1..=1).contains(&acks) {
        return Err(Error::InvalidAcks { acks }.into());
    }
    let timeout_ms = request.timeout_ms.unwrap_or(DEFAULT_INSERT_MS).max(0);
    let inserts = request.insert_if_not_exists == Some(true);
    let buckets = request.buckets_req.into_iter().map(|asked| LookupBucket {
        bucket: bucket_of(request.table_id, asked.partition_id, asked.bucket_id),
        keys: asked.keys,
        routing_bucket_count: asked.routing_bucket_count,
    });
    let asked = tablet::LookupRequest {
        version: call.version,
        by: LookupBy::Key,
        buckets: buckets.collect(),
    };
    let answer = if inserts {
        tablet.lookup_or_insert(&asked, timeout_ms).await
    } else {
        tablet.lookup(&asked).await
    };
    let mut buckets_resp = Vec::with_capacity(asked.buckets.len());
    for (asked, result) in asked.buckets.iter().zip(answer.buckets) {
        let (partition_id, bucket_id) = names_of(asked.bucket);
        let mut entry = PbLookupRespForBucket {
            partition_id,
            bucket_id,
            ..PbLookupRespForBucket::default()
        };
        match result {
            Ok(rows) => {
                let value = |mut rows: Vec<_>| PbValue { values: rows.pop() };
                entry.values = rows.into_iter().map(value).collect();
            }
            Err(error) => {
                (entry.error_code, entry.error_message) = failed(tablet, error);
            }
        }
        buckets_resp.push(entry);
    }
    Ok(Answer::new(LookupResponse { buckets_resp }).holding(answer.memory))
}

pub(super) async fn run_prefix(tablet: &Arc<TabletServer>, call: Call) -> Outcome {
    let request: PrefixLookupRequest = decode(call.api, call.body)?;
    refuse_too_many(ApiKey::PrefixLookup, request.buckets_req.len(), tablet)?;
    let buckets = request.buckets_req.into_iter().map(|asked| LookupBucket {
        bucket: bucket_of(request.table_id, asked.partition_id, asked.bucket_id),
        keys: asked.keys,
        routing_bucket_count: asked.routing_bucket_count,
    });
    let asked = tablet::LookupRequest {
        version: call.version,
        by: LookupBy::Prefix,
        buckets: buckets.collect(),
    };
    let answer = tablet.lookup(&asked).await;
    let mut buckets_resp = Vec::with_capacity(asked.buckets.len());
    for (asked, result) in asked.buckets.iter().zip(answer.buckets) {
        let (partition_id, bucket_id) = names_of(asked.bucket);
        let mut entry = PbPrefixLookupRespForBucket {
            partition_id,
            bucket_id,
            ..PbPrefixLookupRespForBucket::default()
        };
        match result {
            Ok(rows) => {
                let list = |values| PbValueList { values };
                entry.value_lists = rows.into_iter().map(list).collect();
            }
            Err(error) => {
                (entry.error_code, entry.error_message) = failed(tablet, error);
            }
        }
        buckets_resp.push(entry);
    }
    Ok(Answer::new(PrefixLookupResponse { buckets_resp }).holding(answer.memory))
}

/// A bucket as answers name it.
fn names_of(bucket: TableBucket) -> (Option<i64>, i32) {
    (bucket.partition.map(|id| id.0), bucket.bucket.0)
}

fn failed(tablet: &TabletServer, error: Error) -> (Option<i32>, Option<String>) {
    let failure = Failure::from(error);
    tablet.parts.metrics.error(failure.code);
    failure.fields()
}
