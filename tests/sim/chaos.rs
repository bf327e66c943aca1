//! What goes wrong, by chance, and a journal of it.
//!
//! What becomes of a call is drawn for its process, its verb, and how often that process made it: it
//! does not depend on what others do meanwhile.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::time::Instant;

use crate::process::Process;

/// How many lines of the journal are kept for whoever looks into a failure.
const JOURNAL_LINES: usize = 3_000;

/// What a call goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// A change of an object of the lake or of an offsets file.
    Put,
    /// A read, list or removal of objects.
    Objects,
    /// A transaction of the metadata store.
    Commit,
    /// A read of the metadata store.
    Metadata,
    /// A request over the network.
    Request,
}

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Pass,
    /// It does nothing, and says so.
    Refuse,
    /// It takes this long.
    Slow(Duration),
    /// Whoever called is told nothing certain; it takes effect this much later.
    Late(Duration),
    /// It takes effect, its answer is lost.
    Lose,
    /// It takes effect, its answer is lost on the way to a client that asks again by itself.
    MeetItself,
    /// It takes effect, its answer is lost, and no object is reached by that process for so long.
    Outage(Duration),
    /// It does nothing, which is known after so long.
    TimeOut(Duration),
}

/// How often each kind of trouble comes, per thousand calls.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rates {
    pub(crate) refuse: u32,
    pub(crate) slow: u32,
    pub(crate) late: u32,
    pub(crate) lose: u32,
    pub(crate) meet_itself: u32,
    pub(crate) outage: u32,
}

/// The chance of a run. Clones share it.
#[derive(Clone)]
pub(crate) struct Chaos(Arc<Mutex<State>>);

struct State {
    seed: u64,
    calls: HashMap<u64, u64>,
    rates: BTreeMap<Kind, Rates>,
    /// Until when which process reaches no object, or can at most delete some.
    outages: HashMap<String, (Instant, bool)>,
    on: bool,
    begin: Option<Instant>,
    journal: VecDeque<String>,
    done: BTreeMap<String, u64>,
}

impl Chaos {
    pub(crate) fn new(seed: u64, rates: BTreeMap<Kind, Rates>) -> Self {
        Self(Arc::new(Mutex::new(State {
            seed,
            calls: HashMap::new(),
            rates,
            outages: HashMap::new(),
            on: true,
            begin: None,
            journal: VecDeque::new(),
            done: BTreeMap::new(),
        })))
    }

    /// Nothing goes wrong any more.
    pub(crate) fn heal(&self) {
        self.0.lock().on = false;
    }

    pub(crate) fn is_on(&self) -> bool {
        self.0.lock().on
    }

    pub(crate) fn verdict(&self, kind: Kind, what: &str, process: &Process) -> Verdict {
        let mut state = self.0.lock();
        if !state.on {
            // What led to a failure is not to be lost behind what came of it.
            return Verdict::Pass;
        }
        let verdict = state.draw(kind, what, process);
        if verdict == Verdict::Pass {
            // Reads that pass tell nothing.
            if matches!(kind, Kind::Put | Kind::Commit) {
                state.note(&format!("{process:?}: {what}"));
            }
            return verdict;
        }
        state.note(&format!("{process:?}: {what}: {verdict:?}"));
        let name = format!("{verdict:?}");
        let name = name.split('(').next().unwrap_or_default();
        *state.done.entry(format!("{kind:?} {name}")).or_default() += 1;
        verdict
    }

    /// Writes a line in the journal.
    pub(crate) fn note(&self, line: &str) {
        self.0.lock().note(line);
    }

    /// Counts something that was done to the world.
    pub(crate) fn count(&self, what: &str) {
        *self.0.lock().done.entry(what.to_owned()).or_default() += 1;
    }

    /// How often what was done.
    pub(crate) fn done(&self) -> BTreeMap<String, u64> {
        self.0.lock().done.clone()
    }

    pub(crate) fn journal(&self) -> String {
        let state = self.0.lock();
        let lines: Vec<&str> = state.journal.iter().map(String::as_str).collect();
        lines.join("\n")
    }
}

/// The same number for the same value, in each run.
fn number_of(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

impl State {
    fn draw(&mut self, kind: Kind, what: &str, process: &Process) -> Verdict {
        let verb = what.split(' ').next().unwrap_or_default();
        let call = number_of(&(self.seed, process.name(), verb));
        let count = self.calls.entry(call).or_default();
        *count += 1;
        let mut rng = StdRng::seed_from_u64(number_of(&(call, *count)));
        let rates = self.rates.get(&kind).copied().unwrap_or_default();
        let mut drawn = rng.random_range(0..1_000);
        let time = Duration::from_millis(rng.random_range(1..8_000));
        let is_out = self.outages.get(process.name());
        let is_out = is_out.is_some_and(|(until, spares_deletes)| {
            Instant::now() < *until && !(*spares_deletes && verb == "delete")
        });
        if is_out && matches!(kind, Kind::Put | Kind::Objects) {
            return Verdict::TimeOut(time / 4);
        }
        for (rate, verdict) in [
            (rates.refuse, Verdict::Refuse),
            (rates.slow, Verdict::Slow(time)),
            (rates.late, Verdict::Late(time * 15)),
            (rates.lose, Verdict::Lose),
            (rates.meet_itself, Verdict::MeetItself),
            (rates.outage, Verdict::Outage(time * 10)),
        ] {
            if drawn < rate {
                if let Verdict::Outage(time) = verdict {
                    let outage = (Instant::now() + time, rng.random_bool(0.5));
                    self.outages.insert(process.name().to_owned(), outage);
                }
                return verdict;
            }
            drawn -= rate;
        }
        Verdict::Pass
    }

    fn note(&mut self, line: &str) {
        let begin = *self.begin.get_or_insert_with(Instant::now);
        let at = begin.elapsed();
        if self.journal.len() == JOURNAL_LINES {
            self.journal.pop_front();
        }
        self.journal
            .push_back(format!("{:>9.3}s {line}", at.as_secs_f64()));
    }
}
