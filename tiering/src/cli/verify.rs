//! `weir verify`: the audit of a lake table, for people and scripts.

use std::sync::Arc;

use weir_protocol::client;
use weir_protocol::error_code::ErrorCode;

use super::connect::words;
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
        0 if arguments.complete => match incomplete(&report) {
            Some(reason) => Err(Failure::failed(format!("{table}: {reason}"))),
            None => Ok(()),
        },
        0 => Ok(()),
        1 => Err(Failure::failed(format!("{table}: 1 finding"))),
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
            "{table}: {} rows of the log are in the lake, in {} buckets by {} snapshots up to {snapshot}; \
             {} rows compared with the log\n",
            count(report.rows),
            report.buckets,
            report.snapshots,
            count(report.compared_rows),
        ))?,
    }
    if let Some(reason) = &report.not_compared {
        print(&format!("{table}: rows are not compared: {reason}\n"))?;
    }
    if let Some(first) = report.expired_before {
        print(&format!(
            "{table}: snapshots before {first} have expired: what they brought is not audited\n"
        ))?;
    }
    if report.diverted_rows > 0 {
        print(&format!(
            "{table}: {} rows went into the table of bad records, {} of them were put back\n",
            count(report.diverted_rows),
            count(report.replayed_rows)
        ))?;
    }
    for lost in &report.let_go {
        print(&format!(
            "{table}: {lost} were lost in the log and let go by a person\n"
        ))?;
    }
    for gone in &report.gone {
        print(&format!("{table}: {gone}\n"))?;
    }
    print(&format!(
        "{table}: {} rows of the log not yet tiered\n",
        count(report.behind_rows)
    ))?;
    for ends in &report.ends {
        if !ends.lost.is_empty() || ends.unreadable.is_some() {
            print(&format!("{table}: not in the lake: {}\n", lacks(ends)))?;
        }
    }
    if report.findings.is_empty() && report.snapshot.is_some() {
        print(&format!("verify: ok{}\n", up_to(&report.ends)))
    } else {
        Ok(())
    }
}

/// What the lake lacks of the log, by bucket; of many buckets only the first few.
fn incomplete(report: &Report) -> Option<String> {
    let lacking = report
        .ends
        .iter()
        .filter(|ends| ends.lake_end < ends.log_end);
    let mut texts: Vec<String> = lacking.map(lacks).collect();
    if texts.is_empty() {
        return None;
    }
    if texts.len() > ENDS_SHOWN {
        let more = texts.len() - ENDS_SHOWN;
        texts.truncate(ENDS_SHOWN);
        texts.push(format!("and {more} more buckets (--json has all)"));
    }
    let rows = count(report.behind_rows);
    Some(format!(
        "{rows} rows of the log are not in the lake yet: {}",
        texts.join("; ")
    ))
}

fn lacks(ends: &Ends) -> String {
    let mut text = format!(
        "{}: offsets {}..{}",
        ends.bucket, ends.lake_end, ends.log_end
    );
    for lost in &ends.lost {
        text += &format!(", of which {}..{} are lost in the log", lost.from, lost.to);
    }
    if let Some(said) = &ends.unreadable {
        text += &format!(", which can't be read: {said}");
    }
    text
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

/// The failure of a call to lake or cluster: to be tried again, if it may pass by itself.
pub(super) fn failure(error: &Error) -> Failure {
    if let Error::Cluster { source, .. } = error
        && let Some(error @ client::Error::Server { code, .. }) = source.downcast_ref()
        && matches!(code, ErrorCode::TableNotExist | ErrorCode::DatabaseNotExist)
    {
        return Failure::failed(words(error));
    }
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
