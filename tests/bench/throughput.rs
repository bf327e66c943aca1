//! The backlog of a table through the whole path, beside a bare pipeline over the same rows.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;
use weir_tests::Result;
use weir_tests::process::{self, Process, snapshot_rows};

use crate::{Settings, roofline};

const TABLE: &str = "bench.lineitem";
const BUCKETS: usize = 4;

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

/// Rows of TPC-H lineitem go through the protocol into the server (`weir load`), then a fresh daemon
/// (`weir tier`) brings the backlog into the lake. CPU time and memory are those of the daemon's
/// process.
pub(crate) fn measure(settings: &Settings) -> Result<Value> {
    let Settings { weir, folder, rows } = settings;
    let rows = *rows;
    #[allow(clippy::cast_precision_loss, reason = "row counts are far below 2^52")]
    let scale = rows as f64 / 6_001_215.0;
    let limits = roofline::measure(&folder.join("roofline"), scale, BUCKETS)?;

    let lake = folder.join("lake");
    let mut server = settings.start("serve", &[])?;
    let bootstrap = server.ready("fluss")?;
    let started = Instant::now();
    process::run(
        weir,
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

    let mut daemon = settings.start_daemon(&bootstrap, &[])?;
    let tiering = wait_for_rows(&mut daemon, &lake.join("bench.db/lineitem"), loaded)?;
    let cpu = daemon.cpu_seconds()?;
    let peak = daemon.peak_rss_bytes()?;
    daemon.stop()?;
    server.stop()?;

    #[allow(clippy::cast_precision_loss, reason = "row counts are far below 2^52")]
    let count = loaded as f64;
    let per_cpu = count / cpu;
    Ok(serde_json::json!({
        "table": "TPC-H lineitem and l_shipyear, 17 columns, zstd bodies",
        "rows": loaded,
        "buckets": BUCKETS,
        "ingest_rows_per_s": (count / ingest.as_secs_f64()).round(),
        "tiering_rows_per_s": (count / tiering.as_secs_f64()).round(),
        "tiering_rows_per_cpu_s": per_cpu.round(),
        "tiering_cpu_s": cpu,
        "peak_rss_bytes": peak,
        "roofline_rows_per_cpu_s": limits.zstd_rows_per_cpu_s.round(),
        "roofline_plain_rows_per_cpu_s": limits.plain_rows_per_cpu_s.round(),
        "roofline_ratio": per_cpu / limits.zstd_rows_per_cpu_s,
    }))
}
