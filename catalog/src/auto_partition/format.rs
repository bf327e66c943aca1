//! How the time of a partition is written.

use jiff::Zoned;

use super::unit::TimeUnit;
use crate::ddl::names;

/// A pattern of fixed-width fields, from the year down to the unit, so that text order is time
/// order.
///
/// The letters are the reference's (Java's `DateTimeFormatter`): `yyyy` or `uuuu`, `Q`, `MM`, `dd`,
/// `HH`, and literals, quoted or not a letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeFormat {
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Field(Field),
    Literal(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Year,
    Quarter,
    Month,
    Day,
    Hour,
}

impl Field {
    fn from_letter(letter: char) -> Option<Self> {
        match letter {
            'y' | 'u' => Some(Self::Year),
            'Q' | 'q' => Some(Self::Quarter),
            'M' | 'L' => Some(Self::Month),
            'd' => Some(Self::Day),
            'H' => Some(Self::Hour),
            _ => None,
        }
    }

    fn width(self) -> usize {
        match self {
            Self::Year => 4,
            Self::Quarter => 1,
            Self::Month | Self::Day | Self::Hour => 2,
        }
    }

    fn range(self) -> std::ops::RangeInclusive<u32> {
        match self {
            Self::Year => 0..=9999,
            Self::Quarter => 1..=4,
            Self::Month => 1..=12,
            Self::Day => 1..=31,
            Self::Hour => 0..=23,
        }
    }
}

fn fields_of(unit: TimeUnit) -> &'static [Field] {
    match unit {
        TimeUnit::Year => &[Field::Year],
        TimeUnit::Quarter => &[Field::Year, Field::Quarter],
        TimeUnit::Month => &[Field::Year, Field::Month],
        TimeUnit::Day => &[Field::Year, Field::Month, Field::Day],
        TimeUnit::Hour => &[Field::Year, Field::Month, Field::Day, Field::Hour],
    }
}

impl TimeFormat {
    /// The format of a unit where none is named, for instance `yyyyMMdd`.
    pub fn of_unit(unit: TimeUnit) -> Self {
        Self {
            parts: fields_of(unit)
                .iter()
                .map(|field| Part::Field(*field))
                .collect(),
        }
    }

    /// Reads a pattern for `unit`.
    ///
    /// # Errors
    /// A text for the end of a sentence: a letter we don't know, a field with another width, other
    /// fields or another order than the unit has, or literals that make no partition value.
    pub fn parse(pattern: &str, unit: TimeUnit) -> Result<Self, String> {
        let format = Self {
            parts: parse_parts(pattern)?,
        };
        if format.fields().ne(fields_of(unit).iter().copied()) {
            let expected = Self::of_unit(unit).pattern();
            return Err(format!(
                "`{pattern}` must have the fields of `{expected}` in this order"
            ));
        }
        let sample = format.write_fields(|field| *field.range().end());
        match names::check_new(&sample) {
            Ok(()) => Ok(format),
            Err(reason) => Err(format!("`{pattern}` writes no partition value: {reason}")),
        }
    }

    /// Writes a time.
    pub(super) fn write(&self, time: &Zoned) -> String {
        self.write_fields(|field| {
            let number = match field {
                Field::Year => i32::from(time.year()),
                Field::Quarter => (i32::from(time.month()) + 2) / 3,
                Field::Month => i32::from(time.month()),
                Field::Day => i32::from(time.day()),
                Field::Hour => i32::from(time.hour()),
            };
            number.unsigned_abs()
        })
    }

    /// Whether `text` is a time in this format.
    pub fn fits(&self, text: &str) -> bool {
        let mut rest = text;
        let mut date = [1_u32; 3];
        for part in &self.parts {
            let next = match part {
                Part::Literal(literal) => rest.strip_prefix(literal.as_str()),
                Part::Field(field) => {
                    rest.split_at_checked(field.width())
                        .and_then(|(digits, rest)| {
                            let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
                            let number = digits
                                .parse()
                                .ok()
                                .filter(|n| is_number && field.range().contains(n))?;
                            match field {
                                Field::Year => date[0] = number,
                                Field::Month => date[1] = number,
                                Field::Day => date[2] = number,
                                Field::Quarter | Field::Hour => {}
                            }
                            Some(rest)
                        })
                }
            };
            match next {
                Some(next) => rest = next,
                None => return false,
            }
        }
        rest.is_empty() && is_date(date)
    }

    /// The pattern, as [`Self::parse`] reads it.
    pub fn pattern(&self) -> String {
        let parts = self.parts.iter().map(|part| match part {
            Part::Field(Field::Year) => "yyyy".to_owned(),
            Part::Field(Field::Quarter) => "Q".to_owned(),
            Part::Field(Field::Month) => "MM".to_owned(),
            Part::Field(Field::Day) => "dd".to_owned(),
            Part::Field(Field::Hour) => "HH".to_owned(),
            Part::Literal(text) if text.contains(|c: char| c.is_ascii_alphabetic()) => {
                format!("'{text}'")
            }
            Part::Literal(text) => text.clone(),
        });
        parts.collect()
    }

    fn fields(&self) -> impl Iterator<Item = Field> {
        self.parts.iter().filter_map(|part| match part {
            Part::Field(field) => Some(*field),
            Part::Literal(_) => None,
        })
    }

    fn write_fields(&self, value: impl Fn(Field) -> u32) -> String {
        let parts = self.parts.iter().map(|part| match part {
            Part::Field(field) => format!("{:0width$}", value(*field), width = field.width()),
            Part::Literal(text) => text.clone(),
        });
        parts.collect()
    }
}

fn is_date([year, month, day]: [u32; 3]) -> bool {
    let numbers = (i16::try_from(year), i8::try_from(month), i8::try_from(day));
    let (Ok(year), Ok(month), Ok(day)) = numbers else {
        return false;
    };
    jiff::civil::Date::new(year, month, day).is_ok()
}

fn parse_parts(pattern: &str) -> Result<Vec<Part>, String> {
    let mut parts: Vec<Part> = Vec::new();
    let push_literal = |parts: &mut Vec<Part>, letter: char| match parts.last_mut() {
        Some(Part::Literal(text)) => text.push(letter),
        _ => parts.push(Part::Literal(letter.to_string())),
    };
    let mut letters = pattern.chars().peekable();
    let mut is_quoted = false;
    while let Some(letter) = letters.next() {
        match letter {
            '\'' if letters.next_if_eq(&'\'').is_some() => push_literal(&mut parts, '\''),
            '\'' => is_quoted = !is_quoted,
            '[' | ']' if !is_quoted => return Err(format!("`{pattern}` has an optional section")),
            _ if is_quoted || !letter.is_ascii_alphabetic() => push_literal(&mut parts, letter),
            _ => {
                let mut width = 1;
                while letters.next_if_eq(&letter).is_some() {
                    width += 1;
                }
                let Some(field) = Field::from_letter(letter) else {
                    return Err(format!("`{pattern}` has the unknown field `{letter}`"));
                };
                if width != field.width() {
                    let expected = field.width();
                    return Err(format!(
                        "field `{letter}` of `{pattern}` must have width {expected}"
                    ));
                }
                parts.push(Part::Field(field));
            }
        }
    }
    if is_quoted {
        return Err(format!("`{pattern}` has a quote without an end"));
    }
    Ok(parts)
}
