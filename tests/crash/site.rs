//! One `weir up` in its own folder, on ports that stay the same from start to start.

use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rand::Rng as _;
use rand::rngs::StdRng;
use tokio::time::{Instant, sleep};
use weir_protocol::client::{Client, ClientConfig};
use weir_tests::process::{self, Process};
use weir_tests::{Result, binary};

/// How long a condition may take to come true.
const PATIENCE: Duration = Duration::from_mins(1);

/// A kind of file that a tiering round writes, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LakeFile {
    /// Rows.
    Data,
    /// What a commit adds; its list follows, then the snapshot.
    Manifest,
    /// What publishes the commit; the report to the coordinator follows.
    Snapshot,
}

/// What a round waits for before it kills.
#[derive(Clone, Debug)]
pub(crate) enum Kill {
    /// So many more appends were acknowledged, and then some time.
    AfterAcks {
        /// Appends.
        acks: u64,
        /// The moment between two acknowledgements.
        then: Duration,
    },
    /// A new file of this kind is in the lake, and then some time.
    OnLakeFile {
        /// The kind.
        file: LakeFile,
        /// The moment within the commit.
        then: Duration,
    },
}

impl fmt::Display for Kill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kill::AfterAcks { acks, then } => {
                write!(f, "killed {then:.1?} after {acks} more appends")
            }
            Kill::OnLakeFile { file, then } => {
                write!(f, "killed {then:.1?} after a new {file:?} file")
            }
        }
    }
}

/// The server under test.
#[derive(Debug)]
pub(crate) struct Site {
    weir: PathBuf,
    folder: tempfile::TempDir,
    address: String,
    running: Option<Process>,
}

impl Site {
    /// An empty folder and free ports.
    pub(crate) fn new(name: &str, seed: u64) -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix(&format!("weir-{name}-"))
            .tempdir()?;
        // The coordinator's port, and the next one for its tablet server.
        let port = process::free_ports(2, seed)?;
        let address = format!("127.0.0.1:{port}");
        Ok(Self {
            weir: binary::path(),
            folder,
            address,
            running: None,
        })
    }

    /// Starts the server with either policy of syncing; answers the time to READY.
    pub(crate) fn start(&mut self, rng: &mut StdRng) -> Result<Duration> {
        let flush = match rng.random_range(0..3) {
            0 => "log.flush=always".to_owned(),
            1 => "log.flush=interval".to_owned(),
            _ => format!("log.flush=interval({})", rng.random_range(1..50)),
        };
        let (data, log) = (self.data(), self.folder.path().join("weir.log"));
        let mut weir = Process::start(
            &self.weir,
            &[
                "up",
                "--data-dir",
                &data.to_string_lossy(),
                "--listen",
                &self.address,
                "--http",
                "127.0.0.1:0",
                "--grpc",
                "127.0.0.1:0",
                "-o",
                &flush,
            ],
            &log,
        )?;
        weir.ready("fluss")?;
        let time = weir.age();
        self.running = Some(weir);
        Ok(time)
    }

    /// A client of the server.
    pub(crate) async fn connect(&self) -> Result<Client> {
        Ok(Client::connect(ClientConfig::new([self.address.clone()])).await?)
    }

    /// Waits until it is time to kill; the server must live until then.
    pub(crate) async fn wait_for(&mut self, kill: &Kill, acks: &impl Fn() -> u64) -> Result<()> {
        let then = match kill {
            Kill::AfterAcks { acks: more, then } => {
                let wanted = acks() + more;
                self.until("acknowledgements", || Ok(acks() >= wanted))
                    .await?;
                then
            }
            Kill::OnLakeFile { file, then } => {
                let lake = self.data().join("lake");
                let before = count_files(&lake, *file)?;
                self.until("a new file in the lake", || {
                    Ok(count_files(&lake, *file)? > before)
                })
                .await?;
                then
            }
        };
        sleep(*then).await;
        Ok(())
    }

    /// Looks again and again until `condition` holds; the server must live.
    pub(crate) async fn until(
        &mut self,
        what: &str,
        mut condition: impl FnMut() -> Result<bool>,
    ) -> Result<()> {
        let give_up = Instant::now() + PATIENCE;
        while !condition()? {
            let weir = self.running.as_mut().ok_or("the server does not run")?;
            weir.check_alive()?;
            if Instant::now() > give_up {
                return Err(format!("waited {PATIENCE:?} for {what}\n{}", weir.log_tail()).into());
            }
            // Files tell nobody that they have come; a look costs about as much as this pause.
            sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    /// Leaves the folder where it is, after the test too.
    pub(crate) fn keep(mut self) -> PathBuf {
        self.folder.disable_cleanup(true);
        self.folder.path().to_owned()
    }

    /// The server dies without a word.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.running.take().ok_or("the server does not run")?.kill()
    }

    /// The server ends when asked, with exit code 0.
    pub(crate) fn stop(&mut self) -> Result<()> {
        self.running.take().ok_or("the server does not run")?.stop()
    }

    /// Runs a subcommand that must succeed.
    pub(crate) fn run(&self, arguments: &[&str]) -> Result<()> {
        process::run(&self.weir, arguments).map(drop)
    }

    /// Where the server listens.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Where its tablet server listens: on the next port.
    pub(crate) fn tablet_address(&self) -> Result<String> {
        let (host, port) = self
            .address
            .rsplit_once(':')
            .ok_or("an address has a port")?;
        Ok(format!("{host}:{}", port.parse::<u16>()? + 1))
    }

    /// The lake.
    pub(crate) fn warehouse(&self) -> PathBuf {
        self.data().join("lake")
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }
}

/// Files of a kind under a folder, half-made ones included.
fn count_files(folder: &Path, kind: LakeFile) -> Result<usize> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(error.into()),
    };
    let mut count = 0;
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            count += count_files(&entry.path(), kind)?;
            continue;
        }
        let name = entry.file_name();
        let name = name.to_string_lossy();
        count += usize::from(match kind {
            LakeFile::Data => name.contains("data-"),
            LakeFile::Manifest => name.contains("manifest-"),
            LakeFile::Snapshot => name.starts_with("snapshot-"),
        });
    }
    Ok(count)
}
