//! The audit of a lake table against the log it came from.
//!
//! From the lake alone: every snapshot of tiering names, per bucket, the offsets it added and the
//! rows they gave. These ranges must
//! chain without gap or overlap up to what the cluster registered, and the rows must be those of
//! the files that the snapshot added.
//! Against the log: for the offsets that the log still holds, the rows of a lake bucket and of its
//! part of the log must be equal as multisets, snapshot by snapshot; offsets that it lost to
//! retention or to a repair are counted, and not compared. Of a table with a primary key the changes
//! of the log, applied in order, must leave the rows of the merged lake. What a running daemon
//! commits meanwhile is left out: the audit ends at the registered snapshot it began with.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use object_store::ObjectStoreExt as _;
use serde::Serialize;
use weir_lake_format::{CommitKind, DataFileMeta, FileKind, Partition, Snapshot};
use weir_protocol::ids::{LogOffset, TableBucket, TableId, TablePath};

use crate::bad_records::replay;
use crate::cluster::{TableInfo, TieringClient};
use crate::committer::{COMMIT_USER, RANGES};
use crate::error::{Error, Result, sentence};
use crate::lake_table::{LakeTable, Warehouse};
use crate::ranges::{self, BucketRange, RangesProperty};

mod apart;
mod chain;
mod gone;
mod keys;
mod logs;
mod rows;

pub use gone::Gone;

use rows::Multiset;

/// A bucket of the lake: the partition's name, if there are partitions, and the bucket in the lake.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct LakeBucket {
    /// The partition's name: its values joined by `$`.
    pub partition: Option<String>,
    /// The bucket's number in the lake; 0 for all buckets of a table without bucket key.
    pub bucket: i32,
}

impl fmt::Display for LakeBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.partition {
            Some(partition) => write!(f, "partition {partition} bucket {}", self.bucket),
            None => write!(f, "bucket {}", self.bucket),
        }
    }
}

/// Something that is not as it must be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Where; absent if it concerns the whole table.
    pub bucket: Option<LakeBucket>,
    /// The snapshot in which it shows, if it is one's.
    pub snapshot: Option<i64>,
    /// What is wrong.
    pub reason: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(bucket) = &self.bucket {
            write!(f, "{bucket}: ")?;
        }
        if let Some(snapshot) = self.snapshot {
            write!(f, "snapshot {snapshot}: ")?;
        }
        f.write_str(&self.reason)
    }
}

/// What an audit saw.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The table.
    pub table: TablePath,
    /// The registered snapshot at which the audit ends; absent if nothing was tiered yet.
    pub snapshot: Option<i64>,
    /// Snapshots looked at.
    pub snapshots: usize,
    /// The first snapshot that is left, if those before it have expired: the ranges that they added
    /// are not audited.
    pub expired_before: Option<i64>,
    /// Buckets of the lake that hold rows of the log.
    pub buckets: usize,
    /// Rows that the ranges account for.
    pub rows: i64,
    /// Rows that were compared with the log, one by one.
    pub compared_rows: i64,
    /// Why none was, if the table's options don't allow it.
    pub not_compared: Option<String>,
    /// Where each bucket's log and its part of the lake end.
    pub ends: Vec<Ends>,
    /// Rows of the log that are not in the lake yet: high watermarks less the lake's ends, and less
    /// offsets that the log has lost.
    pub behind_rows: i64,
    /// Rows that are in the table of bad records in place of the lake table.
    pub diverted_rows: i64,
    /// Rows that were put back from there.
    pub replayed_rows: i64,
    /// Offsets that the log had lost and a person let go, by bucket.
    pub let_go: Vec<Stretch>,
    /// What was put back after the audit's end.
    #[serde(skip)]
    later_replays: Vec<BucketRange>,
    /// Offsets in the lake that the log no longer holds: not comparable.
    pub gone: Vec<Gone>,
    /// What is wrong; empty if all is well.
    pub findings: Vec<Finding>,
}

/// Offsets of one bucket.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Stretch {
    /// The bucket, by its number in the log.
    pub bucket: LakeBucket,
    /// The first of them.
    pub from: i64,
    /// The offset after the last.
    pub to: i64,
}

impl fmt::Display for Stretch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: offsets {}..{}", self.bucket, self.from, self.to)
    }
}

/// How far one bucket is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Ends {
    /// The bucket, by its number in the log.
    pub bucket: LakeBucket,
    /// Offsets below are in the lake.
    pub lake_end: i64,
    /// Offsets below are in the log: the high watermark.
    pub log_end: i64,
    /// Offsets between the two that the log has lost: by retention, or given up by a repair.
    pub lost: Vec<Stretch>,
    /// Why nothing can be said of the rows between the two, if the log can't be read there.
    pub unreadable: Option<String>,
}

impl Ends {
    /// Rows that are not in the lake yet and that the log, as far as it tells, still has.
    fn behind(&self, start: i64) -> i64 {
        let lost: i64 = self.lost.iter().map(|lost| lost.to - lost.from).sum();
        (self.log_end - self.lake_end.max(start) - lost).max(0)
    }
}

/// A snapshot of tiering or of a replay, with the files it added by bucket.
#[derive(Debug)]
struct Step {
    snapshot: i64,
    /// Whether it put bad records back, so that its ranges stand in no chain.
    is_replay: bool,
    ranges: Vec<BucketRange>,
    files: BTreeMap<LakeBucket, Vec<DataFileMeta>>,
}

/// Audits a table.
///
/// # Errors
/// If lake or cluster can't be read; what is wrong with the table is a [`Finding`].
pub async fn audit(
    client: &Arc<dyn TieringClient>,
    warehouse: &Warehouse,
    path: &TablePath,
) -> Result<Report> {
    let info = Arc::new(client.table_info(path).await?);
    let lake = Arc::new(warehouse.table(path, &info.properties).await?);
    let progress = client.lake_progress(path, info.id).await?;
    let mut report = Report {
        table: path.clone(),
        snapshot: progress.snapshot,
        snapshots: 0,
        expired_before: None,
        buckets: 0,
        rows: 0,
        compared_rows: 0,
        not_compared: None,
        ends: Vec::new(),
        behind_rows: 0,
        diverted_rows: 0,
        replayed_rows: 0,
        let_go: Vec::new(),
        later_replays: Vec::new(),
        gone: Vec::new(),
        findings: Vec::new(),
    };
    let logs = logs::Logs {
        client,
        info: &info,
        lake: &lake,
    };
    let extents = logs.extents(&mut report.findings).await?;
    report.compare_ends(&logs, &extents, &progress.ends).await?;
    let Some(last) = progress.snapshot else {
        return Ok(report);
    };
    let latest = lake.table.latest_snapshot_id().await;
    let latest = latest.map_err(|error| lake.error(error))?;
    report.findings.extend(chain::lost(last, latest));
    let bad = warehouse.bad_records(path, &info.properties)?;
    let mut auditor = Auditor {
        info: &info,
        lake: &lake,
        partitions: BTreeMap::new(),
        live: BTreeSet::new(),
    };
    let steps = auditor.steps(last, &mut report).await?;
    let chain = chain::check(&lake_buckets(&lake, &steps), &steps, &progress.ends);
    report.findings.extend(chain.findings);
    report.rows = steps
        .iter()
        .flat_map(|step| &step.ranges)
        .map(|range| range.rows)
        .sum();
    apart::check(&bad, info.id, &steps, &mut report).await?;
    report.buckets = steps
        .iter()
        .flat_map(|step| step.files.keys())
        .collect::<BTreeSet<_>>()
        .len();
    if lake.schema.is_primary_key_table() {
        report.not_compared = keys::incomparable(&lake);
        if report.not_compared.is_none() {
            let at = (last, &progress.ends);
            let (partitions, findings) = (&auditor.partitions, &mut report.findings);
            let compared = keys::compare(&logs, &extents, at, partitions, findings).await?;
            report.compared_rows = compared.rows;
            report.gone = compared.gone.into_values().collect();
        }
        return Ok(report);
    }
    let comparison = rows::Comparison {
        logs,
        extents: &extents,
        partitions: &auditor.partitions,
    };
    let compared = comparison
        .run(&steps, &chain.unchained, &mut report.findings)
        .await?;
    report.compared_rows = compared.rows;
    let gone = compared.gone.into_iter();
    report.gone = gone.map(|(bucket, gone)| Gone { bucket, ..gone }).collect();
    Ok(report)
}

impl Report {
    /// How far each bucket is, and what its log has lost of the rest; a lake that is ahead of its log
    /// is a finding.
    async fn compare_ends(
        &mut self,
        logs: &logs::Logs<'_>,
        extents: &BTreeMap<TableBucket, logs::LogExtent>,
        lake: &BTreeMap<TableBucket, LogOffset>,
    ) -> Result<()> {
        for (bucket, extent) in extents {
            let name = extent.name(*bucket);
            let tiered = lake.get(bucket).filter(|end| end.0 >= 0);
            let lake_end = tiered.map_or(0, |end| end.0);
            let (start, log_end) = (extent.start.0, extent.end.0);
            // What was gone before the table was tiered for the first time is nobody's loss.
            let from = tiered.copied().unwrap_or(extent.start);
            let (lost, unreadable) = if from < extent.end {
                logs.walk(*bucket, extent, from).await?
            } else {
                (Vec::new(), None)
            };
            let stretch = |(from, to): (LogOffset, LogOffset)| Stretch {
                bucket: name.clone(),
                from: from.0,
                to: to.0,
            };
            let ends = Ends {
                bucket: name.clone(),
                lake_end,
                log_end,
                lost: lost.into_iter().map(stretch).collect(),
                unreadable,
            };
            self.behind_rows += ends.behind(if tiered.is_some() { 0 } else { start });
            if lake_end > log_end {
                let reason = format!("the lake ends at {lake_end}, the log already at {log_end}");
                self.findings.push(Finding {
                    bucket: Some(name.clone()),
                    snapshot: None,
                    reason,
                });
            }
            self.ends.push(ends);
        }
        Ok(())
    }
}

/// The lake bucket of every range.
fn lake_buckets(lake: &LakeTable, steps: &[Step]) -> BTreeMap<TableBucket, LakeBucket> {
    let ranges = steps.iter().flat_map(|step| &step.ranges);
    ranges
        .map(|range| (table_bucket(range), lake_bucket(lake, range)))
        .collect()
}

/// The bucket of a range, with a table id of 0: ranges do not name the table.
fn table_bucket(range: &BucketRange) -> TableBucket {
    TableBucket {
        table: TableId(0),
        partition: range.partition_id,
        bucket: range.bucket,
    }
}

fn lake_bucket(lake: &LakeTable, range: &BucketRange) -> LakeBucket {
    let bucket = if lake.is_bucket_unaware() {
        0
    } else {
        range.bucket.0
    };
    LakeBucket {
        partition: range.partition.clone(),
        bucket,
    }
}

struct Auditor<'a> {
    info: &'a TableInfo,
    lake: &'a LakeTable,
    /// Names of partitions by their serialized values.
    partitions: BTreeMap<Vec<u8>, (String, Partition)>,
    /// Files added and not removed since, with their buckets.
    live: BTreeSet<(LakeBucket, String)>,
}

impl Auditor<'_> {
    /// The snapshots of tiering up to `last`, in order; what is wrong with any snapshot goes into the report.
    async fn steps(&mut self, last: i64, report: &mut Report) -> Result<Vec<Step>> {
        let table = &self.lake.table;
        let ids = table.snapshot_ids().await.map_err(|e| self.lake.error(e))?;
        report.expired_before = ids.first().copied().filter(|first| *first > 1);
        let mut steps = Vec::new();
        let mut newest = None;
        let last = self.last_replay(&ids, last, report).await?;
        for id in ids.into_iter().filter(|id| *id <= last) {
            let snapshot = table.snapshot(id).await.map_err(|e| self.lake.error(e))?;
            report.snapshots += 1;
            let ranges = self.ranges(&snapshot).await?;
            for range in ranges.iter().flatten() {
                self.name(range)?;
            }
            self.base_list(&snapshot, report).await?;
            let files = self.files(&snapshot, report).await?;
            match ranges {
                Some(ranges) => steps.push(Step {
                    snapshot: id,
                    is_replay: snapshot.commit_user == replay::COMMIT_USER,
                    ranges,
                    files,
                }),
                None if !files.is_empty() && snapshot.commit_kind == CommitKind::Append => {
                    let user = &snapshot.commit_user;
                    let reason = format!("user {user} added files whose rows are not from the log");
                    report.findings.push(Finding {
                        bucket: None,
                        snapshot: Some(id),
                        reason,
                    });
                }
                None => {}
            }
            newest = Some(snapshot);
        }
        if let Some(newest) = newest {
            self.missing(&newest, report).await?;
        }
        Ok(steps)
    }

    /// The newest replay behind the registered snapshot, or that one itself. What replays behind a
    /// round that is not registered put back is only noted in the report.
    async fn last_replay(&self, ids: &[i64], last: i64, report: &mut Report) -> Result<i64> {
        let (mut end, mut is_over) = (last, false);
        for id in ids.iter().copied().filter(|id| *id > last) {
            let snapshot = self.lake.table.snapshot(id).await;
            let snapshot = snapshot.map_err(|error| self.lake.error(error))?;
            is_over |= snapshot.commit_user == COMMIT_USER;
            if snapshot.commit_user != replay::COMMIT_USER {
                continue;
            }
            if is_over {
                let ranges = self.ranges(&snapshot).await?;
                report.later_replays.extend(ranges.into_iter().flatten());
            } else {
                end = id;
            }
        }
        Ok(end)
    }

    /// The ranges of a snapshot of tiering or of a replay; `None` for snapshots of others, and of the
    /// reference's job.
    async fn ranges(&self, snapshot: &Snapshot) -> Result<Option<Vec<BucketRange>>> {
        let property = match snapshot.commit_user.as_str() {
            COMMIT_USER => RANGES,
            replay::COMMIT_USER => replay::REPLAYED,
            _ => return Ok(None),
        };
        let Some(text) = snapshot.property(property) else {
            return Ok(None);
        };
        match ranges::parse(text)? {
            RangesProperty::Inline(ranges) => Ok(Some(ranges)),
            RangesProperty::File(name) => {
                let path = name.split('/').fold(
                    self.lake.table.root().clone(),
                    object_store::path::Path::join,
                );
                let read = async { self.lake.table.store().get(&path).await?.bytes().await };
                let lake = |source| {
                    self.lake
                        .error(weir_lake_format::Error::store(&path, source))
                };
                let bytes = read.await.map_err(lake)?;
                let text = String::from_utf8_lossy(&bytes);
                match ranges::parse(&text)? {
                    RangesProperty::Inline(ranges) => Ok(Some(ranges)),
                    RangesProperty::File(_) => Err(Error::BadRanges {
                        reason: format!("{path} names another file"),
                    }),
                }
            }
        }
    }

    /// Readers of old snapshots need its base list, which later snapshots do not name.
    async fn base_list(&self, snapshot: &Snapshot, report: &mut Report) -> Result<()> {
        let name = &snapshot.base_manifest_list;
        let read = self.lake.table.read_manifest_list(name).await;
        match read.map_err(|error| self.lake.error(error)) {
            Err(error) if error.is_retriable() => Err(error),
            Err(error) => {
                report.findings.push(Finding {
                    bucket: None,
                    snapshot: Some(snapshot.id),
                    reason: sentence(&error),
                });
                Ok(())
            }
            Ok(_) => Ok(()),
        }
    }

    fn name(&mut self, range: &BucketRange) -> Result<()> {
        let Some(name) = &range.partition else {
            return Ok(());
        };
        let partition = self.lake.partition(self.info, Some(name))?;
        self.partitions
            .entry(partition.to_bytes())
            .or_insert_with(|| (name.clone(), partition));
        Ok(())
    }

    fn bucket(&self, partition: &[u8], bucket: i32) -> LakeBucket {
        let name = if self.lake.schema.partition_keys.is_empty() {
            None
        } else {
            let known = self.partitions.get(partition).map(|(name, _)| name.clone());
            let described = || {
                Partition::from_bytes(partition, &self.lake.schema).map_or_else(
                    |_| "(unreadable)".to_owned(),
                    |p| p.describe(&self.lake.schema),
                )
            };
            Some(known.unwrap_or_else(described))
        };
        LakeBucket {
            partition: name,
            bucket,
        }
    }

    /// The files that a snapshot added, by bucket; checks them against what was there and against
    /// the snapshot's own counts.
    async fn files(
        &mut self,
        snapshot: &Snapshot,
        report: &mut Report,
    ) -> Result<BTreeMap<LakeBucket, Vec<DataFileMeta>>> {
        let entries = self
            .lake
            .table
            .delta_entries(snapshot)
            .await
            .map_err(|e| self.lake.error(e))?;
        let mut added = BTreeMap::<LakeBucket, Vec<DataFileMeta>>::new();
        let mut rows = 0;
        for entry in entries {
            let bucket = self.bucket(&entry.partition, entry.bucket);
            let key = (bucket.clone(), entry.file.file_name.clone());
            let mut wrong = |reason: String| {
                let finding = Finding {
                    bucket: Some(bucket.clone()),
                    snapshot: Some(snapshot.id),
                    reason,
                };
                report.findings.push(finding);
            };
            match entry.kind {
                FileKind::Add => {
                    rows += entry.file.row_count;
                    if !self.live.insert(key) {
                        wrong(format!("file {} is added twice", entry.file.file_name));
                    }
                    added.entry(bucket).or_default().push(entry.file);
                }
                FileKind::Delete => {
                    rows -= entry.file.row_count;
                    self.live.remove(&key);
                }
            }
        }
        if rows != snapshot.delta_record_count {
            let counted = snapshot.delta_record_count;
            let reason = format!("its files change the table by {rows} rows, it says {counted}");
            report.findings.push(Finding {
                bucket: None,
                snapshot: Some(snapshot.id),
                reason,
            });
        }
        Ok(added)
    }

    /// Every file that was added and not removed must be live in the newest snapshot, and once.
    async fn missing(&self, newest: &Snapshot, report: &mut Report) -> Result<()> {
        let live = match self.lake.table.live_entries(newest).await {
            Ok(live) => live,
            Err(error @ weir_lake_format::Error::Corrupt { .. }) => {
                let reason = error.to_string();
                report.findings.push(Finding {
                    bucket: None,
                    snapshot: Some(newest.id),
                    reason,
                });
                return Ok(());
            }
            Err(error) => return Err(self.lake.error(error)),
        };
        let found: BTreeSet<_> = live
            .iter()
            .map(|entry| {
                (
                    self.bucket(&entry.partition, entry.bucket),
                    entry.file.file_name.clone(),
                )
            })
            .collect();
        for (bucket, file) in self.live.difference(&found) {
            let reason = format!("file {file} was added and never removed, and is gone");
            let (bucket, snapshot) = (Some(bucket.clone()), Some(newest.id));
            report.findings.push(Finding {
                bucket,
                snapshot,
                reason,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
