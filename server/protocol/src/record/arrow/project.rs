//! Projection on the server's side: fewer columns without decompressing any.

use arrow::datatypes::SchemaRef;
use bytes::Bytes;

use super::super::log_batch::LogBatch;
use super::super::put_at;
use super::message::{Message, Span, write_head};
use super::parts_of;
use crate::error::{Error, Result};

const FORMAT: &str = "arrow batch";

pub(super) fn project(batch: &LogBatch, schema: &SchemaRef, columns: &[usize]) -> Result<Bytes> {
    check(columns, schema.fields().len())?;
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
        project_message(&mut out, message, schema, columns)?;
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

    let message_at = out.len();
    let head = source.codec.message_head(nodes.len(), spans.len());
    let body_at = message_at + head;
    out.resize(body_at, 0);
    let mut buffers = Vec::with_capacity(spans.len());
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
