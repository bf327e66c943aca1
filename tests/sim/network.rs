//! The network: connections of processes to the servers of the one server process there is.
//!
//! A wire carries whole requests. It may refuse a connection, lose a request or an answer (the
//! connection breaks then), deliver late after its sender gave up, and deliver an append twice.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, ReadHalf, WriteHalf};
use tokio::sync::watch;
use tokio::time::sleep;
use weir_protocol::api_key::ApiKey;
use weir_protocol::client::Dial;
use weir_protocol::client::dial::Stream;
use weir_server::server::Entrance;

use crate::chaos::{Kind, Verdict};
use crate::process::{Fate, Process};

/// What a stream holds on its way.
const STREAM_BYTES: usize = 1 << 20;

/// The way to the server, as long as one runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Network(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    server: Mutex<Option<(Entrance, Process)>>,
    /// Counts how often all connections were cut.
    cuts: watch::Sender<u64>,
}

impl Network {
    /// From now on this server answers.
    pub(crate) fn open(&self, entrance: Entrance, process: Process) {
        *self.0.server.lock() = Some((entrance, process));
    }

    /// Nobody answers any more.
    pub(crate) fn close(&self) {
        *self.0.server.lock() = None;
    }

    /// Breaks all connections.
    pub(crate) fn cut(&self) {
        self.0.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// How a process reaches the server.
    pub(crate) fn of(&self, process: &Process) -> Arc<dyn Dial> {
        Arc::new(Wire {
            network: self.clone(),
            process: process.clone(),
        })
    }
}

#[derive(Debug)]
struct Wire {
    network: Network,
    process: Process,
}

impl Dial for Wire {
    fn dial(&self, address: &str) -> BoxFuture<'static, io::Result<Box<dyn Stream>>> {
        let (network, process) = (self.network.clone(), self.process.clone());
        let address = address.to_owned();
        async move {
            process.runs().await;
            // A packet's time: those who ask again at once don't stop the world's clock.
            sleep(Duration::from_millis(1)).await;
            let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
            let server = network.0.server.lock().clone();
            let (entrance, server) = server.ok_or_else(refused)?;
            let stream = connect(&entrance, &address).ok_or_else(refused)?;
            let (near, far) = tokio::io::duplex(STREAM_BYTES);
            let connection = Connection {
                client: process,
                server,
                entrance,
                address,
                cuts: network.0.cuts.subscribe(),
            };
            tokio::spawn(connection.carry(far, stream));
            Ok(Box::new(near) as Box<dyn Stream>)
        }
        .boxed()
    }
}

fn connect(entrance: &Entrance, address: &str) -> Option<DuplexStream> {
    let (here, there) = tokio::io::duplex(STREAM_BYTES);
    entrance.serve(address, there).then_some(here)
}

struct Connection {
    client: Process,
    server: Process,
    entrance: Entrance,
    address: String,
    cuts: watch::Receiver<u64>,
}

impl Connection {
    /// Carries bytes both ways until either end, or the connection, is gone.
    async fn carry(mut self, client: DuplexStream, server: DuplexStream) {
        let (from_client, to_client) = tokio::io::split(client);
        let (from_server, to_server) = tokio::io::split(server);
        let mut cuts = self.cuts.clone();
        cuts.borrow_and_update();
        self.cuts = cuts.clone();
        let (client, server) = (self.client.clone(), self.server.clone());
        let late = self.requests(from_client, to_server);
        let answers = answers(client.clone(), from_server, to_client);
        let ended = tokio::select! {
            biased;
            () = server.dead() => None,
            () = client.dead() => None,
            _ = cuts.changed() => None,
            late = late => Some(late),
            () = answers => None,
        };
        // Both streams are closed by now, but for a request that is still on its way.
        if let Some(Ok(Some((request, mut to_server, time)))) = ended {
            tokio::spawn(async move {
                sleep(time).await;
                let _ = to_server.write_all(&request).await;
                // The server reads it before it sees the end.
                let _ = to_server.shutdown().await;
            });
        }
    }

    /// Carries requests; ends with one that is to arrive late.
    async fn requests(
        &self,
        mut from: ReadHalf<DuplexStream>,
        mut to: WriteHalf<DuplexStream>,
    ) -> io::Result<Option<Late>> {
        loop {
            let Some(request) = read_frame(&mut from).await? else {
                return Ok(None);
            };
            self.client.runs().await;
            let fate = self.client.fate();
            let what = name_of(&request);
            match fate {
                Some(Fate::DieBefore) => self.client.die(),
                Some(Fate::FreezeBefore) => self.client.freeze(),
                Some(Fate::Refuse) => return Ok(None),
                Some(Fate::Lose) => return Ok(Some((request, to, Duration::ZERO))),
                Some(Fate::DieAfter | Fate::FreezeAfter) | None => {}
            }
            self.client.runs().await;
            let verdict = self
                .client
                .chaos()
                .verdict(Kind::Request, &what, &self.client);
            match verdict {
                // The world must know what exists: its own orders don't come out of the blue.
                Verdict::Late(_) if self.client.name() == "administrator" => return Ok(None),
                Verdict::Pass => to.write_all(&request).await?,
                Verdict::Refuse => return Ok(None),
                Verdict::Slow(time) => {
                    sleep(time).await;
                    to.write_all(&request).await?;
                }
                Verdict::Late(time) => return Ok(Some((request, to, time))),
                Verdict::Lose | Verdict::Outage(_) => {
                    return Ok(Some((request, to, Duration::ZERO)));
                }
                Verdict::TimeOut(time) => {
                    sleep(time).await;
                    return Ok(None);
                }
                Verdict::MeetItself => {
                    to.write_all(&request).await?;
                    self.repeat(&request).await;
                }
            }
            match fate {
                Some(Fate::DieAfter) => self.client.die(),
                Some(Fate::FreezeAfter) => self.client.freeze(),
                Some(Fate::DieBefore | Fate::FreezeBefore | Fate::Refuse | Fate::Lose) | None => {}
            }
        }
    }

    /// Sends an append once more, on a connection of its own.
    async fn repeat(&self, request: &[u8]) {
        if api_of(request) != Some(ApiKey::ProduceLog) {
            return;
        }
        if let Some(mut stream) = connect(&self.entrance, &self.address) {
            let _ = stream.write_all(request).await;
            tokio::spawn(async move {
                let mut answer = Vec::new();
                let read = stream.read_to_end(&mut answer);
                let _ = tokio::time::timeout(Duration::from_secs(60), read).await;
            });
        }
    }
}

type Late = (Vec<u8>, WriteHalf<DuplexStream>, Duration);

/// Carries answers, while the client is there to take them.
async fn answers(
    client: Process,
    mut from: ReadHalf<DuplexStream>,
    mut to: WriteHalf<DuplexStream>,
) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        match from.read(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(count) => {
                client.runs().await;
                if to.write_all(&buffer[..count]).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// A frame with its length; `None` at the end.
async fn read_frame(from: &mut ReadHalf<DuplexStream>) -> io::Result<Option<Vec<u8>>> {
    let mut frame = vec![0; 4];
    match from.read_exact(&mut frame).await {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    };
    let length = u32::from_be_bytes([frame[0], frame[1], frame[2], frame[3]]) as usize;
    frame.resize(4 + length, 0);
    from.read_exact(&mut frame[4..]).await?;
    Ok(Some(frame))
}

fn api_of(request: &[u8]) -> Option<ApiKey> {
    let key: [u8; 2] = request.get(4..6)?.try_into().ok()?;
    ApiKey::from_key(i16::from_be_bytes(key))
}

fn name_of(request: &[u8]) -> String {
    api_of(request).map_or("a request".to_owned(), |api| api.name().to_owned())
}
