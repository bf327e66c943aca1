//! What exists, under versions: databases, tables, partitions, schemas, who leads what, and what is
//! in the lake.
//!
//! * [`store`]: versioned entries and fenced transactions, whoever keeps them; [`occ`]: the one
//!   retry loop; [`leader`]: the fence.
//! * [`model`]: the documents of the reference, byte-compatible, each with a version.
//! * [`ddl`]: what may be created and altered, as pure functions; [`auto_partition`]: partitions by
//!   time; [`bucket_count`]: how many buckets a partition has.
//! * [`catalog`]: the facade, which reads, decides and commits.
//! * [`lake`] and [`convert`]: the lake's side of it; [`offsets_files`]: how far lake snapshots
//!   are.

pub mod auto_partition;
pub mod bucket_count;
pub mod catalog;
pub mod clock;
pub mod convert;
pub mod ddl;
mod error;
pub mod lake;
pub mod leader;
pub mod model;
pub mod occ;
pub mod offsets_files;
pub mod sentence;
pub mod store;
#[cfg(test)]
mod test_store;

pub use catalog::Catalog;
pub use error::{Cause, Error, Result};

/// The example of the README, compiled with the documentation's tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
