//! The chain of ranges: per bucket, each snapshot goes on where the one before ended, and the last
//! ends where the cluster says.

use std::collections::{BTreeMap, BTreeSet};

use weir_protocol::ids::{LogOffset, TableBucket};

use super::{Finding, LakeBucket, Step, table_bucket};

/// What the chain says.
#[derive(Debug, Default)]
pub(super) struct Chain {
    /// What is wrong.
    pub findings: Vec<Finding>,
    /// Snapshots and buckets whose rows are known to be wrong: comparing them would only say so again.
    pub unchained: BTreeSet<(i64, LakeBucket)>,
}

/// Checks the ranges of all steps against each other, against the rows of their files, and against
/// the registered `ends`.
/// `names` maps the buckets of ranges to those of the lake; the table id of `ends` does not matter.
pub(super) fn check(
    names: &BTreeMap<TableBucket, LakeBucket>,
    steps: &[Step],
    ends: &BTreeMap<TableBucket, LogOffset>,
) -> Chain {
    let mut chain = Chain::default();
    let mut reached = BTreeMap::<TableBucket, (LogOffset, i64)>::new();
    for step in steps {
        let mut rows = BTreeMap::<LakeBucket, i64>::new();
        for range in &step.ranges {
            let bucket = table_bucket(range);
            let Some(name) = names.get(&bucket) else {
                continue;
            };
            *rows.entry(name.clone()).or_default() += range.rows;
            if step.is_replay {
                continue;
            }
            if let Some((end, before)) = reached.insert(bucket, (range.end, step.snapshot))
                && end != range.start
            {
                let kind = if end < range.start {
                    "a gap"
                } else {
                    "an overlap"
                };
                let reason = format!(
                    "offsets begin at {}, those of snapshot {before} end at {end}: {kind}",
                    range.start
                );
                chain.add(name, step.snapshot, reason);
            }
        }
        for name in step.files.keys() {
            rows.entry(name.clone()).or_default();
        }
        for (name, expected) in rows {
            let files = step.files.get(&name).map(Vec::as_slice).unwrap_or_default();
            let found: i64 = files.iter().map(|file| file.row_count).sum();
            if found != expected {
                let reason = format!("its files hold {found} rows, its ranges {expected}");
                chain.unchained.insert((step.snapshot, name.clone()));
                chain.add(&name, step.snapshot, reason);
            }
        }
    }
    for (bucket, (end, snapshot)) in &reached {
        let registered = ends.iter().find(|(other, _)| {
            other.partition == bucket.partition && other.bucket == bucket.bucket
        });
        let Some(name) = names.get(bucket) else {
            continue;
        };
        // The cluster forgets the buckets of dropped partitions.
        if let Some((_, registered)) = registered
            && registered != end
        {
            let reason = format!("offsets end at {end}, the cluster registered {registered}");
            chain.add(name, *snapshot, reason);
        }
    }
    chain
}

impl Chain {
    fn add(&mut self, bucket: &LakeBucket, snapshot: i64, reason: String) {
        let (bucket, snapshot) = (Some(bucket.clone()), Some(snapshot));
        self.findings.push(Finding {
            bucket,
            snapshot,
            reason,
        });
    }
}

/// A lake that ends before the registered snapshot has lost it.
pub(super) fn lost(registered: i64, latest: Option<i64>) -> Option<Finding> {
    let newest = match latest {
        Some(latest) if latest >= registered => return None,
        Some(latest) => format!("ends at {latest}"),
        None => "has none".to_owned(),
    };
    Some(Finding {
        bucket: None,
        snapshot: Some(registered),
        reason: format!("the cluster registered it, the lake {newest}"),
    })
}

#[cfg(test)]
mod tests {
    use weir_lake_format::DataFileMeta;
    use weir_protocol::ids::{BucketId, TableId};

    use super::*;
    use crate::ranges::BucketRange;

    fn bucket(number: i32) -> TableBucket {
        TableBucket {
            table: TableId(0),
            partition: None,
            bucket: BucketId(number),
        }
    }

    fn name(number: i32) -> LakeBucket {
        LakeBucket {
            partition: None,
            bucket: number,
        }
    }

    fn file(rows: i64) -> DataFileMeta {
        DataFileMeta::append("data-1.parquet", 1, rows, 0)
    }

    fn step(snapshot: i64, ranges: &[(i32, i64, i64)]) -> Step {
        let mut files = BTreeMap::new();
        let ranges = ranges
            .iter()
            .map(|(number, start, end)| {
                files.insert(name(*number), vec![file(end - start)]);
                BucketRange {
                    partition_id: None,
                    partition: None,
                    bucket: BucketId(*number),
                    start: LogOffset(*start),
                    end: LogOffset(*end),
                    rows: end - start,
                    apart: crate::ranges::Apart::default(),
                }
            })
            .collect();
        Step {
            snapshot,
            is_replay: false,
            ranges,
            files,
        }
    }

    fn findings(steps: &[Step], ends: &[(i32, i64)]) -> Vec<String> {
        let names = (0..4)
            .map(|number| (bucket(number), name(number)))
            .collect();
        let ends = ends
            .iter()
            .map(|(number, end)| (bucket(*number), LogOffset(*end)))
            .collect();
        check(&names, steps, &ends)
            .findings
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn ranges_that_chain_give_no_finding() {
        let steps = [step(1, &[(0, 0, 5), (1, 0, 2)]), step(3, &[(0, 5, 9)])];
        assert_eq!(findings(&steps, &[(0, 9), (1, 2)]), [""; 0]);
    }

    #[test]
    fn a_shortened_range_is_a_gap_in_its_bucket_and_rows_too_many() {
        let mut first = step(1, &[(0, 0, 5)]);
        first.ranges[0].end = LogOffset(4);
        first.ranges[0].rows = 4;
        let found = findings(&[first, step(2, &[(0, 5, 9)])], &[(0, 9)]);
        assert_eq!(
            found,
            [
                "bucket 0: snapshot 1: its files hold 5 rows, its ranges 4",
                "bucket 0: snapshot 2: offsets begin at 5, those of snapshot 1 end at 4: a gap",
            ]
        );
    }

    #[test]
    fn a_shortened_last_range_differs_from_what_is_registered() {
        let found = findings(&[step(1, &[(2, 0, 5)])], &[(2, 6)]);
        assert_eq!(
            found,
            ["bucket 2: snapshot 1: offsets end at 5, the cluster registered 6"]
        );
    }

    #[test]
    fn an_overlap_and_a_missing_file_are_found() {
        let mut second = step(2, &[(0, 3, 9)]);
        second.files.clear();
        let found = findings(&[step(1, &[(0, 0, 5)]), second], &[(0, 9)]);
        assert_eq!(
            found,
            [
                "bucket 0: snapshot 2: offsets begin at 3, those of snapshot 1 end at 5: an overlap",
                "bucket 0: snapshot 2: its files hold 0 rows, its ranges 6",
            ]
        );
    }
}
