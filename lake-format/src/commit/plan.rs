//! What a commit changes, and the snapshot that says so. No IO.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::CommitRequest;
use crate::bucket::UNAWARE_TOTAL_BUCKETS;
use crate::data_file::DataFileMeta;
use crate::error::{Error, Result};
use crate::manifest::{FileKind, ManifestEntry};
use crate::manifest_list::ManifestFileMeta;
use crate::options::BucketMode;
use crate::paths::POSTPONE_BUCKET;
use crate::schema::TableSchema;
use crate::snapshot::{CommitKind, SNAPSHOT_VERSION, Snapshot};

/// A snapshot that is, or may become, the latest.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) snapshot: Snapshot,
    /// All its manifests, base then delta.
    pub(super) manifests: Vec<ManifestFileMeta>,
}

/// The entries of a request, checked against each other.
#[derive(Debug)]
pub(super) struct Change {
    /// Deletes, then adds, each in the order of the request.
    pub(super) entries: Arc<[ManifestEntry]>,
    /// Files of changes as they came; they are of this snapshot only, and never live.
    pub(super) changelog: Arc<[ManifestEntry]>,
    /// The bucket count that the added files of each partition are stamped with.
    pub(super) total_buckets: BTreeMap<Vec<u8>, i32>,
    pub(super) has_deletes: bool,
    /// Rows added less rows removed.
    pub(super) record_count: i64,
}

impl Change {
    /// # Errors
    /// [`Error::BadValue`] if the request contradicts itself: deletes in an append, a file twice,
    /// two bucket counts in a partition.
    pub(super) fn new(request: &CommitRequest) -> Result<Self> {
        if request.kind == CommitKind::Append && !request.deletes.is_empty() {
            return Err(bad("an append removes no files"));
        }
        let deletes = request.deletes.iter().cloned();
        let deletes = deletes.map(|entry| ManifestEntry {
            kind: FileKind::Delete,
            ..entry
        });
        let mut entries: Vec<ManifestEntry> = deletes.collect();
        let has_deletes = !entries.is_empty();
        let mut changelog: Vec<ManifestEntry> = Vec::new();
        let mut total_buckets = BTreeMap::new();
        for message in request
            .messages
            .iter()
            .filter(|message| message.files().next().is_some())
        {
            let partition = message.partition.to_bytes();
            let ours = message.total_buckets;
            let first = *total_buckets.entry(partition.clone()).or_insert(ours);
            if first != ours {
                return Err(bad(format!("a partition has {first} and {ours} buckets")));
            }
            let added = |file: &DataFileMeta| ManifestEntry {
                kind: FileKind::Add,
                partition: partition.clone(),
                bucket: message.bucket,
                total_buckets: ours,
                file: file.clone(),
            };
            entries.extend(message.new_files.iter().map(added));
            changelog.extend(message.changelog_files.iter().map(added));
        }
        let mut keys = BTreeSet::new();
        let mut all = entries.iter().chain(&changelog);
        if let Some(twice) = all.find(|entry| !keys.insert(entry.key())) {
            return Err(bad(format!("`{}` is named twice", twice.file.file_name)));
        }
        let record_count = entries.iter().map(signed_row_count).sum();
        Ok(Self {
            entries: entries.into(),
            changelog: changelog.into(),
            total_buckets,
            has_deletes,
            record_count,
        })
    }

    /// Whether the added files are in buckets that a table of `schema` can have.
    ///
    /// # Errors
    /// [`Error::BadValue`] if one is not, [`Error::InvalidSchema`] as the schema says.
    pub(super) fn check_buckets(&self, schema: &TableSchema) -> Result<()> {
        let mode = schema.bucket_mode()?;
        for entry in self.added().chain(self.changelog.iter()) {
            let (bucket, count) = (entry.bucket, entry.total_buckets);
            let is_hashed = (0..count).contains(&bucket);
            let fits = match mode {
                BucketMode::Fixed(_) => is_hashed,
                BucketMode::Unaware => bucket == 0 && count == UNAWARE_TOTAL_BUCKETS,
                BucketMode::Dynamic => bucket >= 0 && count == UNAWARE_TOTAL_BUCKETS,
                BucketMode::Postpone => bucket == POSTPONE_BUCKET || is_hashed,
            };
            if !fits {
                let reason = format!("bucket {bucket} of {count} does not fit the table");
                return Err(bad(reason));
            }
        }
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.changelog.is_empty()
    }

    pub(super) fn added(&self) -> impl Iterator<Item = &ManifestEntry> {
        self.entries
            .iter()
            .filter(|entry| entry.kind == FileKind::Add)
    }
}

/// A manifest list as a snapshot names it.
#[derive(Clone, Debug)]
pub(super) struct ListFile {
    pub(super) name: String,
    pub(super) size: i64,
}

/// The lists of one attempt.
#[derive(Clone, Debug)]
pub(super) struct Lists {
    pub(super) base: ListFile,
    pub(super) delta: ListFile,
    /// The list of changelog files with the number of their rows.
    pub(super) changelog: Option<(ListFile, i64)>,
}

/// The snapshot after `latest`.
pub(super) fn next_snapshot(
    latest: Option<&Snapshot>,
    schema_id: i64,
    request: &CommitRequest,
    record_count: i64,
    lists: Lists,
) -> Snapshot {
    let statistics = latest.filter(|latest| latest.schema_id == schema_id);
    let (changelog, changelog_rows) = lists.changelog.unzip();
    let properties = Some(request.properties.clone()).filter(|properties| !properties.is_empty());
    Snapshot {
        version: SNAPSHOT_VERSION,
        id: latest.map_or(1, |latest| latest.id + 1),
        schema_id,
        base_manifest_list: lists.base.name,
        base_manifest_list_size: Some(lists.base.size),
        delta_manifest_list: lists.delta.name,
        delta_manifest_list_size: Some(lists.delta.size),
        changelog_manifest_list_size: changelog.as_ref().map(|list| list.size),
        changelog_manifest_list: changelog.map(|list| list.name),
        index_manifest: latest.and_then(|latest| latest.index_manifest.clone()),
        commit_user: request.commit_user.clone(),
        commit_identifier: request.commit_identifier,
        commit_kind: request.kind,
        time_millis: request.now_ms,
        total_record_count: latest.map_or(0, |latest| latest.total_record_count) + record_count,
        delta_record_count: record_count,
        changelog_record_count: Some(changelog_rows.unwrap_or(0)),
        watermark: latest.and_then(|latest| latest.watermark),
        statistics: statistics.and_then(|latest| latest.statistics.clone()),
        properties,
        next_row_id: latest.and_then(|latest| latest.next_row_id),
    }
}

fn signed_row_count(entry: &ManifestEntry) -> i64 {
    match entry.kind {
        FileKind::Add => entry.file.row_count,
        FileKind::Delete => -entry.file.row_count,
    }
}

fn bad(reason: impl Into<String>) -> Error {
    Error::bad_value("commit", reason)
}
