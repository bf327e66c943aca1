//! The log record batch: header, checksum, and how a byte string falls into batches.
//!
//! Source: fluss `DefaultLogRecordBatch`, `LogRecordBatchFormat` of 1.0 and of 0.9.1 (whose magic 1
//! is another layout).

use bytes::{Buf, Bytes};

use super::{BatchIdentity, bytes_at, put_at, schema_id_on_wire};
use crate::error::{Error, Result};
use crate::ids::{LogOffset, SchemaId, WriterId};

#[cfg(test)]
mod tests;

const FORMAT: &str = "log batch";
/// Bytes before `length` ends: the offset and the length itself.
const PREFIX: usize = 12;
const MAGIC_AT: usize = 12;
const TIMESTAMP_AT: usize = 13;
/// In magic 0.
const WRITER_AT: usize = 32;
/// Header bytes of magic 0, the only one this crate writes.
pub const HEADER_SIZE: usize = 48;

/// Which fields a header has beyond those of magic 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Magic 0: 48 bytes.
    Plain,
    /// Magic 1 of 1.0: statistics, 52 bytes.
    Statistics,
    /// Magic 1 of 0.9.1: leader epoch, 52 bytes.
    LeaderEpoch,
    /// Magic 2 of 1.0: leader epoch and statistics, 56 bytes.
    LeaderEpochAndStatistics,
}

impl Layout {
    fn crc_at(self) -> usize {
        match self {
            Self::Plain | Self::Statistics => 21,
            Self::LeaderEpoch | Self::LeaderEpochAndStatistics => 25,
        }
    }

    fn has_statistics(self) -> bool {
        matches!(self, Self::Statistics | Self::LeaderEpochAndStatistics)
    }

    /// Bytes from `base_offset` to the end of the fixed header.
    pub fn header_size(self) -> usize {
        self.crc_at() + 27 + if self.has_statistics() { 4 } else { 0 }
    }
}

/// The fixed header of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogBatchHeader {
    /// Offset of the first record; 0 until the server sets it.
    pub base_offset: LogOffset,
    /// Bytes that follow the length field; the whole batch is 12 more.
    pub length: i32,
    /// The format's number: 0, 1 or 2.
    pub magic: u8,
    /// Which of the layouts of that magic.
    pub layout: Layout,
    /// When the server took the batch, ms since the epoch; 0 until then.
    pub commit_timestamp_ms: i64,
    /// The leader epoch it was stored under, if the layout has one; −1 until then.
    pub leader_epoch: Option<i32>,
    /// CRC-32C from the schema id to the end; stale in projected batches.
    pub crc: u32,
    /// The schema of the rows.
    pub schema_id: SchemaId,
    /// Set for log tables: all rows are `+A`.
    pub append_only: bool,
    /// Offset of the last record minus the base; a batch without records has 0 and still takes one
    /// offset.
    pub last_offset_delta: i32,
    /// The idempotent writer, −1 for none.
    pub writer_id: WriterId,
    /// Its sequence, −1 for none.
    pub batch_sequence: i32,
    /// How many records there are.
    pub record_count: i32,
    /// Bytes of statistics between header and records.
    pub statistics_length: usize,
}

/// One batch: its header, read, and all its bytes, shared.
#[derive(Clone, Debug)]
pub struct LogBatch {
    /// From base offset to the last record.
    pub bytes: Bytes,
    /// What the fixed header says.
    pub header: LogBatchHeader,
}

/// The size in bytes of the batch that starts here, from its first 12 bytes; `None` if there are
/// fewer. The size is what the bytes claim: at least 12, up to 2 GiB.
pub fn claimed_size(bytes: &[u8]) -> Option<usize> {
    let length = i32::from_le_bytes(bytes_at(bytes, 8)?);
    Some(PREFIX + usize::try_from(length).unwrap_or(0))
}

impl LogBatchHeader {
    /// Reads the header of the one batch that `batch` holds, no byte more or less.
    ///
    /// # Errors
    /// [`Error::Corrupt`] names the field that is wrong. Checksums are compared only to tell the
    /// two layouts of magic 1 apart.
    pub fn parse(batch: &[u8]) -> Result<Self> {
        let cut = || Error::corrupt(FORMAT, "batch is cut off");
        let length = i32::from_le_bytes(bytes_at(batch, 8).ok_or_else(cut)?);
        let magic = *batch.get(MAGIC_AT).ok_or_else(cut)?;
        if usize::try_from(length)
            .ok()
            .and_then(|length| length.checked_add(PREFIX))
            != Some(batch.len())
        {
            return Err(Error::corrupt(
                FORMAT,
                "length differs from the bytes of the batch",
            ));
        }
        let layout = layout_of(batch, magic)?;
        Self::read(batch, magic, layout)
            .ok_or_else(cut)?
            .checked(batch)
    }

    fn read(batch: &[u8], magic: u8, layout: Layout) -> Option<Self> {
        let crc_at = layout.crc_at();
        let field = |at: usize| bytes_at::<4>(batch, crc_at + at);
        let leader_epoch = match layout {
            Layout::LeaderEpoch | Layout::LeaderEpochAndStatistics => {
                Some(i32::from_le_bytes(bytes_at(batch, 21)?))
            }
            Layout::Plain | Layout::Statistics => None,
        };
        let statistics_length = if layout.has_statistics() {
            // A negative length becomes one that no batch can hold.
            usize::try_from(i32::from_le_bytes(field(27)?)).unwrap_or(usize::MAX)
        } else {
            0
        };
        Some(Self {
            base_offset: LogOffset(i64::from_le_bytes(bytes_at(batch, 0)?)),
            length: i32::from_le_bytes(bytes_at(batch, 8)?),
            magic,
            layout,
            commit_timestamp_ms: i64::from_le_bytes(bytes_at(batch, TIMESTAMP_AT)?),
            leader_epoch,
            crc: u32::from_le_bytes(field(0)?),
            schema_id: SchemaId(i32::from(i16::from_le_bytes(bytes_at(batch, crc_at + 4)?))),
            append_only: batch.get(crc_at + 6)? & 1 == 1,
            last_offset_delta: i32::from_le_bytes(field(7)?),
            writer_id: WriterId(i64::from_le_bytes(bytes_at(batch, crc_at + 11)?)),
            batch_sequence: i32::from_le_bytes(field(19)?),
            record_count: i32::from_le_bytes(field(23)?),
            statistics_length,
        })
    }

    fn checked(self, batch: &[u8]) -> Result<Self> {
        let room = batch.len().saturating_sub(self.layout.header_size());
        let wrong = |reason| Err(Error::corrupt(FORMAT, reason));
        if self.last_offset_delta < 0 {
            return wrong("last offset delta is negative");
        }
        if self.record_count < 0
            || i64::from(self.record_count) > i64::from(self.last_offset_delta) + 1
        {
            return wrong("record count does not fit the last offset delta");
        }
        if self.base_offset.0 < 0
            || self
                .base_offset
                .0
                .checked_add(i64::from(self.last_offset_delta) + 1)
                .is_none()
        {
            return wrong("base offset is out of range");
        }
        if self.statistics_length > room {
            return wrong("statistics are longer than the batch");
        }
        Ok(self)
    }

    /// The offset that follows the batch.
    pub fn next_offset(&self) -> LogOffset {
        LogOffset(self.base_offset.0 + i64::from(self.last_offset_delta) + 1)
    }

    /// The offset of its last record.
    pub fn last_offset(&self) -> LogOffset {
        LogOffset(self.base_offset.0 + i64::from(self.last_offset_delta))
    }
}

fn layout_of(batch: &[u8], magic: u8) -> Result<Layout> {
    match magic {
        0 => Ok(Layout::Plain),
        1 => {
            let holds = |layout: Layout| {
                let stored = bytes_at(batch, layout.crc_at()).map(u32::from_le_bytes);
                stored.is_some() && stored == computed_crc(batch, layout)
            };
            // A projected batch holds neither checksum; only 1.0 serves magic 1 to clients that
            // know its layout.
            let old = !holds(Layout::Statistics) && holds(Layout::LeaderEpoch);
            Ok(if old {
                Layout::LeaderEpoch
            } else {
                Layout::Statistics
            })
        }
        2 => Ok(Layout::LeaderEpochAndStatistics),
        _ => Err(Error::corrupt(FORMAT, "magic is not 0, 1 or 2")),
    }
}

fn computed_crc(batch: &[u8], layout: Layout) -> Option<u32> {
    batch.get(layout.crc_at() + 4..).map(crc32c::crc32c)
}

impl LogBatch {
    /// Takes the first batch off `bytes`, sharing them.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the bytes end before the batch does, or its header is wrong; `bytes`
    /// is then unchanged.
    pub fn parse(bytes: &mut Bytes) -> Result<Self> {
        let size = claimed_size(bytes).filter(|size| *size <= bytes.len());
        let size = size.ok_or_else(|| Error::corrupt(FORMAT, "batch is cut off"))?;
        let batch = bytes.slice(..size);
        let header = LogBatchHeader::parse(&batch)?;
        bytes.advance(size);
        Ok(Self {
            bytes: batch,
            header,
        })
    }

    /// Checks the bytes against the checksum. Projected batches fail by design: don't ask for
    /// those.
    ///
    /// # Errors
    /// [`Error::Checksum`].
    pub fn verify_crc(&self) -> Result<()> {
        let computed = computed_crc(&self.bytes, self.header.layout).unwrap_or_default();
        if computed == self.header.crc {
            return Ok(());
        }
        Err(Error::Checksum {
            format: FORMAT,
            stored: self.header.crc,
            computed,
        })
    }

    /// The offset that follows the batch: base + last offset delta + 1.
    pub fn next_offset(&self) -> LogOffset {
        self.header.next_offset()
    }

    /// What follows header and statistics: change types and rows.
    pub fn records(&self) -> Bytes {
        self.bytes.slice(self.records_at()..)
    }

    /// Where the records begin.
    pub(crate) fn records_at(&self) -> usize {
        self.header.layout.header_size() + self.header.statistics_length
    }

    /// How many records there are; the header was checked, so this is never negative.
    pub fn record_count(&self) -> usize {
        usize::try_from(self.header.record_count).unwrap_or(0)
    }
}

/// The batches of a `records` field or of a stretch of log, in order, sharing its bytes.
pub fn batches(bytes: impl Into<Bytes>) -> Batches {
    Batches { rest: bytes.into() }
}

/// See [`batches`]. Ends after the first error.
#[derive(Debug)]
pub struct Batches {
    rest: Bytes,
}

impl Iterator for Batches {
    type Item = Result<LogBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let batch = LogBatch::parse(&mut self.rest);
        if batch.is_err() {
            self.rest.clear();
        }
        Some(batch)
    }
}

/// Writes what the server decides into a batch: its place in the log and its time. The checksum
/// stays valid.
///
/// # Errors
/// [`Error::Corrupt`] if `batch` is shorter than these fields.
pub fn set_stored(
    batch: &mut [u8],
    base_offset: LogOffset,
    commit_timestamp_ms: i64,
) -> Result<()> {
    if batch.len() < HEADER_SIZE {
        return Err(Error::corrupt(FORMAT, "batch is cut off"));
    }
    put_at(batch, 0, &base_offset.0.to_le_bytes());
    put_at(batch, TIMESTAMP_AT, &commit_timestamp_ms.to_le_bytes());
    Ok(())
}

/// Gives a batch of magic 0 another writer and sequence, and the checksum that goes with them.
///
/// # Errors
/// [`Error::Corrupt`] if there is no whole header.
pub fn set_writer(batch: &mut [u8], writer_id: WriterId, batch_sequence: i32) -> Result<()> {
    if batch.len() < HEADER_SIZE {
        return Err(Error::corrupt(FORMAT, "batch is cut off"));
    }
    put_at(batch, WRITER_AT, &writer_id.0.to_le_bytes());
    put_at(batch, WRITER_AT + 8, &batch_sequence.to_le_bytes());
    let crc = computed_crc(batch, Layout::Plain).unwrap_or_default();
    put_at(batch, Layout::Plain.crc_at(), &crc.to_le_bytes());
    Ok(())
}

/// A batch of magic 0 without records: it takes one offset and one sequence.
///
/// # Errors
/// [`Error::TooLarge`] for a schema id above 32 767.
pub fn encode_empty(id: BatchIdentity) -> Result<Bytes> {
    let mut out = vec![0; HEADER_SIZE];
    finish(
        &mut out,
        id,
        RecordsHeader {
            append_only: false,
            record_count: 0,
        },
    )?;
    Ok(out.into())
}

/// What the header says of the records.
#[derive(Clone, Copy)]
pub(crate) struct RecordsHeader {
    pub(crate) append_only: bool,
    pub(crate) record_count: usize,
}

/// Fills the header of a new batch of magic 0 whose records stand behind [`HEADER_SIZE`] bytes in
/// `out`.
pub(crate) fn finish(out: &mut [u8], id: BatchIdentity, records: RecordsHeader) -> Result<()> {
    let too_large = |what, size: usize| Error::TooLarge {
        what,
        size: size as u64,
        limit: i32::MAX as u64,
    };
    let length = i32::try_from(out.len().saturating_sub(PREFIX))
        .map_err(|_| too_large("bytes of a log batch", out.len()))?;
    let count = i32::try_from(records.record_count)
        .map_err(|_| too_large("records of a log batch", records.record_count))?;
    let schema_id = schema_id_on_wire(id.schema_id)?;
    put_at(out, 8, &length.to_le_bytes());
    put_at(out, 25, &schema_id.to_le_bytes());
    put_at(out, 27, &[u8::from(records.append_only)]);
    put_at(out, 28, &(count - 1).max(0).to_le_bytes());
    put_at(out, 32, &id.writer_id.0.to_le_bytes());
    put_at(out, 40, &id.batch_sequence.to_le_bytes());
    put_at(out, 44, &count.to_le_bytes());
    let crc = computed_crc(out, Layout::Plain).unwrap_or_default();
    put_at(out, 21, &crc.to_le_bytes());
    Ok(())
}
