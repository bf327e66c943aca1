//! The time from an acknowledged append until the row is in a snapshot of the lake.

use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::runtime::Runtime;
use weir_protocol::client::writer::{LogWriter, LogWriterConfig};
use weir_protocol::client::{Client, ClientConfig};
use weir_protocol::ids::TablePath;
use weir_tests::process::{self, snapshot_rows};
use weir_tests::{Result, table};

use crate::{Settings, quantile};

const FRESHNESS: Duration = Duration::from_secs(2);
const APPENDS: usize = 400;
const ROWS_OF_AN_APPEND: i64 = 100;
const BETWEEN_APPENDS: Duration = Duration::from_millis(150);

/// Appends of 100 rows for a minute to a table with 2 s of freshness; each is timed from its
/// acknowledgement to the first look that finds it, a look each 10 ms.
pub(crate) fn measure(settings: &Settings) -> Result<Value> {
    let mut weir = settings.start("up", &[])?;
    let bootstrap = weir.ready("fluss")?;
    let lake = settings.folder.join("lake/fluss.db/fresh");
    let (appended, acknowledged) = std::sync::mpsc::sync_channel(APPENDS);
    let writing = std::thread::spawn(move || -> Result<()> {
        Runtime::new()?.block_on(async {
            let client = Client::connect(ClientConfig::new([bootstrap])).await?;
            let path = TablePath::new("fluss", "fresh");
            let descriptor = table::with(
                table::plain(),
                "table.datalake.freshness",
                &format!("{}s", FRESHNESS.as_secs()),
            );
            client.create_table(&path, &descriptor, false).await?;
            let config = LogWriterConfig {
                linger: None,
                ..LogWriterConfig::default()
            };
            let writer = LogWriter::open(client.clone(), path, config).await?;
            let mut ticks = tokio::time::interval(BETWEEN_APPENDS);
            for append in 0..i64::try_from(APPENDS)? {
                ticks.tick().await;
                let first = append * ROWS_OF_AN_APPEND;
                let rows = table::rows(&descriptor.schema, first..first + ROWS_OF_AN_APPEND);
                let acknowledgement = writer.append(rows).await?;
                writer.flush().await?;
                acknowledgement.wait().await?;
                appended.send(Instant::now())?;
            }
            writer.close().await?;
            client.close().await;
            Ok(())
        })
    });
    let mut seconds = watch(&lake, &acknowledged)?;
    writing.join().map_err(|_| "the writer panicked")??;
    weir.stop()?;
    seconds.sort_by(f64::total_cmp);
    Ok(json!({
        "freshness_s": FRESHNESS.as_secs(),
        "appends": seconds.len(),
        "append_to_visible_p50_s": quantile(&seconds, 0.5),
        "append_to_visible_p99_s": quantile(&seconds, 0.99),
        "append_to_visible_max_s": seconds.last(),
    }))
}

fn watch(lake: &Path, acknowledged: &std::sync::mpsc::Receiver<Instant>) -> Result<Vec<f64>> {
    let mut waiting = VecDeque::new();
    let mut seconds = Vec::new();
    let started = Instant::now();
    while seconds.len() < APPENDS {
        waiting.extend(acknowledged.try_iter());
        let rows = if lake.join("snapshot").exists() {
            snapshot_rows(lake)?
        } else {
            0
        };
        let visible = usize::try_from(rows / ROWS_OF_AN_APPEND.unsigned_abs())?;
        let now = Instant::now();
        while seconds.len() < visible {
            // A row may be visible before its acknowledgement is counted here.
            let Some(at) = waiting.pop_front() else {
                break;
            };
            seconds.push(now.saturating_duration_since(at).as_secs_f64());
        }
        if started.elapsed() > Duration::from_mins(5) {
            return Err(format!(
                "{} of {APPENDS} appends visible after 5 minutes",
                seconds.len()
            )
            .into());
        }
        process::pause(Duration::from_millis(10));
    }
    Ok(seconds)
}
