//! Names, units and help texts of all the server's metrics.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use weir_protocol::api_key::ApiKey;
use weir_protocol::error_code::ErrorCode;

use crate::held::HeldBook;

/// An API as a label: as many values as the protocol has APIs.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct ApiLabel {
    api: &'static str,
}

/// An error code as a label: as many values as the protocol has codes.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct CodeLabel {
    code: &'static str,
}

/// The server's metrics. Register them once per process with [`Metrics::new`].
#[derive(Debug)]
pub(crate) struct Metrics {
    pub(crate) connections: Gauge,
    pub(crate) connections_refused: Counter,
    pub(crate) connections_displaced: Counter,
    pub(crate) request_bytes: Counter,
    requests: Family<ApiLabel, Histogram, fn() -> Histogram>,
    errors: Family<CodeLabel, Counter>,
    pub(crate) appended_bytes: Counter,
    pub(crate) appended_rows: Counter,
    pub(crate) fetched_bytes: Counter,
    pub(crate) leaders: Gauge,
    pub(crate) expired_bytes: Counter,
    pub(crate) append_failures: Counter,
    pub(crate) buckets_offline: Gauge,
    pub(crate) log_cut_bytes: Counter,
    pub(crate) log_set_aside_bytes: Counter,
    pub(crate) log_set_aside_files: Counter,
    pub(crate) tiering_pending: Gauge,
    pub(crate) tiering_running: Gauge,
    pub(crate) tiering_failures: Counter,
    pub(crate) lake_commits: Counter,
    pub(crate) lake_commits_refused: Counter,
    pub(crate) partitions_created: Counter,
    pub(crate) partitions_dropped: Counter,
    pub(crate) held: HeldBook,
}

impl Metrics {
    /// Registers all metrics under the prefix `weir_server`.
    pub(crate) fn new(registry: &mut Registry) -> Self {
        let latency: fn() -> Histogram = || Histogram::new(exponential_buckets(0.0005, 2.0, 16));
        let metrics = Self {
            connections: Gauge::default(),
            connections_refused: Counter::default(),
            connections_displaced: Counter::default(),
            request_bytes: Counter::default(),
            requests: Family::new_with_constructor(latency),
            errors: Family::default(),
            appended_bytes: Counter::default(),
            appended_rows: Counter::default(),
            fetched_bytes: Counter::default(),
            leaders: Gauge::default(),
            expired_bytes: Counter::default(),
            append_failures: Counter::default(),
            buckets_offline: Gauge::default(),
            log_cut_bytes: Counter::default(),
            log_set_aside_bytes: Counter::default(),
            log_set_aside_files: Counter::default(),
            tiering_pending: Gauge::default(),
            tiering_running: Gauge::default(),
            tiering_failures: Counter::default(),
            lake_commits: Counter::default(),
            lake_commits_refused: Counter::default(),
            partitions_created: Counter::default(),
            partitions_dropped: Counter::default(),
            held: HeldBook::default(),
        };
        metrics.register(registry.sub_registry_with_prefix("weir_server"));
        metrics
    }

    fn register(&self, registry: &mut Registry) {
        let r = registry;
        r.register("connections", "Open connections", self.connections.clone());
        r.register(
            "request_seconds",
            "Time from request to answer",
            self.requests.clone(),
        );
        r.register(
            "request_errors",
            "Requests answered by an error",
            self.errors.clone(),
        );
        r.register(
            "leaders",
            "Buckets with a ready leader",
            self.leaders.clone(),
        );
        r.register(
            "buckets_offline",
            "Buckets whose log cannot be opened",
            self.buckets_offline.clone(),
        );
        r.register(
            "tiering_pending",
            "Tables waiting for a worker",
            self.tiering_pending.clone(),
        );
        r.register(
            "tiering_running",
            "Tables with a worker",
            self.tiering_running.clone(),
        );
        for (name, help, gauge) in [
            (
                "retention_held_bytes",
                "Bytes of logs past retention that stay until they are in the lake",
                &self.held.bytes,
            ),
            (
                "retention_held_seconds",
                "Age of the oldest rows that stay for that reason",
                &self.held.seconds,
            ),
            (
                "retention_held_partitions",
                "Partitions past retention that stay until they are in the lake",
                &self.held.partitions,
            ),
        ] {
            r.register(name, help, gauge.clone());
        }
        for (name, help, counter) in self.log_counters().into_iter().chain(self.counters()) {
            r.register(name, help, counter.clone());
        }
    }

    /// Name, help text and counter, of the logs.
    fn log_counters(&self) -> [(&'static str, &'static str, &Counter); 8] {
        [
            (
                "appended_bytes",
                "Bytes appended to logs",
                &self.appended_bytes,
            ),
            (
                "appended_rows",
                "Rows appended to logs",
                &self.appended_rows,
            ),
            (
                "fetched_bytes",
                "Bytes of logs sent to clients",
                &self.fetched_bytes,
            ),
            (
                "expired_bytes",
                "Bytes of logs past retention",
                &self.expired_bytes,
            ),
            (
                "append_failures",
                "Appends that the disk refused",
                &self.append_failures,
            ),
            (
                "log_cut_bytes",
                "Bytes behind the last whole batch that recovery cut off",
                &self.log_cut_bytes,
            ),
            (
                "log_set_aside_bytes",
                "Bytes that recovery cut off and kept in files beside the log",
                &self.log_set_aside_bytes,
            ),
            (
                "log_set_aside_files",
                "Files of cut-off bytes that recovery made",
                &self.log_set_aside_files,
            ),
        ]
    }

    /// The same of everything else.
    fn counters(&self) -> [(&'static str, &'static str, &Counter); 8] {
        [
            (
                "connections_displaced",
                "Idle connections closed for new ones at a limit",
                &self.connections_displaced,
            ),
            (
                "connections_refused",
                "Connections above a limit",
                &self.connections_refused,
            ),
            (
                "request_bytes",
                "Bytes of requests read",
                &self.request_bytes,
            ),
            (
                "tiering_failures",
                "Rounds that failed or fell silent",
                &self.tiering_failures,
            ),
            (
                "lake_commits",
                "Lake snapshots recorded",
                &self.lake_commits,
            ),
            (
                "lake_commits_refused",
                "Lake snapshots refused",
                &self.lake_commits_refused,
            ),
            (
                "partitions_created",
                "Partitions created by the clock",
                &self.partitions_created,
            ),
            (
                "partitions_dropped",
                "Partitions dropped by the clock",
                &self.partitions_dropped,
            ),
        ]
    }

    /// Counts an answered request.
    pub(crate) fn request(&self, api: ApiKey, took: Duration) {
        self.requests
            .get_or_create(&ApiLabel { api: api.name() })
            .observe(took.as_secs_f64());
    }

    /// Counts a request, or an entry of one, that ends in an error.
    pub(crate) fn error(&self, code: ErrorCode) {
        self.errors
            .get_or_create(&CodeLabel { code: code.name() })
            .inc();
    }
}
