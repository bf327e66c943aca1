//! Looking for whole batches behind a place where there should be one and is none.

use std::io;
use std::path::Path;

use weir_protocol::ids::LogOffset;

use super::batch::{BatchHeader, MAX_HEADER_BYTES};
use super::disk::DiskFile;
use super::error::{Error, Result};
use super::walk::Window;

/// How far it is looked for, in bytes. More than that is not written between two checkpoints.
const MAX_SCAN_BYTES: u64 = 256 << 20;
/// How many bytes of what may be batches are summed up, before it is given up.
const MAX_CHECKED_BYTES: u64 = 1 << 30;

/// A batch found behind damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FoundBatch {
    pub(crate) position: u64,
    pub(crate) base_offset: LogOffset,
}

/// What stands behind damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behind {
    /// No whole batch.
    Nothing,
    /// At least this one, the first.
    Batch(FoundBatch),
    /// It was too much to look through.
    Unknown,
}

/// A search in one segment's file.
pub(crate) struct Scan<'a> {
    pub(crate) path: &'a Path,
    pub(crate) file: &'a dyn DiskFile,
    /// The size of the file.
    pub(crate) len: u64,
    /// Batches of lower offsets are none: what is looked for comes later in the log.
    pub(crate) from_offset: LogOffset,
    /// The largest batch there is, in bytes.
    pub(crate) max_batch_bytes: u64,
}

impl Scan<'_> {
    /// The first whole batch at or behind `position`: one whose header is plausible and whose checksum
    /// holds. Blocks; reads at most what the limits say.
    pub(crate) fn first_batch(&self, position: u64) -> Result<Behind> {
        self.search(position)
            .map_err(|error| Error::io(self.path, "read", error))
    }

    fn search(&self, from: u64) -> io::Result<Behind> {
        let mut window = Window::new(self.file, self.len);
        let mut checked_bytes = 0;
        let mut position = from;
        while position < self.len {
            if position - from > MAX_SCAN_BYTES || checked_bytes > MAX_CHECKED_BYTES {
                return Ok(Behind::Unknown);
            }
            let left = self.len - position;
            let head = window.get(position, left.min(MAX_HEADER_BYTES as u64))?;
            if let Some(header) = self.plausible(head, left) {
                let size_bytes = header.size_bytes as u64;
                checked_bytes += size_bytes;
                if header.crc_holds(window.get(position, size_bytes)?) {
                    let base_offset = header.base_offset;
                    return Ok(Behind::Batch(FoundBatch {
                        position,
                        base_offset,
                    }));
                }
            }
            position += 1;
        }
        Ok(Behind::Nothing)
    }

    fn plausible(&self, head: &[u8], left: u64) -> Option<BatchHeader> {
        let header = BatchHeader::parse(head).ok()?;
        let size_bytes = header.size_bytes as u64;
        let fits = size_bytes <= left.min(self.max_batch_bytes);
        let follows = header.base_offset >= self.from_offset && header.next_offset().is_some();
        (fits && follows).then_some(header)
    }
}
