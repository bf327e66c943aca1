//! From a batch to Arrow arrays. Every size is checked before it is used, so no bytes can make this
//! panic or allocate beyond the limits.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, BinaryArray, BooleanArray, FixedSizeBinaryArray,
    ListArray, MapArray, PrimitiveArray, RecordBatch, RecordBatchOptions, StringArray, StructArray,
};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{
    ArrowNativeType, DataType, Date32Type, Decimal128Type, FieldRef, Fields, Float32Type,
    Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, SchemaRef, Time32MillisecondType,
    Time32SecondType, Time64MicrosecondType, Time64NanosecondType, TimeUnit,
    TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType,
    TimestampSecondType,
};
use arrow::error::ArrowError;
use bytes::Bytes;

use super::super::log_batch::LogBatch;
use super::super::{ChangeType, bytes_at};
use super::message::{Codec, Message, Node, Span};
use super::{DecodeLimits, DecodedBatch, codec};
use crate::error::{Error, Result};

const FORMAT: &str = "arrow batch";

pub(super) fn decode(
    batch: &LogBatch,
    schema: &SchemaRef,
    limits: DecodeLimits,
) -> Result<DecodedBatch> {
    let rows = batch.record_count();
    let mut records = batch.records();
    if rows == 0 {
        let change_types = (!batch.header.append_only).then(Vec::new);
        return Ok(DecodedBatch {
            batch: RecordBatch::new_empty(Arc::clone(schema)),
            change_types,
        });
    }
    let change_types = if batch.header.append_only {
        None
    } else {
        Some(take_change_types(&mut records, rows)?)
    };
    let message = Message::parse(&records)?;
    if message.rows != rows {
        return Err(Error::corrupt(
            FORMAT,
            "rows of the message differ from the header's record count",
        ));
    }
    let body = records.slice(message.body_at..message.body_at + message.body_length);
    let mut reader = Reader {
        body,
        codec: message.codec,
        nodes: message.nodes.into_iter(),
        buffers: message.buffers.into_iter(),
        budget: limits.max_uncompressed_bytes,
        limit: limits.max_uncompressed_bytes,
    };
    let columns = reader.columns(schema.fields(), rows)?;
    if reader.nodes.next().is_some() || reader.buffers.next().is_some() {
        return Err(Error::corrupt(
            FORMAT,
            "message has more fields than the schema",
        ));
    }
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    let batch = RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)
        .map_err(refused)?;
    Ok(DecodedBatch {
        batch,
        change_types,
    })
}

/// Splits the change types off the front of a changelog's records.
fn take_change_types(records: &mut Bytes, rows: usize) -> Result<Vec<ChangeType>> {
    if records.len() < rows {
        return Err(Error::corrupt(FORMAT, "change types are cut off"));
    }
    let types: Option<Vec<ChangeType>> = records
        .split_to(rows)
        .iter()
        .copied()
        .map(ChangeType::from_byte)
        .collect();
    types.ok_or_else(|| Error::corrupt(FORMAT, "change type is above 4"))
}

fn refused(source: ArrowError) -> Error {
    Error::Arrow {
        what: FORMAT,
        source,
    }
}

/// Takes nodes and buffers in the order of the schema, depth first.
struct Reader {
    body: Bytes,
    codec: Codec,
    nodes: std::vec::IntoIter<Node>,
    buffers: std::vec::IntoIter<Span>,
    /// Bytes that may still be allocated.
    budget: u64,
    limit: u64,
}

impl Reader {
    fn columns(&mut self, fields: &Fields, rows: usize) -> Result<Vec<ArrayRef>> {
        let mut columns = Vec::with_capacity(fields.len());
        for field in fields {
            let column = self.array(field.data_type())?;
            if column.len() != rows {
                return Err(Error::corrupt(
                    FORMAT,
                    "column has another number of rows than the batch",
                ));
            }
            columns.push(column);
        }
        Ok(columns)
    }

    fn array(&mut self, data_type: &DataType) -> Result<ArrayRef> {
        let node = self
            .nodes
            .next()
            .ok_or_else(|| Error::corrupt(FORMAT, "message has fewer fields than the schema"))?;
        if i32::try_from(node.length).is_err() {
            return Err(Error::corrupt(FORMAT, "array is longer than 2^31"));
        }
        let nulls = self.validity(node)?;
        match data_type {
            DataType::Boolean => {
                let values = bits(self.buffer()?, node.length)?;
                Ok(Arc::new(BooleanArray::new(values, nulls)))
            }
            DataType::Utf8 => {
                let (offsets, values) = (self.offsets(node.length)?, self.buffer()?);
                Ok(Arc::new(
                    StringArray::try_new(offsets, values, nulls).map_err(refused)?,
                ))
            }
            DataType::Binary => {
                let (offsets, values) = (self.offsets(node.length)?, self.buffer()?);
                Ok(Arc::new(
                    BinaryArray::try_new(offsets, values, nulls).map_err(refused)?,
                ))
            }
            DataType::FixedSizeBinary(width) => self.fixed_size_binary(*width, node, nulls),
            DataType::List(field) => {
                let offsets = self.offsets(node.length)?;
                let values = self.array(field.data_type())?;
                Ok(Arc::new(
                    ListArray::try_new(Arc::clone(field), offsets, values, nulls)
                        .map_err(refused)?,
                ))
            }
            DataType::Map(field, false) => self.map(field, node, nulls),
            DataType::Struct(fields) => Ok(Arc::new(self.structs(fields, node, nulls)?)),
            other => self.primitive(other, node, nulls),
        }
    }

    fn primitive(
        &mut self,
        data_type: &DataType,
        node: Node,
        nulls: Option<NullBuffer>,
    ) -> Result<ArrayRef> {
        match data_type {
            DataType::Int8 => self.numbers::<Int8Type>(data_type, node, nulls),
            DataType::Int16 => self.numbers::<Int16Type>(data_type, node, nulls),
            DataType::Int32 => self.numbers::<Int32Type>(data_type, node, nulls),
            DataType::Int64 => self.numbers::<Int64Type>(data_type, node, nulls),
            DataType::Float32 => self.numbers::<Float32Type>(data_type, node, nulls),
            DataType::Float64 => self.numbers::<Float64Type>(data_type, node, nulls),
            DataType::Decimal128(..) => self.numbers::<Decimal128Type>(data_type, node, nulls),
            DataType::Date32 => self.numbers::<Date32Type>(data_type, node, nulls),
            DataType::Time32(TimeUnit::Second) => {
                self.numbers::<Time32SecondType>(data_type, node, nulls)
            }
            DataType::Time32(TimeUnit::Millisecond) => {
                self.numbers::<Time32MillisecondType>(data_type, node, nulls)
            }
            DataType::Time64(TimeUnit::Microsecond) => {
                self.numbers::<Time64MicrosecondType>(data_type, node, nulls)
            }
            DataType::Time64(TimeUnit::Nanosecond) => {
                self.numbers::<Time64NanosecondType>(data_type, node, nulls)
            }
            DataType::Timestamp(unit, _) => match unit {
                TimeUnit::Second => self.numbers::<TimestampSecondType>(data_type, node, nulls),
                TimeUnit::Millisecond => {
                    self.numbers::<TimestampMillisecondType>(data_type, node, nulls)
                }
                TimeUnit::Microsecond => {
                    self.numbers::<TimestampMicrosecondType>(data_type, node, nulls)
                }
                TimeUnit::Nanosecond => {
                    self.numbers::<TimestampNanosecondType>(data_type, node, nulls)
                }
            },
            other => Err(Error::UnsupportedType {
                operation: "log batch decoding",
                type_name: other.to_string(),
            }),
        }
    }

    fn numbers<T: ArrowPrimitiveType>(
        &mut self,
        data_type: &DataType,
        node: Node,
        nulls: Option<NullBuffer>,
    ) -> Result<ArrayRef> {
        let values = scalars::<T::Native>(self.buffer()?, node.length)?;
        let array = PrimitiveArray::<T>::try_new(values, nulls).map_err(refused)?;
        Ok(Arc::new(array.with_data_type(data_type.clone())))
    }

    fn fixed_size_binary(
        &mut self,
        width: i32,
        node: Node,
        nulls: Option<NullBuffer>,
    ) -> Result<ArrayRef> {
        let values = self.buffer()?;
        let size = usize::try_from(width)
            .ok()
            .and_then(|width| width.checked_mul(node.length));
        let size = size.filter(|size| *size <= values.len());
        let size = size.ok_or_else(|| Error::corrupt(FORMAT, "values buffer is too short"))?;
        let values = values.slice_with_length(0, size);
        let array = FixedSizeBinaryArray::try_new_with_len(width, values, nulls, node.length)
            .map_err(refused)?;
        Ok(Arc::new(array))
    }

    fn map(&mut self, field: &FieldRef, node: Node, nulls: Option<NullBuffer>) -> Result<ArrayRef> {
        let DataType::Struct(fields) = field.data_type() else {
            return Err(Error::UnsupportedType {
                operation: "log batch decoding",
                type_name: field.to_string(),
            });
        };
        let offsets = self.offsets(node.length)?;
        let entries_node = self
            .nodes
            .next()
            .ok_or_else(|| Error::corrupt(FORMAT, "message has fewer fields than the schema"))?;
        let entries_nulls = self.validity(entries_node)?;
        let entries = self.structs(fields, entries_node, entries_nulls)?;
        let map = MapArray::try_new(Arc::clone(field), offsets, entries, nulls, false)
            .map_err(refused)?;
        Ok(Arc::new(map))
    }

    fn structs(
        &mut self,
        fields: &Fields,
        node: Node,
        nulls: Option<NullBuffer>,
    ) -> Result<StructArray> {
        let columns = self.columns(fields, node.length)?;
        StructArray::try_new_with_length(fields.clone(), columns, nulls, node.length)
            .map_err(refused)
    }

    fn validity(&mut self, node: Node) -> Result<Option<NullBuffer>> {
        let buffer = self.buffer()?;
        if buffer.is_empty() {
            return match node.null_count {
                0 => Ok(None),
                // As the reference's reader takes it.
                count if count == node.length => {
                    self.charge(node.length.div_ceil(8) as u64)?;
                    Ok(Some(NullBuffer::new_null(node.length)))
                }
                _ => Err(Error::corrupt(FORMAT, "validity buffer is missing")),
            };
        }
        let nulls = NullBuffer::new(bits(buffer, node.length)?);
        Ok((nulls.null_count() > 0).then_some(nulls))
    }

    fn offsets(&mut self, length: usize) -> Result<OffsetBuffer<i32>> {
        let buffer = self.buffer()?;
        if length == 0 && buffer.is_empty() {
            return Ok(OffsetBuffer::new_empty());
        }
        let offsets = scalars::<i32>(buffer, length + 1)?;
        if offsets.first().is_some_and(|first| *first < 0) || !offsets.is_sorted() {
            return Err(Error::corrupt(FORMAT, "offsets fall"));
        }
        Ok(OffsetBuffer::new(offsets))
    }

    fn charge(&mut self, bytes: u64) -> Result<()> {
        let too_large = Error::TooLarge {
            what: "uncompressed bytes of a log batch",
            size: bytes,
            limit: self.limit,
        };
        self.budget = self.budget.checked_sub(bytes).ok_or(too_large)?;
        Ok(())
    }

    /// The next buffer, decompressed.
    fn buffer(&mut self) -> Result<Buffer> {
        let span = self.buffers.next();
        let span = span
            .ok_or_else(|| Error::corrupt(FORMAT, "message has fewer buffers than the schema"))?;
        // The span was checked against the body when the message was read.
        let stored = self.body.slice(span.offset..span.offset + span.length);
        if stored.is_empty() || self.codec == Codec::Raw {
            return Ok(Buffer::from(stored));
        }
        let declared = bytes_at(&stored, 0).map(i64::from_le_bytes);
        let declared =
            declared.ok_or_else(|| Error::corrupt(FORMAT, "compressed buffer is cut off"))?;
        let content = stored.slice(8..);
        if declared == -1 {
            return Ok(Buffer::from(content));
        }
        let size = u64::try_from(declared)
            .map_err(|_| Error::corrupt(FORMAT, "uncompressed length is negative"))?;
        self.charge(size)?;
        let size = usize::try_from(size)
            .map_err(|_| Error::corrupt(FORMAT, "uncompressed length is too large"))?;
        if size == 0 {
            return Ok(Buffer::from(Bytes::new()));
        }
        let raw = match self.codec {
            Codec::Zstd => codec::zstd_decompress(&content, size)?,
            Codec::Lz4 | Codec::Raw => codec::lz4_decompress(&content, size)?,
        };
        Ok(Buffer::from_vec(raw))
    }
}

fn bits(buffer: Buffer, length: usize) -> Result<BooleanBuffer> {
    if buffer.len() < length.div_ceil(8) {
        return Err(Error::corrupt(FORMAT, "bit buffer is too short"));
    }
    Ok(BooleanBuffer::new(buffer, 0, length))
}

/// The first `count` values of a buffer; copied only if the bytes are not aligned for them.
fn scalars<T: ArrowNativeType>(buffer: Buffer, count: usize) -> Result<ScalarBuffer<T>> {
    let size = count
        .checked_mul(size_of::<T>())
        .filter(|size| *size <= buffer.len());
    let size = size.ok_or_else(|| Error::corrupt(FORMAT, "values buffer is too short"))?;
    let aligned = buffer.as_ptr().align_offset(align_of::<T>()) == 0;
    let buffer = if aligned {
        buffer
    } else {
        Buffer::from(buffer.get(..size).unwrap_or_default())
    };
    Ok(ScalarBuffer::new(buffer, 0, count))
}
