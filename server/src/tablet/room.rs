//! Room on the disk: appends end before it is full, for what has to be written all the same.
//!
//! Old rows can only go once it is noted down that they do, and metadata is often on the same disk:
//! a disk that is full to the last byte would stay full.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::log::{self, Disk};

/// The room that appends leave on the disk of a server's logs.
#[derive(Debug)]
pub(crate) struct Room {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    /// Bytes that stay free.
    kept_bytes: u64,
    /// Bytes that may be appended before the disk is looked at again.
    before_look: AtomicU64,
}

impl Room {
    /// Leaves `kept_bytes` free on the disk of the folder `dir`; none if that is 0.
    pub(crate) fn new(disk: Arc<dyn Disk>, dir: PathBuf, kept_bytes: u64) -> Self {
        Self {
            disk,
            dir,
            kept_bytes,
            before_look: AtomicU64::new(0),
        }
    }

    /// Takes room for an append of so many bytes. Looks at the disk each time that a quarter of what
    /// is kept free was appended, and each time while there is too little. Blocks then, shortly.
    ///
    /// # Errors
    /// [`log::Error::DiskFull`].
    pub(crate) fn take(&self, bytes: u64) -> Result<(), log::Error> {
        let left = |before: u64| before.checked_sub(bytes);
        let taken = self
            .before_look
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, left);
        if taken.is_ok() || self.kept_bytes == 0 {
            return Ok(());
        }
        // What can't be looked at is found out by the append itself.
        let free = self.disk.free_bytes(&self.dir).unwrap_or(u64::MAX);
        if free.saturating_sub(bytes) < self.kept_bytes {
            let kept = self.kept_bytes;
            let reason =
                format!("the last {kept} bytes of the disk stay free (log.min-free-bytes)");
            let source = io::Error::new(io::ErrorKind::StorageFull, reason);
            return Err(log::Error::io(&self.dir, "append", source));
        }
        self.before_look
            .store(self.kept_bytes / 4, Ordering::Relaxed);
        Ok(())
    }
}
