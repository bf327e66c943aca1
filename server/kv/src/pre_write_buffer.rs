//! What is in the log already but not yet in the store: the newest value of each key, and all that
//! can be taken back.
//!
//! A value is buffered at the offset of its last change before the log has taken the batch. Reads
//! of the old value look here first. When the log refuses the batch, or knows it already,
//! [`PreWriteBuffer::truncate_from`] its first offset. What the log holds for certain goes to the
//! store by [`PreWriteBuffer::flush_up_to`]; it stays readable here until
//! [`PreWriteBuffer::complete_flush`]. Facts: fluss `KvPreWriteBuffer`.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use weir_protocol::ids::LogOffset;

use crate::error::{Error, Result};

#[cfg(test)]
mod tests;

/// How a put counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutKind {
    /// The key did not exist.
    Insert,
    /// The key existed.
    Update,
    /// Nobody looked; from here on the number of keys is not known.
    Blind,
}

/// The newest buffered change of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Newest<'a> {
    /// It holds this value, encoded.
    Put(&'a Bytes),
    /// It is deleted.
    Deleted,
}

/// What a batch does to the number of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowCountChange {
    /// This many more, or fewer.
    By(i64),
    /// It can't be said.
    Unknown,
}

/// What is written to the store at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlushBatch {
    /// All changes of the log below this offset are in the store afterwards.
    pub end_offset: LogOffset,
    /// The last value of each key, encoded; `None` deletes it. Each key once, in no order.
    pub writes: Vec<(Bytes, Option<Bytes>)>,
    /// What it does to the number of keys.
    pub row_count: RowCountChange,
}

/// The buffer of one bucket. Pure: no clock, no IO, no lock.
///
/// Its memory is bounded by who fills it: see [`PreWriteBuffer::size_bytes`].
#[derive(Debug)]
pub struct PreWriteBuffer {
    /// In order of offsets.
    entries: VecDeque<Entry>,
    /// The unflushed values of each key, oldest first; never empty.
    values: HashMap<Bytes, VecDeque<Option<Bytes>>>,
    /// No entry is below it.
    flushed_offset: LogOffset,
    /// Where the flush under way ends, and how many entries it has.
    flushing: Option<(LogOffset, usize)>,
    size_bytes: usize,
}

#[derive(Debug)]
struct Entry {
    offset: LogOffset,
    key: Bytes,
    kind: EntryKind,
    size_bytes: usize,
}

#[derive(Clone, Copy, Debug)]
enum EntryKind {
    Put(PutKind),
    Delete,
}

impl PreWriteBuffer {
    /// An empty buffer over a store that stands at `flushed_offset`.
    pub fn new(flushed_offset: LogOffset) -> Self {
        Self {
            entries: VecDeque::new(),
            values: HashMap::new(),
            flushed_offset,
            flushing: None,
            size_bytes: 0,
        }
    }

    /// Buffers a value at the offset of its last change.
    ///
    /// # Errors
    /// [`Error::OffsetOrder`] unless `offset` is above every buffered one and not flushed.
    pub fn put(
        &mut self,
        key: Bytes,
        value: Bytes,
        offset: LogOffset,
        kind: PutKind,
    ) -> Result<()> {
        self.push(key, Some(value), offset, EntryKind::Put(kind))
    }

    /// Buffers that a key, which exists, is deleted.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn delete(&mut self, key: Bytes, offset: LogOffset) -> Result<()> {
        self.push(key, None, offset, EntryKind::Delete)
    }

    fn push(
        &mut self,
        key: Bytes,
        value: Option<Bytes>,
        offset: LogOffset,
        kind: EntryKind,
    ) -> Result<()> {
        let flushed = self.flushed_offset;
        if offset < flushed {
            return Err(disorder(offset, flushed, "it is flushed already"));
        }
        if let Some(last) = self.entries.back()
            && offset <= last.offset
        {
            return Err(disorder(offset, last.offset, "a later one is buffered"));
        }
        let size_bytes = key.len() + value.as_ref().map_or(0, Bytes::len);
        self.size_bytes += size_bytes;
        self.values.entry(key.clone()).or_default().push_back(value);
        self.entries.push_back(Entry {
            offset,
            key,
            kind,
            size_bytes,
        });
        Ok(())
    }

    /// The newest buffered change of a key; `None` if there is none and the store is to be asked.
    pub fn get(&self, key: &[u8]) -> Option<Newest<'_>> {
        let newest = self.values.get(key)?.back()?;
        Some(newest.as_ref().map_or(Newest::Deleted, Newest::Put))
    }

    /// Takes back what was buffered at and above an offset: older values are the newest again.
    ///
    /// # Errors
    /// [`Error::OffsetOrder`] for offsets that are flushed or being flushed; nothing changes.
    pub fn truncate_from(&mut self, offset: LogOffset) -> Result<()> {
        let end = self.flushing.map_or(self.flushed_offset, |(end, _)| end);
        if offset < end {
            return Err(disorder(offset, end, "it is flushed or being flushed"));
        }
        while self
            .entries
            .back()
            .is_some_and(|last| last.offset >= offset)
            && let Some(last) = self.entries.pop_back()
        {
            self.size_bytes -= last.size_bytes;
            self.forget(&last.key, VecDeque::pop_back);
        }
        Ok(())
    }

    /// One batch of all that is buffered below `end_offset`. It stays readable here until
    /// [`Self::complete_flush`], or [`Self::abort_flush`] if the store did not take it.
    ///
    /// # Errors
    /// [`Error::OffsetOrder`] while another flush is under way, or below what is flushed.
    pub fn flush_up_to(&mut self, end_offset: LogOffset) -> Result<FlushBatch> {
        if let Some((end, _)) = self.flushing {
            return Err(disorder(end_offset, end, "another flush is under way"));
        }
        let flushed = self.flushed_offset;
        if end_offset < flushed {
            return Err(disorder(end_offset, flushed, "it is flushed already"));
        }
        let mut last_values: HashMap<&Bytes, (usize, Option<Bytes>)> = HashMap::new();
        let mut row_count = RowCountChange::By(0);
        let mut entry_count = 0;
        for entry in self
            .entries
            .iter()
            .take_while(|entry| entry.offset < end_offset)
        {
            entry_count += 1;
            row_count = row_count.and(entry.kind);
            let (next, last) = last_values.entry(&entry.key).or_default();
            let value = self
                .values
                .get(&entry.key)
                .and_then(|values| values.get(*next));
            *last = value.cloned().flatten();
            *next += 1;
        }
        let writes = last_values
            .into_iter()
            .map(|(key, (_, value))| (key.clone(), value))
            .collect();
        self.flushing = Some((end_offset, entry_count));
        Ok(FlushBatch {
            end_offset,
            writes,
            row_count,
        })
    }

    /// Forgets what the flush under way has written; nothing happens without one.
    pub fn complete_flush(&mut self) {
        let Some((end_offset, entry_count)) = self.flushing.take() else {
            return;
        };
        for _ in 0..entry_count {
            if let Some(first) = self.entries.pop_front() {
                self.size_bytes -= first.size_bytes;
                self.forget(&first.key, VecDeque::pop_front);
            }
        }
        self.flushed_offset = end_offset;
    }

    /// Keeps what the flush under way did not write.
    pub fn abort_flush(&mut self) {
        self.flushing = None;
    }

    fn forget(
        &mut self,
        key: &Bytes,
        take: impl FnOnce(&mut VecDeque<Option<Bytes>>) -> Option<Option<Bytes>>,
    ) {
        if let Some(values) = self.values.get_mut(key) {
            take(values);
            if values.is_empty() {
                self.values.remove(key);
            }
        }
    }

    /// Bytes of keys and values that are buffered. A caller stops taking writes above its limit.
    pub fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// How many changes are buffered.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing is buffered.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All changes below it have left the buffer.
    pub fn flushed_offset(&self) -> LogOffset {
        self.flushed_offset
    }
}

impl RowCountChange {
    fn and(self, kind: EntryKind) -> Self {
        match (self, kind) {
            (Self::Unknown, _) | (_, EntryKind::Put(PutKind::Blind)) => Self::Unknown,
            (Self::By(count), EntryKind::Put(PutKind::Insert)) => Self::By(count + 1),
            (Self::By(count), EntryKind::Put(PutKind::Update)) => Self::By(count),
            (Self::By(count), EntryKind::Delete) => Self::By(count - 1),
        }
    }
}

fn disorder(offset: LogOffset, bound: LogOffset, reason: &'static str) -> Error {
    Error::OffsetOrder {
        offset,
        bound,
        reason,
    }
}
