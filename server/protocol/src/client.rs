//! A client of any cluster that speaks the protocol.
//!
//! [`Client`] is cheap to clone: it holds a pool of [`connection`]s, one per role, server and
//! address, and the cached [`metadata`]. On it stand the calls of [`admin`] and [`tiering`], the
//! [`writer`] of log tables and the [`scanner`] of logs.

pub mod admin;
pub mod assigner;
pub mod connection;
pub mod dial;
mod error;
pub mod metadata;
pub mod offsets;
mod pool;
pub mod scanner;
pub mod tiering;
pub mod writer;

use std::sync::Arc;
use std::time::Duration;

use rand::Rng;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

pub use connection::ServerRole;
pub use dial::Dial;
pub use error::Error;

use crate::frame;
use crate::ids::ServerId;
use crate::message::Request;
use crate::sasl::PlainCredentials;
use connection::Connection;
use metadata::Metadata;
use pool::{Pool, ServerAddress};

/// How a client reaches a cluster, and its limits.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// `host:port` of any servers of the cluster; asked in turn until one answers.
    pub bootstrap: Vec<String>,
    /// Log in by SASL/PLAIN; `None` for a listener without authentication.
    pub credentials: Option<PlainCredentials>,
    /// Deadline of a TCP connect and of each step of the handshake. 10 s.
    pub connect_timeout: Duration,
    /// Deadline of a call, from handing it over to its answer. 30 s.
    pub request_timeout: Duration,
    /// How long calls that may be repeated are retried in all. 60 s.
    pub retry_timeout: Duration,
    /// The pause after a first failure; it doubles with each further one, up to fifty times as long,
    /// and each is moved by up to a fifth. 100 ms, so at most 5 s.
    pub first_backoff: Duration,
    /// Largest frame either way. 100 MiB.
    pub max_frame_bytes: usize,
    /// Most requests without an answer on one connection. 128.
    pub max_in_flight: usize,
    /// How servers are reached. TCP.
    pub dial: Arc<dyn Dial>,
}

impl ClientConfig {
    /// The defaults, with these bootstrap addresses.
    pub fn new<A: Into<String>>(bootstrap: impl IntoIterator<Item = A>) -> Self {
        Self {
            bootstrap: bootstrap.into_iter().map(Into::into).collect(),
            credentials: None,
            connect_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(30),
            retry_timeout: Duration::from_mins(1),
            first_backoff: Duration::from_millis(100),
            max_frame_bytes: frame::DEFAULT_MAX_FRAME_BYTES,
            max_in_flight: 128,
            dial: Arc::new(dial::Tcp),
        }
    }
}

/// A handle of a cluster; clones share connections and metadata.
///
/// The last clone dropped ends all connections; what is in flight fails as lost.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    config: ClientConfig,
    pool: Pool,
    metadata: Metadata,
    tasks: TaskTracker,
    stop: CancellationToken,
    _end: DropGuard,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("bootstrap", &self.inner.config.bootstrap)
            .finish_non_exhaustive()
    }
}

impl Client {
    /// Asks the bootstrap addresses who is in the cluster.
    ///
    /// # Errors
    /// What the last address said, or [`Error::NoServer`] without any address.
    pub async fn connect(config: ClientConfig) -> Result<Self, Error> {
        let tasks = TaskTracker::new();
        let stop = CancellationToken::new();
        let inner = Inner {
            pool: Pool::new(&config, tasks.clone(), stop.clone()),
            metadata: Metadata::default(),
            tasks,
            stop: stop.clone(),
            config,
            _end: stop.drop_guard(),
        };
        let client = Self {
            inner: Arc::new(inner),
        };
        client.refresh_cluster().await?;
        Ok(client)
    }

    /// Ends all connections and waits for their tasks; other clones' calls fail from now on.
    pub async fn close(&self) {
        self.inner.stop.cancel();
        self.inner.tasks.close();
        self.inner.tasks.wait().await;
    }

    /// The configuration.
    pub fn config(&self) -> &ClientConfig {
        &self.inner.config
    }

    /// Calls the coordinator once, within `request_timeout`.
    ///
    /// # Errors
    /// What the server answers or the connection meets; nothing is retried.
    pub async fn coordinator<R: Request>(&self, request: R) -> Result<R::Response, Error> {
        self.coordinator_at_least(request, 0).await
    }

    /// As [`Client::coordinator`], for a request that needs at least this version of its API.
    pub(crate) async fn coordinator_at_least<R: Request>(
        &self,
        request: R,
        version: i16,
    ) -> Result<R::Response, Error> {
        let role = ServerRole::Coordinator;
        let node = self
            .cluster()
            .coordinator()
            .ok_or(Error::NoServer { role })?;
        let address = ServerAddress::known(role, node.id, node.address());
        let connection = self.connection(&address).await?;
        connection.version(R::API_KEY, version)?;
        connection
            .call(&request, self.inner.config.request_timeout)
            .await
    }

    /// Calls the tablet server `server` once, within `request_timeout`.
    ///
    /// # Errors
    /// As [`Client::coordinator`]; [`Error::NoServer`] if metadata does not know it.
    pub async fn server<R: Request>(
        &self,
        server: ServerId,
        request: R,
    ) -> Result<R::Response, Error> {
        let connection = self.tablet_connection(server).await?;
        connection
            .call(&request, self.inner.config.request_timeout)
            .await
    }

    /// Calls some tablet server; another one when it cannot be reached. For requests that only
    /// read, or may be done twice.
    ///
    /// # Errors
    /// What the server answers; what the last one's connection met.
    pub async fn any_server<R: Request>(&self, request: R) -> Result<R::Response, Error> {
        let timeout = self.inner.config.request_timeout;
        let mut last = Error::NoServer {
            role: ServerRole::Tablet,
        };
        for address in self.candidates() {
            let answer = match self.connection(&address).await {
                Ok(connection) => connection.call(&request, timeout).await,
                Err(error) => Err(error),
            };
            match answer {
                Err(error) if unreachable_server(&error) => last = error,
                answer => return answer,
            }
        }
        Err(last)
    }

    /// The connection to a tablet server; opened, or waited for, if there is none.
    pub(crate) async fn tablet_connection(&self, server: ServerId) -> Result<Connection, Error> {
        let role = ServerRole::Tablet;
        let node = self
            .cluster()
            .tablet(server)
            .ok_or(Error::NoServer { role })?;
        self.connection(&ServerAddress::known(role, node.id, node.address()))
            .await
    }

    async fn connection(&self, address: &ServerAddress) -> Result<Connection, Error> {
        self.inner.pool.connection(address).await
    }

    /// Repeats a call that may be done twice while its errors are retriable, with back-off and
    /// fresh metadata, for at most `retry_timeout`.
    pub(crate) async fn retrying<T, F, A>(&self, mut attempt: F) -> Result<T, Error>
    where
        F: FnMut() -> A,
        A: Future<Output = Result<T, Error>>,
    {
        let give_up = Instant::now() + self.inner.config.retry_timeout;
        let mut backoff = Backoff::new(self.inner.config.first_backoff);
        loop {
            let error = match attempt().await {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            let pause = backoff.next();
            if !error.is_retriable() || Instant::now() + pause > give_up {
                return Err(error);
            }
            tokio::time::sleep(pause).await;
            if error.wants_fresh_metadata() {
                // If it fails, the next attempt meets the same trouble and tells of it.
                drop(self.refresh_cluster().await);
            }
        }
    }

    /// Tablet servers from a random one on, then the bootstrap addresses.
    fn candidates(&self) -> Vec<ServerAddress> {
        let mut known: Vec<_> = self
            .cluster()
            .tablets()
            .map(|node| ServerAddress::known(ServerRole::Tablet, node.id, node.address()))
            .collect();
        if !known.is_empty() {
            let first = rand::rng().random_range(0..known.len());
            known.rotate_left(first);
        }
        known.extend(
            self.inner
                .config
                .bootstrap
                .iter()
                .map(|a| ServerAddress::bootstrap(a)),
        );
        known
    }
}

fn unreachable_server(error: &Error) -> bool {
    matches!(
        error,
        Error::Connect { .. }
            | Error::ConnectionLost { .. }
            | Error::ServerFailure { .. }
            | Error::Timeout { .. }
            | Error::WrongRole { .. }
    )
}

/// Pauses between attempts: the first one, doubled up to fifty times it, each moved by up to a
/// fifth.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    first: Duration,
    failures: u32,
}

impl Backoff {
    const MOST: u32 = 50;

    pub(crate) fn new(first: Duration) -> Self {
        Self { first, failures: 0 }
    }

    /// The pause before the next attempt; longer with each call.
    pub(crate) fn next(&mut self) -> Duration {
        let times = (1 << self.failures.min(6)).min(Self::MOST);
        self.failures = self.failures.saturating_add(1);
        let pause = self.first.saturating_mul(times);
        pause.mul_f64(rand::rng().random_range(0.8..=1.2))
    }

    /// Starts again with the shortest pause.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
pub(crate) mod fake;
#[cfg(test)]
pub(crate) mod mock;
#[cfg(test)]
mod tests;
