//! A look at how far the lake is behind: high watermarks against what the last rounds left in the
//! lake.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::{StreamExt, stream};
use weir_protocol::ids::{LogOffset, TableBucket, TableId};

use crate::cluster::{OffsetKind, TieringClient};
use crate::enumerate::{TableView, bucket_groups};
use crate::error::Result;

/// Tables looked at at the same time.
const TABLES: usize = 4;

/// What is known of a table before the look.
#[derive(Clone, Debug)]
pub(super) struct Known {
    /// The table, as its last round saw it.
    pub view: TableView,
    /// Per bucket, the end of what the lake holds.
    pub lake_ends: BTreeMap<TableBucket, LogOffset>,
}

/// Offsets that the lake lacks, per table; tables that can't be looked at now are left out.
pub(super) async fn look(
    client: Arc<dyn TieringClient>,
    tables: Vec<Known>,
) -> Vec<(TableId, u64)> {
    let client = &client;
    let looks = tables.into_iter().map(|known| async move {
        let table = known.view.id;
        look_at(client.as_ref(), known)
            .await
            .ok()
            .map(|rows| (table, rows))
    });
    stream::iter(looks)
        .buffer_unordered(TABLES)
        .filter_map(std::future::ready)
        .collect()
        .await
}

async fn look_at(client: &dyn TieringClient, known: Known) -> Result<u64> {
    let Known {
        mut view,
        lake_ends,
    } = known;
    if view.partitions.is_some() {
        view.partitions = Some(client.partitions(&view.path).await?);
    }
    let mut rows = 0_u64;
    for group in bucket_groups(&view)? {
        let latest = client
            .offsets(&view.path, view.id, &group, OffsetKind::Latest)
            .await?;
        for bucket in group.buckets(view.id) {
            let Some(Ok(latest)) = latest.get(&bucket.bucket) else {
                continue;
            };
            let end = lake_ends.get(&bucket).map_or(0, |end| end.0.max(0));
            rows = rows.saturating_add(u64::try_from(latest.0.saturating_sub(end)).unwrap_or(0));
        }
    }
    Ok(rows)
}
