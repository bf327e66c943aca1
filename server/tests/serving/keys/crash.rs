//! A process that ends without a word, and folders that are not what they were.

use std::fs;
use std::path::{Path, PathBuf};

use weir_protocol::error_code::ErrorCode;
use weir_protocol::ids::TablePath;
use weir_server::ServerConfig;

use super::*;

/// What a process that is killed now leaves behind.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type().unwrap().is_dir() {
            copy(&from, &to);
        } else {
            // RocksDB may remove a file meanwhile.
            let _gone = fs::copy(&from, &to);
        }
    }
}

fn on(dir: &Path, config: &ServerConfig) -> ServerConfig {
    ServerConfig {
        data_dir: dir.to_owned(),
        ..config.clone()
    }
}

fn folder(home: &Path, what: &str, table: i64) -> PathBuf {
    home.join(format!("tablet-0/{what}/table-{table}/bucket-0"))
}

#[tokio::test]
async fn a_crash_before_or_after_the_keys_were_written_loses_no_row_of_the_log() {
    // The log is synced late, so that no key is written; or at once, but the keys are in no file yet.
    for (flush, acks) in [("interval(60000)", 1), ("interval(5)", -1)] {
        let home = Home::new();
        let mut config = home.config();
        config.log.flush = flush.parse().unwrap();
        let server = home.start_with(config.clone()).await;
        let (_, table) = create(&server, "t", &keyed(&[])).await;
        let mut wire = Wire::tablet(&server).await;
        let writer = Some((7, 0));
        let records = [
            upsert((1, Some("a"), Some(1))),
            upsert((2, None, None)),
            upsert((1, Some("b"), None)),
            delete(2),
        ];
        let request = PutKvRequest {
            acks,
            ..put_request(table, 0, kv_batch(&records, writer))
        };
        assert_eq!(put(&mut wire, request.clone()).await.unwrap(), 5);
        if acks == 1 {
            let early = lookup(&mut wire, table, &[1]).await.unwrap();
            assert_eq!(early, [None], "it is not synced yet");
            assert_eq!(latest(&mut wire, table).await, 0);
        }
        let crashed = tempfile::tempdir().unwrap();
        copy(home.dir.path(), crashed.path());
        server.shutdown().await;

        config.log.flush = "interval(5)".parse().unwrap();
        let server = home.start_with(on(crashed.path(), &config)).await;
        let mut wire = Wire::tablet(&server).await;
        let found = lookup(&mut wire, table, &[1, 2]).await.unwrap();
        assert_eq!(
            found,
            [Some(datums(&(1, Some("b"), None))), None],
            "{flush}"
        );
        assert_eq!(latest(&mut wire, table).await, 5);
        assert_eq!(put(&mut wire, request).await.unwrap(), 5, "it was there");
        server.shutdown().await;
    }
}

async fn earliest(wire: &mut Wire, table_id: i64) -> i64 {
    let request = ListOffsetsRequest {
        follower_server_id: -1,
        offset_type: 0,
        table_id,
        bucket_id: vec![0],
        ..Default::default()
    };
    let response = wire.call(request).await.unwrap();
    response.buckets_resp[0].offset.unwrap()
}

/// The keys of bucket 0, or why there are none.
async fn rows_or_reason(wire: &mut Wire, table: i64) -> Result<usize, Refused> {
    let ids: Vec<i64> = (0..100).collect();
    let rows = lookup(wire, table, &ids).await?;
    Ok(rows.iter().flatten().count())
}

/// For how many buckets a reader is told to begin with the log.
async fn snapshots(wire: &mut Wire, path: &TablePath) -> Result<usize, Refused> {
    let request = GetLatestKvSnapshotsRequest {
        table_path: pb_path(path),
        partition_name: None,
    };
    Ok(wire.call(request).await?.latest_snapshots.len())
}

#[tokio::test]
async fn keys_come_back_from_the_log_or_the_bucket_is_offline_and_says_why() {
    let home = Home::new();
    let mut config = home.config();
    config.log.segment_bytes = 1 << 20;
    let server = home.start_with(config.clone()).await;
    let plain = [("table.log.arrow.compression.type", "NONE")];
    let (path, table) = create(&server, "t", &keyed(&plain)).await;
    let mut wire = Wire::tablet(&server).await;
    let name: &'static str = Box::leak("x".repeat(50_000).into_boxed_str());
    for id in 0..60 {
        let acks = if id == 59 { -1 } else { 1 };
        let request = put_request(table, 0, kv_batch(&[upsert((id, Some(name), None))], None));
        put(&mut wire, PutKvRequest { acks, ..request })
            .await
            .unwrap();
    }
    assert_eq!(snapshots(&mut wire, &path).await, Ok(2));
    server.shutdown().await;
    let root = home.dir.path().to_owned();
    let keys = folder(&root, "kv", table);

    // The log reaches back to its first record.
    fs::remove_dir_all(&keys).unwrap();
    config.log.retention_check_ms = 7;
    config.log.retention_bytes = 1;
    let server = home.start_with(config.clone()).await;
    let mut wire = Wire::tablet(&server).await;
    assert_eq!(rows_or_reason(&mut wire, table).await.unwrap(), 60);
    // Then it goes, as far as the keys are durable.
    while earliest(&mut wire, table).await == 0 {}
    assert_eq!(rows_or_reason(&mut wire, table).await.unwrap(), 60);
    // A reader that began with the log would miss keys without knowing.
    while snapshots(&mut wire, &path).await.is_ok() {}
    let refused = snapshots(&mut wire, &path).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::KvSnapshotNotExist);
    assert!(
        refused.message.contains("bucket 0 begins at"),
        "{refused:?}"
    );
    server.shutdown().await;

    for (what, reason) in [
        ("keys", "begins after that"),
        ("log", "ends before"),
        ("current", "there is no CURRENT"),
    ] {
        let broken = tempfile::tempdir().unwrap();
        copy(&root, broken.path());
        let keys = folder(broken.path(), "kv", table);
        match what {
            "keys" => fs::remove_dir_all(&keys).unwrap(),
            "log" => fs::remove_dir_all(folder(broken.path(), "log", table)).unwrap(),
            _ => fs::remove_file(keys.join("CURRENT")).unwrap(),
        }
        let server = home.start_with(on(broken.path(), &config)).await;
        let mut wire = Wire::tablet(&server).await;
        let refused = rows_or_reason(&mut wire, table).await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::KvStorage, "{refused:?}");
        assert!(refused.message.contains(reason), "{refused:?}");
        let place = format!("table-{table}/bucket-0");
        assert!(refused.message.contains(&place), "{refused:?}");
        let refused = put(&mut wire, put_request(table, 0, kv_batch(&[], None))).await;
        assert_eq!(refused.unwrap_err().code, ErrorCode::KvStorage);
        let other = put(&mut wire, put_request(table, 1, kv_batch(&[], None))).await;
        assert!(other.is_ok(), "the other bucket is served: {other:?}");
        server.shutdown().await;
    }
}

/// The folder of the keys is a file for a while: nothing can be written to it.
#[tokio::test]
async fn a_bucket_whose_keys_take_no_writes_is_offline_until_they_do_again() {
    let home = Home::new();
    let mut config = home.config();
    config.log.retention_check_ms = 7;
    let server = home.start_with(config).await;
    let (_, table) = create(&server, "t", &keyed(&[])).await;
    let mut wire = Wire::tablet(&server).await;
    put_rows(&mut wire, table, &[upsert((0, Some("a"), None))]).await;
    let keys = folder(home.dir.path(), "kv", table);
    let away = keys.with_extension("away");
    fs::rename(&keys, &away).unwrap();
    fs::write(&keys, b"no folder").unwrap();

    // Each look at the keys tries to write what was put since; sooner or later it is known to fail.
    let (mut id, mut acknowledged) = (1, vec![0]);
    let refused = loop {
        let records = kv_batch(&[upsert((id, Some("b"), None))], None);
        match put(&mut wire, put_request(table, 0, records)).await {
            Ok(_) => acknowledged.push(id),
            Err(refused) => break refused,
        }
        id += 1;
    };
    assert_eq!(refused.code, ErrorCode::KvStorage, "{refused:?}");
    while lookup(&mut wire, table, &[0]).await.is_ok() {}
    let refused = lookup(&mut wire, table, &[0]).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::KvStorage, "{refused:?}");
    let other = put(&mut wire, put_request(table, 1, kv_batch(&[], None))).await;
    assert!(other.is_ok(), "the other bucket is served: {other:?}");

    fs::remove_file(&keys).unwrap();
    fs::rename(&away, &keys).unwrap();
    let found = loop {
        if let Ok(found) = lookup(&mut wire, table, &acknowledged).await {
            break found;
        }
    };
    assert_eq!(found.iter().flatten().count(), acknowledged.len());
    put_rows(&mut wire, table, &[upsert((id + 1, Some("c"), None))]).await;
    server.shutdown().await;
}

#[tokio::test]
async fn the_folder_of_keys_goes_with_its_table() {
    let home = Home::new();
    let server = home.start().await;
    let (path, table) = create(&server, "t", &keyed(&[])).await;
    let mut wire = Wire::tablet(&server).await;
    put_rows(&mut wire, table, &[upsert((1, None, None))]).await;
    let folder = home.dir.path().join(format!("tablet-0/kv/table-{table}"));
    assert!(folder.join("bucket-0/CURRENT").is_file());
    let mut coordinator = Wire::coordinator(&server).await;
    let drop = DropTableRequest {
        table_path: pb_path(&path),
        ignore_if_not_exists: false,
    };
    coordinator.call(drop).await.unwrap();
    assert!(!folder.exists());
    let refused = put(&mut wire, put_request(table, 0, kv_batch(&[], None))).await;
    assert_eq!(refused.unwrap_err().code, ErrorCode::UnknownTableOrBucket);
    server.shutdown().await;
}
