//! `GET_METADATA`: where things are. One bad name fails the whole request, as clients expect.

use std::collections::{BTreeMap, BTreeSet};

use weir_catalog::catalog::{Partition, Table};
use weir_protocol::ids::{BucketId, PartitionId, TableId, TablePath, TotalBuckets};
use weir_protocol::proto::{
    MetadataRequest, MetadataResponse, PbBucketMetadata, PbPartitionMetadata, PbTableMetadata,
    PbTablePath,
};

use super::{Call, Outcome, Service, answer};
use crate::error::Error;

pub(super) async fn run(service: &Service, call: Call) -> Outcome {
    answer(call.body, |request| metadata(service, request)).await
}

async fn metadata(service: &Service, request: MetadataRequest) -> Result<MetadataResponse, Error> {
    let mut response = MetadataResponse {
        coordinator_server: service.cache.coordinator(),
        tablet_servers: service.cache.tablets(),
        ..MetadataResponse::default()
    };
    let mut tables: BTreeMap<TableId, Table> = BTreeMap::new();
    for path in &request.table_path {
        let table = service.reads.table(&TablePath::from(path)).await?;
        response
            .table_metadata
            .push(table_metadata(service, &table));
        tables.insert(table.table_id, table);
    }
    for path in &request.partitions_path {
        let table_path = TablePath::new(path.database_name.clone(), path.table_name.clone());
        let table = service.reads.table(&table_path).await?;
        let name = path.partition_name.clone().unwrap_or_default();
        let partition = service.reads.partition(&table_path, &name).await?;
        response
            .partition_metadata
            .push(partition_metadata(service, &table, &partition));
    }
    if !request.partitions_id.is_empty() {
        let found = by_id(service, &tables, &request.partitions_id).await?;
        response.partition_metadata.extend(found);
    }
    Ok(response)
}

/// Partitions by their ids, which must belong to tables that the request names.
async fn by_id(
    service: &Service,
    tables: &BTreeMap<TableId, Table>,
    ids: &[i64],
) -> Result<Vec<PbPartitionMetadata>, Error> {
    let wanted: BTreeSet<i64> = ids.iter().copied().collect();
    let mut found = BTreeMap::new();
    for table in tables
        .values()
        .filter(|table| table.descriptor.is_partitioned())
    {
        for partition in service.reads.partitions(&table.path).await?.1 {
            if wanted.contains(&partition.id.0) {
                found.insert(partition.id, partition_metadata(service, table, &partition));
            }
        }
    }
    let take = |id: &i64| {
        let partition = PartitionId(*id);
        found
            .get(&partition)
            .cloned()
            .ok_or(Error::UnknownPartition { partition })
    };
    ids.iter().map(take).collect()
}

fn table_metadata(service: &Service, table: &Table) -> PbTableMetadata {
    let bucket_metadata = if table.descriptor.is_partitioned() {
        Vec::new()
    } else {
        buckets(service, table.table_id, None, table.bucket_count)
    };
    let mut descriptor = table.descriptor.clone();
    service.reads.add_lake_options(&mut descriptor);
    PbTableMetadata {
        table_path: PbTablePath {
            database_name: table.path.database.clone(),
            table_name: table.path.table.clone(),
        },
        table_id: table.table_id.0,
        schema_id: table.schema_id.0,
        table_json: descriptor.to_json().into(),
        bucket_metadata,
        created_time: table.created_ms,
        modified_time: table.modified_ms,
        remote_data_dir: table.remote_data_dir.clone(),
        bucket_count_epoch: Some(table.bucket_layout_epoch),
    }
}

fn partition_metadata(
    service: &Service,
    table: &Table,
    partition: &Partition,
) -> PbPartitionMetadata {
    let count = partition.bucket_count;
    PbPartitionMetadata {
        table_id: table.table_id.0,
        partition_name: partition.name.clone(),
        partition_id: partition.id.0,
        bucket_metadata: buckets(service, table.table_id, Some(partition.id), count),
        bucket_count: Some(count.0),
    }
}

/// Every bucket, also those whose leader is not known or not ready yet.
fn buckets(
    service: &Service,
    table: TableId,
    partition: Option<PartitionId>,
    count: TotalBuckets,
) -> Vec<PbBucketMetadata> {
    let mut known = service.cache.buckets(table, partition);
    let bucket = |bucket_id: i32| {
        let unknown = || PbBucketMetadata {
            bucket_id,
            ..PbBucketMetadata::default()
        };
        known.remove(&BucketId(bucket_id)).unwrap_or_else(unknown)
    };
    (0..count.0).map(bucket).collect()
}
