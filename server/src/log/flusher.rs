//! Group commit: a few threads sync the logs of a tablet, each log at most once at a time.
//!
//! An append asks for a flush of its log and goes on; whoever must know waits on the log's flushed
//! end. While a log is waiting for its turn, further appends to it change nothing: they share the
//! sync. The queue holds a log once, so it is never longer than there are logs.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::Log;
use super::config::FlushPolicy;
use super::error::Error;

/// The threads. Dropping it flushes what is queued and joins them.
#[derive(Debug)]
pub struct Flusher {
    handle: FlushHandle,
    threads: Vec<JoinHandle<()>>,
}

/// Asks for flushes; cheap to clone.
#[derive(Clone, Debug)]
pub struct FlushHandle {
    policy: FlushPolicy,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    /// All with the same delay, hence in order of their time.
    waiting: VecDeque<(Instant, Arc<Log>)>,
    stopping: bool,
}

impl Flusher {
    /// Starts `threads` threads (at least one); each runs one sync at a time.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub fn start(policy: FlushPolicy, threads: usize) -> std::io::Result<Self> {
        let handle = FlushHandle {
            policy,
            shared: Arc::default(),
        };
        let mut flusher = Self {
            handle: handle.clone(),
            threads: Vec::new(),
        };
        for number in 0..threads.max(1) {
            let shared = Arc::clone(&handle.shared);
            let thread = std::thread::Builder::new()
                .name(format!("log-flush-{number}"))
                .spawn(move || shared.run())?;
            flusher.threads.push(thread);
        }
        Ok(flusher)
    }

    /// What logs are opened with.
    pub fn handle(&self) -> FlushHandle {
        self.handle.clone()
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        self.handle.shared.queue.lock().stopping = true;
        self.handle.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a log flush thread panicked");
            }
        }
    }
}

impl FlushHandle {
    /// The policy that the threads follow.
    pub fn policy(&self) -> FlushPolicy {
        self.policy
    }

    /// Queues a log; the caller made sure that it isn't queued already.
    pub(crate) fn request(&self, log: &Arc<Log>) {
        let delay = match self.policy {
            FlushPolicy::Always => Duration::ZERO,
            FlushPolicy::Interval(interval) => interval,
            // Asked for only when a segment is full, which is to get its index and be closed.
            FlushPolicy::Os => Duration::ZERO,
        };
        let due = Instant::now() + delay;
        self.shared
            .queue
            .lock()
            .waiting
            .push_back((due, Arc::clone(log)));
        self.shared.changed.notify_one();
    }
}

impl Shared {
    fn run(&self) {
        while let Some(log) = self.next() {
            log.clear_flush_request();
            let flush = AssertUnwindSafe(|| log.flush());
            let Ok(flushed) = std::panic::catch_unwind(flush) else {
                log.give_up("a flush hit a broken invariant");
                continue;
            };
            match flushed {
                // A log that failed said so itself, once.
                Ok(_) | Err(Error::Closed { .. } | Error::Failed { .. }) => {}
                Err(error) => tracing::error!(bucket = %log.bucket(), %error, "flush failed"),
            }
        }
    }

    /// The next log whose time has come; None once stopped and empty.
    fn next(&self) -> Option<Arc<Log>> {
        let mut queue = self.queue.lock();
        loop {
            let due = queue.waiting.front().map(|(due, _)| *due);
            match due {
                Some(due) if queue.stopping || due <= Instant::now() => {
                    return queue.waiting.pop_front().map(|(_, log)| log);
                }
                Some(due) => {
                    self.changed.wait_until(&mut queue, due);
                }
                None if queue.stopping => return None,
                None => self.changed.wait(&mut queue),
            }
        }
    }
}
