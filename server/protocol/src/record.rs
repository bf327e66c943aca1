//! Record batches: what PRODUCE_LOG and PUT_KV carry and what logs store. All integers are
//! little-endian.

use crate::error::{Error, Result};
use crate::ids::{SchemaId, WriterId};

pub mod arrow;
pub mod kv_batch;
pub mod log_batch;
pub mod rows;

pub use log_batch::{LogBatch, LogBatchHeader, batches};

/// What a changelog record does to its key. The numbers are the wire's (Paimon's row kinds are
/// other numbers).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ChangeType {
    /// `+A`, a row of a log table.
    AppendOnly = 0,
    /// `+I`, a new key.
    Insert = 1,
    /// `-U`, the old row of a changed key.
    UpdateBefore = 2,
    /// `+U`, the new row of a changed key.
    UpdateAfter = 3,
    /// `-D`, the last row of a removed key.
    Delete = 4,
}

impl ChangeType {
    /// The change type with this number, or `None` for a number above 4.
    pub fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            0 => Self::AppendOnly,
            1 => Self::Insert,
            2 => Self::UpdateBefore,
            3 => Self::UpdateAfter,
            4 => Self::Delete,
            _ => return None,
        })
    }

    /// The number on the wire.
    pub fn byte(self) -> u8 {
        self as u8
    }
}

/// What names a batch to the server: schema, and the writer's place in its sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchIdentity {
    /// The schema of its rows; at most 32 767 on the wire.
    pub schema_id: SchemaId,
    /// The idempotent writer, or [`BatchIdentity::NO_WRITER`].
    pub writer_id: WriterId,
    /// The writer's sequence in the bucket, from 0; −1 without writer.
    pub batch_sequence: i32,
}

impl BatchIdentity {
    /// The writer id of batches that are not idempotent.
    pub const NO_WRITER: WriterId = WriterId(-1);

    /// A batch of no writer.
    pub fn anonymous(schema_id: SchemaId) -> Self {
        Self {
            schema_id,
            writer_id: Self::NO_WRITER,
            batch_sequence: -1,
        }
    }
}

/// A schema id as batches carry it.
pub(crate) fn schema_id_on_wire(id: SchemaId) -> Result<i16> {
    i16::try_from(id.0).map_err(|_| Error::TooLarge {
        what: "schema id of a batch",
        size: u64::from(id.0.unsigned_abs()),
        limit: 32_767,
    })
}

/// The N bytes at `at`, or `None` past the end.
pub(crate) fn bytes_at<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk::<N>().copied()
}

/// Overwrites bytes of a buffer that this crate has laid out.
pub(crate) fn put_at(bytes: &mut [u8], at: usize, value: &[u8]) {
    let place = bytes.get_mut(at..at + value.len());
    assert!(
        place.is_some(),
        "a header field is written only into a buffer that holds the header"
    );
    if let Some(place) = place {
        place.copy_from_slice(value);
    }
}
