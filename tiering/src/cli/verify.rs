//! `weir verify`: the audit of a lake table, for people and scripts.

use std::sync::Arc;

use super::exit::{Failure, Outcome, sentence};
use super::output::{count, print, print_json};
use super::{Cluster, Verify};
use crate::cluster::TieringClient;
use crate::cluster::wire::WireCluster;
use crate::config::{DaemonConfig, SaslConfig};
use crate::error::Error;
use crate::lake_table::Warehouse;
use crate::verify::{Report, audit};

/// Audits the table and prints what was found.
///
/// # Errors
/// 1 if something is wrong with the table, 75 if lake or cluster can't be read now.
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
    match report.findings.len() {
        0 => Ok(()),
        found => Err(Failure::failed(format!(
            "{}: {found} findings",
            arguments.table
        ))),
    }
}

/// Prints a report: `verify: ok`, or one line a finding.
///
/// # Errors
/// If standard output can't be written.
pub fn show(report: &Report) -> Outcome {
    for finding in &report.findings {
        print(&format!("{}: {finding}\n", report.table))?;
    }
    let Some(snapshot) = report.snapshot else {
        return print(&format!("{}: nothing was tiered yet\n", report.table));
    };
    print(&format!(
        "{}: {} rows in {} buckets by {} snapshots up to {snapshot}; {} rows compared with the log\n",
        report.table,
        count(report.rows),
        report.buckets,
        report.snapshots,
        count(report.compared_rows),
    ))?;
    if report.findings.is_empty() {
        print("verify: ok\n")
    } else {
        Ok(())
    }
}

/// Settings of the calls to a cluster.
pub fn cluster(arguments: &Cluster) -> DaemonConfig {
    let sasl = arguments.user.clone().zip(arguments.password.clone());
    DaemonConfig {
        bootstrap: arguments.bootstrap.clone(),
        sasl: sasl.map(|(user, password)| SaslConfig { user, password }),
        ..DaemonConfig::default()
    }
}

fn failure(error: &Error) -> Failure {
    if error.is_retriable() {
        Failure::try_again(sentence(error))
    } else {
        Failure::error(error)
    }
}
