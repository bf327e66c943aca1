//! Partitions.

use std::sync::OnceLock;

use futures::FutureExt;
use weir_protocol::ids::{PartitionId, ServerId, TableId, TablePath, TotalBuckets};
use weir_protocol::partition::PartitionSpec;

use super::tables::place;
use super::{Catalog, Created, IfExists, IfMissing, Partition, READ_ATTEMPTS, Table, bad_key};
use crate::ddl;
use crate::model::{Document, Stored, Unknown, partition};
use crate::occ::{self, DEFAULT_ATTEMPTS, Decision};
use crate::store::{Expect, Key, Page, Txn};
use crate::{Error, Result, bucket_count};

/// Entries of one page of a scan.
const PAGE: usize = 1000;

/// A partition to create.
#[derive(Clone, Debug)]
pub struct NewPartition<'a> {
    /// The table.
    pub path: &'a TablePath,
    /// Values of all partition keys, in any order.
    pub spec: &'a PartitionSpec,
    /// Live tablet servers that may hold its buckets.
    pub servers: &'a [ServerId],
}

impl Catalog {
    /// Creates a partition: its document and its assignment in one transaction, with the bucket
    /// count that the table has at that moment. Altering the table meanwhile does no harm;
    /// re-creating it makes this fail. Partitions of one table may be created at the same time, and
    /// then be as many above the limit of their number.
    ///
    /// # Errors
    /// [`Error::TableNotExist`], [`Error::TableNotPartitioned`], [`Error::InvalidPartition`],
    /// [`Error::PartitionAlreadyExist`], [`Error::TooManyPartitions`],
    /// [`Error::InvalidReplicationFactor`].
    pub async fn create_partition(
        &self,
        request: NewPartition<'_>,
        if_exists: IfExists,
    ) -> Result<Created<Partition>> {
        let (path, ids) = (request.path, &Ids::default());
        let (request, what) = (
            &request,
            format!("creating partition {} of {path}", request.spec),
        );
        let created = occ::update(&*self.store, &what, DEFAULT_ATTEMPTS, |_| {
            self.decide_partition(request, if_exists, ids).boxed()
        })
        .await?;
        Ok(created.value)
    }

    async fn decide_partition(
        &self,
        request: &NewPartition<'_>,
        if_exists: IfExists,
        ids: &Ids,
    ) -> Result<Decision<Created<Partition>>> {
        let path = request.path;
        let Some(database) = self.find_database(&path.database).await? else {
            return Err(Error::TableNotExist { path: path.clone() });
        };
        let table = self.get_table(path).await?;
        if *ids.table.get_or_init(|| table.table_id) != table.table_id {
            return Err(Error::TableNotExist { path: path.clone() });
        }
        let spec = ddl::ordered_spec(path, &table.descriptor.partition_keys, request.spec)?;
        let name = spec.name();
        let key = Key::partition(path, &name).map_err(bad_key(path))?;
        if let Some(existing) = self.get::<partition::Partition>(&key).await? {
            return match if_exists {
                IfExists::Ignore => Ok(Decision::Done(Created::Existing(resolve(
                    &table, name, &existing,
                )?))),
                IfExists::Fail => Err(Error::PartitionAlreadyExist {
                    path: path.clone(),
                    partition: name,
                }),
            };
        }
        ddl::check_partition(path, &table.descriptor, &spec, self.clock.now_ms())?;
        let max = self.rules.max_partition_count;
        let partitions = Key::partitions(path).map_err(bad_key(path))?;
        if self.children(&partitions).await?.len() >= max {
            return Err(Error::TooManyPartitions {
                path: path.clone(),
                max,
            });
        }
        let id = self.partition_id(ids).await?;
        let assignment = place(&table, Some(id), request.servers)?;
        let document = partition::Partition {
            table_id: table.table_id,
            partition_id: id,
            bucket_count: Some(assignment.bucket_count()),
            remote_data_dir: None,
            unknown: Unknown::new(),
        };
        let table_key = Key::table(path).map_err(bad_key(path))?;
        let txn = self
            .txn()
            .put(key, document.encode()?, Expect::Absent)
            .put(
                Key::partition_assignment(id),
                assignment.encode()?,
                Expect::Absent,
            )
            .check(table_key, Expect::Incarnation(table.created));
        let txn = Self::keep_table(txn, table.table_id, id)?;
        let txn = Self::keep_database(txn, &path.database, &database)?;
        let bucket_count = assignment.bucket_count();
        let created = Partition {
            id,
            name,
            spec,
            bucket_count,
            remote_data_dir: None,
        };
        Ok(Decision::Commit(txn, Created::New(created)))
    }

    /// Adds to the transaction of a new partition what makes a drop of its table that has counted
    /// the partitions already look again.
    fn keep_table(txn: Txn, table: TableId, partition_id: PartitionId) -> Result<Txn> {
        let unknown = Unknown::new();
        let last = partition::LastPartition {
            partition_id,
            unknown,
        };
        Ok(txn.put(Key::last_partition(table), last.encode()?, Expect::Any))
    }

    /// Adds to a transaction that no partition of a table was made since `last` was read.
    pub(super) fn no_new_partition(
        txn: Txn,
        table: TableId,
        last: Option<&Stored<partition::LastPartition>>,
    ) -> Txn {
        let expect = last.map_or(Expect::Absent, |last| Expect::At(last.modified));
        txn.check(Key::last_partition(table), expect)
    }

    /// The id of a partition to create, taken once for all attempts.
    async fn partition_id(&self, ids: &Ids) -> Result<PartitionId> {
        if let Some(id) = ids.partition.get() {
            return Ok(*id);
        }
        let taken = PartitionId(self.take_id(Key::partition_ids()).await?);
        Ok(*ids.partition.get_or_init(|| taken))
    }

    /// Drops a partition. Its rows in the lake stay. Its buckets are deleted afterwards, see
    /// [`Catalog::finish_partition_drop`]. `None` if there was none.
    ///
    /// # Errors
    /// [`Error::TableNotExist`], [`Error::TableNotPartitioned`], [`Error::InvalidPartition`],
    /// [`Error::PartitionNotExist`].
    pub async fn drop_partition(
        &self,
        path: &TablePath,
        spec: &PartitionSpec,
        if_missing: IfMissing,
    ) -> Result<Option<PartitionId>> {
        let first_id = &OnceLock::new();
        let what = format!("dropping partition {spec} of {path}");
        let dropped = occ::update(&*self.store, &what, DEFAULT_ATTEMPTS, |_| {
            async move {
                let table = self.get_table(path).await?;
                let spec = ddl::ordered_spec(path, &table.descriptor.partition_keys, spec)?;
                let name = spec.name();
                let key = Key::partition(path, &name).map_err(bad_key(path))?;
                let found = self.get::<partition::Partition>(&key).await?;
                let same = found.filter(|found| {
                    let id = found.document.partition_id;
                    *first_id.get_or_init(|| id) == id
                });
                let Some(found) = same else {
                    return match if_missing {
                        IfMissing::Ignore => Ok(Decision::Done(None)),
                        IfMissing::Fail => Err(Error::PartitionNotExist {
                            path: path.clone(),
                            partition: name,
                        }),
                    };
                };
                let txn = self.txn().delete(key, Expect::At(found.modified));
                Ok(Decision::Commit(txn, Some(found.document.partition_id)))
            }
            .boxed()
        })
        .await?;
        Ok(dropped.value)
    }

    /// A partition by name; `None` if there is none.
    ///
    /// # Errors
    /// [`Error::TableNotExist`], [`Error::TableNotPartitioned`], [`Error::StaleMetadata`] if its
    /// bucket count is missing although the table's was altered.
    pub async fn find_partition(&self, path: &TablePath, name: &str) -> Result<Option<Partition>> {
        let table = self.get_table(path).await?;
        check_partitioned(&table)?;
        let Ok(key) = Key::partition(path, name) else {
            return Ok(None);
        };
        match self.get::<partition::Partition>(&key).await? {
            Some(found) => resolve(&table, name.to_owned(), &found).map(Some),
            None => Ok(None),
        }
    }

    /// A table and all its partitions by name, the table read first.
    ///
    /// # Errors
    /// As [`Self::find_partition`].
    pub async fn list_partitions(&self, path: &TablePath) -> Result<(Table, Vec<Partition>)> {
        for _ in 0..READ_ATTEMPTS {
            let table = self.get_table(path).await?;
            check_partitioned(&table)?;
            let documents = self.partition_documents(path).await?;
            if documents
                .iter()
                .any(|(_, found)| found.document.table_id != table.table_id)
            {
                continue;
            }
            let mut partitions = Vec::with_capacity(documents.len());
            for (name, found) in documents {
                partitions.push(resolve(&table, name, &found)?);
            }
            return Ok((table, partitions));
        }
        let what = format!("listing the partitions of {path}");
        Err(Error::Conflict {
            what,
            attempts: READ_ATTEMPTS,
        })
    }

    /// The documents of a table's partitions, by name.
    pub(super) async fn partition_documents(
        &self,
        path: &TablePath,
    ) -> Result<Vec<(String, Stored<partition::Partition>)>> {
        let prefix = Key::partitions(path).map_err(bad_key(path))?;
        let (mut documents, mut page) = (Vec::new(), Page::first(PAGE));
        loop {
            let entries = self
                .store
                .scan(&prefix, page.clone())
                .await
                .map_err(Error::store(&prefix))?;
            let is_last = entries.len() < PAGE;
            for (key, entry) in entries {
                if key.is_child_of(&prefix) {
                    documents.push((key.name().to_owned(), Stored::decode(&key, &entry)?));
                }
                page.after = Some(key);
            }
            if is_last {
                return Ok(documents);
            }
        }
    }
}

/// Ids that all attempts of one creation share.
#[derive(Default)]
struct Ids {
    table: OnceLock<TableId>,
    partition: OnceLock<PartitionId>,
}

fn check_partitioned(table: &Table) -> Result<()> {
    if table.descriptor.is_partitioned() {
        return Ok(());
    }
    Err(Error::TableNotPartitioned {
        path: table.path.clone(),
    })
}

fn resolve(table: &Table, name: String, found: &Stored<partition::Partition>) -> Result<Partition> {
    let partition::Partition {
        partition_id: id,
        bucket_count: own,
        ..
    } = found.document;
    let (count, epoch) = (table.bucket_count, table.bucket_layout_epoch);
    let bucket_count: TotalBuckets =
        bucket_count::resolve((table.table_id, id), own, count, epoch)?;
    let keys = &table.descriptor.partition_keys;
    let spec = PartitionSpec::from_name(keys, &name).map_err(|error| Error::Corrupt {
        what: format!("partition `{name}` of {}", table.path),
        reason: error.to_string(),
    })?;
    let remote_data_dir = found.document.remote_data_dir.clone();
    Ok(Partition {
        id,
        name,
        spec,
        bucket_count,
        remote_data_dir,
    })
}
