//! What retention would have removed, if it were in the lake: by table, and in sum.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;
use weir_protocol::ids::{PartitionId, ServerId, TableBucket, TableId};

/// Rows of a table that are past retention and stay until the lake has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Bytes of logs.
    pub bytes: u64,
    /// When the oldest of these rows was appended at the latest, in milliseconds since 1970.
    pub oldest_ms: Option<i64>,
    /// Partitions past retention.
    pub partitions: usize,
}

impl Held {
    /// Adds a stretch of a log.
    pub(crate) fn add(&mut self, bytes: u64, newest_ms: Option<i64>) {
        self.bytes = self.bytes.saturating_add(bytes);
        let all = self.oldest_ms.into_iter().chain(newest_ms);
        self.oldest_ms = all.min();
    }
}

/// The book of all held rows, as last looked at.
#[derive(Debug, Default)]
pub(crate) struct HeldBook {
    /// What each tablet server holds of each table.
    logs: Mutex<BTreeMap<(ServerId, TableId), Held>>,
    /// Partitions past retention, by table.
    waiting: Mutex<BTreeMap<TableId, BTreeSet<PartitionId>>>,
    pub(crate) bytes: Gauge,
    pub(crate) seconds: Gauge,
    pub(crate) partitions: Gauge,
}

impl HeldBook {
    /// A tablet server has looked at all its logs at `now_ms`.
    pub(crate) fn looked(&self, server: ServerId, found: BTreeMap<TableId, Held>, now_ms: i64) {
        let mut logs = self.logs.lock();
        logs.retain(|(of, _), _| *of != server);
        logs.extend(
            found
                .into_iter()
                .map(|(table, held)| ((server, table), held)),
        );
        let bytes = logs
            .values()
            .map(|held| held.bytes)
            .fold(0, u64::saturating_add);
        let oldest = logs.values().filter_map(|held| held.oldest_ms).min();
        let age_ms = oldest.map_or(0, |oldest| now_ms.saturating_sub(oldest).max(0));
        self.bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
        self.seconds.set(age_ms / 1_000);
    }

    /// The coordinator has looked at a table's partitions.
    pub(crate) fn set_waiting(&self, table: TableId, partitions: BTreeSet<PartitionId>) {
        let mut waiting = self.waiting.lock();
        if partitions.is_empty() {
            waiting.remove(&table);
        } else {
            waiting.insert(table, partitions);
        }
        self.count(&waiting);
    }

    /// Only these tables are there.
    pub(crate) fn keep(&self, tables: &BTreeSet<TableId>) {
        let mut waiting = self.waiting.lock();
        waiting.retain(|table, _| tables.contains(table));
        self.count(&waiting);
    }

    fn count(&self, waiting: &BTreeMap<TableId, BTreeSet<PartitionId>>) {
        let count = waiting.values().map(BTreeSet::len).sum::<usize>();
        self.partitions
            .set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Whether a bucket's partition is past retention.
    pub(crate) fn is_waiting(&self, bucket: TableBucket) -> bool {
        let waiting = self.waiting.lock();
        let of_table = waiting.get(&bucket.table);
        bucket
            .partition
            .is_some_and(|partition| of_table.is_some_and(|all| all.contains(&partition)))
    }

    /// All tables of which something is held.
    pub(crate) fn tables(&self) -> BTreeMap<TableId, Held> {
        let mut tables = BTreeMap::<TableId, Held>::new();
        for ((_, table), held) in self.logs.lock().iter() {
            tables
                .entry(*table)
                .or_default()
                .add(held.bytes, held.oldest_ms);
        }
        for (table, partitions) in self.waiting.lock().iter() {
            tables.entry(*table).or_default().partitions = partitions.len();
        }
        tables
    }
}
