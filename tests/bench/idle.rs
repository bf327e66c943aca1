//! What tables cost to which nobody writes.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::runtime::Runtime;
use weir_protocol::client::{Client, ClientConfig};
use weir_protocol::ids::TablePath;
use weir_tests::{Result, process, table};

use crate::Settings;

const TABLES: usize = 1000;
/// How long the process is watched, after the tables had this long to come to rest.
const WATCHED: Duration = Duration::from_mins(1);
const REST: Duration = Duration::from_secs(30);

/// The share of a core that `weir up` takes for 1,000 tiered tables of the default freshness.
pub(crate) fn measure(settings: &Settings) -> Result<Value> {
    let mut weir = settings.start("up", &[])?;
    let bootstrap = weir.ready("fluss")?;
    let runtime = Runtime::new()?;
    let created = runtime.block_on(create(&bootstrap))?;
    process::pause(REST);
    let (cpu, started) = (weir.cpu_seconds()?, Instant::now());
    process::pause(WATCHED);
    let used = weir.cpu_seconds()? - cpu;
    let share = used / started.elapsed().as_secs_f64();
    let peak = weir.peak_rss_bytes()?;
    weir.stop()?;
    Ok(json!({
        "tables": TABLES,
        "created_tables_per_s": created.round(),
        "share_of_a_core": share,
        "peak_rss_bytes": peak,
    }))
}

async fn create(bootstrap: &str) -> Result<f64> {
    let client = Client::connect(ClientConfig::new([bootstrap])).await?;
    let mut descriptor = table::plain();
    descriptor.properties.remove("table.datalake.freshness");
    let started = Instant::now();
    for number in 0..TABLES {
        let path = TablePath::new("fluss", format!("idle_{number}"));
        client.create_table(&path, &descriptor, false).await?;
    }
    client.close().await;
    #[allow(clippy::cast_precision_loss, reason = "a small count")]
    let count = TABLES as f64;
    Ok(count / started.elapsed().as_secs_f64())
}
