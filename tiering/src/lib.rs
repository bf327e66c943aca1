//! Tiering: takes the tables of a Fluss cluster and keeps a Paimon table for each, seconds behind, exactly once.
//!
//! A round of one table goes one way: the coordinator hands out the table ([`round::Lease`]), [`enumerate`] turns offsets into
//! splits, workers write each split's rows as files of one bucket, the committer publishes them and reports the progress.

pub mod cli;
pub mod config;
pub mod enumerate;
pub mod error;
pub mod load;
pub mod memory;
pub mod ranges;
pub mod round;
pub mod split;
pub mod status;

pub use error::{Error, Result};
