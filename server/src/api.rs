//! From a request's key to the part that answers it.

mod admin;
mod databases;
mod describe;
pub(crate) mod error;
mod fetch;
mod kv;
mod metadata;
mod offsets;
mod partitions;
mod produce;
mod scan;
mod tables;
mod tiering;
mod versions;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use tokio::sync::OwnedSemaphorePermit;
use weir_catalog::catalog::{IfExists, IfMissing};
use weir_protocol::api_key::ApiKey;
use weir_protocol::frame;
use weir_protocol::message::Request;

pub(crate) use error::Failure;

use crate::cluster::MetadataCache;
use crate::coordinator::Coordinator;
use crate::error::Error;
use crate::reads::Reads;
use crate::tablet::TabletServer;

/// How deep messages of requests stand in one another.
const MAX_DEPTH: u32 = 4;
/// How many messages and texts a request may have for each bucket that it may name.
const PARTS_A_BUCKET: usize = 4;

/// A request with its key and version already checked.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) api: ApiKey,
    pub(crate) version: i16,
    pub(crate) body: Bytes,
}

/// A message that encodes itself behind a frame header.
pub(crate) struct Answer {
    encode: Box<dyn FnOnce(i32) -> Bytes + Send>,
    memory: Option<OwnedSemaphorePermit>,
}

/// Bytes to send, and the memory that is free again once they are.
pub(crate) struct Outgoing {
    pub(crate) bytes: Bytes,
    _memory: Option<OwnedSemaphorePermit>,
}

impl From<Bytes> for Outgoing {
    fn from(bytes: Bytes) -> Self {
        Self {
            bytes,
            _memory: None,
        }
    }
}

impl Answer {
    fn new(message: impl Message + 'static) -> Self {
        let encode = move |request_id| frame::encode_success(request_id, &message);
        Self {
            encode: Box::new(encode),
            memory: None,
        }
    }

    fn holding(self, memory: Option<OwnedSemaphorePermit>) -> Self {
        Self { memory, ..self }
    }

    /// The frame of this answer to the request `request_id`.
    pub(crate) fn frame(self, request_id: i32) -> Outgoing {
        Outgoing {
            bytes: (self.encode)(request_id),
            _memory: self.memory,
        }
    }
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Answer")
    }
}

/// What a request ends in.
pub(crate) type Outcome = Result<Answer, Failure>;
type Done = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// What becomes of a request whose connection is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnClose {
    /// It changes something: it runs to its end.
    Finish,
    /// It only waits or reads: it is dropped.
    Abandon,
}

/// A request that has begun.
pub(crate) struct Started {
    pub(crate) done: Done,
    pub(crate) on_close: OnClose,
}

impl Started {
    fn finish(done: impl Future<Output = Outcome> + Send + 'static) -> Self {
        Self {
            done: Box::pin(done),
            on_close: OnClose::Finish,
        }
    }

    fn abandon(done: impl Future<Output = Outcome> + Send + 'static) -> Self {
        Self {
            done: Box::pin(done),
            on_close: OnClose::Abandon,
        }
    }
}

/// The role that a listener speaks for.
#[derive(Clone)]
pub(crate) enum Role {
    Coordinator(Arc<Coordinator>),
    Tablet(Arc<TabletServer>),
}

/// One role behind its listener.
pub(crate) struct Service {
    pub(crate) role: Role,
    /// What exists.
    pub(crate) reads: Arc<Reads>,
    /// Who leads what, as this role was told.
    pub(crate) cache: Arc<MetadataCache>,
}

impl Service {
    /// The API of a request, if this listener serves it in this version.
    pub(crate) fn check(&self, api_key: i16, version: i16) -> Result<ApiKey, Error> {
        let api = ApiKey::from_key(api_key).ok_or(Error::UnknownApi { api_key })?;
        let (lowest, highest) =
            versions::served(api, self.kind()).ok_or(Error::UnknownApi { api_key })?;
        if version < lowest || version > highest {
            return Err(Error::UnsupportedVersion { api, version });
        }
        Ok(api)
    }

    fn kind(&self) -> versions::RoleKind {
        match self.role {
            Role::Coordinator(_) => versions::RoleKind::Coordinator,
            Role::Tablet(_) => versions::RoleKind::Tablet,
        }
    }

    /// Begins a request: an append is in the log when this returns, the rest is done by `done`. One that
    /// only reads ends with its connection.
    pub(crate) async fn start(self: &Arc<Self>, call: Call) -> Started {
        match (call.api, &self.role) {
            (ApiKey::ProduceLog, Role::Tablet(tablet)) => produce::start(tablet, call).await,
            (ApiKey::PutKv, Role::Tablet(tablet)) => kv::put::start(tablet, call).await,
            (ApiKey::FetchLog, Role::Tablet(tablet)) => {
                let tablet = Arc::clone(tablet);
                Started::abandon(async move { fetch::run(&tablet, call).await })
            }
            (api, _) => {
                let service = Arc::clone(self);
                let run = async move { service.run(call).await };
                if only_reads(api) {
                    Started::abandon(run)
                } else {
                    Started::finish(run)
                }
            }
        }
    }

    async fn run(&self, call: Call) -> Outcome {
        match &self.role {
            Role::Coordinator(coordinator) => self.run_on_coordinator(coordinator, call).await,
            Role::Tablet(tablet) => self.run_on_tablet(tablet, call).await,
        }
    }

    async fn run_on_coordinator(&self, coordinator: &Arc<Coordinator>, call: Call) -> Outcome {
        use ApiKey as K;
        match call.api {
            K::CreateDatabase | K::DropDatabase | K::AlterDatabase => {
                databases::run(coordinator, call).await
            }
            K::CreateTable | K::DropTable | K::AlterTable => tables::run(coordinator, call).await,
            K::CreatePartition | K::DropPartition => partitions::run(coordinator, call).await,
            K::CommitLakeTableSnapshot | K::LakeTieringHeartbeat | K::PrepareLakeTableSnapshot => {
                tiering::run(coordinator, call).await
            }
            K::CreateAcls
            | K::DropAcls
            | K::AlterClusterConfigs
            | K::AddServerTag
            | K::RemoveServerTag
            | K::AddServerTagByRack
            | K::RemoveServerTagByRack
            | K::Rebalance
            | K::ListRebalanceProgress
            | K::CancelRebalance
            | K::RegisterProducerOffsets
            | K::GetProducerOffsets
            | K::DeleteProducerOffsets
            | K::AcquireKvSnapshotLease
            | K::ReleaseKvSnapshotLease
            | K::DropKvSnapshotLease
            | K::ListRemoteLogManifests
            | K::ListKvSnapshots => admin::run(coordinator, call).await,
            _ => self.run_on_both(call).await,
        }
    }

    async fn run_on_tablet(&self, tablet: &Arc<TabletServer>, call: Call) -> Outcome {
        match call.api {
            ApiKey::ListOffsets | ApiKey::InitWriter | ApiKey::GetTableStats => {
                offsets::run(tablet, call).await
            }
            ApiKey::LimitScan => scan::run(tablet, call).await,
            ApiKey::Lookup | ApiKey::PrefixLookup | ApiKey::ScanKv => kv::run(tablet, call).await,
            _ => self.run_on_both(call).await,
        }
    }

    async fn run_on_both(&self, call: Call) -> Outcome {
        use ApiKey as K;
        match call.api {
            K::ApiVersions => versions::run(self.kind(), call),
            K::GetMetadata => metadata::run(self, call).await,
            K::ListDatabases
            | K::DatabaseExists
            | K::GetDatabaseInfo
            | K::GetTableInfo
            | K::ListTables
            | K::TableExists
            | K::GetTableSchema
            | K::ListPartitionInfos => describe::run(self, call).await,
            K::GetLatestKvSnapshots
            | K::GetKvSnapshotMetadata
            | K::GetLakeSnapshot
            | K::GetFilesystemSecurityToken
            | K::ListAcls
            | K::DescribeClusterConfigs
            | K::GetClusterHealth => describe::run_cluster(self, call).await,
            api => Err(Error::UnknownApi { api_key: api.key() }.into()),
        }
    }
}

/// Whether a request carries rows, and may be large.
pub(crate) fn carries_rows(api: ApiKey) -> bool {
    matches!(api, ApiKey::ProduceLog | ApiKey::PutKv)
}

/// Whether a request changes nothing.
fn only_reads(api: ApiKey) -> bool {
    use ApiKey as K;
    matches!(
        api,
        K::ApiVersions
            | K::GetMetadata
            | K::ListDatabases
            | K::DatabaseExists
            | K::GetDatabaseInfo
            | K::GetTableInfo
            | K::ListTables
            | K::TableExists
            | K::GetTableSchema
            | K::ListPartitionInfos
            | K::GetLatestKvSnapshots
            | K::GetKvSnapshotMetadata
            | K::GetLakeSnapshot
            | K::GetFilesystemSecurityToken
            | K::ListAcls
            | K::DescribeClusterConfigs
            | K::GetClusterHealth
            | K::ListOffsets
            | K::GetTableStats
            | K::LimitScan
            | K::Lookup
            | K::PrefixLookup
            | K::ScanKv
    )
}

/// Counts what a request names before it is decoded: two bytes on the wire may be hundreds in memory.
///
/// # Errors
/// [`Error::TooManyBuckets`], also for names, columns, and other things that stand in messages or texts of
/// their own: of these there may be a few times as many.
pub(crate) fn refuse_flood(api: ApiKey, body: &[u8], max_buckets: usize) -> Result<(), Error> {
    let (depth, max) = if carries_rows(api) {
        (0, max_buckets)
    } else {
        (MAX_DEPTH, max_buckets.saturating_mul(PARTS_A_BUCKET))
    };
    let count = frame::count_parts(body, depth);
    if count > max {
        return Err(Error::TooManyBuckets { api, count, max });
    }
    Ok(())
}

/// Refuses a request that names more buckets than one may.
///
/// # Errors
/// [`Error::TooManyBuckets`].
fn refuse_too_many(api: ApiKey, count: usize, tablet: &TabletServer) -> Result<(), Error> {
    let max = tablet.parts.limits.max_buckets_per_request;
    if count > max {
        return Err(Error::TooManyBuckets { api, count, max });
    }
    Ok(())
}

fn if_exists(ignore: bool) -> IfExists {
    if ignore {
        IfExists::Ignore
    } else {
        IfExists::Fail
    }
}

fn if_missing(ignore: bool) -> IfMissing {
    if ignore {
        IfMissing::Ignore
    } else {
        IfMissing::Fail
    }
}

/// The message of a request.
///
/// # Errors
/// [`Error::BrokenMessage`].
pub(crate) fn decode<M: Message + Default>(api: ApiKey, body: Bytes) -> Result<M, Error> {
    M::decode(body).map_err(|source| Error::BrokenMessage {
        api,
        reason: source.to_string(),
    })
}

/// Decodes, handles and encodes one request.
async fn answer<R, H, F>(body: Bytes, handle: H) -> Outcome
where
    R: Request,
    H: FnOnce(R) -> F,
    F: Future<Output = Result<R::Response, Error>>,
{
    let request = decode::<R>(R::API_KEY, body)?;
    Ok(Answer::new(handle(request).await?))
}
