//! Limits on connections, in all and per address, and on the memory of requests.
//!
//! At a limit a newcomer takes the place of a connection that does nothing: first of the oldest one that
//! never sent a request, then of the one idle for longest, if that is long enough. So connections
//! that are merely held open lock nobody out; busy ones never give way. A part of all places is for
//! this machine alone, so that clients elsewhere never lock out the daemon beside the server.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::request_memory::{RequestMemory, RequestsMemory};
use crate::config::LimitsConfig;
use crate::notice::Notice;

/// A connection that had a request may lose its place after being idle for this long.
const GIVES_WAY_AFTER: Duration = Duration::from_secs(30);
/// The part of all places that is for clients on this machine: one in so many.
const LOCAL_SHARE: usize = 8;

/// Who connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    pub(crate) address: IpAddr,
    /// It is on this machine.
    pub(crate) is_local: bool,
}

/// The limit that a connection is above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    pub(crate) connections: usize,
    /// The setting to raise.
    pub(crate) setting: &'static str,
}

/// Counts what clients hold; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Admission {
    seats: Arc<Mutex<Seats>>,
    started: Instant,
    connections: usize,
    connections_per_address: usize,
    memory: RequestsMemory,
}

#[derive(Debug, Default)]
struct Seats {
    taken: HashMap<u64, Seat>,
    next: u64,
    notice: Notice,
}

#[derive(Debug)]
struct Seat {
    address: IpAddr,
    activity: Arc<Activity>,
}

/// What a connection is doing; shared with its tasks.
#[derive(Debug)]
pub(crate) struct Activity {
    /// Unanswered requests.
    running: AtomicUsize,
    /// It has sent a whole request.
    had_request: AtomicBool,
    /// When it was opened or had its last answer.
    idle_since: Mutex<Instant>,
    /// Its place was given to another.
    gives_way: CancellationToken,
}

/// The right to be connected; given back on drop.
#[derive(Debug)]
pub(crate) struct Ticket {
    seats: Arc<Mutex<Seats>>,
    number: u64,
    activity: Arc<Activity>,
}

/// A request is being answered while this lives.
#[derive(Debug)]
pub(crate) struct Running(Arc<Activity>);

impl Admission {
    pub(crate) fn new(limits: &LimitsConfig) -> Self {
        Self {
            seats: Arc::default(),
            started: Instant::now(),
            connections: limits.connections,
            connections_per_address: limits.connections_per_address,
            memory: RequestsMemory::new(limits.request_memory_bytes),
        }
    }

    /// A ticket for one more connection. Above a limit an idle connection gives way; the limit, if
    /// none does.
    pub(crate) fn admit(&self, caller: Caller, now: Instant) -> Result<Ticket, Limit> {
        let mut seats = self.seats.lock();
        let of_address = |seat: &Seat| seat.address == caller.address;
        if seats.count(of_address) >= self.connections_per_address
            && !seats.make_room(now, of_address)
        {
            return Err(Limit {
                connections: self.connections_per_address,
                setting: "limits.connections-per-address",
            });
        }
        let local_places = if caller.is_local {
            0
        } else {
            self.connections / LOCAL_SHARE
        };
        let places = self.connections - local_places;
        if seats.taken.len() >= places && !seats.make_room(now, |_| true) {
            return Err(Limit {
                connections: places,
                setting: "limits.connections",
            });
        }
        let number = seats.next;
        seats.next += 1;
        let activity = Arc::new(Activity {
            running: AtomicUsize::new(0),
            had_request: AtomicBool::new(false),
            idle_since: Mutex::new(now),
            gives_way: CancellationToken::new(),
        });
        let seat = Seat {
            address: caller.address,
            activity: Arc::clone(&activity),
        };
        seats.taken.insert(number, seat);
        drop(seats);
        Ok(Ticket {
            seats: Arc::clone(&self.seats),
            number,
            activity,
        })
    }

    /// Whether a refusal is to be told: not each of many.
    pub(crate) fn is_refusal_due(&self, address: IpAddr, limit: Limit, now: Instant) -> bool {
        let since_start = now.saturating_duration_since(self.started);
        let now_ms = i64::try_from(since_start.as_millis()).unwrap_or(i64::MAX);
        let text = format!("{address} {}", limit.setting);
        self.seats.lock().notice.is_due(&text, now_ms)
    }

    /// Memory for one more request; none is taken yet.
    pub(crate) fn request_memory(&self) -> RequestMemory {
        self.memory.for_request()
    }
}

impl Seats {
    fn count(&self, of: impl Fn(&Seat) -> bool) -> usize {
        self.taken.values().filter(|seat| of(seat)).count()
    }

    /// Takes the place of the one of these connections that does least; false if all do something.
    fn make_room(&mut self, now: Instant, of: impl Fn(&Seat) -> bool) -> bool {
        let candidates = self.taken.iter().filter(|(_, seat)| of(seat));
        let idle = candidates.filter_map(|(number, seat)| {
            let (had_request, since) = seat.activity.idle(now)?;
            Some((had_request, since, *number))
        });
        let Some((_, _, number)) = idle.min() else {
            return false;
        };
        if let Some(seat) = self.taken.remove(&number) {
            seat.activity.gives_way.cancel();
        }
        true
    }
}

impl Activity {
    /// Since when nothing happens, and whether a request ever did; None if it keeps its place.
    fn idle(&self, now: Instant) -> Option<(bool, Instant)> {
        let since = *self.idle_since.lock();
        let had_request = self.had_request();
        let is_idle = self.running.load(Ordering::Acquire) == 0
            && (!had_request || now.saturating_duration_since(since) >= GIVES_WAY_AFTER);
        is_idle.then_some((had_request, since))
    }

    /// Whether a whole request has come in.
    pub(crate) fn had_request(&self) -> bool {
        self.had_request.load(Ordering::Acquire)
    }

    /// A whole request has come in.
    pub(crate) fn begin(self: &Arc<Self>) -> Running {
        self.running.fetch_add(1, Ordering::AcqRel);
        self.had_request.store(true, Ordering::Release);
        Running(Arc::clone(self))
    }

    /// Ends once the place was given to another connection.
    pub(crate) async fn gives_way(&self) {
        self.gives_way.cancelled().await;
    }
}

impl Ticket {
    pub(crate) fn activity(&self) -> &Arc<Activity> {
        &self.activity
    }

    /// Whether the place was given to another connection.
    pub(crate) fn gave_way(&self) -> bool {
        self.activity.gives_way.is_cancelled()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        *self.0.idle_since.lock() = Instant::now();
        self.0.running.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.seats.lock().taken.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admission(connections: usize, connections_per_address: usize) -> Admission {
        Admission::new(&LimitsConfig {
            connections,
            connections_per_address,
            ..LimitsConfig::default()
        })
    }

    fn from(last: u8) -> Caller {
        Caller {
            address: IpAddr::from([10, 0, 0, last]),
            is_local: false,
        }
    }

    fn admit(admission: &Admission, caller: Caller) -> Result<Ticket, Limit> {
        admission.admit(caller, Instant::now())
    }

    /// A connection with a request that is being answered.
    fn busy(admission: &Admission, caller: Caller) -> (Ticket, Running) {
        let ticket = admit(admission, caller).unwrap();
        let running = ticket.activity().begin();
        (ticket, running)
    }

    fn refused(admission: &Admission, caller: Caller) -> &'static str {
        admit(admission, caller).unwrap_err().setting
    }

    #[test]
    fn an_address_has_its_own_limit_below_that_of_the_process() {
        let admission = admission(3, 2);
        let first = busy(&admission, from(1));
        let _second = busy(&admission, from(1));
        assert_eq!(
            refused(&admission, from(1)),
            "limits.connections-per-address"
        );
        let _third = busy(&admission, from(2));
        assert_eq!(refused(&admission, from(2)), "limits.connections");
        drop(first);
        assert!(admit(&admission, from(1)).is_ok());
    }

    #[tokio::test]
    async fn connections_that_do_nothing_give_way_and_busy_ones_do_not() {
        let admission = admission(100, 3);
        let (served, running) = busy(&admission, from(1));
        let silent = [(); 2].map(|()| admit(&admission, from(1)).unwrap());
        let _other = admit(&admission, from(2)).unwrap();
        let next = busy(&admission, from(1));
        assert!(silent[0].gave_way() && !silent[1].gave_way(), "the oldest");
        let _last = busy(&admission, from(1));
        assert!(silent[1].gave_way());
        silent[1].activity().gives_way().await;
        drop(silent);
        refused(&admission, from(1));
        drop(running);
        refused(&admission, from(1));
        let later = Instant::now() + GIVES_WAY_AFTER;
        let _fourth = admission.admit(from(1), later).unwrap();
        assert!(served.gave_way() && !next.0.gave_way());
    }

    #[test]
    fn clients_elsewhere_leave_some_places_to_this_machine() {
        let admission = admission(16, 100);
        let elsewhere: Vec<_> = (0..14).map(|n| busy(&admission, from(n))).collect();
        assert_eq!(refused(&admission, from(99)), "limits.connections");
        let local = Caller {
            address: IpAddr::from([127, 0, 0, 1]),
            is_local: true,
        };
        let _here = [(); 2].map(|()| busy(&admission, local));
        assert_eq!(refused(&admission, local), "limits.connections");
        drop(elsewhere);
    }

    #[test]
    fn many_refusals_are_told_once_a_minute() {
        let admission = admission(1, 1);
        let _only = busy(&admission, from(1));
        let limit = admit(&admission, from(1)).unwrap_err();
        let now = Instant::now();
        let is_due = |now| admission.is_refusal_due(from(1).address, limit, now);
        assert_eq!((0..600).filter(|_| is_due(now)).count(), 1);
        assert!(is_due(now + Duration::from_mins(1)));
    }
}
