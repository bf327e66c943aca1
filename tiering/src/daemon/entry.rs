//! One table on the daemon's board.

use std::collections::BTreeMap;
use std::time::Duration;

use weir_protocol::ids::{TableBucket, TableId, TablePath};

use crate::cluster::Trouble;
use crate::config::RetryConfig;
use crate::error::{Error, Verdict};
use crate::lease::Lease;
use crate::ranges::Offsets;
use crate::round::Cut;
use crate::runner::RoundReport;
use crate::status::{
    Activity, LostOffsets, RoundOutcome, RoundSummary, TableState, TableStatus, cut_name,
};

/// The table's newest lag, as far as it was looked up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lag {
    /// Offsets that the lake lacks.
    pub(super) rows: Option<u64>,
    /// The lake holds everything that was readable at this time.
    pub(super) complete_as_of_ms: Option<i64>,
}

/// One table.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) path: TablePath,
    /// Held for us by the coordinator.
    pub(super) lease: Option<Lease>,
    /// The newest lease we ever had, to tier at once on demand.
    pub(super) last_lease: Option<Lease>,
    /// Under which lease a round runs.
    pub(super) running: Option<Lease>,
    /// Wall time the running round began.
    pub(super) running_since_ms: i64,
    /// Wall time the last round ended; 0 if none ran.
    pub(super) last_end_ms: i64,
    pub(super) activity: Activity,
    pub(super) paused_by_user: bool,
    /// A fault that needs a person.
    pub(super) paused_reason: Option<String>,
    pub(super) failures: u32,
    /// Buckets that the last round could not read.
    pub(super) failing_buckets: usize,
    pub(super) next_attempt_ms: i64,
    /// A round was asked for; it runs under the last lease if none is held.
    pub(super) demanded: bool,
    pub(super) last_round: Option<RoundSummary>,
    pub(super) last_error: Option<String>,
    pub(super) lake_snapshot: Option<i64>,
    pub(super) lag: Lag,
    /// Offsets that the log has lost and a person let go, until the lake is past them.
    pub(super) let_go: BTreeMap<TableBucket, Offsets>,
    pub(super) report: Option<RoundReport>,
}

impl Entry {
    pub(super) fn new(path: TablePath) -> Self {
        Self {
            path,
            lease: None,
            last_lease: None,
            running: None,
            running_since_ms: 0,
            last_end_ms: 0,
            activity: Activity::Idle,
            paused_by_user: false,
            paused_reason: None,
            failures: 0,
            failing_buckets: 0,
            next_attempt_ms: 0,
            demanded: false,
            last_round: None,
            last_error: None,
            lake_snapshot: None,
            lag: Lag::default(),
            let_go: BTreeMap::new(),
            report: None,
        }
    }

    /// A round begins.
    pub(super) fn begin(&mut self, lease: Lease, now_ms: i64) {
        self.running = Some(lease);
        self.running_since_ms = now_ms;
        self.activity = Activity::Splitting;
    }

    /// Under which lease a round may start now.
    pub(super) fn next_lease(&self, now_ms: i64) -> Option<Lease> {
        if self.running.is_some() || self.paused_by_user {
            return None;
        }
        match &self.lease {
            Some(lease) if now_ms >= self.next_attempt_ms => Some(lease.clone()),
            None if self.demanded => self.last_lease.clone(),
            _ => None,
        }
    }

    /// Held and about to run, so that its slot is taken.
    pub(super) fn is_due_soon(&self) -> bool {
        self.lease.is_some() && !self.paused_by_user && self.failures == 0
    }

    pub(super) fn clear_pause(&mut self) {
        self.paused_by_user = false;
        self.paused_reason = None;
        self.next_attempt_ms = 0;
    }

    /// Takes a round's report; says whether it was without trouble.
    pub(super) fn succeeded(
        &mut self,
        report: RoundReport,
        retry: &RetryConfig,
        now_ms: i64,
    ) -> bool {
        let trouble = report.trouble();
        // A round that began before a person let offsets go knew nothing of them.
        self.let_go.retain(|bucket, lost| {
            let lake_end = report.lake_ends.get(bucket);
            lake_end.is_none_or(|lake_end| *lake_end < lost.end)
        });
        self.failing_buckets = report.faults.len();
        match &trouble {
            None => {
                self.failures = 0;
                self.next_attempt_ms = 0;
                self.last_error = None;
                self.paused_reason = None;
            }
            Some(trouble) => self.buckets_failed(trouble, report.freshness, retry, now_ms),
        }
        if trouble.is_none() && report.cut.is_none() {
            self.lag.complete_as_of_ms = Some(report.as_of_ms);
        }
        // Rows of a bucket that could not be looked at are not among those left.
        self.lag.rows = report.is_whole.then_some(report.left_rows);
        self.lake_snapshot = report.lake_snapshot;
        let clean = trouble.is_none();
        if report.committed.is_some() {
            self.last_round = Some(summary(&report, now_ms));
        } else if let Some(trouble) = trouble {
            self.last_round = Some(self.failed_round(trouble.reason, now_ms));
        }
        self.report = Some(report);
        clean
    }

    /// Some buckets could not be read, perhaps for good. The others wait no longer than their
    /// freshness.
    fn buckets_failed(
        &mut self,
        trouble: &Trouble,
        freshness: Duration,
        retry: &RetryConfig,
        now_ms: i64,
    ) {
        let (table, error) = (self.path.to_string(), &trouble.reason);
        let is_news = self.last_error.as_ref() != Some(error);
        self.trouble(error.clone(), retry, now_ms);
        if trouble.lasting {
            if is_news {
                tracing::error!(table, error, "table paused: buckets can't be read");
            }
            self.pause(error.clone(), retry, now_ms);
        } else {
            if is_news {
                tracing::warn!(table, error, "buckets can't be read");
            }
            self.paused_reason = None;
        }
        let freshness = i64::try_from(freshness.as_millis()).unwrap_or(i64::MAX);
        self.next_attempt_ms = self.next_attempt_ms.min(now_ms.saturating_add(freshness));
    }

    /// Lets go what the last round found lost; what that is.
    pub(super) fn accept_loss(&mut self) -> Vec<LostOffsets> {
        let Some(report) = &self.report else {
            return Vec::new();
        };
        let mut all = Vec::new();
        for (bucket, trouble) in &report.faults {
            let Some(lost) = trouble.lost.clone() else {
                continue;
            };
            tracing::warn!(
                table = %self.path, %bucket, from = %lost.start, to = %lost.end,
                "a person lets lost offsets go"
            );
            all.push(LostOffsets {
                partition: report.view.partition_name(*bucket),
                bucket: bucket.bucket.0,
                from: lost.start.0,
                to: lost.end.0,
            });
            self.let_go.insert(*bucket, lost);
        }
        all
    }

    pub(super) fn failed(&mut self, error: &Error, retry: &RetryConfig, now_ms: i64) {
        let text = error.chain();
        let table = self.path.to_string();
        self.failing_buckets = 0;
        match error.verdict() {
            Verdict::Drop => {
                tracing::info!(table, error = text, "round dropped");
                if !matches!(error, Error::Cancelled { .. } | Error::Stopped) {
                    self.trouble(text, retry, now_ms);
                }
                return;
            }
            Verdict::Again => {
                tracing::warn!(table, error = text, "round starts anew");
                self.last_error = Some(text.clone());
            }
            Verdict::Retry => {
                tracing::warn!(table, error = text, "round failed");
                self.trouble(text.clone(), retry, now_ms);
            }
            Verdict::Pause => {
                tracing::error!(table, error = text, "table paused");
                self.trouble(text.clone(), retry, now_ms);
                self.pause(text.clone(), retry, now_ms);
            }
        }
        self.last_round = Some(self.failed_round(text, now_ms));
    }

    fn failed_round(&self, error: String, now_ms: i64) -> RoundSummary {
        RoundSummary {
            id: String::new(),
            started_ms: self.running_since_ms,
            duration_ms: now_ms.saturating_sub(self.running_since_ms),
            outcome: RoundOutcome::Failed { error },
            buckets: 0,
            rows: 0,
            files: 0,
            bytes: 0,
            diverted: 0,
            cut: None,
        }
    }

    /// A person must act; until then the table is tried only now and then.
    fn pause(&mut self, reason: String, retry: &RetryConfig, now_ms: i64) {
        let pause = i64::try_from(retry.max_ms).unwrap_or(i64::MAX);
        self.paused_reason = Some(reason);
        self.next_attempt_ms = now_ms.saturating_add(pause);
    }

    fn trouble(&mut self, text: String, retry: &RetryConfig, now_ms: i64) {
        self.failures = self.failures.saturating_add(1);
        let pause = i64::try_from(retry.pause(self.failures).as_millis()).unwrap_or(i64::MAX);
        self.next_attempt_ms = now_ms.saturating_add(pause);
        self.last_error = Some(text);
    }

    pub(super) fn status(&self, table_id: TableId, now_ms: i64) -> TableStatus {
        let state = if self.paused_by_user {
            TableState::Paused {
                reason: "paused by a person".to_owned(),
            }
        } else if let Some(reason) = &self.paused_reason {
            TableState::Paused {
                reason: reason.clone(),
            }
        } else if self.failures > 0 {
            TableState::Retrying {
                failures: self.failures,
                next_attempt_ms: self.next_attempt_ms,
            }
        } else if self.report.is_none() {
            TableState::Unknown
        } else {
            TableState::Healthy
        };
        let behind_ms = self
            .lag
            .complete_as_of_ms
            .map(|as_of| now_ms.saturating_sub(as_of));
        let lag_seconds = match self.lag.rows {
            Some(0) => Some(0),
            _ => behind_ms.and_then(|ms| u64::try_from(ms / 1_000).ok()),
        };
        TableStatus {
            path: self.path.clone(),
            table_id,
            state,
            activity: self.activity,
            lag_rows: self.lag.rows,
            lag_seconds,
            lake_snapshot: self.lake_snapshot,
            failing_buckets: self.failing_buckets,
            held: None,
            last_round: self.last_round.clone(),
            last_error: self.last_error.clone(),
            warning: None,
        }
    }
}

fn summary(report: &RoundReport, now_ms: i64) -> RoundSummary {
    let committed = report.committed.as_ref();
    RoundSummary {
        id: report.round.clone(),
        started_ms: report.started_ms,
        duration_ms: now_ms.saturating_sub(report.started_ms),
        outcome: match committed {
            Some(committed) => RoundOutcome::Committed {
                snapshot: committed.snapshot,
            },
            None => RoundOutcome::Nothing,
        },
        buckets: report.buckets,
        rows: committed.map_or(0, |c| c.rows),
        files: committed.map_or(0, |c| c.files),
        bytes: committed.map_or(0, |c| c.bytes),
        diverted: committed.map_or(0, |c| c.diverted),
        cut: report.cut.map(|cut: Cut| cut_name(cut).to_owned()),
    }
}
