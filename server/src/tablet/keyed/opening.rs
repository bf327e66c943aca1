//! The keys of a bucket come with its log, and go with it.

use std::path::PathBuf;
use std::sync::Arc;

use weir_kv::KvStore;
use weir_protocol::ids::{LogOffset, TableBucket};

use super::{Keyed, Surroundings};
use crate::error::Error;
use crate::log::Log;
use crate::tablet::transitions::bucket_dir;
use crate::tablet::{TableInfo, TabletServer};

impl TabletServer {
    /// The keys beside a log that was just opened; none of a log table.
    ///
    /// # Errors
    /// [`Error::StateApart`] if the log does not hold what the keys lack, or ends before `lake_end`: what
    /// came after is in the lake, and in no key.
    pub(in crate::tablet) async fn open_keys(
        &self,
        log: &Arc<Log>,
        table: &Arc<TableInfo>,
        lake_end: Option<LogOffset>,
    ) -> Result<Option<Keyed>, Error> {
        if !table.has_keys() {
            return Ok(None);
        }
        let rules = table.key_rules()?;
        let dir = self.kv_dir(log.bucket());
        if let Some(lake_end) = lake_end.filter(|lake_end| *lake_end > log.log_end()) {
            let end = log.log_end();
            return Err(Error::StateApart {
                bucket: log.bucket(),
                path: dir,
                position: end,
                reason: format!("the lake holds changes up to {lake_end} that the log has lost"),
            });
        }
        let keyed = Keyed::open(log, table, &rules, &dir, self.around_keys()).await?;
        Ok(Some(keyed))
    }

    /// Removes the keys of a bucket that is closed or was never opened.
    pub(in crate::tablet) async fn remove_keys(&self, bucket: TableBucket) -> Result<(), Error> {
        let dir = self.kv_dir(bucket);
        KvStore::remove(&self.parts.kv.environment, &dir).await?;
        let root = self.parts.kv.dir.clone();
        let remove = move || {
            let parents = dir.ancestors().skip(1).take_while(|parent| *parent != root);
            for parent in parents {
                // One that still holds another bucket or partition stays.
                if std::fs::remove_dir(parent).is_err() {
                    break;
                }
            }
        };
        tokio::task::spawn_blocking(remove).await?;
        Ok(())
    }

    /// Where a bucket's keys are kept. Made of ids alone.
    pub(in crate::tablet) fn kv_dir(&self, bucket: TableBucket) -> PathBuf {
        bucket_dir(&self.parts.kv.dir, bucket)
    }

    fn around_keys(&self) -> Surroundings {
        let parts = &self.parts;
        Surroundings {
            environment: parts.kv.environment.clone(),
            reads: Arc::clone(&parts.reads),
            clock: Arc::clone(&parts.clock),
            metrics: Arc::clone(&parts.metrics),
            room: Arc::clone(&self.room),
            turns: Arc::clone(&self.appends),
            max_batch_bytes: parts.log_options.config.max_batch_bytes,
            max_waiting: parts.kv.config.max_waiting_puts,
            max_buffer_bytes: parts.kv.config.max_buffer_bytes,
            old_values: self.old_values.clone(),
            failed: Arc::clone(&self.keys_failed),
        }
    }
}
