//! Group commit: a few threads sync the logs of a tablet, each log at most once at a time; or the
//! blocking threads of a runtime do, when its timers say.
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
use tokio::runtime::Handle;

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
    by: By,
}

/// Who flushes.
#[derive(Clone, Debug)]
enum By {
    Threads(Arc<Shared>),
    Runtime(Handle),
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
        let queue: Arc<Shared> = Arc::default();
        let mut flusher = Self {
            handle: FlushHandle {
                policy,
                by: By::Threads(Arc::clone(&queue)),
            },
            threads: Vec::new(),
        };
        for number in 0..threads.max(1) {
            let shared = Arc::clone(&queue);
            let thread = std::thread::Builder::new()
                .name(format!("log-flush-{number}"))
                .spawn(move || shared.run())?;
            flusher.threads.push(thread);
        }
        Ok(flusher)
    }

    /// Flushes on the blocking threads of `runtime`; intervals go by its clock. Dropped, it leaves
    /// what is queued to the runtime.
    pub fn on_runtime(policy: FlushPolicy, runtime: Handle) -> Self {
        let by = By::Runtime(runtime);
        Self {
            handle: FlushHandle { policy, by },
            threads: Vec::new(),
        }
    }

    /// What logs are opened with.
    pub fn handle(&self) -> FlushHandle {
        self.handle.clone()
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        if let By::Threads(shared) = &self.handle.by {
            shared.queue.lock().stopping = true;
            shared.changed.notify_all();
        }
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a log flush thread panicked");
            }
        }
    }
}

impl FlushHandle {
    /// The policy that is followed.
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
        let log = Arc::clone(log);
        match &self.by {
            By::Threads(shared) => shared.push(Instant::now() + delay, log),
            By::Runtime(runtime) => {
                runtime.spawn(async move {
                    tokio::time::sleep(delay).await;
                    // It catches what panics, and says so.
                    let _ended = tokio::task::spawn_blocking(move || flush(&log)).await;
                });
            }
        }
    }
}

fn flush(log: &Log) {
    log.clear_flush_request();
    let flush = AssertUnwindSafe(|| log.flush());
    let Ok(flushed) = std::panic::catch_unwind(flush) else {
        log.give_up("a flush hit a broken invariant");
        return;
    };
    match flushed {
        // A log that failed said so itself, once.
        Ok(_) | Err(Error::Closed { .. } | Error::Failed { .. }) => {}
        Err(error) => tracing::error!(bucket = %log.bucket(), %error, "flush failed"),
    }
}

impl Shared {
    fn push(&self, due: Instant, log: Arc<Log>) {
        self.queue.lock().waiting.push_back((due, log));
        self.changed.notify_one();
    }

    fn run(&self) {
        while let Some(log) = self.next() {
            flush(&log);
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
