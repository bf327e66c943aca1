//! The writer's task: owns the queues of all buckets, encodes, sends, takes answers.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::Instant;

use super::encode::{encode, restamp};
use super::queue::{Queue, Verdict};
use super::settings::Settings;
use super::{BucketSequence, Piece, WriterState, init_writer, resumed_sequences};
use crate::client::connection::Connection;
use crate::client::{Backoff, Error};
use crate::ids::{BucketId, PartitionId, ServerId, TableBucket, WriterId};
use crate::proto;

/// What a writer's handle asks of its task.
#[derive(Debug)]
pub(super) enum Command {
    Append(Piece),
    Flush(oneshot::Sender<Result<(), Error>>),
    State(oneshot::Sender<WriterState>),
    UnflushedBatches(oneshot::Sender<usize>),
    Trouble(oneshot::Sender<Option<Error>>),
}

/// Something that was waited for.
pub(super) enum Event {
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

pub(super) enum Link {
    Opening,
    Open(Connection),
}

struct Flush {
    /// Batches up to this number must be done.
    last: u64,
    reply: oneshot::Sender<Result<(), Error>>,
}

pub(super) struct Task {
    pub(super) settings: Arc<Settings>,
    writer_id: WriterId,
    resumed: BTreeMap<(Option<String>, BucketId), i32>,
    pub(super) queues: BTreeMap<TableBucket, Queue>,
    pub(super) links: HashMap<ServerId, Link>,
    pub(super) events: FuturesUnordered<BoxFuture<'static, Event>>,
    encoders: Arc<Semaphore>,
    next_number: u64,
    pub(super) outstanding: BTreeSet<u64>,
    open_bytes: usize,
    flushes: Vec<Flush>,
    /// Flushes that wait until the writer has its new id.
    deferred: Vec<oneshot::Sender<Result<(), Error>>>,
    failure: Option<Error>,
    pub(super) refreshing: bool,
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
            Command::Trouble(reply) => {
                let trouble = self.queues.values().find_map(|queue| queue.trouble.clone());
                reply.send(trouble).ok();
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
        let first_backoff = self.settings.client.config().first_backoff;
        let queue = self.queues.entry(bucket).or_insert_with(|| {
            let place = (target.name.clone(), bucket.bucket);
            let backoff = Backoff::new(first_backoff);
            Queue::new(
                bucket,
                target,
                resumed.get(&place).copied().unwrap_or(0),
                backoff,
            )
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

    pub(super) fn settle_flushes(&mut self) {
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
            Event::Connected { leader, result } => self.connected(leader, result, now),
            Event::Produced { sent, result } => self.produced(&sent, result, now),
            Event::Refreshed { results } => self.refreshed(&results, now),
            Event::NewWriter { result } => self.renewed(result),
        }
    }

    pub(super) fn carry_out(&mut self, verdict: Verdict) {
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
                let settings = Arc::clone(&self.settings);
                for queue in self.queues.values_mut() {
                    queue
                        .renumber(|batch, sequence| restamp(&settings, batch, writer_id, sequence));
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
