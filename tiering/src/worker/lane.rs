//! A lane: the batches of one bucket, in order, become files of one lake bucket.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::RecordBatch;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use weir_catalog::clock::Clock;
use weir_lake_format::Partition;
use weir_lake_format::write::{CommitMessage, DataFileWriter, WriteTarget, WriterOptions};
use weir_protocol::ids::LogOffset;
use weir_protocol::record::LogBatch;

use super::WorkerResources;
use super::decode::decode;
use super::schemas::Schemas;
use crate::align::Position;
use crate::cluster::{TableInfo, Trouble};
use crate::error::{Error, Result};
use crate::lake_table::LakeTable;
use crate::memory::{MemoryBudget, Reservation, WriterMemory};
use crate::round::SplitResult;
use crate::split::Split;
use crate::wall::{local_ms, unique_name};

/// One batch on its way, with the memory that holds it.
#[derive(Debug)]
pub(super) struct LaneInput {
    /// The batch.
    pub batch: LogBatch,
    /// Its memory.
    pub memory: Reservation,
}

/// What a lane works with; its open file apart, so that it can be used while the file is away.
#[derive(Debug)]
struct Setting {
    schemas: Arc<Schemas>,
    lake: Arc<LakeTable>,
    cpu: Arc<Semaphore>,
    clock: Arc<dyn Clock>,
    target_file_bytes: u64,
    split: Split,
    partition: Partition,
}

/// One bucket's writer.
#[derive(Debug)]
pub(super) struct Lane {
    setting: Setting,
    budget: MemoryBudget,
    next: LogOffset,
    rows: i64,
    max_timestamp_ms: Option<i64>,
    writer: Option<DataFileWriter>,
    files: Vec<CommitMessage>,
}

impl Lane {
    /// A lane for one split; opens nothing yet.
    pub(super) fn new(
        resources: &WorkerResources,
        schemas: &Arc<Schemas>,
        info: &TableInfo,
        lake: &Arc<LakeTable>,
        split: &Split,
    ) -> Result<Self> {
        let setting = Setting {
            schemas: Arc::clone(schemas),
            cpu: Arc::clone(&resources.cpu),
            clock: Arc::clone(&resources.clock),
            target_file_bytes: lake.target_file_bytes(resources.target_file_bytes)?,
            partition: lake.partition(info, split.partition.as_deref())?,
            lake: Arc::clone(lake),
            split: split.clone(),
        };
        Ok(Self {
            setting,
            budget: resources.budget.clone(),
            next: split.start,
            rows: 0,
            max_timestamp_ms: None,
            writer: None,
            files: Vec::new(),
        })
    }

    /// Until the input ends (the result), something fails or the token is cancelled (both discard
    /// all files).
    pub(super) async fn run(
        mut self,
        mut input: mpsc::Receiver<LaneInput>,
        abort: CancellationToken,
    ) -> Result<SplitResult<CommitMessage>> {
        let memory = self.budget.writer();
        let lake = Arc::clone(&self.setting.lake);
        let written = tokio::select! {
            biased;
            () = abort.cancelled() => Err(Error::Cancelled { table: lake.path().clone() }),
            written = self.write_readable(&mut input, &memory) => written,
        };
        let error = match written {
            Ok(fault) => return Ok(self.result(fault)),
            Err(error) => error,
        };
        if let Some(writer) = self.writer.take() {
            // What can't be deleted now is swept by name later.
            let _ = writer.abort().await;
        }
        lake.discard(self.files).await;
        Err(error)
    }

    fn result(self, fault: Option<Trouble>) -> SplitResult<CommitMessage> {
        let Split { bucket, start, .. } = self.setting.split;
        SplitResult {
            bucket,
            end: (self.next > start).then_some(self.next),
            rows: self.rows,
            max_timestamp_ms: self.max_timestamp_ms,
            files: self.files,
            fault,
        }
    }

    /// Writes all input, or what comes before a batch that does not decode: that is a fault of this
    /// bucket alone.
    async fn write_readable(
        &mut self,
        input: &mut mpsc::Receiver<LaneInput>,
        memory: &WriterMemory,
    ) -> Result<Option<Trouble>> {
        match self.write_all(input, memory).await {
            Ok(()) => Ok(None),
            Err(error @ Error::Log { .. }) => {
                self.close_file(memory).await?;
                Ok(Some(Trouble::lasting(error.chain())))
            }
            Err(error) => Err(error),
        }
    }

    async fn write_all(
        &mut self,
        input: &mut mpsc::Receiver<LaneInput>,
        memory: &WriterMemory,
    ) -> Result<()> {
        loop {
            tokio::select! {
                biased;
                () = memory.roll_asked() => self.close_file(memory).await?,
                received = input.recv() => match received {
                    Some(received) => self.write(received, memory).await?,
                    None => return self.close_file(memory).await,
                },
            }
        }
    }

    async fn write(&mut self, input: LaneInput, memory: &WriterMemory) -> Result<()> {
        let LaneInput {
            batch,
            memory: mut held,
        } = input;
        let (base, end) = (batch.header.base_offset, batch.next_offset());
        let timestamp_ms = batch.header.commit_timestamp_ms;
        let range = self.next.max(base)..end.min(self.setting.split.stop);
        if range.start < range.end && batch.header.record_count > 0 {
            let rows = self.setting.decode(batch, range.clone()).await?;
            held.resize(u64::try_from(rows.get_array_memory_size()).unwrap_or(u64::MAX));
            self.append(rows, range.start).await?;
            memory.set(self.writer.as_ref().map_or(0, writer_bytes));
        }
        drop(held);
        self.max_timestamp_ms = self.max_timestamp_ms.max(Some(timestamp_ms));
        self.next = self.next.max(range.end);
        Ok(())
    }

    async fn append(&mut self, rows: RecordBatch, first: LogOffset) -> Result<()> {
        let count = i64::try_from(rows.num_rows()).unwrap_or(i64::MAX);
        let mut writer = match self.writer.take() {
            Some(writer) => writer,
            None => self.setting.open(first)?,
        };
        let written = writer.write(rows).await;
        self.writer = Some(writer);
        written.map_err(|e| self.setting.lake.error(e))?;
        self.rows = self.rows.saturating_add(count);
        Ok(())
    }

    async fn close_file(&mut self, memory: &WriterMemory) -> Result<()> {
        if let Some(writer) = self.writer.take() {
            let message = writer
                .finish()
                .await
                .map_err(|e| self.setting.lake.error(e))?;
            self.files.push(message);
        }
        memory.set(0);
        Ok(())
    }
}

impl Setting {
    /// The rows of `range` in the lake's columns. Runs off the async threads, under a processor
    /// permit.
    async fn decode(&self, batch: LogBatch, range: Range<LogOffset>) -> Result<RecordBatch> {
        let form = self.schemas.get(batch.header.schema_id).await?;
        // The semaphore is closed only when the daemon is gone.
        let permit = Arc::clone(&self.cpu)
            .acquire_owned()
            .await
            .map_err(|_| Error::Stopped)?;
        let (bucket, table) = (self.split.bucket, self.lake.path().clone());
        let decoded = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            let offset = batch.header.base_offset;
            let timestamp_ms = batch.header.commit_timestamp_ms;
            let rows = decode(&form.log, &batch, &range).map_err(|source| Error::Log {
                table,
                bucket,
                offset,
                source,
            })?;
            let position = Position {
                bucket,
                offset: range.start,
                timestamp_ms,
            };
            form.alignment.apply(&rows, position)
        });
        match decoded.await {
            Ok(rows) => rows,
            Err(error) => {
                let table = self.lake.path().clone();
                Err(Error::Panicked {
                    table,
                    reason: error.to_string(),
                })
            }
        }
    }

    /// A writer whose first row has offset `first`. Offsets serve as sequence numbers: they only
    /// rise, and are never below the number of rows that any earlier worker counted.
    fn open(&self, first: LogOffset) -> Result<DataFileWriter> {
        let (bucket, total_buckets) = self.lake.bucket(&self.split);
        let target = WriteTarget {
            schema: Arc::clone(&self.lake.schema),
            partition: self.partition.clone(),
            bucket,
            total_buckets,
            first_sequence_number: if total_buckets < 0 { 0 } else { first.0 },
        };
        let now_ms = local_ms(self.clock.now_ms());
        let (store, root) = (
            Arc::clone(self.lake.table.store()),
            self.lake.table.root().clone(),
        );
        let options = WriterOptions::new(&self.lake.schema, unique_name(), now_ms);
        let writer = options.and_then(|mut options| {
            options.target_file_size = self.target_file_bytes;
            options.encode_permits = Some(Arc::clone(&self.cpu));
            DataFileWriter::new(target, options, store, root)
        });
        writer.map_err(|e| self.lake.error(e))
    }
}

fn writer_bytes(writer: &DataFileWriter) -> u64 {
    u64::try_from(writer.memory_bytes()).unwrap_or(u64::MAX)
}
