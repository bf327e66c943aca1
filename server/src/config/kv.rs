//! How the keys of primary-key tables are kept.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{GIB, MAX_COUNT, MAX_MS, check_ranges, wide};

/// How the keys of primary-key tables are kept.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct KvConfig {
    /// The most bytes of blocks that are cached, and of write buffers, over all buckets.
    pub memory_bytes: usize,
    /// How much of it write buffers may take before buckets that are written flush, bytes.
    pub write_buffer_bytes: usize,
    /// The write buffer of one bucket, bytes; a full one is flushed to a file.
    pub bucket_write_buffer_bytes: usize,
    /// How many files one bucket keeps open.
    pub bucket_open_files: i32,
    /// How many calls read or write keys at the same time, over all buckets.
    pub blocking_calls: usize,
    /// The most scans that are open at once, over all buckets.
    pub scans: usize,
    /// The most scans that are open at once on one bucket.
    pub bucket_scans: usize,
    /// A scan that is not read from for this long ends, ms.
    pub scan_idle_ms: u64,
    /// How many puts of one bucket may wait for their turn; further ones wait in their connections.
    pub max_waiting_puts: usize,
    /// The most bytes of one bucket's keys that wait for the log to be synced; above, puts wait.
    pub max_buffer_bytes: usize,
    /// The most bytes of one bucket's log that a restart applies to its keys again.
    pub max_replay_bytes: u64,
}

impl Default for KvConfig {
    fn default() -> Self {
        Self {
            memory_bytes: 256 << 20,
            write_buffer_bytes: 64 << 20,
            bucket_write_buffer_bytes: 8 << 20,
            bucket_open_files: 64,
            blocking_calls: 16,
            scans: 200,
            bucket_scans: 8,
            scan_idle_ms: 600_000,
            max_waiting_puts: 64,
            max_buffer_bytes: 64 << 20,
            max_replay_bytes: 64 << 20,
        }
    }
}

impl KvConfig {
    pub(crate) fn environment(&self) -> weir_kv::KvConfig {
        weir_kv::KvConfig {
            memory_bytes: self.memory_bytes,
            write_buffer_bytes: self.write_buffer_bytes,
            bucket_write_buffer_bytes: self.bucket_write_buffer_bytes,
            bucket_open_files: self.bucket_open_files,
            blocking_calls: self.blocking_calls,
            cursors: self.scans,
            bucket_cursors: self.bucket_scans,
            cursor_idle: Duration::from_millis(self.scan_idle_ms),
        }
    }

    pub(super) fn check(&self, check: &mut impl FnMut(bool, &str)) {
        let size = |key, value: usize, least: u64| (key, wide(value), least..=1 << 40);
        check_ranges(
            check,
            [
                size("kv.memory-bytes", self.memory_bytes, 1 << 20),
                size("kv.write-buffer-bytes", self.write_buffer_bytes, 1 << 16),
                size(
                    "kv.bucket-write-buffer-bytes",
                    self.bucket_write_buffer_bytes,
                    1 << 16,
                ),
                size("kv.max-buffer-bytes", self.max_buffer_bytes, 1 << 16),
                ("kv.max-replay-bytes", self.max_replay_bytes, 1..=1 << 40),
                ("kv.scan-idle-ms", self.scan_idle_ms, 1..=MAX_MS),
                ("kv.blocking-calls", wide(self.blocking_calls), 1..=1024),
                ("kv.scans", wide(self.scans), 0..=10_000),
                ("kv.bucket-scans", wide(self.bucket_scans), 0..=10_000),
                (
                    "kv.max-waiting-puts",
                    wide(self.max_waiting_puts),
                    1..=wide(MAX_COUNT),
                ),
            ],
        );
        check(
            self.bucket_open_files >= 8,
            "kv.bucket-open-files is below 8",
        );
        check(
            self.bucket_write_buffer_bytes <= GIB,
            "kv.bucket-write-buffer-bytes is above 1 GiB",
        );
    }
}
