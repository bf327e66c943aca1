//! What another bucket count makes of a table and its partitions.

use weir_protocol::ids::TotalBuckets;

/// A partition as a change of the bucket count sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// Its own count; `None` in documents of version 1.
    pub own: Option<TotalBuckets>,
    /// How many buckets it was given; read only where it has no count of its own. `None` if that
    /// can't be read now.
    pub assigned: Option<TotalBuckets>,
}

/// What becomes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rescale {
    /// The table has this count already: nothing changes, the epoch neither.
    Unchanged,
    /// The table gets its new count and the next epoch, and partitions without a count get theirs, all
    /// in one transaction.
    Commit {
        /// The table's next epoch.
        epoch: i64,
        /// The counts to fill in, by the partition's place in the list.
        backfill: Vec<(usize, TotalBuckets)>,
    },
    /// This partition has neither: whoever asks must look again.
    Unreadable(usize),
}

/// Decides what the count `next` makes of a table that has `count` at `epoch`.
///
/// No partition keeps leaning on the table's count: those that did get the number of buckets that
/// they have, which is what the table said when they were made.
pub fn rescale(
    (count, epoch): (TotalBuckets, i64),
    next: TotalBuckets,
    partitions: &[Counted],
) -> Rescale {
    if count == next {
        return Rescale::Unchanged;
    }
    let mut backfill = Vec::new();
    for (at, partition) in partitions.iter().enumerate() {
        match (partition.own, partition.assigned) {
            (Some(_), _) => {}
            (None, Some(assigned)) => backfill.push((at, assigned)),
            (None, None) => return Rescale::Unreadable(at),
        }
    }
    Rescale::Commit {
        epoch: epoch + 1,
        backfill,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNTED: Counted = Counted {
        own: Some(TotalBuckets(2)),
        assigned: None,
    };
    const LEGACY: Counted = Counted {
        own: None,
        assigned: Some(TotalBuckets(3)),
    };

    #[test]
    fn the_epoch_rises_by_one_and_counts_are_filled_in() {
        let partitions = [COUNTED, LEGACY, COUNTED];
        let found = rescale((TotalBuckets(2), 4), TotalBuckets(8), &partitions);
        let backfill = vec![(1, TotalBuckets(3))];
        assert_eq!(found, Rescale::Commit { epoch: 5, backfill });
    }

    #[test]
    fn the_same_count_again_changes_nothing() {
        let found = rescale((TotalBuckets(2), 4), TotalBuckets(2), &[LEGACY]);
        assert_eq!(found, Rescale::Unchanged);
    }

    #[test]
    fn a_partition_whose_buckets_cannot_be_counted_stops_it() {
        let unreadable = Counted {
            own: None,
            assigned: None,
        };
        let partitions = [COUNTED, unreadable];
        let found = rescale((TotalBuckets(2), 0), TotalBuckets(1), &partitions);
        assert_eq!(found, Rescale::Unreadable(1));
    }
}
