//! The Fluss wire format and a client for it.

pub mod api_key;
pub mod error_code;
pub mod ids;
pub mod message;

/// The messages of the protocol, generated from `proto/fluss.proto`.
#[allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated code")]
pub mod proto {
    include!(concat!(env!("OUT_DIR"), "/fluss.rs"));
}
