//! When a line of the log that would repeat itself is due.

/// Another text is not told sooner than this after the last one.
const OTHER_TEXT_MS: i64 = 1_000;
/// The same text is told again after this.
const SAME_TEXT_MS: i64 = 60_000;

/// The last line told of one thing that goes wrong: at once, when it becomes another, and now and then.
#[derive(Debug, Default)]
pub(crate) struct Notice {
    last: Option<(String, i64)>,
}

impl Notice {
    /// Whether the text is to be told now; it counts as told then.
    pub(crate) fn is_due(&mut self, text: &str, now_ms: i64) -> bool {
        let due = self.last.as_ref().is_none_or(|(told, at_ms)| {
            let pause_ms = if told == text {
                SAME_TEXT_MS
            } else {
                OTHER_TEXT_MS
            };
            // A clock that was set back does not silence it.
            now_ms < *at_ms || now_ms - at_ms >= pause_ms
        });
        if due {
            self.last = Some((text.to_owned(), now_ms));
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_is_told_once_a_minute_and_another_after_a_second() {
        let mut notice = Notice::default();
        assert!(notice.is_due("full", 5));
        assert!(!notice.is_due("full", 60_004));
        assert!(notice.is_due("full", 60_005));
        assert!(!notice.is_due("broken", 61_004));
        assert!(notice.is_due("broken", 61_005));
        assert!(notice.is_due("broken", 3), "the clock was set back");
    }
}
