//! Opening a log: what of a folder is a valid prefix of batches, and the state that goes with it.
//!
//! Bytes below a segment's checkpoint (its index file) were durable and are trusted; behind it every
//! batch is read and its checksum verified. The first byte that is no batch ends the log: a crash tore
//! the tail there. But what the record of the last sync, a checkpoint or a writer snapshot vouches for
//! was durable, so if that is missing the log refuses to open instead of forgetting records that were
//! acknowledged. Beyond it, a tail with nothing whole in it is cut off; one with whole batches behind
//! the bad place is set aside first. Nothing is changed on disk before the whole folder was judged.

mod cut;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use weir_protocol::ids::{LogOffset, TableBucket};

use super::aside;
use super::config::LogConfig;
use super::disk::{self, Disk};
use super::error::{Error, Result};
use super::meta::{self, LogMeta};
use super::offset_index::{self, IndexBuilder, IndexFault, IndexHeader};
use super::segment::{self, Extent, Found, Segment};
use super::synced::SyncedMark;
use super::walk::{Check, Step, Walk};
use super::writer_state::{Snapshot, WriterStates};

/// What opening a log found and did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Bytes whose checksums were verified, because no checkpoint covered them.
    pub scanned_bytes: u64,
    /// Bytes cut off behind the last whole batch.
    pub truncated_bytes: u64,
    /// Segments with bytes in them that are no part of the log any more because it ends before them.
    pub removed_segments: usize,
    /// Files made of what was cut off, because whole batches are in it.
    pub set_aside_files: usize,
    /// The bytes in them.
    pub set_aside_bytes: u64,
}

/// A log as it was found.
pub(crate) struct Recovered {
    pub(crate) meta: LogMeta,
    pub(crate) segments: Vec<Arc<Segment>>,
    pub(crate) log_end: LogOffset,
    /// The last segment, if it takes further batches.
    pub(crate) active: Option<Arc<Segment>>,
    /// Closed segments whose index is still to be written.
    pub(crate) unsealed: Vec<Arc<Segment>>,
    /// The writer snapshots on disk, oldest first.
    pub(crate) snapshots: Vec<LogOffset>,
    pub(crate) newest_ms: i64,
    pub(crate) writers: WriterStates,
    pub(crate) report: RecoveryReport,
}

/// The file name of a snapshot of the writers.
pub(crate) fn writers_name(offset: LogOffset) -> String {
    format!("{:020}.writers", offset.0)
}

#[derive(Clone, Copy)]
pub(crate) struct Recovery<'a> {
    pub(crate) disk: &'a dyn Disk,
    pub(crate) dir: &'a Path,
    pub(crate) bucket: TableBucket,
    pub(crate) config: &'a LogConfig,
}

/// The files of a folder, by kind.
#[derive(Default)]
pub(super) struct Listing {
    pub(super) segments: Vec<LogOffset>,
    indexes: Vec<LogOffset>,
    writers: Vec<LogOffset>,
    temporary: Vec<String>,
    /// What was set aside before.
    pub(super) cuts: Vec<String>,
}

/// One segment, judged.
struct Judged {
    base_offset: LogOffset,
    found: Found,
    /// Its size on disk, which is more than the extent if the tail is torn.
    file_len: u64,
    scanned_bytes: u64,
    /// Why the bytes behind the extent are no batch, if there are any.
    stopped: Option<&'static str>,
}

/// What is to be kept, and what goes.
struct Verdict {
    keep: Vec<Judged>,
    /// Segments without a record of this log: below its start, or empty.
    remove: Vec<LogOffset>,
    /// Segments with bytes in them that the log does not reach.
    unreached: Vec<LogOffset>,
    end: LogOffset,
}

impl Recovery<'_> {
    /// Reads the folder, which is made if it does not exist. Blocks.
    pub(crate) fn run(self) -> Result<Recovered> {
        named(self.dir, "create", disk::create_dirs(self.disk, self.dir))?;
        let listing = self.list()?;
        let meta = match LogMeta::load(self.disk, self.dir, self.bucket)? {
            Some(meta) => meta,
            None if listing.segments.is_empty() => {
                let meta = LogMeta::new(self.bucket);
                meta.save(self.disk, self.dir)?;
                meta
            }
            None => {
                let path = self.dir.join(meta::FILE_NAME);
                return Err(Error::corrupt(&path, 0, "missing beside segments"));
            }
        };
        let verdict = self.judge(&meta, &listing)?;
        let mark = SyncedMark::load(self.disk, self.dir)?;
        if mark.is_some_and(|mark| verdict.end < mark.next_offset) {
            return Err(self.lost(&verdict));
        }
        let snapshot = self.newest_snapshot(&listing, &verdict)?;
        self.refuse_lost_gap(&meta, verdict.end)?;
        let report = self.clean_up(&listing, &verdict)?;
        self.note_synced(mark, &verdict);
        self.assemble(meta, verdict, snapshot, report)
            .map(|recovered| Recovered {
                snapshots: listing.writers,
                ..recovered
            })
    }

    pub(super) fn list(&self) -> Result<Listing> {
        let mut listing = Listing::default();
        for name in named(self.dir, "list", self.disk.list(self.dir))? {
            let Some((stem, extension)) = name.rsplit_once('.') else {
                continue;
            };
            let offset = stem
                .parse::<i64>()
                .ok()
                .filter(|offset| *offset >= 0)
                .map(LogOffset);
            match (extension, offset) {
                ("log", Some(offset)) => listing.segments.push(offset),
                ("index", Some(offset)) => listing.indexes.push(offset),
                ("writers", Some(offset)) => listing.writers.push(offset),
                ("tmp", _) => listing.temporary.push(name),
                (aside::EXTENSION, _) => listing.cuts.push(name),
                _ => {}
            }
        }
        listing.segments.sort_unstable();
        listing.writers.sort_unstable();
        Ok(listing)
    }

    /// Follows the segments from the log's start to where the chain breaks.
    fn judge(&self, meta: &LogMeta, listing: &Listing) -> Result<Verdict> {
        let mut verdict = Verdict {
            keep: Vec::new(),
            remove: Vec::new(),
            unreached: Vec::new(),
            end: meta.log_start,
        };
        let mut segments = listing.segments.iter().copied().peekable();
        while let Some(base) = segments.next() {
            if base < meta.log_start {
                verdict.remove.push(base);
                continue;
            }
            if base != verdict.end && base != meta.after_gap(verdict.end) {
                if self.is_empty(base)? {
                    // It was made just before the log went on beyond a gap.
                    verdict.remove.push(base);
                    continue;
                }
                verdict.unreached.push(base);
                verdict.unreached.extend(segments);
                break;
            }
            let judged = self.judge_segment(base, segments.peek().is_none())?;
            verdict.end = judged.found.extent.next_offset;
            verdict.keep.push(judged);
        }
        // The last one kept may take appends, though it was not the last one found.
        if let Some(last) = verdict.keep.pop_if(|last| last.found.index.is_none()) {
            verdict
                .keep
                .push(self.judge_segment(last.base_offset, true)?);
        }
        verdict.end = meta.after_gap(verdict.end);
        Ok(verdict)
    }

    fn is_empty(&self, base_offset: LogOffset) -> Result<bool> {
        let path = self.dir.join(segment::log_name(base_offset));
        let len = self.disk.open(&path).and_then(|file| file.len());
        Ok(named(&path, "measure", len)? == 0)
    }

    fn judge_segment(&self, base_offset: LogOffset, last: bool) -> Result<Judged> {
        let path = self.dir.join(segment::log_name(base_offset));
        let file = named(&path, "open", self.disk.open(&path))?;
        let file_len = named(&path, "measure", file.len())?;
        let interval = self.config.index_interval_bytes;
        let mut covered = Extent {
            len: 0,
            next_offset: base_offset,
            newest_ms: -1,
        };
        let mut index = IndexBuilder::default();
        if let Some((header, entries)) = self.load_index(base_offset)? {
            covered = extent_of(&header);
            if covered.len > file_len {
                let reason = "shorter than its checkpoint";
                return Err(Error::acknowledged_lost(&path, file_len, reason));
            }
            if covered.len == file_len && !last {
                let found = Found {
                    extent: covered,
                    index: None,
                    file: None,
                };
                return Ok(Judged {
                    base_offset,
                    found,
                    file_len,
                    scanned_bytes: 0,
                    stopped: None,
                });
            }
            index = IndexBuilder::from_entries(entries, interval);
        }
        let mut newest_ms = covered.newest_ms;
        let walk = Walk {
            range: covered.len..file_len,
            next_offset: covered.next_offset,
            check: Check::Everything,
        };
        let walked = walk.run(&path, &*file, |header, position| {
            if let Some(entry) = segment::entry_of(header, base_offset, position) {
                index.note(entry, interval);
            }
            newest_ms = header.timestamp_ms;
            Step::On
        })?;
        let extent = Extent {
            len: walked.position,
            next_offset: walked.next_offset,
            newest_ms,
        };
        let found = Found {
            extent,
            index: Some(index),
            file: Some(file),
        };
        Ok(Judged {
            base_offset,
            found,
            file_len,
            scanned_bytes: file_len - covered.len,
            stopped: walked.stopped,
        })
    }

    /// The index file of a segment; None if there is none or it is damaged: it can be made again.
    fn load_index(
        &self,
        base_offset: LogOffset,
    ) -> Result<Option<(IndexHeader, Vec<offset_index::IndexEntry>)>> {
        let path = self.dir.join(segment::index_name(base_offset));
        if !named(&path, "look up", self.disk.exists(&path))? {
            return Ok(None);
        }
        let read = disk::read_file(self.disk, &path, offset_index::MAX_FILE_BYTES);
        match offset_index::decode(&named(&path, "read", read)?) {
            Ok((header, entries)) if header.base_offset == base_offset => {
                Ok(Some((header, entries)))
            }
            Err(IndexFault::Newer(found)) => {
                let supported = offset_index::VERSION;
                Err(Error::NewerFormat {
                    path,
                    found,
                    supported,
                })
            }
            Ok(_) | Err(IndexFault::Damaged) => {
                tracing::warn!(index = %path.display(), "damaged, reading the segment instead");
                Ok(None)
            }
        }
    }

    /// The newest writer snapshot that is whole. It was written after the log was synced up to it, so
    /// a log that ends before it has lost durable records.
    fn newest_snapshot(&self, listing: &Listing, verdict: &Verdict) -> Result<Option<Snapshot>> {
        match self.newest_readable_snapshot(listing)? {
            Some(snapshot) if snapshot.offset > verdict.end => Err(self.lost(verdict)),
            found => Ok(found),
        }
    }

    /// The same without a look at the log.
    pub(super) fn newest_readable_snapshot(&self, listing: &Listing) -> Result<Option<Snapshot>> {
        let reader = self.no_writers();
        for offset in listing.writers.iter().rev() {
            let path = self.dir.join(writers_name(*offset));
            let read = disk::read_file(self.disk, &path, reader.max_snapshot_bytes());
            let bytes = match read {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == std::io::ErrorKind::InvalidData => Vec::new(),
                Err(error) => return Err(Error::io(&path, "read", error)),
            };
            let Some(snapshot) = reader
                .decode(&bytes)
                .filter(|found| found.offset == *offset)
            else {
                tracing::warn!(snapshot = %path.display(), "damaged, using an older one");
                continue;
            };
            return Ok(Some(snapshot));
        }
        Ok(None)
    }

    /// A gap was recorded after everything before it was synced.
    fn refuse_lost_gap(&self, meta: &LogMeta, end: LogOffset) -> Result<()> {
        if meta.gaps.iter().any(|gap| end < gap.to) {
            let path = self.dir.join(meta::FILE_NAME);
            let reason = "the log ends before a gap in it";
            return Err(Error::acknowledged_lost(&path, 0, reason));
        }
        Ok(())
    }

    /// Where acknowledged records are missing: the log ends before them.
    fn lost(&self, verdict: &Verdict) -> Error {
        let (path, position, reason) = self.place_of_end(verdict);
        Error::acknowledged_lost(&path, position, reason)
    }

    /// Where and why the log ends.
    fn place_of_end(&self, verdict: &Verdict) -> (PathBuf, u64, &'static str) {
        let path = |base| self.dir.join(segment::log_name(base));
        match verdict.keep.last() {
            Some(last) if last.stopped.is_some() || verdict.unreached.is_empty() => {
                let reason = last.stopped.unwrap_or("the log ends here");
                (path(last.base_offset), last.found.extent.len, reason)
            }
            _ => (path(verdict.end), 0, "the segment is missing"),
        }
    }

    fn no_writers(&self) -> WriterStates {
        WriterStates::new(self.config.writer_expiry_ms, self.config.max_writers)
    }

    fn assemble(
        &self,
        meta: LogMeta,
        verdict: Verdict,
        snapshot: Option<Snapshot>,
        report: RecoveryReport,
    ) -> Result<Recovered> {
        let newest = |judged: &Judged| judged.found.extent.newest_ms;
        let mut newest_ms = verdict.keep.iter().map(newest).max().unwrap_or(-1);
        let interval = self.config.index_interval_bytes;
        let segments: Vec<Arc<Segment>> = verdict
            .keep
            .into_iter()
            .map(|judged| {
                Arc::new(Segment::found(
                    self.dir,
                    judged.base_offset,
                    interval,
                    judged.found,
                ))
            })
            .collect();
        let (from, mut writers) = match snapshot {
            Some(snapshot) => {
                newest_ms = newest_ms.max(snapshot.newest_ms);
                (snapshot.offset, snapshot.writers)
            }
            None => (meta.log_start, self.no_writers()),
        };
        replay_writers(self.disk, &segments, from, &mut writers)?;
        let active = match segments.last() {
            Some(last) if last.extent().next_offset == verdict.end => Some(Arc::clone(last)),
            _ => None,
        };
        let closed = segments.iter().filter(|segment| match &active {
            Some(active) => segment.base_offset != active.base_offset,
            None => true,
        });
        Ok(Recovered {
            unsealed: closed
                .filter(|segment| segment.is_open())
                .cloned()
                .collect(),
            active,
            snapshots: Vec::new(),
            log_end: verdict.end,
            meta,
            segments,
            newest_ms,
            writers,
            report,
        })
    }
}

fn extent_of(header: &IndexHeader) -> Extent {
    let IndexHeader {
        log_bytes: len,
        next_offset,
        newest_ms,
        ..
    } = *header;
    Extent {
        len,
        next_offset,
        newest_ms,
    }
}

/// Names the file and the step in an error of the file system.
fn named<T>(path: &Path, action: &'static str, result: std::io::Result<T>) -> Result<T> {
    result.map_err(|error| Error::io(path, action, error))
}

/// Takes up the writers of the batches from an offset on.
pub(crate) fn replay_writers(
    disk: &dyn Disk,
    segments: &[Arc<Segment>],
    from: LogOffset,
    writers: &mut WriterStates,
) -> Result<()> {
    for segment in segments
        .iter()
        .filter(|segment| segment.extent().next_offset > from)
    {
        let walk = segment.walk_from(segment.start_for(disk, from)?, Check::Headers);
        let file = segment.file(disk)?;
        let walked = walk.run(segment.path(), &*file, |header, _| {
            if header.base_offset >= from {
                writers.replay(header);
            }
            Step::On
        })?;
        if let Some(reason) = walked.stopped {
            return Err(Error::corrupt(segment.path(), walked.position, reason));
        }
    }
    Ok(())
}

/// Removes the files of a segment, the index first: a segment without one is merely read again.
pub(crate) fn remove_segment(disk: &dyn Disk, dir: &Path, base: LogOffset) -> Result<()> {
    for name in [segment::index_name(base), segment::log_name(base)] {
        let path = dir.join(name);
        named(&path, "remove", disk::remove_if_there(disk, &path))?;
    }
    Ok(())
}
