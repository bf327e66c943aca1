//! Rows of a closed batch to bytes.

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use bytes::{Bytes, BytesMut};

use super::queue::Closed;
use super::settings::Settings;
use crate::client::Error;
use crate::ids::{TableBucket, WriterId};
use crate::record::arrow::encode_append;
use crate::record::log_batch::set_writer;
use crate::record::{BatchIdentity, kv_batch};

/// The batch's bytes; runs off the async threads, as compression takes its time.
pub(super) fn encode(
    settings: &Settings,
    writer_id: WriterId,
    bucket: TableBucket,
    closed: &Closed,
) -> Result<Bytes, Error> {
    let failed = |source| Error::codec(format!("batch of {bucket}"), source);
    let rows = join(&closed.pieces).map_err(|source| {
        failed(crate::Error::Arrow {
            what: "rows of a batch",
            source,
        })
    })?;
    let Settings {
        schema_id,
        compression,
        ..
    } = *settings;
    let bytes = match &settings.changes {
        None => encode_append(schema_id, writer_id, closed.sequence, &rows, compression),
        Some(changes) => {
            let id = BatchIdentity {
                schema_id,
                writer_id,
                batch_sequence: closed.sequence,
            };
            changes.encode(id, &rows)
        }
    };
    let bytes = bytes.map_err(failed)?;
    let max_bytes = settings.config.max_request_bytes;
    if bytes.len() > max_bytes {
        return Err(Error::RowTooLarge {
            bucket,
            size_bytes: bytes.len(),
            max_bytes,
        });
    }
    Ok(bytes)
}

fn join(pieces: &[RecordBatch]) -> Result<RecordBatch, arrow::error::ArrowError> {
    match pieces {
        [one] => Ok(one.clone()),
        [first, ..] => concat_batches(first.schema_ref(), pieces),
        [] => Err(arrow::error::ArrowError::InvalidArgumentError(
            "no rows".to_owned(),
        )),
    }
}

/// The batch as written by `writer_id` under `sequence`; the checksum covers both.
pub(super) fn restamp(
    settings: &Settings,
    batch: &Bytes,
    writer_id: WriterId,
    sequence: i32,
) -> Bytes {
    let mut bytes = BytesMut::from(&batch[..]);
    let stamped = if settings.changes.is_some() {
        kv_batch::set_writer(&mut bytes, writer_id, sequence)
    } else {
        set_writer(&mut bytes, writer_id, sequence)
    };
    assert!(
        stamped.is_ok(),
        "a batch that was encoded has a header: {stamped:?}"
    );
    bytes.freeze()
}
