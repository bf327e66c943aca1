//! Reading a snapshot: manifests to live files, live files to splits, splits to batches.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::FutureExt;
use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};

use crate::data_file::DataFileMeta;
use crate::datum::Datum;
use crate::deletion_vector::DeletionFile;
use crate::error::{Error, Result};
use crate::manifest::index::{Vectors, deletion_vectors, has_deletion_vectors};
use crate::manifest::{ManifestEntry, decode_manifest, live_files};
use crate::manifest_list::{ManifestFileMeta, decode_manifest_list};
use crate::options::TableOptions;
use crate::partition::Partition;
use crate::paths::POSTPONE_BUCKET;
use crate::predicate::Predicate;
use crate::schema::TableSchema;
use crate::snapshot::Snapshot;
use crate::stats::ColumnStats;
use crate::table::Table;
use crate::types::DataType;

mod adapt;
mod file;
mod merged;
mod object;
mod pruning;
mod sections;
mod split;

pub(crate) use file::DataFileReader;
use pruning::Pruning;
pub use split::BatchStream;

/// Largest manifest or manifest list that is read.
const MAX_MANIFEST_BYTES: u64 = 1 << 30;

/// Manifests read at a time.
const MANIFEST_READS: usize = 8;

/// Which files of a snapshot are wanted. The default is all.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Filter {
    /// Partition columns and the values that they must have; `Null` matches null only.
    pub partition: Vec<(String, Datum)>,
    /// The one bucket that is wanted.
    pub bucket: Option<i32>,
}

/// The files of one bucket of one partition, written under one bucket count.
#[derive(Clone, Debug, PartialEq)]
pub struct Split {
    /// The partition.
    pub partition: Partition,
    /// The bucket; 0 in bucket-unaware tables.
    pub bucket: i32,
    /// The bucket count of the files; −1 in bucket-unaware tables.
    pub total_buckets: i32,
    /// The files in the order they were committed.
    pub files: Vec<DataFileMeta>,
    /// Of tables with a primary key: the rows of files that are deleted, by file name.
    pub deletions: BTreeMap<String, DeletionFile>,
}

impl Split {
    /// Rows of its files, retractions included.
    pub fn row_count(&self) -> i64 {
        self.files.iter().map(|file| file.row_count).sum()
    }
}

impl Table {
    /// The manifests of a manifest list by its name.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Corrupt`], [`Error::Store`] about the file.
    pub async fn read_manifest_list(&self, name: &str) -> Result<Vec<ManifestFileMeta>> {
        self.read_decoded(name, decode_manifest_list).await
    }

    /// The entries of a manifest by its name.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Corrupt`], [`Error::Store`] about the file.
    pub async fn read_manifest(&self, name: &str) -> Result<Vec<ManifestEntry>> {
        self.read_decoded(name, decode_manifest).await
    }

    /// All manifests of a snapshot, those of its base first.
    ///
    /// # Errors
    /// As [`Table::read_manifest_list`]; [`Error::SnapshotExpired`] if it is gone by now.
    pub async fn manifests(&self, snapshot: &Snapshot) -> Result<Vec<ManifestFileMeta>> {
        let lists = [&snapshot.base_manifest_list, &snapshot.delta_manifest_list];
        let mut manifests = Vec::new();
        for list in lists {
            match self.read_manifest_list(list).await {
                Ok(read) => manifests.extend(read),
                Err(error) => return Err(self.expired_or(snapshot.id, error).await),
            }
        }
        Ok(manifests)
    }

    /// The changes that the commit of a snapshot made, in order.
    ///
    /// # Errors
    /// As [`Table::read_manifest`].
    pub async fn delta_entries(&self, snapshot: &Snapshot) -> Result<Vec<ManifestEntry>> {
        let manifests = self
            .read_manifest_list(&snapshot.delta_manifest_list)
            .await?;
        self.read_manifests(&manifests, |_| true).await
    }

    /// The files of a snapshot, in the order they were committed.
    ///
    /// # Errors
    /// As [`Table::read_manifest`]; [`Error::Corrupt`] if a file is added twice or removed twice.
    pub async fn live_entries(&self, snapshot: &Snapshot) -> Result<Vec<ManifestEntry>> {
        let schema = self.schema(snapshot.schema_id).await?;
        let pruning = Pruning::new(&[], &schema)?;
        self.filtered_entries(snapshot, &schema, &Filter::default(), &pruning)
            .await
    }

    /// The splits of a snapshot that pass the filter, ordered by partition bytes and bucket.
    /// Manifests and files that cannot pass are left out unread.
    ///
    /// # Errors
    /// As [`Table::live_entries`]; [`Error::BadValue`] if the filter names no partition column;
    /// [`Error::Unsupported`] for an append table with deletion vectors, which are not read.
    pub async fn plan(&self, snapshot: &Snapshot, filter: &Filter) -> Result<Vec<Split>> {
        self.plan_where(snapshot, filter, &[]).await
    }

    /// As [`Table::plan`], without manifests and files in which no row passes all of the
    /// conditions, as far as partitions and statistics tell. The rows that are left must be picked
    /// by [`Predicate::pick`].
    ///
    /// With a primary key only conditions on its columns leave files out: a file without a row that
    /// passes may hold the version of a row that says that it does not.
    ///
    /// # Errors
    /// As [`Table::plan`]; [`Error::Corrupt`] if a partition of a table with a primary key has files
    /// under two bucket counts, for then versions of a row may be in two buckets.
    pub async fn plan_where(
        &self,
        snapshot: &Snapshot,
        filter: &Filter,
        conditions: &[Predicate],
    ) -> Result<Vec<Split>> {
        let schema = self.schema(snapshot.schema_id).await?;
        let mut vectors = if schema.is_primary_key_table() {
            self.deletion_vectors(snapshot, &schema).await?
        } else {
            self.refuse_deletion_vectors(snapshot).await?;
            Vectors::new()
        };
        let pruning = Pruning::new(conditions, &schema)?;
        let mut splits: BTreeMap<(Vec<u8>, i32, i32), Vec<DataFileMeta>> = BTreeMap::new();
        let entries = self.filtered_entries(snapshot, &schema, filter, &pruning);
        let entries = pruning.keep_files(self, entries.await?).await?;
        for entry in entries {
            let key = (entry.partition, entry.bucket, entry.total_buckets);
            splits.entry(key).or_default().push(entry.file);
        }
        if schema.is_primary_key_table() {
            self.refuse_mixed_buckets(snapshot, splits.keys())?;
        }
        let mut planned = Vec::with_capacity(splits.len());
        for ((partition, bucket, total_buckets), files) in splits {
            let deletions = vectors.remove(&(partition.clone(), bucket));
            let partition = Partition::from_bytes(&partition, &schema);
            let partition =
                partition.map_err(|e| e.at(self.paths().snapshot(snapshot.id).as_ref()))?;
            planned.push(Split {
                partition,
                bucket,
                total_buckets,
                files,
                deletions: deletions.unwrap_or_default(),
            });
        }
        Ok(planned)
    }

    /// The deletion vectors of a snapshot, whatever `deletion-vectors.enabled` says today.
    async fn deletion_vectors(&self, snapshot: &Snapshot, schema: &TableSchema) -> Result<Vectors> {
        let Some(name) = &snapshot.index_manifest else {
            return Ok(Vectors::new());
        };
        let vectors = self.read_decoded(name, deletion_vectors).await?;
        let option = "index-file-in-data-file-dir";
        if !vectors.is_empty() && TableOptions::new(&schema.options).is_true(option, false)? {
            return Err(Error::Unsupported {
                what: format!(
                    "{} with deletion vectors and option `{option}`",
                    self.root()
                ),
                reason: "index files are looked for in the folder `index` only".to_owned(),
            });
        }
        Ok(vectors)
    }

    fn refuse_mixed_buckets<'k>(
        &self,
        snapshot: &Snapshot,
        splits: impl Iterator<Item = &'k (Vec<u8>, i32, i32)>,
    ) -> Result<()> {
        let counts: BTreeSet<(&[u8], i32)> = splits
            .filter(|(_, bucket, _)| *bucket != POSTPONE_BUCKET)
            .map(|(partition, _, total)| (partition.as_slice(), *total))
            .collect();
        let partitions: BTreeSet<&[u8]> = counts.iter().map(|(partition, _)| *partition).collect();
        if partitions.len() == counts.len() {
            return Ok(());
        }
        let path = self.paths().snapshot(snapshot.id);
        let reason = "a partition has files under two bucket counts, so versions of a row may be \
                      in two buckets";
        Err(Error::corrupt(path.to_string(), reason))
    }

    /// What is known of the columns of a file, as the statistics of its manifest entry say: name in
    /// the file's schema and bounds, only of columns that have statistics.
    ///
    /// # Errors
    /// [`Error::Malformed`] if the statistics are not of the file's columns.
    pub fn file_stats(
        file: &DataFileMeta,
        schema: &TableSchema,
    ) -> Result<Vec<(String, ColumnStats)>> {
        let names: Vec<String> = match (&file.value_stats_cols, &file.write_cols) {
            (Some(names), _) | (None, Some(names)) => names.clone(),
            (None, None) => schema
                .fields
                .iter()
                .map(|field| field.name.clone())
                .collect(),
        };
        let mut types: Vec<&DataType> = Vec::with_capacity(names.len());
        for name in &names {
            let field = schema.field(name);
            let unknown = || Error::malformed("column statistics", format!("no column `{name}`"));
            types.push(&field.ok_or_else(unknown)?.data_type);
        }
        let stats = file.value_stats.decode(types.into_iter())?;
        Ok(names.into_iter().zip(stats).collect())
    }

    /// What the option `deletion-vectors.enabled` says today does not tell what was deleted before,
    /// so the snapshot's index decides.
    async fn refuse_deletion_vectors(&self, snapshot: &Snapshot) -> Result<()> {
        let Some(name) = &snapshot.index_manifest else {
            return Ok(());
        };
        if self.read_decoded(name, has_deletion_vectors).await? {
            return Err(Error::Unsupported {
                what: format!("{} with deletion vectors", self.root()),
                reason: "rows would come back that were deleted".to_owned(),
            });
        }
        Ok(())
    }

    /// Reads a file of the manifest folder, and decodes it on a blocking thread: a small file may
    /// unpack to a large one.
    pub(crate) async fn read_decoded<T: Send + 'static>(
        &self,
        name: &str,
        decode: fn(&[u8]) -> Result<T>,
    ) -> Result<T> {
        let path = self.paths().manifest(name)?;
        let file = self.read_object(&path, MAX_MANIFEST_BYTES).await?;
        let decoded = tokio::task::spawn_blocking(move || decode(&file)).await;
        decoded
            .unwrap_or_else(|_| Err(Error::malformed("manifest", "its decoder failed")))
            .map_err(|e| e.at(path.as_ref()))
    }

    async fn filtered_entries(
        &self,
        snapshot: &Snapshot,
        schema: &TableSchema,
        filter: &Filter,
        pruning: &Pruning<'_>,
    ) -> Result<Vec<ManifestEntry>> {
        let wanted = Wanted::new(filter, schema)?;
        let at = self.paths().snapshot(snapshot.id);
        let mut manifests = self.manifests(snapshot).await?;
        let mut kept = Vec::with_capacity(manifests.len());
        for manifest in manifests.drain(..) {
            let may_hold = wanted.may_hold(&manifest);
            let may_pass = pruning.may_hold(&manifest);
            if may_hold.map_err(|e| e.at(at.as_ref()))?
                && may_pass.map_err(|e| e.at(at.as_ref()))?
            {
                kept.push(manifest);
            }
        }
        let read = self.read_manifests(&kept, |entry| wanted.is_in_bucket(entry));
        let entries = match read.await {
            Ok(entries) => entries,
            Err(error) => return Err(self.expired_or(snapshot.id, error).await),
        };
        // Partition and bucket belong to a file's identity, so the rest may be judged by itself.
        let mut passed = Vec::with_capacity(entries.len());
        for entry in entries {
            let is_wanted = wanted.is_in_partition(&entry);
            let may_pass = pruning.passes_partition(&entry);
            if is_wanted.map_err(|e| e.at(at.as_ref()))?
                && may_pass.map_err(|e| e.at(at.as_ref()))?
            {
                passed.push(entry);
            }
        }
        live_files(passed).map_err(|e| e.at(at.as_ref()))
    }

    /// The entries of several manifests, in their order, each as it is needed; several manifests
    /// are read at a time.
    pub(crate) fn manifest_entries<'a>(
        &'a self,
        manifests: Vec<&'a ManifestFileMeta>,
    ) -> BoxStream<'a, Result<Vec<ManifestEntry>>> {
        let reads =
            stream::iter(manifests).map(|manifest| self.read_manifest(&manifest.file_name).boxed());
        reads.buffered(MANIFEST_READS).boxed()
    }

    /// The entries of manifests in order that pass `keep`.
    async fn read_manifests(
        &self,
        manifests: &[ManifestFileMeta],
        keep: impl Fn(&ManifestEntry) -> bool,
    ) -> Result<Vec<ManifestEntry>> {
        let mut reads = self.manifest_entries(manifests.iter().collect());
        let mut entries = Vec::new();
        while let Some(found) = reads.try_next().await? {
            entries.extend(found.into_iter().filter(&keep));
        }
        Ok(entries)
    }
}

/// A filter against the partition columns of one table.
struct Wanted {
    types: Vec<DataType>,
    /// Per partition column the value it must have, if one is asked for.
    values: Vec<Option<Datum>>,
    bucket: Option<i32>,
}

impl Wanted {
    fn new(filter: &Filter, schema: &TableSchema) -> Result<Self> {
        let fields = schema.partition_fields()?;
        let mut values = vec![None; fields.len()];
        for (name, value) in &filter.partition {
            let place = fields.iter().position(|field| field.name == *name);
            let slot = place.and_then(|place| values.get_mut(place));
            let slot = slot.ok_or_else(|| Error::bad_value(name, "is no partition column"))?;
            *slot = Some(value.clone());
        }
        let types = fields.iter().map(|field| field.data_type.clone()).collect();
        Ok(Self {
            types,
            values,
            bucket: filter.bucket,
        })
    }

    /// Whether a manifest can hold a wanted entry, by the bounds of its list's record.
    fn may_hold(&self, manifest: &ManifestFileMeta) -> Result<bool> {
        if let (Some(bucket), Some(min), Some(max)) =
            (self.bucket, manifest.min_bucket, manifest.max_bucket)
            && !(min..=max).contains(&bucket)
        {
            return Ok(false);
        }
        if self.values.iter().all(Option::is_none) {
            return Ok(true);
        }
        let bounds = manifest.partition_stats.decode(self.types.iter())?;
        let pairs = self.values.iter().zip(&bounds);
        Ok(pairs
            .into_iter()
            .all(|(value, bounds)| value.as_ref().is_none_or(|value| bounds.may_hold(value))))
    }

    fn is_in_bucket(&self, entry: &ManifestEntry) -> bool {
        self.bucket.is_none_or(|bucket| bucket == entry.bucket)
    }

    fn is_in_partition(&self, entry: &ManifestEntry) -> Result<bool> {
        if self.values.iter().all(Option::is_none) {
            return Ok(true);
        }
        let row = crate::binary_row::BinaryRow::from_serialized(&entry.partition)?;
        let found = row.decode(self.types.iter())?;
        let mut pairs = self.values.iter().zip(&found);
        Ok(pairs.all(|(value, found)| value.as_ref().is_none_or(|value| value == found)))
    }
}

/// The schemas of the files that are read, each read once.
pub(crate) async fn schemas_of(
    table: &Table,
    ids: impl IntoIterator<Item = i64>,
) -> Result<BTreeMap<i64, Arc<TableSchema>>> {
    let mut schemas = BTreeMap::new();
    for id in ids {
        if let std::collections::btree_map::Entry::Vacant(slot) = schemas.entry(id) {
            slot.insert(Arc::new(table.schema(id).await?));
        }
    }
    Ok(schemas)
}
