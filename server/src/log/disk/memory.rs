//! A disk in memory for tests: forgets what was not synced, tears writes, runs full, fails syncs.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::{Disk, DiskFile};

/// A file's bytes, now and as they were when they were last synced.
#[derive(Clone, Debug, Default)]
struct Content {
    live: Vec<u8>,
    durable: Vec<u8>,
}

type Shared = Arc<Mutex<Content>>;

#[derive(Debug, Default)]
struct State {
    live: BTreeMap<PathBuf, Shared>,
    durable: BTreeMap<PathBuf, Shared>,
    dirs: BTreeSet<PathBuf>,
    durable_dirs: BTreeSet<PathBuf>,
    /// Bytes that may still be written before the disk is full.
    free_bytes: Option<u64>,
    /// Syncs of files and folders that still work.
    good_syncs: Option<u64>,
    syncs: u64,
    reads: u64,
    crashes: u64,
}

/// The disk. Clones are the same disk.
#[derive(Clone, Debug, Default)]
pub(crate) struct MemoryDisk(Arc<Mutex<State>>, Arc<RwLock<()>>);

/// The disk as one process sees it: a crash ends the process, and with it all it does to the disk.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    disk: MemoryDisk,
    /// How many crashes there had been when it began.
    born: u64,
}

/// What a crash leaves of bytes that were not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Crash {
    /// Nothing: neither bytes nor names.
    ForgetAll,
    /// Any part, by seed: of each file some prefix of what was added, in places torn; each name or not.
    Torn(u64),
    /// Everything: the process died, the system lived.
    ProcessOnly,
}

impl MemoryDisk {
    pub(crate) fn new() -> Self {
        let disk = Self::default();
        disk.0.lock().dirs.insert(PathBuf::from("/"));
        disk.0.lock().durable_dirs.insert(PathBuf::from("/"));
        disk
    }

    /// Everything open before is dead; what was not synced is treated as `crash` says.
    pub(crate) fn crash(&self, crash: Crash) {
        let _nobody_in_a_call = self.1.write();
        let mut state = self.0.lock();
        state.crashes += 1;
        state.free_bytes = None;
        state.good_syncs = None;
        match crash {
            Crash::ProcessOnly => {}
            Crash::ForgetAll => {
                state.live = state.durable.clone();
                state.dirs = state.durable_dirs.clone();
                state.forget_unreachable();
            }
            Crash::Torn(seed) => {
                state.tear(&mut StdRng::seed_from_u64(seed));
                state.forget_unreachable();
            }
        }
        let mut kept = BTreeMap::new();
        for (path, file) in &state.live {
            let content = file.lock();
            let bytes = match crash {
                Crash::ForgetAll => content.durable.clone(),
                Crash::Torn(_) | Crash::ProcessOnly => content.live.clone(),
            };
            // A new inode: files of the dead process no longer reach it.
            let durable = if crash == Crash::ProcessOnly {
                content.durable.clone()
            } else {
                bytes.clone()
            };
            kept.insert(
                path.clone(),
                Arc::new(Mutex::new(Content {
                    live: bytes,
                    durable,
                })),
            );
        }
        if crash == Crash::ProcessOnly {
            let durable = state
                .durable
                .keys()
                .filter_map(|path| kept.get(path).map(|file| (path.clone(), Arc::clone(file))));
            state.durable = durable.collect();
        } else {
            state.durable = kept.clone();
            state.durable_dirs = state.dirs.clone();
        }
        state.live = kept;
    }

    /// What a process that starts now is given.
    pub(crate) fn process(&self) -> Process {
        Process {
            disk: self.clone(),
            born: self.0.lock().crashes,
        }
    }

    pub(crate) fn run_full_after(&self, bytes: u64) {
        self.0.lock().free_bytes = Some(bytes);
    }

    pub(crate) fn make_room(&self) {
        self.0.lock().free_bytes = None;
    }

    pub(crate) fn fail_syncs_after(&self, good: u64) {
        self.0.lock().good_syncs = Some(good);
    }

    pub(crate) fn syncs(&self) -> u64 {
        self.0.lock().syncs
    }

    pub(crate) fn reads(&self) -> u64 {
        self.0.lock().reads
    }

    pub(crate) fn bytes(&self, path: &Path) -> Vec<u8> {
        self.0
            .lock()
            .live
            .get(path)
            .map(|file| file.lock().live.clone())
            .unwrap_or_default()
    }

    /// Replaces a file's bytes, durably.
    pub(crate) fn set_bytes(&self, path: &Path, bytes: &[u8]) {
        let content = Content {
            live: bytes.to_vec(),
            durable: bytes.to_vec(),
        };
        let file = Arc::new(Mutex::new(content));
        let mut state = self.0.lock();
        state.live.insert(path.to_owned(), Arc::clone(&file));
        state.durable.insert(path.to_owned(), file);
    }

    pub(crate) fn files(&self, extension: &str) -> Vec<PathBuf> {
        let state = self.0.lock();
        let wanted = |path: &&PathBuf| path.extension().is_some_and(|found| found == extension);
        state.live.keys().filter(wanted).cloned().collect()
    }

    /// An independent copy, as if the power was cut on a snapshot of it.
    pub(crate) fn copy(&self) -> Self {
        let state = self.0.lock();
        let copy = Self::new();
        {
            let mut new = copy.0.lock();
            new.dirs = state.dirs.clone();
            new.durable_dirs = state.dirs.clone();
            for (path, file) in &state.live {
                let file = Arc::new(Mutex::new(file.lock().clone()));
                new.live.insert(path.clone(), Arc::clone(&file));
                new.durable.insert(path.clone(), file);
            }
        }
        copy
    }
}

impl State {
    /// Each name that changed survives or not; each file keeps some of its unsynced bytes.
    fn tear(&mut self, rng: &mut StdRng) {
        let mut names = BTreeMap::new();
        let paths: BTreeSet<PathBuf> = self
            .live
            .keys()
            .chain(self.durable.keys())
            .cloned()
            .collect();
        for path in paths {
            let (live, durable) = (self.live.get(&path), self.durable.get(&path));
            let same = match (live, durable) {
                (Some(live), Some(durable)) => Arc::ptr_eq(live, durable),
                _ => false,
            };
            let file = if same || rng.random_bool(0.5) {
                live
            } else {
                durable
            };
            if let Some(file) = file {
                names.insert(path, Arc::clone(file));
            }
        }
        self.live = names;
        let durable = &self.durable_dirs;
        self.dirs
            .retain(|dir| durable.contains(dir) || rng.random_bool(0.5));
        for file in self.live.values() {
            let mut content = file.lock();
            if content.live != content.durable {
                content.live = torn(&content, rng);
            }
        }
    }

    /// Nothing is left of what is in a folder whose own name was lost.
    fn forget_unreachable(&mut self) {
        let dirs = self.dirs.clone();
        let is_reached = |path: &Path| path.ancestors().skip(1).all(|dir| dirs.contains(dir));
        self.dirs.retain(|dir| is_reached(dir));
        self.live.retain(|path, _| is_reached(path));
    }

    fn take_space(&mut self, bytes: u64) -> u64 {
        match &mut self.free_bytes {
            None => bytes,
            Some(free) => {
                let taken = bytes.min(*free);
                *free -= taken;
                taken
            }
        }
    }

    fn sync_works(&mut self) -> io::Result<()> {
        self.syncs += 1;
        match &mut self.good_syncs {
            Some(0) => Err(io::Error::other("the disk lost the write")),
            Some(good) => {
                *good -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

/// Between what was synced and what was written: a length in between, and blocks that never arrived.
fn torn(content: &Content, rng: &mut StdRng) -> Vec<u8> {
    let (low, high) = {
        let lengths = (content.durable.len(), content.live.len());
        (lengths.0.min(lengths.1), lengths.0.max(lengths.1))
    };
    let mut bytes = content.live.clone();
    bytes.resize(bytes.len().max(content.durable.len()), 0);
    let holes = rng.random_bool(0.5);
    for (at, byte) in bytes.iter_mut().enumerate() {
        let durable = content.durable.get(at);
        let lost = holes && (at / 512 + usize::from(rng.random_bool(0.001))) % 3 == 0;
        if lost {
            *byte = durable.copied().unwrap_or(0);
        }
    }
    // The length alone may have arrived.
    if !holes || rng.random_bool(0.5) {
        bytes.truncate(rng.random_range(low..=high));
    }
    bytes
}

fn not_found() -> io::Error {
    io::ErrorKind::NotFound.into()
}

impl Disk for MemoryDisk {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.0.lock().dirs.insert(path.to_owned());
        Ok(())
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        let state = self.0.lock();
        Ok(state.live.contains_key(path) || state.dirs.contains(path))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let state = self.0.lock();
        if !state.dirs.contains(dir) {
            return Err(not_found());
        }
        let paths = state.live.keys().chain(&state.dirs);
        let inside = paths.filter(|path| path.parent() == Some(dir));
        Ok(inside
            .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
            .collect())
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = self.0.lock();
        if !path
            .parent()
            .is_some_and(|parent| state.dirs.contains(parent))
        {
            return Err(not_found());
        }
        let file = Shared::default();
        state.live.insert(path.to_owned(), Arc::clone(&file));
        Ok(Arc::new(self.handle(file, state.crashes)))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let state = self.0.lock();
        let file = state.live.get(path).ok_or_else(not_found)?;
        Ok(Arc::new(self.handle(Arc::clone(file), state.crashes)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.0.lock();
        if state.dirs.remove(from) {
            state.dirs.insert(to.to_owned());
            let inside: Vec<PathBuf> = state
                .live
                .keys()
                .filter(|path| path.starts_with(from))
                .cloned()
                .collect();
            for path in inside {
                let file = state.live.remove(&path).unwrap();
                state
                    .live
                    .insert(to.join(path.strip_prefix(from).unwrap()), file);
            }
            return Ok(());
        }
        let file = state.live.remove(from).ok_or_else(not_found)?;
        state.live.insert(to.to_owned(), file);
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.0.lock();
        let removed = state.live.remove(path).ok_or_else(not_found)?;
        if let Some(free) = &mut state.free_bytes {
            *free += removed.lock().live.len() as u64;
        }
        Ok(())
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        if !self.list(path)?.is_empty() {
            return Err(io::ErrorKind::DirectoryNotEmpty.into());
        }
        self.0.lock().dirs.remove(path);
        Ok(())
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        let mut state = self.0.lock();
        state.live.retain(|file, _| !file.starts_with(path));
        state.dirs.retain(|dir| !dir.starts_with(path));
        Ok(())
    }

    fn free_bytes(&self, _dir: &Path) -> io::Result<u64> {
        Ok(self.0.lock().free_bytes.unwrap_or(u64::MAX))
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut state = self.0.lock();
        state.sync_works()?;
        let inside = |path: &Path| path.parent() == Some(dir);
        state.durable.retain(|path, _| !inside(path));
        let names: Vec<_> = state
            .live
            .iter()
            .filter(|(path, _)| inside(path))
            .map(|(path, file)| (path.clone(), Arc::clone(file)))
            .collect();
        state.durable.extend(names);
        let dirs: Vec<_> = state
            .dirs
            .iter()
            .filter(|path| inside(path))
            .cloned()
            .collect();
        state.durable_dirs.retain(|path| !inside(path));
        state.durable_dirs.extend(dirs);
        Ok(())
    }
}

impl MemoryDisk {
    fn handle(&self, content: Shared, born: u64) -> MemoryFile {
        MemoryFile {
            content,
            disk: Arc::downgrade(&self.0),
            born,
        }
    }
}

impl Process {
    /// No crash happens while the guard lives.
    fn alive(&self) -> io::Result<(RwLockReadGuard<'_, ()>, &MemoryDisk)> {
        let guard = self.disk.1.read();
        if self.disk.0.lock().crashes == self.born {
            Ok((guard, &self.disk))
        } else {
            Err(io::Error::other("process is dead"))
        }
    }
}

impl Disk for Process {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let (_alive, disk) = self.alive()?;
        disk.create_dir(path)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        let (_alive, disk) = self.alive()?;
        disk.exists(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let (_alive, disk) = self.alive()?;
        disk.list(dir)
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let (_alive, disk) = self.alive()?;
        disk.create(path)
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let (_alive, disk) = self.alive()?;
        disk.open(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (_alive, disk) = self.alive()?;
        disk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let (_alive, disk) = self.alive()?;
        disk.remove(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        let (_alive, disk) = self.alive()?;
        disk.remove_dir(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        let (_alive, disk) = self.alive()?;
        disk.remove_dir_all(path)
    }

    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        let (_alive, disk) = self.alive()?;
        disk.free_bytes(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let (_alive, disk) = self.alive()?;
        disk.sync_dir(dir)
    }
}

#[derive(Debug)]
struct MemoryFile {
    content: Shared,
    disk: Weak<Mutex<State>>,
    /// How many crashes there had been when it was opened: one more, and it is dead.
    born: u64,
}

impl MemoryFile {
    fn disk(&self) -> io::Result<Arc<Mutex<State>>> {
        let disk = self.disk.upgrade().ok_or_else(not_found)?;
        let crashes = disk.lock().crashes;
        if crashes == self.born {
            Ok(disk)
        } else {
            Err(io::Error::other("process is dead"))
        }
    }
}

impl DiskFile for MemoryFile {
    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        let allowed = self.disk()?.lock().take_space(bytes.len() as u64);
        let allowed = usize::try_from(allowed).unwrap();
        let mut content = self.content.lock();
        let start = usize::try_from(position).unwrap();
        let len = content.live.len().max(start + allowed);
        content.live.resize(len, 0);
        content.live[start..start + allowed].copy_from_slice(&bytes[..allowed]);
        if allowed < bytes.len() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<()> {
        self.disk()?.lock().reads += 1;
        let content = self.content.lock();
        let start = usize::try_from(position).unwrap();
        let bytes = content.live.get(start..start + buffer.len());
        buffer.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        self.disk()?;
        Ok(self.content.lock().live.len() as u64)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.disk()?;
        self.content
            .lock()
            .live
            .resize(usize::try_from(len).unwrap(), 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.disk()?.lock().sync_works()?;
        let mut content = self.content.lock();
        content.durable = content.live.clone();
        Ok(())
    }
}
