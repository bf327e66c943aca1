//! A server for tests: speaks frames on loopback, answers what the test's function says.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{SinkExt, StreamExt};
use parking_lot::Mutex;
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::codec::{FramedRead, FramedWrite};

use crate::api_key::ApiKey;
use crate::error_code::ErrorCode;
use crate::frame::{self, FrameCodec, RequestFrame};
use crate::message::Request;
use crate::proto;

/// What becomes of one request.
pub(crate) enum Reply {
    /// This frame goes back.
    Frame(Bytes),
    /// Nothing goes back, now or later.
    Silence,
    /// The connection ends.
    Close,
}

/// A request as the mock hands it to the test.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) api: ApiKey,
    pub(crate) id: i32,
    pub(crate) body: Bytes,
}

impl Call {
    pub(crate) fn read<R: Request>(&self) -> R {
        assert_eq!(self.api, R::API_KEY);
        R::decode(self.body.clone()).unwrap()
    }

    pub(crate) fn ok(&self, body: &impl Message) -> Reply {
        Reply::Frame(frame::encode_success(self.id, body))
    }

    pub(crate) fn fail(&self, code: ErrorCode) -> Reply {
        Reply::Frame(frame::encode_error(self.id, code, "said the mock"))
    }
}

/// Called once per request, in the order of arrival; the future's end is when the answer goes out.
pub(crate) type Handler = Arc<dyn Fn(Call) -> BoxFuture<'static, Reply> + Send + Sync>;

/// A handler that answers at once.
pub(crate) fn at_once(answer: impl Fn(Call) -> Reply + Send + Sync + 'static) -> Handler {
    Arc::new(move |call| {
        let reply = answer(call);
        Box::pin(async move { reply })
    })
}

/// API_VERSIONS of a server that serves all APIs in the versions of 1.0.0.
pub(crate) fn all_versions(server_type: Option<i32>) -> proto::ApiVersionsResponse {
    let version = |api: &ApiKey| proto::PbApiVersion {
        api_key: i32::from(api.key()),
        min_version: i32::from(api.versions().0),
        max_version: i32::from(api.versions().1),
    };
    let api_versions = ApiKey::ALL.iter().map(version).collect();
    proto::ApiVersionsResponse {
        api_versions,
        server_type,
    }
}

/// Serves one stream until either side closes it. API_VERSIONS is answered here if the handler
/// has no wish of its own: see `hello`.
pub(crate) async fn serve<S>(stream: S, handler: Handler)
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let (reader, writer) = tokio::io::split(stream);
    let mut requests = FramedRead::new(reader, FrameCodec::default());
    let mut answers = FramedWrite::new(writer, FrameCodec::default());
    let (sender, mut replies) = mpsc::channel::<Reply>(1024);
    let mut calls = JoinSet::new();
    loop {
        tokio::select! {
            request = requests.next() => {
                let Some(Ok(request)) = request else { return };
                let RequestFrame { api_key, request_id: id, body, .. } =
                    frame::decode_request(request).unwrap();
                let api = ApiKey::from_key(api_key).unwrap();
                let reply = handler(Call { api, id, body });
                let sender = sender.clone();
                calls.spawn(async move { drop(sender.send(reply.await).await) });
            }
            Some(reply) = replies.recv() => match reply {
                Reply::Frame(frame) => {
                    if answers.send(frame).await.is_err() {
                        return;
                    }
                }
                Reply::Silence => {}
                Reply::Close => return,
            },
        }
    }
}

/// A listening mock; ends with its handle.
pub(crate) struct MockServer {
    pub(crate) port: u16,
    /// APIs in the order of arrival, over all connections.
    pub(crate) seen: Arc<Mutex<Vec<ApiKey>>>,
    _tasks: JoinSet<()>,
}

impl MockServer {
    pub(crate) async fn start(handler: Handler) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&seen);
        let handler: Handler = Arc::new(move |call| {
            log.lock().push(call.api);
            if call.api == ApiKey::ApiVersions {
                let reply = call.ok(&all_versions(None));
                return Box::pin(async move { reply });
            }
            handler(call)
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(stream, Arc::clone(&handler)));
            }
        });
        Self {
            port,
            seen,
            _tasks: tasks,
        }
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(crate) fn count(&self, api: ApiKey) -> usize {
        self.seen.lock().iter().filter(|seen| **seen == api).count()
    }
}

/// A node of a cluster in which one mock plays all roles.
pub(crate) fn node(id: i32, port: u16) -> proto::PbServerNode {
    proto::PbServerNode {
        node_id: id,
        host: "127.0.0.1".to_owned(),
        port: i32::from(port),
        listeners: None,
        rack: None,
    }
}
