//! The time that partition values say (paimon: `PartitionTimeExtractor`). No IO, no clock.
//!
//! Formatters are those of Java's `DateTimeFormatter`, as far as they are made of the letters
//! `y u M d H m s S`, of quoted text and of signs.

use crate::error::{Error, Result};

const MILLIS_PER_SECOND: i64 = 1_000;
const MILLIS_PER_DAY: i64 = 86_400_000;

/// How a time is read from partition values.
#[derive(Clone, Debug)]
pub(super) struct TimePattern {
    /// `$year-$month-$day`; the first column alone if there is none.
    pattern: Option<String>,
    formatter: Option<Vec<Item>>,
}

/// A part of a formatter.
#[derive(Clone, Debug, PartialEq)]
enum Item {
    Literal(String),
    /// A field, and how many digits it has: exactly so many, or, for 1, as many as there are.
    Field(Field, usize),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Field {
    Year,
    Month,
    Day,
    Hour,
    Minute,
    Second,
    Fraction,
}

/// Most digits of a field of no fixed width.
const MAX_DIGITS: usize = 10;

/// Civil fields, not yet checked; what is absent counts as 0 but for the date.
#[derive(Clone, Copy, Debug, Default)]
struct Fields {
    year: Option<i64>,
    month: Option<i64>,
    day: Option<i64>,
    hour: i64,
    minute: i64,
    second: i64,
    millis: i64,
}

impl TimePattern {
    /// # Errors
    /// [`Error::Unsupported`] if the formatter has letters that are not read here,
    /// [`Error::InvalidSchema`] if a quote is left open.
    pub(super) fn new(pattern: Option<&str>, formatter: Option<&str>) -> Result<Self> {
        Ok(Self {
            pattern: pattern.map(str::to_owned),
            formatter: formatter.map(parse_formatter).transpose()?,
        })
    }

    /// The time that the values say, milliseconds since 1970 of the local clock; `None` if they say
    /// none. `values` are texts by column, in the order of the partition keys.
    pub(super) fn time_ms(&self, values: &[(String, String)]) -> Option<i64> {
        let text = match &self.pattern {
            None => values.first()?.1.clone(),
            Some(pattern) => fill(pattern, values),
        };
        match &self.formatter {
            None => default_time_ms(&text),
            Some(items) => read_items(items, &text)?.smart_ms(),
        }
    }
}

/// The pattern with each `$column` replaced by its value; of two columns that fit, the longer name.
fn fill(pattern: &str, values: &[(String, String)]) -> String {
    let mut by_length: Vec<&(String, String)> = values.iter().collect();
    by_length.sort_by_key(|(key, _)| std::cmp::Reverse(key.len()));
    let mut filled = String::with_capacity(pattern.len());
    let mut rest = pattern;
    while let Some(place) = rest.find('$') {
        let (before, from) = rest.split_at(place);
        filled.push_str(before);
        let behind = from.get(1..).unwrap_or_default();
        let found = by_length.iter().find_map(|(key, value)| {
            let rest = behind.strip_prefix(key.as_str())?;
            Some((value, rest))
        });
        match found {
            Some((value, behind)) => {
                filled.push_str(value);
                rest = behind;
            }
            None => {
                filled.push('$');
                rest = behind;
            }
        }
    }
    filled.push_str(rest);
    filled
}

/// `yyyy-MM-dd[ HH:mm:ss[.fraction]]`, leniently: month 13 is the next January.
fn default_time_ms(text: &str) -> Option<i64> {
    let mut reader = Reader { rest: text };
    let mut fields = Fields {
        year: Some(reader.number(1, MAX_DIGITS)?),
        ..Fields::default()
    };
    reader.literal("-")?;
    fields.month = Some(reader.number(1, 2)?);
    reader.literal("-")?;
    fields.day = Some(reader.number(1, 2)?);
    if !reader.rest.is_empty() {
        reader.literal(" ")?;
        fields.hour = reader.number(1, 2)?;
        reader.literal(":")?;
        fields.minute = reader.number(1, 2)?;
        reader.literal(":")?;
        fields.second = reader.number(1, 2)?;
        if !reader.rest.is_empty() {
            reader.literal(".")?;
            fields.millis = reader.fraction(reader.digits())?;
        }
    }
    reader.rest.is_empty().then(|| fields.lenient_ms())?
}

fn parse_formatter(text: &str) -> Result<Vec<Item>> {
    let mut items: Vec<Item> = Vec::new();
    let mut chars = text.chars().peekable();
    let literal = |items: &mut Vec<Item>, c: char| match items.last_mut() {
        Some(Item::Literal(text)) => text.push(c),
        _ => items.push(Item::Literal(c.to_string())),
    };
    while let Some(c) = chars.next() {
        if c == '\'' {
            if chars.next_if_eq(&'\'').is_some() {
                literal(&mut items, '\'');
                continue;
            }
            loop {
                match chars.next() {
                    Some('\'') if chars.next_if_eq(&'\'').is_some() => literal(&mut items, '\''),
                    Some('\'') => break,
                    Some(c) => literal(&mut items, c),
                    None => return Err(bad_formatter(text, "a quote is left open")),
                }
            }
            continue;
        }
        if !c.is_ascii_alphabetic() {
            literal(&mut items, c);
            continue;
        }
        let mut count = 1;
        while chars.next_if_eq(&c).is_some() {
            count += 1;
        }
        items.push(Item::Field(field_of(c, count, text)?, count));
    }
    Ok(items)
}

fn field_of(letter: char, count: usize, text: &str) -> Result<Field> {
    let (field, widths) = match letter {
        'y' | 'u' => (Field::Year, [1, 2, 4].as_slice()),
        'M' => (Field::Month, [1, 2].as_slice()),
        'd' => (Field::Day, [1, 2].as_slice()),
        'H' => (Field::Hour, [1, 2].as_slice()),
        'm' => (Field::Minute, [1, 2].as_slice()),
        's' => (Field::Second, [1, 2].as_slice()),
        'S' => (Field::Fraction, [1, 2, 3, 4, 5, 6, 7, 8, 9].as_slice()),
        _ => return Err(unknown(letter, count, text)),
    };
    if widths.contains(&count) {
        Ok(field)
    } else {
        Err(unknown(letter, count, text))
    }
}

fn unknown(letter: char, count: usize, text: &str) -> Error {
    let letters = letter.to_string().repeat(count);
    Error::Unsupported {
        what: format!("option `partition.timestamp-formatter` = `{text}`"),
        reason: format!("`{letters}` is not read; use digits for year to second, such as yyyyMMdd"),
    }
}

fn bad_formatter(text: &str, reason: &str) -> Error {
    Error::InvalidSchema {
        reason: format!("option `partition.timestamp-formatter` cannot be `{text}`: {reason}"),
    }
}

fn read_items(items: &[Item], text: &str) -> Option<Fields> {
    let mut reader = Reader { rest: text };
    let mut fields = Fields::default();
    for (place, item) in items.iter().enumerate() {
        match item {
            Item::Literal(text) => reader.literal(text)?,
            Item::Field(Field::Fraction, count) => fields.millis = reader.fraction(*count)?,
            Item::Field(field, 1) => {
                // Digits that fields right behind it must have are theirs.
                let behind = items.get(place + 1..).unwrap_or_default();
                let taken = behind.iter().map_while(|item| match item {
                    Item::Field(_, count) => Some(*count),
                    Item::Literal(_) => None,
                });
                let longest = match field {
                    Field::Year => MAX_DIGITS,
                    _ => 2,
                };
                let free = reader.digits().saturating_sub(taken.sum());
                fields.set(*field, reader.number(1, longest.min(free.max(1)))?);
            }
            Item::Field(Field::Year, 2) => {
                fields.set(Field::Year, 2000 + reader.number(2, 2)?);
            }
            Item::Field(field, count) => fields.set(*field, reader.number(*count, *count)?),
        }
    }
    reader.rest.is_empty().then_some(fields)
}

/// Reads text from its front.
struct Reader<'a> {
    rest: &'a str,
}

impl Reader<'_> {
    fn literal(&mut self, text: &str) -> Option<()> {
        self.rest = self.rest.strip_prefix(text)?;
        Some(())
    }

    /// The digits in front.
    fn digits(&self) -> usize {
        let others = self.rest.find(|c: char| !c.is_ascii_digit());
        others.unwrap_or(self.rest.len())
    }

    fn number(&mut self, min: usize, max: usize) -> Option<i64> {
        let count = self.digits().min(max);
        if count < min {
            return None;
        }
        let (digits, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        digits.parse().ok()
    }

    /// A fraction of a second of so many digits, in milliseconds.
    fn fraction(&mut self, count: usize) -> Option<i64> {
        if count == 0 || count > 9 || self.digits() < count {
            return None;
        }
        let (digits, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        format!("{digits:0<9}").get(..3)?.parse().ok()
    }
}

impl Fields {
    fn set(&mut self, field: Field, value: i64) {
        match field {
            Field::Year => self.year = Some(value),
            Field::Month => self.month = Some(value),
            Field::Day => self.day = Some(value),
            Field::Hour => self.hour = value,
            Field::Minute => self.minute = value,
            Field::Second => self.second = value,
            Field::Fraction => self.millis = value,
        }
    }

    /// Java's lenient resolving: what is too large carries over.
    fn lenient_ms(self) -> Option<i64> {
        let months = self.year?.checked_mul(12)?.checked_add(self.month? - 1)?;
        let first = days_to_month(months)?;
        self.at_day(first.checked_add(self.day? - 1)?)
    }

    /// Java's smart resolving: fields are in their ranges; a day beyond its month's end is the last.
    fn smart_ms(self) -> Option<i64> {
        let (month, day) = (self.month?, self.day?);
        let in_range = (1..=12).contains(&month)
            && (1..=31).contains(&day)
            && (0..24).contains(&self.hour)
            && (0..60).contains(&self.minute)
            && (0..60).contains(&self.second);
        if !in_range {
            return None;
        }
        let months = self.year?.checked_mul(12)?.checked_add(month - 1)?;
        let first = days_to_month(months)?;
        let last = days_to_month(months + 1)? - 1;
        self.at_day((first + day - 1).min(last))
    }

    fn at_day(self, days: i64) -> Option<i64> {
        let seconds = (self.hour * 60 + self.minute) * 60 + self.second;
        let of_day = seconds * MILLIS_PER_SECOND + self.millis;
        days.checked_mul(MILLIS_PER_DAY)?.checked_add(of_day)
    }
}

/// Days from 1970-01-01 to the first of a month, counted from month 0 of year 0 in the proleptic
/// Gregorian calendar.
fn days_to_month(months: i64) -> Option<i64> {
    let (year, month) = (months.div_euclid(12), months.rem_euclid(12) + 1);
    if year.abs() > 1_000_000_000 {
        return None;
    }
    // Years that begin in March put the leap day last.
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    Some(365 * year + leap_days + (153 * month + 2) / 5 - 719_468)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(
        pattern: Option<&str>,
        formatter: Option<&str>,
        values: &[(&str, &str)],
    ) -> Option<String> {
        let values: Vec<_> = values
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
        let pattern = TimePattern::new(pattern, formatter).unwrap();
        let ms = pattern.time_ms(&values)?;
        let found = jiff::Timestamp::from_millisecond(ms).unwrap();
        Some(found.strftime("%Y-%m-%d %H:%M:%S%.3f").to_string())
    }

    #[test]
    fn a_date_or_a_timestamp_is_read_without_any_option() {
        let default = |text: &str| at(None, None, &[("dt", text), ("x", "no time")]);
        assert_eq!(default("2024-02-29").unwrap(), "2024-02-29 00:00:00.000");
        assert_eq!(
            default("2024-2-9 1:2:3").unwrap(),
            "2024-02-09 01:02:03.000"
        );
        assert_eq!(
            default("1969-12-31 23:59:59.25").unwrap(),
            "1969-12-31 23:59:59.250"
        );
        // Java reads these leniently.
        assert_eq!(default("2023-13-01").unwrap(), "2024-01-01 00:00:00.000");
        assert_eq!(default("2023-02-30").unwrap(), "2023-03-02 00:00:00.000");
        for no in [
            "20240101",
            "2024-01",
            "eu",
            "",
            "2024-01-01x",
            "2024-01-01 10",
        ] {
            assert_eq!(default(no), None, "{no}");
        }
    }

    #[test]
    fn a_pattern_puts_columns_together_and_prefers_the_longer_name() {
        let values = [("dt", "20240109"), ("dt1", "07"), ("hour", "5")];
        let found = at(Some("$dt $hour:$dt1"), Some("yyyyMMdd H:mm"), &values);
        assert_eq!(found.unwrap(), "2024-01-09 05:07:00.000");
        let values = [("year", "2024"), ("month", "3"), ("day", "4")];
        let found = at(Some("$year-$month-$day 01:00:00"), None, &values);
        assert_eq!(found.unwrap(), "2024-03-04 01:00:00.000");
        assert_eq!(at(Some("$other"), None, &values), None);
    }

    #[test]
    fn a_formatter_reads_what_java_reads() {
        let read = |formatter: &str, text: &str| at(None, Some(formatter), &[("p", text)]);
        assert_eq!(
            read("yyyyMMdd", "20240131").unwrap(),
            "2024-01-31 00:00:00.000"
        );
        assert_eq!(
            read("yyyyMMddHH", "2024013122").unwrap(),
            "2024-01-31 22:00:00.000"
        );
        assert_eq!(read("yyMMdd", "240131").unwrap(), "2024-01-31 00:00:00.000");
        assert_eq!(
            read("d.M.yyyy", "1.12.2024").unwrap(),
            "2024-12-01 00:00:00.000"
        );
        assert_eq!(
            read("yyyy-MM-dd'T'HH:mm:ss.SSS", "2024-01-31T01:02:03.004").unwrap(),
            "2024-01-31 01:02:03.004"
        );
        // The last day of the month.
        assert_eq!(
            read("yyyyMMdd", "20240231").unwrap(),
            "2024-02-29 00:00:00.000"
        );
        for (formatter, no) in [
            ("yyyyMMdd", "2024-01-31"),
            ("yyyyMMdd", "20241301"),
            ("yyyyMMdd", "202401311"),
            ("yyyyMM", "202401"),
            ("yyyyMMddHH", "2024013124"),
        ] {
            assert_eq!(read(formatter, no), None, "{formatter} {no}");
        }
        for bad in ["yyyy MMM dd", "EEE", "yyyy-MM-dd'T"] {
            assert!(TimePattern::new(None, Some(bad)).is_err(), "{bad}");
        }
    }
}
