//! A connection that sends whatever bytes a test likes.

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use weir_protocol::frame::{self, Answer};
use weir_protocol::ids::{SchemaId, TableId};
use weir_protocol::message::Request;
use weir_protocol::proto::{
    PbProduceLogReqForBucket, PbProduceLogRespForBucket, ProduceLogRequest,
};
use weir_protocol::record::BatchIdentity;
use weir_protocol::record::log_batch::encode_empty;

use crate::cluster::PATIENCE;

/// A raw connection; requests are numbered from 1.
#[derive(Debug)]
pub struct Wire {
    stream: TcpStream,
    next_id: i32,
}

/// The body of an answer, or the code and message of a refusal.
pub type Outcome<T> = Result<T, (i32, String)>;

impl Wire {
    /// Connects to a listener.
    pub async fn connect(address: &str) -> Self {
        let stream = TcpStream::connect(address)
            .await
            .expect("the listener is there");
        Self { stream, next_id: 1 }
    }

    /// Sends bytes as they are.
    pub async fn send_raw(&mut self, bytes: &[u8]) {
        // A peer that has hung up is what some tests wait for: the next read tells.
        let _ = self.stream.write_all(bytes).await;
    }

    /// The next answer frame; `None` once the peer has closed the connection.
    pub async fn next_answer(&mut self) -> Option<Answer> {
        let read = async {
            let length = self.stream.read_i32().await.ok()?;
            let mut frame = vec![0; usize::try_from(length).expect("a length")];
            self.stream.read_exact(&mut frame).await.ok()?;
            Some(frame::decode_answer(frame.into()).expect("an answer frame"))
        };
        timeout(PATIENCE, read)
            .await
            .expect("an answer or an end comes")
    }

    /// Sends a body under any key and version, and waits for the answer to it.
    pub async fn call_raw(&mut self, key: i16, version: i16, body: &[u8]) -> Outcome<Bytes> {
        let id = self.next_id;
        self.next_id += 1;
        let mut request = BytesMut::new();
        request.put_i32(i32::try_from(8 + body.len()).expect("a short body"));
        request.put_i16(key);
        request.put_i16(version);
        request.put_i32(id);
        request.put_slice(body);
        self.send_raw(&request).await;
        match self.next_answer().await.expect("the connection lives on") {
            Answer::Success { request_id, body } => {
                assert_eq!(request_id, id);
                Ok(body)
            }
            Answer::Error {
                request_id,
                code,
                message,
            } => {
                assert_eq!(request_id, id);
                Err((code.code(), message))
            }
            Answer::ServerFailure { code, message } => panic!("{code}: {message}"),
        }
    }

    /// Sends a request in the oldest version of its API, and waits for its answer.
    pub async fn call<R: Request>(&mut self, request: &R) -> Outcome<R::Response> {
        let (version, _) = R::API_KEY.versions();
        let body = self
            .call_raw(R::API_KEY.key(), version, &request.encode_to_vec())
            .await?;
        Ok(R::Response::decode(body).expect("the answer's message"))
    }
}

/// A produce request of one bucket of an unpartitioned table, `acks` −1.
pub fn produce_request(table: TableId, bucket: i32, records: Bytes) -> ProduceLogRequest {
    let bucket = PbProduceLogReqForBucket {
        bucket_id: bucket,
        records,
        ..PbProduceLogReqForBucket::default()
    };
    ProduceLogRequest {
        acks: -1,
        table_id: table.0,
        timeout_ms: 10_000,
        buckets_req: vec![bucket],
    }
}

/// What became of the one bucket of a [`produce_request`]: the base offset, or the error's code and
/// message.
pub async fn produce(wire: &mut Wire, request: &ProduceLogRequest) -> Outcome<i64> {
    let answer = wire.call(request).await?;
    assert_eq!(answer.buckets_resp.len(), 1, "{answer:?}");
    bucket_outcome(&answer.buckets_resp[0])
}

/// The base offset of one bucket of an answer, or the error's code and message.
pub fn bucket_outcome(bucket: &PbProduceLogRespForBucket) -> Outcome<i64> {
    match bucket.error_code.unwrap_or(0) {
        0 => Ok(bucket.base_offset.expect("an appended batch has an offset")),
        code => Err((code, bucket.error_message.clone().unwrap_or_default())),
    }
}

/// Appends `count` batches without rows to bucket 0; the offset of the first.
pub async fn produce_empty(wire: &mut Wire, table: TableId, count: usize) -> i64 {
    let mut first = None;
    for _ in 0..count {
        let id = BatchIdentity::anonymous(SchemaId(1));
        let records = encode_empty(id).expect("a batch without rows");
        let offset = produce(wire, &produce_request(table, 0, records))
            .await
            .expect("an offset");
        first.get_or_insert(offset);
    }
    first.expect("at least one batch")
}
