//! A client's log batches, checked once before they are appended.

use std::fmt;

use bytes::Bytes;
use weir_protocol::ids::{LogOffset, SchemaId, TableBucket, WriterId};

use super::error::{Error, Result};

/// The longest header of a batch that is stored, in bytes (magic 1).
pub(crate) const MAX_HEADER_BYTES: usize = 52;
/// The header of magic 0.
pub(crate) const MIN_HEADER_BYTES: usize = 48;
/// Base offset and length: they are not counted in the length.
const PREFIX_BYTES: usize = 12;

/// Why a batch is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchFault {
    /// The request carries no batch.
    Empty,
    /// The bytes end inside of the batch.
    Truncated,
    /// The length is below a header or above the limit.
    Length(i64),
    /// The magic is not one that is stored (0 and 1).
    Magic(i8),
    /// The checksum does not hold.
    Checksum,
    /// Record count and last offset delta contradict each other.
    RecordCount {
        /// The count of records in the header.
        records: i32,
        /// The last offset delta in the header.
        last_offset_delta: i32,
    },
}

impl fmt::Display for BatchFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BatchFault::Empty => write!(f, "no batch"),
            BatchFault::Truncated => write!(f, "the bytes end inside of it"),
            BatchFault::Length(length) => write!(f, "length {length} is out of bounds"),
            BatchFault::Magic(magic) => write!(f, "magic {magic} is not stored (0 and 1 are)"),
            BatchFault::Checksum => write!(f, "checksum does not hold"),
            BatchFault::RecordCount {
                records,
                last_offset_delta,
            } => {
                write!(
                    f,
                    "{records} records with last offset delta {last_offset_delta}"
                )
            }
        }
    }
}

/// What the log needs to know of one batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchHeader {
    pub(crate) base_offset: LogOffset,
    /// The whole batch, header included.
    pub(crate) size_bytes: usize,
    pub(crate) timestamp_ms: i64,
    pub(crate) crc: u32,
    pub(crate) schema_id: SchemaId,
    pub(crate) last_offset_delta: i32,
    /// None: not idempotent, nothing is checked.
    pub(crate) writer: Option<WriterId>,
    pub(crate) sequence: i32,
    pub(crate) record_count: i32,
}

/// Where the checksum's cover begins, in magic 0 and 1 alike.
const CRC_FROM: usize = 25;

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
            headers.push(header);
            rest = after;
        }
        Ok(Self { bytes, headers })
    }

    /// The largest schema id among the batches; the caller refuses one that does not exist.
    pub fn max_schema_id(&self) -> SchemaId {
        self.headers
            .iter()
            .map(|header| header.schema_id)
            .max()
            .unwrap_or(SchemaId(0))
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
