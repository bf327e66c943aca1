//! Which servers hold the buckets of a table or partition.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use weir_protocol::ids::{BucketId, ServerId, TableId, TotalBuckets};

use super::{Document, Unknown};

/// The assignment of an unpartitioned table or of one partition, version 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Assignment {
    /// The table; only in the assignment of a partition.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub table_id: Option<TableId>,
    /// Replicas of each bucket; the first is the preferred leader.
    #[serde(deserialize_with = "read_buckets")]
    pub buckets: BTreeMap<BucketId, Vec<ServerId>>,
    /// Fields we don't know.
    #[serde(flatten)]
    pub unknown: Unknown,
}

impl Assignment {
    /// Spreads `count` buckets over `servers` in turn, `replication_factor` replicas each, on
    /// servers of their own. Empty replica lists if there are no servers; fewer replicas if there
    /// are fewer servers.
    ///
    /// * `start`: which server takes the first bucket; vary it, or the first server leads
    ///   everything.
    pub fn spread(
        table_id: Option<TableId>,
        count: TotalBuckets,
        replication_factor: usize,
        servers: &[ServerId],
        start: usize,
    ) -> Self {
        let from = |bucket: usize| {
            servers
                .iter()
                .cycle()
                .skip((start + bucket) % servers.len().max(1))
        };
        let replicas = replication_factor.min(servers.len());
        let buckets = (0..count.0).zip(0..).map(|(bucket, position)| {
            (
                BucketId(bucket),
                from(position).take(replicas).copied().collect(),
            )
        });
        Self {
            table_id,
            buckets: buckets.collect(),
            unknown: Unknown::new(),
        }
    }

    /// How many buckets there are: the physical truth behind a missing count.
    pub fn bucket_count(&self) -> TotalBuckets {
        TotalBuckets(i32::try_from(self.buckets.len()).unwrap_or(i32::MAX))
    }
}

impl Document for Assignment {
    const VERSION: i64 = 1;

    fn check(&self) -> Result<(), String> {
        for (bucket, expected) in self.buckets.keys().zip(0..) {
            if bucket.0 != expected {
                return Err(format!(
                    "it names bucket {bucket} where bucket {expected} belongs"
                ));
            }
        }
        Ok(())
    }
}

/// Reads bucket numbers, which are texts in JSON.
fn read_buckets<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<BucketId, Vec<ServerId>>, D::Error> {
    let texts = BTreeMap::<String, Vec<ServerId>>::deserialize(deserializer)?;
    let mut buckets = BTreeMap::new();
    for (text, replicas) in texts {
        let number = text
            .parse()
            .map_err(|_| serde::de::Error::custom(format!("bucket `{text}`")))?;
        if buckets.insert(BucketId(number), replicas).is_some() {
            return Err(serde::de::Error::custom(format!("bucket {number} twice")));
        }
    }
    Ok(buckets)
}
