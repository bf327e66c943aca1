//! Whether the history of a lake table is the table's own.

use weir_catalog::ddl::properties::LAKE_HISTORY;
use weir_catalog::lake::is_claim;
use weir_lake_format::{CommitKind, Snapshot};
use weir_protocol::ids::TableBucket;

use super::{COMMIT_USER, Committer, OFFSETS, RANGES, TABLE_ID};
use crate::cluster::LakeProgress;
use crate::error::{Error, Result};
use crate::lease::Lease;
use crate::ranges;

impl Committer {
    /// The lake table must be the one that was tiered so far, or one without rows: else rows of others
    /// would be mixed with the table's own. The cluster may know of a snapshot of another kind
    /// (compaction), never of one beyond the lake's newest.
    ///
    /// Returns the latest snapshot if none is of tiering.
    pub(super) async fn check_history(
        &self,
        lease: &Lease,
        own: Option<&Snapshot>,
        progress: &LakeProgress,
    ) -> Result<Option<i64>> {
        let id = own.and_then(|own| Some((own.id, own.property(TABLE_ID)?)));
        if let Some((snapshot, found)) = id
            && found != lease.table.to_string()
            && !self.adopts_history
        {
            let reason = format!("it is of table {found}, not {}", lease.table);
            return Err(self.foreign(snapshot, &reason));
        }
        let known = progress.snapshot;
        if own.is_some_and(|own| known.is_none_or(|known| own.id >= known)) {
            return Ok(None);
        }
        let lake = |error| self.lake.error(error);
        let found = self.lake.table.latest_snapshot().await.map_err(lake)?;
        let latest = found.as_ref().map(|found| found.id);
        match (known, latest) {
            (None, None) => {}
            (Some(known), latest) if latest.is_none_or(|latest| latest < known) => {
                return Err(Error::LakeBehind {
                    table: self.lake.path().clone(),
                    known,
                    latest,
                });
            }
            _ if self.adopts_history => {}
            (None, _) if found.as_ref().is_some_and(is_claim) => {}
            (None, Some(latest)) => return Err(self.foreign(latest, "it is not of tiering")),
            (Some(known), _) => self.check_registered(known).await?,
        }
        Ok(latest)
    }

    /// What the cluster knows of the buckets of the newest round is what its snapshot says. Nothing
    /// guards the digits of an offsets file: a lower offset would double rows, a higher one skip some.
    pub(super) async fn check_ends(
        &self,
        lease: &Lease,
        own: Option<&Snapshot>,
        progress: &LakeProgress,
    ) -> Result<()> {
        let Some(own) = own.filter(|own| Some(own.id) == progress.snapshot) else {
            return Ok(());
        };
        let is_of_table = own.property(TABLE_ID) == Some(&lease.table.to_string());
        let Some(text) = own.property(RANGES).filter(|_| is_of_table) else {
            return Ok(());
        };
        for range in ranges::load(&self.lake.table, text).await? {
            let bucket = TableBucket {
                table: lease.table,
                partition: range.partition_id,
                bucket: range.bucket,
            };
            let registered = progress.ends.get(&bucket).copied();
            // A partition that was dropped is none of the cluster's any more.
            let is_gone = registered.is_none() && range.partition_id.is_some();
            if registered != Some(range.end) && !is_gone {
                return Err(Error::EndsDiffer {
                    table: self.lake.path().clone(),
                    bucket,
                    snapshot: own.id,
                    end: range.end,
                    registered,
                    file: own.property(OFFSETS).unwrap_or_default().to_owned(),
                });
            }
        }
        Ok(())
    }

    /// A snapshot that the cluster knows was made by tiering, or in place of one that was.
    async fn check_registered(&self, known: i64) -> Result<()> {
        let snapshot = match self.lake.table.snapshot(known).await {
            Ok(snapshot) => snapshot,
            // Expired: those that could tell are gone.
            Err(weir_lake_format::Error::NotFound { .. }) => return Ok(()),
            Err(error) => return Err(self.lake.error(error)),
        };
        let is_ours = snapshot.commit_user == COMMIT_USER;
        if is_ours || snapshot.commit_kind == CommitKind::Compact {
            return Ok(());
        }
        let user = &snapshot.commit_user;
        let reason = format!("the cluster knows it as one of tiering, but user {user} made it");
        Err(self.foreign(known, &reason))
    }

    fn foreign(&self, snapshot: i64, reason: &str) -> Error {
        Error::ForeignHistory {
            table: self.lake.path().clone(),
            snapshot,
            reason: format!(
                "{reason}: the lake table's history is not the table's own; set \
                 {LAKE_HISTORY}=adopt to go on behind its rows, or move that lake table away"
            ),
        }
    }
}
