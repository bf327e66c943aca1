//! Rows of the lake and rows of the log as multisets: equal sums of the hashes of their canonical
//! texts. Compared are the offsets that the log still holds.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hasher as _};

use arrow::array::RecordBatch;
use futures::TryStreamExt as _;
use weir_lake_format::{DataFileMeta, Partition, Split as LakeSplit, canonical_json};
use weir_protocol::ids::{LogOffset, TableBucket};

use super::logs::{Damaged, LogExtent, LogRead, Logs, Wanted, unreadable};
use super::{Finding, Gone, LakeBucket, Step, lake_bucket};
use crate::error::{Result, sentence};
use crate::lake_table::LakeTable;
use crate::ranges::{BucketRange, Offsets};

/// Files that a finding names.
const FILES_NAMED: usize = 3;

/// A multiset of rows: their number, and the sum of their 128-bit hashes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Multiset {
    rows: i64,
    sum: u128,
}

impl Multiset {
    fn add(&mut self, text: &str) {
        self.rows += 1;
        self.sum = self.sum.wrapping_add(text_hash(text));
    }

    fn add_all(&mut self, other: Self) {
        self.rows += other.rows;
        self.sum = self.sum.wrapping_add(other.sum);
    }

    /// Adds rows in the lake's columns.
    pub(super) fn add_rows(&mut self, batch: &RecordBatch, lake: &LakeTable) -> Result<()> {
        let lines = canonical_json::rows(batch, &lake.schema.fields);
        for line in lines.map_err(|error| lake.error(error))? {
            self.add(&line);
        }
        Ok(())
    }
}

/// 128 bits by which canonical texts are told apart.
pub(super) fn text_hash(text: &str) -> u128 {
    let half = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        hasher.write_u8(salt);
        hasher.write(text.as_bytes());
        u128::from(hasher.finish())
    };
    (half(0) << 64) | half(1)
}

/// What a comparison needs.
pub(super) struct Comparison<'a> {
    pub logs: Logs<'a>,
    pub extents: &'a BTreeMap<TableBucket, LogExtent>,
    pub partitions: &'a BTreeMap<Vec<u8>, (String, Partition)>,
}

/// What was compared, and what could not be.
#[derive(Debug, Default)]
pub(super) struct Compared {
    pub rows: i64,
    pub gone: BTreeMap<LakeBucket, Gone>,
}

/// What the log of a bucket gave for the ranges of all steps.
#[derive(Debug)]
struct BucketRead {
    /// Snapshot and range; as the sums.
    ranges: Vec<(i64, Wanted)>,
    read: LogRead,
}

/// Which rows of a lake bucket's new files are compared.
#[derive(Debug)]
enum Keep {
    All,
    /// All but those of these offsets; the first row has offset `first`.
    But {
        first: LogOffset,
        missing: Vec<(LogOffset, LogOffset)>,
    },
    /// None: which rows belong to which offsets is not known.
    Nothing,
}

/// What the logs have of a step's part of a lake bucket.
#[derive(Debug, Default)]
struct Gathered<'p> {
    log: Multiset,
    /// Offsets that they lack.
    missing: Vec<(LogOffset, LogOffset)>,
    /// How many offsets of each range they hold.
    beside: Vec<(&'p BucketRange, i64)>,
    is_damaged: bool,
}

/// A step's part of a lake bucket.
struct Part<'a> {
    step: &'a Step,
    name: LakeBucket,
    ranges: Vec<BucketRange>,
}

impl Comparison<'_> {
    /// Compares all ranges as far as the log still holds them, but for those that are known to be
    /// wrong.
    pub(super) async fn run(
        &self,
        steps: &[Step],
        skipped: &BTreeSet<(i64, LakeBucket)>,
        findings: &mut Vec<Finding>,
    ) -> Result<Compared> {
        let reads = self.read_logs(steps, findings).await?;
        let mut compared = Compared::default();
        for step in steps {
            for (name, ranges) in by_lake_bucket(self.logs.lake, step) {
                if skipped.contains(&(step.snapshot, name.clone())) {
                    continue;
                }
                let part = Part { step, name, ranges };
                findings.extend(self.compare(&part, &reads, &mut compared).await?);
            }
        }
        Ok(compared)
    }

    /// Reads the logs once, each from its first wanted offset to its last. A damaged log is a
    /// finding and has no entry.
    async fn read_logs(
        &self,
        steps: &[Step],
        findings: &mut Vec<Finding>,
    ) -> Result<BTreeMap<TableBucket, BucketRead>> {
        let mut wanted = BTreeMap::<TableBucket, Vec<(i64, Wanted)>>::new();
        for step in steps {
            for range in step.ranges.iter().filter(|range| range.start < range.end) {
                let bucket = self.log_bucket(range);
                let ranges = wanted.entry(bucket).or_default();
                let (start, end) = (range.start, range.end);
                let apart = range.apart.all();
                ranges.push((step.snapshot, Wanted { start, end, apart }));
            }
        }
        let mut reads = BTreeMap::new();
        for (bucket, ranges) in wanted {
            let Some(extent) = self.extents.get(&bucket) else {
                continue;
            };
            let offsets: Vec<_> = ranges.iter().map(|(_, wanted)| wanted.clone()).collect();
            match self.logs.read(bucket, extent, &offsets).await? {
                Ok(read) => drop(reads.insert(bucket, BucketRead { ranges, read })),
                Err(Damaged(said)) => {
                    findings.push(unreadable(extent.name(bucket), bucket, &said));
                }
            }
        }
        Ok(reads)
    }

    fn log_bucket(&self, range: &BucketRange) -> TableBucket {
        TableBucket {
            table: self.logs.info.id,
            partition: range.partition_id,
            bucket: range.bucket,
        }
    }

    async fn compare(
        &self,
        part: &Part<'_>,
        reads: &BTreeMap<TableBucket, BucketRead>,
        compared: &mut Compared,
    ) -> Result<Option<Finding>> {
        let Gathered {
            log,
            missing,
            beside,
            is_damaged,
        } = self.gather(part, reads, compared);
        let files = part.step.files.get(&part.name);
        let files = files.cloned().unwrap_or_default();
        let keep = match &part.ranges[..] {
            _ if is_damaged => Keep::Nothing,
            _ if missing.is_empty() => Keep::All,
            [range] if is_in_order(range, &files) => Keep::But {
                first: range.start,
                missing,
            },
            _ => Keep::Nothing,
        };
        let comparable = !matches!(keep, Keep::Nothing);
        if !comparable && !is_damaged {
            for (range, offsets) in beside.into_iter().filter(|(_, offsets)| *offsets > 0) {
                compared.gone_of(range).beside += offsets;
            }
        }
        let names = names(&files);
        let finding = |reason| Finding {
            bucket: Some(part.name.clone()),
            snapshot: Some(part.step.snapshot),
            reason,
        };
        let lake = match self.lake_rows(&part.name, files, keep).await {
            Ok(lake) => lake,
            Err(error) if !error.is_retriable() => return Ok(Some(finding(sentence(&error)))),
            Err(error) => return Err(error),
        };
        if !comparable {
            return Ok(None);
        }
        compared.rows += log.rows;
        let reason = if lake == log {
            return Ok(None);
        } else if lake.rows == log.rows {
            format!("its {} rows are not those of the log ({names})", log.rows)
        } else {
            let (lake, log) = (lake.rows, log.rows);
            format!("it holds {lake} rows, the log {log} ({names})")
        };
        Ok(Some(finding(reason)))
    }

    /// What the logs have of a part.
    fn gather<'p>(
        &self,
        part: &'p Part<'_>,
        reads: &BTreeMap<TableBucket, BucketRead>,
        compared: &mut Compared,
    ) -> Gathered<'p> {
        let mut all = Gathered::default();
        for range in part.ranges.iter().filter(|range| range.start < range.end) {
            let bucket = self.log_bucket(range);
            let lacking = match reads.get(&bucket) {
                Some(read) => {
                    all.log.add_all(read.sum(part.step.snapshot, range));
                    read.missing(range)
                }
                // A dropped partition has no log any more.
                None if !self.extents.contains_key(&bucket) && !self.is_listed(range) => {
                    without(vec![(range.start, range.end)], &range.apart.all())
                }
                None => {
                    all.is_damaged = true;
                    continue;
                }
            };
            let offsets: i64 = lacking.iter().map(|(from, to)| to.0 - from.0).sum();
            if offsets > 0 {
                compared.gone_of(range).offsets += offsets;
            }
            let held = range.end.0 - range.start.0 - range.apart.count() - offsets;
            all.beside.push((range, held));
            all.missing.extend(lacking);
        }
        all
    }

    /// Whether the range's partition has a log, damaged or not.
    fn is_listed(&self, range: &BucketRange) -> bool {
        let partition = range.partition_id;
        partition.is_none() || self.extents.keys().any(|b| b.partition == partition)
    }

    /// The rows of files; all are read, also those that are not kept.
    async fn lake_rows(
        &self,
        name: &LakeBucket,
        mut files: Vec<DataFileMeta>,
        keep: Keep,
    ) -> Result<Multiset> {
        let mut sum = Multiset::default();
        if files.is_empty() {
            return Ok(sum);
        }
        files.sort_by_key(|file| file.min_sequence_number);
        let named = self
            .partitions
            .values()
            .find(|(known, _)| Some(known) == name.partition.as_ref());
        let partition =
            named.map_or_else(Partition::unpartitioned, |(_, partition)| partition.clone());
        let split = LakeSplit {
            partition,
            bucket: name.bucket,
            total_buckets: 0,
            files,
            deletions: BTreeMap::new(),
        };
        let lake = self.logs.lake;
        let failed = |error| lake.error(error);
        let mut batches = lake
            .table
            .read_split_as(&split, &lake.schema, None)
            .await
            .map_err(failed)?;
        let mut next = 0_i64;
        while let Some(batch) = batches.try_next().await.map_err(failed)? {
            let count = i64::try_from(batch.num_rows()).unwrap_or(i64::MAX);
            match &keep {
                Keep::All => sum.add_rows(&batch, lake)?,
                Keep::Nothing => {}
                Keep::But { first, missing } => {
                    let from = first.0 + next;
                    for (start, end) in held(from, from + count, missing) {
                        let rows = batch.slice(index(start - from), index(end - start));
                        sum.add_rows(&rows, lake)?;
                    }
                }
            }
            next += count;
        }
        Ok(sum)
    }
}

impl BucketRead {
    fn sum(&self, snapshot: i64, range: &BucketRange) -> Multiset {
        let mut sums = self.ranges.iter().zip(&self.read.sums);
        let found = sums.find(|((of, one), _)| {
            *of == snapshot && (one.start, one.end) == (range.start, range.end)
        });
        found.map(|(_, sum)| *sum).unwrap_or_default()
    }

    /// The offsets of a range that the log lacks, of those whose rows are in the range's files.
    fn missing(&self, range: &BucketRange) -> Vec<(LogOffset, LogOffset)> {
        let missing = self.read.missing.iter();
        let within = missing
            .map(|(from, to)| ((*from).max(range.start), (*to).min(range.end)))
            .filter(|(from, to)| from < to);
        without(within.collect(), &range.apart.all())
    }
}

/// Stretches less the offsets apart, which ascend.
fn without(
    stretches: Vec<(LogOffset, LogOffset)>,
    apart: &[Offsets],
) -> Vec<(LogOffset, LogOffset)> {
    let apart: Vec<_> = apart.iter().map(|o| (o.start, o.end)).collect();
    let rest = stretches
        .into_iter()
        .flat_map(|(from, to)| held(from.0, to.0, &apart));
    rest.map(|(from, to)| (LogOffset(from), LogOffset(to)))
        .collect()
}

impl Compared {
    fn gone_of(&mut self, range: &BucketRange) -> &mut Gone {
        let bucket = LakeBucket {
            partition: range.partition.clone(),
            bucket: range.bucket.0,
        };
        self.gone.entry(bucket).or_default()
    }
}

/// Whether the rows of the files are those of the range's offsets, one by one in order.
fn is_in_order(range: &BucketRange, files: &[DataFileMeta]) -> bool {
    let mut firsts: Vec<_> = files
        .iter()
        .map(|file| (file.min_sequence_number, file.row_count))
        .collect();
    firsts.sort_unstable();
    let mut next = range.start.0;
    for (first, rows) in firsts {
        if first != next {
            return false;
        }
        next += rows;
    }
    next == range.end.0
}

/// What is left of `from..to` without the missing offsets, which ascend.
fn held(from: i64, to: i64, missing: &[(LogOffset, LogOffset)]) -> Vec<(i64, i64)> {
    let mut held = Vec::new();
    let mut next = from;
    for (start, end) in missing {
        let (start, end) = (start.0.clamp(next, to.max(next)), end.0.min(to));
        if next < start {
            held.push((next, start));
        }
        next = next.max(end);
    }
    if next < to {
        held.push((next, to));
    }
    held
}

fn index(offset: i64) -> usize {
    usize::try_from(offset).unwrap_or(0)
}

fn names(files: &[DataFileMeta]) -> String {
    let shown = files.iter().take(FILES_NAMED);
    let mut names: Vec<String> = shown.map(|file| file.file_name.clone()).collect();
    if files.len() > FILES_NAMED {
        names.push(format!("{} more", files.len() - FILES_NAMED));
    }
    names.join(", ")
}

/// The ranges of a step by lake bucket; those of a table without bucket key share bucket 0.
fn by_lake_bucket(lake: &LakeTable, step: &Step) -> BTreeMap<LakeBucket, Vec<BucketRange>> {
    let mut all = BTreeMap::<LakeBucket, Vec<BucketRange>>::new();
    for range in &step.ranges {
        all.entry(lake_bucket(lake, range))
            .or_default()
            .push(range.clone());
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn multiset(lines: &[&str]) -> Multiset {
        let mut sum = Multiset::default();
        lines.iter().for_each(|line| sum.add(line));
        sum
    }

    #[test]
    fn order_does_not_matter_and_every_row_counts() {
        assert_eq!(multiset(&["a", "b", "b"]), multiset(&["b", "a", "b"]));
        assert_ne!(multiset(&["a", "b", "b"]), multiset(&["a", "a", "b"]));
        assert_ne!(multiset(&["a"]), multiset(&["a", "a"]));
    }

    #[test]
    fn what_the_log_lacks_is_cut_out_of_a_batch() {
        let missing = [(0, 3), (5, 6), (9, 20)].map(|(s, e)| (LogOffset(s), LogOffset(e)));
        assert_eq!(held(0, 10, &missing), [(3, 5), (6, 9)]);
        assert_eq!(held(3, 5, &missing), [(3, 5)]);
        assert_eq!(held(10, 12, &missing), [(0, 0); 0]);
        assert_eq!(held(18, 24, &missing), [(20, 24)]);
    }

    #[test]
    fn rows_belong_to_offsets_only_if_files_follow_each_other_without_a_hole() {
        let file = |first, rows| DataFileMeta {
            min_sequence_number: first,
            ..DataFileMeta::append("f", 1, rows, 0)
        };
        let range = BucketRange {
            partition_id: None,
            partition: None,
            bucket: weir_protocol::ids::BucketId(0),
            start: LogOffset(5),
            end: LogOffset(9),
            rows: 4,
            apart: crate::ranges::Apart::default(),
        };
        assert!(is_in_order(&range, &[file(7, 2), file(5, 2)]));
        assert!(
            !is_in_order(&range, &[file(5, 3)]),
            "an empty batch took an offset"
        );
        assert!(!is_in_order(&range, &[file(0, 2), file(2, 2)]));
    }
}
