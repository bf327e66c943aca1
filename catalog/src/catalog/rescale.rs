//! Another bucket count for the partitions to come.

use weir_protocol::ids::{TablePath, TotalBuckets};

use super::tables::{is_lake_enabled, within};
use super::{Catalog, Table, bad_key};
use crate::ddl::{self, Counted, Rescale};
use crate::model::assignment::Assignment;
use crate::model::{Document, Stored, partition, table};
use crate::occ::{Attempt, DEFAULT_ATTEMPTS, Decision};
use crate::store::{Expect, Key};
use crate::{Error, Result};

impl Catalog {
    /// Decides one attempt: the lake table learns the count first, then table, epoch and partitions
    /// without a count change in one transaction.
    ///
    /// Partitions made after they are listed here need no check: each stores the count that its
    /// buckets were made by.
    pub(super) async fn decide_bucket_count(
        &self,
        table: Table,
        next: TotalBuckets,
        attempt: Attempt,
    ) -> Result<Decision<bool>> {
        self.rescale_lake(&table, next).await?;
        let before = (table.bucket_count, table.bucket_layout_epoch);
        if before.0 == next {
            return Ok(Decision::Done(true));
        }
        let path = &table.path;
        let found = self.partition_documents(path).await?;
        let mut counted = Vec::with_capacity(found.len());
        for (_, partition) in &found {
            counted.push(self.counted(partition).await?);
        }
        let (epoch, backfill) = match ddl::rescale(before, next, &counted) {
            Rescale::Unchanged => return Ok(Decision::Done(true)),
            Rescale::Unreadable(_) if !attempt.is_last => return Ok(Decision::Again),
            Rescale::Unreadable(at) => {
                let name = found.get(at).map(|(name, _)| name.as_str());
                let name = name.unwrap_or_default();
                let reason = format!(
                    "`bucket.num` can't change: the buckets of partition {name}, which has no count of \
                     its own, can't be counted"
                );
                let path = path.clone();
                return Err(Error::InvalidAlterTable { path, reason });
            }
            Rescale::Commit { epoch, backfill } => (epoch, backfill),
        };
        let key = Key::table(path).map_err(bad_key(path))?;
        let Some(mut stored) = self.get::<table::Table>(&key).await? else {
            return Ok(Decision::Again);
        };
        stored.document.bucket_count = next;
        stored.document.bucket_layout_epoch = epoch;
        stored.document.modified_time = self.clock.now_ms();
        let mut txn = self
            .txn()
            .put(key, stored.document.encode()?, Expect::At(table.modified));
        for (at, count) in backfill {
            let Some((name, partition)) = found.get(at) else {
                return Ok(Decision::Again);
            };
            let mut document = partition.document.clone();
            document.bucket_count = Some(count);
            let key = Key::partition(path, name).map_err(bad_key(path))?;
            txn = txn.put(key, document.encode()?, Expect::At(partition.modified));
        }
        Ok(Decision::Commit(txn, true))
    }

    /// Carries the table's count into its lake, where a change that failed half-way or another one
    /// beside it may have left another. Costs two reads of the table and one of the lake if all is
    /// well; nothing is done for tables that have no such count in the lake.
    ///
    /// What this sets last is what the table says afterwards, so that of several at once the lake
    /// ends with the table's count.
    ///
    /// # Errors
    /// [`Error::TableNotExist`], [`Error::Lake`] if the lake can't be read or written,
    /// [`Error::Conflict`] if the count changed each time.
    pub async fn reconcile_bucket_count(&self, path: &TablePath) -> Result<()> {
        let mut table = self.get_table(path).await?;
        for _ in 0..DEFAULT_ATTEMPTS {
            if !table.descriptor.is_partitioned() {
                return Ok(());
            }
            self.rescale_lake(&table, table.bucket_count).await?;
            let now = self.get_table(path).await?;
            if (now.table_id, now.bucket_count) == (table.table_id, table.bucket_count) {
                return Ok(());
            }
            table = now;
        }
        Err(Error::Conflict {
            what: format!("carrying the bucket count of {path} into the lake"),
            attempts: DEFAULT_ATTEMPTS,
        })
    }

    /// Tells the lake table how many buckets new partitions get; it may know.
    async fn rescale_lake(&self, table: &Table, next: TotalBuckets) -> Result<()> {
        let (path, descriptor) = (&table.path, &table.descriptor);
        if !is_lake_enabled(path, descriptor)? || descriptor.bucket_keys.is_empty() {
            return Ok(());
        }
        let lake = self.lake_of(path)?;
        within(path, lake.set_bucket_count(path, descriptor, next)).await
    }

    async fn counted(&self, partition: &Stored<partition::Partition>) -> Result<Counted> {
        let own = partition.document.bucket_count;
        let assigned = match own {
            Some(_) => None,
            None => {
                let key = Key::partition_assignment(partition.document.partition_id);
                let found = self.get::<Assignment>(&key).await?;
                found.map(|found| found.document.bucket_count())
            }
        };
        Ok(Counted { own, assigned })
    }
}
