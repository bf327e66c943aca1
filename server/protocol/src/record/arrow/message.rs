//! The metadata of a record batch message: read through Arrow's verifier, written with the
//! reference's own layout.

use arrow::ipc::{BodyCompressionMethod, CompressionType, MessageHeader, root_as_message};

use super::super::{bytes_at, put_at};
use crate::error::{Error, Result};

const FORMAT: &str = "arrow message";
/// Continuation marker and metadata length.
pub(super) const PREFIX: usize = 8;

/// How the body's buffers are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Codec {
    Raw,
    Lz4,
    Zstd,
}

/// One field node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) length: usize,
    pub(super) null_count: usize,
}

/// Where a buffer stands in the body, checked to lie within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) offset: usize,
    pub(super) length: usize,
}

/// What the metadata of a record batch says.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) rows: usize,
    pub(super) codec: Codec,
    pub(super) nodes: Vec<Node>,
    pub(super) buffers: Vec<Span>,
    /// Where the body begins, counted from the start of the message.
    pub(super) body_at: usize,
    pub(super) body_length: usize,
}

impl Message {
    /// Reads the message at the start of `bytes`.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self> {
        let cut = || Error::corrupt(FORMAT, "message is cut off");
        if bytes_at::<4>(bytes, 0).ok_or_else(cut)? != [0xff; 4] {
            return Err(Error::corrupt(FORMAT, "continuation marker is missing"));
        }
        let metadata_length = i32::from_le_bytes(bytes_at(bytes, 4).ok_or_else(cut)?);
        let body_at = usize::try_from(metadata_length)
            .ok()
            .and_then(|length| length.checked_add(PREFIX));
        let body_at = body_at.ok_or_else(cut)?;
        let metadata = bytes.get(PREFIX..body_at).ok_or_else(cut)?;
        let message = root_as_message(metadata)
            .map_err(|_| Error::corrupt(FORMAT, "metadata is no flatbuffer"))?;
        if message.header_type() != MessageHeader::RecordBatch {
            return Err(Error::corrupt(FORMAT, "message is no record batch"));
        }
        let batch = message
            .header_as_record_batch()
            .ok_or_else(|| Error::corrupt(FORMAT, "record batch is missing"))?;
        let body_length = size(message.bodyLength())?;
        if body_length > bytes.len() - body_at {
            return Err(cut());
        }
        let codec = match batch.compression() {
            None => Codec::Raw,
            Some(body) if body.method() != BodyCompressionMethod::BUFFER => {
                return Err(Error::corrupt(
                    FORMAT,
                    "compression method is not by buffer",
                ));
            }
            Some(body) => match body.codec() {
                CompressionType::LZ4_FRAME => Codec::Lz4,
                CompressionType::ZSTD => Codec::Zstd,
                _ => return Err(Error::corrupt(FORMAT, "compression codec is unknown")),
            },
        };
        let mut nodes = Vec::new();
        for node in batch.nodes().iter().flatten() {
            nodes.push(Node {
                length: size(node.length())?,
                null_count: size(node.null_count())?,
            });
        }
        let mut buffers = Vec::new();
        for buffer in batch.buffers().iter().flatten() {
            let span = Span {
                offset: size(buffer.offset())?,
                length: size(buffer.length())?,
            };
            if span
                .offset
                .checked_add(span.length)
                .is_none_or(|end| end > body_length)
            {
                return Err(Error::corrupt(FORMAT, "buffer reaches past the body"));
            }
            buffers.push(span);
        }
        Ok(Self {
            rows: size(batch.length())?,
            codec,
            nodes,
            buffers,
            body_at,
            body_length,
        })
    }
}

fn size(value: i64) -> Result<usize> {
    usize::try_from(value).map_err(|_| Error::corrupt(FORMAT, "size is negative"))
}

/// Where the parts of the metadata stand. The reference's flatbuffer builder always gives the same
/// layout for the same codec, so its tables are constants and only vectors vary in length.
struct Form {
    tables: &'static [u8],
    rows_at: usize,
    buffers_offset_at: usize,
    nodes_offset_at: usize,
}

const BODY_LENGTH_AT: usize = 24;

#[rustfmt::skip]
const RAW: Form = Form {
    tables: &[
        0x14, 0, 0, 0, 0, 0, 0, 0,
        // Message: vtable; then offset to it, body length, version V5, header, header type.
        0x0c, 0, 0x16, 0, 0x0e, 0, 0x15, 0, 0x10, 0, 0x04, 0, 0x0c, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x04, 0, 0x10, 0, 0, 0, 0, 0x03,
        // RecordBatch: vtable; then offset to it, offsets of buffers and nodes, rows.
        0x0a, 0, 0x18, 0, 0x0c, 0, 0x08, 0, 0x04, 0, 0x0a, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ],
    rows_at: 64,
    buffers_offset_at: 56,
    nodes_offset_at: 60,
};

#[rustfmt::skip]
const LZ4: Form = Form {
    tables: &[
        0x14, 0, 0, 0, 0, 0, 0, 0,
        0x0c, 0, 0x18, 0, 0x0e, 0, 0x17, 0, 0x10, 0, 0x04, 0, 0x0c, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x04, 0, 0x14, 0, 0, 0, 0, 0, 0, 0x03,
        // RecordBatch: also the offset of its compression.
        0x0c, 0, 0x1c, 0, 0x10, 0, 0x0c, 0, 0x08, 0, 0x04, 0, 0x0c, 0, 0, 0,
        0x1c, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        // BodyCompression: all defaults, LZ4_FRAME by buffer.
        0x04, 0, 0x04, 0, 0x04, 0, 0, 0,
    ],
    rows_at: 72,
    buffers_offset_at: 64,
    nodes_offset_at: 68,
};

#[rustfmt::skip]
const ZSTD: Form = Form {
    tables: &[
        0x14, 0, 0, 0, 0, 0, 0, 0,
        0x0c, 0, 0x18, 0, 0x0e, 0, 0x17, 0, 0x10, 0, 0x04, 0, 0x0c, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x04, 0, 0x14, 0, 0, 0, 0, 0, 0, 0x03,
        0x0c, 0, 0x1e, 0, 0x10, 0, 0x0c, 0, 0x08, 0, 0x04, 0, 0x0c, 0, 0, 0,
        0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        // BodyCompression: codec 1, ZSTD.
        0x06, 0, 0x08, 0, 0x07, 0, 0x06, 0, 0, 0, 0, 0, 0, 0x01,
    ],
    rows_at: 72,
    buffers_offset_at: 64,
    nodes_offset_at: 68,
};

impl Codec {
    fn form(self) -> &'static Form {
        match self {
            Self::Raw => &RAW,
            Self::Lz4 => &LZ4,
            Self::Zstd => &ZSTD,
        }
    }

    /// Bytes of a message before its body, prefix included; a multiple of 8.
    pub(super) fn message_head(self, nodes: usize, buffers: usize) -> usize {
        // Each vector: padding or count of 4 + 4 bytes in all, then 16 bytes an entry.
        PREFIX + self.form().tables.len() + 4 + 16 * buffers + 8 + 16 * nodes
    }
}

/// Writes the head of a message at `at`, where [`Codec::message_head`] bytes are zero.
pub(super) fn write_head(out: &mut [u8], at: usize, message: &Message) {
    let form = message.codec.form();
    let metadata = at + PREFIX;
    let buffers_at = form.tables.len();
    let nodes_at = buffers_at + 4 + 16 * message.buffers.len() + 4;
    let end = nodes_at + 4 + 16 * message.nodes.len();
    put_at(out, at, &[0xff; 4]);
    put_at(out, at + 4, &count(end).to_le_bytes());
    put_at(out, metadata, form.tables);
    put_at(
        out,
        metadata + BODY_LENGTH_AT,
        &(message.body_length as u64).to_le_bytes(),
    );
    put_at(
        out,
        metadata + form.rows_at,
        &(message.rows as u64).to_le_bytes(),
    );
    put_at(
        out,
        metadata + form.buffers_offset_at,
        &count(buffers_at - form.buffers_offset_at).to_le_bytes(),
    );
    put_at(
        out,
        metadata + form.nodes_offset_at,
        &count(nodes_at - form.nodes_offset_at).to_le_bytes(),
    );
    put_at(
        out,
        metadata + buffers_at,
        &count(message.buffers.len()).to_le_bytes(),
    );
    for (index, span) in message.buffers.iter().enumerate() {
        put_pair(
            out,
            metadata + buffers_at + 4 + 16 * index,
            span.offset,
            span.length,
        );
    }
    put_at(
        out,
        metadata + nodes_at,
        &count(message.nodes.len()).to_le_bytes(),
    );
    for (index, node) in message.nodes.iter().enumerate() {
        put_pair(
            out,
            metadata + nodes_at + 4 + 16 * index,
            node.length,
            node.null_count,
        );
    }
}

fn put_pair(out: &mut [u8], at: usize, first: usize, second: usize) {
    put_at(out, at, &(first as u64).to_le_bytes());
    put_at(out, at + 8, &(second as u64).to_le_bytes());
}

fn count(value: usize) -> u32 {
    let count = u32::try_from(value);
    assert!(
        count.is_ok(),
        "metadata of {value} bytes cannot come of a schema"
    );
    count.unwrap_or(u32::MAX)
}
