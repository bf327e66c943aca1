//! What keeps files of a table alive beside its snapshots: tags, branches, long-lived changelogs;
//! and consumers, who keep snapshots.

use std::collections::BTreeMap;

use futures::{StreamExt, TryStreamExt, stream};
use object_store::ObjectMeta;
use object_store::path::Path;
use serde::Deserialize;

use crate::error::{Error, Result};
use crate::manifest::index::index_file_names;
use crate::manifest_list::ManifestFileMeta;
use crate::snapshot::Snapshot;
use crate::table::Table;

/// Files read at a time.
const READS: usize = 8;

/// A snapshot, and the file that holds it: a tag or a branch has copies of its own.
#[derive(Clone, Debug)]
pub(crate) struct Reference {
    pub(crate) path: Path,
    pub(crate) snapshot: Snapshot,
}

/// Whether a metadata file that a snapshot names may be gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Absent {
    /// No: it is an error.
    Error,
    /// Yes: an expiry that was cut short took it, with all that it names.
    Skip,
}

/// The metadata files that a snapshot names.
#[derive(Debug, Default)]
pub(crate) struct Metadata {
    /// Base list, delta list, changelog list.
    pub(crate) lists: Vec<String>,
    /// Manifests of base and delta, in order.
    pub(crate) manifests: Vec<ManifestFileMeta>,
    /// Manifests of changelog files.
    pub(crate) changelog_manifests: Vec<ManifestFileMeta>,
    pub(crate) index_manifest: Option<String>,
    /// Names within `index/`.
    pub(crate) index_files: Vec<String>,
    /// A name within `statistics/`.
    pub(crate) statistics: Option<String>,
}

impl Metadata {
    /// All names within `manifest/`.
    pub(crate) fn manifest_names(&self) -> impl Iterator<Item = &str> {
        let manifests = self.manifests.iter().chain(&self.changelog_manifests);
        let lists = self.lists.iter().map(String::as_str);
        manifests
            .map(|manifest| manifest.file_name.as_str())
            .chain(lists)
            .chain(self.index_manifest.as_deref())
    }
}

impl Table {
    /// The tags, by the number of their snapshot.
    pub(crate) async fn tags(&self) -> Result<Vec<Reference>> {
        let paths = self.list_paths(&self.paths().tag_dir()).await?;
        let tags = paths.into_iter().filter(|path| is_named(path, "tag-"));
        self.read_references(tags).await
    }

    /// The snapshots of changelogs that outlive theirs.
    pub(crate) async fn changelogs(&self) -> Result<Vec<Reference>> {
        let paths = self.list_paths(&self.paths().changelog_dir()).await?;
        let changelogs = paths
            .into_iter()
            .filter(|path| is_numbered(path, "changelog-"));
        self.read_references(changelogs).await
    }

    /// Every snapshot, tag and changelog of every branch.
    pub(crate) async fn branches(&self) -> Result<Vec<Reference>> {
        let paths = self.list_paths(&self.paths().branch_dir()).await?;
        let kept = paths.into_iter().filter(|path| {
            let folder = path.parts().rev().nth(1);
            match folder.as_ref().map(AsRef::as_ref) {
                Some("snapshot") => is_numbered(path, "snapshot-"),
                Some("changelog") => is_numbered(path, "changelog-"),
                Some("tag") => is_named(path, "tag-"),
                _ => false,
            }
        });
        self.read_references(kept).await
    }

    /// The next snapshot of each consumer, but for those whose file was last written before
    /// `gone_ms` (milliseconds since 1970; paimon: `ConsumerManager#expire`).
    pub(crate) async fn consumers(&self, gone_ms: Option<i64>) -> Result<BTreeMap<String, i64>> {
        let mut consumers = BTreeMap::new();
        for object in self.list_objects(&self.paths().consumer_dir()).await? {
            let is_gone = |gone_ms| object.last_modified.timestamp_millis() < gone_ms;
            if gone_ms.is_some_and(is_gone) {
                continue;
            }
            let path = object.location;
            let Some(name) = path
                .filename()
                .and_then(|name| name.strip_prefix("consumer-"))
            else {
                continue;
            };
            let json = match self.read_json(&path).await {
                Ok(json) => json,
                Err(Error::NotFound { .. }) => continue,
                Err(error) => return Err(error),
            };
            let consumer: Consumer = serde_json::from_slice(&json)
                .map_err(|e| Error::corrupt(path.as_ref(), e.to_string()))?;
            consumers.insert(name.to_owned(), consumer.next_snapshot);
        }
        Ok(consumers)
    }

    /// The metadata files that a snapshot names.
    pub(crate) async fn metadata_of(
        &self,
        snapshot: &Snapshot,
        absent: Absent,
    ) -> Result<Metadata> {
        let changelog = snapshot.changelog_manifest_list.as_ref();
        let base = self.list_of(&snapshot.base_manifest_list, absent).await?;
        let delta = self.list_of(&snapshot.delta_manifest_list, absent).await?;
        let changelog_manifests = match changelog {
            Some(list) => self.list_of(list, absent).await?,
            None => Vec::new(),
        };
        let index_files = match &snapshot.index_manifest {
            Some(name) => {
                let read = self.read_decoded(name, index_file_names).await;
                absent.or_empty(read)?
            }
            None => Vec::new(),
        };
        let lists = [&snapshot.base_manifest_list, &snapshot.delta_manifest_list];
        Ok(Metadata {
            lists: lists.into_iter().chain(changelog).cloned().collect(),
            manifests: base.into_iter().chain(delta).collect(),
            changelog_manifests,
            index_manifest: snapshot.index_manifest.clone(),
            index_files,
            statistics: snapshot.statistics.clone(),
        })
    }

    async fn list_of(&self, name: &str, absent: Absent) -> Result<Vec<ManifestFileMeta>> {
        absent.or_empty(self.read_manifest_list(name).await)
    }

    pub(crate) async fn list_paths(&self, folder: &Path) -> Result<Vec<Path>> {
        let objects = self.list_objects(folder).await?;
        Ok(objects.into_iter().map(|object| object.location).collect())
    }

    async fn list_objects(&self, folder: &Path) -> Result<Vec<ObjectMeta>> {
        let objects = self.store().list(Some(folder)).try_collect().await;
        objects.map_err(|source| Error::store(folder, source))
    }

    /// Reads them, leaving out those that are gone by now.
    async fn read_references(
        &self,
        paths: impl IntoIterator<Item = Path>,
    ) -> Result<Vec<Reference>> {
        let paths: Vec<Path> = paths.into_iter().collect();
        let reads = stream::iter(paths).map(|path| async move {
            let json = match self.read_json(&path).await {
                Ok(json) => json,
                Err(Error::NotFound { .. }) => return Ok(None),
                Err(error) => return Err(error),
            };
            let snapshot = Snapshot::from_json(&json).map_err(|e| e.at(path.as_ref()))?;
            Ok(Some(Reference { path, snapshot }))
        });
        let read: Vec<Option<Reference>> = reads.buffered(READS).try_collect().await?;
        let mut references: Vec<Reference> = read.into_iter().flatten().collect();
        references.sort_by_key(|reference| reference.snapshot.id);
        Ok(references)
    }
}

impl Absent {
    pub(crate) fn or_empty<T: Default>(self, read: Result<T>) -> Result<T> {
        match read {
            Err(Error::NotFound { .. }) if self == Self::Skip => Ok(T::default()),
            read => read,
        }
    }
}

/// What a consumer's file holds (paimon: `Consumer`).
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Consumer {
    next_snapshot: i64,
}

fn is_named(path: &Path, prefix: &str) -> bool {
    path.filename().is_some_and(|name| name.starts_with(prefix))
}

fn is_numbered(path: &Path, prefix: &str) -> bool {
    let digits = path.filename().and_then(|name| name.strip_prefix(prefix));
    digits.is_some_and(|digits| digits.parse::<u64>().is_ok())
}
