//! What the whole path costs on this machine, beside the limits of the machine: `make bench`. Prints
//! one JSON object, with a member for each case; `WEIR_BENCH_CASES=freshness,idle` runs some of them.

mod freshness;
mod idle;
mod ingest;
mod open_buckets;
mod roofline;
mod throughput;

use std::path::PathBuf;

use serde_json::{Map, Value};
use weir_tests::Result;
use weir_tests::process::{self, Process};

/// Where a case finds the binary, and where it keeps its files.
struct Settings {
    weir: PathBuf,
    folder: PathBuf,
    /// Rows of the cases that load a table.
    rows: u64,
}

impl Settings {
    /// A server alone, or with its daemon (`up`), on free ports; with more arguments.
    fn start(&self, command: &str, more: &[&str]) -> Result<Process> {
        let (data, lake) = (self.folder.join("data"), self.folder.join("lake"));
        let (data, lake) = (data.to_string_lossy(), lake.to_string_lossy());
        let mut arguments = vec![command, "--data-dir", &*data, "--warehouse", &*lake];
        arguments.extend(["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]);
        if command == "up" {
            arguments.extend(["--grpc", "127.0.0.1:0"]);
        }
        arguments.extend(more);
        let log = self.folder.join(format!("{command}.log"));
        Process::start(&self.weir, &arguments, &log)
    }

    /// A daemon alone over the lake of [`Self::start`], with more arguments.
    fn start_daemon(&self, bootstrap: &str, more: &[&str]) -> Result<Process> {
        let lake = self.folder.join("lake");
        let lake = lake.to_string_lossy();
        let mut arguments = vec!["tier", "--bootstrap", bootstrap, "--warehouse", &*lake];
        arguments.extend(["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]);
        arguments.extend(more);
        Process::start(&self.weir, &arguments, &self.folder.join("tier.log"))
    }
}

type Case = fn(&Settings) -> Result<Value>;

const CASES: [(&str, Case); 5] = [
    ("throughput", throughput::measure),
    ("ingest", ingest::measure),
    ("freshness", freshness::measure),
    ("idle", idle::measure),
    ("open_buckets", open_buckets::measure),
];

/// The value at a share of the way through the sorted ones, 0 to 1.
fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "an index into a slice"
    )]
    let index = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(index.saturating_sub(1)).copied()
}

fn settings() -> Result<Settings> {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    let rows = std::env::var("WEIR_BENCH_ROWS")
        .unwrap_or_else(|_| "1000000".to_owned())
        .parse()?;
    let weir = std::env::var_os("WEIR_BENCH_BINARY")
        .map_or_else(|| target.join("release/weir"), PathBuf::from);
    if !weir.is_file() {
        return Err(format!("{}: build it first: make bench does", weir.display()).into());
    }
    Ok(Settings {
        weir,
        folder: target.join("bench-data"),
        rows,
    })
}

#[allow(
    clippy::print_stdout,
    reason = "the JSON object is what this program is for"
)]
fn main() -> Result<()> {
    let settings = settings()?;
    let wanted = std::env::var("WEIR_BENCH_CASES").unwrap_or_default();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.split(',').any(|want| want == name);
    let mut report = Map::new();
    report.insert(
        "cores".to_owned(),
        std::thread::available_parallelism()?.get().into(),
    );
    for (name, measure) in CASES.into_iter().filter(|(name, _)| is_wanted(name)) {
        if settings.folder.exists() {
            std::fs::remove_dir_all(&settings.folder)?;
        }
        std::fs::create_dir_all(&settings.folder)?;
        eprintln!("{name}…");
        let load = process::load_average();
        let mut case = measure(&settings).map_err(|error| format!("{name}: {error}"))?;
        if let Some(members) = case.as_object_mut() {
            members.insert("load_average_at_start".to_owned(), load.into());
        }
        report.insert(name.to_owned(), case);
    }
    std::fs::remove_dir_all(&settings.folder)?;
    println!("{}", serde_json::to_string_pretty(&report)?);
    Ok(())
}
