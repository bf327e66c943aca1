//! Requests that are wrong: the protocol's own code, the connection lives on where it can, and
//! nothing that is right suffers.

use bytes::{BufMut, Bytes, BytesMut};
use weir_protocol::api_key::ApiKey;
use weir_protocol::client;
use weir_protocol::descriptor::DatabaseDescriptor;
use weir_protocol::ids::{SchemaId, TableId, TablePath, WriterId};
use weir_protocol::partition::PartitionSpec;
use weir_protocol::proto::{
    ApiVersionsRequest, FetchLogRequest, GetTableInfoRequest, ListDatabasesRequest,
    ListOffsetsRequest, PbFetchLogReqForBucket, PbFetchLogReqForTable, PbProduceLogReqForBucket,
    PbTablePath, ProduceLogRequest,
};
use weir_protocol::record::arrow::{Compression, encode_append};
use weir_protocol::schema::{Schema, TypeKind};
use weir_tests::cluster::Cluster;
use weir_tests::table::{
    bucketed, column, lake_table, partitioned, path, plain, required, rows, with,
};
use weir_tests::wire::{Wire, bucket_outcome, produce, produce_request};

/// A server with one table of two buckets, and connections to both of its listeners.
struct Fixture {
    cluster: Cluster,
    table: TableId,
    schema: Schema,
    coordinator: Wire,
    tablet: Wire,
}

impl Fixture {
    async fn new() -> Self {
        let cluster = Cluster::start().await;
        let path = path("t");
        let table = bucketed(plain(), 2, &[]);
        cluster
            .client
            .create_table(&path, &table, false)
            .await
            .expect("the table is created");
        let info = cluster
            .client
            .table_info(&path)
            .await
            .expect("the table is there");
        let coordinator = Wire::connect(&cluster.addr()).await;
        let tablet = Wire::connect(&cluster.tablet_addr()).await;
        let (table, schema) = (info.table_id, info.descriptor.schema);
        Self {
            cluster,
            table,
            schema,
            coordinator,
            tablet,
        }
    }

    /// Two rows as a batch.
    fn batch(&self, schema: i32, writer: i64, sequence: i32) -> Bytes {
        let rows = rows(&self.schema, 0..2);
        let (schema, writer) = (SchemaId(schema), WriterId(writer));
        encode_append(schema, writer, sequence, &rows, Compression::None).expect("a batch")
    }

    async fn produce(&mut self, bucket: i32, records: Bytes) -> Result<i64, i32> {
        let request = produce_request(self.table, bucket, records);
        produce(&mut self.tablet, &request)
            .await
            .map_err(|(code, _)| code)
    }

    async fn assert_alive(&mut self) {
        for wire in [&mut self.coordinator, &mut self.tablet] {
            let hello = ApiVersionsRequest {
                client_software_name: "test".to_owned(),
                client_software_version: "1".to_owned(),
            };
            wire.call(&hello).await.expect("the connection lives on");
        }
    }

    async fn stop(mut self) {
        self.cluster.stop().await;
    }
}

fn code<T: std::fmt::Debug>(result: Result<T, client::Error>) -> i32 {
    let error = result.expect_err("it is refused");
    error
        .code()
        .unwrap_or_else(|| panic!("no code: {error}"))
        .code()
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_apis_versions_and_bodies_fail_alone() {
    let mut fixture = Fixture::new().await;
    let tablet = &mut fixture.tablet;
    for key in [-1, 0, 999, 4_242, i16::MAX] {
        let (code, message) = tablet
            .call_raw(key, 0, &[])
            .await
            .expect_err("it is unknown");
        assert_eq!(code, 2, "api {key}");
        assert!(message.contains(&key.to_string()), "{message}");
    }
    for version in [-1, 9, i16::MAX] {
        let key = ApiKey::ListDatabases.key();
        let (code, message) = tablet
            .call_raw(key, version, &[])
            .await
            .expect_err("no version");
        assert_eq!(code, 2);
        assert!(message.contains(&version.to_string()), "{message}");
    }
    // A number that does not end, a length beyond the body, a field of the wrong type.
    for body in [&[0x08, 0xff][..], &[0x22, 0x7f, 1, 2], &[0x0d, 1, 2, 3, 4]] {
        let key = ApiKey::ProduceLog.key();
        let (code, message) = tablet
            .call_raw(key, 0, body)
            .await
            .expect_err("it is broken");
        assert_eq!(code, 3, "{body:?}: {message}");
    }
    fixture.assert_alive().await;
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_between_servers_are_refused_on_both_listeners() {
    let mut fixture = Fixture::new().await;
    for key in [1013, 1018, 1019, 1020, 1022, 1027, 1028, 1029, 1031, 1043] {
        for wire in [&mut fixture.coordinator, &mut fixture.tablet] {
            let (code, _) = wire
                .call_raw(key, 0, &[])
                .await
                .expect_err("it is not for clients");
            assert_eq!(code, 2, "api {key}");
        }
    }
    // What the other role serves, too.
    let (code, _) = fixture
        .coordinator
        .call_raw(1014, 0, &[])
        .await
        .expect_err("a tablet's call");
    assert_eq!(code, 2);
    let (code, _) = fixture
        .tablet
        .call_raw(1005, 0, &[])
        .await
        .expect_err("a coordinator's call");
    assert_eq!(code, 2);
    fixture.assert_alive().await;
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_are_no_frame_end_their_connection_and_no_other() {
    let mut fixture = Fixture::new().await;
    let mut oversized = BytesMut::new();
    oversized.put_i32(200 << 20);
    oversized.put_i16(ApiKey::ProduceLog.key());
    let mut short = BytesMut::new();
    short.put_i32(3);
    short.put_slice(&[1, 2, 3]);
    let negative = Bytes::from_static(&[0xff, 0xff, 0xff, 0xfe]);
    for bytes in [oversized.freeze(), short.freeze(), negative] {
        for address in [fixture.cluster.addr(), fixture.cluster.tablet_addr()] {
            let mut wire = Wire::connect(&address).await;
            wire.send_raw(&bytes).await;
            assert!(wire.next_answer().await.is_none(), "the connection ends");
        }
    }
    // Half a frame and a hang-up is the client's business.
    let mut half = Wire::connect(&fixture.cluster.addr()).await;
    half.send_raw(&[0, 0, 0, 50, 3]).await;
    drop(half);
    fixture.assert_alive().await;
    assert_eq!(fixture.produce(0, fixture.batch(1, -1, -1)).await, Ok(0));
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_that_are_not_intact_or_of_no_schema_leave_the_log_as_it_is() {
    let mut fixture = Fixture::new().await;
    let good = fixture.batch(1, -1, -1);
    for place in [12, 21, 30, 47, good.len() - 1] {
        let mut bad = good.to_vec();
        bad[place] ^= 0x40;
        assert_eq!(
            fixture.produce(0, bad.into()).await,
            Err(14),
            "byte {place}"
        );
    }
    assert_eq!(
        fixture.produce(0, good.slice(..good.len() - 1)).await,
        Err(14)
    );
    assert_eq!(fixture.produce(0, Bytes::new()).await, Err(14));
    // One that is intact and one that is not: none of them is taken.
    let mut pair = good.to_vec();
    pair.extend_from_slice(&good);
    let last = pair.len() - 1;
    pair[last] ^= 1;
    assert_eq!(fixture.produce(0, pair.into()).await, Err(14));
    for schema in [2, 77] {
        assert_eq!(
            fixture.produce(0, fixture.batch(schema, -1, -1)).await,
            Err(9),
            "{schema}"
        );
    }
    assert_eq!(fixture.produce(0, good).await, Ok(0));
    fixture.assert_alive().await;
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_sent_twice_is_taken_once_and_a_gap_in_the_sequence_is_refused() {
    let mut fixture = Fixture::new().await;
    let writer = 7_000;
    for sequence in 0..3 {
        let records = fixture.batch(1, writer, sequence);
        assert_eq!(
            fixture.produce(0, records).await,
            Ok(i64::from(sequence) * 2)
        );
    }
    for sequence in [2, 0, 1] {
        let records = fixture.batch(1, writer, sequence);
        assert_eq!(
            fixture.produce(0, records).await,
            Ok(i64::from(sequence) * 2),
            "again"
        );
    }
    for sequence in [4, 9, -1] {
        let records = fixture.batch(1, writer, sequence);
        assert_eq!(
            fixture.produce(0, records).await,
            Err(31),
            "sequence {sequence}"
        );
    }
    // A new writer begins with 0, and each bucket has a sequence of its own.
    assert_eq!(
        fixture.produce(0, fixture.batch(1, writer + 1, 5)).await,
        Err(31)
    );
    assert_eq!(fixture.produce(1, fixture.batch(1, writer, 0)).await, Ok(0));
    assert_eq!(fixture.produce(0, fixture.batch(1, writer, 3)).await, Ok(6));
    fixture.assert_alive().await;
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_wrong_bucket_of_a_request_fails_alone() {
    let mut fixture = Fixture::new().await;
    let records = fixture.batch(1, -1, -1);
    let bucket = |bucket_id, partition_id, routing_bucket_count| PbProduceLogReqForBucket {
        partition_id,
        bucket_id,
        records: records.clone(),
        routing_bucket_count,
        ..PbProduceLogReqForBucket::default()
    };
    let request = ProduceLogRequest {
        acks: 1,
        table_id: fixture.table.0,
        timeout_ms: 5_000,
        buckets_req: vec![
            bucket(0, None, Some(2)),
            bucket(1, None, Some(8)),
            bucket(2, None, Some(2)),
            bucket(0, Some(99), Some(2)),
            bucket(1, None, Some(2)),
        ],
    };
    let answer = fixture.tablet.call(&request).await.expect("an answer");
    let outcomes: Vec<_> = answer.buckets_resp.iter().map(bucket_outcome).collect();
    let codes: Vec<_> = outcomes
        .iter()
        .map(|one| one.clone().map_err(|(code, _)| code))
        .collect();
    assert_eq!(codes, [Ok(0), Err(74), Err(21), Err(21), Ok(0)]);
    let (_, message) = outcomes[1].clone().expect_err("stale");
    assert!(message.contains('8') && message.contains('2'), "{message}");

    let other = ProduceLogRequest {
        table_id: 99,
        ..request.clone()
    };
    let answer = fixture.tablet.call(&other).await.expect("an answer");
    let codes: Vec<_> = answer.buckets_resp.iter().map(bucket_outcome).collect();
    assert!(
        codes.iter().all(|one| matches!(one, Err((21, _)))),
        "{codes:?}"
    );
    for acks in [-2, 2, 7] {
        let request = ProduceLogRequest {
            acks,
            ..request.clone()
        };
        let (code, message) = fixture
            .tablet
            .call(&request)
            .await
            .expect_err("no such acks");
        assert_eq!(code, 18);
        assert!(message.contains(&acks.to_string()), "{message}");
    }
    fixture.assert_alive().await;
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fetches_and_offsets_of_wrong_buckets_fail_alone() {
    let mut fixture = Fixture::new().await;
    assert_eq!(fixture.produce(0, fixture.batch(1, -1, -1)).await, Ok(0));
    let bucket = |bucket_id, fetch_offset, routing_bucket_count| PbFetchLogReqForBucket {
        bucket_id,
        fetch_offset,
        max_fetch_bytes: 1 << 20,
        routing_bucket_count,
        ..PbFetchLogReqForBucket::default()
    };
    let request = FetchLogRequest {
        follower_server_id: -1,
        max_bytes: 1 << 20,
        max_wait_ms: Some(0),
        min_bytes: Some(1),
        tables_req: vec![PbFetchLogReqForTable {
            table_id: fixture.table.0,
            buckets_req: vec![
                bucket(0, 0, Some(2)),
                bucket(0, 99, Some(2)),
                bucket(1, 0, Some(3)),
                bucket(5, 0, Some(2)),
            ],
            ..PbFetchLogReqForTable::default()
        }],
        ..FetchLogRequest::default()
    };
    let answer = fixture.tablet.call(&request).await.expect("an answer");
    let buckets = &answer.tables_resp[0].buckets_resp;
    let codes: Vec<i32> = buckets
        .iter()
        .map(|one| one.error_code.unwrap_or(0))
        .collect();
    assert_eq!(codes, [0, 19, 74, 21]);
    assert!(
        buckets[0]
            .records
            .as_ref()
            .is_some_and(|records| !records.is_empty())
    );

    let mut request = ListOffsetsRequest {
        follower_server_id: -1,
        offset_type: 1,
        table_id: fixture.table.0,
        bucket_id: vec![0, 1, 7],
        routing_bucket_count: Some(2),
        ..ListOffsetsRequest::default()
    };
    let codes = |answer: &weir_protocol::proto::ListOffsetsResponse| -> Vec<i32> {
        answer
            .buckets_resp
            .iter()
            .map(|one| one.error_code.unwrap_or(0))
            .collect()
    };
    let answer = fixture.tablet.call(&request).await.expect("an answer");
    assert_eq!(codes(&answer), [0, 0, 21]);
    request.routing_bucket_count = Some(4);
    // One count for the whole request: it is wrong for all of them.
    let (code, _) = fixture
        .tablet
        .call(&request)
        .await
        .expect_err("it is stale");
    assert_eq!(code, 74);
    fixture.assert_alive().await;
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_names_and_things_that_are_not_there_have_their_codes() {
    let mut fixture = Fixture::new().await;
    let client = fixture.cluster.client.clone();
    let long = "x".repeat(201);
    for name in ["", ".", "..", "a b", "a/b", "ü", "__hidden", &long] {
        let created = client.create_table(&path(name), &plain(), false).await;
        assert_eq!(code(created), 15, "table `{name}`");
        let created = client
            .create_database(name, &DatabaseDescriptor::default(), false)
            .await;
        assert_eq!(code(created), 16, "database `{name}`");
    }
    let nowhere = TablePath::new("nowhere", "t");
    assert_eq!(
        code(client.create_table(&nowhere, &plain(), false).await),
        4
    );
    assert_eq!(
        code(client.create_table(&path("t"), &plain(), false).await),
        8
    );
    assert_eq!(code(client.table_info(&path("missing")).await), 7);
    assert_eq!(code(client.drop_table(&path("missing"), false).await), 7);
    assert_eq!(code(client.drop_database("nowhere", false, true).await), 4);
    // On a tablet server's listener as well.
    let request = GetTableInfoRequest {
        table_path: PbTablePath {
            database_name: "fluss".into(),
            table_name: "missing".into(),
        },
    };
    let (found, _) = fixture
        .tablet
        .call(&request)
        .await
        .expect_err("it is missing");
    assert_eq!(found, 7);
    let listed = fixture
        .tablet
        .call(&ListDatabasesRequest::default())
        .await
        .expect("an answer");
    assert_eq!(listed.database_name, ["fluss"]);
    fixture.assert_alive().await;
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_property_is_named_and_makes_no_table() {
    let fixture = Fixture::new().await;
    let client = fixture.cluster.client.clone();
    for (key, value) in [
        ("table.datalake.freshness", "soon"),
        ("table.datalake.enabled", "perhaps"),
        ("table.log.ttl", "-"),
        ("table.replication.factor", "none"),
        ("table.nonsense", "1"),
    ] {
        let created = client
            .create_table(&path("wrong"), &with(plain(), key, value), false)
            .await;
        let error = created.expect_err("the property is wrong");
        assert!(error.to_string().contains(key), "{error}");
        assert_eq!(code::<()>(Err(error)), 39, "{key}");
    }
    assert!(
        !client
            .table_exists(&path("wrong"))
            .await
            .expect("an answer")
    );
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_partitions_have_their_codes() {
    let fixture = Fixture::new().await;
    let client = fixture.cluster.client.clone();
    let columns = vec![
        required("id", TypeKind::BigInt),
        column("day", TypeKind::String),
    ];
    let days = path("days");
    let table = partitioned(lake_table(columns), &["day"]);
    client
        .create_table(&days, &table, false)
        .await
        .expect("the table is created");
    let spec = |pairs: &[(&str, &str)]| {
        PartitionSpec(
            pairs
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect(),
        )
    };
    let one = spec(&[("day", "1")]);
    assert_eq!(code(client.drop_partition(&days, &one, false).await), 36);
    client
        .create_partition(&days, &one, false)
        .await
        .expect("the partition is created");
    assert_eq!(code(client.create_partition(&days, &one, false).await), 42);
    for wrong in [
        spec(&[("hour", "1")]),
        spec(&[]),
        spec(&[("day", "1"), ("hour", "2")]),
    ] {
        assert_eq!(
            code(client.create_partition(&days, &wrong, false).await),
            43,
            "{wrong}"
        );
    }
    assert_eq!(
        code(client.create_partition(&path("t"), &one, false).await),
        37
    );
    assert_eq!(code(client.list_partitions(&path("t")).await), 37);
    fixture.stop().await;
}
