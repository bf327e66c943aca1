//! Deciding what an append does: which batches are new, which are duplicates, which offsets they get.

use std::collections::HashMap;

use bytes::BytesMut;
use weir_protocol::ids::{LogOffset, TableBucket, WriterId};
use weir_protocol::record::log_batch;

use super::batch::{BatchHeader, Batches};
use super::error::{BatchFault, Error, Result};
use super::writer_state::{Expected, StoredBatch, Verdict, WriterEntry, WriterStates};

/// What an append did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// The offset of the first record of the request; of a duplicate, the one it got the first time.
    pub base_offset: LogOffset,
    /// The highest offset of a record of the request, inclusive. An acknowledgement that promises
    /// durability waits until the flushed end is above it.
    pub last_offset: LogOffset,
    /// The end of the log after the append.
    pub log_end: LogOffset,
    /// Every batch of the request was in the log already; nothing was written.
    pub duplicate: bool,
}

/// The writes and changes of one append, not done yet.
#[derive(Debug)]
pub(crate) struct Plan {
    /// The new batches, stamped; empty if all are duplicates.
    pub(crate) bytes: BytesMut,
    pub(crate) headers: Vec<BatchHeader>,
    pub(crate) writers: HashMap<WriterId, WriterEntry>,
    pub(crate) appended: Appended,
}

/// What the plan starts from.
pub(crate) struct Before<'a> {
    pub(crate) bucket: TableBucket,
    pub(crate) writers: &'a WriterStates,
    pub(crate) log_end: LogOffset,
    /// The commit timestamp of the new batches: never below the newest in the log.
    pub(crate) timestamp_ms: i64,
}

/// Plans an append. Pure but for copying the bytes.
pub(crate) fn plan(before: &Before<'_>, batches: &Batches) -> Result<Plan> {
    let mut plan = Plan {
        bytes: BytesMut::with_capacity(batches.bytes.len()),
        headers: Vec::with_capacity(batches.headers.len()),
        writers: HashMap::new(),
        appended: Appended {
            base_offset: before.log_end,
            last_offset: before.log_end,
            log_end: before.log_end,
            duplicate: true,
        },
    };
    let mut rest: &[u8] = &batches.bytes;
    for (index, header) in batches.headers.iter().enumerate() {
        let fault = |fault| Error::BadBatch {
            bucket: before.bucket,
            index,
            fault,
        };
        let (bytes, after) = rest
            .split_at_checked(header.size_bytes)
            .ok_or_else(|| fault(BatchFault::Truncated))?;
        rest = after;
        let stored = match plan.duplicate_of(before, header)? {
            Some(stored) => (stored.base_offset, stored.last_offset),
            None => plan.add(before, header, bytes).ok_or_else(|| {
                fault(BatchFault::RecordCount {
                    records: header.record_count,
                    last_offset_delta: header.last_offset_delta,
                })
            })?,
        };
        // A duplicate may come after a new batch, and lies before it.
        if index == 0 {
            (plan.appended.base_offset, plan.appended.last_offset) = stored;
        }
        plan.appended.last_offset = plan.appended.last_offset.max(stored.1);
    }
    Ok(plan)
}

impl Plan {
    /// The stored batch that this one repeats; an error if its sequence is out of order.
    fn duplicate_of(
        &mut self,
        before: &Before<'_>,
        header: &BatchHeader,
    ) -> Result<Option<StoredBatch>> {
        let Some(writer) = header.writer else {
            return Ok(None);
        };
        let entry = self
            .writers
            .entry(writer)
            .or_insert_with(|| before.writers.entry(writer, before.timestamp_ms));
        match entry.verdict(header.sequence) {
            Ok(Verdict::Append) => Ok(None),
            Ok(Verdict::Duplicate(stored)) => Ok(Some(stored)),
            Err(Expected(expected)) => Err(Error::OutOfOrderSequence {
                bucket: before.bucket,
                writer,
                found: header.sequence,
                expected,
            }),
        }
    }

    /// Gives a new batch its offsets; None if there are none left.
    fn add(
        &mut self,
        before: &Before<'_>,
        header: &BatchHeader,
        bytes: &[u8],
    ) -> Option<(LogOffset, LogOffset)> {
        let base_offset = self.appended.log_end;
        let timestamp_ms = before.timestamp_ms;
        let header = BatchHeader {
            base_offset,
            timestamp_ms,
            ..*header
        };
        let next = header.next_offset()?;
        let last_offset = LogOffset(next.0 - 1);
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        log_batch::set_stored(self.bytes.get_mut(start..)?, base_offset, timestamp_ms).ok()?;
        if let Some(entry) = header
            .writer
            .and_then(|writer| self.writers.get_mut(&writer))
        {
            let sequence = header.sequence;
            entry.push(StoredBatch {
                sequence,
                base_offset,
                last_offset,
                timestamp_ms,
            });
        }
        self.headers.push(header);
        self.appended.log_end = next;
        self.appended.duplicate = false;
        Some((base_offset, last_offset))
    }
}
