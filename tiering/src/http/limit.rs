//! A listener that holds back connections beyond a limit.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep};

/// Accepts while fewer than the limit are open; further connections wait in the socket's queue.
#[derive(Debug)]
pub(super) struct Limited {
    listener: TcpListener,
    permits: Arc<Semaphore>,
}

/// A connection that sends nothing for so long is closed.
const SILENCE: Duration = Duration::from_mins(1);

/// A connection that counts, as long as something comes from the other side.
#[derive(Debug)]
pub(super) struct Counted {
    stream: TcpStream,
    silence: Pin<Box<Sleep>>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Limited {
    pub(super) fn new(listener: TcpListener, limit: usize) -> Self {
        Self {
            listener,
            permits: Arc::new(Semaphore::new(limit)),
        }
    }
}

impl Listener for Limited {
    type Io = Counted;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Counted, SocketAddr) {
        // The semaphore is never closed.
        let permit = Arc::clone(&self.permits).acquire_owned().await.ok();
        let (stream, address) = Listener::accept(&mut self.listener).await;
        (
            Counted {
                stream,
                silence: Box::pin(sleep(SILENCE)),
                _permit: permit,
            },
            address,
        )
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if read.is_ready() {
            self.silence.as_mut().reset(Instant::now() + SILENCE);
            return read;
        }
        // The timer wakes the task, which then finds it over.
        match self.silence.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
