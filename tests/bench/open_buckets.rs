//! Memory of the daemon when a round has many buckets open.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::runtime::Runtime;
use weir_protocol::client::writer::{LogWriter, LogWriterConfig};
use weir_protocol::client::{Client, ClientConfig};
use weir_protocol::ids::TablePath;
use weir_protocol::schema::TypeKind;
use weir_tests::process::{self, snapshot_rows};
use weir_tests::{Result, table};

use crate::Settings;

const PARTITIONS: i64 = 250;
const BUCKETS: i32 = 4;
const ROWS_OF_A_PARTITION: i64 = 2000;
const BUDGET_MIB: u64 = 128;

/// A backlog in 1,000 buckets (250 partitions of 4) is tiered by a daemon with 128 MiB for rows on
/// their way.
pub(crate) fn measure(settings: &Settings) -> Result<Value> {
    let mut server = settings.start("serve", &[])?;
    let bootstrap = server.ready("fluss")?;
    Runtime::new()?.block_on(load(&bootstrap))?;
    let lake = settings.folder.join("lake");
    let budget = format!("tiering.memory={}", BUDGET_MIB << 20);
    let mut daemon = settings.start_daemon(&bootstrap, &["-o", &budget])?;
    let started = Instant::now();
    let rows = (PARTITIONS * ROWS_OF_A_PARTITION).unsigned_abs();
    let table = lake.join("fluss.db/wide");
    while snapshot_rows(&table)? < rows {
        daemon.check_alive()?;
        if started.elapsed() > Duration::from_mins(10) {
            return Err("not all rows are in the lake after 10 minutes".into());
        }
        process::pause(Duration::from_millis(50));
    }
    let seconds = started.elapsed().as_secs_f64();
    let peak = daemon.peak_rss_bytes()?;
    daemon.stop()?;
    server.stop()?;
    Ok(json!({
        "buckets": PARTITIONS * i64::from(BUCKETS),
        "rows": rows,
        "seconds": seconds,
        "budget_bytes": BUDGET_MIB << 20,
        "peak_rss_bytes": peak,
        "peak_rss_above_budget_bytes": i64::try_from(peak)? - i64::try_from(BUDGET_MIB << 20)?,
    }))
}

async fn load(bootstrap: &str) -> Result<()> {
    let client = Client::connect(ClientConfig::new([bootstrap])).await?;
    let path = TablePath::new("fluss", "wide");
    let mut columns = vec![table::required("id", TypeKind::BigInt)];
    columns.push(table::required("part", TypeKind::String));
    columns
        .extend((0..12).map(|number| table::column(&format!("text_{number}"), TypeKind::String)));
    let descriptor = table::partitioned(table::lake_table(columns), &["part"]);
    let descriptor = table::bucketed(descriptor, BUCKETS, &["id"]);
    client.create_table(&path, &descriptor, false).await?;
    let config = LogWriterConfig {
        linger: None,
        ..LogWriterConfig::default()
    };
    let writer = LogWriter::open(client.clone(), path, config).await?;
    for partition in 0..PARTITIONS {
        let first = partition * ROWS_OF_A_PARTITION;
        let numbers = first..first + ROWS_OF_A_PARTITION;
        let value = format!("p{partition:03}");
        let rows = table::rows_of(&descriptor.schema, numbers, "part", &value);
        let acknowledgement = writer.append(rows).await?;
        writer.flush().await?;
        acknowledgement.wait().await?;
    }
    writer.close().await?;
    client.close().await;
    Ok(())
}
