//! Frames: how requests and answers are cut out of a byte stream.
//!
//! A frame is a big-endian `i32` length and that many bytes (`FlussProtocol`, the reference's
//! `ApiMessage` codec; bytes in `tests/golden/frames`). A request starts with an 8-byte header,
//! an answer with one byte that says what follows.

mod parts;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;
use tokio_util::codec::{Decoder, Encoder};

use crate::api_key::ApiKey;
use crate::error_code::ErrorCode;
use crate::proto::ErrorResponse;

pub use parts::count_parts;

/// The reference server's own limit of a frame, in bytes.
pub const DEFAULT_MAX_FRAME_BYTES: usize = 100 * 1024 * 1024;

const LENGTH_BYTES: usize = 4;
const REQUEST_HEADER_BYTES: usize = 8;
const ANSWER_HEADER_BYTES: usize = 5;
/// A peer may announce a big frame and send nothing: memory is taken as bytes arrive, in steps.
const RESERVE_STEP_BYTES: usize = 1024 * 1024;

const TYPE_SUCCESS: u8 = 0;
const TYPE_ERROR: u8 = 1;
const TYPE_SERVER_FAILURE: u8 = 2;

/// Why bytes are no frame. The stream has lost its place: close the connection.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The announced length is above the limit of this side.
    #[error("frame of {length} bytes is above the limit of {max} bytes")]
    TooLarge {
        /// The announced length.
        length: usize,
        /// The limit.
        max: usize,
    },
    /// The announced length is below zero.
    #[error("frame announces the negative length {length}")]
    NegativeLength {
        /// The announced length.
        length: i32,
    },
    /// The frame ends before its header does.
    #[error("frame of {length} bytes is too short for the header of {what}")]
    Truncated {
        /// Bytes that are there.
        length: usize,
        /// The header that was expected.
        what: &'static str,
    },
    /// The first byte of an answer is none of 0, 1, 2.
    #[error("answer has the unknown type {found}")]
    UnknownAnswerType {
        /// The byte.
        found: u8,
    },
    /// The body is not the message it must be.
    #[error("body of {what} does not parse")]
    Body {
        /// The message.
        what: &'static str,
        /// What the parser says.
        source: prost::DecodeError,
    },
    /// The stream failed below the frames.
    #[error("stream of frames failed")]
    Io(#[from] std::io::Error),
}

/// A request as it came in; the body is a slice of the frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestFrame {
    /// The API as the number on the wire; [`ApiKey::from_key`] may not know it.
    pub api_key: i16,
    /// The version the client chose; not checked here.
    pub version: i16,
    /// Echoed by the answer.
    pub request_id: i32,
    /// The encoded message.
    pub body: Bytes,
}

/// An answer as it came in; a successful body is a slice of the frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The request was done; the body is its API's response message.
    Success {
        /// The request.
        request_id: i32,
        /// The encoded message.
        body: Bytes,
    },
    /// This one request failed; the connection lives on.
    Error {
        /// The request.
        request_id: i32,
        /// The meaning; a number that we do not know is kept.
        code: ErrorCode,
        /// The server's words, maybe empty.
        message: String,
    },
    /// The server gave up on the connection; it names no request.
    ServerFailure {
        /// The meaning.
        code: ErrorCode,
        /// The server's words, maybe empty.
        message: String,
    },
}

/// Cuts a stream into frames of at most a number of bytes (the length prefix not counted).
///
/// Decoded frames come without the prefix; encoded ones are complete, as the `encode_…` functions
/// of this module make them.
#[derive(Clone, Debug)]
pub struct FrameCodec {
    max_frame_bytes: usize,
}

impl FrameCodec {
    /// A codec that refuses frames above `max_frame_bytes` in both directions.
    pub fn new(max_frame_bytes: usize) -> Self {
        Self { max_frame_bytes }
    }

    fn check(&self, length: usize) -> Result<(), Error> {
        if length > self.max_frame_bytes {
            return Err(Error::TooLarge {
                length,
                max: self.max_frame_bytes,
            });
        }
        Ok(())
    }
}

impl Default for FrameCodec {
    fn default() -> Self {
        Self::new(DEFAULT_MAX_FRAME_BYTES)
    }
}

impl Decoder for FrameCodec {
    type Item = Bytes;
    type Error = Error;

    fn decode(&mut self, source: &mut BytesMut) -> Result<Option<Bytes>, Error> {
        let Some(prefix) = source.first_chunk::<LENGTH_BYTES>() else {
            return Ok(None);
        };
        let announced = i32::from_be_bytes(*prefix);
        let length =
            usize::try_from(announced).map_err(|_| Error::NegativeLength { length: announced })?;
        self.check(length)?;
        let total = LENGTH_BYTES + length;
        if source.len() < total {
            source.reserve((total - source.len()).min(RESERVE_STEP_BYTES));
            return Ok(None);
        }
        let mut frame = source.split_to(total).freeze();
        frame.advance(LENGTH_BYTES);
        Ok(Some(frame))
    }
}

impl Encoder<Bytes> for FrameCodec {
    type Error = Error;

    fn encode(&mut self, frame: Bytes, target: &mut BytesMut) -> Result<(), Error> {
        self.check(frame.len().saturating_sub(LENGTH_BYTES))?;
        target.extend_from_slice(&frame);
        Ok(())
    }
}

/// The complete frame of a request. One allocation of the exact size; record bytes are copied once.
pub fn encode_request(api: ApiKey, version: i16, request_id: i32, body: &impl Message) -> BytesMut {
    let mut frame = start_frame(REQUEST_HEADER_BYTES + body.encoded_len());
    frame.put_i16(api.key());
    frame.put_i16(version);
    frame.put_i32(request_id);
    body.encode_raw(&mut frame);
    frame
}

/// Writes another request id into a frame of [`encode_request`], so that the id can be given out
/// after the work of encoding.
pub fn set_request_id(frame: &mut [u8], request_id: i32) {
    const AT: usize = LENGTH_BYTES + 4;
    if let Some(place) = frame.get_mut(AT..AT + 4) {
        place.copy_from_slice(&request_id.to_be_bytes());
    }
}

/// Reads the header of a request frame (without length prefix).
///
/// # Errors
/// [`Error::Truncated`] if there is no whole header.
pub fn decode_request(mut frame: Bytes) -> Result<RequestFrame, Error> {
    if frame.len() < REQUEST_HEADER_BYTES {
        return Err(Error::Truncated {
            length: frame.len(),
            what: "a request",
        });
    }
    Ok(RequestFrame {
        api_key: frame.get_i16(),
        version: frame.get_i16(),
        request_id: frame.get_i32(),
        body: frame,
    })
}

/// The complete frame of a successful answer. One allocation of the exact size.
pub fn encode_success(request_id: i32, body: &impl Message) -> Bytes {
    let mut frame = start_frame(ANSWER_HEADER_BYTES + body.encoded_len());
    frame.put_u8(TYPE_SUCCESS);
    frame.put_i32(request_id);
    finish_frame(frame, body)
}

/// The complete frame that fails one request and leaves the connection open.
pub fn encode_error(request_id: i32, code: ErrorCode, message: &str) -> Bytes {
    let body = error_response(code, message);
    let mut frame = start_frame(ANSWER_HEADER_BYTES + body.encoded_len());
    frame.put_u8(TYPE_ERROR);
    frame.put_i32(request_id);
    finish_frame(frame, &body)
}

/// The complete frame that fails the whole connection.
///
/// fluss-rs 1.0.0 misreads it (it expects a request id): to clients send [`encode_error`] or close.
pub fn encode_server_failure(code: ErrorCode, message: &str) -> Bytes {
    let body = error_response(code, message);
    let mut frame = start_frame(1 + body.encoded_len());
    frame.put_u8(TYPE_SERVER_FAILURE);
    finish_frame(frame, &body)
}

/// Reads an answer frame (without length prefix); a successful body is not parsed.
///
/// # Errors
/// [`Error::Truncated`], [`Error::UnknownAnswerType`], or [`Error::Body`] of an error answer.
pub fn decode_answer(mut frame: Bytes) -> Result<Answer, Error> {
    let length = frame.len();
    let Some(&kind) = frame.first() else {
        return Err(Error::Truncated {
            length,
            what: "an answer",
        });
    };
    if kind > TYPE_SERVER_FAILURE {
        return Err(Error::UnknownAnswerType { found: kind });
    }
    frame.advance(1);
    if kind == TYPE_SERVER_FAILURE {
        let (code, message) = parse_error_response(frame)?;
        return Ok(Answer::ServerFailure { code, message });
    }
    if length < ANSWER_HEADER_BYTES {
        return Err(Error::Truncated {
            length,
            what: "an answer",
        });
    }
    let request_id = frame.get_i32();
    if kind == TYPE_SUCCESS {
        return Ok(Answer::Success {
            request_id,
            body: frame,
        });
    }
    let (code, message) = parse_error_response(frame)?;
    Ok(Answer::Error {
        request_id,
        code,
        message,
    })
}

fn start_frame(length: usize) -> BytesMut {
    let announced = i32::try_from(length).unwrap_or(i32::MAX);
    assert!(
        announced < i32::MAX,
        "frame of {length} bytes: callers keep frames below 2 GiB"
    );
    let mut frame = BytesMut::with_capacity(LENGTH_BYTES + length);
    frame.put_i32(announced);
    frame
}

fn finish_frame(mut frame: BytesMut, body: &impl Message) -> Bytes {
    body.encode_raw(&mut frame);
    frame.freeze()
}

fn error_response(code: ErrorCode, message: &str) -> ErrorResponse {
    let error_message = (!message.is_empty()).then(|| message.to_owned());
    ErrorResponse {
        error_code: code.code(),
        error_message,
    }
}

fn parse_error_response(body: Bytes) -> Result<(ErrorCode, String), Error> {
    let parsed = ErrorResponse::decode(body).map_err(|source| Error::Body {
        what: "an error answer",
        source,
    })?;
    let code = ErrorCode::from_code(parsed.error_code);
    Ok((code, parsed.error_message.unwrap_or_default()))
}

#[cfg(test)]
mod tests;
