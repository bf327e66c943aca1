//! The data directory: its format version, and the lock that keeps a second process out.

use std::fs::{self, File, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::log::{Disk, FileSystem, disk};

/// The newest format that this version reads and writes.
pub const FORMAT_VERSION: u32 = 1;
const FORMAT_FILE: &str = "weir.format";
const LOCK_FILE: &str = "weir.lock";

/// A data directory that this process holds. The lock ends with the value, and with the process.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    _lock: File,
}

impl DataDir {
    /// Makes the directory if it is missing, takes its lock and checks its format. Blocks.
    ///
    /// # Errors
    /// [`Error::Locked`], [`Error::NewerFormat`], [`Error::Corrupt`], [`Error::Disk`].
    pub fn open(path: &Path) -> Result<Self, Error> {
        disk::create_dirs(&FileSystem, path).map_err(failed(path))?;
        let lock_path = path.join(LOCK_FILE);
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&lock_path)
            .map_err(failed(&lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::Locked {
                    path: path.to_owned(),
                });
            }
            Err(TryLockError::Error(source)) => return Err(failed(&lock_path)(source)),
        }
        check_format(path)?;
        Ok(Self {
            path: path.to_owned(),
            _lock: lock,
        })
    }

    /// Takes the lock of a directory that a server has made. Blocks.
    ///
    /// # Errors
    /// As [`DataDir::open`]; [`Error::Disk`] too if there is none.
    pub fn open_existing(path: &Path) -> Result<Self, Error> {
        let file = path.join(FORMAT_FILE);
        fs::metadata(&file).map_err(failed(&file))?;
        Self::open(path)
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Makes a folder, durable under its name, and checks that files can be made in it. Blocks.
///
/// # Errors
/// [`Error::Disk`].
pub(crate) fn make_folder(disk: &dyn Disk, path: &Path) -> Result<(), Error> {
    disk::create_dirs(disk, path).map_err(failed(path))?;
    let probe = path.join(".weir-probe");
    disk.create(&probe)
        .and_then(|_| disk.remove(&probe))
        .map_err(failed(path))
}

fn check_format(path: &Path) -> Result<(), Error> {
    let file = path.join(FORMAT_FILE);
    let text = match fs::read_to_string(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return write_format(path),
        Err(source) => return Err(failed(&file)(source)),
    };
    let found: u32 = text.trim().parse().map_err(|_| Error::Corrupt {
        path: file,
        reason: "it holds no format version".to_owned(),
    })?;
    if found > FORMAT_VERSION {
        let known = FORMAT_VERSION;
        return Err(Error::NewerFormat {
            path: path.to_owned(),
            found,
            known,
        });
    }
    Ok(())
}

fn write_format(path: &Path) -> Result<(), Error> {
    let draft = path.join(format!("{FORMAT_FILE}.tmp"));
    let write = || {
        let mut file = File::create(&draft)?;
        writeln!(file, "{FORMAT_VERSION}")?;
        file.sync_all()?;
        fs::rename(&draft, path.join(FORMAT_FILE))?;
        File::open(path)?.sync_all()
    };
    write().map_err(failed(&draft))
}

fn failed(path: &Path) -> impl Fn(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Disk {
        path: path.clone(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_holder_is_kept_out_until_the_first_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let first = DataDir::open(dir.path()).unwrap();
        let second = DataDir::open(dir.path()).unwrap_err();
        assert!(matches!(second, Error::Locked { .. }), "{second}");
        drop(first);
        DataDir::open(dir.path()).unwrap();
    }

    #[test]
    fn a_newer_format_is_refused_in_one_sentence() {
        let dir = tempfile::tempdir().unwrap();
        drop(DataDir::open(dir.path()).unwrap());
        fs::write(dir.path().join(FORMAT_FILE), "2\n").unwrap();
        let error = DataDir::open(dir.path()).unwrap_err();
        assert!(matches!(
            error,
            Error::NewerFormat {
                found: 2,
                known: 1,
                ..
            }
        ));
        fs::write(dir.path().join(FORMAT_FILE), "x").unwrap();
        assert!(matches!(
            DataDir::open(dir.path()),
            Err(Error::Corrupt { .. })
        ));
    }

    #[test]
    fn a_path_that_is_a_file_is_refused_and_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "").unwrap();
        let error = DataDir::open(&path).unwrap_err();
        assert!(error.to_string().contains("file"), "{error}");
    }
}
