//! The log of one bucket: whole batches in segments, durable by policy, recovered to a valid prefix.
//!
//! A folder holds `log.meta` (format version, bucket, start, gaps), segments `{base offset}.log` with
//! their sparse indexes `{base offset}.index`, snapshots of the writers `{offset}.writers`, and `synced`,
//! which says how far all that was durable. Segment files are the clients' batches as they came, with
//! base offset and commit timestamp filled in. What recovery cuts off and may not throw away is kept in
//! `{base offset}-{position}.cut`.
//!
//! **What blocks.** Everything but the accessors and [`Log::wait_flushed`] does file IO and is called
//! on blocking threads: [`Log::append`] is one write to the page cache (and a file creation when a
//! segment is full), [`Log::read`] one read, [`Log::flush`] one `fdatasync` per file written to.
//! Appends exclude each other; reads exclude nothing; a flush excludes appends only while it looks at
//! what there is to sync.
//!
//! **Locks**, always in this order: `flushing` (over syncs), `appender` (over writes), `view` (no IO).

pub mod batch;
pub mod config;
pub mod disk;
pub mod error;
pub mod flusher;
pub mod recovery;
pub mod repair;

mod append;
mod aside;
mod cut;
mod flush;
mod meta;
mod offset_index;
mod retention;
mod scan;
mod segment;
mod synced;
mod walk;
mod writer_state;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;
use weir_protocol::ids::{LogOffset, TableBucket};

pub use append::Appended;
pub use batch::Batches;
pub use config::{FlushPolicy, LogConfig};
pub use disk::{Disk, DiskFile, FileSystem};
pub use error::{BatchFault, Error, Result};
pub use flusher::{FlushHandle, Flusher};
pub use meta::Gap;
pub use recovery::RecoveryReport;
pub use segment::ReadBatches;

use cut::ReadRequest;
use meta::LogMeta;
use recovery::{Recovered, Recovery};
use segment::{AppendFault, Segment};
use writer_state::WriterStates;

/// What a log is opened with.
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// Where its files are.
    pub disk: Arc<dyn Disk>,
    /// How it is kept.
    pub config: LogConfig,
    /// Who syncs it. None: nobody but callers of [`Log::flush`].
    pub flusher: Option<FlushHandle>,
}

/// The log of one bucket. Shared: all methods take `&self`.
#[derive(Debug)]
pub struct Log {
    bucket: TableBucket,
    dir: PathBuf,
    options: LogOptions,
    report: RecoveryReport,
    flushing: Mutex<Flushing>,
    appender: Mutex<Appender>,
    view: RwLock<View>,
    flushed: watch::Sender<Flushed>,
    /// The log is in the flusher's queue.
    flush_requested: AtomicBool,
}

/// How far a log is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flushed {
    /// Every record below is durable (with [`FlushPolicy::Os`]: was handed to the system).
    pub end: LogOffset,
    /// Set once and for ever when the log failed or was deleted: nothing more becomes durable.
    pub stopped: bool,
}

/// What readers see. Changed only with the appender's lock held.
#[derive(Debug)]
struct View {
    segments: Vec<Arc<Segment>>,
    log_start: LogOffset,
    log_end: LogOffset,
    /// −1 without any batch.
    newest_ms: i64,
}

/// What appends change.
#[derive(Debug)]
struct Appender {
    life: Life,
    meta: LogMeta,
    active: Option<Arc<Segment>>,
    /// Bytes of the active segment that were never synced.
    active_dirty: bool,
    /// Closed segments that are to be synced and get their index.
    closed: Vec<Arc<Segment>>,
    /// Files were made whose names were never synced.
    names_dirty: bool,
    writers: WriterStates,
    newest_ms: i64,
    bytes_since_checkpoint: u64,
}

/// What flushes change.
#[derive(Debug)]
struct Flushing {
    /// Writer snapshots on disk, oldest first.
    snapshots: Vec<LogOffset>,
    /// The last attempt to note how far the log is synced failed, and was told.
    unnoted: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Life {
    Open,
    Closed,
    Failed(String),
}

/// A segment, for retention and display.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentInfo {
    /// The first offset.
    pub base_offset: LogOffset,
    /// The offset after the last one.
    pub end_offset: LogOffset,
    /// The size of its batches.
    pub size_bytes: u64,
    /// The commit timestamp of its last batch; None if it has none.
    pub newest_ms: Option<i64>,
}

impl Log {
    /// Opens the log in a folder, which is made if it does not exist, and recovers it to a valid prefix
    /// of batches. What is served afterwards is durable. Blocks; reads what no checkpoint covers.
    ///
    /// # Errors
    /// [`Error::NewerFormat`], [`Error::WrongBucket`]; [`Error::Corrupt`] if records that were durable
    /// are missing: the log is never silently shorter than that.
    pub fn open(dir: &Path, bucket: TableBucket, options: LogOptions) -> Result<Arc<Self>> {
        let recovered = Recovery {
            disk: &*options.disk,
            dir,
            bucket,
            config: &options.config,
        }
        .run()?;
        let (flushing, appender, view, report) = take_up(recovered);
        let flushed = Flushed {
            end: view.log_end,
            stopped: false,
        };
        Ok(Arc::new(Self {
            bucket,
            dir: dir.to_owned(),
            options,
            report,
            flushing: Mutex::new(flushing),
            appender: Mutex::new(appender),
            view: RwLock::new(view),
            flushed: watch::Sender::new(flushed),
            flush_requested: AtomicBool::new(false),
        }))
    }

    /// Whose log this is.
    pub fn bucket(&self) -> TableBucket {
        self.bucket
    }

    /// What opening it found.
    pub fn recovery_report(&self) -> RecoveryReport {
        self.report
    }

    /// The first offset held.
    pub fn log_start(&self) -> LogOffset {
        self.view.read().log_start
    }

    /// The offset that the next record gets.
    pub fn log_end(&self) -> LogOffset {
        self.view.read().log_end
    }

    /// Every record below is durable.
    pub fn flushed_end(&self) -> LogOffset {
        self.flushed.borrow().end
    }

    /// Follows how far the log is durable.
    pub fn subscribe_flushed(&self) -> watch::Receiver<Flushed> {
        self.flushed.subscribe()
    }

    /// Waits until every record below `end` is durable. Costs no thread; dropping it forgets the wait.
    /// Takes as long as the policy says: the caller sets the deadline.
    ///
    /// # Errors
    /// [`Error::Failed`] or [`Error::Closed`] if that will not happen any more.
    pub async fn wait_flushed(&self, end: LogOffset) -> Result<()> {
        let mut flushed = self.flushed.subscribe();
        let reached = flushed
            .wait_for(|flushed| flushed.end >= end || flushed.stopped)
            .await
            .is_ok_and(|flushed| flushed.end >= end);
        if reached {
            Ok(())
        } else {
            Err(self.stop_reason())
        }
    }

    /// Whether the log takes no more appends because it was closed or deleted: its end is final.
    pub fn is_closed(&self) -> bool {
        self.appender.lock().life == Life::Closed
    }

    /// The size of all segments.
    pub fn size_bytes(&self) -> u64 {
        self.view
            .read()
            .segments
            .iter()
            .map(|segment| segment.extent().len)
            .sum()
    }

    /// The newest commit timestamp ever given; None for a log that never had a batch.
    pub fn newest_ms(&self) -> Option<i64> {
        Some(self.view.read().newest_ms).filter(|newest_ms| *newest_ms >= 0)
    }

    /// The segments, oldest first.
    pub fn segments(&self) -> Vec<SegmentInfo> {
        let view = self.view.read();
        let info = |segment: &Arc<Segment>| {
            let extent = segment.extent();
            SegmentInfo {
                base_offset: segment.base_offset,
                end_offset: extent.next_offset,
                size_bytes: extent.len,
                newest_ms: (extent.newest_ms >= 0).then_some(extent.newest_ms),
            }
        };
        view.segments.iter().map(info).collect()
    }

    /// Appends batches: all new ones of the request or none, with one write. Sets their base offsets
    /// and the commit timestamp `max(newest in the log, now_ms)`. Blocks for a write to the page cache;
    /// durable once [`Log::flushed_end`] is above [`Appended::last_offset`].
    ///
    /// # Errors
    /// [`Error::OutOfOrderSequence`]; [`Error::DiskFull`] or [`Error::Io`], the log being as before;
    /// [`Error::Failed`] after a sync or a repair failed; [`Error::Closed`].
    pub fn append(self: &Arc<Self>, batches: &Batches, now_ms: i64) -> Result<Appended> {
        let mut appender = self.appender.lock();
        self.refuse_unless_open(&appender)?;
        let before = append::Before {
            bucket: self.bucket,
            writers: &appender.writers,
            log_end: self.log_end(),
            timestamp_ms: appender.newest_ms.max(now_ms),
        };
        let timestamp_ms = before.timestamp_ms;
        let plan = append::plan(&before, batches)?;
        if plan.headers.is_empty() {
            return Ok(plan.appended);
        }
        let rolled = appender.closed.len();
        let segment = self.segment_for(&mut appender, &plan)?;
        match segment.append(&*self.options.disk, &plan.bytes, &plan.headers) {
            Ok(()) => {}
            Err(AppendFault::Refused(error)) => return Err(error),
            Err(AppendFault::Torn(error)) => {
                self.fail(&mut appender, &error);
                return Err(error);
            }
        }
        for (writer, entry) in plan.writers {
            appender.writers.set(writer, entry);
        }
        appender.newest_ms = timestamp_ms;
        appender.active_dirty = true;
        appender.bytes_since_checkpoint += plan.bytes.len() as u64;
        {
            let mut view = self.view.write();
            view.log_end = plan.appended.log_end;
            view.newest_ms = timestamp_ms;
        }
        let rolled = appender.closed.len() > rolled;
        drop(appender);
        self.request_flush(plan.appended.log_end, rolled);
        Ok(plan.appended)
    }

    /// Reads whole batches from the one that contains `from`, none of which reaches beyond `upto`: at
    /// least one if there is one, further ones of the same segment while they fit into `max_bytes`.
    /// Empty at the end. Blocks for one read; allocates what it returns. Checksums are verified.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] outside of `log_start..=log_end`; [`Error::Corrupt`] if the first batch is
    /// damaged: a damaged batch is never served.
    pub fn read(&self, from: LogOffset, max_bytes: usize, upto: LogOffset) -> Result<ReadBatches> {
        self.read_at_most(from, (max_bytes, usize::MAX), upto)
    }

    /// As [`Log::read`], but leaves out even the first batch if it is larger than the second limit, and says
    /// so.
    ///
    /// # Errors
    /// As [`Log::read`].
    pub fn read_at_most(
        &self,
        from: LogOffset,
        (max_bytes, most_bytes): (usize, usize),
        upto: LogOffset,
    ) -> Result<ReadBatches> {
        let (segment, upto) = {
            let view = self.view.read();
            self.refuse_out_of_range(&view, from)?;
            (view.segment_at(from), upto.min(view.log_end))
        };
        let Some(segment) = segment.filter(|_| from < upto) else {
            return Ok(ReadBatches {
                batches: bytes::Bytes::new(),
                next_offset: from,
                left_out_bytes: None,
            });
        };
        let request = ReadRequest {
            from: from.max(segment.base_offset),
            max_bytes,
            most_bytes,
            upto,
        };
        match segment.read(&*self.options.disk, &request) {
            // Retention may have removed the segment under the reader.
            Err(error @ Error::Io { .. }) => {
                self.refuse_out_of_range(&self.view.read(), from)?;
                Err(error)
            }
            read => read,
        }
    }

    /// About how many bytes lie from an offset on: at most some too many, for the index is sparse. Does no
    /// IO: with an index that was never used, as much as the segment holds.
    pub fn bytes_from(&self, from: LogOffset) -> u64 {
        let view = self.view.read();
        let after = view
            .segments
            .partition_point(|segment| segment.base_offset <= from);
        let at = after.saturating_sub(1);
        let mut bytes = 0_u64;
        for segment in view.segments.iter().skip(at) {
            bytes = bytes.saturating_add(segment.extent().len);
        }
        let skipped = view
            .segments
            .get(at)
            .and_then(|segment| segment.position_before(from));
        bytes.saturating_sub(skipped.unwrap_or(0))
    }

    /// Where the newest batches below `upto` begin that together have at most about `max_bytes`: not below
    /// `from`, and one batch at least. Blocks for a few small reads.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Corrupt`].
    pub fn newest_within(
        &self,
        from: LogOffset,
        upto: LogOffset,
        max_bytes: u64,
    ) -> Result<LogOffset> {
        let segments = self.view.read().segments.clone();
        let below = |segment: &&Arc<Segment>| segment.base_offset < upto;
        let mut left = max_bytes;
        let mut begin = None;
        for segment in segments.iter().rev().filter(below) {
            let len = segment.extent().len;
            if len <= left && segment.base_offset > from {
                left -= len;
                begin = Some(segment.base_offset);
                continue;
            }
            let position = len.saturating_sub(left);
            let placed = segment.offset_at(&*self.options.disk, position, upto)?;
            let newest = placed.first_after.or(begin).or(placed.last);
            return Ok(newest.unwrap_or(from).max(from));
        }
        Ok(begin.unwrap_or(from).max(from))
    }

    /// The base offset of the first batch that was committed at `timestamp_ms` or later; None if all
    /// are older. Blocks for a few small reads.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Corrupt`].
    pub fn offset_for_time(&self, timestamp_ms: i64) -> Result<Option<LogOffset>> {
        let segment = {
            let view = self.view.read();
            let segments = &view.segments;
            segments
                .iter()
                .find(|segment| segment.extent().newest_ms >= timestamp_ms)
                .cloned()
        };
        match segment {
            Some(segment) => segment.offset_for_time(&*self.options.disk, timestamp_ms),
            None => Ok(None),
        }
    }

    /// The segment that takes a plan's batches; begins a new one when the active one is full.
    fn segment_for(&self, appender: &mut Appender, plan: &append::Plan) -> Result<Arc<Segment>> {
        let config = &self.options.config;
        if let Some(active) = &appender.active {
            let bytes = plan.bytes.len() as u64;
            if active.has_room(bytes, plan.appended.last_offset, config.segment_bytes) {
                return Ok(Arc::clone(active));
            }
        }
        let log_end = self.log_end();
        let disk = &*self.options.disk;
        let segment = Segment::create(disk, &self.dir, log_end, config.index_interval_bytes)?;
        let segment = Arc::new(segment);
        if let Some(full) = appender.active.replace(Arc::clone(&segment)) {
            appender.closed.push(full);
        }
        appender.active_dirty = true;
        appender.names_dirty = true;
        self.view.write().segments.push(Arc::clone(&segment));
        Ok(segment)
    }

    /// Lets the flusher know of new records.
    fn request_flush(self: &Arc<Self>, log_end: LogOffset, rolled: bool) {
        let Some(flusher) = &self.options.flusher else {
            return;
        };
        if flusher.policy() == FlushPolicy::Os {
            self.flushed
                .send_modify(|flushed| flushed.end = flushed.end.max(log_end));
            if !rolled {
                return;
            }
        }
        if !self.flush_requested.swap(true, Ordering::AcqRel) {
            flusher.request(self);
        }
    }

    /// Called by the flusher just before it flushes: appends from now on queue the log again.
    pub(crate) fn clear_flush_request(&self) {
        self.flush_requested.store(false, Ordering::Release);
    }

    fn refuse_unless_open(&self, appender: &Appender) -> Result<()> {
        match &appender.life {
            Life::Open => Ok(()),
            Life::Closed => Err(Error::Closed {
                bucket: self.bucket,
            }),
            Life::Failed(reason) => Err(Error::Failed {
                bucket: self.bucket,
                reason: reason.clone(),
            }),
        }
    }

    fn refuse_out_of_range(&self, view: &View, offset: LogOffset) -> Result<()> {
        if (view.log_start..=view.log_end).contains(&offset) {
            return Ok(());
        }
        let (start, end) = (view.log_start, view.log_end);
        Err(Error::OutOfRange {
            bucket: self.bucket,
            offset,
            start,
            end,
        })
    }

    fn stop_reason(&self) -> Error {
        match self.refuse_unless_open(&self.appender.lock()) {
            Err(error) => error,
            Ok(()) => Error::Closed {
                bucket: self.bucket,
            },
        }
    }

    /// The log takes nothing more, for a reason that lies outside of it.
    pub(crate) fn give_up(&self, reason: &str) {
        let mut appender = self.appender.lock();
        if appender.life == Life::Open {
            tracing::error!(bucket = %self.bucket, reason, "log failed, it takes no more appends");
            appender.life = Life::Failed(reason.to_owned());
        }
        drop(appender);
        self.flushed.send_modify(|flushed| flushed.stopped = true);
    }

    /// The log takes nothing more; whoever waits for durability is told.
    fn fail(&self, appender: &mut Appender, error: &Error) {
        if appender.life == Life::Open {
            tracing::error!(bucket = %self.bucket, %error, "log failed, it takes no more appends");
            appender.life = Life::Failed(error.to_string());
        }
        self.flushed.send_modify(|flushed| flushed.stopped = true);
    }
}

impl View {
    /// The segment that holds an offset, or, at the end of one and in a gap, the next one.
    fn segment_at(&self, offset: LogOffset) -> Option<Arc<Segment>> {
        let after = self
            .segments
            .partition_point(|segment| segment.base_offset <= offset);
        let candidates = self.segments.get(after.saturating_sub(1)..)?;
        candidates
            .iter()
            .find(|segment| segment.extent().next_offset > offset)
            .cloned()
    }
}

/// The parts of a log that was just recovered: everything in it is durable.
fn take_up(recovered: Recovered) -> (Flushing, Appender, View, RecoveryReport) {
    let view = View {
        segments: recovered.segments,
        log_start: recovered.meta.log_start,
        log_end: recovered.log_end,
        newest_ms: recovered.newest_ms,
    };
    let appender = Appender {
        life: Life::Open,
        meta: recovered.meta,
        active: recovered.active,
        active_dirty: false,
        closed: recovered.unsealed,
        names_dirty: false,
        writers: recovered.writers,
        newest_ms: recovered.newest_ms,
        bytes_since_checkpoint: recovered.report.scanned_bytes,
    };
    (
        Flushing {
            snapshots: recovered.snapshots,
            unnoted: false,
        },
        appender,
        view,
        recovered.report,
    )
}
