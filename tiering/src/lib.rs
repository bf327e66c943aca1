//! Tiering: takes the tables of a Fluss cluster and keeps a Paimon table for each, seconds behind,
//! exactly once.
//!
//! A round of one table goes one way: the coordinator hands out the table ([`lease::Lease`]),
//! [`mod@enumerate`] turns offsets into splits, [`worker`]s write each split's rows as files of one
//! bucket, the [`committer`] publishes them and reports the progress. The [`daemon`] runs rounds of
//! many tables side by side; [`grpc`] and [`http`] tell how they fare, [`mod@verify`] audits what
//! they did, and [`cli`] is what a person types.

pub mod align;
pub mod bad_records;
pub mod cli;
pub mod cluster;
pub mod committer;
pub mod config;
mod counted_store;
pub mod daemon;
pub mod enumerate;
pub mod error;
pub mod grpc;
pub mod http;
pub mod lake_table;
pub mod lease;
pub mod load;
pub mod maintenance;
pub mod memory;
pub mod metrics;
pub mod phase;
pub mod ranges;
pub mod round;
pub mod runner;
pub mod source;
pub mod split;
pub mod status;
#[cfg(test)]
#[allow(
    clippy::clone_on_ref_ptr,
    reason = "a clone that becomes a trait object"
)]
mod testing;
pub mod verify;
mod wall;
pub mod worker;

pub use error::{Error, Result};
