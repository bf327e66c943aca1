//! The writer's talk with leaders: who they are, what is sent to them, what they answer.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use tokio::time::Instant;

use super::settings::Settings;
use super::task::{Event, Link, Task};
use crate::api_key::ApiKey;
use crate::client::Error;
use crate::client::connection::Connection;
use crate::client::offsets::bucket_error;
use crate::ids::{BucketId, LogOffset, PartitionId, ServerId, TableBucket};
use crate::proto;

impl Task {
    pub(super) fn connected(
        &mut self,
        leader: ServerId,
        result: Result<Connection, Error>,
        now: Instant,
    ) {
        let error = match result {
            Ok(connection) => {
                self.links.insert(leader, Link::Open(connection));
                return;
            }
            Err(error) => error,
        };
        self.links.remove(&leader);
        let cluster = self.settings.client.cluster();
        for (bucket, queue) in &mut self.queues {
            if cluster.leader(*bucket) == Some(leader) && queue.sendable(now).is_some() {
                queue.rest(error.clone(), now);
            }
        }
    }

    pub(super) fn send(&mut self, now: Instant) {
        let cluster = self.settings.client.cluster();
        let mut by_leader = BTreeMap::<ServerId, Vec<TableBucket>>::new();
        for (&bucket, queue) in &mut self.queues {
            if queue.wants_leader || queue.sendable(now).is_none() {
                continue;
            }
            match cluster.leader(bucket) {
                Some(leader) => by_leader.entry(leader).or_default().push(bucket),
                None => queue.wants_leader = true,
            }
        }
        for (leader, buckets) in by_leader {
            match self.links.get(&leader) {
                Some(Link::Opening) => {}
                Some(Link::Open(connection)) if !connection.is_lost() => {
                    let connection = connection.clone();
                    while self.send_one(&connection, &buckets, now) {}
                }
                _ => {
                    self.links.insert(leader, Link::Opening);
                    let client = self.settings.client.clone();
                    let opening = async move {
                        let result = client.tablet_connection(leader).await;
                        Event::Connected { leader, result }
                    };
                    self.events.push(opening.boxed());
                }
            }
        }
    }

    /// Sends one request with at most one batch per bucket; whether there was any to send.
    fn send_one(&mut self, connection: &Connection, buckets: &[TableBucket], now: Instant) -> bool {
        let mut sent = Vec::new();
        let mut buckets_req = Vec::new();
        let mut bytes = 0;
        for bucket in buckets {
            let Some(queue) = self.queues.get_mut(bucket) else {
                continue;
            };
            let Some(size) = queue.sendable(now) else {
                continue;
            };
            if !sent.is_empty() && bytes + size > self.settings.config.max_request_bytes {
                continue;
            }
            let Some((number, records)) = queue.send() else {
                continue;
            };
            bytes += size;
            sent.push((*bucket, number));
            buckets_req.push(proto::PbProduceLogReqForBucket {
                partition_id: bucket.partition.map(|id| id.0),
                bucket_id: bucket.bucket.0,
                records,
                original_partition_name: None,
                routing_bucket_count: Some(queue.target.total_buckets.0),
            });
        }
        if sent.is_empty() {
            return false;
        }
        let config = &self.settings.config;
        let request = proto::ProduceLogRequest {
            acks: config.acks.on_wire(),
            table_id: self.settings.table.0,
            timeout_ms: i32::try_from(config.ack_timeout.as_millis()).unwrap_or(i32::MAX),
            buckets_req,
        };
        let deadline = config.ack_timeout + self.settings.client.config().request_timeout;
        let connection = connection.clone();
        let is_put = self.settings.changes.is_some();
        let call = async move {
            let result = if is_put {
                put(&connection, request, deadline).await
            } else {
                connection.call(&request, deadline).await
            };
            Event::Produced { sent, result }
        };
        self.events.push(call.boxed());
        true
    }

    pub(super) fn produced(
        &mut self,
        sent: &[(TableBucket, u64)],
        result: Result<proto::ProduceLogResponse, Error>,
        now: Instant,
    ) {
        let api = if self.settings.changes.is_some() {
            ApiKey::PutKv
        } else {
            ApiKey::ProduceLog
        };
        let table = self.settings.table;
        let mut entries = HashMap::new();
        let failed = match result {
            Ok(answer) => {
                for entry in answer.buckets_resp {
                    let partition = entry.partition_id.map(PartitionId);
                    let bucket = BucketId(entry.bucket_id);
                    entries.insert(
                        TableBucket {
                            table,
                            partition,
                            bucket,
                        },
                        entry,
                    );
                }
                Error::Incomplete {
                    api,
                    missing: "an entry per bucket",
                }
            }
            Err(error) => error,
        };
        for &(bucket, number) in sent {
            let result = match entries.remove(&bucket) {
                None => Err(failed.clone()),
                Some(entry) => {
                    match bucket_error(api, bucket, entry.error_code, entry.error_message) {
                        Some(error) => Err(error),
                        None => Ok(entry.base_offset.filter(|o| *o >= 0).map(LogOffset)),
                    }
                }
            };
            let queue = self.queues.get_mut(&bucket);
            if let Some(done) = queue.and_then(|queue| queue.answered(number, result, now)) {
                self.outstanding.remove(&done);
            }
        }
        self.settle_flushes();
    }

    pub(super) fn refresh(&mut self, now: Instant) {
        if self.refreshing {
            return;
        }
        let mut partitions = BTreeSet::new();
        for (bucket, queue) in &mut self.queues {
            if queue.wants_leader && !queue.rests(now) {
                partitions.insert(bucket.partition);
            }
        }
        if partitions.is_empty() {
            return;
        }
        self.refreshing = true;
        let settings = Arc::clone(&self.settings);
        let asking = async move {
            let Settings {
                client,
                path,
                table,
                ..
            } = &*settings;
            Event::Refreshed {
                results: client.refresh_each(path, *table, &partitions).await,
            }
        };
        self.events.push(asking.boxed());
    }

    pub(super) fn refreshed(
        &mut self,
        results: &BTreeMap<Option<PartitionId>, Result<(), Error>>,
        now: Instant,
    ) {
        self.refreshing = false;
        let cluster = self.settings.client.cluster();
        let mut failed = Vec::new();
        for (&bucket, queue) in &mut self.queues {
            let Some(result) = results.get(&bucket.partition) else {
                continue;
            };
            if !queue.wants_leader {
                continue;
            }
            match result {
                Ok(()) if cluster.leader(bucket).is_some() => queue.wants_leader = false,
                Ok(()) => queue.rest(Error::NoLeader { bucket }, now),
                Err(error) if error.is_retriable() => queue.rest(error.clone(), now),
                // In flight or not: the table or partition is gone, and its answers with it.
                Err(error) => failed.push(queue.fail(error.clone())),
            }
        }
        for verdict in failed {
            self.carry_out(verdict);
        }
    }
}

/// Sends batches of puts, which differ from appends in the names of their messages alone. Where a
/// batch begins in the log is not told.
async fn put(
    connection: &Connection,
    request: proto::ProduceLogRequest,
    deadline: Duration,
) -> Result<proto::ProduceLogResponse, Error> {
    let bucket = |asked: proto::PbProduceLogReqForBucket| proto::PbPutKvReqForBucket {
        partition_id: asked.partition_id,
        bucket_id: asked.bucket_id,
        records: asked.records,
        original_partition_name: asked.original_partition_name,
        routing_bucket_count: asked.routing_bucket_count,
    };
    let request = proto::PutKvRequest {
        acks: request.acks,
        table_id: request.table_id,
        timeout_ms: request.timeout_ms,
        buckets_req: request.buckets_req.into_iter().map(bucket).collect(),
        ..proto::PutKvRequest::default()
    };
    let answer = connection.call(&request, deadline).await?;
    let entry = |entry: proto::PbPutKvRespForBucket| proto::PbProduceLogRespForBucket {
        partition_id: entry.partition_id,
        bucket_id: entry.bucket_id,
        error_code: entry.error_code,
        error_message: entry.error_message,
        ..proto::PbProduceLogRespForBucket::default()
    };
    Ok(proto::ProduceLogResponse {
        buckets_resp: answer.buckets_resp.into_iter().map(entry).collect(),
    })
}
