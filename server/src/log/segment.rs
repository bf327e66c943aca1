//! One segment: a file of whole batches, one after the other, and its index.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use weir_protocol::ids::LogOffset;

use super::batch::{BatchHeader, MAX_HEADER_BYTES};
use super::cut::{Cut, ReadRequest, cut_batches};
use super::disk::{self, Disk, DiskFile};
use super::error::{Error, Result};
use super::offset_index::{self, IndexBuilder, IndexEntry, IndexHeader};
use super::walk::{Check, Step, Walk};

/// A segment file. Bytes are only ever added at its end; what was added never changes.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) base_offset: LogOffset,
    path: PathBuf,
    index_interval_bytes: u64,
    inner: Mutex<Inner>,
}

/// Short critical sections only, without IO.
#[derive(Debug)]
struct Inner {
    len: u64,
    next_offset: LogOffset,
    newest_ms: i64,
    index: Index,
    /// Closed segments are opened for each read, so that old data costs no descriptors.
    file: Option<Arc<dyn DiskFile>>,
}

#[derive(Debug)]
enum Index {
    Building(IndexBuilder),
    Closed(Arc<[IndexEntry]>),
    OnDisk,
}

/// A segment's extent at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) len: u64,
    pub(crate) next_offset: LogOffset,
    /// −1 without any batch.
    pub(crate) newest_ms: i64,
}

/// What recovery found out about a segment.
pub(crate) struct Found {
    pub(crate) extent: Extent,
    /// None: the file's index is whole, and read when it is needed.
    pub(crate) index: Option<IndexBuilder>,
    pub(crate) file: Option<Arc<dyn DiskFile>>,
}

/// The file name of a segment.
pub(crate) fn log_name(base_offset: LogOffset) -> String {
    format!("{:020}.log", base_offset.0)
}

/// The file name of its index.
pub(crate) fn index_name(base_offset: LogOffset) -> String {
    format!("{:020}.index", base_offset.0)
}

impl Segment {
    /// Makes an empty segment; its name is not durable yet.
    pub(crate) fn create(
        disk: &dyn Disk,
        dir: &Path,
        base_offset: LogOffset,
        index_interval_bytes: u64,
    ) -> Result<Self> {
        let path = dir.join(log_name(base_offset));
        let file = disk
            .create(&path)
            .map_err(|error| Error::io(&path, "create", error))?;
        let extent = Extent {
            len: 0,
            next_offset: base_offset,
            newest_ms: -1,
        };
        let found = Found {
            extent,
            index: Some(IndexBuilder::default()),
            file: Some(file),
        };
        Ok(Self::found(dir, base_offset, index_interval_bytes, found))
    }

    /// Takes up a segment that is on disk.
    pub(crate) fn found(
        dir: &Path,
        base_offset: LogOffset,
        index_interval_bytes: u64,
        found: Found,
    ) -> Self {
        let Extent {
            len,
            next_offset,
            newest_ms,
        } = found.extent;
        let index = found.index.map_or(Index::OnDisk, Index::Building);
        let inner = Inner {
            len,
            next_offset,
            newest_ms,
            index,
            file: found.file,
        };
        let path = dir.join(log_name(base_offset));
        Self {
            base_offset,
            path,
            index_interval_bytes,
            inner: Mutex::new(inner),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn extent(&self) -> Extent {
        let inner = self.inner.lock();
        Extent {
            len: inner.len,
            next_offset: inner.next_offset,
            newest_ms: inner.newest_ms,
        }
    }

    /// The open file; a closed segment is opened for the caller.
    pub(crate) fn file(&self, disk: &dyn Disk) -> Result<Arc<dyn DiskFile>> {
        if let Some(file) = &self.inner.lock().file {
            return Ok(Arc::clone(file));
        }
        disk.open(&self.path)
            .map_err(|error| Error::io(&self.path, "open", error))
    }

    /// Whether `bytes` more may be added for batches up to `last_offset`.
    pub(crate) fn has_room(&self, bytes: u64, last_offset: LogOffset, segment_bytes: u64) -> bool {
        let len = self.inner.lock().len;
        let relative = last_offset.0 - self.base_offset.0;
        len == 0 || (len + bytes <= segment_bytes && u32::try_from(relative).is_ok())
    }

    /// Adds stamped batches at the end: one write. On an error nothing was added; the file is cut
    /// back, and if even that fails, [`AppendFault::Torn`] says that the log must not go on.
    pub(crate) fn append(
        &self,
        disk: &dyn Disk,
        bytes: &[u8],
        headers: &[BatchHeader],
    ) -> Result<(), AppendFault> {
        let file = self.file(disk).map_err(AppendFault::Refused)?;
        let start = self.inner.lock().len;
        if let Err(error) = file.write_at(bytes, start) {
            let error = Error::io(&self.path, "write", error);
            return match file.set_len(start) {
                Ok(()) => Err(AppendFault::Refused(error)),
                Err(_) => Err(AppendFault::Torn(error)),
            };
        }
        let mut inner = self.inner.lock();
        for header in headers {
            inner.note(header, self.base_offset, self.index_interval_bytes);
        }
        Ok(())
    }

    /// What a checkpoint of the segment's first bytes says: the extent, and the entries below it.
    pub(crate) fn index_file(&self, extent: &Extent) -> Option<Vec<u8>> {
        let inner = self.inner.lock();
        let Index::Building(index) = &inner.index else {
            return None;
        };
        let entries = index.entries();
        let end = entries.partition_point(|entry| u64::from(entry.position) < extent.len);
        let header = IndexHeader {
            base_offset: self.base_offset,
            next_offset: extent.next_offset,
            log_bytes: extent.len,
            newest_ms: extent.newest_ms,
        };
        Some(offset_index::encode(&header, entries.get(..end)?))
    }

    /// Whether the index is still being built, and the file held open.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.inner.lock().index, Index::Building(_))
    }

    /// Nothing is added any more and the index is on disk: gives back the descriptor.
    pub(crate) fn close(&self) {
        let mut inner = self.inner.lock();
        if let Index::Building(index) = &inner.index {
            inner.index = Index::Closed(index.entries().into());
        }
        inner.file = None;
    }

    fn index_path(&self) -> PathBuf {
        self.path.with_extension("index")
    }

    /// Looks up in the index, which is read from disk at its first use.
    fn look_up(
        &self,
        disk: &dyn Disk,
        find: impl Fn(&[IndexEntry]) -> Option<IndexEntry>,
    ) -> Result<Start> {
        let found = self.look_up_entry(disk, find)?;
        Ok(match found {
            None => Start {
                position: 0,
                next_offset: self.base_offset,
            },
            Some(entry) => Start {
                position: u64::from(entry.position),
                next_offset: LogOffset(self.base_offset.0 + i64::from(entry.relative_offset)),
            },
        })
    }

    fn look_up_entry(
        &self,
        disk: &dyn Disk,
        find: impl Fn(&[IndexEntry]) -> Option<IndexEntry>,
    ) -> Result<Option<IndexEntry>> {
        let len = {
            let inner = self.inner.lock();
            match &inner.index {
                Index::Building(index) => return Ok(find(index.entries())),
                Index::Closed(entries) => return Ok(find(entries)),
                Index::OnDisk => inner.len,
            }
        };
        // Nobody waits meanwhile; another reader may do the same work.
        let read = disk::read_file(disk, &self.index_path(), offset_index::MAX_FILE_BYTES);
        let entries = read
            .ok()
            .and_then(|bytes| offset_index::decode(&bytes).ok());
        let entries: Arc<[IndexEntry]> = match entries {
            Some((_, entries)) => entries.into(),
            None => self.index_again(disk, len)?.into(),
        };
        let found = find(&entries);
        self.inner.lock().index = Index::Closed(entries);
        Ok(found)
    }

    /// Makes the entries of a closed segment again, from its batches' headers.
    fn index_again(&self, disk: &dyn Disk, len: u64) -> Result<Vec<IndexEntry>> {
        tracing::warn!(segment = %self.path.display(), "index is damaged, reading the segment");
        let mut index = IndexBuilder::default();
        let file = disk
            .open(&self.path)
            .map_err(|error| Error::io(&self.path, "open", error))?;
        let walk = Walk {
            range: 0..len,
            next_offset: self.base_offset,
            check: Check::Headers,
        };
        let walked = walk.run(&self.path, &*file, |header, position| {
            if let Some(entry) = entry_of(header, self.base_offset, position) {
                index.note(entry, self.index_interval_bytes);
            }
            Step::On
        })?;
        match walked.stopped {
            Some(reason) => Err(Error::corrupt(&self.path, walked.position, reason)),
            None => Ok(index.entries().to_vec()),
        }
    }

    /// Where walking begins for the batch that contains an offset: the first batch for an offset before
    /// the segment.
    pub(crate) fn start_for(&self, disk: &dyn Disk, offset: LogOffset) -> Result<Start> {
        let relative = (offset.0 - self.base_offset.0).max(0);
        let relative = u32::try_from(relative).unwrap_or(u32::MAX);
        self.look_up(disk, |entries| {
            offset_index::before_offset(entries, relative)
        })
    }

    /// The walk over a segment's batches from a place on.
    pub(crate) fn walk_from(&self, start: Start, check: Check) -> Walk {
        let range = start.position..self.extent().len;
        Walk {
            range,
            next_offset: start.next_offset,
            check,
        }
    }

    /// About where the batch begins that contains an offset: not behind it. None if the index would have to
    /// be read from the disk first.
    pub(crate) fn position_before(&self, offset: LogOffset) -> Option<u64> {
        let relative = (offset.0 - self.base_offset.0).max(0);
        let relative = u32::try_from(relative).unwrap_or(u32::MAX);
        let inner = self.inner.lock();
        let entries = match &inner.index {
            Index::Building(index) => index.entries(),
            Index::Closed(entries) => entries,
            Index::OnDisk => return None,
        };
        let before = offset_index::before_offset(entries, relative);
        Some(before.map_or(0, |entry| u64::from(entry.position)))
    }

    /// The base offset of the first batch below `upto` that begins at a position or after it; if none does,
    /// that of the last one. Reads headers from an entry of the index on.
    pub(crate) fn offset_at(
        &self,
        disk: &dyn Disk,
        position: u64,
        upto: LogOffset,
    ) -> Result<Placed> {
        let find = |entries: &[IndexEntry]| {
            let after = entries.partition_point(|entry| u64::from(entry.position) <= position);
            after.checked_sub(1).and_then(|at| entries.get(at)).copied()
        };
        let start = self.look_up(disk, find)?;
        let file = self.file(disk)?;
        let mut placed = Placed::default();
        let walk = self.walk_from(start, Check::Headers);
        let walked = walk.run(&self.path, &*file, |header, at| {
            if header.base_offset >= upto {
                return Step::Stop;
            }
            placed.last = Some(header.base_offset);
            if at >= position {
                placed.first_after = Some(header.base_offset);
                return Step::Stop;
            }
            Step::On
        })?;
        match (placed.first_after, walked.stopped) {
            (None, Some(reason)) => Err(Error::corrupt(&self.path, walked.position, reason)),
            _ => Ok(placed),
        }
    }

    /// Whole batches from the one that contains `from`, up to `upto` (exclusive): at least one if
    /// there is one, further ones while they fit into `max_bytes`. Checksums are verified.
    pub(crate) fn read(&self, disk: &dyn Disk, request: &ReadRequest) -> Result<ReadBatches> {
        let extent = self.extent();
        let mut at = self.start_for(disk, request.from)?;
        let file = self.file(disk)?;
        let slack = self.index_interval_bytes + MAX_HEADER_BYTES as u64;
        let mut want = u64::try_from(request.max_bytes)
            .unwrap_or(u64::MAX)
            .saturating_add(slack);
        while at.position < extent.len {
            let size = usize::try_from(want.min(extent.len - at.position)).unwrap_or(usize::MAX);
            let mut buffer = vec![0; size];
            file.read_at(&mut buffer, at.position)
                .map_err(|error| Error::io(&self.path, "read", error))?;
            let cut = cut_batches(&buffer, at.next_offset, request).map_err(|(byte, reason)| {
                Error::corrupt(&self.path, at.position + byte as u64, reason)
            })?;
            match cut {
                Cut::Batches { range, next_offset } => {
                    let batches = Bytes::from(buffer).slice(range);
                    return Ok(ReadBatches {
                        batches,
                        next_offset,
                        left_out_bytes: None,
                    });
                }
                Cut::Nothing => break,
                Cut::ReadOn {
                    bytes,
                    next_offset,
                    batch_bytes,
                } => {
                    at = Start {
                        position: at.position + bytes as u64,
                        next_offset,
                    };
                    if at.position + batch_bytes > extent.len {
                        let reason = "batch is longer than its segment";
                        return Err(Error::corrupt(&self.path, at.position, reason));
                    }
                    let batch_bytes_in_memory = usize::try_from(batch_bytes).unwrap_or(usize::MAX);
                    if batch_bytes_in_memory > request.most_bytes {
                        return Ok(ReadBatches {
                            batches: Bytes::new(),
                            next_offset: request.from,
                            left_out_bytes: Some(batch_bytes_in_memory),
                        });
                    }
                    want = want.max(batch_bytes);
                }
            }
        }
        Ok(ReadBatches {
            batches: Bytes::new(),
            next_offset: request.from,
            left_out_bytes: None,
        })
    }

    /// The base offset of the first batch that is not older than `timestamp_ms`.
    pub(crate) fn offset_for_time(
        &self,
        disk: &dyn Disk,
        timestamp_ms: i64,
    ) -> Result<Option<LogOffset>> {
        let find = |entries: &[IndexEntry]| offset_index::before_time(entries, timestamp_ms);
        let start = self.look_up(disk, find)?;
        let file = self.file(disk)?;
        let mut found = None;
        let walk = self.walk_from(start, Check::Headers);
        let walked = walk.run(&self.path, &*file, |header, _| {
            if header.timestamp_ms >= timestamp_ms {
                found = Some(header.base_offset);
                return Step::Stop;
            }
            Step::On
        })?;
        match (found, walked.stopped) {
            (None, Some(reason)) => Err(Error::corrupt(&self.path, walked.position, reason)),
            _ => Ok(found),
        }
    }
}

impl Inner {
    fn note(&mut self, header: &BatchHeader, base_offset: LogOffset, interval_bytes: u64) {
        if let (Index::Building(index), Some(entry)) =
            (&mut self.index, entry_of(header, base_offset, self.len))
        {
            index.note(entry, interval_bytes);
        }
        self.len += header.size_bytes as u64;
        self.next_offset = header.next_offset().unwrap_or(self.next_offset);
        self.newest_ms = header.timestamp_ms;
    }
}

/// The index entry of a batch; None beyond 4 GiB, which no segment reaches.
pub(crate) fn entry_of(
    header: &BatchHeader,
    base_offset: LogOffset,
    position: u64,
) -> Option<IndexEntry> {
    Some(IndexEntry {
        relative_offset: u32::try_from(header.base_offset.0 - base_offset.0).ok()?,
        position: u32::try_from(position).ok()?,
        timestamp_ms: header.timestamp_ms,
    })
}

/// Why an append did not happen.
#[derive(Debug)]
pub(crate) enum AppendFault {
    /// The segment is as before.
    Refused(Error),
    /// Bytes may stand behind the end: only recovery can tell.
    Torn(Error),
}

/// Whole batches, as they are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadBatches {
    /// The batches, one after the other; empty if there is nothing to read yet. The first one
    /// contains the offset asked for, or is the first one after it.
    pub batches: Bytes,
    /// The offset after the last one; the offset asked for if there is none.
    pub next_offset: LogOffset,
    /// The size of the first batch if it was left out because it is larger than the most allowed.
    pub left_out_bytes: Option<usize>,
}

/// Where batches stand around a position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Placed {
    /// The base offset of the first one at the position or after it.
    pub(crate) first_after: Option<LogOffset>,
    /// That of the last one seen.
    pub(crate) last: Option<LogOffset>,
}

/// A place in a segment where a batch begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Start {
    pub(crate) position: u64,
    /// The base offset of the batch.
    pub(crate) next_offset: LogOffset,
}
