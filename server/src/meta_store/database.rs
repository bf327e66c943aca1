//! The RocksDB database of the metadata store: families, options, and reads.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use rocksdb::{
    BlockBasedOptions, Cache, ColumnFamily, ColumnFamilyDescriptor, DB, DBCompressionType,
    DBRecoveryMode, Direction, IteratorMode, LogLevel, Options, ReadOptions, WriteBatch,
    WriteOptions,
};
use weir_catalog::store::{Key, MAX_KEY_DEPTH, Page, Revision, StoreError, Versioned};

use super::entry::{self, Entry};
use super::error::Error;
use crate::log::disk::{self, Disk, FileSystem};

/// The newest format version written and read.
const VERSION: u32 = 1;
/// Its file, plain text, read before RocksDB is.
const VERSION_FILE: &str = "format";
const LOCK_FILE: &str = "weir.lock";

const KV: &str = "kv";
const LOG: &str = "log";
const STATE: &str = "state";
const LAST_REVISION: &[u8] = b"last-revision";
const INCARNATION: &[u8] = b"incarnation";
/// Keys of sessions: this, the session as a big-endian long, the key's stored form.
const SESSIONS: &[u8] = b"session/";

/// An open database; the fields are dropped in this order.
pub(super) struct Database {
    db: DB,
    path: PathBuf,
    _lock: File,
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Database")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// A consistent view for reads of several keys.
pub(super) type Snapshot<'a> = rocksdb::Snapshot<'a>;

impl Database {
    /// Opens or makes the database in a folder of its own.
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let io = |action| {
            move |source| Error::Io {
                path: path.to_owned(),
                action,
                source,
            }
        };
        disk::create_dirs(&FileSystem, path).map_err(io("create"))?;
        let lock = lock(path)?;
        let fresh = check_version(path)?;
        let options = database_options();
        let cache = Cache::new_lru_cache(32 << 20);
        let families = [KV, LOG, STATE, rocksdb::DEFAULT_COLUMN_FAMILY_NAME]
            .map(|name| ColumnFamilyDescriptor::new(name, family_options(&cache)));
        let db = DB::open_cf_descriptors(&options, path, families).map_err(|source| {
            let path = path.to_owned();
            match source.kind() {
                rocksdb::ErrorKind::Corruption => Error::Corrupt {
                    path,
                    reason: source.into_string(),
                },
                _ => Error::Open { path, source },
            }
        })?;
        if fresh {
            let version = format!("{VERSION}\n");
            disk::replace_file(&FileSystem, &path.join(VERSION_FILE), version.as_bytes())
                .and_then(|()| FileSystem.sync_dir(path))
                .map_err(io("write the version"))?;
        }
        let database = Self {
            db,
            path: path.to_owned(),
            _lock: lock,
        };
        database.check_revisions()?;
        Ok(database)
    }

    /// Whatever the write-ahead log lost at its torn tail, counter and changes were lost together.
    fn check_revisions(&self) -> Result<(), Error> {
        let corrupt = |reason: String| Error::Corrupt {
            path: self.path.clone(),
            reason,
        };
        let last = self
            .last_revision()
            .map_err(|error| corrupt(error.to_string()))?;
        let log = self
            .family(LOG)
            .map_err(|error| corrupt(error.to_string()))?;
        let newest = self.db.iterator_cf(log, IteratorMode::End).next();
        let newest = newest
            .transpose()
            .map_err(|error| corrupt(error.to_string()))?;
        let newest = newest.and_then(|(key, _)| key.as_ref().try_into().ok());
        let newest = newest.map_or(0, u64::from_be_bytes);
        if newest > last.id() {
            let last = last.id();
            return Err(corrupt(format!(
                "revision {newest} was written after the last, {last}"
            )));
        }
        Ok(())
    }

    fn family(&self, name: &'static str) -> Result<&ColumnFamily, StoreError> {
        self.db.cf_handle(name).ok_or_else(|| StoreError::Corrupt {
            reason: format!("the column family {name} is missing"),
        })
    }

    /// The revision of the last transaction; 0 before the first.
    pub(super) fn last_revision(&self) -> Result<Revision, StoreError> {
        Ok(Revision::new(self.number(LAST_REVISION)?))
    }

    /// Counts how often the store was opened; 0 before the first time.
    pub(super) fn incarnation(&self) -> Result<u64, StoreError> {
        self.number(INCARNATION)
    }

    fn number(&self, name: &[u8]) -> Result<u64, StoreError> {
        number(
            name,
            self.db
                .get_cf(self.family(STATE)?, name)
                .map_err(read_error)?
                .as_deref(),
        )
    }

    /// The entry of a key in its stored form.
    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Entry>, StoreError> {
        let found = self
            .db
            .get_pinned_cf(self.family(KV)?, key)
            .map_err(read_error)?;
        found.map(|bytes| Entry::decode(key, &bytes)).transpose()
    }

    /// A view that no later write changes, and the revision it stands at.
    pub(super) fn snapshot(&self) -> Result<(Revision, Snapshot<'_>), StoreError> {
        let snapshot = self.db.snapshot();
        let last = snapshot
            .get_cf(self.family(STATE)?, LAST_REVISION)
            .map_err(read_error)?;
        Ok((
            Revision::new(number(LAST_REVISION, last.as_deref())?),
            snapshot,
        ))
    }

    /// The names directly below a key, sorted.
    pub(super) fn children(&self, key: &Key) -> Result<Vec<String>, StoreError> {
        let prefix = entry::below_prefix(key, key.depth() + 1);
        let mut names = Vec::new();
        self.visit(None, &prefix, None, |stored, _| {
            let child = entry::decode_key(stored)?;
            names.push(child.name().to_owned());
            Ok(true)
        })?;
        Ok(names)
    }

    /// A key and what is below it, in key order, at most a page.
    pub(super) fn scan(
        &self,
        snapshot: Option<&Snapshot<'_>>,
        prefix: &Key,
        page: &Page,
    ) -> Result<Vec<(Key, Versioned)>, StoreError> {
        let mut found = Vec::new();
        let after = page.after.as_ref().map(entry::encode_key);
        let mut take = |stored: &[u8], value: &[u8]| {
            // The prefix's own range begins with the prefix, but so do names that continue it.
            found.push((
                entry::decode_key(stored)?,
                Entry::decode(stored, value)?.versioned,
            ));
            Ok(found.len() < page.limit)
        };
        let root = entry::encode_key(prefix);
        if after.as_ref().is_none_or(|after| *after < root) {
            let kv = self.family(KV)?;
            let value = match snapshot {
                Some(snapshot) => snapshot.get_cf(kv, &root),
                None => self.db.get_cf(kv, &root),
            };
            if let Some(value) = value.map_err(read_error)?
                && !take(&root, &value)?
            {
                return Ok(found);
            }
        }
        for depth in prefix.depth() + 1..=MAX_KEY_DEPTH {
            let below = entry::below_prefix(prefix, depth);
            if !self.visit(snapshot, &below, after.as_deref(), &mut take)? {
                break;
            }
        }
        Ok(found)
    }

    /// The stored keys below a key.
    pub(super) fn keys_below(&self, root: &Key) -> Result<Vec<Vec<u8>>, StoreError> {
        let mut keys = Vec::new();
        for depth in root.depth() + 1..=MAX_KEY_DEPTH {
            self.visit(
                None,
                &entry::below_prefix(root, depth),
                None,
                |stored, _| {
                    keys.push(stored.to_vec());
                    Ok(true)
                },
            )?;
        }
        Ok(keys)
    }

    /// Calls for each entry whose stored key begins with `prefix` and is beyond `after`, until told to
    /// stop; returns whether it was not.
    fn visit(
        &self,
        snapshot: Option<&Snapshot<'_>>,
        prefix: &[u8],
        after: Option<&[u8]>,
        mut visit: impl FnMut(&[u8], &[u8]) -> Result<bool, StoreError>,
    ) -> Result<bool, StoreError> {
        let kv = self.family(KV)?;
        let from = after.filter(|after| *after > prefix).unwrap_or(prefix);
        let mode = IteratorMode::From(from, Direction::Forward);
        let entries = match snapshot {
            Some(snapshot) => snapshot.iterator_cf_opt(kv, ReadOptions::default(), mode),
            None => self.db.iterator_cf_opt(kv, ReadOptions::default(), mode),
        };
        for entry in entries {
            let (key, value) = entry.map_err(read_error)?;
            if !key.starts_with(prefix) {
                break;
            }
            if Some(key.as_ref()) != after && !visit(&key, &value)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The stored keys of all sessions, with the session of each.
    pub(super) fn session_keys(&self) -> Result<Vec<(u64, Vec<u8>)>, StoreError> {
        let state = self.family(STATE)?;
        let mode = IteratorMode::From(SESSIONS, Direction::Forward);
        let mut found = Vec::new();
        for entry in self.db.iterator_cf(state, mode) {
            let (name, _) = entry.map_err(read_error)?;
            let Some(rest) = name.strip_prefix(SESSIONS) else {
                break;
            };
            let (session, key) = rest.split_first_chunk::<8>().ok_or(StoreError::Corrupt {
                reason: "the key of a session is cut off".to_owned(),
            })?;
            found.push((u64::from_be_bytes(*session), key.to_vec()));
        }
        Ok(found)
    }

    /// A batch of changes for [`Self::write`].
    pub(super) fn batch(&self) -> Result<Batch<'_>, StoreError> {
        Ok(Batch {
            kv: self.family(KV)?,
            log: self.family(LOG)?,
            state: self.family(STATE)?,
            writes: WriteBatch::default(),
        })
    }

    /// Writes a batch, synced. After an error the outcome is unknown for ever.
    pub(super) fn write(&self, batch: Batch<'_>) -> Result<(), rocksdb::Error> {
        let mut options = WriteOptions::default();
        options.set_sync(true);
        self.db.write_opt(batch.writes, &options)
    }
}

/// Changes that are written together.
pub(super) struct Batch<'a> {
    kv: &'a ColumnFamily,
    log: &'a ColumnFamily,
    state: &'a ColumnFamily,
    writes: WriteBatch,
}

/// How many transactions the log of changes keeps.
const KEPT_CHANGES: u64 = 10_000;

impl Batch<'_> {
    /// Replaces an entry, or deletes it, keeping the keys of sessions in step.
    pub(super) fn set(&mut self, key: &[u8], old: Option<&Entry>, new: Option<&Entry>) {
        if let Some(session) = old.and_then(|entry| entry.session) {
            self.writes
                .delete_cf(self.state, session_name(session.0, key));
        }
        match new {
            None => self.writes.delete_cf(self.kv, key),
            Some(entry) => {
                self.writes.put_cf(self.kv, key, entry.encode());
                if let Some(session) = entry.session {
                    self.writes
                        .put_cf(self.state, session_name(session.0, key), b"");
                }
            }
        }
    }

    /// Notes which keys a transaction changed.
    pub(super) fn note<'k>(&mut self, at: Revision, keys: impl Iterator<Item = &'k [u8]>) {
        self.writes
            .put_cf(self.log, at.id().to_be_bytes(), entry::encode_changes(keys));
        if let Some(old) = at.id().checked_sub(KEPT_CHANGES) {
            self.writes.delete_cf(self.log, old.to_be_bytes());
        }
    }

    pub(super) fn set_last_revision(&mut self, at: Revision) {
        self.writes
            .put_cf(self.state, LAST_REVISION, at.id().to_be_bytes());
    }

    pub(super) fn set_incarnation(&mut self, incarnation: u64) {
        self.writes
            .put_cf(self.state, INCARNATION, incarnation.to_be_bytes());
    }
}

fn session_name(session: u64, key: &[u8]) -> Vec<u8> {
    [SESSIONS, &session.to_be_bytes(), key].concat()
}

fn number(name: &[u8], value: Option<&[u8]>) -> Result<u64, StoreError> {
    let Some(value) = value else { return Ok(0) };
    let bytes = value.try_into().map_err(|_| StoreError::Corrupt {
        reason: format!("{} is no number", String::from_utf8_lossy(name)),
    })?;
    Ok(u64::from_be_bytes(bytes))
}

fn read_error(error: rocksdb::Error) -> StoreError {
    match error.kind() {
        rocksdb::ErrorKind::Corruption => StoreError::Corrupt {
            reason: error.into_string(),
        },
        _ => StoreError::Unavailable {
            reason: error.into_string(),
        },
    }
}

/// Keeps a second process out; the system lets go when the process ends, however it does.
fn lock(path: &Path) -> Result<File, Error> {
    let io = |action, source| Error::Io {
        path: path.join(LOCK_FILE),
        action,
        source,
    };
    let file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path.join(LOCK_FILE))
        .map_err(|source| io("open", source))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Error::HeldByAnotherProcess {
            path: path.to_owned(),
        }),
        Err(TryLockError::Error(source)) => Err(io("lock", source)),
    }
}

/// Whether the folder is new; an error if it is of a newer release or not ours.
fn check_version(path: &Path) -> Result<bool, Error> {
    let file = path.join(VERSION_FILE);
    let text = match fs::read_to_string(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(true),
        Err(source) => {
            return Err(Error::Io {
                path: file,
                action: "read",
                source,
            });
        }
    };
    match text.trim().parse::<u32>() {
        Ok(found) if found > VERSION => Err(Error::NewerFormat {
            path: path.to_owned(),
            found,
            supported: VERSION,
        }),
        Ok(_) => Ok(false),
        Err(_) => {
            let reason = format!("`{}` is no format version", text.trim());
            Err(Error::Corrupt {
                path: path.to_owned(),
                reason,
            })
        }
    }
}

fn database_options() -> Options {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.create_missing_column_families(true);
    options.set_paranoid_checks(true);
    // A torn tail was never answered; any other damage makes opening fail.
    options.set_wal_recovery_mode(DBRecoveryMode::TolerateCorruptedTailRecords);
    options.set_max_total_wal_size(32 << 20);
    options.set_max_open_files(128);
    options.set_max_background_jobs(2);
    options.set_keep_log_file_num(2);
    options.set_log_level(LogLevel::Warn);
    options
}

/// Families opened without options of their own would get the defaults: no filter, a small cache.
fn family_options(cache: &Cache) -> Options {
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(cache);
    table.set_bloom_filter(10.0, false);
    let mut options = Options::default();
    options.set_block_based_table_factory(&table);
    options.set_compression_type(DBCompressionType::Lz4);
    options.set_write_buffer_size(8 << 20);
    options
}
