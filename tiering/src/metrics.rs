//! The daemon's metrics: names, units and helps of all of them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::maintenance::Counts;
use crate::memory::MemoryBudget;
use crate::runner::RoundReport;
use crate::status::{TableState, TableStatus};

/// One table; as many values as tables are tiered.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct TableLabel {
    /// `database.table`.
    pub table: String,
}

/// One table and how its rounds end: `committed`, `nothing` or `failed`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RoundLabel {
    /// `database.table`.
    pub table: String,
    /// How the rounds ended.
    pub outcome: &'static str,
}

/// One state of tables: `unknown`, `healthy`, `retrying` or `paused`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct StateLabel {
    /// The state.
    pub state: &'static str,
}

type TableGauge = Family<TableLabel, Gauge<u64, AtomicU64>>;

/// All metrics of the daemon.
#[derive(Clone, Debug)]
pub struct Metrics {
    rounds: Family<RoundLabel, Counter>,
    rows: Family<TableLabel, Counter>,
    bytes: Family<TableLabel, Counter>,
    files: Family<TableLabel, Counter>,
    diverted: Family<TableLabel, Counter>,
    round_seconds: Histogram,
    lag_rows: TableGauge,
    lag_seconds: TableGauge,
    failing_buckets: TableGauge,
    lake_requests: Family<TableLabel, Counter>,
    expired_snapshots: TableGauge,
    maintenance_failures: TableGauge,
    tables: Family<StateLabel, Gauge<u64, AtomicU64>>,
    memory_used: Gauge<u64, AtomicU64>,
    memory_peak: Gauge<u64, AtomicU64>,
    heartbeat_failures: Counter,
    /// The tables of the last show, to forget those that are gone.
    shown: Arc<Mutex<BTreeSet<String>>>,
}

impl Metrics {
    /// Registers all metrics under the prefix `weir_tiering`.
    pub fn new(registry: &mut Registry) -> Self {
        let metrics = Self {
            rounds: Family::default(),
            rows: Family::default(),
            bytes: Family::default(),
            files: Family::default(),
            diverted: Family::default(),
            round_seconds: Histogram::new(exponential_buckets(0.01, 2.0, 18)),
            lag_rows: Family::default(),
            lag_seconds: Family::default(),
            failing_buckets: Family::default(),
            lake_requests: Family::default(),
            expired_snapshots: Family::default(),
            maintenance_failures: Family::default(),
            tables: Family::default(),
            memory_used: Gauge::default(),
            memory_peak: Gauge::default(),
            heartbeat_failures: Counter::default(),
            shown: Arc::default(),
        };
        let m = metrics.clone();
        let registry = registry.sub_registry_with_prefix("weir_tiering");
        registry.register("rounds", "Finished rounds by outcome", m.rounds);
        registry.register("rows", "Rows written to the lake", m.rows);
        registry.register_with_unit("written", "Data files written", Unit::Bytes, m.bytes);
        registry.register("files", "Data files written", m.files);
        let help = "Rows that went into the table of bad records instead of the lake table";
        registry.register("diverted_rows", help, m.diverted);
        let help = "How long rounds took that committed something";
        registry.register_with_unit("round", help, Unit::Seconds, m.round_seconds);
        registry.register(
            "lag_rows",
            "Offsets that the lake lacks, as last looked up",
            m.lag_rows,
        );
        let help = "How old the oldest missing row can be at most, as last looked up";
        registry.register_with_unit("lag", help, Unit::Seconds, m.lag_seconds);
        let help = "Buckets that the last round could not read";
        registry.register("failing_buckets", help, m.failing_buckets);
        let help = "Requests to the lake's store for this table";
        registry.register("lake_requests", help, m.lake_requests);
        let help = "Lake snapshots that maintenance expired since the daemon's start";
        registry.register("expired_snapshots", help, m.expired_snapshots);
        let help = "Runs of maintenance that failed since the daemon's start";
        registry.register("maintenance_failures", help, m.maintenance_failures);
        registry.register("tables", "Tables by state", m.tables);
        let help = "Memory held by rows on their way and by open files";
        registry.register_with_unit("memory_used", help, Unit::Bytes, m.memory_used);
        let help = "The most memory that was ever held";
        registry.register_with_unit("memory_peak", help, Unit::Bytes, m.memory_peak);
        let help = "Heartbeats without an answer";
        registry.register("heartbeat_failures", help, m.heartbeat_failures);
        metrics
    }

    /// A round that ended without an error of its own.
    pub(crate) fn round(&self, table: &str, report: &RoundReport, now_ms: i64) {
        let label = || TableLabel {
            table: table.to_owned(),
        };
        let outcome = match &report.committed {
            Some(_) => "committed",
            None if report.faults.is_empty() => "nothing",
            None => "failed",
        };
        self.rounds
            .get_or_create(&RoundLabel {
                table: table.to_owned(),
                outcome,
            })
            .inc();
        if let Some(committed) = &report.committed {
            let count = |number: i64| u64::try_from(number).unwrap_or(0);
            self.rows
                .get_or_create(&label())
                .inc_by(count(committed.rows));
            self.bytes
                .get_or_create(&label())
                .inc_by(count(committed.bytes));
            self.files
                .get_or_create(&label())
                .inc_by(committed.files as u64);
            self.diverted
                .get_or_create(&label())
                .inc_by(count(committed.diverted));
            let millis = u64::try_from(now_ms.saturating_sub(report.started_ms)).unwrap_or(0);
            self.round_seconds
                .observe(std::time::Duration::from_millis(millis).as_secs_f64());
        }
    }

    /// A round that failed.
    pub(crate) fn round_failed(&self, table: &str) {
        let label = RoundLabel {
            table: table.to_owned(),
            outcome: "failed",
        };
        self.rounds.get_or_create(&label).inc();
    }

    /// Where the requests of each table are counted.
    pub(crate) fn lake_requests(&self) -> Family<TableLabel, Counter> {
        self.lake_requests.clone()
    }

    /// What maintenance did for a table so far.
    pub(crate) fn maintained(&self, table: &str, counts: Counts) {
        let label = TableLabel {
            table: table.to_owned(),
        };
        let (expired, failed) = (&self.expired_snapshots, &self.maintenance_failures);
        expired.get_or_create(&label).set(counts.expired_snapshots);
        failed.get_or_create(&label).set(counts.failures);
    }

    /// A heartbeat without an answer.
    pub(crate) fn heartbeat_failed(&self) {
        self.heartbeat_failures.inc();
    }

    /// What is shown of the tables and the memory now.
    pub(crate) fn show(&self, statuses: &[TableStatus], budget: &MemoryBudget) {
        let paths: BTreeSet<String> = statuses.iter().map(|s| s.path.to_string()).collect();
        let before = std::mem::replace(&mut *self.shown.lock(), paths.clone());
        for gone in before.difference(&paths) {
            self.forget(gone);
        }
        let mut counts = [
            ("unknown", 0_u64),
            ("healthy", 0),
            ("retrying", 0),
            ("paused", 0),
        ];
        for status in statuses {
            let name = match status.state {
                TableState::Unknown => "unknown",
                TableState::Healthy => "healthy",
                TableState::Retrying { .. } => "retrying",
                TableState::Paused { .. } => "paused",
            };
            for (state, count) in &mut counts {
                *count += u64::from(*state == name);
            }
            let label = TableLabel {
                table: status.path.to_string(),
            };
            let failing = u64::try_from(status.failing_buckets).unwrap_or(u64::MAX);
            self.failing_buckets.get_or_create(&label).set(failing);
            // What is not known has no number; nothing is nearer to the truth than the last one.
            for (gauge, value) in [
                (&self.lag_rows, status.lag_rows),
                (&self.lag_seconds, status.lag_seconds),
            ] {
                match value {
                    Some(value) => drop(gauge.get_or_create(&label).set(value)),
                    None => drop(gauge.remove(&label)),
                }
            }
        }
        for (state, count) in counts {
            self.tables.get_or_create(&StateLabel { state }).set(count);
        }
        self.memory_used.set(budget.used_bytes());
        self.memory_peak.set(budget.peak_bytes());
    }

    /// A table is gone: nothing of it is shown any more.
    fn forget(&self, table: &str) {
        let label = TableLabel {
            table: table.to_owned(),
        };
        for gauge in [
            &self.lag_rows,
            &self.lag_seconds,
            &self.failing_buckets,
            &self.expired_snapshots,
            &self.maintenance_failures,
        ] {
            gauge.remove(&label);
        }
        for counter in [
            &self.rows,
            &self.bytes,
            &self.files,
            &self.diverted,
            &self.lake_requests,
        ] {
            counter.remove(&label);
        }
        for outcome in ["committed", "nothing", "failed"] {
            let table = table.to_owned();
            self.rounds.remove(&RoundLabel { table, outcome });
        }
    }
}
