//! Reading manifests and snapshots for a commit.

use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt, stream};

use crate::datum::Datum;
use crate::error::{Error, Result};
use crate::manifest::{ManifestEntry, decode_manifest};
use crate::manifest_list::{ManifestFileMeta, decode_manifest_list};
use crate::snapshot::Snapshot;
use crate::stats::ColumnStats;
use crate::table::Table;

/// Largest manifest or list that is read.
const MAX_MANIFEST_BYTES: u64 = 512 << 20;

/// Manifests from this size on are decoded on a blocking thread.
const BLOCKING_FROM_BYTES: usize = 64 << 10;

/// Snapshots or manifests read at once.
const READ_AHEAD: usize = 8;

/// The newest snapshot of `user` from `latest` down.
pub(super) async fn newest_of(
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

/// Whether a manifest with these partition bounds may have entries of the partition.
pub(super) fn may_contain(bounds: &[ColumnStats], values: &[Datum]) -> bool {
    bounds.iter().zip(values).all(|(bound, value)| {
        if value.is_null() {
            return bound.null_count != Some(0);
        }
        let below = value
            .compare(&bound.min)
            .is_some_and(std::cmp::Ordering::is_lt);
        let above = value
            .compare(&bound.max)
            .is_some_and(std::cmp::Ordering::is_gt);
        !below && !above
    })
}

/// All manifests of a snapshot, base then delta.
pub(super) async fn all_manifests(
    table: &Table,
    snapshot: &Snapshot,
) -> Result<Vec<ManifestFileMeta>> {
    let base = read_list(table, &snapshot.base_manifest_list);
    let delta = read_list(table, &snapshot.delta_manifest_list);
    let (mut manifests, delta) = futures::try_join!(base, delta)?;
    manifests.extend(delta);
    Ok(manifests)
}

/// What a snapshot changed.
pub(super) async fn delta_entries(
    table: &Table,
    snapshot: &Snapshot,
) -> Result<Vec<ManifestEntry>> {
    let mut entries = Vec::new();
    for manifest in read_list(table, &snapshot.delta_manifest_list).await? {
        entries.extend(read_manifest(table, &manifest).await?);
    }
    Ok(entries)
}

/// The entries of a manifest.
pub(super) async fn read_manifest(
    table: &Table,
    manifest: &ManifestFileMeta,
) -> Result<Vec<ManifestEntry>> {
    read(table, &manifest.file_name, decode_manifest).await
}

/// The entries of several manifests, in their order.
pub(super) fn read_manifests<'a>(
    table: &'a Table,
    manifests: Vec<&'a ManifestFileMeta>,
) -> BoxStream<'a, Result<Vec<ManifestEntry>>> {
    let reads = stream::iter(manifests).map(|manifest| read_manifest(table, manifest).boxed());
    reads.buffered(READ_AHEAD).boxed()
}

async fn read_list(table: &Table, name: &str) -> Result<Vec<ManifestFileMeta>> {
    read(table, name, decode_manifest_list).await
}

async fn read<T: Send + 'static>(
    table: &Table,
    name: &str,
    decode: fn(&[u8]) -> Result<T>,
) -> Result<T> {
    let path = table.paths().manifest(name);
    let bytes = table.read_object(&path, MAX_MANIFEST_BYTES).await?;
    let decoded = if bytes.len() < BLOCKING_FROM_BYTES {
        decode(&bytes)
    } else {
        let decoded = tokio::task::spawn_blocking(move || decode(&bytes)).await;
        decoded.unwrap_or_else(|_| Err(Error::malformed("manifest", "its decoder failed")))
    };
    decoded.map_err(|error| error.at(path.as_ref()))
}
