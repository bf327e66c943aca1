//! A server in a temporary folder, and a connection that shows every byte.

use std::sync::Arc;
use std::time::Duration;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use bytes::{Bytes, BytesMut};
use prost::Message;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use weir_catalog::clock::SystemClock;
use weir_catalog::store::MetadataStore;
use weir_catalog::store::memory::MemoryStore;
use weir_protocol::descriptor::TableDescriptor;
use weir_protocol::error_code::ErrorCode;
use weir_protocol::frame::{self, Answer};
use weir_protocol::ids::{SchemaId, TablePath, WriterId};
use weir_protocol::message::Request;
use weir_protocol::proto::*;
use weir_protocol::record::arrow as arrow_batch;
use weir_protocol::schema::{Column, LogicalType, Schema, TypeKind};
use weir_server::{Components, RunningServer, Server, ServerConfig};

/// Longer than anything may take; never asserted on.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A folder and a metadata store that outlive the server.
pub(crate) struct Home {
    pub(crate) dir: TempDir,
    pub(crate) store: Arc<dyn MetadataStore>,
}

impl Home {
    pub(crate) fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            store: Arc::new(MemoryStore::default()),
        }
    }

    pub(crate) fn config(&self) -> ServerConfig {
        let mut config = ServerConfig::in_dir(self.dir.path());
        config.listen = "127.0.0.1:0".to_owned();
        config.log.flush = "interval(5)".parse().unwrap();
        config
    }

    pub(crate) async fn start(&self) -> RunningServer {
        self.start_with(self.config()).await
    }

    pub(crate) async fn start_with(&self, config: ServerConfig) -> RunningServer {
        Server::start(config, self.components()).await.unwrap()
    }

    pub(crate) fn components(&self) -> Components {
        Components {
            clock: Arc::new(SystemClock),
            store: Some(Arc::clone(&self.store)),
            ..Components::default()
        }
    }
}

/// An error answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) code: ErrorCode,
    pub(crate) message: String,
}

/// A connection in raw frames.
pub(crate) struct Wire {
    pub(crate) stream: TcpStream,
    next_id: i32,
}

impl Wire {
    pub(crate) async fn connect(address: &str) -> Self {
        Self {
            stream: TcpStream::connect(address).await.unwrap(),
            next_id: 0,
        }
    }

    /// To the coordinator of a server.
    pub(crate) async fn coordinator(server: &RunningServer) -> Self {
        Self::connect(&server.addr()).await
    }

    /// To its first tablet server.
    pub(crate) async fn tablet(server: &RunningServer) -> Self {
        Self::connect(&server.tablet_addrs()[0]).await
    }

    /// Sends a request without waiting; returns its id.
    pub(crate) async fn send<R: Request>(&mut self, version: i16, request: &R) -> i32 {
        self.send_raw(R::API_KEY.key(), version, &request.encode_to_vec())
            .await
    }

    pub(crate) async fn send_raw(&mut self, api_key: i16, version: i16, body: &[u8]) -> i32 {
        let id = self.next_id;
        self.next_id += 1;
        let mut bytes = Vec::new();
        bytes.extend(i32::try_from(8 + body.len()).unwrap().to_be_bytes());
        bytes.extend(api_key.to_be_bytes());
        bytes.extend(version.to_be_bytes());
        bytes.extend(id.to_be_bytes());
        bytes.extend(body);
        self.stream.write_all(&bytes).await.unwrap();
        id
    }

    /// The next answer, or `None` if the server closed the connection.
    pub(crate) async fn next(&mut self) -> Option<Answer> {
        let read = async {
            let length = self.stream.read_i32().await.ok()?;
            let mut bytes = BytesMut::zeroed(usize::try_from(length).unwrap());
            self.stream.read_exact(&mut bytes).await.ok()?;
            Some(frame::decode_answer(bytes.freeze()).unwrap())
        };
        tokio::time::timeout(PATIENCE, read)
            .await
            .expect("an answer or the end")
    }

    pub(crate) async fn call<R: Request>(&mut self, request: R) -> Result<R::Response, Refused> {
        let id = self.send(0, &request).await;
        self.answer::<R>(id).await
    }

    pub(crate) async fn call_raw(&mut self, api_key: i16, version: i16, body: &[u8]) -> Refused {
        let id = self.send_raw(api_key, version, body).await;
        match self.next().await.expect("an answer") {
            Answer::Error {
                request_id,
                code,
                message,
            } if request_id == id => Refused { code, message },
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn answer<R: Request>(&mut self, id: i32) -> Result<R::Response, Refused> {
        match self.next().await.expect("an answer") {
            Answer::Success { request_id, body } => {
                assert_eq!(request_id, id);
                Ok(R::Response::decode(body).unwrap())
            }
            Answer::Error {
                request_id,
                code,
                message,
            } => {
                assert_eq!(request_id, id);
                Err(Refused { code, message })
            }
            Answer::ServerFailure { .. } => panic!("type 2 is never sent"),
        }
    }
}

pub(crate) fn pb_path(path: &TablePath) -> PbTablePath {
    PbTablePath {
        database_name: path.database.clone(),
        table_name: path.table.clone(),
    }
}

/// `id BIGINT, name STRING`.
pub(crate) fn schema() -> Schema {
    let columns = vec![
        Column::new("id", LogicalType::nullable(TypeKind::BigInt)),
        Column::new("name", LogicalType::nullable(TypeKind::String)),
    ];
    Schema::new(columns, Vec::new()).unwrap()
}

pub(crate) fn descriptor(buckets: i32) -> TableDescriptor {
    let mut descriptor = TableDescriptor::new(schema());
    descriptor.bucket_count = Some(buckets);
    descriptor
}

/// Creates `db.NAME` and returns its path and id.
pub(crate) async fn create(
    server: &RunningServer,
    name: &str,
    descriptor: &TableDescriptor,
) -> (TablePath, i64) {
    let path = TablePath::new("db", name);
    let mut wire = Wire::coordinator(server).await;
    wire.call(CreateDatabaseRequest {
        database_name: "db".into(),
        ignore_if_exists: true,
        database_json: None,
    })
    .await
    .unwrap();
    wire.call(CreateTableRequest {
        table_path: pb_path(&path),
        table_json: descriptor.to_json().into(),
        ignore_if_exists: false,
    })
    .await
    .unwrap();
    let info = wire
        .call(GetTableInfoRequest {
            table_path: pb_path(&path),
        })
        .await
        .unwrap();
    (path, info.table_id)
}

/// Rows `ids`, named by their id.
pub(crate) fn rows(ids: std::ops::Range<i64>) -> RecordBatch {
    let names: StringArray = ids.clone().map(|id| Some(format!("row {id}"))).collect();
    let ids = Int64Array::from_iter_values(ids);
    let columns: Vec<ArrayRef> = vec![Arc::new(ids), Arc::new(names)];
    RecordBatch::try_new(schema().arrow_schema(), columns).unwrap()
}

pub(crate) fn batch(ids: std::ops::Range<i64>, writer: Option<(i64, i32)>) -> Bytes {
    batch_of(&rows(ids), 1, writer)
}

pub(crate) fn batch_of(rows: &RecordBatch, schema_id: i32, writer: Option<(i64, i32)>) -> Bytes {
    let (writer_id, sequence) = writer.unwrap_or((-1, -1));
    let plain = arrow_batch::Compression::None;
    arrow_batch::encode_append(
        SchemaId(schema_id),
        WriterId(writer_id),
        sequence,
        rows,
        plain,
    )
    .unwrap()
}

pub(crate) fn produce(table_id: i64, bucket_id: i32, records: Bytes) -> ProduceLogRequest {
    let bucket = PbProduceLogReqForBucket {
        bucket_id,
        records,
        ..Default::default()
    };
    ProduceLogRequest {
        acks: -1,
        table_id,
        timeout_ms: 20_000,
        buckets_req: vec![bucket],
    }
}

/// Appends and returns the base offset, or the bucket's error.
pub(crate) async fn append(wire: &mut Wire, request: ProduceLogRequest) -> Result<i64, Refused> {
    let response = wire.call(request).await?;
    let bucket = &response.buckets_resp[0];
    match bucket.error_code {
        None => Ok(bucket.base_offset.unwrap()),
        Some(code) => Err(refused(code, bucket.error_message.clone())),
    }
}

pub(crate) fn refused(code: i32, message: Option<String>) -> Refused {
    Refused {
        code: ErrorCode::from_code(code),
        message: message.unwrap_or_default(),
    }
}

pub(crate) fn fetch(table_id: i64, bucket_id: i32, fetch_offset: i64) -> FetchLogRequest {
    let bucket = PbFetchLogReqForBucket {
        bucket_id,
        fetch_offset,
        max_fetch_bytes: 1 << 20,
        ..Default::default()
    };
    FetchLogRequest {
        follower_server_id: -1,
        max_bytes: 1 << 24,
        tables_req: vec![PbFetchLogReqForTable {
            table_id,
            buckets_req: vec![bucket],
            ..Default::default()
        }],
        ..Default::default()
    }
}

/// Fetches one bucket.
pub(crate) async fn read(
    wire: &mut Wire,
    request: FetchLogRequest,
) -> Result<PbFetchLogRespForBucket, Refused> {
    let response = wire.call(request).await?;
    let bucket = response.tables_resp[0].buckets_resp[0].clone();
    match bucket.error_code {
        None => Ok(bucket),
        Some(code) => Err(refused(code, bucket.error_message)),
    }
}

/// The ids in fetched records of the table of [`schema`].
pub(crate) fn ids_of(records: Option<Bytes>) -> Vec<i64> {
    let mut ids = Vec::new();
    for batch in weir_protocol::record::batches(records.unwrap_or_default()) {
        let batch = batch.unwrap();
        let rows = arrow_batch::decode(&batch, &schema().arrow_schema())
            .unwrap()
            .batch;
        let column = rows
            .column(0)
            .as_any()
            .downcast_ref::<Int64Array>()
            .unwrap();
        ids.extend(column.values());
    }
    ids
}
