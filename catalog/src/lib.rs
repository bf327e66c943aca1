//! What exists, under versions: databases, tables, partitions, schemas, who leads what, and what is in the lake.
//!
//! * [`store`]: versioned entries and fenced transactions, whoever keeps them; [`occ`]: the one retry loop.
//! * [`model`]: the documents of the reference, byte-compatible, each with a version.

pub mod bucket_count;
pub mod clock;
mod error;
pub mod model;
pub mod occ;
pub mod store;
#[cfg(test)]
mod test_store;

pub use error::{Cause, Error, Result};
