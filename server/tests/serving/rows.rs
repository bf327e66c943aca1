//! Rows go in and come out.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use weir_catalog::clock::{Clock, ManualClock};
use weir_protocol::error_code::ErrorCode;
use weir_protocol::frame::Answer;
use weir_protocol::proto::*;
use weir_server::{Components, Server};

use crate::rig::*;

#[tokio::test]
async fn a_new_table_is_found_with_ready_leaders_and_takes_and_gives_rows() {
    let home = Home::new();
    let server = home.start().await;
    let (path, table) = create(&server, "t", &descriptor(2)).await;
    let mut wire = Wire::tablet(&server).await;

    let asked = MetadataRequest {
        table_path: vec![pb_path(&path)],
        ..Default::default()
    };
    let metadata = wire.call(asked).await.unwrap();
    assert_eq!(metadata.tablet_servers.len(), 1);
    assert!(metadata.coordinator_server.is_some());
    let buckets = &metadata.table_metadata[0].bucket_metadata;
    let leaders: Vec<_> = buckets.iter().map(|bucket| bucket.leader_id).collect();
    assert_eq!(leaders, [Some(metadata.tablet_servers[0].node_id); 2]);

    assert_eq!(
        append(&mut wire, produce(table, 1, batch(0..3, None)))
            .await
            .unwrap(),
        0
    );
    assert_eq!(
        append(&mut wire, produce(table, 1, batch(3..5, None)))
            .await
            .unwrap(),
        3
    );
    let read_all = read(&mut wire, fetch(table, 1, -2)).await.unwrap();
    assert_eq!(read_all.high_watermark, Some(5));
    assert_eq!(ids_of(read_all.records), [0, 1, 2, 3, 4]);
    let later = read(&mut wire, fetch(table, 1, 4)).await.unwrap();
    assert_eq!(
        ids_of(later.records),
        [3, 4],
        "whole batches, from the one that holds the offset"
    );
    let end = read(&mut wire, fetch(table, 1, 5)).await.unwrap();
    // Empty, and not left out: a Java client loses the whole answer over a bucket without the field.
    assert_eq!(
        (end.records, end.log_start_offset, end.error_code),
        (Some(Bytes::new()), Some(0), None)
    );

    let newest = LimitScanRequest {
        table_id: table,
        bucket_id: 1,
        limit: 1,
        ..Default::default()
    };
    assert_eq!(ids_of(wire.call(newest).await.unwrap().records), [3, 4]);
    server.shutdown().await;
}

#[tokio::test]
async fn offsets_are_told_by_end_and_by_time() {
    let home = Home::new();
    let server = home.start().await;
    let (_, table) = create(&server, "t", &descriptor(1)).await;
    let mut wire = Wire::tablet(&server).await;
    append(&mut wire, produce(table, 0, batch(0..3, None)))
        .await
        .unwrap();
    let mut ask = async |offset_type, start_timestamp| {
        let request = ListOffsetsRequest {
            follower_server_id: -1,
            offset_type,
            table_id: table,
            bucket_id: vec![0, 9],
            start_timestamp,
            ..Default::default()
        };
        let response = wire.call(request).await.unwrap();
        let unknown = response.buckets_resp[1].error_code;
        assert_eq!(unknown, Some(ErrorCode::UnknownTableOrBucket.code()));
        let known = &response.buckets_resp[0];
        known.offset.ok_or(known.error_code)
    };
    assert_eq!(ask(0, None).await, Ok(0));
    assert_eq!(ask(1, None).await, Ok(3));
    assert_eq!(ask(2, Some(0)).await, Ok(0));
    let future = Err(Some(ErrorCode::InvalidTimestamp.code()));
    assert_eq!(ask(2, Some(i64::MAX)).await, future);
    let stats = GetTableStatsRequest {
        table_id: table,
        buckets_req: vec![PbTableStatsReqForBucket::default()],
        target_columns: vec![],
    };
    assert_eq!(
        wire.call(stats).await.unwrap().buckets_resp[0].row_count,
        Some(3)
    );
    server.shutdown().await;
}

#[tokio::test]
async fn a_fetch_that_waits_lets_others_pass_and_wakes_when_rows_come() {
    let home = Home::new();
    let server = home.start().await;
    let (_, table) = create(&server, "t", &descriptor(1)).await;
    let mut wire = Wire::tablet(&server).await;
    let waiting = FetchLogRequest {
        min_bytes: Some(1),
        max_wait_ms: Some(25_000),
        ..fetch(table, 0, 0)
    };
    let parked = wire.send(0, &waiting).await;
    let appending = wire.send(0, &produce(table, 0, batch(0..2, None))).await;
    let mut answered = Vec::new();
    for _ in 0..2 {
        match wire.next().await.unwrap() {
            Answer::Success { request_id, .. } => answered.push(request_id),
            other => panic!("{other:?}"),
        }
    }
    answered.sort_unstable();
    assert_eq!(answered, [parked, appending]);
    server.shutdown().await;
}

#[tokio::test]
async fn only_the_columns_asked_for_come_back() {
    let home = Home::new();
    let server = home.start().await;
    let (_, table) = create(&server, "t", &descriptor(1)).await;
    let mut wire = Wire::tablet(&server).await;
    append(&mut wire, produce(table, 0, batch(0..2, None)))
        .await
        .unwrap();
    let mut project = async |fields: Vec<i32>| {
        let mut request = fetch(table, 0, 0);
        request.tables_req[0].projection_pushdown_enabled = true;
        request.tables_req[0].projected_fields = fields;
        read(&mut wire, request).await
    };
    let names = project(vec![1]).await.unwrap().records.unwrap();
    let batch = weir_protocol::record::batches(names)
        .next()
        .unwrap()
        .unwrap();
    let only = arrow::datatypes::Schema::new(vec![schema().arrow_schema().field(1).clone()]);
    let rows = weir_protocol::record::arrow::decode(&batch, &only.into())
        .unwrap()
        .batch;
    assert_eq!((rows.num_columns(), rows.num_rows()), (1, 2));
    for fields in [vec![], vec![1, 0], vec![0, 0], vec![-1], vec![2]] {
        let refused = project(fields.clone()).await.unwrap_err();
        assert_eq!(
            refused.code,
            ErrorCode::InvalidColumnProjection,
            "{fields:?}"
        );
    }
    server.shutdown().await;
}

#[tokio::test]
async fn partitions_are_made_written_and_dropped() {
    let home = Home::new();
    let server = home.start().await;
    let mut parted = descriptor(1);
    parted.partition_keys = vec!["name".to_owned()];
    let (path, table) = create(&server, "p", &parted).await;
    let mut coordinator = Wire::coordinator(&server).await;
    let spec = |value: &str| PbPartitionSpec {
        partition_key_values: vec![PbKeyValue {
            key: "name".into(),
            value: value.into(),
        }],
    };
    let make = |value: &str| CreatePartitionRequest {
        table_path: pb_path(&path),
        partition_spec: spec(value),
        ignore_if_not_exists: false,
    };
    coordinator.call(make("a")).await.unwrap();
    coordinator.call(make("b")).await.unwrap();
    let twice = coordinator.call(make("a")).await.unwrap_err();
    assert_eq!(twice.code, ErrorCode::PartitionAlreadyExists);
    let list = ListPartitionInfosRequest {
        table_path: pb_path(&path),
        ..Default::default()
    };
    let infos = coordinator
        .call(list.clone())
        .await
        .unwrap()
        .partitions_info;
    assert_eq!(infos.len(), 2);
    assert_eq!(infos[0].bucket_count, Some(1));

    let mut tablet = Wire::tablet(&server).await;
    let physical = |name: &str| PbPhysicalTablePath {
        database_name: "db".into(),
        table_name: "p".into(),
        partition_name: Some(name.into()),
    };
    let ask = |name: &str| MetadataRequest {
        table_path: vec![pb_path(&path)],
        partitions_path: vec![physical(name)],
        ..Default::default()
    };
    let metadata = tablet
        .call(ask("a"))
        .await
        .unwrap()
        .partition_metadata
        .remove(0);
    assert_eq!(metadata.bucket_count, Some(1));
    assert!(metadata.bucket_metadata[0].leader_id.is_some());
    let missing = tablet.call(ask("c")).await.unwrap_err();
    assert_eq!(missing.code, ErrorCode::PartitionNotExists);

    let mut request = produce(table, 0, batch(0..2, None));
    request.buckets_req[0].partition_id = Some(metadata.partition_id);
    assert_eq!(append(&mut tablet, request.clone()).await.unwrap(), 0);
    let drop = DropPartitionRequest {
        table_path: pb_path(&path),
        partition_spec: spec("a"),
        ignore_if_not_exists: false,
    };
    coordinator.call(drop.clone()).await.unwrap();
    let again = coordinator.call(drop).await.unwrap_err();
    assert_eq!(again.code, ErrorCode::PartitionNotExists);
    let gone = append(&mut tablet, request).await.unwrap_err();
    assert_eq!(gone.code, ErrorCode::UnknownTableOrBucket);
    assert_eq!(
        coordinator.call(list).await.unwrap().partitions_info.len(),
        1
    );
    let folder = home.dir.path().join(format!(
        "tablet-0/log/table-{table}/partition-{}/bucket-0",
        metadata.partition_id
    ));
    assert!(!folder.exists());
    server.shutdown().await;
}

#[tokio::test]
async fn a_column_is_added_and_its_batches_are_taken() {
    let home = Home::new();
    let server = home.start().await;
    let (path, table) = create(&server, "t", &descriptor(1)).await;
    let mut coordinator = Wire::coordinator(&server).await;
    let mut tablet = Wire::tablet(&server).await;
    let early = append(
        &mut tablet,
        produce(table, 0, batch_of(&rows(0..1), 2, None)),
    )
    .await;
    assert_eq!(early.unwrap_err().code, ErrorCode::SchemaNotExist);
    let add = PbAddColumn {
        column_name: "extra".into(),
        data_type_json: br#"{"type":"INTEGER"}"#.as_slice().into(),
        column_position_type: 0,
        ..Default::default()
    };
    let alter = AlterTableRequest {
        table_path: pb_path(&path),
        add_columns: vec![add],
        ..Default::default()
    };
    coordinator.call(alter).await.unwrap();
    let ask = GetTableSchemaRequest {
        table_path: pb_path(&path),
        schema_id: None,
    };
    let found = coordinator.call(ask).await.unwrap();
    assert_eq!(found.schema_id, 2);
    let schema = weir_protocol::schema::Schema::from_json(&found.schema_json).unwrap();
    assert_eq!(schema.columns.len(), 3);
    let old = batch_of(&rows(0..2), 1, None);
    append(&mut tablet, produce(table, 0, old)).await.unwrap();

    // Chosen by its place in the newest schema, it is null in batches from before.
    let mut request = fetch(table, 0, 0);
    request.tables_req[0].projection_pushdown_enabled = true;
    request.tables_req[0].projected_fields = vec![0, 2];
    let records = read(&mut tablet, request).await.unwrap().records.unwrap();
    let first = weir_protocol::record::batches(records).next();
    let chosen = Arc::new(schema.arrow_schema().project(&[0, 2]).unwrap());
    let decoded = weir_protocol::record::arrow::decode(&first.unwrap().unwrap(), &chosen);
    let found = decoded.unwrap().batch;
    let nulls = |column: usize| arrow::array::Array::null_count(found.column(column));
    assert_eq!((found.num_rows(), nulls(0), nulls(1)), (2, 0, 2));

    let new = batch_of(&rows(0..1), 2, None);
    append(&mut tablet, produce(table, 0, new)).await.unwrap();
    server.shutdown().await;
}

#[tokio::test]
async fn partitions_follow_the_clock_and_old_ones_go() {
    let home = Home::new();
    let clock = Arc::new(ManualClock::new(1_700_000_000_000));
    let mut config = home.config();
    config.auto_partition_check_ms = 20;
    let components = Components {
        clock: Arc::clone(&clock) as Arc<dyn Clock>,
        ..home.components()
    };
    let server = Server::start(config, components).await.unwrap();
    let mut daily = descriptor(1);
    daily.partition_keys = vec!["name".to_owned()];
    for (key, value) in [
        ("table.auto-partition.enabled", "true"),
        ("table.auto-partition.time-unit", "DAY"),
        ("table.auto-partition.num-precreate", "2"),
        ("table.auto-partition.num-retention", "1"),
    ] {
        daily.properties.insert(key.to_owned(), value.to_owned());
    }
    let (path, _) = create(&server, "daily", &daily).await;
    let mut wire = Wire::coordinator(&server).await;
    let mut names = async || {
        let list = ListPartitionInfosRequest {
            table_path: pb_path(&path),
            ..Default::default()
        };
        let infos = wire.call(list).await.unwrap().partitions_info;
        let name =
            |info: PbPartitionInfo| info.partition_spec.partition_key_values[0].value.clone();
        let mut names: Vec<String> = infos.into_iter().map(name).collect();
        names.sort();
        names
    };
    assert_eq!(
        names().await,
        ["20231114", "20231115"],
        "made with the table"
    );
    clock.advance(Duration::from_hours(72));
    let settled = async {
        while names().await != ["20231117", "20231118"] {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, settled)
        .await
        .expect("partitions follow the clock");
    server.shutdown().await;
}

#[tokio::test]
async fn old_rows_go_but_not_those_that_the_lake_still_needs() {
    let home = Home::new();
    let clock = Arc::new(ManualClock::new(1_700_000_000_000));
    let mut config = home.config();
    config.log.retention_check_ms = 20;
    let components = Components {
        clock: Arc::clone(&clock) as Arc<dyn Clock>,
        ..home.components()
    };
    let server = Server::start(config, components).await.unwrap();
    let mut plain = descriptor(1);
    plain
        .properties
        .insert("table.log.ttl".into(), "1 h".into());
    let mut lake = plain.clone();
    lake.properties
        .insert("table.datalake.enabled".into(), "true".into());
    let (_, plain) = create(&server, "plain", &plain).await;
    let (_, lake) = create(&server, "lake", &lake).await;
    let mut wire = Wire::tablet(&server).await;
    for table in [plain, lake] {
        append(&mut wire, produce(table, 0, batch(0..3, None)))
            .await
            .unwrap();
    }
    clock.advance(Duration::from_hours(2));
    let mut earliest = async |table_id| {
        let request = ListOffsetsRequest {
            follower_server_id: -1,
            offset_type: 0,
            table_id,
            bucket_id: vec![0],
            ..Default::default()
        };
        wire.call(request).await.unwrap().buckets_resp[0].offset
    };
    let gone = async {
        while earliest(plain).await != Some(3) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, gone)
        .await
        .expect("old rows go");
    assert_eq!(
        earliest(lake).await,
        Some(0),
        "nothing of it is in the lake"
    );
    server.shutdown().await;
}
