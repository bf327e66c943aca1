//! The cluster behind the protocol's client.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::OnceCell;
use weir_catalog::ddl::properties::WEIR_PREFIX;
use weir_protocol::client::offsets::{OffsetSpec, OffsetsRequest};
use weir_protocol::client::scanner::{FetchedBucket, LogFetcher, LogFetcherConfig, Subscription};
use weir_protocol::client::tiering::{
    CommitLakeSnapshot, Heartbeat as WireHeartbeat, HeartbeatTable, KeepSnapshots,
    LakeProgress as WireProgress, PrepareLakeSnapshot, TieringStats,
};
use weir_protocol::client::{self, Client, ClientConfig, Dial, dial};
use weir_protocol::error_code::ErrorCode;
use weir_protocol::ids::{BucketId, LogOffset, SchemaId, TableBucket, TableId, TablePath};
use weir_protocol::proto::DescribeClusterConfigsRequest;
use weir_protocol::sasl::PlainCredentials;
use weir_protocol::schema::Schema;

use super::{
    BucketFault, Fetched, Heartbeat, HeartbeatAnswer, HeartbeatEntry, LakeProgress, LogReader,
    OffsetKind, Refusal, Registration, TableInfo, TieringClient, Trouble,
};
use crate::config::DaemonConfig;
use crate::enumerate::{BucketGroup, PartitionView};
use crate::error::{Error, Result, sentence};
use crate::lease::{Epochs, Lease};
use crate::split::Split;

/// How long a bucket in trouble is waited for, before the round goes on without it.
const BUCKET_PATIENCE: Duration = Duration::from_secs(5);

/// How long the offset of a bucket in trouble is asked for again, while those of the others wait.
const OFFSET_PATIENCE: Duration = Duration::from_secs(2);

/// The cluster configuration by which an embedded server of ours names itself.
const OUR_VERSION: &str = "weir.version";

/// A cluster that is dialled at the first call, and again until it is there.
#[derive(Debug)]
pub struct WireCluster {
    config: ClientConfig,
    client: OnceCell<Client>,
}

impl WireCluster {
    /// The cluster of these settings, over TCP. Does no IO.
    pub fn new(config: &DaemonConfig) -> Self {
        Self::over(config, Arc::new(dial::Tcp))
    }

    /// The cluster of these settings, reached by `dial`. Does no IO.
    pub fn over(config: &DaemonConfig, dial: Arc<dyn Dial>) -> Self {
        let mut client = ClientConfig::new(config.bootstrap.iter().cloned());
        client.credentials = config.sasl.as_ref().map(|sasl| PlainCredentials {
            user: sasl.user.clone(),
            password: sasl.password.clone(),
        });
        client.request_timeout = config.rpc_timeout();
        client.connect_timeout = client.connect_timeout.min(config.rpc_timeout());
        client.retry_timeout = config.rpc_timeout() / 2;
        client.dial = dial;
        Self {
            config: client,
            client: OnceCell::new(),
        }
    }

    async fn client(&self) -> Result<&Client> {
        let connect = || Client::connect(self.config.clone());
        self.client
            .get_or_try_init(connect)
            .await
            .map_err(failed("connect"))
    }

    /// A call to the coordinator that is sent once; after trouble with reaching it, the next one
    /// looks for it anew.
    async fn refreshed<T>(
        &self,
        call: &'static str,
        answer: Result<T, client::Error>,
    ) -> Result<T> {
        match answer {
            Ok(answer) => Ok(answer),
            Err(error) => {
                if error.is_retriable()
                    && let Ok(client) = self.client().await
                {
                    // Should that fail too, the next call meets the same trouble and tells of it.
                    drop(client.refresh_cluster().await);
                }
                Err(failed(call)(error))
            }
        }
    }
}

/// The properties of a table; ours may be custom ones, for a cluster that is not ours refuses
/// others that it does not know.
fn with_custom(
    mut properties: BTreeMap<String, String>,
    custom: BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let ours = custom
        .into_iter()
        .filter(|(key, _)| key.starts_with(WEIR_PREFIX));
    for (key, value) in ours {
        properties.entry(key).or_insert(value);
    }
    properties
}

fn failed(call: &'static str) -> impl FnOnce(client::Error) -> Error {
    move |error| Error::cluster(call, error.code(), error.outcome_is_unknown(), error)
}

#[async_trait]
impl TieringClient for WireCluster {
    async fn table_info(&self, path: &TablePath) -> Result<TableInfo> {
        let info = self
            .client()
            .await?
            .table_info(path)
            .await
            .map_err(failed("table info"))?;
        let bucket_count = info.total_buckets().map_err(failed("table info"))?;
        Ok(TableInfo {
            id: info.table_id,
            schema_id: info.schema_id,
            bucket_count,
            bucket_layout_epoch: info.bucket_layout_epoch,
            partition_keys: info.descriptor.partition_keys,
            properties: with_custom(
                info.descriptor.properties,
                info.descriptor.custom_properties,
            ),
            schema: Arc::new(info.descriptor.schema),
        })
    }

    async fn schema(&self, path: &TablePath, id: SchemaId) -> Result<Arc<Schema>> {
        let answer = self.client().await?.schema(path, Some(id)).await;
        let (_, schema) = answer.map_err(failed("table schema"))?;
        Ok(Arc::new(schema))
    }

    async fn partitions(&self, path: &TablePath) -> Result<Vec<PartitionView>> {
        let answer = self.client().await?.list_partitions(path).await;
        let partitions = answer.map_err(failed("list partitions"))?;
        let view = |partition: client::admin::PartitionInfo| PartitionView {
            id: partition.id,
            name: partition.name,
            bucket_count: partition.bucket_count,
        };
        Ok(partitions.into_iter().map(view).collect())
    }

    async fn offsets(
        &self,
        path: &TablePath,
        table: TableId,
        group: &BucketGroup,
        kind: OffsetKind,
    ) -> Result<BTreeMap<BucketId, Result<LogOffset>>> {
        let request = OffsetsRequest {
            path: path.clone(),
            table,
            partition: group.partition,
            buckets: group.buckets(table).map(|bucket| bucket.bucket).collect(),
            spec: match kind {
                OffsetKind::Earliest => OffsetSpec::Earliest,
                OffsetKind::Latest => OffsetSpec::Latest,
            },
            routing_count: group.total_buckets,
        };
        let client = self.client().await?;
        let answer = client.list_offsets_within(&request, OFFSET_PATIENCE).await;
        let offsets = answer.map_err(failed("list offsets"))?;
        let each = offsets.into_iter();
        Ok(each
            .map(|(id, offset)| (id, offset.map_err(failed("list offsets"))))
            .collect())
    }

    async fn lake_progress(&self, path: &TablePath, table: TableId) -> Result<LakeProgress> {
        let answer = self.client().await?.lake_snapshot(path).await;
        let Some(snapshot) = answer.map_err(failed("lake snapshot"))? else {
            return Ok(LakeProgress::default());
        };
        if snapshot.table_id != table {
            let (ours, table, found) = (table, path.clone(), snapshot.table_id);
            return Err(Error::Recreated { table, ours, found });
        }
        let ends = snapshot
            .buckets
            .into_iter()
            .map(|(bucket, end, _)| (bucket, end));
        Ok(LakeProgress {
            snapshot: Some(snapshot.snapshot_id),
            ends: ends.collect(),
        })
    }

    async fn heartbeat(&self, heartbeat: Heartbeat) -> Result<HeartbeatAnswer> {
        let wire = WireHeartbeat {
            tiering: heartbeat.tiering.iter().map(wire_entry).collect(),
            finished: heartbeat.finished.iter().map(wire_entry).collect(),
            failed: heartbeat.failed.iter().map(wire_entry).collect(),
            force_finished: heartbeat.force_finished,
            request_table: heartbeat.request_table,
        };
        let answer = self.client().await?.tiering_heartbeat(&wire).await;
        let answer = self.refreshed("tiering heartbeat", answer).await?;
        let coordinator = answer.coordinator_epoch;
        let offered = answer.table.map(|table| Lease {
            table: table.table_id,
            path: table.path,
            epochs: Epochs {
                coordinator,
                tiering: table.tiering_epoch,
            },
        });
        let refused = answer.refused.into_iter().map(|(table, error)| Refusal {
            table,
            code: error.code(),
            message: error.to_string(),
        });
        Ok(HeartbeatAnswer {
            coordinator,
            offered,
            refused: refused.collect(),
        })
    }

    async fn prepare(
        &self,
        path: &TablePath,
        table: TableId,
        ends: &BTreeMap<TableBucket, LogOffset>,
    ) -> Result<String> {
        let prepare = PrepareLakeSnapshot {
            table_id: table,
            path: path.clone(),
            offsets: ends
                .iter()
                .map(|(b, end)| ((b.partition, b.bucket), *end))
                .collect(),
            ignore_previous: false,
        };
        let answer = self.client().await?.prepare_lake_snapshot(&prepare).await;
        self.refreshed("prepare lake snapshot", answer).await
    }

    async fn register(&self, registration: &Registration) -> Result<()> {
        let progress = registration
            .ends
            .iter()
            .map(|(bucket, end, timestamp)| WireProgress {
                partition: bucket.partition,
                bucket: bucket.bucket,
                end: *end,
                max_timestamp_ms: *timestamp,
            });
        let commit = CommitLakeSnapshot {
            table_id: registration.table,
            path: registration.path.clone(),
            snapshot_id: registration.snapshot,
            tiered_offsets_path: registration.offsets_path.clone(),
            // A log table's snapshot can be read as it is: nothing waits for a compaction.
            readable_offsets_path: Some(registration.offsets_path.clone()),
            keep: if registration.keep_all {
                KeepSnapshots::All
            } else {
                KeepSnapshots::New
            },
            progress: progress.collect(),
        };
        let answer = self.client().await?.commit_lake_snapshot(&commit).await;
        self.refreshed("commit lake snapshot", answer).await
    }

    async fn reader(
        &self,
        path: &TablePath,
        table: TableId,
        max_bytes: u64,
    ) -> Result<Box<dyn LogReader>> {
        let client = self.client().await?.clone();
        let config = LogFetcherConfig {
            max_bytes: i32::try_from(max_bytes).unwrap_or(i32::MAX),
            max_bucket_bytes: i32::try_from(max_bytes / 4).unwrap_or(i32::MAX),
            // Checked where batches are decoded, on all processors.
            verify_crc: false,
            patience: Some(BUCKET_PATIENCE.min(client.config().retry_timeout)),
            ..LogFetcherConfig::default()
        };
        let fetcher = LogFetcher::new(client, path.clone(), table, config);
        Ok(Box::new(WireReader { fetcher }))
    }

    async fn is_ours(&self) -> Result<bool> {
        let client = self.client().await?;
        let answer = client
            .coordinator(DescribeClusterConfigsRequest::default())
            .await;
        match answer {
            Ok(answer) => Ok(answer
                .configs
                .iter()
                .any(|config| config.config_key == OUR_VERSION)),
            // Ours knows the call and lets everyone make it.
            Err(client::Error::UnsupportedVersion { .. }) => Ok(false),
            Err(error)
                if matches!(
                    error.code(),
                    Some(ErrorCode::UnsupportedVersion | ErrorCode::Authorization)
                ) =>
            {
                Ok(false)
            }
            Err(error) => Err(failed("describe cluster configs")(error)),
        }
    }
}

fn wire_entry(entry: &HeartbeatEntry) -> HeartbeatTable {
    HeartbeatTable {
        table_id: entry.table,
        coordinator_epoch: entry.epochs.coordinator,
        tiering_epoch: entry.epochs.tiering,
        stats: entry.stats.map(|stats| TieringStats {
            file_bytes: stats.bytes,
            record_count: stats.rows,
        }),
    }
}

#[derive(Debug)]
struct WireReader {
    fetcher: LogFetcher,
}

#[async_trait]
impl LogReader for WireReader {
    fn add(&mut self, split: &Split) {
        self.fetcher.subscribe(Subscription {
            bucket: split.bucket,
            start: split.read_from,
            stop: Some(split.stop),
            routing_count: split.total_buckets,
        });
    }

    fn remove(&mut self, bucket: TableBucket) {
        self.fetcher.unsubscribe(bucket);
    }

    async fn poll(&mut self, max_wait: Duration) -> Vec<Fetched> {
        self.fetcher
            .poll(max_wait)
            .await
            .into_iter()
            .map(fetched)
            .collect()
    }
}

fn fetched(bucket: FetchedBucket) -> Fetched {
    let fault = bucket.error.map(|error| match error {
        client::Error::OffsetOutOfRange { .. } => BucketFault::OutOfRange,
        error => BucketFault::Failed(trouble(&error)),
    });
    Fetched {
        bucket: bucket.bucket,
        batches: bucket.batches,
        gap_to: bucket.gap_to,
        fault,
        trouble: bucket.trouble.as_ref().map(trouble),
    }
}

/// Trouble of one bucket. A bucket that is gone, or is counted anew, is so for the next plan.
fn trouble(error: &client::Error) -> Trouble {
    let planned_anew = matches!(
        error.code(),
        Some(
            ErrorCode::PartitionNotExists
                | ErrorCode::TableNotExist
                | ErrorCode::InvalidBucketRouting
                | ErrorCode::UnknownServerError
        )
    );
    Trouble {
        reason: sentence(error),
        code: error.code(),
        lost: None,
        lasting: !error.is_retriable() && !planned_anew,
    }
}
