//! How a table's partitions follow time: its properties `table.auto-partition.*`, typed.

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::format::TimeFormat;
use super::unit::TimeUnit;

/// How the partitions of a table follow time.
#[derive(Clone, Debug)]
pub struct AutoPartition {
    /// Whether the server creates and drops partitions.
    pub is_enabled: bool,
    /// The partition column that holds the time.
    pub key: String,
    /// How long one partition lasts.
    pub unit: TimeUnit,
    /// How its time is written.
    pub format: TimeFormat,
    /// The zone in which days begin.
    pub zone: TimeZone,
    /// Partitions to have ready, the current one among them.
    pub precreate: i32,
    /// Past partitions to keep; negative for ever.
    pub retention: i32,
}

impl AutoPartition {
    /// The text of the partition `steps` units after the one that holds `now_ms`.
    pub fn text(&self, now_ms: i64, steps: i64) -> Option<String> {
        let now = Timestamp::from_millisecond(now_ms)
            .ok()?
            .to_zoned(self.zone.clone());
        Some(self.format.write(&self.unit.after(&now, steps)?))
    }

    /// The oldest text that is kept; `None` if all are.
    pub fn oldest_kept(&self, now_ms: i64) -> Option<String> {
        if self.retention < 0 {
            None
        } else {
            self.text(now_ms, -i64::from(self.retention))
        }
    }
}
