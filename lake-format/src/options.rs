//! A typed view of the options that change bytes or rules.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::error::{Error, Result};

/// The options of a table, read with the format's defaults.
#[derive(Clone, Copy, Debug)]
pub struct TableOptions<'a> {
    options: &'a BTreeMap<String, String>,
}

/// How many buckets new partitions get, and how rows find theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BucketMode {
    /// A fixed number, by hash of the bucket key.
    Fixed(i32),
    /// Append tables: one folder, no key. Entries have bucket 0 and total buckets −1.
    Unaware,
    /// Primary-key tables with `bucket` −1: by an index of keys.
    Dynamic,
    /// Primary-key tables with `bucket` −2: decided at compaction.
    Postpone,
}

/// Which numbers of a column are kept in manifests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatsMode {
    /// None: the column is left out.
    None,
    /// The null count.
    Counts,
    /// Null count, minimum and maximum cut to this many characters or bytes.
    Truncate(usize),
    /// Null count, minimum and maximum.
    Full,
}

/// How values are spelled in names of partition folders (option `partition.legacy-name`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    /// The text of the internal value: a date is its day number. The format's default.
    Legacy,
    /// The text of an SQL cast to string: a date is `2022-01-08`.
    Sql,
}

impl<'a> TableOptions<'a> {
    /// A view of `options`.
    pub fn new(options: &'a BTreeMap<String, String>) -> Self {
        Self { options }
    }

    /// The text of an option, if it is set.
    pub fn get(&self, name: &str) -> Option<&'a str> {
        self.options.get(name).map(String::as_str)
    }

    /// `bucket`, −1 by default.
    ///
    /// # Errors
    /// [`Error::InvalidSchema`] if it is no number.
    pub fn bucket(&self) -> Result<i32> {
        self.number("bucket", -1)
    }

    /// `bucket-key` as column names; empty if it is not set.
    pub fn bucket_key(&self) -> Vec<&'a str> {
        let keys = self.get("bucket-key").unwrap_or_default();
        keys.split(',')
            .map(str::trim)
            .filter(|key| !key.is_empty())
            .collect()
    }

    /// `partition.default-name`.
    pub fn default_partition_name(&self) -> &'a str {
        self.get("partition.default-name")
            .unwrap_or("__DEFAULT_PARTITION__")
    }

    /// `partition.legacy-name`, true by default.
    ///
    /// # Errors
    /// [`Error::InvalidSchema`] if it is neither `true` nor `false`.
    pub fn partition_names(&self) -> Result<Names> {
        Ok(if self.is_true("partition.legacy-name", true)? {
            Names::Legacy
        } else {
            Names::Sql
        })
    }

    /// `target-file-size` in bytes; 256 MiB by default, 128 MiB with a primary key.
    ///
    /// # Errors
    /// [`Error::InvalidSchema`] if it is no size.
    pub fn target_file_size(&self, has_primary_key: bool) -> Result<u64> {
        let default = if has_primary_key {
            128 << 20
        } else {
            256 << 20
        };
        self.size("target-file-size", default)
    }

    /// `manifest.target-file-size` in bytes, 8 MiB by default.
    ///
    /// # Errors
    /// [`Error::InvalidSchema`] if it is no size.
    pub fn manifest_target_file_size(&self) -> Result<u64> {
        self.size("manifest.target-file-size", 8 << 20)
    }

    /// `manifest.merge-min-count`: small manifests from which on they are merged, 30 by default.
    ///
    /// # Errors
    /// [`Error::InvalidSchema`] if it is no count.
    pub fn manifest_merge_min_count(&self) -> Result<u32> {
        self.number("manifest.merge-min-count", 30)
    }

    /// `manifest.full-compaction-threshold-size` in bytes, 16 MiB by default.
    ///
    /// # Errors
    /// [`Error::InvalidSchema`] if it is no size.
    pub fn manifest_full_compaction_size(&self) -> Result<u64> {
        self.size("manifest.full-compaction-threshold-size", 16 << 20)
    }

    /// `file.format`, `parquet` by default.
    pub fn file_format(&self) -> &'a str {
        self.get("file.format").unwrap_or("parquet")
    }

    /// `file.compression`, `zstd` by default.
    pub fn file_compression(&self) -> &'a str {
        self.get("file.compression").unwrap_or("zstd")
    }

    /// `file.compression.zstd-level`, 1 by default.
    ///
    /// # Errors
    /// [`Error::InvalidSchema`] if it is no number.
    pub fn zstd_level(&self) -> Result<i32> {
        self.number("file.compression.zstd-level", 1)
    }

    /// `data-file.prefix`, `data-` by default.
    pub fn data_file_prefix(&self) -> &'a str {
        self.get("data-file.prefix").unwrap_or("data-")
    }

    /// `changelog-file.prefix`, `changelog-` by default.
    pub fn changelog_file_prefix(&self) -> &'a str {
        self.get("changelog-file.prefix").unwrap_or("changelog-")
    }

    /// `data-file.path-directory`: a folder above the partitions, none by default.
    pub fn data_directory(&self) -> Option<&'a str> {
        self.get("data-file.path-directory")
            .map(|dir| dir.trim_matches('/'))
            .filter(|dir| !dir.is_empty())
    }

    /// `metadata.stats-dense-store`, true by default.
    ///
    /// # Errors
    /// [`Error::InvalidSchema`] if it is neither `true` nor `false`.
    pub fn dense_stats(&self) -> Result<bool> {
        self.is_true("metadata.stats-dense-store", true)
    }

    /// The stats mode of a column: `fields.COLUMN.stats-mode`, then `metadata.stats-mode`,
    /// `truncate(16)` by default; `none` behind `metadata.stats-keep-first-n-columns`.
    ///
    /// # Errors
    /// [`Error::InvalidSchema`] if a mode is no known word.
    pub fn stats_mode(&self, column: &str, index: usize) -> Result<StatsMode> {
        let own = format!("fields.{column}.stats-mode");
        if let Some(mode) = self.get(&own) {
            return parse_stats_mode(&own, mode);
        }
        let first: i32 = self.number("metadata.stats-keep-first-n-columns", -1)?;
        if usize::try_from(first).is_ok_and(|first| index >= first) {
            return Ok(StatsMode::None);
        }
        let name = "metadata.stats-mode";
        parse_stats_mode(name, self.get(name).unwrap_or("truncate(16)"))
    }

    /// Other words than these two are errors to Java as well (paimon: `OptionsUtils`).
    pub(crate) fn is_true(self, name: &str, default: bool) -> Result<bool> {
        match self.get(name) {
            None => Ok(default),
            Some(text) if text.eq_ignore_ascii_case("true") => Ok(true),
            Some(text) if text.eq_ignore_ascii_case("false") => Ok(false),
            Some(text) => Err(bad_option(name, text)),
        }
    }

    pub(crate) fn number<T: std::str::FromStr>(self, name: &str, default: T) -> Result<T> {
        let Some(text) = self.get(name) else {
            return Ok(default);
        };
        text.trim().parse().map_err(|_| bad_option(name, text))
    }

    /// A duration; `None` if the option is not set.
    pub(crate) fn duration(self, name: &str) -> Result<Option<Duration>> {
        let text = self.get(name);
        text.map(|text| parse_duration(text).ok_or_else(|| bad_option(name, text)))
            .transpose()
    }

    fn size(self, name: &str, default: u64) -> Result<u64> {
        let Some(text) = self.get(name) else {
            return Ok(default);
        };
        parse_size(text).ok_or_else(|| bad_option(name, text))
    }
}

/// A duration such as `1 h`, `30min`, `500` (milliseconds), in the units of paimon's and fluss's
/// `TimeUtils`; `None` for any other text.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let text = text.trim();
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(digits)?;
    let number: u64 = number.parse().ok()?;
    let seconds = |factor: u64| number.checked_mul(factor).map(Duration::from_secs);
    match unit.trim().to_ascii_lowercase().as_str() {
        "ns" | "nano" | "nanos" | "nanosecond" | "nanoseconds" => {
            Some(Duration::from_nanos(number))
        }
        "us" | "µs" | "micro" | "micros" | "microsecond" | "microseconds" => {
            Some(Duration::from_micros(number))
        }
        "" | "ms" | "milli" | "millis" | "millisecond" | "milliseconds" => {
            Some(Duration::from_millis(number))
        }
        "s" | "sec" | "secs" | "second" | "seconds" => seconds(1),
        "m" | "min" | "minute" | "minutes" => seconds(60),
        "h" | "hour" | "hours" => seconds(3_600),
        "d" | "day" | "days" => seconds(86_400),
        _ => None,
    }
}

fn bad_option(name: &str, text: &str) -> Error {
    Error::InvalidSchema {
        reason: format!("option `{name}` cannot be `{text}`"),
    }
}

fn parse_stats_mode(name: &str, text: &str) -> Result<StatsMode> {
    let lower = text.trim().to_ascii_lowercase();
    match lower.as_str() {
        "none" => return Ok(StatsMode::None),
        "counts" => return Ok(StatsMode::Counts),
        "full" => return Ok(StatsMode::Full),
        _ => {}
    }
    let length = lower
        .strip_prefix("truncate(")
        .and_then(|rest| rest.strip_suffix(')'));
    // Java's lengths are `int`.
    let length: Option<i32> = length.and_then(|length| length.trim().parse().ok());
    length
        .filter(|length| *length > 0)
        .and_then(|length| usize::try_from(length).ok())
        .map(StatsMode::Truncate)
        .ok_or_else(|| bad_option(name, text))
}

/// A size such as `128 mb`, `8m`, `1024`, in units of 1024.
fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim().to_ascii_lowercase();
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim() {
        "" | "b" | "bytes" => 0,
        "k" | "kb" | "kibibytes" => 10,
        "m" | "mb" | "mebibytes" => 20,
        "g" | "gb" | "gibibytes" => 30,
        "t" | "tb" | "tebibytes" => 40,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_the_reference_writes_them() {
        let seconds = |text: &str| parse_duration(text).map(|d| d.as_secs_f64());
        assert_eq!(seconds("3 min"), Some(180.0));
        assert_eq!(seconds("30s"), Some(30.0));
        assert_eq!(seconds("30 secs"), Some(30.0));
        assert_eq!(seconds("500 ms"), Some(0.5));
        assert_eq!(seconds("7 d"), Some(604_800.0));
        assert_eq!(seconds("1500"), Some(1.5));
        for bad in [
            "",
            "min",
            "3 fortnights",
            "-1 s",
            "99999999999999999999 s",
            "1.5 s",
        ] {
            assert_eq!(parse_duration(bad), None, "{bad}");
        }
    }

    fn options(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect()
    }

    #[test]
    fn an_empty_table_has_the_defaults_of_the_format() {
        let none = BTreeMap::new();
        let view = TableOptions::new(&none);
        assert_eq!(view.bucket().unwrap(), -1);
        assert_eq!(view.target_file_size(false).unwrap(), 256 << 20);
        assert_eq!(view.partition_names().unwrap(), Names::Legacy);
        assert_eq!(view.stats_mode("a", 0).unwrap(), StatsMode::Truncate(16));
    }

    #[test]
    fn sizes_take_units() {
        let set = options(&[
            ("target-file-size", "64 MB"),
            ("manifest.target-file-size", "12k"),
        ]);
        let view = TableOptions::new(&set);
        assert_eq!(view.target_file_size(false).unwrap(), 64 << 20);
        assert_eq!(view.manifest_target_file_size().unwrap(), 12 << 10);
    }

    #[test]
    fn a_column_may_have_its_own_stats_mode() {
        let set = options(&[
            ("fields.b.stats-mode", "full"),
            ("metadata.stats-mode", "counts"),
            ("metadata.stats-keep-first-n-columns", "1"),
        ]);
        let view = TableOptions::new(&set);
        assert_eq!(view.stats_mode("a", 0).unwrap(), StatsMode::Counts);
        assert_eq!(view.stats_mode("b", 1).unwrap(), StatsMode::Full);
        assert_eq!(view.stats_mode("c", 2).unwrap(), StatsMode::None);
    }

    #[test]
    fn bad_values_are_errors_not_defaults() {
        let set = options(&[
            ("bucket", "many"),
            ("partition.legacy-name", "yes"),
            ("metadata.stats-dense-store", "1"),
            ("manifest.merge-min-count", "-1"),
        ]);
        let view = TableOptions::new(&set);
        assert!(view.bucket().is_err());
        assert!(view.partition_names().is_err());
        assert!(view.dense_stats().is_err());
        assert!(view.manifest_merge_min_count().is_err());
        for mode in [
            "truncate(0)",
            "truncate(2147483648)",
            "truncate(18446744073709551615)",
        ] {
            let set = options(&[("metadata.stats-mode", mode)]);
            assert!(
                TableOptions::new(&set).stats_mode("a", 0).is_err(),
                "{mode}"
            );
        }
    }

    #[test]
    fn truth_is_spelled_in_any_case() {
        let set = options(&[("partition.legacy-name", "False")]);
        let names = TableOptions::new(&set).partition_names();
        assert_eq!(names.unwrap(), Names::Sql);
    }
}
