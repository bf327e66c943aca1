//! How long one partition lasts.

use jiff::{Span, Zoned};

/// How long one partition lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeUnit {
    /// `yyyyMMddHH`
    Hour,
    /// `yyyyMMdd`
    Day,
    /// `yyyyMM`
    Month,
    /// `yyyyQ`
    Quarter,
    /// `yyyy`
    Year,
}

impl TimeUnit {
    /// Reads the name of a unit, in any case.
    ///
    /// # Errors
    /// A text for the end of a sentence.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text.trim().to_ascii_uppercase().as_str() {
            "HOUR" => Ok(Self::Hour),
            "DAY" => Ok(Self::Day),
            "MONTH" => Ok(Self::Month),
            "QUARTER" => Ok(Self::Quarter),
            "YEAR" => Ok(Self::Year),
            _ => Err(format!("`{text}` is no time unit")),
        }
    }

    /// The time `steps` units after `time`; `None` beyond the calendar.
    pub(super) fn after(self, time: &Zoned, steps: i64) -> Option<Zoned> {
        let span = match self {
            Self::Hour => Span::new().try_hours(steps),
            Self::Day => Span::new().try_days(steps),
            Self::Month => Span::new().try_months(steps),
            Self::Quarter => Span::new().try_months(steps.checked_mul(3)?),
            Self::Year => Span::new().try_years(steps),
        };
        time.checked_add(span.ok()?).ok()
    }
}
