//! Frames that the reference's released client wrote, read by our codec and written again.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests"
)]

use bytes::{Bytes, BytesMut};
use prost::Message;
use tokio_util::codec::Decoder;
use weir_protocol::api_key::ApiKey;
use weir_protocol::error_code::ErrorCode;
use weir_protocol::frame::{self, Answer, FrameCodec};
use weir_protocol::message::Request;
use weir_protocol::proto;

fn golden(name: &str) -> Bytes {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/frames");
    std::fs::read(format!("{folder}/{name}.bin"))
        .unwrap()
        .into()
}

fn cut(bytes: &Bytes) -> Bytes {
    let mut source = BytesMut::from(&bytes[..]);
    let frame = FrameCodec::default()
        .decode(&mut source)
        .unwrap()
        .expect("a whole frame");
    assert!(source.is_empty(), "{} bytes after the frame", source.len());
    frame
}

/// Reads a request and checks that our writer makes the same bytes of it.
fn request<R: Request>(name: &str, version: i16, request_id: i32) -> R {
    let (bytes, message) = read_request::<R>(name, version, request_id);
    let written = frame::encode_request(R::API_KEY, version, request_id, &message);
    assert_eq!(written, bytes, "{name} written by us");
    message
}

fn read_request<R: Request>(name: &str, version: i16, request_id: i32) -> (Bytes, R) {
    let bytes = golden(name);
    let header = frame::decode_request(cut(&bytes)).unwrap();
    assert_eq!(ApiKey::from_key(header.api_key), Some(R::API_KEY), "{name}");
    assert_eq!(
        (header.version, header.request_id),
        (version, request_id),
        "{name}"
    );
    (bytes, R::decode(header.body).unwrap())
}

fn response<M: Message + Default>(name: &str, request_id: i32) -> M {
    let bytes = golden(name);
    let Answer::Success {
        request_id: found,
        body,
    } = frame::decode_answer(cut(&bytes)).unwrap()
    else {
        panic!("{name} is a success");
    };
    assert_eq!(found, request_id);
    let message = M::decode(body).unwrap();
    assert_eq!(
        frame::encode_success(request_id, &message),
        bytes,
        "{name} written by us"
    );
    message
}

#[test]
fn requests_of_the_reference_client_are_read_and_written_byte_for_byte() {
    let hello = request::<proto::ApiVersionsRequest>("frame_api_versions_request", 0, 0);
    assert_eq!(hello.client_software_name, "fluss");
    assert_eq!(hello.client_software_version, "0.1.0");

    let metadata = request::<proto::MetadataRequest>("frame_get_metadata_request_full", 0, 2);
    assert_eq!(metadata.table_path[0].table_name, "t1");
    assert_eq!(
        metadata.partitions_path[0].partition_name.as_deref(),
        Some("20240101")
    );
    assert_eq!(metadata.partitions_id, [5, 300]);

    let login = request::<proto::AuthenticateRequest>("frame_authenticate_plain_request", 0, 1);
    assert_eq!(login.protocol, weir_protocol::sasl::PLAIN);
    assert_eq!(
        login.token,
        weir_protocol::sasl::encode_plain_token("alice", "secret")
    );

    let writer = request::<proto::InitWriterRequest>("frame_init_writer_request", 0, 3);
    assert_eq!(writer.table_path.len(), 1);

    let produce = request::<proto::ProduceLogRequest>("frame_produce_log_request_v0", 0, 4);
    assert_eq!(
        (produce.acks, produce.table_id, produce.timeout_ms),
        (-1, 11, 30_000)
    );
    assert_eq!(produce.buckets_req[0].records.len(), 312);

    let lookup = request::<proto::LookupRequest>("frame_lookup_request_v1", 1, 7);
    assert_eq!(lookup.buckets_req[0].keys, [Bytes::from_static(&[1])]);

    let offsets = request::<proto::ListOffsetsRequest>("frame_list_offsets_request", 0, 8);
    assert_eq!((offsets.offset_type, offsets.follower_server_id), (1, -1));
    assert_eq!(offsets.bucket_id, [0, 1, 2]);

    let fetch = request::<proto::FetchLogRequest>("frame_fetch_log_request", 0, 6);
    assert!(fetch.tables_req[0].projection_pushdown_enabled);
    assert_eq!(fetch.tables_req[0].projected_fields, [1]);

    let name = "frame_lake_tiering_heartbeat_request";
    let heartbeat = request::<proto::LakeTieringHeartbeatRequest>(name, 0, 9);
    assert_eq!(heartbeat.force_finished_tables, [11, 300]);
    assert_eq!(heartbeat.finished_tables[0].table_id, 11);
}

#[test]
fn empty_packed_fields_of_the_reference_client_are_read_as_empty() {
    let name = "frame_get_metadata_request_empty";
    let (_, metadata) = read_request::<proto::MetadataRequest>(name, 0, 1);
    assert_eq!(metadata, proto::MetadataRequest::default());

    let (_, put) = read_request::<proto::PutKvRequest>("frame_put_kv_request_v1", 1, 5);
    assert_eq!(
        (
            put.table_id,
            put.target_columns.len(),
            put.buckets_req.len()
        ),
        (12, 0, 1)
    );
}

#[test]
fn answers_of_the_reference_server_are_read_and_written_byte_for_byte() {
    let name = "frame_api_versions_response_short";
    let versions = response::<proto::ApiVersionsResponse>(name, 0);
    assert_eq!(versions.server_type, Some(2));
    assert_eq!(versions.api_versions.len(), 2);

    let writer = response::<proto::InitWriterResponse>("frame_init_writer_response", 3);
    assert_eq!(writer.writer_id, 7);

    let produce = response::<proto::ProduceLogResponse>("frame_produce_log_response", 4);
    assert_eq!(produce.buckets_resp[0].base_offset, Some(0));
    assert_eq!(produce.buckets_resp[0].error_code, None);
}

#[test]
fn failures_of_the_reference_server_are_read_and_written_byte_for_byte() {
    let bytes = golden("frame_error_response_table_not_exist");
    let message = "Table fluss.t1 does not exist.";
    let code = ErrorCode::TableNotExist;
    assert_eq!(frame::encode_error(2, code, message), bytes);
    let answer = frame::decode_answer(cut(&bytes)).unwrap();
    assert_eq!(
        answer,
        Answer::Error {
            request_id: 2,
            code,
            message: message.into()
        }
    );

    let bytes = golden("frame_server_failure");
    assert_eq!(
        frame::encode_server_failure(ErrorCode::UnknownServerError, "boom"),
        bytes
    );
    let answer = frame::decode_answer(cut(&bytes)).unwrap();
    let code = ErrorCode::UnknownServerError;
    assert_eq!(
        answer,
        Answer::ServerFailure {
            code,
            message: "boom".into()
        }
    );
}
