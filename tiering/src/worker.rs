//! The workers of a round: splits → files. One source reads, one lane a bucket decodes and writes,
//! all under one budget.
//!
//! The loop here owns order and completeness: batches of a bucket go to its lane without gap, a
//! lane is closed when its stop offset is consumed, and whatever ends the round early is told to
//! the round before results are judged.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use weir_catalog::clock::Clock;
use weir_lake_format::write::CommitMessage;
use weir_protocol::ids::{LogOffset, TableBucket};
use weir_protocol::record::LogBatch;

use crate::bad_records::Policy;
use crate::bad_records::book::Diverted;
use crate::cluster::{BucketFault, LogReader, OffsetKind, TableInfo, TieringClient, Trouble};
use crate::enumerate::BucketGroup;
use crate::error::{Error, Result};
use crate::lake_table::LakeTable;
use crate::memory::MemoryBudget;
use crate::ranges::Offsets;
use crate::round::{Cut, Limits, Round, SplitResult};
use crate::source::{Delivery, Source, source};
use crate::split::Split;
use crate::worker::floors::Floors;
use crate::worker::lane::{Lane, LaneContext, LaneInput};
use crate::worker::schemas::Schemas;

mod convert;
pub(crate) mod decode;
pub mod floors;
mod lake_writer;
mod lane;
pub(crate) mod schemas;

/// Batches that may wait before one lane; the memory budget is the true limit.
const LANE_QUEUE: usize = 256;

/// What all rounds share.
#[derive(Clone, Debug)]
pub struct WorkerResources {
    /// The cluster.
    pub client: Arc<dyn TieringClient>,
    /// The memory of all tables.
    pub budget: MemoryBudget,
    /// One permit for each batch that is decoded or encoded.
    pub cpu: Arc<Semaphore>,
    /// Wall time.
    pub clock: Arc<dyn Clock>,
    /// Buckets of one table that are open at the same time.
    pub open_buckets: usize,
    /// About what one read of the log brings.
    pub fetch_bytes: u64,
    /// What one batch may decompress to.
    pub max_batch_bytes: u64,
    /// The size of data files, if the table says none.
    pub target_file_bytes: u64,
}

/// How a round is ended from outside.
#[derive(Clone, Debug, Default)]
pub struct RoundSignals {
    /// The lease is lost: nothing may be committed, files are discarded.
    pub cancel: CancellationToken,
    /// End the reading and commit what is there.
    pub stop: CancellationToken,
    /// Offsets that the log has lost and a person let go.
    pub let_go: BTreeMap<TableBucket, Offsets>,
}

/// What a round does with rows that the lake table can't take.
#[derive(Clone, Debug, Default)]
pub struct BadRecordRules {
    /// Stop there, or divert them.
    pub policy: Policy,
    /// Rows that were diverted already, by a round that was not committed: they stay so.
    pub diverted: Diverted,
}

/// What the workers of one round need to know of it.
#[derive(Debug)]
pub struct WriteJob {
    /// The table in the cluster.
    pub info: Arc<TableInfo>,
    /// The table in the lake.
    pub lake: Arc<LakeTable>,
    /// The splits, as given to the round.
    pub splits: Vec<Split>,
    /// The round's limits.
    pub limits: Limits,
    /// What is done with bad records.
    pub bad_records: BadRecordRules,
    /// The sequence numbers that the lake has already.
    pub floors: Arc<Floors>,
}

/// Writes the job's splits and adds each result to the round. On an error all files of the round
/// are discarded.
///
/// # Errors
/// The first failure of any lane, or [`Error::Cancelled`] if the round was cancelled. A bucket that
/// can't be read is no failure: its split answers with the reason.
pub async fn write_splits(
    resources: &WorkerResources,
    job: WriteJob,
    round: &mut Round<CommitMessage>,
    signals: &RoundSignals,
) -> Result<()> {
    let path = job.lake.path().clone();
    let reader = resources
        .client
        .reader(&path, job.info.id, resources.fetch_bytes)
        .await?;
    let mut writing = Writing::start(resources, job, signals, reader);
    let written = writing.run(round).await;
    writing.end(written, round).await
}

/// A lane as the loop sees it.
#[derive(Debug)]
struct OpenLane {
    input: mpsc::Sender<LaneInput>,
    split: Split,
    next: LogOffset,
    /// Why nothing comes at the moment.
    trouble: Option<Trouble>,
}

type LaneEnd = (TableBucket, Result<SplitResult<CommitMessage>>);

struct Writing<'a> {
    resources: &'a WorkerResources,
    signals: &'a RoundSignals,
    lake: Arc<LakeTable>,
    context: LaneContext,
    max_duration: Duration,
    waiting: VecDeque<Split>,
    open: BTreeMap<TableBucket, OpenLane>,
    /// Why a closed lane did not reach its stop offset.
    faults: BTreeMap<TableBucket, Trouble>,
    source: Source,
    reading: JoinSet<()>,
    lanes: JoinSet<LaneEnd>,
    /// Ends lanes and source without a result.
    abort: CancellationToken,
    cut: bool,
}

impl<'a> Writing<'a> {
    fn start(
        resources: &'a WorkerResources,
        job: WriteJob,
        signals: &'a RoundSignals,
        reader: Box<dyn LogReader>,
    ) -> Self {
        let abort = signals.cancel.child_token();
        let (source, task) = source(
            job.splits.len(),
            resources.budget.clone(),
            resources.fetch_bytes,
        );
        let mut reading = JoinSet::new();
        reading.spawn(task.run(reader, abort.clone()));
        let schemas = Schemas::new(
            Arc::clone(&resources.client),
            resources.max_batch_bytes,
            Arc::clone(&job.info),
            Arc::clone(&job.lake),
        );
        let context = LaneContext {
            schemas: Arc::new(schemas),
            info: job.info,
            lake: Arc::clone(&job.lake),
            bad_records: job.bad_records,
            floors: job.floors,
        };
        Self {
            resources,
            signals,
            lake: job.lake,
            context,
            max_duration: job.limits.max_duration,
            waiting: job.splits.into(),
            open: BTreeMap::new(),
            faults: BTreeMap::new(),
            source,
            reading,
            lanes: JoinSet::new(),
            abort,
            cut: false,
        }
    }

    /// Until every split has answered.
    async fn run(&mut self, round: &mut Round<CommitMessage>) -> Result<()> {
        let time_is_up = tokio::time::sleep(self.max_duration);
        tokio::pin!(time_is_up);
        loop {
            self.open_lanes()?;
            if self.open.is_empty() && self.lanes.is_empty() && self.waiting.is_empty() {
                return Ok(());
            }
            let reading = !self.open.is_empty();
            tokio::select! {
                biased;
                () = self.signals.cancel.cancelled() => return Err(self.lost()),
                () = self.signals.stop.cancelled(), if !self.cut => {
                    self.cut_short(round, Cut::Stop)?;
                }
                () = &mut time_is_up, if !self.cut => self.cut_short(round, Cut::Duration)?,
                Some(ended) = self.lanes.join_next() => self.take_result(ended, round)?,
                delivery = self.source.next(), if reading => match delivery {
                    Some(delivery) => self.deliver(delivery, round).await?,
                    None => return Err(self.source_ended().await),
                },
            }
        }
    }

    /// Stops what still runs; after an error, discards what was written.
    async fn end(mut self, written: Result<()>, round: &mut Round<CommitMessage>) -> Result<()> {
        self.abort.cancel();
        self.open.clear();
        let mut files = if written.is_err() {
            round.discard()
        } else {
            Vec::new()
        };
        while let Some(ended) = self.lanes.join_next().await {
            if let Ok((_, Ok(result))) = ended {
                files.extend(result.files);
            }
        }
        while self.reading.join_next().await.is_some() {}
        self.lake.discard(files).await;
        written
    }

    fn open_lanes(&mut self) -> Result<()> {
        while self.open.len() < self.resources.open_buckets {
            let Some(split) = self.waiting.pop_front() else {
                return Ok(());
            };
            let (input, batches) = mpsc::channel(LANE_QUEUE);
            let lane = Lane::new(self.resources, &self.context, &split)?;
            let (bucket, abort) = (split.bucket, self.abort.clone());
            self.lanes
                .spawn(async move { (bucket, lane.run(batches, abort).await) });
            if split.read_from >= split.stop {
                // Nothing of it is left in the log: the lane ends without input.
                continue;
            }
            self.source.add(&split);
            let lane = OpenLane {
                input,
                next: split.read_from,
                split,
                trouble: None,
            };
            self.open.insert(bucket, lane);
        }
        Ok(())
    }

    async fn deliver(
        &mut self,
        mut delivery: Delivery,
        round: &mut Round<CommitMessage>,
    ) -> Result<()> {
        let (mut rows, mut bytes) = (0_u64, 0_u64);
        for fetched in delivery.fetched {
            let bucket = fetched.bucket;
            // A bucket that was closed may still be in what was read before.
            let Some(lane) = self.open.get_mut(&bucket) else {
                continue;
            };
            let mut fault = fetched.fault;
            if fetched.trouble.is_some() || !fetched.batches.is_empty() {
                lane.trouble = fetched.trouble;
            }
            for batch in fetched.batches {
                if batch.next_offset() <= lane.next || lane.next >= lane.split.stop {
                    continue;
                }
                if batch.header.base_offset > lane.next {
                    let (from, to) = (lane.next, batch.header.base_offset);
                    fault = Some(BucketFault::Failed(lost_range(bucket, from, to)));
                    break;
                }
                let size = u64::try_from(batch.bytes.len()).unwrap_or(u64::MAX);
                rows = rows.saturating_add(record_count(&batch));
                bytes = bytes.saturating_add(size);
                lane.next = batch.next_offset();
                let memory = delivery.memory.split(size);
                let input = LaneInput { batch, memory };
                if lane.input.send(input).await.is_err() {
                    // The lane has failed; its error comes with its end.
                    break;
                }
            }
            if let Some(gap_end) = fetched.gap_to.filter(|end| *end > lane.next) {
                fault = Some(BucketFault::Failed(lost_range(bucket, lane.next, gap_end)));
            }
            if lane.next >= lane.split.stop {
                self.close(bucket, None);
            } else if let Some(fault) = fault {
                self.fault(bucket, fault).await?;
            }
        }
        let now_ms = self.resources.clock.now_ms();
        if let Some(cut) = round.progress(rows, bytes, now_ms)
            && !self.cut
        {
            self.cut_short(round, cut)?;
        }
        Ok(())
    }

    async fn fault(&mut self, bucket: TableBucket, fault: BucketFault) -> Result<()> {
        let Some(lane) = self.open.get(&bucket) else {
            return Ok(());
        };
        let trouble = match fault {
            BucketFault::Failed(trouble) => trouble,
            BucketFault::OutOfRange => {
                let (from, split) = (lane.next, lane.split.clone());
                let to = self.log_start(&split).await?;
                lost_range(bucket, from, to)
            }
        };
        self.close(bucket, Some(trouble));
        Ok(())
    }

    /// Where the log of a bucket starts now, to say what was lost.
    async fn log_start(&self, split: &Split) -> Result<LogOffset> {
        let bucket = split.bucket;
        let group = BucketGroup {
            partition: bucket.partition,
            name: split.partition.clone(),
            total_buckets: split.total_buckets,
        };
        let client = &self.resources.client;
        let starts = client
            .offsets(&self.path(), bucket.table, &group, OffsetKind::Earliest)
            .await?;
        match starts.into_iter().find(|(id, _)| *id == bucket.bucket) {
            Some((_, start)) => start,
            None => Err(Error::MissingOffset {
                table: self.path(),
                bucket,
            }),
        }
    }

    /// No more batches for the lane: it finishes its files and answers.
    fn close(&mut self, bucket: TableBucket, fault: Option<Trouble>) {
        self.source.remove(bucket);
        self.open.remove(&bucket);
        if let Some(fault) = fault {
            self.faults.insert(bucket, fault);
        }
    }

    /// Ends the reading: what was received is written, splits that were not begun answer with
    /// nothing.
    fn cut_short(&mut self, round: &mut Round<CommitMessage>, reason: Cut) -> Result<()> {
        round.cut(reason);
        self.cut = true;
        for (bucket, lane) in std::mem::take(&mut self.open) {
            let silent = lane.next == lane.split.read_from && reason == Cut::Duration;
            let unsaid = || Trouble::passing("nothing came in the time of the round");
            let fault = lane.trouble.or_else(|| silent.then(unsaid));
            self.close(bucket, fault);
        }
        for split in std::mem::take(&mut self.waiting) {
            round.add(SplitResult::nothing(split.bucket))?;
        }
        Ok(())
    }

    fn take_result(
        &mut self,
        ended: Result<LaneEnd, tokio::task::JoinError>,
        round: &mut Round<CommitMessage>,
    ) -> Result<()> {
        let (bucket, result) = ended.map_err(|error| self.panicked(&error))?;
        let mut result = result?;
        if result.fault.is_some() {
            // It came upon a batch that does not decode, and reads no more.
            self.close(bucket, None);
        }
        result.fault = result.fault.or_else(|| self.faults.remove(&bucket));
        // A lane may only end by itself once it is closed.
        assert!(
            !self.open.contains_key(&bucket),
            "lane of {bucket} ended while it was open"
        );
        round.add(result)?;
        Ok(())
    }

    async fn source_ended(&mut self) -> Error {
        match self.reading.join_next().await {
            Some(Err(error)) => self.panicked(&error),
            _ => self.lost(),
        }
    }

    fn panicked(&self, error: &tokio::task::JoinError) -> Error {
        Error::Panicked {
            table: self.path(),
            reason: error.to_string(),
        }
    }

    fn lost(&self) -> Error {
        Error::Cancelled { table: self.path() }
    }

    fn path(&self) -> weir_protocol::ids::TablePath {
        self.lake.path().clone()
    }
}

/// Offsets that the lake lacks and the log no longer holds.
fn lost_range(bucket: TableBucket, from: LogOffset, to: LogOffset) -> Trouble {
    Trouble {
        lost: Some(from..to),
        ..Trouble::lasting(Error::LostRange { bucket, from, to }.to_string())
    }
}

fn record_count(batch: &LogBatch) -> u64 {
    u64::try_from(batch.header.record_count).unwrap_or(0)
}
