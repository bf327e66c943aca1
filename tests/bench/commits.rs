//! What a commit costs, and that it does not cost more the longer the history is: part of
//! `make bench`. Prints one JSON object.
//!
//! One table on the local disk, everything synced, commits of 16 files each; the first and the last
//! of a thousand are compared, in wall time and in CPU time of this process. Then one commit of
//! 10,000 files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use weir_lake_format::commit::{CommitOutcome, CommitRequest, RetryPolicy, TableCommitter};
use weir_lake_format::{
    BATCH_COMMIT_IDENTIFIER, CommitKind, CommitMessage, DataField, DataFileMeta, DurableLocal,
    NewTable, Partition, SimpleStats, Table, TableSchema,
};
use weir_tests::Result;

/// Commits that are compared, from the tenth on and up to the thousandth.
const WINDOW: usize = 30;
const EARLY: usize = 10;
const COMMITS: usize = 1_000;

/// Files of one commit.
const FILES: usize = 16;
const MANY_FILES: usize = 10_000;

/// Wall and CPU time of one commit, in milliseconds.
#[derive(Clone, Copy)]
struct Cost {
    wall_ms: f64,
    cpu_ms: f64,
}

async fn table(folder: &Path, name: &str) -> Result<Table> {
    let schema = TableSchema::create(
        NewTable {
            fields: vec![DataField::new(-1, "id", "BIGINT".parse()?)],
            options: BTreeMap::from([
                ("bucket".to_owned(), FILES.to_string()),
                ("bucket-key".to_owned(), "id".to_owned()),
            ]),
            ..NewTable::default()
        },
        0,
    )?;
    let store = Arc::new(DurableLocal::open(folder)?);
    let root = object_store::path::Path::from(name);
    Ok(Table::create(store, root, &schema).await?)
}

/// A file with statistics of the size that a table of 16 columns has.
fn file(number: usize) -> DataFileMeta {
    let bounds = |seed: usize| {
        (0..300)
            .map(|i| (i * 31 + seed * 7).to_le_bytes()[0])
            .collect()
    };
    DataFileMeta {
        value_stats: SimpleStats {
            min: bounds(number),
            max: bounds(number + 1),
            null_counts: vec![Some(0); 16],
        },
        value_stats_cols: None,
        ..DataFileMeta::append(format!("data-{number:036}-0.parquet"), 1 << 20, 1_000, 0)
    }
}

fn request(number: usize, files: usize) -> CommitRequest {
    let message = |place: usize| CommitMessage {
        partition: Partition::unpartitioned(),
        bucket: i32::try_from(place % FILES).unwrap_or(0),
        total_buckets: i32::try_from(FILES).unwrap_or(1),
        new_files: vec![file(number * MANY_FILES + place)],
        changelog_files: Vec::new(),
    };
    CommitRequest {
        commit_user: "bench".to_owned(),
        commit_identifier: BATCH_COMMIT_IDENTIFIER,
        kind: CommitKind::Append,
        messages: (0..files).map(message).collect(),
        deletes: Vec::new(),
        properties: BTreeMap::from([("weir-round".to_owned(), number.to_string())]),
        allow_empty: false,
        uuid: format!("bench-{number}"),
        now_ms: i64::try_from(number).unwrap_or(0),
    }
}

async fn measure(committer: &mut TableCommitter, request: &CommitRequest) -> Result<Cost> {
    let (cpu, started) = (cpu_ms()?, Instant::now());
    let outcome = committer
        .commit(request, &mut |_| Ok(()), RetryPolicy::default())
        .await?;
    let wall_ms = started.elapsed().as_secs_f64() * 1e3;
    match outcome {
        CommitOutcome::Committed(_) => Ok(Cost {
            wall_ms,
            cpu_ms: cpu_ms()? - cpu,
        }),
        other => Err(format!("not committed: {other:?}").into()),
    }
}

/// CPU time of all threads of this process.
fn cpu_ms() -> Result<f64> {
    let mut nanos = 0;
    for thread in std::fs::read_dir("/proc/self/task")? {
        let stat = std::fs::read_to_string(thread?.path().join("schedstat"))?;
        nanos += stat.split(' ').next().unwrap_or("0").parse::<u64>()?;
    }
    #[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
    Ok(nanos as f64 / 1e6)
}

/// The value that a share of the costs does not exceed.
fn quantile(costs: &[Cost], of: fn(&Cost) -> f64, percent: usize) -> f64 {
    let mut values: Vec<f64> = costs.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    let place = (values.len() * percent / 100).min(values.len().saturating_sub(1));
    values.get(place).copied().unwrap_or(f64::NAN)
}

fn summary(costs: &[Cost]) -> serde_json::Value {
    serde_json::json!({
        "wall_ms_p50": quantile(costs, |cost| cost.wall_ms, 50),
        "wall_ms_p99": quantile(costs, |cost| cost.wall_ms, 99),
        "cpu_ms_p50": quantile(costs, |cost| cost.cpu_ms, 50),
    })
}

async fn run(folder: &Path) -> Result<serde_json::Value> {
    let mut committer = TableCommitter::new(table(folder, "history").await?);
    let mut costs = Vec::with_capacity(COMMITS);
    for number in 0..COMMITS {
        costs.push(measure(&mut committer, &request(number, FILES)).await?);
    }
    let early = costs.get(EARLY..EARLY + WINDOW).unwrap_or_default();
    let late = costs.get(COMMITS - WINDOW..).unwrap_or_default();
    let ratio = |of: fn(&Cost) -> f64| quantile(late, of, 50) / quantile(early, of, 50);
    let mut committer = TableCommitter::new(table(folder, "many").await?);
    let many = measure(&mut committer, &request(0, MANY_FILES)).await?;
    Ok(serde_json::json!({
        "bench": "commits of 16 files on a local disk, synced",
        "at_snapshot_10": summary(early),
        "at_snapshot_1000": summary(late),
        "all": summary(&costs),
        "ratio_wall": ratio(|cost| cost.wall_ms),
        "ratio_cpu": ratio(|cost| cost.cpu_ms),
        "files_10000": {"wall_ms": many.wall_ms, "cpu_ms": many.cpu_ms},
    }))
}

#[allow(
    clippy::print_stdout,
    reason = "the JSON object is what this program is for"
)]
fn main() -> Result<()> {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    let folder = target.join("bench-commits");
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()?;
    let report = runtime.block_on(run(&folder))?;
    std::fs::remove_dir_all(&folder)?;
    println!("{}", serde_json::to_string_pretty(&report)?);
    Ok(())
}
