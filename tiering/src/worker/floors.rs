//! The sequence numbers that a lake table with a primary key has already, by bucket.
//!
//! Of two changes of a key the one with the higher sequence number wins. Ours have the offset as
//! theirs, which only rises; but other writers of the lake table count on from what they find, so
//! after them we do, too. A writer that commits while a round is written is not seen by that round:
//! which of both wins is not defined then, nor is it between two writers of Paimon.

use std::collections::HashMap;

use weir_lake_format::{ManifestEntry, Partition, Result, TableIdentity};

use crate::lake_table::LakeTable;

#[cfg(test)]
mod tests;

/// How many snapshots are read one by one before all files are read instead.
const MOST_SNAPSHOTS: i64 = 64;

/// The highest sequence number of each bucket, as of a snapshot.
#[derive(Clone, Debug, Default)]
pub struct Floors {
    /// Of which table, and as of which snapshot; `None` before the first.
    as_of: Option<(TableIdentity, i64)>,
    /// By partition, serialized, and bucket.
    highest: HashMap<(Vec<u8>, i32), i64>,
}

impl Floors {
    /// Brings them up to the newest snapshot of `lake`: if they are of the same table, only the
    /// snapshots since are read.
    ///
    /// # Errors
    /// If snapshots or manifests can't be read; what they hold then is of no use.
    pub(crate) async fn advance(&mut self, lake: &LakeTable) -> Result<()> {
        let Some(latest) = lake.table.latest_snapshot().await? else {
            *self = Self::default();
            return Ok(());
        };
        let known = self.as_of.take();
        let known = known.filter(|(table, _)| *table == lake.identity);
        let since = known
            .map(|(_, since)| since)
            .filter(|since| (0..=MOST_SNAPSHOTS).contains(&(latest.id - since)));
        if since.is_none() {
            self.highest.clear();
        }
        if !self.add_since(lake, since, latest.id).await? {
            // What has expired meanwhile lives on in the newest one, as far as it counts.
            self.add(&lake.table.live_entries(&latest).await?);
        }
        self.as_of = Some((lake.identity.clone(), latest.id));
        Ok(())
    }

    /// Adds what the snapshots after `since` added; `false` if that can't be known.
    async fn add_since(&mut self, lake: &LakeTable, since: Option<i64>, to: i64) -> Result<bool> {
        let Some(since) = since else {
            return Ok(false);
        };
        for id in since + 1..=to {
            let snapshot = match lake.table.snapshot(id).await {
                Err(weir_lake_format::Error::NotFound { .. }) => return Ok(false),
                snapshot => snapshot?,
            };
            self.add(&lake.table.delta_entries(&snapshot).await?);
        }
        Ok(true)
    }

    fn add(&mut self, entries: &[ManifestEntry]) {
        for entry in entries {
            let key = (entry.partition.clone(), entry.bucket);
            let highest = self.highest.entry(key).or_insert(-1);
            *highest = (*highest).max(entry.file.max_sequence_number);
        }
    }

    /// The lowest sequence number that is above all of a bucket; 0 for one without files.
    pub(crate) fn next_sequence(&self, partition: &Partition, bucket: i32) -> i64 {
        let highest = self.highest.get(&(partition.to_bytes(), bucket));
        highest.map_or(0, |highest| highest.saturating_add(1))
    }
}
