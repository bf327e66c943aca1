//! The disk of the server: the double that the tests of the log use, as a process reaches it that
//! may die at any write or sync.

use std::io;
use std::path::Path;
use std::sync::Arc;

use weir_server::log::{Disk, DiskFile};

use crate::process::{Fate, Process};

#[path = "../../server/src/log/disk/memory.rs"]
#[allow(dead_code, reason = "the tests of the log use all of it")]
mod memory;

pub(crate) use memory::{Crash, MemoryDisk};

/// The disk as one process reaches it.
#[derive(Debug)]
pub(crate) struct ReachedDisk {
    disk: memory::Process,
    process: Process,
}

#[derive(Debug)]
struct ReachedFile {
    file: Arc<dyn DiskFile>,
    process: Process,
}

impl ReachedDisk {
    pub(crate) fn new(disk: &MemoryDisk, process: &Process) -> Arc<Self> {
        Arc::new(Self {
            disk: disk.process(),
            process: process.clone(),
        })
    }

    fn opened(&self, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        let process = self.process.clone();
        Arc::new(ReachedFile { file, process })
    }
}

/// A change of the disk: the process may die before or after it.
fn change<T>(process: &Process, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let fate = process.fate();
    if fate == Some(Fate::DieBefore) {
        process.die();
    }
    if fate == Some(Fate::Refuse) {
        return Err(io::Error::other("the disk refuses"));
    }
    let done = work();
    if fate == Some(Fate::DieAfter) {
        process.die();
    }
    done
}

impl Disk for ReachedDisk {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        change(&self.process, || self.disk.create_dir(path))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.disk.exists(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.disk.list(dir)
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let file = change(&self.process, || self.disk.create(path))?;
        Ok(self.opened(file))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.opened(self.disk.open(path)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        change(&self.process, || self.disk.rename(from, to))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        change(&self.process, || self.disk.remove(path))
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        change(&self.process, || self.disk.remove_dir(path))
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        change(&self.process, || self.disk.remove_dir_all(path))
    }

    /// Always enough: a disk that is full to the last byte is the harder case.
    fn free_bytes(&self, _dir: &Path) -> io::Result<u64> {
        Ok(u64::MAX)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        change(&self.process, || self.disk.sync_dir(dir))
    }
}

impl DiskFile for ReachedFile {
    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        change(&self.process, || self.file.write_at(bytes, position))
    }

    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<()> {
        self.file.read_at(buffer, position)
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        change(&self.process, || self.file.set_len(len))
    }

    fn sync_data(&self) -> io::Result<()> {
        change(&self.process, || self.file.sync_data())
    }
}
