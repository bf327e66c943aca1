//! The check of a table: what its metadata says against what is there.
//!
//! Each finding names its object. Reading goes on behind a finding, so one damaged file does not
//! hide another; only a store that fails ends the check.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use futures::TryStreamExt as _;

use crate::data_file::DataFileMeta;
use crate::error::{Error, Result};
use crate::manifest::{FileKey, FileKind, ManifestEntry};
use crate::manifest_list::ManifestFileMeta;
use crate::paths::{checked_path, named};
use crate::schema::TableSchema;
use crate::snapshot::Snapshot;
use crate::table::Table;

mod entries;
mod keyed;
mod rows;

/// Manifests that are kept decoded between snapshots.
const CACHED_MANIFESTS: usize = 1024;

/// How deep a check looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckDepth {
    /// Snapshots, manifests, and that every data file exists with its stated size.
    Metadata,
    /// All that, and every row of the data files: statistics, partition and bucket; with a primary
    /// key its order, sequence numbers and kinds too.
    Rows,
}

/// Something in a table that is not as its metadata says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The first snapshot in which it shows, if it is one's.
    pub snapshot_id: Option<i64>,
    /// The object that is wrong.
    pub object: String,
    /// What is wrong with it.
    pub reason: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(id) = self.snapshot_id {
            write!(f, "snapshot {id}: ")?;
        }
        write!(f, "{}: {}", self.object, self.reason)
    }
}

impl Table {
    /// Checks all snapshots down to the rows; an empty answer means that all is well.
    ///
    /// # Errors
    /// [`Error::Store`] if the store fails; what is absent or damaged is a problem, not an error.
    pub async fn check(&self) -> Result<Vec<Problem>> {
        self.check_to(CheckDepth::Rows).await
    }

    /// Checks all snapshots as deep as `depth` says.
    ///
    /// # Errors
    /// As [`Table::check`].
    pub async fn check_to(&self, depth: CheckDepth) -> Result<Vec<Problem>> {
        let mut check = Check::new(self, depth);
        let ids = self.snapshot_ids().await?;
        check.snapshot_numbers(&ids);
        if ids.is_empty() {
            check.no_snapshot().await?;
        }
        for id in ids {
            check.snapshot(id).await?;
        }
        Ok(check.problems)
    }
}

/// Live files by identity.
type Live = BTreeMap<FileKey, ManifestEntry>;

/// The state of one check.
struct Check<'a> {
    table: &'a Table,
    depth: CheckDepth,
    problems: Vec<Problem>,
    snapshot_id: Option<i64>,
    /// The live files of the snapshot before, if that was whole.
    before: Option<(i64, Live)>,
    identifiers: HashMap<String, i64>,
    manifests: HashMap<String, Arc<Vec<ManifestEntry>>>,
    schemas: HashMap<i64, Arc<TableSchema>>,
    /// Data files that were looked at, by path.
    seen: BTreeSet<String>,
    /// Totals of the snapshot before.
    total_record_count: Option<i64>,
}

impl<'a> Check<'a> {
    fn new(table: &'a Table, depth: CheckDepth) -> Self {
        Self {
            table,
            depth,
            problems: Vec::new(),
            snapshot_id: None,
            before: None,
            identifiers: HashMap::new(),
            manifests: HashMap::new(),
            schemas: HashMap::new(),
            seen: BTreeSet::new(),
            total_record_count: None,
        }
    }

    fn problem(&mut self, object: impl Into<String>, reason: impl Into<String>) {
        let problem = Problem {
            snapshot_id: self.snapshot_id,
            object: object.into(),
            reason: reason.into(),
        };
        self.problems.push(problem);
    }

    /// An error as a problem, unless the store failed.
    fn note<T>(&mut self, object: &str, found: Result<T>) -> Result<Option<T>> {
        match found {
            Ok(value) => Ok(Some(value)),
            Err(e @ (Error::Store { .. } | Error::OutcomeUnknown { .. })) => Err(e),
            Err(e) => {
                self.problem(object, e.to_string());
                Ok(None)
            }
        }
    }

    /// A table without a snapshot has no manifests, but for those of a first commit that died.
    async fn no_snapshot(&mut self) -> Result<()> {
        let folder = self.table.paths().manifest_dir();
        let mut listing = self.table.store().list(Some(&folder));
        let found = listing.try_next().await;
        if let Some(object) = found.map_err(|source| Error::store(&folder, source))? {
            let reason = "there is no snapshot that names it: its snapshots were lost, or its first commit \
                          died";
            self.problem(object.location.as_ref(), reason);
        }
        Ok(())
    }

    fn snapshot_numbers(&mut self, ids: &[i64]) {
        for pair in ids.windows(2) {
            if let [before, after] = pair
                && *after != before + 1
            {
                self.problem("snapshot/", format!("nothing between {before} and {after}"));
            }
        }
    }

    async fn snapshot(&mut self, id: i64) -> Result<()> {
        self.snapshot_id = Some(id);
        let name = format!("snapshot-{id}");
        let found = self.table.snapshot(id).await;
        let Some(snapshot) = self.note(&name, found)? else {
            self.before = None;
            self.total_record_count = None;
            return Ok(());
        };
        self.identifier(&name, &snapshot);
        let base = self
            .list(
                &snapshot.base_manifest_list,
                snapshot.base_manifest_list_size,
            )
            .await?;
        let delta = self
            .list(
                &snapshot.delta_manifest_list,
                snapshot.delta_manifest_list_size,
            )
            .await?;
        let (Some(base), Some(delta)) = (base, delta) else {
            self.before = None;
            self.total_record_count = Some(snapshot.total_record_count);
            return Ok(());
        };
        let base = self.entries(&base).await?;
        let delta = self.entries(&delta).await?;
        let mut live = Live::new();
        self.apply(&snapshot.base_manifest_list, base, &mut live);
        self.base_is_the_snapshot_before(&snapshot, &live);
        let mut delta_records = 0;
        for entry in &delta {
            let sign = if entry.kind == FileKind::Add { 1 } else { -1 };
            delta_records += sign * entry.file.row_count;
        }
        let added: Vec<ManifestEntry> = delta
            .iter()
            .filter(|entry| entry.kind == FileKind::Add)
            .cloned()
            .collect();
        self.apply(&snapshot.delta_manifest_list, delta, &mut live);
        self.counts(&name, &snapshot, &live, delta_records);
        self.buckets(&live);
        self.overlaps(&snapshot, &live).await?;
        // What the snapshot before had was looked at there.
        let looked_at = self
            .before
            .as_ref()
            .is_some_and(|(before, _)| before + 1 == id);
        let unseen = live.values().filter(|_| !looked_at).chain(&added);
        self.files(unseen).await?;
        self.changelog(&name, &snapshot).await?;
        self.before = Some((id, live));
        self.total_record_count = Some(snapshot.total_record_count);
        Ok(())
    }

    fn identifier(&mut self, name: &str, snapshot: &Snapshot) {
        let last = self
            .identifiers
            .insert(snapshot.commit_user.clone(), snapshot.commit_identifier);
        if let Some(last) = last
            && last > snapshot.commit_identifier
        {
            let reason = format!(
                "identifier {} of user `{}` is behind {last}",
                snapshot.commit_identifier, snapshot.commit_user
            );
            self.problem(name, reason);
        }
    }

    async fn list(
        &mut self,
        name: &str,
        stated_size: Option<i64>,
    ) -> Result<Option<Vec<ManifestFileMeta>>> {
        let path = self.note(name, self.table.paths().manifest(name))?;
        if let (Some(path), Some(size)) = (path, stated_size) {
            self.size(&path, size).await?;
        }
        let found = self.table.read_manifest_list(name).await;
        self.note(name, found)
    }

    /// Whether an object exists with its stated size; if not, that is a problem.
    async fn size(&mut self, path: &object_store::path::Path, stated: i64) -> Result<bool> {
        let found = self.table.size_of(path).await;
        let Some(size) = self.note(path.as_ref(), found)? else {
            return Ok(false);
        };
        if i64::try_from(size) != Ok(stated) {
            self.problem(
                path.as_ref(),
                format!("{size} bytes where {stated} are stated"),
            );
            return Ok(false);
        }
        Ok(true)
    }

    fn base_is_the_snapshot_before(&mut self, snapshot: &Snapshot, base: &Live) {
        let Some((id, before)) = &self.before else {
            return;
        };
        if *id + 1 != snapshot.id {
            return;
        }
        let lost: Vec<String> = before
            .keys()
            .filter(|key| !base.contains_key(key))
            .map(|key| key.file_name.clone())
            .collect();
        let new: Vec<String> = base
            .keys()
            .filter(|key| !before.contains_key(key))
            .map(|key| key.file_name.clone())
            .collect();
        for name in lost {
            self.problem(
                &snapshot.base_manifest_list,
                format!("it lacks `{name}` of the snapshot before"),
            );
        }
        for name in new {
            let reason = format!("it has `{name}`, which the snapshot before does not have");
            self.problem(&snapshot.base_manifest_list, reason);
        }
    }

    fn counts(&mut self, name: &str, snapshot: &Snapshot, live: &Live, delta_records: i64) {
        let total: i64 = live.values().map(|entry| entry.file.row_count).sum();
        if total != snapshot.total_record_count {
            let stated = snapshot.total_record_count;
            self.problem(
                name,
                format!("{total} rows in its files where {stated} are stated"),
            );
        }
        if delta_records != snapshot.delta_record_count {
            let stated = snapshot.delta_record_count;
            self.problem(
                name,
                format!("its commit added {delta_records} rows where {stated} are stated"),
            );
        }
        if let Some(before) = self.total_record_count
            && before + snapshot.delta_record_count != snapshot.total_record_count
        {
            self.problem(name, "its total is not the one before and its own rows");
        }
    }

    /// The schema of a file, read once.
    async fn schema(&mut self, id: i64) -> Result<Option<Arc<TableSchema>>> {
        if let Some(schema) = self.schemas.get(&id) {
            return Ok(Some(Arc::clone(schema)));
        }
        let found = self.table.schema(id).await;
        let Some(schema) = self.note(&format!("schema-{id}"), found)? else {
            return Ok(None);
        };
        let schema = Arc::new(schema);
        self.schemas.insert(id, Arc::clone(&schema));
        Ok(Some(schema))
    }

    /// The data files that no earlier snapshot had.
    async fn files<'e>(&mut self, entries: impl Iterator<Item = &'e ManifestEntry>) -> Result<()> {
        for entry in entries {
            let Some(schema) = self.schema(entry.file.schema_id).await? else {
                continue;
            };
            let Some(reader) = self.reader(entry, &schema)? else {
                continue;
            };
            let path = reader.path.to_string();
            if !self.seen.insert(path) {
                continue;
            }
            let is_there = self.size(&reader.path, entry.file.file_size).await?;
            self.extra_files(&reader.path, &entry.file).await?;
            self.sequence(&entry.file);
            if !is_there || self.depth != CheckDepth::Rows {
                continue;
            }
            if schema.is_primary_key_table() {
                self.keyed_rows(entry, &schema, reader).await?;
            } else {
                self.rows(entry, &schema, reader).await?;
            }
        }
        Ok(())
    }

    async fn extra_files(
        &mut self,
        data_file: &object_store::path::Path,
        file: &DataFileMeta,
    ) -> Result<()> {
        let folder = data_file
            .as_ref()
            .rsplit_once('/')
            .map_or("", |(folder, _)| folder);
        for extra in &file.extra_files {
            let path = checked_path(folder).and_then(|folder| named(&folder, extra));
            if let Some(path) = self.note(extra, path)? {
                let found = self.table.size_of(&path).await;
                self.note(path.as_ref(), found)?;
            }
        }
        Ok(())
    }

    fn sequence(&mut self, file: &DataFileMeta) {
        if file.min_sequence_number > file.max_sequence_number {
            self.problem(
                &file.file_name,
                "its lowest sequence number is above its highest",
            );
        }
    }
}

#[cfg(test)]
mod tests;
