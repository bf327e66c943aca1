//! Rows from outside, on their way into a log table.

pub mod file;
pub mod tpch;
