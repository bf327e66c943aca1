//! What the lake has of a table: the pointer to its snapshots.

use std::collections::{BTreeMap, BTreeSet};

use futures::FutureExt;
use weir_protocol::ids::{PartitionId, TableBucket, TableId, TablePath, TotalBuckets};

use super::{Catalog, Partition, Table, bad_key};
use crate::model::lake_offsets::{Bucket, LakeOffsets, MAX_BUCKETS};
use crate::model::lake_snapshot::{LakeSnapshot, LakeTable};
use crate::model::{Document, Stored};
use crate::occ::{self, DEFAULT_ATTEMPTS, Decision};
use crate::offsets_files::OffsetsFiles;
use crate::store::{Expect, Key};
use crate::{Error, Result};

/// Which lake snapshot of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The current one.
    Latest,
    /// The newest that is known to be readable.
    Readable,
    /// The one with this lake id.
    Id(i64),
}

/// Whether offsets may go back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffsetsPolicy {
    /// Never: the normal case.
    OnlyRise,
    /// They may: the table is tiered anew on purpose.
    MayFall,
}

/// A lake snapshot to commit to the coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LakeCommit<'a> {
    /// The table.
    pub path: &'a TablePath,
    /// The id it must have.
    pub table_id: TableId,
    /// The lake's own number of the snapshot.
    pub snapshot_id: i64,
    /// URI of the file with the offsets it holds rows up to.
    pub tiered_offsets: &'a str,
    /// URI of the file with the offsets it can be read up to, if known.
    pub readable_offsets: Option<&'a str>,
    /// See [`LakeTable::with`].
    pub earliest_to_keep: Option<i64>,
    /// Whether offsets may go back.
    pub policy: OffsetsPolicy,
}

impl Catalog {
    /// The pointer to a table's lake snapshots; `None` before the first.
    pub async fn find_lake_table(&self, table: TableId) -> Result<Option<Stored<LakeTable>>> {
        self.get(&Key::lake_table(table)).await
    }

    /// A lake snapshot of a table, with the offsets it holds rows up to.
    ///
    /// # Errors
    /// [`Error::LakeSnapshotNotExist`] if there is none such; [`Error::Corrupt`] if its file is
    /// bad.
    pub async fn get_lake_snapshot(
        &self,
        path: &TablePath,
        table: TableId,
        which: Which,
    ) -> Result<(LakeSnapshot, LakeOffsets)> {
        let none = || Error::LakeSnapshotNotExist { table };
        let found = self
            .find_lake_table(table)
            .await?
            .ok_or_else(none)?
            .document;
        let snapshot = match which {
            Which::Latest => found.latest(),
            Which::Readable => found.latest_readable(),
            Which::Id(id) => found.find(id),
        };
        let snapshot = snapshot.ok_or_else(none)?.clone();
        let offsets = self.offsets_of(path, table, &snapshot).await?;
        Ok((snapshot, offsets))
    }

    /// How far the lake is; nothing before the first snapshot.
    pub async fn get_lake_offsets(&self, path: &TablePath, table: TableId) -> Result<LakeOffsets> {
        match self.get_lake_snapshot(path, table, Which::Latest).await {
            Ok((_, offsets)) => Ok(offsets),
            Err(Error::LakeSnapshotNotExist { .. }) => Ok(LakeOffsets::new(table)),
            Err(error) => Err(error),
        }
    }

    /// Writes the offsets file of a round that is about to be committed to the lake, and returns
    /// its URI.
    ///
    /// * `new`: end offsets of the buckets of the round; they take the place of those committed
    ///   before, and the others stay, except those of partitions that are gone.
    /// * `policy`: [`OffsetsPolicy::MayFall`] starts from nothing.
    ///
    /// # Errors
    /// [`Error::TableNotExist`], [`Error::TableIdNotExist`] if the table was re-created,
    /// [`Error::BucketNotExist`] for a bucket that the table, or a partition that is there, doesn't
    /// have, [`Error::Lake`].
    pub async fn prepare_lake_offsets(
        &self,
        path: &TablePath,
        new: &LakeOffsets,
        policy: OffsetsPolicy,
    ) -> Result<String> {
        let table = self.table_with_id(path, new.table_id).await?;
        new.check()
            .map_err(|reason| refused(new.table_id, -1, reason))?;
        let counts = self.bucket_counts(&table).await?;
        check_buckets(&table, &counts, new)?;
        let mut merged = match policy {
            OffsetsPolicy::MayFall => new.clone(),
            OffsetsPolicy::OnlyRise => self.get_lake_offsets(path, new.table_id).await?.merged(new),
        };
        if table.descriptor.is_partitioned() {
            merged.end_offsets.retain(|bucket, _| {
                counts.contains_key(&bucket.0) || new.end_offsets.contains_key(bucket)
            });
        }
        self.files(new.table_id)?.write(path, &merged).await
    }

    /// Makes a lake snapshot the current one of a table: compare-and-set, so that two committers
    /// can't overwrite each other. A commit that is in the history already changes nothing, also
    /// when it comes late. Returns the URIs of the offsets files that no snapshot of the table names
    /// any more: they may be deleted.
    ///
    /// # Errors
    /// [`Error::TableNotExist`], [`Error::TableIdNotExist`] if the table was re-created,
    /// [`Error::InvalidLakeSnapshot`] if an offset or the snapshot id goes back against the policy,
    /// [`Error::BucketNotExist`] if a file names a bucket that the table doesn't have,
    /// [`Error::Corrupt`] if a file is bad or of another table.
    pub async fn commit_lake_snapshot(&self, commit: LakeCommit<'_>) -> Result<BTreeSet<String>> {
        let commit = &commit;
        let what = format!(
            "committing lake snapshot {} of {}",
            commit.snapshot_id, commit.path
        );
        let committed = occ::update(&*self.store, &what, DEFAULT_ATTEMPTS, |_| {
            self.decide_lake_commit(commit).boxed()
        })
        .await?;
        Ok(committed.value)
    }

    async fn decide_lake_commit(
        &self,
        commit: &LakeCommit<'_>,
    ) -> Result<Decision<BTreeSet<String>>> {
        let (path, table_id) = (commit.path, commit.table_id);
        let table = self.table_with_id(path, table_id).await?;
        let files = self.files(table_id)?;
        let counts = self.bucket_counts(&table).await?;
        let tiered = files.read(path, table_id, commit.tiered_offsets).await?;
        check_buckets(&table, &counts, &tiered)?;
        if let Some(uri) = commit
            .readable_offsets
            .filter(|uri| *uri != commit.tiered_offsets)
        {
            check_buckets(&table, &counts, &files.read(path, table_id, uri).await?)?;
        }
        let key = Key::lake_table(table_id);
        let found = self.get::<LakeTable>(&key).await?;
        let (current, expect) = match found {
            Some(found) => (found.document, Expect::At(found.modified)),
            None => (LakeTable::default(), Expect::Absent),
        };
        let snapshot = LakeSnapshot::new(
            commit.snapshot_id,
            commit.tiered_offsets.to_owned(),
            commit.readable_offsets.map(str::to_owned),
        );
        if current.lake_snapshots.contains(&snapshot) {
            return Ok(Decision::Done(BTreeSet::new()));
        }
        if let Some(latest) = current.latest()
            && commit.policy == OffsetsPolicy::OnlyRise
        {
            if commit.snapshot_id < latest.snapshot_id {
                let reason = format!("snapshot {} is recorded already", latest.snapshot_id);
                return Err(refused(table_id, commit.snapshot_id, reason));
            }
            let earlier = self.offsets_of(path, table_id, latest).await?;
            if let Some(reason) = regression(&counts, &earlier, &tiered) {
                return Err(refused(table_id, commit.snapshot_id, reason));
            }
        }
        let (next, unnamed) = current.with(snapshot, commit.earliest_to_keep);
        let txn = self.txn().put(key, next.encode()?, expect).check(
            Key::table(path).map_err(bad_key(path))?,
            Expect::Incarnation(table.created),
        );
        Ok(Decision::Commit(txn, unnamed))
    }

    /// The bucket count of a table, or of each of its partitions that are there.
    async fn bucket_counts(&self, table: &Table) -> Result<Counts> {
        if !table.descriptor.is_partitioned() {
            return Ok(Counts::from([(None, table.bucket_count)]));
        }
        let (found, partitions) = self.list_partitions(&table.path).await?;
        if found.table_id != table.table_id {
            let table = table.table_id;
            return Err(Error::TableIdNotExist { table });
        }
        let count = |partition: Partition| (Some(partition.id), partition.bucket_count);
        Ok(partitions.into_iter().map(count).collect())
    }

    async fn table_with_id(&self, path: &TablePath, table_id: TableId) -> Result<Table> {
        let table = self.get_table(path).await?;
        if table.table_id != table_id {
            return Err(Error::TableIdNotExist { table: table_id });
        }
        Ok(table)
    }

    async fn offsets_of(
        &self,
        path: &TablePath,
        table: TableId,
        snapshot: &LakeSnapshot,
    ) -> Result<LakeOffsets> {
        match &snapshot.inline {
            Some(offsets) => Ok(offsets.clone()),
            None => {
                self.files(table)?
                    .read(path, table, &snapshot.tiered_offsets)
                    .await
            }
        }
    }

    /// The folder of offsets files.
    fn files(&self, table: TableId) -> Result<&OffsetsFiles> {
        self.offsets_files.as_ref().ok_or_else(|| {
            refused(
                table,
                -1,
                "this catalog has no folder for offsets files".to_owned(),
            )
        })
    }
}

fn refused(table: TableId, snapshot_id: i64, reason: String) -> Error {
    Error::InvalidLakeSnapshot {
        table,
        snapshot_id,
        reason,
    }
}

/// Bucket counts of a table's partitions, or under `None` its own.
type Counts = BTreeMap<Option<PartitionId>, TotalBuckets>;

/// Refuses a bucket that there is not. A partition may have been dropped since: of one that is gone,
/// each bucket passes that any table could have.
fn check_buckets(table: &Table, counts: &Counts, offsets: &LakeOffsets) -> Result<()> {
    let is_partitioned = table.descriptor.is_partitioned();
    let exists = |&(partition, bucket): &Bucket| {
        let count = match counts.get(&partition) {
            Some(count) => usize::try_from(count.0).unwrap_or(0),
            None => MAX_BUCKETS,
        };
        partition.is_some() == is_partitioned && usize::try_from(bucket.0).is_ok_and(|b| b < count)
    };
    match offsets.end_offsets.keys().find(|bucket| !exists(bucket)) {
        None => Ok(()),
        Some(&(partition, bucket)) => Err(Error::BucketNotExist {
            bucket: TableBucket {
                table: table.table_id,
                partition,
                bucket,
            },
        }),
    }
}

/// Which bucket would go back, or be forgotten although it still exists.
fn regression(counts: &Counts, earlier: &LakeOffsets, tiered: &LakeOffsets) -> Option<String> {
    let name = |(partition, bucket): Bucket| match partition {
        Some(partition) => format!("bucket {bucket} of partition {partition}"),
        None => format!("bucket {bucket}"),
    };
    if let Some((bucket, before, now)) = tiered.first_regression(earlier) {
        let name = name(bucket);
        return Some(format!("{name} would go back from {before} to {now}"));
    }
    let is_forgotten = |bucket: &&Bucket| {
        !tiered.end_offsets.contains_key(*bucket)
            && (bucket.0.is_none() || counts.contains_key(&bucket.0))
    };
    let forgotten = earlier.end_offsets.keys().find(is_forgotten)?;
    Some(format!("{} would be forgotten", name(*forgotten)))
}
