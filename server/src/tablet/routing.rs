//! The order of checks of every request for a bucket: exists, led here, routed by the right count.

use std::sync::Arc;

use weir_protocol::ids::TableBucket;

use super::{Replica, Slot, TabletServer};
use crate::error::Error;

impl TabletServer {
    /// The bucket's leader here, if a request may run on it whose sender computed the bucket with
    /// `given` buckets.
    ///
    /// # Errors
    /// [`Error::UnknownBucket`], then [`Error::Offline`] or [`Error::NotLeader`], then
    /// [`Error::StaleRouting`].
    pub(crate) fn leader_for(
        &self,
        bucket: TableBucket,
        given: Option<i32>,
    ) -> Result<Arc<Replica>, Error> {
        let replica = self.leader_of(bucket)?;
        let epoch = replica
            .bucket_count_epoch
            .max(self.cache.bucket_count_epoch(bucket.table));
        if !route_fits(given, replica.bucket_count.0, epoch) {
            return Err(Error::StaleRouting {
                bucket,
                given,
                actual: replica.bucket_count,
            });
        }
        Ok(replica)
    }

    /// The bucket's leader here, for a request that was routed before.
    ///
    /// # Errors
    /// [`Error::UnknownBucket`], [`Error::Offline`], [`Error::NotLeader`].
    pub(super) fn leader_of(&self, bucket: TableBucket) -> Result<Arc<Replica>, Error> {
        let server = self.parts.id;
        match self.replicas.read().get(&bucket) {
            Some(Slot::Leader(replica)) => Ok(Arc::clone(replica)),
            Some(slot) => {
                let Some(offline) = slot.offline() else {
                    return Err(Error::NotLeader { bucket, server });
                };
                Err(Error::Offline {
                    bucket,
                    code: offline.code,
                    reason: offline.reason.clone(),
                })
            }
            None if self.cache.knows(bucket) => Err(Error::NotLeader { bucket, server }),
            None => Err(Error::UnknownBucket { bucket }),
        }
    }
}

/// Whether a bucket id computed with `given` buckets means the same here. Without a count only as
/// long as the table's count never changed; 0 and below count as not given, as the reference says.
fn route_fits(given: Option<i32>, actual: i32, epoch: i64) -> bool {
    match given.filter(|count| *count > 0) {
        Some(count) => count == actual,
        None => epoch == 0,
    }
}

#[cfg(test)]
mod tests {
    use super::route_fits;

    #[test]
    fn a_count_must_be_right_and_may_be_left_out_only_before_the_first_change() {
        assert!(route_fits(Some(4), 4, 0));
        assert!(route_fits(Some(4), 4, 9));
        assert!(!route_fits(Some(8), 4, 0));
        assert!(route_fits(None, 4, 0));
        assert!(!route_fits(None, 4, 1));
        assert!(route_fits(Some(0), 4, 0));
        assert!(!route_fits(Some(0), 4, 1));
    }
}
