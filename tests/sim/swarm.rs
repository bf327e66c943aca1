//! What a seed turns on: each run has some kinds of steps and faults, and not the others.

use std::collections::BTreeMap;

use rand::Rng as _;
use rand::rngs::StdRng;
use weir_server::config::FlushPolicy;

use crate::chaos::{Kind, Rates};

/// What a run may do.
#[derive(Clone, Debug)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each turns something on that goes with all others"
)]
pub(crate) struct Swarm {
    pub(crate) steps: usize,
    pub(crate) tables: usize,
    pub(crate) daemons: usize,
    /// The most rows of an append.
    pub(crate) rows: usize,
    pub(crate) flush: FlushPolicy,
    /// A round ends after so many rows.
    pub(crate) round_rows: u64,
    pub(crate) crash_server: bool,
    pub(crate) crash_daemons: bool,
    pub(crate) freeze_daemons: bool,
    pub(crate) crash_producers: bool,
    pub(crate) drop_tables: bool,
    pub(crate) partitions: bool,
    /// Some partitions have another bucket count than their table.
    pub(crate) old_layouts: bool,
    pub(crate) jump_clock: bool,
    pub(crate) cut_network: bool,
    pub(crate) full_disk: bool,
    pub(crate) rates: BTreeMap<Kind, Rates>,
}

impl Swarm {
    pub(crate) fn draw(rng: &mut StdRng) -> Self {
        let mut rates = BTreeMap::new();
        for kind in [
            Kind::Put,
            Kind::Objects,
            Kind::Commit,
            Kind::Metadata,
            Kind::Request,
        ] {
            rates.insert(kind, rates_of(kind, rng));
        }
        let flush = if rng.random_bool(0.3) {
            FlushPolicy::Always
        } else {
            FlushPolicy::Interval(rng.random_range(5..2_000))
        };
        Self {
            steps: rng.random_range(25..60),
            tables: rng.random_range(1..=3),
            daemons: rng.random_range(1..=3),
            rows: if rng.random_bool(0.5) { 12 } else { 150 },
            flush,
            round_rows: if rng.random_bool(0.4) {
                rng.random_range(3..40)
            } else {
                100_000
            },
            crash_server: rng.random_bool(0.6),
            crash_daemons: rng.random_bool(0.5),
            freeze_daemons: rng.random_bool(0.4),
            crash_producers: rng.random_bool(0.4),
            drop_tables: rng.random_bool(0.25),
            partitions: rng.random_bool(0.5),
            old_layouts: rng.random_bool(0.3),
            jump_clock: rng.random_bool(0.2),
            cut_network: rng.random_bool(0.3),
            full_disk: rng.random_bool(0.1),
            rates,
        }
    }

    /// Nothing by chance.
    pub(crate) fn calm() -> Self {
        Self {
            steps: 0,
            tables: 1,
            daemons: 1,
            rows: 12,
            flush: FlushPolicy::Interval(50),
            round_rows: 100_000,
            crash_server: false,
            crash_daemons: false,
            freeze_daemons: false,
            crash_producers: false,
            drop_tables: false,
            partitions: true,
            old_layouts: false,
            jump_clock: false,
            cut_network: false,
            full_disk: false,
            rates: BTreeMap::new(),
        }
    }
}

fn rates_of(kind: Kind, rng: &mut StdRng) -> Rates {
    let mut some = |share: f64, most: u32| {
        if rng.random_bool(share) {
            rng.random_range(1..=most)
        } else {
            0
        }
    };
    let writes = matches!(kind, Kind::Put | Kind::Commit);
    Rates {
        refuse: some(0.3, 60),
        slow: some(0.3, 60),
        late: if writes || kind == Kind::Request {
            some(0.25, 40)
        } else {
            0
        },
        lose: if writes || kind == Kind::Request {
            some(0.4, 80)
        } else {
            0
        },
        meet_itself: if matches!(kind, Kind::Put | Kind::Request) {
            some(0.25, 60)
        } else {
            0
        },
        outage: if kind == Kind::Put { some(0.3, 30) } else { 0 },
    }
}
