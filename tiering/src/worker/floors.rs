//! The sequence numbers that a lake table with a primary key has already, by bucket.
//!
//! Of two changes of a key the one with the higher sequence number wins. Ours have the offset as
//! theirs, which only rises; but other writers of the lake table count on from what they find, so
//! after them we do, too. A writer that commits while a round is written is not seen by that round:
//! which of both wins is not defined then, nor is it between two writers of Paimon.

use std::collections::HashMap;
use std::sync::Arc;

use weir_lake_format::{ManifestEntry, Partition, Result, TableIdentity};

use crate::lake_table::LakeTable;

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
    /// What the newest snapshot of `lake` has, by what `known` knew before: then only the snapshots
    /// since are read.
    ///
    /// # Errors
    /// If snapshots or manifests can't be read.
    pub(crate) async fn read(lake: &LakeTable, known: Option<Arc<Self>>) -> Result<Arc<Self>> {
        let known = known.unwrap_or_default();
        let Some(latest) = lake.table.latest_snapshot().await? else {
            return Ok(Arc::new(Self::default()));
        };
        let from = known
            .as_of
            .as_ref()
            .filter(|(table, _)| *table == lake.identity)
            .map(|(_, snapshot)| *snapshot);
        if from == Some(latest.id) {
            return Ok(known);
        }
        let mut floors = Self {
            as_of: Some((lake.identity.clone(), latest.id)),
            highest: HashMap::new(),
        };
        let since = from.filter(|from| (0..=MOST_SNAPSHOTS).contains(&(latest.id - from)));
        let Some(since) = since else {
            floors.add(&lake.table.live_entries(&latest).await?);
            return Ok(Arc::new(floors));
        };
        floors.highest.clone_from(&known.highest);
        for id in since + 1..=latest.id {
            let snapshot = match lake.table.snapshot(id).await {
                Err(weir_lake_format::Error::NotFound { .. }) => {
                    // It has expired: what it added is told by what lives.
                    floors.add(&lake.table.live_entries(&latest).await?);
                    break;
                }
                snapshot => snapshot?,
            };
            floors.add(&lake.table.delta_entries(&snapshot).await?);
        }
        Ok(Arc::new(floors))
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
