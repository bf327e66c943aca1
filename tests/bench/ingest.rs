//! Durable appends of finished batches, beside a bare receiver that does no more than it must.
//!
//! The same frames go over loopback into `weir serve` and into a thread for each connection that reads
//! them, checks their checksums, appends them to one file, and acknowledges what a group commit made
//! durable (`fdatasync`).

use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::Instant;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use weir_protocol::api_key::ApiKey;
use weir_protocol::client::{Client, ClientConfig};
use weir_protocol::frame::{self, Answer};
use weir_protocol::ids::{BucketId, SchemaId, TableBucket, TableId, TablePath, WriterId};
use weir_protocol::proto::{MetadataRequest, ProduceLogRequest, ProduceLogResponse};
use weir_protocol::record::arrow::{Compression, encode_append};
use weir_protocol::record::batches;
use weir_protocol::schema::TypeKind;
use weir_tests::{Result, table, wire};

use crate::Settings;

const CONNECTIONS: i32 = 8;
const FRAMES_OF_A_CONNECTION: usize = 800;
/// Unanswered frames of a connection.
const IN_FLIGHT: usize = 32;
/// Some 64 KiB a frame.
const ROWS_OF_A_FRAME: i64 = 400;

/// Megabytes a second of both, in one run, in turn: the better of three each.
pub(crate) fn measure(settings: &Settings) -> Result<Value> {
    let mut server = settings.start("serve", &["-o", "log.flush=always"])?;
    let bootstrap = server.ready("fluss")?;
    let (table, tablet) = Runtime::new()?.block_on(create(&bootstrap))?;
    let frames = |bucket: i32| frames(table, bucket);
    let frame_bytes = frames(0)?.len();
    let (mut ours, mut limit) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..3 {
        limit = limit.min(push(&Receiver::start(&settings.folder)?, &frames)?);
        ours = ours.min(push(&tablet, &frames)?);
    }
    server.stop()?;
    let total = frame_bytes * FRAMES_OF_A_CONNECTION * usize::try_from(CONNECTIONS)?;
    #[allow(clippy::cast_precision_loss, reason = "a count of bytes below 2^52")]
    let megabytes = total as f64 / 1e6;
    Ok(json!({
        "frame_bytes": frame_bytes,
        "connections": CONNECTIONS,
        "durable_append_mb_per_s": megabytes / ours,
        "limit_mb_per_s": megabytes / limit,
        "ratio": limit / ours,
    }))
}

async fn create(bootstrap: &str) -> Result<(TableId, String)> {
    let client = Client::connect(ClientConfig::new([bootstrap])).await?;
    let path = TablePath::new("fluss", "ingest");
    let mut columns = vec![table::required("id", TypeKind::BigInt)];
    columns.extend((0..8).map(|number| table::column(&format!("text_{number}"), TypeKind::String)));
    let mut descriptor = table::bucketed(table::lake_table(columns), CONNECTIONS, &[]);
    descriptor.properties.clear();
    client.create_table(&path, &descriptor, false).await?;
    let info = client.table_info(&path).await?;
    for bucket in 0..CONNECTIONS {
        let bucket = TableBucket {
            table: info.table_id,
            partition: None,
            bucket: BucketId(bucket),
        };
        client.leader(&path, bucket).await?;
    }
    let servers = client.any_server(MetadataRequest::default()).await?;
    let tablet = servers
        .tablet_servers
        .first()
        .ok_or("there is a tablet server")?;
    let address = format!("{}:{}", tablet.host, tablet.port);
    client.close().await;
    Ok((info.table_id, address))
}

/// A produce request for a bucket.
fn frames(table: TableId, bucket: i32) -> Result<Bytes> {
    let mut columns = vec![table::required("id", TypeKind::BigInt)];
    columns.extend((0..8).map(|number| table::column(&format!("text_{number}"), TypeKind::String)));
    let schema = weir_protocol::schema::Schema::new(columns, Vec::new())?;
    let rows = table::rows(&schema, 0..ROWS_OF_A_FRAME);
    let batch = encode_append(SchemaId(1), WriterId(-1), -1, &rows, Compression::None)?;
    let request = wire::produce_request(table, bucket, batch);
    Ok(frame::encode_request(ApiKey::ProduceLog, 0, 0, &request).freeze())
}

/// Sends every connection's frames; the seconds until the last acknowledgement.
fn push(address: &str, frames: &impl Fn(i32) -> Result<Bytes>) -> Result<f64> {
    let started = Instant::now();
    let mut connections = Vec::new();
    for bucket in 0..CONNECTIONS {
        let frame = frames(bucket)?;
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        connections.push(std::thread::spawn(move || talk(stream, &frame)));
    }
    for connection in connections {
        connection.join().map_err(|_| "a connection panicked")??;
    }
    Ok(started.elapsed().as_secs_f64())
}

fn talk(stream: TcpStream, request: &[u8]) -> Result<()> {
    let (sent, window) = mpsc::sync_channel(IN_FLIGHT);
    let mut answers = BufReader::new(stream.try_clone()?);
    let reading = std::thread::spawn(move || -> Result<()> {
        while window.recv().is_ok() {
            let mut length = [0; 4];
            answers.read_exact(&mut length)?;
            let mut answer = vec![0; usize::try_from(i32::from_be_bytes(length))?];
            answers.read_exact(&mut answer)?;
            match frame::decode_answer(answer.into())? {
                Answer::Success { body, .. } => {
                    let answer: ProduceLogResponse = prost::Message::decode(body)?;
                    let mut buckets = answer.buckets_resp.iter();
                    if let Some(bucket) =
                        buckets.find(|bucket| bucket.error_code.is_some_and(|code| code != 0))
                    {
                        return Err(format!("{bucket:?}").into());
                    }
                }
                other => return Err(format!("{other:?}").into()),
            }
        }
        Ok(())
    });
    let mut stream = stream;
    for _ in 0..FRAMES_OF_A_CONNECTION {
        sent.send(())?;
        stream.write_all(request)?;
    }
    drop(sent);
    reading.join().map_err(|_| "a reader panicked")?
}

/// The bare receiver.
struct Receiver {
    file: File,
    /// Bytes written and bytes synced.
    progress: Mutex<(u64, u64)>,
    changed: Condvar,
}

impl Receiver {
    fn start(folder: &Path) -> Result<String> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?.to_string();
        let receiver = Arc::new(Self {
            file: File::create(folder.join("limit.log"))?,
            progress: Mutex::new((0, 0)),
            changed: Condvar::new(),
        });
        let syncing = Arc::clone(&receiver);
        std::thread::spawn(move || syncing.sync());
        std::thread::spawn(move || {
            for stream in listener
                .incoming()
                .take(usize::try_from(CONNECTIONS).unwrap_or(0))
            {
                let receiver = Arc::clone(&receiver);
                std::thread::spawn(move || stream.map(|stream| receiver.serve(&stream)));
            }
        });
        Ok(address)
    }

    /// One sync after the other, of all that was written before it.
    fn sync(&self) {
        loop {
            let written = {
                let Ok(mut progress) = self.progress.lock() else {
                    return;
                };
                while progress.0 == progress.1 {
                    let Ok(woken) = self.changed.wait(progress) else {
                        return;
                    };
                    progress = woken;
                }
                progress.0
            };
            if self.file.sync_data().is_err() {
                return;
            }
            let Ok(mut progress) = self.progress.lock() else {
                return;
            };
            progress.1 = written;
            self.changed.notify_all();
        }
    }

    fn serve(self: &Arc<Self>, stream: &TcpStream) -> Result<()> {
        let (stored, positions) = mpsc::sync_channel::<u64>(FRAMES_OF_A_CONNECTION);
        let (receiver, answers) = (Arc::clone(self), stream.try_clone()?);
        std::thread::spawn(move || receiver.answer(answers, &positions));
        let mut requests = BufReader::with_capacity(1 << 18, stream);
        let mut length = [0; 4];
        while requests.read_exact(&mut length).is_ok() {
            let mut request = vec![0; usize::try_from(i32::from_be_bytes(length))?];
            requests.read_exact(&mut request)?;
            let request = frame::decode_request(request.into())?;
            let body: ProduceLogRequest = prost::Message::decode(request.body)?;
            for bucket in &body.buckets_req {
                for batch in batches(bucket.records.clone()) {
                    batch?.verify_crc()?;
                }
                let mut progress = self.progress.lock().map_err(|_| "a receiver panicked")?;
                (&self.file).write_all(&bucket.records)?;
                progress.0 += bucket.records.len() as u64;
                stored.send(progress.0)?;
                self.changed.notify_all();
            }
        }
        Ok(())
    }

    fn answer(&self, mut stream: TcpStream, positions: &mpsc::Receiver<u64>) -> Result<()> {
        let done = ProduceLogResponse::default();
        let answer = frame::encode_success(0, &done);
        for position in positions {
            let mut progress = self.progress.lock().map_err(|_| "a receiver panicked")?;
            while progress.1 < position {
                progress = self
                    .changed
                    .wait(progress)
                    .map_err(|_| "a receiver panicked")?;
            }
            drop(progress);
            stream.write_all(&answer)?;
        }
        Ok(())
    }
}
