//! The session of the Flink tiering job: its tables are made from what it was told of them, its log
//! from what it fetched, and its rounds of the log tables are gone through again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use bytes::Bytes;
use prost::Message;
use weir_protocol::api_key::ApiKey;
use weir_protocol::descriptor::TableDescriptor;
use weir_protocol::proto::{
    self, CommitLakeTableSnapshotRequest, CommitLakeTableSnapshotResponse, FetchLogRequest,
    FetchLogResponse, GetLakeSnapshotRequest, GetLakeSnapshotResponse, GetTableInfoRequest,
    GetTableInfoResponse, LakeTieringHeartbeatRequest, LakeTieringHeartbeatResponse,
    ListPartitionInfosRequest, ListPartitionInfosResponse, MetadataResponse,
    PbHeartbeatReqForTable, PbHeartbeatRespForTable, PrepareLakeTableSnapshotRequest,
    PrepareLakeTableSnapshotResponse,
};
use weir_protocol::record::batches;
use weir_tests::cluster::{Cluster, PATIENCE};

use super::{Exchange, Replay, exchanges};

const SESSION: &str = "flink-tiering-0.9.1";
/// The tables of the session were tiered 5 seconds after they were made; ours are at once.
const FRESHNESS: (&str, &str) = (
    "\"table.datalake.freshness\":\"5s\"",
    "\"table.datalake.freshness\":\"1ms\"",
);

/// The code of an ending that comes too late.
const FENCED: i32 = 50;

fn decoded<M: Message + Default>(body: &Bytes) -> M {
    M::decode(body.clone()).unwrap()
}

fn answer<M: Message + Default>(exchange: &Exchange) -> Option<M> {
    exchange.answer.as_ref().ok().map(decoded)
}

fn due_at_once(json: &mut Bytes) {
    let text = std::str::from_utf8(json).unwrap();
    *json = text.replace(FRESHNESS.0, FRESHNESS.1).into();
}

/// The exchanges, as if their tables had our freshness.
fn session() -> Vec<Exchange> {
    let mut all = exchanges(SESSION);
    for exchange in &mut all {
        let Ok(body) = &mut exchange.answer else {
            continue;
        };
        match ApiKey::from_key(exchange.request.api_key).unwrap() {
            ApiKey::GetTableInfo => {
                let mut info: GetTableInfoResponse = decoded(body);
                due_at_once(&mut info.table_json);
                *body = info.encode_to_vec().into();
            }
            ApiKey::GetMetadata => {
                let mut metadata: MetadataResponse = decoded(body);
                for table in &mut metadata.table_metadata {
                    due_at_once(&mut table.table_json);
                }
                *body = metadata.encode_to_vec().into();
            }
            _ => {}
        }
    }
    all
}

/// Of which tables and epochs a heartbeat speaks.
#[derive(Default)]
struct Rounds {
    /// Our coordinator's epoch.
    coordinator: i32,
    /// Captured table and epoch to our epoch.
    epochs: BTreeMap<(i64, i64), i64>,
    /// What we were given before the session was: our table to its epoch.
    early: BTreeMap<i64, i64>,
    /// Rounds of ours that have ended. The job repeats an ending until it knows of the answer: ours refuses
    /// it then, the real server only once the next round has begun, and the job does not look.
    ended: BTreeSet<(i64, i64)>,
    /// Captured paths of offsets files to ours.
    paths: BTreeMap<String, String>,
}

impl Replay {
    /// The databases, tables, partitions and rows that were there before the job began.
    async fn prepare(&mut self, cluster: &Cluster, all: &[Exchange]) {
        let client = &cluster.client;
        let database = proto::CreateDatabaseRequest {
            database_name: "g".to_owned(),
            ignore_if_exists: true,
            database_json: None,
        };
        client.coordinator(database).await.unwrap();
        let mut partitions = BTreeMap::new();
        for exchange in all {
            let body = &exchange.request.body;
            match ApiKey::from_key(exchange.request.api_key).unwrap() {
                ApiKey::GetTableInfo => {
                    let path = decoded::<GetTableInfoRequest>(body).table_path;
                    let info: GetTableInfoResponse = answer(exchange).unwrap();
                    let mut table = TableDescriptor::from_json(&info.table_json).unwrap();
                    if table.schema.has_primary_key() {
                        self.ids.left_out.insert(path.table_name);
                        self.ids.left_out_ids.insert(info.table_id);
                        continue;
                    }
                    let of_catalog = |name: &String| name.starts_with("table.datalake.paimon.");
                    table.properties.retain(|name, _| !of_catalog(name));
                    let create = proto::CreateTableRequest {
                        table_path: path.clone(),
                        table_json: table.to_json().into(),
                        ignore_if_exists: true,
                    };
                    client.coordinator(create).await.unwrap();
                    let ours = client.coordinator(GetTableInfoRequest { table_path: path });
                    let ours = ours.await.unwrap().table_id;
                    self.ids.tables.insert(info.table_id, ours);
                }
                ApiKey::ListPartitionInfos => {
                    let path = decoded::<ListPartitionInfosRequest>(body).table_path;
                    let listed: ListPartitionInfosResponse = answer(exchange).unwrap();
                    for info in listed.partitions_info {
                        let create = proto::CreatePartitionRequest {
                            table_path: path.clone(),
                            partition_spec: info.partition_spec.clone(),
                            ignore_if_not_exists: true,
                        };
                        client.coordinator(create).await.unwrap();
                        partitions.insert(info.partition_id, (path.clone(), info.partition_spec));
                    }
                }
                _ => {}
            }
        }
        for (captured, (path, spec)) in partitions {
            let list = ListPartitionInfosRequest {
                table_path: path,
                partial_partition_spec: Some(spec),
                ..ListPartitionInfosRequest::default()
            };
            let listed = client.coordinator(list).await.unwrap().partitions_info;
            self.ids.partitions.insert(captured, listed[0].partition_id);
        }
        self.fill(all).await;
    }

    /// Appends to each bucket what the job fetched from it.
    async fn fill(&mut self, all: &[Exchange]) {
        let mut logs = BTreeMap::new();
        for exchange in all {
            if ApiKey::from_key(exchange.request.api_key) != Some(ApiKey::FetchLog) {
                continue;
            }
            let fetched: FetchLogResponse = answer(exchange).unwrap();
            for table in fetched.tables_resp {
                if self.ids.left_out_ids.contains(&table.table_id) {
                    continue;
                }
                for bucket in table.buckets_resp {
                    let log: &mut Vec<Bytes> = logs
                        .entry((table.table_id, bucket.partition_id, bucket.bucket_id))
                        .or_default();
                    log.extend(batches(bucket.records.unwrap()).map(|batch| batch.unwrap().bytes));
                }
            }
        }
        for ((table, partition, bucket), batches_of) in logs {
            for batch in batches_of {
                let writer = batches(batch.clone())
                    .next()
                    .unwrap()
                    .unwrap()
                    .header
                    .writer_id;
                if !self.ids.writers.contains_key(&writer.0) {
                    let init = proto::InitWriterRequest::default().encode_to_vec();
                    let body = self
                        .tablet
                        .call_raw(ApiKey::InitWriter.key(), 0, &init)
                        .await;
                    let ours: proto::InitWriterResponse = decoded(&body.unwrap());
                    self.ids.writers.insert(writer.0, ours.writer_id);
                }
                let request = proto::ProduceLogRequest {
                    acks: -1,
                    table_id: self.ids.table(table),
                    timeout_ms: 30_000,
                    buckets_req: vec![proto::PbProduceLogReqForBucket {
                        partition_id: self.ids.partition(partition),
                        bucket_id: bucket,
                        records: self.ids.records(&batch),
                        ..proto::PbProduceLogReqForBucket::default()
                    }],
                };
                let produce = || request.encode_to_vec();
                let tablet = &mut self.tablet;
                let code = loop {
                    let body = tablet
                        .call_raw(ApiKey::ProduceLog.key(), 0, &produce())
                        .await;
                    let answer: proto::ProduceLogResponse = decoded(&body.unwrap());
                    // The bucket has no leader yet.
                    match answer.buckets_resp[0].error_code.unwrap_or(0) {
                        3 | 12 => tokio::task::yield_now().await,
                        code => break code,
                    }
                };
                assert_eq!(code, 0, "table {table} bucket {bucket}");
            }
        }
    }

    async fn take_tiering(&mut self, exchange: &Exchange, rounds: &mut Rounds) {
        match ApiKey::from_key(exchange.request.api_key).unwrap() {
            ApiKey::LakeTieringHeartbeat => self.heartbeat(exchange, rounds).await,
            ApiKey::PrepareLakeTableSnapshot => self.prepare_snapshot(exchange, rounds).await,
            ApiKey::CommitLakeTableSnapshot => self.commit_snapshot(exchange, rounds).await,
            ApiKey::GetLakeSnapshot => self.lake_snapshot(exchange).await,
            // Of a table that is left out.
            ApiKey::GetLatestKvSnapshots => {}
            ApiKey::ListOffsets | ApiKey::FetchLog => {
                if !self.is_of_left_out(exchange) {
                    self.take(exchange).await;
                }
            }
            _ => self.take(exchange).await,
        }
    }

    fn is_of_left_out(&self, exchange: &Exchange) -> bool {
        let body = &exchange.request.body;
        if exchange.request.api_key == ApiKey::FetchLog.key() {
            let tables = decoded::<FetchLogRequest>(body).tables_req;
            tables
                .iter()
                .any(|table| self.ids.left_out_ids.contains(&table.table_id))
        } else {
            let table = decoded::<proto::ListOffsetsRequest>(body).table_id;
            self.ids.left_out_ids.contains(&table)
        }
    }

    async fn beat(
        &mut self,
        request: &LakeTieringHeartbeatRequest,
    ) -> LakeTieringHeartbeatResponse {
        let body = request.encode_to_vec();
        let key = ApiKey::LakeTieringHeartbeat.key();
        let answer = self.coordinator.call_raw(key, 0, &body).await.unwrap();
        self.compared.insert(ApiKey::LakeTieringHeartbeat);
        decoded(&answer)
    }

    /// The same tables are kept, finished and refused, and the same one is given next.
    async fn heartbeat(&mut self, exchange: &Exchange, rounds: &mut Rounds) {
        let captured: LakeTieringHeartbeatRequest = decoded(&exchange.request.body);
        let expected: LakeTieringHeartbeatResponse = answer(exchange).unwrap();
        let of_log_tables = |entries: &[PbHeartbeatReqForTable]| -> Vec<_> {
            let known =
                |entry: &&PbHeartbeatReqForTable| !self.ids.left_out_ids.contains(&entry.table_id);
            let ours = |entry: &PbHeartbeatReqForTable| PbHeartbeatReqForTable {
                table_id: self.ids.table(entry.table_id),
                coordinator_epoch: rounds.coordinator,
                tiering_epoch: rounds.epochs[&(entry.table_id, entry.tiering_epoch)],
                ..*entry
            };
            entries.iter().filter(known).map(ours).collect()
        };
        let forced = captured.force_finished_tables.iter();
        let forced = forced.filter(|table| !self.ids.left_out_ids.contains(table));
        let request = LakeTieringHeartbeatRequest {
            tiering_tables: of_log_tables(&captured.tiering_tables),
            finished_tables: of_log_tables(&captured.finished_tables),
            failed_tables: of_log_tables(&captured.failed_tables),
            request_table: None,
            force_finished_tables: forced.map(|table| self.ids.table(*table)).collect(),
        };
        let found = self.beat(&request).await;
        rounds.coordinator = found.coordinator_epoch;
        let endings = request.finished_tables.iter();
        let endings = endings.map(|entry| (entry.table_id, entry.tiering_epoch));
        let repeated = |ending: &(i64, i64)| !rounds.ended.insert(*ending);
        let repeated: BTreeSet<_> = endings.filter(repeated).map(|(table, _)| table).collect();
        let told = |entries: &[PbHeartbeatRespForTable], ours: bool| -> BTreeSet<_> {
            let code = |entry: &PbHeartbeatRespForTable| {
                entry.error.as_ref().map(|error| error.error_code)
            };
            let id = |table: i64| if ours { table } else { self.ids.table(table) };
            let known = entries
                .iter()
                .filter(|entry| !self.ids.left_out_ids.contains(&entry.table_id) || ours);
            known
                .map(|entry| (id(entry.table_id), code(entry)))
                .collect()
        };
        for (what, left, right) in [
            (
                "kept",
                &expected.tiering_table_resp,
                &found.tiering_table_resp,
            ),
            (
                "finished",
                &expected.finished_table_resp,
                &found.finished_table_resp,
            ),
            (
                "failed",
                &expected.failed_table_resp,
                &found.failed_table_resp,
            ),
        ] {
            let (mut left, right) = (told(left, false), told(right, true));
            if what == "finished" {
                let as_ours = |(table, code)| {
                    let refused = repeated.contains(&table);
                    (table, if refused { Some(FENCED) } else { code })
                };
                left = left.into_iter().map(as_ours).collect();
            }
            if left != right {
                let name = &exchange.name;
                self.differences
                    .push(format!("{name}: {what} {right:?}, not {left:?}"));
            }
        }
        let Some(given) = expected.tiering_table else {
            return;
        };
        if self.ids.left_out_ids.contains(&given.table_id) {
            return;
        }
        let wanted = self.ids.table(given.table_id);
        let epoch = self.given(wanted, rounds).await;
        rounds
            .epochs
            .insert((given.table_id, given.tiering_epoch), epoch);
    }

    /// Asks for tables until it is given this one.
    async fn given(&mut self, wanted: i64, rounds: &mut Rounds) -> i64 {
        let ask = LakeTieringHeartbeatRequest {
            request_table: Some(true),
            ..LakeTieringHeartbeatRequest::default()
        };
        let give_up = Instant::now() + PATIENCE;
        loop {
            if let Some(epoch) = rounds.early.remove(&wanted) {
                return epoch;
            }
            assert!(Instant::now() < give_up, "table {wanted} is not given");
            match self.beat(&ask).await.tiering_table {
                Some(next) => {
                    rounds.early.insert(next.table_id, next.tiering_epoch);
                }
                None => tokio::task::yield_now().await,
            }
        }
    }

    async fn prepare_snapshot(&mut self, exchange: &Exchange, rounds: &mut Rounds) {
        let request: PrepareLakeTableSnapshotRequest = decoded(&exchange.request.body);
        if request
            .bucket_offsets
            .iter()
            .any(|table| self.ids.left_out_ids.contains(&table.table_id))
        {
            return;
        }
        let ours = |ids: &super::Ids, mut request: PrepareLakeTableSnapshotRequest| {
            for table in &mut request.bucket_offsets {
                table.table_id = ids.table(table.table_id);
                for bucket in &mut table.bucket_offsets {
                    bucket.partition_id = ids.partition(bucket.partition_id);
                }
            }
            request
        };
        let shown = |answer: PrepareLakeTableSnapshotResponse| {
            let tables = answer.prepare_lake_table_resp.into_iter();
            let code = |table: proto::PbPrepareLakeTableRespForTable| table.error_code.unwrap_or(0);
            tables.map(code).collect::<Vec<_>>()
        };
        let (captured, found) = self
            .same(exchange, ours, shown)
            .await
            .expect("it is prepared");
        let tables = captured.prepare_lake_table_resp.into_iter();
        for (captured, found) in tables.zip(found.prepare_lake_table_resp) {
            let paths = (
                captured.lake_table_offsets_path,
                found.lake_table_offsets_path,
            );
            rounds.paths.insert(paths.0.unwrap(), paths.1.unwrap());
        }
    }

    async fn commit_snapshot(&mut self, exchange: &Exchange, rounds: &mut Rounds) {
        let request: CommitLakeTableSnapshotRequest = decoded(&exchange.request.body);
        if request
            .tables_req
            .iter()
            .any(|table| self.ids.left_out_ids.contains(&table.table_id()))
        {
            return;
        }
        let paths = rounds.paths.clone();
        let ours = |ids: &super::Ids, mut request: CommitLakeTableSnapshotRequest| {
            for table in &mut request.tables_req {
                table.table_id = Some(ids.table(table.table_id()));
                for bucket in &mut table.buckets_req {
                    bucket.partition_id = ids.partition(bucket.partition_id);
                }
            }
            for table in &mut request.lake_table_snapshot_metadata {
                table.table_id = ids.table(table.table_id);
                table.tiered_bucket_offsets_file_path =
                    paths[&table.tiered_bucket_offsets_file_path].clone();
                if let Some(path) = &mut table.readable_bucket_offsets_file_path {
                    *path = paths[path].clone();
                }
            }
            request
        };
        let shown = |answer: CommitLakeTableSnapshotResponse| {
            let tables = answer.table_resp.into_iter();
            tables
                .map(|table| table.error_code.unwrap_or(0))
                .collect::<Vec<_>>()
        };
        self.same(exchange, ours, shown).await;
    }

    async fn lake_snapshot(&mut self, exchange: &Exchange) {
        let request: GetLakeSnapshotRequest = decoded(&exchange.request.body);
        if self.ids.left_out.contains(&request.table_path.table_name) {
            return;
        }
        let ours: BTreeMap<_, _> = self
            .ids
            .partitions
            .iter()
            .map(|(captured, ours)| (*ours, *captured))
            .collect();
        let known = self.ids.partitions.clone();
        let shown = |answer: GetLakeSnapshotResponse| {
            let captured = |id: i64| {
                if known.contains_key(&id) {
                    id
                } else {
                    ours[&id]
                }
            };
            let of = |bucket: proto::PbLakeSnapshotForBucket| {
                (
                    bucket.partition_id.map(captured),
                    bucket.bucket_id,
                    bucket.log_offset,
                )
            };
            let buckets = answer
                .bucket_snapshots
                .into_iter()
                .map(of)
                .collect::<BTreeSet<_>>();
            (answer.snapshot_id, buckets)
        };
        self.same(
            exchange,
            |_, request: GetLakeSnapshotRequest| request,
            shown,
        )
        .await;
    }
}

#[tokio::test]
async fn the_rounds_of_the_flink_job_on_log_tables_get_the_answers_of_a_real_server() {
    let cluster = Cluster::start().await;
    let mut replay = Replay::on(&cluster).await;
    let all = session();
    replay.prepare(&cluster, &all).await;
    let mut rounds = Rounds::default();
    for exchange in &all {
        replay.take_tiering(exchange, &mut rounds).await;
    }
    let found = replay.differences.join("\n");
    assert!(found.is_empty(), "{found}");
    assert_eq!(
        rounds.paths.len(),
        3,
        "two rounds of one table, one of the other"
    );
    for api in [
        ApiKey::LakeTieringHeartbeat,
        ApiKey::PrepareLakeTableSnapshot,
        ApiKey::CommitLakeTableSnapshot,
        ApiKey::GetLakeSnapshot,
        ApiKey::FetchLog,
        ApiKey::ListOffsets,
        ApiKey::ListPartitionInfos,
    ] {
        assert!(replay.compared.contains(&api), "the session has no {api:?}");
    }
}
