//! The logs of a data directory that no server has open: looked over, and mended.

use std::path::{Path, PathBuf};

use weir_protocol::ids::{BucketId, PartitionId, TableBucket, TableId};

use crate::data_dir::DataDir;
use crate::error::Error;
use crate::log::repair::{ClosedLog, Inspection, Repaired};
use crate::log::{FileSystem, LogConfig};

/// A data directory, held so that no server starts in it meanwhile.
#[derive(Debug)]
pub struct OfflineLogs {
    data_dir: DataDir,
}

/// The log of one bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketLog {
    /// Whose log it is.
    pub bucket: TableBucket,
    /// Its folder.
    pub dir: PathBuf,
}

impl OfflineLogs {
    /// Takes the lock of a data directory that exists. Blocks.
    ///
    /// # Errors
    /// [`Error::Locked`] while a server runs on it; [`Error::Disk`] if it is no data directory;
    /// [`Error::NewerFormat`], [`Error::Corrupt`].
    pub fn open(path: &Path) -> Result<Self, Error> {
        let data_dir = DataDir::open_existing(path)?;
        Ok(Self { data_dir })
    }

    /// The logs of all buckets, by table, partition and bucket. Blocks.
    ///
    /// # Errors
    /// [`Error::Disk`].
    pub fn buckets(&self) -> Result<Vec<BucketLog>, Error> {
        let mut found = Vec::new();
        for (_, tablet) in numbered(self.data_dir.path(), "tablet-")? {
            for (table, dir) in numbered(&tablet.join("log"), "table-")? {
                let mut groups = vec![(None, dir.clone())];
                let partitions = numbered(&dir, "partition-")?;
                groups.extend(partitions.into_iter().map(|(id, dir)| (Some(id), dir)));
                for (partition, dir) in groups {
                    found.extend(buckets_in(
                        &dir,
                        TableId(table),
                        partition.map(PartitionId),
                    )?);
                }
            }
        }
        found.sort_unstable_by_key(|log| log.bucket);
        Ok(found)
    }

    /// Reads a whole log; changes nothing. Blocks.
    ///
    /// # Errors
    /// As [`ClosedLog::inspect`].
    pub fn inspect(&self, log: &BucketLog) -> Result<Inspection, Error> {
        Ok(closed(log, &LogConfig::default()).inspect()?)
    }

    /// Takes out of a log what is damaged: see [`ClosedLog::repair`]. Blocks.
    ///
    /// # Errors
    /// As [`ClosedLog::repair`].
    pub fn repair(&self, log: &BucketLog) -> Result<Repaired, Error> {
        Ok(closed(log, &LogConfig::default()).repair()?)
    }
}

fn closed<'a>(log: &'a BucketLog, config: &'a LogConfig) -> ClosedLog<'a> {
    ClosedLog {
        disk: &FileSystem,
        dir: &log.dir,
        bucket: log.bucket,
        config,
    }
}

fn buckets_in(
    dir: &Path,
    table: TableId,
    partition: Option<PartitionId>,
) -> Result<Vec<BucketLog>, Error> {
    let found = numbered(dir, "bucket-")?.into_iter();
    let found = found.filter_map(|(bucket, dir)| {
        let bucket = TableBucket {
            table,
            partition,
            bucket: BucketId(i32::try_from(bucket).ok()?),
        };
        Some(BucketLog { bucket, dir })
    });
    Ok(found.collect())
}

/// The folders in `parent` named by `prefix` and a number; none if there is no such folder.
fn numbered(parent: &Path, prefix: &str) -> Result<Vec<(i64, PathBuf)>, Error> {
    let failed = |source| Error::Disk {
        path: parent.to_owned(),
        source,
    };
    let entries = match std::fs::read_dir(parent) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(prefix));
        if let Some(number) = number.and_then(|number| number.parse().ok()) {
            found.push((number, entry.path()));
        }
    }
    Ok(found)
}
