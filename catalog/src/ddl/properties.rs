//! The properties of tables that the server knows, and typed access to them.
//!
//! Names, types and defaults as in the reference's `ConfigOptions` (release 1.0.0).

use std::collections::BTreeMap;
use std::time::Duration;

use weir_protocol::ids::TablePath;

use crate::auto_partition::format::TimeFormat;
use crate::auto_partition::settings::AutoPartition;
use crate::auto_partition::unit::TimeUnit;
use crate::{Error, Result};

/// Prefix of the properties that the reference knows.
pub const TABLE_PREFIX: &str = "table.";
/// Prefix of our own properties.
pub const WEIR_PREFIX: &str = "weir.";
/// Prefix of properties about the lake.
pub const DATALAKE_PREFIX: &str = "table.datalake.";

/// `table.replication.factor`
pub const REPLICATION_FACTOR: &str = "table.replication.factor";
/// `table.log.format`
pub const LOG_FORMAT: &str = "table.log.format";
/// `table.log.arrow.compression.type`
pub const COMPRESSION: &str = "table.log.arrow.compression.type";
/// `table.log.arrow.compression.zstd.level`
pub const ZSTD_LEVEL: &str = "table.log.arrow.compression.zstd.level";
/// `table.log.ttl`
pub const LOG_TTL: &str = "table.log.ttl";
/// `table.log.local-ttl`
pub const LOG_LOCAL_TTL: &str = "table.log.local-ttl";
/// `table.log.tiered.local-segments`
pub const LOCAL_SEGMENTS: &str = "table.log.tiered.local-segments";
/// `table.kv.format`
pub const KV_FORMAT: &str = "table.kv.format";
/// `table.kv.format-version`
pub const KV_FORMAT_VERSION: &str = "table.kv.format-version";
/// `table.kv.standby-replica.enabled`
pub const STANDBY_REPLICA: &str = "table.kv.standby-replica.enabled";
/// `table.changelog.image`
pub const CHANGELOG_IMAGE: &str = "table.changelog.image";
/// `table.merge-engine`
pub const MERGE_ENGINE: &str = "table.merge-engine";
/// `table.merge-engine.versioned.ver-column`
pub const VERSION_COLUMN: &str = "table.merge-engine.versioned.ver-column";
/// `table.delete.behavior`
pub const DELETE_BEHAVIOR: &str = "table.delete.behavior";
/// `table.auto-partition.enabled`
pub const AUTO_PARTITION: &str = "table.auto-partition.enabled";
/// `table.auto-partition.key`
pub const AUTO_PARTITION_KEY: &str = "table.auto-partition.key";
/// `table.auto-partition.time-unit`
pub const TIME_UNIT: &str = "table.auto-partition.time-unit";
/// `table.auto-partition.time-format`
pub const TIME_FORMAT: &str = "table.auto-partition.time-format";
/// `table.auto-partition.time-zone`
pub const TIME_ZONE: &str = "table.auto-partition.time-zone";
/// `table.auto-partition.num-precreate`
pub const NUM_PRECREATE: &str = "table.auto-partition.num-precreate";
/// `table.auto-partition.num-retention`
pub const NUM_RETENTION: &str = "table.auto-partition.num-retention";
/// `table.datalake.enabled`
pub const DATALAKE_ENABLED: &str = "table.datalake.enabled";
/// `table.datalake.format`
pub const DATALAKE_FORMAT: &str = "table.datalake.format";
/// `table.datalake.freshness`
pub const FRESHNESS: &str = "table.datalake.freshness";
/// `table.datalake.auto-compaction`
pub const AUTO_COMPACTION: &str = "table.datalake.auto-compaction";
/// `table.datalake.database-name`
pub const LAKE_DATABASE: &str = "table.datalake.database-name";
/// `table.datalake.table-name`
pub const LAKE_TABLE: &str = "table.datalake.table-name";
/// `table.datalake.historical-partition.enabled`
pub const HISTORICAL_PARTITION: &str = "table.datalake.historical-partition.enabled";
/// `table.statistics.columns`
pub const STATISTICS_COLUMNS: &str = "table.statistics.columns";

/// `weir.bad-record`: what is done with rows that the lake table can't take. Ours.
pub const BAD_RECORD: &str = "weir.bad-record";

/// `weir.lake-history`: whether the history of the lake table must be the table's own, or was made
/// by others and is adopted. Ours.
pub const LAKE_HISTORY: &str = "weir.lake-history";

/// What values a property takes.
#[derive(Clone, Copy, Debug)]
enum Values {
    Bool,
    Int(i64, i64),
    Duration,
    OneOf(&'static [&'static str]),
    Zone,
    Text,
}

struct Property {
    key: &'static str,
    values: Values,
    is_alterable: bool,
}

const fn fixed(key: &'static str, values: Values) -> Property {
    Property {
        key,
        values,
        is_alterable: false,
    }
}

const fn alterable(key: &'static str, values: Values) -> Property {
    Property {
        key,
        values,
        is_alterable: true,
    }
}

const INT: Values = Values::Int(i32::MIN as i64, i32::MAX as i64);
const POSITIVE: Values = Values::Int(1, i32::MAX as i64);

const PROPERTIES: &[Property] = &[
    fixed(REPLICATION_FACTOR, POSITIVE),
    fixed(
        LOG_FORMAT,
        Values::OneOf(&["ARROW", "INDEXED", "COMPACTED"]),
    ),
    fixed(COMPRESSION, Values::OneOf(&["ZSTD", "LZ4_FRAME", "NONE"])),
    fixed(ZSTD_LEVEL, Values::Int(1, 22)),
    alterable(LOG_TTL, Values::Duration),
    alterable(LOG_LOCAL_TTL, Values::Duration),
    alterable(LOCAL_SEGMENTS, POSITIVE),
    fixed(KV_FORMAT, Values::OneOf(&["COMPACTED", "INDEXED"])),
    fixed(KV_FORMAT_VERSION, Values::Int(1, 2)),
    alterable(STANDBY_REPLICA, Values::Bool),
    fixed("table.kv.ttl", Values::Duration),
    fixed("table.kv.ttl.time-column", Values::Text),
    fixed("table.auto-increment.cache-size", Values::Int(1, i64::MAX)),
    fixed(CHANGELOG_IMAGE, Values::OneOf(&["FULL", "WAL"])),
    fixed(
        MERGE_ENGINE,
        Values::OneOf(&["FIRST_ROW", "VERSIONED", "AGGREGATION"]),
    ),
    fixed(VERSION_COLUMN, Values::Text),
    fixed(
        DELETE_BEHAVIOR,
        Values::OneOf(&["ALLOW", "IGNORE", "DISABLE"]),
    ),
    alterable(AUTO_PARTITION, Values::Bool),
    fixed(AUTO_PARTITION_KEY, Values::Text),
    fixed(
        TIME_UNIT,
        Values::OneOf(&["HOUR", "DAY", "MONTH", "QUARTER", "YEAR"]),
    ),
    fixed(TIME_FORMAT, Values::Text),
    fixed(TIME_ZONE, Values::Zone),
    alterable(NUM_PRECREATE, INT),
    alterable(NUM_RETENTION, INT),
    alterable(DATALAKE_ENABLED, Values::Bool),
    fixed(
        DATALAKE_FORMAT,
        Values::OneOf(&["PAIMON", "ICEBERG", "LANCE", "HUDI"]),
    ),
    alterable(FRESHNESS, Values::Duration),
    alterable(AUTO_COMPACTION, Values::Bool),
    fixed("table.datalake.auto-expire-snapshot", Values::Bool),
    alterable(LAKE_DATABASE, Values::Text),
    alterable(LAKE_TABLE, Values::Text),
    alterable(HISTORICAL_PARTITION, Values::Bool),
    alterable(STATISTICS_COLUMNS, Values::Text),
    alterable(BAD_RECORD, Values::OneOf(&["stop", "divert"])),
    alterable(LAKE_HISTORY, Values::OneOf(&["own", "adopt"])),
];

fn find(key: &str) -> Option<&'static Property> {
    PROPERTIES.iter().find(|property| property.key == key)
}

/// Whether `key` is one of the lake catalog's own options, like `table.datalake.paimon.warehouse`.
pub fn is_lake_option(key: &str) -> bool {
    let formats = ["paimon.", "iceberg.", "lance.", "hudi."];
    let rest = key.strip_prefix(DATALAKE_PREFIX).unwrap_or_default();
    formats.iter().any(|format| rest.starts_with(format))
}

/// Whether an existing table may change the property `key`. Keys without `table.` always may.
pub fn is_alterable(key: &str) -> bool {
    !key.starts_with(TABLE_PREFIX) || find(key).is_some_and(|property| property.is_alterable)
}

/// Whether a table with these properties goes on behind a history of its lake table that others made.
pub fn adopts_history(properties: &BTreeMap<String, String>) -> bool {
    let history = properties.get(LAKE_HISTORY);
    history.is_some_and(|text| text.trim().eq_ignore_ascii_case("adopt"))
}

/// Checks one entry of a table's properties.
///
/// # Errors
/// [`Error::InvalidConfig`] for an unknown key, and for a value that the key does not take.
pub fn check(path: &TablePath, key: &str, value: &str) -> Result<()> {
    let invalid = |reason: String| invalid(path, key, reason);
    let known = find(key);
    if known.is_none() && (key.starts_with(WEIR_PREFIX) || is_lake_option(key)) {
        return Ok(());
    }
    let Some(property) = known else {
        return Err(invalid(if key.starts_with(TABLE_PREFIX) {
            "this server does not know it".to_owned()
        } else {
            "it does not start with `table.`: make it a custom property".to_owned()
        }));
    };
    match property.values {
        Values::Text => Ok(()),
        Values::Bool => parse_bool(value).map(drop),
        Values::Duration => parse_duration(value).map(drop),
        Values::Zone => parse_zone(value).map(drop),
        Values::Int(min, max) => match value.trim().parse::<i64>() {
            Ok(number) if (min..=max).contains(&number) => Ok(()),
            Ok(number) => Err(format!("{number} is not between {min} and {max}")),
            Err(_) => Err(format!("`{value}` is no whole number")),
        },
        Values::OneOf(names) => match names.iter().find(|name| name.eq_ignore_ascii_case(value)) {
            Some(_) => Ok(()),
            None => Err(format!("`{value}` is none of {}", names.join(", "))),
        },
    }
    .map_err(invalid)
}

fn invalid(path: &TablePath, key: &str, reason: String) -> Error {
    Error::InvalidConfig {
        path: path.clone(),
        key: key.to_owned(),
        reason,
    }
}

/// Reads `true` or `false`, in any case.
///
/// # Errors
/// A text for the end of a sentence.
pub fn parse_bool(text: &str) -> Result<bool, String> {
    match text.trim() {
        text if text.eq_ignore_ascii_case("true") => Ok(true),
        text if text.eq_ignore_ascii_case("false") => Ok(false),
        text => Err(format!("`{text}` is neither true nor false")),
    }
}

/// Reads a duration: a whole number and a unit, like `7 d`, `3 min`, `0ms`. (The reference's
/// `TimeUtils`.)
///
/// # Errors
/// A text for the end of a sentence.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let trimmed = text.trim();
    let digits = trimmed.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = trimmed.split_at(digits);
    let number: u64 = number
        .parse()
        .map_err(|_| format!("`{text}` does not start with a whole number"))?;
    let nanos_per_unit: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "d" | "day" | "days" => 86_400_000_000_000,
        "h" | "hour" | "hours" => 3_600_000_000_000,
        "min" | "m" | "minute" | "minutes" => 60_000_000_000,
        "s" | "sec" | "secs" | "second" | "seconds" => 1_000_000_000,
        "ms" | "milli" | "millis" | "millisecond" | "milliseconds" => 1_000_000,
        "µs" | "micro" | "micros" | "microsecond" | "microseconds" => 1_000,
        "ns" | "nano" | "nanos" | "nanosecond" | "nanoseconds" => 1,
        "" => return Err(format!("`{text}` has no unit: write ms, s, min, h or d")),
        unit => return Err(format!("`{unit}` is no unit: write ms, s, min, h or d")),
    };
    let nanos = u128::from(number) * u128::from(nanos_per_unit);
    let secs = u64::try_from(nanos / 1_000_000_000).map_err(|_| format!("`{text}` is too long"))?;
    let rest = u32::try_from(nanos % 1_000_000_000).unwrap_or(0);
    Ok(Duration::new(secs, rest))
}

fn parse_zone(text: &str) -> Result<jiff::tz::TimeZone, String> {
    let text = text.trim();
    if text == "Z" {
        return Ok(jiff::tz::TimeZone::UTC);
    }
    let offset = text
        .strip_prefix("GMT")
        .or_else(|| text.strip_prefix("UTC"))
        .unwrap_or(text);
    if let Some(offset) = parse_offset(offset) {
        return Ok(offset.to_time_zone());
    }
    jiff::tz::TimeZone::get(text).map_err(|_| format!("`{text}` is no time zone"))
}

/// Reads `+08:00`, `+8` and the like; empty text is none.
fn parse_offset(text: &str) -> Option<jiff::tz::Offset> {
    let sign = match text.bytes().next()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let (hours, minutes) = text
        .get(1..)?
        .split_once(':')
        .unwrap_or((text.get(1..)?, "0"));
    let (hours, minutes): (i32, i32) = (hours.parse().ok()?, minutes.parse().ok()?);
    let in_range = (0..=18).contains(&hours) && (0..60).contains(&minutes);
    let seconds = sign * (hours * 3600 + minutes * 60);
    if in_range {
        jiff::tz::Offset::from_seconds(seconds).ok()
    } else {
        None
    }
}

/// Typed access to a table's properties, with the reference's defaults.
///
/// Every accessor returns [`Error::InvalidConfig`] for a value that can't be read; values are
/// checked when a table is created, so that happens to documents of other writers only.
#[derive(Clone, Copy, Debug)]
pub struct TableProperties<'a> {
    path: &'a TablePath,
    values: &'a BTreeMap<String, String>,
}

impl<'a> TableProperties<'a> {
    /// The properties of the table at `path`.
    pub fn new(path: &'a TablePath, values: &'a BTreeMap<String, String>) -> Self {
        Self { path, values }
    }

    /// The text of a property, if it is set.
    pub fn get(&self, key: &str) -> Option<&'a str> {
        self.values.get(key).map(String::as_str)
    }

    fn parsed<T>(
        &self,
        key: &str,
        default: T,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<T> {
        match self.get(key) {
            Some(text) => parse(text).map_err(|reason| invalid(self.path, key, reason)),
            None => Ok(default),
        }
    }

    fn number(&self, key: &str, default: i32) -> Result<i32> {
        let parse = |text: &str| {
            text.trim()
                .parse()
                .map_err(|_| format!("`{text}` is no whole number"))
        };
        self.parsed(key, default, parse)
    }

    /// Whether the lake gets this table's rows; false by default.
    pub fn datalake_enabled(&self) -> Result<bool> {
        self.parsed(DATALAKE_ENABLED, false, parse_bool)
    }

    /// How old rows may be before they are in the lake; 3 minutes by default.
    pub fn freshness(&self) -> Result<Duration> {
        self.parsed(FRESHNESS, Duration::from_mins(3), parse_duration)
    }

    /// Whether the lake table is compacted while it is written; false by default.
    pub fn auto_compaction(&self) -> Result<bool> {
        self.parsed(AUTO_COMPACTION, false, parse_bool)
    }

    /// How long the log keeps records; 7 days by default, zero for ever.
    pub fn log_ttl(&self) -> Result<Duration> {
        self.parsed(LOG_TTL, Duration::from_hours(168), parse_duration)
    }

    /// How many replicas a bucket has; 1 by default.
    pub fn replication_factor(&self) -> Result<i32> {
        self.number(REPLICATION_FACTOR, 1)
    }

    /// Whether a property that names one of several has this value, `default` standing in for none.
    pub fn is(&self, key: &str, value: &str, default: &str) -> bool {
        self.get(key).unwrap_or(default).eq_ignore_ascii_case(value)
    }

    /// Level of ZSTD in Arrow log batches; 3 by default.
    pub fn zstd_level(&self) -> Result<i32> {
        self.number(ZSTD_LEVEL, 3)
    }

    /// Whether the server creates and drops partitions by time; false by default.
    pub fn auto_partition_enabled(&self) -> Result<bool> {
        self.parsed(AUTO_PARTITION, false, parse_bool)
    }

    /// How partitions follow time, whether enabled or not.
    ///
    /// * `partition_keys`: the table's; the first is the default key.
    pub fn auto_partition(&self, partition_keys: &[String]) -> Result<AutoPartition> {
        let key = match self.get(AUTO_PARTITION_KEY).map(str::trim) {
            None | Some("") => partition_keys.first().cloned().unwrap_or_default(),
            Some(key) => key.to_owned(),
        };
        let unit = self.parsed(TIME_UNIT, TimeUnit::Day, TimeUnit::parse)?;
        let format = self.parsed(TIME_FORMAT, TimeFormat::of_unit(unit), |text| {
            TimeFormat::parse(text, unit)
        })?;
        Ok(AutoPartition {
            is_enabled: self.auto_partition_enabled()?,
            key,
            unit,
            format,
            zone: self.parsed(TIME_ZONE, jiff::tz::TimeZone::UTC, parse_zone)?,
            precreate: self.number(NUM_PRECREATE, 2)?,
            retention: self.number(NUM_RETENTION, 7)?,
        })
    }
}
