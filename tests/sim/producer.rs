//! A program that appends rows: the real client and its idempotent writer, over the world's network.

use std::sync::Arc;
use std::time::Duration;

use arrow::array::{Int64Array, RecordBatch, StringArray};
use tokio::sync::mpsc;
use weir_protocol::client::writer::{LogWriter, LogWriterConfig};
use weir_protocol::client::{Client, ClientConfig};
use weir_protocol::ids::TablePath;
use weir_protocol::schema::{Column, LogicalType, Schema, TypeKind};

use crate::model::{Model, RowId};
use crate::network::Network;
use crate::process::Process;

/// Where servers are.
pub(crate) const ADDRESS: &str = "simulated:9123";
/// Appends that may wait for the writer.
const QUEUE: usize = 256;

/// The columns of every table: who wrote the row, as which of its own, and its partition.
pub(crate) fn schema() -> Schema {
    let columns = vec![
        Column::new("writer", LogicalType::not_null(TypeKind::BigInt)),
        Column::new("n", LogicalType::not_null(TypeKind::BigInt)),
        Column::new("part", LogicalType::not_null(TypeKind::String)),
    ];
    Schema::new(columns, Vec::new()).expect("the schema is valid")
}

fn batch(rows: &[(RowId, String)]) -> RecordBatch {
    let writers = rows.iter().map(|((writer, _), _)| *writer);
    let numbers = rows.iter().map(|((_, n), _)| *n);
    let parts = rows.iter().map(|(_, part)| part.as_str());
    RecordBatch::try_new(
        schema().arrow_schema(),
        vec![
            Arc::new(Int64Array::from_iter_values(writers)),
            Arc::new(Int64Array::from_iter_values(numbers)),
            Arc::new(StringArray::from_iter_values(parts)),
        ],
    )
    .expect("rows fit their schema")
}

/// How a program of the world reaches the cluster.
pub(crate) fn client_config(network: &Network, process: &Process) -> ClientConfig {
    let mut config = ClientConfig::new([ADDRESS]);
    config.connect_timeout = Duration::from_secs(5);
    config.request_timeout = Duration::from_secs(10);
    config.retry_timeout = Duration::from_secs(30);
    config.dial = network.of(process);
    config
}

/// A program that appends to one table.
pub(crate) struct Producer {
    pub(crate) process: Process,
    pub(crate) path: TablePath,
    number: i64,
    next: i64,
    rows: mpsc::Sender<Vec<(RowId, String)>>,
    model: Model,
    running: tokio::task::JoinHandle<()>,
}

impl Producer {
    pub(crate) fn start(
        number: i64,
        path: TablePath,
        (network, process, model): (&Network, Process, &Model),
    ) -> Self {
        let (rows, inbox) = mpsc::channel(QUEUE);
        let config = client_config(network, &process);
        let running = tokio::spawn(append_all(path.clone(), config, inbox, model.clone()));
        Self {
            process,
            path,
            number,
            next: 0,
            rows,
            model: model.clone(),
            running,
        }
    }

    /// Hands rows to the writer; `false` if it has ended.
    pub(crate) fn send(&mut self, parts: &[String]) -> bool {
        let mut rows = Vec::new();
        for part in parts {
            rows.push(((self.number, self.next), part.clone()));
            self.next += 1;
        }
        let sent = rows.clone();
        self.model
            .change(&self.path, |table| table.sent.extend(sent));
        self.rows.try_send(rows).is_ok()
    }

    /// Ends it once everything is written; the handle says when.
    pub(crate) fn close(self) -> tokio::task::JoinHandle<()> {
        self.running
    }

    /// Takes no more rows; what was sent is still worked on.
    pub(crate) fn is_over(&self) -> bool {
        self.rows.is_closed() || self.process.is_dead()
    }
}

/// Appends what comes, and notes what is acknowledged. Ends with the first append that fails.
async fn append_all(
    path: TablePath,
    config: ClientConfig,
    mut inbox: mpsc::Receiver<Vec<(RowId, String)>>,
    model: Model,
) {
    let settings = LogWriterConfig {
        batch_bytes: 4 << 10,
        linger: Some(Duration::from_millis(20)),
        delivery_timeout: Duration::from_secs(60),
        ack_timeout: Duration::from_secs(5),
        ..LogWriterConfig::default()
    };
    let Ok(client) = Client::connect(config).await else {
        return;
    };
    let Ok(writer) = LogWriter::open(client.clone(), path.clone(), settings).await else {
        return;
    };
    let failed = tokio_util::sync::CancellationToken::new();
    loop {
        let rows = tokio::select! {
            rows = inbox.recv() => rows,
            () = failed.cancelled() => None,
        };
        let Some(rows) = rows else { break };
        let Ok(acknowledgement) = writer.append(batch(&rows)).await else {
            break;
        };
        let (model, path, failed) = (model.clone(), path.clone(), failed.clone());
        tokio::spawn(async move {
            if acknowledgement.wait().await.is_err() {
                failed.cancel();
                return;
            }
            let ids = rows.into_iter().map(|(id, _)| id);
            model.change(&path, |table| table.acknowledged.extend(ids));
        });
    }
    inbox.close();
    // Batches under way are given their time.
    drop(writer.close().await);
    client.close().await;
}
