//! Buckets for rows of tables without bucket key.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::ids::{BucketId, TotalBuckets};
use crate::row::bucket::positive;

/// Where rows go in a table without bucket key. Both start at bucket 0 of each partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// A bucket gets rows until a batch of them is full, then the next one does.
    Sticky,
    /// Each append goes to the next bucket.
    RoundRobin,
}

/// Where the next rows of a partition go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NextBucket {
    /// The partition's name, of a partitioned table.
    pub partition: Option<String>,
    /// The bucket.
    pub bucket: BucketId,
    /// Bytes of rows it got since it was chosen.
    pub filled_bytes: usize,
}

/// Chooses buckets per partition, by nothing but the appends so far.
#[derive(Debug)]
pub(crate) struct Assigner {
    spread: Spread,
    batch_bytes: usize,
    places: BTreeMap<Option<String>, Place>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Place {
    bucket: i32,
    filled_bytes: usize,
}

impl Assigner {
    pub(crate) fn new(spread: Spread, batch_bytes: usize, resume: &[NextBucket]) -> Self {
        let place = |next: &NextBucket| {
            let place = Place {
                bucket: next.bucket.0,
                filled_bytes: next.filled_bytes,
            };
            (next.partition.clone(), place)
        };
        Self {
            spread,
            batch_bytes,
            places: resume.iter().map(place).collect(),
        }
    }

    /// The bucket of the next rows of a partition, which are `bytes` long.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`] for a count below 1.
    pub(crate) fn assign(
        &mut self,
        partition: Option<&str>,
        total: TotalBuckets,
        bytes: usize,
    ) -> Result<BucketId> {
        let total = positive(total)?;
        let place = self.places.entry(partition.map(str::to_owned)).or_default();
        // A partition made anew under the same name may have fewer buckets.
        let bucket = place.bucket.rem_euclid(total);
        place.filled_bytes += bytes;
        if self.spread == Spread::RoundRobin || place.filled_bytes >= self.batch_bytes {
            *place = Place {
                bucket: (bucket + 1).rem_euclid(total),
                filled_bytes: 0,
            };
        } else {
            place.bucket = bucket;
        }
        Ok(BucketId(bucket))
    }

    pub(crate) fn next_buckets(&self) -> Vec<NextBucket> {
        let next = |(partition, place): (&Option<String>, &Place)| NextBucket {
            partition: partition.clone(),
            bucket: BucketId(place.bucket),
            filled_bytes: place.filled_bytes,
        };
        self.places.iter().map(next).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREE: TotalBuckets = TotalBuckets(3);

    #[test]
    fn no_bucket_is_chosen_out_of_none() {
        let mut assigner = Assigner::new(Spread::Sticky, 100, &[]);
        assert!(assigner.assign(None, TotalBuckets(0), 1).is_err());
    }

    #[test]
    fn a_sticky_bucket_is_left_when_a_batch_is_full() {
        let mut assigner = Assigner::new(Spread::Sticky, 100, &[]);
        let mut go = |bytes| assigner.assign(None, THREE, bytes).unwrap().0;
        assert_eq!(
            [go(60), go(60), go(10), go(200), go(1), go(1)],
            [0, 0, 1, 1, 2, 2]
        );
    }

    #[test]
    fn round_robin_takes_the_next_bucket_each_time_and_partitions_count_apart() {
        let mut assigner = Assigner::new(Spread::RoundRobin, 100, &[]);
        let mut go = |partition| assigner.assign(Some(partition), THREE, 1).unwrap().0;
        assert_eq!(
            [go("a"), go("a"), go("b"), go("a"), go("a")],
            [0, 1, 0, 2, 0]
        );
    }

    #[test]
    fn a_resumed_assigner_goes_on_where_the_first_one_was() {
        let sizes = [30, 30, 90, 10, 50, 70, 100, 3, 99];
        let mut whole = Assigner::new(Spread::Sticky, 100, &[]);
        let expected: Vec<_> = sizes
            .iter()
            .map(|b| whole.assign(None, THREE, *b).unwrap())
            .collect();
        for cut in 0..sizes.len() {
            let (before, after) = sizes.split_at(cut);
            let mut first = Assigner::new(Spread::Sticky, 100, &[]);
            let mut found: Vec<_> = before
                .iter()
                .map(|b| first.assign(None, THREE, *b).unwrap())
                .collect();
            let mut second = Assigner::new(Spread::Sticky, 100, &first.next_buckets());
            found.extend(
                after
                    .iter()
                    .map(|b| second.assign(None, THREE, *b).unwrap()),
            );
            assert_eq!(found, expected, "cut at {cut}");
        }
    }
}
