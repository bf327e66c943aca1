//! Writers of rows that can be told apart, and what they have seen acknowledged.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use weir_protocol::client::Client;
use weir_protocol::client::writer::{LogWriter, LogWriterConfig};
use weir_protocol::descriptor::{DatabaseDescriptor, TableDescriptor};
use weir_protocol::ids::TablePath;
use weir_protocol::schema::{Column, LogicalType, Schema, TypeKind};
use weir_tests::Result;

/// Appends that wait for their acknowledgement at the same time.
const MAX_IN_FLIGHT: usize = 24;

/// The identity of a row: its writer, and its number among the writer's rows.
pub(crate) type RowId = (i64, i64);

/// What the log and the lake are held against.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    /// Rows that were acknowledged: they must be there.
    pub(crate) acknowledged: BTreeSet<RowId>,
    /// Rows whose writer was given up before it heard: they may be there.
    pub(crate) unknown: BTreeSet<RowId>,
}

/// Writers of one table, one after the other, each until it is told to end.
#[derive(Debug)]
pub(crate) struct Workload {
    client: Client,
    path: TablePath,
    rng: StdRng,
    writers: i64,
    claims: Claims,
    acknowledged: Arc<AtomicU64>,
    task: JoinHandle<Result<Claims>>,
    end: Arc<EndSignal>,
}

#[derive(Debug, Default)]
struct EndSignal {
    flush: CancellationToken,
    drop: CancellationToken,
}

/// A partitioned lake table with a bucket key, and one without either.
pub(crate) async fn create_tables(
    client: &Client,
    partitioned: &TablePath,
    plain: &TablePath,
) -> Result<()> {
    client
        .create_database(&partitioned.database, &DatabaseDescriptor::default(), true)
        .await?;
    let columns = vec![
        Column::new("writer", LogicalType::not_null(TypeKind::BigInt)),
        Column::new("n", LogicalType::not_null(TypeKind::BigInt)),
        Column::new("part", LogicalType::not_null(TypeKind::String)),
        Column::new("payload", LogicalType::nullable(TypeKind::String)),
    ];
    let mut descriptor = TableDescriptor::new(Schema::new(columns, Vec::new())?);
    for (key, value) in [
        ("table.datalake.enabled", "true"),
        ("table.datalake.freshness", "1s"),
    ] {
        descriptor
            .properties
            .insert(key.to_owned(), value.to_owned());
    }
    descriptor.bucket_count = Some(2);
    client.create_table(plain, &descriptor, false).await?;
    descriptor.partition_keys = vec!["part".to_owned()];
    descriptor.bucket_keys = vec!["n".to_owned()];
    client.create_table(partitioned, &descriptor, false).await?;
    Ok(())
}

/// The partition of a row: a few that all writers share, and one of each writer's own.
pub(crate) fn part_of((writer, n): RowId) -> String {
    if n % 5 == 0 {
        format!("of-{writer}")
    } else {
        format!("p{}", (n / 7) % 3)
    }
}

/// Some text of a length that differs from row to row; null now and then.
pub(crate) fn payload_of((writer, n): RowId) -> Option<String> {
    let length = usize::try_from((n * 31 + writer * 17).rem_euclid(97)).unwrap_or(0);
    (n % 11 != 0).then(|| format!("{writer}/{n}/").repeat(1 + length / 8))
}

fn rows(writer: i64, numbers: Range<i64>) -> Result<RecordBatch> {
    let ids = || numbers.clone().map(|n| (writer, n));
    let columns: [(&str, ArrayRef); 4] = [
        (
            "writer",
            Arc::new(Int64Array::from_iter_values(ids().map(|id| id.0))),
        ),
        ("n", Arc::new(Int64Array::from_iter_values(numbers.clone()))),
        (
            "part",
            Arc::new(StringArray::from_iter_values(ids().map(part_of))),
        ),
        (
            "payload",
            Arc::new(ids().map(payload_of).collect::<StringArray>()),
        ),
    ];
    Ok(RecordBatch::try_from_iter(columns)?)
}

impl Workload {
    /// Opens the first writer.
    pub(crate) async fn start(client: Client, path: TablePath, seed: u64) -> Result<Self> {
        let mut rng = StdRng::seed_from_u64(seed);
        let acknowledged = Arc::new(AtomicU64::new(0));
        let (end, first) = (Arc::<EndSignal>::default(), rng.random());
        let writer = Writer::open(&client, &path, 0, first).await?;
        let task = tokio::spawn(writer.run(Arc::clone(&end), Arc::clone(&acknowledged)));
        Ok(Self {
            client,
            path,
            rng,
            writers: 1,
            claims: Claims::default(),
            acknowledged,
            task,
            end,
        })
    }

    /// The table.
    pub(crate) fn path(&self) -> &TablePath {
        &self.path
    }

    /// Appends acknowledged so far.
    pub(crate) fn acknowledged_appends(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// Drops the writer as it stands and opens another.
    pub(crate) async fn replace_writer(&mut self) -> Result<()> {
        self.end.drop.cancel();
        let claims = (&mut self.task).await??;
        self.claims.take(claims);
        self.end = Arc::default();
        let writer =
            Writer::open(&self.client, &self.path, self.writers, self.rng.random()).await?;
        self.writers += 1;
        self.task = tokio::spawn(writer.run(Arc::clone(&self.end), Arc::clone(&self.acknowledged)));
        Ok(())
    }

    /// Ends the last writer once all of its appends are acknowledged; answers what all writers claim.
    pub(crate) async fn end(mut self) -> Result<Claims> {
        self.end.flush.cancel();
        self.claims.take(self.task.await??);
        Ok(self.claims)
    }
}

impl Claims {
    fn take(&mut self, more: Claims) {
        self.acknowledged.extend(more.acknowledged);
        self.unknown.extend(more.unknown);
    }
}

struct Writer {
    id: i64,
    log: LogWriter,
    rng: StdRng,
    next: i64,
}

impl Writer {
    async fn open(client: &Client, path: &TablePath, id: i64, seed: u64) -> Result<Self> {
        let config = LogWriterConfig {
            linger: Some(Duration::from_millis(5)),
            ..LogWriterConfig::default()
        };
        let log = LogWriter::open(client.clone(), path.clone(), config).await?;
        Ok(Self {
            id,
            log,
            rng: StdRng::seed_from_u64(seed),
            next: 0,
        })
    }

    /// Appends without a pause; a server that is gone is waited for.
    async fn run(mut self, end: Arc<EndSignal>, acknowledged: Arc<AtomicU64>) -> Result<Claims> {
        let mut claims = Claims::default();
        let mut in_flight = FuturesUnordered::new();
        loop {
            let flushing = end.flush.is_cancelled();
            if flushing && in_flight.is_empty() {
                break;
            }
            if !flushing && in_flight.len() < MAX_IN_FLIGHT {
                let numbers = self.next..self.next + self.rng.random_range(1..40);
                self.next = numbers.end;
                claims.unknown.extend(numbers.clone().map(|n| (self.id, n)));
                let append = self.log.append(rows(self.id, numbers.clone())?);
                let Some(appended) = end.drop.run_until_cancelled(append).await else {
                    break;
                };
                let appended = appended
                    .map_err(|error| format!("writer {}: {numbers:?}: {error:?}", self.id))?;
                in_flight.push(async move { (numbers, appended.wait().await) });
                continue;
            }
            let Some(Some((numbers, result))) =
                end.drop.run_until_cancelled(in_flight.next()).await
            else {
                break;
            };
            result.map_err(|error| format!("writer {}: {numbers:?}: {error:?}", self.id))?;
            acknowledged.fetch_add(1, Ordering::Relaxed);
            for n in numbers {
                claims.unknown.remove(&(self.id, n));
                claims.acknowledged.insert((self.id, n));
            }
        }
        Ok(claims)
    }
}
