//! What a commit builds on, and what a committer remembers of it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use futures::TryStreamExt;

use super::BaseView;
use super::plan::{Change, Head};
use super::scan::newest_of;
use crate::binary_row::BinaryRow;
use crate::datum::Datum;
use crate::error::{Error, Result};
use crate::manifest::{FileKey, FileKind, ManifestEntry, live_files};
use crate::manifest_list::ManifestFileMeta;
use crate::schema::TableSchema;
use crate::snapshot::Snapshot;
use crate::stats::ColumnStats;
use crate::table::Table;

/// Snapshots of others that are followed; beyond it the memory starts anew.
const MAX_CATCH_UP: i64 = 64;

/// Partitions whose bucket count is remembered.
const MAX_PARTITIONS: usize = 65_536;

/// Files that are remembered as added.
const MAX_RECENT_FILES: usize = 16_384;

/// The latest snapshot and what is known of the table in it. All of it can be read again.
#[derive(Debug, Default)]
pub(super) struct Base {
    schema: Option<Arc<TableSchema>>,
    latest: Option<Head>,
    own: Option<Own>,
    /// The bucket count of partitions with live files.
    total_buckets: HashMap<Vec<u8>, i32>,
    recent: RecentFiles,
}

/// The newest snapshot of one commit user, as of the latest one.
#[derive(Debug)]
struct Own {
    user: String,
    newest: Option<Snapshot>,
}

/// How the latest snapshot relates to the one that is known.
enum Found {
    Same,
    /// The known one is still there, below this one.
    Later(Snapshot),
    /// Nothing is known, or it was taken back.
    Other(Option<Snapshot>),
}

impl Base {
    /// Brings everything up to the latest snapshot.
    pub(super) async fn refresh(&mut self, table: &Table, user: &str) -> Result<()> {
        let refreshed = self.try_refresh(table, user).await;
        if refreshed.is_err() {
            *self = Self::default();
        }
        refreshed
    }

    pub(super) fn view(&self) -> BaseView<'_> {
        BaseView {
            latest: self.latest.as_ref().map(|latest| &latest.snapshot),
            own_latest: self.own.as_ref().and_then(|own| own.newest.as_ref()),
        }
    }

    pub(super) fn schema(&self) -> Result<&Arc<TableSchema>> {
        self.schema.as_ref().ok_or_else(|| Error::NotFound {
            path: "schema".to_owned(),
        })
    }

    /// All manifests of the latest snapshot, oldest first.
    pub(super) fn manifests(&self) -> &[ManifestFileMeta] {
        self.latest.as_ref().map_or(&[], |latest| &latest.manifests)
    }

    /// Whether a file is known to have been added, lately or by the newest own commit.
    pub(super) fn was_added(&self, key: &FileKey) -> bool {
        self.recent.contains(key)
    }

    /// Takes in our own commit, so that the next one need not read it.
    pub(super) fn advance(&mut self, change: &Change, built: Head) {
        self.absorb(&change.entries);
        if let Some(own) = self.own.as_mut() {
            own.newest = Some(built.snapshot.clone());
        }
        self.latest = Some(built);
    }

    /// The bucket count of a partition's live files; `None` if it has none. The first time a
    /// partition is asked for, manifests are read newest first, and only those that may speak of
    /// it.
    pub(super) async fn total_buckets(
        &mut self,
        table: &Table,
        partition: &[u8],
    ) -> Result<Option<i32>> {
        if let Some(count) = self.total_buckets.get(partition) {
            return Ok(Some(*count));
        }
        let found = self.find_total_buckets(table, partition).await?;
        if let Some(count) = found {
            self.remember_total_buckets(partition.to_vec(), count);
        }
        Ok(found)
    }

    /// The live files of some partitions, which must be sorted. Reads all manifests that may speak
    /// of them.
    pub(super) async fn live_entries(
        &self,
        table: &Table,
        partitions: &[&[u8]],
    ) -> Result<Vec<ManifestEntry>> {
        let mut reads = table.manifest_entries(self.manifests_of(partitions)?);
        let mut entries = Vec::new();
        while let Some(read) = reads.try_next().await? {
            let ours = |entry: &ManifestEntry| {
                let partition = entry.partition.as_slice();
                partitions.binary_search(&partition).is_ok()
            };
            entries.extend(read.into_iter().filter(ours));
        }
        live_files(entries).map_err(|error| match &self.latest {
            Some(latest) => error.at(table.paths().snapshot(latest.snapshot.id).as_ref()),
            None => error,
        })
    }

    async fn find_total_buckets(&self, table: &Table, partition: &[u8]) -> Result<Option<i32>> {
        let mut newest_first = self.manifests_of(&[partition])?;
        newest_first.reverse();
        let mut reads = table.manifest_entries(newest_first);
        let mut removed = HashSet::new();
        while let Some(entries) = reads.try_next().await? {
            let of_kind = |kind: FileKind| {
                let entries = entries.iter().filter(move |entry| entry.kind == kind);
                entries.filter(|entry| entry.partition == partition)
            };
            removed.extend(of_kind(FileKind::Delete).map(ManifestEntry::key));
            let live = of_kind(FileKind::Add).find(|entry| !removed.contains(&entry.key()));
            if let Some(live) = live {
                return Ok(Some(live.total_buckets));
            }
        }
        Ok(None)
    }

    async fn try_refresh(&mut self, table: &Table, user: &str) -> Result<()> {
        self.refresh_schema(table).await?;
        match self.find_latest(table).await? {
            Found::Same => {}
            Found::Later(latest) => self.catch_up(table, latest).await?,
            Found::Other(latest) => self.start_anew(table, latest).await?,
        }
        self.refresh_own(table, user).await
    }

    async fn refresh_schema(&mut self, table: &Table) -> Result<()> {
        if let Some(schema) = &self.schema
            && !table.exists(&table.paths().schema(schema.id + 1)).await?
        {
            return Ok(());
        }
        self.schema = Some(Arc::new(table.latest_schema().await?));
        Ok(())
    }

    async fn find_latest(&self, table: &Table) -> Result<Found> {
        let Some(known) = &self.latest else {
            return table.latest_snapshot().await.map(Found::Other);
        };
        let id = known.snapshot.id;
        match table.snapshot(id).await {
            Ok(found) if found == known.snapshot => {}
            Ok(_) | Err(Error::NotFound { .. }) => {
                return table.latest_snapshot().await.map(Found::Other);
            }
            Err(error) => return Err(error),
        }
        if !table.exists(&table.paths().snapshot(id + 1)).await? {
            return Ok(Found::Same);
        }
        match table.latest_snapshot().await? {
            Some(latest) if latest.id > id => Ok(Found::Later(latest)),
            latest => Ok(Found::Other(latest)),
        }
    }

    /// Reads what snapshots after the known one changed.
    async fn catch_up(&mut self, table: &Table, latest: Snapshot) -> Result<()> {
        let known = self.latest.as_ref().map_or(0, |known| known.snapshot.id);
        if latest.id - known > MAX_CATCH_UP {
            return self.start_anew(table, Some(latest)).await;
        }
        // If this is cut short, the next call starts anew.
        self.latest = None;
        for id in known + 1..=latest.id {
            let read = if id == latest.id {
                Ok(latest.clone())
            } else {
                table.snapshot(id).await
            };
            let snapshot = match read {
                Ok(snapshot) => snapshot,
                // Expired meanwhile: what it changed cannot be known.
                Err(Error::NotFound { .. }) => return self.start_anew(table, Some(latest)).await,
                Err(error) => return Err(error),
            };
            let entries = table.delta_entries(&snapshot).await?;
            self.absorb(&entries);
            if let Some(own) = self
                .own
                .as_mut()
                .filter(|own| own.user == snapshot.commit_user)
            {
                own.newest = Some(snapshot);
            }
        }
        let manifests = table.manifests(&latest).await?;
        self.latest = Some(Head {
            snapshot: latest,
            manifests,
        });
        Ok(())
    }

    async fn start_anew(&mut self, table: &Table, latest: Option<Snapshot>) -> Result<()> {
        *self = Self {
            schema: self.schema.take(),
            ..Self::default()
        };
        if let Some(snapshot) = latest {
            let manifests = table.manifests(&snapshot).await?;
            self.latest = Some(Head {
                snapshot,
                manifests,
            });
        }
        Ok(())
    }

    async fn refresh_own(&mut self, table: &Table, user: &str) -> Result<()> {
        if self.own.as_ref().is_some_and(|own| own.user == user) {
            return Ok(());
        }
        let newest = match &self.latest {
            Some(latest) => newest_of(table, user, latest.snapshot.clone()).await?,
            None => None,
        };
        if let Some(newest) = &newest {
            // A commit that is sent again after a lost reply adds the files of the newest own
            // snapshot.
            for entry in table.delta_entries(newest).await? {
                if entry.kind == FileKind::Add {
                    self.recent.insert(entry.key());
                }
            }
        }
        self.own = Some(Own {
            user: user.to_owned(),
            newest,
        });
        Ok(())
    }

    fn absorb(&mut self, entries: &[ManifestEntry]) {
        for entry in entries
            .iter()
            .filter(|entry| entry.kind == FileKind::Delete)
        {
            // The partition may be empty now, and then free to take another count.
            self.total_buckets.remove(&entry.partition);
            self.recent.remove(&entry.key());
        }
        for entry in entries.iter().filter(|entry| entry.kind == FileKind::Add) {
            if self.total_buckets.get(&entry.partition) != Some(&entry.total_buckets) {
                self.remember_total_buckets(entry.partition.clone(), entry.total_buckets);
            }
            self.recent.insert(entry.key());
        }
    }

    fn remember_total_buckets(&mut self, partition: Vec<u8>, count: i32) {
        if self.total_buckets.len() >= MAX_PARTITIONS {
            self.total_buckets.clear();
        }
        self.total_buckets.insert(partition, count);
    }

    /// The manifests that may speak of any of the partitions, by their bounds.
    fn manifests_of(&self, partitions: &[&[u8]]) -> Result<Vec<&ManifestFileMeta>> {
        let fields = self.schema()?.partition_fields()?;
        let types: Vec<_> = fields.iter().map(|field| &field.data_type).collect();
        let decode = |row: &&[u8]| BinaryRow::from_serialized(row)?.decode(types.iter().copied());
        let wanted = partitions.iter().map(decode).collect::<Result<Vec<_>>>()?;
        let mut found = Vec::new();
        for manifest in self.manifests() {
            let bounds = manifest.partition_stats.decode(types.iter().copied())?;
            if wanted.iter().any(|values| may_hold(&bounds, values)) {
                found.push(manifest);
            }
        }
        Ok(found)
    }
}

/// Whether a manifest with these bounds may have entries of the partition with these values.
fn may_hold(bounds: &[ColumnStats], values: &[Datum]) -> bool {
    let mut columns = bounds.iter().zip(values);
    columns.all(|(bound, value)| bound.may_hold(value))
}

/// The files added last, forgotten oldest first.
#[derive(Debug, Default)]
struct RecentFiles {
    /// Each file with the number of its adding.
    numbers: HashMap<FileKey, u64>,
    by_number: BTreeMap<u64, FileKey>,
    added: u64,
}

impl RecentFiles {
    fn contains(&self, key: &FileKey) -> bool {
        self.numbers.contains_key(key)
    }

    fn insert(&mut self, key: FileKey) {
        if self.contains(&key) {
            return;
        }
        self.added += 1;
        self.numbers.insert(key.clone(), self.added);
        self.by_number.insert(self.added, key);
        while self.by_number.len() > MAX_RECENT_FILES {
            if let Some((_, oldest)) = self.by_number.pop_first() {
                self.numbers.remove(&oldest);
            }
        }
    }

    fn remove(&mut self, key: &FileKey) {
        if let Some(number) = self.numbers.remove(key) {
            self.by_number.remove(&number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data_file::DataFileMeta;

    fn key(name: &str) -> FileKey {
        let entry = ManifestEntry {
            kind: FileKind::Add,
            partition: BinaryRow::empty().to_serialized(),
            bucket: 0,
            total_buckets: 1,
            file: DataFileMeta::append(name, 1, 1, 0),
        };
        entry.key()
    }

    #[test]
    fn a_file_that_was_removed_and_added_again_is_remembered_from_the_second_time() {
        let mut recent = RecentFiles::default();
        recent.insert(key("again"));
        recent.remove(&key("again"));
        for number in 1..MAX_RECENT_FILES {
            recent.insert(key(&format!("before {number}")));
        }
        recent.insert(key("again"));
        for number in 1..MAX_RECENT_FILES {
            recent.insert(key(&format!("after {number}")));
        }
        assert!(recent.contains(&key("again")));
        recent.insert(key("one more"));
        assert!(!recent.contains(&key("again")));
        assert_eq!(recent.numbers.len(), MAX_RECENT_FILES);
    }
}
