//! Reads logs: raw batches, in order per bucket, one FETCH_LOG in flight per leader.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::resume_unwind;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{Backoff, Client, Error};
use crate::ids::{LogOffset, PartitionId, ServerId, TableBucket, TableId, TablePath, TotalBuckets};
use crate::record::LogBatch;

mod fetch;
#[cfg(test)]
mod tests;

use fetch::{BucketAnswer, Fetch, FetchLimits, FetchOfBucket, fetch};

/// As a start: the first offset that the log still holds.
pub const EARLIEST: LogOffset = LogOffset(-2);

/// Limits and choices of a [`LogFetcher`].
#[derive(Clone, Debug)]
pub struct LogFetcherConfig {
    /// Most bytes of one answer, over all its buckets; a first batch larger than that comes whole.
    /// 16 MiB.
    pub max_bytes: i32,
    /// Most bytes of one bucket in one answer. 1 MiB.
    pub max_bucket_bytes: i32,
    /// The server waits until there are this many bytes. 1.
    pub min_bytes: i32,
    /// How long the server waits for `min_bytes`. 500 ms.
    pub max_wait: Duration,
    /// Indexes of the columns to fetch, strictly ascending; `None` for all. ARROW logs only.
    pub projection: Option<Vec<i32>>,
    /// Check the checksum of each batch; ignored under projection, where it is stale by design.
    pub verify_crc: bool,
    /// How long a bucket may stay in trouble before it ends with its error; `None` for the client's
    /// `retry_timeout`.
    pub patience: Option<Duration>,
}

impl Default for LogFetcherConfig {
    fn default() -> Self {
        Self {
            max_bytes: 16 << 20,
            max_bucket_bytes: 1 << 20,
            min_bytes: 1,
            max_wait: Duration::from_millis(500),
            projection: None,
            verify_crc: true,
            patience: None,
        }
    }
}

/// A bucket to read, and which part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subscription {
    /// The bucket.
    pub bucket: TableBucket,
    /// The first offset to read, or [`EARLIEST`].
    pub start: LogOffset,
    /// Read up to this offset, exclusive; `None` reads on for ever.
    pub stop: Option<LogOffset>,
    /// The bucket count of its table or partition, by which the caller chose the bucket.
    pub routing_count: TotalBuckets,
}

/// What one answer brought of one bucket.
#[derive(Clone, Debug)]
pub struct FetchedBucket {
    /// The bucket.
    pub bucket: TableBucket,
    /// Whole batches, slices of the answer. The first may begin before the asked offset, the last
    /// may end after the stop: the caller cuts them.
    pub batches: Vec<LogBatch>,
    /// The offset after the last batch, or after the gap.
    pub next_offset: LogOffset,
    /// The log holds nothing between the last batch (or the offset that was asked for) and this one,
    /// although it once did; gaps before a batch show in its base offset.
    pub gap_to: Option<LogOffset>,
    /// Below it, the log is readable; as of this answer.
    pub high_watermark: Option<LogOffset>,
    /// The stop is reached; the bucket is no longer subscribed.
    pub finished: bool,
    /// Why reading ended before the stop; the bucket is no longer subscribed.
    pub error: Option<Error>,
    /// Why nothing can be read at the moment; the bucket is tried again by itself. Told when trouble
    /// begins and each time it becomes another; batches end it.
    pub trouble: Option<Error>,
}

impl FetchedBucket {
    /// No batches of a bucket that stands at `next_offset`.
    fn nothing(bucket: TableBucket, next_offset: LogOffset) -> Self {
        Self {
            bucket,
            batches: Vec::new(),
            next_offset,
            gap_to: None,
            high_watermark: None,
            finished: false,
            error: None,
            trouble: None,
        }
    }
}

#[derive(Debug)]
struct Position {
    offset: LogOffset,
    stop: Option<LogOffset>,
    routing_count: TotalBuckets,
    /// A fetch that holds the bucket is on its way.
    in_flight: bool,
    /// When the bucket was last part of an answer with data; the hungriest go first in a request.
    fed: u64,
    trouble: Option<Trouble>,
}

/// A bucket that cannot be fetched at the moment.
#[derive(Debug)]
struct Trouble {
    since: Instant,
    rest_until: Instant,
    backoff: Backoff,
    refresh: bool,
    /// The error that the caller has heard of.
    told: Option<String>,
}

/// Leaders that were asked for, and per partition whether there was an answer.
#[derive(Debug)]
struct LookUp {
    buckets: Vec<TableBucket>,
    results: BTreeMap<Option<PartitionId>, Result<(), Error>>,
}

/// Reads several buckets of one table. Not shared: one task polls it. Dropped, it stops fetching.
///
/// At most two answers per leader are in memory: the one given to the caller and the next one.
#[derive(Debug)]
pub struct LogFetcher {
    client: Client,
    path: TablePath,
    table: TableId,
    config: LogFetcherConfig,
    positions: BTreeMap<TableBucket, Position>,
    fetches: JoinSet<Fetch>,
    /// At most one look-up of leaders.
    look_ups: JoinSet<LookUp>,
    busy: BTreeSet<ServerId>,
    ready: Vec<FetchedBucket>,
    answers: u64,
}

impl LogFetcher {
    /// A reader of `table`, which `path` must still name when leaders are looked up.
    pub fn new(client: Client, path: TablePath, table: TableId, config: LogFetcherConfig) -> Self {
        Self {
            client,
            path,
            table,
            config,
            positions: BTreeMap::new(),
            fetches: JoinSet::new(),
            look_ups: JoinSet::new(),
            busy: BTreeSet::new(),
            ready: Vec::new(),
            answers: 0,
        }
    }

    /// Starts to read a bucket of the table; a bucket that is read already starts anew.
    pub fn subscribe(&mut self, subscription: Subscription) {
        let Subscription {
            bucket,
            start,
            stop,
            routing_count,
        } = subscription;
        if stop.is_some_and(|stop| start >= stop) {
            let finished = true;
            self.ready.push(FetchedBucket {
                finished,
                ..FetchedBucket::nothing(bucket, start)
            });
            return;
        }
        let position = Position {
            offset: start,
            stop,
            routing_count,
            in_flight: false,
            fed: 0,
            trouble: None,
        };
        self.positions.insert(bucket, position);
    }

    /// Stops reading a bucket; answers the offset to go on from, if it was read.
    pub fn unsubscribe(&mut self, bucket: TableBucket) -> Option<LogOffset> {
        self.positions
            .remove(&bucket)
            .map(|position| position.offset)
    }

    /// Whether nothing is subscribed and nothing waits to be polled.
    pub fn is_done(&self) -> bool {
        self.positions.is_empty() && self.ready.is_empty()
    }

    /// Waits at most `max_wait` for data, ends, errors or trouble of any bucket; empty if there was
    /// nothing.
    ///
    /// Leaders are looked up anew on 12, 21 and 44 and when a server is lost; a bucket that stays
    /// in trouble for `patience` ends with that error. Cancelling loses nothing.
    pub async fn poll(&mut self, max_wait: Duration) -> Vec<FetchedBucket> {
        let deadline = Instant::now() + max_wait;
        loop {
            let now = Instant::now();
            self.start_fetches(now);
            if !self.ready.is_empty() {
                return std::mem::take(&mut self.ready);
            }
            if self.positions.is_empty() {
                // A caller that loops must not spin while nothing is subscribed.
                tokio::time::sleep_until(deadline).await;
                return Vec::new();
            }
            self.start_look_up(now);
            let wake = self
                .next_rest_end(now)
                .map_or(deadline, |end| end.min(deadline));
            tokio::select! {
                Some(done) = self.fetches.join_next() => {
                    match done {
                        Ok(done) => self.take(done),
                        Err(lost) => lost.try_into_panic().map_or((), |p| resume_unwind(p)),
                    }
                }
                Some(done) = self.look_ups.join_next() => {
                    match done {
                        Ok(done) => self.take_leaders(done),
                        Err(lost) => lost.try_into_panic().map_or((), |p| resume_unwind(p)),
                    }
                }
                () = tokio::time::sleep_until(wake) => {
                    if wake == deadline {
                        return Vec::new();
                    }
                }
            }
        }
    }

    /// Sends one fetch to each leader that has idle buckets and no fetch yet.
    fn start_fetches(&mut self, now: Instant) {
        let first_backoff = self.client.config().first_backoff;
        let cluster = self.client.cluster();
        let mut by_leader = BTreeMap::<ServerId, Vec<(u64, FetchOfBucket)>>::new();
        for (&bucket, position) in &mut self.positions {
            if position.in_flight || position.rests(now) {
                continue;
            }
            let Some(leader) = cluster.leader(bucket) else {
                position.look_up_leader(now, first_backoff);
                continue;
            };
            if self.busy.contains(&leader) {
                continue;
            }
            position.in_flight = true;
            let (offset, routing_count) = (position.offset, position.routing_count);
            let part = FetchOfBucket {
                bucket,
                offset,
                routing_count,
            };
            by_leader
                .entry(leader)
                .or_default()
                .push((position.fed, part));
        }
        for (leader, mut parts) in by_leader {
            parts.sort_by_key(|(fed, part)| (*fed, part.bucket));
            let parts = parts.into_iter().map(|(_, part)| part).collect();
            self.busy.insert(leader);
            let limits = FetchLimits::of(&self.config);
            self.fetches.spawn(fetch(
                self.client.clone(),
                leader,
                self.table,
                parts,
                limits,
            ));
        }
    }

    /// When the next bucket that rests is to be looked at again; while leaders are looked up, those
    /// that wait for one are left out. One whose rest is over waits for its leader's answer to others.
    fn next_rest_end(&self, now: Instant) -> Option<Instant> {
        let looking = !self.look_ups.is_empty();
        let trouble = |p: &Position| {
            let trouble = p.trouble.as_ref().filter(|_| !p.in_flight);
            let resting = trouble.filter(|trouble| !(looking && trouble.refresh));
            let rests_until = resting.map(|trouble| trouble.rest_until);
            rests_until.filter(|until| *until > now)
        };
        self.positions.values().filter_map(trouble).min()
    }

    /// Begins to look up the leaders of all buckets that want it, beside the fetches of the others.
    fn start_look_up(&mut self, now: Instant) {
        if !self.look_ups.is_empty() {
            return;
        }
        let wanting = self
            .positions
            .iter()
            .filter(|(_, position)| position.wants_refresh(now));
        let buckets: Vec<TableBucket> = wanting.map(|(bucket, _)| *bucket).collect();
        if buckets.is_empty() {
            return;
        }
        let (client, path, table) = (self.client.clone(), self.path.clone(), self.table);
        self.look_ups.spawn(async move {
            let partitions = buckets.iter().map(|bucket| bucket.partition).collect();
            let results = client.refresh_each(&path, table, &partitions).await;
            LookUp { buckets, results }
        });
    }

    fn take_leaders(&mut self, done: LookUp) {
        let cluster = self.client.cluster();
        for bucket in done.buckets {
            // Whoever subscribed anew meanwhile did not ask.
            let asked = |position: &Position| position.trouble.as_ref().is_some_and(|t| t.refresh);
            if !self.positions.get(&bucket).is_some_and(asked) {
                continue;
            }
            match done.results.get(&bucket.partition) {
                Some(Err(error)) => self.fail(bucket, error.clone()),
                _ if cluster.leader(bucket).is_none() => {
                    self.fail(bucket, Error::NoLeader { bucket });
                }
                _ => {
                    if let Some(position) = self.positions.get_mut(&bucket) {
                        position.found_leader();
                    }
                }
            }
        }
    }

    fn take(&mut self, done: Fetch) {
        self.busy.remove(&done.leader);
        self.answers += 1;
        for answer in done.answers {
            // Whoever subscribed anew meanwhile is not at the offset that was asked for.
            let Some(position) = self.positions.get_mut(&answer.bucket) else {
                continue;
            };
            if !position.in_flight || position.offset != answer.asked {
                continue;
            }
            position.in_flight = false;
            match answer.result {
                Err(error) => self.fail(answer.bucket, error),
                Ok(found) => self.advance(answer.bucket, found),
            }
        }
    }

    fn advance(&mut self, bucket: TableBucket, mut found: BucketAnswer) {
        let Some(position) = self.positions.get_mut(&bucket) else {
            return;
        };
        position.trouble = None;
        let (offset, stop) = (position.offset, position.stop);
        let nothing = found.nothing_below;
        let mut gap_to = nothing.filter(|end| offset.0 >= 0 && *end > offset);
        found.batches.retain(|batch| batch.next_offset() > offset);
        if let Some(last) = found.batches.last() {
            position.offset = last.next_offset();
            position.fed = self.answers;
        } else if let Some(end) = gap_to {
            position.offset = end;
        }
        let next_offset = position.offset;
        let finished = stop.is_some_and(|stop| next_offset >= stop);
        if let Some(stop) = stop {
            let batches = &mut found.batches;
            batches.retain(|batch| batch.header.base_offset < stop);
            let reached = batches.last().is_some_and(|b| b.next_offset() >= stop);
            gap_to = gap_to.map(|end| end.min(stop));
            if finished && !reached {
                gap_to = Some(stop);
            }
        }
        if finished {
            self.positions.remove(&bucket);
        }
        if finished || gap_to.is_some() || !found.batches.is_empty() {
            self.ready.push(FetchedBucket {
                batches: found.batches,
                gap_to,
                high_watermark: found.high_watermark,
                finished,
                ..FetchedBucket::nothing(bucket, next_offset)
            });
        }
    }

    /// Lets a bucket rest after a retriable error, or ends it.
    fn fail(&mut self, bucket: TableBucket, error: Error) {
        let patience = self.config.patience;
        let patience = patience.unwrap_or(self.client.config().retry_timeout);
        let first_backoff = self.client.config().first_backoff;
        let Some(position) = self.positions.get_mut(&bucket) else {
            return;
        };
        let now = Instant::now();
        let refresh = error.wants_fresh_metadata();
        let nothing = FetchedBucket::nothing(bucket, position.offset);
        if error.is_retriable() && position.rest(now, first_backoff, refresh) < patience {
            if position.is_news(&error) {
                let trouble = Some(error);
                self.ready.push(FetchedBucket { trouble, ..nothing });
            }
            return;
        }
        self.positions.remove(&bucket);
        let error = Some(error);
        self.ready.push(FetchedBucket { error, ..nothing });
    }
}

impl Position {
    fn rests(&self, now: Instant) -> bool {
        self.trouble
            .as_ref()
            .is_some_and(|t| t.refresh || t.rest_until > now)
    }

    fn wants_refresh(&self, now: Instant) -> bool {
        let due = |t: &Trouble| t.refresh && t.rest_until <= now;
        !self.in_flight && self.trouble.as_ref().is_some_and(due)
    }

    fn look_up_leader(&mut self, now: Instant, first_backoff: Duration) {
        let backoff = Backoff::new(first_backoff);
        let fresh = Trouble {
            since: now,
            rest_until: now,
            backoff,
            refresh: true,
            told: None,
        };
        self.trouble.get_or_insert(fresh).refresh = true;
    }

    /// Whether the caller has not heard of this error yet; it will have.
    fn is_news(&mut self, error: &Error) -> bool {
        let text = error.to_string();
        let Some(trouble) = &mut self.trouble else {
            return false;
        };
        let told = trouble.told.replace(text);
        told != trouble.told
    }

    fn found_leader(&mut self) {
        if let Some(trouble) = &mut self.trouble {
            trouble.refresh = false;
        }
    }

    /// Rests, longer each time; answers how long the trouble has lasted.
    fn rest(&mut self, now: Instant, first_backoff: Duration, refresh: bool) -> Duration {
        self.look_up_leader(now, first_backoff);
        let Some(trouble) = &mut self.trouble else {
            return Duration::ZERO;
        };
        trouble.refresh = refresh;
        trouble.rest_until = now + trouble.backoff.next();
        now.saturating_duration_since(trouble.since)
    }
}
