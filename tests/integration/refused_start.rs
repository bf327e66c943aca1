//! What keeps a server from starting is said in one sentence, and nothing is lost.

use std::fs;
use std::net::TcpListener;
use std::path::Path;

use tempfile::TempDir;
use weir_server::data_dir::FORMAT_VERSION;
use weir_server::server::{Components, Server};
use weir_server::{Error, ServerConfig};
use weir_tests::cluster::{Cluster, server_config};
use weir_tests::table::{path, plain, rows as make_rows};
use weir_tests::{binary, rows};

/// The one sentence with which a start is refused.
async fn refusal(config: ServerConfig) -> (Error, String) {
    let error = Server::start(config, Components::default())
        .await
        .expect_err("it is refused");
    let sentence = error.to_string();
    assert!(
        !sentence.contains('\n') && sentence.len() > 20,
        "{sentence}"
    );
    (error, sentence)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_warehouse_that_cannot_be_written_is_named() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("a-file");
    fs::write(&file, "").unwrap();
    let mut config = server_config(dir.path());
    config.warehouse = Some(file.join("lake").to_str().unwrap().to_owned());
    let (error, sentence) = refusal(config).await;
    assert!(matches!(error, Error::Warehouse { .. }), "{error:?}");
    assert!(
        sentence.contains("warehouse") && sentence.contains("a-file"),
        "{sentence}"
    );
    // With another warehouse the same data directory serves.
    let config = server_config(dir.path());
    let server = Server::start(config, Components::default())
        .await
        .expect("it starts");
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_in_use_is_named() {
    let dir = TempDir::new().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut config = server_config(dir.path());
    config.listen = taken.local_addr().unwrap().to_string();
    let listen = config.listen.clone();
    let (error, sentence) = refusal(config).await;
    assert!(matches!(error, Error::PortInUse { .. }), "{error:?}");
    assert!(sentence.contains(&listen), "{sentence}");
    // The data directory is free again at once.
    let server = Server::start(server_config(dir.path()), Components::default()).await;
    server.expect("it starts").shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_data_directory_of_a_newer_version_is_refused_and_left_alone() {
    let mut cluster = Cluster::start().await;
    let path = path("kept");
    cluster
        .client
        .create_table(&path, &plain(), false)
        .await
        .expect("the table is created");
    let (_, schema) = cluster.client.schema(&path, None).await.expect("a schema");
    let writer = cluster.writer(&path).await;
    drop(
        writer
            .append(make_rows(&schema, 0..10))
            .await
            .expect("the rows are the table's"),
    );
    writer.close().await.expect("the rows are acknowledged");
    let held = refusal(server_config(cluster.data_dir().parent().unwrap())).await;
    assert!(matches!(held.0, Error::Locked { .. }), "{:?}", held.0);
    assert!(held.1.contains("held by another process"), "{}", held.1);
    cluster.stop().await;

    let format = cluster.data_dir().join("weir.format");
    let ours = fs::read_to_string(&format).unwrap();
    fs::write(&format, format!("{}\n", FORMAT_VERSION + 1)).unwrap();
    let (error, sentence) = refusal(server_config(cluster.data_dir().parent().unwrap())).await;
    assert!(matches!(error, Error::NewerFormat { .. }), "{error:?}");
    let newer = (FORMAT_VERSION + 1).to_string();
    assert!(
        sentence.contains(&newer) && sentence.contains("data"),
        "{sentence}"
    );

    fs::write(&format, ours).unwrap();
    cluster.restart().await;
    cluster.tier().await;
    cluster.wait_tiered(&path).await;
    let written = rows::texts(&[make_rows(&schema, 0..10)]);
    assert_eq!(rows::lake_texts(&cluster.lake(&path).await).await, written);
    cluster.stop().await;
}

/// `weir serve` that cannot start, on this data directory.
async fn serve(data_dir: &Path, more: &[&str]) -> String {
    let data_dir = data_dir.to_str().expect("a plain name");
    let arguments = ["serve", "--http", "127.0.0.1:0", "--data-dir", data_dir];
    let ended = binary::run(arguments.iter().chain(more).copied()).await;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(
        ended.data.is_empty() && !ended.log.contains("panicked"),
        "{ended:?}"
    );
    ended.log
}

#[tokio::test(flavor = "multi_thread")]
async fn the_process_ends_with_1_and_the_sentence() {
    let mut cluster = Cluster::start().await;
    let free = ["--listen", "127.0.0.1:0"];
    let log = serve(&cluster.data_dir(), &free).await;
    assert!(log.contains("held by another process"), "{log}");

    let dir = TempDir::new().unwrap();
    let addr = cluster.addr();
    let log = serve(dir.path(), &["--listen", &addr]).await;
    assert!(log.contains(&addr) && log.contains("in use"), "{log}");

    let file = dir.path().join("a-file");
    fs::write(&file, "").unwrap();
    let lake = file.join("lake");
    let lake = lake.to_str().unwrap();
    let log = serve(
        dir.path(),
        &["--listen", "127.0.0.1:0", "--warehouse", lake],
    )
    .await;
    assert!(log.contains(lake), "{log}");

    fs::write(dir.path().join("weir.format"), "9999\n").unwrap();
    let log = serve(dir.path(), &free).await;
    assert!(log.contains("9999"), "{log}");
    cluster.stop().await;
}
