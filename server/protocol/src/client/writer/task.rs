//! The writer's task: owns the queues of all buckets, encodes, sends, takes answers.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use bytes::{Bytes, BytesMut};
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::Instant;

use super::queue::{Closed, Queue, Verdict};
use super::{BucketSequence, LogWriterConfig, Piece, WriterState, init_writer, resumed_sequences};
use crate::api_key::ApiKey;
use crate::client::connection::Connection;
use crate::client::offsets::bucket_error;
use crate::client::{Client, Error};
use crate::ids::{
    BucketId, LogOffset, PartitionId, SchemaId, ServerId, TableBucket, TableId, TablePath, WriterId,
};
use crate::proto;
use crate::record::arrow::{Compression, encode_append};

/// What a writer's handle asks of its task.
#[derive(Debug)]
pub(super) enum Command {
    Append(Piece),
    Flush(oneshot::Sender<Result<(), Error>>),
    State(oneshot::Sender<WriterState>),
    UnflushedBatches(oneshot::Sender<usize>),
}

/// What never changes while a writer is open.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) client: Client,
    pub(super) path: TablePath,
    pub(super) table: TableId,
    pub(super) schema_id: SchemaId,
    pub(super) compression: Compression,
    pub(super) batch_bytes: usize,
    pub(super) buffer_bytes: usize,
    pub(super) config: LogWriterConfig,
}

/// Something that was waited for.
enum Event {
    Encoded {
        bucket: TableBucket,
        number: u64,
        result: Result<Bytes, Error>,
    },
    Connected {
        leader: ServerId,
        result: Result<Connection, Error>,
    },
    Produced {
        sent: Vec<(TableBucket, u64)>,
        result: Result<proto::ProduceLogResponse, Error>,
    },
    Refreshed {
        results: BTreeMap<Option<PartitionId>, Result<(), Error>>,
    },
    NewWriter {
        result: Result<WriterId, Error>,
    },
}

enum Link {
    Opening,
    Open(Connection),
}

struct Flush {
    /// Batches up to this number must be done.
    last: u64,
    reply: oneshot::Sender<Result<(), Error>>,
}

pub(super) struct Task {
    settings: Arc<Settings>,
    writer_id: WriterId,
    resumed: BTreeMap<(Option<String>, BucketId), i32>,
    queues: BTreeMap<TableBucket, Queue>,
    links: HashMap<ServerId, Link>,
    events: FuturesUnordered<BoxFuture<'static, Event>>,
    encoders: Arc<Semaphore>,
    next_number: u64,
    outstanding: BTreeSet<u64>,
    open_bytes: usize,
    flushes: Vec<Flush>,
    /// Flushes that wait until the writer has its new id.
    deferred: Vec<oneshot::Sender<Result<(), Error>>>,
    failure: Option<Error>,
    refreshing: bool,
    /// Buckets whose server does not know this writer. While there are any, nothing is sent.
    strangers: BTreeMap<TableBucket, Error>,
    asking_for_id: bool,
}

impl Task {
    pub(super) fn new(settings: Settings, writer_id: WriterId) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            resumed: resumed_sequences(settings.config.resume.as_ref()),
            settings: Arc::new(settings),
            writer_id,
            queues: BTreeMap::new(),
            links: HashMap::new(),
            events: FuturesUnordered::new(),
            encoders: Arc::new(Semaphore::new(cores)),
            next_number: 0,
            outstanding: BTreeSet::new(),
            open_bytes: 0,
            flushes: Vec::new(),
            deferred: Vec::new(),
            failure: None,
            refreshing: false,
            strangers: BTreeMap::new(),
            asking_for_id: false,
        }
    }

    /// Works until the handle is dropped.
    pub(super) async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        loop {
            let now = Instant::now();
            self.pump(now);
            let wake = self.wakes_at(now);
            let sleep = async {
                match wake {
                    Some(wake) => tokio::time::sleep_until(wake).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                command = commands.recv() => {
                    let Some(command) = command else { return };
                    self.obey(command);
                    // What else is there, before all queues are looked at again.
                    for _ in 0..commands.len() {
                        match commands.try_recv() {
                            Ok(command) => self.obey(command),
                            Err(_) => break,
                        }
                    }
                }
                Some(event) = self.events.next() => self.happened(event),
                () = sleep => {}
            }
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Append(piece) => self.append(piece),
            Command::Flush(reply) if self.renewing() => self.deferred.push(reply),
            Command::Flush(reply) => self.flush(reply),
            Command::State(reply) => drop(reply.send(self.state())),
            Command::UnflushedBatches(reply) => {
                let most = self.queues.values().map(|queue| queue.unflushed).max();
                // The asker may have gone away.
                reply.send(most.unwrap_or(0)).ok();
            }
        }
    }

    fn append(&mut self, piece: Piece) {
        let now = Instant::now();
        let target = Arc::clone(&piece.target);
        let (table, partition) = (target.table, target.partition);
        let bucket = TableBucket {
            table,
            partition,
            bucket: piece.bucket,
        };
        let resumed = &self.resumed;
        let queue = self.queues.entry(bucket).or_insert_with(|| {
            let place = (target.name.clone(), bucket.bucket);
            Queue::new(bucket, target, resumed.get(&place).copied().unwrap_or(0))
        });
        let overflows =
            queue.open_bytes() > 0 && queue.open_bytes() + piece.bytes > self.settings.batch_bytes;
        if overflows && !self.renewing() {
            self.close(bucket, now);
        }
        let bytes = piece.bytes;
        let Some(queue) = self.queues.get_mut(&bucket) else {
            return;
        };
        let open_bytes = match queue.push(piece, now) {
            Ok(open_bytes) => open_bytes,
            Err(refused) => {
                self.failure.get_or_insert(refused);
                return;
            }
        };
        self.open_bytes += bytes;
        if self.renewing() {
            return;
        }
        if open_bytes >= self.settings.batch_bytes {
            self.close(bucket, now);
        }
        // A rule of the appends alone, so that the same appends make the same batches.
        while self.open_bytes > self.settings.buffer_bytes / 2 {
            let largest = self.queues.values().max_by_key(|queue| queue.open_bytes());
            let Some(bucket) = largest.map(|queue| queue.bucket) else {
                return;
            };
            self.close(bucket, now);
        }
    }

    /// Closes a bucket's open batch and has it encoded.
    fn close(&mut self, bucket: TableBucket, now: Instant) {
        let Some(queue) = self.queues.get_mut(&bucket) else {
            return;
        };
        self.open_bytes = self.open_bytes.saturating_sub(queue.open_bytes());
        let number = self.next_number;
        let Some(closed) = queue.close(number, now) else {
            return;
        };
        self.next_number += 1;
        self.outstanding.insert(number);
        let (settings, writer_id) = (Arc::clone(&self.settings), self.writer_id);
        let encoders = Arc::clone(&self.encoders);
        let encoding = async move {
            let permit = encoders.acquire_owned().await;
            let work = move || {
                let result = encode(&settings, writer_id, bucket, &closed);
                drop(permit);
                result
            };
            let result = match tokio::task::spawn_blocking(work).await {
                Ok(result) => result,
                Err(_) => Err(Error::Closed),
            };
            Event::Encoded {
                bucket,
                number,
                result,
            }
        };
        self.events.push(encoding.boxed());
    }

    fn flush(&mut self, reply: oneshot::Sender<Result<(), Error>>) {
        let now = Instant::now();
        let buckets: Vec<TableBucket> = self.queues.keys().copied().collect();
        for bucket in buckets {
            self.close(bucket, now);
            if let Some(queue) = self.queues.get_mut(&bucket) {
                queue.unflushed = 0;
            }
        }
        self.flushes.push(Flush {
            last: self.next_number,
            reply,
        });
        self.settle_flushes();
    }

    fn settle_flushes(&mut self) {
        let first = self.outstanding.first().copied().unwrap_or(u64::MAX);
        let (done, waiting) = std::mem::take(&mut self.flushes)
            .into_iter()
            .partition(|flush| flush.last <= first);
        self.flushes = waiting;
        let done: Vec<Flush> = done;
        for flush in done {
            let result = self.failure.take().map_or(Ok(()), Err);
            drop(flush.reply.send(result));
        }
    }

    fn state(&self) -> WriterState {
        let mut sequences = self.resumed.clone();
        for (bucket, queue) in &self.queues {
            let place = (queue.target.name.clone(), bucket.bucket);
            sequences.insert(place, queue.acknowledged_sequence());
        }
        let sequence = |((partition, bucket), next_sequence)| BucketSequence {
            partition,
            bucket,
            next_sequence,
        };
        let sequences = sequences.into_iter().map(sequence).collect();
        WriterState {
            writer_id: self.writer_id,
            sequences,
            next_buckets: Vec::new(),
        }
    }

    /// Whether the writer is about to get a new id: until then nothing is closed or sent.
    fn renewing(&self) -> bool {
        !self.strangers.is_empty()
    }

    fn happened(&mut self, event: Event) {
        let now = Instant::now();
        match event {
            Event::Encoded {
                bucket,
                number,
                result,
            } => {
                if let Some(queue) = self.queues.get_mut(&bucket) {
                    queue.encoded(number, result);
                }
            }
            Event::Connected {
                leader,
                result: Ok(connection),
            } => {
                self.links.insert(leader, Link::Open(connection));
            }
            Event::Connected {
                leader,
                result: Err(error),
            } => {
                self.links.remove(&leader);
                let cluster = self.settings.client.cluster();
                for (bucket, queue) in &mut self.queues {
                    if cluster.leader(*bucket) == Some(leader) && queue.sendable(now).is_some() {
                        queue.rest(error.clone(), now);
                    }
                }
            }
            Event::Produced { sent, result } => self.produced(&sent, result, now),
            Event::Refreshed { results } => self.refreshed(&results, now),
            Event::NewWriter { result } => self.renewed(result),
        }
    }

    fn produced(
        &mut self,
        sent: &[(TableBucket, u64)],
        result: Result<proto::ProduceLogResponse, Error>,
        now: Instant,
    ) {
        let api = ApiKey::ProduceLog;
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

    fn refreshed(
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

    fn carry_out(&mut self, verdict: Verdict) {
        if let Verdict::Failed { batches, error } = verdict {
            for number in batches {
                self.outstanding.remove(&number);
            }
            self.failure.get_or_insert(error);
            self.open_bytes = self.queues.values().map(Queue::open_bytes).sum();
            self.settle_flushes();
        }
    }

    /// All that can be done now without waiting.
    fn pump(&mut self, now: Instant) {
        self.close_aged(now);
        let patience = self.settings.config.delivery_timeout;
        let mut verdicts = Vec::new();
        for (&bucket, queue) in &mut self.queues {
            match queue.judge(now, patience) {
                Some(Verdict::NewWriter { error }) => drop(self.strangers.insert(bucket, error)),
                Some(verdict) => verdicts.push(verdict),
                None => {}
            }
        }
        for verdict in verdicts {
            self.carry_out(verdict);
        }
        if self.renewing() {
            self.renew();
        }
        if !self.renewing() {
            self.send(now);
        }
        self.refresh(now);
    }

    fn close_aged(&mut self, now: Instant) {
        let Some(linger) = self.settings.config.linger.filter(|_| !self.renewing()) else {
            return;
        };
        let aged = |queue: &&Queue| {
            queue
                .open_since()
                .is_some_and(|since| since + linger <= now)
        };
        let aged: Vec<_> = self
            .queues
            .values()
            .filter(aged)
            .map(|queue| queue.bucket)
            .collect();
        for bucket in aged {
            self.close(bucket, now);
        }
    }

    /// Asks for a new writer id once nothing is in flight. If the outcome of a batch is unknown, a
    /// new id could write it twice, and if batches must be repeatable, the id must stay: then the
    /// buckets that need one fail.
    fn renew(&mut self) {
        let busy = |queue: &Queue| queue.in_flight() || queue.encoding();
        if self.asking_for_id || self.queues.values().any(busy) {
            return;
        }
        let config = &self.settings.config;
        let repeatable = config.resume.is_some() || config.linger.is_none();
        if repeatable || self.queues.values().any(Queue::in_doubt) {
            for (bucket, error) in std::mem::take(&mut self.strangers) {
                if let Some(queue) = self.queues.get_mut(&bucket) {
                    let verdict = queue.fail(error);
                    self.carry_out(verdict);
                }
            }
            self.flush_deferred();
            return;
        }
        self.asking_for_id = true;
        let settings = Arc::clone(&self.settings);
        let asking = async move {
            Event::NewWriter {
                result: init_writer(&settings.client, &settings.path).await,
            }
        };
        self.events.push(asking.boxed());
    }

    fn renewed(&mut self, result: Result<WriterId, Error>) {
        self.asking_for_id = false;
        let strangers = std::mem::take(&mut self.strangers);
        match result {
            Ok(writer_id) => {
                tracing::warn!(old = %self.writer_id, new = %writer_id, "writer got a new id");
                self.writer_id = writer_id;
                for queue in self.queues.values_mut() {
                    queue.renumber(|batch, sequence| restamp(batch, writer_id, sequence));
                }
            }
            Err(error) => {
                for bucket in strangers.into_keys() {
                    if let Some(queue) = self.queues.get_mut(&bucket) {
                        let verdict = queue.fail(error.clone());
                        self.carry_out(verdict);
                    }
                }
            }
        }
        let now = Instant::now();
        let full = |queue: &&Queue| queue.open_bytes() >= self.settings.batch_bytes;
        let full: Vec<_> = self
            .queues
            .values()
            .filter(full)
            .map(|queue| queue.bucket)
            .collect();
        for bucket in full {
            self.close(bucket, now);
        }
        self.flush_deferred();
    }

    fn flush_deferred(&mut self) {
        for reply in std::mem::take(&mut self.deferred) {
            self.flush(reply);
        }
    }

    fn send(&mut self, now: Instant) {
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
        let call = async move {
            let result = connection.call(&request, deadline).await;
            Event::Produced { sent, result }
        };
        self.events.push(call.boxed());
        true
    }

    fn refresh(&mut self, now: Instant) {
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

    /// When something is due that no answer tells of. What is due already was done by `pump`, or
    /// waits for an answer.
    fn wakes_at(&self, now: Instant) -> Option<Instant> {
        let config = &self.settings.config;
        let ends = self
            .queues
            .values()
            .filter_map(|queue| queue.wakes_at(config.delivery_timeout, now));
        let linger = config.linger.filter(|_| !self.renewing());
        let closes = self
            .queues
            .values()
            .filter_map(|queue| Some(queue.open_since()? + linger?));
        ends.chain(closes).filter(|at| *at > now).min()
    }
}

fn encode(
    settings: &Settings,
    writer_id: WriterId,
    bucket: TableBucket,
    closed: &Closed,
) -> Result<Bytes, Error> {
    let failed = |source| Error::codec(format!("batch of {bucket}"), source);
    let rows = join(&closed.pieces).map_err(|source| {
        failed(crate::Error::Arrow {
            what: "rows of a batch",
            source,
        })
    })?;
    let Settings {
        schema_id,
        compression,
        ..
    } = *settings;
    let bytes = encode_append(schema_id, writer_id, closed.sequence, &rows, compression);
    let bytes = bytes.map_err(failed)?;
    let max_bytes = settings.config.max_request_bytes;
    if bytes.len() > max_bytes {
        return Err(Error::RowTooLarge {
            bucket,
            size_bytes: bytes.len(),
            max_bytes,
        });
    }
    Ok(bytes)
}

fn join(pieces: &[RecordBatch]) -> Result<RecordBatch, arrow::error::ArrowError> {
    match pieces {
        [one] => Ok(one.clone()),
        [first, ..] => concat_batches(first.schema_ref(), pieces),
        [] => Err(arrow::error::ArrowError::InvalidArgumentError(
            "no rows".to_owned(),
        )),
    }
}

/// The batch as written by `writer_id` under `sequence`; the checksum covers both.
fn restamp(batch: &Bytes, writer_id: WriterId, sequence: i32) -> Bytes {
    let mut bytes = BytesMut::from(&batch[..]);
    let stamped = crate::record::log_batch::set_writer(&mut bytes, writer_id, sequence);
    assert!(
        stamped.is_ok(),
        "a batch that was encoded has a header: {stamped:?}"
    );
    bytes.freeze()
}
