//! Going over the batches of a segment file, from one to the next.

use std::io;
use std::ops::Range;
use std::path::Path;

use weir_protocol::ids::LogOffset;

use super::batch::{BatchHeader, MAX_HEADER_BYTES};
use super::disk::DiskFile;
use super::error::{Error, Result};

/// How much is read at once.
const CHUNK_BYTES: u64 = 256 << 10;

/// How closely batches are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Check {
    /// Headers, and that offsets follow each other.
    Headers,
    /// Checksums too: every byte is read.
    Everything,
}

/// Whether a walk goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    On,
    Stop,
}

/// A walk over the batches of a segment file.
#[derive(Clone, Debug)]
pub(crate) struct Walk {
    pub(crate) range: Range<u64>,
    pub(crate) next_offset: LogOffset,
    pub(crate) check: Check,
}

/// Where a walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Walked {
    /// The end of the last batch that is whole.
    pub(crate) position: u64,
    pub(crate) next_offset: LogOffset,
    /// Why the bytes behind are no batch; None: the end of the range, or the visitor stopped.
    pub(crate) stopped: Option<&'static str>,
}

impl Walk {
    pub(crate) fn run(
        self,
        path: &Path,
        file: &dyn DiskFile,
        mut visit: impl FnMut(&BatchHeader, u64) -> Step,
    ) -> Result<Walked> {
        let mut window = Window::new(file, self.range.end);
        let mut walked = Walked {
            position: self.range.start,
            next_offset: self.next_offset,
            stopped: None,
        };
        while walked.position < self.range.end {
            let seen = self.batch_at(&mut window, &walked);
            let header = match seen.map_err(|error| Error::io(path, "read", error))? {
                Ok(header) => header,
                Err(reason) => {
                    return Ok(Walked {
                        stopped: Some(reason),
                        ..walked
                    });
                }
            };
            if visit(&header, walked.position) == Step::Stop {
                return Ok(walked);
            }
            walked.position += header.size_bytes as u64;
            walked.next_offset = header.next_offset().unwrap_or(walked.next_offset);
        }
        Ok(walked)
    }

    /// The batch at a position, or why there is none.
    fn batch_at(
        &self,
        window: &mut Window<'_>,
        walked: &Walked,
    ) -> io::Result<Result<BatchHeader, &'static str>> {
        let left = self.range.end - walked.position;
        let head = window.get(walked.position, left.min(MAX_HEADER_BYTES as u64))?;
        let Ok(header) = BatchHeader::parse(head) else {
            return Ok(Err("no batch header"));
        };
        if header.size_bytes as u64 > left {
            return Ok(Err("batch is cut off"));
        }
        if header.next_offset().is_none() || header.base_offset != walked.next_offset {
            return Ok(Err("batch does not follow the one before"));
        }
        if self.check == Check::Everything {
            let batch = window.get(walked.position, header.size_bytes as u64)?;
            if !header.crc_holds(batch) {
                return Ok(Err("checksum does not hold"));
            }
        }
        Ok(Ok(header))
    }
}

/// A part of a file in memory that moves forward.
pub(crate) struct Window<'a> {
    file: &'a dyn DiskFile,
    end: u64,
    start: u64,
    bytes: Vec<u8>,
}

impl<'a> Window<'a> {
    /// Over a file's bytes below `end`.
    pub(crate) fn new(file: &'a dyn DiskFile, end: u64) -> Self {
        Self {
            file,
            end,
            start: 0,
            bytes: Vec::new(),
        }
    }

    /// `len` bytes at `position`, which lie below the end.
    pub(crate) fn get(&mut self, position: u64, len: u64) -> io::Result<&[u8]> {
        let held = self.start..self.start + self.bytes.len() as u64;
        if position < held.start || position + len > held.end {
            let want = len.max(CHUNK_BYTES.min(self.end - position));
            self.bytes.clear();
            self.bytes
                .resize(usize::try_from(want).map_err(io::Error::other)?, 0);
            self.file.read_at(&mut self.bytes, position)?;
            self.start = position;
        }
        let from = usize::try_from(position - self.start).map_err(io::Error::other)?;
        let to = from + usize::try_from(len).map_err(io::Error::other)?;
        self.bytes
            .get(from..to)
            .ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}
