//! What the log says beyond the state of the keys is applied again.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use weir_kv::pre_write_buffer::PutKind;
use weir_kv::upsert::ChangelogImage;
use weir_kv::{FlushBatch, KvStore, PreWriteBuffer, StoredValue};
use weir_protocol::ids::{LogOffset, TableBucket};
use weir_protocol::record::{ChangeType, LogBatch, batches};

use super::changelog;
use super::rules::KeyRules;
use crate::error::Error;
use crate::log::Log;

/// How much of a log is applied at once, bytes.
const PIECE_BYTES: usize = 4 << 20;

/// Brings a store that was just opened to the end of its log. Before anybody writes to either.
///
/// # Errors
/// [`Error::StateApart`] if the log does not hold what the store lacks; [`Error::StoredBatch`];
/// [`Error::Kv`], [`Error::Log`].
pub(super) async fn run(
    log: &Arc<Log>,
    store: &KvStore,
    rules: &Arc<KeyRules>,
) -> Result<(), Error> {
    let mut position = store.position()?.flushed_offset;
    let (start, end) = (log.log_start(), log.log_end());
    let apart = |reason: String| Error::StateApart {
        bucket: log.bucket(),
        path: store.directory().to_owned(),
        position,
        reason,
    };
    if position > end {
        return Err(apart(format!("the log ends before, at {end}")));
    }
    if position < start {
        return Err(apart(format!("the log begins after that, at {start}")));
    }
    while position < end {
        let (log, rules, path) = (
            Arc::clone(log),
            Arc::clone(rules),
            store.directory().to_owned(),
        );
        let read = move || piece(&log, &rules, position..end, path);
        let batch = tokio::task::spawn_blocking(read).await??;
        position = store.apply(Arc::new(batch)).await?.flushed_offset;
    }
    Ok(())
}

/// The next changes. Blocks.
fn piece(
    log: &Log,
    rules: &KeyRules,
    range: Range<LogOffset>,
    path: PathBuf,
) -> Result<FlushBatch, Error> {
    let bucket = log.bucket();
    let read = log.read(range.start, PIECE_BYTES, range.end)?;
    let mut buffer = PreWriteBuffer::new(range.start);
    let mut next = range.start;
    for batch in batches(read.batches) {
        let batch = batch.map_err(|source| Error::StoredBatch { bucket, source })?;
        if batch.header.base_offset != next {
            break;
        }
        apply(&mut buffer, bucket, rules, &batch)?;
        next = batch.next_offset();
    }
    if next == range.start {
        return Err(Error::StateApart {
            bucket,
            path,
            position: next,
            reason: "the log has a gap there".to_owned(),
        });
    }
    Ok(buffer.flush_up_to(next)?)
}

fn apply(
    buffer: &mut PreWriteBuffer,
    bucket: TableBucket,
    rules: &KeyRules,
    batch: &LogBatch,
) -> Result<(), Error> {
    let stored = |source| Error::StoredBatch { bucket, source };
    let changes = changelog::decode(rules, batch).map_err(|error| match error {
        Error::Protocol(source) => stored(source),
        other => other,
    })?;
    let id = batch.header.schema_id;
    let schema = &rules.schema(id)?.schema;
    for (offset, (change, row)) in (batch.header.base_offset.0..).zip(changes) {
        let kind = match change {
            ChangeType::UpdateBefore => continue,
            ChangeType::Delete => None,
            ChangeType::Insert => Some(PutKind::Insert),
            // Whether it looked for the old row, the changelog does not say.
            ChangeType::UpdateAfter if rules.table.image == ChangelogImage::Wal => {
                Some(PutKind::Blind)
            }
            ChangeType::UpdateAfter => Some(PutKind::Update),
            ChangeType::AppendOnly => {
                return Err(stored(weir_protocol::Error::Corrupt {
                    format: "changelog",
                    reason: "a row is appended in the log of keys",
                }));
            }
        };
        let key = Bytes::from(rules.key_of(&row).map_err(stored)?);
        let Some(kind) = kind else {
            buffer.delete(key, LogOffset(offset))?;
            continue;
        };
        let value = StoredValue {
            schema_id: id,
            row: rules.encode_row(&row, schema).map_err(stored)?.into(),
        };
        buffer.put(key, value.encode()?, LogOffset(offset), kind)?;
    }
    Ok(())
}
