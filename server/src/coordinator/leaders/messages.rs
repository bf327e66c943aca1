//! What servers are told of leaders.

use weir_catalog::catalog::Table;
use weir_catalog::model::leader_isr::LeaderIsr;
use weir_protocol::ids::{BucketId, ServerId};
use weir_protocol::proto::{
    PbBucketMetadata, PbNotifyLeaderAndIsrReqForBucket, PbPhysicalTablePath, PbTableBucket,
    PbTableMetadata, PbTablePath,
};

use super::Group;

pub(super) fn metadata_of(
    bucket: BucketId,
    state: &LeaderIsr,
    ready: Option<ServerId>,
) -> PbBucketMetadata {
    PbBucketMetadata {
        bucket_id: bucket.0,
        leader_id: ready.map(|server| server.0),
        replica_id: numbers(&state.isr),
        leader_epoch: Some(state.leader_epoch.0),
        bucket_epoch: Some(state.bucket_epoch),
        isr: numbers(&state.isr),
    }
}

pub(super) fn notify_entry(
    group: &Group,
    bucket: BucketId,
    state: &LeaderIsr,
) -> PbNotifyLeaderAndIsrReqForBucket {
    let replicas = group.assignment.get(&bucket).into_iter().flatten();
    PbNotifyLeaderAndIsrReqForBucket {
        physical_table_path: PbPhysicalTablePath {
            database_name: group.path.table.database.clone(),
            table_name: group.path.table.table.clone(),
            partition_name: group.path.partition.clone(),
        },
        table_bucket: PbTableBucket {
            table_id: group.table.0,
            partition_id: group.partition.map(|partition| partition.0),
            bucket_id: bucket.0,
        },
        leader: state.leader.0,
        leader_epoch: state.leader_epoch.0,
        replicas: replicas.map(|server| server.0).collect(),
        isr: numbers(&state.isr),
        bucket_epoch: state.bucket_epoch,
        standby_replicas: Vec::new(),
        bucket_count: Some(group.bucket_count.0),
        bucket_count_epoch: Some(group.bucket_count_epoch),
    }
}

pub(super) fn numbers(servers: &[ServerId]) -> Vec<i32> {
    servers.iter().map(|server| server.0).collect()
}

/// A table as `UPDATE_METADATA` names it; the descriptor stays with the catalog.
pub(super) fn table_metadata(
    table: &Table,
    bucket_metadata: Vec<PbBucketMetadata>,
) -> PbTableMetadata {
    PbTableMetadata {
        table_path: PbTablePath {
            database_name: table.path.database.clone(),
            table_name: table.path.table.clone(),
        },
        table_id: table.table_id.0,
        schema_id: table.schema_id.0,
        bucket_metadata,
        bucket_count_epoch: Some(table.bucket_layout_epoch),
        ..PbTableMetadata::default()
    }
}
