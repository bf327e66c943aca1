//! Partition values as text and back.

use super::refused;
use crate::error::{Error, Result};
use crate::row::Datum;
use crate::schema::TypeKind;

const DAY_MILLIS: i64 = 86_400_000;

/// The text of a value in a partition's name.
///
/// Numbers in decimal, `true`/`false`, lower-case hex, `2022-01-08`, `HH-MM-SS_mmm`, Java's float
/// text with `_` for the point, and `yyyy-MM-dd-HH-mm-ss_fraction` (UTC, no trailing zeros) for
/// both kinds of timestamp.
///
/// # Errors
/// [`Error::ValueMismatch`] for null or a value of another kind, [`Error::UnsupportedType`] for
/// types that partition columns can't have, [`Error::Invalid`] for years outside 1..=9999.
pub fn value_text(value: &Datum, kind: &TypeKind) -> Result<String> {
    Ok(match (value, kind) {
        (Datum::String(text), TypeKind::Char { .. } | TypeKind::String) => text.clone(),
        (Datum::Boolean(value), TypeKind::Boolean) => value.to_string(),
        (Datum::Bytes(bytes), TypeKind::Binary { .. } | TypeKind::Bytes) => hex(bytes),
        (Datum::TinyInt(value), TypeKind::TinyInt) => value.to_string(),
        (Datum::SmallInt(value), TypeKind::SmallInt) => value.to_string(),
        (Datum::Int(value), TypeKind::Int) => value.to_string(),
        (Datum::BigInt(value), TypeKind::BigInt) => value.to_string(),
        (Datum::Date(days), TypeKind::Date) => date_text(i64::from(*days))?,
        (Datum::Time(millis), TypeKind::Time { .. }) => time_text(*millis),
        (Datum::Float(value), TypeKind::Float) => float_text(
            f64::from(*value),
            &format!("{value:e}"),
            f64::from(value.abs()),
        ),
        (Datum::Double(value), TypeKind::Double) => {
            float_text(*value, &format!("{value:e}"), value.abs())
        }
        (
            Datum::Timestamp { millis, nanos },
            TypeKind::Timestamp { .. } | TypeKind::TimestampLtz { .. },
        ) => timestamp_text(*millis, *nanos)?,
        _ => return Err(refused(value, kind)),
    })
}

/// The value that [`value_text`] wrote.
///
/// # Errors
/// [`Error::Invalid`] if the text is none of this type's, [`Error::UnsupportedType`] for types that
/// partition columns can't have.
pub fn parse_value(text: &str, kind: &TypeKind) -> Result<Datum> {
    let parsed = match kind {
        TypeKind::Char { .. } | TypeKind::String => Some(Datum::String(text.to_owned())),
        TypeKind::Boolean => text.parse().ok().map(Datum::Boolean),
        TypeKind::Binary { .. } | TypeKind::Bytes => unhex(text).map(Datum::Bytes),
        TypeKind::TinyInt => text.parse().ok().map(Datum::TinyInt),
        TypeKind::SmallInt => text.parse().ok().map(Datum::SmallInt),
        TypeKind::Int => text.parse().ok().map(Datum::Int),
        TypeKind::BigInt => text.parse().ok().map(Datum::BigInt),
        TypeKind::Date => parse_date(text)
            .and_then(|days| i32::try_from(days).ok())
            .map(Datum::Date),
        TypeKind::Time { .. } => parse_time(text).map(Datum::Time),
        TypeKind::Float => text.replace('_', ".").parse().ok().map(Datum::Float),
        TypeKind::Double => text.replace('_', ".").parse().ok().map(Datum::Double),
        TypeKind::Timestamp { .. } | TypeKind::TimestampLtz { .. } => parse_timestamp(text),
        _ => return Err(refused(&Datum::Null, kind)),
    };
    parsed.ok_or_else(|| {
        Error::invalid(
            "partition value",
            text,
            "not a value of the partition column's type",
        )
    })
}

fn hex(bytes: &[u8]) -> String {
    use fmt::Write;
    use std::fmt;

    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = text
        .chars()
        .map(|c| c.to_digit(16).and_then(|d| u8::try_from(d).ok()))
        .collect();
    let (pairs, rest) = digits.as_deref()?.as_chunks::<2>();
    rest.is_empty()
        .then(|| pairs.iter().map(|[high, low]| high << 4 | low).collect())
}

/// Java's `Double.toString` with `_` for the point: plain from 10⁻³ to below 10⁷, else `d.dddE±x`
/// with at least two digits, of those the ones nearest to the value: `4_9E-324`.
fn float_text(value: f64, scientific: &str, magnitude: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Inf" } else { "-Inf" }.to_owned();
    }
    let is_plain = magnitude == 0.0 || (1e-3..1e7).contains(&magnitude);
    if !is_plain && !scientific.contains('.') {
        let two_digits = format!("{value:.1e}");
        return two_digits.replace('.', "_").replace('e', "E");
    }
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let (sign, mantissa) = mantissa
        .strip_prefix('-')
        .map_or(("", mantissa), |rest| ("-", rest));
    let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    if !is_plain {
        let (first, rest) = digits.split_at(1);
        return format!("{sign}{first}_{rest}E{exponent}");
    }
    if let Ok(point) = usize::try_from(exponent) {
        let padded = format!("{digits:0<width$}", width = point + 1);
        let (whole, fraction) = padded.split_at(point + 1);
        let fraction = if fraction.is_empty() { "0" } else { fraction };
        format!("{sign}{whole}_{fraction}")
    } else {
        let zeros = usize::try_from(-exponent - 1).unwrap_or(0);
        format!("{sign}0_{}{digits}", "0".repeat(zeros))
    }
}

fn date_text(days: i64) -> Result<String> {
    let (year, month, day) = civil_from_days(days);
    if !(1..=9999).contains(&year) {
        return Err(Error::invalid(
            "partition value",
            days.to_string(),
            "year of the date is outside 1 to 9999",
        ));
    }
    Ok(format!("{year:04}-{month:02}-{day:02}"))
}

fn time_text(millis: i32) -> String {
    let (hours, rest) = (millis.div_euclid(3_600_000), millis.rem_euclid(3_600_000));
    format!(
        "{hours:02}-{:02}-{:02}_{:03}",
        rest / 60_000,
        rest / 1000 % 60,
        rest % 1000
    )
}

fn timestamp_text(millis: i64, nanos: i32) -> Result<String> {
    let (days, of_day) = (millis.div_euclid(DAY_MILLIS), millis.rem_euclid(DAY_MILLIS));
    let date = date_text(days)?;
    let seconds = of_day / 1000;
    let fraction = format!("{:03}{nanos:06}", of_day % 1000);
    let fraction = fraction.trim_end_matches('0');
    Ok(format!(
        "{date}-{:02}-{:02}-{:02}_{fraction}",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60
    ))
}

fn parse_date(text: &str) -> Option<i64> {
    let mut parts = text.splitn(3, '-').map(str::parse::<i64>);
    let (year, month, day) = (
        parts.next()?.ok()?,
        parts.next()?.ok()?,
        parts.next()?.ok()?,
    );
    let in_range =
        (1..=9999).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
    if !in_range {
        return None;
    }
    let days = days_from_civil(year, month, day);
    (civil_from_days(days) == (year, month, day)).then_some(days)
}

fn parse_time(text: &str) -> Option<i32> {
    let (clock, millis) = text.split_once('_')?;
    let millis: i32 = millis
        .parse()
        .ok()
        .filter(|millis| (0..1000).contains(millis))?;
    Some(i32::try_from(parse_clock(clock)?).ok()? * 1000 + millis)
}

/// Seconds of the day of `HH-mm-ss`.
fn parse_clock(text: &str) -> Option<i64> {
    let mut parts = text.splitn(3, '-').map(str::parse::<i64>);
    let (hour, minute, second) = (
        parts.next()?.ok()?,
        parts.next()?.ok()?,
        parts.next()?.ok()?,
    );
    let in_range =
        (0..24).contains(&hour) && (0..60).contains(&minute) && (0..60).contains(&second);
    in_range.then(|| hour * 3600 + minute * 60 + second)
}

fn parse_timestamp(text: &str) -> Option<Datum> {
    let (moment, fraction) = text.split_once('_').unwrap_or((text, ""));
    let (date, clock) = match moment.match_indices('-').nth(2) {
        Some((at, _)) => (moment.get(..at)?, moment.get(at + 1..)),
        None => (moment, None),
    };
    let seconds = match clock {
        Some(clock) => parse_clock(clock)?,
        None => 0,
    };
    if fraction.len() > 9 || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let nanos: i64 = format!("{fraction:0<9}").parse().ok()?;
    let millis = parse_date(date)? * DAY_MILLIS + seconds * 1000 + nanos / 1_000_000;
    Some(Datum::Timestamp {
        millis,
        nanos: i32::try_from(nanos % 1_000_000).ok()?,
    })
}

/// Year, month and day of a count of days since 1970-01-01, in the proleptic Gregorian calendar.
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    // Count from 0000-03-01, so that leap days end a cycle of 400 years.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let shifted_month = (month + 9) % 12;
    let day_of_year = (153 * shifted_month + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}
