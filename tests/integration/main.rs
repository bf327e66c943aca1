//! Whole Weir, in this process: real sockets on free ports, real files, real RocksDB. A module a
//! feature; each test has a server and a folder of its own.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod audit;
mod bad_input;
mod bucket_count;
mod closed_pipes;
mod command_line;
mod compaction;
mod damage;
mod keyed;
mod refused_start;
mod replay;
mod rescale;
mod restart;
mod retention;
mod walking_path;
mod walls;
