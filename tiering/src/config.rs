//! The daemon's settings.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::bad_records::Policy;
use crate::error::Error;

/// Settings of the tiering daemon; durations are in milliseconds, sizes in bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct DaemonConfig {
    /// Addresses `host:port` of the cluster; any one that answers will do.
    pub bootstrap: Vec<String>,
    /// Where the lake is: a folder, or a `file://`, `s3://` or `memory://` address.
    pub warehouse: String,
    /// Options of the warehouse's store (`object_store` names), for example credentials.
    pub warehouse_options: StoreOptions,
    /// User and password for SASL/PLAIN, if the cluster asks for them.
    pub sasl: Option<SaslConfig>,
    /// Whether the cluster is not ours, so that its epochs restart and only warn; found out from
    /// the cluster if not set.
    pub foreign: Option<bool>,
    /// All memory for rows on their way, of all tables. 512 MiB; at least 32 MiB.
    pub memory: u64,
    /// Batches that are decoded or encoded at the same time; 0 means the number of processors.
    pub cpu_permits: usize,
    /// Tables tiered at the same time. 4.
    pub tables: usize,
    /// Buckets of one table that are read and written at the same time. 64.
    pub open_buckets: usize,
    /// What is done with rows that the lake table can't take, `stop` or `divert`, unless the table's
    /// property `weir.bad-record` says. `stop`.
    pub bad_record: Policy,
    /// How often the coordinator is told what goes on and asked for a table. 1 s.
    pub heartbeat_ms: u64,
    /// The longest wait for one answer of the cluster. 30 s.
    pub rpc_timeout_ms: u64,
    /// Without a heartbeat for so long, rounds stop before they commit. 100 s: the reference gives
    /// tables away after 120 s.
    pub lease_ms: u64,
    /// Limits of a round.
    pub round: RoundConfig,
    /// What happens after a failed round.
    pub retry: RetryConfig,
    /// Maintenance of lake tables.
    pub maintenance: MaintenanceConfig,
    /// The most bytes that one read of the log may bring. 16 MiB.
    pub fetch_max_bytes: u64,
    /// Data files are closed at this size, unless the lake table says another (`target-file-size`).
    /// 256 MiB.
    pub target_file_bytes: u64,
    /// How often lag is looked up while someone watches. 2 s.
    pub lag_ms: u64,
    /// How long a stop waits for running rounds. 30 s.
    pub stop_ms: u64,
    /// Where the daemon remembers which tables a person paused; not set means that a pause ends with
    /// the process. `weir up` keeps it as `tiering.json` in its data directory.
    pub state_file: Option<PathBuf>,
}

/// Options of a store, by name. Their values, among them keys, are never shown.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct StoreOptions(pub BTreeMap<String, String>);

impl std::fmt::Debug for StoreOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Serialize for StoreOptions {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.keys().map(|name| (name, "…")))
    }
}

/// User and password.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SaslConfig {
    /// The user.
    pub user: String,
    /// The password; never shown.
    #[serde(skip_serializing)]
    pub password: String,
}

impl std::fmt::Debug for SaslConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SaslConfig")
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

/// Limits of one round of one table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct RoundConfig {
    /// How long rows are read; not set means the table's freshness.
    pub max_ms: Option<u64>,
    /// Rows. 100 million.
    pub max_rows: u64,
    /// Bytes read from the log. 8 GiB.
    pub max_bytes: u64,
}

/// Pauses after failed rounds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct RetryConfig {
    /// The first pause; each further one is twice as long. 1 s.
    pub first_ms: u64,
    /// The longest pause, and how often a table that needs a person is looked at. 5 min.
    pub max_ms: u64,
}

/// Maintenance of lake tables, beside their rounds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct MaintenanceConfig {
    /// Whether old snapshots and partitions of all tables expire, also where
    /// `table.datalake.auto-expire-snapshot` is not `true`. False.
    pub auto_expire_snapshot: bool,
    /// The shortest time between two runs of one table. 60 s.
    pub interval_ms: u64,
    /// How long one run may take; the next goes on where it stopped. 10 min.
    pub timeout_ms: u64,
}

impl Default for MaintenanceConfig {
    fn default() -> Self {
        Self {
            auto_expire_snapshot: false,
            interval_ms: 60_000,
            timeout_ms: 600_000,
        }
    }
}

impl Default for DaemonConfig {
    fn default() -> Self {
        Self {
            bootstrap: vec!["127.0.0.1:9123".to_owned()],
            warehouse: String::new(),
            warehouse_options: StoreOptions::default(),
            sasl: None,
            foreign: None,
            memory: 512 << 20,
            cpu_permits: 0,
            tables: 4,
            open_buckets: 64,
            bad_record: Policy::default(),
            heartbeat_ms: 1_000,
            rpc_timeout_ms: 30_000,
            lease_ms: 100_000,
            round: RoundConfig::default(),
            retry: RetryConfig::default(),
            maintenance: MaintenanceConfig::default(),
            fetch_max_bytes: 16 << 20,
            target_file_bytes: 256 << 20,
            lag_ms: 2_000,
            stop_ms: 30_000,
            state_file: None,
        }
    }
}

impl Default for RoundConfig {
    fn default() -> Self {
        Self {
            max_ms: None,
            max_rows: 100_000_000,
            max_bytes: 8 << 30,
        }
    }
}

impl Default for RetryConfig {
    fn default() -> Self {
        Self {
            first_ms: 1_000,
            max_ms: 300_000,
        }
    }
}

impl RetryConfig {
    /// The pause after `failures` failed rounds in a row (from 1): doubled each time, up to the
    /// longest.
    pub fn pause(&self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(32);
        let pause = self.first_ms.saturating_mul(1 << doublings);
        Duration::from_millis(pause.min(self.max_ms))
    }
}

impl DaemonConfig {
    /// The number of batches decoded or encoded at the same time.
    pub fn cpu_permits(&self) -> usize {
        match self.cpu_permits {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            permits => permits,
        }
    }

    /// The longest wait for one answer.
    pub fn rpc_timeout(&self) -> Duration {
        Duration::from_millis(self.rpc_timeout_ms)
    }

    /// What one read of the log may bring, so that the reads of all tables take at most a quarter
    /// of the memory.
    pub fn fetch_bytes(&self) -> u64 {
        let tables = u64::try_from(self.tables.max(1)).unwrap_or(1);
        self.fetch_max_bytes.min(self.memory / 4 / tables)
    }

    /// All mistakes at once.
    ///
    /// # Errors
    /// One [`Error::Config`] for each value that can't be used.
    pub fn validate(&self) -> Result<(), Vec<Error>> {
        let checks = self.checks().into_iter().chain(self.limit_checks());
        let wrong = checks.filter(|(is_right, _, _)| !is_right);
        let errors: Vec<Error> = wrong
            .map(|(_, key, reason)| Error::Config {
                key,
                reason: reason.to_owned(),
            })
            .collect();
        if errors.is_empty() {
            Ok(())
        } else {
            Err(errors)
        }
    }

    fn checks(&self) -> [Check; 8] {
        let tables = (1..=1_000).contains(&self.tables);
        let buckets = (1..=100_000).contains(&self.open_buckets);
        let renewed = self.heartbeat_ms < self.lease_ms;
        [
            (
                !self.bootstrap.is_empty(),
                "bootstrap",
                "at least one address is needed",
            ),
            (
                !self.warehouse.is_empty(),
                "warehouse",
                "a folder or address is needed",
            ),
            (
                self.memory >= 32 << 20,
                "memory",
                "at least 32 MiB are needed",
            ),
            (tables, "tables", "must be in 1..=1000"),
            (buckets, "open-buckets", "must be in 1..=100000"),
            (
                self.heartbeat_ms >= 10,
                "heartbeat-ms",
                "must be at least 10",
            ),
            (renewed, "lease-ms", "must be above heartbeat-ms"),
            (
                self.rpc_timeout_ms >= 10,
                "rpc-timeout-ms",
                "must be at least 10",
            ),
        ]
    }

    fn limit_checks(&self) -> [Check; 7] {
        let (round, retry) = (&self.round, &self.retry);
        let ordered = retry.first_ms <= retry.max_ms;
        let file = self.target_file_bytes >= 1 << 10;
        [
            (
                self.fetch_max_bytes >= 1 << 10,
                "fetch-max-bytes",
                "must be at least 1024",
            ),
            (file, "target-file-bytes", "must be at least 1024"),
            (round.max_ms != Some(0), "round.max-ms", "must be above 0"),
            (round.max_rows > 0, "round.max-rows", "must be above 0"),
            (round.max_bytes > 0, "round.max-bytes", "must be above 0"),
            (retry.first_ms > 0, "retry.first-ms", "must be above 0"),
            (ordered, "retry.max-ms", "is below retry.first-ms"),
        ]
    }
}

/// Whether a value can be used, its key, and what it must be.
type Check = (bool, &'static str, &'static str);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_mistakes_are_named_at_once() {
        let config = DaemonConfig {
            memory: 0,
            tables: 0,
            ..DaemonConfig::default()
        };
        let errors = config.validate().unwrap_err();
        let keys: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(keys.len(), 3, "{keys:?}");
        assert!(keys[0].starts_with("warehouse"), "{keys:?}");
    }

    #[test]
    fn pauses_double_up_to_the_longest() {
        let retry = RetryConfig {
            first_ms: 100,
            max_ms: 1_000,
        };
        let pauses: Vec<u128> = [1, 2, 3, 4, 5, 90]
            .map(|n| retry.pause(n).as_millis())
            .to_vec();
        assert_eq!(pauses, [100, 200, 400, 800, 1_000, 1_000]);
    }

    #[test]
    fn fc_086_a_password_and_the_stores_keys_are_never_shown() {
        let sasl = SaslConfig {
            user: "u".to_owned(),
            password: "secret".to_owned(),
        };
        let config = DaemonConfig {
            sasl: Some(sasl),
            warehouse_options: StoreOptions(BTreeMap::from([(
                "aws_secret_access_key".to_owned(),
                "secretkey".to_owned(),
            )])),
            ..DaemonConfig::default()
        };
        assert!(format!("{config:?}").contains("aws_secret_access_key"));
        let shown = format!("{config:?}").replace("aws_secret_access_key", "");
        assert!(!shown.contains("secret"), "{shown}");
        let json = serde_json::to_string(&config).unwrap();
        let json = json.replace("aws_secret_access_key", "");
        assert!(!json.contains("secret"), "{json}");
    }
}
