//! The sparse index of a segment: which batch begins where, and when it was appended.
//!
//! Commit timestamps never fall along a log, so one list ordered by offset answers for times too. The
//! index of the segment being written lives in memory; its file is written with each checkpoint and
//! when the segment is closed, always *after* the segment was synced up to what the file says. So
//! the file is also the checkpoint of its segment: bytes below `log_bytes` were durable once, and if
//! they are gone or damaged that is corruption, not a torn tail.

use weir_protocol::ids::LogOffset;

/// The newest version written and read.
pub(crate) const VERSION: u32 = 1;
const MAGIC: &[u8; 8] = b"WEIRIDX\0";
const HEADER_BYTES: usize = 56;
const ENTRY_BYTES: usize = 16;
/// The most bytes an index file can have: one entry per smallest batch of the largest segment would
/// be far more, but entries lie an interval apart.
pub(crate) const MAX_FILE_BYTES: u64 = 1 << 30;

/// One indexed batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IndexEntry {
    /// Base offset of the batch, from the segment's base offset.
    pub(crate) relative_offset: u32,
    /// Where the batch begins in the segment, in bytes.
    pub(crate) position: u32,
    /// Its commit timestamp.
    pub(crate) timestamp_ms: i64,
}

/// What an index file says of its segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IndexHeader {
    pub(crate) base_offset: LogOffset,
    /// The offset after the last batch covered.
    pub(crate) next_offset: LogOffset,
    /// How many bytes of the segment are covered.
    pub(crate) log_bytes: u64,
    /// Commit timestamp of the last batch covered; −1 without any.
    pub(crate) newest_ms: i64,
}

/// Why an index file can't be used. The index is then made again from the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IndexFault {
    Damaged,
    Newer(u32),
}

/// The bytes of an index file. Layout, little-endian: magic `WEIRIDX\0`, version, entry count, base
/// offset, next offset, log bytes, newest timestamp, CRC-32C of the entries, CRC-32C of the header so
/// far; then the entries: relative offset, position, timestamp.
pub(crate) fn encode(header: &IndexHeader, entries: &[IndexEntry]) -> Vec<u8> {
    let mut body = Vec::with_capacity(entries.len() * ENTRY_BYTES);
    for entry in entries {
        body.extend_from_slice(&entry.relative_offset.to_le_bytes());
        body.extend_from_slice(&entry.position.to_le_bytes());
        body.extend_from_slice(&entry.timestamp_ms.to_le_bytes());
    }
    let count = u32::try_from(entries.len()).unwrap_or(u32::MAX);
    let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&count.to_le_bytes());
    bytes.extend_from_slice(&header.base_offset.0.to_le_bytes());
    bytes.extend_from_slice(&header.next_offset.0.to_le_bytes());
    bytes.extend_from_slice(&header.log_bytes.to_le_bytes());
    bytes.extend_from_slice(&header.newest_ms.to_le_bytes());
    bytes.extend_from_slice(&crc32c::crc32c(&body).to_le_bytes());
    bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
    bytes.extend_from_slice(&body);
    bytes
}

/// Reads an index file back.
pub(crate) fn decode(bytes: &[u8]) -> Result<(IndexHeader, Vec<IndexEntry>), IndexFault> {
    let damaged = IndexFault::Damaged;
    let (head, body) = bytes.split_first_chunk::<HEADER_BYTES>().ok_or(damaged)?;
    let (head, head_crc) = head.split_last_chunk::<4>().ok_or(damaged)?;
    if crc32c::crc32c(head) != u32::from_le_bytes(*head_crc) || !head.starts_with(MAGIC) {
        return Err(damaged);
    }
    let version = u32::from_le_bytes(part(head, 8)?);
    if version > VERSION {
        return Err(IndexFault::Newer(version));
    }
    let count = usize::try_from(u32::from_le_bytes(part(head, 12)?)).map_err(|_| damaged)?;
    let header = IndexHeader {
        base_offset: LogOffset(i64::from_le_bytes(part(head, 16)?)),
        next_offset: LogOffset(i64::from_le_bytes(part(head, 24)?)),
        log_bytes: u64::from_le_bytes(part(head, 32)?),
        newest_ms: i64::from_le_bytes(part(head, 40)?),
    };
    let body_crc = u32::from_le_bytes(part(head, 48)?);
    if Some(body.len()) != count.checked_mul(ENTRY_BYTES) || crc32c::crc32c(body) != body_crc {
        return Err(damaged);
    }
    let mut entries = Vec::with_capacity(count);
    for entry in body.chunks_exact(ENTRY_BYTES) {
        entries.push(IndexEntry {
            relative_offset: u32::from_le_bytes(part(entry, 0)?),
            position: u32::from_le_bytes(part(entry, 4)?),
            timestamp_ms: i64::from_le_bytes(part(entry, 8)?),
        });
    }
    Ok((header, entries))
}

fn part<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], IndexFault> {
    let slice = bytes.get(at..at + N).ok_or(IndexFault::Damaged)?;
    slice.try_into().map_err(|_| IndexFault::Damaged)
}

/// The last entry that is not beyond a relative offset.
pub(crate) fn before_offset(entries: &[IndexEntry], relative_offset: u32) -> Option<IndexEntry> {
    let after = entries.partition_point(|entry| entry.relative_offset <= relative_offset);
    entries.get(after.checked_sub(1)?).copied()
}

/// The last entry that is older than a time.
pub(crate) fn before_time(entries: &[IndexEntry], timestamp_ms: i64) -> Option<IndexEntry> {
    let after = entries.partition_point(|entry| entry.timestamp_ms < timestamp_ms);
    entries.get(after.checked_sub(1)?).copied()
}

/// The index of the segment being written.
#[derive(Clone, Debug, Default)]
pub(crate) struct IndexBuilder {
    entries: Vec<IndexEntry>,
    /// The first position that gets an entry again.
    due_at: u64,
}

impl IndexBuilder {
    pub(crate) fn from_entries(entries: Vec<IndexEntry>, interval_bytes: u64) -> Self {
        let due_at = entries
            .last()
            .map_or(0, |entry| u64::from(entry.position) + interval_bytes.max(1));
        Self { entries, due_at }
    }

    /// Notes a batch; called for each in order.
    pub(crate) fn note(&mut self, entry: IndexEntry, interval_bytes: u64) {
        if u64::from(entry.position) >= self.due_at {
            self.due_at = u64::from(entry.position) + interval_bytes.max(1);
            self.entries.push(entry);
        }
    }

    pub(crate) fn entries(&self) -> &[IndexEntry] {
        &self.entries
    }
}
