//! The binary `weir`, where a test needs a process of its own.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tokio::time::timeout;

use crate::cluster::PATIENCE;

/// How a run of the binary ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// The exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    /// Standard output: data.
    pub data: String,
    /// Standard error: log and the last sentence.
    pub log: String,
}

/// Runs `weir` with these arguments to its end: `WEIR_BINARY`, or the binary that was built beside
/// the running test.
///
/// # Panics
/// If there is no binary, or it does not end in time.
pub async fn run<A: Into<String>>(arguments: impl IntoIterator<Item = A>) -> Ended {
    let mut command = Command::new(path());
    command
        .args(arguments.into_iter().map(Into::into))
        .stdin(Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output());
    let output = timeout(PATIENCE, output)
        .await
        .expect("weir ends in time")
        .expect("a task");
    let output = output.expect("weir runs");
    let text = |bytes| String::from_utf8(bytes).expect("weir writes UTF-8");
    Ended {
        code: output.status.code(),
        data: text(output.stdout),
        log: text(output.stderr),
    }
}

/// Where the binary is: `WEIR_BINARY`, or beside the running test.
///
/// # Panics
/// If it is not there.
pub fn path() -> PathBuf {
    if let Some(path) = std::env::var_os("WEIR_BINARY") {
        return path.into();
    }
    let test = std::env::current_exe().expect("a running test has a path");
    let beside = test
        .parent()
        .and_then(Path::parent)
        .expect("target/PROFILE/deps")
        .join("weir");
    assert!(
        beside.is_file(),
        "{}: not there: run `make build` first",
        beside.display()
    );
    beside
}
