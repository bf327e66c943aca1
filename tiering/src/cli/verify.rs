//! `weir verify`: the audit of a lake table, for people and scripts.

use std::sync::Arc;

use weir_protocol::client;

use super::exit::{Failure, Outcome, sentence};
use super::output::{count, print, print_json};
use super::{Cluster, Verify};
use crate::cluster::wire::WireCluster;
use crate::cluster::{TieringClient, is_damage};
use crate::config::{DaemonConfig, SaslConfig};
use crate::error::Error;
use crate::lake_table::Warehouse;
use crate::verify::{Ends, Report, audit};

/// Buckets whose ends are printed.
const ENDS_SHOWN: usize = 4;

/// Audits the table and prints what was found.
///
/// # Errors
/// 1 if something is wrong with the table, or `--complete` is asked for and rows of the log are not
/// in the lake; 75 if lake or cluster can't be reached now.
pub async fn run(arguments: Verify) -> Outcome {
    let client: Arc<dyn TieringClient> = Arc::new(WireCluster::new(&cluster(&arguments.cluster)));
    let url = &arguments.warehouse.warehouse;
    let warehouse = Warehouse::open_existing(url).map_err(|error| failure(&error))?;
    let report = audit(&client, &warehouse, &arguments.table)
        .await
        .map_err(|error| failure(&error))?;
    if arguments.json {
        print_json(&report)?;
    } else {
        show(&report)?;
    }
    let table = &arguments.table;
    match report.findings.len() {
        0 if arguments.complete && report.behind_rows > 0 => Err(Failure::failed(format!(
            "{table}: {} rows of the log are not in the lake yet",
            count(report.behind_rows)
        ))),
        0 => Ok(()),
        found => Err(Failure::failed(format!("{table}: {found} findings"))),
    }
}

/// Prints a report: one line a finding, what is in the lake and what is not, and, without finding,
/// `verify: ok` with the offsets it holds for.
///
/// # Errors
/// If standard output can't be written.
pub fn show(report: &Report) -> Outcome {
    let table = &report.table;
    for finding in &report.findings {
        print(&format!("{table}: {finding}\n"))?;
    }
    match report.snapshot {
        None => print(&format!("{table}: nothing was tiered yet\n"))?,
        Some(snapshot) => print(&format!(
            "{table}: {} rows in lake, in {} buckets by {} snapshots up to {snapshot}; \
             {} rows compared with the log\n",
            count(report.rows),
            report.buckets,
            report.snapshots,
            count(report.compared_rows),
        ))?,
    }
    for gone in &report.gone {
        print(&format!("{table}: {gone}\n"))?;
    }
    print(&format!(
        "{table}: {} rows of the log not yet tiered\n",
        count(report.behind_rows)
    ))?;
    if report.findings.is_empty() && report.snapshot.is_some() {
        print(&format!("verify: ok{}\n", up_to(&report.ends)))
    } else {
        Ok(())
    }
}

/// Up to which offsets the lake was found good; of many buckets only the first few.
fn up_to(ends: &[Ends]) -> String {
    match ends {
        [] => String::new(),
        [only] => format!(" up to offset {} of {}", only.lake_end, only.bucket),
        _ => {
            let shown = ends.iter().take(ENDS_SHOWN);
            let mut texts: Vec<String> = shown
                .map(|one| format!("{} of {}", one.lake_end, one.bucket))
                .collect();
            if ends.len() > ENDS_SHOWN {
                let more = ends.len() - ENDS_SHOWN;
                texts.push(format!("and those of {more} more buckets (--json has all)"));
            }
            format!(" up to offsets {}", texts.join(", "))
        }
    }
}

/// Settings of the calls to a cluster.
pub fn cluster(arguments: &Cluster) -> DaemonConfig {
    let sasl = arguments.user.clone().zip(arguments.password.clone());
    DaemonConfig {
        bootstrap: arguments.addresses(),
        sasl: sasl.map(|(user, password)| SaslConfig { user, password }),
        ..DaemonConfig::default()
    }
}

fn failure(error: &Error) -> Failure {
    if may_pass(error) {
        Failure::try_again(sentence(error))
    } else {
        Failure::error(error)
    }
}

/// Whether the same audit may work later, without anyone mending anything.
fn may_pass(error: &Error) -> bool {
    match error {
        Error::Cluster {
            code: Some(code), ..
        } => code.is_retriable() && !is_damage(*code),
        Error::Cluster { source, .. } => source
            .downcast_ref::<client::Error>()
            .is_none_or(client::Error::is_retriable),
        error => error.is_retriable(),
    }
}
