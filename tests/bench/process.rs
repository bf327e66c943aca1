//! Processes of the binary under measurement, and what Linux says about them.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use crate::Result;

/// A running subcommand; its log goes to a file. Ended when dropped.
pub struct Process {
    child: Child,
    out: BufReader<ChildStdout>,
    name: String,
    log: std::path::PathBuf,
}

impl Process {
    /// Starts `weir ARGUMENTS`.
    pub fn start(weir: &Path, arguments: &[&str], log: &Path) -> Result<Self> {
        let mut child = Command::new(weir)
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(File::create(log)?)
            .spawn()?;
        let out = BufReader::new(child.stdout.take().ok_or("no standard output")?);
        let name = arguments.first().copied().unwrap_or_default().to_owned();
        Ok(Self { child, out, name, log: log.to_owned() })
    }

    /// Waits for the line `READY` and returns one of its addresses.
    pub fn ready(&mut self, key: &str) -> Result<String> {
        let mut line = String::new();
        self.out.read_line(&mut line)?;
        line.split_whitespace()
            .find_map(|word| word.strip_prefix(&format!("{key}=")).map(str::to_owned))
            .ok_or_else(|| format!("weir {}: no {key} in {line:?}\n{}", self.name, self.log_tail()).into())
    }

    /// An error with the log's end if the process has ended.
    pub fn check_alive(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => Err(format!("weir {} ended: {status}\n{}", self.name, self.log_tail()).into()),
        }
    }

    /// User and system time so far.
    pub fn cpu_seconds(&self) -> Result<f64> {
        cpu_seconds(&self.child.id().to_string())
    }

    /// The largest resident memory so far.
    pub fn peak_rss_bytes(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).ok_or("no VmHWM")?;
        let kib: u64 = line.split_whitespace().nth(1).ok_or("no number in VmHWM")?.parse()?;
        Ok(kib * 1024)
    }

    /// Asks the process to end and waits for it.
    pub fn stop(&mut self) -> Result<()> {
        let killed = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status()?;
        let until = Instant::now() + Duration::from_secs(60);
        while killed.success() && Instant::now() < until {
            if let Some(status) = self.child.try_wait()? {
                return if status.success() { Ok(()) } else { Err(format!("weir {}: {status}", self.name).into()) };
            }
            pause(Duration::from_millis(20));
        }
        Err(format!("weir {} did not stop within 60 s", self.name).into())
    }

    fn log_tail(&self) -> String {
        let mut text = String::new();
        let read = File::open(&self.log).and_then(|mut file| file.read_to_string(&mut text));
        let skip = text.lines().count().saturating_sub(20);
        read.map(|_| text.lines().skip(skip).collect::<Vec<_>>().join("\n")).unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a subcommand to its end.
pub fn run(weir: &Path, arguments: &[&str]) -> Result<()> {
    let done = Command::new(weir).args(arguments).output()?;
    if done.status.success() {
        return Ok(());
    }
    Err(format!("weir {}: {}\n{}", arguments.join(" "), done.status, String::from_utf8_lossy(&done.stderr)).into())
}

/// User and system time of this process so far.
pub fn own_cpu_seconds() -> Result<f64> {
    cpu_seconds("self")
}

fn cpu_seconds(process: &str) -> Result<f64> {
    // Fields 14 and 15 of /proc/PID/stat, in ticks of 10 ms; the name in parentheses may hold spaces.
    let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
    let after = stat.rsplit_once(')').ok_or("unreadable /proc stat")?.1;
    let ticks: u64 =
        after.split_whitespace().skip(11).take(2).map(str::parse::<u64>).sum::<std::result::Result<_, _>>()?;
    #[allow(clippy::cast_precision_loss, reason = "ticks are far below 2^52")]
    Ok(ticks as f64 / 100.0)
}

/// The load average of the last minute.
pub fn load_average() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()
}

/// `totalRecordCount` of the newest snapshot of a lake table; 0 without one.
pub fn snapshot_rows(table: &Path) -> Result<u64> {
    let Ok(entries) = fs::read_dir(table.join("snapshot")) else { return Ok(0) };
    let newest = entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.strip_prefix("snapshot-")?.parse::<u64>().ok())
        .max();
    let Some(newest) = newest else { return Ok(0) };
    let text = fs::read_to_string(table.join(format!("snapshot/snapshot-{newest}")))?;
    let snapshot: serde_json::Value = serde_json::from_str(&text)?;
    snapshot["totalRecordCount"].as_u64().ok_or_else(|| "no totalRecordCount".into())
}

/// Waits between two looks at another process.
#[allow(clippy::disallowed_methods, reason = "a benchmark that polls another process has nothing else to wait for")]
pub fn pause(duration: Duration) {
    std::thread::park_timeout(duration);
}
