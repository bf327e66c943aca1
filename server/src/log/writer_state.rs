//! What a bucket remembers of its idempotent writers: the last five batches of each.
//!
//! A batch whose sequence is among them is a duplicate and is answered with its first offsets; the
//! sequence after the last one is appended; anything else is out of order. A writer that is not known
//! begins at 0. Sequences wrap from `i32::MAX` to 0.

use std::collections::HashMap;

use weir_protocol::ids::{LogOffset, WriterId};

use super::batch::BatchHeader;

/// How many batches of a writer are remembered: clients keep at most this many in flight.
const KEPT_BATCHES: usize = 5;
/// The newest snapshot version written and read.
const VERSION: u32 = 1;
const MAGIC: &[u8; 8] = b"WEIRWRT\0";
/// Magic, version, writer count, offset, newest timestamp.
const HEADER_BYTES: usize = 8 + 4 + 4 + 8 + 8;
const BATCH_BYTES: usize = 4 + 8 + 8 + 8;

/// A batch that was appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoredBatch {
    pub(crate) sequence: i32,
    pub(crate) base_offset: LogOffset,
    /// Inclusive.
    pub(crate) last_offset: LogOffset,
    pub(crate) timestamp_ms: i64,
}

/// What is to be done with a batch of a writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Append,
    Duplicate(StoredBatch),
}

/// The sequence that would have been right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expected(pub(crate) i32);

/// The last batches of one writer, oldest first; never empty once stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WriterEntry {
    batches: Vec<StoredBatch>,
}

impl WriterEntry {
    pub(crate) fn verdict(&self, sequence: i32) -> Result<Verdict, Expected> {
        if let Some(stored) = self
            .batches
            .iter()
            .find(|stored| stored.sequence == sequence)
        {
            return Ok(Verdict::Duplicate(*stored));
        }
        let expected = match self.batches.last() {
            Some(last) => next_sequence(last.sequence),
            None => 0,
        };
        if sequence == expected {
            Ok(Verdict::Append)
        } else {
            Err(Expected(expected))
        }
    }

    pub(crate) fn push(&mut self, batch: StoredBatch) {
        if self.batches.len() >= KEPT_BATCHES {
            self.batches.remove(0);
        }
        self.batches.push(batch);
    }

    fn newest_ms(&self) -> i64 {
        self.batches
            .last()
            .map_or(i64::MIN, |batch| batch.timestamp_ms)
    }
}

fn next_sequence(sequence: i32) -> i32 {
    sequence.checked_add(1).unwrap_or(0)
}

/// All writers of a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WriterStates {
    entries: HashMap<WriterId, WriterEntry>,
    expiry_ms: i64,
    max_writers: usize,
}

impl WriterStates {
    pub(crate) fn new(expiry_ms: i64, max_writers: usize) -> Self {
        Self {
            entries: HashMap::new(),
            expiry_ms,
            max_writers: max_writers.max(1),
        }
    }

    /// A copy of what is remembered of a writer; empty if nothing, or if it was idle for too long.
    pub(crate) fn entry(&self, writer: WriterId, now_ms: i64) -> WriterEntry {
        match self.entries.get(&writer) {
            Some(entry) if now_ms.saturating_sub(entry.newest_ms()) <= self.expiry_ms => {
                entry.clone()
            }
            _ => WriterEntry::default(),
        }
    }

    pub(crate) fn set(&mut self, writer: WriterId, entry: WriterEntry) {
        self.entries.insert(writer, entry);
        if self.entries.len() > self.max_writers {
            self.forget_longest_idle();
        }
    }

    /// Takes up a batch that is in the log, without judging its sequence.
    pub(crate) fn replay(&mut self, header: &BatchHeader) {
        let (Some(writer), Some(next)) = (header.writer, header.next_offset()) else {
            return;
        };
        let stored = StoredBatch {
            sequence: header.sequence,
            base_offset: header.base_offset,
            last_offset: LogOffset(next.0 - 1),
            timestamp_ms: header.timestamp_ms,
        };
        let mut entry = self.entries.remove(&writer).unwrap_or_default();
        // A writer that began anew: what came before its 0 is of an expired life.
        let follows = matches!(entry.verdict(stored.sequence), Ok(Verdict::Append));
        if !follows {
            entry = WriterEntry::default();
        }
        entry.push(stored);
        self.set(writer, entry);
    }

    /// Forgets writers that were idle for longer than the expiry.
    pub(crate) fn expire(&mut self, now_ms: i64) {
        let expiry_ms = self.expiry_ms;
        self.entries
            .retain(|_, entry| now_ms.saturating_sub(entry.newest_ms()) <= expiry_ms);
    }

    /// Makes room for a sixteenth of the limit at once, so that a full map isn't sorted each time.
    fn forget_longest_idle(&mut self) {
        let mut by_age: Vec<(i64, WriterId)> = self
            .entries
            .iter()
            .map(|(writer, entry)| (entry.newest_ms(), *writer))
            .collect();
        by_age.sort_unstable();
        let keep = self.max_writers - self.max_writers / 16;
        let surplus = by_age.len().saturating_sub(keep);
        for (_, writer) in by_age.into_iter().take(surplus) {
            self.entries.remove(&writer);
        }
    }

    /// The bytes of a snapshot taken at `offset`. Layout, little-endian: magic `WEIRWRT\0`, version,
    /// count of writers, offset, newest timestamp; per writer its id, a count byte, and per batch
    /// sequence, base offset, last offset, timestamp; at the end the CRC-32C of all before.
    pub(crate) fn encode(&self, offset: LogOffset, newest_ms: i64) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + 4 + self.entries.len() * 64);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        let count = u32::try_from(self.entries.len()).unwrap_or(u32::MAX);
        bytes.extend_from_slice(&count.to_le_bytes());
        bytes.extend_from_slice(&offset.0.to_le_bytes());
        bytes.extend_from_slice(&newest_ms.to_le_bytes());
        for (writer, entry) in &self.entries {
            bytes.extend_from_slice(&writer.0.to_le_bytes());
            bytes.push(u8::try_from(entry.batches.len()).unwrap_or(0));
            for batch in &entry.batches {
                bytes.extend_from_slice(&batch.sequence.to_le_bytes());
                bytes.extend_from_slice(&batch.base_offset.0.to_le_bytes());
                bytes.extend_from_slice(&batch.last_offset.0.to_le_bytes());
                bytes.extend_from_slice(&batch.timestamp_ms.to_le_bytes());
            }
        }
        let crc = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Takes up a snapshot; the limits are the caller's. None: damaged, or of a newer version.
    pub(crate) fn decode(&self, bytes: &[u8]) -> Option<Snapshot> {
        let (body, crc) = bytes.split_last_chunk::<4>()?;
        if crc32c::crc32c(body) != u32::from_le_bytes(*crc) {
            return None;
        }
        let mut reader = Reader(body);
        if reader.take::<8>()? != *MAGIC || reader.u32()? != VERSION {
            return None;
        }
        let count = reader.u32()?;
        let offset = LogOffset(reader.i64()?);
        let newest_ms = reader.i64()?;
        let mut writers = Self::new(self.expiry_ms, self.max_writers);
        for _ in 0..count {
            let writer = WriterId(reader.i64()?);
            let [batch_count] = reader.take::<1>()?;
            let mut entry = WriterEntry::default();
            for _ in 0..batch_count {
                entry.push(StoredBatch {
                    sequence: i32::from_le_bytes(reader.take()?),
                    base_offset: LogOffset(reader.i64()?),
                    last_offset: LogOffset(reader.i64()?),
                    timestamp_ms: reader.i64()?,
                });
            }
            writers.entries.insert(writer, entry);
        }
        reader.0.is_empty().then_some(Snapshot {
            offset,
            newest_ms,
            writers,
        })
    }

    /// The most bytes a snapshot can have.
    pub(crate) fn max_snapshot_bytes(&self) -> u64 {
        let writer_bytes = 8 + 1 + KEPT_BATCHES * BATCH_BYTES;
        u64::try_from(HEADER_BYTES + 4 + (self.max_writers + 1) * writer_bytes).unwrap_or(u64::MAX)
    }
}

/// Writers as they were at an offset.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) offset: LogOffset,
    pub(crate) newest_ms: i64,
    pub(crate) writers: WriterStates,
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take()?))
    }

    fn i64(&mut self) -> Option<i64> {
        Some(i64::from_le_bytes(self.take()?))
    }
}
