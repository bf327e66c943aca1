//! One pipelined connection: requests go out in order, answers come back in any order.
//!
//! Two tasks own the stream's halves; callers hold a handle. When either half ends, every request
//! in flight fails at once, and the handle stays lost.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use parking_lot::Mutex;
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::codec::FramedRead;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::Error;
use crate::api_key::ApiKey;
use crate::error_code::ErrorCode;
use crate::frame::{self, Answer, FrameCodec};
use crate::message::Request;
use crate::proto;
use crate::sasl::{self, PlainCredentials};

/// What a server of the cluster is, as API_VERSIONS answers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ServerRole {
    /// Type 1.
    Coordinator,
    /// Type 2.
    Tablet,
}

impl ServerRole {
    /// The number in `ApiVersionsResponse.server_type`.
    pub fn server_type(self) -> i32 {
        match self {
            ServerRole::Coordinator => 1,
            ServerRole::Tablet => 2,
        }
    }
}

impl fmt::Display for ServerRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ServerRole::Coordinator => "coordinator",
            ServerRole::Tablet => "tablet server",
        })
    }
}

/// How a connection is opened and bounded.
#[derive(Clone, Debug)]
pub struct ConnectionConfig {
    /// Who is at the other end, for messages.
    pub address: Arc<str>,
    /// The role to insist on; `None` for a bootstrap address, whose role is not known.
    pub role: Option<ServerRole>,
    /// Log in with these right after the handshake.
    pub credentials: Option<PlainCredentials>,
    /// Largest frame either way.
    pub max_frame_bytes: usize,
    /// Most requests without an answer; further ones wait.
    pub max_in_flight: usize,
    /// Deadline of each step of the handshake.
    pub handshake_timeout: Duration,
}

/// A handle of an open connection; clones share it. The last one dropped closes it.
#[derive(Clone)]
pub struct Connection {
    inner: Arc<Inner>,
}

struct Inner {
    core: Arc<Core>,
    outgoing: mpsc::Sender<Bytes>,
    slots: Arc<Semaphore>,
    /// The version to use per API: the lower of both maxima. Empty during the handshake.
    versions: BTreeMap<ApiKey, i16>,
    _end: DropGuard,
}

/// What both tasks and all callers share.
struct Core {
    address: Arc<str>,
    end: CancellationToken,
    state: Mutex<State>,
}

struct State {
    next_id: i32,
    pending: HashMap<i32, Waiting>,
    lost: Option<Loss>,
    last_received: Instant,
}

struct Waiting {
    answer: oneshot::Sender<Result<Bytes, Error>>,
    api: ApiKey,
    _slot: OwnedSemaphorePermit,
}

/// Why a connection is lost, kept to tell every caller.
#[derive(Clone)]
enum Loss {
    Closed,
    Stream(Arc<frame::Error>),
    ServerFailure { code: ErrorCode, message: String },
}

impl Loss {
    fn error(&self, api: ApiKey, address: &Arc<str>) -> Error {
        let address = Arc::clone(address);
        match self {
            Loss::Closed => Error::ConnectionLost {
                api,
                address,
                source: None,
            },
            Loss::Stream(source) => Error::ConnectionLost {
                api,
                address,
                source: Some(Arc::clone(source)),
            },
            Loss::ServerFailure { code, message } => Error::ServerFailure {
                api,
                address,
                code: *code,
                message: message.clone(),
            },
        }
    }
}

impl Core {
    /// Marks the connection as lost (the first reason stays) and fails what is in flight.
    fn lose(&self, loss: Loss) {
        let (loss, waiting) = {
            let mut state = self.state.lock();
            let loss = state.lost.get_or_insert(loss).clone();
            (loss, std::mem::take(&mut state.pending))
        };
        for (_, request) in waiting {
            let error = loss.error(request.api, &self.address);
            drop(request.answer.send(Err(error)));
        }
        self.end.cancel();
    }

    /// Why the connection that has ended does so, for a request that was not handed to it.
    fn lost_before(&self, api: ApiKey) -> Error {
        let lost = self.state.lock().lost.clone();
        lost.unwrap_or(Loss::Closed).error(api, &self.address)
    }

    /// Ends the connection if there was not one answer since `started`: the peer is gone without a
    /// word.
    fn lose_if_silent(&self, started: Instant) {
        let is_silent = self.state.lock().last_received < started;
        if is_silent {
            self.lose(Loss::Closed);
        }
    }

    fn answer(&self, request_id: i32, result: Result<Bytes, (ErrorCode, String)>) {
        let waiting = {
            let mut state = self.state.lock();
            state.last_received = Instant::now();
            state.pending.remove(&request_id)
        };
        // Without an entry, the caller has given up on this request.
        if let Some(request) = waiting {
            let api = request.api;
            let result = result.map_err(|(code, message)| Error::Server { api, code, message });
            drop(request.answer.send(result));
        }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("address", &self.inner.core.address)
            .field("lost", &self.is_lost())
            .finish_non_exhaustive()
    }
}

impl Connection {
    /// Shakes hands over `stream`: API versions, the role if one is expected, the login if there is
    /// one. The two tasks run in `tasks` and end with the last handle or with `stop`.
    ///
    /// # Errors
    /// What the handshake met; the stream is closed then.
    pub async fn open<S>(
        stream: S,
        config: ConnectionConfig,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) -> Result<Self, Error>
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        let mut inner = start(stream, &config, tasks, stop);
        let hello = proto::ApiVersionsRequest {
            client_software_name: "weir".to_owned(),
            client_software_version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let answer = inner.handshake(&hello, config.handshake_timeout).await?;
        if let (Some(expected), Some(found)) = (config.role, answer.server_type)
            && expected.server_type() != found
        {
            let address = Arc::clone(&config.address);
            return Err(Error::WrongRole {
                address,
                expected,
                found,
            });
        }
        inner.versions = negotiate(&answer);
        if let Some(credentials) = &config.credentials {
            authenticate(&inner, credentials, config.handshake_timeout).await?;
        }
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// Sends a request and waits for its answer.
    ///
    /// # Errors
    /// [`Error::Server`] of the server; [`Error::Timeout`] after `timeout`, counted from now;
    /// [`Error::ConnectionLost`]; [`Error::UnsupportedVersion`] and [`Error::Busy`] without sending
    /// anything.
    pub async fn call<R: Request>(
        &self,
        request: &R,
        timeout: Duration,
    ) -> Result<R::Response, Error> {
        self.send(request, timeout).await?.await
    }

    /// Hands a request to the connection; requests go out in the order in which this returns. The
    /// answer is awaited apart, so that several can be in flight. Waits only for a free slot and for
    /// room among the frames that are still to be written.
    ///
    /// # Errors
    /// As [`Connection::call`], without the server's.
    pub async fn send<R: Request>(
        &self,
        request: &R,
        timeout: Duration,
    ) -> Result<PendingAnswer<R>, Error> {
        let version = self.version(R::API_KEY, 0)?;
        self.inner.send(request, version, timeout).await
    }

    /// The version both sides speak of an API, if it is at least `needed`.
    ///
    /// # Errors
    /// [`Error::UnsupportedVersion`].
    pub fn version(&self, api: ApiKey, needed: i16) -> Result<i16, Error> {
        match self.inner.versions.get(&api) {
            Some(version) if *version >= needed => Ok(*version),
            _ => {
                let address = Arc::clone(&self.inner.core.address);
                Err(Error::UnsupportedVersion {
                    api,
                    address,
                    needed,
                })
            }
        }
    }

    /// Whether the connection has ended; it never comes back.
    pub fn is_lost(&self) -> bool {
        self.inner.core.state.lock().lost.is_some()
    }

    /// Ends the connection for all its handles; what is in flight fails.
    pub fn close(&self) {
        self.inner.core.lose(Loss::Closed);
    }
}

impl Inner {
    async fn handshake<R: Request>(
        &self,
        request: &R,
        timeout: Duration,
    ) -> Result<R::Response, Error> {
        self.send(request, 0, timeout).await?.await
    }

    async fn send<R: Request>(
        &self,
        request: &R,
        version: i16,
        timeout: Duration,
    ) -> Result<PendingAnswer<R>, Error> {
        let started = Instant::now();
        let busy = || Error::Busy {
            api: R::API_KEY,
            address: Arc::clone(&self.core.address),
            after: timeout,
        };
        let lost = || self.core.lost_before(R::API_KEY);
        let slot = Arc::clone(&self.slots).acquire_owned();
        let slot = tokio::time::timeout_at(started + timeout, slot).await;
        let slot = slot.map_err(|_| busy())?.map_err(|_| lost())?;
        // A slot is free again once its caller gives up, although its frame may still be queued.
        let place = tokio::time::timeout_at(started + timeout, self.outgoing.reserve()).await;
        let Ok(place) = place else {
            self.core.lose_if_silent(started);
            return Err(busy());
        };
        let place = place.map_err(|_| lost())?;
        let mut frame = frame::encode_request(R::API_KEY, version, 0, request);
        let (answer, receiver) = oneshot::channel();
        let request_id = {
            let mut state = self.core.state.lock();
            if let Some(loss) = &state.lost {
                return Err(loss.error(R::API_KEY, &self.core.address));
            }
            let request_id = state.next_id;
            state.next_id = request_id.wrapping_add(1);
            let waiting = Waiting {
                answer,
                api: R::API_KEY,
                _slot: slot,
            };
            state.pending.insert(request_id, waiting);
            frame::set_request_id(&mut frame, request_id);
            // Under the lock, so that ids and frames are in the same order.
            place.send(frame.freeze());
            request_id
        };
        Ok(PendingAnswer {
            core: Arc::clone(&self.core),
            request_id,
            receiver,
            deadline: Box::pin(tokio::time::sleep_until(started + timeout)),
            started,
            timeout,
            response: std::marker::PhantomData,
        })
    }
}

/// The answer of a request that was sent; a future of it. Dropped, the answer is thrown away.
pub struct PendingAnswer<R: Request> {
    core: Arc<Core>,
    request_id: i32,
    receiver: oneshot::Receiver<Result<Bytes, Error>>,
    deadline: Pin<Box<tokio::time::Sleep>>,
    started: Instant,
    timeout: Duration,
    response: std::marker::PhantomData<fn() -> R>,
}

impl<R: Request> fmt::Debug for PendingAnswer<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingAnswer")
            .field("api", &R::API_KEY)
            .field("request_id", &self.request_id)
            .finish_non_exhaustive()
    }
}

impl<R: Request> Future for PendingAnswer<R> {
    type Output = Result<R::Response, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let Poll::Ready(answer) = Pin::new(&mut this.receiver).poll(context) {
            let api = R::API_KEY;
            let address = &this.core.address;
            let result = match answer {
                Ok(Ok(body)) => R::Response::decode(body).map_err(|source| Error::Answer {
                    api,
                    address: Arc::clone(address),
                    source: Arc::new(source),
                }),
                Ok(Err(error)) => Err(error),
                Err(_) => Err(Loss::Closed.error(api, address)),
            };
            return Poll::Ready(result);
        }
        if this.deadline.as_mut().poll(context).is_pending() {
            return Poll::Pending;
        }
        this.core.lose_if_silent(this.started);
        Poll::Ready(Err(Error::Timeout {
            api: R::API_KEY,
            address: Arc::clone(&this.core.address),
            after: this.timeout,
        }))
    }
}

impl<R: Request> Drop for PendingAnswer<R> {
    fn drop(&mut self) {
        self.core.state.lock().pending.remove(&self.request_id);
    }
}

fn start<S>(
    stream: S,
    config: &ConnectionConfig,
    tasks: &TaskTracker,
    stop: &CancellationToken,
) -> Inner
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let slots = config.max_in_flight.max(1);
    let (outgoing, frames) = mpsc::channel(slots);
    let end = stop.child_token();
    let core = Arc::new(Core {
        address: Arc::clone(&config.address),
        end: end.clone(),
        state: Mutex::new(State {
            next_id: 0,
            pending: HashMap::new(),
            lost: None,
            last_received: Instant::now(),
        }),
    });
    let (reader, writer) = tokio::io::split(stream);
    let codec = FrameCodec::new(config.max_frame_bytes);
    tasks.spawn(read_answers(
        FramedRead::new(reader, codec),
        Arc::clone(&core),
    ));
    tasks.spawn(write_requests(writer, frames, Arc::clone(&core)));
    Inner {
        core,
        outgoing,
        slots: Arc::new(Semaphore::new(slots)),
        versions: BTreeMap::new(),
        _end: end.drop_guard(),
    }
}

async fn read_answers<S>(mut frames: FramedRead<S, FrameCodec>, core: Arc<Core>)
where
    S: AsyncRead + Unpin,
{
    let loss = loop {
        let frame = tokio::select! {
            () = core.end.cancelled() => break Loss::Closed,
            frame = frames.next() => frame,
        };
        let answer = match frame {
            None => break Loss::Closed,
            Some(frame) => frame.and_then(frame::decode_answer),
        };
        match answer {
            Ok(Answer::Success { request_id, body }) => core.answer(request_id, Ok(body)),
            Ok(Answer::Error {
                request_id,
                code,
                message,
            }) => {
                core.answer(request_id, Err((code, message)));
            }
            Ok(Answer::ServerFailure { code, message }) => {
                break Loss::ServerFailure { code, message };
            }
            Err(error) => break Loss::Stream(Arc::new(error)),
        }
    };
    core.lose(loss);
}

async fn write_requests<S>(mut stream: S, mut frames: mpsc::Receiver<Bytes>, core: Arc<Core>)
where
    S: AsyncWrite + Unpin,
{
    let written = tokio::select! {
        () = core.end.cancelled() => Ok(()),
        written = write_all(&mut stream, &mut frames) => written,
    };
    core.lose(match written {
        Ok(()) => Loss::Closed,
        Err(error) => Loss::Stream(Arc::new(error.into())),
    });
    // The peer learns of the end; it does not matter whether it can.
    drop(stream.shutdown().await);
}

async fn write_all<S>(stream: &mut S, frames: &mut mpsc::Receiver<Bytes>) -> std::io::Result<()>
where
    S: AsyncWrite + Unpin,
{
    while let Some(frame) = frames.recv().await {
        stream.write_all(&frame).await?;
        if frames.is_empty() {
            stream.flush().await?;
        }
    }
    Ok(())
}

/// Per API of ours, the lower of both maxima where the ranges overlap.
fn negotiate(answer: &proto::ApiVersionsResponse) -> BTreeMap<ApiKey, i16> {
    let mut versions = BTreeMap::new();
    for offered in &answer.api_versions {
        let api = i16::try_from(offered.api_key)
            .ok()
            .and_then(ApiKey::from_key);
        let Some(api) = api else { continue };
        let (our_min, our_max) = api.versions();
        let version = i32::from(our_max).min(offered.max_version);
        if version >= i32::from(our_min).max(offered.min_version)
            && let Ok(version) = i16::try_from(version)
        {
            versions.insert(api, version);
        }
    }
    versions
}

async fn authenticate(
    inner: &Inner,
    credentials: &PlainCredentials,
    timeout: Duration,
) -> Result<(), Error> {
    let request = proto::AuthenticateRequest {
        protocol: sasl::PLAIN.to_owned(),
        token: sasl::encode_plain_token(&credentials.user, &credentials.password),
    };
    let answer = inner.handshake(&request, timeout).await?;
    // The reference server sends a challenge of no bytes when it is content.
    match answer.challenge {
        Some(challenge) if !challenge.is_empty() => Err(Error::Challenge {
            address: Arc::clone(&inner.core.address),
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
