//! What happens in the world, one step after the other.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use weir_catalog::model::assignment::Assignment;
use weir_catalog::model::{Document as _, Unknown, partition};
use weir_catalog::store::{Expect, Key, MetadataStore as _, Txn};
use weir_protocol::client::Client;
use weir_protocol::descriptor::TableDescriptor;
use weir_protocol::ids::{PartitionId, ServerId, TablePath, TotalBuckets};
use weir_protocol::partition::PartitionSpec;

use crate::model::Table;
use crate::process::{Fate, Process};
use crate::producer::{Producer, client_config, schema};
use crate::world::World;

/// The database of all tables.
const DATABASE: &str = "fluss";
/// The values of the partition column.
const PARTS: [&str; 3] = ["a", "b", "c"];

#[derive(Clone, Copy, Debug)]
enum Step {
    Append,
    Pass,
    Longer,
    CrashServer,
    StopServer,
    CrashDaemon,
    FreezeDaemon,
    NewProducer,
    CrashProducer,
    CreateTable,
    DropTable,
    CreatePartition,
    DropPartition,
    JumpClock,
    CutNetwork,
    FillDisk,
}

impl World {
    /// Does something, by chance.
    pub(crate) async fn step(&mut self, number: usize) -> String {
        // Chance begins anew in each step: it does not depend on how often the last ones drew.
        self.rng = StdRng::seed_from_u64(self.seed ^ ((number as u64 + 1) << 40));
        self.keep_going().await;
        let step = self.draw();
        self.chaos.note(&format!("step {step:?}"));
        self.chaos.count(&format!("step {step:?}"));
        match step {
            Step::Append => self.append(),
            Step::Pass => {}
            Step::Longer => {
                let time = self.rng.random_range(2_000..25_000);
                self.pass(Duration::from_millis(time)).await;
            }
            Step::CrashServer => self.crash_server(),
            Step::StopServer => self.stop_server().await,
            Step::CrashDaemon => self.end_daemon(Fate::DieBefore, Fate::DieAfter),
            Step::FreezeDaemon => self.end_daemon(Fate::FreezeBefore, Fate::FreezeAfter),
            Step::NewProducer => self.new_producer(),
            Step::CrashProducer => {
                if !self.producers.is_empty() {
                    let which = self.any(self.producers.len());
                    self.producers.remove(which).process.die();
                }
            }
            Step::CreateTable => self.create_table().await,
            Step::DropTable => self.drop_table().await,
            Step::CreatePartition => self.create_partition().await,
            Step::DropPartition => self.drop_partition().await,
            Step::JumpClock => {
                let jump = self.rng.random_range(-20_000..3_600_000);
                self.clock.jump(jump);
            }
            Step::CutNetwork => self.network.cut(),
            Step::FillDisk => {
                let left = self.rng.random_range(0..3_000);
                self.disk.run_full_after(left);
                let time = self.rng.random_range(100..5_000);
                self.pass(Duration::from_millis(time)).await;
                self.disk.make_room();
            }
        }
        let time = self.rng.random_range(0..1_500);
        self.pass(Duration::from_millis(time)).await;
        format!("{step:?}")
    }

    /// Whoever died comes back, sooner or later; whoever is frozen goes on.
    async fn keep_going(&mut self) {
        if self.server.is_none() && self.rng.random_bool(0.6) {
            self.start_server().await;
        }
        for place in 0..self.daemons.len() {
            let chance = self.rng.random_range(0..10);
            match &self.daemons[place] {
                None if chance < 3 => self.start_daemon(place),
                Some(daemon) if chance < 2 => daemon.process.thaw(),
                Some(_) | None => {}
            }
        }
        if self.model.paths().is_empty() && self.server.is_some() {
            self.create_table().await;
        }
        self.producers.retain(|producer| !producer.is_over());
        if self.producers.len() < 2 {
            self.new_producer();
        }
    }

    fn draw(&mut self) -> Step {
        let on = |is_on: bool, weight: usize| if is_on { weight } else { 0 };
        let swarm = &self.swarm;
        let steps = [
            (Step::Append, 30),
            (Step::Pass, 10),
            (Step::Longer, 4),
            (Step::NewProducer, 2),
            (Step::CrashServer, on(swarm.crash_server, 5)),
            (Step::StopServer, on(swarm.crash_server, 1)),
            (Step::CrashDaemon, on(swarm.crash_daemons, 4)),
            (Step::FreezeDaemon, on(swarm.freeze_daemons, 4)),
            (Step::CrashProducer, on(swarm.crash_producers, 2)),
            (
                Step::CreateTable,
                on(self.model.paths().len() < swarm.tables, 4),
            ),
            (Step::DropTable, on(swarm.drop_tables, 1)),
            (Step::CreatePartition, on(swarm.partitions, 2)),
            (Step::DropPartition, on(swarm.partitions, 1)),
            (Step::JumpClock, on(swarm.jump_clock, 1)),
            (Step::CutNetwork, on(swarm.cut_network, 2)),
            (Step::FillDisk, on(swarm.full_disk, 2)),
        ];
        let all: usize = steps.iter().map(|(_, weight)| weight).sum();
        let mut drawn = self.any(all);
        for (step, weight) in steps {
            if drawn < weight {
                return step;
            }
            drawn -= weight;
        }
        Step::Pass
    }

    fn append(&mut self) {
        if self.producers.is_empty() {
            return;
        }
        let which = self.any(self.producers.len());
        let count = self.rng.random_range(1..=self.swarm.rows);
        let parts: Vec<String> = (0..count)
            .map(|_| PARTS[self.any(PARTS.len())].to_owned())
            .collect();
        self.producers[which].send(&parts);
    }

    fn new_producer(&mut self) {
        let paths = self.model.paths();
        if paths.is_empty() || self.producers.len() >= 5 {
            return;
        }
        let path = paths[self.any(paths.len())].clone();
        self.made += 1;
        let process = Process::new(format!("producer-{}", self.made), &self.chaos);
        let world = (&self.network, process, &self.model);
        self.producers.push(Producer::start(self.made, path, world));
    }

    /// At once, or at one of its next calls.
    fn crash_server(&mut self) {
        let Some(server) = &self.server else { return };
        if self.rng.random_bool(0.2) {
            server.process.die();
        } else {
            let fate = if self.rng.random_bool(0.5) {
                Fate::DieBefore
            } else {
                Fate::DieAfter
            };
            server.process.plan(self.rng.random_range(0..40), fate);
        }
    }

    async fn stop_server(&mut self) {
        let Some(server) = self.server.take() else {
            return;
        };
        self.network.close();
        tokio::select! {
            () = server.running.shutdown() => {}
            () = server.process.dead() => {}
        }
        server.process.die();
    }

    fn end_daemon(&mut self, before: Fate, after: Fate) {
        let place = self.any(self.daemons.len());
        let fate = if self.rng.random_bool(0.5) {
            before
        } else {
            after
        };
        let calls = self.rng.random_range(0..120);
        if let Some(daemon) = &self.daemons[place] {
            daemon.process.plan(calls, fate);
        }
    }

    /// A client for one request. What becomes of the request is looked up afterwards.
    async fn administrator(&mut self) -> Option<Client> {
        self.server.as_ref()?;
        let process = Process::new("administrator", &self.chaos);
        let connected = Client::connect(client_config(&self.network, &process)).await;
        connected.ok()
    }

    async fn create_table(&mut self) {
        self.made += 1;
        let path = TablePath::new(DATABASE, format!("t{}", self.made));
        let is_partitioned = self.swarm.partitions && self.rng.random_bool(0.7);
        let is_bucketed = self.rng.random_bool(0.5);
        let mut table = TableDescriptor::new(schema());
        table
            .properties
            .insert("table.datalake.enabled".to_owned(), "true".to_owned());
        table
            .properties
            .insert("table.datalake.freshness".to_owned(), "2s".to_owned());
        table.bucket_count = Some(self.rng.random_range(1..=3));
        if is_bucketed {
            table.bucket_keys = vec!["n".to_owned()];
        }
        if is_partitioned {
            table.partition_keys = vec!["part".to_owned()];
        }
        let Some(client) = self.administrator().await else {
            return;
        };
        let _unknown = client.create_table(&path, &table, true).await;
        client.close().await;
        self.bury();
        let Some(id) = self.id_of(&path).await else {
            return;
        };
        self.model.add(Table {
            path,
            id,
            is_partitioned,
            is_bucketed,
            is_dropped: false,
            sent: Default::default(),
            acknowledged: Default::default(),
            given_up: Default::default(),
            unsure: Default::default(),
            counts: Default::default(),
        });
    }

    /// The table's id, if the server runs and has the table.
    pub(crate) async fn id_of(&self, path: &TablePath) -> Option<weir_protocol::ids::TableId> {
        let server = self.server.as_ref()?;
        let info = tokio::select! {
            info = server.observer.table_info(path) => info,
            () = server.process.dead() => return None,
        };
        info.ok().map(|info| info.table_id)
    }

    fn any_table(&mut self) -> Option<Table> {
        let mut tables = self.model.tables();
        tables.retain(|table| !table.is_dropped);
        if tables.is_empty() {
            return None;
        }
        let which = self.any(tables.len());
        Some(tables.swap_remove(which))
    }

    async fn drop_table(&mut self) {
        let Some(table) = self.any_table() else {
            return;
        };
        let Some(client) = self.administrator().await else {
            return;
        };
        // Whatever becomes of it, nothing is owed any more.
        self.model
            .change(&table.path, |table| table.is_dropped = true);
        let _unknown = client.drop_table(&table.path, true).await;
        client.close().await;
        self.producers.retain(|producer| {
            if producer.path == table.path {
                producer.process.die();
            }
            producer.path != table.path
        });
    }

    fn any_partition(&mut self) -> (String, PartitionSpec) {
        let part = PARTS[self.any(PARTS.len())];
        let spec = PartitionSpec(vec![("part".to_owned(), part.to_owned())]);
        (part.to_owned(), spec)
    }

    async fn create_partition(&mut self) {
        let Some(table) = self.any_table().filter(|table| table.is_partitioned) else {
            return;
        };
        let (part, spec) = self.any_partition();
        if self.swarm.old_layouts && self.rng.random_bool(0.6) {
            self.lay_out(&table, &part, &spec).await;
        }
        let Some(client) = self.administrator().await else {
            return;
        };
        let _unknown = client.create_partition(&table.path, &spec, true).await;
        client.close().await;
    }

    async fn drop_partition(&mut self) {
        let Some(table) = self.any_table().filter(|table| table.is_partitioned) else {
            return;
        };
        let (part, spec) = self.any_partition();
        let Some(client) = self.administrator().await else {
            return;
        };
        self.model.change(&table.path, |table| table.give_up(&part));
        let dropped = client.drop_partition(&table.path, &spec, true).await;
        // Rows that came while it was being dropped; if nobody knows when that is, all that come.
        self.model.change(&table.path, |table| {
            table.give_up(&part);
            if dropped.is_err() {
                table.unsure.insert(part);
            }
        });
        client.close().await;
    }

    /// Stores a partition with another bucket count than its table's, as if an earlier layout of the
    /// table had made it. It is served once somebody asks for it.
    async fn lay_out(&mut self, table: &Table, name: &str, spec: &PartitionSpec) {
        let count = TotalBuckets(self.rng.random_range(1..=5));
        let taken = self.store.take_ids(&Key::partition_ids(), 1).await;
        let id = taken.expect("an id").start;
        let id = PartitionId(i64::try_from(id).expect("a small id"));
        let document = partition::Partition {
            table_id: table.id,
            partition_id: id,
            bucket_count: Some(count),
            remote_data_dir: None,
            unknown: Unknown::new(),
        };
        let assignment = Assignment::spread(Some(table.id), count, 1, &[ServerId(0)], 0);
        let key = Key::partition(&table.path, name).expect("a name");
        let document = document.encode().expect("a document");
        let txn = Txn::new(None)
            .put(key, document, Expect::Absent)
            .put(
                Key::partition_assignment(id),
                assignment.encode().expect("a document"),
                Expect::Absent,
            )
            .check(Key::table(&table.path).expect("a name"), Expect::Present);
        // It may be there already.
        if self.store.commit(txn).await.is_ok() {
            self.chaos.count("partitions of another layout");
            self.laid_out.push((table.path.clone(), spec.clone()));
        }
    }
}
