use super::mock::{Call, MockServer, Reply, at_once, node};
use super::*;
use crate::api_key::ApiKey;
use crate::descriptor::TableDescriptor;
use crate::error_code::ErrorCode;
use crate::ids::{
    BucketId, CoordinatorEpoch, LogOffset, PartitionId, PhysicalTablePath, TableBucket, TableId,
    TablePath, TieringEpoch, TotalBuckets,
};
use crate::proto;
use crate::schema::{Column, LogicalType, Schema, TypeKind};
use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

/// A mock that is coordinator and tablet server 0 at once.
async fn cluster(answer: impl Fn(Call) -> Reply + Send + Sync + 'static) -> (MockServer, Client) {
    cluster_with(move |call, node| match call.api {
        ApiKey::GetMetadata => call.ok(&proto::MetadataResponse {
            coordinator_server: Some(node.clone()),
            tablet_servers: vec![node],
            ..Default::default()
        }),
        _ => answer(call),
    })
    .await
}

/// As [`cluster`], with GET_METADATA answered by the test too, which is given the server's node.
async fn cluster_with(
    answer: impl Fn(Call, proto::PbServerNode) -> Reply + Send + Sync + 'static,
) -> (MockServer, Client) {
    let port = Arc::new(OnceLock::new());
    let own = Arc::clone(&port);
    let handler = at_once(move |call| answer(call, node(0, *own.wait())));
    let server = MockServer::start(handler).await;
    port.set(server.port).unwrap();
    let mut config = ClientConfig::new([server.address()]);
    config.retry_timeout = Duration::from_secs(20);
    config.first_backoff = Duration::from_millis(5);
    (server, Client::connect(config).await.unwrap())
}

fn list_databases() -> proto::ListDatabasesRequest {
    proto::ListDatabasesRequest::default()
}

#[tokio::test]
async fn connecting_without_a_server_says_who_was_dialled() {
    let unused = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let mut config = ClientConfig::new([unused.to_string()]);
    config.connect_timeout = Duration::from_secs(5);
    let error = Client::connect(config).await.unwrap_err();
    assert!(matches!(&error, Error::Connect { address, .. } if **address == *unused.to_string()));
    let nobody = Client::connect(ClientConfig::new(Vec::<String>::new()))
        .await
        .unwrap_err();
    assert!(matches!(nobody, Error::NoServer { .. }));
}

#[tokio::test]
async fn a_bootstrap_address_that_is_down_is_passed_over() {
    let (server, _) = cluster(|_| Reply::Silence).await;
    let unused = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let config = ClientConfig::new([unused.to_string(), server.address()]);
    Client::connect(config).await.unwrap();
}

#[tokio::test]
async fn fc_090_servers_that_moved_are_found_again_by_the_bootstrap_address() {
    let databases = |name: &'static str| {
        at_once(move |call| {
            call.ok(&proto::ListDatabasesResponse {
                database_name: vec![name.into()],
                ..Default::default()
            })
        })
    };
    let before = MockServer::start(databases("before")).await;
    let after = MockServer::start(databases("after")).await;
    let port = Arc::new(Mutex::new(before.port));
    let told = Arc::clone(&port);
    let bootstrap = at_once(move |call| {
        let node = node(0, *told.lock());
        call.ok(&proto::MetadataResponse {
            coordinator_server: Some(node.clone()),
            tablet_servers: vec![node],
            ..Default::default()
        })
    });
    let bootstrap = MockServer::start(bootstrap).await;
    let mut config = ClientConfig::new([bootstrap.address()]);
    config.retry_timeout = Duration::from_secs(20);
    config.first_backoff = Duration::from_millis(5);
    let client = Client::connect(config).await.unwrap();
    assert_eq!(client.list_databases().await.unwrap(), ["before"]);
    *port.lock() = after.port;
    drop(before);
    assert_eq!(client.list_databases().await.unwrap(), ["after"]);
}

#[tokio::test]
async fn fc_094_a_code_of_a_newer_server_is_kept_with_its_text_and_not_retried() {
    let (server, client) = cluster(|call| call.fail(ErrorCode::Unknown(9999))).await;
    let error = client.list_databases().await.unwrap_err();
    assert_eq!(error.code().map(ErrorCode::code), Some(9999));
    let text = error.to_string();
    assert!(
        text.contains("9999") && text.contains("said the mock"),
        "{text}"
    );
    assert!(!error.is_retriable());
    assert_eq!(server.count(ApiKey::ListDatabases), 1);
}

#[tokio::test]
async fn callers_share_one_connection_per_role_and_server() {
    let (server, client) = cluster(|call| call.ok(&proto::ListDatabasesResponse::default())).await;
    let calls = (0..20).map(|_| client.coordinator(list_databases()));
    for answer in futures::future::join_all(calls).await {
        answer.unwrap();
    }
    // One to the bootstrap address, one to the coordinator.
    assert_eq!(server.count(ApiKey::ApiVersions), 2);
}

#[tokio::test]
async fn a_read_is_repeated_on_a_new_connection_after_a_loss() {
    let calls = AtomicUsize::new(0);
    let (server, client) = cluster(move |call| match calls.fetch_add(1, Ordering::Relaxed) {
        0 => Reply::Close,
        1 => call.fail(ErrorCode::RequestTimeOut),
        _ => call.ok(&proto::ListDatabasesResponse {
            database_name: vec!["d".into()],
            ..Default::default()
        }),
    })
    .await;
    assert_eq!(client.list_databases().await.unwrap(), ["d"]);
    assert_eq!(server.count(ApiKey::ListDatabases), 3);
}

#[tokio::test]
async fn a_write_is_sent_once_and_its_unknown_outcome_is_told() {
    let (server, client) = cluster(|_| Reply::Close).await;
    let path = TablePath::new("d", "t");
    let error = client.drop_table(&path, false).await.unwrap_err();
    assert!(error.outcome_is_unknown(), "{error:?}");
    assert_eq!(server.count(ApiKey::DropTable), 1);
}

#[tokio::test]
async fn a_cluster_whose_tablet_servers_are_yet_to_come_is_asked_again() {
    let asked = AtomicUsize::new(0);
    let (_server, client) = cluster_with(move |call, node| {
        let is_first = asked.fetch_add(1, Ordering::Relaxed) == 1;
        let tablet_servers = if is_first { vec![] } else { vec![node.clone()] };
        call.ok(&proto::MetadataResponse {
            coordinator_server: Some(node),
            tablet_servers,
            ..Default::default()
        })
    })
    .await;
    let error = client.refresh_cluster().await.unwrap_err();
    let role = ServerRole::Tablet;
    assert!(matches!(error, Error::NoServer { role: r } if r == role));
    assert!(error.is_retriable());
    let again = client.retrying(|| client.refresh_cluster()).await.unwrap();
    assert_eq!(again.tablets().count(), 1);
}

#[tokio::test]
async fn no_lake_snapshot_is_a_value_and_other_errors_stay_errors() {
    let code = Arc::new(Mutex::new(ErrorCode::LakeSnapshotNotExist));
    let answer = Arc::clone(&code);
    let (_server, client) = cluster(move |call| call.fail(*answer.lock())).await;
    let path = TablePath::new("d", "t");
    assert_eq!(client.lake_snapshot(&path).await.unwrap(), None);
    *code.lock() = ErrorCode::TableNotExist;
    let error = client.lake_snapshot(&path).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::TableNotExist));
}

#[tokio::test]
async fn closing_ends_all_connections() {
    let (_server, client) = cluster(|_| Reply::Silence).await;
    client.close().await;
    let error = client.coordinator(list_databases()).await.unwrap_err();
    assert!(matches!(error, Error::ConnectionLost { .. }), "{error:?}");
}

#[test]
fn pauses_double_up_to_five_seconds_with_a_fifth_of_jitter() {
    let mut backoff = Backoff::new(Duration::from_millis(100));
    for expected in [100.0, 200.0, 400.0, 800.0, 1600.0, 3200.0, 5000.0, 5000.0] {
        let pause = backoff.next().as_secs_f64() * 1000.0;
        assert!(
            (expected * 0.79..expected * 1.21).contains(&pause),
            "{pause} for {expected}"
        );
    }
}

fn table_with_epoch(epoch: i64, count: Option<i32>) -> metadata::TableMetadata {
    let columns = vec![Column::new("n", LogicalType::nullable(TypeKind::Int))];
    let mut descriptor = TableDescriptor::new(Schema::new(columns, Vec::new()).unwrap());
    descriptor.bucket_count = count;
    metadata::TableMetadata {
        path: TablePath::new("d", "t"),
        table_id: TableId(1),
        schema_id: crate::ids::SchemaId(1),
        descriptor: Arc::new(descriptor),
        bucket_layout_epoch: epoch,
        buckets: std::collections::BTreeMap::new(),
    }
}

#[test]
fn a_partition_without_a_count_has_the_tables_only_while_that_was_never_altered() {
    let resolve = metadata::resolve_bucket_count;
    let partition = Some(PartitionId(7));
    let own = Some(TotalBuckets(4));
    let never = table_with_epoch(0, Some(2));
    let altered = table_with_epoch(1, Some(2));
    assert_eq!(resolve(own, &never, partition).unwrap(), TotalBuckets(4));
    assert_eq!(resolve(own, &altered, partition).unwrap(), TotalBuckets(4));
    assert_eq!(resolve(None, &never, partition).unwrap(), TotalBuckets(2));
    assert_eq!(resolve(None, &altered, None).unwrap(), TotalBuckets(2));
    for (own, table) in [
        (None, &altered),
        (None, &table_with_epoch(0, None)),
        (Some(TotalBuckets(0)), &never),
    ] {
        let error = resolve(own, table, partition).unwrap_err();
        assert!(
            matches!(error, Error::MissingBucketCount { .. }),
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn a_table_made_anew_under_its_path_takes_the_old_ones_metadata_with_it() {
    let id = Arc::new(AtomicI64::new(1));
    let now = Arc::clone(&id);
    let (_server, client) = cluster_with(move |call, node| {
        let request = call.read::<proto::MetadataRequest>();
        let table_id = now.load(Ordering::Relaxed);
        let table = |path: &proto::PbTablePath| proto::PbTableMetadata {
            table_path: path.clone(),
            table_id,
            schema_id: 1,
            table_json: table_with_epoch(0, Some(1)).descriptor.to_json().into(),
            ..Default::default()
        };
        let partition = |path: &proto::PbPhysicalTablePath| proto::PbPartitionMetadata {
            table_id,
            partition_name: path.partition_name.clone().unwrap(),
            partition_id: table_id * 100,
            bucket_count: Some(3),
            bucket_metadata: vec![proto::PbBucketMetadata {
                bucket_id: 2,
                leader_id: Some(0),
                ..Default::default()
            }],
        };
        call.ok(&proto::MetadataResponse {
            coordinator_server: Some(node.clone()),
            tablet_servers: vec![node],
            table_metadata: request.table_path.iter().map(table).collect(),
            partition_metadata: request.partitions_path.iter().map(partition).collect(),
        })
    })
    .await;
    let table = TablePath::new("d", "t");
    let path = PhysicalTablePath {
        table: table.clone(),
        partition: Some("p".to_owned()),
    };
    let old = client.partition_metadata(&path).await.unwrap();
    assert_eq!(old.partition_id, PartitionId(100));
    let bucket = TableBucket {
        table: TableId(1),
        partition: Some(PartitionId(100)),
        bucket: BucketId(2),
    };
    let cluster = client.cluster();
    assert_eq!(cluster.leader(bucket), Some(ServerId(0)));
    let count = cluster.total_buckets(TableId(1), Some(PartitionId(100)));
    assert_eq!(count.unwrap(), TotalBuckets(3));

    id.store(2, Ordering::Relaxed);
    assert_eq!(
        client.refresh_table(&table).await.unwrap().table_id,
        TableId(2)
    );
    let cluster = client.cluster();
    assert!(cluster.table_by_id(TableId(1)).is_none());
    assert!(cluster.partition_by_id(PartitionId(100)).is_none());
    assert_eq!(cluster.leader(bucket), None);
    let error = client.leader(&table, bucket).await.unwrap_err();
    assert!(
        matches!(
            error,
            Error::TableReplaced {
                found: TableId(2),
                ..
            }
        ),
        "{error:?}"
    );
    let fresh = client.partition_metadata(&path).await.unwrap();
    assert_eq!(fresh.partition_id, PartitionId(200));
}

#[tokio::test]
async fn a_heartbeat_is_written_as_the_reference_worker_writes_it() {
    let seen = Arc::new(Mutex::new(Bytes::new()));
    let body = Arc::clone(&seen);
    let (_server, client) = cluster(move |call| {
        *body.lock() = call.body.clone();
        let refused = |table_id, error| proto::PbHeartbeatRespForTable { table_id, error };
        let error = proto::ErrorResponse {
            error_code: 50,
            error_message: Some("late".into()),
        };
        call.ok(&proto::LakeTieringHeartbeatResponse {
            coordinator_epoch: 9,
            tiering_table: Some(proto::PbLakeTieringTableInfo {
                table_id: 5,
                table_path: proto::PbTablePath {
                    database_name: "d".into(),
                    table_name: "t".into(),
                },
                tiering_epoch: 4,
            }),
            finished_table_resp: vec![refused(11, Some(error)), refused(12, None)],
            ..Default::default()
        })
    })
    .await;
    let heartbeat = tiering::Heartbeat {
        finished: vec![tiering::HeartbeatTable {
            table_id: TableId(11),
            coordinator_epoch: CoordinatorEpoch(1),
            tiering_epoch: TieringEpoch(3),
            stats: None,
        }],
        force_finished: vec![TableId(11), TableId(300)],
        request_table: true,
        ..Default::default()
    };
    let answer = client.tiering_heartbeat(&heartbeat).await.unwrap();
    let golden =
        include_bytes!("../../tests/golden/frames/frame_lake_tiering_heartbeat_request.bin");
    assert_eq!(seen.lock()[..], golden[12..]);
    assert_eq!(answer.coordinator_epoch, CoordinatorEpoch(9));
    assert_eq!(answer.table.unwrap().path, TablePath::new("d", "t"));
    let codes: Vec<_> = answer
        .refused
        .iter()
        .map(|(id, error)| (*id, error.code()))
        .collect();
    assert_eq!(codes, [(TableId(11), Some(ErrorCode::FencedTieringEpoch))]);
}

#[tokio::test]
async fn a_lake_snapshot_is_prepared_and_committed_with_errors_of_its_table_told() {
    let fenced = Arc::new(Mutex::new(None));
    let code = Arc::clone(&fenced);
    let (_server, client) = cluster(move |call| {
        if call.api == ApiKey::PrepareLakeTableSnapshot {
            let request = call.read::<proto::PrepareLakeTableSnapshotRequest>();
            let ends = &request.bucket_offsets[0].bucket_offsets;
            assert_eq!(
                (ends[0].partition_id, ends[0].log_end_offset),
                (Some(3), Some(8))
            );
            call.ok(&proto::PrepareLakeTableSnapshotResponse {
                prepare_lake_table_resp: vec![proto::PbPrepareLakeTableRespForTable {
                    table_id: Some(11),
                    lake_table_offsets_path: Some("file:/x.offsets".into()),
                    ..Default::default()
                }],
            })
        } else {
            let request = call.read::<proto::CommitLakeTableSnapshotRequest>();
            let snapshot = &request.lake_table_snapshot_metadata[0];
            assert_eq!(snapshot.earliest_snapshot_id_to_keep, Some(-1));
            call.ok(&proto::CommitLakeTableSnapshotResponse {
                table_resp: vec![proto::PbCommitLakeTableSnapshotRespForTable {
                    error_code: *code.lock(),
                    error_message: None,
                    table_id: 11,
                }],
            })
        }
    })
    .await;
    let path = TablePath::new("d", "t");
    let place = (Some(PartitionId(3)), BucketId(0));
    let prepare = tiering::PrepareLakeSnapshot {
        table_id: TableId(11),
        path: path.clone(),
        offsets: [(place, LogOffset(8))].into(),
        ignore_previous: false,
    };
    let file = client.prepare_lake_snapshot(&prepare).await.unwrap();
    assert_eq!(file, "file:/x.offsets");
    let commit = tiering::CommitLakeSnapshot {
        table_id: TableId(11),
        path,
        snapshot_id: 1,
        tiered_offsets_path: file,
        readable_offsets_path: None,
        keep: tiering::KeepSnapshots::All,
        progress: Vec::new(),
    };
    client.commit_lake_snapshot(&commit).await.unwrap();
    *fenced.lock() = Some(7);
    let error = client.commit_lake_snapshot(&commit).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::TableNotExist));
}

#[tokio::test]
async fn a_bucket_count_is_altered_only_where_the_server_knows_how() {
    let (server, client) = cluster(|call| {
        let request = call.read::<proto::AlterTableRequest>();
        assert_eq!(request.modify_bucket_count.unwrap().new_bucket_count, 8);
        call.ok(&proto::AlterTableResponse {})
    })
    .await;
    let bucket_count = Some(TotalBuckets(8));
    let changes = admin::TableChanges {
        bucket_count,
        ..Default::default()
    };
    client
        .alter_table(&TablePath::new("d", "t"), &changes, false)
        .await
        .unwrap();
    assert_eq!(server.count(ApiKey::AlterTable), 1);
}
