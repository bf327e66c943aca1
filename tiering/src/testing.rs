//! A world for tests: a cluster in memory, an object store in memory, and one counter of all calls
//! to either, at which something can be made to go wrong.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

pub(crate) mod cluster;
pub(crate) mod others;
pub(crate) mod store;
pub(crate) mod world;

/// What goes wrong at a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The call fails and does nothing.
    Fail,
    /// The call does its work, its reply is lost.
    LoseReply,
    /// The call does its work, its reply is lost, and every later call fails.
    LoseReplyForEver,
    /// The process dies before the call.
    CrashBefore,
    /// The process dies after the call.
    CrashAfter,
    /// The process is frozen before the call, until it is thawed.
    FreezeBefore,
    /// The process is frozen after the call, until it is thawed.
    FreezeAfter,
}

/// Counts calls, and makes one of them go wrong. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    calls: AtomicU64,
    plan: Mutex<Option<(u64, Fault)>>,
    fired: Mutex<Option<String>>,
    stopped: Notify,
    /// Calls that name this fail.
    refused: Mutex<Option<String>>,
    /// Calls that name this wait until nothing is held any more.
    held: watch::Sender<Option<String>>,
    holding: Notify,
    /// While set, every call fails.
    down: AtomicBool,
    /// While set, no call of the process goes on.
    still: watch::Sender<bool>,
}

/// What is left to do after the work of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    Nothing,
    LoseReply,
    Crash,
    Freeze,
}

impl Faults {
    /// Lets `fault` happen at the `at`-th call from now on (from 0).
    pub(crate) fn plan(&self, at: u64, fault: Fault) {
        self.inner.calls.store(0, Ordering::SeqCst);
        *self.inner.plan.lock() = Some((at, fault));
        *self.inner.fired.lock() = None;
    }

    /// Lets every call fail that names `text`.
    pub(crate) fn refuse(&self, text: &str) {
        *self.inner.refused.lock() = Some(text.to_owned());
    }

    /// Ends [`Faults::refuse`].
    pub(crate) fn allow(&self) {
        *self.inner.refused.lock() = None;
    }

    /// Lets every call wait that names `text`, until it is `None`.
    pub(crate) fn hold(&self, text: Option<&str>) {
        self.inner.held.send_replace(text.map(str::to_owned));
    }

    /// Waits until a call is held.
    pub(crate) async fn holds(&self) {
        self.inner.holding.notified().await;
    }

    /// The call at which the fault happened, if it did.
    pub(crate) fn fired(&self) -> Option<String> {
        self.inner.fired.lock().clone()
    }

    /// Waits until the process has died or is frozen.
    pub(crate) async fn stopped(&self) {
        self.inner.stopped.notified().await;
    }

    /// Lets a frozen process go on.
    pub(crate) fn thaw(&self) {
        self.inner.still.send_replace(false);
    }

    /// Begins a call: `Err` if it is to fail without doing anything.
    pub(crate) async fn before(&self, call: &str) -> Result<After, ()> {
        self.moving().await;
        let mut held = self.inner.held.subscribe();
        let passes = |held: &Option<String>| {
            let passes = held.as_ref().is_none_or(|text| !call.contains(text));
            if !passes {
                self.inner.holding.notify_one();
            }
            passes
        };
        // The sender lives as long as `self`.
        let _ = held.wait_for(passes).await;
        let refused = self.inner.refused.lock().clone();
        if self.inner.down.load(Ordering::SeqCst) || refused.is_some_and(|r| call.contains(&r)) {
            return Err(());
        }
        let number = self.inner.calls.fetch_add(1, Ordering::SeqCst);
        let fault = {
            let mut plan = self.inner.plan.lock();
            match *plan {
                Some((at, fault)) if at == number => {
                    *plan = None;
                    *self.inner.fired.lock() = Some(call.to_owned());
                    fault
                }
                _ => return Ok(After::Nothing),
            }
        };
        match fault {
            Fault::Fail => Err(()),
            Fault::LoseReply => Ok(After::LoseReply),
            Fault::LoseReplyForEver => {
                self.inner.down.store(true, Ordering::SeqCst);
                Ok(After::LoseReply)
            }
            Fault::CrashAfter => Ok(After::Crash),
            Fault::FreezeAfter => Ok(After::Freeze),
            Fault::CrashBefore => self.die().await,
            Fault::FreezeBefore => {
                self.freeze().await;
                Ok(After::Nothing)
            }
        }
    }

    /// Ends a call: `Err` if its reply is lost.
    pub(crate) async fn after(&self, after: After) -> Result<(), ()> {
        match after {
            After::Nothing => Ok(()),
            After::LoseReply => Err(()),
            After::Crash => self.die().await,
            After::Freeze => {
                self.freeze().await;
                Ok(())
            }
        }
    }

    async fn moving(&self) {
        let mut still = self.inner.still.subscribe();
        // The sender lives as long as `self`.
        let _ = still.wait_for(|still| !still).await;
    }

    async fn freeze(&self) {
        self.inner.still.send_replace(true);
        self.inner.stopped.notify_one();
        self.moving().await;
    }

    /// Never returns: the test drops whoever waits here.
    async fn die<T>(&self) -> T {
        self.inner.still.send_replace(true);
        self.inner.stopped.notify_one();
        std::future::pending().await
    }
}
