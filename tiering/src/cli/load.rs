//! `weir load`: a file or generated rows into a log table, through the protocol.

use std::future::Future;
use std::path::Path;
use std::pin::pin;
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, SchemaRef};
use arrow::error::ArrowError;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use tokio::sync::mpsc;
use weir_protocol::client::admin::TableInfo;
use weir_protocol::client::writer::{LogWriter, LogWriterConfig};
use weir_protocol::client::{Client, Error};
use weir_protocol::descriptor::TableDescriptor;
use weir_protocol::ids::TableId;
use weir_protocol::schema::Schema;

use super::Load;
use super::connect::{cluster, failure, words};
use super::create::{self, Created};
use super::exit::{Failure, Outcome};
use super::output::{count, print};
use super::progress::Progress;
use crate::load::tpch::{Batches, Table};
use crate::load::{file, tpch};

mod fit;
mod state;

use fit::{Fit, check_options};
use state::{Content, STATE_VERSION, State, check_folder, read_state, write_state};

/// Batches of rows that wait for the writer.
const QUEUE: usize = 4;
/// Batches of a bucket that may be unacknowledged by the state file: a server remembers so many.
const UNFLUSHED_BATCHES: usize = 4;
/// How often the writer is asked for trouble while it is waited for.
const LOOK: Duration = Duration::from_secs(2);
/// How far the lake of a new table may lag.
const FRESHNESS: &str = "5s";

/// Where rows come from.
#[derive(Debug)]
enum Source {
    File(file::Source),
    Tpch(tpch::Source),
}

/// Appends the source to the table; creates both where that was asked for.
///
/// # Errors
/// One sentence that names the source, the table or the column. A table that this very command made
/// is dropped again unless rows were acknowledged.
///
/// Answers how many rows are acknowledged, those of earlier runs of a resumed load among them.
pub async fn run(arguments: Load) -> Outcome<u64> {
    let source = Source::parse(&arguments.source)?;
    if let Some(file) = &arguments.state {
        check_folder(file)?;
    }
    let client = cluster(&arguments.cluster).await?;
    let created = if arguments.create {
        create_table(&client, &arguments, &source).await?
    } else {
        Created::Before
    };
    match load(&client, &arguments, source).await {
        Ok((rows, done)) => {
            print(&format!("{}: {done}\n", arguments.table))?;
            Ok(rows)
        }
        Err(stopped) => Err(stopped.told(&client, &arguments, created).await),
    }
}

/// A load that did not come to its end.
struct Stopped {
    failure: Failure,
    /// Rows that are in the log for certain.
    acknowledged: u64,
    /// Whether this run wrote the state file.
    state_written: bool,
}

impl From<Failure> for Stopped {
    fn from(failure: Failure) -> Self {
        Self {
            failure,
            acknowledged: 0,
            state_written: false,
        }
    }
}

impl Stopped {
    /// Undoes what is of no use, and says what is left and how to go on.
    async fn told(self, client: &Client, arguments: &Load, created: Created) -> Failure {
        let path = &arguments.table;
        let state = arguments.state.as_ref().filter(|_| self.state_written);
        let left = match (self.acknowledged, created) {
            (0, Created::Now { database }) => match create::undo(client, path, database).await {
                Ok(()) => {
                    if let Some(file) = state {
                        // It speaks of the dropped table; one that stays is refused with its name.
                        tokio::fs::remove_file(file).await.ok();
                    }
                    let lake = if arguments.no_lake {
                        ""
                    } else {
                        "; its empty lake table stays"
                    };
                    format!("; table {path}, which this command made, was dropped again{lake}")
                }
                Err(error) => format!(
                    "; table {path}, which this command made, stays, for it could not be dropped: {}",
                    words(&error)
                ),
            },
            (0, Created::Before) if state.is_none() => String::new(),
            (rows, _) => {
                let hint = match state {
                    Some(file) => format!(
                        "the same command goes on where it stopped (state in {})",
                        file.display()
                    ),
                    None => {
                        "the same command would append them again; with --state FILE it goes on \
                             where it stopped"
                            .to_owned()
                    }
                };
                let rows = match rows {
                    0 => "no row was acknowledged".to_owned(),
                    rows => format!("at least {} rows are in the log and stay", count(rows)),
                };
                format!("; {rows}; {hint}")
            }
        };
        let name = path.to_string();
        self.failure.reworded(|text| {
            let prefix = if text.contains(&name) {
                String::new()
            } else {
                format!("{name}: ")
            };
            format!("{prefix}{text}{left}")
        })
    }
}

/// The rows that are acknowledged now, and the last line of the progress.
async fn load(
    client: &Client,
    arguments: &Load,
    mut source: Source,
) -> Result<(u64, String), Stopped> {
    let info = client
        .table_info(&arguments.table)
        .await
        .map_err(|error| failure(&error))?;
    source.read_as(&info);
    let schema = &info.descriptor.schema;
    let fit = Fit::new(
        &arguments.source,
        &source.schema(),
        &arguments.table,
        schema,
    )?;
    let (content, state) = match &arguments.state {
        Some(file) => {
            let content = source.content().await?;
            let state = read_state(file, arguments, info.table_id, content).await?;
            (content, state)
        }
        None => (None, None),
    };
    let target = (info.table_id, content);
    let mut loader = Loader::open(client.clone(), arguments, target, state).await?;
    match loader.run(&source, &fit).await {
        // The last flush has waited for all of them.
        Ok(()) => Ok((loader.rows, loader.progress.finish())),
        Err(failure) => {
            // What came meanwhile counts; the failures among it are told already.
            while let Some(Some(done)) = loader.acks.next().now_or_never() {
                loader.acknowledged += done.unwrap_or(0);
            }
            loader.progress.finish();
            Err(Stopped {
                failure,
                acknowledged: loader.acknowledged,
                state_written: loader.state_written,
            })
        }
    }
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

    /// What its file holds; nothing of generated rows, which are always the same.
    async fn content(&self) -> Outcome<Option<Content>> {
        let Self::File(source) = self else {
            return Ok(None);
        };
        let content = Content::of(source.path().to_owned()).await;
        let failed = |error| Failure::failed(format!("{}: {error}", source.path().display()));
        content.map(Some).map_err(failed)
    }

    /// Reads text as the types of the table.
    fn read_as(&mut self, table: &TableInfo) {
        if let Self::File(source) = self {
            source.read_as(&table.descriptor.schema.arrow_schema());
        }
    }

    fn batches(&self) -> Outcome<Batches> {
        match self {
            Self::File(source) => source.batches().map_err(Failure::error),
            Self::Tpch(source) => Ok(source.batches()),
        }
    }
}

/// Creates the table, or checks that the one that is there is as the options say.
async fn create_table(client: &Client, arguments: &Load, source: &Source) -> Outcome<Created> {
    let path = &arguments.table;
    match client.table_info(path).await {
        Ok(info) => return check_options(arguments, &info).map(|()| Created::Before),
        Err(error) if is_missing(&error) => {}
        Err(error) => return Err(failure(&error)),
    }
    let columns = source.schema();
    let guessed = columns.fields().iter();
    let unknown = guessed
        .filter(|field| field.data_type() == &DataType::Null)
        .map(|field| format!("column `{}` has", field.name()))
        .next();
    if columns.fields().is_empty() || unknown.is_some() {
        let what = unknown.unwrap_or_else(|| "there is".to_owned());
        return Err(Failure::failed(format!(
            "{}: {what} no value to guess a type from; create the table with `weir table create {path} \
             --column 'NAME TYPE'`, then load without --create",
            arguments.source
        )));
    }
    let schema = Schema::from_arrow(&columns)
        .map_err(|error| Failure::failed(format!("{}: {error}", arguments.source)))?;
    let schema = create::with_primary_key(schema, &arguments.primary_key)?;
    let mut descriptor = TableDescriptor::new(schema);
    descriptor
        .partition_keys
        .clone_from(&arguments.partition_by);
    descriptor.bucket_keys.clone_from(&arguments.bucket_key);
    descriptor.bucket_count = arguments.buckets;
    if !arguments.no_lake {
        let freshness = arguments.freshness.as_deref().unwrap_or(FRESHNESS);
        let properties = &mut descriptor.properties;
        properties.insert("table.datalake.enabled".to_owned(), "true".to_owned());
        properties.insert("table.datalake.freshness".to_owned(), freshness.to_owned());
    }
    let created = create::create(client, path, &descriptor).await?;
    if created == Created::Before {
        // Another was faster.
        let info = client.table_info(path).await;
        check_options(arguments, &info.map_err(|error| failure(&error))?)?;
    }
    Ok(created)
}

fn is_missing(error: &Error) -> bool {
    use weir_protocol::error_code::ErrorCode;
    matches!(
        error.code(),
        Some(ErrorCode::TableNotExist | ErrorCode::DatabaseNotExist)
    )
}

/// A load under way.
struct Loader<'a> {
    arguments: &'a Load,
    table: TableId,
    content: Option<Content>,
    writer: LogWriter,
    progress: Progress,
    /// Batches of the source that a state file already counts.
    skip: usize,
    batches: usize,
    /// Rows up to the last flush.
    rows: u64,
    /// Rows handed to the writer since.
    pending: u64,
    /// Rows that are in the log for certain.
    acknowledged: u64,
    acks: FuturesUnordered<BoxFuture<'static, Result<u64, Error>>>,
    state_written: bool,
}

impl<'a> Loader<'a> {
    async fn open(
        client: Client,
        arguments: &'a Load,
        (table, content): (TableId, Option<Content>),
        state: Option<State>,
    ) -> Outcome<Self> {
        let (skip, rows) = state
            .as_ref()
            .map_or((0, 0), |state| (state.batches, state.rows));
        let resumes = state.is_some();
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
        let mut loader = Self {
            arguments,
            table,
            content,
            writer,
            progress: Progress::new(format!("loading {}", arguments.table), None),
            skip,
            batches: 0,
            rows: 0,
            pending: 0,
            acknowledged: 0,
            acks: FuturesUnordered::new(),
            state_written: resumes,
        };
        if !resumes {
            // Before the first row is sent: from then on a batch may be in the log unseen, and only
            // the same writer can send it again.
            loader.save().await?;
        }
        Ok(loader)
    }

    async fn run(&mut self, source: &Source, fit: &Fit) -> Outcome {
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
        let name = &self.arguments.source;
        let unreadable = |error: ArrowError| Failure::failed(format!("{name}: {error}"));
        while let Some(batch) = receiver.recv().await {
            let batch = batch.map_err(unreadable)?;
            let rows = u64::try_from(batch.num_rows()).unwrap_or(u64::MAX);
            self.batches += 1;
            if self.batches <= self.skip {
                self.rows += rows;
                self.acknowledged += rows;
                continue;
            }
            self.append(fit.apply(&batch).map_err(unreadable)?, rows)
                .await?;
            let full = self.arguments.state.is_some()
                && self
                    .writer
                    .unflushed_batches()
                    .await
                    .map_err(|error| failure(&error))?
                    >= UNFLUSHED_BATCHES;
            if full {
                self.flush().await?;
            }
        }
        self.flush().await?;
        reader
            .await
            .map_err(|error| Failure::failed(format!("the reader ended: {error}")))
    }

    async fn append(&mut self, batch: RecordBatch, rows: u64) -> Outcome {
        let appended = self.writer.append(batch);
        let acknowledgement = watched(&self.writer, &mut self.progress, appended)
            .await
            .map_err(|error| failure(&error))?;
        let counted = async move { acknowledgement.wait().await.map(|_| rows) };
        self.acks.push(counted.boxed());
        self.pending += rows;
        self.progress.add(rows);
        self.count_acknowledged()
    }

    /// Counts the appends that are acknowledged by now.
    fn count_acknowledged(&mut self) -> Outcome {
        while let Some(Some(done)) = self.acks.next().now_or_never() {
            self.acknowledged += done.map_err(|error| failure(&error))?;
        }
        Ok(())
    }

    async fn flush(&mut self) -> Outcome {
        let flushed = self.writer.flush();
        watched(&self.writer, &mut self.progress, flushed)
            .await
            .map_err(|error| failure(&error))?;
        self.rows += std::mem::take(&mut self.pending);
        self.count_acknowledged()?;
        self.save().await
    }

    /// Writes the state file, if one was asked for.
    async fn save(&mut self) -> Outcome {
        let Some(file) = &self.arguments.state else {
            return Ok(());
        };
        let state = State {
            version: STATE_VERSION,
            table: self.arguments.table.to_string(),
            table_id: self.table,
            source: self.arguments.source.clone(),
            content: self.content,
            batches: self.batches.max(self.skip),
            rows: self.rows,
            writer: self.writer.state().await.map_err(|error| failure(&error))?,
        };
        write_state(file, &state)
            .await
            .map_err(|error| Failure::failed(format!("--state {}: {error}", file.display())))?;
        self.state_written = true;
        Ok(())
    }
}

/// Waits for the writer, and tells why it takes long.
async fn watched<T>(
    writer: &LogWriter,
    progress: &mut Progress,
    work: impl Future<Output = T>,
) -> T {
    let started = Instant::now();
    let mut work = pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return done,
            () = tokio::time::sleep(LOOK) => {
                let waited = started.elapsed().as_secs();
                let trouble = match writer.trouble().await {
                    Ok(Some(error)) => format!("{}; trying again", words(&error)),
                    _ => format!("no answer of the cluster for {waited} s; still waiting"),
                };
                progress.warn(&trouble, Instant::now());
            }
        }
    }
}
