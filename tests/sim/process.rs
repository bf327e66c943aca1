//! Processes of the simulated world: they die or freeze at any of their calls to it.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::chaos::{Chaos, Kind, Verdict};

/// What becomes of a process at one of its calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    DieBefore,
    DieAfter,
    FreezeBefore,
    FreezeAfter,
    /// The call fails and does nothing.
    Refuse,
    /// The call does its work, and its answer is lost.
    Lose,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Runs,
    Frozen,
    Dead,
}

/// Why a call has no result: it did not happen, or nobody knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    Refused,
    Unknown,
    /// It happened, and whoever carried it asked twice: the second time it was there already.
    MetItself,
}

type OnDeath = Box<dyn FnOnce() + Send>;

/// A process. Clones are the same one.
#[derive(Clone)]
pub(crate) struct Process(Arc<Inner>);

struct Inner {
    name: String,
    chaos: Chaos,
    state: watch::Sender<State>,
    plan: Mutex<Option<(u64, Fate)>>,
    on_death: Mutex<Option<OnDeath>>,
    calls: AtomicU64,
}

impl std::fmt::Debug for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.name)
    }
}

impl Process {
    pub(crate) fn new(name: impl Into<String>, chaos: &Chaos) -> Self {
        Self(Arc::new(Inner {
            name: name.into(),
            chaos: chaos.clone(),
            state: watch::Sender::new(State::Runs),
            plan: Mutex::new(None),
            on_death: Mutex::new(None),
            calls: AtomicU64::new(0),
        }))
    }

    /// What is done at the very moment the process dies.
    pub(crate) fn on_death(&self, act: impl FnOnce() + Send + 'static) {
        *self.0.on_death.lock() = Some(Box::new(act));
    }

    pub(crate) fn name(&self) -> &str {
        &self.0.name
    }

    pub(crate) fn chaos(&self) -> &Chaos {
        &self.0.chaos
    }

    pub(crate) fn is_dead(&self) -> bool {
        *self.0.state.borrow() == State::Dead
    }

    pub(crate) fn is_frozen(&self) -> bool {
        *self.0.state.borrow() == State::Frozen
    }

    /// Ends it: none of its calls does anything any more, or returns.
    pub(crate) fn die(&self) {
        if self.0.state.send_replace(State::Dead) == State::Dead {
            return;
        }
        self.0.chaos.note(&format!("{self:?} dies"));
        if let Some(act) = self.0.on_death.lock().take() {
            act();
        }
    }

    pub(crate) fn freeze(&self) {
        if !self.is_dead() {
            self.0.chaos.note(&format!("{self:?} freezes"));
            self.0.state.send_replace(State::Frozen);
        }
    }

    pub(crate) fn thaw(&self) {
        if self.is_frozen() {
            self.0.chaos.note(&format!("{self:?} goes on"));
            self.0.state.send_replace(State::Runs);
        }
    }

    /// Lets `fate` come at the call after `calls` more.
    pub(crate) fn plan(&self, calls: u64, fate: Fate) {
        *self.0.plan.lock() = Some((calls, fate));
    }

    /// How many calls it has made.
    pub(crate) fn calls(&self) -> u64 {
        self.0.calls.load(Ordering::SeqCst)
    }

    pub(crate) fn forget_plan(&self) {
        *self.0.plan.lock() = None;
    }

    /// Returns once it is dead.
    pub(crate) async fn dead(&self) {
        let mut state = self.0.state.subscribe();
        // The sender lives as long as `self`.
        let _ = state.wait_for(|state| *state == State::Dead).await;
    }

    /// Returns once it runs: never, if it is dead.
    pub(crate) async fn runs(&self) {
        let mut state = self.0.state.subscribe();
        let _ = state.wait_for(|state| *state != State::Frozen).await;
        if self.is_dead() {
            std::future::pending::<()>().await;
        }
    }

    /// Counts a call; the fate that comes with it, if one does. None does once the world is healed.
    pub(crate) fn fate(&self) -> Option<Fate> {
        self.0.calls.fetch_add(1, Ordering::SeqCst);
        if !self.0.chaos.is_on() {
            return None;
        }
        let mut plan = self.0.plan.lock();
        match &mut *plan {
            Some((0, fate)) => {
                let fate = *fate;
                *plan = None;
                self.0
                    .chaos
                    .note(&format!("{self:?} meets its fate: {fate:?}"));
                Some(fate)
            }
            Some((left, _)) => {
                *left -= 1;
                None
            }
            None => None,
        }
    }

    /// A call of this process to the world that changes or reads something there. A frozen process's
    /// call is done when it goes on, whatever became of those who waited for it.
    pub(crate) async fn call<T, W>(&self, kind: Kind, what: &str, work: W) -> Result<T, Trouble>
    where
        T: Send + 'static,
        W: Future<Output = T> + Send + 'static,
    {
        self.runs().await;
        let fate = self.fate();
        let mut verdict = self.0.chaos.verdict(kind, what, self);
        match fate {
            Some(Fate::DieBefore) => self.die(),
            Some(Fate::FreezeBefore) => self.freeze(),
            Some(Fate::Refuse) => verdict = Verdict::Refuse,
            Some(Fate::Lose) => verdict = Verdict::Lose,
            Some(Fate::DieAfter | Fate::FreezeAfter) | None => {}
        }
        let work = if self.is_frozen() {
            let process = self.clone();
            let later = tokio::spawn(async move {
                process.runs().await;
                work.await
            });
            later.await.map_err(|_| Trouble::Unknown)?
        } else {
            self.runs().await;
            match verdict {
                Verdict::Pass => work.await,
                Verdict::Refuse => return Err(Trouble::Refused),
                Verdict::Slow(time) => {
                    sleep(time).await;
                    self.runs().await;
                    work.await
                }
                Verdict::Late(time) => {
                    // On its way; whoever sent it gives up.
                    tokio::spawn(async move {
                        sleep(time).await;
                        work.await
                    });
                    return Err(Trouble::Unknown);
                }
                Verdict::TimeOut(time) => {
                    sleep(time).await;
                    self.runs().await;
                    return Err(Trouble::Refused);
                }
                Verdict::Lose | Verdict::Outage(_) => {
                    work.await;
                    self.after(fate).await;
                    return Err(Trouble::Unknown);
                }
                Verdict::MeetItself => {
                    work.await;
                    self.after(fate).await;
                    return Err(Trouble::MetItself);
                }
            }
        };
        self.after(fate).await;
        Ok(work)
    }

    async fn after(&self, fate: Option<Fate>) {
        match fate {
            Some(Fate::DieAfter) => self.die(),
            Some(Fate::FreezeAfter) => self.freeze(),
            Some(Fate::DieBefore | Fate::FreezeBefore | Fate::Refuse | Fate::Lose) | None => {}
        }
        self.runs().await;
    }
}
