//! Leaders: elected, written down, activated, and only then made known.
//!
//! A leader is published to clients after its own acknowledgement for this very epoch, never
//! before, so nobody is sent to a server that is not ready. One bucket that is slow to open holds
//! up no other. One whose log cannot be read is published too, for its server tells clients why.

mod live;
mod messages;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use parking_lot::Mutex;
use tokio::sync::watch;
use weir_catalog::Catalog;
use weir_catalog::catalog::Table;
use weir_catalog::model::leader_isr::LeaderIsr;
use weir_catalog::store::Expect;
use weir_protocol::error_code::ErrorCode;
use weir_protocol::ids::{
    BucketId, CoordinatorEpoch, LeaderEpoch, LogOffset, PartitionId, PhysicalTablePath, SchemaId,
    ServerId, TableBucket, TableId, TotalBuckets,
};
use weir_protocol::proto::{
    ListOffsetsRequest, NotifyLakeTableOffsetRequest, NotifyLeaderAndIsrRequest, PbBucketMetadata,
    PbNotifyLeaderAndIsrRespForBucket, PbPartitionMetadata, PbStopReplicaReqForBucket,
    PbTableBucket, PbTableMetadata, PbTablePath, StopReplicaRequest, UpdateMetadataRequest,
};

pub(crate) use live::GroupKey;
use live::{Assignment, Live, Standing};
use messages::{metadata_of, notify_entry, table_metadata};

use crate::cluster::{DELETED_NAME, MetadataCache};
use crate::error::Error;
use crate::peer::Peer;
use crate::shutdown::Shutdown;

/// A bucket that could not be activated is tried again after this.
const RETRY: Duration = Duration::from_secs(30);
/// In a request for offsets: a server asks, not a client.
const COORDINATOR_ASKS: i32 = 0;
/// The offset after the last record, flushed or not.
const LEADER_END: i32 = 3;
/// In a document: nobody leads the bucket.
const NOBODY: ServerId = ServerId(-1);
/// How many acknowledgements are published together.
const PUBLISH_BATCH: usize = 256;

/// The buckets of an unpartitioned table or of one partition.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) path: PhysicalTablePath,
    pub(crate) table: TableId,
    pub(crate) partition: Option<PartitionId>,
    pub(crate) bucket_count: TotalBuckets,
    pub(crate) bucket_count_epoch: i64,
    pub(crate) schema: SchemaId,
    /// The servers of each bucket; the first is preferred as its leader.
    pub(crate) assignment: Assignment,
}

impl Group {
    fn bucket(&self, bucket: BucketId) -> TableBucket {
        TableBucket {
            table: self.table,
            partition: self.partition,
            bucket,
        }
    }

    fn key(&self) -> GroupKey {
        (self.table, self.partition)
    }
}

/// Elects leaders and tells the tablet servers.
#[derive(Debug)]
pub(crate) struct Leaders {
    catalog: Catalog,
    cache: Arc<MetadataCache>,
    peers: Vec<Peer>,
    coordinator_epoch: i32,
    shutdown: Shutdown,
    /// A bucket that could not be activated is tried again after this.
    retry: Duration,
    /// What was activated and not dropped since.
    live: Mutex<Live>,
}

/// Follows an activation.
#[derive(Debug)]
pub(crate) struct Activation(watch::Receiver<bool>);

impl Activation {
    /// Follows `settled`, which becomes true.
    pub(crate) fn of(settled: watch::Receiver<bool>) -> Self {
        Self(settled)
    }

    /// Ends once every bucket was activated or has failed at least once.
    pub(crate) async fn settled(mut self) {
        // A sender that is gone means the server is stopping.
        let _stopping = self.0.wait_for(|settled| *settled).await;
    }
}

type States = BTreeMap<BucketId, LeaderIsr>;

impl Leaders {
    pub(crate) fn new(
        catalog: Catalog,
        cache: Arc<MetadataCache>,
        peers: Vec<Peer>,
        coordinator_epoch: i32,
        shutdown: Shutdown,
    ) -> Arc<Self> {
        let (retry, live) = (RETRY, Mutex::default());
        Arc::new(Self {
            catalog,
            cache,
            peers,
            coordinator_epoch,
            shutdown,
            retry,
            live,
        })
    }

    /// Elects a leader for each bucket, writes it down, and starts to activate it.
    ///
    /// # Errors
    /// Those of the catalog; nobody was told anything then.
    pub(crate) async fn activate(self: &Arc<Self>, group: Group) -> Result<Activation, Error> {
        let states = self.elect(&group).await?;
        let activation = self.live.lock().begin(&group);
        // The buckets become known before they have a leader, so that a client that is early waits.
        let leaderless = states
            .iter()
            .map(|(id, state)| metadata_of(*id, state, None))
            .collect();
        self.publish(&group, leaderless).await;
        let (settle, settled) = watch::channel(false);
        let leaders = Arc::clone(self);
        self.shutdown
            .spawn(async move { leaders.run((group, activation), states, settle).await });
        Ok(Activation(settled))
    }

    /// Whether buckets were activated and neither stopped nor dropped since.
    pub(crate) fn is_led(&self, key: GroupKey) -> bool {
        let live = self.live.lock();
        live.groups.get(&key).is_some_and(|group| !group.is_stopped)
    }

    /// Makes buckets known whose leaders are not, so that they count, and a client that is early waits.
    pub(crate) async fn announce_leaderless(&self, group: &Group) {
        let leaderless = |bucket_id| PbBucketMetadata {
            bucket_id,
            ..PbBucketMetadata::default()
        };
        let buckets = (0..group.bucket_count.0).map(leaderless).collect();
        self.publish(group, buckets).await;
    }

    /// Takes buckets from their servers, whose data stays; where the logs end of those that were led.
    pub(crate) async fn stop(&self, key: GroupKey) -> BTreeMap<BucketId, LogOffset> {
        let assignment = {
            let mut live = self.live.lock();
            live.groups.get_mut(&key).map(|group| {
                group.is_stopped = true;
                group.assignment.clone()
            })
        };
        let mut ends = BTreeMap::new();
        for peer in &self.peers {
            let request = self.stop_request(key, peer, assignment.as_ref(), Data::Stays);
            match peer.stop_replica(request).await {
                Ok(stopped) => ends.extend(stopped.log_ends),
                Err(error) => {
                    tracing::warn!(server = %peer.server, table = %key.0, %error, "a server does not stop");
                }
            }
        }
        ends
    }

    /// Takes dropped buckets from their servers, with their data; whether they were known here.
    pub(crate) async fn delete(&self, key: GroupKey) -> bool {
        let dropped = self.live.lock().groups.remove(&key);
        if let Some(dropped) = &dropped {
            self.take_away(key, &dropped.assignment).await;
        }
        dropped.is_some()
    }

    /// Takes buckets from their servers, with their data.
    pub(crate) async fn take_away(&self, key: GroupKey, buckets: &Assignment) {
        for peer in &self.peers {
            let request = self.stop_request(key, peer, Some(buckets), Data::Goes);
            if request.stop_replicas_req.is_empty() {
                continue;
            }
            // What is left over is found and removed at the next start.
            if let Err(error) = peer.stop_replica(request).await {
                tracing::warn!(server = %peer.server, table = %key.0, %error, "dropped data may be left");
            }
        }
    }

    fn stop_request(
        &self,
        (table, partition): GroupKey,
        peer: &Peer,
        buckets: Option<&Assignment>,
        data: Data,
    ) -> StopReplicaRequest {
        let buckets = buckets.into_iter().flatten();
        let of_peer = buckets.filter(|(_, servers)| servers.contains(&peer.server));
        let stop = |(bucket, _): (&BucketId, _)| PbStopReplicaReqForBucket {
            table_bucket: PbTableBucket {
                table_id: table.0,
                partition_id: partition.map(|partition| partition.0),
                bucket_id: bucket.0,
            },
            leader_epoch: i32::MAX,
            delete: data == Data::Goes,
            delete_remote: Some(data == Data::Goes),
        };
        StopReplicaRequest {
            coordinator_epoch: self.coordinator_epoch,
            stop_replicas_req: of_peer.map(stop).collect(),
        }
    }

    /// Tells all servers that a table, or a partition, is gone.
    pub(crate) async fn forget(&self, (table, partition): GroupKey) {
        match partition {
            Some(partition) => self.forget_partition(table, partition).await,
            None => self.forget_table(table).await,
        }
    }

    /// Tells all servers that a table is gone.
    async fn forget_table(&self, table: TableId) {
        let deleted = PbTableMetadata {
            table_path: PbTablePath {
                database_name: DELETED_NAME.to_owned(),
                table_name: DELETED_NAME.to_owned(),
            },
            table_id: table.0,
            ..PbTableMetadata::default()
        };
        self.broadcast(self.update(vec![deleted], Vec::new())).await;
    }

    /// Tells all servers that a partition is gone.
    async fn forget_partition(&self, table: TableId, partition: PartitionId) {
        let deleted = PbPartitionMetadata {
            table_id: table.0,
            partition_name: DELETED_NAME.to_owned(),
            partition_id: partition.0,
            ..PbPartitionMetadata::default()
        };
        self.broadcast(self.update(Vec::new(), vec![deleted])).await;
    }

    /// Tells all servers that a table has a new schema, new properties, or a new bucket count.
    pub(crate) async fn announce_table(&self, table: &Table) {
        let update = table_metadata(table, Vec::new());
        self.broadcast(self.update(vec![update], Vec::new())).await;
    }

    /// The epoch under which servers are told.
    pub(crate) fn coordinator_epoch(&self) -> i32 {
        self.coordinator_epoch
    }

    /// Tells all servers how far buckets are in the lake.
    pub(crate) async fn notify_lake_ends(&self, request: NotifyLakeTableOffsetRequest) {
        for peer in &self.peers {
            // A server that misses it learns with the next one, or when it opens the log again.
            if let Err(error) = peer.notify_lake_table_offset(request.clone()).await {
                tracing::warn!(server = %peer.server, %error, "a server missed lake progress");
            }
        }
    }

    /// Where the logs of buckets end; those that nobody leads now are missing.
    pub(crate) async fn log_ends(
        &self,
        table: TableId,
        partition: Option<PartitionId>,
        count: TotalBuckets,
    ) -> BTreeMap<BucketId, LogOffset> {
        let mut ends = BTreeMap::new();
        for peer in &self.peers {
            let request = ListOffsetsRequest {
                follower_server_id: COORDINATOR_ASKS,
                offset_type: LEADER_END,
                table_id: table.0,
                partition_id: partition.map(|partition| partition.0),
                bucket_id: (0..count.0).collect(),
                start_timestamp: None,
                routing_bucket_count: Some(count.0),
            };
            match peer.list_offsets(request).await {
                Ok(response) => {
                    ends.extend(response.buckets_resp.into_iter().filter_map(|entry| {
                        Some((BucketId(entry.bucket_id), LogOffset(entry.offset?)))
                    }));
                }
                Err(error) => tracing::debug!(server = %peer.server, %error, "no log ends told"),
            }
        }
        ends
    }

    /// Sends an update to this coordinator's own view and to every tablet server.
    pub(crate) async fn broadcast(&self, update: UpdateMetadataRequest) {
        if let Err(error) = self.cache.apply(&update) {
            tracing::warn!(%error, "an update of the metadata is out of date");
            return;
        }
        let sends = self.peers.iter().map(|peer| {
            let update = update.clone();
            async move { (peer.server, peer.update_metadata(update).await) }
        });
        let mut sends: FuturesUnordered<_> = sends.collect();
        while let Some((server, result)) = sends.next().await {
            if let Err(error) = result {
                tracing::warn!(%server, %error, "a server did not take an update of the metadata");
            }
        }
    }

    fn update(
        &self,
        table_metadata: Vec<PbTableMetadata>,
        partition_metadata: Vec<PbPartitionMetadata>,
    ) -> UpdateMetadataRequest {
        UpdateMetadataRequest {
            table_metadata,
            partition_metadata,
            coordinator_epoch: Some(self.coordinator_epoch),
            ..UpdateMetadataRequest::default()
        }
    }

    /// The first live server of each bucket leads it, under the next epoch; one transaction.
    async fn elect(&self, group: &Group) -> Result<States, Error> {
        let buckets: Vec<TableBucket> = group
            .assignment
            .keys()
            .map(|bucket| group.bucket(*bucket))
            .collect();
        let known = self.catalog.get_leaders(&buckets).await?;
        let mut written = Vec::with_capacity(buckets.len());
        let mut states = States::new();
        for ((bucket, servers), known) in group.assignment.iter().zip(&known) {
            let live = servers
                .iter()
                .copied()
                .find(|server| self.peer(*server).is_some());
            let leader = live.unwrap_or(NOBODY);
            let isr = live.into_iter().collect();
            let mut state = LeaderIsr::first(leader, isr, CoordinatorEpoch(self.coordinator_epoch));
            let mut expect = Expect::Absent;
            if let Some(stored) = known {
                expect = Expect::At(stored.modified);
                let known = &stored.document;
                state.leader_epoch = LeaderEpoch(known.leader_epoch.0 + 1);
                state.bucket_epoch = known.bucket_epoch + 1;
                state.unknown = known.unknown.clone();
            }
            written.push((group.bucket(*bucket), state.clone(), expect));
            states.insert(*bucket, state);
        }
        self.catalog.put_leaders(&written).await?;
        Ok(states)
    }

    fn peer(&self, server: ServerId) -> Option<&Peer> {
        self.peers.iter().find(|peer| peer.server == server)
    }

    /// Activates until no bucket is left, or the group is stopped or dropped, or the server stops.
    async fn run(&self, activated: (Group, u64), states: States, settle: watch::Sender<bool>) {
        let (group, activation) = &activated;
        let mut waiting = states;
        waiting.retain(|_, state| state.leader().is_some());
        loop {
            waiting = self.attempt(&activated, waiting).await;
            settle.send_replace(true);
            match self.standing(group.key(), *activation) {
                Standing::Stands if !waiting.is_empty() => {}
                Standing::Stands | Standing::Superseded => return,
                Standing::Dropped => {
                    // The drop may have come before the servers heard of the buckets.
                    self.take_away(group.key(), &group.assignment).await;
                    return self.forget(group.key()).await;
                }
            }
            tracing::debug!(table = %group.path, buckets = waiting.len(),
                "buckets could not be activated, trying again later");
            tokio::select! {
                () = self.shutdown.begun() => return,
                () = tokio::time::sleep(self.retry) => {}
            }
            if self.standing(group.key(), *activation) != Standing::Stands {
                return;
            }
        }
    }

    fn standing(&self, key: GroupKey, activation: u64) -> Standing {
        match self.live.lock().groups.get(&key) {
            None => Standing::Dropped,
            Some(group) if group.activation == activation && !group.is_stopped => Standing::Stands,
            Some(_) => Standing::Superseded,
        }
    }

    /// Asks each server once; returns the buckets that failed.
    async fn attempt(&self, activated: &(Group, u64), waiting: States) -> States {
        let mut by_server: BTreeMap<ServerId, States> = BTreeMap::new();
        for (bucket, state) in waiting {
            by_server
                .entry(state.leader)
                .or_default()
                .insert(bucket, state);
        }
        let attempts = by_server.into_iter().map(|(server, states)| async move {
            match self.peer(server) {
                Some(peer) => self.attempt_on(peer, activated, states).await,
                None => states,
            }
        });
        let mut attempts: FuturesUnordered<_> = attempts.collect();
        let mut failed = States::new();
        while let Some(states) = attempts.next().await {
            failed.extend(states);
        }
        failed
    }

    async fn attempt_on(
        &self,
        peer: &Peer,
        (group, activation): &(Group, u64),
        mut states: States,
    ) -> States {
        let request = NotifyLeaderAndIsrRequest {
            coordinator_epoch: self.coordinator_epoch,
            notify_buckets_leader_req: states
                .iter()
                .map(|(bucket, state)| notify_entry(group, *bucket, state))
                .collect(),
        };
        let mut acks = match peer.notify_leader_and_isr(request).await {
            Ok(acks) => acks,
            Err(error) => {
                tracing::debug!(server = %peer.server, %error, "a server takes no leader change");
                return states;
            }
        };
        let mut received = Vec::new();
        while acks.recv_many(&mut received, PUBLISH_BATCH).await > 0 {
            let entries = received.drain(..);
            let entries = entries.flat_map(|response| response.notify_buckets_leader_resp);
            let ready = entries
                .filter_map(|entry| {
                    let bucket = BucketId(entry.table_bucket.bucket_id);
                    let state = match answer_of(&entry) {
                        Answer::Ready => states.remove(&bucket)?,
                        Answer::Unreadable => states.get(&bucket)?.clone(),
                        Answer::Failed => return None,
                    };
                    Some(metadata_of(bucket, &state, state.leader()))
                })
                .collect();
            if self.standing(group.key(), *activation) == Standing::Stands {
                self.publish(group, ready).await;
            }
        }
        states
    }

    async fn publish(&self, group: &Group, buckets: Vec<PbBucketMetadata>) {
        if buckets.is_empty() {
            return;
        }
        let table = PbTableMetadata {
            table_path: PbTablePath {
                database_name: group.path.table.database.clone(),
                table_name: group.path.table.table.clone(),
            },
            table_id: group.table.0,
            schema_id: group.schema.0,
            bucket_count_epoch: Some(group.bucket_count_epoch),
            ..PbTableMetadata::default()
        };
        let update = match (group.partition, &group.path.partition) {
            (Some(partition), Some(name)) => {
                let partition = PbPartitionMetadata {
                    table_id: group.table.0,
                    partition_name: name.clone(),
                    partition_id: partition.0,
                    bucket_metadata: buckets,
                    bucket_count: Some(group.bucket_count.0),
                };
                self.update(vec![table], vec![partition])
            }
            _ => {
                let table = PbTableMetadata {
                    bucket_metadata: buckets,
                    ..table
                };
                self.update(vec![table], Vec::new())
            }
        };
        self.broadcast(update).await;
    }
}

/// What becomes of the data of buckets that are taken from a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Data {
    Stays,
    Goes,
}

/// What a server says of a bucket that it was told to lead.
enum Answer {
    Ready,
    /// Its log cannot be read: it is not ready, but says so to whoever asks.
    Unreadable,
    Failed,
}

fn answer_of(entry: &PbNotifyLeaderAndIsrRespForBucket) -> Answer {
    match entry.error_code {
        None => Answer::Ready,
        Some(code) if code == ErrorCode::LogStorage.code() => Answer::Unreadable,
        Some(code) => {
            let reason = entry.error_message.as_deref().unwrap_or_default();
            let bucket = entry.table_bucket.bucket_id;
            tracing::warn!(bucket, code, reason, "a leader was not activated");
            Answer::Failed
        }
    }
}

#[cfg(test)]
mod tests;
