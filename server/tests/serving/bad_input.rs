//! What is wrong is refused by its own code, nothing is lost, and the server goes on.

use bytes::{BufMut, Bytes, BytesMut};
use tokio::io::AsyncWriteExt;
use weir_protocol::error_code::ErrorCode;
use weir_protocol::proto::*;
use weir_protocol::sasl;
use weir_server::config::SaslConfig;

use crate::rig::*;

#[tokio::test]
async fn unknown_apis_versions_and_bodies_fail_their_request_alone() {
    let home = Home::new();
    let server = home.start().await;
    let mut wire = Wire::tablet(&server).await;
    for api in [0, 999, 1067, -1, 1001, 1018, 1031] {
        let refused = wire.call_raw(api, 0, b"").await;
        assert_eq!(refused.code, ErrorCode::UnsupportedVersion, "{api}");
    }
    let version = wire.call_raw(1014, 7, b"").await;
    assert_eq!(version.code, ErrorCode::UnsupportedVersion);
    let broken = wire.call_raw(1012, 0, b"\xff\xff\xff").await;
    assert_eq!(broken.code, ErrorCode::CorruptMessage);
    wire.call(MetadataRequest::default())
        .await
        .expect("the connection lives on");
    server.shutdown().await;
}

#[tokio::test]
async fn frames_that_are_none_close_the_connection_and_nothing_else() {
    let home = Home::new();
    let server = home.start().await;
    let too_large = (101_i32 << 20).to_be_bytes();
    let negative = (-1_i32).to_be_bytes();
    let short = [&3_i32.to_be_bytes()[..], b"abc"].concat();
    for bytes in [&too_large[..], &negative, &short] {
        let mut wire = Wire::tablet(&server).await;
        wire.stream.write_all(bytes).await.unwrap();
        assert_eq!(wire.next().await, None, "{bytes:?}");
    }
    Wire::tablet(&server)
        .await
        .call(MetadataRequest::default())
        .await
        .unwrap();
    server.shutdown().await;
}

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
async fn batches_that_are_damaged_or_out_of_order_change_nothing() {
    let home = Home::new();
    let server = home.start().await;
    let (_, table) = create(&server, "t", &descriptor(1)).await;
    let mut wire = Wire::tablet(&server).await;

    let mut damaged = BytesMut::from(&batch(0..3, None)[..]);
    let last = damaged.len() - 1;
    damaged[last] ^= 1;
    let cases = [
        (damaged.freeze(), ErrorCode::CorruptRecord),
        (Bytes::new(), ErrorCode::CorruptRecord),
        (Bytes::from_static(b"no batch"), ErrorCode::CorruptRecord),
        (batch_of(&rows(0..1), 9, None), ErrorCode::SchemaNotExist),
        (batch_of(&rows(0..1), 0, None), ErrorCode::SchemaNotExist),
        (batch(0..1, Some((7, 3))), ErrorCode::OutOfOrderSequence),
    ];
    for (records, code) in cases {
        let refused = append(&mut wire, produce(table, 0, records))
            .await
            .unwrap_err();
        assert_eq!(refused.code, code, "{refused:?}");
    }
    let invalid = ProduceLogRequest {
        acks: 2,
        ..produce(table, 0, batch(0..1, None))
    };
    assert_eq!(
        append(&mut wire, invalid).await.unwrap_err().code,
        ErrorCode::InvalidRequiredAcks
    );

    assert_eq!(
        append(&mut wire, produce(table, 0, batch(0..2, Some((7, 0))))).await,
        Ok(0)
    );
    assert_eq!(
        append(&mut wire, produce(table, 0, batch(2..3, Some((7, 1))))).await,
        Ok(2)
    );
    let again = append(&mut wire, produce(table, 0, batch(0..2, Some((7, 0))))).await;
    assert_eq!(
        again,
        Ok(0),
        "a repeated batch is answered as the first time"
    );
    let gap = append(&mut wire, produce(table, 0, batch(9..10, Some((7, 5))))).await;
    assert_eq!(gap.unwrap_err().code, ErrorCode::OutOfOrderSequence);
    let all = read(&mut wire, fetch(table, 0, 0)).await.unwrap();
    assert_eq!(ids_of(all.records), [0, 1, 2]);
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
        (table("db", "t", keyed.to_json()), ErrorCode::InvalidTable),
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
