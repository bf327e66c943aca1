use proptest::prelude::*;

use super::*;

fn view(count: i32, epoch: i64, partitions: Option<Vec<(i64, Option<i32>)>>) -> TableView {
    TableView {
        id: TableId(7),
        path: TablePath::new("d", "t"),
        bucket_count: TotalBuckets(count),
        bucket_layout_epoch: epoch,
        is_keyed: false,
        partitions: partitions.map(|list| {
            list.into_iter()
                .map(|(id, count)| PartitionView {
                    id: PartitionId(id),
                    name: format!("p{id}"),
                    bucket_count: count.map(TotalBuckets),
                })
                .collect()
        }),
    }
}

fn bucket(partition: Option<i64>, bucket: i32) -> TableBucket {
    TableBucket {
        table: TableId(7),
        partition: partition.map(PartitionId),
        bucket: BucketId(bucket),
    }
}

fn full(table: &TableView, latest: i64) -> Offsets {
    let mut offsets = Offsets::default();
    for group in bucket_groups(table).unwrap() {
        for bucket in group.buckets(table.id) {
            offsets.latest.insert(bucket, LogOffset(latest));
            offsets.earliest.insert(bucket, LogOffset(0));
        }
    }
    offsets
}

#[test]
fn a_partition_with_three_buckets_under_a_table_of_four_gives_three_splits_stamped_three() {
    let table = view(4, 1, Some(vec![(31, Some(3))]));
    let splits = enumerate(&table, &full(&table, 10)).unwrap();
    let buckets: Vec<i32> = splits.iter().map(|s| s.bucket.bucket.0).collect();
    assert_eq!(buckets, [0, 1, 2]);
    assert!(splits.iter().all(|s| s.total_buckets == TotalBuckets(3)));
}

#[test]
fn a_partition_without_count_fails_loudly_once_the_count_was_changed() {
    let table = view(4, 1, Some(vec![(31, Some(4)), (32, None)]));
    let error = enumerate(&table, &Offsets::default()).unwrap_err();
    assert!(
        matches!(&error, Error::MissingBucketCount { partition, epoch: 1, .. } if partition == "p32")
    );
    assert!(!error.is_retriable());
    assert!(error.to_string().contains("p32"), "{error}");
}

#[test]
fn a_partition_without_count_takes_the_tables_count_at_epoch_zero() {
    let table = view(4, 0, Some(vec![(31, None)]));
    assert_eq!(enumerate(&table, &full(&table, 1)).unwrap().len(), 4);
}

#[test]
fn lake_offsets_beyond_the_partitions_count_are_an_error_that_names_them() {
    let table = view(4, 1, Some(vec![(31, Some(2))]));
    let mut offsets = full(&table, 10);
    offsets.lake.insert(bucket(Some(31), 1), LogOffset(5));
    offsets.lake.insert(bucket(Some(31), 2), LogOffset(5));
    offsets.lake.insert(bucket(Some(31), 3), LogOffset(5));
    let error = enumerate(&table, &offsets).unwrap_err();
    let Error::StrayBuckets {
        buckets,
        count,
        partition,
        ..
    } = error
    else {
        panic!("{error}")
    };
    assert_eq!(buckets, [bucket(Some(31), 2), bucket(Some(31), 3)]);
    assert_eq!(
        (count, partition.as_deref()),
        (TotalBuckets(2), Some("p31"))
    );
}

#[test]
fn lake_offsets_of_a_dropped_partition_are_passed_over() {
    let table = view(1, 0, Some(vec![(31, None)]));
    let mut offsets = full(&table, 10);
    offsets.lake.insert(bucket(Some(30), 9), LogOffset(5));
    assert_eq!(enumerate(&table, &offsets).unwrap().len(), 1);
}

#[test]
fn lake_offsets_of_another_table_are_an_error() {
    let table = view(1, 0, None);
    let mut offsets = full(&table, 10);
    offsets.lake.insert(
        TableBucket {
            table: TableId(6),
            ..bucket(None, 0)
        },
        LogOffset(5),
    );
    assert!(matches!(
        enumerate(&table, &offsets),
        Err(Error::StrayBuckets { .. })
    ));
}

#[test]
fn a_bucket_without_latest_offset_is_an_error_unless_it_is_known_to_be_unavailable() {
    let table = view(2, 0, None);
    let mut offsets = full(&table, 10);
    offsets.latest.remove(&bucket(None, 1));
    assert!(matches!(
        enumerate(&table, &offsets),
        Err(Error::MissingOffset { .. })
    ));
    offsets.unavailable.insert(bucket(None, 1));
    assert_eq!(enumerate(&table, &offsets).unwrap().len(), 1);
}

proptest! {
    #[test]
    fn every_offset_between_lake_and_latest_is_in_exactly_one_split(
        counts in proptest::collection::vec(proptest::option::of(1..6_i32), 1..6),
        table_count in 1..6_i32,
        seed in proptest::collection::vec((0..50_i64, proptest::option::of(-1..60_i64), 0..20_i64), 36),
    ) {
        let partitions = counts.iter().enumerate().map(|(i, c)| (i64::try_from(i).unwrap(), *c));
        let table = view(table_count, 0, Some(partitions.collect()));
        let mut offsets = Offsets::default();
        let mut expected = Vec::new();
        let mut seed = seed.into_iter().cycle();
        for (id, count) in counts.iter().enumerate() {
            let total = count.unwrap_or(table_count);
            for b in 0..total {
                let key = bucket(Some(i64::try_from(id).unwrap()), b);
                let (latest, lake, earliest) = seed.next().unwrap();
                offsets.latest.insert(key, LogOffset(latest));
                offsets.earliest.insert(key, LogOffset(earliest));
                if let Some(lake) = lake {
                    offsets.lake.insert(key, LogOffset(lake));
                }
                let start = lake.filter(|l| *l >= 0).unwrap_or(earliest);
                if start < latest {
                    expected.push((key, LogOffset(start), LogOffset(latest), TotalBuckets(total)));
                }
            }
        }
        let splits = enumerate(&table, &offsets).unwrap();
        let found: Vec<_> =
            splits.iter().map(|s| (s.bucket, s.start, s.stop, s.total_buckets)).collect();
        prop_assert_eq!(found, expected);
    }
}
