//! The lake's bucket counts follow the tables': right after a change, at a start, and by the clock after
//! one that failed half-way.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use weir_catalog::catalog::IfMissing;
use weir_catalog::ddl::TableChange;
use weir_protocol::ids::TablePath;

use super::Coordinator;
use crate::error::Error;

/// How often tables are looked at whose lake may have another count.
const CHECK: Duration = Duration::from_mins(10);
/// How many tables are looked at together.
const AT_ONCE: usize = 8;

impl Coordinator {
    /// Changes a table in the catalog. Where that may have told the lake a bucket count, the lake
    /// ends with the one that the table has, however the change ended.
    pub(super) async fn change_table(
        &self,
        path: &TablePath,
        changes: &[TableChange],
        if_missing: IfMissing,
    ) -> Result<(), Error> {
        let is_of_count = changes.iter().any(TableChange::is_of_bucket_count);
        if is_of_count {
            self.uneven.lock().insert(path.clone());
        }
        let catalog = &self.parts.catalog;
        let altered = catalog.alter_table(path, changes, if_missing).await;
        if is_of_count {
            match may_have_told(&altered) {
                Told::Maybe => self.reconcile_bucket_count(path).await,
                // The lake is not asked in the middle of a request that was refused.
                Told::Hardly => {}
                Told::Nothing => {
                    self.uneven.lock().remove(path);
                }
            }
        }
        altered?;
        Ok(())
    }

    /// Looks after the bucket counts of all lake tables now, for an earlier process may have left some
    /// apart, and of those that may be apart from time to time, until the shutdown begins.
    pub(crate) async fn bucket_count_loop(self: Arc<Self>) {
        let mut all_looked_at = false;
        loop {
            if !all_looked_at {
                match self.parts.reads.all_tables().await {
                    Ok(all) => {
                        self.uneven.lock().extend(all);
                        all_looked_at = true;
                    }
                    Err(error) => {
                        tracing::warn!(%error, "bucket counts of the lake were not all looked at");
                    }
                }
            }
            let uneven = self.uneven.lock().clone();
            futures::stream::iter(&uneven)
                .for_each_concurrent(AT_ONCE, |path| self.reconcile_bucket_count(path))
                .await;
            tokio::select! {
                biased;
                () = self.parts.shutdown.begun() => return,
                () = tokio::time::sleep(CHECK) => {}
            }
        }
    }

    /// A failure is logged: the next look mends it.
    async fn reconcile_bucket_count(&self, path: &TablePath) {
        match self.parts.catalog.reconcile_bucket_count(path).await {
            Ok(()) | Err(weir_catalog::Error::TableNotExist { .. }) => {
                self.uneven.lock().remove(path);
            }
            Err(error) => tracing::warn!(table = %path, %error,
                "the lake may have another bucket count for new partitions than the table"),
        }
    }
}

/// Whether the lake may have been told a count.
enum Told {
    Maybe,
    /// Only if partitions could not be counted afterwards.
    Hardly,
    /// The refusal came before.
    Nothing,
}

fn may_have_told<T>(altered: &weir_catalog::Result<T>) -> Told {
    use weir_catalog::Error as Catalog;
    match altered {
        Err(
            Catalog::TableNotExist { .. }
            | Catalog::TooManyBuckets { .. }
            | Catalog::InvalidConfig { .. },
        ) => Told::Nothing,
        Err(Catalog::InvalidAlterTable { .. }) => Told::Hardly,
        _ => Told::Maybe,
    }
}
