//! `weir replay`: bad records go back into the lake table.

use std::sync::Arc;

use clap::Args;
use weir_catalog::clock::{Clock, SystemClock};
use weir_protocol::ids::TablePath;

use super::exit::{Failure, Outcome};
use super::output::{count, print, print_json};
use super::verify::{cluster, failure};
use super::{Cluster, Warehouse as WarehouseArgument};
use crate::bad_records::replay::{Outcome as EarlierOutcome, Replayed, StillBad, replay};
use crate::cluster::TieringClient;
use crate::cluster::wire::WireCluster;
use crate::lake_table::Warehouse;

/// Records that are printed one by one.
const SHOWN: usize = 20;

/// `weir replay`.
#[derive(Args, Clone, Debug)]
pub struct Replay {
    /// The table, `DATABASE.TABLE`.
    pub table: TablePath,
    /// The cluster.
    #[command(flatten)]
    pub cluster: Cluster,
    /// The lake.
    #[command(flatten)]
    pub warehouse: WarehouseArgument,
    /// What you found in the lake of a replay that broke off, where snapshots that could tell have
    /// expired: its rows are there (their records go), or they are not (they are put back).
    #[arg(long, value_enum, value_name = "WHAT")]
    pub assume: Option<EarlierOutcome>,
    /// Prints JSON.
    #[arg(long)]
    pub json: bool,
}

/// Puts the bad records of a table back and says what became of them.
///
/// # Errors
/// 1 if records are left that still don't fit, or if it can't be told what became of an earlier
/// replay; 75 if lake or cluster can't be reached now.
pub async fn run(arguments: Replay) -> Outcome {
    let client: Arc<dyn TieringClient> = Arc::new(WireCluster::new(&cluster(&arguments.cluster)));
    let url = &arguments.warehouse.warehouse;
    let warehouse = Warehouse::open_existing(url).map_err(|error| failure(&error))?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let (table, assumed) = (&arguments.table, arguments.assume);
    let replayed = replay(&client, &warehouse, table, &clock, assumed);
    let replayed = replayed.await.map_err(|error| failure(&error))?;
    if arguments.json {
        print_json(&replayed)?;
    } else {
        show(&arguments, &replayed)?;
    }
    match replayed.still_bad.len() {
        0 => Ok(()),
        left => Err(Failure::failed(format!(
            "{}: {left} bad records still don't fit the lake table",
            arguments.table
        ))),
    }
}

fn show(arguments: &Replay, replayed: &Replayed) -> Outcome {
    let table = &arguments.table;
    let many = |number: usize| count(i64::try_from(number).unwrap_or(i64::MAX));
    for bad in replayed.still_bad.iter().take(SHOWN) {
        print(&format!("{table}: {}\n", line(bad)))?;
    }
    if replayed.still_bad.len() > SHOWN {
        let more = many(replayed.still_bad.len() - SHOWN);
        print(&format!("{table}: and {more} more (--json has all)\n"))?;
    }
    if replayed.pending > 0 {
        let pending = many(replayed.pending);
        print(&format!(
            "{table}: {pending} records of a round that is not committed yet\n"
        ))?;
    }
    print(&format!("{table}: {} rows put back\n", many(replayed.rows)))
}

fn line(bad: &StillBad) -> String {
    let bucket = match &bad.partition {
        Some(partition) => format!("partition {partition} bucket {}", bad.bucket),
        None => format!("bucket {}", bad.bucket),
    };
    let StillBad {
        offset,
        column,
        reason,
        ..
    } = bad;
    format!("{bucket}: offset {offset}, column {column}: {reason}")
}
