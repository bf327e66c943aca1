//! The files that nothing names once some snapshots are gone (paimon: `SnapshotDeletion`,
//! `FileDeletionBase`).

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use futures::TryStreamExt;
use object_store::path::Path;

use super::OwnFiles;
use super::intent::Intent;
use crate::error::{Error, Result};
use crate::manifest::{FileKey, FileKind, ManifestEntry};
use crate::manifest_list::ManifestFileMeta;
use crate::options::TableOptions;
use crate::partition::Partition;
use crate::paths::named;
use crate::references::{Absent, Metadata, Reference};
use crate::schema::TableSchema;
use crate::snapshot::Snapshot;
use crate::table::Table;

/// Objects to delete, in phases: each phase's objects are found by those of a later one, so a run
/// that is cut short can be repeated.
#[derive(Debug, Default)]
pub(super) struct Deletion {
    data: BTreeSet<Path>,
    /// Manifests, index files, statistics, files of ours.
    metadata: BTreeSet<Path>,
    /// Manifest lists and index manifests, which name those.
    lists: BTreeSet<Path>,
}

impl Deletion {
    /// What only the snapshots of `intent` name, and neither `end`, a tag, a branch nor a
    /// changelog.
    ///
    /// A file that a commit removed is needed up to the snapshot before that commit: so the
    /// deletes of all expiring snapshots but the first, and of the one that stays, tell which data
    /// files can go.
    pub(super) async fn plan(
        table: &Table,
        intent: &Intent,
        end: &Snapshot,
        own_files: OwnFiles<'_>,
    ) -> Result<Self> {
        let schema = table.latest_schema().await?;
        let keepers = Keepers::read(table, intent, end).await?;
        let mut deletion = Self {
            data: dead_files(table, &schema, intent, &keepers).await?,
            ..Self::default()
        };
        let kept = keepers.metadata_names(table).await?;
        let paths = table.paths();
        for snapshot in &intent.snapshots {
            let named_by = table.metadata_of(snapshot, Absent::Skip).await?;
            deletion
                .data
                .extend(changelog_files(table, &schema, &named_by, &kept).await?);
            let manifests = named_by
                .manifests
                .iter()
                .chain(&named_by.changelog_manifests);
            for manifest in manifests.filter(|m| !kept.contains(&m.file_name)) {
                deletion
                    .metadata
                    .insert(paths.manifest(&manifest.file_name)?);
            }
            for index in named_by.index_files.iter().filter(|i| !kept.contains(*i)) {
                deletion.metadata.insert(named(&paths.index_dir(), index)?);
            }
            for file in named_by.statistics.iter().filter(|s| !kept.contains(*s)) {
                deletion
                    .metadata
                    .insert(named(&paths.statistics_dir(), file)?);
            }
            let lists = named_by.lists.iter().chain(&named_by.index_manifest);
            for list in lists.filter(|list| !kept.contains(*list)) {
                deletion.lists.insert(paths.manifest(list)?);
            }
            deletion.metadata.extend(own_files(snapshot));
        }
        for path in keepers.own_files(own_files) {
            deletion.metadata.remove(&path);
        }
        Ok(deletion)
    }

    pub(super) fn data_files(&self) -> usize {
        self.data.len()
    }

    pub(super) fn metadata_files(&self) -> usize {
        self.metadata.len() + self.lists.len()
    }

    /// The objects, phase by phase.
    pub(super) fn phases(&self) -> [Vec<Path>; 3] {
        [&self.data, &self.metadata, &self.lists].map(|phase| phase.iter().cloned().collect())
    }
}

/// The snapshots that say what is still needed.
#[derive(Debug)]
struct Keepers {
    end: Snapshot,
    /// Tags, branches and changelogs that may share files with what expires.
    references: Vec<Reference>,
    changelogs: Vec<Reference>,
}

impl Keepers {
    async fn read(table: &Table, intent: &Intent, end: &Snapshot) -> Result<Self> {
        let begin = intent.snapshots.first().map_or(end.id, |first| first.id);
        let tags = table.tags().await?;
        // A file lives through consecutive snapshots. So what a tag before the last one before
        // `begin` shares with what expires, that last one shares, too.
        let from = tags.iter().rposition(|tag| tag.snapshot.id <= begin);
        let tags = tags.into_iter().skip(from.unwrap_or(0));
        let mut references: Vec<Reference> = tags.filter(|tag| tag.snapshot.id < end.id).collect();
        references.extend(table.branches().await?);
        Ok(Self {
            end: end.clone(),
            references,
            changelogs: table.changelogs().await?,
        })
    }

    /// The names of all metadata files that are needed.
    async fn metadata_names(&self, table: &Table) -> Result<HashSet<String>> {
        let mut names = HashSet::new();
        let mut add = |metadata: Metadata| {
            names.extend(metadata.manifest_names().map(str::to_owned));
            names.extend(metadata.index_files);
            names.extend(metadata.statistics);
        };
        add(table.metadata_of(&self.end, Absent::Error).await?);
        for reference in &self.references {
            if let Some(metadata) = self.of_reference(table, reference).await? {
                add(metadata);
            }
        }
        for changelog in &self.changelogs {
            add(table.metadata_of(&changelog.snapshot, Absent::Skip).await?);
        }
        Ok(names)
    }

    /// The metadata of a tag or branch; `None` if it was dropped meanwhile.
    async fn of_reference(&self, table: &Table, reference: &Reference) -> Result<Option<Metadata>> {
        match table.metadata_of(&reference.snapshot, Absent::Error).await {
            Ok(metadata) => Ok(Some(metadata)),
            Err(Error::NotFound { .. }) if !table.exists(&reference.path).await? => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Leaves out the files that one of them has live.
    async fn spare(&self, table: &Table, dead: &mut HashMap<Path, ManifestEntry>) -> Result<()> {
        if dead.is_empty() {
            return Ok(());
        }
        let end = table.metadata_of(&self.end, Absent::Error).await?;
        let mut all = vec![end.manifests];
        for reference in &self.references {
            if let Some(metadata) = self.of_reference(table, reference).await? {
                all.push(metadata.manifests);
            }
        }
        for changelog in &self.changelogs {
            let metadata = table.metadata_of(&changelog.snapshot, Absent::Skip).await?;
            all.push(metadata.manifests);
        }
        for manifests in all {
            let live = live_among(table, &manifests, dead).await?;
            dead.retain(|_, entry| !live.contains(entry.file.file_name.as_str()));
        }
        Ok(())
    }

    fn own_files(&self, own_files: OwnFiles<'_>) -> Vec<Path> {
        let snapshots = self.references.iter().map(|reference| &reference.snapshot);
        snapshots.chain([&self.end]).flat_map(own_files).collect()
    }
}

/// The names of those files that are live after all these manifests.
async fn live_among(
    table: &Table,
    manifests: &[ManifestFileMeta],
    dead: &HashMap<Path, ManifestEntry>,
) -> Result<HashSet<String>> {
    let names: HashSet<&str> = dead.values().map(|e| e.file.file_name.as_str()).collect();
    let mut live: HashSet<FileKey> = HashSet::new();
    let mut reads = table.manifest_entries(manifests.iter().collect());
    while let Some(entries) = reads.try_next().await? {
        let ours = |entry: &ManifestEntry| names.contains(entry.file.file_name.as_str());
        for entry in entries.into_iter().filter(ours) {
            match entry.kind {
                FileKind::Add => live.insert(entry.key()),
                FileKind::Delete => live.remove(&entry.key()),
            };
        }
    }
    Ok(live.into_iter().map(|key| key.file_name).collect())
}

/// The data files that no snapshot needs any more, with the files beside them.
async fn dead_files(
    table: &Table,
    schema: &TableSchema,
    intent: &Intent,
    keepers: &Keepers,
) -> Result<BTreeSet<Path>> {
    let mut folders = Folders::new(table, schema);
    let mut dead = HashMap::new();
    let others = intent.snapshots.iter().skip(1).chain([&intent.end]);
    for snapshot in others {
        let read = table.delta_entries(snapshot).await;
        let entries = Absent::Skip.or_empty(read)?;
        // A file that moves to another level is removed and added by one commit.
        let mut removed = HashMap::new();
        for entry in entries.into_iter().filter(is_inside) {
            let path = folders.path(&entry, &entry.file.file_name)?;
            match entry.kind {
                FileKind::Delete => removed.insert(path, entry),
                FileKind::Add => removed.remove(&path),
            };
        }
        dead.extend(removed);
    }
    keepers.spare(table, &mut dead).await?;
    let mut paths = BTreeSet::new();
    for (path, entry) in dead {
        for extra in &entry.file.extra_files {
            paths.insert(folders.path(&entry, extra)?);
        }
        paths.insert(path);
    }
    Ok(paths)
}

/// The changelog files of a snapshot, but for those in manifests that are kept: a tag or branch that
/// has the same snapshot names them.
async fn changelog_files(
    table: &Table,
    schema: &TableSchema,
    metadata: &Metadata,
    kept: &HashSet<String>,
) -> Result<Vec<Path>> {
    let mut folders = Folders::new(table, schema);
    let mut paths = Vec::new();
    let manifests = metadata.changelog_manifests.iter();
    for manifest in manifests.filter(|manifest| !kept.contains(&manifest.file_name)) {
        let read = table.read_manifest(&manifest.file_name).await;
        let entries = Absent::Skip.or_empty(read)?;
        let added = entries.iter().filter(|entry| entry.kind == FileKind::Add);
        for entry in added.filter(|entry| is_inside(entry)) {
            paths.push(folders.path(entry, &entry.file.file_name)?);
        }
    }
    Ok(paths)
}

/// Files outside of the table are their owner's.
fn is_inside(entry: &ManifestEntry) -> bool {
    entry.file.external_path.is_none()
}

/// The folders of buckets.
struct Folders<'a> {
    table: &'a Table,
    schema: &'a TableSchema,
    partitions: BTreeMap<Vec<u8>, String>,
}

impl<'a> Folders<'a> {
    fn new(table: &'a Table, schema: &'a TableSchema) -> Self {
        let partitions = BTreeMap::new();
        Self {
            table,
            schema,
            partitions,
        }
    }

    fn path(&mut self, entry: &ManifestEntry, file_name: &str) -> Result<Path> {
        let partition = match self.partitions.get(&entry.partition) {
            Some(partition) => partition.clone(),
            None => {
                let partition = Partition::from_bytes(&entry.partition, self.schema)?;
                let partition = partition.path(self.schema)?;
                self.partitions
                    .insert(entry.partition.clone(), partition.clone());
                partition
            }
        };
        let directory = TableOptions::new(&self.schema.options).data_directory();
        let folder = self
            .table
            .paths()
            .bucket_dir(directory, &partition, entry.bucket)?;
        named(&folder, file_name)
    }
}
