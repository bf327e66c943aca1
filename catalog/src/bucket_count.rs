//! How many buckets a partition has: its own count, and never a guess.

use weir_protocol::ids::{PartitionId, TableId, TotalBuckets};

use crate::{Error, Result};

/// The bucket count of a partition.
///
/// * `own`: the partition's count, immutable since its creation.
/// * `table_count`: the table's count, which new partitions copy.
/// * `epoch`: how often the table's count was altered.
///
/// As [`TotalBuckets::of_partition`].
///
/// # Errors
/// [`Error::StaleMetadata`] if the count is missing at an epoch above 0.
pub fn resolve(
    (table, partition): (TableId, PartitionId),
    own: Option<TotalBuckets>,
    table_count: TotalBuckets,
    epoch: i64,
) -> Result<TotalBuckets> {
    let known = TotalBuckets::of_partition(own, Some(table_count), epoch);
    known.ok_or_else(|| Error::StaleMetadata {
        what: format!("partition {partition} of table {table}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTITION: (TableId, PartitionId) = (TableId(7), PartitionId(31));

    #[test]
    fn a_partition_with_more_buckets_than_the_table_keeps_its_own_count() {
        let count = resolve(PARTITION, Some(TotalBuckets(8)), TotalBuckets(4), 3).unwrap();
        assert_eq!(count, TotalBuckets(8));
    }

    #[test]
    fn a_missing_count_is_the_tables_only_while_that_was_never_altered() {
        let count = resolve(PARTITION, None, TotalBuckets(4), 0).unwrap();
        assert_eq!(count, TotalBuckets(4));
        let error = resolve(PARTITION, None, TotalBuckets(4), 2).unwrap_err();
        assert!(matches!(error, Error::StaleMetadata { .. }), "{error}");
    }
}
