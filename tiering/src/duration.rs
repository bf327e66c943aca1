//! Durations as table properties write them: a number and a unit, `3 min`, `30s`, `500ms`, `7 d`;
//! no unit means milliseconds.

use std::time::Duration;

/// The duration that `text` says, or `None`.
pub(crate) fn parse(text: &str) -> Option<Duration> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_the_reference_writes_them() {
        let seconds = |text: &str| parse(text).map(|d| d.as_secs_f64());
        assert_eq!(seconds("3 min"), Some(180.0));
        assert_eq!(seconds("30s"), Some(30.0));
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
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
