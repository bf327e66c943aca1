//! The Fluss wire format and a client for it.

pub mod api_key;
pub mod client;
pub mod descriptor;
pub mod error;
pub mod error_code;
pub mod frame;
pub mod ids;
pub mod message;
pub mod partition;
pub mod record;
pub mod row;
pub mod sasl;
pub mod schema;

pub use error::Error;

#[cfg(test)]
mod arbitrary;

/// The messages of the protocol, generated from `proto/fluss.proto`.
#[allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated code")]
pub mod proto {
    include!(concat!(env!("OUT_DIR"), "/fluss.rs"));
}

/// The example of the README, compiled with the documentation's tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
