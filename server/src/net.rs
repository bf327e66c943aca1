//! Sockets: who may connect, how bytes become requests, how answers go out.
//!
//! Requests of one connection start in the order they came; each is answered when it is done, so
//! a fetch that waits for data holds up nobody, until as many requests of its connection wait as may.
//! A request of a log append is *applied* before the next one of its connection is read.

mod admission;
mod connection;
mod login;
mod request_memory;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::time::Instant;

pub(crate) use admission::Admission;
use admission::{Caller, Limit};

use crate::api::Service;
use crate::config::{LimitsConfig, SaslConfig};
use crate::error::Error;
use crate::metrics::Metrics;
use crate::shutdown::Shutdown;

/// A refused accept (no file descriptors left, say) is tried again after this.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What all listeners of the process share.
pub(crate) struct Shared {
    pub(crate) admission: Admission,
    pub(crate) limits: LimitsConfig,
    pub(crate) sasl: Option<SaslConfig>,
    pub(crate) metrics: Arc<Metrics>,
    /// Begins when connections must stop reading requests.
    pub(crate) shutdown: Shutdown,
}

/// Binds `host:port`.
///
/// # Errors
/// [`Error::PortInUse`] or [`Error::Listen`].
pub(crate) async fn bind(host: &str, port: u16) -> Result<TcpListener, Error> {
    let address = if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    };
    TcpListener::bind((host, port))
        .await
        .map_err(|source| match source.kind() {
            std::io::ErrorKind::AddrInUse => Error::PortInUse { address },
            _ => Error::Listen { address, source },
        })
}

/// Accepts connections until the shutdown begins; each runs on a task of its own.
pub(crate) async fn accept_loop(listener: TcpListener, service: Arc<Service>, shared: Arc<Shared>) {
    loop {
        let accepted = tokio::select! {
            biased;
            () = shared.shutdown.begun() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => admit(stream, peer, &service, &shared),
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::select! {
                    () = shared.shutdown.begun() => return,
                    () = tokio::time::sleep(ACCEPT_PAUSE) => {}
                }
            }
        }
    }
}

fn admit(
    stream: tokio::net::TcpStream,
    peer: SocketAddr,
    service: &Arc<Service>,
    shared: &Arc<Shared>,
) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%peer, %error, "cannot set no-delay");
    }
    let own = stream.local_addr().map(|own| own.ip().to_canonical());
    serve(stream.into_split(), (peer, own.ok()), service, shared);
}

/// Serves a stream of a peer on a task of its own, unless it is one connection too many. `own` is
/// the address at which the peer reached us.
pub(crate) fn serve<R, W>(
    halves: (R, W),
    (peer, own): (SocketAddr, Option<IpAddr>),
    service: &Arc<Service>,
    shared: &Arc<Shared>,
) where
    R: AsyncRead + Send + Sync + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let address = peer.ip().to_canonical();
    // Whoever reaches us from our own address is on this machine.
    let is_local = address.is_loopback() || own.is_some_and(|own| own == address);
    let now = Instant::now();
    let ticket = match shared.admission.admit(Caller { address, is_local }, now) {
        Ok(ticket) => ticket,
        Err(limit) => {
            shared.metrics.connections_refused.inc();
            if shared.admission.is_refusal_due(address, limit, now) {
                let Limit {
                    connections,
                    setting,
                } = limit;
                tracing::warn!(%address, limit = connections, setting,
                    "connections are refused: all of these are busy; raise the setting if that is wanted");
            }
            return;
        }
    };
    let service = Arc::clone(service);
    let context = Arc::clone(shared);
    shared.shutdown.spawn(async move {
        context.metrics.connections.inc();
        connection::run(halves, peer, (service, ticket.activity()), &context).await;
        context.metrics.connections.dec();
        if ticket.gave_way() {
            context.metrics.connections_displaced.inc();
        }
        drop(ticket);
    });
}
