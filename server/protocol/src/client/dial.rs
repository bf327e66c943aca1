//! How streams of bytes to a server are made.

use std::fmt::Debug;
use std::io;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// A two-way stream of bytes.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Makes streams to servers.
pub trait Dial: Debug + Send + Sync + 'static {
    /// A stream to the server at `address`, which is `host:port` as clients are told. The caller
    /// sets the deadline.
    ///
    /// # Errors
    /// If nobody answers there.
    fn dial(&self, address: &str) -> BoxFuture<'static, io::Result<Box<dyn Stream>>>;
}

/// Streams over TCP.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tcp;

impl Dial for Tcp {
    fn dial(&self, address: &str) -> BoxFuture<'static, io::Result<Box<dyn Stream>>> {
        let address = address.to_owned();
        async move {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            Ok(Box::new(stream) as Box<dyn Stream>)
        }
        .boxed()
    }
}
