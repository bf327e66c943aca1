//! The RocksDB database of one bucket: families, options, reads and the one way to write. All of it
//! blocks.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use rocksdb::checkpoint::Checkpoint;
use rocksdb::{
    BlockBasedOptions, ColumnFamily, ColumnFamilyDescriptor, DB, DBCompressionType,
    DEFAULT_COLUMN_FAMILY_NAME, FlushOptions, IteratorMode, LogLevel, Options, ReadOptions,
    WriteBatch, WriteOptions,
};
use tokio::sync::oneshot;
use weir_protocol::ids::TableBucket;

use crate::environment::KvEnvironment;
use crate::error::{Error, Result};
use crate::pre_write_buffer::{FlushBatch, RowCountChange};
use crate::state::{Position, decode_bucket, encode_bucket};
use crate::value::StoredValue;

/// The newest version of the directory that is written and read.
const FORMAT_VERSION: u32 = 1;
/// The family of what the store knows of itself; values of keys are in the default family.
const STATE: &str = "state";
const FORMAT: &[u8] = b"format";
const BUCKET: &[u8] = b"bucket";
const POSITION: &[u8] = b"position";

/// What a scan found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scanned {
    /// Keys and values, in key order.
    pub entries: Vec<(Bytes, StoredValue)>,
    /// Whether there are more that did not fit.
    pub is_cut: bool,
}

/// An open database. The fields are dropped in this order: who waits for `_closed` may open the
/// directory again.
pub(crate) struct Database {
    db: DB,
    directory: PathBuf,
    /// Held for writing by a write, for reading by whoever needs a view and the position that fits
    /// it.
    order: RwLock<()>,
    position: Mutex<Position>,
    durable: Mutex<Position>,
    _closed: oneshot::Sender<()>,
}

impl Database {
    /// Opens or makes the database of a bucket. The receiver is told when it is closed for good.
    pub(crate) fn open(
        directory: &Path,
        bucket: TableBucket,
        environment: &KvEnvironment,
    ) -> Result<(Self, oneshot::Receiver<()>)> {
        fs::create_dir_all(directory)
            .map_err(|source| Error::of_io(directory, directory, "create the folder", &source))?;
        let is_new = check_files(directory)?;
        let families = [STATE, DEFAULT_COLUMN_FAMILY_NAME]
            .map(|name| ColumnFamilyDescriptor::new(name, family_options(name, environment)));
        let options = database_options(environment, is_new);
        let db = DB::open_cf_descriptors(&options, directory, families)
            .map_err(|source| Error::of_rocksdb(directory, "open", source))?;
        let (closed, receiver) = oneshot::channel();
        let database = Self {
            db,
            directory: directory.to_owned(),
            order: RwLock::new(()),
            position: Mutex::new(Position::START),
            durable: Mutex::new(Position::START),
            _closed: closed,
        };
        let position = match database.read_state(bucket)? {
            Some(position) => position,
            None => database.begin(bucket)?,
        };
        *database.position.lock() = position;
        *database.durable.lock() = position;
        Ok((database, receiver))
    }

    /// The position of a directory that was used before; `None` for one that holds nothing yet.
    fn read_state(&self, bucket: TableBucket) -> Result<Option<Position>> {
        let state = self.family(STATE)?;
        let get = |name: &[u8]| {
            let found = self.db.get_cf(state, name);
            found.map_err(|source| self.failed("read the state", source))
        };
        let Some(version) = get(FORMAT)? else {
            return match self.db.iterator(IteratorMode::Start).next() {
                None => Ok(None),
                Some(Ok(_)) => Err(self.corrupt("there are keys but no state")),
                Some(Err(source)) => Err(self.failed("read the first key", source)),
            };
        };
        let version: [u8; 4] = version
            .try_into()
            .map_err(|_| self.corrupt("the format version is no number"))?;
        let found = u32::from_be_bytes(version);
        if found > FORMAT_VERSION {
            return Err(Error::NewerFormat {
                directory: self.directory.clone(),
                found,
                supported: FORMAT_VERSION,
            });
        }
        let found = get(BUCKET)?.and_then(|bytes| decode_bucket(&bytes));
        let found = found.ok_or_else(|| self.corrupt("it does not say whose state it is"))?;
        if found != bucket {
            return Err(Error::OtherBucket {
                directory: self.directory.clone(),
                expected: bucket,
                found,
            });
        }
        let position = get(POSITION)?.and_then(|bytes| Position::decode(&bytes));
        let position = position.ok_or_else(|| self.corrupt("it does not say how far it got"))?;
        Ok(Some(position))
    }

    /// Writes the state of a new directory, so that no later file is without an owner.
    fn begin(&self, bucket: TableBucket) -> Result<Position> {
        let state = self.family(STATE)?;
        let mut writes = WriteBatch::default();
        writes.put_cf(state, FORMAT, FORMAT_VERSION.to_be_bytes());
        writes.put_cf(state, BUCKET, encode_bucket(bucket));
        writes.put_cf(state, POSITION, Position::START.encode());
        self.write(writes)?;
        self.flush()?;
        Ok(Position::START)
    }

    fn write(&self, writes: WriteBatch) -> Result<()> {
        let mut options = WriteOptions::default();
        options.disable_wal(true);
        let written = self.db.write_opt(writes, &options);
        written.map_err(|source| self.failed("write", source))
    }

    /// Writes a batch and the position it reaches, all or nothing, seen at once by every reader.
    pub(crate) fn apply(&self, batch: &FlushBatch) -> Result<Position> {
        let state = self.family(STATE)?;
        let _order = self.order.write();
        let before = *self.position.lock();
        if batch.end_offset < before.flushed_offset {
            return Err(Error::OffsetOrder {
                offset: batch.end_offset,
                bound: before.flushed_offset,
                reason: "the batch ends below what is flushed",
            });
        }
        let row_count = match (before.row_count, batch.row_count) {
            (Some(count), RowCountChange::By(change)) => {
                let count = count.checked_add_signed(change);
                Some(count.ok_or_else(|| self.corrupt("more keys are deleted than there were"))?)
            }
            _ => None,
        };
        let after = Position {
            flushed_offset: batch.end_offset,
            row_count,
        };
        let values = self.family(DEFAULT_COLUMN_FAMILY_NAME)?;
        let mut writes = WriteBatch::default();
        for (key, value) in &batch.writes {
            match value {
                Some(value) => writes.put_cf(values, key, value),
                None => writes.delete_cf(values, key),
            }
        }
        writes.put_cf(state, POSITION, after.encode());
        self.write(writes)?;
        *self.position.lock() = after;
        Ok(after)
    }

    /// Makes all that was applied so far durable; the position that a crash falls back to from now
    /// on.
    pub(crate) fn flush(&self) -> Result<Position> {
        let families = [
            self.family(DEFAULT_COLUMN_FAMILY_NAME)?,
            self.family(STATE)?,
        ];
        let reached = self.position();
        let mut options = FlushOptions::default();
        options.set_wait(true);
        let flushed = self.db.flush_cfs_opt(&families, &options);
        flushed.map_err(|source| self.failed("flush", source))?;
        let mut durable = self.durable.lock();
        if durable.flushed_offset < reached.flushed_offset {
            *durable = reached;
        }
        Ok(*durable)
    }

    /// Links the files of all that was applied into a folder that does not exist yet.
    pub(crate) fn checkpoint(&self, folder: &Path) -> Result<Position> {
        let _order = self.order.read();
        let position = self.position();
        let failed = |source| self.failed("take a checkpoint", source);
        let checkpoint = Checkpoint::new(&self.db).map_err(failed)?;
        checkpoint.create_checkpoint(folder).map_err(failed)?;
        Ok(position)
    }

    pub(crate) fn position(&self) -> Position {
        *self.position.lock()
    }

    pub(crate) fn durable_position(&self) -> Position {
        *self.durable.lock()
    }

    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<StoredValue>> {
        let found = self.db.get(key);
        let found = found.map_err(|source| self.failed("read a key", source))?;
        found
            .map(|bytes| StoredValue::decode(key, &Bytes::from(bytes)))
            .transpose()
    }

    pub(crate) fn multi_get(&self, keys: &[Bytes]) -> Result<Vec<Option<StoredValue>>> {
        let values = self.family(DEFAULT_COLUMN_FAMILY_NAME)?;
        let found = self.db.batched_multi_get_cf(values, keys, false);
        let mut answers = Vec::with_capacity(keys.len());
        for (key, found) in keys.iter().zip(found) {
            let found = found.map_err(|source| self.failed("read keys", source))?;
            let value =
                found.map(|bytes| StoredValue::decode(key, &Bytes::copy_from_slice(&bytes)));
            answers.push(value.transpose()?);
        }
        Ok(answers)
    }

    /// The first `limit` entries whose key begins with `prefix`, in key order; a whole scan without
    /// a prefix. It ends before the entry that does not fit into `max_bytes` of keys and rows.
    pub(crate) fn scan(&self, prefix: &[u8], limit: usize, max_bytes: usize) -> Result<Scanned> {
        let mut options = ReadOptions::default();
        options.set_verify_checksums(true);
        if let Some(end) = after_prefix(prefix) {
            options.set_iterate_upper_bound(end);
        }
        let mut entries = self.db.raw_iterator_opt(options);
        entries.seek(prefix);
        let mut found = Vec::new();
        let mut left = max_bytes;
        let mut is_cut = false;
        while found.len() < limit {
            let Some((key, value)) = entries.item() else {
                break;
            };
            let Some(rest) = left.checked_sub(key.len() + value.len()) else {
                is_cut = true;
                break;
            };
            left = rest;
            let value = StoredValue::decode(key, &Bytes::copy_from_slice(value))?;
            found.push((Bytes::copy_from_slice(key), value));
            entries.next();
        }
        // An iterator that met an unreadable file looks as if it was at its end.
        let status = entries.status();
        status.map_err(|source| self.failed("scan", source))?;
        Ok(Scanned {
            entries: found,
            is_cut,
        })
    }

    /// Lets no write happen until the guard is dropped.
    pub(crate) fn hold_writes(&self) -> RwLockReadGuard<'_, ()> {
        self.order.read()
    }

    /// The entries as they are now, whatever is written later; nothing is cached for it.
    pub(crate) fn entries(&self) -> rocksdb::DBRawIterator<'_> {
        let mut options = ReadOptions::default();
        options.set_verify_checksums(true);
        options.fill_cache(false);
        self.db.raw_iterator_opt(options)
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Whether nothing is written in the background.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        let names = [
            "rocksdb.mem-table-flush-pending",
            "rocksdb.num-running-flushes",
            "rocksdb.num-running-compactions",
        ];
        let mut values = names.iter().map(|name| self.db.property_int_value(*name));
        values.all(|value| value.unwrap() == Some(0))
    }

    fn family(&self, name: &'static str) -> Result<&ColumnFamily> {
        let family = self.db.cf_handle(name);
        family.ok_or_else(|| self.corrupt("a column family is missing"))
    }

    fn corrupt(&self, reason: &str) -> Error {
        Error::Corrupt {
            directory: self.directory.clone(),
            file: None,
            reason: reason.to_owned(),
        }
    }

    pub(crate) fn failed(&self, action: &'static str, source: rocksdb::Error) -> Error {
        Error::of_rocksdb(&self.directory, action, source)
    }
}

/// The first key behind all that begin with `prefix`; `None` if there is none.
fn after_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte != u8::MAX)?;
    let mut end = prefix.get(..=last)?.to_vec();
    if let Some(byte) = end.last_mut() {
        *byte += 1;
    }
    Some(end)
}

/// Whether a folder holds no database yet. One with tables but no `CURRENT` is corrupt: RocksDB
/// would begin anew over it. Without a table nothing was ever durable.
fn check_files(directory: &Path) -> Result<bool> {
    let failed = |source: io::Error| Error::of_io(directory, directory, "list the folder", &source);
    let mut table = None;
    for entry in fs::read_dir(directory).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        if name == "CURRENT" {
            return Ok(false);
        }
        if Path::new(&name)
            .extension()
            .is_some_and(|kind| kind == "sst")
        {
            table = Some(name.to_string_lossy().into_owned());
        }
    }
    match table {
        None => Ok(true),
        Some(name) => Err(Error::Corrupt {
            directory: directory.to_owned(),
            file: Some(directory.join("CURRENT")),
            reason: format!("there is no CURRENT though there is {name}"),
        }),
    }
}

fn database_options(environment: &KvEnvironment, is_new: bool) -> Options {
    let mut options = Options::default();
    options.create_if_missing(is_new);
    // A process that ended while it made the directory left no key; `read_state` looks.
    options.create_missing_column_families(true);
    options.set_paranoid_checks(true);
    // Values and the position that they reach are never apart, not even in files.
    options.set_atomic_flush(true);
    options.set_write_buffer_manager(&environment.write_buffers);
    options.set_max_open_files(environment.config.bucket_open_files);
    options.set_keep_log_file_num(2);
    options.set_log_level(LogLevel::Warn);
    options
}

fn family_options(name: &str, environment: &KvEnvironment) -> Options {
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(&environment.cache);
    table.set_cache_index_and_filter_blocks(true);
    table.set_bloom_filter(10.0, false);
    let mut options = Options::default();
    options.set_block_based_table_factory(&table);
    options.set_compression_type(DBCompressionType::Lz4);
    let bytes = environment.config.bucket_write_buffer_bytes;
    // A full buffer of either family flushes both, and each write leaves a position.
    options.set_write_buffer_size(if name == STATE {
        bytes.min(1 << 20)
    } else {
        bytes
    });
    options
}

#[cfg(test)]
mod tests {
    use super::after_prefix;

    #[test]
    fn the_end_of_a_prefix_is_the_next_key_that_does_not_begin_with_it() {
        assert_eq!(after_prefix(b"ab"), Some(b"ac".to_vec()));
        assert_eq!(after_prefix(b"a\xff\xff"), Some(b"b".to_vec()));
        assert_eq!(after_prefix(b"\xff"), None);
        assert_eq!(after_prefix(b""), None);
    }
}
