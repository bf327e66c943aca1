//! What needs the server in this process: `weir up`, `weir serve`, `weir demo`, `weir log`.

pub(crate) mod demo;
pub(crate) mod log;
pub(crate) mod serve;
pub(crate) mod up;
