//! The seam between a log and the file system: what a log asks of a disk, and the real one.
//!
//! Nothing here is durable by itself: a file's bytes are after [`DiskFile::sync_data`], a name is
//! after [`Disk::sync_dir`] of its folder. All calls block.

use std::fmt::Debug;
use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

#[cfg(test)]
pub(crate) mod memory;

/// A file system, as far as logs need one.
pub trait Disk: Debug + Send + Sync + 'static {
    /// Makes one folder; its parent exists.
    fn create_dir(&self, path: &Path) -> io::Result<()>;
    /// Whether a file or folder of this name exists.
    fn exists(&self, path: &Path) -> io::Result<bool>;
    /// The names of the files and folders in a folder, in no order.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;
    /// Makes a file for reading and writing; an existing one is emptied.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;
    /// Opens an existing file for reading and writing.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;
    /// Gives a file or folder another name; an existing file of that name is replaced.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Removes an empty folder; fails if something is in it.
    fn remove_dir(&self, path: &Path) -> io::Result<()>;
    /// Removes a folder with all in it.
    fn remove_dir_all(&self, path: &Path) -> io::Result<()>;
    /// Bytes that are free for ordinary users on the disk of a folder.
    fn free_bytes(&self, dir: &Path) -> io::Result<u64>;
    /// Makes the names in a folder durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
}

/// An open file. Positions are in bytes from its start.
pub trait DiskFile: Debug + Send + Sync + 'static {
    /// Writes all bytes at a position; on an error some of them may have been written.
    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<()>;
    /// Fills the buffer from a position; `UnexpectedEof` if the file ends before.
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<()>;
    /// The size in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Cuts or grows (with zeros) to this size.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Makes the bytes and the size durable. After an error their state is unknown for ever.
    fn sync_data(&self) -> io::Result<()>;
    /// Whether the file has no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
}

/// The real file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct FileSystem;

impl Disk for FileSystem {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        fs::create_dir(path)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        path.try_exists()
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(dir)? {
            // A name that is no text is none of ours.
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true);
        Ok(Arc::new(RealFile(options.open(path)?)))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(RealFile(
            fs::OpenOptions::new().read(true).write(true).open(path)?,
        )))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(path)
    }

    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        let stat = rustix::fs::statvfs(dir)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        fs::File::open(dir)?.sync_all()
    }
}

#[derive(Debug)]
struct RealFile(fs::File);

impl DiskFile for RealFile {
    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, position)
    }

    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<()> {
        self.0.read_exact_at(buffer, position)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}

/// Makes a folder and those above it that are missing, each durable in its parent. So is, afterwards,
/// the lowest one that was there: who made it may have died before it synced the parent.
pub(crate) fn create_dirs(disk: &dyn Disk, dir: &Path) -> io::Result<()> {
    let mut missing = Vec::new();
    let mut at = Some(dir);
    while let Some(path) = at {
        if path.as_os_str().is_empty() {
            break;
        }
        if disk.exists(path)? {
            match sync_parent(disk, path) {
                // Someone else's folder, in which a process of ours makes none.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
                synced => synced?,
            }
            break;
        }
        missing.push(path);
        at = path.parent();
    }
    for path in missing.into_iter().rev() {
        match disk.create_dir(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        sync_parent(disk, path)?;
    }
    Ok(())
}

fn sync_parent(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => disk.sync_dir(Path::new(".")),
        Some(parent) => disk.sync_dir(parent),
        None => Ok(()),
    }
}

/// Writes a whole file under another name, syncs it and gives it its name. The name is durable after
/// the caller's [`Disk::sync_dir`]; a crash leaves the old file, the new one, or a `.tmp` beside.
pub(crate) fn replace_file(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".tmp");
    let temporary = path.with_file_name(name);
    let file = disk.create(&temporary)?;
    let written = file.write_at(bytes, 0).and_then(|()| file.sync_data());
    if let Err(error) = written.and_then(|()| disk.rename(&temporary, path)) {
        // Best effort: a leftover is swept when the log is opened.
        let _ = disk.remove(&temporary);
        return Err(error);
    }
    Ok(())
}

/// Removes a file if it is there.
pub(crate) fn remove_if_there(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    match disk.remove(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Reads a whole file.
pub(crate) fn read_file(disk: &dyn Disk, path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    let file = disk.open(path)?;
    let len = file.len()?;
    if len > max_bytes {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "file larger than its limit",
        ));
    }
    let len = usize::try_from(len).map_err(io::Error::other)?;
    let mut bytes = vec![0; len];
    file.read_at(&mut bytes, 0)?;
    Ok(bytes)
}
