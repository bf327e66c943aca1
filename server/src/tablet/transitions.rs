//! Buckets come and go, as the coordinator says.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::StreamExt;
use futures::future::{BoxFuture, FutureExt, Shared, TryFutureExt};
use tokio::sync::mpsc;
use weir_protocol::ids::{
    BucketId, LogOffset, PartitionId, PhysicalTablePath, TableBucket, TableId, TablePath,
    TotalBuckets,
};
use weir_protocol::proto::{
    NotifyLakeTableOffsetRequest, NotifyLeaderAndIsrRequest, NotifyLeaderAndIsrResponse,
    PbNotifyLeaderAndIsrReqForBucket, PbNotifyLeaderAndIsrRespForBucket, PbPhysicalTablePath,
    PbTableBucket, StopReplicaRequest,
};

use super::replica::{Epochs, ReplicaParts};
use super::{Offline, Replica, Slot, TableInfo, TabletServer};
use crate::api::error::Failure;
use crate::error::Error;
use crate::log::{Disk, Log};
use crate::peer::Stopped;

/// How many buckets are closed at once at a stop.
const CLOSED_AT_ONCE: usize = 16;

type Acks = mpsc::Sender<NotifyLeaderAndIsrResponse>;

/// What all buckets of a table share, when it is there; it is looked up by whoever asks first.
pub(super) type Loading = Shared<BoxFuture<'static, Result<Arc<Change>, Arc<Error>>>>;

/// What all buckets of one leader change share.
pub(super) struct Change {
    table: Arc<TableInfo>,
    /// How far the lake is. The file that says so may be missing or broken, and stays so until a
    /// person acts: nothing to keep logs from being read and written for.
    lake_ends: Result<BTreeMap<TableBucket, LogOffset>, Arc<Error>>,
}

impl TabletServer {
    /// Opens the logs of the buckets named, many at a time; each is acknowledged when it is ready.
    pub(super) fn become_leader(self: &Arc<Self>, request: NotifyLeaderAndIsrRequest, acks: Acks) {
        let epoch = self.cache.accept_coordinator(request.coordinator_epoch);
        let mut changes: BTreeMap<TableId, Loading> = BTreeMap::new();
        let mut settled = Vec::new();
        for asked in request.notify_buckets_leader_req {
            let bucket = bucket_of(&asked.table_bucket);
            let admitted = match &epoch {
                Ok(()) => self.admit(&asked, bucket).map_err(Failure::from),
                Err(error) => Err(Failure::from(error)),
            };
            match admitted {
                Ok(Admitted::AlreadyLeader) => settled.push((asked, None)),
                Err(failure) => settled.push((asked, Some(failure))),
                Ok(Admitted::Open) => {
                    let change = changes.entry(bucket.table);
                    let change = change.or_insert_with(|| self.load_change(&asked, bucket.table));
                    let change = change.clone();
                    self.spawn_open(asked, bucket, change, acks.clone());
                }
            }
        }
        // Not here: whoever takes the acknowledgements may be waiting for this server.
        self.parts.shutdown.spawn(async move {
            for (asked, failure) in settled {
                acknowledge(&acks, &asked, failure).await;
            }
        });
    }

    /// Marks the bucket as being opened, unless it is here already or the request is old.
    fn admit(
        &self,
        asked: &PbNotifyLeaderAndIsrReqForBucket,
        bucket: TableBucket,
    ) -> Result<Admitted, Error> {
        let epochs = Epochs {
            leader: asked.leader_epoch,
            bucket: asked.bucket_epoch,
        };
        let mut replicas = self.replicas.write();
        let known = match replicas.get(&bucket) {
            Some(Slot::Leader(replica)) => Some(replica.epochs()),
            Some(Slot::Opening(epochs, _) | Slot::Broken(epochs, _)) => Some(*epochs),
            None => None,
        };
        if let Some(known) = known
            && epochs.leader < known.leader
        {
            let (given, current) = (epochs.leader, known.leader);
            return Err(Error::FencedLeader {
                bucket,
                given,
                current,
            });
        }
        if asked.leader != self.parts.id.0 {
            return Err(Error::Unsupported {
                what: "following another server",
            });
        }
        if let Some(Slot::Leader(replica)) = replicas.get(&bucket) {
            replica.set_epochs(epochs);
            return Ok(Admitted::AlreadyLeader);
        }
        let offline = replicas.get(&bucket).and_then(Slot::offline).cloned();
        replicas.insert(bucket, Slot::Opening(epochs, offline));
        Ok(Admitted::Open)
    }

    /// Looks a table up once for all buckets of a request: in none of the calls that come after.
    pub(super) fn load_change(
        self: &Arc<Self>,
        asked: &PbNotifyLeaderAndIsrReqForBucket,
        id: TableId,
    ) -> Loading {
        let (server, path) = (Arc::clone(self), table_path(&asked.physical_table_path));
        let load = async move {
            let table = server.table_info(id, &path).await?;
            let lake_ends = match server.parts.reads.lake_ends(&path, id).await {
                Err(error @ Error::Catalog(weir_catalog::Error::Corrupt { .. })) => {
                    tracing::warn!(table = %path, %error,
                        "how far the lake is can't be read: its logs are served all the same");
                    Err(Arc::new(error))
                }
                found => Ok(found?),
            };
            Ok(Arc::new(Change { table, lake_ends }))
        };
        load.map_err(Arc::new).boxed().shared()
    }

    fn spawn_open(
        self: &Arc<Self>,
        asked: PbNotifyLeaderAndIsrReqForBucket,
        bucket: TableBucket,
        change: Loading,
        acks: Acks,
    ) {
        let server = Arc::clone(self);
        self.parts.shutdown.spawn(async move {
            let opened = match change.await {
                Ok(change) => {
                    let led = if asked.leader_epoch == 0 {
                        Led::Never
                    } else {
                        Led::Before
                    };
                    server.open((&asked, led), bucket, change).await
                }
                Err(source) => Err(Error::TableNotRead { bucket, source }),
            };
            let failure = server.settle(&asked, bucket, opened).await;
            acknowledge(&acks, &asked, failure.map(Failure::from)).await;
        });
    }

    pub(super) async fn open(
        self: &Arc<Self>,
        (asked, led): (&PbNotifyLeaderAndIsrReqForBucket, Led),
        bucket: TableBucket,
        change: Arc<Change>,
    ) -> Result<Replica, Error> {
        let count = asked.bucket_count.filter(|count| *count > 0);
        let bucket_count = TotalBuckets(count.ok_or(Error::StaleRouting {
            bucket,
            given: None,
            actual: TotalBuckets(0),
        })?);
        let parts = ReplicaParts {
            bucket,
            path: PhysicalTablePath {
                table: table_path(&asked.physical_table_path),
                partition: asked.physical_table_path.partition_name.clone(),
            },
            bucket_count,
            bucket_count_epoch: asked.bucket_count_epoch.unwrap_or(0),
            table: Arc::clone(&change.table),
            epochs: Epochs {
                leader: asked.leader_epoch,
                bucket: asked.bucket_epoch,
            },
        };
        let (lake_end, unreadable) = match &change.lake_ends {
            Ok(ends) => (ends.get(&bucket).copied(), None),
            Err(source) => (None, Some(Arc::clone(source))),
        };
        // A log that was led before and has lost what it held would give out offsets that are in the
        // lake. One that never held a record can't be told from it.
        let must_hold = unreadable.filter(|_| led == Led::Before);
        let _turn = Arc::clone(&self.recovery)
            .acquire_owned()
            .await
            .map_err(|_| Error::Stopping)?;
        let server = Arc::clone(self);
        let has_keys = change.table.has_keys();
        let is_first = led == Led::Never;
        let open = move || {
            let dir = server.log_dir(bucket);
            if !is_first
                && !server
                    .parts
                    .log_options
                    .disk
                    .exists(&dir)
                    .is_ok_and(|is| is)
            {
                tracing::warn!(%bucket, folder = %dir.display(),
                    "the folder of a log that was led before is not there: what it held beyond the lake is lost");
            }
            // A changelog that lost changes says nothing of its keys: it does not go on behind them.
            let goes_on_at = lake_end.filter(|_| !has_keys);
            let log = server.open_log(bucket, goes_on_at, is_first)?;
            match must_hold {
                Some(source) if log.log_end() == LogOffset(0) => {
                    Err(Error::TableNotRead { bucket, source })
                }
                _ => Ok(log),
            }
        };
        let log = tokio::task::spawn_blocking(open).await??;
        let keyed = match self.open_keys(&log, &parts.table, lake_end).await {
            Ok(keyed) => keyed,
            Err(error) => {
                close_log(log).await;
                return Err(error);
            }
        };
        let max_batch_bytes = self.parts.log_options.config.max_batch_bytes;
        let replica = Replica::new(parts, log, keyed, max_batch_bytes);
        if let Some(lake_end) = lake_end {
            replica.raise_lake_end(lake_end);
        }
        Ok(replica)
    }

    /// Recovers a log; one that ends below what is in the lake goes on there. One that is led for the
    /// first time must be empty. Blocks.
    fn open_log(
        &self,
        bucket: TableBucket,
        lake_end: Option<LogOffset>,
        is_first: bool,
    ) -> Result<Arc<Log>, Error> {
        let path = self.log_dir(bucket);
        let log = Log::open(&path, bucket, self.parts.log_options.clone())?;
        let end = log.log_end();
        if is_first && end > LogOffset(0) {
            return Err(Error::UnknownLog { bucket, path, end });
        }
        let report = log.recovery_report();
        let metrics = &self.parts.metrics;
        metrics.log_cut_bytes.inc_by(report.truncated_bytes);
        metrics.log_set_aside_bytes.inc_by(report.set_aside_bytes);
        let files = u64::try_from(report.set_aside_files).unwrap_or(u64::MAX);
        metrics.log_set_aside_files.inc_by(files);
        let gap = lake_end
            .map(|lake_end| log.continue_at(lake_end))
            .transpose()?
            .flatten();
        if let Some(gap) = gap {
            tracing::warn!(%bucket, from = %gap.from, to = %gap.to,
                "a log ended below its committed lake end and goes on there");
        }
        Ok(log)
    }

    /// Makes an opened bucket a leader, if it is still wanted.
    pub(super) async fn settle(
        &self,
        asked: &PbNotifyLeaderAndIsrReqForBucket,
        bucket: TableBucket,
        opened: Result<Replica, Error>,
    ) -> Option<Error> {
        let epochs = Epochs {
            leader: asked.leader_epoch,
            bucket: asked.bucket_epoch,
        };
        let (failure, unwanted) = {
            let mut replicas = self.replicas.write();
            match (replicas.get(&bucket), opened) {
                (Some(Slot::Opening(newest, offline)), Ok(replica)) => {
                    replica.set_epochs(*newest);
                    self.note_cut(&replica);
                    if offline.is_some() {
                        tracing::info!(%bucket, "a bucket that was offline is served again");
                        self.parts.metrics.buckets_offline.dec();
                    }
                    replicas.insert(bucket, Slot::Leader(Arc::new(replica)));
                    self.parts.metrics.leaders.inc();
                    (None, None)
                }
                (_, Ok(replica)) => (Some(Error::UnknownBucket { bucket }), Some(replica)),
                (Some(Slot::Opening(_, before)), Err(error)) => {
                    let Failure { code, message } = Failure::from(&error);
                    let known = before
                        .as_ref()
                        .is_some_and(|before| before.reason == message);
                    if before.is_none() {
                        self.parts.metrics.buckets_offline.inc();
                    }
                    // It is tried again and again: what was said is not said again.
                    if !known {
                        tracing::error!(%bucket, error = message, "a bucket cannot be opened");
                    }
                    let offline = Offline {
                        code,
                        reason: message,
                    };
                    replicas.insert(bucket, Slot::Broken(epochs, Arc::new(offline)));
                    (Some(error), None)
                }
                (_, Err(error)) => (Some(error), None),
            }
        };
        if let Some(replica) = unwanted {
            replica.close().await;
        }
        self.changed.notify_waiters();
        failure
    }

    /// Gives buckets up, with their data if the request says so.
    pub(super) async fn stop_replicas(
        self: &Arc<Self>,
        request: StopReplicaRequest,
    ) -> Result<Stopped, Error> {
        self.cache.accept_coordinator(request.coordinator_epoch)?;
        let mut log_ends = Vec::new();
        for asked in request.stop_replicas_req {
            let bucket = bucket_of(&asked.table_bucket);
            match self.stop_one(bucket, asked.delete).await {
                Ok(end) => log_ends.extend(end.map(|end| (bucket.bucket, end))),
                Err(error) => tracing::warn!(%bucket, %error, "a bucket could not be given up"),
            }
        }
        Ok(Stopped { log_ends })
    }

    /// Gives a bucket up; where its log ends, if it was led here and its data stays.
    async fn stop_one(
        self: &Arc<Self>,
        bucket: TableBucket,
        delete: bool,
    ) -> Result<Option<LogOffset>, Error> {
        let slot = self.take_slot(bucket).await;
        self.parts.reads.cut_logs.forget(bucket);
        let log = match slot {
            Some(Slot::Leader(replica)) => {
                self.parts.metrics.leaders.dec();
                if !delete || replica.table.has_keys() {
                    replica.close().await;
                }
                Some(Arc::clone(replica.log()))
            }
            Some(slot) => {
                if slot.offline().is_some() {
                    self.parts.metrics.buckets_offline.dec();
                }
                None
            }
            None => None,
        };
        if !delete {
            let Some(log) = log else { return Ok(None) };
            return Ok(log.is_closed().then(|| log.log_end()));
        }
        self.remove_keys(bucket).await?;
        let (dir, root) = (self.log_dir(bucket), self.parts.log_dir.clone());
        let disk = Arc::clone(&self.parts.log_options.disk);
        let remove = move || {
            match log {
                Some(log) => log.delete()?,
                None => remove_dir(&*disk, &dir)?,
            }
            let parents = dir.ancestors().skip(1).take_while(|parent| *parent != root);
            for parent in parents {
                // One that still holds another bucket or partition stays.
                if disk.remove_dir(parent).is_err() {
                    break;
                }
            }
            Ok(None)
        };
        tokio::task::spawn_blocking(remove).await?
    }

    /// Takes the bucket out of the map; one that is being opened is waited for.
    async fn take_slot(&self, bucket: TableBucket) -> Option<Slot> {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let mut replicas = self.replicas.write();
                if !matches!(replicas.get(&bucket), Some(Slot::Opening(..))) {
                    return replicas.remove(&bucket);
                }
            }
            changed.await;
        }
    }

    /// Raises what is known to be in the lake; buckets that are not here are left out.
    pub(super) fn take_lake_progress(
        &self,
        request: &NotifyLakeTableOffsetRequest,
    ) -> Result<(), Error> {
        self.cache.accept_coordinator(request.coordinator_epoch)?;
        let replicas = self.replicas.read();
        for asked in &request.notify_buckets_req {
            let bucket = TableBucket {
                table: TableId(asked.table_id),
                partition: asked.partition_id.map(PartitionId),
                bucket: BucketId(asked.bucket_id),
            };
            if let (Some(Slot::Leader(replica)), Some(end)) =
                (replicas.get(&bucket), asked.log_end_offset)
            {
                replica.raise_lake_end(LogOffset(end));
                self.note_cut(replica);
            }
        }
        Ok(())
    }

    /// Closes all logs; what was appended is on disk then.
    pub(crate) async fn close(&self) {
        futures::stream::iter(self.leaders())
            .for_each_concurrent(CLOSED_AT_ONCE, async |replica| replica.close().await)
            .await;
    }

    /// Where a bucket's log is kept. Made of ids alone: no name ever becomes a path.
    pub(crate) fn log_dir(&self, bucket: TableBucket) -> PathBuf {
        bucket_dir(&self.parts.log_dir, bucket)
    }
}

/// The folder of a bucket below one of the roots.
pub(super) fn bucket_dir(root: &Path, bucket: TableBucket) -> PathBuf {
    let mut dir = root.join(format!("table-{}", bucket.table));
    if let Some(partition) = bucket.partition {
        dir.push(format!("partition-{partition}"));
    }
    dir.push(format!("bucket-{}", bucket.bucket));
    dir
}

/// Whether a bucket was led before, here or elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Led {
    /// Its log must be empty.
    Never,
    /// What it held must be there.
    Before,
}

enum Admitted {
    AlreadyLeader,
    Open,
}

async fn acknowledge(
    acks: &Acks,
    asked: &PbNotifyLeaderAndIsrReqForBucket,
    failure: Option<Failure>,
) {
    let mut entry = PbNotifyLeaderAndIsrRespForBucket {
        table_bucket: asked.table_bucket,
        ..PbNotifyLeaderAndIsrRespForBucket::default()
    };
    if let Some(failure) = failure {
        (entry.error_code, entry.error_message) = failure.fields();
    }
    let response = NotifyLeaderAndIsrResponse {
        notify_buckets_leader_resp: vec![entry],
    };
    if acks.send(response).await.is_err() {
        tracing::debug!("nobody waits for an acknowledgement any more");
    }
}

pub(super) async fn close_log(log: Arc<Log>) {
    let bucket = log.bucket();
    match tokio::task::spawn_blocking(move || log.close()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::error!(%bucket, %error, "a log was not closed cleanly"),
        Err(error) => tracing::error!(%bucket, %error, "a log was not closed"),
    }
}

fn remove_dir(disk: &dyn Disk, dir: &Path) -> Result<(), Error> {
    match disk.remove_dir_all(dir) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => Err(Error::Disk {
            path: dir.to_owned(),
            source,
        }),
        _ => Ok(()),
    }
}

fn bucket_of(bucket: &PbTableBucket) -> TableBucket {
    TableBucket {
        table: TableId(bucket.table_id),
        partition: bucket.partition_id.map(PartitionId),
        bucket: BucketId(bucket.bucket_id),
    }
}

fn table_path(path: &PbPhysicalTablePath) -> TablePath {
    TablePath::new(path.database_name.clone(), path.table_name.clone())
}

#[cfg(test)]
mod tests;
