//! What needs the server in this process: `weir up`, `weir serve`, `weir demo`.

pub(crate) mod demo;
pub(crate) mod serve;
pub(crate) mod up;
