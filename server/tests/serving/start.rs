//! Starting, stopping, starting again, and what keeps a server from starting.

use std::path::Path;
use std::sync::Arc;

use weir_protocol::error_code::ErrorCode;
use weir_protocol::proto::*;
use weir_server::{Error, Server};

use crate::rig::*;

#[tokio::test]
async fn rows_tables_and_writers_survive_a_restart() {
    let home = Home::new();
    let server = home.start().await;
    let (path, table) = create(&server, "t", &descriptor(3)).await;
    let mut wire = Wire::tablet(&server).await;
    append(&mut wire, produce(table, 2, batch(0..4, Some((5, 0)))))
        .await
        .unwrap();
    let first = wire
        .call(InitWriterRequest::default())
        .await
        .unwrap()
        .writer_id;
    server.shutdown().await;

    let server = home.start().await;
    let mut wire = Wire::tablet(&server).await;
    let info = wire
        .call(GetTableInfoRequest {
            table_path: pb_path(&path),
        })
        .await
        .unwrap();
    assert_eq!(info.table_id, table);
    let all = read(&mut wire, fetch(table, 2, 0)).await.unwrap();
    assert_eq!(ids_of(all.records), [0, 1, 2, 3]);
    let again = append(&mut wire, produce(table, 2, batch(0..4, Some((5, 0))))).await;
    assert_eq!(again, Ok(0), "the writer is still known");
    assert_eq!(
        append(&mut wire, produce(table, 2, batch(4..5, Some((5, 1))))).await,
        Ok(4)
    );
    let second = wire
        .call(InitWriterRequest::default())
        .await
        .unwrap()
        .writer_id;
    assert!(second > first, "a writer id is never handed out twice");
    server.shutdown().await;
}

#[tokio::test]
async fn a_folder_as_a_crash_leaves_it_holds_every_acknowledged_row() {
    let home = Home::new();
    let server = home.start().await;
    let (_, table) = create(&server, "t", &descriptor(1)).await;
    let mut wire = Wire::tablet(&server).await;
    append(&mut wire, produce(table, 0, batch(0..4, None)))
        .await
        .unwrap();
    let crashed = Home {
        store: Arc::clone(&home.store),
        ..Home::new()
    };
    copy(home.dir.path(), crashed.dir.path());
    let recovered = crashed.start().await;
    let mut wire = Wire::tablet(&recovered).await;
    let all = read(&mut wire, fetch(table, 0, 0)).await.unwrap();
    assert_eq!(ids_of(all.records), [0, 1, 2, 3]);
    recovered.shutdown().await;
    server.shutdown().await;
}

fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            std::fs::create_dir_all(&target).unwrap();
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[tokio::test]
async fn the_log_of_a_dropped_table_is_gone_and_a_new_one_is_empty() {
    let home = Home::new();
    let server = home.start().await;
    let (path, table) = create(&server, "t", &descriptor(1)).await;
    let mut wire = Wire::tablet(&server).await;
    append(&mut wire, produce(table, 0, batch(0..4, None)))
        .await
        .unwrap();
    let mut coordinator = Wire::coordinator(&server).await;
    let drop = DropTableRequest {
        table_path: pb_path(&path),
        ignore_if_not_exists: false,
    };
    coordinator.call(drop).await.unwrap();
    let gone = append(&mut wire, produce(table, 0, batch(4..5, None)))
        .await
        .unwrap_err();
    assert_eq!(gone.code, ErrorCode::UnknownTableOrBucket);
    assert!(
        !home
            .dir
            .path()
            .join(format!("tablet-0/log/table-{table}/bucket-0"))
            .exists()
    );
    let (_, next) = create(&server, "t", &descriptor(1)).await;
    assert!(next > table);
    let empty = read(&mut wire, fetch(next, 0, 0)).await.unwrap();
    assert_eq!(ids_of(empty.records), [0_i64; 0]);
    server.shutdown().await;
}

#[tokio::test]
async fn several_tablet_servers_share_the_buckets() {
    let home = Home::new();
    let mut config = home.config();
    config.tablets = 3;
    let server = home.start_with(config).await;
    let (path, table) = create(&server, "t", &descriptor(6)).await;
    let mut wire = Wire::tablet(&server).await;
    let asked = MetadataRequest {
        table_path: vec![pb_path(&path)],
        ..Default::default()
    };
    let metadata = wire.call(asked).await.unwrap();
    assert_eq!(metadata.tablet_servers.len(), 3);
    let mut led = [0; 3];
    for bucket in &metadata.table_metadata[0].bucket_metadata {
        led[usize::try_from(bucket.leader_id.unwrap()).unwrap()] += 1;
    }
    assert_eq!(led, [2, 2, 2]);
    for bucket in &metadata.table_metadata[0].bucket_metadata {
        let leader = bucket.leader_id.unwrap();
        for node in &metadata.tablet_servers {
            let mut there = Wire::connect(&format!("{}:{}", node.host, node.port)).await;
            let request = produce(table, bucket.bucket_id, batch(0..1, None));
            let result = append(&mut there, request)
                .await
                .map_err(|refused| refused.code);
            let expected = if node.node_id == leader {
                Ok(0)
            } else {
                Err(ErrorCode::NotLeaderOrFollower)
            };
            assert_eq!(result, expected);
        }
    }
    server.shutdown().await;
}

#[tokio::test]
async fn what_keeps_a_server_from_starting_is_said_in_one_sentence() {
    let home = Home::new();
    let server = home.start().await;
    let again = Server::start(home.config(), home.components())
        .await
        .unwrap_err();
    assert!(matches!(again, Error::Locked { .. }), "{again}");
    let other = Home::new();
    let mut config = other.config();
    config.listen = server.addr();
    let taken = Server::start(config, other.components()).await.unwrap_err();
    assert!(matches!(taken, Error::PortInUse { .. }), "{taken}");
    server.shutdown().await;

    std::fs::write(home.dir.path().join("weir.format"), "99\n").unwrap();
    let newer = Server::start(home.config(), home.components())
        .await
        .unwrap_err();
    assert!(
        matches!(newer, Error::NewerFormat { found: 99, .. }),
        "{newer}"
    );
}

#[tokio::test]
async fn folders_that_cannot_be_written_to_are_named() {
    for (name, text) in [("remote", "remote directory"), ("lake", "warehouse")] {
        let home = Home::new();
        // A file stands where the folder must be.
        std::fs::write(home.dir.path().join(name), "in the way").unwrap();
        let refused = Server::start(home.config(), home.components())
            .await
            .unwrap_err();
        assert!(refused.to_string().contains(text), "{refused}");
    }
}

#[tokio::test]
async fn a_taken_tablet_port_is_named() {
    let home = Home::new();
    // A pair of ports of which the second one is taken.
    let (listen, taken) = loop {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let below = std::net::TcpListener::bind(("127.0.0.1", port - 1));
        if below.is_ok() {
            break (format!("127.0.0.1:{}", port - 1), taken);
        }
    };
    let mut config = home.config();
    config.listen = listen;
    let refused = Server::start(config, home.components()).await.unwrap_err();
    let port = taken.local_addr().unwrap().port().to_string();
    assert!(matches!(refused, Error::PortInUse { .. }), "{refused}");
    assert!(refused.to_string().contains(&port), "{refused}");
}

#[tokio::test]
async fn a_log_of_a_newer_format_keeps_its_bucket_alone_from_serving() {
    let home = Home::new();
    let server = home.start().await;
    let (_, table) = create(&server, "t", &descriptor(2)).await;
    let mut wire = Wire::tablet(&server).await;
    for bucket in 0..2 {
        append(&mut wire, produce(table, bucket, batch(0..4, None)))
            .await
            .unwrap();
    }
    server.shutdown().await;
    let meta = format!("tablet-0/log/table-{table}/bucket-0/log.meta");
    let meta = home.dir.path().join(meta);
    std::fs::write(&meta, r#"{"version":99,"shape":"new"}"#).unwrap();
    let server = home.start().await;
    assert!(!server.is_ready(), "one bucket has no leader");
    let mut wire = Wire::tablet(&server).await;
    append(&mut wire, produce(table, 1, batch(4..5, None)))
        .await
        .unwrap();
    append(&mut wire, produce(table, 0, batch(4..5, None)))
        .await
        .unwrap_err();
    server.shutdown().await;
    let left = std::fs::read_to_string(&meta).unwrap();
    assert!(left.contains("99"), "it is not touched");
}
