//! What is wrong is refused by its own code, nothing is lost, and the server goes on.

use std::collections::BTreeMap;

use bytes::{BufMut, BytesMut};
use tokio::io::AsyncWriteExt;
use weir_protocol::error_code::ErrorCode;
use weir_protocol::proto::*;
use weir_protocol::sasl;
use weir_protocol::schema::AggFunction;
use weir_server::config::SaslConfig;

use crate::rig::*;

#[tokio::test]
async fn api_versions_say_the_role() {
    let home = Home::new();
    let server = home.start().await;
    let hello = || ApiVersionsRequest {
        client_software_name: "test".into(),
        client_software_version: "1".into(),
    };
    for (mut wire, role) in [
        (Wire::coordinator(&server).await, 1),
        (Wire::tablet(&server).await, 2),
    ] {
        let answer = wire.call(hello()).await.unwrap();
        assert_eq!(answer.server_type, Some(role));
        assert!(answer.api_versions.iter().all(|api| api.api_key != 1018));
    }
    server.shutdown().await;
}

#[tokio::test]
async fn unknown_places_and_wrong_routes_fail_alone() {
    let home = Home::new();
    let server = home.start().await;
    let (_, table) = create(&server, "t", &descriptor(2)).await;
    let mut wire = Wire::tablet(&server).await;
    let rows = || batch(0..1, None);
    for request in [
        produce(table, 2, rows()),
        produce(table, -1, rows()),
        produce(99, 0, rows()),
    ] {
        let refused = append(&mut wire, request).await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::UnknownTableOrBucket);
    }
    let mut request = produce(table, 0, rows());
    let mut second = request.buckets_req[0].clone();
    request.buckets_req[0].routing_bucket_count = Some(4);
    second.bucket_id = 1;
    second.routing_bucket_count = Some(2);
    request.buckets_req.push(second);
    let response = wire.call(request).await.unwrap();
    let stale = Some(ErrorCode::InvalidBucketRouting.code());
    assert_eq!(response.buckets_resp[0].error_code, stale);
    assert_eq!(
        response.buckets_resp[1].base_offset,
        Some(0),
        "the other bucket is not touched"
    );

    for offset in [-1, 2, i64::MAX] {
        let refused = read(&mut wire, fetch(table, 1, offset)).await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::LogOffsetOutOfRange, "{offset}");
    }
    let follower = FetchLogRequest {
        follower_server_id: 0,
        ..fetch(table, 0, 0)
    };
    assert!(wire.call(follower).await.is_err());
    let lookup = LookupRequest {
        table_id: table,
        buckets_req: vec![PbLookupReqForBucket::default()],
        ..Default::default()
    };
    let answer = wire.call(lookup).await.unwrap();
    let no_keys = Some(ErrorCode::NonPrimaryKeyTable.code());
    assert_eq!(answer.buckets_resp[0].error_code, no_keys);
    server.shutdown().await;
}

#[tokio::test]
async fn names_and_descriptors_that_are_wrong_are_refused() {
    let home = Home::new();
    let server = home.start().await;
    let mut wire = Wire::coordinator(&server).await;
    let database = |name: &str| CreateDatabaseRequest {
        database_name: name.into(),
        ignore_if_exists: false,
        database_json: None,
    };
    for name in ["", "a b", "a/b", "..", "__system", &"x".repeat(201)] {
        let refused = wire.call(database(name)).await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::InvalidDatabase, "{name}");
    }
    wire.call(database("db")).await.unwrap();
    assert_eq!(
        wire.call(database("db")).await.unwrap_err().code,
        ErrorCode::DatabaseAlreadyExist
    );

    let table = |database: &str, name: &str, json: Vec<u8>| CreateTableRequest {
        table_path: PbTablePath {
            database_name: database.into(),
            table_name: name.into(),
        },
        table_json: json.into(),
        ignore_if_exists: false,
    };
    let good = descriptor(1).to_json();
    let mut keyed = descriptor(1);
    keyed.schema =
        weir_protocol::schema::Schema::new(schema().columns, vec!["id".to_owned()]).unwrap();
    let with = |key: &str, value: &str| {
        let mut keyed = keyed.clone();
        keyed.properties.insert(key.to_owned(), value.to_owned());
        keyed
    };
    let expiring = with("table.kv.ttl", "1 d");
    let mut aggregating = with("table.merge-engine", "aggregation");
    aggregating.schema.columns[1].agg_function = Some(AggFunction {
        kind: "MEDIAN".to_owned(),
        parameters: BTreeMap::new(),
    });
    let mut unknown = descriptor(1);
    unknown
        .properties
        .insert("table.nonsense".into(), "1".into());
    let mut many = descriptor(1);
    many.bucket_count = Some(1_000_000);
    let cases = [
        (
            table("nowhere", "t", good.clone()),
            ErrorCode::DatabaseNotExist,
        ),
        (table("db", "a/b", good.clone()), ErrorCode::InvalidTable),
        (
            table("db", "t", b"no json".to_vec()),
            ErrorCode::InvalidTable,
        ),
        (
            table("db", "t", expiring.to_json()),
            ErrorCode::InvalidConfig,
        ),
        (
            table("db", "t", aggregating.to_json()),
            ErrorCode::InvalidConfig,
        ),
        (
            table("db", "t", unknown.to_json()),
            ErrorCode::InvalidConfig,
        ),
        (table("db", "t", many.to_json()), ErrorCode::BucketMaxNum),
    ];
    for (request, code) in cases {
        let refused = wire.call(request).await.unwrap_err();
        assert_eq!(refused.code, code, "{refused:?}");
    }
    let path = PbTablePath {
        database_name: "db".into(),
        table_name: "t".into(),
    };
    let missing = wire
        .call(GetTableInfoRequest {
            table_path: path.clone(),
        })
        .await
        .unwrap_err();
    assert_eq!(missing.code, ErrorCode::TableNotExist);
    let asked = MetadataRequest {
        table_path: vec![path.clone()],
        ..Default::default()
    };
    assert_eq!(
        wire.call(asked).await.unwrap_err().code,
        ErrorCode::TableNotExist
    );
    let drop = DropTableRequest {
        table_path: path,
        ignore_if_not_exists: false,
    };
    assert_eq!(
        wire.call(drop).await.unwrap_err().code,
        ErrorCode::TableNotExist
    );
    wire.call(table("db", "t", good)).await.unwrap();
    let full = DropDatabaseRequest {
        database_name: "db".into(),
        ignore_if_not_exists: false,
        cascade: false,
    };
    assert_eq!(
        wire.call(full.clone()).await.unwrap_err().code,
        ErrorCode::DatabaseNotEmpty
    );
    wire.call(DropDatabaseRequest {
        cascade: true,
        ..full
    })
    .await
    .unwrap();
    server.shutdown().await;
}

#[tokio::test]
async fn features_that_are_missing_say_so_by_their_own_codes() {
    let home = Home::new();
    let server = home.start().await;
    let mut wire = Wire::coordinator(&server).await;
    let acls = wire.call(CreateAclsRequest::default()).await.unwrap_err();
    assert_eq!(acls.code, ErrorCode::SecurityDisabled);
    let rebalance = wire.call(RebalanceRequest::default()).await.unwrap_err();
    assert_eq!(rebalance.code, ErrorCode::RebalanceFailure);
    let progress = wire
        .call(ListRebalanceProgressRequest::default())
        .await
        .unwrap_err();
    assert_eq!(progress.code, ErrorCode::NoRebalanceInProgress);
    let tag = |server| AddServerTagRequest {
        server_ids: vec![server],
        server_tag: 0,
    };
    assert_eq!(
        wire.call(tag(77)).await.unwrap_err().code,
        ErrorCode::ServerNotExist
    );
    wire.call(tag(0)).await.unwrap();
    let token = wire
        .call(GetFileSystemSecurityTokenRequest {})
        .await
        .unwrap();
    assert_eq!((token.schema.as_str(), token.token.len()), ("file", 0));
    let health = wire.call(GetClusterHealthRequest {}).await.unwrap();
    assert_eq!(health.status, 0);
    assert!(
        !wire
            .call(DescribeClusterConfigsRequest {})
            .await
            .unwrap()
            .configs
            .is_empty()
    );
    server.shutdown().await;
}

#[tokio::test]
async fn a_login_is_asked_for_when_it_is_configured() {
    let home = Home::new();
    let mut config = home.config();
    let users = [("alice".to_owned(), "secret".to_owned())].into();
    config.sasl = Some(SaslConfig {
        users,
        login_timeout_ms: None,
    });
    let server = home.start_with(config).await;
    let mut wire = Wire::tablet(&server).await;
    let early = wire.call(MetadataRequest::default()).await.unwrap_err();
    assert_eq!(early.code, ErrorCode::Authenticate);
    let login = |password: &str| AuthenticateRequest {
        protocol: "PLAIN".into(),
        token: sasl::encode_plain_token("alice", password),
    };
    let wrong = wire.call(login("guess")).await.unwrap_err();
    assert_eq!(wrong.code, ErrorCode::Authenticate);
    assert_eq!(wire.call(login("secret")).await.unwrap().challenge, None);
    wire.call(MetadataRequest::default()).await.unwrap();

    let mut big = Wire::tablet(&server).await;
    let mut announced = BytesMut::new();
    announced.put_i32(65 << 10);
    big.stream.write_all(&announced).await.unwrap();
    assert_eq!(
        big.next().await,
        None,
        "large requests come after the login"
    );
    server.shutdown().await;
}

#[tokio::test]
async fn connections_above_the_limit_are_closed_and_the_rest_is_served() {
    let home = Home::new();
    let mut config = home.config();
    config.limits.connections_per_address = 2;
    let server = home.start_with(config).await;
    let mut first = Wire::tablet(&server).await;
    let mut second = Wire::tablet(&server).await;
    first.call(MetadataRequest::default()).await.unwrap();
    second.call(MetadataRequest::default()).await.unwrap();
    let mut third = Wire::tablet(&server).await;
    assert_eq!(third.next().await, None);
    first.call(MetadataRequest::default()).await.unwrap();
    server.shutdown().await;
}

#[tokio::test]
async fn connections_that_never_sent_a_request_lock_nobody_of_their_address_out() {
    let home = Home::new();
    let mut config = home.config();
    config.limits.connections_per_address = 5;
    let server = home.start_with(config).await;
    let mut served = Wire::tablet(&server).await;
    served.call(MetadataRequest::default()).await.unwrap();
    let mut strangers = Vec::new();
    for _ in 0..30 {
        strangers.push(Wire::tablet(&server).await);
    }
    let mut newcomers = Vec::new();
    for _ in 0..4 {
        let mut newcomer = Wire::tablet(&server).await;
        newcomer.call(MetadataRequest::default()).await.unwrap();
        newcomers.push(newcomer);
    }
    served.call(MetadataRequest::default()).await.unwrap();
    server.shutdown().await;
}

#[tokio::test]
async fn a_connection_that_sends_no_request_is_closed_long_before_an_idle_one() {
    let home = Home::new();
    let mut config = home.config();
    config.limits.first_request_ms = 100;
    let server = home.start_with(config).await;
    let mut served = Wire::tablet(&server).await;
    served.call(MetadataRequest::default()).await.unwrap();
    let mut silent = Wire::tablet(&server).await;
    assert_eq!(silent.next().await, None);
    served.call(MetadataRequest::default()).await.unwrap();
    server.shutdown().await;
}

#[tokio::test]
async fn a_request_that_comes_in_too_slowly_ends_its_connection() {
    let home = Home::new();
    let mut config = home.config();
    config.limits.slow_frame_ms = 50;
    let server = home.start_with(config).await;
    let mut slow = Wire::tablet(&server).await;
    slow.stream.write_all(&[0, 0, 1, 0, 3]).await.unwrap();
    assert_eq!(slow.next().await, None);
    Wire::tablet(&server)
        .await
        .call(MetadataRequest::default())
        .await
        .unwrap();
    server.shutdown().await;
}

#[tokio::test]
async fn a_connection_without_traffic_is_closed_but_one_that_waits_for_rows_is_not() {
    let home = Home::new();
    let mut config = home.config();
    config.limits.idle_ms = 1000;
    let server = home.start_with(config).await;
    let (_, table) = create(&server, "t", &descriptor(1)).await;
    let mut idle = Wire::tablet(&server).await;
    let mut waiting = Wire::tablet(&server).await;
    let patient = FetchLogRequest {
        min_bytes: Some(1),
        max_wait_ms: Some(2_500),
        ..fetch(table, 0, 0)
    };
    let id = waiting.send(0, &patient).await;
    assert_eq!(idle.next().await, None);
    waiting.answer::<FetchLogRequest>(id).await.unwrap();
    server.shutdown().await;
}

/// A table `db.days` with the partition `a`; its path, its id, and the partition's id.
async fn partitioned(server: &weir_server::RunningServer) -> (PbTablePath, i64, i64) {
    let mut table = descriptor(1);
    table.partition_keys = vec!["name".to_owned()];
    let (path, id) = create(server, "days", &table).await;
    let path = pb_path(&path);
    let mut wire = Wire::coordinator(server).await;
    wire.call(partition(&path, "a")).await.unwrap();
    let listed = wire
        .call(ListPartitionInfosRequest {
            table_path: path.clone(),
            ..Default::default()
        })
        .await
        .unwrap();
    (path, id, listed.partitions_info[0].partition_id)
}

fn partition(path: &PbTablePath, value: &str) -> CreatePartitionRequest {
    let pair = PbKeyValue {
        key: "name".into(),
        value: value.into(),
    };
    CreatePartitionRequest {
        table_path: path.clone(),
        partition_spec: PbPartitionSpec {
            partition_key_values: vec![pair],
        },
        ignore_if_not_exists: false,
    }
}

#[tokio::test]
async fn buckets_of_no_partition_or_of_one_that_is_not_there_are_unknown_everywhere() {
    let home = Home::new();
    let server = home.start().await;
    let (_, table, known) = partitioned(&server).await;
    let (_, plain) = create(&server, "plain", &descriptor(1)).await;
    let mut wire = Wire::tablet(&server).await;
    let unknown = Some(ErrorCode::UnknownTableOrBucket.code());
    let places = [
        (table, None, 0),
        (table, Some(known + 1), 0),
        (table, Some(known), 1),
        (plain, Some(known), 0),
        (plain + 9, None, 0),
    ];
    for (table_id, partition_id, bucket_id) in places {
        let mut written = produce(table_id, bucket_id, batch(0..1, None));
        written.buckets_req[0].partition_id = partition_id;
        let answer = wire.call(written).await.unwrap();
        assert_eq!(answer.buckets_resp[0].error_code, unknown);
        let mut fetched = fetch(table_id, bucket_id, 0);
        fetched.tables_req[0].buckets_req[0].partition_id = partition_id;
        let answer = wire.call(fetched).await.unwrap();
        assert_eq!(answer.tables_resp[0].buckets_resp[0].error_code, unknown);
        let offsets = ListOffsetsRequest {
            follower_server_id: -1,
            offset_type: 1,
            table_id,
            partition_id,
            bucket_id: vec![bucket_id],
            ..Default::default()
        };
        let answer = wire.call(offsets).await.unwrap();
        assert_eq!(answer.buckets_resp[0].error_code, unknown);
        let scan = LimitScanRequest {
            table_id,
            partition_id,
            bucket_id,
            limit: 1,
            ..Default::default()
        };
        assert_eq!(wire.call(scan).await.unwrap().error_code, unknown);
        let stats = GetTableStatsRequest {
            table_id,
            buckets_req: vec![PbTableStatsReqForBucket {
                partition_id,
                bucket_id,
                ..Default::default()
            }],
            target_columns: vec![],
        };
        let answer = wire.call(stats).await.unwrap();
        assert_eq!(answer.buckets_resp[0].error_code, unknown);
    }
    let mut good = produce(table, 0, batch(0..1, None));
    good.buckets_req[0].partition_id = Some(known);
    assert_eq!(append(&mut wire, good).await, Ok(0));
    server.shutdown().await;
}

#[tokio::test]
async fn a_scan_without_a_limit_is_refused_and_the_server_goes_on() {
    let home = Home::new();
    let server = home.start().await;
    let (_, table_id) = create(&server, "t", &descriptor(1)).await;
    let mut wire = Wire::tablet(&server).await;
    for limit in [0, -1, i32::MIN] {
        let scan = LimitScanRequest {
            table_id,
            limit,
            ..Default::default()
        };
        let answer = wire.call(scan).await.unwrap();
        let message = answer.error_message.unwrap();
        assert!(message.contains(&limit.to_string()), "{message}");
    }
    server.shutdown().await;
}

#[tokio::test]
async fn partition_values_that_are_no_names_are_refused() {
    let home = Home::new();
    let server = home.start().await;
    let (path, _, _) = partitioned(&server).await;
    let mut wire = Wire::coordinator(&server).await;
    for value in ["a/b", "", "..", "a b", "a$b", &"x".repeat(201)] {
        let refused = wire.call(partition(&path, value)).await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::PartitionSpecInvalid, "`{value}`");
    }
    let again = wire.call(partition(&path, "a")).await.unwrap_err();
    assert_eq!(again.code, ErrorCode::PartitionAlreadyExists);
    server.shutdown().await;
}

#[tokio::test]
async fn changes_that_name_no_property_or_no_known_change_are_refused() {
    let home = Home::new();
    let server = home.start().await;
    let (path, _) = create(&server, "t", &descriptor(1)).await;
    let path = pb_path(&path);
    let mut wire = Wire::coordinator(&server).await;
    let change = |key: &str, value: Option<&str>, op_type| PbAlterConfig {
        config_key: key.into(),
        config_value: value.map(str::to_owned),
        op_type,
    };
    let wrong = [
        change("table.nonsense", Some("1"), 0),
        change("table.log.ttl", Some("soon"), 0),
        change("table.log.ttl", None, 0),
        change("table.log.ttl", Some("1 h"), 2),
        change("table.log.ttl", Some("1 h"), 99),
    ];
    for change in wrong {
        let alter = AlterTableRequest {
            table_path: path.clone(),
            config_changes: vec![change.clone()],
            ..Default::default()
        };
        let refused = wire.call(alter).await.unwrap_err();
        assert!(refused.message.contains(&change.config_key), "{refused:?}");
    }
    for op_type in [2, 99] {
        let alter = AlterDatabaseRequest {
            database_name: "db".into(),
            config_changes: vec![change("owner", Some("me"), op_type)],
            ..Default::default()
        };
        let refused = wire.call(alter).await.unwrap_err();
        assert!(refused.message.contains("owner"), "{refused:?}");
    }
    let good = AlterTableRequest {
        table_path: path,
        config_changes: vec![change("table.log.ttl", Some("1 h"), 0)],
        ..Default::default()
    };
    wire.call(good).await.unwrap();
    server.shutdown().await;
}
