//! Why the metadata store does not open.

use std::io;
use std::path::PathBuf;

/// Why the metadata store does not open. After that it speaks [`weir_catalog::store::StoreError`].
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Two processes on one folder would destroy it.
    #[error("{}: the metadata store is held by another process", path.display())]
    HeldByAnotherProcess {
        /// The folder.
        path: PathBuf,
    },
    /// A newer release wrote the folder.
    #[error(
        "{}: format version {found} is newer than {supported}; start the newer release",
        path.display()
    )]
    NewerFormat {
        /// The folder.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The newest version this release reads.
        supported: u32,
    },
    /// What is stored contradicts itself or can't be read; never opened as if it was empty.
    #[error("{}: the metadata store is corrupt: {reason}; restore the folder", path.display())]
    Corrupt {
        /// The folder.
        path: PathBuf,
        /// What was met.
        reason: String,
    },
    /// The file system refused.
    #[error("{}: {action} failed: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What the file system said.
        source: io::Error,
    },
    /// RocksDB refused.
    #[error("{}: the metadata store does not open: {source}", path.display())]
    Open {
        /// The folder.
        path: PathBuf,
        /// What RocksDB said.
        source: rocksdb::Error,
    },
}

impl Error {
    /// Whether opening may succeed later without any repair.
    pub fn is_retriable(&self) -> bool {
        match self {
            Error::HeldByAnotherProcess { .. } | Error::Io { .. } => true,
            Error::NewerFormat { .. } | Error::Corrupt { .. } | Error::Open { .. } => false,
        }
    }
}
