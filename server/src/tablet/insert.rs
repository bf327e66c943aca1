//! Lookups that insert what they do not find.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use weir_kv::upsert::MergeMode;
use weir_protocol::api_key::ApiKey;
use weir_protocol::record::BatchIdentity;
use weir_protocol::record::kv_batch::{self, KvRecord};

use super::lookup::{LookupAnswer, LookupBucket, LookupRequest, Rows};
use super::{Existing, Put, PutBucket, PutPending, Replica, TabletServer};
use crate::error::Error;

impl TabletServer {
    /// As [`TabletServer::lookup`], but first makes rows of the keys that are not there: their columns
    /// beside the key are null, or numbered. Ends once lookups see them.
    pub(crate) async fn lookup_or_insert(
        &self,
        request: &LookupRequest,
        timeout_ms: i32,
    ) -> LookupAnswer {
        let patience = Duration::from_millis(u64::try_from(timeout_ms).unwrap_or(0));
        let deadline = Instant::now() + patience;
        let found = self.lookup(request).await.buckets;
        let mut inserting = Vec::with_capacity(request.buckets.len());
        for (asked, rows) in request.buckets.iter().zip(found) {
            inserting.push(match rows {
                Ok(rows) => self.insert(request.version, asked, &rows).await,
                // It is told by the second lookup, or healed by then.
                Err(_) => Ok(None),
            });
        }
        let mut failed = Vec::with_capacity(inserting.len());
        for put in inserting {
            failed.push(match put {
                Ok(Some(put)) => put.acknowledged(self, deadline, timeout_ms).await.err(),
                Ok(None) => None,
                Err(error) => Some(error),
            });
        }
        let mut answer = self.lookup(request).await;
        for (rows, error) in answer.buckets.iter_mut().zip(failed) {
            if let Some(error) = error {
                *rows = Err(error);
            }
        }
        answer
    }

    /// Queues rows for the keys without one.
    async fn insert(
        &self,
        version: i16,
        asked: &LookupBucket,
        rows: &Rows,
    ) -> Result<Option<PutPending>, Error> {
        let without = asked
            .keys
            .iter()
            .zip(rows)
            .filter(|(_, rows)| rows.is_empty());
        let keys: Vec<&Bytes> = without.map(|(key, _)| key).collect();
        if keys.is_empty() {
            return Ok(None);
        }
        let of = (ApiKey::Lookup, version);
        let replica = self.keyed_leader(of, asked.bucket, asked.routing_bucket_count)?;
        let put = PutBucket {
            bucket: asked.bucket,
            put: rows_of(&replica, &keys)?,
            routing_bucket_count: asked.routing_bucket_count,
        };
        Ok(Some(self.put(put, version).await))
    }
}

fn rows_of(replica: &Replica, keys: &[&Bytes]) -> Result<Put, Error> {
    let rules = replica.table.key_rules()?;
    let partition = replica.path.partition.as_deref();
    let mut records = Vec::with_capacity(keys.len());
    for (index, key) in keys.iter().enumerate() {
        let row = rules
            .row_of_key(key, partition)
            .map_err(|error| match error {
                Error::Protocol(source) => Error::KeyMismatch {
                    bucket: replica.bucket,
                    record: index,
                    reason: source.to_string(),
                },
                other => other,
            })?;
        records.push(KvRecord {
            key: (*key).clone(),
            row: Some(row),
        });
    }
    let id = BatchIdentity::anonymous(replica.table.latest_schema());
    Ok(Put {
        records: kv_batch::encode(id, &records)?,
        target_columns: Some(rules.primary_key()?.into()),
        mode: MergeMode::Overwrite,
        existing: Existing::Keep,
    })
}
