//! Where a program brings connections to the server inside it.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};

use crate::api::Service;
use crate::net::{self, Shared};

/// Takes connections that come by other ways than sockets. Cheap to clone; does not keep a server
/// running.
#[derive(Clone)]
pub struct Entrance {
    services: Arc<BTreeMap<String, Arc<Service>>>,
    shared: Arc<Shared>,
}

impl fmt::Debug for Entrance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses: Vec<_> = self.services.keys().collect();
        f.debug_tuple("Entrance").field(&addresses).finish()
    }
}

impl Entrance {
    pub(super) fn new(services: BTreeMap<String, Arc<Service>>, shared: Arc<Shared>) -> Self {
        let services = Arc::new(services);
        Self { services, shared }
    }

    /// Serves a connection to `address`, one of those that clients are told, as a socket's would be
    /// that comes from this machine. `false`, and nothing is done, if no server has that address or
    /// the server stops.
    pub fn serve<S>(&self, address: &str, stream: S) -> bool
    where
        S: AsyncRead + AsyncWrite + Send + Sync + 'static,
    {
        let Some(service) = self.services.get(address) else {
            return false;
        };
        if self.shared.shutdown.has_begun() {
            return false;
        }
        let here = Ipv4Addr::LOCALHOST;
        let peer = (SocketAddr::from((here, 0)), Some(here.into()));
        net::serve(tokio::io::split(stream), peer, service, &self.shared);
        true
    }
}
