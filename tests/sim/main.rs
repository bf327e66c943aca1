//! A whole Weir in a world of chance: real server, daemons and clients, over a simulated disk,
//! metadata store, object store, network and clock; an oracle looks after every step.
//!
//! A seed decides what each run does and what goes wrong. `WEIR_SIM_SEED=N` runs one seed,
//! `WEIR_SIM_SEEDS=N` that many from 1 on. See README.md.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::cast_possible_wrap,
    clippy::cast_possible_truncation,
    reason = "a test that can't go on fails"
)]

mod chaos;
mod disk;
mod log_view;
mod metadata;
mod model;
mod network;
mod objects;
mod oracle;
mod process;
mod producer;
mod run;
mod steps;
mod swarm;
mod sweeps;
mod world;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// Seeds of a standard run.
const SEEDS: u64 = 500;

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().expect("the variable holds a number"))
}

/// Standard error, past the test harness: figures are shown by tests that pass, too.
pub(crate) fn say(line: &str) {
    writeln!(std::io::stderr(), "{line}").expect("standard error can be written");
}

#[test]
fn whatever_goes_wrong_each_acknowledged_row_is_in_the_lake_once() {
    run::watch_panics();
    if let Some(seed) = number("WEIR_SIM_SEED") {
        let report = run::run(seed).unwrap_or_else(|failure| panic!("{failure}"));
        say(&format!(
            "seed {seed}: {} rows; {:?}",
            report.rows, report.done
        ));
        return;
    }
    let seeds = number("WEIR_SIM_SEEDS").unwrap_or(SEEDS);
    let begin = std::time::Instant::now();
    let next = AtomicU64::new(1);
    let rows = AtomicU64::new(0);
    let done: Mutex<BTreeMap<String, u64>> = Mutex::default();
    let failures = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while failures.lock().is_empty() {
                    let seed = next.fetch_add(1, Ordering::SeqCst);
                    if seed > seeds {
                        return;
                    }
                    match run::run(seed) {
                        Ok(report) => {
                            rows.fetch_add(report.rows, Ordering::SeqCst);
                            let mut done = done.lock();
                            for (what, count) in report.done {
                                *done.entry(what).or_default() += count;
                            }
                        }
                        Err(failure) => failures.lock().push(failure),
                    }
                }
            });
        }
    });
    let done: Vec<String> = done
        .into_inner()
        .into_iter()
        .map(|(what, count)| format!("{count} {what}"))
        .collect();
    say(&format!(
        "simulation: {} rows in the lake after {:.0?}: {}",
        rows.into_inner(),
        begin.elapsed(),
        done.join(", ")
    ));
    let failures = failures.into_inner();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}
