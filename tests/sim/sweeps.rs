//! The n-th call goes wrong, for every n: one operation in an otherwise calm world, once for each call
//! that it takes and each way in which that call can end.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use weir_protocol::descriptor::TableDescriptor;
use weir_protocol::ids::TablePath;
use weir_protocol::partition::PartitionSpec;

use crate::model::Table;
use crate::oracle::{Depth, Oracle, Violation};
use crate::process::{Fate, Process};
use crate::producer::{Producer, schema};
use crate::run::{become_quiet, in_its_own_time, keep_journal};
use crate::world::World;

/// What is done while a call goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Round,
    Append,
    CreateTable,
    DropTable,
    CreatePartition,
    DropPartition,
}

/// Whose call goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    Server,
    Daemon,
}

/// Longer than leases and the waits between attempts.
const AFTERWARDS: Duration = Duration::from_secs(40);
/// How long everything may take to become quiet before the operation.
const LOOKS: u32 = 120;

const KILLS: [Fate; 2] = [Fate::DieBefore, Fate::DieAfter];
const LOSSES: [Fate; 2] = [Fate::Refuse, Fate::Lose];
const FREEZES: [Fate; 2] = [Fate::FreezeBefore, Fate::FreezeAfter];

/// Sweeps all calls of an operation.
fn sweep(operation: Operation, whose: Whose, fates: &[Fate]) {
    crate::run::watch_panics();
    let name = format!("sweep-{operation:?}-of-{whose:?}");
    let counted = in_its_own_time(format!("{name}-0"), move || play(operation, whose, None));
    let calls = counted.unwrap_or_else(|failure| panic!("{failure}"));
    assert!(calls > 0, "{name}: it makes no call");
    let all: Vec<(u64, Fate)> = (0..calls)
        .flat_map(|call| fates.iter().map(move |fate| (call, *fate)))
        .collect();
    let next = AtomicU64::new(0);
    let failures = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let turn = next.fetch_add(1, Ordering::SeqCst) as usize;
                    let Some((call, fate)) = all.get(turn).copied() else {
                        return;
                    };
                    let name = format!("{name}-call-{call}-{fate:?}");
                    let play = move || play(operation, whose, Some((call, fate)));
                    if let Err(failure) = in_its_own_time(name, play) {
                        failures.lock().push(failure);
                        return;
                    }
                }
            });
        }
    });
    let failures = failures.into_inner();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    crate::say(&format!("{name}: {calls} calls, {} runs", all.len()));
}

/// Plays one run; answers how many calls the operation took.
async fn play(
    operation: Operation,
    whose: Whose,
    fault: Option<(u64, Fate)>,
) -> Result<u64, Violation> {
    let mut world = World::calm();
    keep_journal(&world);
    let mut oracle = Oracle::default();
    world.start_server().await;
    world.start_daemon(0);
    let path = world.make_table("plain", false).await;
    let parted = world.make_table("parted", true).await;
    for path in [&path, &parted] {
        world.write(path, 10);
    }
    world.settle(&mut oracle).await?;
    let victim = match whose {
        Whose::Server => world.server.as_ref().map(|server| server.process.clone()),
        Whose::Daemon => world.daemons[0]
            .as_ref()
            .map(|daemon| daemon.process.clone()),
    };
    let victim = victim.ok_or("it has ended before its time")?;
    let before = victim.calls();
    if let Some((call, fate)) = fault {
        victim.plan(call, fate);
    }
    world.operate(operation, &path, &parted).await;
    world.pass(Duration::from_secs(8)).await;
    let calls = victim.calls() - before;
    if fault.is_some() {
        // Whoever takes over from one that is frozen.
        world.daemons.push(None);
        if world.server.is_none() {
            world.start_server().await;
        }
        world.start_daemon(1);
        world.pass(AFTERWARDS).await;
        victim.forget_plan();
        victim.thaw();
        oracle.check(&world, Depth::New).await?;
        if world.server.is_none() {
            world.start_server().await;
        }
        // Whoever was told nothing certain asks again.
        world.operate(operation, &path, &parted).await;
    }
    become_quiet(&mut world, &mut oracle).await?;
    oracle.read_all(&world).await?;
    Ok(calls)
}

impl World {
    async fn make_table(&mut self, name: &str, is_partitioned: bool) -> TablePath {
        let path = TablePath::new("fluss", name);
        if let Some(server) = &self.server {
            // It may be there from an attempt whose answer was lost.
            let client = server.observer.clone();
            let table = described(is_partitioned);
            let created = self.ask(client.create_table(&path, &table, true));
            let _unknown = created.await;
        }
        self.know(&path, is_partitioned).await;
        path
    }

    /// Takes a table into the model, if it is there.
    async fn know(&mut self, path: &TablePath, is_partitioned: bool) {
        let Some(id) = self.id_of(path).await else {
            return;
        };
        if self.model.tables().iter().any(|table| table.path == *path) {
            return;
        }
        self.model.add(Table {
            path: path.clone(),
            id,
            is_partitioned,
            is_bucketed: true,
            is_dropped: false,
            sent: Default::default(),
            acknowledged: Default::default(),
            given_up: Default::default(),
            unsure: Default::default(),
            counts: Default::default(),
        });
    }

    /// Waits for an answer, as long as the server lives.
    async fn ask<T>(&self, asked: impl Future<Output = T>) -> Option<T> {
        let server = self.server.as_ref()?;
        tokio::select! {
            answer = asked => Some(answer),
            () = server.process.dead() => None,
        }
    }

    /// Rows of a new writer.
    fn write(&mut self, path: &TablePath, rows: usize) {
        self.made += 1;
        let process = Process::new(format!("producer-{}", self.made), &self.chaos);
        let world = (&self.network, process, &self.model);
        let mut producer = Producer::start(self.made, path.clone(), world);
        producer.send(&vec!["a".to_owned(); rows]);
        self.producers.push(producer);
    }

    /// Waits until everything is in the lake.
    async fn settle(&mut self, oracle: &mut Oracle) -> Result<(), Violation> {
        for _ in 0..LOOKS {
            self.pass(Duration::from_secs(1)).await;
            oracle.check(self, Depth::New).await?;
            let lacking = oracle.lacking(self).await?;
            let is_told = |table: &Table| table.sent.len() == table.acknowledged.len();
            if lacking.is_empty() && self.model.tables().iter().all(is_told) {
                return Ok(());
            }
        }
        Err("it does not become quiet before anything goes wrong".to_owned())
    }

    async fn operate(&mut self, operation: Operation, path: &TablePath, parted: &TablePath) {
        let Some(client) = self.server.as_ref().map(|server| server.observer.clone()) else {
            return;
        };
        let spec = |part: &str| PartitionSpec(vec![("part".to_owned(), part.to_owned())]);
        match operation {
            Operation::Round | Operation::Append => {
                self.write(path, 7);
                self.write(parted, 7);
            }
            Operation::CreateTable => {
                let made = self.make_table("made", false).await;
                if self.model.paths().contains(&made) {
                    self.write(&made, 5);
                }
            }
            Operation::DropTable => {
                self.model.change(path, |table| table.is_dropped = true);
                let _unknown = self.ask(client.drop_table(path, true)).await;
            }
            Operation::CreatePartition => {
                let spec = spec("b");
                let _unknown = self.ask(client.create_partition(parted, &spec, true)).await;
            }
            Operation::DropPartition => {
                self.model.change(parted, |table| {
                    table.give_up("a");
                    table.unsure.insert("a".to_owned());
                });
                let spec = spec("a");
                let _unknown = self.ask(client.drop_partition(parted, &spec, true)).await;
            }
        }
    }
}

fn described(is_partitioned: bool) -> TableDescriptor {
    let mut table = TableDescriptor::new(schema());
    let properties = [
        ("table.datalake.enabled", "true"),
        ("table.datalake.freshness", "2s"),
    ];
    for (key, value) in properties {
        table.properties.insert(key.to_owned(), value.to_owned());
    }
    table.bucket_count = Some(2);
    table.bucket_keys = vec!["n".to_owned()];
    if is_partitioned {
        table.partition_keys = vec!["part".to_owned()];
    }
    table
}

#[test]
fn fc_045_a_daemon_that_dies_at_any_call_leaves_each_row_in_the_lake_once() {
    sweep(Operation::Round, Whose::Daemon, &KILLS);
}

#[test]
fn fc_042_a_lost_request_or_answer_at_any_call_of_a_round_deletes_and_doubles_nothing() {
    sweep(Operation::Round, Whose::Daemon, &LOSSES);
}

#[test]
fn fc_046_a_daemon_frozen_at_any_call_past_its_lease_commits_nothing_when_it_goes_on() {
    sweep(Operation::Round, Whose::Daemon, &FREEZES);
}

#[test]
fn a_server_that_dies_at_any_call_of_appends_and_rounds_loses_nothing() {
    sweep(Operation::Append, Whose::Server, &KILLS);
}

#[test]
fn a_server_whose_store_or_disk_fails_at_any_call_of_appends_and_rounds_loses_nothing() {
    sweep(Operation::Append, Whose::Server, &LOSSES);
}

#[test]
fn a_table_is_created_whatever_call_goes_wrong() {
    let fates = [KILLS, LOSSES].concat();
    sweep(Operation::CreateTable, Whose::Server, &fates);
}

#[test]
fn a_table_is_dropped_whatever_call_goes_wrong() {
    let fates = [KILLS, LOSSES].concat();
    sweep(Operation::DropTable, Whose::Server, &fates);
}

#[test]
fn a_partition_is_created_whatever_call_goes_wrong() {
    let fates = [KILLS, LOSSES].concat();
    sweep(Operation::CreatePartition, Whose::Server, &fates);
}

#[test]
fn a_partition_is_dropped_whatever_call_goes_wrong() {
    let fates = [KILLS, LOSSES].concat();
    sweep(Operation::DropPartition, Whose::Server, &fates);
}
