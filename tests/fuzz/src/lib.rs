//! Fuzz targets: every decoder of bytes that come from outside. See the README beside this crate.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a finding is a panic"
)]

mod disk;
mod documents;
mod golden;
mod lake;
mod logs;
mod records;
mod sources;
mod target;
mod wire;

pub use target::{Target, targets};

#[cfg(test)]
mod tests;
