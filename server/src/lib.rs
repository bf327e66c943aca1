//! Weir's embedded server: coordinator and tablet servers that speak the Fluss protocol.
//!
//! * [`server`]: the parts put together; [`config`]: what they can be told.
//! * `net` takes connections, `api` turns requests into calls and errors into codes.
//! * `coordinator` changes what exists and decides who leads; `tablet` leads buckets; `peer` is how
//!   they talk; `cluster` is what each of them knows.
//! * [`log`]: the log of a bucket; [`offline`]: the logs of a data directory that no server has open.

mod api;
mod cluster;
pub mod config;
mod coordinator;
mod cut_logs;
pub mod data_dir;
pub mod error;
pub mod held;
pub mod log;
mod memory;
pub mod meta_store;
mod metrics;
mod net;
mod notice;
pub mod offline;
mod peer;
mod reads;
pub mod server;
pub mod shutdown;
mod tablet;
#[cfg(test)]
mod watched_store;

pub use config::ServerConfig;
pub use error::Error;
pub use server::{Components, RunningServer, Server};
