//! The text of partition values in folder names.

use crate::datum::{Datum, Timestamp};
use crate::error::{Error, Result};
use crate::options::Names;
use crate::types::TypeKind;

/// The text of a value; `None` for null.
///
/// # Errors
/// [`Error::BadValue`] for nested values and for dates beyond year 9999.
pub fn value_text(value: &Datum, kind: &TypeKind, names: Names) -> Result<Option<String>> {
    let text = match (value, kind) {
        (Datum::Null, _) => return Ok(None),
        (Datum::Boolean(v), _) => v.to_string(),
        (Datum::TinyInt(v), _) => v.to_string(),
        (Datum::SmallInt(v), _) => v.to_string(),
        (Datum::Int(v), _) => v.to_string(),
        (Datum::BigInt(v), _) => v.to_string(),
        (Datum::Float(v), _) => java_float(f64::from(*v), &format!("{v:?}"), &format!("{v:e}")),
        (Datum::Double(v), _) => java_float(*v, &format!("{v:?}"), &format!("{v:e}")),
        (Datum::Decimal(v), TypeKind::Decimal { scale, .. }) => decimal_text(*v, *scale),
        (Datum::String(v), _) => v.clone(),
        (Datum::Bytes(v), _) => String::from_utf8_lossy(v).into_owned(),
        (Datum::Date(v) | Datum::Time(v), _) if names == Names::Legacy => v.to_string(),
        (Datum::Date(v), _) => date_text(*v)?,
        (Datum::Time(v), TypeKind::Time { precision }) => time_text(*v, *precision),
        (
            Datum::Timestamp(v),
            TypeKind::Timestamp { precision } | TypeKind::TimestampLtz { precision },
        ) => timestamp_text(*v, *precision, names)?,
        _ => {
            return Err(Error::bad_value(
                "partition",
                format!("{kind} cannot be a partition column"),
            ));
        }
    };
    Ok(Some(text))
}

/// `-12.30` of −1230 with scale 2.
pub(crate) fn decimal_text(unscaled: i128, scale: u8) -> String {
    let digits = unscaled.unsigned_abs().to_string();
    let sign = if unscaled < 0 { "-" } else { "" };
    let scale = usize::from(scale);
    if scale == 0 {
        return format!("{sign}{digits}");
    }
    let digits = format!("{digits:0>width$}", width = scale + 1);
    let (whole, fraction) = digits.split_at(digits.len() - scale);
    format!("{sign}{whole}.{fraction}")
}

/// `2022-01-08` of a day number.
///
/// # Errors
/// [`Error::BadValue`] beyond the years −9999 to 9999.
pub(crate) fn date_text(days: i32) -> Result<String> {
    let epoch = jiff::civil::date(1970, 1, 1);
    let date = epoch.checked_add(
        jiff::Span::new()
            .try_days(i64::from(days))
            .map_err(|e| out_of_range(&e))?,
    );
    let date = date.map_err(|e| out_of_range(&e))?;
    Ok(format!(
        "{:04}-{:02}-{:02}",
        date.year(),
        date.month(),
        date.day()
    ))
}

fn out_of_range(e: &jiff::Error) -> Error {
    Error::bad_value("date", e.to_string())
}

/// `01:02:03.004`, with as many digits of a fraction as the precision says, at most 3.
fn time_text(millis: i32, precision: u8) -> String {
    let (seconds, fraction) = (millis / 1000, millis % 1000);
    let text = format!(
        "{:02}:{:02}:{:02}",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60
    );
    let digits = format!("{fraction:03}");
    match digits.get(..usize::from(precision.min(3))) {
        Some(digits) if !digits.is_empty() => format!("{text}.{digits}"),
        _ => text,
    }
}

fn timestamp_text(time: Timestamp, precision: u8, names: Names) -> Result<String> {
    let day_ms = i64::from(crate::datum::MILLIS_PER_DAY);
    let days = i32::try_from(time.millis.div_euclid(day_ms));
    let date = date_text(days.map_err(|_| Error::bad_value("timestamp", "is out of range"))?)?;
    let millis = time.millis.rem_euclid(day_ms);
    let seconds = millis / 1000;
    let nanos = (millis % 1000) * crate::datum::NANOS_PER_MILLI + i64::from(time.nanos_of_milli);
    let clock = format!(
        "{:02}:{:02}:{:02}",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60
    );
    if names == Names::Legacy {
        return Ok(format!("{date}T{}", java_local_time(&clock, nanos)));
    }
    let digits = format!("{nanos:09}");
    let digits = digits
        .get(..usize::from(precision.min(9)))
        .unwrap_or_default();
    Ok(if digits.is_empty() {
        format!("{date} {clock}")
    } else {
        format!("{date} {clock}.{digits}")
    })
}

/// Java's `LocalTime.toString`: seconds only if not all zero, the fraction in groups of three.
fn java_local_time(clock: &str, nanos: i64) -> String {
    let digits = format!("{nanos:09}");
    if nanos == 0 {
        return clock.strip_suffix(":00").unwrap_or(clock).to_owned();
    }
    let kept = match nanos {
        n if n % 1_000_000 == 0 => 3,
        n if n % 1_000 == 0 => 6,
        _ => 9,
    };
    format!("{clock}.{}", digits.get(..kept).unwrap_or(&digits))
}

/// Java's `Double.toString` (and `Float.toString`) from Rust's shortest forms: plain from 10⁻³ to
/// 10⁷, otherwise `1.0E10`. It has at least two digits, and of those the ones nearest to the value:
/// `4.9E-324` where one digit would do.
fn java_float(value: f64, plain: &str, exponent: &str) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 {
            "Infinity".to_owned()
        } else {
            "-Infinity".to_owned()
        };
    }
    let magnitude = value.abs();
    if magnitude == 0.0 || (1e-3..1e7).contains(&magnitude) {
        return plain.to_owned();
    }
    if exponent.contains('.') {
        exponent.replace('e', "E")
    } else {
        format!("{value:.1e}").replace('e', "E")
    }
}
