//! Weir's embedded server: coordinator and tablet servers that speak the Fluss protocol.

pub mod log;
