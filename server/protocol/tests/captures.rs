//! Frames that real clients and a real server exchanged, read by our messages and written again.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests"
)]

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use prost::Message;
use serde_json::Value;
use tokio_util::codec::Decoder;
use weir_protocol::api_key::ApiKey;
use weir_protocol::frame::{self, Answer, FrameCodec};
use weir_protocol::message::Request;
use weir_protocol::proto;
use weir_protocol::record::batches;

const SESSIONS: [&str; 5] = [
    "java-0.9.1",
    "java-1.0.0",
    "fluss-rs-1.0.0",
    "pyfluss-1.0.0",
    "flink-tiering-0.9.1",
];

/// One line of `index.jsonl` with the frame's bytes.
struct Captured {
    request: bool,
    api: ApiKey,
    id: i64,
    bytes: Bytes,
    name: String,
}

fn session(name: &str) -> Vec<Captured> {
    let folder = format!(
        "{}/tests/golden/captures/{name}",
        env!("CARGO_MANIFEST_DIR")
    );
    let read = |file: &str| Bytes::from(std::fs::read(format!("{folder}/{file}")).unwrap());
    let (requests, answers) = (read("c2s.bin"), read("s2c.bin"));
    let index = read("index.jsonl");
    let mut frames = Vec::new();
    for line in std::str::from_utf8(&index).unwrap().lines() {
        let entry: Value = serde_json::from_str(line).unwrap();
        let number = |key: &str| entry[key].as_i64().unwrap();
        let request = entry["dir"] == "c2s";
        let from = usize::try_from(number("off")).unwrap();
        let length = usize::try_from(number("len")).unwrap();
        let bytes = if request { &requests } else { &answers }.slice(from..from + length);
        let api = ApiKey::from_key(i16::try_from(number("api")).unwrap()).unwrap();
        let name = format!("{name} frame {} {}", number("n"), api.name());
        frames.push(Captured {
            request,
            api,
            id: number("id"),
            bytes,
            name,
        });
    }
    frames
}

fn cut(captured: &Captured) -> Bytes {
    let mut source = BytesMut::from(&captured.bytes[..]);
    let frame = FrameCodec::default()
        .decode(&mut source)
        .unwrap()
        .expect("a whole frame");
    assert!(source.is_empty(), "{}", captured.name);
    frame
}

/// Reads a body as `M` and writes it again; `None` if it is the same, else what we would write.
fn rewrite<M: Message + Default + PartialEq>(body: &Bytes, name: &str) -> Option<Bytes> {
    let message = M::decode(body.clone()).unwrap_or_else(|e| panic!("{name}: {e}"));
    let written = Bytes::from(message.encode_to_vec());
    let again = M::decode(written.clone()).unwrap();
    assert!(again == message, "{name}: what we write means the same");
    (written != body).then_some(written)
}

type Rewrite = fn(&Bytes, &str) -> Option<Bytes>;

/// How bodies of an API's requests and answers are read and written.
fn codecs() -> BTreeMap<ApiKey, (Rewrite, Rewrite)> {
    fn of<R: Request + PartialEq>() -> (ApiKey, (Rewrite, Rewrite))
    where
        R::Response: PartialEq,
    {
        (
            R::API_KEY,
            (rewrite::<R> as Rewrite, rewrite::<R::Response> as Rewrite),
        )
    }
    [
        of::<proto::ApiVersionsRequest>(),
        of::<proto::CreateDatabaseRequest>(),
        of::<proto::DropDatabaseRequest>(),
        of::<proto::ListDatabasesRequest>(),
        of::<proto::DatabaseExistsRequest>(),
        of::<proto::GetDatabaseInfoRequest>(),
        of::<proto::CreateTableRequest>(),
        of::<proto::AlterTableRequest>(),
        of::<proto::DropTableRequest>(),
        of::<proto::GetTableInfoRequest>(),
        of::<proto::ListTablesRequest>(),
        of::<proto::TableExistsRequest>(),
        of::<proto::GetTableSchemaRequest>(),
        of::<proto::ListPartitionInfosRequest>(),
        of::<proto::CreatePartitionRequest>(),
        of::<proto::DropPartitionRequest>(),
        of::<proto::MetadataRequest>(),
        of::<proto::ProduceLogRequest>(),
        of::<proto::FetchLogRequest>(),
        of::<proto::PutKvRequest>(),
        of::<proto::LookupRequest>(),
        of::<proto::PrefixLookupRequest>(),
        of::<proto::LimitScanRequest>(),
        of::<proto::ListOffsetsRequest>(),
        of::<proto::InitWriterRequest>(),
        of::<proto::GetLatestKvSnapshotsRequest>(),
        of::<proto::GetKvSnapshotMetadataRequest>(),
        of::<proto::GetFileSystemSecurityTokenRequest>(),
        of::<proto::GetLakeSnapshotRequest>(),
        of::<proto::LakeTieringHeartbeatRequest>(),
        of::<proto::PrepareLakeTableSnapshotRequest>(),
        of::<proto::CommitLakeTableSnapshotRequest>(),
        of::<proto::DescribeClusterConfigsRequest>(),
        of::<proto::AlterClusterConfigsRequest>(),
        of::<proto::GetTableStatsRequest>(),
        of::<proto::ListAclsRequest>(),
    ]
    .into()
}

/// APIs whose bytes differ where the peer writes an empty packed field, which we leave out.
const EMPTY_PACKED: [ApiKey; 4] = [
    ApiKey::GetMetadata,
    ApiKey::PutKv,
    ApiKey::FetchLog,
    ApiKey::GetTableStats,
];

#[test]
fn every_captured_frame_is_read_and_written_again() {
    let codecs = codecs();
    for session_name in SESSIONS {
        for captured in session(session_name) {
            let name = &captured.name;
            let (request_codec, answer_codec) = codecs
                .get(&captured.api)
                .unwrap_or_else(|| panic!("{name}: no codec"));
            let (body, rewritten) = if captured.request {
                let header = frame::decode_request(cut(&captured)).unwrap();
                assert_eq!(header.api_key, captured.api.key(), "{name}");
                assert_eq!(i64::from(header.request_id), captured.id, "{name}");
                let rewritten = request_codec(&header.body, name);
                (header.body, rewritten)
            } else {
                match frame::decode_answer(cut(&captured)).unwrap() {
                    Answer::Success { request_id, body } => {
                        assert_eq!(i64::from(request_id), captured.id, "{name}");
                        let rewritten = answer_codec(&body, name);
                        (body, rewritten)
                    }
                    Answer::Error {
                        request_id,
                        code,
                        message,
                    } => {
                        let written = frame::encode_error(request_id, code, &message);
                        assert_eq!(written, captured.bytes, "{name}");
                        continue;
                    }
                    Answer::ServerFailure { .. } => panic!("{name}: no session has one"),
                }
            };
            if let Some(written) = rewritten {
                assert!(
                    EMPTY_PACKED.contains(&captured.api),
                    "{name}: {body:?} != {written:?}"
                );
                let left_out = body.len() - written.len();
                assert!(
                    left_out > 0 && left_out.is_multiple_of(2),
                    "{name}: {left_out} bytes"
                );
            }
        }
    }
}

#[test]
fn every_captured_log_batch_parses_and_holds_its_checksum() {
    let mut count = 0;
    for session_name in SESSIONS {
        for captured in session(session_name) {
            let name = &captured.name;
            let mut records = Vec::new();
            if captured.request && captured.api == ApiKey::ProduceLog {
                let body = frame::decode_request(cut(&captured)).unwrap().body;
                let request = proto::ProduceLogRequest::decode(body).unwrap();
                records.extend(request.buckets_req.into_iter().map(|bucket| bucket.records));
            } else if !captured.request
                && captured.api == ApiKey::FetchLog
                && let Answer::Success { body, .. } = frame::decode_answer(cut(&captured)).unwrap()
            {
                let answer = proto::FetchLogResponse::decode(body).unwrap();
                let buckets = answer
                    .tables_resp
                    .into_iter()
                    .flat_map(|table| table.buckets_resp);
                records.extend(buckets.filter_map(|bucket| bucket.records));
            }
            for batch in records.into_iter().flat_map(batches) {
                let batch = batch.unwrap_or_else(|e| panic!("{name}: {e}"));
                // Projected fetches hold stale checksums by design.
                if captured.request {
                    batch.verify_crc().unwrap_or_else(|e| panic!("{name}: {e}"));
                }
                count += 1;
            }
        }
    }
    assert!(count > 20, "only {count} batches in all sessions");
}
