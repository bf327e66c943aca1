//! Appends of one request: applied together on a blocking thread, acknowledged one by one.

use std::sync::Arc;

use bytes::Bytes;
use tokio::time::{Instant, timeout_at};
use weir_protocol::ids::{LogOffset, TableBucket};

use super::{Replica, TabletServer, on_blocking_thread};
use crate::error::Error;
use crate::log::Appended;

/// Batches for one bucket.
#[derive(Clone)]
pub(crate) struct Append {
    pub(crate) bucket: TableBucket,
    /// Whole batches, as the client sent them.
    pub(crate) records: Bytes,
    pub(crate) routing_bucket_count: Option<i32>,
}

/// An append that has happened or was refused.
pub(crate) struct Appending(Result<Done, Error>);

struct Done {
    replica: Arc<Replica>,
    appended: Appended,
}

impl TabletServer {
    /// Appends to each bucket, in the order given. One that fails says so in its place.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if the process is stopping.
    pub(crate) async fn append(
        self: &Arc<Self>,
        appends: Vec<Append>,
    ) -> Result<Vec<Appending>, Error> {
        let mut results = self.append_now(appends.clone()).await?;
        // A batch may name a schema that this server was not told of yet: look before refusing.
        for (result, append) in results.iter_mut().zip(appends) {
            if matches!(result.0, Err(Error::UnknownSchema { .. })) {
                self.learn_schema(&append).await;
                if let Some(again) = self.append_now(vec![append]).await?.pop() {
                    *result = again;
                }
            }
        }
        Ok(results)
    }

    async fn append_now(self: &Arc<Self>, appends: Vec<Append>) -> Result<Vec<Appending>, Error> {
        let server = Arc::clone(self);
        let work = move || {
            let one = |append: Append| Appending(server.append_one(append));
            appends.into_iter().map(one).collect()
        };
        on_blocking_thread(&self.appends, work).await
    }

    async fn learn_schema(&self, append: &Append) {
        let bucket = append.bucket;
        let Ok(replica) = self.leader_for(bucket, append.routing_bucket_count) else {
            return;
        };
        if let Err(error) = replica.table.refresh(&self.parts.reads).await {
            tracing::warn!(%bucket, %error, "cannot look for a newer schema");
        }
    }

    fn append_one(&self, append: Append) -> Result<Done, Error> {
        let replica = self.leader_for(append.bucket, append.routing_bucket_count)?;
        let bytes = u64::try_from(append.records.len()).unwrap_or(0);
        let now_ms = self.parts.clock.now_ms();
        let appended = match self.room.take(bytes) {
            Ok(()) => replica.append(append.records, now_ms),
            Err(full) => Err(full.into()),
        };
        if let Err(Error::Log(error)) = &appended
            && error.is_of_disk()
        {
            self.parts.metrics.append_failures.inc();
            replica.tell_append_failed(error, now_ms);
        }
        let (appended, rows) = appended?;
        if !appended.duplicate {
            self.parts.metrics.appended_bytes.inc_by(bytes);
            self.parts.metrics.appended_rows.inc_by(rows);
        }
        Ok(Done { replica, appended })
    }
}

impl Appending {
    /// The offset of the first record; does not wait.
    pub(crate) fn base_offset(self) -> Result<LogOffset, Error> {
        self.0.map(|done| done.appended.base_offset)
    }

    /// The offset of the first record, once all of them are below the high watermark.
    ///
    /// # Errors
    /// [`Error::AckTimeout`] after `deadline`: the records are appended nevertheless.
    pub(crate) async fn acknowledged(
        self,
        deadline: Instant,
        timeout_ms: i32,
    ) -> Result<LogOffset, Error> {
        let Done { replica, appended } = self.0?;
        let needed = LogOffset(appended.last_offset.0 + 1);
        match timeout_at(deadline, replica.reached(needed)).await {
            Ok(result) => result.map(|()| appended.base_offset),
            Err(_) => Err(Error::AckTimeout {
                bucket: replica.bucket,
                needed,
                timeout_ms,
            }),
        }
    }
}
