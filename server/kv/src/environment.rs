//! What all buckets of a process share: block cache, write buffers, permits for blocking work,
//! cursors, the clock.

use std::sync::Arc;
use std::time::Duration;

use rocksdb::{Cache, WriteBufferManager};
use tokio::sync::Semaphore;

/// The time now, in milliseconds since any fixed moment; it may go back but should not.
pub type Clock = Arc<dyn Fn() -> i64 + Send + Sync>;

/// Limits for all key-value state of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvConfig {
    /// Bytes of blocks and indexes that are cached, and of write buffers (they are charged to the
    /// same cache); 256 MiB.
    pub memory_bytes: usize,
    /// How much of it write buffers may take before buckets that are written flush; 64 MiB. A
    /// quarter of `memory_bytes` serves well.
    pub write_buffer_bytes: usize,
    /// The write buffer of one bucket, in bytes; full ones are flushed to a file; 8 MiB.
    pub bucket_write_buffer_bytes: usize,
    /// Files that one bucket keeps open; 64.
    pub bucket_open_files: i32,
    /// Calls that work on blocking threads at once, over all buckets; others wait; 16.
    pub blocking_calls: usize,
    /// Cursors open at once over all buckets; each holds a thread that sleeps between pages; 200
    /// (as fluss `ScannerManager`).
    pub cursors: usize,
    /// Cursors open at once on one bucket; 8.
    pub bucket_cursors: usize,
    /// How long a cursor may stay unused; 10 minutes.
    pub cursor_idle: Duration,
}

impl Default for KvConfig {
    fn default() -> Self {
        Self {
            memory_bytes: 256 << 20,
            write_buffer_bytes: 64 << 20,
            bucket_write_buffer_bytes: 8 << 20,
            bucket_open_files: 64,
            blocking_calls: 16,
            cursors: 200,
            bucket_cursors: 8,
            cursor_idle: Duration::from_secs(600),
        }
    }
}

/// The shared part of all [stores](crate::KvStore) of a process. Cheap to clone.
#[derive(Clone)]
pub struct KvEnvironment {
    pub(crate) config: Arc<KvConfig>,
    pub(crate) cache: Cache,
    pub(crate) write_buffers: WriteBufferManager,
    pub(crate) calls: Arc<Semaphore>,
    pub(crate) cursors: Arc<Semaphore>,
    pub(crate) clock: Clock,
}

impl std::fmt::Debug for KvEnvironment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KvEnvironment")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl KvEnvironment {
    /// An environment with these limits. Allocates nothing of the budget yet.
    pub fn new(config: KvConfig, clock: Clock) -> Self {
        let cache = Cache::new_lru_cache(config.memory_bytes);
        // Writers are not stalled: with many databases the one that waits need not be the one that
        // holds memory.
        let write_buffers = WriteBufferManager::new_write_buffer_manager_with_cache(
            config.write_buffer_bytes,
            false,
            cache.clone(),
        );
        Self {
            calls: Arc::new(Semaphore::new(config.blocking_calls.max(1))),
            cursors: Arc::new(Semaphore::new(config.cursors)),
            config: Arc::new(config),
            cache,
            write_buffers,
            clock,
        }
    }

    /// Bytes that write buffers of all buckets hold now.
    pub fn write_buffer_usage_bytes(&self) -> usize {
        self.write_buffers.get_usage()
    }

    /// Bytes of the cache in use now, write buffers included.
    pub fn cache_usage_bytes(&self) -> usize {
        self.cache.get_usage()
    }
}
