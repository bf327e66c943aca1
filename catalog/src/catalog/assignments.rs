//! Which servers hold buckets, who leads them, and which servers live.

use futures::FutureExt;
use weir_protocol::ids::{PartitionId, ServerId, TableBucket, TableId};

use super::Catalog;
use crate::model::assignment::Assignment;
use crate::model::leader_isr::LeaderIsr;
use crate::model::tablet_server::TabletServer;
use crate::model::{Document, Stored};
use crate::occ::{self, Decision};
use crate::store::{Expect, Key, Revision, SessionId, Txn};
use crate::{Error, Result};

/// Leaders written in one transaction, as the reference does.
const LEADERS_PER_TXN: usize = 1024;

impl Catalog {
    /// The assignment of a table (`partition` is `None`) or of a partition; `None` if there is
    /// none.
    pub async fn find_assignment(
        &self,
        table: TableId,
        partition: Option<PartitionId>,
    ) -> Result<Option<Stored<Assignment>>> {
        self.get(&Key::assignment_of(table, partition)).await
    }

    /// Ids that have an assignment: of tables, and of partitions. At start, one whose table or
    /// partition is unknown is a drop that was not finished.
    ///
    /// A partitioned table that has a lake snapshot but no assignment is not among them.
    pub async fn list_assignments(&self) -> Result<(Vec<TableId>, Vec<PartitionId>)> {
        let tables = self.numbers(&Key::table_assignments()).await?;
        let partitions = self.numbers(&Key::partition_assignments()).await?;
        let tables = tables.into_iter().map(TableId).collect();
        Ok((tables, partitions.into_iter().map(PartitionId).collect()))
    }

    async fn numbers(&self, key: &Key) -> Result<Vec<i64>> {
        let names = self.children(key).await?;
        let number = |name: String| {
            name.parse().map_err(|_| Error::Corrupt {
                what: key.to_string(),
                reason: format!("`{name}` is no id"),
            })
        };
        names.into_iter().map(number).collect()
    }

    /// Leaders of buckets, in the order asked for; `None` where none was elected yet.
    pub async fn get_leaders(
        &self,
        buckets: &[TableBucket],
    ) -> Result<Vec<Option<Stored<LeaderIsr>>>> {
        let keys: Vec<Key> = buckets
            .iter()
            .map(|bucket| Key::leader_isr(*bucket))
            .collect();
        let found = self
            .store
            .get_many(&keys)
            .await
            .map_err(Error::store("reading leaders"))?;
        let decode = |(key, entry): (&Key, Option<_>)| match entry {
            Some(entry) => Stored::decode(key, &entry).map(Some),
            None => Ok(None),
        };
        keys.iter().zip(found).map(decode).collect()
    }

    /// Writes leaders, each where its `Expect` holds, in transactions of 1,024.
    ///
    /// # Errors
    /// [`Error::Conflict`] if one does not hold: nothing of its transaction is written; read again.
    pub async fn put_leaders(&self, leaders: &[(TableBucket, LeaderIsr, Expect)]) -> Result<()> {
        const WHAT: &str = "writing leaders";
        for batch in leaders.chunks(LEADERS_PER_TXN) {
            let mut txn = self.txn();
            for (bucket, leader, expect) in batch {
                txn = txn.put(Key::leader_isr(*bucket), leader.encode()?, *expect);
            }
            self.commit_once(WHAT, txn).await?;
        }
        Ok(())
    }

    /// Forgets the buckets of a dropped table and what the lake has of it. Partitions are forgotten
    /// each.
    pub async fn finish_table_drop(&self, table: TableId) -> Result<()> {
        let txn = self
            .txn()
            .delete_tree(Key::table_assignment(table), Expect::Any)
            .delete_tree(Key::tiering(table), Expect::Any);
        self.commit_once("forgetting a dropped table", txn)
            .await
            .map(drop)
    }

    /// Forgets the buckets of a dropped partition.
    pub async fn finish_partition_drop(&self, partition: PartitionId) -> Result<()> {
        let txn = self
            .txn()
            .delete_tree(Key::partition_assignment(partition), Expect::Any);
        self.commit_once("forgetting a dropped partition", txn)
            .await
            .map(drop)
    }

    /// Registers a live tablet server for as long as `session` lasts.
    ///
    /// # Errors
    /// [`Error::Conflict`] while a registration of an earlier session still stands.
    pub async fn register_server(
        &self,
        server: ServerId,
        registration: &TabletServer,
        session: SessionId,
    ) -> Result<()> {
        let key = Key::tablet_server(server);
        let what = format!("registering tablet server {server}");
        // Unfenced: a server registers whoever coordinates.
        let txn = Txn::new(None);
        let txn = txn.put_ephemeral(key, registration.encode()?, Expect::Absent, session);
        self.commit_once(&what, txn).await.map(drop)
    }

    /// The live tablet servers, by id.
    pub async fn list_servers(&self) -> Result<Vec<(ServerId, TabletServer)>> {
        let ids = self.numbers(&Key::tablet_servers()).await?;
        let mut servers = Vec::with_capacity(ids.len());
        for id in ids {
            let id = ServerId(i32::try_from(id).map_err(|_| Error::Corrupt {
                what: Key::tablet_servers().to_string(),
                reason: format!("{id} is no id of a server"),
            })?);
            if let Some(found) = self.get::<TabletServer>(&Key::tablet_server(id)).await? {
                servers.push((id, found.document));
            }
        }
        servers.sort_unstable_by_key(|(id, _)| *id);
        Ok(servers)
    }

    /// Commits without reading first, and so without trying again on conflict.
    pub(super) async fn commit_once(&self, what: &str, txn: Txn) -> Result<Option<Revision>> {
        let (mut txn, attempts) = (Some(txn), 1);
        let decide = |_| {
            let txn = txn.take();
            async move {
                Ok(match txn {
                    Some(txn) => Decision::Commit(txn, ()),
                    None => Decision::Again,
                })
            }
            .boxed()
        };
        Ok(occ::update(&*self.store, what, attempts, decide)
            .await?
            .revision)
    }
}
