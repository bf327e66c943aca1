//! Time and chance: the only places of this crate that ask the machine for either.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rand::Rng;

/// Wall time, in milliseconds since 1970-01-01 UTC.
pub trait Clock: Send + Sync + std::fmt::Debug {
    /// The time now.
    fn now_ms(&self) -> i64;
}

/// The machine's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[allow(
        clippy::disallowed_methods,
        reason = "the one place that asks for the time"
    )]
    fn now_ms(&self) -> i64 {
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => i64::try_from(since.as_millis()).unwrap_or(i64::MAX),
            Err(before) => i64::try_from(before.duration().as_millis()).map_or(i64::MIN, |ms| -ms),
        }
    }
}

/// A clock that moves only when told to.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicI64);

impl ManualClock {
    /// A clock that shows `now_ms`.
    pub fn new(now_ms: i64) -> Self {
        Self(AtomicI64::new(now_ms))
    }

    /// Sets the time, forwards or backwards.
    pub fn set_ms(&self, now_ms: i64) {
        self.0.store(now_ms, Ordering::SeqCst);
    }

    /// Moves the time forward by `delta`.
    pub fn advance(&self, delta: Duration) {
        let delta_ms = i64::try_from(delta.as_millis()).unwrap_or(i64::MAX);
        self.0.fetch_add(delta_ms, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now_ms(&self) -> i64 {
        self.0.load(Ordering::SeqCst)
    }
}

/// Shortest step of [`back_off`].
const BACK_OFF_STEP: Duration = Duration::from_millis(10);
/// Longest wait of [`back_off`].
const BACK_OFF_MAX: Duration = Duration::from_millis(500);

/// Waits before attempt `attempt` (from 0, which doesn't wait): anything up to 10 ms · 2^attempt,
/// never more than 500 ms.
#[allow(
    clippy::disallowed_methods,
    reason = "the one place that waits and draws lots"
)]
pub(crate) async fn back_off(attempt: u32) {
    if attempt == 0 {
        return;
    }
    let ceiling = BACK_OFF_STEP
        .saturating_mul(1 << attempt.min(10))
        .min(BACK_OFF_MAX);
    let wait = rand::rng().random_range(Duration::ZERO..=ceiling);
    tokio::time::sleep(wait).await;
}

/// A name that no other process draws: for files that are written once.
#[allow(clippy::disallowed_methods, reason = "the one place that draws names")]
pub(crate) fn unique_name() -> String {
    uuid::Uuid::new_v4().to_string()
}
