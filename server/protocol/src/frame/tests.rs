use super::*;
use crate::proto;
use proptest::prelude::*;

/// Decodes all frames of `bytes`, given to the codec in pieces of `step` bytes.
fn cut(codec: &mut FrameCodec, bytes: &[u8], step: usize) -> Result<Vec<Bytes>, Error> {
    let mut source = BytesMut::new();
    let mut frames = Vec::new();
    for piece in bytes.chunks(step.max(1)) {
        source.extend_from_slice(piece);
        while let Some(frame) = codec.decode(&mut source)? {
            frames.push(frame);
        }
    }
    Ok(frames)
}

fn one(bytes: &[u8]) -> Bytes {
    let mut frames = cut(&mut FrameCodec::default(), bytes, bytes.len()).unwrap();
    assert_eq!(frames.len(), 1);
    frames.remove(0)
}

#[test]
fn a_length_above_the_limit_is_refused_before_any_byte_of_the_frame_arrives() {
    let mut codec = FrameCodec::new(16);
    let mut source = BytesMut::from(&17_i32.to_be_bytes()[..]);
    let error = codec.decode(&mut source).unwrap_err();
    assert!(
        matches!(
            error,
            Error::TooLarge {
                length: 17,
                max: 16
            }
        ),
        "{error:?}"
    );
    let mut codec = FrameCodec::new(17);
    assert!(codec.decode(&mut source).unwrap().is_none());
}

#[test]
fn a_negative_length_is_refused() {
    let mut source = BytesMut::from(&(-1_i32).to_be_bytes()[..]);
    let error = FrameCodec::default().decode(&mut source).unwrap_err();
    assert!(
        matches!(error, Error::NegativeLength { length: -1 }),
        "{error:?}"
    );
}

#[test]
fn an_announced_big_frame_takes_memory_only_as_it_arrives() {
    let mut source = BytesMut::from(&(90 * 1024 * 1024_i32).to_be_bytes()[..]);
    assert!(FrameCodec::default().decode(&mut source).unwrap().is_none());
    assert!(
        source.capacity() <= 4 * 1024 * 1024,
        "{} bytes reserved",
        source.capacity()
    );
}

#[test]
fn a_frame_too_big_for_the_peer_is_not_sent() {
    let frame = encode_error(1, ErrorCode::Network, "a message longer than the limit");
    let mut target = BytesMut::new();
    let error = FrameCodec::new(8).encode(frame, &mut target).unwrap_err();
    assert!(matches!(error, Error::TooLarge { max: 8, .. }), "{error:?}");
    assert!(target.is_empty());
}

#[test]
fn short_headers_and_unknown_types_are_typed_errors() {
    assert!(matches!(
        decode_request(Bytes::from_static(&[0; 7])),
        Err(Error::Truncated { .. })
    ));
    assert!(matches!(
        decode_answer(Bytes::new()),
        Err(Error::Truncated { .. })
    ));
    assert!(matches!(
        decode_answer(Bytes::from_static(&[0, 0, 0])),
        Err(Error::Truncated { .. })
    ));
    let unknown = decode_answer(Bytes::from_static(&[3, 0, 0, 0, 0]));
    assert!(matches!(
        unknown,
        Err(Error::UnknownAnswerType { found: 3 })
    ));
    let garbage = decode_answer(Bytes::from_static(&[1, 0, 0, 0, 0, 0xff]));
    assert!(matches!(garbage, Err(Error::Body { .. })));
}

#[test]
fn the_body_of_an_answer_is_a_slice_of_its_frame() {
    let records = Bytes::from(vec![7; 1000]);
    let bucket = proto::PbFetchLogRespForBucket {
        bucket_id: 0,
        records: Some(records),
        ..Default::default()
    };
    let table = proto::PbFetchLogRespForTable {
        table_id: 1,
        buckets_resp: vec![bucket],
    };
    let frame = one(&encode_success(
        5,
        &proto::FetchLogResponse {
            tables_resp: vec![table],
        },
    ));
    let memory = frame.as_ptr_range();
    let Answer::Success {
        request_id: 5,
        body,
    } = decode_answer(frame.clone()).unwrap()
    else {
        panic!("a success with id 5");
    };
    let message = proto::FetchLogResponse::decode(body).unwrap();
    let records = message.tables_resp[0].buckets_resp[0]
        .records
        .clone()
        .unwrap();
    assert!(memory.contains(&records.as_ptr()), "records were copied");
}

#[test]
fn error_answers_keep_code_and_message() {
    let frame = one(&encode_error(
        9,
        ErrorCode::TableNotExist,
        "Table fluss.t1 does not exist.",
    ));
    let code = ErrorCode::TableNotExist;
    let message = "Table fluss.t1 does not exist.".to_owned();
    assert_eq!(
        decode_answer(frame).unwrap(),
        Answer::Error {
            request_id: 9,
            code,
            message
        }
    );
}

proptest! {
    #[test]
    fn frames_are_cut_the_same_however_the_bytes_arrive(
        bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..64), 0..8),
        step in 1_usize..80,
    ) {
        let mut stream = BytesMut::new();
        for body in &bodies {
            stream.put_i32(i32::try_from(body.len()).unwrap());
            stream.extend_from_slice(body);
        }
        let frames = cut(&mut FrameCodec::new(64), &stream, step).unwrap();
        prop_assert_eq!(frames, bodies);
    }

    #[test]
    fn any_bytes_give_frames_or_a_typed_error(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        step in 1_usize..40,
    ) {
        if let Ok(frames) = cut(&mut FrameCodec::new(64), &bytes, step) {
            for frame in frames {
                drop(decode_request(frame.clone()));
                drop(decode_answer(frame));
            }
        }
    }

    #[test]
    fn request_headers_are_read_back(version in any::<i16>(), request_id in any::<i32>()) {
        let body = proto::GetTableInfoRequest {
            table_path: proto::PbTablePath { database_name: "d".into(), table_name: "t".into() },
        };
        let frame = one(&encode_request(ApiKey::GetTableInfo, version, request_id, &body));
        let request = decode_request(frame).unwrap();
        prop_assert_eq!(request.api_key, ApiKey::GetTableInfo.key());
        prop_assert_eq!((request.version, request.request_id), (version, request_id));
        prop_assert_eq!(proto::GetTableInfoRequest::decode(request.body).unwrap(), body);
    }
}
