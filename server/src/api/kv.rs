//! Key-value requests. A bucket that can't answer says so itself; the others are not touched.

use std::sync::Arc;

use weir_protocol::api_key::ApiKey;
use weir_protocol::ids::{BucketId, PartitionId, TableBucket, TableId};

use super::{Call, Outcome};
use crate::tablet::TabletServer;

mod lookup;
pub(super) mod put;
mod scan;

pub(super) async fn run(tablet: &Arc<TabletServer>, call: Call) -> Outcome {
    match call.api {
        ApiKey::Lookup => lookup::run(tablet, call).await,
        ApiKey::PrefixLookup => lookup::run_prefix(tablet, call).await,
        _ => scan::run(tablet, call).await,
    }
}

fn bucket_of(table: i64, partition: Option<i64>, bucket: i32) -> TableBucket {
    TableBucket {
        table: TableId(table),
        partition: partition.map(PartitionId),
        bucket: BucketId(bucket),
    }
}
