//! One memory budget for all tables: fetched and decoded batches, and what open writers hold.
//!
//! Reading waits for room; what must go on to make room (decoding, a writer's growth) never waits.
//! Whoever waits asks the largest open writer to close its file, so that waiting always ends.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// The budget; clones share it.
#[derive(Clone, Debug)]
pub struct MemoryBudget {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    limit_bytes: u64,
    state: Mutex<State>,
    freed: Notify,
}

#[derive(Debug, Default)]
struct State {
    used_bytes: u64,
    peak_bytes: u64,
    writers: BTreeMap<u64, Writer>,
    next_writer: u64,
}

#[derive(Debug)]
struct Writer {
    bytes: u64,
    roll: Arc<Notify>,
}

impl State {
    fn change(&mut self, from: u64, to: u64) {
        self.used_bytes = self.used_bytes.saturating_sub(from).saturating_add(to);
        self.peak_bytes = self.peak_bytes.max(self.used_bytes);
    }
}

impl MemoryBudget {
    /// A budget of `limit_bytes`.
    pub fn new(limit_bytes: u64) -> Self {
        let shared = Shared {
            limit_bytes,
            state: Mutex::new(State::default()),
            freed: Notify::new(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// The limit.
    pub fn limit_bytes(&self) -> u64 {
        self.shared.limit_bytes
    }

    /// What is held now.
    pub fn used_bytes(&self) -> u64 {
        self.shared.state.lock().used_bytes
    }

    /// The most that was ever held.
    pub fn peak_bytes(&self) -> u64 {
        self.shared.state.lock().peak_bytes
    }

    /// Waits until `bytes` fit, then holds them. A wish above the limit is granted when nothing
    /// else is held.
    pub async fn reserve(&self, bytes: u64) -> Reservation {
        loop {
            let freed = self.shared.freed.notified();
            tokio::pin!(freed);
            // Registered before the check, so that nothing freed in between is missed.
            freed.as_mut().enable();
            if let Some(reservation) = self.try_reserve(bytes) {
                return reservation;
            }
            self.ask_largest_writer();
            freed.await;
        }
    }

    fn try_reserve(&self, bytes: u64) -> Option<Reservation> {
        let mut state = self.shared.state.lock();
        let fits = state.used_bytes.saturating_add(bytes) <= self.shared.limit_bytes;
        if !fits && state.used_bytes > 0 {
            return None;
        }
        state.change(0, bytes);
        Some(Reservation {
            shared: Arc::clone(&self.shared),
            bytes,
        })
    }

    /// Room for one open writer, 0 at first.
    pub fn writer(&self) -> WriterMemory {
        let mut state = self.shared.state.lock();
        let id = state.next_writer;
        state.next_writer += 1;
        let roll = Arc::new(Notify::new());
        state.writers.insert(
            id,
            Writer {
                bytes: 0,
                roll: Arc::clone(&roll),
            },
        );
        WriterMemory {
            budget: self.clone(),
            id,
            roll,
        }
    }

    fn ask_largest_writer(&self) {
        let state = self.shared.state.lock();
        if let Some(writer) = state.writers.values().max_by_key(|w| w.bytes)
            && writer.bytes > 0
        {
            writer.roll.notify_one();
        }
    }
}

/// Held bytes; freed on drop.
#[derive(Debug)]
pub struct Reservation {
    shared: Arc<Shared>,
    bytes: u64,
}

impl Reservation {
    /// How many bytes are held.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Holds `bytes` from now on; never waits.
    pub fn resize(&mut self, bytes: u64) {
        self.shared.state.lock().change(self.bytes, bytes);
        if bytes < self.bytes {
            self.shared.freed.notify_waiters();
        }
        self.bytes = bytes;
    }

    /// Takes up to `bytes` out into a reservation of their own.
    pub fn split(&mut self, bytes: u64) -> Reservation {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Reservation {
            shared: Arc::clone(&self.shared),
            bytes,
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.resize(0);
    }
}

/// What one open writer holds; freed on drop.
#[derive(Debug)]
pub struct WriterMemory {
    budget: MemoryBudget,
    id: u64,
    roll: Arc<Notify>,
}

impl WriterMemory {
    /// The writer holds `bytes` now; never waits. If the budget is passed, the largest writer is
    /// asked to close its file.
    pub fn set(&self, bytes: u64) {
        let (shrunk, over) = {
            let mut state = self.budget.shared.state.lock();
            let Some(writer) = state.writers.get_mut(&self.id) else {
                return;
            };
            let before = std::mem::replace(&mut writer.bytes, bytes);
            state.change(before, bytes);
            (
                bytes < before,
                state.used_bytes > self.budget.shared.limit_bytes,
            )
        };
        if shrunk {
            self.budget.shared.freed.notify_waiters();
        }
        if over {
            self.budget.ask_largest_writer();
        }
    }

    /// Resolves when this writer is to close its file; at once if it was asked before.
    pub async fn roll_asked(&self) {
        self.roll.notified().await;
    }
}

impl Drop for WriterMemory {
    fn drop(&mut self) {
        {
            let mut state = self.budget.shared.state.lock();
            let Some(writer) = state.writers.remove(&self.id) else {
                return;
            };
            state.change(writer.bytes, 0);
        }
        self.budget.shared.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_wish_waits_until_room_is_free() {
        let budget = MemoryBudget::new(100);
        let first = budget.reserve(80).await;
        let mut second = Box::pin(budget.reserve(30));
        assert!(second.as_mut().now_or_never().is_none());
        drop(first);
        assert_eq!(second.await.bytes(), 30);
        assert_eq!((budget.used_bytes(), budget.peak_bytes()), (0, 80));
    }

    #[tokio::test]
    async fn a_wish_above_the_limit_is_granted_alone() {
        let budget = MemoryBudget::new(100);
        let held = budget.reserve(1).await;
        assert!(budget.reserve(200).now_or_never().is_none());
        drop(held);
        assert_eq!(budget.reserve(200).await.bytes(), 200);
    }

    #[tokio::test]
    async fn whoever_waits_asks_the_largest_writer_to_close() {
        let budget = MemoryBudget::new(100);
        let (small, large) = (budget.writer(), budget.writer());
        small.set(20);
        large.set(70);
        let mut wish = Box::pin(budget.reserve(40));
        assert!(wish.as_mut().now_or_never().is_none());
        large.roll_asked().await;
        assert!(small.roll_asked().now_or_never().is_none());
        large.set(0);
        assert_eq!(wish.await.bytes(), 40);
    }

    #[tokio::test]
    async fn a_writer_that_grows_past_the_limit_is_asked_to_close() {
        let budget = MemoryBudget::new(100);
        let writer = budget.writer();
        writer.set(101);
        writer.roll_asked().await;
        drop(writer);
        assert_eq!(budget.used_bytes(), 0);
    }

    #[tokio::test]
    async fn split_and_resize_keep_the_sum() {
        let budget = MemoryBudget::new(100);
        let mut whole = budget.reserve(60).await;
        let mut part = whole.split(25);
        assert_eq!(
            (whole.bytes(), part.bytes(), budget.used_bytes()),
            (35, 25, 60)
        );
        part.resize(50);
        assert_eq!(budget.used_bytes(), 85);
        drop(whole);
        assert_eq!(budget.used_bytes(), 50);
    }
}
