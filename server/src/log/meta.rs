//! `log.meta`: the format version of a log's folder, whose log it is, where it begins, and its gaps.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use weir_protocol::ids::{LogOffset, TableBucket};

use super::disk::{self, Disk};
use super::error::{Error, Result};

/// The newest version written and read.
pub(crate) const VERSION: u32 = 1;
pub(crate) const FILE_NAME: &str = "log.meta";
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Offsets that the log does not hold although it holds earlier ones: the log was recovered below
/// its committed lake end and went on there. The records are in the lake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// The first offset missing.
    pub from: LogOffset,
    /// The first offset held again.
    pub to: LogOffset,
}

/// The file's content, JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LogMeta {
    version: u32,
    pub(crate) bucket: TableBucket,
    /// The first offset held; segments below are leftovers of a retention that was cut short.
    pub(crate) log_start: LogOffset,
    #[serde(default)]
    pub(crate) gaps: Vec<Gap>,
    /// CRC-32C of this very JSON without the checksum: a flipped digit must not move the start of a
    /// log. Absent in files of early builds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    crc: Option<u32>,
}

#[derive(Deserialize)]
struct VersionOnly {
    version: u32,
}

impl LogMeta {
    pub(crate) fn new(bucket: TableBucket) -> Self {
        Self {
            version: VERSION,
            bucket,
            log_start: LogOffset(0),
            gaps: Vec::new(),
            crc: None,
        }
    }

    /// The bytes without a checksum, and their checksum.
    fn summed(&self) -> serde_json::Result<(Vec<u8>, u32)> {
        let plain = Self {
            crc: None,
            ..self.clone()
        };
        let bytes = serde_json::to_vec(&plain)?;
        let crc = crc32c::crc32c(&bytes);
        Ok((bytes, crc))
    }

    /// Reads the file of a folder; None if there is none.
    pub(crate) fn load(disk: &dyn Disk, dir: &Path, bucket: TableBucket) -> Result<Option<Self>> {
        let path = path(dir);
        if !disk
            .exists(&path)
            .map_err(|error| Error::io(&path, "look up", error))?
        {
            return Ok(None);
        }
        let bytes = disk::read_file(disk, &path, MAX_FILE_BYTES)
            .map_err(|error| Error::io(&path, "read", error))?;
        let VersionOnly { version } = serde_json::from_slice(&bytes)
            .map_err(|_| Error::corrupt(&path, 0, "no version in it"))?;
        if version > VERSION {
            return Err(Error::NewerFormat {
                path,
                found: version,
                supported: VERSION,
            });
        }
        let meta: Self = serde_json::from_slice(&bytes)
            .map_err(|_| Error::corrupt(&path, 0, "not the JSON of a log"))?;
        let sum = meta.summed().map(|(_, crc)| crc);
        if let (Some(stored), Ok(sum)) = (meta.crc, sum)
            && stored != sum
        {
            return Err(Error::corrupt(&path, 0, "checksum does not hold"));
        }
        if meta.bucket != bucket {
            return Err(Error::WrongBucket {
                path,
                found: meta.bucket,
                wanted: bucket,
            });
        }
        Ok(Some(meta))
    }

    /// Replaces the file; it is durable when this returns.
    pub(crate) fn save(&self, disk: &dyn Disk, dir: &Path) -> Result<()> {
        let path = path(dir);
        let bytes = self
            .summed()
            .and_then(|(_, crc)| {
                let crc = Some(crc);
                serde_json::to_vec(&Self {
                    crc,
                    ..self.clone()
                })
            })
            .map_err(|error| Error::io(&path, "encode", std::io::Error::other(error)))?;
        disk::replace_file(disk, &path, &bytes)
            .and_then(|()| disk.sync_dir(dir))
            .map_err(|error| Error::io(&path, "write", error))
    }

    /// Where a log that ends at `end` goes on.
    pub(crate) fn after_gap(&self, end: LogOffset) -> LogOffset {
        self.gaps
            .iter()
            .find(|gap| gap.from == end)
            .map_or(end, |gap| gap.to)
    }
}

fn path(dir: &Path) -> PathBuf {
    dir.join(FILE_NAME)
}
