//! Processes of the `weir` binary, and what Linux says about them.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use crate::Result;

/// How long a start may take before it counts as failed.
const READY_TIMEOUT: Duration = Duration::from_mins(1);
/// How long a stop may take.
const STOP_TIMEOUT: Duration = Duration::from_mins(1);
/// How much of a log an error shows.
const TAIL_LINES: usize = 40;

/// A running subcommand; its log goes to the end of a file. Killed when dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    /// The lines of standard output; bounded, so that nobody who does not read is flooded.
    lines: Receiver<String>,
    ready: Option<String>,
    started: Instant,
    name: String,
    log: PathBuf,
}

impl Process {
    /// Starts `weir ARGUMENTS`.
    ///
    /// # Errors
    /// If the process can't be started or the log file can't be written.
    pub fn start(weir: &Path, arguments: &[&str], log: &Path) -> Result<Self> {
        let started = Instant::now();
        let mut child = Command::new(weir)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::options().create(true).append(true).open(log)?)
            .spawn()?;
        let out = child.stdout.take().ok_or("no standard output")?;
        let (sender, lines) = sync_channel(16);
        std::thread::spawn(move || {
            // Ends with the process, or when nobody reads any more.
            for line in BufReader::new(out)
                .lines()
                .map_while(std::result::Result::ok)
            {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let name = arguments.first().copied().unwrap_or_default().to_owned();
        Ok(Self {
            child,
            lines,
            ready: None,
            started,
            name,
            log: log.to_owned(),
        })
    }

    /// Waits for the line `READY`, once, and returns one of its words `key=value`.
    ///
    /// # Errors
    /// If the process ends or says something else or nothing within 60 s, with the end of its log.
    pub fn ready(&mut self, key: &str) -> Result<String> {
        let line = match self.ready.take() {
            Some(line) => line,
            None => self.lines.recv_timeout(READY_TIMEOUT).unwrap_or_default(),
        };
        let mut words = line.split_whitespace();
        let value = match words.next() {
            Some("READY") => {
                words.find_map(|word| word.strip_prefix(&format!("{key}=")).map(str::to_owned))
            }
            _ => None,
        };
        let missing = || {
            format!(
                "weir {}: no READY with {key} in {line:?}\n{}",
                self.name,
                self.log_tail()
            )
        };
        let value = value.ok_or_else(missing)?;
        self.ready = Some(line);
        Ok(value)
    }

    /// Time since the start.
    pub fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// An error with the log's end if the process has ended.
    ///
    /// # Errors
    /// Says how it ended.
    pub fn check_alive(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => {
                Err(format!("weir {} ended: {status}\n{}", self.name, self.log_tail()).into())
            }
        }
    }

    /// User and system time so far.
    ///
    /// # Errors
    /// If the process has ended.
    pub fn cpu_seconds(&self) -> Result<f64> {
        cpu_seconds(&self.child.id().to_string())
    }

    /// The largest resident memory so far.
    ///
    /// # Errors
    /// If the process has ended.
    pub fn peak_rss_bytes(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status
            .lines()
            .find(|line| line.starts_with("VmHWM:"))
            .ok_or("no VmHWM")?;
        let kib: u64 = line
            .split_whitespace()
            .nth(1)
            .ok_or("no number in VmHWM")?
            .parse()?;
        Ok(kib * 1024)
    }

    /// Ends the process by SIGKILL, as a crash would, and waits until it is gone.
    ///
    /// # Errors
    /// If it had ended before by itself.
    pub fn kill(mut self) -> Result<()> {
        self.check_alive()?;
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Asks the process to end by SIGTERM and waits for it.
    ///
    /// # Errors
    /// If it does not end by itself within 60 s, or with an exit code other than 0.
    pub fn stop(&mut self) -> Result<()> {
        self.check_alive()?;
        let killed = Command::new("kill")
            .args(["-TERM", &self.child.id().to_string()])
            .status()?;
        let until = Instant::now() + STOP_TIMEOUT;
        while killed.success() && Instant::now() < until {
            if let Some(status) = self.child.try_wait()? {
                return self.ended_well(status);
            }
            pause(Duration::from_millis(20));
        }
        Err(format!(
            "weir {} did not stop within {STOP_TIMEOUT:?}\n{}",
            self.name,
            self.log_tail()
        )
        .into())
    }

    fn ended_well(&self, status: ExitStatus) -> Result<()> {
        if status.success() {
            return Ok(());
        }
        Err(format!(
            "weir {}: {status} after SIGTERM\n{}",
            self.name,
            self.log_tail()
        )
        .into())
    }

    /// The last lines of its log.
    pub fn log_tail(&self) -> String {
        let mut text = String::new();
        let read = File::open(&self.log).and_then(|mut file| file.read_to_string(&mut text));
        let skip = text.lines().count().saturating_sub(TAIL_LINES);
        read.map(|_| text.lines().skip(skip).collect::<Vec<_>>().join("\n"))
            .unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended before.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Runs a subcommand to its end.
///
/// # Errors
/// For any exit code but 0, with all that it printed.
pub fn run(weir: &Path, arguments: &[&str]) -> Result<Output> {
    let done = Command::new(weir)
        .args(arguments)
        .stdin(Stdio::null())
        .output()?;
    if done.status.success() {
        return Ok(done);
    }
    let (out, log) = (
        String::from_utf8_lossy(&done.stdout),
        String::from_utf8_lossy(&done.stderr),
    );
    Err(format!("weir {}: {}\n{out}{log}", arguments.join(" "), done.status).into())
}

/// The first of `count` neighbouring loopback ports that are free now and that no outgoing
/// connection is given: a client that dials a dead server on such a port never meets itself.
///
/// # Errors
/// If there are none.
pub fn free_ports(count: u16, seed: u64) -> Result<u16> {
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")?;
    let lowest_ephemeral: u16 = range
        .split_whitespace()
        .next()
        .ok_or("no range of ports")?
        .parse()?;
    let lowest: u16 = 10_000;
    let places = lowest_ephemeral
        .saturating_sub(lowest)
        .checked_div(count)
        .unwrap_or(0);
    let start = seed.wrapping_add(u64::from(std::process::id()));
    for place in 0..u64::from(places) {
        let place = u16::try_from((start + place) % u64::from(places))?;
        let first = lowest + place * count;
        let bound: Vec<_> = (first..first + count)
            .map(|port| TcpListener::bind(("127.0.0.1", port)))
            .collect();
        if bound.iter().all(std::result::Result::is_ok) {
            return Ok(first);
        }
    }
    Err(format!("no {count} free ports between {lowest} and {lowest_ephemeral}").into())
}

/// User and system time of this process so far.
///
/// # Errors
/// If Linux does not tell.
pub fn own_cpu_seconds() -> Result<f64> {
    cpu_seconds("self")
}

fn cpu_seconds(process: &str) -> Result<f64> {
    // Fields 14 and 15 of /proc/PID/stat, in ticks of 10 ms; the name in parentheses may hold spaces.
    let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
    let after = stat.rsplit_once(')').ok_or("unreadable /proc stat")?.1;
    let ticks: u64 = after
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(str::parse::<u64>)
        .sum::<std::result::Result<_, _>>()?;
    #[allow(clippy::cast_precision_loss, reason = "ticks are far below 2^52")]
    Ok(ticks as f64 / 100.0)
}

/// The load average of the last minute.
pub fn load_average() -> Option<f64> {
    fs::read_to_string("/proc/loadavg")
        .ok()?
        .split_whitespace()
        .next()?
        .parse()
        .ok()
}

/// The newest snapshot of a lake table in a local folder, as its JSON; `None` without one.
///
/// # Errors
/// If it can't be read.
pub fn newest_snapshot(table: &Path) -> Result<Option<serde_json::Value>> {
    let entries = match fs::read_dir(table.join("snapshot")) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let newest = entries
        .filter_map(|entry| {
            entry
                .ok()?
                .file_name()
                .to_str()?
                .strip_prefix("snapshot-")?
                .parse::<u64>()
                .ok()
        })
        .max();
    let Some(newest) = newest else {
        return Ok(None);
    };
    let text = fs::read_to_string(table.join(format!("snapshot/snapshot-{newest}")))?;
    Ok(Some(serde_json::from_str(&text)?))
}

/// `totalRecordCount` of the newest snapshot of a lake table in a local folder; 0 without one.
///
/// # Errors
/// If it can't be read.
pub fn snapshot_rows(table: &Path) -> Result<u64> {
    match newest_snapshot(table)? {
        None => Ok(0),
        Some(snapshot) => snapshot["totalRecordCount"]
            .as_u64()
            .ok_or_else(|| "no totalRecordCount".into()),
    }
}

/// Waits between two looks at another process, which can't tell when it is done.
pub fn pause(duration: Duration) {
    std::thread::park_timeout(duration);
}
