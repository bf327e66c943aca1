//! Projection on the server's side: fewer columns without decompressing any.

use arrow::datatypes::{DataType, SchemaRef};
use bytes::Bytes;

use super::super::log_batch::LogBatch;
use super::super::put_at;
use super::message::{Codec, Message, Node, Span, write_head};
use super::{DecodeLimits, codec, parts_of};
use crate::error::{Error, Result};

const FORMAT: &str = "arrow batch";
/// The level of columns that are added; zeros are small at any.
const ZSTD_LEVEL: i32 = 3;

pub(super) fn project(
    batch: &LogBatch,
    written: &SchemaRef,
    target: &SchemaRef,
    columns: &[usize],
) -> Result<Bytes> {
    let known = written.fields().len();
    check(columns, known.max(target.fields().len()))?;
    let (own, added) = columns.split_at(columns.partition_point(|column| *column < known));
    let added: Vec<_> = added
        .iter()
        .filter_map(|column| target.fields().get(*column))
        .map(|field| field.data_type())
        .collect();
    let layout = batch.header.layout;
    let header_size = layout.header_size();
    let mut out = Vec::with_capacity(batch.bytes.len());
    out.extend_from_slice(batch.bytes.get(..header_size).unwrap_or_default());
    if batch.header.statistics_length > 0 {
        put_at(&mut out, header_size - 4, &[0; 4]);
    }
    let rows = batch.record_count();
    if rows > 0 {
        let records = batch.records();
        let change_types = if batch.header.append_only { 0 } else { rows };
        let (types, message) = records
            .split_at_checked(change_types)
            .ok_or_else(|| Error::corrupt(FORMAT, "change types are cut off"))?;
        out.extend_from_slice(types);
        project_message(&mut out, message, written, own, &added)?;
    }
    let length =
        i32::try_from(out.len() - 12).map_err(|_| Error::corrupt(FORMAT, "batch is too long"))?;
    put_at(&mut out, 8, &length.to_le_bytes());
    Ok(out.into())
}

fn check(columns: &[usize], known: usize) -> Result<()> {
    let wrong = |reason, index| {
        Err(Error::Projection {
            reason,
            index,
            columns: known,
        })
    };
    let Some(last) = columns.last() else {
        return wrong("no column is chosen", 0);
    };
    for pair in columns.windows(2) {
        if let [left, right] = pair
            && left >= right
        {
            return wrong("columns are not strictly ascending", *right);
        }
    }
    if *last >= known {
        return wrong("column is past the end", *last);
    }
    Ok(())
}

fn project_message(
    out: &mut Vec<u8>,
    message: &[u8],
    schema: &SchemaRef,
    columns: &[usize],
    added: &[&DataType],
) -> Result<()> {
    let source = Message::parse(message)?;
    let body = message
        .get(source.body_at..source.body_at + source.body_length)
        .unwrap_or_default();
    let (mut nodes, mut spans) = (Vec::new(), Vec::new());
    let (mut node_at, mut buffer_at) = (0, 0);
    let mut wanted = columns.iter().copied().peekable();
    for (index, field) in schema.fields().iter().enumerate() {
        let (node_count, buffer_count) = parts_of(field.data_type());
        let own_nodes = source.nodes.get(node_at..node_at + node_count);
        let own_spans = source.buffers.get(buffer_at..buffer_at + buffer_count);
        let (Some(own_nodes), Some(own_spans)) = (own_nodes, own_spans) else {
            return Err(Error::corrupt(
                FORMAT,
                "message has fewer fields than the schema",
            ));
        };
        if wanted.next_if_eq(&index).is_some() {
            nodes.extend_from_slice(own_nodes);
            spans.extend_from_slice(own_spans);
        }
        (node_at, buffer_at) = (node_at + node_count, buffer_at + buffer_count);
    }
    if node_at != source.nodes.len() || buffer_at != source.buffers.len() {
        return Err(Error::corrupt(
            FORMAT,
            "message has more fields than the schema",
        ));
    }

    let mut zeros = Vec::new();
    for data_type in added {
        nulls(data_type, source.rows, &mut nodes, &mut zeros)?;
    }
    let zero_bytes = zeros.iter().map(|size| *size as u64).sum::<u64>();
    let limit = DecodeLimits::default().max_uncompressed_bytes;
    if zero_bytes > limit {
        return Err(Error::TooLarge {
            what: "columns of nulls",
            size: zero_bytes,
            limit,
        });
    }

    let message_at = out.len();
    let head = source
        .codec
        .message_head(nodes.len(), spans.len() + zeros.len());
    let body_at = message_at + head;
    out.resize(body_at, 0);
    let mut buffers = Vec::with_capacity(spans.len() + zeros.len());
    for span in spans {
        let offset = out.len() - body_at;
        out.extend_from_slice(
            body.get(span.offset..span.offset + span.length)
                .unwrap_or_default(),
        );
        buffers.push(Span {
            offset,
            length: span.length,
        });
        out.resize(body_at + (offset + span.length).next_multiple_of(8), 0);
    }
    for size in zeros {
        let offset = out.len() - body_at;
        push_zeros(out, size, source.codec)?;
        let length = out.len() - body_at - offset;
        out.resize(body_at + (offset + length).next_multiple_of(8), 0);
        buffers.push(Span { offset, length });
    }
    let body_length = out.len() - body_at;
    let projected = Message {
        rows: source.rows,
        codec: source.codec,
        nodes,
        buffers,
        body_at: head,
        body_length,
    };
    write_head(out, message_at, &projected);
    Ok(())
}

/// The nodes of a column of nulls and the sizes of its buffers, which hold zeros alone.
fn nulls(
    data_type: &DataType,
    rows: usize,
    nodes: &mut Vec<Node>,
    sizes: &mut Vec<usize>,
) -> Result<()> {
    const OFFSET_BYTES: usize = 4;
    nodes.push(Node {
        length: rows,
        null_count: rows,
    });
    sizes.push(rows.div_ceil(8));
    match data_type {
        DataType::Boolean => sizes.push(rows.div_ceil(8)),
        DataType::Utf8 | DataType::Binary => sizes.extend([(rows + 1) * OFFSET_BYTES, 0]),
        DataType::FixedSizeBinary(width) => {
            sizes.push(rows * usize::try_from(*width).unwrap_or(0));
        }
        DataType::List(child) | DataType::Map(child, _) => {
            sizes.push((rows + 1) * OFFSET_BYTES);
            nulls(child.data_type(), 0, nodes, sizes)?;
        }
        DataType::Struct(children) => {
            for child in children {
                nulls(child.data_type(), rows, nodes, sizes)?;
            }
        }
        other => {
            let width = other.primitive_width();
            sizes.push(
                rows * width.ok_or_else(|| Error::UnsupportedType {
                    operation: "a column of nulls",
                    type_name: other.to_string(),
                })?,
            );
        }
    }
    Ok(())
}

/// Writes a buffer of zeros under this codec.
fn push_zeros(out: &mut Vec<u8>, size: usize, codec: Codec) -> Result<()> {
    if size == 0 {
        return Ok(());
    }
    let zeros = vec![0; size];
    let mut compressed = Vec::new();
    match codec {
        Codec::Raw => {
            out.extend_from_slice(&zeros);
            return Ok(());
        }
        Codec::Lz4 => codec::lz4_compress(&zeros, &mut compressed)?,
        Codec::Zstd => codec::zstd_compress(&zeros, ZSTD_LEVEL, &mut compressed)?,
    }
    out.extend_from_slice(&(size as u64).to_le_bytes());
    out.extend_from_slice(&compressed);
    Ok(())
}
