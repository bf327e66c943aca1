//! Requests that change partitions.

use std::sync::Arc;

use weir_protocol::api_key::ApiKey;
use weir_protocol::ids::TablePath;
use weir_protocol::partition::PartitionSpec;
use weir_protocol::proto::{
    CreatePartitionRequest, CreatePartitionResponse, DropPartitionRequest, DropPartitionResponse,
    PbPartitionSpec,
};

use super::{Call, Outcome, answer, if_exists, if_missing};
use crate::coordinator::Coordinator;

pub(super) async fn run(coordinator: &Arc<Coordinator>, call: Call) -> Outcome {
    let body = call.body;
    match call.api {
        ApiKey::CreatePartition => {
            answer(body, |request: CreatePartitionRequest| async move {
                let path = TablePath::from(&request.table_path);
                let spec = spec_of(request.partition_spec);
                // The field is misnamed: clients mean "ignore if it exists".
                let exists = if_exists(request.ignore_if_not_exists);
                coordinator.create_partition(&path, &spec, exists).await?;
                Ok(CreatePartitionResponse {})
            })
            .await
        }
        _ => {
            answer(body, |request: DropPartitionRequest| async move {
                let path = TablePath::from(&request.table_path);
                let spec = spec_of(request.partition_spec);
                let missing = if_missing(request.ignore_if_not_exists);
                coordinator.drop_partition(&path, &spec, missing).await?;
                Ok(DropPartitionResponse {})
            })
            .await
        }
    }
}

fn spec_of(spec: PbPartitionSpec) -> PartitionSpec {
    let pairs = spec
        .partition_key_values
        .into_iter()
        .map(|pair| (pair.key, pair.value));
    PartitionSpec(pairs.collect())
}
