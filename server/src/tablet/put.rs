//! Puts of one request: queued in their order, acknowledged one by one.

use std::sync::Arc;

use tokio::time::{Instant, timeout_at};
use weir_protocol::api_key::ApiKey;
use weir_protocol::ids::{LogOffset, TableBucket};

use super::keyed::Putting;
use super::{Put, Replica, TabletServer};
use crate::error::Error;

/// A batch of changes for one bucket.
#[derive(Clone, Debug)]
pub(crate) struct PutBucket {
    pub(crate) bucket: TableBucket,
    pub(crate) put: Put,
    pub(crate) routing_bucket_count: Option<i32>,
}

/// A put that is queued or was refused.
pub(crate) struct PutPending(Result<(Arc<Replica>, Putting), Error>);

impl TabletServer {
    /// Queues a put behind those of its bucket; waits for room if there are many.
    pub(crate) async fn put(&self, asked: PutBucket, version: i16) -> PutPending {
        PutPending(self.queue(asked, version).await)
    }

    async fn queue(
        &self,
        asked: PutBucket,
        version: i16,
    ) -> Result<(Arc<Replica>, Putting), Error> {
        let replica = self.keyed_leader(
            (ApiKey::PutKv, version),
            asked.bucket,
            asked.routing_bucket_count,
        )?;
        let putting = replica.keyed()?.put(asked.put).await?;
        Ok((replica, putting))
    }

    /// The leader of a bucket of a primary-key table, for a request of this version.
    ///
    /// # Errors
    /// Those of [`TabletServer::leader_for`]; [`Error::NoPrimaryKey`]; [`Error::OldKeys`].
    pub(super) fn keyed_leader(
        &self,
        (api, version): (ApiKey, i16),
        bucket: TableBucket,
        routing_bucket_count: Option<i32>,
    ) -> Result<Arc<Replica>, Error> {
        let replica = self.leader_for(bucket, routing_bucket_count)?;
        replica.keyed()?;
        if version == 0 && replica.table.key_rules()?.has_new_keys {
            let table = replica.path.to_string();
            return Err(Error::OldKeys { table, api });
        }
        Ok(replica)
    }
}

impl PutPending {
    /// The offset behind the last change, once the put is in the log.
    pub(crate) async fn written(self, server: &TabletServer) -> Result<LogOffset, Error> {
        let (replica, putting) = self.0?;
        written(server, &replica, putting).await
    }

    /// The same, once lookups see it.
    ///
    /// # Errors
    /// [`Error::AckTimeout`] after `deadline`: the changes are made nevertheless.
    pub(crate) async fn acknowledged(
        self,
        server: &TabletServer,
        deadline: Instant,
        timeout_ms: i32,
    ) -> Result<LogOffset, Error> {
        let (replica, putting) = self.0?;
        let needed = written(server, &replica, putting).await?;
        match timeout_at(deadline, replica.reached(needed)).await {
            Ok(result) => result.map(|()| needed),
            Err(_) => Err(Error::AckTimeout {
                bucket: replica.bucket,
                needed,
                timeout_ms,
            }),
        }
    }
}

async fn written(
    server: &TabletServer,
    replica: &Replica,
    putting: Putting,
) -> Result<LogOffset, Error> {
    let done = putting.done().await;
    if let Err(Error::Log(error)) = &done
        && error.is_of_disk()
    {
        server.parts.metrics.append_failures.inc();
        replica.tell_append_failed(error, server.parts.clock.now_ms());
    }
    Ok(done?.end)
}
