//! A tablet server: leads buckets, appends to their logs and reads from them.

mod append;
mod fetch;
mod insert;
mod keyed;
mod limit_scan;
mod lookup;
mod offsets;
mod put;
mod reopen;
mod replica;
mod retention;
mod room;
mod routing;
mod scan_kv;
mod table_info;
#[cfg(test)]
mod tests;
mod transitions;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, Semaphore, mpsc};
use weir_catalog::clock::Clock;
use weir_kv::KvEnvironment;
use weir_protocol::error_code::ErrorCode;
use weir_protocol::ids::{ServerId, TableBucket, TableId};

pub(crate) use append::{Append, Appending};
pub(crate) use fetch::{Columns, FetchAnswer, FetchBucket, FetchRequest, Fetched};
pub(crate) use keyed::{Existing, KeyRules, Keyed, KnownSchema, Numbered, Put};
pub(crate) use limit_scan::LimitScan;
pub(crate) use lookup::{LookupBucket, LookupBy, LookupRequest};
pub(crate) use offsets::OffsetSpec;
pub(crate) use put::{PutBucket, PutPending};
use replica::Epochs;
pub(crate) use replica::Replica;
use room::Room;
pub(crate) use scan_kv::{ScanPage, ScannerId};
pub(crate) use table_info::TableInfo;

use crate::cluster::MetadataCache;
use crate::config::{KvConfig, LimitsConfig, LogConfig};
use crate::error::Error;
use crate::log::LogOptions;
use crate::memory::Memory;
use crate::metrics::Metrics;
use crate::peer;
use crate::reads::Reads;
use crate::shutdown::Shutdown;

/// How many writer ids are taken from the store at a time.
const WRITER_ID_BLOCK: u32 = 1000;

/// How many appends, and how many reads, are on blocking threads at once; more wait for their turn.
const BLOCKING_CALLS: usize = 32;

/// What a tablet server is made of.
pub(crate) struct Parts {
    pub(crate) id: ServerId,
    pub(crate) log_dir: PathBuf,
    pub(crate) log_config: LogConfig,
    pub(crate) log_options: LogOptions,
    pub(crate) kv: KvParts,
    pub(crate) limits: LimitsConfig,
    pub(crate) reads: Arc<Reads>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) shutdown: Shutdown,
}

/// Where and how a tablet server keeps the keys of primary-key tables.
#[derive(Clone, Debug)]
pub(crate) struct KvParts {
    pub(crate) dir: PathBuf,
    pub(crate) config: KvConfig,
    /// Shared by all tablet servers of the process.
    pub(crate) environment: KvEnvironment,
}

#[cfg(test)]
impl KvParts {
    fn for_tests(dir: impl Into<PathBuf>) -> Self {
        let config = KvConfig::default();
        let environment = KvEnvironment::new(config.environment(), Arc::new(|| 0));
        Self {
            dir: dir.into(),
            config,
            environment,
        }
    }
}

/// One tablet server of this process.
pub(crate) struct TabletServer {
    pub(crate) parts: Parts,
    /// What the coordinator told this server.
    pub(crate) cache: Arc<MetadataCache>,
    replicas: RwLock<HashMap<TableBucket, Slot>>,
    tables: Mutex<HashMap<TableId, Arc<TableInfo>>>,
    /// Writer ids taken and not yet handed out.
    writer_ids: Mutex<std::ops::Range<i64>>,
    recovery: Arc<Semaphore>,
    /// Appends, and reads, that may be on blocking threads at once.
    appends: Arc<Semaphore>,
    reads: Arc<Semaphore>,
    room: Arc<Room>,
    /// Memory for answers that are being read and sent.
    answers: Memory,
    /// Memory for old values of puts.
    old_values: Memory,
    /// Wakes who opens buckets again whose keys take no more writes.
    keys_failed: Arc<Notify>,
    /// Wakes those who wait for a bucket to come or go.
    changed: Notify,
}

/// A bucket on this server.
#[derive(Clone)]
enum Slot {
    /// Its log is being opened under this leader epoch; it could not be before, if a reason is there.
    Opening(Epochs, Option<Arc<Offline>>),
    /// Ready.
    Leader(Arc<Replica>),
    /// Its log could not be opened.
    Broken(Epochs, Arc<Offline>),
}

/// Why a bucket is not served: what a client is told, too.
#[derive(Debug)]
struct Offline {
    code: ErrorCode,
    reason: String,
}

impl Slot {
    fn offline(&self) -> Option<&Arc<Offline>> {
        match self {
            Slot::Opening(_, offline) => offline.as_ref(),
            Slot::Broken(_, offline) => Some(offline),
            Slot::Leader(_) => None,
        }
    }
}

impl TabletServer {
    pub(crate) fn new(parts: Parts) -> Arc<Self> {
        let recovery = Arc::new(Semaphore::new(parts.log_config.recovery_threads));
        let answers = Memory::new(parts.limits.answer_memory_bytes);
        let room = Room::new(
            Arc::clone(&parts.log_options.disk),
            parts.log_dir.clone(),
            parts.log_config.min_free_bytes,
        );
        Arc::new(Self {
            parts,
            room: Arc::new(room),
            cache: Arc::default(),
            replicas: RwLock::default(),
            tables: Mutex::default(),
            writer_ids: Mutex::new(0..0),
            recovery,
            appends: Arc::new(Semaphore::new(BLOCKING_CALLS)),
            reads: Arc::new(Semaphore::new(BLOCKING_CALLS)),
            answers,
            old_values: Memory::new(keyed::MAX_OLD_BYTES),
            keys_failed: Arc::default(),
            changed: Notify::new(),
        })
    }

    /// Works off the coordinator's calls, in their order, until the shutdown begins.
    pub(crate) async fn run(self: Arc<Self>, mut calls: mpsc::Receiver<peer::Call>) {
        loop {
            let call = tokio::select! {
                biased;
                () = self.parts.shutdown.begun() => return,
                call = calls.recv() => call,
            };
            match call {
                Some(call) => self.take_call(call).await,
                None => return,
            }
        }
    }

    async fn take_call(self: &Arc<Self>, call: peer::Call) {
        match call {
            peer::Call::NotifyLeaderAndIsr(request, acks) => {
                self.become_leader(request, acks);
            }
            peer::Call::UpdateMetadata(request, answer) => {
                let result = self.cache.apply(&request);
                self.refresh_tables(&request).await;
                // Whoever asked may have given up.
                let _gone = answer.send(result);
            }
            peer::Call::StopReplica(request, answer) => {
                // One that is being opened is waited for: not in the way of other calls.
                let server = Arc::clone(self);
                self.parts.shutdown.spawn(async move {
                    let _gone = answer.send(server.stop_replicas(request).await);
                });
            }
            peer::Call::NotifyLakeTableOffset(request, answer) => {
                let _gone = answer.send(self.take_lake_progress(&request));
            }
            peer::Call::ListOffsets(request, answer) => {
                let _gone = answer.send(Ok(self.log_ends(&request)));
            }
        }
    }

    /// A writer id that no other writer of the cluster ever gets.
    pub(crate) async fn new_writer_id(&self) -> Result<i64, Error> {
        if let Some(id) = self.writer_ids.lock().next() {
            return Ok(id);
        }
        let mut block = self.parts.reads.take_writer_ids(WRITER_ID_BLOCK).await?;
        let id = block.start;
        block.start += 1;
        // What another call put there meanwhile is given up: ids are plenty.
        *self.writer_ids.lock() = block;
        Ok(id)
    }

    /// The buckets that this server leads and has ready.
    pub(crate) fn leaders(&self) -> Vec<Arc<Replica>> {
        let replicas = self.replicas.read();
        let ready = |slot: &Slot| match slot {
            Slot::Leader(replica) => Some(Arc::clone(replica)),
            Slot::Opening(..) | Slot::Broken(..) => None,
        };
        replicas.values().filter_map(ready).collect()
    }
}

/// Runs a call of a log on a blocking thread, once there is a turn.
///
/// # Errors
/// [`Error::Interrupted`] if the process is stopping.
async fn on_blocking_thread<T: Send + 'static>(
    turns: &Arc<Semaphore>,
    call: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Error> {
    let turn = Arc::clone(turns).acquire_owned().await;
    let turn = turn.map_err(|_| Error::Stopping)?;
    let calling = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        call()
    });
    Ok(calling.await?)
}

impl std::fmt::Debug for TabletServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TabletServer")
            .field("id", &self.parts.id)
            .finish_non_exhaustive()
    }
}
