//! Orderly stop: one token that everything listens to, one tracker that nothing escapes.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The stop signal and the running tasks of one stage of the server. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Shutdown {
    token: CancellationToken,
    tracker: TaskTracker,
    /// The first critical task that ended before its time, and how.
    failed: Arc<watch::Sender<Option<String>>>,
}

impl Shutdown {
    /// A signal of its own, not yet given.
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives the signal. Tasks end by themselves; nothing is aborted.
    pub fn begin(&self) {
        self.token.cancel();
    }

    /// Whether the signal was given.
    pub fn has_begun(&self) -> bool {
        self.token.is_cancelled()
    }

    /// The token that tasks wait on.
    pub fn token(&self) -> &CancellationToken {
        &self.token
    }

    /// Ends once the signal is given.
    pub async fn begun(&self) {
        self.token.cancelled().await;
    }

    /// Runs a task that [`Self::drained`] waits for.
    pub fn spawn<F>(&self, task: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.tracker.spawn(task)
    }

    /// Runs a task without which the server is none: it ends after the signal. If it ends before, or panics,
    /// [`Self::failed`] resolves.
    pub fn spawn_critical<F>(&self, what: &'static str, task: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let shutdown = self.clone();
        self.tracker.spawn(async move {
            let ended = AssertUnwindSafe(task).catch_unwind().await;
            let reason = match ended {
                Ok(()) if shutdown.has_begun() => return,
                Ok(()) => format!("{what} ended"),
                Err(_) => format!("{what} hit a broken invariant, see the log"),
            };
            tracing::error!(reason, "a part of the server is gone");
            shutdown.failed.send_if_modified(|failed| {
                let is_first = failed.is_none();
                failed.get_or_insert(reason);
                is_first
            });
        });
    }

    /// Whether a critical task ended before its time.
    pub fn has_failed(&self) -> bool {
        self.failed.borrow().is_some()
    }

    /// Resolves with the reason once a critical task has ended before its time; never otherwise. Cancel-safe.
    pub async fn failed(&self) -> String {
        let mut failed = self.failed.subscribe();
        if let Ok(reason) = failed.wait_for(Option::is_some).await
            && let Some(reason) = reason.as_ref()
        {
            return reason.clone();
        }
        std::future::pending().await
    }

    /// Waits until every task has ended, at most `limit`; whether all did.
    pub async fn drained(&self, limit: Duration) -> bool {
        self.tracker.close();
        tokio::time::timeout(limit, self.tracker.wait())
            .await
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_critical_task_that_panics_or_ends_too_early_is_told() {
        let shutdown = Shutdown::new();
        shutdown.spawn_critical("the ticker", async { panic!("for this test") });
        assert!(shutdown.failed().await.starts_with("the ticker hit"));
        assert!(shutdown.has_failed());
        let shutdown = Shutdown::new();
        shutdown.spawn_critical("the ticker", async {});
        assert_eq!(shutdown.failed().await, "the ticker ended");
    }

    #[tokio::test]
    async fn a_critical_task_may_end_once_the_signal_is_given() {
        let shutdown = Shutdown::new();
        let signal = shutdown.clone();
        shutdown.spawn_critical("the ticker", async move { signal.begun().await });
        shutdown.begin();
        assert!(shutdown.drained(Duration::from_mins(1)).await);
        assert!(!shutdown.has_failed());
    }
}
