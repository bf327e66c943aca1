//! What released clients sent to a real server, sent to ours: the frames of the captured sessions
//! give the answers that the real server gave, but for ids, times and addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use bytes::{Bytes, BytesMut};
use prost::Message;
use serde_json::Value;
use weir_protocol::api_key::ApiKey;
use weir_protocol::descriptor::{DatabaseDescriptor, TableDescriptor};
use weir_protocol::frame::{self, Answer, RequestFrame};
use weir_protocol::ids::{LogOffset, WriterId};
use weir_protocol::message::Request;
use weir_protocol::proto::{self, PbBucketMetadata, PbTableMetadata};
use weir_protocol::record::{batches, log_batch};
use weir_protocol::schema::Schema;
use weir_tests::cluster::Cluster;
use weir_tests::wire::{Outcome, Wire};

mod fields;
mod flink;
mod keys;

/// A request with the answer it got.
struct Exchange {
    name: String,
    on_coordinator: bool,
    request: RequestFrame,
    answer: Outcome<Bytes>,
}

fn folder(session: &str) -> PathBuf {
    let golden = "../server/protocol/tests/golden/captures";
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join(golden)
        .join(session)
}

/// The exchanges in the order of their answers: what waited at the end of a log is sent when it was
/// answered.
fn exchanges(session: &str) -> Vec<Exchange> {
    let read = |file: &str| Bytes::from(fs::read(folder(session).join(file)).unwrap());
    let (requests, answers) = (read("c2s.bin"), read("s2c.bin"));
    let mut open = BTreeMap::new();
    let mut exchanges = Vec::new();
    for line in std::str::from_utf8(&read("index.jsonl")).unwrap().lines() {
        let entry: Value = serde_json::from_str(line).unwrap();
        let number = |key: &str| usize::try_from(entry[key].as_i64().unwrap()).unwrap();
        let place = number("off") + 4..number("off") + number("len");
        let key = (number("conn"), number("id"));
        if entry["dir"] == "c2s" {
            let request = frame::decode_request(requests.slice(place)).unwrap();
            open.insert(key, request);
            continue;
        }
        let answer = match frame::decode_answer(answers.slice(place)).unwrap() {
            Answer::Success { body, .. } => Ok(body),
            Answer::Error { code, message, .. } => Err((code.code(), message)),
            Answer::ServerFailure { .. } => panic!("no session has one"),
        };
        exchanges.push(Exchange {
            name: format!("{session} frame {} {}", entry["n"], entry["name"]),
            on_coordinator: entry["server"] == "coordinator",
            request: open.remove(&key).expect("an answer follows its request"),
            answer,
        });
    }
    exchanges
}

/// Which of our ids stands for a captured one.
#[derive(Default)]
struct Ids {
    tables: BTreeMap<i64, i64>,
    partitions: BTreeMap<i64, i64>,
    writers: BTreeMap<i64, i64>,
    /// Tables with a primary key that a session found there, with rows: by name and by captured id.
    left_out: BTreeSet<String>,
    left_out_ids: BTreeSet<i64>,
    /// The schemas of tables with a primary key, by captured id and schema id.
    keyed: BTreeMap<(i64, i32), Schema>,
}

impl Ids {
    fn table(&self, id: i64) -> i64 {
        *self.tables.get(&id).unwrap_or(&-1)
    }

    fn partition(&self, id: Option<i64>) -> Option<i64> {
        id.map(|id| *self.partitions.get(&id).unwrap_or(&-1))
    }

    /// The batches of a request, under the writer id that our server gave.
    fn records(&self, records: &Bytes) -> Bytes {
        let mut all = BytesMut::new();
        for batch in batches(records.clone()) {
            let batch = batch.unwrap();
            let mut bytes = BytesMut::from(&batch.bytes[..]);
            if let Some(ours) = self.writers.get(&batch.header.writer_id.0) {
                let sequence = batch.header.batch_sequence;
                log_batch::set_writer(&mut bytes, WriterId(*ours), sequence).unwrap();
            }
            all.extend_from_slice(&bytes);
        }
        all.freeze()
    }
}

/// Stored batches without what a server chooses: commit time, and the writer id with its checksum.
fn told(records: &Bytes) -> Bytes {
    let mut all = BytesMut::new();
    for batch in batches(records.clone()) {
        let batch = batch.unwrap();
        let mut bytes = BytesMut::from(&batch.bytes[..]);
        let sequence = batch.header.batch_sequence;
        log_batch::set_writer(&mut bytes, WriterId(0), sequence).unwrap();
        let offset = LogOffset(batch.header.base_offset.0);
        log_batch::set_stored(&mut bytes, offset, 0).unwrap();
        all.extend_from_slice(&bytes);
    }
    all.freeze()
}

/// The offsets and the sizes, in records, of stored batches.
fn counted(records: &Bytes) -> Bytes {
    let batches = batches(records.clone()).map(Result::unwrap);
    let texts =
        batches.map(|batch| format!("{}+{} ", batch.header.base_offset, batch.record_count()));
    texts.collect::<String>().into()
}

/// A descriptor without the properties that a server adds on its own.
fn descriptor(json: &[u8]) -> String {
    let mut descriptor = TableDescriptor::from_json(json).unwrap();
    for added in [
        "table.datalake.format",
        "table.replication.factor",
        "table.kv.standby-replica.enabled",
    ] {
        descriptor.properties.remove(added);
    }
    let of_catalog = |name: &String| name.starts_with("table.datalake.paimon.");
    descriptor.properties.retain(|name, _| !of_catalog(name));
    String::from_utf8(descriptor.to_json()).unwrap()
}

/// Which buckets there are; their order, and whether a leader was there already, is a matter of time.
fn buckets(buckets: &[PbBucketMetadata]) -> BTreeSet<i32> {
    buckets.iter().map(|bucket| bucket.bucket_id).collect()
}

struct Replay {
    coordinator: Wire,
    tablet: Wire,
    ids: Ids,
    compared: BTreeSet<ApiKey>,
    differences: Vec<String>,
}

impl Replay {
    async fn on(cluster: &Cluster) -> Self {
        Self {
            coordinator: Wire::connect(&cluster.addr()).await,
            tablet: Wire::connect(&cluster.tablet_addr()).await,
            ids: Ids::default(),
            compared: BTreeSet::new(),
            differences: Vec::new(),
        }
    }

    async fn send<R: Request>(&mut self, exchange: &Exchange, request: &R) -> Outcome<R::Response> {
        let wire = if exchange.on_coordinator {
            &mut self.coordinator
        } else {
            &mut self.tablet
        };
        let version = exchange.request.version;
        let body = wire
            .call_raw(R::API_KEY.key(), version, &request.encode_to_vec())
            .await?;
        Ok(R::Response::decode(body).unwrap())
    }

    /// Sends the request as `ours` makes it, and compares what `shown` leaves of both answers.
    async fn same<R: Request, S: PartialEq + std::fmt::Debug>(
        &mut self,
        exchange: &Exchange,
        ours: impl FnOnce(&Ids, R) -> R,
        shown: impl Fn(R::Response) -> S,
    ) -> Option<(R::Response, R::Response)> {
        let request = ours(&self.ids, R::decode(exchange.request.body.clone()).unwrap());
        let found = self.send(exchange, &request).await;
        self.compared.insert(R::API_KEY);
        match (&exchange.answer, found) {
            (Ok(body), Ok(found)) => {
                let expected = R::Response::decode(body.clone()).unwrap();
                let message = std::any::type_name::<R::Response>();
                let message = message.rsplit("::").next().unwrap();
                let sent = found.encode_to_vec().into();
                for text in fields::missing(message, body.clone(), sent) {
                    self.differences.push(format!("{}: {text}", exchange.name));
                }
                let (left, right) = (shown(found.clone()), shown(expected.clone()));
                if left != right {
                    let name = &exchange.name;
                    self.differences
                        .push(format!("{name}: {left:?}, not {right:?}"));
                }
                Some((expected, found))
            }
            (Err((code, _)), Err((found, message))) => {
                if found != *code {
                    let name = &exchange.name;
                    self.differences
                        .push(format!("{name}: {found} {message}, not {code}"));
                }
                None
            }
            (Ok(_), Err(refused)) => {
                let name = &exchange.name;
                self.differences.push(format!("{name}: {refused:?}"));
                None
            }
            (Err(expected), Ok(_)) => {
                let name = &exchange.name;
                self.differences
                    .push(format!("{name}: done, not {expected:?}"));
                None
            }
        }
    }

    /// The same, of a request and an answer without ids.
    async fn plain<R: Request>(&mut self, exchange: &Exchange)
    where
        R::Response: PartialEq + std::fmt::Debug,
    {
        self.same(exchange, |_, request: R| request, |answer| answer)
            .await;
    }

    async fn take(&mut self, exchange: &Exchange) {
        let api = ApiKey::from_key(exchange.request.api_key).unwrap();
        match api {
            ApiKey::CreateDatabase => self.plain::<proto::CreateDatabaseRequest>(exchange).await,
            ApiKey::DatabaseExists => self.plain::<proto::DatabaseExistsRequest>(exchange).await,
            ApiKey::CreatePartition => self.plain::<proto::CreatePartitionRequest>(exchange).await,
            ApiKey::DropPartition => self.plain::<proto::DropPartitionRequest>(exchange).await,
            ApiKey::DropDatabase => self.plain::<proto::DropDatabaseRequest>(exchange).await,
            ApiKey::AlterTable => self.plain::<proto::AlterTableRequest>(exchange).await,
            ApiKey::ListDatabases => {
                let names = |answer: proto::ListDatabasesResponse| {
                    let own = |name: &String| name != "fluss";
                    answer
                        .database_name
                        .into_iter()
                        .filter(own)
                        .collect::<BTreeSet<_>>()
                };
                self.same(
                    exchange,
                    |_, request: proto::ListDatabasesRequest| request,
                    names,
                )
                .await;
            }
            ApiKey::GetDatabaseInfo => {
                let shown = |answer: proto::GetDatabaseInfoResponse| {
                    DatabaseDescriptor::from_json(&answer.database_json).unwrap()
                };
                self.same(
                    exchange,
                    |_, request: proto::GetDatabaseInfoRequest| request,
                    shown,
                )
                .await;
            }
            ApiKey::CreateTable | ApiKey::DropTable | ApiKey::TableExists | ApiKey::ListTables => {
                self.table(api, exchange).await;
            }
            ApiKey::GetTableInfo
            | ApiKey::GetTableSchema
            | ApiKey::GetMetadata
            | ApiKey::ListPartitionInfos => {
                self.described(api, exchange).await;
            }
            ApiKey::GetLakeSnapshot => {
                let request =
                    proto::GetLakeSnapshotRequest::decode(exchange.request.body.clone()).unwrap();
                if !self.ids.left_out.contains(&request.table_path.table_name) {
                    self.same(
                        exchange,
                        |_, request: proto::GetLakeSnapshotRequest| request,
                        |_| (),
                    )
                    .await;
                }
            }
            ApiKey::InitWriter => {
                let both = self
                    .same(
                        exchange,
                        |_, request: proto::InitWriterRequest| request,
                        |_| (),
                    )
                    .await;
                let Some((captured, ours)) = both else { return };
                self.ids.writers.insert(captured.writer_id, ours.writer_id);
            }
            ApiKey::ProduceLog
            | ApiKey::FetchLog
            | ApiKey::ListOffsets
            | ApiKey::LimitScan
            | ApiKey::GetTableStats => {
                self.records(api, exchange).await;
            }
            ApiKey::ApiVersions => self.versions(exchange).await,
            // They say what a server is set to, and what storage it has.
            ApiKey::DescribeClusterConfigs => {
                self.same(
                    exchange,
                    |_, request: proto::DescribeClusterConfigsRequest| request,
                    |_| (),
                )
                .await;
            }
            ApiKey::GetFilesystemSecurityToken => {
                self.same(
                    exchange,
                    |_, request: proto::GetFileSystemSecurityTokenRequest| request,
                    |_| (),
                )
                .await;
            }
            ApiKey::PutKv
            | ApiKey::Lookup
            | ApiKey::PrefixLookup
            | ApiKey::GetLatestKvSnapshots => self.keys(api, exchange).await,
            other => panic!("{}: nothing is known of {other:?}", exchange.name),
        }
    }

    /// Every API that the clients met is served, in the version that they chose.
    async fn versions(&mut self, exchange: &Exchange) {
        let both = self
            .same(
                exchange,
                |_, request: proto::ApiVersionsRequest| request,
                |_| (),
            )
            .await;
        let (captured, ours) = both.expect("versions are told");
        for real in &captured.api_versions {
            let api = ApiKey::from_key(i16::try_from(real.api_key).unwrap());
            let served = ours
                .api_versions
                .iter()
                .find(|ours| ours.api_key == real.api_key);
            if let (Some(api), Some(served)) = (api, served) {
                assert_eq!(
                    served.min_version, real.min_version,
                    "{} {api:?}",
                    exchange.name
                );
                assert!(
                    served.max_version >= real.max_version,
                    "{} {api:?}",
                    exchange.name
                );
            }
        }
    }

    async fn table(&mut self, api: ApiKey, exchange: &Exchange) {
        let body = exchange.request.body.clone();
        match api {
            ApiKey::CreateTable => {
                self.plain::<proto::CreateTableRequest>(exchange).await;
            }
            ApiKey::DropTable => {
                let request = proto::DropTableRequest::decode(body).unwrap();
                if !self.ids.left_out.contains(&request.table_path.table_name) {
                    self.plain::<proto::DropTableRequest>(exchange).await;
                }
            }
            ApiKey::TableExists => {
                let request = proto::TableExistsRequest::decode(body).unwrap();
                if !self.ids.left_out.contains(&request.table_path.table_name) {
                    self.plain::<proto::TableExistsRequest>(exchange).await;
                }
            }
            _ => {
                let refused = self.ids.left_out.clone();
                let names = |answer: proto::ListTablesResponse| {
                    let kept = |name: &String| !refused.contains(name);
                    answer
                        .table_name
                        .into_iter()
                        .filter(kept)
                        .collect::<BTreeSet<_>>()
                };
                self.same(
                    exchange,
                    |_, request: proto::ListTablesRequest| request,
                    names,
                )
                .await;
            }
        }
    }

    async fn described(&mut self, api: ApiKey, exchange: &Exchange) {
        let body = exchange.request.body.clone();
        match api {
            ApiKey::GetTableInfo => {
                let request = proto::GetTableInfoRequest::decode(body).unwrap();
                if self.ids.left_out.contains(&request.table_path.table_name) {
                    return;
                }
                let shown = |answer: proto::GetTableInfoResponse| {
                    (answer.schema_id, descriptor(&answer.table_json))
                };
                let both = self
                    .same(
                        exchange,
                        |_, request: proto::GetTableInfoRequest| request,
                        shown,
                    )
                    .await;
                if let Some((captured, ours)) = both {
                    self.ids.tables.insert(captured.table_id, ours.table_id);
                }
            }
            ApiKey::GetTableSchema => {
                let shown = |answer: proto::GetTableSchemaResponse| {
                    let json: Value = serde_json::from_slice(&answer.schema_json).unwrap();
                    (answer.schema_id, json)
                };
                self.same(
                    exchange,
                    |_, request: proto::GetTableSchemaRequest| request,
                    shown,
                )
                .await;
            }
            ApiKey::ListPartitionInfos => {
                let shown = |answer: proto::ListPartitionInfosResponse| {
                    let infos = answer.partitions_info.into_iter();
                    infos
                        .map(|info| format!("{:?}", info.partition_spec))
                        .collect::<BTreeSet<_>>()
                };
                let both = self
                    .same(
                        exchange,
                        |_, request: proto::ListPartitionInfosRequest| request,
                        shown,
                    )
                    .await;
                let (captured, ours) = both.expect("partitions are listed");
                for info in &captured.partitions_info {
                    let mut all = ours.partitions_info.iter();
                    let same = all.find(|other| other.partition_spec == info.partition_spec);
                    let id = same.expect("the specs were compared").partition_id;
                    self.ids.partitions.insert(info.partition_id, id);
                }
            }
            _ => self.metadata(exchange).await,
        }
    }

    async fn metadata(&mut self, exchange: &Exchange) {
        let request = proto::MetadataRequest::decode(exchange.request.body.clone()).unwrap();
        let mut names = request.table_path.iter().map(|path| &path.table_name);
        if names.any(|name| self.ids.left_out.contains(name)) {
            if let Ok(body) = &exchange.answer {
                let answer = proto::MetadataResponse::decode(body.clone()).unwrap();
                let ids = answer.table_metadata.iter().map(|table| table.table_id);
                self.ids.left_out_ids.extend(ids);
            }
            return;
        }
        let ours = |ids: &Ids, mut request: proto::MetadataRequest| {
            for id in &mut request.partitions_id {
                *id = ids.partition(Some(*id)).expect("it has one");
            }
            request
        };
        let shown = |answer: proto::MetadataResponse| {
            let table = |table: &PbTableMetadata| {
                let json = descriptor(&table.table_json);
                (
                    table.table_path.clone(),
                    table.schema_id,
                    json,
                    buckets(&table.bucket_metadata),
                )
            };
            let tables: Vec<_> = answer.table_metadata.iter().map(table).collect();
            let partitions: BTreeMap<_, _> = answer
                .partition_metadata
                .iter()
                .map(|partition| {
                    (
                        partition.partition_name.clone(),
                        buckets(&partition.bucket_metadata),
                    )
                })
                .collect();
            (answer.coordinator_server.is_some(), tables, partitions)
        };
        let Some((captured, ours)) = self.same(exchange, ours, shown).await else {
            return;
        };
        for (theirs, our) in captured.table_metadata.iter().zip(&ours.table_metadata) {
            self.ids.tables.insert(theirs.table_id, our.table_id);
            self.remember_keys(theirs);
        }
        for theirs in &captured.partition_metadata {
            let mut all = ours.partition_metadata.iter();
            let same = all.find(|our| our.partition_name == theirs.partition_name);
            let id = same.map_or(-1, |our| our.partition_id);
            self.ids.partitions.insert(theirs.partition_id, id);
        }
    }

    async fn records(&mut self, api: ApiKey, exchange: &Exchange) {
        let body = exchange.request.body.clone();
        match api {
            ApiKey::ProduceLog => {
                let ours = |ids: &Ids, mut request: proto::ProduceLogRequest| {
                    request.table_id = ids.table(request.table_id);
                    for bucket in &mut request.buckets_req {
                        bucket.partition_id = ids.partition(bucket.partition_id);
                        bucket.records = ids.records(&bucket.records);
                    }
                    request
                };
                let shown = |answer: proto::ProduceLogResponse| {
                    let of = |bucket: proto::PbProduceLogRespForBucket| {
                        (
                            bucket.bucket_id,
                            bucket.error_code.unwrap_or(0),
                            bucket.base_offset,
                        )
                    };
                    answer
                        .buckets_resp
                        .into_iter()
                        .map(of)
                        .collect::<BTreeSet<_>>()
                };
                self.same(exchange, ours, shown).await;
            }
            ApiKey::FetchLog => self.fetch(exchange).await,
            ApiKey::ListOffsets => {
                let request = proto::ListOffsetsRequest::decode(body).unwrap();
                if self.ids.left_out_ids.contains(&request.table_id) {
                    return;
                }
                let ours = |ids: &Ids, mut request: proto::ListOffsetsRequest| {
                    request.table_id = ids.table(request.table_id);
                    request.partition_id = ids.partition(request.partition_id);
                    request
                };
                let shown = |answer: proto::ListOffsetsResponse| {
                    let of = |bucket: proto::PbListOffsetsRespForBucket| {
                        (
                            bucket.bucket_id,
                            bucket.error_code.unwrap_or(0),
                            bucket.offset,
                        )
                    };
                    answer
                        .buckets_resp
                        .into_iter()
                        .map(of)
                        .collect::<BTreeSet<_>>()
                };
                self.same(exchange, ours, shown).await;
            }
            ApiKey::GetTableStats => {
                let ours = |ids: &Ids, mut request: proto::GetTableStatsRequest| {
                    request.table_id = ids.table(request.table_id);
                    request
                };
                let shown = |answer: proto::GetTableStatsResponse| {
                    let of = |bucket: proto::PbTableStatsRespForBucket| {
                        (
                            bucket.bucket_id,
                            bucket.error_code.unwrap_or(0),
                            bucket.row_count,
                        )
                    };
                    answer
                        .buckets_resp
                        .into_iter()
                        .map(of)
                        .collect::<BTreeSet<_>>()
                };
                self.same(exchange, ours, shown).await;
            }
            _ => {
                let request = proto::LimitScanRequest::decode(body).unwrap();
                if self.ids.left_out_ids.contains(&request.table_id) {
                    return;
                }
                let ours = |ids: &Ids, mut request: proto::LimitScanRequest| {
                    request.table_id = ids.table(request.table_id);
                    request
                };
                let shown = |answer: proto::LimitScanResponse| {
                    let records = answer.records.unwrap_or_default();
                    let shown = if answer.is_log_table == Some(false) {
                        records
                    } else {
                        told(&records)
                    };
                    (answer.error_code.unwrap_or(0), answer.is_log_table, shown)
                };
                self.same(exchange, ours, shown).await;
            }
        }
    }

    async fn fetch(&mut self, exchange: &Exchange) {
        let request = proto::FetchLogRequest::decode(exchange.request.body.clone()).unwrap();
        let mut tables = request.tables_req.iter();
        if tables.any(|table| self.ids.left_out_ids.contains(&table.table_id)) {
            return;
        }
        let ours = |ids: &Ids, mut request: proto::FetchLogRequest| {
            // What was answered by then is there: nothing is waited for.
            request.max_wait_ms = Some(0);
            for table in &mut request.tables_req {
                table.table_id = ids.table(table.table_id);
                for bucket in &mut table.buckets_req {
                    bucket.partition_id = ids.partition(bucket.partition_id);
                }
            }
            request
        };
        // The Arrow message of a projected batch is written anew, and not byte for byte alike: a golden
        // file shows that its rows are right.
        let mut tables = request.tables_req.iter();
        let is_projected = tables.any(|table| table.projection_pushdown_enabled);
        let mut tables = request.tables_req.iter().map(|table| table.table_id);
        let keyed = tables.find_map(|table| self.keyed_schemas(table));
        let shown = |answer: proto::FetchLogResponse| {
            let buckets = answer
                .tables_resp
                .into_iter()
                .flat_map(|table| table.buckets_resp);
            let of = |bucket: proto::PbFetchLogRespForBucket| {
                let records = bucket.records.unwrap_or_default();
                let records = if let Some(schemas) = &keyed {
                    keys::changes(schemas, &records)
                } else if is_projected {
                    counted(&records)
                } else {
                    told(&records)
                };
                // A fetch that waited while its partition was dropped was told that it has no leader.
                let is_gone = [12, 21].contains(&bucket.error_code.unwrap_or(0));
                let code = if is_gone {
                    21
                } else {
                    bucket.error_code.unwrap_or(0)
                };
                (bucket.bucket_id, code, bucket.high_watermark, records)
            };
            buckets.map(of).collect::<BTreeSet<_>>()
        };
        self.same(exchange, ours, shown).await;
    }
}

#[tokio::test]
async fn the_frames_of_released_clients_get_the_answers_of_a_real_server() {
    for session in [
        "java-0.9.1",
        "java-1.0.0",
        "fluss-rs-1.0.0",
        "pyfluss-1.0.0",
    ] {
        let cluster = Cluster::start().await;
        let mut replay = Replay::on(&cluster).await;
        for exchange in exchanges(session) {
            replay.take(&exchange).await;
        }
        let found = replay.differences.join("\n");
        assert!(found.is_empty(), "{found}");
        for api in [
            ApiKey::ProduceLog,
            ApiKey::FetchLog,
            ApiKey::ListOffsets,
            ApiKey::LimitScan,
            ApiKey::GetMetadata,
            ApiKey::PutKv,
            ApiKey::Lookup,
            ApiKey::PrefixLookup,
        ] {
            assert!(replay.compared.contains(&api), "{session} has no {api:?}");
        }
    }
}
