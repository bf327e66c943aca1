//! Damage to what is stored is said where people look: status, control API, page, `verify`.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use weir_catalog::clock::SystemClock;
use weir_protocol::ids::{BucketId, TablePath};
use weir_tests::binary::{self, Ended};
use weir_tests::cluster::{Cluster, lake_table, until};
use weir_tests::table::{bucketed, path, plain, rows as make_rows};
use weir_tests::tamper::Tampered;
use weir_tiering::daemon::Handle;
use weir_tiering::{grpc, http};

async fn append(cluster: &Cluster, path: &TablePath, from: i64) {
    let (_, schema) = cluster.client.schema(path, None).await.expect("a schema");
    let writer = cluster.writer(path).await;
    let batch = make_rows(&schema, from..from + 100);
    drop(
        writer
            .append(batch)
            .await
            .expect("the rows are the table's"),
    );
    writer.close().await.expect("the rows are acknowledged");
}

/// A table of two buckets whose 100 rows are in the lake; the daemon runs.
async fn tiered_table(cluster: &mut Cluster) -> TablePath {
    let path = path("t");
    let table = bucketed(plain(), 2, &["id"]);
    let made = cluster.client.create_table(&path, &table, false).await;
    made.expect("the table is created");
    append(cluster, &path, 0).await;
    cluster.tier().await;
    cluster.wait_tiered(&path).await;
    path
}

/// The files below `folder` whose names end so.
fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files(&path, ending));
        } else if path.to_str().expect("a plain name").ends_with(ending) {
            found.push(path);
        }
    }
    found
}

fn flip(file: &Path, back: usize) {
    let mut bytes = fs::read(file).expect("the file is there");
    let at = bytes.len() - back;
    bytes[at] ^= 1;
    fs::write(file, bytes).expect("the file is ours");
}

async fn surfaces(handle: &Handle, stop: &CancellationToken) -> (String, String) {
    let listen = || async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        (listener, address)
    };
    let (control, grpc_address) = listen().await;
    tokio::spawn(grpc::serve(control, handle.clone(), stop.clone()));
    let (page, http_address) = listen().await;
    let site = http::Site {
        about: String::new(),
        daemon: Some(handle.clone()),
        server: None,
        registries: Vec::new(),
        clock: Arc::new(SystemClock),
    };
    tokio::spawn(http::serve(page, site, stop.clone()));
    (grpc_address, http_address)
}

async fn get(address: &str, path: &str) -> String {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut stream = tokio::net::TcpStream::connect(address)
        .await
        .expect("the page answers");
    let request = format!("GET {path} HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).await.expect("an answer");
    text
}

async fn verify(cluster_addr: &str, path: &TablePath, lake: &Path, more: &[&str]) -> Ended {
    let table = path.to_string();
    let lake = lake.to_str().expect("a plain name");
    let mut arguments = vec![
        "verify",
        &table,
        "--bootstrap",
        cluster_addr,
        "--warehouse",
        lake,
    ];
    arguments.extend(more);
    binary::run(arguments).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_log_is_named_in_status_and_by_verify_and_other_buckets_go_on() {
    let mut cluster = Cluster::start().await;
    let path = tiered_table(&mut cluster).await;
    cluster.stop_tiering().await;
    append(&cluster, &path, 100).await;
    let ends = cluster.log_ends(&path).await;
    let behind = verify(
        &cluster.addr(),
        &path,
        &cluster.warehouse(),
        &["--complete"],
    )
    .await;
    assert_eq!(behind.code, Some(1), "{behind:?}");
    assert!(
        behind.data.contains("100 rows of the log not yet tiered"),
        "{behind:?}"
    );
    let good = verify(&cluster.addr(), &path, &cluster.warehouse(), &[]).await;
    assert_eq!(good.code, Some(0), "{good:?}");
    assert!(good.data.contains("verify: ok up to offsets "), "{good:?}");
    cluster.stop().await;
    let logs = files(&cluster.data_dir(), ".log");
    let of_bucket = |log: &&PathBuf| log.to_str().is_some_and(|name| name.contains("bucket-1/"));
    let log = logs.iter().find(of_bucket).expect("the bucket has a log");
    flip(log, 20);
    cluster.start_again().await;

    let handle = cluster.tier().await;
    let status = cluster
        .wait_status(&path, "the damage is seen", |s| s.failing_buckets == 1)
        .await;
    let error = status.last_error.expect("an error");
    for said in ["bucket 1: ", "LOG_STORAGE_EXCEPTION (10)", ".log", "byte"] {
        assert!(error.contains(said), "{said} in {error}");
    }
    until("the other bucket is tiered", || async {
        let lake = cluster.lake_ends(&path).await;
        let reached = ends
            .iter()
            .filter(|(bucket, _)| bucket.bucket == BucketId(0))
            .all(|(bucket, end)| lake.get(bucket) == Some(end));
        reached.then_some(())
    })
    .await;
    let stop = CancellationToken::new();
    let (control, page) = surfaces(&handle, &stop).await;
    let shown = binary::run(["status", "--grpc", &control]).await;
    assert_eq!(shown.code, Some(0), "{shown:?}");
    assert!(shown.data.contains("LOG_STORAGE_EXCEPTION"), "{shown:?}");
    let tables = get(&page, "/tables").await;
    assert!(tables.contains("LOG_STORAGE_EXCEPTION"), "{tables}");
    stop.cancel();
    cluster.stop_tiering().await;

    // Only what is in the lake is audited; of bucket 1 the log can't be read at all, or up to there.
    let damaged = verify(
        &cluster.addr(),
        &path,
        &cluster.warehouse(),
        &["--complete"],
    )
    .await;
    assert_eq!(damaged.code, Some(1), "{damaged:?}");
    let addr = cluster.addr();
    cluster.stop().await;
    let unreachable = verify(&addr, &path, &cluster.warehouse(), &[]).await;
    assert_eq!(unreachable.code, Some(75), "{unreachable:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn verify_exits_1_and_names_the_bucket_if_the_log_is_damaged_below_the_lakes_end() {
    let mut cluster = Cluster::start().await;
    let path = tiered_table(&mut cluster).await;
    cluster.stop().await;
    for log in files(&cluster.data_dir(), ".log") {
        if log.to_str().is_some_and(|name| name.contains("bucket-1/")) {
            flip(&log, 20);
        }
    }
    cluster.start_again().await;
    let damaged = verify(&cluster.addr(), &path, &cluster.warehouse(), &[]).await;
    assert_eq!(damaged.code, Some(1), "{damaged:?}");
    for said in [
        "bucket 1: its log can't be read",
        "LOG_STORAGE_EXCEPTION",
        ".log",
    ] {
        assert!(damaged.data.contains(said), "{said} in {damaged:?}");
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn verify_exits_1_and_names_each_damaged_file_of_an_old_snapshot() {
    let mut cluster = Cluster::start().await;
    let path = path("t");
    let table = bucketed(plain(), 1, &["id"]);
    let made = cluster.client.create_table(&path, &table, false).await;
    made.expect("the table is created");
    for from in [0, 100, 200] {
        append(&cluster, &path, from).await;
        // One round a snapshot: the daemon runs only while nothing is appended.
        cluster.tier().await;
        cluster.wait_tiered(&path).await;
        cluster.stop_tiering().await;
    }
    let lake = lake_table(&cluster.warehouse(), &path).await;
    let old = lake.snapshot(2).await.expect("a snapshot");
    let manifests = lake.read_manifest_list(&old.delta_manifest_list).await;
    let manifest = manifests.expect("a list")[0].file_name.clone();
    let entries = lake.read_manifest(&manifest).await.expect("a manifest");
    let data = entries[0].file.file_name.clone();
    for name in [
        data,
        manifest,
        old.base_manifest_list,
        old.delta_manifest_list,
    ] {
        for cut in [true, false] {
            let copy = Tampered::copy(&cluster.warehouse(), &path).await;
            let file = files(copy.warehouse(), &name).pop().expect("the file");
            if cut {
                let bytes = fs::read(&file).expect("the file is there");
                fs::write(&file, &bytes[..bytes.len() / 2]).expect("the copy is ours");
            } else {
                fs::remove_file(&file).expect("the copy is ours");
            }
            let damaged = verify(&cluster.addr(), &path, copy.warehouse(), &[]).await;
            assert_eq!(damaged.code, Some(1), "{name} cut {cut}: {damaged:?}");
            let said = format!("{}{}", damaged.data, damaged.log);
            assert!(said.contains(&name), "{name} cut {cut}: {damaged:?}");
        }
    }
    cluster.stop().await;
}
