//! The server over real sockets, spoken to in raw frames and by the client.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::cast_possible_truncation,
    reason = "a test that can't go on fails"
)]

mod bad_input;
mod keys;
mod lake;
mod limits;
mod rig;
mod rows;
mod start;
