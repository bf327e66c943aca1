//! Progress on standard error: a bar on a terminal, a plain line now and then otherwise.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::output::count;

/// How often a plain line is written.
const EVERY: Duration = Duration::from_secs(5);
/// How often trouble is told.
const TROUBLE_EVERY: Duration = Duration::from_secs(10);

/// Counts rows.
#[derive(Debug)]
pub struct Progress {
    what: String,
    rows: u64,
    started: Instant,
    shown: Instant,
    told: Option<Instant>,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Starts at 0; `total` rows are expected, if that is known.
    pub fn new(what: impl Into<String>, total: Option<u64>) -> Self {
        let what = what.into();
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = total.map_or_else(ProgressBar::no_length, ProgressBar::new);
            let template = if total.is_some() {
                "{msg} {wide_bar} {human_pos}/{human_len} rows, {per_sec}, {eta} left"
            } else {
                "{msg} {spinner} {human_pos} rows, {per_sec}"
            };
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            bar.set_message(what.clone());
            bar
        });
        let now = Instant::now();
        Self {
            what,
            rows: 0,
            started: now,
            shown: now,
            told: None,
            bar,
        }
    }

    /// Counts further rows.
    pub fn add(&mut self, rows: u64) {
        self.rows += rows;
        match &self.bar {
            Some(bar) => bar.set_position(self.rows),
            None if self.shown.elapsed() >= EVERY => {
                self.shown = Instant::now();
                tracing::info!(rows = self.rows, "{}", self.what);
            }
            None => {}
        }
    }

    /// Tells of trouble, above the bar if there is one; not every time. Whether it did.
    pub fn warn(&mut self, trouble: &str, now: Instant) -> bool {
        let silent = |told| now.saturating_duration_since(told) < TROUBLE_EVERY;
        if self.told.is_some_and(silent) {
            return false;
        }
        self.told = Some(now);
        let tell = || tracing::warn!("{}: {trouble}", self.what);
        match &self.bar {
            Some(bar) => bar.suspend(tell),
            None => tell(),
        }
        true
    }

    /// Ends the bar; says how many rows there were and how fast they went.
    pub fn finish(self) -> String {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        let seconds = self.started.elapsed().as_secs_f64();
        #[allow(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            reason = "shown, rounded"
        )]
        let per_second = (self.rows as f64 / seconds.max(0.001)).round() as i64;
        format!(
            "{} rows in {seconds:.1} s, {} rows/s",
            count(self.rows),
            count(per_second)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_is_told_at_once_and_then_now_and_then() {
        let mut progress = Progress::new("loading", None);
        let start = Instant::now();
        let told: Vec<_> = [0, 1, 9, 10, 11, 20]
            .into_iter()
            .filter(|second| progress.warn("disk full", start + Duration::from_secs(*second)))
            .collect();
        assert_eq!(told, [0, 10, 20]);
    }
}
