//! A cluster for tests: one server plays all roles over one mock, with logs, idempotence as the
//! protocol has it, partitions, and faults on demand.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::mock::{Call, Handler, MockServer, Reply, node};
use super::{Client, ClientConfig};
use crate::api_key::ApiKey;
use crate::descriptor::TableDescriptor;
use crate::error_code::ErrorCode;
use crate::ids::{BucketId, PartitionId, TableId};
use crate::ids::{LogOffset, TableBucket, TablePath};
use crate::partition::PartitionSpec;
use crate::proto;
use crate::record::{LogBatch, log_batch};

/// What goes wrong with one PRODUCE_LOG.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// Every bucket of it is refused with this code; nothing is stored.
    Refuse(ErrorCode),
    /// The connection ends before anything is stored.
    LoseRequest,
    /// It is stored, then the connection ends without an answer.
    LoseAnswer,
    /// It is stored and answered with this code.
    StoreAndSay(ErrorCode),
}

#[derive(Default)]
pub(crate) struct FakeLog {
    pub(crate) batches: Vec<LogBatch>,
    /// Per writer, the last five sequences and their base offsets.
    writers: BTreeMap<i64, VecDeque<(i32, i64)>>,
}

impl FakeLog {
    pub(crate) fn end(&self) -> LogOffset {
        self.batches
            .last()
            .map_or(LogOffset(0), LogBatch::next_offset)
    }

    /// Appends a batch as a leader does; the base offset of it, or of its first copy.
    fn append(&mut self, records: Bytes) -> Result<i64, ErrorCode> {
        let sent = LogBatch::parse(&mut records.clone()).map_err(|_| ErrorCode::CorruptRecord)?;
        sent.verify_crc().map_err(|_| ErrorCode::CorruptRecord)?;
        let (writer, sequence) = (sent.header.writer_id.0, sent.header.batch_sequence);
        let end = self.end();
        let seen = self.writers.entry(writer).or_default();
        if let Some((_, base)) = seen.iter().find(|(known, _)| *known == sequence) {
            return Ok(*base);
        }
        let expected = seen.back().map_or(0, |(last, _)| last + 1);
        if sequence != expected {
            return Err(ErrorCode::OutOfOrderSequence);
        }
        seen.push_back((sequence, end.0));
        if seen.len() > 5 {
            seen.pop_front();
        }
        let mut stored = BytesMut::from(&records[..]);
        log_batch::set_stored(&mut stored, end, 1).unwrap();
        self.batches
            .push(LogBatch::parse(&mut stored.freeze()).unwrap());
        Ok(end.0)
    }
}

pub(crate) struct FakePartition {
    pub(crate) id: i64,
    pub(crate) bucket_count: Option<i32>,
    /// GET_METADATA answers 36 this many times more.
    pub(crate) hidden: usize,
}

/// One PRODUCE_LOG entry as it came in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Produced {
    pub(crate) bucket: TableBucket,
    pub(crate) writer: i64,
    pub(crate) sequence: i32,
    pub(crate) routing_count: Option<i32>,
}

pub(crate) struct Fake {
    port: u16,
    pub(crate) path: TablePath,
    pub(crate) table_id: i64,
    pub(crate) descriptor: TableDescriptor,
    pub(crate) epoch: i64,
    pub(crate) partitions: BTreeMap<String, FakePartition>,
    pub(crate) logs: BTreeMap<TableBucket, FakeLog>,
    pub(crate) faults: VecDeque<Option<Fault>>,
    pub(crate) fetch_errors: BTreeMap<TableBucket, VecDeque<ErrorCode>>,
    pub(crate) produced: Vec<Produced>,
    pub(crate) next_writer: i64,
    pub(crate) hidden_after_create: usize,
    pub(crate) count_after_create: Option<i32>,
    next_partition: i64,
}

impl Fake {
    pub(crate) fn bucket(&self, bucket: i32) -> TableBucket {
        let table = TableId(self.table_id);
        TableBucket {
            table,
            partition: None,
            bucket: BucketId(bucket),
        }
    }

    fn buckets(count: i32) -> Vec<proto::PbBucketMetadata> {
        let bucket = |bucket_id| proto::PbBucketMetadata {
            bucket_id,
            leader_id: Some(0),
            ..Default::default()
        };
        (0..count).map(bucket).collect()
    }

    fn metadata(
        &mut self,
        request: &proto::MetadataRequest,
    ) -> Result<proto::MetadataResponse, ErrorCode> {
        let node = node(0, self.port);
        let mut answer = proto::MetadataResponse {
            coordinator_server: Some(node.clone()),
            tablet_servers: vec![node],
            ..Default::default()
        };
        let table_count = self.descriptor.bucket_count.unwrap_or(1);
        for path in &request.table_path {
            if path.table_name != self.path.table {
                return Err(ErrorCode::TableNotExist);
            }
            let partitioned = self.descriptor.is_partitioned();
            answer.table_metadata.push(proto::PbTableMetadata {
                table_path: path.clone(),
                table_id: self.table_id,
                schema_id: 1,
                table_json: self.descriptor.to_json().into(),
                bucket_metadata: Self::buckets(if partitioned { 0 } else { table_count }),
                bucket_count_epoch: Some(self.epoch),
                ..Default::default()
            });
        }
        let by_id = |id: &i64| {
            let found = self
                .partitions
                .iter()
                .find(|(_, partition)| partition.id == *id);
            found.map(|(name, _)| name.clone()).unwrap_or_default()
        };
        let by_path = request
            .partitions_path
            .iter()
            .filter_map(|path| path.partition_name.clone());
        let names: Vec<String> = by_path
            .chain(request.partitions_id.iter().map(by_id))
            .collect();
        for name in names {
            let partition = self
                .partitions
                .get_mut(&name)
                .ok_or(ErrorCode::PartitionNotExists)?;
            if partition.hidden > 0 {
                partition.hidden -= 1;
                return Err(ErrorCode::PartitionNotExists);
            }
            let (id, own) = (partition.id, partition.bucket_count);
            answer.partition_metadata.push(proto::PbPartitionMetadata {
                table_id: self.table_id,
                partition_name: name,
                partition_id: id,
                bucket_metadata: Self::buckets(own.unwrap_or(table_count)),
                bucket_count: own,
            });
        }
        Ok(answer)
    }

    fn create_partition(&mut self, request: &proto::CreatePartitionRequest) {
        let pairs = request.partition_spec.partition_key_values.iter();
        let spec = PartitionSpec(pairs.map(|p| (p.key.clone(), p.value.clone())).collect());
        self.next_partition += 1;
        let partition = FakePartition {
            id: self.next_partition,
            bucket_count: self.count_after_create,
            hidden: self.hidden_after_create,
        };
        self.partitions.entry(spec.name()).or_insert(partition);
    }

    fn produce(&mut self, call: &Call) -> Reply {
        let request = call.read::<proto::ProduceLogRequest>();
        let fault = self.faults.pop_front().flatten();
        if let Some(Fault::LoseRequest) = fault {
            return Reply::Close;
        }
        let table = TableId(request.table_id);
        let mut answer = proto::ProduceLogResponse::default();
        for entry in request.buckets_req {
            let partition = entry.partition_id.map(PartitionId);
            let bucket = TableBucket {
                table,
                partition,
                bucket: BucketId(entry.bucket_id),
            };
            let batch = LogBatch::parse(&mut entry.records.clone()).unwrap();
            self.produced.push(Produced {
                bucket,
                writer: batch.header.writer_id.0,
                sequence: batch.header.batch_sequence,
                routing_count: entry.routing_bucket_count,
            });
            let result = match fault {
                Some(Fault::Refuse(code)) => Err(code),
                _ => self.logs.entry(bucket).or_default().append(entry.records),
            };
            let result = match fault {
                Some(Fault::StoreAndSay(code)) => Err(code),
                _ => result,
            };
            answer.buckets_resp.push(proto::PbProduceLogRespForBucket {
                partition_id: entry.partition_id,
                bucket_id: entry.bucket_id,
                error_code: result.err().map(ErrorCode::code),
                base_offset: result.ok(),
                ..Default::default()
            });
        }
        match fault {
            Some(Fault::LoseAnswer) => Reply::Close,
            _ => call.ok(&answer),
        }
    }

    fn fetch(&mut self, request: &proto::FetchLogRequest) -> proto::FetchLogResponse {
        let mut answer = proto::FetchLogResponse::default();
        for table in &request.tables_req {
            let mut buckets_resp = Vec::new();
            for entry in &table.buckets_req {
                let partition = entry.partition_id.map(PartitionId);
                let table = TableId(table.table_id);
                let bucket = TableBucket {
                    table,
                    partition,
                    bucket: BucketId(entry.bucket_id),
                };
                let error = self
                    .fetch_errors
                    .get_mut(&bucket)
                    .and_then(VecDeque::pop_front);
                let log = self.logs.entry(bucket).or_default();
                let past = entry.fetch_offset > log.end().0;
                let error = error.or(past.then_some(ErrorCode::LogOffsetOutOfRange));
                let mut records = BytesMut::new();
                for batch in &log.batches {
                    let limit = usize::try_from(entry.max_fetch_bytes).unwrap();
                    if batch.next_offset().0 > entry.fetch_offset
                        && (records.is_empty() || records.len() + batch.bytes.len() <= limit)
                        && error.is_none()
                    {
                        records.extend_from_slice(&batch.bytes);
                    }
                }
                buckets_resp.push(proto::PbFetchLogRespForBucket {
                    partition_id: entry.partition_id,
                    bucket_id: entry.bucket_id,
                    error_code: error.map(ErrorCode::code),
                    high_watermark: Some(log.end().0),
                    records: (!records.is_empty()).then(|| records.freeze()),
                    ..Default::default()
                });
            }
            let table_id = table.table_id;
            answer.tables_resp.push(proto::PbFetchLogRespForTable {
                table_id,
                buckets_resp,
            });
        }
        answer
    }
}

/// Whether an answer to a fetch is worth sending before the wait is over.
fn has_news(answer: &proto::FetchLogResponse) -> bool {
    let buckets = answer
        .tables_resp
        .iter()
        .flat_map(|table| &table.buckets_resp);
    buckets
        .into_iter()
        .any(|bucket| bucket.error_code.is_some() || bucket.records.is_some())
}

/// The fake, its mock and a client of it.
pub(crate) struct FakeCluster {
    pub(crate) state: Arc<Mutex<Fake>>,
    pub(crate) server: MockServer,
    pub(crate) client: Client,
    /// PRODUCE_LOG is answered only while this is true.
    pub(crate) answers: watch::Sender<bool>,
    /// GET_METADATA is answered only while this is true.
    pub(crate) metadata_answers: watch::Sender<bool>,
}

impl FakeCluster {
    pub(crate) async fn start(descriptor: TableDescriptor) -> Self {
        let state = Arc::new(Mutex::new(Fake {
            port: 0,
            path: TablePath::new("fluss", "t"),
            table_id: 11,
            descriptor,
            epoch: 0,
            partitions: BTreeMap::new(),
            logs: BTreeMap::new(),
            faults: VecDeque::new(),
            fetch_errors: BTreeMap::new(),
            produced: Vec::new(),
            next_writer: 70,
            hidden_after_create: 0,
            count_after_create: None,
            next_partition: 100,
        }));
        let (changes, news_of) = watch::channel(());
        let (answers, open_gate) = watch::channel(true);
        let (metadata_answers, metadata_gate) = watch::channel(true);
        let fake = Arc::clone(&state);
        let handler: Handler = Arc::new(move |call| {
            // In the order of arrival: before the future is polled.
            let fetch = call.api == ApiKey::FetchLog;
            let reply = if fetch {
                Reply::Silence
            } else {
                answer(&mut fake.lock(), &call)
            };
            changes.send_replace(());
            let (fake, mut changed) = (Arc::clone(&fake), news_of.clone());
            let gate = match call.api {
                ApiKey::ProduceLog => Some(open_gate.clone()),
                ApiKey::GetMetadata => Some(metadata_gate.clone()),
                _ => None,
            };
            Box::pin(async move {
                if let Some(mut gate) = gate {
                    gate.wait_for(|may| *may).await.ok();
                }
                if !fetch {
                    return reply;
                }
                let request = call.read::<proto::FetchLogRequest>();
                let wait = u64::try_from(request.max_wait_ms.unwrap_or(0)).unwrap();
                let news = async {
                    loop {
                        changed.borrow_and_update();
                        let answer = fake.lock().fetch(&request);
                        if has_news(&answer) {
                            return answer;
                        }
                        changed.changed().await.ok();
                    }
                };
                let answer = tokio::time::timeout(Duration::from_millis(wait), news).await;
                let answer = answer.unwrap_or_else(|_| fake.lock().fetch(&request));
                call.ok(&answer)
            })
        });
        let server = MockServer::start(handler).await;
        state.lock().port = server.port;
        let mut config = ClientConfig::new([server.address()]);
        config.first_backoff = Duration::from_millis(2);
        config.retry_timeout = Duration::from_secs(20);
        let client = Client::connect(config).await.unwrap();
        Self {
            state,
            server,
            client,
            answers,
            metadata_answers,
        }
    }

    pub(crate) fn path(&self) -> TablePath {
        self.state.lock().path.clone()
    }
}

fn answer(fake: &mut Fake, call: &Call) -> Reply {
    match call.api {
        ApiKey::GetMetadata => match fake.metadata(&call.read()) {
            Ok(answer) => call.ok(&answer),
            Err(code) => call.fail(code),
        },
        ApiKey::InitWriter => {
            fake.next_writer += 1;
            call.ok(&proto::InitWriterResponse {
                writer_id: fake.next_writer,
            })
        }
        ApiKey::CreatePartition => {
            fake.create_partition(&call.read());
            call.ok(&proto::CreatePartitionResponse {})
        }
        ApiKey::ProduceLog => fake.produce(call),
        _ => call.fail(ErrorCode::UnsupportedVersion),
    }
}
