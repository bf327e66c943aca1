//! How a log is kept.

use std::time::Duration;

/// When appended bytes are made durable. In every case the log's flushed end says how far that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushPolicy {
    /// At once after each append; appends that arrive during a sync share the next one.
    Always,
    /// At most this long after the first append that is not durable yet.
    Interval(Duration),
    /// Whenever the operating system likes: the flushed end claims what was only handed over. A
    /// power cut loses acknowledged rows, so this is for tests.
    Os,
}

impl Default for FlushPolicy {
    fn default() -> Self {
        FlushPolicy::Interval(Duration::from_millis(100))
    }
}

/// Sizes and times of a log. The defaults suit a server; tests make them small.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// A segment that would grow beyond this many bytes is closed and a new one begun. A batch that
    /// is larger gets a segment of its own. At most 2 GiB.
    pub segment_bytes: u64,
    /// How many bytes of a segment lie between two entries of its index.
    pub index_interval_bytes: u64,
    /// After so many appended bytes the next flush writes a checkpoint: recovery reads at most about
    /// this much.
    pub checkpoint_bytes: u64,
    /// The largest batch taken, in bytes.
    pub max_batch_bytes: usize,
    /// A writer idle for longer than this is forgotten, in milliseconds.
    pub writer_expiry_ms: i64,
    /// How many writers a bucket remembers; beyond, the longest idle ones are forgotten.
    pub max_writers: usize,
    /// How many files of cut-off bytes a bucket keeps. A log that would need more does not open.
    pub max_cut_files: usize,
    /// How many bytes they may have in all.
    pub max_cut_bytes: u64,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self {
            segment_bytes: 128 << 20,
            index_interval_bytes: 16 << 10,
            checkpoint_bytes: 32 << 20,
            max_batch_bytes: 64 << 20,
            writer_expiry_ms: 7 * 24 * 3_600_000,
            max_writers: 50_000,
            max_cut_files: 64,
            max_cut_bytes: 1 << 30,
        }
    }
}
