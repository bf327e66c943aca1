//! What a put or a delete makes of a key, and the changelog it leaves. Pure.
//!
//! | case | changelog image FULL | WAL |
//! |---|---|---|
//! | put, key absent | +I new | +I new; +U new where nobody looks for the old row |
//! | put, key present | -U old, +U new | +U new |
//! | put that leaves the old row | nothing | nothing |
//! | delete, key present | -D old | -D old |
//! | delete, key absent | nothing | nothing |
//!
//! Equal rows are not compared: a put of the same row again is an update. Facts: fluss `KvTablet`,
//! `DefaultRowMerger`, `FirstRowRowMerger`, `VersionedRowMerger`, `AggregateRowMerger`,
//! `PartialUpdater`, `PerSchemaAutoIncrementUpdater`.

use std::collections::BTreeSet;

use bytes::Bytes;
use weir_protocol::ids::LogOffset;
use weir_protocol::record::ChangeType;
use weir_protocol::row::{Datum, precision};
use weir_protocol::schema::{Schema, TypeKind};

use crate::error::{Error, Result};
use crate::pre_write_buffer::{PreWriteBuffer, PutKind};
use crate::value::StoredValue;

mod aggregate;
mod rules;
mod schemas;
#[cfg(test)]
mod tests;

use aggregate::Aggregators;

pub use rules::{ChangelogImage, DeleteBehavior, MergeEngine, RowFormat, TableRules};
pub use schemas::TableSchemas;

/// Whether the table's merge engine counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergeMode {
    /// It does.
    Engine,
    /// The last row wins and deletes delete, whatever the table says: a writer takes back what it
    /// wrote.
    Overwrite,
}

/// What a record asks of its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// To hold this row; of a partial update only the target columns count.
    Put(StoredValue),
    /// To go.
    Delete,
}

/// A record of the changelog.
#[derive(Clone, Debug, PartialEq)]
pub struct ChangeRecord {
    /// What it says of the row.
    pub change_type: ChangeType,
    /// The row in the columns of the latest schema.
    pub row: Vec<Datum>,
}

/// What becomes of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyWrite {
    /// It holds this value.
    Put(StoredValue, PutKind),
    /// It goes.
    Delete,
}

/// What a request leaves.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Nothing: no record, and the key stays as it is.
    Unchanged,
    /// One record or two, each with an offset of its own, and a key that is written.
    Changed {
        /// The changelog, in order.
        records: Vec<ChangeRecord>,
        /// What becomes of the key.
        write: KeyWrite,
    },
}

impl Outcome {
    /// Buffers what becomes of `key` at the offset of the last record, when the first gets
    /// `next_offset`; returns the offset behind the last record.
    ///
    /// # Errors
    /// As [`PreWriteBuffer::put`], and [`Error::SchemaIdRange`].
    pub fn buffer(
        &self,
        buffer: &mut PreWriteBuffer,
        key: Bytes,
        next_offset: LogOffset,
    ) -> Result<LogOffset> {
        let Self::Changed { records, write } = self else {
            return Ok(next_offset);
        };
        let records = i64::try_from(records.len()).unwrap_or(i64::MAX);
        let end = LogOffset(next_offset.0.saturating_add(records));
        let last = LogOffset(end.0 - 1);
        match write {
            KeyWrite::Put(value, kind) => buffer.put(key, value.encode()?, last, *kind)?,
            KeyWrite::Delete => buffer.delete(key, last)?,
        }
        Ok(end)
    }
}

/// How one batch of requests is decided: table, schemas and target columns.
#[derive(Debug)]
pub struct Upsert<'a> {
    rules: &'a TableRules,
    schemas: &'a TableSchemas,
    deletes: DeleteBehavior,
    merge: Merge,
    /// The column that the server numbers.
    numbered: Option<usize>,
    /// Columns beside the key whose times may have more digits than the log carries.
    inexact: Vec<usize>,
}

#[derive(Debug)]
enum Merge {
    Replace,
    Partial(Targets),
    KeepFirst,
    HighestVersion {
        index: usize,
        lowest: i64,
    },
    /// `None`: all columns are targets.
    Aggregate {
        aggregators: Aggregators,
        targets: Option<Targets>,
    },
}

/// The columns of a partial update, by index.
#[derive(Debug)]
struct Targets {
    columns: BTreeSet<usize>,
    key: BTreeSet<usize>,
}

impl<'a> Upsert<'a> {
    /// Decides for requests with these target columns (`None`: all).
    ///
    /// # Errors
    /// [`Error::TargetColumns`] unless they hold the whole primary key, none that the server
    /// numbers, and leave only nullable columns beside the key; [`Error::PartialUpdate`] where the
    /// merge engine takes none.
    pub fn new(
        rules: &'a TableRules,
        schemas: &'a TableSchemas,
        target_columns: Option<&[i32]>,
        mode: MergeMode,
    ) -> Result<Self> {
        let schema = schemas.latest();
        let numbered = schema
            .auto_increment
            .first()
            .and_then(|name| schema.column_index(name));
        let targets = target_columns
            .map(|targets| Targets::new(schema, targets))
            .transpose()?;
        check_numbered(schema, numbered, targets.as_ref())?;
        let last_row = |targets: Option<Targets>| match targets {
            Some(targets) if targets.columns.len() < schema.columns.len() => {
                targets.check(schema)?;
                Ok(Merge::Partial(targets))
            }
            _ => Ok(Merge::Replace),
        };
        let refused = |engine| Err(Error::PartialUpdate { engine });
        if let Some(targets) = &targets
            && rules.engine == MergeEngine::Aggregation
        {
            targets.check(schema)?;
        }
        let (merge, deletes) = match (&rules.engine, mode) {
            (_, MergeMode::Overwrite) => (last_row(targets)?, DeleteBehavior::Allow),
            (MergeEngine::LastRow, _) => (last_row(targets)?, rules.deletes),
            (MergeEngine::Aggregation, _) => {
                let aggregators = Aggregators::of(schema)?;
                let merge = Merge::Aggregate {
                    aggregators,
                    targets,
                };
                (merge, rules.deletes)
            }
            (MergeEngine::FirstRow, _) if targets.is_some() => return refused("first_row"),
            (MergeEngine::FirstRow, _) => (Merge::KeepFirst, rules.deletes),
            (MergeEngine::Versioned { .. }, _) if targets.is_some() => return refused("versioned"),
            (MergeEngine::Versioned { column }, _) => {
                let index = schema
                    .column_index(column)
                    .ok_or_else(|| Error::TableProperty {
                        property: "table.merge-engine.versioned.ver-column",
                        value: column.clone(),
                        reason: "is no column",
                    })?;
                let is_int = schema
                    .columns
                    .get(index)
                    .is_some_and(|c| c.ty.kind == TypeKind::Int);
                let lowest = if is_int {
                    i64::from(i32::MIN)
                } else {
                    i64::MIN
                };
                (Merge::HighestVersion { index, lowest }, rules.deletes)
            }
        };
        Ok(Self {
            rules,
            schemas,
            deletes,
            merge,
            numbered,
            inexact: inexact(schema),
        })
    }

    /// Whether [`Self::apply`] must know the key's old value. Where not, nobody needs to read it.
    pub fn needs_old_value(&self, request: &Request) -> bool {
        match request {
            Request::Delete => self.deletes == DeleteBehavior::Allow,
            Request::Put(_) => !self.is_blind(),
        }
    }

    fn is_blind(&self) -> bool {
        self.rules.image == ChangelogImage::Wal
            && self.numbered.is_none()
            && matches!(self.merge, Merge::Replace)
    }

    /// What a request leaves of a key that holds `old`.
    ///
    /// * `next_number`: called once for a new key of a table whose server numbers a column.
    ///
    /// # Errors
    /// [`Error::DeletesDisabled`], [`Error::NullValue`], [`Error::UnknownSchema`], [`Error::Row`];
    /// what `next_number` refuses.
    pub fn apply(
        &self,
        old: Option<&StoredValue>,
        request: &Request,
        next_number: &mut dyn FnMut() -> Result<i64>,
    ) -> Result<Outcome> {
        match (request, old) {
            (Request::Delete, old) => match (self.deletes, old) {
                (DeleteBehavior::Disable, _) => Err(Error::DeletesDisabled),
                (DeleteBehavior::Ignore, _) | (DeleteBehavior::Allow, None) => {
                    Ok(Outcome::Unchanged)
                }
                (DeleteBehavior::Allow, Some(old)) => self.delete(old),
            },
            (Request::Put(new), _) if self.is_blind() => {
                let (row, value) = self.decode_new(new)?;
                self.check_nulls(&row)?;
                Ok(changed(
                    vec![record(ChangeType::UpdateAfter, row)],
                    KeyWrite::Put(value, PutKind::Blind),
                ))
            }
            (Request::Put(new), None) => self.insert(new, next_number),
            (Request::Put(new), Some(old)) => self.update(old, new),
        }
    }

    fn insert(
        &self,
        new: &StoredValue,
        next_number: &mut dyn FnMut() -> Result<i64>,
    ) -> Result<Outcome> {
        let (mut row, value) = self.decode_new(new)?;
        let mut is_rewritten = false;
        if let Some(targets) = self.merge.targets() {
            for (index, value) in row.iter_mut().enumerate() {
                if !targets.columns.contains(&index) {
                    *value = Datum::Null;
                }
            }
            is_rewritten = true;
        }
        if let Some(numbered) = self.numbered
            && let Some(value) = row.get_mut(numbered)
        {
            *value = number(self.schemas.latest(), numbered, next_number()?)?;
            is_rewritten = true;
        }
        self.check_nulls(&row)?;
        let value = if is_rewritten {
            self.schemas.encode(self.rules.format, &row)?
        } else {
            value
        };
        Ok(changed(
            vec![record(ChangeType::Insert, row)],
            KeyWrite::Put(value, PutKind::Insert),
        ))
    }

    fn update(&self, old: &StoredValue, new: &StoredValue) -> Result<Outcome> {
        let (new_row, new) = self.decode_new(new)?;
        let old_row = self.decode(old)?;
        let (row, value) = match &self.merge {
            Merge::KeepFirst => return Ok(Outcome::Unchanged),
            Merge::HighestVersion { index, lowest } => {
                if version(&new_row, *index, *lowest) < version(&old_row, *index, *lowest) {
                    return Ok(Outcome::Unchanged);
                }
                (new_row, new)
            }
            Merge::Replace => (new_row, new),
            Merge::Partial(targets) if targets.columns == targets.key => {
                return Ok(Outcome::Unchanged);
            }
            Merge::Partial(targets) => {
                let merged = old_row.iter().zip(new_row).enumerate();
                let row: Vec<Datum> = merged
                    .map(|(index, (old, new))| {
                        if targets.columns.contains(&index) {
                            new
                        } else {
                            old.clone()
                        }
                    })
                    .collect();
                let value = self.schemas.encode(self.rules.format, &row)?;
                (row, value)
            }
            Merge::Aggregate {
                aggregators,
                targets,
            } => {
                let merged = old_row.iter().zip(new_row).enumerate();
                let merged = merged.map(|(index, (old, new))| match targets {
                    Some(targets) if !targets.columns.contains(&index) => Ok(old.clone()),
                    _ => aggregators.merge(index, old, new),
                });
                let row = merged.collect::<Result<Vec<Datum>>>()?;
                let value = self.schemas.encode(self.rules.format, &row)?;
                (row, value)
            }
        };
        self.check_nulls(&row)?;
        Ok(self.updated(old_row, row, value))
    }

    fn delete(&self, old: &StoredValue) -> Result<Outcome> {
        let old_row = self.decode(old)?;
        if let Some(targets) = self.merge.targets() {
            let mut others = old_row.iter().enumerate();
            let is_rest_null =
                others.all(|(index, value)| targets.columns.contains(&index) || value.is_null());
            if !is_rest_null {
                let mut row = old_row.clone();
                for (index, value) in row.iter_mut().enumerate() {
                    if targets.columns.contains(&index) && !targets.key.contains(&index) {
                        *value = Datum::Null;
                    }
                }
                let value = self.schemas.encode(self.rules.format, &row)?;
                return Ok(self.updated(old_row, row, value));
            }
        }
        Ok(changed(
            vec![record(ChangeType::Delete, old_row)],
            KeyWrite::Delete,
        ))
    }

    fn updated(&self, old: Vec<Datum>, new: Vec<Datum>, value: StoredValue) -> Outcome {
        let mut records = Vec::with_capacity(2);
        if self.rules.image == ChangelogImage::Full {
            records.push(record(ChangeType::UpdateBefore, old));
        }
        records.push(record(ChangeType::UpdateAfter, new));
        changed(records, KeyWrite::Put(value, PutKind::Update))
    }

    fn decode(&self, value: &StoredValue) -> Result<Vec<Datum>> {
        self.schemas.decode(self.rules.format, value)
    }

    /// The row that is put, and the value that it is stored as: that which a replay of the log makes.
    fn decode_new(&self, value: &StoredValue) -> Result<(Vec<Datum>, StoredValue)> {
        let mut row = self.decode(value)?;
        let columns = &self.schemas.latest().columns;
        let mut is_trimmed = false;
        for index in &self.inexact {
            if let (Some(value), Some(column)) = (row.get_mut(*index), columns.get(*index)) {
                is_trimmed |= precision::trim(value, &column.ty.kind);
            }
        }
        let value = if is_trimmed {
            self.schemas.encode(self.rules.format, &row)?
        } else {
            value.clone()
        };
        Ok((row, value))
    }

    fn check_nulls(&self, row: &[Datum]) -> Result<()> {
        for (column, value) in self.schemas.latest().columns.iter().zip(row) {
            if value.is_null() && !column.ty.nullable {
                return Err(Error::NullValue {
                    column: column.name.clone(),
                });
            }
        }
        Ok(())
    }
}

fn inexact(schema: &Schema) -> Vec<usize> {
    let columns = schema.columns.iter().enumerate();
    let found = columns.filter(|(_, column)| {
        precision::may_be_inexact(&column.ty.kind) && !schema.primary_key.contains(&column.name)
    });
    found.map(|(index, _)| index).collect()
}

impl Merge {
    /// The columns that count, of a partial update.
    fn targets(&self) -> Option<&Targets> {
        match self {
            Self::Partial(targets) => Some(targets),
            Self::Aggregate { targets, .. } => targets.as_ref(),
            Self::Replace | Self::KeepFirst | Self::HighestVersion { .. } => None,
        }
    }
}

impl Targets {
    fn new(schema: &Schema, targets: &[i32]) -> Result<Self> {
        let mut columns = BTreeSet::new();
        for target in targets {
            let index = usize::try_from(*target).ok();
            let index = index.filter(|index| *index < schema.columns.len());
            columns.insert(index.ok_or_else(|| Error::TargetColumns {
                column: target.to_string(),
                reason: "there is no such column",
            })?);
        }
        let key = schema
            .primary_key
            .iter()
            .filter_map(|name| schema.column_index(name));
        Ok(Self {
            columns,
            key: key.collect(),
        })
    }

    fn check(&self, schema: &Schema) -> Result<()> {
        for (index, column) in schema.columns.iter().enumerate() {
            let is_key = self.key.contains(&index);
            let reason = if is_key && !self.columns.contains(&index) {
                "a partial update must hold the whole primary key"
            } else if !is_key && !column.ty.nullable {
                "a partial update needs every column beside the primary key to be nullable"
            } else {
                continue;
            };
            return Err(Error::TargetColumns {
                column: column.name.clone(),
                reason,
            });
        }
        Ok(())
    }
}

/// A column that the server numbers is never written by clients, not even by a full row.
fn check_numbered(
    schema: &Schema,
    numbered: Option<usize>,
    targets: Option<&Targets>,
) -> Result<()> {
    let Some(numbered) = numbered else {
        return Ok(());
    };
    if targets.is_some_and(|targets| !targets.columns.contains(&numbered)) {
        return Ok(());
    }
    let name = schema
        .columns
        .get(numbered)
        .map(|column| column.name.clone());
    Err(Error::TargetColumns {
        column: name.unwrap_or_default(),
        reason: "the server numbers it; name the other columns as targets",
    })
}

fn number(schema: &Schema, index: usize, number: i64) -> Result<Datum> {
    let column = schema.columns.get(index);
    match column.map(|column| &column.ty.kind) {
        Some(TypeKind::Int) => {
            let narrow = i32::try_from(number).map_err(|_| Error::NumbersUsedUp {
                column: column.map(|column| column.name.clone()).unwrap_or_default(),
                number,
            })?;
            Ok(Datum::Int(narrow))
        }
        _ => Ok(Datum::BigInt(number)),
    }
}

/// What versions are compared by; null, and a row older than the column, is equal to the lowest.
fn version(row: &[Datum], index: usize, lowest: i64) -> (i64, i32) {
    match row.get(index) {
        Some(Datum::Int(version)) => (i64::from(*version), 0),
        Some(Datum::BigInt(version)) => (*version, 0),
        Some(Datum::Timestamp { millis, nanos }) => (*millis, *nanos),
        _ => (lowest, 0),
    }
}

fn record(change_type: ChangeType, row: Vec<Datum>) -> ChangeRecord {
    ChangeRecord { change_type, row }
}

fn changed(records: Vec<ChangeRecord>, write: KeyWrite) -> Outcome {
    Outcome::Changed { records, write }
}
