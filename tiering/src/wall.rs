//! Wall clock and chance: the only places of this crate that ask the machine for either.

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// A name that no other process draws: of rounds, files and commits.
#[allow(clippy::disallowed_methods, reason = "the one place that draws names")]
pub(crate) fn unique_name() -> String {
    uuid::Uuid::new_v4().to_string()
}

/// The local wall clock at `now_ms` (milliseconds since 1970, UTC), written as if it were UTC: how
/// the lake stores creation times.
pub(crate) fn local_ms(now_ms: i64) -> i64 {
    let Ok(now) = Timestamp::from_millisecond(now_ms) else {
        return now_ms;
    };
    let offset = TimeZone::system().to_offset(now);
    now_ms.saturating_add(i64::from(offset.seconds()).saturating_mul(1_000))
}
