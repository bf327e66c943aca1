//! Bytes that recovery cuts off but may not throw away.
//!
//! Behind a bad batch there may be whole ones. After a power cut that may be right (later pages
//! reached the disk, an earlier one did not, and nobody was promised any of them) or the disk may have
//! changed what it kept: nobody can tell. So such bytes are kept in a file beside the log.

use std::path::Path;

use weir_protocol::ids::LogOffset;

use super::disk::{Disk, DiskFile};
use super::error::{Error, Result};
use super::segment;

/// The ending of such a file. Its name begins with the segment's base offset and the position in it.
pub(crate) const EXTENSION: &str = "cut";
/// How much is copied at once.
const CHUNK_BYTES: usize = 1 << 20;
/// How many files may stem from the same place of the same segment.
const MAX_SAME_PLACE: usize = 1000;

/// What is set aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    /// The segment.
    pub(crate) base_offset: LogOffset,
    /// Where it begins, in bytes.
    pub(crate) position: u64,
    /// Where it ends: the end of the file, unless an operator cuts a stretch out.
    pub(crate) end: u64,
}

/// Where files are set aside.
#[derive(Clone, Copy)]
pub(crate) struct AsideFolder<'a> {
    pub(crate) disk: &'a dyn Disk,
    pub(crate) dir: &'a Path,
}

impl AsideFolder<'_> {
    /// How many such files there are, and their bytes.
    pub(crate) fn held(&self, names: &[String]) -> Result<(usize, u64)> {
        let mut bytes = 0;
        for name in names {
            let path = self.dir.join(name);
            let len = self.disk.open(&path).and_then(|file| file.len());
            bytes += len.map_err(|error| Error::io(&path, "measure", error))?;
        }
        Ok((names.len(), bytes))
    }

    /// Copies a part of a segment; bytes and name are durable when this returns.
    pub(crate) fn copy(&self, cut: &Cut, file: &dyn DiskFile) -> Result<String> {
        let name = self.free_name(cut)?;
        let path = self.dir.join(&name);
        let temporary = self.dir.join(format!("{name}.tmp"));
        let copied = copy_range(self.disk, file, (cut.position, cut.end), &temporary)
            .and_then(|()| self.disk.rename(&temporary, &path))
            .and_then(|()| self.disk.sync_dir(self.dir));
        if let Err(error) = copied {
            // Best effort: a leftover is swept when the log is opened.
            let _ = self.disk.remove(&temporary);
            return Err(Error::io(&path, "set aside", error));
        }
        Ok(name)
    }

    /// Renames a whole segment; durable after the caller's [`Disk::sync_dir`].
    pub(crate) fn take_segment(&self, cut: &Cut) -> Result<String> {
        let name = self.free_name(cut)?;
        let from = self.dir.join(segment::log_name(cut.base_offset));
        self.disk
            .rename(&from, &self.dir.join(&name))
            .map_err(|error| Error::io(&from, "set aside", error))?;
        Ok(name)
    }

    /// A name that no file has: none is ever overwritten.
    fn free_name(&self, cut: &Cut) -> Result<String> {
        let stem = format!("{:020}-{}", cut.base_offset.0, cut.position);
        for number in 1..=MAX_SAME_PLACE {
            let name = match number {
                1 => format!("{stem}.{EXTENSION}"),
                _ => format!("{stem}-{number}.{EXTENSION}"),
            };
            let path = self.dir.join(&name);
            let taken = self.disk.exists(&path);
            if !taken.map_err(|error| Error::io(&path, "look up", error))? {
                return Ok(name);
            }
        }
        let path = self.dir.join(format!("{stem}.{EXTENSION}"));
        let full = std::io::Error::other("too many files were set aside from this place");
        Err(Error::io(&path, "set aside", full))
    }
}

/// Copies bytes `from..to` of a file into a new one, which is synced.
pub(crate) fn copy_range(
    disk: &dyn Disk,
    file: &dyn DiskFile,
    (from, to): (u64, u64),
    target: &Path,
) -> std::io::Result<()> {
    let copy = disk.create(target)?;
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut position = from;
    while position < to {
        let step = usize::try_from(to - position).map_or(CHUNK_BYTES, |left| left.min(CHUNK_BYTES));
        let part = buffer.get_mut(..step).unwrap_or_default();
        file.read_at(part, position)?;
        copy.write_at(part, position - from)?;
        position += step as u64;
    }
    copy.sync_data()
}
