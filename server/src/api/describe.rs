//! Requests that only read, which both roles answer.

use weir_catalog::catalog::{Table, Which};
use weir_protocol::api_key::ApiKey;
use weir_protocol::descriptor::DatabaseDescriptor;
use weir_protocol::ids::{SchemaId, TablePath};
use weir_protocol::partition::PartitionSpec;
use weir_protocol::proto::{
    DatabaseExistsRequest, DatabaseExistsResponse, DescribeClusterConfigsRequest,
    DescribeClusterConfigsResponse, GetClusterHealthRequest, GetClusterHealthResponse,
    GetDatabaseInfoRequest, GetDatabaseInfoResponse, GetFileSystemSecurityTokenRequest,
    GetFileSystemSecurityTokenResponse, GetKvSnapshotMetadataRequest, GetLakeSnapshotRequest,
    GetLakeSnapshotResponse, GetLatestKvSnapshotsRequest, GetLatestKvSnapshotsResponse,
    GetTableInfoRequest, GetTableInfoResponse, GetTableSchemaRequest, GetTableSchemaResponse,
    ListDatabasesRequest, ListDatabasesResponse, ListPartitionInfosRequest,
    ListPartitionInfosResponse, ListTablesRequest, ListTablesResponse, PbDatabaseSummary,
    PbDescribeConfig, PbKeyValue, PbKvSnapshot, PbLakeSnapshotForBucket, PbPartitionInfo,
    PbPartitionSpec, TableExistsRequest, TableExistsResponse,
};

use super::{Call, Outcome, Service, answer};
use crate::error::Error;

/// Health as `GET_CLUSTER_HEALTH` numbers it.
const GREEN: i32 = 0;
const YELLOW: i32 = 1;
const RED: i32 = 2;

pub(super) async fn run(service: &Service, call: Call) -> Outcome {
    use ApiKey as K;
    let body = call.body;
    match call.api {
        K::ListDatabases => answer(body, |request| list_databases(service, request)).await,
        K::DatabaseExists => {
            answer(body, |request: DatabaseExistsRequest| async move {
                let exists = service
                    .reads
                    .database_exists(&request.database_name)
                    .await?;
                Ok(DatabaseExistsResponse { exists })
            })
            .await
        }
        K::GetDatabaseInfo => answer(body, |request| database_info(service, request)).await,
        K::GetTableInfo => answer(body, |request| table_info(service, request)).await,
        K::ListTables => {
            answer(body, |request: ListTablesRequest| async move {
                let table_name = service.reads.list_tables(&request.database_name).await?;
                Ok(ListTablesResponse { table_name })
            })
            .await
        }
        K::TableExists => {
            answer(body, |request: TableExistsRequest| async move {
                let exists = service
                    .reads
                    .table_exists(&TablePath::from(&request.table_path))
                    .await?;
                Ok(TableExistsResponse { exists })
            })
            .await
        }
        K::GetTableSchema => answer(body, |request| table_schema(service, request)).await,
        _ => answer(body, |request| list_partitions(service, request)).await,
    }
}

pub(super) async fn run_cluster(service: &Service, call: Call) -> Outcome {
    use ApiKey as K;
    let body = call.body;
    match call.api {
        K::GetLatestKvSnapshots => answer(body, |request| kv_snapshots(service, request)).await,
        K::GetKvSnapshotMetadata => {
            answer(body, |request: GetKvSnapshotMetadataRequest| async move {
                let table = weir_protocol::ids::TableId(request.table_id);
                Err(Error::NoKvSnapshot {
                    table,
                    snapshot: request.snapshot_id,
                })
            })
            .await
        }
        K::GetLakeSnapshot => answer(body, |request| lake_snapshot(service, request)).await,
        K::GetFilesystemSecurityToken => {
            answer(body, |_: GetFileSystemSecurityTokenRequest| async {
                Ok(GetFileSystemSecurityTokenResponse {
                    schema: "file".to_owned(),
                    ..GetFileSystemSecurityTokenResponse::default()
                })
            })
            .await
        }
        K::DescribeClusterConfigs => {
            answer(body, |_: DescribeClusterConfigsRequest| async {
                let config = |(key, value): &(String, String)| PbDescribeConfig {
                    config_key: key.clone(),
                    config_value: Some(value.clone()),
                    config_source: "INITIAL_SERVER_CONFIG".to_owned(),
                };
                let configs = service.reads.settings().iter().map(config).collect();
                Ok(DescribeClusterConfigsResponse { configs })
            })
            .await
        }
        K::GetClusterHealth => {
            answer(body, |_: GetClusterHealthRequest| async {
                Ok(health(service))
            })
            .await
        }
        _ => Err(Error::SecurityDisabled.into()),
    }
}

async fn list_databases(
    service: &Service,
    request: ListDatabasesRequest,
) -> Result<ListDatabasesResponse, Error> {
    let names = service.reads.list_databases().await?;
    let mut response = ListDatabasesResponse::default();
    if request.include_summary != Some(true) {
        response.database_name = names;
        return Ok(response);
    }
    for database_name in names {
        let database = service.reads.database(&database_name).await?;
        let tables = service.reads.list_tables(&database_name).await?.len();
        response.database_summary.push(PbDatabaseSummary {
            database_name,
            created_time: database.created_time,
            table_count: i32::try_from(tables).unwrap_or(i32::MAX),
        });
    }
    Ok(response)
}

async fn database_info(
    service: &Service,
    request: GetDatabaseInfoRequest,
) -> Result<GetDatabaseInfoResponse, Error> {
    let database = service.reads.database(&request.database_name).await?;
    let descriptor = DatabaseDescriptor {
        comment: database.comment,
        custom_properties: database.custom_properties,
    };
    Ok(GetDatabaseInfoResponse {
        database_json: descriptor.to_json().into(),
        created_time: database.created_time,
        modified_time: database.modified_time,
    })
}

async fn table_info(
    service: &Service,
    request: GetTableInfoRequest,
) -> Result<GetTableInfoResponse, Error> {
    let table = service
        .reads
        .table(&TablePath::from(&request.table_path))
        .await?;
    let mut descriptor = table.descriptor;
    service.reads.add_lake_options(&mut descriptor);
    Ok(GetTableInfoResponse {
        table_id: table.table_id.0,
        schema_id: table.schema_id.0,
        table_json: descriptor.to_json().into(),
        created_time: table.created_ms,
        modified_time: table.modified_ms,
        remote_data_dir: table.remote_data_dir,
        bucket_count_epoch: Some(table.bucket_layout_epoch),
    })
}

async fn table_schema(
    service: &Service,
    request: GetTableSchemaRequest,
) -> Result<GetTableSchemaResponse, Error> {
    let path = TablePath::from(&request.table_path);
    let table = service.reads.table(&path).await?;
    let id = request.schema_id.map_or(table.schema_id, SchemaId);
    let schema = service.reads.schema(&path, id).await?;
    Ok(GetTableSchemaResponse {
        schema_id: id.0,
        schema_json: schema.to_json().into(),
    })
}

async fn list_partitions(
    service: &Service,
    request: ListPartitionInfosRequest,
) -> Result<ListPartitionInfosResponse, Error> {
    let (table, partitions) = service
        .reads
        .partitions(&TablePath::from(&request.table_path))
        .await?;
    let wanted = request.partial_partition_spec.unwrap_or_default();
    let mut partitions_info = Vec::new();
    for partition in partitions {
        if !fits(&partition.spec, &wanted, &table)? {
            continue;
        }
        let pair = |(key, value): (String, String)| PbKeyValue { key, value };
        partitions_info.push(PbPartitionInfo {
            partition_id: partition.id.0,
            bucket_count: Some(partition.bucket_count.0),
            partition_spec: PbPartitionSpec {
                partition_key_values: partition.spec.0.into_iter().map(pair).collect(),
            },
            remote_data_dir: partition.remote_data_dir,
        });
    }
    let system_partitions_included = request.include_system_partitions;
    Ok(ListPartitionInfosResponse {
        partitions_info,
        system_partitions_included,
    })
}

/// Whether a partition has all the values asked for.
fn fits(spec: &PartitionSpec, wanted: &PbPartitionSpec, table: &Table) -> Result<bool, Error> {
    for pair in &wanted.partition_key_values {
        let value = spec
            .get(&pair.key)
            .ok_or_else(|| weir_catalog::Error::InvalidPartition {
                path: table.path.clone(),
                reason: format!("`{}` is no partition key", pair.key),
            })?;
        if value != pair.value {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The newest snapshot of each bucket's keys: none is given out, and readers begin with the log, unless
/// it lacks keys.
async fn kv_snapshots(
    service: &Service,
    request: GetLatestKvSnapshotsRequest,
) -> Result<GetLatestKvSnapshotsResponse, Error> {
    let path = TablePath::from(&request.table_path);
    let table = service.reads.table(&path).await?;
    if !table.descriptor.schema.has_primary_key() {
        return Err(Error::NoPrimaryKey {
            table: path.to_string(),
        });
    }
    let is_partitioned = table.descriptor.is_partitioned();
    let (partition, count) = match request.partition_name {
        Some(name) if is_partitioned => {
            let partition = service.reads.partition(&path, &name).await?;
            (Some(partition.id), partition.bucket_count)
        }
        Some(_) => return Err(weir_catalog::Error::TableNotPartitioned { path }.into()),
        None if is_partitioned => {
            let partition = String::new();
            return Err(weir_catalog::Error::PartitionNotExist { path, partition }.into());
        }
        None => (None, table.bucket_count),
    };
    let cut = service.reads.cut_logs.any_of(table.table_id, partition);
    if let Some((bucket, start)) = cut {
        return Err(Error::KeysWithoutSnapshot {
            table: path,
            bucket,
            start,
        });
    }
    let bucket = |bucket_id| PbKvSnapshot {
        bucket_id,
        ..PbKvSnapshot::default()
    };
    Ok(GetLatestKvSnapshotsResponse {
        table_id: table.table_id.0,
        partition_id: partition.map(|partition| partition.0),
        latest_snapshots: (0..count.0).map(bucket).collect(),
    })
}

async fn lake_snapshot(
    service: &Service,
    request: GetLakeSnapshotRequest,
) -> Result<GetLakeSnapshotResponse, Error> {
    let which = match (request.snapshot_id, request.readable) {
        (Some(_), Some(true)) => {
            let reason = "it names a snapshot and asks for a readable one".to_owned();
            return Err(Error::BadRequest {
                api: ApiKey::GetLakeSnapshot,
                reason,
            });
        }
        (Some(id), _) => Which::Id(id),
        (None, Some(true)) => Which::Readable,
        (None, _) => Which::Latest,
    };
    let table = service
        .reads
        .table(&TablePath::from(&request.table_path))
        .await?;
    let snapshot = service.reads.lake_snapshot(&table, which).await?;
    let names = service.reads.partition_names(&table).await?;
    let bucket = |(bucket, end): (&weir_protocol::ids::TableBucket, _)| {
        let end: &weir_protocol::ids::LogOffset = end;
        PbLakeSnapshotForBucket {
            partition_id: bucket.partition.map(|partition| partition.0),
            bucket_id: bucket.bucket.0,
            log_offset: Some(end.0),
            partition_name: bucket.partition.and_then(|id| names.get(&id).cloned()),
        }
    };
    Ok(GetLakeSnapshotResponse {
        table_id: table.table_id.0,
        snapshot_id: snapshot.snapshot_id,
        bucket_snapshots: snapshot.ends.iter().map(bucket).collect(),
    })
}

fn health(service: &Service) -> GetClusterHealthResponse {
    let (active, known) = service.cache.leader_counts();
    let number = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
    let status = match active {
        _ if active == known => GREEN,
        0 => RED,
        _ => YELLOW,
    };
    GetClusterHealthResponse {
        num_replicas: number(known),
        in_sync_replicas: number(active),
        num_leader_replicas: number(known),
        active_leader_replicas: number(active),
        status,
    }
}
