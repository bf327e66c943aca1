//! Reads of many buckets at once, waiting for data if there is not enough.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout_at};
use weir_protocol::error_code::ErrorCode;
use weir_protocol::ids::{LogOffset, SchemaId, TableBucket, TableId};
use weir_protocol::record::{LogBatch, arrow};

use super::{Replica, TabletServer, on_blocking_thread};
use crate::error::Error;
use crate::memory::give_back_beyond;

/// Asks for the log from its first offset that is held.
const EARLIEST: i64 = -2;

/// Which columns of a table's batches are wanted.
#[derive(Clone, Debug)]
pub(crate) enum Columns {
    All,
    /// Indexes into the table's columns, rising.
    Some(Arc<[i32]>),
}

/// One bucket of a fetch.
#[derive(Clone, Debug)]
pub(crate) struct FetchBucket {
    pub(crate) bucket: TableBucket,
    pub(crate) offset: i64,
    pub(crate) max_bytes: usize,
    pub(crate) routing_bucket_count: Option<i32>,
    pub(crate) columns: Columns,
}

/// A whole fetch.
#[derive(Debug)]
pub(crate) struct FetchRequest {
    pub(crate) buckets: Vec<FetchBucket>,
    pub(crate) max_bytes: usize,
    /// Fewer bytes than this are worth waiting for more; `None` never waits.
    pub(crate) min_bytes: Option<usize>,
    pub(crate) max_wait: Duration,
}

/// What a bucket gave.
#[derive(Debug)]
pub(crate) struct Fetched {
    /// Whole batches; the first contains the offset asked for.
    pub(crate) records: Bytes,
    /// The first offset that is held.
    pub(crate) start: LogOffset,
    pub(crate) high_watermark: LogOffset,
}

/// What all buckets gave, in the order they were asked for.
#[derive(Debug)]
pub(crate) struct FetchAnswer {
    pub(crate) buckets: Vec<Result<Fetched, Error>>,
    /// Given back once the answer is sent.
    pub(crate) memory: Option<OwnedSemaphorePermit>,
}

impl TabletServer {
    /// Reads all buckets, in the order given.
    ///
    /// Returns once there are `min_bytes`, or a bucket failed in a way that waiting does not heal, or
    /// `max_wait` has passed. Nothing is read, and no memory taken, while there is nothing to read.
    /// Cancel-safe: it changes nothing.
    pub(crate) async fn fetch(
        self: &Arc<Self>,
        request: FetchRequest,
    ) -> Result<FetchAnswer, Error> {
        let deadline = Instant::now() + request.max_wait;
        let request = Arc::new(request);
        let mut schemas = BTreeMap::new();
        let mut is_last = request.min_bytes.is_none();
        loop {
            let mut changes = self.high_watermarks(&request);
            if is_last || self.is_worth_reading(&request) {
                let answer = self.read(&request, &mut schemas).await?;
                if is_last || is_enough(&request, &answer.buckets) {
                    let bytes = u64::try_from(answer.bytes()).unwrap_or(0);
                    self.parts.metrics.fetched_bytes.inc_by(bytes);
                    return Ok(answer);
                }
            }
            let changed = async {
                if changes.next().await.is_none() {
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                woken = timeout_at(deadline, changed) => is_last = woken.is_err(),
                () = self.parts.shutdown.begun() => is_last = true,
            }
        }
    }

    /// Whether there may be enough to give, or some bucket fails in a way that waiting does not heal.
    /// Looks at no disk.
    fn is_worth_reading(&self, request: &FetchRequest) -> bool {
        let wide = |bytes: usize| u64::try_from(bytes).unwrap_or(u64::MAX);
        let mut bytes = 0_u64;
        for asked in &request.buckets {
            let position = match self.position(asked) {
                Ok(position) => position,
                Err(error) if is_final(&error) => return true,
                Err(_) => continue,
            };
            if position.from >= position.high_watermark {
                continue;
            }
            let there = position.replica.log().bytes_from(position.from);
            bytes = bytes.saturating_add(there);
            let is_full = there >= wide(asked.max_bytes) || bytes >= wide(request.max_bytes);
            if is_full || request.min_bytes.is_none_or(|min| bytes >= wide(min)) {
                return true;
            }
        }
        false
    }

    /// Reads with memory for the whole answer taken before. Where batches turn out larger than what was asked
    /// for, what was read is given up first: nobody waits for memory while holding some.
    async fn read(
        self: &Arc<Self>,
        request: &Arc<FetchRequest>,
        schemas: &mut Schemas,
    ) -> Result<FetchAnswer, Error> {
        self.load_schemas(request, schemas).await;
        let wanted: usize = request.buckets.iter().map(|asked| asked.max_bytes).sum();
        let mut room = wanted.min(request.max_bytes);
        let mut most = room;
        loop {
            let mut memory = self.answers.reserve(room).await;
            let (server, asked, known) = (Arc::clone(self), Arc::clone(request), schemas.clone());
            let read = move || server.read_all(&asked, &known, most);
            let ReadAll { buckets, needed } = on_blocking_thread(&self.reads, read).await?;
            if let Some(needed) = needed {
                (room, most) = (needed, usize::MAX);
                continue;
            }
            let mut answer = FetchAnswer {
                buckets,
                memory: None,
            };
            if let Some(memory) = &mut memory {
                give_back_beyond(memory, answer.bytes());
            }
            answer.memory = memory;
            return Ok(answer);
        }
    }

    /// Futures that end when the high watermark of a bucket moves.
    fn high_watermarks(
        &self,
        request: &FetchRequest,
    ) -> FuturesUnordered<impl Future<Output = ()> + use<>> {
        let leader = |asked: &FetchBucket| {
            let replica = self
                .leader_for(asked.bucket, asked.routing_bucket_count)
                .ok()?;
            let mut moved = replica.watch();
            Some(async move {
                // A log that is closed meanwhile is seen by the next read.
                let _stopped = moved.changed().await;
            })
        };
        request.buckets.iter().filter_map(leader).collect()
    }

    /// Reads all buckets, no more than `most` bytes in all.
    fn read_all(&self, request: &FetchRequest, schemas: &Schemas, most: usize) -> ReadAll {
        let mut left = request.max_bytes;
        let mut read_bytes = 0_usize;
        let mut left_out_bytes = 0_usize;
        let mut buckets = Vec::with_capacity(request.buckets.len());
        for asked in &request.buckets {
            // At least one batch is returned, however large, as long as there is anything left.
            let max_bytes = if left == 0 {
                0
            } else {
                asked.max_bytes.min(left).max(1)
            };
            let limits = (max_bytes, most.saturating_sub(read_bytes));
            let result = self.read_one(asked, limits, schemas).map(|one| {
                left = left.saturating_sub(one.read_bytes);
                read_bytes = read_bytes.saturating_add(one.read_bytes);
                left_out_bytes = left_out_bytes.saturating_add(one.left_out_bytes);
                one.fetched
            });
            buckets.push(result);
        }
        let needed = (left_out_bytes > 0).then(|| read_bytes.saturating_add(left_out_bytes));
        ReadAll { buckets, needed }
    }

    /// Where a bucket is read, if it may be.
    fn position(&self, asked: &FetchBucket) -> Result<Position, Error> {
        let bucket = asked.bucket;
        let replica = self.leader_for(bucket, asked.routing_bucket_count)?;
        let high_watermark = replica.high_watermark();
        let start = replica.start_offset();
        let from = if asked.offset == EARLIEST {
            start
        } else {
            LogOffset(asked.offset)
        };
        let end = replica.end_offset();
        if from < start || from > end {
            return Err(Error::OffsetOutOfRange {
                bucket,
                offset: from,
                start,
                end,
            });
        }
        if let Columns::Some(fields) = &asked.columns {
            check_projection(&replica, fields)?;
        }
        Ok(Position {
            replica,
            start,
            from,
            high_watermark,
        })
    }

    fn read_one(
        &self,
        asked: &FetchBucket,
        limits: (usize, usize),
        schemas: &Schemas,
    ) -> Result<ReadOne, Error> {
        let Position {
            replica,
            start,
            from,
            high_watermark,
        } = self.position(asked)?;
        let mut one = ReadOne {
            fetched: Fetched {
                records: Bytes::new(),
                start,
                high_watermark,
            },
            read_bytes: 0,
            left_out_bytes: 0,
        };
        if from >= high_watermark || limits.0 == 0 {
            return Ok(one);
        }
        let read = replica.read_at_most(from, limits, high_watermark)?;
        one.read_bytes = read.batches.len();
        one.left_out_bytes = read.left_out_bytes.unwrap_or(0);
        one.fetched.records = match &asked.columns {
            Columns::All => read.batches,
            Columns::Some(fields) => project(&replica, read.batches, fields, schemas)?,
        };
        Ok(one)
    }

    /// All schemas of the tables whose columns are chosen; one that is new is looked up.
    async fn load_schemas(&self, request: &FetchRequest, schemas: &mut Schemas) {
        for asked in &request.buckets {
            let Columns::Some(_) = asked.columns else {
                continue;
            };
            let Ok(replica) = self.leader_for(asked.bucket, asked.routing_bucket_count) else {
                continue;
            };
            let table = asked.bucket.table;
            for id in 1..=replica.table.latest_schema().0 {
                let key = (table, SchemaId(id));
                if schemas.contains_key(&key) {
                    continue;
                }
                match replica
                    .table
                    .arrow_schema(&self.parts.reads, SchemaId(id))
                    .await
                {
                    Ok(schema) => {
                        schemas.insert(key, schema);
                    }
                    Err(error) => tracing::warn!(%table, id, %error, "cannot load a schema"),
                }
            }
        }
    }
}

type Schemas = BTreeMap<(TableId, SchemaId), ::arrow::datatypes::SchemaRef>;

/// What all buckets gave.
struct ReadAll {
    buckets: Vec<Result<Fetched, Error>>,
    /// How many bytes it would take to leave no bucket out.
    needed: Option<usize>,
}

/// What one bucket gave, and how large that was before columns were chosen.
struct ReadOne {
    fetched: Fetched,
    read_bytes: usize,
    left_out_bytes: usize,
}

struct Position {
    replica: Arc<Replica>,
    start: LogOffset,
    from: LogOffset,
    high_watermark: LogOffset,
}

impl FetchAnswer {
    fn bytes(&self) -> usize {
        self.buckets
            .iter()
            .flatten()
            .map(|fetched| fetched.records.len())
            .sum()
    }
}

/// Whether an answer is due now.
fn is_enough(request: &FetchRequest, read: &[Result<Fetched, Error>]) -> bool {
    let bytes: usize = read
        .iter()
        .flatten()
        .map(|fetched| fetched.records.len())
        .sum();
    let failed = read
        .iter()
        .filter_map(|one| one.as_ref().err())
        .any(is_final);
    failed || request.min_bytes.is_none_or(|min_bytes| bytes >= min_bytes)
}

/// Whether waiting does not heal an error. One that a metadata refresh heals does not end a wait
/// for other buckets.
fn is_final(error: &Error) -> bool {
    let code = ErrorCode::from(error);
    !matches!(
        code,
        ErrorCode::NotLeaderOrFollower | ErrorCode::UnknownTableOrBucket
    )
}

fn check_projection(replica: &Replica, fields: &[i32]) -> Result<(), Error> {
    let refuse = |reason: &str| Error::InvalidProjection {
        table: replica.bucket.table,
        fields: fields.to_vec(),
        reason: reason.to_owned(),
    };
    if !replica.table.is_arrow() {
        return Err(refuse("the table's log format is not ARROW"));
    }
    if fields.is_empty() {
        return Err(refuse("no column is chosen"));
    }
    if fields.iter().any(|field| *field < 0) {
        return Err(refuse("an index is negative"));
    }
    if fields.windows(2).any(|pair| pair.first() >= pair.get(1)) {
        return Err(refuse("the indexes do not rise"));
    }
    Ok(())
}

fn project(
    replica: &Replica,
    records: Bytes,
    fields: &[i32],
    schemas: &Schemas,
) -> Result<Bytes, Error> {
    let table = replica.bucket.table;
    let bucket = replica.bucket;
    let refuse = |reason: String| Error::InvalidProjection {
        table,
        fields: fields.to_vec(),
        reason,
    };
    let chosen: Vec<usize> = fields
        .iter()
        .filter_map(|field| usize::try_from(*field).ok())
        .collect();
    let mut rest = records;
    let mut projected = bytes::BytesMut::new();
    while !rest.is_empty() {
        let broken = |source| Error::StoredBatch { bucket, source };
        let batch = LogBatch::parse(&mut rest).map_err(broken)?;
        let id = batch.header.schema_id;
        let latest = replica.table.latest_schema();
        let schema = |id: SchemaId| {
            schemas.get(&(table, id)).ok_or(Error::UnknownSchema {
                bucket,
                schema: id.0,
                latest,
            })
        };
        // Columns count as in the newest schema, whichever the batch was written under.
        let (written, newest) = (schema(id)?, schema(latest)?);
        let one =
            arrow::project(&batch, written, newest, &chosen).map_err(|error| match error {
                weir_protocol::Error::Projection { .. } => refuse(error.to_string()),
                other => broken(other),
            })?;
        projected.extend_from_slice(&one);
    }
    Ok(projected.freeze())
}
