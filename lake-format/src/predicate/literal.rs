//! Literals as text against the type of a column.

use crate::datum::{Datum, MILLIS_PER_DAY, Timestamp};
use crate::error::{Error, Result};
use crate::types::{DataField, TypeKind};

/// A literal among the values of a column's type.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Literal {
    /// One of them.
    Value(Datum),
    /// Above this one and below the next, or above all if it is the last.
    Above(Datum),
    /// Below all.
    BelowAll,
}

/// A literal's text without the quotes around it; `None` if there is none, or they do not match.
pub(super) fn unquoted(text: &str) -> Option<String> {
    let Some(rest) = text.strip_prefix('\'') else {
        return (!text.is_empty()).then(|| text.to_owned());
    };
    let inner = rest.strip_suffix('\'')?;
    let is_paired = inner.split("''").all(|part| !part.contains('\''));
    is_paired.then(|| inner.replace("''", "'"))
}

impl Literal {
    /// # Errors
    /// [`Error::BadValue`] if the text is no literal of the column's type.
    pub(super) fn parse(text: &str, field: &DataField) -> Result<Self> {
        let kind = &field.data_type.kind;
        let found = match kind {
            TypeKind::TinyInt | TypeKind::SmallInt | TypeKind::Int | TypeKind::BigInt => {
                integer(text, kind)
            }
            TypeKind::Decimal { precision, scale } => decimal(text, *precision, *scale),
            _ => value(text, kind).map(Self::Value),
        };
        found.ok_or_else(|| {
            let reason = if kind.is_nested() {
                format!("is {}: only IS NULL and IS NOT NULL", field.data_type)
            } else {
                format!("is {}, of which `{text}` is no value", field.data_type)
            };
            Error::bad_value(&field.name, reason)
        })
    }

    /// What `rounded`, the literal rounded down, means where values go from `min` to `max`.
    fn within(
        rounded: Rounded,
        (min, max): (i128, i128),
        datum: impl Fn(i128) -> Option<Datum>,
    ) -> Option<Self> {
        match rounded {
            Rounded::TooLow => Some(Self::BelowAll),
            Rounded::TooHigh => datum(max).map(Self::Above),
            Rounded::To(value, _) if value < min => Some(Self::BelowAll),
            Rounded::To(value, _) if value > max => datum(max).map(Self::Above),
            Rounded::To(value, true) => datum(value).map(Self::Value),
            Rounded::To(value, false) => datum(value).map(Self::Above),
        }
    }
}

/// A number rounded down to so many digits after the point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rounded {
    /// Without the point, and whether nothing was rounded.
    To(i128, bool),
    /// Below every value of 38 digits.
    TooLow,
    /// Above every value of 38 digits.
    TooHigh,
}

fn integer(text: &str, kind: &TypeKind) -> Option<Literal> {
    let rounded = rounded(text, 0)?;
    let range = |bits: u32| (-(1_i128 << (bits - 1)), (1_i128 << (bits - 1)) - 1);
    match kind {
        TypeKind::TinyInt => Literal::within(rounded, range(8), |value| {
            value.try_into().ok().map(Datum::TinyInt)
        }),
        TypeKind::SmallInt => Literal::within(rounded, range(16), |value| {
            value.try_into().ok().map(Datum::SmallInt)
        }),
        TypeKind::Int => Literal::within(rounded, range(32), |value| {
            value.try_into().ok().map(Datum::Int)
        }),
        _ => Literal::within(rounded, range(64), |value| {
            value.try_into().ok().map(Datum::BigInt)
        }),
    }
}

fn decimal(text: &str, precision: u8, scale: u8) -> Option<Literal> {
    let largest = 10_i128.checked_pow(u32::from(precision))? - 1;
    let rounded = rounded(text, usize::from(scale))?;
    Literal::within(rounded, (-largest, largest), |value| {
        Some(Datum::Decimal(value))
    })
}

/// A decimal number without exponent, rounded down to `scale` digits after the point.
fn rounded(text: &str, scale: usize) -> Option<Rounded> {
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let is_number = whole
        .bytes()
        .chain(fraction.bytes())
        .all(|b| b.is_ascii_digit());
    if !is_number || (whole.is_empty() && fraction.is_empty()) {
        return None;
    }
    let (kept, rest) = fraction.split_at_checked(scale).unwrap_or((fraction, ""));
    let is_exact = rest.bytes().all(|b| b == b'0');
    let text = format!("{whole}{kept:0<scale$}");
    let text = text.trim_start_matches('0');
    // 38 digits fit into 128 bits.
    let magnitude: i128 = match text {
        "" => 0,
        text if text.len() > 38 && is_negative => return Some(Rounded::TooLow),
        text if text.len() > 38 => return Some(Rounded::TooHigh),
        text => text.parse().ok()?,
    };
    let value = match (is_negative, is_exact) {
        (false, _) => magnitude,
        (true, true) => -magnitude,
        (true, false) => -magnitude - 1,
    };
    Some(Rounded::To(value, is_exact))
}

fn value(text: &str, kind: &TypeKind) -> Option<Datum> {
    Some(match kind {
        TypeKind::Boolean => Datum::Boolean(text.to_ascii_lowercase().parse().ok()?),
        TypeKind::Float => Datum::Float(text.parse().ok()?),
        TypeKind::Double => Datum::Double(text.parse().ok()?),
        TypeKind::Char { .. } | TypeKind::VarChar { .. } => Datum::String(text.to_owned()),
        TypeKind::Binary { .. } | TypeKind::VarBinary { .. } => Datum::Bytes(bytes(text)?),
        TypeKind::Date => Datum::Date(days(text)?),
        TypeKind::Time { .. } => {
            let (millis, nanos) = clock(text)?;
            // A column holds milliseconds, so that no value is equal to one in between.
            if nanos != 0 {
                return None;
            }
            Datum::Time(millis)
        }
        TypeKind::Timestamp { .. } => Datum::Timestamp(timestamp(text)?),
        TypeKind::TimestampLtz { .. } => {
            Datum::Timestamp(timestamp(text.strip_suffix('Z').unwrap_or(text))?)
        }
        _ => return None,
    })
}

fn bytes(text: &str) -> Option<Vec<u8>> {
    let digit = |c: char| c.to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let digits: Vec<u8> = text.chars().map(digit).collect::<Option<_>>()?;
    let (pairs, rest) = digits.as_chunks::<2>();
    rest.is_empty()
        .then(|| pairs.iter().map(|[high, low]| high << 4 | low).collect())
}

fn days(text: &str) -> Option<i32> {
    // Only `2024-03-01`: Jiff reads other spellings too.
    let is_plain = text.len() == 10 && text.bytes().all(|b| b.is_ascii_digit() || b == b'-');
    let date: jiff::civil::Date = is_plain.then(|| text.parse().ok())??;
    let epoch = jiff::civil::date(1970, 1, 1);
    Some(epoch.until(date).ok()?.get_days())
}

/// Milliseconds of the day, and nanoseconds of the millisecond, of `12:30`, `12:30:00` or
/// `12:30:00.5`.
fn clock(text: &str) -> Option<(i32, i32)> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let mut parts = Vec::with_capacity(3);
    for part in whole.split(':') {
        let is_plain = part.len() == 2 && part.bytes().all(|b| b.is_ascii_digit());
        parts.push(is_plain.then(|| part.parse::<i32>().ok())??);
    }
    let (hour, minute, second) = match parts.as_slice() {
        [hour, minute] if fraction.is_empty() => (*hour, *minute, 0),
        [hour, minute, second] => (*hour, *minute, *second),
        _ => return None,
    };
    let digits = fraction.bytes().all(|b| b.is_ascii_digit()) && fraction.len() <= 9;
    if hour > 23 || minute > 59 || second > 59 || !digits {
        return None;
    }
    let nanos: i32 = format!("{fraction:0<9}").parse().ok()?;
    let seconds = hour * 3600 + minute * 60 + second;
    Some((seconds * 1000 + nanos / 1_000_000, nanos % 1_000_000))
}

fn timestamp(text: &str) -> Option<Timestamp> {
    let (date, time) = text.split_once(['T', ' ']).unwrap_or((text, "00:00"));
    let (millis, nanos_of_milli) = clock(time)?;
    let day = i64::from(days(date)?) * i64::from(MILLIS_PER_DAY);
    Some(Timestamp {
        millis: day + i64::from(millis),
        nanos_of_milli,
    })
}
