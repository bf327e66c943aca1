//! Merging manifests, so that neither lists nor readers grow with the number of commits: small ones
//! into larger ones, and all that hold deleted files once the deletes take up enough.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use futures::TryStreamExt;

use crate::error::{Error, Result};
use crate::manifest::{FileKind, ManifestEntry};
use crate::manifest_list::ManifestFileMeta;
use crate::options::TableOptions;
use crate::schema::TableSchema;
use crate::table::Table;

/// Below this size all manifests count as equal.
const SMALL_BYTES: i64 = 64 << 10;

/// A run of manifests to be replaced by one with these entries.
#[derive(Debug)]
pub(super) struct Merged {
    pub(super) replaces: Range<usize>,
    pub(super) entries: Arc<[ManifestEntry]>,
}

/// Whether time counts.
#[derive(Clone, Copy, Debug)]
pub(super) enum Haste {
    /// The first attempt of a commit.
    None,
    /// After a lost race: four times as many small manifests are left.
    Retry,
}

/// Merges the newest manifests if as many of them are small as the option
/// `manifest.merge-min-count` says; all from the first on that holds a deleted file, if those with
/// deletes are as large as `manifest.full-compaction-threshold-size` says.
///
/// `None` if there is nothing to do, or if one cannot be read: not merging is always right, and
/// whoever needs that manifest will say what is wrong with it.
///
/// # Errors
/// [`Error::InvalidSchema`] if an option about manifests is not what it must be.
pub(super) async fn merge(
    table: &Table,
    schema: &TableSchema,
    manifests: &[ManifestFileMeta],
    haste: Haste,
) -> Result<Option<Merged>> {
    let options = TableOptions::new(&schema.options);
    let target = i64::try_from(options.manifest_target_file_size()?).unwrap_or(i64::MAX);
    let min_count = usize::try_from(options.manifest_merge_min_count()?).unwrap_or(usize::MAX);
    let merge_from = match haste {
        Haste::None => min_count,
        Haste::Retry => min_count.saturating_mul(4),
    };
    let whole_from = i64::try_from(options.manifest_full_compaction_size()?).unwrap_or(i64::MAX);
    let with_deletes = delete_bytes(manifests);
    let merged = if matches!(haste, Haste::None) && with_deletes > 0 && with_deletes >= whole_from {
        read_whole(table, manifests).await
    } else {
        // One alone is merged already.
        let Some(replaces) = run_to_merge(manifests, target, merge_from.max(2)) else {
            return Ok(None);
        };
        read_run(table, manifests, replaces).await
    };
    match merged {
        Ok(merged) => Ok(Some(merged)),
        Err(error) => {
            tracing::warn!(table = %table.root(), %error, "manifests were not merged");
            Ok(None)
        }
    }
}

/// The size of the manifests that delete files of others.
fn delete_bytes(manifests: &[ManifestFileMeta]) -> i64 {
    let with_deletes = manifests.iter().filter(|m| m.num_deleted_files > 0);
    with_deletes.map(|manifest| manifest.file_size).sum()
}

/// The run at the end that is worth merging: going back from the newest, each manifest is taken
/// that is not larger than all behind it together. So each entry is merged a logarithmic number of
/// times, and the order stays.
fn run_to_merge(
    manifests: &[ManifestFileMeta],
    target_bytes: i64,
    merge_from: usize,
) -> Option<Range<usize>> {
    let mut total = 0_i64;
    let mut start = manifests.len();
    for (index, manifest) in manifests.iter().enumerate().rev() {
        let fits = manifest.file_size <= total.max(SMALL_BYTES);
        if !fits || total.saturating_add(manifest.file_size) > target_bytes {
            break;
        }
        total += manifest.file_size;
        start = index;
    }
    (manifests.len() - start >= merge_from).then_some(start..manifests.len())
}

/// The entries of a run without the pairs that cancel out inside it. Deletes of older files stay.
async fn read_run(
    table: &Table,
    manifests: &[ManifestFileMeta],
    replaces: Range<usize>,
) -> Result<Merged> {
    let run = manifests.get(replaces.clone()).unwrap_or_default();
    let mut reads = table.manifest_entries(run.iter().collect());
    let mut entries = Vec::new();
    while let Some(read) = reads.try_next().await? {
        entries.extend(read);
    }
    Ok(Merged {
        replaces,
        entries: cancel(entries)?.into(),
    })
}

/// The entries of all manifests but the first ones of which no file is deleted. No delete is left.
async fn read_whole(table: &Table, manifests: &[ManifestFileMeta]) -> Result<Merged> {
    let with_deletes = manifests.iter().filter(|m| m.num_deleted_files > 0);
    let mut reads = table.manifest_entries(with_deletes.collect());
    let mut dead = HashSet::new();
    while let Some(read) = reads.try_next().await? {
        let deletes = read.iter().filter(|entry| entry.kind == FileKind::Delete);
        dead.extend(deletes.map(ManifestEntry::key));
    }
    let mut reads = table.manifest_entries(manifests.iter().collect());
    let mut untouched = 0;
    let mut entries = Vec::new();
    while let Some(read) = reads.try_next().await? {
        let is_touched = read.iter().any(|entry| dead.contains(&entry.key()));
        if entries.is_empty() && !is_touched {
            untouched += 1;
        } else {
            entries.extend(read);
        }
    }
    let entries = cancel(entries)?;
    if let Some(entry) = entries.iter().find(|e| e.kind == FileKind::Delete) {
        let reason = format!("`{}` is deleted and not there", entry.file.file_name);
        return Err(Error::malformed("manifest", reason));
    }
    Ok(Merged {
        replaces: untouched..manifests.len(),
        entries: entries.into(),
    })
}

fn cancel(entries: Vec<ManifestEntry>) -> Result<Vec<ManifestEntry>> {
    let mut slots: Vec<Option<ManifestEntry>> = Vec::with_capacity(entries.len());
    let mut live = HashMap::new();
    for entry in entries {
        match entry.kind {
            FileKind::Add => {
                if live.insert(entry.key(), slots.len()).is_some() {
                    let reason = format!("`{}` is added twice", entry.file.file_name);
                    return Err(Error::malformed("manifest", reason));
                }
                slots.push(Some(entry));
            }
            FileKind::Delete => match live.remove(&entry.key()) {
                Some(index) => {
                    if let Some(slot) = slots.get_mut(index) {
                        *slot = None;
                    }
                }
                None => slots.push(Some(entry)),
            },
        }
    }
    Ok(slots.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data_file::DataFileMeta;
    use crate::stats::SimpleStats;

    fn manifests(sizes: &[i64]) -> Vec<ManifestFileMeta> {
        let manifest = |size: &i64| ManifestFileMeta {
            file_name: String::new(),
            file_size: *size,
            num_added_files: 1,
            num_deleted_files: 0,
            partition_stats: SimpleStats::empty(),
            schema_id: 0,
            min_bucket: None,
            max_bucket: None,
            min_level: None,
            max_level: None,
        };
        sizes.iter().map(manifest).collect()
    }

    fn entry(kind: FileKind, name: &str) -> ManifestEntry {
        let file = DataFileMeta::append(name, 1, 1, 0);
        let partition = crate::Partition::unpartitioned().to_bytes();
        ManifestEntry {
            kind,
            partition,
            bucket: 0,
            total_buckets: -1,
            file,
        }
    }

    #[test]
    fn few_small_manifests_are_left_alone() {
        assert_eq!(run_to_merge(&manifests(&[1000; 29]), 8 << 20, 30), None);
        assert_eq!(
            run_to_merge(&manifests(&[1000; 30]), 8 << 20, 30),
            Some(0..30)
        );
    }

    #[test]
    fn a_large_manifest_is_not_rewritten_for_a_few_small_ones() {
        let mut sizes = vec![1 << 20];
        sizes.extend([1000; 30]);
        assert_eq!(run_to_merge(&manifests(&sizes), 8 << 20, 30), Some(1..31));
        let full = vec![8 << 20; 40];
        assert_eq!(run_to_merge(&manifests(&full), 8 << 20, 30), None);
    }

    #[test]
    fn the_list_stays_short_and_the_work_logarithmic() {
        let (mut sizes, mut rewritten) = (Vec::new(), 0);
        for _ in 0..10_000 {
            sizes.push(3000);
            if let Some(run) = run_to_merge(&manifests(&sizes), 8 << 20, 30) {
                let total: i64 = sizes.drain(run).sum();
                rewritten += total;
                sizes.push(total);
            }
            assert!(sizes.len() < 50, "{}", sizes.len());
        }
        assert!(rewritten < 10 * 30_000_000, "{rewritten}");
    }

    #[test]
    fn pairs_cancel_out_and_deletes_of_older_files_stay() {
        use FileKind::{Add, Delete};
        let entries = [
            (Add, "a"),
            (Add, "b"),
            (Delete, "a"),
            (Delete, "old"),
            (Add, "c"),
            (Add, "a"),
        ];
        let left = cancel(entries.map(|(kind, name)| entry(kind, name)).to_vec()).unwrap();
        let left: Vec<_> = left
            .iter()
            .map(|e| (e.kind, e.file.file_name.as_str()))
            .collect();
        assert_eq!(left, [(Add, "b"), (Delete, "old"), (Add, "c"), (Add, "a")]);
    }
}
