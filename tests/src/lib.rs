//! The kit of the integration tests: a whole Weir in this process ([`cluster`]), tables with rows of
//! every type ([`table`]), rows as texts that can be compared ([`rows`]), requests as raw bytes
//! ([`wire`]), lakes that were tampered with ([`tamper`]) and processes of the binary ([`process`]).
//!
//! It serves tests alone: what fails here fails the test, with the reason.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "whatever goes wrong in the kit is to fail the test that uses it"
)]

pub mod avro;
pub mod binary;
pub mod cluster;
pub mod process;
pub mod rows;
pub mod table;
pub mod tamper;
pub mod wire;

/// What fails here fails a test or a benchmark: a sentence is enough.
pub type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;
