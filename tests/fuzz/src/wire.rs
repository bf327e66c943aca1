//! Frames, messages and login tokens.

use bytes::{Bytes, BytesMut};
use prost::Message;
use tokio_util::codec::Decoder;
use weir_protocol::api_key::ApiKey;
use weir_protocol::frame::{self, FrameCodec};
use weir_protocol::message::Request;
use weir_protocol::{proto, sasl};

use crate::golden;
use crate::target::Target;

pub(crate) fn targets() -> Vec<Target> {
    let frames = || {
        golden::files("server/protocol/tests/golden/frames", |name| {
            name.ends_with(".bin")
        })
    };
    vec![
        Target {
            name: "frames",
            run: cut,
            seeds: frames,
        },
        Target {
            name: "requests",
            run: request,
            seeds: || without_prefix("_request"),
        },
        Target {
            name: "answers",
            run: answer,
            seeds: || without_prefix("_response"),
        },
        Target {
            name: "sasl",
            run: |data| {
                if let Ok(credentials) = sasl::parse_plain_token(data) {
                    let _shown = format!("{credentials:?}");
                }
            },
            seeds: || {
                vec![
                    sasl::encode_plain_token("root", "pa$$w\"or\\d").to_vec(),
                    b"a\0b\0c".to_vec(),
                ]
            },
        },
    ]
}

fn without_prefix(kind: &str) -> Vec<Vec<u8>> {
    let files = golden::files("server/protocol/tests/golden/frames", |name| {
        name.contains(kind)
    });
    files
        .iter()
        .map(|file| file.get(4..).unwrap_or_default().to_vec())
        .collect()
}

/// A stream that arrives in pieces is cut into the frames of the whole.
fn cut(data: &[u8]) {
    let mut codec = FrameCodec::new(1 << 16);
    let whole = frames_of(&mut codec, &mut BytesMut::from(data));
    let mut pieces = Vec::new();
    let mut buffer = BytesMut::new();
    for byte in data.chunks(7) {
        buffer.extend_from_slice(byte);
        match codec.decode(&mut buffer) {
            Ok(Some(frame)) => {
                pieces.push(frame);
                pieces.extend(frames_of(&mut codec, &mut buffer));
            }
            Ok(None) => {}
            Err(_) => break,
        }
    }
    assert_eq!(whole, pieces, "the frames depend on how the bytes arrive");
}

fn frames_of(codec: &mut FrameCodec, buffer: &mut BytesMut) -> Vec<Bytes> {
    let mut frames = Vec::new();
    while let Ok(Some(frame)) = codec.decode(buffer) {
        frames.push(frame);
    }
    frames
}

fn request(data: &[u8]) {
    let Ok(request) = frame::decode_request(Bytes::copy_from_slice(data)) else {
        return;
    };
    let _parts = frame::count_parts(&request.body, 8);
    if let Some(api) = ApiKey::from_key(request.api_key) {
        message(api, &request.body, false);
    }
}

/// An answer frame; the API it answers comes from its request id, as the client's own table would say.
fn answer(data: &[u8]) {
    let Ok(answer) = frame::decode_answer(Bytes::copy_from_slice(data)) else {
        return;
    };
    if let frame::Answer::Success { request_id, body } = answer {
        let _parts = frame::count_parts(&body, 8);
        let key = i16::try_from(request_id & 0x7fff).unwrap_or_default();
        for api in ApiKey::from_key(key)
            .into_iter()
            .chain([ApiKey::GetMetadata, ApiKey::FetchLog])
        {
            message(api, &body, true);
        }
    }
}

/// What decodes is encoded and decoded again to the same message.
fn both_ways<M: Message + Default + PartialEq>(body: &[u8]) {
    if let Ok(message) = M::decode(body) {
        let again = M::decode(message.encode_to_vec().as_slice());
        // A NaN is none of the wire's: no message holds a float that is compared here.
        assert!(
            again.is_ok_and(|again| again == message),
            "a message changes when it is sent on"
        );
    }
}

macro_rules! message {
    ($($request:ident,)*) => {
        fn message(api: ApiKey, body: &[u8], is_answer: bool) {
            $(
                if api == <proto::$request as Request>::API_KEY {
                    if is_answer {
                        both_ways::<<proto::$request as Request>::Response>(body);
                    } else {
                        both_ways::<proto::$request>(body);
                    }
                }
            )*
        }
    };
}

message! {
    ApiVersionsRequest,
    CreateDatabaseRequest,
    DropDatabaseRequest,
    ListDatabasesRequest,
    DatabaseExistsRequest,
    CreateTableRequest,
    DropTableRequest,
    GetTableInfoRequest,
    ListTablesRequest,
    ListPartitionInfosRequest,
    TableExistsRequest,
    GetTableSchemaRequest,
    MetadataRequest,
    UpdateMetadataRequest,
    ProduceLogRequest,
    FetchLogRequest,
    PutKvRequest,
    LookupRequest,
    NotifyLeaderAndIsrRequest,
    StopReplicaRequest,
    AdjustIsrRequest,
    ListOffsetsRequest,
    CommitKvSnapshotRequest,
    GetLatestKvSnapshotsRequest,
    GetKvSnapshotMetadataRequest,
    GetFileSystemSecurityTokenRequest,
    InitWriterRequest,
    CommitRemoteLogManifestRequest,
    NotifyRemoteLogOffsetsRequest,
    NotifyKvSnapshotOffsetRequest,
    CommitLakeTableSnapshotRequest,
    NotifyLakeTableOffsetRequest,
    GetLakeSnapshotRequest,
    LimitScanRequest,
    PrefixLookupRequest,
    GetDatabaseInfoRequest,
    CreatePartitionRequest,
    DropPartitionRequest,
    AuthenticateRequest,
    CreateAclsRequest,
    ListAclsRequest,
    DropAclsRequest,
    LakeTieringHeartbeatRequest,
    ControlledShutdownRequest,
    AlterTableRequest,
    DescribeClusterConfigsRequest,
    AlterClusterConfigsRequest,
    AddServerTagRequest,
    RemoveServerTagRequest,
    RebalanceRequest,
    ListRebalanceProgressRequest,
    CancelRebalanceRequest,
    PrepareLakeTableSnapshotRequest,
    RegisterProducerOffsetsRequest,
    GetProducerOffsetsRequest,
    DeleteProducerOffsetsRequest,
    AcquireKvSnapshotLeaseRequest,
    ReleaseKvSnapshotLeaseRequest,
    DropKvSnapshotLeaseRequest,
    GetTableStatsRequest,
    AlterDatabaseRequest,
    ScanKvRequest,
    GetClusterHealthRequest,
    ListRemoteLogManifestsRequest,
    ListKvSnapshotsRequest,
    AddServerTagByRackRequest,
    RemoveServerTagByRackRequest,
}
