//! The lake's bucket counts follow the tables': right after a change, and by the clock after one that
//! failed half-way.

use std::sync::Arc;
use std::time::Duration;

use weir_catalog::catalog::IfMissing;
use weir_catalog::ddl::TableChange;
use weir_protocol::ids::TablePath;

use super::Coordinator;
use crate::error::Error;

/// How often all tables are looked at.
const CHECK: Duration = Duration::from_mins(10);

impl Coordinator {
    /// Changes a table in the catalog. Where that may have told the lake a bucket count, the lake
    /// ends with the one that the table has, however the change ended.
    pub(super) async fn change_table(
        &self,
        path: &TablePath,
        changes: &[TableChange],
        if_missing: IfMissing,
    ) -> Result<(), Error> {
        let catalog = &self.parts.catalog;
        let altered = catalog.alter_table(path, changes, if_missing).await;
        if changes.iter().any(TableChange::is_of_bucket_count) && may_have_told(&altered) {
            self.reconcile_bucket_count(path).await;
        }
        altered?;
        Ok(())
    }

    /// Looks after the bucket counts of all lake tables now and from time to time, until the shutdown
    /// begins.
    pub(crate) async fn bucket_count_loop(self: Arc<Self>) {
        loop {
            if let Err(error) = self.reconcile_bucket_counts().await {
                tracing::warn!(%error, "bucket counts of the lake were not all looked at");
            }
            tokio::select! {
                biased;
                () = self.parts.shutdown.begun() => return,
                () = tokio::time::sleep(CHECK) => {}
            }
        }
    }

    async fn reconcile_bucket_counts(&self) -> Result<(), Error> {
        for path in self.parts.reads.all_tables().await? {
            self.reconcile_bucket_count(&path).await;
        }
        Ok(())
    }

    /// A failure is logged: the next look mends it.
    async fn reconcile_bucket_count(&self, path: &TablePath) {
        match self.parts.catalog.reconcile_bucket_count(path).await {
            Ok(()) | Err(weir_catalog::Error::TableNotExist { .. }) => {}
            Err(error) => tracing::warn!(table = %path, %error,
                "the lake may have another bucket count for new partitions than the table"),
        }
    }
}

/// Whether the lake may have been told a count: a refusal comes before.
fn may_have_told<T>(altered: &weir_catalog::Result<T>) -> bool {
    use weir_catalog::Error as Catalog;
    !matches!(
        altered,
        Err(Catalog::TableNotExist { .. }
            | Catalog::TooManyBuckets { .. }
            | Catalog::InvalidConfig { .. })
    )
}
