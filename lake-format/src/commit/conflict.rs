//! Whether a change may be applied to what is live.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::base::Base;
use super::plan::Change;
use crate::binary_row::BinaryRow;
use crate::datum::Datum;
use crate::error::Result;
use crate::manifest::{FileKind, ManifestEntry};
use crate::schema::TableSchema;
use crate::table::Table;

/// Why a commit contradicts what is in the table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Conflict {
    /// A partition would have files of two bucket counts.
    #[error("a partition has {live} buckets, but the commit adds files for {ours}")]
    TotalBuckets {
        /// The partition, a serialized binary row.
        partition: Vec<u8>,
        /// The count of the live files.
        live: i32,
        /// The count of the new files.
        ours: i32,
    },
    /// A file to be added is in the table, or was added before.
    #[error("`{file_name}` was added before")]
    AddedBefore {
        /// Its name.
        file_name: String,
    },
    /// A file to be removed is not in the table.
    #[error("`{file_name}` is to be removed, but not live")]
    NotLive {
        /// Its name.
        file_name: String,
    },
    /// Two files of a level above 0 would hold the same keys.
    #[error("the keys of `{file_name}` overlap those of `{other}` on level {level}")]
    Overlap {
        /// One file.
        file_name: String,
        /// The other file.
        other: String,
        /// Their level.
        level: i32,
    },
}

/// Compares `change` with the snapshot that `base` knows.
///
/// New files cost no more than finding each partition's bucket count, which is remembered. Deletes
/// cost reading the live files of their partitions.
pub(super) async fn check(
    base: &mut Base,
    table: &Table,
    change: &Change,
) -> Result<Option<Conflict>> {
    if let Some(entry) = change.added().find(|entry| base.was_added(&entry.key())) {
        let file_name = entry.file.file_name.clone();
        return Ok(Some(Conflict::AddedBefore { file_name }));
    }
    if change.has_deletes || change.added().any(|entry| entry.file.level > 0) {
        let partitions = change
            .entries
            .iter()
            .map(|entry| entry.partition.as_slice());
        let mut partitions: Vec<&[u8]> = partitions.collect();
        partitions.sort_unstable();
        partitions.dedup();
        let live = base.live_entries(table, &partitions).await?;
        return check_live(live, change, base.schema()?);
    }
    for (partition, ours) in &change.total_buckets {
        match base.total_buckets(table, partition).await? {
            Some(live) if live != *ours => {
                let partition = partition.clone();
                return Ok(Some(Conflict::TotalBuckets {
                    partition,
                    live,
                    ours: *ours,
                }));
            }
            _ => {}
        }
    }
    Ok(None)
}

/// Applies `change` to the live files of all partitions it touches.
fn check_live(
    live: Vec<ManifestEntry>,
    change: &Change,
    schema: &TableSchema,
) -> Result<Option<Conflict>> {
    let live = live.into_iter().map(|entry| (entry.key(), entry));
    let mut files: BTreeMap<_, ManifestEntry> = live.collect();
    for entry in change.entries.iter() {
        let file_name = || entry.file.file_name.clone();
        match entry.kind {
            FileKind::Delete => {
                if files.remove(&entry.key()).is_none() {
                    return Ok(Some(Conflict::NotLive {
                        file_name: file_name(),
                    }));
                }
            }
            FileKind::Add => {
                if files.insert(entry.key(), entry.clone()).is_some() {
                    return Ok(Some(Conflict::AddedBefore {
                        file_name: file_name(),
                    }));
                }
            }
        }
    }
    for entry in files.values() {
        match change.total_buckets.get(&entry.partition) {
            Some(ours) if entry.total_buckets != *ours => {
                let (partition, live) = (entry.partition.clone(), entry.total_buckets);
                return Ok(Some(Conflict::TotalBuckets {
                    partition,
                    live,
                    ours: *ours,
                }));
            }
            _ => {}
        }
    }
    find_overlap(files.values(), schema)
}

/// A file of a level above 0 with its lowest and highest key.
struct Keyed<'a> {
    min: Vec<Datum>,
    max: Vec<Datum>,
    entry: &'a ManifestEntry,
}

/// Files of one (partition, bucket, level above 0) must have keys apart from each other.
pub(crate) fn find_overlap<'a>(
    files: impl Iterator<Item = &'a ManifestEntry>,
    schema: &TableSchema,
) -> Result<Option<Conflict>> {
    let keys = schema.trimmed_primary_keys();
    let fields = keys.iter().filter_map(|key| schema.field(key));
    let types: Vec<_> = fields.map(|field| &field.data_type).collect();
    let decode = |key: &[u8]| BinaryRow::from_serialized(key)?.decode(types.iter().copied());
    let mut runs: BTreeMap<_, Vec<Keyed<'a>>> = BTreeMap::new();
    for entry in files.filter(|entry| entry.file.level > 0 && schema.is_primary_key_table()) {
        let (min, max) = (decode(&entry.file.min_key)?, decode(&entry.file.max_key)?);
        let run = (&entry.partition, entry.bucket, entry.file.level);
        runs.entry(run).or_default().push(Keyed { min, max, entry });
    }
    for ((_, _, level), mut run) in runs {
        run.sort_by(|a, b| compare_keys(&a.min, &b.min));
        for (file, next) in run.iter().zip(run.iter().skip(1)) {
            if compare_keys(&file.max, &next.min).is_ge() {
                let file_name = file.entry.file.file_name.clone();
                let other = next.entry.file.file_name.clone();
                return Ok(Some(Conflict::Overlap {
                    file_name,
                    other,
                    level,
                }));
            }
        }
    }
    Ok(None)
}

fn compare_keys(a: &[Datum], b: &[Datum]) -> Ordering {
    let columns = a.iter().zip(b).filter_map(|(a, b)| a.compare(b));
    columns.fold(Ordering::Equal, Ordering::then)
}
