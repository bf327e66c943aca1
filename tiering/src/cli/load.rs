//! `weir load`: a file or generated rows into a log table, through the protocol.

use std::path::Path;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use weir_protocol::client::Client;
use weir_protocol::client::writer::{LogWriter, LogWriterConfig, WriterState};
use weir_protocol::descriptor::{DatabaseDescriptor, TableDescriptor};
use weir_protocol::ids::TableId;
use weir_protocol::schema::Schema;

use super::Load;
use super::connect::{cluster, failure};
use super::exit::{Failure, Outcome};
use super::output::{count, print};
use super::progress::Progress;
use crate::load::tpch::{Batches, Table};
use crate::load::{file, tpch};

/// Batches of rows that wait for the writer.
const QUEUE: usize = 4;
/// Batches of a bucket that may be unacknowledged by the state file: a server remembers so many.
const UNFLUSHED_BATCHES: usize = 4;
/// The newest version of the state file.
const STATE_VERSION: u32 = 1;

/// Where rows come from.
#[derive(Debug)]
enum Source {
    File(file::Source),
    Tpch(tpch::Source),
}

/// What the state file says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    version: u32,
    table: String,
    table_id: TableId,
    source: String,
    /// Batches of the source that are acknowledged.
    batches: usize,
    rows: u64,
    writer: WriterState,
}

/// Appends the source to the table; creates both where that was asked for.
///
/// # Errors
/// One sentence that names the source, the table or the column.
pub async fn run(arguments: Load) -> Outcome {
    let source = Source::parse(&arguments.source)?;
    let client = cluster(&arguments.cluster).await?;
    if arguments.create {
        create(&client, &arguments, &source.schema()).await?;
    }
    let info = client
        .table_info(&arguments.table)
        .await
        .map_err(|error| failure(&error))?;
    let state = match &arguments.state {
        Some(file) => read_state(file, &arguments, info.table_id).await?,
        None => None,
    };
    let mut loader = Loader::open(client, &arguments, info.table_id, state).await?;
    let loaded = loader.run(&source).await;
    let rows = loader.rows;
    loaded.map_err(|error| {
        let hint = match &arguments.state {
            Some(file) => format!(
                "the same command goes on where it stopped (state in {})",
                file.display()
            ),
            None => "with --state FILE a load can go on where it stopped".to_owned(),
        };
        Failure::failed(format!(
            "{}: {error}; {} rows were acknowledged; {hint}",
            arguments.table,
            count(rows)
        ))
    })?;
    print(&format!(
        "{}: {}\n",
        arguments.table,
        loader.progress.finish()
    ))
}

impl Source {
    fn parse(text: &str) -> Outcome<Self> {
        let Some(rest) = text.strip_prefix("tpch:") else {
            return file::Source::open(Path::new(text))
                .map(Self::File)
                .map_err(Failure::error);
        };
        let (name, scale) = rest.split_once(':').unwrap_or((rest, "1"));
        let table = Table::from_name(name).ok_or_else(|| {
            Failure::usage(format!("`{name}` is no TPC-H table: {}", Table::names()))
        })?;
        match scale.parse::<f64>() {
            Ok(scale) if scale > 0.0 && scale <= 100_000.0 => {
                Ok(Self::Tpch(tpch::Source { table, scale }))
            }
            _ => Err(Failure::usage(format!(
                "`{scale}` is no scale factor: write a number above 0"
            ))),
        }
    }

    fn schema(&self) -> SchemaRef {
        match self {
            Self::File(source) => source.schema(),
            Self::Tpch(source) => source.schema(),
        }
    }

    fn batches(&self) -> Outcome<Batches> {
        match self {
            Self::File(source) => source.batches().map_err(Failure::error),
            Self::Tpch(source) => Ok(source.batches()),
        }
    }
}

async fn create(client: &Client, arguments: &Load, columns: &SchemaRef) -> Outcome {
    if !arguments.primary_key.is_empty() {
        return Err(Failure::failed(
            "tables with a primary key are not supported yet",
        ));
    }
    let schema = Schema::from_arrow(columns).map_err(Failure::error)?;
    let mut descriptor = TableDescriptor::new(schema);
    descriptor
        .partition_keys
        .clone_from(&arguments.partition_by);
    descriptor.bucket_keys.clone_from(&arguments.bucket_key);
    descriptor.bucket_count = arguments.buckets;
    if !arguments.no_lake {
        let properties = &mut descriptor.properties;
        properties.insert("table.datalake.enabled".to_owned(), "true".to_owned());
        properties.insert(
            "table.datalake.freshness".to_owned(),
            arguments.freshness.clone(),
        );
    }
    client
        .create_database(
            &arguments.table.database,
            &DatabaseDescriptor::default(),
            true,
        )
        .await
        .map_err(|error| failure(&error))?;
    client
        .create_table(&arguments.table, &descriptor, true)
        .await
        .map_err(|error| failure(&error))
}

async fn read_state(file: &Path, arguments: &Load, table: TableId) -> Outcome<Option<State>> {
    let bytes = match tokio::fs::read(file).await {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Failure::failed(format!("{}: {error}", file.display()))),
    };
    let state: State = serde_json::from_slice(&bytes).map_err(|error| {
        Failure::failed(format!("{}: no state of a load: {error}", file.display()))
    })?;
    if state.version != STATE_VERSION {
        let version = state.version;
        return Err(Failure::failed(format!(
            "{}: version {version} is newer than this weir",
            file.display()
        )));
    }
    let ours = state.table_id == table && state.source == arguments.source;
    if !ours || state.table != arguments.table.to_string() {
        return Err(Failure::failed(format!(
            "{}: belongs to a load of {} into {} (table id {}); give another --state, or delete it",
            file.display(),
            state.source,
            state.table,
            state.table_id
        )));
    }
    Ok(Some(state))
}

/// A load under way.
struct Loader<'a> {
    arguments: &'a Load,
    table: TableId,
    writer: LogWriter,
    progress: Progress,
    /// Batches of the source that a state file already counts.
    skip: usize,
    batches: usize,
    rows: u64,
}

impl<'a> Loader<'a> {
    async fn open(
        client: Client,
        arguments: &'a Load,
        table: TableId,
        state: Option<State>,
    ) -> Outcome<Self> {
        let (skip, rows) = state
            .as_ref()
            .map_or((0, 0), |state| (state.batches, state.rows));
        let config = LogWriterConfig {
            linger: None,
            resume: state.map(|state| state.writer),
            ..LogWriterConfig::default()
        };
        let writer = LogWriter::open(client, arguments.table.clone(), config)
            .await
            .map_err(|error| failure(&error))?;
        if skip > 0 {
            tracing::info!(rows, "going on after the rows that are acknowledged");
        }
        let progress = Progress::new(format!("loading {}", arguments.table), None);
        Ok(Self {
            arguments,
            table,
            writer,
            progress,
            skip,
            batches: 0,
            rows: 0,
        })
    }

    async fn run(&mut self, source: &Source) -> Outcome {
        let batches = source.batches()?;
        let (sender, mut receiver) = mpsc::channel::<Result<RecordBatch, ArrowError>>(QUEUE);
        // Reading is blocking work; it ends when the receiver is dropped.
        let reader = tokio::task::spawn_blocking(move || {
            for batch in batches {
                if sender.blocking_send(batch).is_err() {
                    return;
                }
            }
        });
        let mut pending = 0;
        while let Some(batch) = receiver.recv().await {
            let batch = batch
                .map_err(|error| Failure::failed(format!("{}: {error}", self.arguments.source)))?;
            let rows = u64::try_from(batch.num_rows()).unwrap_or(u64::MAX);
            self.batches += 1;
            if self.batches <= self.skip {
                self.rows += rows;
                continue;
            }
            // The acknowledgement comes with the next flush.
            drop(
                self.writer
                    .append(batch)
                    .await
                    .map_err(|error| failure(&error))?,
            );
            pending += rows;
            self.progress.add(rows);
            let full = self.arguments.state.is_some()
                && self
                    .writer
                    .unflushed_batches()
                    .await
                    .map_err(|error| failure(&error))?
                    >= UNFLUSHED_BATCHES;
            if full {
                self.flush(&mut pending).await?;
            }
        }
        self.flush(&mut pending).await?;
        reader
            .await
            .map_err(|error| Failure::failed(format!("the reader ended: {error}")))
    }

    async fn flush(&mut self, pending: &mut u64) -> Outcome {
        self.writer.flush().await.map_err(|error| failure(&error))?;
        self.rows += std::mem::take(pending);
        let Some(file) = &self.arguments.state else {
            return Ok(());
        };
        let state = State {
            version: STATE_VERSION,
            table: self.arguments.table.to_string(),
            table_id: self.table,
            source: self.arguments.source.clone(),
            batches: self.batches.max(self.skip),
            rows: self.rows,
            writer: self.writer.state().await.map_err(|error| failure(&error))?,
        };
        write_state(file, &state)
            .await
            .map_err(|error| Failure::failed(format!("{}: {error}", file.display())))
    }
}

/// Replaces the file: a crash leaves the old state or the new one.
async fn write_state(file: &Path, state: &State) -> std::io::Result<()> {
    let text = serde_json::to_vec_pretty(state)?;
    let mut name = file.as_os_str().to_owned();
    name.push(".new");
    let new = Path::new(&name).to_owned();
    let target = file.to_owned();
    let work = move || {
        use std::io::Write as _;
        let mut out = std::fs::File::create(&new)?;
        out.write_all(&text)?;
        out.sync_all()?;
        std::fs::rename(&new, &target)
    };
    tokio::task::spawn_blocking(work)
        .await
        .map_err(std::io::Error::other)?
}
