//! What a batch of changes makes of the keys of a bucket, and the batch it leaves in the log.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use weir_kv::upsert::{ChangeRecord, KeyWrite, MergeMode, Outcome, Request, Upsert};
use weir_kv::{Newest, PreWriteBuffer, StoredValue};
use weir_protocol::api_key::ApiKey;
use weir_protocol::ids::{LogOffset, TableBucket};
use weir_protocol::record::BatchIdentity;
use weir_protocol::record::kv_batch::{KvBatch, KvRecord};

use super::changelog;
use super::rules::KeyRules;
use crate::error::Error;
use crate::log::{Batches, Log};

/// The most values that the changes of one batch may have: each takes memory of its own.
const MAX_VALUES: usize = 8 << 20;

/// A batch of changes, as a client sent it.
#[derive(Clone, Debug)]
pub(crate) struct Put {
    pub(crate) records: Bytes,
    /// The columns of a partial update; `None` is all.
    pub(crate) target_columns: Option<Arc<[i32]>>,
    pub(crate) mode: MergeMode,
    pub(crate) existing: Existing,
}

/// What a put does to keys that are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Existing {
    /// What the table says.
    Merge,
    /// Nothing.
    Keep,
}

/// Old values of keys, as the store holds them; `None` for keys that are not there.
pub(super) type OldValues = HashMap<Bytes, Option<StoredValue>>;

/// A batch of changes that was read.
#[derive(Debug)]
pub(super) struct Changes {
    put: Put,
    batch: KvBatch,
    records: Vec<KvRecord>,
}

impl Changes {
    /// Reads a batch.
    ///
    /// # Errors
    /// [`Error::BadKvBatch`]; [`Error::BadRequest`] for none or several; [`Error::Kv`] for a schema that
    /// is not known, and for target columns that the table does not take; [`Error::TooManyChanges`].
    pub(super) fn read(bucket: TableBucket, put: Put, rules: &KeyRules) -> Result<Self, Error> {
        let broken = |source| Error::BadKvBatch { bucket, source };
        let mut rest = put.records.clone();
        let batch = KvBatch::parse(&mut rest).map_err(broken)?;
        if !rest.is_empty() {
            return Err(Error::BadRequest {
                api: ApiKey::PutKv,
                reason: "a bucket takes one batch a request".to_owned(),
            });
        }
        batch.verify_crc().map_err(broken)?;
        rules.schema(batch.schema_id)?;
        let records = batch.records().map_err(broken)?;
        let values = rules.schemas.latest().columns.len();
        let values = records.len().saturating_mul(values).saturating_mul(2);
        if values > MAX_VALUES {
            let (bytes, max) = (values, MAX_VALUES);
            return Err(Error::TooManyChanges { bytes, max });
        }
        let changes = Self {
            put,
            batch,
            records,
        };
        changes.upsert(rules)?;
        Ok(changes)
    }

    fn upsert<'a>(&'a self, rules: &'a KeyRules) -> Result<Upsert<'a>, Error> {
        let targets = self.put.target_columns.as_deref();
        Ok(Upsert::new(
            &rules.table,
            &rules.schemas,
            targets,
            self.put.mode,
        )?)
    }

    /// How many new rows there may be.
    pub(super) fn row_count(&self) -> usize {
        let rows = self.records.iter().filter(|record| record.row.is_some());
        rows.count()
    }

    fn request(&self, record: &KvRecord) -> Request {
        match &record.row {
            Some(row) => Request::Put(StoredValue {
                schema_id: self.batch.schema_id,
                row: row.clone(),
            }),
            None => Request::Delete,
        }
    }

    /// Adds the keys whose old values must be read from the store.
    ///
    /// # Errors
    /// As [`Changes::read`].
    pub(super) fn collect_keys(
        &self,
        rules: &KeyRules,
        buffer: &PreWriteBuffer,
        keys: &mut HashSet<Bytes>,
    ) -> Result<(), Error> {
        let upsert = self.upsert(rules)?;
        for record in &self.records {
            let is_needed = upsert.needs_old_value(&self.request(record))
                || self.put.existing == Existing::Keep;
            if is_needed && buffer.get(&record.key).is_none() {
                keys.insert(record.key.clone());
            }
        }
        Ok(())
    }
}

/// What a put left in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Written {
    /// The offset behind its last change; of a batch that was there already, behind its first time.
    pub(super) end: LogOffset,
    /// The size of the batch, if it was not there already.
    pub(super) bytes: u64,
    pub(super) rows: u64,
}

/// The changes of a batch, buffered but not in the log.
struct Decided {
    records: Vec<ChangeRecord>,
    /// The offset behind the last of them.
    end: LogOffset,
}

/// Where the changes of a bucket go.
pub(super) struct Place<'a> {
    pub(super) bucket: TableBucket,
    pub(super) log: &'a Arc<Log>,
    pub(super) max_batch_bytes: usize,
    pub(super) buffer: &'a mut PreWriteBuffer,
    /// Numbers for the column that the server numbers.
    pub(super) numbers: &'a mut Numbers,
}

/// Numbers that were taken and not yet given to rows.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    ranges: VecDeque<Range<i64>>,
}

impl Numbers {
    pub(super) fn len(&self) -> usize {
        let len = |range: &Range<i64>| usize::try_from(range.end - range.start).unwrap_or(0);
        self.ranges.iter().map(len).sum()
    }

    pub(super) fn add(&mut self, numbers: impl IntoIterator<Item = Range<i64>>) {
        self.ranges.extend(numbers);
    }

    fn next(&mut self) -> Option<i64> {
        loop {
            if let Some(number) = self.ranges.front_mut()?.next() {
                return Some(number);
            }
            self.ranges.pop_front();
        }
    }
}

impl Place<'_> {
    /// Decides what a batch changes, buffers it, and appends one batch of changes to the log, which may
    /// know it already. On an error, and for a batch that is there already, the buffer is as before.
    /// `take_room` is asked with the size of the batch before it is appended. Blocks.
    ///
    /// # Errors
    /// [`Error::Kv`], [`Error::KeyMismatch`], [`Error::TooManyChanges`]; those of the log.
    pub(super) fn append(
        &mut self,
        rules: &KeyRules,
        changes: &Changes,
        old_values: &OldValues,
        now_ms: i64,
        take_room: impl FnOnce(u64) -> Result<(), Error>,
    ) -> Result<Written, Error> {
        let first = self.log.log_end();
        let written = self
            .decide(rules, changes, old_values, first)
            .and_then(|decided| {
                let batches = self.batch_of(rules, changes, &decided.records)?;
                let bytes = u64::try_from(batches.size_bytes()).unwrap_or(u64::MAX);
                take_room(bytes)?;
                let appended = self.log.append(&batches, now_ms)?;
                if appended.duplicate {
                    let end = LogOffset(appended.last_offset.0 + 1);
                    return Ok((end, 0, 0));
                }
                let end = appended.log_end;
                // Nobody else appends to this log, and a batch without changes takes an offset.
                assert!(
                    appended.base_offset == first && end.0 == decided.end.0.max(first.0 + 1),
                    "changes were buffered at {first}..{}, but the log has {appended:?}",
                    decided.end
                );
                Ok((end, bytes, batches.record_count()))
            });
        if !matches!(written, Ok((_, bytes, _)) if bytes > 0) {
            self.buffer.truncate_from(first)?;
        }
        let (end, bytes, rows) = written?;
        Ok(Written { end, bytes, rows })
    }

    fn batch_of(
        &self,
        rules: &KeyRules,
        changes: &Changes,
        records: &[ChangeRecord],
    ) -> Result<Batches, Error> {
        let bytes = changelog::encode(rules, changes.identity(rules), records)?;
        if bytes.len() > self.max_batch_bytes {
            let (bytes, max) = (bytes.len(), self.max_batch_bytes);
            return Err(Error::TooManyChanges { bytes, max });
        }
        Ok(Batches::made(self.bucket, bytes, self.max_batch_bytes)?)
    }

    /// Buffers what a batch changes, from the offset `first` on; the changelog, and the offset behind it.
    fn decide(
        &mut self,
        rules: &KeyRules,
        changes: &Changes,
        old_values: &OldValues,
        first: LogOffset,
    ) -> Result<Decided, Error> {
        let upsert = changes.upsert(rules)?;
        let mut next = first;
        let mut log = Vec::new();
        let none_left = || weir_kv::Error::NumbersUsedUp {
            column: String::new(),
            number: 0,
        };
        for (index, record) in changes.records.iter().enumerate() {
            let old = match self.buffer.get(&record.key) {
                Some(Newest::Put(value)) => Some(StoredValue::decode(&record.key, value)?),
                Some(Newest::Deleted) => None,
                None => old_values.get(&record.key).cloned().flatten(),
            };
            let request = changes.request(record);
            if old.is_some() && changes.put.existing == Existing::Keep {
                continue;
            }
            let numbers = &mut *self.numbers;
            let mut number = || numbers.next().ok_or_else(none_left);
            let outcome = upsert.apply(old.as_ref(), &request, &mut number)?;
            self.check_key(rules, &outcome, index, record)?;
            // Not the request's own bytes, which would stay as long as one of its keys.
            let key = Bytes::copy_from_slice(&record.key);
            next = outcome.buffer(self.buffer, key, next)?;
            if let Outcome::Changed { records, .. } = outcome {
                log.extend(records);
            }
        }
        Ok(Decided {
            records: log,
            end: next,
        })
    }

    /// A key that is not that of its row would not come back when the log is applied again.
    fn check_key(
        &self,
        rules: &KeyRules,
        outcome: &Outcome,
        index: usize,
        record: &KvRecord,
    ) -> Result<(), Error> {
        let Outcome::Changed {
            records,
            write: KeyWrite::Put(..),
        } = outcome
        else {
            return Ok(());
        };
        let row = records.last().map(|last| &last.row);
        let reason = match row.map(|row| rules.key_of(row)) {
            Some(Ok(key)) if key == record.key => match row.and_then(|row| rules.unfit_key(row)) {
                None => return Ok(()),
                Some(reason) => reason,
            },
            Some(Err(error)) => error.to_string(),
            _ => "its key is not that of its row".to_owned(),
        };
        Err(Error::KeyMismatch {
            bucket: self.bucket,
            record: index,
            reason,
        })
    }
}

impl Changes {
    /// The changelog has the writer's sequence: a batch that is sent twice is known by it.
    fn identity(&self, rules: &KeyRules) -> BatchIdentity {
        BatchIdentity {
            schema_id: rules.schemas.latest_id(),
            writer_id: self.batch.writer_id,
            batch_sequence: self.batch.batch_sequence,
        }
    }
}
