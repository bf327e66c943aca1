//! Rows as canonical JSON: one spelling per row, so that tables compare as sorted lines.
//!
//! Columns come in schema order without spaces. Floats are plain decimals (−0.0 is `0`; NaN and
//! infinities are strings), decimals strings with their scale, bytes lower-case hex, dates
//! `YYYY-MM-DD`, times `HH:MM:SS.mmm`, timestamps `YYYY-MM-DDTHH:MM:SS.nnnnnnnnn` (with `Z` in a
//! local zone), maps sorted lists of `[key,value]`, rows objects.
//!
//! [`rows_by_precision`] is the form for people: fractions of a second have as many digits as the
//! column's type says.

use std::fmt::Write as _;

use arrow::array::RecordBatch;

use crate::datum::{Datum, MILLIS_PER_DAY, NANOS_PER_MILLI, Timestamp};
use crate::error::{Error, Result};
use crate::partition::text::{date_text, decimal_text};
use crate::types::{DataField, DataType, TypeKind};

/// The rows of a batch, whose columns are `fields` in order.
///
/// # Errors
/// [`Error::BadValue`] if a column is not of its field's type, or a date is beyond year 9999.
pub fn rows(batch: &RecordBatch, fields: &[DataField]) -> Result<Vec<String>> {
    lines(batch, fields, Fractions::Full)
}

/// As [`rows`], but a time or timestamp has as many digits after the second as its type's
/// precision says, and more only where the value has more.
///
/// # Errors
/// As [`rows`].
pub fn rows_by_precision(batch: &RecordBatch, fields: &[DataField]) -> Result<Vec<String>> {
    lines(batch, fields, Fractions::ByPrecision)
}

/// How many digits fractions of a second have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fractions {
    /// As many as there may be: 3 of a time, 9 of a timestamp.
    Full,
    /// As many as the type says.
    ByPrecision,
}

fn lines(batch: &RecordBatch, fields: &[DataField], fractions: Fractions) -> Result<Vec<String>> {
    if batch.num_columns() != fields.len() {
        let reason = format!(
            "{} columns for {} fields",
            batch.num_columns(),
            fields.len()
        );
        return Err(Error::bad_value("batch", reason));
    }
    let mut lines = Vec::with_capacity(batch.num_rows());
    for row in 0..batch.num_rows() {
        let mut values = Vec::with_capacity(fields.len());
        for (column, field) in batch.columns().iter().zip(fields) {
            values.push(Datum::from_array(column, row, &field.data_type)?);
        }
        let mut line = String::new();
        put_row(&mut line, &values, fields, fractions)?;
        lines.push(line);
    }
    Ok(lines)
}

/// Sorts lines by their UTF-16 code units, the order in which tables are compared.
pub fn sort(lines: &mut [String]) {
    lines.sort_by(|a, b| a.encode_utf16().cmp(b.encode_utf16()));
}

fn put_row(
    out: &mut String,
    values: &[Datum],
    fields: &[DataField],
    fractions: Fractions,
) -> Result<()> {
    out.push('{');
    for (index, (value, field)) in values.iter().zip(fields).enumerate() {
        if index > 0 {
            out.push(',');
        }
        put_text(out, &field.name);
        out.push(':');
        put_value(out, value, &field.data_type, fractions)?;
    }
    out.push('}');
    Ok(())
}

fn put_value(
    out: &mut String,
    value: &Datum,
    data_type: &DataType,
    fractions: Fractions,
) -> Result<()> {
    match (value, &data_type.kind) {
        (Datum::Null, _) => out.push_str("null"),
        (Datum::Boolean(v), _) => put(out, v),
        (Datum::TinyInt(v), _) => put(out, v),
        (Datum::SmallInt(v), _) => put(out, v),
        (Datum::Int(v), _) => put(out, v),
        (Datum::BigInt(v), _) => put(out, v),
        (Datum::Float(v), _) => put_float(out, f64::from(*v), v),
        (Datum::Double(v), _) => put_float(out, *v, v),
        (Datum::Decimal(v), TypeKind::Decimal { scale, .. }) => {
            put_text(out, &decimal_text(*v, *scale));
        }
        (Datum::String(v), _) => put_text(out, v),
        (Datum::Bytes(v), _) => {
            out.push('"');
            for byte in v {
                let _ = write!(out, "{byte:02x}");
            }
            out.push('"');
        }
        (Datum::Date(v), _) => put_text(out, &date_text(*v)?),
        (Datum::Time(v), kind) => {
            let fraction = format!("{:03}", v % 1000);
            let fraction = shown(&fraction, kind, fractions);
            put_text(out, &format!("{}{fraction}", clock_text(v / 1000)));
        }
        (Datum::Timestamp(v), kind) => {
            let (seconds, fraction) = timestamp_text(*v)?;
            let zone = match kind {
                TypeKind::TimestampLtz { .. } => "Z",
                _ => "",
            };
            let fraction = shown(&fraction, kind, fractions);
            put_text(out, &format!("{seconds}{fraction}{zone}"));
        }
        (Datum::Array(items), TypeKind::Array(element)) => {
            let items = items
                .iter()
                .map(|item| text_of(item, element, fractions))
                .collect::<Result<Vec<_>>>()?;
            let _ = write!(out, "[{}]", items.join(","));
        }
        (Datum::Map(entries), TypeKind::Map(key, value)) => {
            put_map(out, entries, (key, value), fractions)?;
        }
        (Datum::Map(entries), TypeKind::Multiset(element)) => {
            put_map(
                out,
                entries,
                (element, &TypeKind::Int.not_null()),
                fractions,
            )?;
        }
        (Datum::Row(values), TypeKind::Row(fields)) => put_row(out, values, fields, fractions)?,
        _ => {
            return Err(Error::bad_value(
                "row",
                format!("{value:?} is no {data_type}"),
            ));
        }
    }
    Ok(())
}

fn put_map(
    out: &mut String,
    entries: &[(Datum, Datum)],
    (key, value): (&DataType, &DataType),
    fractions: Fractions,
) -> Result<()> {
    let mut pairs = Vec::with_capacity(entries.len());
    for (k, v) in entries {
        let (k, v) = (text_of(k, key, fractions)?, text_of(v, value, fractions)?);
        pairs.push(format!("[{k},{v}]"));
    }
    sort(&mut pairs);
    let _ = write!(out, "[{}]", pairs.join(","));
    Ok(())
}

fn text_of(value: &Datum, data_type: &DataType, fractions: Fractions) -> Result<String> {
    let mut out = String::new();
    put_value(&mut out, value, data_type, fractions)?;
    Ok(out)
}

fn put(out: &mut String, value: impl std::fmt::Display) {
    let _ = write!(out, "{value}");
}

fn put_float(out: &mut String, value: f64, shown: impl std::fmt::Display) {
    if value == 0.0 {
        out.push('0');
    } else if value.is_nan() {
        out.push_str("\"NaN\"");
    } else if value.is_infinite() {
        out.push_str(if value > 0.0 {
            "\"Infinity\""
        } else {
            "\"-Infinity\""
        });
    } else {
        put(out, shown);
    }
}

fn put_text(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if u32::from(c) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

fn clock_text(seconds: i32) -> String {
    format!(
        "{:02}:{:02}:{:02}",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60
    )
}

/// A fraction of a second with its dot: all digits, or those that the type has, and no digit that
/// says something is left out.
fn shown(digits: &str, kind: &TypeKind, fractions: Fractions) -> String {
    let precision = match kind {
        TypeKind::Time { precision }
        | TypeKind::Timestamp { precision }
        | TypeKind::TimestampLtz { precision }
            if fractions == Fractions::ByPrecision =>
        {
            *precision as usize
        }
        _ => digits.len(),
    };
    let needed = digits.trim_end_matches('0').len();
    match digits.get(..precision.max(needed)).unwrap_or(digits) {
        "" => String::new(),
        digits => format!(".{digits}"),
    }
}

/// Date and time to the second, and the nine digits after it.
fn timestamp_text(time: Timestamp) -> Result<(String, String)> {
    let day = i64::from(MILLIS_PER_DAY);
    let days = i32::try_from(time.millis.div_euclid(day));
    let days = days.map_err(|_| Error::bad_value("timestamp", "is out of range"))?;
    let millis = time.millis.rem_euclid(day);
    let clock = clock_text(i32::try_from(millis / 1000).unwrap_or(0));
    let nanos = millis % 1000 * NANOS_PER_MILLI + i64::from(time.nanos_of_milli);
    Ok((
        format!("{}T{clock}", date_text(days)?),
        format!("{nanos:09}"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_have_the_digits_of_their_type_and_none_is_lost() {
        let time = |nanos_of_milli| {
            Datum::Timestamp(Timestamp {
                millis: 1_500,
                nanos_of_milli,
            })
        };
        let cases = [
            (
                time(0),
                TypeKind::Timestamp { precision: 6 },
                "00:00:01.500000",
            ),
            (
                time(0),
                TypeKind::TimestampLtz { precision: 3 },
                "00:00:01.500Z",
            ),
            (
                time(7_000),
                TypeKind::Timestamp { precision: 3 },
                "00:00:01.500007",
            ),
            (
                time(7),
                TypeKind::Timestamp { precision: 9 },
                "00:00:01.500000007",
            ),
        ];
        for (value, kind, wanted) in cases {
            let text = text_of(&value, &kind.not_null(), Fractions::ByPrecision).unwrap();
            assert_eq!(text, format!("\"1970-01-01T{wanted}\""));
        }
        let cases = [
            (0, 1_000, "00:00:01"),
            (3, 1_020, "00:00:01.020"),
            (0, 1_020, "00:00:01.02"),
        ];
        for (precision, millis, wanted) in cases {
            let kind = TypeKind::Time { precision }.not_null();
            let by_precision = text_of(&Datum::Time(millis), &kind, Fractions::ByPrecision);
            assert_eq!(by_precision.unwrap(), format!("\"{wanted}\""));
        }
        let full = text_of(
            &Datum::Time(1_000),
            &TypeKind::Time { precision: 0 }.not_null(),
            Fractions::Full,
        );
        assert_eq!(full.unwrap(), "\"00:00:01.000\"");
    }
}
