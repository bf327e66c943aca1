//! Connections by role, server and address; each is opened once and shared.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::connection::{Connection, ConnectionConfig, ServerRole};
use super::{Backoff, ClientConfig, Dial, Error};
use crate::ids::ServerId;
use crate::sasl::PlainCredentials;

/// A connection that was lost sooner than this counts as one more failure to connect.
const SHORT_LIFE: Duration = Duration::from_secs(5);

/// Whom to connect to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ServerAddress {
    /// Role and id, as metadata names them; `None` for a bootstrap address.
    server: Option<(ServerRole, ServerId)>,
    address: Arc<str>,
}

impl ServerAddress {
    pub(crate) fn known(role: ServerRole, id: ServerId, address: Arc<str>) -> Self {
        Self {
            server: Some((role, id)),
            address,
        }
    }

    pub(crate) fn bootstrap(address: &str) -> Self {
        Self {
            server: None,
            address: address.into(),
        }
    }
}

type Opening = Shared<BoxFuture<'static, Result<Connection, Error>>>;

struct Entry {
    opening: Opening,
    backoff: Backoff,
    opened: Option<Instant>,
}

pub(crate) struct Pool {
    entries: Mutex<HashMap<ServerAddress, Entry>>,
    credentials: Option<PlainCredentials>,
    connect_timeout: Duration,
    request_timeout: Duration,
    max_frame_bytes: usize,
    max_in_flight: usize,
    first_backoff: Duration,
    dial: Arc<dyn Dial>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Pool {
    pub(crate) fn new(config: &ClientConfig, tasks: TaskTracker, stop: CancellationToken) -> Self {
        Self {
            entries: Mutex::new(HashMap::new()),
            credentials: config.credentials.clone(),
            connect_timeout: config.connect_timeout,
            request_timeout: config.request_timeout,
            max_frame_bytes: config.max_frame_bytes,
            max_in_flight: config.max_in_flight,
            first_backoff: config.first_backoff,
            dial: Arc::clone(&config.dial),
            tasks,
            stop,
        }
    }

    /// The open connection to `address`. Callers of a server that is being dialled, or that rests
    /// after a failure, wait together for the same attempt, at most `request_timeout`.
    pub(crate) async fn connection(&self, address: &ServerAddress) -> Result<Connection, Error> {
        let opening = self.opening(address);
        let result = match tokio::time::timeout(self.request_timeout, opening.clone()).await {
            Ok(result) => result,
            Err(_) => Err(timed_out(&address.address)),
        };
        let mut entries = self.entries.lock();
        if let Some(entry) = entries.get_mut(address)
            && entry.opening.ptr_eq(&opening)
            && result.is_ok()
        {
            entry.opened.get_or_insert_with(Instant::now);
        }
        result
    }

    /// The attempt or connection there is, or a new attempt if it has failed or was lost.
    fn opening(&self, address: &ServerAddress) -> Opening {
        let mut entries = self.entries.lock();
        let mut backoff = Backoff::new(self.first_backoff);
        let mut pause = Duration::ZERO;
        if let Some(entry) = entries.get(address) {
            match entry.opening.peek() {
                None => return entry.opening.clone(),
                Some(Ok(connection)) if !connection.is_lost() => return entry.opening.clone(),
                Some(Ok(_)) if entry.opened.is_none_or(|at| at.elapsed() > SHORT_LIFE) => {}
                Some(_) => {
                    backoff = entry.backoff.clone();
                    pause = backoff.next();
                }
            }
        }
        let opening = self.open(address, pause);
        let entry = Entry {
            opening: opening.clone(),
            backoff,
            opened: None,
        };
        entries.insert(address.clone(), entry);
        opening
    }

    fn open(&self, address: &ServerAddress, pause: Duration) -> Opening {
        let config = ConnectionConfig {
            address: Arc::clone(&address.address),
            role: address.server.map(|(role, _)| role),
            credentials: self.credentials.clone(),
            max_frame_bytes: self.max_frame_bytes,
            max_in_flight: self.max_in_flight,
            handshake_timeout: self.connect_timeout,
        };
        let (tasks, stop) = (self.tasks.clone(), self.stop.clone());
        let dial = Arc::clone(&self.dial);
        let attempt = async move {
            tokio::time::sleep(pause).await;
            let address = Arc::clone(&config.address);
            let dial = dial.dial(&address);
            let stream = match tokio::time::timeout(config.handshake_timeout, dial).await {
                Ok(Ok(stream)) => stream,
                Ok(Err(source)) => {
                    return Err(Error::Connect {
                        address,
                        source: Arc::new(source),
                    });
                }
                Err(_) => return Err(timed_out(&address)),
            };
            Connection::open(stream, config, &tasks, &stop).await
        };
        attempt.boxed().shared()
    }
}

fn timed_out(address: &Arc<str>) -> Error {
    let source = Arc::new(std::io::Error::from(std::io::ErrorKind::TimedOut));
    Error::Connect {
        address: Arc::clone(address),
        source,
    }
}
