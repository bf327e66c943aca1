//! The orphan sweep: files that no snapshot, tag, branch or changelog names (paimon:
//! `OrphanFilesClean`).
//!
//! It can't touch a file that is named, or may be named soon: candidates are listed *before* what
//! is named is read, so a commit in between only adds names; a file younger than the limit is no
//! candidate, for its commit may be under way; anything that can't be read ends the sweep before
//! the first delete.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStoreExt};

use crate::error::{Error, Result};
use crate::expire::OwnFiles;
use crate::options::TableOptions;
use crate::references::{Absent, Metadata};
use crate::snapshot::Snapshot;
use crate::table::Table;

#[cfg(test)]
mod tests;

/// The age limit that Paimon has by default.
pub const DEFAULT_AGE: Duration = Duration::from_secs(86_400);

/// Files looked at and deleted together.
const CHUNK: usize = 256;

/// How often the snapshots are listed again for those that were committed meanwhile. That more may
/// come is no harm: their files are no candidates.
const SECOND_LOOKS: usize = 3;

/// What is swept.
#[derive(Clone, Copy)]
pub struct OrphanRequest<'a> {
    /// Files younger than this stay. It must be longer than any commit takes, from its first data
    /// file to its snapshot; [`DEFAULT_AGE`].
    pub older_than: Duration,
    /// The time, milliseconds since 1970.
    pub now_ms: i64,
    /// Makes the name of the object unique by which the store's own clock is read.
    pub uuid: &'a str,
    /// The files of ours beside a snapshot.
    pub own_files: OwnFiles<'a>,
}

impl std::fmt::Debug for OrphanRequest<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OrphanRequest")
            .field("older_than", &self.older_than)
            .field("now_ms", &self.now_ms)
            .finish_non_exhaustive()
    }
}

/// A file that nothing names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Orphan {
    /// Where it is in the store.
    pub path: Path,
    /// Its size.
    pub bytes: u64,
    /// When it was last written, milliseconds since 1970 by the store's clock.
    pub modified_ms: i64,
}

impl Table {
    /// The files that nothing names and that are older than the limit. Deletes nothing.
    ///
    /// Lists the whole table and reads all its manifests; holds the names of all files that are
    /// old enough.
    ///
    /// # Errors
    /// [`Error::Store`], [`Error::Corrupt`], [`Error::NotFound`] about whatever can't be read: then
    /// it can't be told what is named. [`Error::Unsupported`] if there is no snapshot at all.
    pub async fn find_orphans(&self, request: &OrphanRequest<'_>) -> Result<Vec<Orphan>> {
        let older_than_ms = limit_ms(request.now_ms, request.older_than);
        let mut sweep = Sweep {
            table: self,
            own_files: request.own_files,
            candidates: self.candidates(older_than_ms).await?,
            seen_manifests: HashSet::new(),
            seen_snapshots: BTreeSet::new(),
        };
        sweep.spare_named().await?;
        if sweep.seen_snapshots.is_empty() && !sweep.candidates.is_empty() {
            // A first commit that died looks like this, and so does a table that lost its snapshots.
            return Err(Error::Unsupported {
                what: format!("a sweep of {}", self.root()),
                reason: "it has files and no snapshot that could tell which are needed; put the snapshots \
                         back if they were lost, or commit one first"
                    .to_owned(),
            });
        }
        let mut orphans: Vec<Orphan> = sweep.candidates.into_values().flatten().collect();
        orphans.sort();
        Ok(orphans)
    }

    /// Deletes the files that [`Table::find_orphans`] finds, and returns them. A clock of ours that
    /// is ahead of the store's makes no file older.
    ///
    /// # Errors
    /// As [`Table::find_orphans`]; what is deleted then was an orphan.
    pub async fn delete_orphans(&self, request: &OrphanRequest<'_>) -> Result<Vec<Orphan>> {
        let store_now_ms = self.store_now_ms(request.uuid).await?;
        let request = OrphanRequest {
            now_ms: request.now_ms.min(store_now_ms),
            ..*request
        };
        let mut deleted = Vec::new();
        for chunk in self.find_orphans(&request).await?.chunks(CHUNK) {
            let unchanged = self.unchanged(chunk).await?;
            let paths = unchanged.iter().map(|orphan| orphan.path.clone());
            self.delete_objects(paths.collect()).await?;
            deleted.extend(unchanged);
        }
        Ok(deleted)
    }

    /// Those that are still what they were when they were listed.
    async fn unchanged(&self, orphans: &[Orphan]) -> Result<Vec<Orphan>> {
        let looks = stream::iter(orphans.to_vec()).map(|orphan| async move {
            match self.store().head(&orphan.path).await {
                Ok(found) if modified_ms(&found) == orphan.modified_ms => Ok(Some(orphan)),
                Ok(_) | Err(object_store::Error::NotFound { .. }) => Ok(None),
                Err(source) => Err(Error::store(&orphan.path, source)),
            }
        });
        let found: Vec<Option<Orphan>> = looks.buffered(8).try_collect().await?;
        Ok(found.into_iter().flatten().collect())
    }

    /// The time by the store's clock.
    async fn store_now_ms(&self, uuid: &str) -> Result<i64> {
        let path = self.paths().own_dir().join(format!("clock-{uuid}"));
        let failed = |source| Error::store(&path, source);
        self.store().put(&path, "".into()).await.map_err(failed)?;
        let found = self.store().head(&path).await.map_err(failed)?;
        self.delete_objects(vec![path.clone()]).await?;
        Ok(modified_ms(&found))
    }

    /// All files that a snapshot could name and that are old enough, by name.
    async fn candidates(&self, older_than_ms: i64) -> Result<HashMap<String, Vec<Orphan>>> {
        let schema = self.latest_schema().await?;
        let places = Places {
            root: self.root(),
            data_directory: TableOptions::new(&schema.options).data_directory(),
            partition_keys: schema.partition_keys.len(),
        };
        let mut candidates: HashMap<String, Vec<Orphan>> = HashMap::new();
        let mut listing = self.store().list(Some(self.root()));
        while let Some(object) = listing.next().await {
            let object = object.map_err(|source| Error::store(self.root(), source))?;
            let modified_ms = modified_ms(&object);
            let name = object.location.filename().unwrap_or_default();
            if modified_ms >= older_than_ms || !places.is_swept(&object.location) {
                continue;
            }
            candidates.entry(name.to_owned()).or_default().push(Orphan {
                path: object.location.clone(),
                bytes: object.size,
                modified_ms,
            });
        }
        Ok(candidates)
    }
}

fn limit_ms(now_ms: i64, older_than: Duration) -> i64 {
    let age_ms = i64::try_from(older_than.as_millis()).unwrap_or(i64::MAX);
    now_ms.saturating_sub(age_ms)
}

fn modified_ms(object: &ObjectMeta) -> i64 {
    object.last_modified.timestamp_millis()
}

/// Which folders are swept.
struct Places<'a> {
    root: &'a Path,
    data_directory: Option<&'a str>,
    partition_keys: usize,
}

impl Places<'_> {
    /// Whether a file is where only files are that something names. Others are not ours to judge.
    fn is_swept(&self, path: &Path) -> bool {
        let Some(parts) = path.prefix_match(self.root) else {
            return false;
        };
        let parts: Vec<String> = parts.map(|part| part.as_ref().to_owned()).collect();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        match parts.as_slice() {
            ["manifest" | "index" | "statistics", _] => true,
            // What is neither a snapshot nor a hint is left of a writer that died.
            [folder @ ("snapshot" | "changelog"), name] => {
                let is_hint = matches!(*name, "LATEST" | "EARLIEST");
                !is_hint
                    && !name
                        .strip_prefix(*folder)
                        .is_some_and(|n| n.starts_with('-'))
            }
            ["weir", name] => name.starts_with("ranges-") || name.starts_with("clock-"),
            ["weir" | "schema" | "tag" | "branch" | "consumer", ..] => false,
            parts => self.is_data(parts),
        }
    }

    /// `[DIRECTORY/]K1=V1/…/bucket-B/FILE`.
    fn is_data(&self, parts: &[&str]) -> bool {
        let above: Vec<&str> = self
            .data_directory
            .map(|directory| directory.split('/').collect())
            .unwrap_or_default();
        let Some(below) = parts.strip_prefix(above.as_slice()) else {
            return false;
        };
        let Some((partition, [bucket, _file])) = below.split_at_checked(self.partition_keys) else {
            return false;
        };
        bucket.starts_with("bucket-") && partition.iter().all(|part| part.contains('='))
    }
}

/// The candidates, less what is found to be named.
struct Sweep<'a> {
    table: &'a Table,
    own_files: OwnFiles<'a>,
    candidates: HashMap<String, Vec<Orphan>>,
    seen_manifests: HashSet<String>,
    seen_snapshots: BTreeSet<i64>,
}

impl Sweep<'_> {
    /// Snapshots first, then what can be made of them: a tag made meanwhile is of a snapshot that
    /// was looked at, a branch of a tag.
    async fn spare_named(&mut self) -> Result<()> {
        let table = self.table;
        self.spare_new_snapshots().await?;
        for changelog in table.changelogs().await? {
            self.spare(&changelog.snapshot, &changelog.path, Absent::Skip)
                .await?;
        }
        let mut references = table.tags().await?;
        references.extend(table.branches().await?);
        for reference in references {
            self.spare(&reference.snapshot, &reference.path, Absent::Error)
                .await?;
        }
        for _ in 0..SECOND_LOOKS {
            if !self.spare_new_snapshots().await? {
                break;
            }
        }
        Ok(())
    }

    /// Whether there were any.
    async fn spare_new_snapshots(&mut self) -> Result<bool> {
        let table = self.table;
        let mut found = false;
        for id in table.snapshot_ids().await? {
            if !self.seen_snapshots.insert(id) {
                continue;
            }
            found = true;
            match table.snapshot(id).await {
                Ok(snapshot) => {
                    let path = table.paths().snapshot(id);
                    self.spare(&snapshot, &path, Absent::Error).await?;
                }
                // Expired since the listing.
                Err(Error::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// Spares what a snapshot names. If something of it is gone and its file too, it was expired
    /// meanwhile.
    async fn spare(&mut self, snapshot: &Snapshot, path: &Path, absent: Absent) -> Result<()> {
        match self.try_spare(snapshot, absent).await {
            Err(Error::NotFound { .. } | Error::SnapshotExpired { .. })
                if !self.table.exists(path).await? =>
            {
                Ok(())
            }
            spared => spared,
        }
    }

    async fn try_spare(&mut self, snapshot: &Snapshot, absent: Absent) -> Result<()> {
        for path in (self.own_files)(snapshot) {
            self.is_named(path.filename().unwrap_or_default());
        }
        let metadata = self.table.metadata_of(snapshot, absent).await?;
        for name in metadata.manifest_names() {
            self.is_named(name);
        }
        for name in metadata.index_files.iter().chain(&metadata.statistics) {
            self.is_named(name);
        }
        let Metadata {
            manifests,
            changelog_manifests,
            ..
        } = metadata;
        let unseen: Vec<_> = manifests
            .iter()
            .chain(&changelog_manifests)
            .filter(|manifest| !self.seen_manifests.contains(&manifest.file_name))
            .collect();
        let names: Vec<String> = unseen.iter().map(|m| m.file_name.clone()).collect();
        if absent == Absent::Skip {
            for name in &names {
                let read = self.table.read_manifest(name).await;
                for entry in absent.or_empty(read)? {
                    self.spare_file(&entry.file);
                }
            }
        } else {
            let mut reads = self.table.manifest_entries(unseen);
            while let Some(entries) = reads.try_next().await? {
                for entry in entries {
                    self.spare_file(&entry.file);
                }
            }
        }
        // Only now: one that could not be read must be tried again with the next snapshot.
        self.seen_manifests.extend(names);
        Ok(())
    }

    fn spare_file(&mut self, file: &crate::data_file::DataFileMeta) {
        self.is_named(&file.file_name);
        for extra in &file.extra_files {
            self.is_named(extra);
        }
    }

    fn is_named(&mut self, name: &str) {
        self.candidates.remove(name);
    }
}
