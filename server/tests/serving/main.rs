//! The server over real sockets, spoken to in raw frames and by the client.

mod bad_input;
mod lake;
mod rig;
mod rows;
mod start;
