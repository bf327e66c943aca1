//! `synced`: how far a bucket's log was durable when it was last synced.
//!
//! Written in place after each sync returned, and itself synced only with checkpoints. So it is never
//! ahead of the truth: exact after the process alone died, and stale or unreadable (which is to say
//! nothing) after a power cut. What it vouches for was perhaps acknowledged: recovery never cuts it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use weir_protocol::ids::LogOffset;

use super::disk::{self, Disk, DiskFile};
use super::error::{Error, Result};

/// The newest version written and read.
pub(crate) const VERSION: u32 = 1;
pub(crate) const FILE_NAME: &str = "synced";
const MAGIC: &[u8; 8] = b"WEIRSYN\0";
const BYTES: usize = 40;
/// A newer version may be longer; whatever is larger is damaged.
const MAX_FILE_BYTES: u64 = 4096;

/// Everything up to here was synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SyncedMark {
    /// The segment that was written last.
    pub(crate) base_offset: LogOffset,
    /// How many bytes of it were synced.
    pub(crate) len: u64,
    /// The offset after the last record in them.
    pub(crate) next_offset: LogOffset,
}

enum Fault {
    Damaged,
    Newer(u32),
}

impl SyncedMark {
    /// Reads the record of a folder. None if there is none or it is damaged: nothing is known.
    pub(crate) fn load(disk: &dyn Disk, dir: &Path) -> Result<Option<Self>> {
        let path = path(dir);
        let bytes = match disk::read_file(disk, &path, MAX_FILE_BYTES) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Vec::new(),
            Err(error) => return Err(Error::io(&path, "read", error)),
        };
        match Self::decode(&bytes) {
            Ok(mark) => Ok(Some(mark)),
            Err(Fault::Newer(found)) => Err(Error::NewerFormat {
                path,
                found,
                supported: VERSION,
            }),
            Err(Fault::Damaged) => {
                // One that was made and never synced is empty after a power cut.
                if !bytes.is_empty() {
                    tracing::warn!(file = %path.display(),
                        "damaged: how far the log was synced is not known");
                }
                Ok(None)
            }
        }
    }

    /// Writes the record over the one before; gives the file back for a later sync. One small write.
    pub(crate) fn write(&self, disk: &dyn Disk, dir: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let path = path(dir);
        let file = match disk.open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => disk.create(&path)?,
            opened => opened?,
        };
        file.write_at(&self.encode(), 0)?;
        Ok(file)
    }

    /// Removes the record, before the log becomes shorter than it says. Durable after the caller's
    /// [`Disk::sync_dir`].
    pub(crate) fn remove(disk: &dyn Disk, dir: &Path) -> Result<()> {
        let path = path(dir);
        disk::remove_if_there(disk, &path).map_err(|error| Error::io(&path, "remove", error))
    }

    /// Layout, little-endian: magic `WEIRSYN\0`, version, base offset, bytes, next offset, and as the
    /// last four bytes of any version the CRC-32C of all before.
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(BYTES);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&self.base_offset.0.to_le_bytes());
        bytes.extend_from_slice(&self.len.to_le_bytes());
        bytes.extend_from_slice(&self.next_offset.0.to_le_bytes());
        bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let (body, crc) = bytes.split_last_chunk::<4>().ok_or(Fault::Damaged)?;
        let body = body.strip_prefix(MAGIC).ok_or(Fault::Damaged)?;
        let all = bytes.get(..bytes.len() - 4).ok_or(Fault::Damaged)?;
        if crc32c::crc32c(all) != u32::from_le_bytes(*crc) {
            return Err(Fault::Damaged);
        }
        let (version, body) = body.split_first_chunk::<4>().ok_or(Fault::Damaged)?;
        let version = u32::from_le_bytes(*version);
        if version > VERSION {
            return Err(Fault::Newer(version));
        }
        let body: &[u8; 24] = body.try_into().map_err(|_| Fault::Damaged)?;
        let mut numbers = body
            .as_chunks::<8>()
            .0
            .iter()
            .map(|bytes| i64::from_le_bytes(*bytes));
        let mut next = || numbers.next().filter(|number| *number >= 0);
        let (Some(base), Some(len), Some(end)) = (next(), next(), next()) else {
            return Err(Fault::Damaged);
        };
        Ok(Self {
            base_offset: LogOffset(base),
            len: len.unsigned_abs(),
            next_offset: LogOffset(end),
        })
    }
}

fn path(dir: &Path) -> PathBuf {
    dir.join(FILE_NAME)
}

#[cfg(test)]
mod tests {
    use super::super::disk::memory::MemoryDisk;
    use super::*;

    #[test]
    fn a_record_is_read_back_and_any_flipped_bit_or_cut_makes_it_unknown() {
        let disk = MemoryDisk::new();
        let dir = Path::new("/");
        let mark = SyncedMark {
            base_offset: LogOffset(70),
            len: 4_096,
            next_offset: LogOffset(99),
        };
        assert_eq!(SyncedMark::load(&disk, dir).unwrap(), None);
        mark.write(&disk, dir).unwrap();
        assert_eq!(SyncedMark::load(&disk, dir).unwrap(), Some(mark));
        let bytes = disk.bytes(&path(dir));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            disk.set_bytes(&path(dir), &flipped);
            assert_eq!(SyncedMark::load(&disk, dir).unwrap(), None, "bit {bit}");
            disk.set_bytes(&path(dir), &bytes[..bit / 8]);
            assert_eq!(SyncedMark::load(&disk, dir).unwrap(), None, "cut at {bit}");
        }
        let mut newer = bytes[..36].to_vec();
        newer[8] = 2;
        newer.extend_from_slice(b"more");
        newer.extend_from_slice(&crc32c::crc32c(&newer).to_le_bytes());
        disk.set_bytes(&path(dir), &newer);
        let refused = SyncedMark::load(&disk, dir);
        assert!(
            matches!(refused, Err(Error::NewerFormat { found: 2, .. })),
            "{refused:?}"
        );
    }
}
