//! What happens while a call is at the disk.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use super::*;

type AtDisk = Box<dyn Fn(&Path) + Send + Sync>;

/// A disk that does something whenever a file is made or opened, before it is.
struct Watched {
    disk: disk::memory::Process,
    at_disk: Arc<OnceLock<AtDisk>>,
}

impl std::fmt::Debug for Watched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watched")
    }
}

impl Watched {
    fn look(&self, path: &Path) {
        if let Some(at_disk) = self.at_disk.get() {
            at_disk(path);
        }
    }
}

impl Disk for Watched {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.disk.create_dir(path)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.disk.exists(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.disk.list(dir)
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.look(path);
        self.disk.create(path)
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.look(path);
        self.disk.open(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.disk.remove(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.disk.remove_dir(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.disk.remove_dir_all(path)
    }

    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        self.disk.free_bytes(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.disk.sync_dir(dir)
    }
}

/// A log on a disk that does nothing of its own before the cell is filled.
fn watched(disk: &MemoryDisk) -> (Arc<Log>, Arc<OnceLock<AtDisk>>) {
    let at_disk = Arc::<OnceLock<AtDisk>>::default();
    let options = LogOptions {
        disk: Arc::new(Watched {
            disk: disk.process(),
            at_disk: Arc::clone(&at_disk),
        }),
        ..options(disk, small())
    };
    (Log::open(&dir(), BUCKET, options).unwrap(), at_disk)
}

#[test]
fn rows_appended_while_old_segments_are_removed_stay() {
    let disk = MemoryDisk::new();
    let (log, at_disk) = watched(&disk);
    log.append(&checked(plain(10, 100)), 1).unwrap();
    log.flush().unwrap();
    let appends = AtomicUsize::new(0);
    let appender = Arc::clone(&log);
    // The checkpoint that comes first: no lock is held then.
    let set = at_disk.set(Box::new(move |path| {
        let is_checkpoint = path.to_string_lossy().contains(".writers");
        if is_checkpoint && appends.fetch_add(1, Ordering::Relaxed) == 0 {
            append(&appender, plain(5, 50));
        }
    }));
    assert!(set.is_ok());
    log.delete_segments_below(LogOffset(10)).unwrap();
    assert_eq!(log.log_end(), LogOffset(15), "the append came between");
    log.flush().unwrap();
    assert!(offsets(&log).contains(&10), "{:?}", offsets(&log));
    drop((log, at_disk));
    disk.crash(Crash::ForgetAll);
    let log = open(&disk);
    assert!(offsets(&log).contains(&10), "{:?}", offsets(&log));
}

#[test]
fn reading_an_index_from_the_disk_keeps_nobody_waiting() {
    let disk = MemoryDisk::new();
    let log = open(&disk);
    for _ in 0..40 {
        append(&log, plain(10, 152));
    }
    log.close().unwrap();
    drop(log);
    let (log, at_disk) = watched(&disk);
    let answered = Arc::new(AtomicUsize::new(0));
    let (other, counter) = (Arc::clone(&log), Arc::clone(&answered));
    let set = at_disk.set(Box::new(move |path| {
        if path.extension().is_some_and(|found| found == "index") {
            let (send, receive) = mpsc::sync_channel(1);
            let other = Arc::clone(&other);
            std::thread::spawn(move || send.send(other.size_bytes()));
            if receive.recv_timeout(Duration::from_secs(10)).is_ok() {
                counter.fetch_add(1, Ordering::Relaxed);
            }
        }
    }));
    assert!(set.is_ok());
    log.read(LogOffset(50), 1, log.log_end()).unwrap();
    assert_eq!(answered.load(Ordering::Relaxed), 1);
}

#[test]
fn with_the_os_policy_full_segments_are_closed_too() {
    let disk = MemoryDisk::new();
    let flusher = Flusher::start(FlushPolicy::Os, 1).unwrap();
    let options = LogOptions {
        flusher: Some(flusher.handle()),
        ..options(&disk, small())
    };
    let log = Log::open(&dir(), BUCKET, options).unwrap();
    for _ in 0..40 {
        append(&log, plain(10, 152));
    }
    // Joins the threads once they did what they were asked for.
    drop(flusher);
    let segments = log.view.read().segments.clone();
    assert_eq!(segments.len(), 4);
    let open: Vec<bool> = segments.iter().map(|segment| segment.is_open()).collect();
    assert_eq!(open, [false, false, false, true]);
}
