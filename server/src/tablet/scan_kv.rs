//! Whole scans of a bucket's keys: a cursor over the rows as they were when it was opened, read page by
//! page.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use tokio::sync::OwnedSemaphorePermit;
use weir_kv::{CursorId, Page};
use weir_protocol::ids::{BucketId, LogOffset, PartitionId, TableBucket, TableId};
use weir_protocol::record::kv_batch::{Value, encode_values};

use super::lookup::wire;
use super::{Replica, TabletServer};
use crate::error::Error;
use crate::memory::give_back_beyond;

/// No partition, in the bytes of a scanner id.
const NO_PARTITION: i64 = -1;

/// A scan as a client names it. Says all that is needed to find it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScannerId {
    bucket: TableBucket,
    /// The opening of the bucket in which the scan began.
    nonce: u64,
    cursor: CursorId,
}

/// A page of a scan.
pub(crate) struct ScanPage {
    /// To go on with; `None` at the end.
    pub(crate) scanner: Option<ScannerId>,
    /// One batch of rows; `None` if there are none.
    pub(crate) records: Option<Bytes>,
    /// What the scan sees, of its first page: all changes before this offset.
    pub(crate) log_offset: Option<LogOffset>,
    /// Given back once the page is sent.
    pub(crate) memory: Option<OwnedSemaphorePermit>,
}

impl ScannerId {
    pub(crate) fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(36);
        out.put_i64(self.bucket.table.0);
        out.put_i64(self.bucket.partition.map_or(NO_PARTITION, |id| id.0));
        out.put_i32(self.bucket.bucket.0);
        out.put_u64(self.nonce);
        out.put_u64(self.cursor.0);
        out.freeze()
    }

    /// `None` for bytes that no scan was ever named by.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (table, rest) = bytes.split_first_chunk()?;
        let (partition, rest) = rest.split_first_chunk()?;
        let (bucket, rest) = rest.split_first_chunk()?;
        let (nonce, rest) = rest.split_first_chunk()?;
        let cursor = rest.try_into().ok()?;
        let partition = i64::from_be_bytes(*partition);
        Some(Self {
            bucket: TableBucket {
                table: TableId(i64::from_be_bytes(*table)),
                partition: (partition != NO_PARTITION).then_some(PartitionId(partition)),
                bucket: BucketId(i32::from_be_bytes(*bucket)),
            },
            nonce: u64::from_be_bytes(*nonce),
            cursor: CursorId(u64::from_be_bytes(cursor)),
        })
    }
}

impl TabletServer {
    /// Begins a scan that ends after `limit` rows, and reads its first page: one row at least, unless there
    /// is none, then as many as fit into `max_bytes`.
    ///
    /// # Errors
    /// Those of [`TabletServer::leader_for`]; [`Error::NoPrimaryKey`]; [`Error::Kv`].
    pub(crate) async fn open_scan(
        &self,
        bucket: TableBucket,
        routing_bucket_count: Option<i32>,
        limit: Option<u64>,
        max_bytes: usize,
    ) -> Result<ScanPage, Error> {
        let replica = self.leader_for(bucket, routing_bucket_count)?;
        let keyed = replica.keyed()?;
        let start = keyed.store().open_cursor(limit).await?;
        let id = ScannerId {
            bucket,
            nonce: keyed.nonce(),
            cursor: start.id,
        };
        let page = self.read_page(&replica, id, 0, max_bytes).await;
        let mut page = page.inspect_err(|_| keyed.store().close_cursor(start.id))?;
        page.log_offset = Some(start.position.flushed_offset);
        Ok(page)
    }

    /// The next page of a scan; they are asked for as 1, 2, 3, …
    ///
    /// # Errors
    /// [`Error::Kv`], also for a scan that is not known; those of [`TabletServer::leader_for`].
    pub(crate) async fn next_page(
        &self,
        id: ScannerId,
        page: u32,
        max_bytes: usize,
    ) -> Result<ScanPage, Error> {
        let replica = self.scanned(id)?;
        self.read_page(&replica, id, page, max_bytes).await
    }

    /// Ends a scan; nothing happens if it has ended.
    pub(crate) fn close_scan(&self, id: ScannerId) {
        if let Ok(replica) = self.scanned(id)
            && let Ok(keyed) = replica.keyed()
        {
            keyed.store().close_cursor(id.cursor);
        }
    }

    /// The bucket of a scan, if it was not opened anew since.
    fn scanned(&self, id: ScannerId) -> Result<Arc<Replica>, Error> {
        // The bucket was routed to when the scan began.
        let replica = self.leader_of(id.bucket)?;
        if replica.keyed()?.nonce() != id.nonce {
            let cursor = id.cursor;
            return Err(weir_kv::Error::UnknownCursor { cursor }.into());
        }
        Ok(replica)
    }

    async fn read_page(
        &self,
        replica: &Replica,
        id: ScannerId,
        page: u32,
        max_bytes: usize,
    ) -> Result<ScanPage, Error> {
        let max_bytes = max_bytes.min(self.parts.limits.max_fetch_bytes);
        let mut memory = self.answers.reserve(max_bytes).await;
        let store = replica.keyed()?.store();
        let Page { entries, has_more } = store.next_page(id.cursor, page, max_bytes).await?;
        let values: Vec<Value> = entries.into_iter().map(|(_, value)| wire(value)).collect();
        let records = if values.is_empty() {
            None
        } else {
            Some(encode_values(&values)?)
        };
        let bytes = records.as_ref().map_or(0, Bytes::len);
        if let Some(memory) = &mut memory {
            give_back_beyond(memory, bytes);
        }
        self.parts
            .metrics
            .fetched_bytes
            .inc_by(u64::try_from(bytes).unwrap_or(0));
        Ok(ScanPage {
            scanner: has_more.then_some(id),
            records,
            log_offset: None,
            memory,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scanner_id_reads_back_as_it_was_and_other_bytes_are_none() {
        for partition in [None, Some(PartitionId(0)), Some(PartitionId(i64::MAX))] {
            let id = ScannerId {
                bucket: TableBucket {
                    table: TableId(7),
                    partition,
                    bucket: BucketId(3),
                },
                nonce: u64::MAX,
                cursor: CursorId(9),
            };
            let bytes = id.encode();
            assert_eq!(ScannerId::decode(&bytes), Some(id));
            for cut in 0..bytes.len() {
                assert_eq!(ScannerId::decode(&bytes[..cut]), None);
            }
            assert_eq!(ScannerId::decode(&[&bytes[..], b"x"].concat()), None);
        }
    }
}
