//! The source of a round: one task that reads the logs of all open splits of a table, within the
//! memory budget.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use weir_protocol::ids::{LogOffset, TableBucket};

use crate::cluster::{Fetched, LogReader};
use crate::memory::{MemoryBudget, Reservation};
use crate::split::Split;

/// The longest wait of one read when nothing comes.
const MAX_WAIT: Duration = Duration::from_millis(500);

/// What the source is told.
#[derive(Debug)]
enum Command {
    Add(Split),
    Remove(TableBucket),
}

/// What one read brought, and the memory that holds it.
#[derive(Debug)]
pub struct Delivery {
    /// Per bucket.
    pub fetched: Vec<Fetched>,
    /// Room for all batches; split it among them.
    pub memory: Reservation,
}

/// The caller's end of the source.
#[derive(Debug)]
pub struct Source {
    commands: mpsc::Sender<Command>,
    deliveries: mpsc::Receiver<Delivery>,
}

/// The task's end of the source; [`SourceTask::run`] is the task.
#[derive(Debug)]
pub struct SourceTask {
    commands: mpsc::Receiver<Command>,
    deliveries: mpsc::Sender<Delivery>,
    budget: MemoryBudget,
    fetch_bytes: u64,
}

/// A source for at most `splits` splits; each read brings about `fetch_bytes`.
pub fn source(splits: usize, budget: MemoryBudget, fetch_bytes: u64) -> (Source, SourceTask) {
    // Each split is added and removed once, so there is always room for a command.
    let (commands_in, commands) = mpsc::channel(splits.saturating_mul(2).max(1));
    let (deliveries_in, deliveries) = mpsc::channel(1);
    let source = Source {
        commands: commands_in,
        deliveries,
    };
    (
        source,
        SourceTask {
            commands,
            deliveries: deliveries_in,
            budget,
            fetch_bytes,
        },
    )
}

impl Source {
    /// Reads `split` from now on.
    pub fn add(&self, split: &Split) {
        // Room is there; a task that has ended shows in `next`.
        let _ = self.commands.try_send(Command::Add(split.clone()));
    }

    /// Reads the bucket no more.
    pub fn remove(&self, bucket: TableBucket) {
        let _ = self.commands.try_send(Command::Remove(bucket));
    }

    /// The next delivery; `None` if the task has ended. Safe to cancel.
    pub async fn next(&mut self) -> Option<Delivery> {
        self.deliveries.recv().await
    }
}

impl SourceTask {
    /// Reads until the caller's end is dropped, or the token is cancelled.
    pub async fn run(mut self, mut reader: Box<dyn LogReader>, cancel: CancellationToken) {
        tokio::select! {
            () = cancel.cancelled() => {}
            () = self.read(reader.as_mut()) => {}
        }
    }

    async fn read(&mut self, reader: &mut dyn LogReader) {
        // The next answer may be on its way while the last one is handed over.
        let _ahead = self.budget.reserve(self.fetch_bytes).await;
        let mut open = Open::default();
        loop {
            if open.stops.is_empty() {
                match self.commands.recv().await {
                    Some(command) => open.obey(reader, command),
                    None => return,
                }
                continue;
            }
            let mut memory = self.budget.reserve(self.fetch_bytes).await;
            let fetched = tokio::select! {
                biased;
                command = self.commands.recv() => {
                    let Some(command) = command else { return };
                    open.obey(reader, command);
                    while let Ok(command) = self.commands.try_recv() {
                        open.obey(reader, command);
                    }
                    continue;
                }
                fetched = reader.poll(MAX_WAIT) => fetched,
            };
            if fetched.is_empty() {
                // Should a reader return without waiting, others get their turn all the same.
                tokio::task::yield_now().await;
                continue;
            }
            open.close_ended(&fetched);
            let batches = fetched.iter().flat_map(|fetched| &fetched.batches);
            let bytes: usize = batches.map(|batch| batch.bytes.len()).sum();
            memory.resize(u64::try_from(bytes).unwrap_or(u64::MAX));
            let delivery = Delivery { fetched, memory };
            if self.deliveries.send(delivery).await.is_err() {
                return;
            }
        }
    }
}

/// The stop offsets of the buckets that have more to give.
#[derive(Debug, Default)]
struct Open {
    stops: BTreeMap<TableBucket, LogOffset>,
}

impl Open {
    fn obey(&mut self, reader: &mut dyn LogReader, command: Command) {
        match command {
            Command::Add(split) => {
                reader.add(&split);
                self.stops.insert(split.bucket, split.stop);
            }
            Command::Remove(bucket) => {
                reader.remove(bucket);
                self.stops.remove(&bucket);
            }
        }
    }

    /// Buckets that were read to their stop, or can't be read, give nothing more.
    fn close_ended(&mut self, fetched: &[Fetched]) {
        for Fetched {
            bucket,
            batches,
            fault,
            ..
        } in fetched
        {
            let Some(stop) = self.stops.get(bucket) else {
                continue;
            };
            let reached = batches
                .last()
                .is_some_and(|last| last.next_offset() >= *stop);
            if reached || fault.is_some() {
                self.stops.remove(bucket);
            }
        }
    }
}
