//! Orderly stop: one token that everything listens to, one tracker that nothing escapes.

use std::future::Future;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The stop signal and the running tasks of one stage of the server. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Shutdown {
    token: CancellationToken,
    tracker: TaskTracker,
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

    /// Waits until every task has ended, at most `limit`; whether all did.
    pub async fn drained(&self, limit: Duration) -> bool {
        self.tracker.close();
        tokio::time::timeout(limit, self.tracker.wait())
            .await
            .is_ok()
    }
}
