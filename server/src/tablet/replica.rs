//! A bucket that this server leads.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;
use weir_catalog::sentence::sentence;
use weir_protocol::error_code::ErrorCode;
use weir_protocol::ids::{LogOffset, PhysicalTablePath, ServerId, TableBucket, TotalBuckets};
use weir_protocol::proto::{PbNotifyLeaderAndIsrReqForBucket, PbPhysicalTablePath, PbTableBucket};

use super::transitions::close_log;
use super::{Keyed, TableInfo};
use crate::error::Error;
use crate::log::{self, Appended, Batches, Flushed, Log, ReadBatches};
use crate::notice::Notice;

/// Nothing of the bucket is known to be in the lake.
const NOT_IN_LAKE: i64 = -1;

/// A bucket that this server leads, ready for requests. Its routing count is known from the start.
#[derive(Debug)]
pub(crate) struct Replica {
    pub(crate) bucket: TableBucket,
    pub(crate) path: PhysicalTablePath,
    pub(crate) bucket_count: TotalBuckets,
    /// How often the table's count had changed when this bucket was activated.
    pub(crate) bucket_count_epoch: i64,
    pub(crate) table: Arc<TableInfo>,
    epochs: Mutex<Epochs>,
    log: Arc<Log>,
    /// Of a primary-key table.
    keyed: Option<Keyed>,
    max_batch_bytes: usize,
    lake_end: AtomicI64,
    append_failed: Mutex<Notice>,
}

/// Versions of the bucket's leader and of its replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Epochs {
    pub(crate) leader: i32,
    pub(crate) bucket: i32,
}

/// What a replica is made of.
pub(crate) struct ReplicaParts {
    pub(crate) bucket: TableBucket,
    pub(crate) path: PhysicalTablePath,
    pub(crate) bucket_count: TotalBuckets,
    pub(crate) bucket_count_epoch: i64,
    pub(crate) table: Arc<TableInfo>,
    pub(crate) epochs: Epochs,
}

impl Replica {
    pub(crate) fn new(
        parts: ReplicaParts,
        log: Arc<Log>,
        keyed: Option<Keyed>,
        max_batch_bytes: usize,
    ) -> Self {
        Self {
            bucket: parts.bucket,
            path: parts.path,
            bucket_count: parts.bucket_count,
            bucket_count_epoch: parts.bucket_count_epoch,
            table: parts.table,
            epochs: Mutex::new(parts.epochs),
            log,
            keyed,
            max_batch_bytes,
            lake_end: AtomicI64::new(NOT_IN_LAKE),
            append_failed: Mutex::default(),
        }
    }

    /// Writes a line in the log that the disk refused an append, unless that was said just before.
    pub(crate) fn tell_append_failed(&self, error: &log::Error, now_ms: i64) {
        let text = sentence(error);
        if self.append_failed.lock().is_due(&text, now_ms) {
            let (table, bucket) = (&self.path, self.bucket);
            tracing::error!(%table, %bucket, error = text, "the disk refuses appends");
        }
    }

    /// What the server is to be told to lead the bucket as it is led now.
    pub(super) fn activation(&self, server: ServerId) -> PbNotifyLeaderAndIsrReqForBucket {
        let Epochs { leader, bucket } = self.epochs();
        PbNotifyLeaderAndIsrReqForBucket {
            physical_table_path: PbPhysicalTablePath {
                database_name: self.path.table.database.clone(),
                table_name: self.path.table.table.clone(),
                partition_name: self.path.partition.clone(),
            },
            table_bucket: PbTableBucket {
                table_id: self.bucket.table.0,
                partition_id: self.bucket.partition.map(|partition| partition.0),
                bucket_id: self.bucket.bucket.0,
            },
            leader: server.0,
            leader_epoch: leader,
            bucket_epoch: bucket,
            bucket_count: Some(self.bucket_count.0),
            bucket_count_epoch: Some(self.bucket_count_epoch),
            ..PbNotifyLeaderAndIsrReqForBucket::default()
        }
    }

    pub(crate) fn epochs(&self) -> Epochs {
        *self.epochs.lock()
    }

    /// Takes over a newer version of the leader or the replicas; the log stays as it is.
    pub(crate) fn set_epochs(&self, epochs: Epochs) {
        *self.epochs.lock() = epochs;
    }

    /// The keys of a primary-key table.
    ///
    /// # Errors
    /// [`Error::NoPrimaryKey`] for a log table.
    pub(crate) fn keyed(&self) -> Result<&Keyed, Error> {
        let table = || self.path.to_string();
        let keyed = self.keyed.as_ref();
        keyed.ok_or_else(|| Error::NoPrimaryKey { table: table() })
    }

    /// Appends whole batches. Blocks.
    ///
    /// # Errors
    /// [`Error::PrimaryKeyTable`]; [`Error::UnknownSchema`], and those of the log, which is as before then.
    pub(crate) fn append(&self, records: Bytes, now_ms: i64) -> Result<(Appended, u64), Error> {
        if self.keyed.is_some() {
            return Err(Error::PrimaryKeyTable {
                table: self.path.to_string(),
            });
        }
        let batches = Batches::check(self.bucket, records, self.max_batch_bytes)?;
        let latest = self.table.latest_schema();
        let unknown = |schema: i32| schema < 1 || schema > latest.0;
        let found = batches
            .headers
            .iter()
            .map(|header| header.schema_id.0)
            .find(|id| unknown(*id));
        if let Some(schema) = found {
            return Err(Error::UnknownSchema {
                bucket: self.bucket,
                schema,
                latest,
            });
        }
        let rows = batches.record_count();
        Ok((self.log.append(&batches, now_ms)?, rows))
    }

    /// Whole batches from the one that contains `from`, none beyond `upto`. Blocks.
    pub(crate) fn read(
        &self,
        from: LogOffset,
        max_bytes: usize,
        upto: LogOffset,
    ) -> Result<ReadBatches, Error> {
        Ok(self.log.read(from, max_bytes, upto)?)
    }

    /// As [`Self::read`], but leaves out even the first batch if it is larger than the second limit. Blocks.
    pub(crate) fn read_at_most(
        &self,
        from: LogOffset,
        limits: (usize, usize),
        upto: LogOffset,
    ) -> Result<ReadBatches, Error> {
        Ok(self.log.read_at_most(from, limits, upto)?)
    }

    /// The offset after the last record that clients may read: all before it is flushed, and, of a
    /// primary-key table, in what lookups see.
    pub(crate) fn high_watermark(&self) -> LogOffset {
        match &self.keyed {
            Some(keyed) => keyed.visible_end(),
            None => self.log.flushed_end(),
        }
    }

    /// The first offset that is held.
    pub(crate) fn start_offset(&self) -> LogOffset {
        self.log.log_start()
    }

    /// The offset that the next record gets.
    pub(crate) fn end_offset(&self) -> LogOffset {
        self.log.log_end()
    }

    /// Rows that clients can read; of a primary-key table, its keys, unless they were written without
    /// looking whether they existed.
    pub(crate) fn row_count(&self) -> Option<i64> {
        match &self.keyed {
            Some(keyed) => {
                let position = keyed.store().position().ok()?;
                i64::try_from(position.row_count?).ok()
            }
            None => Some((self.high_watermark().0 - self.start_offset().0).max(0)),
        }
    }

    /// Ends once the high watermark has reached `offset`.
    pub(crate) async fn reached(&self, offset: LogOffset) -> Result<(), Error> {
        let Some(keyed) = &self.keyed else {
            return Ok(self.log.wait_flushed(offset).await?);
        };
        if keyed.reached(offset).await {
            return Ok(());
        }
        self.log.wait_flushed(offset).await?;
        Err(Error::Offline {
            bucket: self.bucket,
            code: ErrorCode::KvStorage,
            reason: "its keys take no more writes".to_owned(),
        })
    }

    /// Tells when the high watermark moves.
    pub(crate) fn watch(&self) -> watch::Receiver<Flushed> {
        match &self.keyed {
            Some(keyed) => keyed.watch(),
            None => self.log.subscribe_flushed(),
        }
    }

    /// The first offset committed at or after `timestamp_ms`. Blocks.
    pub(crate) fn offset_at(&self, timestamp_ms: i64) -> Result<Option<LogOffset>, Error> {
        Ok(self.log.offset_for_time(timestamp_ms)?)
    }

    /// The offset after the last row that is in the lake, if any is known to be.
    pub(crate) fn lake_end(&self) -> Option<LogOffset> {
        Some(self.lake_end.load(Ordering::Acquire))
            .filter(|end| *end >= 0)
            .map(LogOffset)
    }

    /// Takes over lake progress, which only rises.
    pub(crate) fn raise_lake_end(&self, end: LogOffset) {
        self.lake_end.fetch_max(end.0, Ordering::AcqRel);
    }

    pub(crate) fn log(&self) -> &Arc<Log> {
        &self.log
    }

    /// Closes the log, and the keys beside it: what was appended and put is on disk then.
    pub(super) async fn close(&self) {
        match &self.keyed {
            Some(keyed) => keyed.close().await,
            None => close_log(Arc::clone(&self.log)).await,
        }
    }
}
