//! How far tables are in the lake: offsets files are prepared, lake snapshots recorded, tablet
//! servers told.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use weir_catalog::catalog::{LakeCommit, OffsetsPolicy, Partition, Table};
use weir_catalog::model::lake_offsets::LakeOffsets;
use weir_protocol::ids::{
    BucketId, LogOffset, PartitionId, TableBucket, TableId, TablePath, TotalBuckets,
};
use weir_protocol::proto::{
    NotifyLakeTableOffsetRequest, PbBucketOffset, PbLakeTableSnapshotInfo,
    PbLakeTableSnapshotMetadata, PbNotifyLakeTableOffsetReqForBucket, PbTableOffsets, PbTablePath,
};

use super::Coordinator;
use crate::error::Error;

/// How many offsets files are remembered whose offsets may go back.
const MAX_RESETS: usize = 1000;

/// An offsets file that nothing names any more.
#[derive(Debug)]
pub(crate) struct Discarded {
    path: TablePath,
    table: TableId,
    uri: String,
    since_ms: i64,
}

impl Coordinator {
    /// Writes the offsets of a coming lake snapshot: those given over those recorded, without the
    /// partitions that are gone. Returns the file's URI.
    ///
    /// # Errors
    /// [`Error::OtherTable`], [`Error::LakeAheadOfLog`], those of the catalog; [`Error::LakeRegression`]
    /// if an offset is below what is recorded and `ignore_previous` is not set.
    pub(crate) async fn prepare_lake_snapshot(
        &self,
        given: &PbTableOffsets,
        ignore_previous: bool,
    ) -> Result<String, Error> {
        let path = TablePath::from(&given.table_path);
        let table = self.table_with_id(&path, TableId(given.table_id)).await?;
        let mut newer = LakeOffsets::new(table.table_id);
        for bucket in &given.bucket_offsets {
            let Some(end) = bucket.log_end_offset.filter(|end| *end >= 0) else {
                continue;
            };
            let partition = bucket.partition_id.map(PartitionId);
            let id = BucketId(bucket.bucket_id);
            newer.end_offsets.insert((partition, id), LogOffset(end));
        }
        self.refuse_ahead_of_logs(&table, &newer).await?;
        let catalog = &self.parts.catalog;
        if ignore_previous {
            let policy = OffsetsPolicy::MayFall;
            let uri = catalog.prepare_lake_offsets(&path, &newer, policy).await?;
            self.remember_reset(&uri);
            return Ok(uri);
        }
        let previous = catalog.get_lake_offsets(&path, table.table_id).await?;
        refuse_regression(table.table_id, &newer, &previous)?;
        Ok(catalog
            .prepare_lake_offsets(&path, &newer, OffsetsPolicy::OnlyRise)
            .await?)
    }

    /// Records a lake snapshot, tells the tablet servers, and returns.
    ///
    /// # Errors
    /// [`Error::UnknownTable`] for a table that is gone; [`Error::OffsetsFile`] for a file that is
    /// none of the table's; [`Error::LakeAheadOfLog`]; those of the catalog.
    pub(crate) async fn commit_lake_snapshot(
        &self,
        given: &PbLakeTableSnapshotMetadata,
    ) -> Result<(), Error> {
        let table = self.table_by_id(TableId(given.table_id)).await?;
        let tiered = self
            .offsets_of(&table, &given.tiered_bucket_offsets_file_path)
            .await?;
        self.refuse_ahead_of_logs(&table, &tiered).await?;
        let readable = given.readable_bucket_offsets_file_path.as_ref();
        if let Some(uri) = readable.filter(|uri| **uri != given.tiered_bucket_offsets_file_path) {
            let readable = self.offsets_of(&table, uri).await?;
            self.refuse_ahead_of_logs(&table, &readable).await?;
        }
        let is_reset = self
            .resets
            .lock()
            .contains(&given.tiered_bucket_offsets_file_path);
        let policy = if is_reset {
            OffsetsPolicy::MayFall
        } else {
            OffsetsPolicy::OnlyRise
        };
        let unnamed = self
            .parts
            .catalog
            .commit_lake_snapshot(LakeCommit {
                path: &table.path,
                table_id: table.table_id,
                snapshot_id: given.snapshot_id,
                tiered_offsets: &given.tiered_bucket_offsets_file_path,
                readable_offsets: given.readable_bucket_offsets_file_path.as_deref(),
                earliest_to_keep: given.earliest_snapshot_id_to_keep,
                policy,
            })
            .await?;
        self.discard(&table, unnamed);
        self.parts.metrics.lake_commits.inc();
        self.notify_lake_ends(&table, given.snapshot_id, &tiered)
            .await;
        Ok(())
    }

    /// Records a snapshot in the manner of clients up to 0.8, which send the offsets themselves.
    ///
    /// # Errors
    /// As [`Self::commit_lake_snapshot`] and [`Self::prepare_lake_snapshot`].
    pub(crate) async fn commit_lake_offsets(
        &self,
        given: &PbLakeTableSnapshotInfo,
    ) -> Result<TableId, Error> {
        let table = match (&given.table_path, given.table_id) {
            (Some(path), _) => self.parts.reads.table(&TablePath::from(path)).await?,
            (None, Some(id)) => self.table_by_id(TableId(id)).await?,
            (None, None) => return Err(Error::UnknownTable { table: TableId(-1) }),
        };
        let bucket_offsets = given.buckets_req.iter().map(|bucket| PbBucketOffset {
            partition_id: bucket.partition_id,
            bucket_id: bucket.bucket_id,
            log_end_offset: bucket.log_end_offset,
        });
        let offsets = PbTableOffsets {
            table_id: table.table_id.0,
            table_path: PbTablePath {
                database_name: table.path.database.clone(),
                table_name: table.path.table.clone(),
            },
            bucket_offsets: bucket_offsets.collect(),
        };
        let uri = self.prepare_lake_snapshot(&offsets, false).await?;
        self.commit_lake_snapshot(&PbLakeTableSnapshotMetadata {
            table_id: table.table_id.0,
            snapshot_id: given.snapshot_id,
            tiered_bucket_offsets_file_path: uri.clone(),
            readable_bucket_offsets_file_path: Some(uri),
            earliest_snapshot_id_to_keep: None,
        })
        .await?;
        Ok(table.table_id)
    }

    /// Removes offsets files that fell out some time ago, so that whoever opened one can finish.
    pub(super) async fn remove_discarded(self: &Arc<Self>) {
        let grace_ms =
            i64::try_from(self.parts.config.tiering.discarded_file_grace_ms).unwrap_or(i64::MAX);
        let now_ms = self.parts.clock.now_ms();
        let mut due = Vec::new();
        {
            let mut discarded = self.discarded.lock();
            while discarded
                .front()
                .is_some_and(|one| now_ms - one.since_ms >= grace_ms)
            {
                due.extend(discarded.pop_front());
            }
        }
        for one in due {
            if let Err(error) = self.remove_one(&one).await {
                tracing::warn!(uri = one.uri, %error, "an old offsets file stays");
            }
        }
    }

    /// Removes an offsets file, unless a snapshot names it again by now.
    async fn remove_one(&self, one: &Discarded) -> Result<(), weir_catalog::Error> {
        let named = self.parts.catalog.find_lake_table(one.table).await?;
        if named.is_some_and(|table| table.document.names(&one.uri)) {
            return Ok(());
        }
        let files = &self.parts.offsets_files;
        files.delete(&one.path, one.table, &one.uri).await
    }

    fn remember_reset(&self, uri: &str) {
        let mut resets = self.resets.lock();
        resets.push_back(uri.to_owned());
        if resets.len() > MAX_RESETS {
            resets.pop_front();
        }
    }

    fn discard(&self, table: &Table, uris: BTreeSet<String>) {
        let since_ms = self.parts.clock.now_ms();
        let discarded = uris.into_iter().map(|uri| Discarded {
            path: table.path.clone(),
            table: table.table_id,
            uri,
            since_ms,
        });
        self.discarded.lock().extend(discarded);
    }

    /// The offsets of a file of the table.
    async fn offsets_of(&self, table: &Table, uri: &str) -> Result<LakeOffsets, Error> {
        let files = &self.parts.offsets_files;
        let found = files.read(&table.path, table.table_id, uri).await;
        found.map_err(|error| match error {
            weir_catalog::Error::Corrupt { reason, .. } => Error::OffsetsFile {
                table: table.table_id,
                path: uri.to_owned(),
                reason,
            },
            other => other.into(),
        })
    }

    /// What is in the lake was in a log first. Buckets that nobody leads now can't be asked.
    async fn refuse_ahead_of_logs(
        &self,
        table: &Table,
        offsets: &LakeOffsets,
    ) -> Result<(), Error> {
        let counts = self.counts(table).await?;
        let table = table.table_id;
        let mut ends = offsets.end_offsets.iter().peekable();
        while let Some(((partition, _), _)) = ends.peek() {
            let partition = *partition;
            let log_ends = match counts.get(&partition) {
                Some(count) => self.parts.leaders.log_ends(table, partition, *count).await,
                None => BTreeMap::new(),
            };
            while let Some(((_, bucket), end)) = ends.next_if(|((of, _), _)| *of == partition) {
                let log_end = log_ends.get(bucket);
                if let Some(log_end) = log_end.copied().filter(|log_end| end > log_end) {
                    let bucket = TableBucket {
                        table,
                        partition,
                        bucket: *bucket,
                    };
                    let given = *end;
                    return Err(Error::LakeAheadOfLog {
                        bucket,
                        given,
                        log_end,
                    });
                }
            }
        }
        Ok(())
    }

    /// The bucket count of the table, or of each of its partitions.
    async fn counts(
        &self,
        table: &Table,
    ) -> Result<BTreeMap<Option<PartitionId>, TotalBuckets>, Error> {
        if !table.descriptor.is_partitioned() {
            return Ok(BTreeMap::from([(None, table.bucket_count)]));
        }
        let (_, partitions) = self.parts.reads.partitions(&table.path).await?;
        let count = |partition: Partition| (Some(partition.id), partition.bucket_count);
        Ok(partitions.into_iter().map(count).collect())
    }

    async fn notify_lake_ends(&self, table: &Table, snapshot_id: i64, offsets: &LakeOffsets) {
        let bucket =
            |((partition, bucket), end): (&(Option<PartitionId>, BucketId), &LogOffset)| {
                PbNotifyLakeTableOffsetReqForBucket {
                    table_id: table.table_id.0,
                    partition_id: partition.map(|partition| partition.0),
                    bucket_id: bucket.0,
                    snapshot_id,
                    log_start_offset: None,
                    log_end_offset: Some(end.0),
                    max_timestamp: None,
                }
            };
        let notify_buckets_req = offsets.end_offsets.iter().map(bucket).collect();
        self.parts
            .leaders
            .notify_lake_ends(NotifyLakeTableOffsetRequest {
                coordinator_epoch: self.parts.leaders.coordinator_epoch(),
                notify_buckets_req,
            })
            .await;
    }

    async fn table_with_id(&self, path: &TablePath, given: TableId) -> Result<Table, Error> {
        let table = self.parts.reads.table(path).await?;
        if table.table_id != given {
            let actual = table.table_id;
            return Err(Error::OtherTable {
                path: path.clone(),
                given,
                actual,
            });
        }
        Ok(table)
    }

    /// A table that exists now, by its id.
    async fn table_by_id(&self, table: TableId) -> Result<Table, Error> {
        let path = self
            .paths
            .lock()
            .get(&table)
            .cloned()
            .ok_or(Error::UnknownTable { table })?;
        match self.table_with_id(&path, table).await {
            Err(Error::OtherTable { .. }) => Err(Error::UnknownTable { table }),
            Err(Error::Catalog(weir_catalog::Error::TableNotExist { .. })) => {
                Err(Error::UnknownTable { table })
            }
            other => other,
        }
    }
}

fn refuse_regression(
    table: TableId,
    newer: &LakeOffsets,
    previous: &LakeOffsets,
) -> Result<(), Error> {
    match newer.first_regression(previous) {
        None => Ok(()),
        Some(((partition, bucket), current, given)) => {
            let bucket = TableBucket {
                table,
                partition,
                bucket,
            };
            Err(Error::LakeRegression {
                bucket,
                given,
                current,
            })
        }
    }
}
