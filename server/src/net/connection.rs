//! One connection: a reader that starts requests in order, a writer that sends what is done.

use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::FutureExt;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use weir_protocol::api_key::ApiKey;
use weir_protocol::error_code::ErrorCode;
use weir_protocol::frame;

use super::Shared;
use super::admission::{Activity, Running};
use super::login::Login;
use super::request_memory::RequestMemory;
use crate::api::{self, Call, OnClose, Outgoing, Service, Started};
use crate::error::Error;

const READ_BUFFER_BYTES: usize = 64 << 10;
/// A peer may announce much and send nothing: memory is taken for so much at first, and then for as much
/// again as has arrived.
const FIRST_STEP_BYTES: usize = 64 << 10;
/// A request begins with its API key.
const API_KEY_BYTES: usize = 2;
const WRITE_DEADLINE: Duration = Duration::from_mins(1);
const DEFAULT_LOGIN_DEADLINE: Duration = Duration::from_secs(10);
/// How long answers that are due may take once the server stops.
const DRAIN_DEADLINE: Duration = Duration::from_secs(10);

/// Serves a connection to its end. Requests that are running then still finish, except waits.
pub(super) async fn run<R, W>(
    (read, write): (R, W),
    peer: SocketAddr,
    (service, activity): (Arc<Service>, &Arc<Activity>),
    shared: &Arc<Shared>,
) where
    R: AsyncRead + Send + Sync + Unpin,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let in_flight = shared.limits.in_flight_per_connection;
    let (answers, outgoing) = mpsc::channel(in_flight);
    let closed = CancellationToken::new();
    let mut writer = tokio::spawn(write_answers(write, outgoing, closed.clone()));
    let reader = Reader {
        stream: BufReader::with_capacity(READ_BUFFER_BYTES, read),
        shared,
        service,
        login: Login::new(shared.sasl.as_ref()),
        activity,
        opened: Instant::now(),
        slots: Arc::new(Semaphore::new(in_flight)),
        answers,
        closed: closed.clone(),
    };
    if let Err(reason) = reader.serve().await {
        tracing::debug!(%peer, %reason, "connection closed");
    }
    closed.cancel();
    if timeout(DRAIN_DEADLINE, &mut writer).await.is_err() {
        tracing::debug!(%peer, "answers were not taken in time");
        // It must not outlive the connection's place among all.
        writer.abort();
    }
}

/// Why a connection ends; none of it is an event of the server.
#[derive(Debug, thiserror::Error)]
enum Closed {
    #[error("the peer is gone")]
    Gone,
    #[error("the peer sent nothing for too long")]
    Idle,
    #[error("a request took too long to come in")]
    Slow,
    #[error("nobody logged in in time")]
    NoLogin,
    #[error("no request came in time")]
    NoRequest,
    #[error("it did nothing, and another connection took its place")]
    GaveWay,
    #[error("the bytes are no frame")]
    Frame(#[from] frame::Error),
    #[error("reading failed")]
    Io(#[from] std::io::Error),
}

struct Reader<'a, R> {
    stream: BufReader<R>,
    shared: &'a Arc<Shared>,
    service: Arc<Service>,
    login: Login<'a>,
    activity: &'a Arc<Activity>,
    opened: Instant,
    slots: Arc<Semaphore>,
    answers: mpsc::Sender<Outgoing>,
    closed: CancellationToken,
}

/// What a request holds until it is answered.
struct Held {
    _slot: OwnedSemaphorePermit,
    memory: Option<RequestMemory>,
    _running: Running,
}

impl<R: AsyncRead + Send + Sync + Unpin> Reader<'_, R> {
    async fn serve(mut self) -> Result<(), Closed> {
        let (shutdown, closed) = (self.shared.shutdown.clone(), self.closed.clone());
        let activity = Arc::clone(self.activity);
        loop {
            let wait = async {
                let slot = self.await_slot().await?;
                self.await_bytes().await?;
                Ok::<_, Closed>(slot)
            };
            let slot = tokio::select! {
                biased;
                () = shutdown.begun() => return Ok(()),
                () = closed.cancelled() => return Err(Closed::Gone),
                () = activity.gives_way() => return Err(Closed::GaveWay),
                slot = wait => slot?,
            };
            let (bytes, memory) = tokio::select! {
                biased;
                () = closed.cancelled() => return Err(Closed::Gone),
                read = self.read_frame() => read?,
            };
            let request = frame::decode_request(bytes)?;
            self.handle(
                request,
                Held {
                    _slot: slot,
                    memory,
                    _running: self.activity.begin(),
                },
            )
            .await;
        }
    }

    /// Waits until one more request may run. Looks meanwhile whether the peer has hung up, which is not
    /// seen behind bytes that it has sent already.
    async fn await_slot(&mut self) -> Result<OwnedSemaphorePermit, Closed> {
        let slot = Arc::clone(&self.slots).acquire_owned();
        tokio::pin!(slot);
        let mut has_bytes = false;
        loop {
            tokio::select! {
                biased;
                slot = &mut slot => return slot.map_err(|_| Closed::Gone),
                filled = self.stream.fill_buf(), if !has_bytes => {
                    if filled?.is_empty() {
                        return Err(Closed::Gone);
                    }
                    has_bytes = true;
                }
            }
        }
    }

    /// Waits for the first byte of a request.
    async fn await_bytes(&mut self) -> Result<(), Closed> {
        let idle = Duration::from_millis(self.shared.limits.idle_ms);
        let slots = self.shared.limits.in_flight_per_connection;
        let first_request = Duration::from_millis(self.shared.limits.first_request_ms);
        loop {
            let (deadline, closed) = if self.login.is_pending() {
                (self.opened + self.login_limit(), Closed::NoLogin)
            } else if !self.activity.had_request() {
                (self.opened + first_request.min(idle), Closed::NoRequest)
            } else {
                (Instant::now() + idle, Closed::Idle)
            };
            match timeout_at(deadline, self.stream.fill_buf()).await {
                Ok(Ok([])) => return Err(Closed::Gone),
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(error)) => return Err(error.into()),
                Err(_)
                    if matches!(closed, Closed::Idle)
                        && self.slots.available_permits() + 1 < slots => {}
                Err(_) => return Err(closed),
            }
        }
    }

    fn login_limit(&self) -> Duration {
        let configured = self
            .shared
            .sasl
            .as_ref()
            .and_then(|sasl| sasl.login_timeout_ms);
        configured.map_or(DEFAULT_LOGIN_DEADLINE, Duration::from_millis)
    }

    /// Reads a request. Its memory is taken as its bytes arrive: who announces much and sends nothing holds
    /// hardly any. Waiting for memory does not count as slow.
    async fn read_frame(&mut self) -> Result<(Bytes, Option<RequestMemory>), Closed> {
        let slow = Duration::from_millis(self.shared.limits.slow_frame_ms);
        let mut deadline = Instant::now() + slow;
        let announced = timeout_at(deadline, self.stream.read_i32()).await;
        let announced = announced.map_err(|_| Closed::Slow)??;
        let length = usize::try_from(announced)
            .map_err(|_| frame::Error::NegativeLength { length: announced })?;
        self.refuse_too_large(length, self.shared.limits.max_frame_bytes)?;
        let mut memory = self.shared.admission.request_memory();
        let mut bytes = BytesMut::new();
        while bytes.len() < length {
            let upto = match bytes.len() {
                0 => length.min(API_KEY_BYTES),
                API_KEY_BYTES => {
                    self.refuse_too_large(length, self.max_frame_bytes_of(&bytes))?;
                    length.min(FIRST_STEP_BYTES)
                }
                read => length.min(read * 2),
            };
            let before = Instant::now();
            memory.grow_to(upto).await;
            deadline += before.elapsed();
            bytes.reserve(upto - bytes.len());
            let read = self.read_upto(upto, &mut bytes);
            timeout_at(deadline, read)
                .await
                .map_err(|_| Closed::Slow)??;
        }
        self.shared
            .metrics
            .request_bytes
            .inc_by(u64::try_from(length).unwrap_or(0));
        Ok((bytes.freeze(), Some(memory)))
    }

    async fn read_upto(&mut self, upto: usize, bytes: &mut BytesMut) -> Result<(), Closed> {
        while bytes.len() < upto {
            let missing = u64::try_from(upto - bytes.len()).unwrap_or(u64::MAX);
            if (&mut self.stream).take(missing).read_buf(bytes).await? == 0 {
                return Err(Closed::Gone);
            }
        }
        Ok(())
    }

    /// The most bytes of a request that begins so: only those that carry rows may be large.
    fn max_frame_bytes_of(&self, start: &[u8]) -> usize {
        let limits = &self.shared.limits;
        let api = start.first_chunk().map(|key| i16::from_be_bytes(*key));
        if api
            .and_then(ApiKey::from_key)
            .is_some_and(api::carries_rows)
        {
            limits.max_frame_bytes
        } else {
            limits.max_frame_bytes.min(limits.max_small_frame_bytes)
        }
    }

    fn refuse_too_large(&self, length: usize, max: usize) -> Result<(), Closed> {
        let max = if self.login.is_pending() {
            max.min(self.shared.limits.max_frame_bytes_before_login)
        } else {
            max
        };
        if length > max {
            tracing::warn!(length, max, "a client announces a request above the limit");
            return Err(frame::Error::TooLarge { length, max }.into());
        }
        Ok(())
    }

    async fn handle(&mut self, request: frame::RequestFrame, held: Held) {
        let request_id = request.request_id;
        match self.route(request) {
            Ok(Routed::Answer(bytes)) => self.answer(bytes).await,
            Ok(Routed::Call(call)) => self.start(call, request_id, held).await,
            Err(error) => {
                let failure = api::Failure::from(error);
                self.shared.metrics.error(failure.code);
                self.answer(failure.frame(request_id)).await;
            }
        }
    }

    fn route(&mut self, request: frame::RequestFrame) -> Result<Routed, Error> {
        let api = self.service.check(request.api_key, request.version)?;
        if api == ApiKey::Authenticate {
            let login = api::decode(api, request.body)?;
            let answer = self.login.attempt(&login)?;
            return Ok(Routed::Answer(frame::encode_success(
                request.request_id,
                &answer,
            )));
        }
        if self.login.is_pending() && api != ApiKey::ApiVersions {
            return Err(Error::NotLoggedIn { api });
        }
        api::refuse_flood(
            api,
            &request.body,
            self.shared.limits.max_buckets_per_request,
        )?;
        Ok(Routed::Call(Call {
            api,
            version: request.version,
            body: request.body,
        }))
    }

    async fn start(&self, call: Call, request_id: i32, mut held: Held) {
        let api = call.api;
        let started_at = Instant::now();
        let metrics = Arc::clone(&self.shared.metrics);
        let starting = AssertUnwindSafe(self.service.start(call))
            .catch_unwind()
            .await;
        let Ok(Started { done, on_close }) = starting else {
            self.answer(panicked(api, request_id)).await;
            return;
        };
        // An append has copied its bytes to the log by now; a wait holds hardly any.
        if matches!(api, ApiKey::ProduceLog | ApiKey::FetchLog) {
            held.memory = None;
        }
        let answers = self.answers.clone();
        let closed = self.closed.clone();
        self.shared.shutdown.spawn(async move {
            let outcome = tokio::select! {
                biased;
                outcome = AssertUnwindSafe(done).catch_unwind() => outcome,
                () = closed.cancelled(), if on_close == OnClose::Abandon => return,
            };
            let answer = match outcome {
                Ok(Ok(answer)) => answer.frame(request_id),
                Ok(Err(failure)) => {
                    metrics.error(failure.code);
                    failure.frame(request_id).into()
                }
                Err(_) => panicked(api, request_id).into(),
            };
            metrics.request(api, started_at.elapsed());
            send(&answers, answer).await;
            drop(held);
        });
    }

    async fn answer(&self, bytes: Bytes) {
        send(&self.answers, bytes.into()).await;
    }
}

enum Routed {
    Answer(Bytes),
    Call(Call),
}

/// Hands an answer to the writer; a writer that is gone needs none.
async fn send(answers: &mpsc::Sender<Outgoing>, answer: Outgoing) {
    if answers.send(answer).await.is_err() {
        tracing::trace!("an answer came after its connection");
    }
}

fn panicked(api: ApiKey, request_id: i32) -> Bytes {
    tracing::error!(api = api.name(), "a request hit a broken invariant");
    frame::encode_error(
        request_id,
        ErrorCode::UnknownServerError,
        "internal error, see the log",
    )
}

/// Sends answers in the order they are done until nobody can send more.
async fn write_answers(
    mut stream: impl AsyncWrite + Unpin,
    mut outgoing: mpsc::Receiver<Outgoing>,
    closed: CancellationToken,
) {
    while let Some(answer) = outgoing.recv().await {
        match timeout(WRITE_DEADLINE, stream.write_all(&answer.bytes)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) | Err(_) => {
                closed.cancel();
                return;
            }
        }
    }
    // The peer may be gone; there is nobody to tell.
    let _gone = stream.shutdown().await;
}
