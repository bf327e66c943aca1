//! `kill -9` of `weir up` under writers: no acknowledged row is lost, none is twice in the lake, and no
//! lookup of a key is wrong.
//!
//! A seed chooses when each round kills and what the writers do; it is printed. `WEIR_SEED` repeats
//! the choices of a run, `WEIR_KILL_ROUNDS` asks for other than 20 rounds.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test that can't go on fails"
)]

mod audit;
mod keyed;
mod site;
mod workload;

use std::io::Write as _;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use weir_protocol::ids::TablePath;
use weir_tests::Result;

use keyed::KeyedWorkload;
use site::{Kill, LakeFile, Site};
use workload::Workload;

/// The rounds of a standard run.
const ROUNDS: u64 = 20;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable)
        .ok()
        .map(|text| text.parse().expect("the variable holds a number"))
}

fn seed() -> u64 {
    number("WEIR_SEED").unwrap_or_else(|| rand::random::<u64>() >> 32)
}

/// Standard error, past the test harness: figures are shown by tests that pass, too.
fn say(line: &str) {
    writeln!(std::io::stderr(), "{line}").expect("standard error can be written");
}

/// A round whose kill waits for acknowledgements, or for a file of a commit in the making.
fn any_kill(rng: &mut StdRng) -> Kill {
    match rng.random_range(0..4) {
        0 => commit_kill(rng),
        _ => Kill::AfterAcks {
            acks: rng.random_range(1..200),
            then: Duration::from_micros(rng.random_range(0..60_000)),
        },
    }
}

/// A kill in the middle of a commit of either table.
fn commit_kill(rng: &mut StdRng) -> Kill {
    let file = [LakeFile::Data, LakeFile::Manifest, LakeFile::Snapshot][rng.random_range(0..3)];
    Kill::OnLakeFile {
        file,
        then: Duration::from_micros(rng.random_range(0..8_000)),
    }
}

fn acknowledged(workloads: &[Workload]) -> u64 {
    workloads.iter().map(Workload::acknowledged_appends).sum()
}

/// The tables of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tables {
    Log,
    Keyed,
}

/// Runs [`survive`] or [`survive_keyed`]; a failure is told with the seed, and what is on disk is kept.
async fn assert_survives(name: &str, seed: u64, tables: Tables, kills: Vec<Kill>) {
    say(&format!("{name}: seed {seed}"));
    let mut site = Site::new(name, seed).unwrap();
    let survived = match tables {
        Tables::Log => survive(name, seed, &kills, &mut site).await,
        Tables::Keyed => survive_keyed(name, seed, &kills, &mut site).await,
    };
    if let Err(error) = survived {
        let kept = site.keep();
        panic!(
            "WEIR_SEED={seed}: {error}\nall is kept in {}",
            kept.display()
        );
    }
}

/// Kills and restarts under two writers, then waits for the lake and looks at every row.
async fn survive(name: &str, seed: u64, kills: &[Kill], site: &mut Site) -> Result<()> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut ready = vec![site.start(&mut rng)?];
    let partitioned = TablePath::new("crash", "parted");
    let plain = TablePath::new("crash", "plain");
    let client = site.connect().await?;
    workload::create_tables(&client, &partitioned, &plain).await?;
    let mut workloads = Vec::new();
    for path in [&partitioned, &plain] {
        workloads.push(Workload::start(client.clone(), path.clone(), rng.random()).await?);
    }
    for kill in kills {
        site.wait_for(kill, &|| acknowledged(&workloads)).await?;
        site.kill()?;
        let acks = acknowledged(&workloads);
        let time = site.start(&mut rng)?;
        say(&format!(
            "{name}: {kill}: {acks} appends acknowledged so far, READY after {time:.2?}"
        ));
        ready.push(time);
        for workload in &mut workloads {
            // Some clients die with the server: what they have not seen acknowledged may be there or not.
            if rng.random_bool(0.3) {
                workload.replace_writer().await?;
            }
        }
    }
    let mut rows = 0;
    for workload in workloads {
        let path = workload.path().clone();
        let claims = workload.end().await?;
        rows += audit::check(site, &client, &path, &claims).await?;
    }
    client.close().await;
    site.stop()?;
    let (first, restarts) = ready.split_first().ok_or("it was never started")?;
    let slowest = restarts.iter().max().copied().unwrap_or_default();
    let mean = restarts.iter().sum::<Duration>() / u32::try_from(restarts.len().max(1))?;
    say(&format!(
        "{name}: ok: {} kills, {rows} rows; READY first {first:.2?}, then {mean:.2?} on average, at most {slowest:.2?}",
        kills.len()
    ));
    Ok(())
}

/// Kills and restarts under a writer of keys; every key is looked up after each start while the writer
/// goes on, and at the end the merged lake is what lookups say.
async fn survive_keyed(name: &str, seed: u64, kills: &[Kill], site: &mut Site) -> Result<()> {
    let mut rng = StdRng::seed_from_u64(seed);
    site.start(&mut rng)?;
    let client = site.connect().await?;
    let path = TablePath::new("crash", "keyed");
    keyed::create_table(&client, &path).await?;
    let mut workload = KeyedWorkload::start(client.clone(), path, rng.random()).await?;
    let (mut looked, mut slowest) = (0, Duration::ZERO);
    for kill in kills {
        site.wait_for(kill, &|| workload.acknowledged_changes())
            .await?;
        site.kill()?;
        let changes = workload.acknowledged_changes();
        site.start(&mut rng)?;
        let (keys, recovered) = workload.look(site).await?;
        say(&format!(
            "{name}: {kill}: {changes} changes acknowledged so far, {keys} keys right, the last bucket \
             {recovered:.2?} after READY"
        ));
        looked += keys;
        slowest = slowest.max(recovered);
        if rng.random_bool(0.3) {
            workload.replace_writer().await?;
        }
    }
    let rows = workload.end(site).await?;
    client.close().await;
    site.stop()?;
    say(&format!(
        "{name}: ok: {} kills, {looked} lookups, {rows} rows; buckets answered at most {slowest:.2?} after READY",
        kills.len()
    ));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_killed_under_writers_loses_no_acknowledged_row_and_doubles_none() {
    let seed = seed();
    let mut rng = StdRng::seed_from_u64(seed);
    let rounds = number("WEIR_KILL_ROUNDS").unwrap_or(ROUNDS);
    let kills = (0..rounds).map(|_| any_kill(&mut rng)).collect();
    assert_survives("kill", seed, Tables::Log, kills).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_killed_under_writers_of_keys_answers_no_lookup_wrong() {
    let seed = seed();
    let mut rng = StdRng::seed_from_u64(seed);
    let rounds = number("WEIR_KILL_ROUNDS").unwrap_or(ROUNDS);
    let kills = (0..rounds).map(|_| any_kill(&mut rng)).collect();
    assert_survives("keys", seed, Tables::Keyed, kills).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_killed_in_each_phase_of_its_commits_repairs_them() {
    let seed = seed();
    let mut rng = StdRng::seed_from_u64(seed);
    let mut kills = Vec::new();
    for file in [LakeFile::Data, LakeFile::Manifest, LakeFile::Snapshot] {
        // At once, and a moment later: between the files, and between the snapshot and its report.
        for then in [0, rng.random_range(500..8_000)] {
            kills.push(Kill::OnLakeFile {
                file,
                then: Duration::from_micros(then),
            });
        }
    }
    assert_survives("commits", seed, Tables::Log, kills).await;
}
