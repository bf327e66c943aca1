//! Rows from outside, on their way into a log table.

pub mod file;
mod pairs;
pub mod tpch;
