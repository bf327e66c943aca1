//! Who may tier a table: an epoch that only rises, and its owner.

use futures::FutureExt;
use weir_protocol::ids::{TableId, TieringEpoch};

use super::Catalog;
use crate::Result;
use crate::clock::unique_name;
use crate::model::tiering::{Tiering, TieringOwner};
use crate::model::{Document, Unknown};
use crate::occ::{self, DEFAULT_ATTEMPTS, Decision};
use crate::store::{Expect, Key, SessionId};

impl Catalog {
    /// The epoch that a table was given out with last; 0 if it never was.
    pub async fn get_tiering_epoch(&self, table: TableId) -> Result<TieringEpoch> {
        let found = self.get::<Tiering>(&Key::tiering(table)).await?;
        Ok(found.map_or(TieringEpoch(0), |found| found.document.tiering_epoch))
    }

    /// Raises the tiering epoch of a table and returns it: whoever held the table before is fenced.
    /// It never goes back, also across coordinators and when the lake is switched off and on again.
    pub async fn next_tiering_epoch(&self, table: TableId) -> Result<TieringEpoch> {
        let what = format!("giving out table {table} for tiering");
        let raised = occ::update(&*self.store, &what, DEFAULT_ATTEMPTS, |_| {
            async move {
                let key = Key::tiering(table);
                let found = self.get::<Tiering>(&key).await?;
                let (last, expect, unknown) = match found {
                    Some(found) => {
                        let Tiering {
                            tiering_epoch,
                            unknown,
                            ..
                        } = found.document;
                        (tiering_epoch, Expect::At(found.modified), unknown)
                    }
                    None => (TieringEpoch(0), Expect::Absent, Unknown::new()),
                };
                let tiering_epoch = TieringEpoch(last.0 + 1);
                let given_time = self.clock.now_ms();
                let document = Tiering {
                    table_id: table,
                    tiering_epoch,
                    given_time,
                    nonce: Some(unique_name()),
                    unknown,
                };
                let txn = self.txn().put(key, document.encode()?, expect);
                Ok(Decision::Commit(txn, tiering_epoch))
            }
            .boxed()
        })
        .await?;
        Ok(raised.value)
    }

    /// Writes who holds a table, for as long as `session` lasts.
    pub async fn put_tiering_owner(
        &self,
        table: TableId,
        owner: &TieringOwner,
        session: SessionId,
    ) -> Result<()> {
        let key = Key::tiering_owner(table);
        let txn = self
            .txn()
            .put_ephemeral(key, owner.encode()?, Expect::Any, session);
        self.commit_once("writing who tiers a table", txn)
            .await
            .map(drop)
    }
}
