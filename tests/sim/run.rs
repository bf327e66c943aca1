//! One run: a seed, its world, its steps, and quiet in the end.

use std::collections::BTreeMap;
use std::panic;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use parking_lot::Mutex;

use crate::chaos::Chaos;
use crate::oracle::{Depth, Oracle, Violation};
use crate::world::World;

/// How long all may take to become quiet once nothing goes wrong any more.
const QUIET_WITHIN: Duration = Duration::from_secs(900);
/// How often that is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(1_000);

/// What a run did.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) rows: u64,
    pub(crate) done: BTreeMap<String, u64>,
}

/// How long a run may take on the machine's clock: one that takes longer runs in a circle, while its own
/// time stands still.
const ENDS_WITHIN: Duration = Duration::from_secs(120);

/// The journals of runs that go on.
static JOURNALS: Mutex<BTreeMap<String, Chaos>> = Mutex::new(BTreeMap::new());

/// Panics of threads by their name, which is that of their seed.
static PANICS: Mutex<BTreeMap<String, Vec<String>>> = Mutex::new(BTreeMap::new());

/// Notes panics of the parts that run: a server goes on after one, a run must not.
pub(crate) fn watch_panics() {
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if let Some(name) = std::thread::current().name()
            && (name.starts_with("seed-") || name.starts_with("sweep-"))
        {
            let mut panics = PANICS.lock();
            panics
                .entry(name.to_owned())
                .or_default()
                .push(info.to_string());
        }
        before(info);
    }));
}

/// Runs a seed.
///
/// # Errors
/// What is wrong, with the command that shows it again.
pub(crate) fn run(seed: u64) -> Result<Report, String> {
    let played = in_its_own_time(format!("seed-{seed}"), move || async move {
        let mut world = World::new(seed);
        keep_journal(&world);
        act(&mut world).await
    });
    played.map_err(|failure| {
        format!("{failure}\nonce more: WEIR_SIM_SEED={seed} cargo test -p weir-tests --test sim")
    })
}

/// The journal of this world is shown if something is wrong.
pub(crate) fn keep_journal(world: &World) {
    if let Some(name) = std::thread::current().name() {
        JOURNALS.lock().insert(name.to_owned(), world.chaos.clone());
    }
}

/// Plays something on a runtime of its own, whose clock stands still while there is work.
///
/// # Errors
/// What is wrong, behind the journal.
pub(crate) fn in_its_own_time<T, F, P>(name: String, play: P) -> Result<T, String>
where
    T: Send + 'static,
    F: Future<Output = Result<T, Violation>>,
    P: FnOnce() -> F + Send + 'static,
{
    let thread = std::thread::Builder::new().name(name.clone());
    let (done, ended) = std::sync::mpsc::sync_channel(1);
    let threads = name.clone();
    let running = thread.spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .thread_name(threads)
            .max_blocking_threads(1)
            // Wakes from the blocking thread come last: when, hardly depends on how fast it is.
            .global_queue_interval(u32::MAX)
            .build()
            .expect("a runtime");
        let local = tokio::task::LocalSet::new();
        let played = local.block_on(&runtime, async { play().await });
        // Tasks of dead processes wait for ever.
        runtime.shutdown_background();
        // Nobody listens if it took too long.
        let _ = done.send(played);
    });
    drop(running.expect("a thread"));
    let played = match ended.recv_timeout(ENDS_WITHIN) {
        Ok(played) => played,
        Err(RecvTimeoutError::Disconnected) => Err("the run panicked".to_owned()),
        Err(RecvTimeoutError::Timeout) => Err("it runs in a circle".to_owned()),
    };
    let journal = JOURNALS.lock().remove(&name).map(|chaos| chaos.journal());
    let played = match PANICS.lock().remove(&name) {
        Some(panics) => Err(format!("something panicked: {}", panics.join("; "))),
        None => played,
    };
    let journal = journal.unwrap_or_default();
    played.map_err(|violation| format!("{journal}\n{}: {violation}", name.replace('-', " ")))
}

async fn act(world: &mut World) -> Result<Report, Violation> {
    let mut oracle = Oracle::default();
    for number in 0..world.swarm.steps {
        let step = world.step(number).await;
        let depth = if number % 8 == 7 {
            Depth::All
        } else {
            Depth::New
        };
        oracle
            .check(world, depth)
            .await
            .map_err(|violation| format!("after step {number} ({step}): {violation}"))?;
    }
    become_quiet(world, &mut oracle).await?;
    let rows = oracle.read_all(world).await?;
    let done = world.chaos.done();
    Ok(Report { rows, done })
}

/// Nothing goes wrong any more: all that is owed must reach the lake, and nothing else happen.
pub(crate) async fn become_quiet(world: &mut World, oracle: &mut Oracle) -> Result<(), Violation> {
    world.chaos.heal();
    world.chaos.note("from here on nothing goes wrong");
    world.bury();
    world.heal().await?;
    let begin = tokio::time::Instant::now();
    loop {
        world.pass(LOOK_EVERY).await;
        oracle
            .check(world, Depth::New)
            .await
            .map_err(|violation| format!("after healing: {violation}"))?;
        let lacking = oracle.lacking(world).await?;
        if lacking.is_empty() && world.is_silent() {
            break;
        }
        if begin.elapsed() > QUIET_WITHIN {
            return Err(format!(
                "no quiet after {QUIET_WITHIN:?}: {lacking:?}; {}",
                world.statuses()
            ));
        }
    }
    oracle
        .check(world, Depth::All)
        .await
        .map_err(|violation| format!("in the end: {violation}"))
}
