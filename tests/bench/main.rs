//! The whole path beside the limits of this machine: `make bench`. Prints one JSON object.
//!
//! Rows of TPC-H lineitem go through the protocol into the server (`weir load`), then a fresh
//! daemon (`weir tier`)
//! brings the backlog into the lake. CPU time and memory are those of the daemon's process. The
//! roofline is a bare
//! pipeline over the same rows in the same run: decode the Arrow bodies, encode Parquet, write and
//! sync the files.

mod roofline;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use weir_tests::Result;
use weir_tests::process::{self, Process, snapshot_rows};

const TABLE: &str = "bench.lineitem";
const BUCKETS: usize = 4;

struct Settings {
    weir: PathBuf,
    folder: PathBuf,
    rows: u64,
}

fn settings() -> Result<Settings> {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    let rows = std::env::var("WEIR_BENCH_ROWS")
        .unwrap_or_else(|_| "1000000".to_owned())
        .parse()?;
    let weir = std::env::var_os("WEIR_BENCH_BINARY")
        .map_or_else(|| target.join("release/weir"), PathBuf::from);
    Ok(Settings {
        weir,
        folder: target.join("bench-data"),
        rows,
    })
}

/// Waits until the lake holds `rows` rows; the daemon must live.
fn wait_for_rows(daemon: &mut Process, table: &Path, rows: u64) -> Result<Duration> {
    let started = Instant::now();
    loop {
        let found = snapshot_rows(table)?;
        if found >= rows {
            return Ok(started.elapsed());
        }
        daemon.check_alive()?;
        if started.elapsed() > Duration::from_mins(10) {
            return Err(format!("{found} of {rows} rows in the lake after 10 minutes").into());
        }
        process::pause(Duration::from_millis(20));
    }
}

#[allow(
    clippy::print_stdout,
    reason = "the JSON object is what this program is for"
)]
fn main() -> Result<()> {
    let Settings { weir, folder, rows } = settings()?;
    if !weir.is_file() {
        return Err(format!("{}: build it first: make bench does", weir.display()).into());
    }
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::create_dir_all(&folder)?;
    #[allow(clippy::cast_precision_loss, reason = "row counts are far below 2^52")]
    let scale = rows as f64 / 6_001_215.0;
    let load_at_start = process::load_average();
    let limits = roofline::measure(&folder.join("roofline"), scale, BUCKETS)?;

    let data = folder.join("data");
    let lake = folder.join("lake");
    let mut server = Process::start(
        &weir,
        &[
            "serve",
            "--data-dir",
            &data.to_string_lossy(),
            "--warehouse",
            &lake.to_string_lossy(),
            "--listen",
            "127.0.0.1:0",
            "--http",
            "127.0.0.1:0",
        ],
        &folder.join("serve.log"),
    )?;
    let bootstrap = server.ready("fluss")?;
    let started = Instant::now();
    process::run(
        &weir,
        &[
            "load",
            "--bootstrap",
            &bootstrap,
            "--table",
            TABLE,
            &format!("tpch:lineitem:{scale}"),
            "--create",
            "--bucket-key",
            "l_orderkey",
            "--buckets",
            &BUCKETS.to_string(),
        ],
    )?;
    let ingest = started.elapsed();
    let loaded = limits.rows;

    let mut daemon = Process::start(
        &weir,
        &[
            "tier",
            "--bootstrap",
            &bootstrap,
            "--warehouse",
            &lake.to_string_lossy(),
            "--http",
            "127.0.0.1:0",
            "--grpc",
            "127.0.0.1:0",
        ],
        &folder.join("tier.log"),
    )?;
    let tiering = wait_for_rows(&mut daemon, &lake.join("bench.db/lineitem"), loaded)?;
    let cpu = daemon.cpu_seconds()?;
    let peak = daemon.peak_rss_bytes()?;
    daemon.stop()?;
    server.stop()?;

    #[allow(clippy::cast_precision_loss, reason = "row counts are far below 2^52")]
    let count = loaded as f64;
    let per_cpu = count / cpu;
    let report = serde_json::json!({
        "table": "TPC-H lineitem and l_shipyear, 17 columns, zstd bodies",
        "rows": loaded,
        "buckets": BUCKETS,
        "cores": std::thread::available_parallelism()?.get(),
        "load_average_at_start": load_at_start,
        "ingest_rows_per_s": (count / ingest.as_secs_f64()).round(),
        "tiering_rows_per_s": (count / tiering.as_secs_f64()).round(),
        "tiering_rows_per_cpu_s": per_cpu.round(),
        "tiering_cpu_s": cpu,
        "peak_rss_bytes": peak,
        "roofline_rows_per_cpu_s": limits.zstd_rows_per_cpu_s.round(),
        "roofline_plain_rows_per_cpu_s": limits.plain_rows_per_cpu_s.round(),
        "roofline_ratio": per_cpu / limits.zstd_rows_per_cpu_s,
    });
    println!("{}", serde_json::to_string_pretty(&report)?);
    Ok(())
}
