//! Appends to a log table, or changes of a table with a primary key: rows find their partition and
//! bucket, batches go out idempotently.
//!
//! [`LogWriter`] routes in the caller's task ([`route`]); one task of the writer owns the batches
//! of all buckets ([`task`], and per bucket [`queue`]) and talks to the leaders.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{Array, RecordBatch};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio_util::task::AbortOnDropHandle;

use super::assigner::{Assigner, NextBucket, Spread};
use super::metadata::wire_path;
use super::{Client, Error};
use crate::ids::{
    BucketId, LogOffset, PartitionId, TableBucket, TableId, TablePath, TotalBuckets, WriterId,
};
use crate::proto;
use crate::record::arrow::Compression;

mod changes;
mod encode;
mod leaders;
mod partitions;
mod queue;
mod route;
mod settings;
mod task;
#[cfg(test)]
mod tests;

use changes::ChangeForm;
use partitions::Partitions;
use route::Router;
use settings::Settings;
use task::{Command, Task};

/// When a leader answers a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acks {
    /// Once it is in the leader's log.
    Leader,
    /// Once all in-sync replicas have it: below the high watermark, never lost again.
    All,
}

impl Acks {
    fn on_wire(self) -> i32 {
        match self {
            Acks::Leader => 1,
            Acks::All => -1,
        }
    }
}

/// Limits and choices of a [`LogWriter`].
#[derive(Clone, Debug)]
pub struct LogWriterConfig {
    /// Size at which a batch is closed, in bytes of rows before compression. 2 MiB.
    pub batch_bytes: usize,
    /// Age at which a batch is closed; `None` closes by size and flush alone, so that the same
    /// appends always make the same batches. 100 ms.
    pub linger: Option<Duration>,
    /// Rows in memory, open or unacknowledged; above it, append waits. 64 MiB.
    pub buffer_bytes: usize,
    /// Most bytes of one request. 10 MiB.
    pub max_request_bytes: usize,
    /// When a batch counts as written.
    pub acks: Acks,
    /// How long a leader may wait for replicas before it answers 25. 30 s.
    pub ack_timeout: Duration,
    /// How long a batch is tried before it fails. 2 min.
    pub delivery_timeout: Duration,
    /// `None` takes the table's.
    pub compression: Option<Compression>,
    /// Where rows go in a table without bucket key.
    pub spread: Spread,
    /// Create partitions that rows name and the table lacks.
    pub create_partitions: bool,
    /// Go on as the writer that this state was taken of.
    pub resume: Option<WriterState>,
}

impl Default for LogWriterConfig {
    fn default() -> Self {
        Self {
            batch_bytes: 2 << 20,
            linger: Some(Duration::from_millis(100)),
            buffer_bytes: 64 << 20,
            max_request_bytes: 10 << 20,
            acks: Acks::All,
            ack_timeout: Duration::from_secs(30),
            delivery_timeout: Duration::from_mins(2),
            compression: None,
            spread: Spread::Sticky,
            create_partitions: true,
            resume: None,
        }
    }
}

/// What a writer must keep to go on after a restart without writing a row twice.
///
/// Taken right after [`LogWriter::flush`], it stands for all rows appended so far. A new writer
/// that resumes with it (both without linger) must be given the same appends and the same flushes
/// as the first one was: it makes the same batches with the same sequences, and a server that has
/// some of them already says so. Other batches under those sequences would be taken for the first
/// ones, and lost: flush by a rule of the appends alone. A server remembers 5 batches per bucket:
/// flush before [`LogWriter::unflushed_batches`] exceeds that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriterState {
    /// The writer.
    pub writer_id: WriterId,
    /// Per bucket, the sequence of its first batch that is not acknowledged.
    pub sequences: Vec<BucketSequence>,
    /// Per partition of a table without bucket key, where the next rows go.
    pub next_buckets: Vec<NextBucket>,
}

/// The place of a writer in one bucket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketSequence {
    /// The partition's name, of a partitioned table.
    pub partition: Option<String>,
    /// The bucket.
    pub bucket: BucketId,
    /// The next sequence.
    pub next_sequence: i32,
}

/// A batch that is in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// The bucket.
    pub bucket: TableBucket,
    /// The offset of the batch's first row, not of the caller's; `None` if the server only said
    /// that it has the batch already.
    pub base_offset: Option<LogOffset>,
}

/// The acknowledgement of one append. Dropped, the rows are written all the same.
#[derive(Debug)]
#[must_use = "an append is only written once its acknowledgement says so"]
pub struct Acknowledgement {
    batches: Vec<oneshot::Receiver<Result<Appended, Error>>>,
}

impl Acknowledgement {
    /// Waits until all rows of the append are written.
    ///
    /// # Errors
    /// The first batch's that failed; rows of other batches may be written.
    pub async fn wait(self) -> Result<Vec<Appended>, Error> {
        let mut appended = Vec::with_capacity(self.batches.len());
        for batch in self.batches {
            appended.push(batch.await.unwrap_or(Err(Error::Closed))?);
        }
        Ok(appended)
    }
}

/// A table, or one partition of it, as one metadata answer showed it: rows are routed and sent by
/// the same ids and count.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) table: TableId,
    pub(super) partition: Option<PartitionId>,
    pub(super) name: Option<String>,
    pub(super) total_buckets: TotalBuckets,
}

/// Rows that fit a batch and know where they go.
#[derive(Debug)]
struct Routed {
    target: Arc<Target>,
    bucket: BucketId,
    rows: RecordBatch,
    bytes: usize,
}

/// Rows on their way into an open batch.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) target: Arc<Target>,
    pub(super) bucket: BucketId,
    pub(super) rows: RecordBatch,
    pub(super) bytes: usize,
    pub(super) memory: OwnedSemaphorePermit,
    pub(super) ack: oneshot::Sender<Result<Appended, Error>>,
}

/// Appends rows to one log table, or puts and deletes those of a table with a primary key, at its
/// schema of when the writer was opened.
///
/// Rows of one caller keep their order within a bucket. Dropped without [`LogWriter::close`], rows
/// that are not acknowledged are given up.
#[derive(Debug)]
pub struct LogWriter {
    router: Router,
    changes: Option<Arc<ChangeForm>>,
    assigner: Mutex<Assigner>,
    partitions: Partitions,
    commands: mpsc::Sender<Command>,
    memory: Arc<Semaphore>,
    buffer_bytes: usize,
    batch_bytes: usize,
    _task: AbortOnDropHandle<()>,
}

impl LogWriter {
    /// Looks up the table and asks for a writer id, or resumes with one.
    ///
    /// # Errors
    /// 7 of an unknown table; [`Error::Codec`] for a log table whose format is not ARROW, or an
    /// unknown compression, row or lake format.
    pub async fn open(
        client: Client,
        path: TablePath,
        config: LogWriterConfig,
    ) -> Result<Self, Error> {
        let table = client.refresh_table(&path).await?;
        let compression = match config.compression {
            Some(compression) => compression,
            None => route::table_compression(&table)?,
        };
        let router = Router::new(&table)?;
        let changes = ChangeForm::of(&table)?.map(Arc::new);
        let writer_id = match &config.resume {
            Some(state) => state.writer_id,
            None => init_writer(&client, &path).await?,
        };
        let next_buckets = config
            .resume
            .as_ref()
            .map(|state| state.next_buckets.as_slice());
        let assigner = Assigner::new(
            config.spread,
            config.batch_bytes,
            next_buckets.unwrap_or(&[]),
        );
        // Permits are counted in u32; 4 GiB of rows are a limit of their own.
        let buffer_bytes = config.buffer_bytes.clamp(1 << 16, u32::MAX as usize);
        let batch_bytes = config.batch_bytes.clamp(1, buffer_bytes / 4);
        let settings = Settings {
            client: client.clone(),
            path: path.clone(),
            table: table.table_id,
            schema_id: table.schema_id,
            compression,
            batch_bytes,
            buffer_bytes,
            changes: changes.clone(),
            config: config.clone(),
        };
        let (commands, receiver) = mpsc::channel(256);
        let task = Task::new(settings, writer_id).run(receiver);
        Ok(Self {
            router,
            changes,
            assigner: Mutex::new(assigner),
            partitions: Partitions::new(client, table, config.create_partitions),
            commands,
            memory: Arc::new(Semaphore::new(buffer_bytes)),
            buffer_bytes,
            batch_bytes,
            _task: AbortOnDropHandle::new(tokio::spawn(task)),
        })
    }

    /// Routes rows and hands them to the writer; waits for memory, not for the server, unless a
    /// partition must be looked up or made. Columns are found by name; nullable ones may be missing.
    /// Cancelled, some of the rows may be written.
    ///
    /// # Errors
    /// [`Error::Rows`] for rows that are not the table's, and why a partition could not be had: both
    /// before any of the rows is taken, so that the append may be repeated. [`Error::Closed`].
    pub async fn append(&self, rows: RecordBatch) -> Result<Acknowledgement, Error> {
        self.write(rows, false).await
    }

    /// Deletes the keys of rows; columns beside primary key and partition keys don't matter, but
    /// must be there where they are not nullable. Otherwise as [`LogWriter::append`].
    ///
    /// # Errors
    /// As [`LogWriter::append`]; [`Error::Codec`] for a log table.
    pub async fn delete(&self, rows: RecordBatch) -> Result<Acknowledgement, Error> {
        if self.changes.is_none() {
            let reason = "a log table has no keys to delete";
            let source = crate::Error::invalid("table", "primary key", reason);
            return Err(Error::codec("delete", source));
        }
        self.write(rows, true).await
    }

    async fn write(&self, rows: RecordBatch, is_gone: bool) -> Result<Acknowledgement, Error> {
        let rows = self.router.conform(&rows)?;
        let mut parts = Vec::new();
        for part in self.router.by_partition(&rows)? {
            let target = self.partitions.target(part.spec.as_ref()).await?;
            parts.push((target, part.rows));
        }
        let mut routed = Vec::new();
        for (target, rows) in &parts {
            let marked = match &self.changes {
                Some(changes) => &changes.mark(rows, is_gone)?,
                None => rows,
            };
            routed.extend(self.route(target, marked)?);
        }
        let mut batches = Vec::with_capacity(routed.len());
        for one in routed {
            let (ack, receiver) = oneshot::channel();
            batches.push(receiver);
            self.hand_over(one, ack).await?;
        }
        Ok(Acknowledgement { batches })
    }

    /// Closes all open batches and waits until everything appended before is acknowledged.
    ///
    /// # Errors
    /// The first failure of a batch since the last flush.
    pub async fn flush(&self) -> Result<(), Error> {
        self.ask(Command::Flush).await?
    }

    /// Where the writer stands; see [`WriterState`] for when to ask.
    pub async fn state(&self) -> Result<WriterState, Error> {
        let mut state = self.ask(Command::State).await?;
        state.next_buckets = self.assigner.lock().next_buckets();
        Ok(state)
    }

    /// The most batches that any bucket has closed since the last flush.
    pub async fn unflushed_batches(&self) -> Result<usize, Error> {
        self.ask(Command::UnflushedBatches).await
    }

    /// Why rows are not acknowledged yet: the newest failure of a bucket whose batches are tried
    /// again. `None` while all goes well.
    pub async fn trouble(&self) -> Result<Option<Error>, Error> {
        self.ask(Command::Trouble).await
    }

    /// Flushes and ends the writer.
    ///
    /// # Errors
    /// As [`LogWriter::flush`].
    pub async fn close(self) -> Result<(), Error> {
        self.flush().await
    }

    /// Pieces of rows, none larger than a batch, with their buckets.
    fn route(&self, target: &Arc<Target>, rows: &RecordBatch) -> Result<Vec<Routed>, Error> {
        let total = target.total_buckets;
        let routed = |bucket, (rows, bytes)| Routed {
            target: Arc::clone(target),
            bucket,
            rows,
            bytes,
        };
        if let Some(by_key) = self.router.by_bucket_key(rows, total)? {
            let of_bucket = |(bucket, rows)| {
                let pieces = self.pieces(&rows).into_iter();
                pieces.map(move |piece| routed(bucket, piece))
            };
            return Ok(by_key.into_iter().flat_map(of_bucket).collect());
        }
        let mut assigner = self.assigner.lock();
        let assigned = self.pieces(rows).into_iter().map(|piece| {
            let bucket = assigner.assign(target.name.as_deref(), total, piece.1);
            let bucket = bucket.map_err(|e| Error::codec("bucket of rows", e))?;
            Ok(routed(bucket, piece))
        });
        assigned.collect()
    }

    /// Cuts rows so that each piece fits a batch, as far as rows can be cut; with each, its bytes.
    fn pieces(&self, rows: &RecordBatch) -> Vec<(RecordBatch, usize)> {
        let bytes = memory_bytes(rows);
        let count = bytes
            .div_ceil(self.batch_bytes)
            .clamp(1, rows.num_rows().max(1));
        if count == 1 && rows.num_rows() > 0 {
            return vec![(rows.clone(), bytes)];
        }
        let step = rows.num_rows().div_ceil(count).max(1);
        let starts = (0..rows.num_rows()).step_by(step);
        let piece = |start| {
            let piece = rows.slice(start, step.min(rows.num_rows() - start));
            let bytes = memory_bytes(&piece);
            (piece, bytes)
        };
        starts.map(piece).collect()
    }

    async fn hand_over(
        &self,
        routed: Routed,
        ack: oneshot::Sender<Result<Appended, Error>>,
    ) -> Result<(), Error> {
        let Routed {
            target,
            bucket,
            rows,
            bytes,
        } = routed;
        let wanted = u32::try_from(bytes.min(self.buffer_bytes / 4)).unwrap_or(u32::MAX);
        let memory = Arc::clone(&self.memory).acquire_many_owned(wanted).await;
        let memory = memory.map_err(|_| Error::Closed)?;
        let piece = Piece {
            target,
            bucket,
            rows,
            bytes,
            memory,
            ack,
        };
        self.commands
            .send(Command::Append(piece))
            .await
            .map_err(|_| Error::Closed)
    }

    async fn ask<T>(
        &self,
        question: impl FnOnce(oneshot::Sender<T>) -> Command,
    ) -> Result<T, Error> {
        let (sender, receiver) = oneshot::channel();
        self.commands
            .send(question(sender))
            .await
            .map_err(|_| Error::Closed)?;
        receiver.await.map_err(|_| Error::Closed)
    }
}

/// A fresh writer id; an id lost on the way is never used, so any attempt may be repeated.
pub(super) async fn init_writer(client: &Client, path: &TablePath) -> Result<WriterId, Error> {
    let request = proto::InitWriterRequest {
        table_path: vec![wire_path(path)],
    };
    let answer = client
        .retrying(|| client.any_server(request.clone()))
        .await?;
    Ok(WriterId(answer.writer_id))
}

/// Bytes of the rows themselves, without what their buffers hold of other rows.
fn memory_bytes(rows: &RecordBatch) -> usize {
    let column = |array: &Arc<dyn Array>| array.to_data().get_slice_memory_size().unwrap_or(0);
    rows.columns()
        .iter()
        .map(column)
        .sum::<usize>()
        .max(rows.num_rows())
}

/// Sequences by partition name and bucket, of a state to resume.
fn resumed_sequences(state: Option<&WriterState>) -> BTreeMap<(Option<String>, BucketId), i32> {
    let entries = state.iter().flat_map(|state| &state.sequences);
    entries
        .map(|s| ((s.partition.clone(), s.bucket), s.next_sequence))
        .collect()
}
