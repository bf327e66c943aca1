//! Whoever reads the output of `weir` may go away: no panic, and the right exit code.

use std::io::pipe;
use std::process::{Command, Stdio};

use weir_tests::binary;
use weir_tests::cluster::Cluster;

#[test]
fn a_closed_standard_error_changes_no_exit_code() {
    let (reader, writer) = pipe().expect("a pipe");
    drop(reader);
    let ended = Command::new(binary::path())
        .args([
            "--log",
            "trace",
            "verify",
            "d.t",
            "--warehouse",
            "unheard-of://lake",
        ])
        .stdout(Stdio::null())
        .stderr(writer)
        .status()
        .expect("weir runs");
    assert_eq!(ended.code(), Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_standard_output_ends_a_command_quietly() {
    let mut cluster = Cluster::start().await;
    let (reader, writer) = pipe().expect("a pipe");
    drop(reader);
    let mut command = Command::new(binary::path());
    command
        .args(["table", "list", "--bootstrap", &cluster.addr()])
        .stdout(writer)
        .stderr(Stdio::piped());
    let output = tokio::task::spawn_blocking(move || command.output());
    let output = output.await.expect("a task").expect("weir runs");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    cluster.stop().await;
}
