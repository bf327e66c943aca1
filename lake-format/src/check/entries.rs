//! Manifests and their entries against what is stated of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{CACHED_MANIFESTS, Check, Live};
use crate::binary_row::BinaryRow;
use crate::commit::find_overlap;
use crate::error::Result;
use crate::manifest::{FileKind, ManifestEntry};
use crate::manifest_list::ManifestFileMeta;
use crate::partition::Partition;
use crate::read::DataFileReader;
use crate::schema::TableSchema;
use crate::snapshot::Snapshot;

impl Check<'_> {
    /// The entries of manifests in order, each manifest checked when it is met first.
    pub(super) async fn entries(
        &mut self,
        manifests: &[ManifestFileMeta],
    ) -> Result<Vec<ManifestEntry>> {
        let mut entries = Vec::new();
        for manifest in manifests {
            let cached = self.manifests.get(&manifest.file_name).map(Arc::clone);
            let found = match cached {
                Some(found) => found,
                None => Arc::new(self.manifest(manifest).await?),
            };
            entries.extend(found.iter().cloned());
            if self.manifests.len() >= CACHED_MANIFESTS {
                self.manifests.clear();
            }
            self.manifests.insert(manifest.file_name.clone(), found);
        }
        Ok(entries)
    }

    async fn manifest(&mut self, manifest: &ManifestFileMeta) -> Result<Vec<ManifestEntry>> {
        let name = &manifest.file_name;
        let path = self.table.paths().manifest(name);
        if let Some(path) = self.note(name, path)? {
            self.size(&path, manifest.file_size).await?;
        }
        let found = self.table.read_manifest(name).await;
        let Some(entries) = self.note(name, found)? else {
            return Ok(Vec::new());
        };
        let added = entries
            .iter()
            .filter(|entry| entry.kind == FileKind::Add)
            .count();
        let counts = [
            (added, manifest.num_added_files),
            (entries.len() - added, manifest.num_deleted_files),
        ];
        for (count, stated) in counts {
            if i64::try_from(count) != Ok(stated) {
                self.problem(
                    name,
                    format!("{count} entries of a kind where its list states {stated}"),
                );
            }
        }
        self.ranges(manifest, &entries);
        if let Some(schema) = self.schema(manifest.schema_id).await? {
            let found = outside_bounds(manifest, &entries, &schema);
            if let Some(Some(reason)) = self.note(name, found)? {
                self.problem(name, reason);
            }
        }
        Ok(entries)
    }

    fn ranges(&mut self, manifest: &ManifestFileMeta, entries: &[ManifestEntry]) {
        for entry in entries {
            let ranges = [
                (
                    entry.bucket,
                    manifest.min_bucket,
                    manifest.max_bucket,
                    "bucket",
                ),
                (
                    entry.file.level,
                    manifest.min_level,
                    manifest.max_level,
                    "level",
                ),
            ];
            for (value, min, max, what) in ranges {
                if min.is_some_and(|min| value < min) || max.is_some_and(|max| value > max) {
                    let reason = format!("{what} {value} is outside of the range in its list");
                    self.problem(&manifest.file_name, reason);
                    return;
                }
            }
        }
    }

    /// Applies entries in order, as readers do.
    pub(super) fn apply(&mut self, list: &str, entries: Vec<ManifestEntry>, live: &mut Live) {
        for entry in entries {
            let key = entry.key();
            let name = entry.file.file_name.clone();
            match entry.kind {
                FileKind::Add => {
                    if live.insert(key, entry).is_some() {
                        self.problem(list, format!("`{name}` is added though it is live"));
                    }
                }
                FileKind::Delete => {
                    if live.remove(&key).is_none() {
                        self.problem(list, format!("`{name}` is removed though it is not live"));
                    }
                }
            }
        }
    }

    /// One bucket count a partition, and every bucket below it.
    pub(super) fn buckets(&mut self, live: &Live) {
        let mut counts: BTreeMap<&[u8], (i32, &str)> = BTreeMap::new();
        let mut found = Vec::new();
        for entry in live.values() {
            let name = entry.file.file_name.as_str();
            let total = entry.total_buckets;
            let (first, other) = counts.entry(&entry.partition).or_insert((total, name));
            if *first != total {
                let reason = format!(
                    "written under {total} buckets, but `{other}` of its partition under {first}"
                );
                found.push((name, reason));
            }
            if total > 0 && !(0..total).contains(&entry.bucket) {
                found.push((name, format!("in bucket {} of {total}", entry.bucket)));
            }
        }
        let found: Vec<(String, String)> = found
            .into_iter()
            .map(|(name, reason)| (name.to_owned(), reason))
            .collect();
        for (name, reason) in found {
            self.problem(name, reason);
        }
    }

    /// The files of a level above 0 share no key.
    pub(super) async fn overlaps(&mut self, snapshot: &Snapshot, live: &Live) -> Result<()> {
        let Some(schema) = self.schema(snapshot.schema_id).await? else {
            return Ok(());
        };
        let found = find_overlap(live.values(), &schema);
        if let Some(Some(overlap)) = self.note(&format!("snapshot-{}", snapshot.id), found)? {
            self.problem(&snapshot.delta_manifest_list, overlap.to_string());
        }
        Ok(())
    }

    /// Where the file of an entry is.
    pub(super) fn reader(
        &mut self,
        entry: &ManifestEntry,
        schema: &TableSchema,
    ) -> Result<Option<DataFileReader>> {
        let partition = Partition::from_bytes(&entry.partition, schema);
        let Some(partition) = self.note(&entry.file.file_name, partition)? else {
            return Ok(None);
        };
        let split = crate::read::Split {
            partition,
            bucket: entry.bucket,
            total_buckets: entry.total_buckets,
            files: vec![entry.file.clone()],
            deletions: BTreeMap::new(),
        };
        let readers = self.table.file_readers(&split, schema);
        let readers = self.note(&entry.file.file_name, readers)?;
        Ok(readers.and_then(|readers| readers.into_iter().next()))
    }
}

/// Why a partition of the entries lies outside the bounds that the list states, if one does.
fn outside_bounds(
    manifest: &ManifestFileMeta,
    entries: &[ManifestEntry],
    schema: &TableSchema,
) -> Result<Option<String>> {
    let fields = schema.partition_fields()?;
    let types: Vec<_> = fields.iter().map(|field| &field.data_type).collect();
    let bounds = manifest.partition_stats.decode(types.iter().copied())?;
    for entry in entries {
        let values = BinaryRow::from_serialized(&entry.partition)?.decode(types.iter().copied())?;
        for ((value, bounds), field) in values.iter().zip(&bounds).zip(&fields) {
            if !bounds.may_hold(value) {
                return Ok(Some(format!(
                    "partition column `{}` is outside of the bounds in its list",
                    field.name
                )));
            }
        }
    }
    Ok(None)
}
