//! The one task that writes to a bucket: puts in the order of their queue, and, as the log becomes
//! durable, their values to the store.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot, watch};
use weir_catalog::sentence::sentence;
use weir_kv::{KvStore, PreWriteBuffer};
use weir_protocol::error_code::ErrorCode;
use weir_protocol::ids::{LogOffset, TableBucket};

use super::put::{Changes, Numbers, OldValues, Place, Put};
use super::rules::KeyRules;
use super::{PutDone, Surroundings};
use crate::error::Error;
use crate::log::{Flushed, Log};
use crate::tablet::transitions::close_log;
use crate::tablet::{TableInfo, on_blocking_thread};

/// How many puts are done together.
const PUTS_AT_ONCE: usize = 64;
/// How many keys are read from the store at once.
const KEYS_AT_ONCE: usize = 1024;
/// The most that the old values of puts done together may take without asking, bytes.
const OWN_OLD_BYTES: usize = 4 << 20;
/// The most that all buckets' old values may take that are beyond it, bytes.
pub(in crate::tablet) const MAX_OLD_BYTES: usize = 256 << 20;

type Reply = oneshot::Sender<Result<PutDone, Error>>;

/// A put, and who waits for it.
pub(super) type Queued = (Put, Reply);

pub(super) struct Writer {
    bucket: TableBucket,
    log: Arc<Log>,
    store: KvStore,
    table: Arc<TableInfo>,
    around: Surroundings,
    /// Handed to a blocking thread and back.
    buffer: PreWriteBuffer,
    numbers: Numbers,
    flushed: watch::Receiver<Flushed>,
    published: watch::Sender<Flushed>,
    /// Why nothing is written any more.
    failed: Arc<OnceLock<String>>,
}

/// Puts that were read, in order, and the keys whose old values are in the store.
struct Prepared {
    puts: Vec<Queued>,
    changes: Vec<Result<Changes, Error>>,
    keys: Vec<Bytes>,
}

impl Writer {
    pub(super) fn new(
        (log, store): (&Arc<Log>, &KvStore),
        (table, failed): (Arc<TableInfo>, Arc<OnceLock<String>>),
        around: Surroundings,
        published: watch::Sender<Flushed>,
    ) -> Self {
        let end = published.borrow().end;
        Self {
            bucket: log.bucket(),
            log: Arc::clone(log),
            store: store.clone(),
            table,
            around,
            buffer: PreWriteBuffer::new(end),
            numbers: Numbers::default(),
            flushed: log.subscribe_flushed(),
            published,
            failed,
        }
    }

    /// Works until it is told to end; then all that was put is in log and store, and both are closed.
    pub(super) async fn run(
        mut self,
        mut queue: mpsc::Receiver<Queued>,
        mut ended: oneshot::Receiver<()>,
    ) {
        let mut waiting = Vec::with_capacity(PUTS_AT_ONCE);
        let mut is_followed = true;
        loop {
            // Over its limit the buffer takes nothing until the log has got further.
            let has_room = self.buffer.size_bytes() < self.around.max_buffer_bytes;
            let may_put = has_room || self.failed.get().is_some() || !is_followed;
            tokio::select! {
                biased;
                told = &mut ended => match told {
                    Ok(()) => break,
                    // Nobody holds the bucket any more: as after a crash.
                    Err(_) => return,
                },
                moved = self.flushed.changed(), if is_followed => {
                    is_followed = moved.is_ok() && self.follow().await;
                }
                count = queue.recv_many(&mut waiting, PUTS_AT_ONCE), if may_put => {
                    if count == 0 {
                        return;
                    }
                    self.take(std::mem::take(&mut waiting)).await;
                }
            }
        }
        drop(queue);
        self.close().await;
    }

    async fn close(&mut self) {
        close_log(Arc::clone(&self.log)).await;
        self.follow().await;
        self.published.send_modify(|flushed| flushed.stopped = true);
        self.store.close().await;
    }

    /// Brings the store to where the log is durable, and tells; whether the log may get further.
    async fn follow(&mut self) -> bool {
        let Flushed { end, stopped } = self.flushed.borrow_and_update().clone();
        if self.failed.get().is_none()
            && end > self.buffer.flushed_offset()
            && let Err(error) = self.apply_up_to(end).await
        {
            self.fail(&error);
        }
        if stopped {
            self.published.send_modify(|flushed| flushed.stopped = true);
        }
        !stopped
    }

    async fn apply_up_to(&mut self, end: LogOffset) -> Result<(), Error> {
        let batch = self
            .with_buffer(move |buffer| buffer.flush_up_to(end))
            .await??;
        if let Err(error) = self.store.apply(Arc::new(batch)).await {
            self.buffer.abort_flush();
            return Err(error.into());
        }
        self.buffer.complete_flush();
        self.published.send_modify(|flushed| flushed.end = end);
        Ok(())
    }

    /// Nothing is written any more: what the store holds is not known, until it is opened again.
    fn fail(&mut self, error: &Error) {
        let reason = sentence(error);
        tracing::error!(bucket = %self.bucket, error = reason, "a bucket's keys take no more writes");
        // The first reason stays.
        self.failed.get_or_init(|| reason);
        self.published.send_modify(|flushed| flushed.stopped = true);
        self.around.failed.notify_one();
    }

    async fn take(&mut self, puts: Vec<Queued>) {
        if let Some(reason) = self.failed.get() {
            for (_, reply) in puts {
                let _gone = reply.send(Err(Error::Offline {
                    bucket: self.bucket,
                    code: ErrorCode::KvStorage,
                    reason: reason.clone(),
                }));
            }
            return;
        }
        let failed = match self.take_puts(puts).await {
            Ok(None) => return,
            // Too much together: one by one.
            Ok(Some(puts)) => self.take_each(puts).await.err(),
            Err(error) => Some(error),
        };
        if let Some(error) = failed {
            self.fail(&error);
        }
    }

    async fn take_each(&mut self, puts: Vec<Queued>) -> Result<(), Error> {
        for put in puts {
            self.take_puts(vec![put]).await?;
        }
        Ok(())
    }

    /// Does puts together; gives several back if what they change is too much to be read at once.
    ///
    /// # Errors
    /// What leaves it unknown what is in the buffer.
    async fn take_puts(&mut self, puts: Vec<Queued>) -> Result<Option<Vec<Queued>>, Error> {
        let mut rules = self.table.key_rules()?;
        let mut prepared = self.prepare(&rules, puts).await?;
        let is_newer = |changes: &Result<Changes, Error>| {
            matches!(
                changes,
                Err(Error::Kv(weir_kv::Error::UnknownSchema { .. }))
            )
        };
        if prepared.changes.iter().any(is_newer) {
            // It may be a schema that this server was not told of yet: look before refusing.
            rules = self.newer_rules(rules).await;
            prepared = self.prepare(&rules, prepared.puts).await?;
        }
        let Prepared {
            puts,
            changes,
            keys,
        } = prepared;
        // Held until the puts are done.
        let _memory;
        let read = match self.read(keys).await {
            Err(Error::TooManyChanges { .. }) if puts.len() > 1 => return Ok(Some(puts)),
            Ok((old_values, memory)) => {
                _memory = memory;
                let numbered = self.take_numbers(&rules, &changes).await;
                numbered.map(|()| old_values)
            }
            Err(error) => Err(error),
        };
        let replies = puts.into_iter().map(|(_, reply)| reply);
        match read {
            Ok(old_values) => {
                let changes = changes.into_iter().zip(replies).collect();
                self.append(rules, changes, old_values).await?;
            }
            Err(error) => {
                for reply in replies {
                    let _gone = reply.send(Err(self.read_failed(&error)));
                }
            }
        }
        Ok(None)
    }

    /// Takes as many numbers as there may be new rows.
    async fn take_numbers(
        &mut self,
        rules: &KeyRules,
        changes: &[Result<Changes, Error>],
    ) -> Result<(), Error> {
        let Some(numbered) = rules.numbered() else {
            return Ok(());
        };
        let needed: usize = changes.iter().flatten().map(Changes::row_count).sum();
        let missing = needed.saturating_sub(self.numbers.len());
        let reads = &self.around.reads;
        let taken = self.table.take_numbers(reads, numbered, missing).await?;
        self.numbers.add(taken);
        Ok(())
    }

    async fn newer_rules(&self, rules: Arc<KeyRules>) -> Arc<KeyRules> {
        if let Err(error) = self.table.refresh(&self.around.reads).await {
            tracing::warn!(bucket = %self.bucket, %error, "cannot look for a newer schema");
        }
        self.table.key_rules().unwrap_or(rules)
    }

    fn read_failed(&self, error: &Error) -> Error {
        match error {
            Error::TooManyChanges { bytes, max } => Error::TooManyChanges {
                bytes: *bytes,
                max: *max,
            },
            error => Error::Offline {
                bucket: self.bucket,
                code: ErrorCode::from(error),
                reason: sentence(error),
            },
        }
    }

    async fn prepare(
        &mut self,
        rules: &Arc<KeyRules>,
        puts: Vec<Queued>,
    ) -> Result<Prepared, Error> {
        let (bucket, rules) = (self.bucket, Arc::clone(rules));
        self.with_buffer(move |buffer| {
            let mut keys = HashSet::new();
            let read = |(put, _): &Queued| {
                let changes = Changes::read(bucket, put.clone(), &rules)?;
                changes.collect_keys(&rules, buffer, &mut keys)?;
                Ok(changes)
            };
            let changes = puts.iter().map(read).collect();
            Prepared {
                puts,
                changes,
                keys: keys.into_iter().collect(),
            }
        })
        .await
    }

    /// The old values of keys, and the memory of many. Between this and the append nothing is written to
    /// the store.
    async fn read(
        &self,
        mut keys: Vec<Bytes>,
    ) -> Result<(OldValues, Option<OwnedSemaphorePermit>), Error> {
        let mut old_values = HashMap::with_capacity(keys.len());
        let (mut bytes, mut memory) = (0_usize, None);
        while !keys.is_empty() {
            let some = keys.split_off(keys.len().saturating_sub(KEYS_AT_ONCE));
            let values = self.store.multi_get(some.clone()).await?;
            let sizes = values.iter().flatten().map(|value| value.row.len());
            bytes = bytes.saturating_add(sizes.sum());
            if bytes > MAX_OLD_BYTES {
                let max = MAX_OLD_BYTES;
                return Err(Error::TooManyChanges { bytes, max });
            }
            old_values.extend(some.into_iter().zip(values));
            if bytes > OWN_OLD_BYTES && memory.is_none() && !keys.is_empty() {
                // All that they may become: whoever waits for more while holding some waits for ever.
                memory = self.around.old_values.reserve(MAX_OLD_BYTES).await;
            }
        }
        Ok((old_values, memory))
    }

    async fn append(
        &mut self,
        rules: Arc<KeyRules>,
        puts: Vec<(Result<Changes, Error>, Reply)>,
        old_values: OldValues,
    ) -> Result<(), Error> {
        let (bucket, log, around) = (self.bucket, Arc::clone(&self.log), self.around.clone());
        let now_ms = around.clock.now_ms();
        let mut numbers = std::mem::take(&mut self.numbers);
        self.numbers = self
            .with_buffer(move |buffer| {
                let mut place = Place {
                    bucket,
                    log: &log,
                    max_batch_bytes: around.max_batch_bytes,
                    buffer,
                    numbers: &mut numbers,
                };
                for (changes, reply) in puts {
                    let done = changes.and_then(|changes| {
                        let take_room = |bytes| Ok(around.room.take(bytes)?);
                        place.append(&rules, &changes, &old_values, now_ms, take_room)
                    });
                    let done = done.map(|written| {
                        around.metrics.appended_bytes.inc_by(written.bytes);
                        around.metrics.appended_rows.inc_by(written.rows);
                        PutDone { end: written.end }
                    });
                    let _gone = reply.send(done);
                }
                numbers
            })
            .await?;
        Ok(())
    }

    /// Works on the buffer on a blocking thread.
    ///
    /// # Errors
    /// [`Error::Interrupted`], [`Error::Stopping`]: what the buffer held is lost.
    async fn with_buffer<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut PreWriteBuffer) -> T + Send + 'static,
    ) -> Result<T, Error> {
        let empty = PreWriteBuffer::new(self.buffer.flushed_offset());
        let mut buffer = std::mem::replace(&mut self.buffer, empty);
        let work = move || {
            let result = work(&mut buffer);
            (buffer, result)
        };
        let (buffer, result) = on_blocking_thread(&self.around.turns, work).await?;
        self.buffer = buffer;
        Ok(result)
    }
}
