//! What a server can be told. Data only: clocks and stores are given to [`crate::server::Server`].

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::Error;

mod kv;

pub use kv::KvConfig;

/// The configuration of one process: a coordinator and its tablet servers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ServerConfig {
    /// Where logs and metadata are kept; made if missing. No default: must be set.
    pub data_dir: PathBuf,
    /// Where offsets files are kept: a folder or a `file:` URL. Default: `remote` in the data dir.
    pub remote: Option<String>,
    /// The root of the lake: a folder or an object store URL. Default: `lake` in the data dir.
    pub warehouse: Option<String>,
    /// `HOST:PORT` of the coordinator; tablet servers take the next ports. With port 0 each
    /// listener takes a free port of its own.
    pub listen: String,
    /// The host that clients are told to connect to. Default: the host of `listen`.
    pub advertise: Option<String>,
    /// How many tablet servers run in this process; 1 to 64.
    pub tablets: usize,
    /// Buckets of a table that does not say.
    pub default_bucket_number: i32,
    /// The most buckets of a table or partition.
    pub max_bucket_number: i32,
    /// The most partitions of a table.
    pub max_partition_number: i32,
    /// The most that all logs and metadata open at a start may take before it is called ready, ms.
    pub start_timeout_ms: u64,
    /// How often auto-partitioned tables are looked at, ms.
    pub auto_partition_check_ms: u64,
    /// The logs.
    pub log: LogConfig,
    /// The keys of primary-key tables.
    pub kv: KvConfig,
    /// What clients may use up.
    pub limits: LimitsConfig,
    /// The tiering scheduler: section `scheduler`, since `tiering` is the daemon's.
    #[serde(rename = "scheduler")]
    pub tiering: TieringConfig,
    /// Logins. Absent: anyone may connect.
    pub sasl: Option<SaslConfig>,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            data_dir: PathBuf::new(),
            remote: None,
            warehouse: None,
            listen: "127.0.0.1:9123".to_owned(),
            advertise: None,
            tablets: 1,
            default_bucket_number: 1,
            max_bucket_number: 4096,
            max_partition_number: 1000,
            start_timeout_ms: 60_000,
            auto_partition_check_ms: 600_000,
            log: LogConfig::default(),
            kv: KvConfig::default(),
            limits: LimitsConfig::default(),
            tiering: TieringConfig::default(),
            sasl: None,
        }
    }
}

/// How logs are kept.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct LogConfig {
    /// When appended bytes are synced to disk.
    pub flush: FlushPolicy,
    /// The size at which a segment file is closed, bytes; at least 1 MiB.
    pub segment_bytes: u64,
    /// How often old segments are looked for, ms.
    pub retention_check_ms: u64,
    /// The most bytes a bucket's log may keep; 0 is no limit. Rows that the lake still needs stay.
    pub retention_bytes: u64,
    /// Appends are refused while less is free on the disk of the logs, bytes; 0 lets them fill it.
    pub min_free_bytes: u64,
    /// How long an idle writer's sequence is remembered, ms.
    pub writer_expiry_ms: u64,
    /// How many logs are recovered at the same time.
    pub recovery_threads: usize,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self {
            flush: FlushPolicy::Interval(100),
            segment_bytes: 128 << 20,
            retention_check_ms: 60_000,
            retention_bytes: 0,
            min_free_bytes: 64 << 20,
            writer_expiry_ms: 7 * 24 * 3_600_000,
            recovery_threads: 4,
        }
    }
}

/// When a log is synced. Written `always`, `interval(MS)`, `interval` (100 ms) or `os`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum FlushPolicy {
    /// Before each answer, many appends by one sync.
    Always,
    /// So many milliseconds after the first append that is not synced; an `acks=-1` append waits for it.
    Interval(u64),
    /// When the operating system likes: a power cut loses acknowledged rows. For tests.
    Os,
}

impl FromStr for FlushPolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mistake = || format!("log flush `{text}` is none of always, interval(MS), os");
        match text.trim() {
            "always" => Ok(Self::Always),
            "os" => Ok(Self::Os),
            "interval" => Ok(Self::Interval(100)),
            other => {
                let inner = other
                    .strip_prefix("interval(")
                    .and_then(|rest| rest.strip_suffix(')'));
                let digits = inner.map(|rest| rest.trim().trim_end_matches("ms").trim());
                let ms = digits.and_then(|digits| digits.parse::<u64>().ok());
                ms.filter(|ms| (1..=60_000).contains(ms))
                    .map(Self::Interval)
                    .ok_or_else(mistake)
            }
        }
    }
}

impl fmt::Display for FlushPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Always => f.write_str("always"),
            Self::Interval(ms) => write!(f, "interval({ms})"),
            Self::Os => f.write_str("os"),
        }
    }
}

impl TryFrom<String> for FlushPolicy {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<FlushPolicy> for String {
    fn from(policy: FlushPolicy) -> Self {
        policy.to_string()
    }
}

/// What clients may use up.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct LimitsConfig {
    /// The most connections of the process; an eighth of them is for clients on this machine. At a limit
    /// a connection that never sent a request, or is idle for 30 s, gives way to a new one.
    pub connections: usize,
    /// The most connections of one client address.
    pub connections_per_address: usize,
    /// The most unanswered requests of a connection; further ones wait in the socket.
    pub in_flight_per_connection: usize,
    /// The most bytes of a request that carries rows.
    pub max_frame_bytes: usize,
    /// The most bytes of any other request.
    pub max_small_frame_bytes: usize,
    /// The most bytes of a request before the client has logged in.
    pub max_frame_bytes_before_login: usize,
    /// The most bytes of all requests that are read and not yet done.
    pub request_memory_bytes: usize,
    /// The most bytes of all answers that are read from logs and not yet sent.
    pub answer_memory_bytes: usize,
    /// A connection without traffic is closed after this, ms.
    pub idle_ms: u64,
    /// A connection that has not sent its first request after this is closed, ms.
    pub first_request_ms: u64,
    /// A request whose bytes take longer than this to come in is given up, ms.
    pub slow_frame_ms: u64,
    /// The longest that a fetch may wait for data, ms.
    pub max_fetch_wait_ms: u64,
    /// The most bytes of a fetch answer.
    pub max_fetch_bytes: usize,
    /// The most buckets that one request may name.
    pub max_buckets_per_request: usize,
}

impl Default for LimitsConfig {
    fn default() -> Self {
        Self {
            connections: 2000,
            connections_per_address: 200,
            in_flight_per_connection: 64,
            max_frame_bytes: weir_protocol::frame::DEFAULT_MAX_FRAME_BYTES,
            max_small_frame_bytes: 8 << 20,
            max_frame_bytes_before_login: 64 << 10,
            request_memory_bytes: 512 << 20,
            answer_memory_bytes: 512 << 20,
            idle_ms: 600_000,
            first_request_ms: 30_000,
            slow_frame_ms: 30_000,
            max_fetch_wait_ms: 30_000,
            max_fetch_bytes: 64 << 20,
            max_buckets_per_request: 100_000,
        }
    }
}

/// The tiering scheduler.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct TieringConfig {
    /// A worker that is silent for longer loses its table, ms.
    pub heartbeat_timeout_ms: u64,
    /// How often silence is looked for, ms.
    pub check_ms: u64,
    /// Offsets files that nothing names any more are kept for this, ms.
    pub discarded_file_grace_ms: u64,
}

impl Default for TieringConfig {
    fn default() -> Self {
        Self {
            heartbeat_timeout_ms: 120_000,
            check_ms: 5_000,
            discarded_file_grace_ms: 600_000,
        }
    }
}

/// Who may log in, by SASL/PLAIN. The protocol has no TLS: use it on loopback or a trusted network.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct SaslConfig {
    /// User to password.
    #[serde(skip_serializing)]
    pub users: BTreeMap<String, String>,
    /// A connection that has not logged in after this is closed, ms.
    pub login_timeout_ms: Option<u64>,
}

impl fmt::Debug for SaslConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let users: Vec<&String> = self.users.keys().collect();
        f.debug_struct("SaslConfig")
            .field("users", &users)
            .finish_non_exhaustive()
    }
}

impl ServerConfig {
    /// The defaults with their data in `data_dir`.
    pub fn in_dir(data_dir: impl Into<PathBuf>) -> Self {
        Self {
            data_dir: data_dir.into(),
            ..Self::default()
        }
    }

    /// Reads a TOML text. Unknown keys are mistakes.
    ///
    /// # Errors
    /// [`Error::Config`] with what the parser says.
    pub fn from_toml(text: &str) -> Result<Self, Error> {
        toml::from_str(text).map_err(|found| Error::Config {
            mistakes: vec![found.to_string()],
        })
    }

    /// Checks every value; reports all mistakes at once.
    ///
    /// # Errors
    /// [`Error::Config`].
    pub fn validate(&self) -> Result<(), Error> {
        let mut mistakes = Vec::new();
        let mut check = |ok: bool, mistake: &str| {
            if !ok {
                mistakes.push(mistake.to_owned());
            }
        };
        check(!self.data_dir.as_os_str().is_empty(), "data-dir is not set");
        check(
            (1..=64).contains(&self.tablets),
            "tablets is not between 1 and 64",
        );
        check(self.max_bucket_number >= 1, "max-bucket-number is below 1");
        check(
            (1..=self.max_bucket_number.max(1)).contains(&self.default_bucket_number),
            "default-bucket-number is not between 1 and max-bucket-number",
        );
        check(
            self.max_partition_number >= 1,
            "max-partition-number is below 1",
        );
        let every_ms = self.auto_partition_check_ms;
        check_ranges(
            &mut check,
            [
                ("auto-partition-check-ms", every_ms, 1..=MAX_MS),
                ("start-timeout-ms", self.start_timeout_ms, 0..=MAX_MS),
            ],
        );
        self.log.check(&mut check);
        self.kv.check(&mut check);
        self.limits.check(&mut check);
        self.tiering.check(&mut check);
        let nameless =
            |(user, password): (&String, &String)| user.is_empty() || password.is_empty();
        let logins = self.sasl.as_ref().map(|sasl| &sasl.users);
        check(
            logins.is_none_or(|users| !users.is_empty()),
            "sasl.users is empty",
        );
        check(
            logins.is_none_or(|users| !users.iter().any(nameless)),
            "sasl.users has an empty user or password",
        );
        let login_ms = self.sasl.as_ref().and_then(|sasl| sasl.login_timeout_ms);
        check(
            login_ms.is_none_or(|ms| ms <= MAX_MS),
            "sasl.login-timeout-ms is above ten years",
        );
        match self.listen_address() {
            Ok((host, _)) if self.advertise.is_none() && is_any_address(&host) => {
                mistakes.push(format!(
                    "listen `{}` takes every address of this machine, but clients must be told one: set \
                     advertise to the host that they reach",
                    self.listen
                ));
            }
            Ok(_) => {}
            Err(mistake) => mistakes.push(mistake),
        }
        if mistakes.is_empty() {
            Ok(())
        } else {
            Err(Error::Config { mistakes })
        }
    }

    /// Host and port of `listen`.
    pub(crate) fn listen_address(&self) -> Result<(String, u16), String> {
        let mistake = || format!("listen `{}` is not HOST:PORT", self.listen);
        let (host, port) = self.listen.rsplit_once(':').ok_or_else(mistake)?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let port: u16 = port.parse().map_err(|_| mistake())?;
        if host.is_empty() {
            return Err(mistake());
        }
        let last = usize::from(port) + self.tablets;
        if port != 0 && last > usize::from(u16::MAX) {
            return Err(format!(
                "listen `{}` leaves no port for the tablet servers",
                self.listen
            ));
        }
        Ok((host.to_owned(), port))
    }

    /// The host that clients are told.
    pub(crate) fn advertised_host(&self, listen_host: &str) -> String {
        self.advertise
            .clone()
            .unwrap_or_else(|| listen_host.to_owned())
    }

    /// Where offsets files are: as configured, else `remote` in the data dir.
    pub(crate) fn remote_url(&self) -> String {
        let default = || self.data_dir.join("remote").to_string_lossy().into_owned();
        self.remote.clone().unwrap_or_else(default)
    }

    /// Where the lake is: as configured, else `lake` in the data dir.
    pub fn warehouse_url(&self) -> String {
        let default = || self.data_dir.join("lake").to_string_lossy().into_owned();
        self.warehouse.clone().unwrap_or_else(default)
    }
}

/// Whether a host stands for every address of the machine.
fn is_any_address(host: &str) -> bool {
    let address = host.parse::<std::net::IpAddr>();
    address.is_ok_and(|address| address.is_unspecified())
}

/// The longest time that can be set, ms: ten years.
const MAX_MS: u64 = 10 * 365 * 24 * 3_600_000;
/// The most of anything that can be set to be counted or queued.
const MAX_COUNT: usize = 10_000_000;
const GIB: usize = 1 << 30;

/// Says of each value what it must lie between. `u64` holds every value that can be set.
fn check_ranges<const N: usize>(
    check: &mut impl FnMut(bool, &str),
    ranges: [(&str, u64, std::ops::RangeInclusive<u64>); N],
) {
    for (key, value, range) in ranges {
        let (least, most) = (range.start(), range.end());
        let mistake = format!("{key} is not between {least} and {most}");
        check(range.contains(&value), &mistake);
    }
}

/// A count or size as a `u64`.
fn wide(value: usize) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

impl LogConfig {
    fn check(&self, check: &mut impl FnMut(bool, &str)) {
        let threads = wide(self.recovery_threads);
        check_ranges(
            check,
            [
                ("log.segment-bytes", self.segment_bytes, 1 << 20..=1 << 30),
                (
                    "log.retention-check-ms",
                    self.retention_check_ms,
                    1..=MAX_MS,
                ),
                ("log.writer-expiry-ms", self.writer_expiry_ms, 0..=MAX_MS),
                ("log.recovery-threads", threads, 1..=1024),
            ],
        );
    }
}

impl TieringConfig {
    fn check(&self, check: &mut impl FnMut(bool, &str)) {
        let (timeout_ms, grace_ms) = (self.heartbeat_timeout_ms, self.discarded_file_grace_ms);
        check_ranges(
            check,
            [
                ("scheduler.heartbeat-timeout-ms", timeout_ms, 1..=MAX_MS),
                ("scheduler.check-ms", self.check_ms, 1..=MAX_MS),
                ("scheduler.discarded-file-grace-ms", grace_ms, 0..=MAX_MS),
            ],
        );
    }
}

impl LimitsConfig {
    fn check(&self, check: &mut impl FnMut(bool, &str)) {
        let count = |key, value: usize, most: usize| (key, wide(value), 1..=wide(most));
        check_ranges(
            check,
            [
                count("limits.connections", self.connections, MAX_COUNT),
                count(
                    "limits.connections-per-address",
                    self.connections_per_address,
                    MAX_COUNT,
                ),
                count(
                    "limits.in-flight-per-connection",
                    self.in_flight_per_connection,
                    100_000,
                ),
                count("limits.max-fetch-bytes", self.max_fetch_bytes, GIB),
                count(
                    "limits.max-buckets-per-request",
                    self.max_buckets_per_request,
                    MAX_COUNT,
                ),
            ],
        );
        let frame = |key, value: usize, least: usize| (key, wide(value), wide(least)..=wide(GIB));
        check_ranges(
            check,
            [
                frame("limits.max-frame-bytes", self.max_frame_bytes, 1 << 10),
                frame(
                    "limits.max-small-frame-bytes",
                    self.max_small_frame_bytes,
                    1 << 10,
                ),
                ("limits.idle-ms", self.idle_ms, 1000..=MAX_MS),
                ("limits.slow-frame-ms", self.slow_frame_ms, 1..=MAX_MS),
                ("limits.first-request-ms", self.first_request_ms, 1..=MAX_MS),
                (
                    "limits.max-fetch-wait-ms",
                    self.max_fetch_wait_ms,
                    0..=MAX_MS,
                ),
            ],
        );
        check(
            self.max_frame_bytes_before_login <= self.max_frame_bytes,
            "limits.max-frame-bytes-before-login is above limits.max-frame-bytes",
        );
        check(
            self.request_memory_bytes >= self.max_frame_bytes,
            "limits.request-memory-bytes is below limits.max-frame-bytes",
        );
        check(
            self.answer_memory_bytes >= 1 << 10,
            "limits.answer-memory-bytes is below 1 KiB",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_mistakes_are_reported_at_once() {
        let mut config = ServerConfig {
            tablets: 0,
            listen: "nowhere".to_owned(),
            ..ServerConfig::default()
        };
        config.log.segment_bytes = 1;
        let Err(Error::Config { mistakes }) = config.validate() else {
            panic!("it is refused")
        };
        assert_eq!(mistakes.len(), 4, "{mistakes:?}");
    }

    #[test]
    fn a_value_that_would_stop_the_server_later_is_a_mistake() {
        let mistakes_of = |text: &str| {
            let mut config = ServerConfig::from_toml(text).unwrap();
            config.data_dir = PathBuf::from("/somewhere");
            match config.validate() {
                Ok(()) => Vec::new(),
                Err(Error::Config { mistakes }) => mistakes,
                Err(other) => panic!("{other}"),
            }
        };
        let most = i64::MAX;
        for (section, key) in [
            ("limits", "in-flight-per-connection"),
            ("limits", "idle-ms"),
            ("limits", "slow-frame-ms"),
            ("limits", "max-fetch-wait-ms"),
            ("limits", "max-buckets-per-request"),
            ("limits", "max-small-frame-bytes"),
            ("log", "recovery-threads"),
            ("log", "retention-check-ms"),
            ("scheduler", "heartbeat-timeout-ms"),
        ] {
            let mistakes = mistakes_of(&format!("[{section}]\n{key} = {most}"));
            assert_eq!(mistakes.len(), 1, "{key}: {mistakes:?}");
            assert!(mistakes[0].contains(key), "{mistakes:?}");
        }
        for key in ["max-fetch-bytes", "in-flight-per-connection", "connections"] {
            let mistakes = mistakes_of(&format!("[limits]\n{key} = 0"));
            assert_eq!(mistakes.len(), 1, "{key}: {mistakes:?}");
        }
    }

    #[test]
    fn clients_are_never_told_to_connect_to_every_address() {
        let config = |listen: &str, advertise: Option<&str>| ServerConfig {
            listen: listen.to_owned(),
            advertise: advertise.map(str::to_owned),
            ..ServerConfig::in_dir("/somewhere")
        };
        for listen in ["0.0.0.0:9123", "[::]:9123", "0.0.0.0:0"] {
            let error = config(listen, None).validate().unwrap_err();
            assert!(error.to_string().contains("set advertise"), "{error}");
            config(listen, Some("db.example")).validate().unwrap();
        }
        config("127.0.0.1:9123", None).validate().unwrap();
    }

    #[test]
    fn the_defaults_in_a_folder_are_valid() {
        ServerConfig::in_dir("/somewhere").validate().unwrap();
    }

    #[test]
    fn an_unknown_key_is_a_mistake_that_names_it() {
        let error = ServerConfig::from_toml("tablet = 3").unwrap_err();
        assert!(error.to_string().contains("tablet"), "{error}");
    }

    #[test]
    fn flush_policies_are_read_and_written() {
        let config = ServerConfig::from_toml("[log]\nflush = \"interval(20)\"").unwrap();
        assert_eq!(config.log.flush, FlushPolicy::Interval(20));
        for text in ["always", "os", "interval(7)"] {
            assert_eq!(text.parse::<FlushPolicy>().unwrap().to_string(), text);
        }
        for text in ["", "never", "interval(0)", "interval(x)", "interval(1"] {
            assert!(text.parse::<FlushPolicy>().is_err(), "{text}");
        }
    }

    #[test]
    fn passwords_are_neither_printed_nor_written() {
        let users = BTreeMap::from([("alice".to_owned(), "secret".to_owned())]);
        let sasl = Some(SaslConfig {
            users,
            login_timeout_ms: None,
        });
        let config = ServerConfig {
            sasl,
            ..ServerConfig::in_dir("/somewhere")
        };
        assert!(!format!("{config:?}").contains("secret"));
        assert!(!toml::to_string(&config).unwrap().contains("secret"));
    }
}
