//! Weir's embedded server: coordinator and tablet servers that speak the Fluss protocol.

pub mod log;
pub mod meta_store;
