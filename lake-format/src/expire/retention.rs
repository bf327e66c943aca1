//! Which snapshots may go (paimon: `ExpireSnapshotsImpl`, `CoreOptions`). No IO.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::options::TableOptions;

/// How many snapshots are kept, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retention {
    /// `snapshot.num-retained.min`: so many of the newest stay whatever their age. 10, at least 1.
    pub min: u32,
    /// `snapshot.num-retained.max`: beyond so many the oldest go whatever their age. No limit.
    pub max: u32,
    /// `snapshot.time-retained`: a snapshot may go once the next one is older than this. 1 hour.
    pub time: Duration,
    /// `snapshot.expire.limit`: at most so many go in one run. 50.
    pub limit: u32,
    /// Whether consumers keep the snapshots that they still have to read; not with
    /// `consumer.changelog-only`.
    pub heeds_consumers: bool,
    /// `consumer.expiration-time`: a consumer whose file was not written for so long keeps nothing.
    /// Never, if it is not set.
    pub consumer_time: Option<Duration>,
}

impl Retention {
    /// What the options of a table say.
    ///
    /// # Errors
    /// [`Error::InvalidSchema`] if an option is not what it must be, [`Error::Unsupported`] if
    /// changelogs are to outlive their snapshots.
    pub fn of(options: TableOptions<'_>) -> Result<Self> {
        let retention = Self {
            min: options.number("snapshot.num-retained.min", 10)?,
            max: options.number("snapshot.num-retained.max", u32::MAX)?,
            time: options
                .duration("snapshot.time-retained")?
                .unwrap_or(Duration::from_secs(3_600)),
            limit: options.number("snapshot.expire.limit", 50)?,
            heeds_consumers: !options.is_true("consumer.changelog-only", false)?,
            consumer_time: options.duration("consumer.expiration-time")?,
        };
        retention.refuse_longer_changelogs(options)?;
        retention.validate()?;
        Ok(retention)
    }

    /// Whether the numbers fit each other.
    ///
    /// # Errors
    /// [`Error::InvalidSchema`] with the two numbers that do not.
    pub fn validate(&self) -> Result<()> {
        let reason = if self.min == 0 {
            "at least 1 snapshot must be retained (`snapshot.num-retained.min`)".to_owned()
        } else if self.max < self.min {
            format!(
                "at most {} snapshots cannot be retained (`snapshot.num-retained.max`) if at \
                 least {} must be (`snapshot.num-retained.min`)",
                self.max, self.min
            )
        } else if self.limit == 0 {
            "at least 1 snapshot must be allowed to expire (`snapshot.expire.limit`)".to_owned()
        } else {
            return Ok(());
        };
        Err(Error::InvalidSchema { reason })
    }

    /// A changelog that outlives its snapshot needs the files of the snapshot; nothing here keeps
    /// them.
    fn refuse_longer_changelogs(&self, options: TableOptions<'_>) -> Result<()> {
        let min: u32 = options.number("changelog.num-retained.min", self.min)?;
        let max: u32 = options.number("changelog.num-retained.max", self.max)?;
        let time = options.duration("changelog.time-retained")?;
        if min > self.min || max > self.max || time.is_some_and(|time| time > self.time) {
            return Err(Error::Unsupported {
                what:
                    "expiry of a table whose changelogs are kept longer (`changelog.…-retained…`)"
                        .to_owned(),
                reason: "let the engine that writes them expire it".to_owned(),
            });
        }
        Ok(())
    }
}

/// What a table is like when its snapshots are to expire.
#[derive(Clone, Debug)]
pub(super) struct View {
    pub(super) earliest: i64,
    pub(super) latest: i64,
    /// The consumer that is behind all others, with its next snapshot.
    pub(super) consumer: Option<(String, i64)>,
    /// Snapshots from here on are needed by someone, who says why.
    pub(super) needed: Option<(String, i64)>,
}

/// Why no more snapshots expired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeptBy {
    /// There is no snapshot at all.
    Nothing,
    /// `snapshot.num-retained.min`.
    Count(u32),
    /// `snapshot.time-retained`: the next one is not old enough.
    Age(Duration),
    /// The consumer of this name has yet to read.
    Consumer(String),
    /// Someone needs it.
    Need(String),
    /// `snapshot.expire.limit`: another run goes on.
    Limit,
}

impl fmt::Display for KeptBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("there is no snapshot"),
            Self::Count(1) => f.write_str("the newest is always kept"),
            Self::Count(count) => write!(f, "the newest {count} are kept"),
            Self::Age(age) => write!(f, "those of the last {} s are kept", age.as_secs()),
            Self::Consumer(name) => write!(f, "consumer `{name}` has yet to read on from it"),
            Self::Need(why) => f.write_str(why),
            Self::Limit => f.write_str("no more may go in one run"),
        }
    }
}

/// Ids below `checked.start` may go whatever their age, those in `checked` if the snapshot after
/// each is old enough; those from `checked.end` on stay, and `kept_by` says why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) checked: Range<i64>,
    pub(super) kept_by: KeptBy,
}

/// Bounds what may expire, ages apart.
pub(super) fn window(retention: &Retention, view: &View) -> Window {
    let (min, max) = (i64::from(retention.min), i64::from(retention.max));
    let mut end = view.latest - min + 1;
    let mut kept_by = KeptBy::Count(retention.min);
    let mut bound = |at: i64, by: KeptBy| {
        if at < end {
            (end, kept_by) = (at, by);
        }
    };
    if let Some((name, next)) = view.consumer.clone().filter(|_| retention.heeds_consumers) {
        bound(next, KeptBy::Consumer(name));
    }
    if let Some((why, from)) = view.needed.clone() {
        bound(from, KeptBy::Need(why));
    }
    bound(view.earliest + i64::from(retention.limit), KeptBy::Limit);
    let start = (view.latest - max + 1).max(view.earliest);
    Window {
        checked: start..end,
        kept_by,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn retention(min: u32, max: u32) -> Retention {
        Retention {
            min,
            max,
            time: Duration::from_secs(3_600),
            limit: 50,
            heeds_consumers: true,
            consumer_time: None,
        }
    }

    fn view(earliest: i64, latest: i64) -> View {
        View {
            earliest,
            latest,
            consumer: None,
            needed: None,
        }
    }

    #[test]
    fn the_options_have_the_formats_defaults() {
        let none = BTreeMap::new();
        let found = Retention::of(TableOptions::new(&none)).unwrap();
        assert_eq!(found, retention(10, u32::MAX));
    }

    #[test]
    fn options_that_contradict_each_other_are_refused() {
        let of = |pairs: &[(&str, &str)]| {
            let set = pairs.iter();
            let set = set.map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
            Retention::of(TableOptions::new(&set.collect()))
        };
        assert!(of(&[("snapshot.num-retained.min", "0")]).is_err());
        assert!(of(&[("snapshot.num-retained.max", "9")]).is_err());
        assert!(of(&[("snapshot.expire.limit", "0")]).is_err());
        assert!(of(&[("snapshot.time-retained", "soon")]).is_err());
        assert!(of(&[("changelog.num-retained.min", "20")]).is_err());
        let ok = of(&[
            ("snapshot.num-retained.min", "2"),
            ("snapshot.num-retained.max", "5"),
            ("snapshot.time-retained", "10 min"),
        ])
        .unwrap();
        assert_eq!((ok.min, ok.max, ok.time.as_secs()), (2, 5, 600));
    }

    #[test]
    fn the_newest_are_kept_and_too_many_go_whatever_their_age() {
        let found = window(&retention(10, u32::MAX), &view(1, 40));
        assert_eq!(found.checked, 1..31);
        assert_eq!(found.kept_by, KeptBy::Count(10));
        // Of 40 at most 15 stay: 1 to 25 go, 26 to 30 by age.
        let found = window(&retention(10, 15), &view(1, 40));
        assert_eq!(found.checked, 26..31);
    }

    #[test]
    fn consumers_needs_and_the_limit_bound_what_goes() {
        let mut table = view(1, 40);
        table.consumer = Some(("c".to_owned(), 12));
        let found = window(&retention(10, 10), &table);
        assert_eq!(
            (found.checked.end, found.kept_by),
            (12, KeptBy::Consumer("c".to_owned()))
        );
        table.needed = Some(("ours".to_owned(), 7));
        let found = window(&retention(10, 10), &table);
        assert_eq!(
            (found.checked.end, found.kept_by),
            (7, KeptBy::Need("ours".to_owned()))
        );
        let few = Retention {
            limit: 3,
            ..retention(10, 10)
        };
        let found = window(&few, &table);
        assert_eq!((found.checked.end, found.kept_by), (4, KeptBy::Limit));
        let unheeded = Retention {
            heeds_consumers: false,
            ..retention(10, 10)
        };
        table.needed = None;
        assert_eq!(window(&unheeded, &table).kept_by, KeptBy::Count(10));
    }
}
