//! From Arrow arrays to a batch.

use arrow::array::{Array, AsArray, GenericByteArray, RecordBatch};
use arrow::buffer::{BooleanBuffer, NullBuffer, OffsetBuffer};
use arrow::datatypes::{ByteArrayType, DataType};
use bytes::Bytes;

use super::super::log_batch::{HEADER_SIZE, RecordsHeader, finish};
use super::super::{BatchIdentity, ChangeType};
use super::message::{Codec, Message, Node, Span, write_head};
use super::{Compression, codec, parts_of};
use crate::error::{Error, Result};

pub(super) fn encode(
    id: BatchIdentity,
    change_types: Option<&[ChangeType]>,
    batch: &RecordBatch,
    compression: Compression,
) -> Result<Bytes> {
    let rows = batch.num_rows();
    if change_types.is_some_and(|types| types.len() != rows) {
        return Err(Error::corrupt(
            "changelog batch",
            "number of change types differs from rows",
        ));
    }
    let columns = batch.columns();
    let parts = columns.iter().map(|column| parts_of(column.data_type()));
    let (nodes, buffers) = parts.fold((0, 0), |sum, part| (sum.0 + part.0, sum.1 + part.1));
    let codec = compression.codec();
    let head = if rows == 0 {
        0
    } else {
        codec.message_head(nodes, buffers)
    };
    let message_at = HEADER_SIZE + change_types.map_or(0, <[_]>::len);
    let body_at = message_at + head;

    let mut out = Vec::with_capacity(body_at + expected_size(batch, codec));
    out.resize(HEADER_SIZE, 0);
    out.extend(
        change_types
            .into_iter()
            .flatten()
            .map(|change| change.byte()),
    );
    out.resize(body_at, 0);
    if rows > 0 {
        let message = Message {
            rows,
            codec,
            nodes: Vec::with_capacity(nodes),
            buffers: Vec::with_capacity(buffers),
            body_at: head,
            body_length: 0,
        };
        let mut body = Body {
            out,
            start: body_at,
            message,
            compression,
            scratch: Vec::new(),
        };
        for column in columns {
            body.array(column.as_ref())?;
        }
        body.message.body_length = body.out.len() - body_at;
        write_head(&mut body.out, message_at, &body.message);
        out = body.out;
    }
    finish(
        &mut out,
        id,
        RecordsHeader {
            append_only: change_types.is_none(),
            record_count: rows,
        },
    )?;
    Ok(out.into())
}

/// A guess that spares growing: all bytes, or a half under compression.
fn expected_size(batch: &RecordBatch, codec: Codec) -> usize {
    let sizes = batch
        .columns()
        .iter()
        .map(|column| column.to_data().get_slice_memory_size().unwrap_or(0));
    let total = sizes.sum::<usize>() + batch.num_columns() * (batch.num_rows().div_ceil(8) + 24);
    if codec == Codec::Raw {
        total
    } else {
        total / 2
    }
}

impl Compression {
    fn codec(self) -> Codec {
        match self {
            Self::None => Codec::Raw,
            Self::Lz4 => Codec::Lz4,
            Self::Zstd(_) => Codec::Zstd,
        }
    }
}

/// A body that grows by arrays, depth first.
struct Body {
    out: Vec<u8>,
    start: usize,
    message: Message,
    compression: Compression,
    scratch: Vec<u8>,
}

impl Body {
    fn array(&mut self, array: &dyn Array) -> Result<()> {
        self.message.nodes.push(Node {
            length: array.len(),
            null_count: array.null_count(),
        });
        self.validity(array.nulls(), array.len())?;
        match array.data_type() {
            DataType::Boolean => self.bits(array.as_boolean().values()),
            DataType::Utf8 => self.byte_array(array.as_string::<i32>()),
            DataType::Binary => self.byte_array(array.as_binary::<i32>()),
            DataType::FixedSizeBinary(width) => self.fixed(array, usize::try_from(*width).ok()),
            DataType::List(_) => {
                let list = array.as_list::<i32>();
                self.children(list.offsets(), list.values().as_ref())
            }
            DataType::Map(_, false) => {
                let map = array.as_map();
                self.children(map.offsets(), map.entries())
            }
            DataType::Struct(_) => {
                for column in array.as_struct().columns() {
                    self.array(column.as_ref())?;
                }
                Ok(())
            }
            DataType::Int8
            | DataType::Int16
            | DataType::Int32
            | DataType::Int64
            | DataType::Float32
            | DataType::Float64
            | DataType::Decimal128(..)
            | DataType::Date32
            | DataType::Time32(_)
            | DataType::Time64(_)
            | DataType::Timestamp(..) => self.fixed(array, array.data_type().primitive_width()),
            other => Err(Error::UnsupportedType {
                operation: "log batch encoding",
                type_name: other.to_string(),
            }),
        }
    }

    /// The values of an array whose only buffer has entries of one width.
    fn fixed(&mut self, array: &dyn Array, width: Option<usize>) -> Result<()> {
        let data = array.to_data();
        let values = match (data.buffers(), width) {
            ([values], Some(width)) => {
                values.get(data.offset() * width..(data.offset() + data.len()) * width)
            }
            _ => None,
        };
        assert!(
            values.is_some(),
            "an array of fixed width has one buffer that holds its rows"
        );
        self.push(values.unwrap_or_default())
    }

    fn byte_array<T: ByteArrayType<Offset = i32>>(
        &mut self,
        array: &GenericByteArray<T>,
    ) -> Result<()> {
        let (first, last) = self.offsets(array.offsets())?;
        self.push(array.value_data().get(first..last).unwrap_or_default())
    }

    fn children(&mut self, offsets: &OffsetBuffer<i32>, values: &dyn Array) -> Result<()> {
        let (first, last) = self.offsets(offsets)?;
        self.array(values.slice(first, last - first).as_ref())
    }

    /// Writes offsets from 0 on; returns which stretch of the values they name.
    fn offsets(&mut self, offsets: &OffsetBuffer<i32>) -> Result<(usize, usize)> {
        let first = offsets.first().copied().unwrap_or(0);
        let last = offsets.last().copied().unwrap_or(0);
        if first == 0 {
            self.push(offsets.inner().inner().as_slice())?;
        } else {
            let moved: Vec<u8> = offsets
                .iter()
                .flat_map(|offset| (offset - first).to_le_bytes())
                .collect();
            self.push(&moved)?;
        }
        Ok((
            usize::try_from(first).unwrap_or(0),
            usize::try_from(last).unwrap_or(0),
        ))
    }

    /// Validity is always written, also without nulls: every reader takes that.
    fn validity(&mut self, nulls: Option<&NullBuffer>, length: usize) -> Result<()> {
        match nulls {
            Some(nulls) => self.bits(nulls.inner()),
            None => self.bits(&BooleanBuffer::new_set(length)),
        }
    }

    fn bits(&mut self, bits: &BooleanBuffer) -> Result<()> {
        let packed = bits.sliced();
        let whole = bits.len() / 8;
        let rest = bits.len() % 8;
        if rest == 0 {
            return self.push(packed.get(..whole).unwrap_or_default());
        }
        let mut masked = packed.get(..=whole).unwrap_or_default().to_vec();
        if let Some(last) = masked.last_mut() {
            *last &= 0xff >> (8 - rest);
        }
        self.push(&masked)
    }

    fn push(&mut self, raw: &[u8]) -> Result<()> {
        let offset = self.out.len() - self.start;
        if !raw.is_empty() {
            self.write(raw)?;
        }
        let length = self.out.len() - self.start - offset;
        self.message.buffers.push(Span { offset, length });
        let padded = self.start + (offset + length).next_multiple_of(8);
        self.out.resize(padded, 0);
        Ok(())
    }

    fn write(&mut self, raw: &[u8]) -> Result<()> {
        match self.compression {
            Compression::None => {
                self.out.extend_from_slice(raw);
                return Ok(());
            }
            Compression::Lz4 => codec::lz4_compress(raw, &mut self.scratch)?,
            Compression::Zstd(level) => codec::zstd_compress(raw, level, &mut self.scratch)?,
        }
        if self.scratch.len() > raw.len() {
            self.out.extend_from_slice(&(-1i64).to_le_bytes());
            self.out.extend_from_slice(raw);
        } else {
            self.out
                .extend_from_slice(&(raw.len() as u64).to_le_bytes());
            self.out.extend_from_slice(&self.scratch);
        }
        Ok(())
    }
}
