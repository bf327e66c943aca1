//! A client's log batches, checked once before they are appended.

use bytes::Bytes;
use weir_protocol::ids::{LogOffset, SchemaId, TableBucket, WriterId};

use super::error::{BatchFault, Error, Result};

/// The longest header of a batch that is stored, in bytes (magic 1).
pub(crate) const MAX_HEADER_BYTES: usize = 52;
/// The header of magic 0.
pub(crate) const MIN_HEADER_BYTES: usize = 48;
/// Base offset and length: they are not counted in the length.
const PREFIX_BYTES: usize = 12;

/// What the log needs to know of one batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchHeader {
    pub(crate) base_offset: LogOffset,
    /// The whole batch, header included.
    pub(crate) size_bytes: usize,
    pub(crate) timestamp_ms: i64,
    pub(crate) crc: u32,
    pub(crate) schema_id: SchemaId,
    /// All its records are appended, none changes or deletes another.
    pub(crate) append_only: bool,
    pub(crate) last_offset_delta: i32,
    /// None: not idempotent, nothing is checked.
    pub(crate) writer: Option<WriterId>,
    pub(crate) sequence: i32,
    pub(crate) record_count: i32,
}

/// Where the checksum's cover begins, in magic 0 and 1 alike.
const CRC_FROM: usize = 25;
/// The bit of the attributes that says so.
const APPEND_ONLY: u8 = 1;

impl BatchHeader {
    /// Reads the header at the start of `bytes`, which may end before the batch does: a walk over a
    /// segment need not read the bodies. (The protocol's own reader wants the whole batch, to tell the two
    /// layouts of magic 1 apart; only that of 1.0 is ever stored.)
    /// Layout: the reference's log record batch, magic 0 and 1 (of 1.0), little-endian.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, BatchFault> {
        let length = i32::from_le_bytes(field(bytes, 8)?);
        let magic = i8::from_le_bytes(field(bytes, 12)?);
        let header_bytes = match magic {
            0 => MIN_HEADER_BYTES,
            1 => MAX_HEADER_BYTES,
            _ => return Err(BatchFault::Magic(magic)),
        };
        let size_bytes = usize::try_from(length)
            .ok()
            .and_then(|length| length.checked_add(PREFIX_BYTES))
            .filter(|size| *size >= header_bytes)
            .ok_or(BatchFault::Length(i64::from(length)))?;
        let writer = i64::from_le_bytes(field(bytes, 32)?);
        let header = Self {
            base_offset: LogOffset(i64::from_le_bytes(field(bytes, 0)?)),
            size_bytes,
            timestamp_ms: i64::from_le_bytes(field(bytes, 13)?),
            crc: u32::from_le_bytes(field(bytes, 21)?),
            schema_id: SchemaId(i32::from(i16::from_le_bytes(field(bytes, 25)?))),
            append_only: u8::from_le_bytes(field(bytes, 27)?) & APPEND_ONLY == APPEND_ONLY,
            last_offset_delta: i32::from_le_bytes(field(bytes, 28)?),
            writer: (writer >= 0).then_some(WriterId(writer)),
            sequence: i32::from_le_bytes(field(bytes, 40)?),
            record_count: i32::from_le_bytes(field(bytes, 44)?),
        };
        header.check_counts()?;
        Ok(header)
    }

    /// A batch takes `last offset delta + 1` offsets, at least one, and holds at most so many records.
    fn check_counts(&self) -> Result<(), BatchFault> {
        let (records, last_offset_delta) = (self.record_count, self.last_offset_delta);
        let offsets = i64::from(last_offset_delta) + 1;
        if offsets < 1 || records < 0 || i64::from(records) > offsets {
            return Err(BatchFault::RecordCount {
                records,
                last_offset_delta,
            });
        }
        Ok(())
    }

    /// Whether a client may append this to a log table: each record has an offset of its own and is an
    /// append. One without any record takes an offset all the same.
    fn check_appended(&self) -> Result<(), BatchFault> {
        let (records, last_offset_delta) = (self.record_count, self.last_offset_delta);
        if records == 0 {
            return Ok(());
        }
        if i64::from(records) != i64::from(last_offset_delta) + 1 {
            return Err(BatchFault::RecordCount {
                records,
                last_offset_delta,
            });
        }
        if !self.append_only {
            return Err(BatchFault::Changes);
        }
        Ok(())
    }

    /// The offset after this batch; None beyond the largest offset.
    pub(crate) fn next_offset(&self) -> Option<LogOffset> {
        let next = self
            .base_offset
            .0
            .checked_add(i64::from(self.last_offset_delta))?;
        Some(LogOffset(next.checked_add(1)?))
    }

    /// Whether the checksum of this very batch holds.
    pub(crate) fn crc_holds(&self, batch: &[u8]) -> bool {
        batch
            .get(CRC_FROM..self.size_bytes)
            .is_some_and(|body| crc32c::crc32c(body) == self.crc)
    }
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], BatchFault> {
    bytes
        .get(at..at + N)
        .and_then(|slice| <[u8; N]>::try_from(slice).ok())
        .ok_or(BatchFault::Truncated)
}

/// Batches of one append, each whole, of a stored magic, and with a checksum that holds.
#[derive(Clone, Debug)]
pub struct Batches {
    pub(crate) bytes: Bytes,
    pub(crate) headers: Vec<BatchHeader>,
}

impl Batches {
    /// Checks the batches of one produce request for one bucket. Pure; reads every byte once, so call
    /// it where that much work may be done, and before any lock.
    ///
    /// # Errors
    /// [`Error::BadBatch`] naming the first batch that is refused.
    pub fn check(bucket: TableBucket, bytes: Bytes, max_batch_bytes: usize) -> Result<Self> {
        let refuse = |index, fault| Error::BadBatch {
            bucket,
            index,
            fault,
        };
        if bytes.is_empty() {
            return Err(refuse(0, BatchFault::Empty));
        }
        let mut headers = Vec::new();
        let mut rest: &[u8] = &bytes;
        while !rest.is_empty() {
            let index = headers.len();
            let header = BatchHeader::parse(rest).map_err(|fault| refuse(index, fault))?;
            if header.size_bytes > max_batch_bytes {
                let length = i64::try_from(header.size_bytes).unwrap_or(i64::MAX);
                return Err(refuse(index, BatchFault::Length(length)));
            }
            let Some((batch, after)) = rest.split_at_checked(header.size_bytes) else {
                return Err(refuse(index, BatchFault::Truncated));
            };
            if !header.crc_holds(batch) {
                return Err(refuse(index, BatchFault::Checksum));
            }
            header
                .check_appended()
                .map_err(|fault| refuse(index, fault))?;
            headers.push(header);
            rest = after;
        }
        Ok(Self { bytes, headers })
    }

    /// One batch that the server made itself: a changelog, which no client may append.
    ///
    /// # Errors
    /// [`Error::BadBatch`] if it is longer than batches may be, or none.
    pub fn made(bucket: TableBucket, bytes: Bytes, max_batch_bytes: usize) -> Result<Self> {
        let refuse = |fault| Error::BadBatch {
            bucket,
            index: 0,
            fault,
        };
        let header = BatchHeader::parse(&bytes).map_err(refuse)?;
        if header.size_bytes != bytes.len() || header.size_bytes > max_batch_bytes {
            let length = i64::try_from(header.size_bytes).unwrap_or(i64::MAX);
            return Err(refuse(BatchFault::Length(length)));
        }
        let headers = vec![header];
        Ok(Self { bytes, headers })
    }

    /// How many records the batches hold together.
    pub fn record_count(&self) -> u64 {
        self.headers
            .iter()
            .map(|header| u64::try_from(header.record_count).unwrap_or(0))
            .sum()
    }

    /// The size in bytes.
    pub fn size_bytes(&self) -> usize {
        self.bytes.len()
    }
}
