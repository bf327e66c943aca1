//! A lane: the batches of one bucket, in order, become files of one lake bucket.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::RecordBatch;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use weir_catalog::clock::Clock;
use weir_lake_format::write::{CommitMessage, WriteTarget, WriterOptions};
use weir_lake_format::{Partition, RowKind};
use weir_protocol::ids::LogOffset;
use weir_protocol::record::LogBatch;

use super::convert::{Convert, Converted, Room};
use super::decode::decode;
use super::floors::Floors;
use super::lake_writer::LakeWriter;
use super::schemas::Schemas;
use super::{BadRecordRules, WorkerResources};
use crate::align::Position;
use crate::bad_records::{BadRecord, MAX_BYTES, MAX_RECORDS, Policy};
use crate::cluster::{TableInfo, Trouble};
use crate::error::{Error, Result};
use crate::lake_table::LakeTable;
use crate::memory::{MemoryBudget, Reservation, WriterMemory};
use crate::ranges::{self, Apart, Offsets};
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

/// What all lanes of a round share.
#[derive(Debug)]
pub(super) struct LaneContext {
    /// The log's schemas.
    pub schemas: Arc<Schemas>,
    /// The table in the cluster.
    pub info: Arc<TableInfo>,
    /// The table in the lake.
    pub lake: Arc<LakeTable>,
    /// What is done with bad records.
    pub bad_records: BadRecordRules,
    /// The sequence numbers that the lake has already.
    pub floors: Arc<Floors>,
}

/// What a lane works with; its open file apart, so that it can be used while the file is away.
#[derive(Debug)]
struct Setting {
    schemas: Arc<Schemas>,
    lake: Arc<LakeTable>,
    policy: Policy,
    /// Offsets that an earlier round diverted.
    diverted: Vec<Offsets>,
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
    apart: Apart,
    bad: Vec<BadRecord>,
    bad_bytes: usize,
    max_timestamp_ms: Option<i64>,
    writer: Option<LakeWriter>,
    /// No change of the bucket has this sequence number or a higher one.
    next_sequence: i64,
    files: Vec<CommitMessage>,
}

impl Lane {
    /// A lane for one split; opens nothing yet.
    pub(super) fn new(
        resources: &WorkerResources,
        context: &LaneContext,
        split: &Split,
    ) -> Result<Self> {
        let lake = &context.lake;
        let diverted = context.bad_records.diverted.get(&split.bucket).cloned();
        let setting = Setting {
            schemas: Arc::clone(&context.schemas),
            policy: context.bad_records.policy,
            diverted: diverted.unwrap_or_default(),
            cpu: Arc::clone(&resources.cpu),
            clock: Arc::clone(&resources.clock),
            target_file_bytes: lake.target_file_bytes(resources.target_file_bytes)?,
            partition: lake.partition(&context.info, split.partition.as_deref())?,
            lake: Arc::clone(lake),
            split: split.clone(),
        };
        let next_sequence = context
            .floors
            .next_sequence(&setting.partition, lake.bucket(split).0);
        let mut apart = Apart::default();
        if split.start < split.read_from {
            apart.lost.push(split.start..split.read_from);
        }
        Ok(Self {
            setting,
            budget: resources.budget.clone(),
            next: split.read_from,
            rows: 0,
            apart,
            bad: Vec::new(),
            bad_bytes: 0,
            max_timestamp_ms: None,
            writer: None,
            next_sequence,
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
            apart: self.apart,
            bad: self.bad,
            fault,
        }
    }

    /// Writes all input, or what comes before a batch that does not decode or a row that the lake
    /// can't take: that is a fault of this bucket alone.
    async fn write_readable(
        &mut self,
        input: &mut mpsc::Receiver<LaneInput>,
        memory: &WriterMemory,
    ) -> Result<Option<Trouble>> {
        let fault = match self.write_all(input, memory).await {
            Ok(None) => return Ok(None),
            Ok(Some(fault)) => fault,
            Err(error @ Error::Log { .. }) => Trouble::lasting(error.chain()),
            Err(error @ Error::NewerSchema { .. }) => Trouble::passing(error.chain()),
            Err(error) => return Err(error),
        };
        self.close_file(memory).await?;
        Ok(Some(fault))
    }

    async fn write_all(
        &mut self,
        input: &mut mpsc::Receiver<LaneInput>,
        memory: &WriterMemory,
    ) -> Result<Option<Trouble>> {
        loop {
            tokio::select! {
                biased;
                () = memory.roll_asked() => self.close_file(memory).await?,
                received = input.recv() => match received {
                    Some(received) => {
                        if let Some(fault) = self.write(received, memory).await? {
                            return Ok(Some(fault));
                        }
                    }
                    None => {
                        self.close_file(memory).await?;
                        return Ok(None);
                    }
                },
            }
        }
    }

    /// Writes one batch; a fault if it holds a row at which the bucket stops.
    async fn write(&mut self, input: LaneInput, memory: &WriterMemory) -> Result<Option<Trouble>> {
        let LaneInput {
            batch,
            memory: mut held,
        } = input;
        let (base, end) = (batch.header.base_offset, batch.next_offset());
        let timestamp_ms = batch.header.commit_timestamp_ms;
        let range = self.next.max(base)..end.min(self.setting.split.stop);
        let mut reached = range.end;
        let mut fault = None;
        if range.start < range.end && batch.header.record_count > 0 {
            let converted = self.setting.decode(batch, range, self.room()).await?;
            held.resize(converted.memory_bytes());
            reached = converted.reached;
            self.bad_bytes += converted.bad_bytes();
            for run in &converted.good {
                let (first, rows) = run.clone();
                self.append(rows, first, converted.kinds_of(run)).await?;
            }
            memory.set(self.writer.as_ref().map_or(0, LakeWriter::memory_bytes));
            for offsets in converted.diverted {
                (offsets.start.0..offsets.end.0)
                    .for_each(|offset| ranges::push(&mut self.apart.diverted, LogOffset(offset)));
            }
            self.bad.extend(converted.bad);
            fault = converted.stopped.or_else(|| self.has_many_bad());
        }
        drop(held);
        self.max_timestamp_ms = self.max_timestamp_ms.max(Some(timestamp_ms));
        self.next = self.next.max(reached);
        Ok(fault)
    }

    /// Bad records are held in memory until the round ends: a round takes only so many.
    fn room(&self) -> Room {
        Room {
            records: MAX_RECORDS.saturating_sub(self.bad.len()),
            bytes: MAX_BYTES.saturating_sub(self.bad_bytes),
        }
    }

    fn has_many_bad(&self) -> Option<Trouble> {
        let Room { records, bytes } = self.room();
        let many = records == 0 || bytes == 0;
        let count = self.bad.len();
        many.then(|| {
            Trouble::passing(format!(
                "{count} bad records in one round, more in the next"
            ))
        })
    }

    async fn append(
        &mut self,
        rows: RecordBatch,
        first: LogOffset,
        kinds: Option<&[RowKind]>,
    ) -> Result<()> {
        let count = i64::try_from(rows.num_rows()).unwrap_or(i64::MAX);
        let mut writer = match self.writer.take() {
            Some(writer) => writer,
            None => {
                // Offsets serve as sequence numbers: they only rise, and are above those of any
                // earlier worker, unless somebody else has written to the bucket, too.
                self.next_sequence = self.next_sequence.max(first.0);
                self.setting.open(self.next_sequence)?
            }
        };
        let written = writer.write(rows, kinds).await;
        self.writer = Some(writer);
        written.map_err(|e| self.setting.lake.error(e))?;
        self.next_sequence = self.next_sequence.saturating_add(count);
        Ok(())
    }

    async fn close_file(&mut self, memory: &WriterMemory) -> Result<()> {
        if let Some(writer) = self.writer.take() {
            let message = writer
                .finish()
                .await
                .map_err(|e| self.setting.lake.error(e))?;
            // Of several changes of a key in one file the last one is left.
            let rows = message.new_files.iter().map(|file| file.row_count);
            self.rows = self.rows.saturating_add(rows.sum());
            self.files.push(message);
        }
        memory.set(0);
        Ok(())
    }
}

impl Setting {
    /// The rows of `range` in the lake's columns, and what is bad among them. Runs off the async
    /// threads, under a processor permit.
    async fn decode(
        &self,
        batch: LogBatch,
        range: Range<LogOffset>,
        room: Room,
    ) -> Result<Converted> {
        let form = self.schemas.get(batch.header.schema_id).await?;
        // The semaphore is closed only when the daemon is gone.
        let permit = Arc::clone(&self.cpu)
            .acquire_owned()
            .await
            .map_err(|_| Error::Stopped)?;
        let (bucket, table) = (self.split.bucket, self.lake.path().clone());
        let convert = Convert {
            policy: self.policy,
            partition: self.split.partition.clone(),
            diverted: self.diverted.clone(),
            room,
        };
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
            convert.run(&form, rows, position, batch.header.schema_id)
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

    /// A writer whose first row has this sequence number.
    fn open(&self, first_sequence: i64) -> Result<LakeWriter> {
        let (bucket, total_buckets) = self.lake.bucket(&self.split);
        let target = WriteTarget {
            schema: Arc::clone(&self.lake.schema),
            partition: self.partition.clone(),
            bucket,
            total_buckets,
            first_sequence_number: if total_buckets < 0 { 0 } else { first_sequence },
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
            LakeWriter::open(target, options, store, root)
        });
        writer.map_err(|e| self.lake.error(e))
    }
}
