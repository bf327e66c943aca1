//! A disk in memory, to open logs of any bytes on.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use weir_server::log::{Disk, DiskFile};

/// The disk. Clones are the same disk.
#[derive(Clone, Debug, Default)]
pub(crate) struct MemoryDisk(Arc<Mutex<Tree>>);

#[derive(Debug, Default)]
struct Tree {
    files: BTreeMap<PathBuf, Arc<MemoryFile>>,
    folders: BTreeSet<PathBuf>,
}

#[derive(Debug, Default)]
struct MemoryFile(Mutex<Vec<u8>>);

fn missing(path: &Path) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, path.display().to_string())
}

impl MemoryDisk {
    /// All files, by path.
    pub(crate) fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let tree = self.0.lock();
        let copy =
            |(path, file): (&PathBuf, &Arc<MemoryFile>)| (path.clone(), file.0.lock().clone());
        tree.files.iter().map(copy).collect()
    }

    /// A disk with these files.
    pub(crate) fn with(files: &BTreeMap<PathBuf, Vec<u8>>) -> Self {
        let disk = Self::default();
        let mut tree = disk.0.lock();
        for (path, bytes) in files {
            tree.folders
                .extend(path.ancestors().skip(1).map(Path::to_owned));
            tree.files.insert(
                path.clone(),
                Arc::new(MemoryFile(Mutex::new(bytes.clone()))),
            );
        }
        drop(tree);
        disk
    }
}

impl Disk for MemoryDisk {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.0.lock().folders.insert(path.to_owned());
        Ok(())
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        let tree = self.0.lock();
        Ok(tree.files.contains_key(path) || tree.folders.contains(path))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let tree = self.0.lock();
        if !tree.folders.contains(dir) {
            return Err(missing(dir));
        }
        let all = tree.files.keys().chain(&tree.folders);
        let inside = all.filter(|path| path.parent() == Some(dir));
        let names = inside.filter_map(|path| path.file_name());
        Ok(names
            .map(|name| name.to_string_lossy().into_owned())
            .collect())
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let file = Arc::new(MemoryFile::default());
        self.0
            .lock()
            .files
            .insert(path.to_owned(), Arc::clone(&file));
        Ok(file)
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let tree = self.0.lock();
        let file = tree.files.get(path).ok_or_else(|| missing(path))?;
        Ok(Arc::clone(file) as Arc<dyn DiskFile>)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut tree = self.0.lock();
        let file = tree.files.remove(from).ok_or_else(|| missing(from))?;
        tree.files.insert(to.to_owned(), file);
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let removed = self.0.lock().files.remove(path);
        removed.map(|_| ()).ok_or_else(|| missing(path))
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        if !self.list(path)?.is_empty() {
            return Err(io::ErrorKind::DirectoryNotEmpty.into());
        }
        self.remove_dir_all(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        let mut tree = self.0.lock();
        tree.files.retain(|file, _| !file.starts_with(path));
        tree.folders.retain(|folder| !folder.starts_with(path));
        Ok(())
    }

    fn free_bytes(&self, _dir: &Path) -> io::Result<u64> {
        Ok(u64::MAX)
    }

    fn sync_dir(&self, _dir: &Path) -> io::Result<()> {
        Ok(())
    }
}

impl DiskFile for MemoryFile {
    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        let mut content = self.0.lock();
        let start = usize::try_from(position).map_err(io::Error::other)?;
        let end = start + bytes.len();
        if content.len() < end {
            content.resize(end, 0);
        }
        content[start..end].copy_from_slice(bytes);
        Ok(())
    }

    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<()> {
        let content = self.0.lock();
        let start = usize::try_from(position).map_err(io::Error::other)?;
        let end = start.checked_add(buffer.len());
        let part = end.and_then(|end| content.get(start..end));
        let part = part.ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(part);
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().len() as u64)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let len = usize::try_from(len).map_err(io::Error::other)?;
        self.0.lock().resize(len, 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }
}
