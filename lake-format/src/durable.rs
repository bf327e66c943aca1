//! A warehouse on a local disk that survives a power cut.
//!
//! [`LocalFileSystem`] never syncs: after a crash a published snapshot may be empty or gone.
//! [`DurableLocal`] answers a write only when the bytes and every folder entry that leads to them
//! are on the disk.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path as FsPath, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use futures::stream::BoxStream;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result,
};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

mod staged;
#[cfg(test)]
mod tests;
mod upload;

pub use staged::{StagedFile, staged_files};

use upload::DurableUpload;

/// Name of the store in errors.
const STORE: &str = "DurableLocal";

/// Writes and syncs at work at once; more wait.
const MAX_BLOCKING: usize = 16;

/// Folders remembered as durable; beyond it the memory starts anew, which only costs syncs.
const MAX_KNOWN_FOLDERS: usize = 65_536;

/// Names tried for a staged file before giving up: as many writers of one name, or leftovers of
/// crashes.
const MAX_STAGED: u32 = 1024;

/// Makes files and folders durable; the seam that tests record and break.
pub trait Syncer: fmt::Debug + Send + Sync {
    /// Puts the contents of `file` on the disk.
    fn sync_file(&self, file: &FsPath) -> io::Result<()>;
    /// Puts the entries of `folder` on the disk.
    fn sync_folder(&self, folder: &FsPath) -> io::Result<()>;
}

/// The operating system's fsync.
#[derive(Debug, Clone, Copy, Default)]
pub struct OsSyncer;

impl Syncer for OsSyncer {
    fn sync_file(&self, file: &FsPath) -> io::Result<()> {
        File::open(file)?.sync_all()
    }

    fn sync_folder(&self, folder: &FsPath) -> io::Result<()> {
        File::open(folder)?.sync_all()
    }
}

/// Mark in [`PutOptions::extensions`] of an object that may be lost or empty after a crash, such as
/// a hint: it is not synced.
#[derive(Debug, Clone, Copy)]
pub struct MayBeLost;

/// An object store over a local folder whose writes are durable when they are answered.
///
/// * A put and an upload in parts stage the bytes in a hidden file beside the target, sync it, and
///   only then give it its name: by hard link for [`PutMode::Create`] (atomic: exactly one of many
///   wins), otherwise by rename. A copy and a rename sync what they start from first. So a name
///   never leads to half a file, not even after a crash.
/// * Then the folder and all folders above it that are not known to be durable are synced, up to
///   the root.
/// * If a folder cannot be synced, the answer is an error though the file is visible: the outcome
///   is unknown. Until that folder has been synced every later call that reads or writes a file
///   fails too, so that nobody takes what it sees for durable. A folder that has been removed
///   since holds nothing any more: then the nearest one above it that exists is synced.
/// * Removals are not synced: after a crash a deleted object may be there again, and a renamed one
///   under both names.
///
/// File work runs on blocking threads, at most 16 at once. Clones share all state.
#[derive(Clone)]
pub struct DurableLocal {
    inner: Arc<LocalFileSystem>,
    disk: Arc<Disk>,
    permits: Arc<Semaphore>,
}

impl DurableLocal {
    /// Opens the folder `root`, and makes it durably if it is missing. Blocks on the file system.
    ///
    /// # Errors
    /// [`object_store::Error::Generic`] if the folder cannot be made, synced or resolved.
    pub fn open(root: &FsPath) -> Result<Self> {
        Self::open_with(root, Arc::new(OsSyncer))
    }

    /// Like [`DurableLocal::open`], with another way to sync.
    ///
    /// # Errors
    /// As [`DurableLocal::open`].
    pub fn open_with(root: &FsPath, syncer: Arc<dyn Syncer>) -> Result<Self> {
        let root = std::path::absolute(root).map_err(|e| failed("resolve", root, e))?;
        let missing: Vec<&FsPath> = root.ancestors().take_while(|f| !f.exists()).collect();
        std::fs::create_dir_all(&root).map_err(|e| failed("make folder", &root, e))?;
        for parent in missing.iter().filter_map(|folder| folder.parent()) {
            syncer
                .sync_folder(parent)
                .map_err(|e| failed("sync folder", parent, e))?;
        }
        let inner = LocalFileSystem::new_with_prefix(&root)?;
        let root = root
            .canonicalize()
            .map_err(|e| failed("resolve", &root, e))?;
        let disk = Disk {
            root,
            syncer,
            folders: Mutex::default(),
        };
        let permits = Arc::new(Semaphore::new(MAX_BLOCKING));
        Ok(Self {
            inner: Arc::new(inner),
            disk: Arc::new(disk),
            permits,
        })
    }

    async fn blocking<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Disk) -> Result<T> + Send + 'static,
    {
        let permit = Arc::clone(&self.permits)
            .acquire_owned()
            .await
            .map_err(|e| generic(e.into()))?;
        let disk = Arc::clone(&self.disk);
        let work = move || {
            let _permit = permit;
            work(&disk)
        };
        tokio::task::spawn_blocking(work)
            .await
            .map_err(|e| generic(e.into()))?
    }

    /// Makes the bytes of `from` durable and the folders for `to`, which is about to be another
    /// name of them. Returns the path of `to`.
    async fn prepare_link(&self, from: &Path, to: &Path) -> Result<PathBuf> {
        let from = self.inner.path_to_filesystem(from)?;
        let to = self.inner.path_to_filesystem(to)?;
        let made = to.clone();
        let prepare = move |disk: &Disk| {
            disk.settle()?;
            match disk.syncer.sync_file(&from) {
                Err(e) if e.kind() != ErrorKind::NotFound => Err(failed("sync", &from, e)),
                // Whoever links it says that it is absent.
                _ => disk.make_folders_of(&made),
            }
        };
        self.blocking(prepare).await?;
        Ok(to)
    }

    /// Syncs what an earlier failure left open, if anything.
    async fn settle(&self) -> Result<()> {
        if self.disk.folders.lock().owed.is_empty() {
            return Ok(());
        }
        self.blocking(Disk::settle).await
    }
}

impl fmt::Display for DurableLocal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DurableLocal({})", self.disk.root.display())
    }
}

impl fmt::Debug for DurableLocal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DurableLocal")
            .field("root", &self.disk.root)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl ObjectStore for DurableLocal {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        if !opts.attributes.is_empty() {
            return Err(unsupported("a put with attributes"));
        }
        let publish = match opts.mode {
            PutMode::Create => Publish::Create,
            PutMode::Overwrite => Publish::Overwrite,
            PutMode::Update(_) => return Err(unsupported("a put with PutMode::Update")),
        };
        let durability = match opts.extensions.get::<MayBeLost>() {
            Some(MayBeLost) => Durability::None,
            None => Durability::Full,
        };
        let path = self.inner.path_to_filesystem(location)?;
        self.blocking(move |disk| disk.put(&path, &payload, (publish, durability)))
            .await?;
        Ok(PutResult {
            e_tag: None,
            version: None,
        })
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        if !opts.attributes.is_empty() {
            return Err(unsupported("an upload with attributes"));
        }
        let path = self.inner.path_to_filesystem(location)?;
        Ok(Box::new(DurableUpload::begin(self.clone(), path).await?))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.settle().await?;
        self.inner.get_opts(location, options).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.settle().await?;
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let path = self.prepare_link(from, to).await?;
        self.inner.copy_opts(from, to, options).await?;
        self.blocking(move |disk| disk.sync_folders_of(&path)).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        let path = self.prepare_link(from, to).await?;
        self.inner.rename_opts(from, to, options).await?;
        self.blocking(move |disk| disk.sync_folders_of(&path)).await
    }
}

/// How a staged file gets its name.
#[derive(Debug, Clone, Copy)]
enum Publish {
    Create,
    Overwrite,
}

/// What a crash may do to a file once its put is answered.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Durability {
    Full,
    None,
}

/// The blocking half: paths, folders and what is known of them.
#[derive(Debug)]
struct Disk {
    root: PathBuf,
    syncer: Arc<dyn Syncer>,
    folders: Mutex<Folders>,
}

#[derive(Debug, Default)]
struct Folders {
    /// Folders whose own entry, and those of all folders above up to the root, are on the disk.
    durable: HashSet<PathBuf>,
    /// Folders with entries that are visible but could not be synced, each with the number of the
    /// failure: a sync that began before it does not settle it.
    owed: HashMap<PathBuf, u64>,
    failures: u64,
}

impl Folders {
    fn owe(&mut self, folder: &FsPath) {
        self.failures += 1;
        self.owed.insert(folder.to_path_buf(), self.failures);
    }

    fn settled(&mut self, folder: &FsPath, failure: u64) {
        if self.owed.get(folder) == Some(&failure) {
            self.owed.remove(folder);
        }
    }
}

impl Disk {
    fn put(
        &self,
        path: &FsPath,
        payload: &PutPayload,
        (publish, durability): (Publish, Durability),
    ) -> Result<()> {
        self.settle()?;
        self.make_folders_of(path)?;
        let staged = stage(path, payload)?;
        let synced = match durability {
            Durability::Full => self.syncer.sync_file(&staged),
            Durability::None => Ok(()),
        };
        let synced = synced.map_err(|e| failed("sync", path, e));
        let outcome = synced.and_then(|()| publish_as(&staged, path, publish));
        if outcome.is_err() || matches!(publish, Publish::Create) {
            // A leftover is hidden from listings and never read; failing to remove it harms
            // nothing.
            let _ = std::fs::remove_file(&staged);
        }
        outcome?;
        match durability {
            Durability::Full => self.sync_folders_of(path),
            Durability::None => Ok(()),
        }
    }

    /// Makes the folders above `path`, and forgets those that were missing: whoever made them
    /// before, they are new now.
    fn make_folders_of(&self, path: &FsPath) -> Result<()> {
        let Some(parent) = path.parent() else {
            return Ok(());
        };
        if parent.is_dir() {
            return Ok(());
        }
        {
            let mut folders = self.folders.lock();
            for folder in parent
                .ancestors()
                .take_while(|folder| **folder != self.root)
            {
                if !folder.is_dir() {
                    folders.durable.remove(folder);
                }
            }
        }
        std::fs::create_dir_all(parent).map_err(|e| failed("make folder", parent, e))
    }

    /// Syncs the folder of `path`, and the folders above it as far as they are not known to be
    /// durable.
    fn sync_folders_of(&self, path: &FsPath) -> Result<()> {
        let Some(parent) = path.parent() else {
            return Ok(());
        };
        self.sync_folder(parent)?;
        for folder in parent
            .ancestors()
            .take_while(|folder| **folder != self.root)
        {
            if self.folders.lock().durable.contains(folder) {
                return Ok(());
            }
            if let Some(above) = folder.parent() {
                self.sync_folder(above)?;
            }
        }
        let mut folders = self.folders.lock();
        if folders.durable.len() > MAX_KNOWN_FOLDERS {
            folders.durable.clear();
        }
        let chain = parent
            .ancestors()
            .take_while(|folder| **folder != self.root);
        folders.durable.extend(chain.map(FsPath::to_path_buf));
        Ok(())
    }

    fn sync_folder(&self, folder: &FsPath) -> Result<()> {
        self.syncer.sync_folder(folder).map_err(|e| {
            self.folders.lock().owe(folder);
            failed("sync folder", folder, e)
        })
    }

    /// Syncs the folders that are owed a sync.
    fn settle(&self) -> Result<()> {
        let owed: Vec<(PathBuf, u64)> = {
            let folders = self.folders.lock();
            let owed = folders.owed.iter();
            owed.map(|(folder, failure)| (folder.clone(), *failure))
                .collect()
        };
        for (folder, failure) in owed {
            self.sync_nearest(&folder)?;
            self.folders.lock().settled(&folder, failure);
        }
        Ok(())
    }

    /// Syncs `folder`; if it has been removed, the nearest folder above it that exists, which makes
    /// the removal durable.
    fn sync_nearest(&self, folder: &FsPath) -> Result<()> {
        for candidate in folder.ancestors() {
            let Err(e) = self.syncer.sync_folder(candidate) else {
                return Ok(());
            };
            let is_gone = matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory);
            if !is_gone || candidate == self.root {
                return Err(failed("sync folder", candidate, e));
            }
        }
        Ok(())
    }
}

/// Gives a staged file its name.
fn publish_as(staged: &FsPath, path: &FsPath, publish: Publish) -> Result<()> {
    match publish {
        Publish::Overwrite => {
            std::fs::rename(staged, path).map_err(|e| failed("rename to", path, e))
        }
        Publish::Create => std::fs::hard_link(staged, path).map_err(|e| match e.kind() {
            ErrorKind::AlreadyExists => object_store::Error::AlreadyExists {
                path: path.display().to_string(),
                source: Box::new(e),
            },
            _ => failed("link", path, e),
        }),
    }
}

/// Writes `payload` to a hidden file beside `path`. The name starts with a dot, so that Paimon's
/// listings by prefix skip it, and ends in `#` and digits, so that object_store's do.
fn stage(path: &FsPath, payload: &PutPayload) -> Result<PathBuf> {
    let (mut file, staged) = new_staged_file(path)?;
    let written = payload.iter().try_for_each(|bytes| file.write_all(bytes));
    match written {
        Ok(()) => Ok(staged),
        Err(e) => {
            // See `Disk::put`: a leftover harms nothing.
            let _ = std::fs::remove_file(&staged);
            Err(failed("write", path, e))
        }
    }
}

fn new_staged_file(path: &FsPath) -> Result<(File, PathBuf)> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let mut attempt = 1;
    loop {
        let staged = path.with_file_name(format!(".{name}#{attempt}"));
        match OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&staged)
        {
            Ok(file) => return Ok((file, staged)),
            Err(e) if e.kind() == ErrorKind::AlreadyExists && attempt < MAX_STAGED => attempt += 1,
            Err(e) => return Err(failed("create", &staged, e)),
        }
    }
}

fn failed(verb: &'static str, path: &FsPath, source: io::Error) -> object_store::Error {
    generic(Box::new(DiskError {
        verb,
        path: path.to_path_buf(),
        source,
    }))
}

fn generic(source: Box<dyn std::error::Error + Send + Sync>) -> object_store::Error {
    object_store::Error::Generic {
        store: STORE,
        source,
    }
}

fn unsupported(operation: &str) -> object_store::Error {
    object_store::Error::NotImplemented {
        operation: operation.into(),
        implementer: STORE.into(),
    }
}

#[derive(Debug, thiserror::Error)]
#[error("cannot {verb} {}: {source}", path.display())]
struct DiskError {
    verb: &'static str,
    path: PathBuf,
    source: io::Error,
}
