//! Rows that went another way: each diverted row stands in the table of bad records or was put back,
//! and once; what a person let go is told.

use std::collections::{BTreeMap, BTreeSet};

use weir_protocol::ids::{LogOffset, TableBucket, TableId};

use super::{Finding, LakeBucket, Report, Step, Stretch};
use crate::bad_records::replay::all_records;
use crate::error::Result;
use crate::lake_table::Place;
use crate::ranges::{self, BucketRange, Offsets};

/// Offsets of one bucket that a finding names.
const NAMED: usize = 3;

type ByBucket = BTreeMap<(TableBucket, LakeBucket), Vec<Offsets>>;

/// Compares what snapshots say they diverted and put back with the table of bad records.
pub(super) async fn check(
    place: &Place,
    table: TableId,
    steps: &[Step],
    report: &mut Report,
) -> Result<()> {
    let (mut diverted, mut replayed) = (ByBucket::new(), ByBucket::new());
    for step in steps {
        for range in &step.ranges {
            let name = named(range);
            for lost in &range.apart.lost {
                report.let_go.push(Stretch {
                    bucket: name.clone(),
                    from: lost.start.0,
                    to: lost.end.0,
                });
            }
            let key = (super::table_bucket(range), name);
            if step.is_replay {
                report.replayed_rows += range.rows;
                let offsets = replayed.entry(key).or_default();
                offsets.push(range.start..range.end);
            } else if !range.apart.diverted.is_empty() {
                report.diverted_rows += ranges::count(&range.apart.diverted);
                let offsets = diverted.entry(key).or_default();
                offsets.extend(range.apart.diverted.iter().cloned());
            }
        }
    }
    for range in std::mem::take(&mut report.later_replays) {
        let key = (super::table_bucket(&range), named(&range));
        replayed
            .entry(key)
            .or_default()
            .push(range.start..range.end);
    }
    report.let_go.sort_unstable();
    report.let_go.dedup();
    if diverted.is_empty() && replayed.is_empty() {
        return Ok(());
    }
    let mut kept = BTreeMap::<(TableBucket, LogOffset), usize>::new();
    for record in all_records(place, table).await? {
        let bucket = TableBucket {
            table: TableId(0),
            ..record.bucket
        };
        *kept.entry((bucket, record.offset)).or_default() += 1;
    }
    for ((bucket, name), offsets) in &diverted {
        let back = replayed.get(&(*bucket, name.clone()));
        let is_back = |offset| back.into_iter().flatten().any(|o| o.contains(&offset));
        let mut wrong = BTreeMap::<&str, BTreeSet<LogOffset>>::new();
        for offset in offsets
            .iter()
            .flat_map(|o| o.start.0..o.end.0)
            .map(LogOffset)
        {
            let count = kept.get(&(*bucket, offset)).copied().unwrap_or(0);
            let reason = match (count, is_back(offset)) {
                (0, false) => "were diverted and are in no table of bad records, nor put back",
                (0, true) | (1, false) => continue,
                (_, true) => "were put back and are bad records still: run `weir replay` again",
                (_, false) => "are bad records more than once",
            };
            wrong.entry(reason).or_default().insert(offset);
        }
        report
            .findings
            .extend(wrong.into_iter().map(|(reason, offsets)| Finding {
                bucket: Some(name.clone()),
                snapshot: None,
                reason: format!("rows at offsets {} {reason}", listed(&offsets)),
            }));
    }
    twice(&replayed, report);
    Ok(())
}

/// A row that two replays put back is in the lake twice.
fn twice(replayed: &ByBucket, report: &mut Report) {
    for ((_, name), offsets) in replayed {
        let mut seen = BTreeSet::new();
        let all = offsets
            .iter()
            .flat_map(|o| o.start.0..o.end.0)
            .map(LogOffset);
        let twice: BTreeSet<_> = all.filter(|offset| !seen.insert(*offset)).collect();
        if !twice.is_empty() {
            report.findings.push(Finding {
                bucket: Some(name.clone()),
                snapshot: None,
                reason: format!("rows at offsets {} were put back twice", listed(&twice)),
            });
        }
    }
}

fn named(range: &BucketRange) -> LakeBucket {
    LakeBucket {
        partition: range.partition.clone(),
        bucket: range.bucket.0,
    }
}

fn listed(offsets: &BTreeSet<LogOffset>) -> String {
    let mut names: Vec<String> = offsets
        .iter()
        .take(NAMED)
        .map(LogOffset::to_string)
        .collect();
    if offsets.len() > NAMED {
        names.push(format!("{} more", offsets.len() - NAMED));
    }
    names.join(", ")
}
