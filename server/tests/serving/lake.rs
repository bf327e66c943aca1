//! Tables that are tiered: the scheduler, and how far the lake is.

use weir_protocol::descriptor::TableDescriptor;
use weir_protocol::error_code::ErrorCode;
use weir_protocol::proto::*;

use crate::rig::*;

fn lake_table() -> TableDescriptor {
    let mut descriptor = descriptor(2);
    descriptor.bucket_keys = vec!["id".to_owned()];
    descriptor
        .properties
        .insert("table.datalake.enabled".into(), "true".into());
    descriptor
        .properties
        .insert("table.datalake.freshness".into(), "10 ms".into());
    descriptor
}

fn ask() -> LakeTieringHeartbeatRequest {
    LakeTieringHeartbeatRequest {
        request_table: Some(true),
        ..Default::default()
    }
}

/// Asks until a table is handed out.
async fn take(wire: &mut Wire) -> (i32, PbLakeTieringTableInfo) {
    let asking = async {
        loop {
            let answer = wire.call(ask()).await.unwrap();
            if let Some(table) = answer.tiering_table {
                return (answer.coordinator_epoch, table);
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, asking)
        .await
        .expect("a table is due")
}

fn entry(epoch: i32, table: &PbLakeTieringTableInfo) -> PbHeartbeatReqForTable {
    PbHeartbeatReqForTable {
        table_id: table.table_id,
        coordinator_epoch: epoch,
        tiering_epoch: table.tiering_epoch,
        lake_tiering_stats: None,
    }
}

fn code(answers: &[PbHeartbeatRespForTable]) -> Option<i32> {
    answers[0].error.as_ref().map(|error| error.error_code)
}

#[tokio::test]
async fn a_lake_table_is_handed_out_once_per_epoch_and_old_workers_are_fenced() {
    let home = Home::new();
    let server = home.start().await;
    let (path, id) = create(&server, "t", &lake_table()).await;
    let mut wire = Wire::coordinator(&server).await;
    let (epoch, table) = take(&mut wire).await;
    assert_eq!(table.table_id, id);
    assert_eq!(table.table_path, pb_path(&path));
    assert_eq!(
        wire.call(ask()).await.unwrap().tiering_table,
        None,
        "it is with one worker"
    );

    let beat = |entries| LakeTieringHeartbeatRequest {
        tiering_tables: entries,
        ..Default::default()
    };
    let alive = wire.call(beat(vec![entry(epoch, &table)])).await.unwrap();
    assert_eq!(code(&alive.tiering_table_resp), None);
    let wrong = wire
        .call(beat(vec![entry(epoch + 1, &table)]))
        .await
        .unwrap();
    assert_eq!(
        code(&wrong.tiering_table_resp),
        Some(ErrorCode::InvalidCoordinator.code())
    );
    let mut old = entry(epoch, &table);
    old.tiering_epoch -= 1;
    let mut unknown = entry(epoch, &table);
    unknown.table_id = 4711;
    let answers = wire
        .call(beat(vec![old, unknown]))
        .await
        .unwrap()
        .tiering_table_resp;
    assert_eq!(code(&answers), Some(ErrorCode::FencedTieringEpoch.code()));
    assert_eq!(code(&answers[1..]), Some(ErrorCode::TableNotExist.code()));

    let done = LakeTieringHeartbeatRequest {
        finished_tables: vec![entry(epoch, &table)],
        force_finished_tables: vec![id],
        ..ask()
    };
    let answer = wire.call(done).await.unwrap();
    assert_eq!(code(&answer.finished_table_resp), None);
    let next = answer
        .tiering_table
        .expect("a round that was cut goes on at once");
    assert!(next.tiering_epoch > table.tiering_epoch);
    server.shutdown().await;

    let server = home.start().await;
    let mut wire = Wire::coordinator(&server).await;
    let (later, again) = take(&mut wire).await;
    assert!(later > epoch, "the coordinator epoch rises at a restart");
    assert!(
        again.tiering_epoch > next.tiering_epoch,
        "tiering epochs never start again"
    );
    server.shutdown().await;
}

fn offsets(path: &weir_protocol::ids::TablePath, id: i64, ends: &[(i32, i64)]) -> PbTableOffsets {
    let bucket = |(bucket_id, end): &(i32, i64)| PbBucketOffset {
        partition_id: None,
        bucket_id: *bucket_id,
        log_end_offset: Some(*end),
    };
    PbTableOffsets {
        table_id: id,
        table_path: pb_path(path),
        bucket_offsets: ends.iter().map(bucket).collect(),
    }
}

/// Appends so many rows to each bucket.
async fn fill(server: &weir_server::RunningServer, id: i64, rows: &[i64]) {
    let mut wire = Wire::tablet(server).await;
    for (bucket, rows) in (0..).zip(rows) {
        if *rows > 0 {
            append(&mut wire, produce(id, bucket, batch(0..*rows, None)))
                .await
                .unwrap();
        }
    }
}

async fn prepare(wire: &mut Wire, offsets: PbTableOffsets) -> Result<String, Refused> {
    let request = PrepareLakeTableSnapshotRequest {
        bucket_offsets: vec![offsets],
        ignore_previous_table_offsets: None,
    };
    let entry = wire
        .call(request)
        .await
        .unwrap()
        .prepare_lake_table_resp
        .remove(0);
    match entry.error_code {
        None => Ok(entry.lake_table_offsets_path.unwrap()),
        Some(code) => Err(refused(code, entry.error_message)),
    }
}

async fn commit(wire: &mut Wire, id: i64, snapshot: i64, path: &str) -> Result<(), Refused> {
    let metadata = PbLakeTableSnapshotMetadata {
        table_id: id,
        snapshot_id: snapshot,
        tiered_bucket_offsets_file_path: path.to_owned(),
        readable_bucket_offsets_file_path: Some(path.to_owned()),
        earliest_snapshot_id_to_keep: None,
    };
    let request = CommitLakeTableSnapshotRequest {
        lake_table_snapshot_metadata: vec![metadata],
        ..Default::default()
    };
    let entry = wire.call(request).await.unwrap().table_resp.remove(0);
    match entry.error_code {
        None => Ok(()),
        Some(code) => Err(refused(code, entry.error_message)),
    }
}

#[tokio::test]
async fn fc_093_of_two_prepared_tables_the_error_belongs_to_the_one_that_failed() {
    let home = Home::new();
    let server = home.start().await;
    let (path, id) = create(&server, "t", &lake_table()).await;
    fill(&server, id, &[9, 9]).await;
    let mut wire = Wire::coordinator(&server).await;
    for order in [[id + 1, id], [id, id + 1]] {
        let request = PrepareLakeTableSnapshotRequest {
            bucket_offsets: order.map(|id| offsets(&path, id, &[(0, 5)])).to_vec(),
            ignore_previous_table_offsets: None,
        };
        let answer = wire.call(request).await.unwrap();
        let told = answer.prepare_lake_table_resp.iter().map(|entry| {
            let code = entry.error_code.map(ErrorCode::from_code);
            (
                entry.table_id,
                code,
                entry.lake_table_offsets_path.is_some(),
            )
        });
        let told: std::collections::BTreeSet<_> = told.map(|entry| format!("{entry:?}")).collect();
        let expected = [
            format!("{:?}", (Some(id), None::<ErrorCode>, true)),
            format!(
                "{:?}",
                (Some(id + 1), Some(ErrorCode::TableNotExist), false)
            ),
        ];
        assert_eq!(told, expected.into());
    }
    server.shutdown().await;
}

#[tokio::test]
async fn offsets_are_merged_recorded_and_never_go_back() {
    let home = Home::new();
    let server = home.start().await;
    let (path, id) = create(&server, "t", &lake_table()).await;
    let mut wire = Wire::coordinator(&server).await;
    let ask = || GetLakeSnapshotRequest {
        table_path: pb_path(&path),
        ..Default::default()
    };
    let none = wire.call(ask()).await.unwrap_err();
    assert_eq!(none.code, ErrorCode::LakeSnapshotNotExist);
    fill(&server, id, &[9, 9]).await;

    let first = prepare(&mut wire, offsets(&path, id, &[(0, 5)]))
        .await
        .unwrap();
    assert!(first.starts_with("file:/"), "{first}");
    commit(&mut wire, id, 1, &first).await.unwrap();
    let second = prepare(&mut wire, offsets(&path, id, &[(1, 7)]))
        .await
        .unwrap();
    commit(&mut wire, id, 2, &second).await.unwrap();
    let snapshot = wire.call(ask()).await.unwrap();
    assert_eq!(snapshot.snapshot_id, 2);
    let ends: Vec<_> = snapshot
        .bucket_snapshots
        .iter()
        .map(|one| (one.bucket_id, one.log_offset))
        .collect();
    assert_eq!(ends, [(0, Some(5)), (1, Some(7))]);
    let by_number = GetLakeSnapshotRequest {
        snapshot_id: Some(2),
        readable: Some(false),
        ..ask()
    };
    assert_eq!(wire.call(by_number).await.unwrap(), snapshot);
    let both = GetLakeSnapshotRequest {
        snapshot_id: Some(2),
        readable: Some(true),
        ..ask()
    };
    assert!(wire.call(both).await.is_err());

    let back = prepare(&mut wire, offsets(&path, id, &[(0, 4)]))
        .await
        .unwrap_err();
    assert_eq!(back.code, ErrorCode::FencedTieringEpoch);
    let nowhere = prepare(&mut wire, offsets(&path, id, &[(2, 4)]))
        .await
        .unwrap_err();
    assert_eq!(nowhere.code, ErrorCode::UnknownTableOrBucket);
    let other = prepare(&mut wire, offsets(&path, id + 1, &[(0, 9)]))
        .await
        .unwrap_err();
    assert_eq!(other.code, ErrorCode::TableNotExist);
    let escape = first.replace("/metadata/", "/metadata/../metadata/");
    assert!(commit(&mut wire, id, 3, &escape).await.is_err());
    assert!(commit(&mut wire, id, 3, "file:/etc/passwd").await.is_err());
    assert_eq!(
        commit(&mut wire, id + 9, 3, &first).await.unwrap_err().code,
        ErrorCode::TableNotExist
    );
    assert_eq!(wire.call(ask()).await.unwrap().snapshot_id, 2);
    server.shutdown().await;
}

#[tokio::test]
async fn a_lake_that_is_ahead_of_the_log_is_not_recorded() {
    let home = Home::new();
    let server = home.start().await;
    let (path, id) = create(&server, "t", &lake_table()).await;
    fill(&server, id, &[5, 0]).await;
    let mut wire = Wire::coordinator(&server).await;
    for ends in [&[(0, 6)][..], &[(0, 5), (1, 1)], &[(0, i64::MAX)]] {
        let ahead = prepare(&mut wire, offsets(&path, id, ends)).await;
        let code = ahead.unwrap_err().code;
        assert_eq!(code, ErrorCode::LogOffsetOutOfRange, "{ends:?}");
    }
    let good = prepare(&mut wire, offsets(&path, id, &[(0, 5)]))
        .await
        .unwrap();
    // A file that somebody else wrote.
    let file = std::path::Path::new(good.strip_prefix("file:").unwrap());
    let text = std::fs::read_to_string(file).unwrap();
    assert!(text.contains('5'), "{text}");
    std::fs::write(file, text.replace('5', "6")).unwrap();
    let ahead = commit(&mut wire, id, 1, &good).await.unwrap_err();
    assert_eq!(ahead.code, ErrorCode::LogOffsetOutOfRange);
    std::fs::write(file, text).unwrap();
    commit(&mut wire, id, 1, &good).await.unwrap();
    server.shutdown().await;
}

#[tokio::test]
async fn a_log_that_lost_rows_which_are_in_the_lake_goes_on_after_them() {
    let home = Home::new();
    let server = home.start().await;
    let (path, id) = create(&server, "t", &lake_table()).await;
    fill(&server, id, &[100, 0]).await;
    let mut wire = Wire::coordinator(&server).await;
    let prepared = prepare(&mut wire, offsets(&path, id, &[(0, 100)]))
        .await
        .unwrap();
    commit(&mut wire, id, 1, &prepared).await.unwrap();
    server.shutdown().await;
    let log = format!("tablet-0/log/table-{id}/bucket-0");
    std::fs::remove_dir_all(home.dir.path().join(log)).unwrap();
    let server = home.start().await;
    let mut tablet = Wire::tablet(&server).await;
    let base = append(&mut tablet, produce(id, 0, batch(0..1, None)))
        .await
        .unwrap();
    assert_eq!(base, 100, "an offset is never used twice");
    server.shutdown().await;
}

#[tokio::test]
async fn fc_057_a_missing_offsets_file_keeps_no_log_from_being_served() {
    for is_gone in [true, false] {
        let home = Home::new();
        let server = home.start().await;
        let (path, id) = create(&server, "t", &lake_table()).await;
        fill(&server, id, &[100, 50]).await;
        let mut wire = Wire::coordinator(&server).await;
        let ends = [(0, 100), (1, 50)];
        let prepared = prepare(&mut wire, offsets(&path, id, &ends)).await.unwrap();
        commit(&mut wire, id, 1, &prepared).await.unwrap();
        server.shutdown().await;
        let file = prepared.strip_prefix("file:").unwrap();
        std::fs::remove_file(file).unwrap();
        // A log that has lost what it held, too, might give offsets out that are in the lake: that one
        // stays closed.
        let log = format!("tablet-0/log/table-{id}/bucket-1");
        let log = home.dir.path().join(log);
        std::fs::remove_dir_all(&log).unwrap();
        if !is_gone {
            std::fs::create_dir(&log).unwrap();
        }
        for _ in 0..2 {
            let server = home.start().await;
            let mut tablet = Wire::tablet(&server).await;
            let refused = append(&mut tablet, produce(id, 1, batch(0..1, None))).await;
            refused.unwrap_err();
            server.shutdown().await;
        }
        let server = home.start().await;
        let mut tablet = Wire::tablet(&server).await;
        let base = append(&mut tablet, produce(id, 0, batch(0..1, None)))
            .await
            .unwrap();
        assert_eq!(base, 100);
        server.shutdown().await;
    }
}

#[tokio::test]
async fn a_lake_worker_learns_where_the_lake_is() {
    let home = Home::new();
    let server = home.start().await;
    let (path, _) = create(&server, "t", &lake_table()).await;
    let mut wire = Wire::tablet(&server).await;
    let info = wire
        .call(GetTableInfoRequest {
            table_path: pb_path(&path),
        })
        .await
        .unwrap();
    let table = TableDescriptor::from_json(&info.table_json).unwrap();
    let get = |key: &str| table.properties.get(key).map(String::as_str);
    assert_eq!(get("table.datalake.paimon.metastore"), Some("filesystem"));
    assert_eq!(
        get("table.datalake.paimon.warehouse"),
        Some(server.warehouse())
    );
    assert_eq!(get("table.datalake.format"), Some("paimon"));
    server.shutdown().await;
}
