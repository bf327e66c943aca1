//! The ARROW log format: a batch's rows as one Arrow IPC record batch message, without schema
//! message and end marker.
//!
//! Source: fluss `MemoryLogRecordsArrowBuilder`, `ArrowUtils`, `FileLogProjection`; Arrow IPC
//! `Message.fbs`. Encoding writes the message byte for byte as the reference does; bodies differ
//! only in what compressors choose.

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, SchemaRef};
use bytes::Bytes;

use super::log_batch::LogBatch;
use super::{BatchIdentity, ChangeType};
use crate::error::Result;
use crate::ids::{SchemaId, WriterId};

mod codec;
mod decode;
mod encode;
mod message;
mod project;

#[cfg(test)]
mod tests;

/// How the buffers of a batch are compressed (`table.log.arrow.compression.type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// As they are.
    None,
    /// LZ4 frames.
    Lz4,
    /// ZSTD at this level, 1..=22; the reference's default is 3.
    Zstd(i32),
}

/// What a reader accepts of one batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeLimits {
    /// Most bytes that its compressed buffers may declare to hold together; checked before any is
    /// allocated.
    pub max_uncompressed_bytes: u64,
}

impl Default for DecodeLimits {
    /// 256 MiB: reference writers close a batch at 2 MiB.
    fn default() -> Self {
        Self {
            max_uncompressed_bytes: 256 << 20,
        }
    }
}

/// The rows of a batch.
#[derive(Clone, Debug)]
pub struct DecodedBatch {
    /// The rows; buffers that were not compressed share the batch's bytes where their alignment
    /// allows.
    pub batch: RecordBatch,
    /// What each row does, of changelogs; `None` means all are `+A`.
    pub change_types: Option<Vec<ChangeType>>,
}

/// A batch of rows for a log table, as a client sends it: magic 0, base offset and time 0.
///
/// Columns must have the plain Arrow types of [`crate::schema::LogicalType::arrow_type`]; slices
/// are fine. Costs one copy of the buffers (or their compression). A batch without rows becomes a
/// header alone.
///
/// # Errors
/// [`crate::Error::UnsupportedType`] for other Arrow types, [`crate::Error::TooLarge`] beyond 2
/// GiB, [`crate::Error::Compression`].
pub fn encode_append(
    schema_id: SchemaId,
    writer_id: WriterId,
    batch_sequence: i32,
    batch: &RecordBatch,
    compression: Compression,
) -> Result<Bytes> {
    encode::encode(
        BatchIdentity {
            schema_id,
            writer_id,
            batch_sequence,
        },
        None,
        batch,
        compression,
    )
}

/// A batch of changelog rows for a primary-key table, one change type each.
///
/// # Errors
/// As [`encode_append`], and [`crate::Error::Corrupt`] if the change types are not as many as the
/// rows.
pub fn encode_changelog(
    id: BatchIdentity,
    change_types: &[ChangeType],
    batch: &RecordBatch,
    compression: Compression,
) -> Result<Bytes> {
    encode::encode(id, Some(change_types), batch, compression)
}

/// The rows of a batch, under the default limits. `schema` is the Arrow schema of the batch's
/// schema id, or its projection for a projected batch. Checksums are not looked at: see
/// [`LogBatch::verify_crc`].
///
/// # Errors
/// [`crate::Error::Corrupt`] and [`crate::Error::Arrow`] for bytes that are no batch of that
/// schema, [`crate::Error::TooLarge`] for a batch above the limits.
pub fn decode(batch: &LogBatch, schema: &SchemaRef) -> Result<DecodedBatch> {
    decode_limited(batch, schema, DecodeLimits::default())
}

/// [`decode`] under these limits.
///
/// # Errors
/// As [`decode`].
pub fn decode_limited(
    batch: &LogBatch,
    schema: &SchemaRef,
    limits: DecodeLimits,
) -> Result<DecodedBatch> {
    decode::decode(batch, schema, limits)
}

/// The batch with only these columns, as a server answers a projected fetch: compressed buffers are
/// copied whole, the message is written anew, statistics are dropped, and the checksum stays as it
/// was, so it no longer matches.
///
/// * `written`: the schema of the batch's own schema id; `target`: the one that the reader has, which may
///   have further columns behind those; they become nulls.
/// * `columns`: indexes in `target`, strictly ascending.
///
/// # Errors
/// [`crate::Error::Projection`] for an empty, unsorted or too high projection,
/// [`crate::Error::Corrupt`] for bytes that are no batch of that schema.
pub fn project(
    batch: &LogBatch,
    written: &SchemaRef,
    target: &SchemaRef,
    columns: &[usize],
) -> Result<Bytes> {
    project::project(batch, written, target, columns)
}

/// How many field nodes and buffers a column of this type has in a message.
fn parts_of(data_type: &DataType) -> (usize, usize) {
    let fields = |own_buffers: usize, children: &mut dyn Iterator<Item = &DataType>| {
        let add = |(nodes, buffers): (usize, usize), (more_nodes, more_buffers)| {
            (nodes + more_nodes, buffers + more_buffers)
        };
        children.map(parts_of).fold((1, own_buffers), add)
    };
    match data_type {
        DataType::Utf8 | DataType::Binary => (1, 3),
        DataType::List(child) | DataType::Map(child, _) => {
            fields(2, &mut std::iter::once(child.data_type()))
        }
        DataType::Struct(children) => {
            fields(1, &mut children.iter().map(|child| child.data_type()))
        }
        _ => (1, 2),
    }
}
