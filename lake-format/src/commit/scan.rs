//! Reading snapshots for a commit.

use futures::{FutureExt, StreamExt, stream};

use crate::error::{Error, Result};
use crate::snapshot::Snapshot;
use crate::table::Table;

/// Snapshots read at once.
const READ_AHEAD: usize = 8;

/// The newest snapshot of `user` from `latest` down.
pub(crate) async fn newest_of(
    table: &Table,
    user: &str,
    latest: Snapshot,
) -> Result<Option<Snapshot>> {
    if latest.commit_user == user {
        return Ok(Some(latest));
    }
    let ids = stream::iter((1..latest.id).rev());
    let mut reads = ids
        .map(|id| table.snapshot(id).boxed())
        .buffered(READ_AHEAD);
    while let Some(read) = reads.next().await {
        match read {
            Ok(snapshot) if snapshot.commit_user == user => return Ok(Some(snapshot)),
            Ok(_) => {}
            // Snapshots have no holes: all below are expired too.
            Err(Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}
