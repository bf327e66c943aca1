//! One table on the daemon's board.

use weir_protocol::ids::{TableId, TablePath};

use crate::config::RetryConfig;
use crate::error::{Error, Verdict};
use crate::round::{Cut, Lease};
use crate::runner::RoundReport;
use crate::status::{Activity, RoundOutcome, RoundSummary, TableState, TableStatus, cut_name};

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
    pub(super) activity: Activity,
    pub(super) paused_by_user: bool,
    /// A fault that needs a person.
    pub(super) paused_reason: Option<String>,
    pub(super) failures: u32,
    pub(super) next_attempt_ms: i64,
    /// A round was asked for; it runs under the last lease if none is held.
    pub(super) demanded: bool,
    pub(super) last_round: Option<RoundSummary>,
    pub(super) last_error: Option<String>,
    pub(super) lake_snapshot: Option<i64>,
    pub(super) lag: Lag,
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
            activity: Activity::Idle,
            paused_by_user: false,
            paused_reason: None,
            failures: 0,
            next_attempt_ms: 0,
            demanded: false,
            last_round: None,
            last_error: None,
            lake_snapshot: None,
            lag: Lag::default(),
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
        let clean = report.faults.is_empty();
        if clean {
            self.failures = 0;
            self.next_attempt_ms = 0;
            self.last_error = None;
            self.paused_reason = None;
        } else {
            let faults: Vec<String> = report
                .faults
                .iter()
                .map(|(bucket, fault)| format!("{bucket}: {fault}"))
                .collect();
            self.trouble(faults.join("; "), retry, now_ms);
        }
        if clean && report.cut.is_none() {
            self.lag.complete_as_of_ms = Some(report.as_of_ms);
        }
        self.lag.rows = Some(report.left_rows);
        self.lake_snapshot = report.lake_snapshot;
        if report.committed.is_some() {
            self.last_round = Some(summary(&report, now_ms));
        }
        self.report = Some(report);
        clean
    }

    pub(super) fn failed(&mut self, error: &Error, retry: &RetryConfig, now_ms: i64) {
        let text = error.chain();
        let table = self.path.to_string();
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
                self.paused_reason = Some(text.clone());
                let pause = i64::try_from(retry.max_ms).unwrap_or(i64::MAX);
                self.next_attempt_ms = now_ms.saturating_add(pause);
            }
        }
        self.last_round = Some(RoundSummary {
            id: String::new(),
            started_ms: self.running_since_ms,
            duration_ms: now_ms.saturating_sub(self.running_since_ms),
            outcome: RoundOutcome::Failed { error: text },
            buckets: 0,
            rows: 0,
            files: 0,
            bytes: 0,
            cut: None,
        });
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
            last_round: self.last_round.clone(),
            last_error: self.last_error.clone(),
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
        cut: report.cut.map(|cut: Cut| cut_name(cut).to_owned()),
    }
}
