//! One commit's way into the store: manifests first, then the conditional put that decides.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutMode, PutOptions, PutPayload};

use super::CommitRequest;
use super::base::Base;
use super::merge::Merged;
use super::plan::{Change, Head, ListFile, Lists, next_snapshot};
use crate::durable::MayBeLost;
use crate::error::{Error, Result, is_refusal};
use crate::manifest::{ManifestEntry, encode_manifest};
use crate::manifest_list::{ManifestFileMeta, encode_manifest_list};
use crate::paths::{manifest_list_name, manifest_name};
use crate::schema::TableSchema;
use crate::snapshot::Snapshot;
use crate::table::Table;

/// Entries of one manifest: about 4 MiB compressed.
const MAX_ENTRIES: usize = 32_768;

/// Manifests from this many entries on are encoded on a blocking thread.
const BLOCKING_FROM_ENTRIES: usize = 512;

/// Metadata files written or deleted at once.
const CONCURRENCY: usize = 8;

/// What the conditional put did.
#[must_use]
pub(super) enum Published {
    Yes(Box<Head>),
    /// Another has that number.
    No,
    /// It may have taken place.
    Unknown,
}

/// What is found where the snapshot was put.
#[must_use]
pub(super) enum ReadBack {
    Settled(Published),
    /// Nothing is there, yet.
    Absent,
    Unreadable,
}

/// The metadata files of one commit, over all its attempts.
#[derive(Debug)]
pub(super) struct Attempt {
    uuid: String,
    manifest_count: usize,
    list_count: usize,
    /// Every attempt adds the same files, so these are written once.
    delta: Option<Delta>,
    written: Vec<Path>,
    candidate: Option<Candidate>,
}

#[derive(Debug)]
struct Delta {
    manifests: Vec<ManifestFileMeta>,
    list: ListFile,
    /// The list of the changelog files with the number of their rows, if there are any.
    changelog: Option<(ListFile, i64)>,
}

/// The snapshot that is being put.
#[derive(Debug)]
struct Candidate {
    built: Head,
    path: Path,
    content: Bytes,
    /// Metadata files that are of no use if this one loses.
    own_files: Vec<Path>,
    /// Why it is not known what became of it.
    doubt: Option<object_store::Error>,
}

impl Attempt {
    pub(super) fn new(uuid: &str) -> Self {
        Self {
            uuid: uuid.to_owned(),
            manifest_count: 0,
            list_count: 0,
            delta: None,
            written: Vec::new(),
            candidate: None,
        }
    }

    /// Whether a snapshot of this commit may have been published without our knowing.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.candidate
            .as_ref()
            .is_some_and(|candidate| candidate.doubt.is_some())
    }

    /// Writes the manifests and lists of the snapshot after the one that `base` knows.
    pub(super) async fn write(
        &mut self,
        table: &Table,
        base: &Base,
        (request, change): (&CommitRequest, &Change),
        merged: Option<Merged>,
    ) -> Result<()> {
        let schema = base.schema()?;
        let mut files = Vec::new();
        let delta = match self.delta.take() {
            Some(delta) => delta,
            None => self.encode_delta(change, schema, &mut files).await?,
        };
        let shared_files = files.len();
        let mut manifests = base.manifests().to_vec();
        if let Some(Merged { replaces, entries }) = merged {
            let merged = self.encode_manifests(&entries, schema, &mut files).await?;
            manifests.splice(replaces, merged);
        }
        let base_list = self.encode_list(&manifests, &mut files)?;
        let files = files
            .into_iter()
            .map(|(name, bytes)| Ok((table.paths().manifest(&name)?, bytes)));
        let files: Vec<(Path, Bytes)> = files.collect::<Result<_>>()?;
        let paths = || files.iter().map(|(path, _)| path.clone());
        self.written.extend(paths());
        let own_files = paths().skip(shared_files).collect();
        put_all(table, files).await?;
        manifests.extend(delta.manifests.iter().cloned());
        let lists = Lists {
            base: base_list,
            delta: delta.list.clone(),
            changelog: delta.changelog.clone(),
        };
        self.delta = Some(delta);
        let latest = base.view().latest;
        let snapshot = next_snapshot(latest, schema.id, request, change.record_count, lists);
        let content = Bytes::from(snapshot.to_json()?);
        let path = table.paths().snapshot(snapshot.id);
        let built = Head {
            snapshot,
            manifests,
        };
        self.candidate = Some(Candidate {
            built,
            path,
            content,
            own_files,
            doubt: None,
        });
        Ok(())
    }

    /// Puts the snapshot under its number if that is free.
    pub(super) async fn publish(&mut self, table: &Table) -> Result<Published> {
        let Some(candidate) = self.candidate.as_mut() else {
            return Ok(Published::No);
        };
        let payload = PutPayload::from(candidate.content.clone());
        let create = PutOptions::from(PutMode::Create);
        let put = table
            .store()
            .put_opts(&candidate.path, payload, create)
            .await;
        let Err(error) = put else {
            return Ok(self.take_built());
        };
        if is_refusal(&error) && candidate.doubt.is_none() {
            let error = Error::store(&candidate.path, error);
            self.candidate = None;
            return Err(error);
        }
        // `AlreadyExists` too may be our own doing: a store client that lost a reply puts again by
        // itself.
        candidate.doubt = Some(error);
        match self.read_back(table).await {
            ReadBack::Settled(published) => Ok(published),
            ReadBack::Absent | ReadBack::Unreadable => Ok(Published::Unknown),
        }
    }

    /// Compares what is stored under the snapshot's number with what was put.
    pub(super) async fn read_back(&mut self, table: &Table) -> ReadBack {
        let Some(candidate) = self.candidate.as_mut() else {
            return ReadBack::Settled(Published::No);
        };
        match table.read_json(&candidate.path).await {
            Ok(found) if found == candidate.content => ReadBack::Settled(self.take_built()),
            Ok(_) => {
                let lost = self.candidate.take().map(|candidate| candidate.own_files);
                delete(table, lost.unwrap_or_default()).await;
                ReadBack::Settled(Published::No)
            }
            Err(Error::NotFound { .. }) => ReadBack::Absent,
            Err(_) => ReadBack::Unreadable,
        }
    }

    /// The last look at a snapshot in doubt, if there is one.
    pub(super) async fn give_up(&mut self, table: &Table) -> Result<Option<Box<Head>>> {
        match self.read_back(table).await {
            ReadBack::Settled(Published::Yes(built)) => Ok(Some(built)),
            ReadBack::Settled(_) => Ok(None),
            ReadBack::Absent | ReadBack::Unreadable => Err(self.unknown()),
        }
    }

    /// The error for a snapshot that stays in doubt.
    pub(super) fn unknown(&mut self) -> Error {
        let again = || object_store::Error::Generic {
            store: "commit",
            source: "no answer".into(),
        };
        let (path, doubt) = match self.candidate.as_mut() {
            Some(candidate) => (candidate.path.to_string(), candidate.doubt.replace(again())),
            None => (String::new(), None),
        };
        Error::OutcomeUnknown {
            path,
            source: doubt.unwrap_or_else(again),
        }
    }

    /// Deletes all metadata files of a commit that was certainly not published, as far as possible.
    pub(super) async fn delete_all(&mut self, table: &Table) {
        delete(table, std::mem::take(&mut self.written)).await;
    }

    /// Deletes a snapshot that came into another table than it was meant for.
    ///
    /// # Errors
    /// [`Error::OutcomeUnknown`] if it may stay; all its files stay then.
    pub(super) async fn take_back(&mut self, table: &Table, snapshot: &Snapshot) -> Result<()> {
        let path = table.paths().snapshot(snapshot.id);
        let taken_back = async {
            match table.snapshot(snapshot.id).await {
                Ok(found) if found == *snapshot => {}
                // It went with the table that it was meant for.
                Ok(_) | Err(Error::NotFound { .. }) => return Ok(()),
                Err(error) => return Err(error),
            }
            if table
                .exists(&table.paths().snapshot(snapshot.id + 1))
                .await?
            {
                let reason = "another table has it now, and a snapshot that builds on it";
                return Err(Error::corrupt(path.clone(), reason));
            }
            match table.store().delete(&path).await {
                Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
                Err(error) => Err(Error::store(&path, error)),
            }
        };
        // Whoever wrote the other table may have read it in between.
        self.written.clear();
        let taken_back: Result<()> = taken_back.await;
        taken_back.map_err(|error| Error::OutcomeUnknown {
            path: path.to_string(),
            source: object_store::Error::Generic {
                store: "commit",
                source: error.into(),
            },
        })
    }

    fn take_built(&mut self) -> Published {
        match self.candidate.take() {
            Some(candidate) => Published::Yes(Box::new(candidate.built)),
            None => Published::No,
        }
    }

    async fn encode_delta(
        &mut self,
        change: &Change,
        schema: &TableSchema,
        files: &mut Vec<(String, Bytes)>,
    ) -> Result<Delta> {
        let manifests = self
            .encode_manifests(&change.entries, schema, files)
            .await?;
        let list = self.encode_list(&manifests, files)?;
        let changelog = if change.changelog.is_empty() {
            None
        } else {
            let entries = &change.changelog;
            let manifests = self.encode_manifests(entries, schema, files).await?;
            let rows = entries.iter().map(|entry| entry.file.row_count).sum();
            Some((self.encode_list(&manifests, files)?, rows))
        };
        Ok(Delta {
            manifests,
            list,
            changelog,
        })
    }

    async fn encode_manifests(
        &mut self,
        entries: &Arc<[ManifestEntry]>,
        schema: &TableSchema,
        files: &mut Vec<(String, Bytes)>,
    ) -> Result<Vec<ManifestFileMeta>> {
        let mut manifests = Vec::new();
        for start in (0..entries.len()).step_by(MAX_ENTRIES) {
            let range = start..(start + MAX_ENTRIES).min(entries.len());
            let name = manifest_name(&self.uuid, self.manifest_count);
            self.manifest_count += 1;
            let bytes = encode_off_thread(entries, range.clone()).await?;
            let chunk = entries.get(range).unwrap_or_default();
            let manifest = ManifestFileMeta::describe(&name, size(&bytes), chunk, schema)?;
            manifests.push(manifest);
            files.push((name, bytes));
        }
        Ok(manifests)
    }

    fn encode_list(
        &mut self,
        manifests: &[ManifestFileMeta],
        files: &mut Vec<(String, Bytes)>,
    ) -> Result<ListFile> {
        let name = manifest_list_name(&self.uuid, self.list_count);
        self.list_count += 1;
        let bytes = Bytes::from(encode_manifest_list(manifests)?);
        let list = ListFile {
            name: name.clone(),
            size: size(&bytes),
        };
        files.push((name, bytes));
        Ok(list)
    }
}

/// Tells readers where to look first. They find the snapshot without it, so failing is no failure.
pub(super) async fn write_latest_hint(table: &Table, id: i64) {
    let path = table.paths().latest_hint();
    let mut options = PutOptions::from(PutMode::Overwrite);
    options.extensions.insert(MayBeLost);
    let payload = PutPayload::from(id.to_string());
    if let Err(error) = table.store().put_opts(&path, payload, options).await {
        tracing::debug!(%path, %error, "the hint was not written");
    }
}

/// The manifest of some of the entries, which are shared and not copied.
async fn encode_off_thread(entries: &Arc<[ManifestEntry]>, range: Range<usize>) -> Result<Bytes> {
    let shared = Arc::clone(entries);
    let encode = move || encode_manifest(shared.get(range).unwrap_or_default());
    let encoded = if entries.len() < BLOCKING_FROM_ENTRIES {
        encode()
    } else {
        let failed = |_| Error::malformed("manifest", "its encoder failed");
        let encoded = tokio::task::spawn_blocking(encode).await;
        encoded.map_err(failed)?
    };
    encoded.map(Bytes::from)
}

async fn put_all(table: &Table, files: Vec<(Path, Bytes)>) -> Result<()> {
    stream::iter(files.into_iter().map(Ok))
        .try_for_each_concurrent(CONCURRENCY, |(path, bytes)| async move {
            let put = table.store().put(&path, PutPayload::from(bytes)).await;
            put.map(|_| ())
                .map_err(|source| Error::store(&path, source))
        })
        .await
}

async fn delete(table: &Table, paths: Vec<Path>) {
    let deletes = stream::iter(paths).map(|path| async move {
        match table.store().delete(&path).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
            Err(error) => tracing::debug!(%path, %error, "a manifest of a lost commit stays"),
        }
    });
    deletes
        .buffer_unordered(CONCURRENCY)
        .collect::<Vec<()>>()
        .await;
}

fn size(bytes: &Bytes) -> i64 {
    i64::try_from(bytes.len()).unwrap_or(i64::MAX)
}
