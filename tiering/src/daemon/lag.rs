//! A look at how far the lake is behind: high watermarks against what the last rounds left in the
//! lake.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, stream};
use weir_protocol::ids::{LogOffset, TableBucket, TableId, TablePath};

use crate::cluster::{OffsetKind, TieringClient};
use crate::enumerate::{TableView, bucket_groups};
use crate::error::Result;

/// Tables looked at at the same time.
const TABLES: usize = 4;

/// What is known of a table before the look.
#[derive(Clone, Debug)]
pub(super) struct Known {
    /// The table.
    pub table: TableId,
    /// Its path.
    pub path: TablePath,
    /// As its last round saw it, if one did.
    pub seen: Option<Seen>,
}

/// What a table's last round saw.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    /// The table.
    pub view: TableView,
    /// Per bucket, the end of what the lake holds.
    pub lake_ends: BTreeMap<TableBucket, LogOffset>,
}

/// What a look found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// So many offsets are missing in the lake.
    Behind(u64),
    /// A bucket can't be looked at, so nothing is known.
    Unknown,
    /// There is no table of that id any more: the cluster says so.
    Gone,
}

/// Looks at each table; those that can't be looked at now, or not in time, are left out.
pub(super) async fn look(
    client: Arc<dyn TieringClient>,
    tables: Vec<Known>,
    time: Duration,
) -> Vec<(TableId, Found)> {
    let client = &client;
    let looks = tables.into_iter().map(|known| async move {
        let table = known.table;
        let found = look_at(client.as_ref(), known).await.ok().flatten();
        found.map(|found| (table, found))
    });
    stream::iter(looks)
        .buffer_unordered(TABLES)
        .filter_map(std::future::ready)
        .take_until(tokio::time::sleep(time))
        .collect()
        .await
}

async fn look_at(client: &dyn TieringClient, known: Known) -> Result<Option<Found>> {
    // Asked first: offsets of a table that is gone are asked for again and again.
    match client.table_info(&known.path).await {
        Ok(info) if info.id != known.table => return Ok(Some(Found::Gone)),
        Err(error) if error.is_table_gone() => return Ok(Some(Found::Gone)),
        Err(error) => return Err(error),
        Ok(_) => {}
    }
    let Some(Seen {
        mut view,
        lake_ends,
    }) = known.seen
    else {
        return Ok(None);
    };
    if view.partitions.is_some() {
        view.partitions = Some(client.partitions(&view.path).await?);
    }
    let mut rows = 0_u64;
    for group in bucket_groups(&view)? {
        let mut latest = client
            .offsets(&view.path, view.id, &group, OffsetKind::Latest)
            .await?;
        for bucket in group.buckets(view.id) {
            // A bucket that can't be read may hold rows: nothing is known of the table then.
            let Some(Ok(latest)) = latest.remove(&bucket.bucket) else {
                return Ok(Some(Found::Unknown));
            };
            let end = lake_ends.get(&bucket).map_or(0, |end| end.0.max(0));
            rows = rows.saturating_add(u64::try_from(latest.0.saturating_sub(end)).unwrap_or(0));
        }
    }
    Ok(Some(Found::Behind(rows)))
}
