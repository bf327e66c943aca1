//! One round of one table from lease to report: the shell around the pure parts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use weir_catalog::ddl::properties::adopts_history;
use weir_lake_format::write::CommitMessage;
use weir_protocol::ids::{LogOffset, TableBucket};

use crate::bad_records::Policy;
use crate::bad_records::book::Book;
use crate::cluster::{OffsetKind, TableInfo, Trouble};
use crate::committer::{Base, Committed, Committer, Committers, EpochFence};
use crate::enumerate::{BucketGroup, Offsets, TableView, bucket_groups, enumerate};
use crate::error::{Error, Result};
use crate::lake_table::{LakeTable, Warehouse};
use crate::lease::Lease;
use crate::phase::Phase;
use crate::round::{Committable, Cut, Limits, Round};
use crate::split::Split;
use crate::wall::unique_name;
use crate::worker::floors::Floors;
use crate::worker::{BadRecordRules, RoundSignals, WorkerResources, WriteJob, write_splits};

/// The property that says how old rows may become before they are in the lake.
const FRESHNESS: &str = "table.datalake.freshness";
/// Freshness of tables that say none (reference).
const DEFAULT_FRESHNESS: Duration = Duration::from_mins(3);
/// Buckets that one line names.
const FAULTS_SHOWN: usize = 3;
/// Offset look-ups of one table at the same time.
const LOOKUPS: usize = 8;

/// Runs rounds.
#[derive(Clone, Debug)]
pub struct Runner {
    /// What all rounds share.
    pub resources: WorkerResources,
    /// Where the lake is.
    pub warehouse: Warehouse,
    /// What commits remember of each table.
    pub committers: Committers,
    /// What a newer lease in the lake means.
    pub fence: EpochFence,
    /// The limits of a round; a duration of `None` means the table's freshness.
    pub limits: RunnerLimits,
    /// What is done with bad records of tables that say nothing about it.
    pub bad_record: Policy,
}

/// Limits of rounds, before the table's own freshness is known.
#[derive(Clone, Copy, Debug)]
pub struct RunnerLimits {
    /// How long rows are read.
    pub max_duration: Option<Duration>,
    /// Rows of a round.
    pub max_rows: u64,
    /// Bytes read by a round.
    pub max_bytes: u64,
}

/// What a round found and did.
#[derive(Clone, Debug)]
pub struct RoundReport {
    /// The round's id.
    pub round: String,
    /// Wall time it began.
    pub started_ms: i64,
    /// The snapshot, if something was committed.
    pub committed: Option<Committed>,
    /// The newest snapshot of tiering now.
    pub lake_snapshot: Option<i64>,
    /// Buckets that moved.
    pub buckets: usize,
    /// What cut the round short, if more is left.
    pub cut: Option<Cut>,
    /// Buckets that could not be read.
    pub faults: Vec<(TableBucket, Trouble)>,
    /// Offsets that are still missing in the lake, of those that were there when the round began.
    pub left_rows: u64,
    /// Whether the offsets of all buckets were known when the round began.
    pub is_whole: bool,
    /// All offsets below the high watermarks at this time (milliseconds since 1970) are in the
    /// lake, but those left.
    pub as_of_ms: i64,
    /// How old rows may become before they are in the lake.
    pub freshness: Duration,
    /// What the table looks like, for later looks at its lag.
    pub view: TableView,
    /// Per bucket, the end of what the lake holds now.
    pub lake_ends: BTreeMap<TableBucket, LogOffset>,
}

impl Runner {
    /// Runs one round under `lease`; `phase` hears of each step.
    ///
    /// # Errors
    /// Whatever stopped the round; nothing of it is in the lake then, but for
    /// [`Error::UnknownCommit`] and a failed registration.
    pub async fn run(
        &self,
        lease: Lease,
        signals: &RoundSignals,
        phase: &(dyn Fn(Phase) + Send + Sync),
    ) -> Result<RoundReport> {
        let started_ms = self.resources.clock.now_ms();
        let plan = tokio::select! {
            biased;
            () = signals.cancel.cancelled() => return Err(cancelled(&lease)),
            () = signals.stop.cancelled() => return Err(Error::Stopped),
            plan = self.plan(&lease, signals, phase) => plan?,
        };
        let mut plan = match plan {
            Planned::Round(plan) => *plan,
            Planned::Idle(report) => {
                phase(Phase::Reporting);
                return Ok(*report);
            }
        };
        let mut round = Round::new(lease.clone(), unique_name(), plan.limits, started_ms);
        round.split()?;
        round.write(plan.splits.clone())?;
        let mut report = plan.report(round.id(), started_ms);
        phase(round.phase());
        if round.phase() == Phase::Reporting {
            if report.faults.is_empty() {
                self.committers.settle(lease.table, plan.base.own);
            }
            return Ok(report);
        }
        let job = WriteJob {
            info: Arc::clone(&plan.info),
            lake: Arc::clone(&plan.committer.lake),
            splits: plan.splits,
            limits: plan.limits,
            bad_records: plan.bad_records,
            floors: plan.floors,
        };
        write_splits(&self.resources, job, &mut round, signals).await?;
        let committable = round.commit()?;
        phase(round.phase());
        report.cut = committable.cut;
        report.faults.extend(committable.faults.iter().cloned());
        report.buckets = committable.ranges.len();
        if !committable.ranges.is_empty() {
            if signals.cancel.is_cancelled() {
                plan.committer.lake.discard(committable.files).await;
                return Err(cancelled(&lease));
            }
            report.advance(&committable);
            let book = plan.book.as_mut();
            let committed = plan.committer.commit(&plan.base, committable, book).await?;
            report.lake_snapshot = Some(committed.snapshot);
            if report.faults.is_empty() {
                self.committers.settle(lease.table, report.lake_snapshot);
            }
            report.committed = Some(committed);
        }
        round.report();
        phase(round.phase());
        Ok(report)
    }

    /// Reads everything that the round depends on and plans its splits.
    async fn plan(
        &self,
        lease: &Lease,
        signals: &RoundSignals,
        phase: &(dyn Fn(Phase) + Send + Sync),
    ) -> Result<Planned> {
        phase(Phase::Splitting);
        let client = &self.resources.client;
        let info = client.table_info(&lease.path).await?;
        if info.id != lease.table {
            let table = lease.path.clone();
            return Err(Error::Recreated {
                table,
                ours: lease.table,
                found: info.id,
            });
        }
        if let Some(report) = self.idle(lease, &info).await? {
            return Ok(Planned::Idle(Box::new(report)));
        }
        self.committers.unsettle(lease.table);
        let lake = self.warehouse.table(&lease.path, &info.properties).await?;
        lake.check_primary_key(&info)?;
        let committer = Committer {
            client: Arc::clone(client),
            lake: Arc::new(lake),
            committers: self.committers.clone(),
            clock: Arc::clone(&self.resources.clock),
            fence: self.fence,
            adopts_history: adopts_history(&info.properties),
        };
        let mut base = committer.base(lease).await?;
        let view = self.view(lease, &info).await?;
        let as_of_ms = self.resources.clock.now_ms();
        let mut offsets = self.offsets(lease, &view, &base).await?;
        offsets.known.let_go.clone_from(&signals.let_go);
        let (book, bad_records) = self.bad_records(lease, &info, &base).await?;
        let floors = self.floors(lease, &committer.lake).await?;
        let mut splits = enumerate(&view, &offsets.known)?;
        let walled = self.wall_off(&committer, &info, &base, &mut splits).await?;
        offsets.faults.extend(walled);
        base.keep_live(&bucket_groups(&view)?);
        let freshness = freshness(&info)?;
        let limits = self.limits(freshness);
        let info = Arc::new(info);
        Ok(Planned::Round(Box::new(Plan {
            info,
            committer,
            base,
            view,
            splits,
            limits,
            freshness,
            as_of_ms,
            faults: offsets.faults,
            book,
            bad_records,
            floors,
        })))
    }

    async fn floors(&self, lease: &Lease, lake: &LakeTable) -> Result<Arc<Floors>> {
        if !lake.schema.is_primary_key_table() {
            return Ok(Arc::default());
        }
        let floors = self.committers.floors(lake, lease.table).await;
        floors.map_err(|source| lake.error(source))
    }

    /// The report of a round that has nothing to do, if that can be known without a look at the
    /// lake: lake and cluster agreed after the last round, the cluster has heard of no other
    /// snapshot since, and no log has grown. So an idle table costs no request to the store.
    async fn idle(&self, lease: &Lease, info: &TableInfo) -> Result<Option<RoundReport>> {
        if !self.committers.is_settled(lease.table) {
            return Ok(None);
        }
        let started_ms = self.resources.clock.now_ms();
        let client = &self.resources.client;
        let progress = client.lake_progress(&lease.path, lease.table).await?;
        let own = progress.snapshot;
        if !self.committers.is_settled_at(lease.table, own) {
            return Ok(None);
        }
        let base = Base {
            own,
            latest: None,
            ends: progress.ends,
        };
        let view = self.view(lease, info).await?;
        let as_of_ms = self.resources.clock.now_ms();
        let offsets = self.offsets(lease, &view, &base).await?;
        if !offsets.faults.is_empty() || !enumerate(&view, &offsets.known)?.is_empty() {
            return Ok(None);
        }
        Ok(Some(RoundReport {
            round: unique_name(),
            started_ms,
            committed: None,
            lake_snapshot: own,
            buckets: 0,
            cut: None,
            faults: Vec::new(),
            is_whole: true,
            left_rows: 0,
            as_of_ms,
            freshness: freshness(info)?,
            view,
            lake_ends: base.ends,
        }))
    }

    /// What is done with bad records, and the book of those that were diverted. A table that stops
    /// at them has records pending only if its policy was another one when a round broke off.
    async fn bad_records(
        &self,
        lease: &Lease,
        info: &TableInfo,
        base: &Base,
    ) -> Result<(Option<Book>, BadRecordRules)> {
        let policy = Policy::of_table(info, self.bad_record)?;
        if policy == Policy::Stop && self.committers.has_none_pending(lease) {
            return Ok((None, BadRecordRules::default()));
        }
        let place = self.warehouse.bad_records(&lease.path, &info.properties)?;
        let book = Book::read(place, lease.table).await?;
        let diverted = book.pending(&base.ends);
        let none_pending = policy == Policy::Stop && diverted.is_empty();
        self.committers.note_pending(lease, none_pending);
        Ok((Some(book), BadRecordRules { policy, diverted }))
    }

    /// Takes out the splits of partitions whose files in the lake have another bucket count: those
    /// of a partition of the same name that was dropped. Asked once for each partition, before its
    /// first rows.
    async fn wall_off(
        &self,
        committer: &Committer,
        info: &TableInfo,
        base: &Base,
        splits: &mut Vec<Split>,
    ) -> Result<Vec<(TableBucket, Trouble)>> {
        let lake = &committer.lake;
        let mut walled = BTreeMap::new();
        if !lake.is_bucket_unaware() {
            let known: BTreeSet<_> = base.ends.keys().map(|bucket| bucket.partition).collect();
            for split in splits.iter() {
                let id = split.bucket.partition;
                if id.is_none() || known.contains(&id) || walled.contains_key(&id) {
                    continue;
                }
                let partition = lake.partition(info, split.partition.as_deref())?;
                let found = committer.total_buckets(info.id, &partition).await?;
                let other = found.filter(|found| *found != split.total_buckets.0);
                walled.insert(id, other);
            }
        }
        let mut faults = Vec::new();
        splits.retain(|split| {
            let Some(Some(other)) = walled.get(&split.bucket.partition) else {
                return true;
            };
            faults.push((split.bucket, other_layout(split, *other)));
            false
        });
        Ok(faults)
    }

    async fn view(&self, lease: &Lease, info: &TableInfo) -> Result<TableView> {
        // The table was read before its partitions: a count that changes in between is then seen
        // with the partitions' own.
        let partitions = if info.partition_keys.is_empty() {
            None
        } else {
            Some(self.resources.client.partitions(&lease.path).await?)
        };
        Ok(TableView {
            id: info.id,
            path: lease.path.clone(),
            bucket_count: info.bucket_count,
            bucket_layout_epoch: info.bucket_layout_epoch,
            is_keyed: info.schema.has_primary_key(),
            partitions,
        })
    }

    async fn offsets(&self, lease: &Lease, view: &TableView, base: &Base) -> Result<Looked> {
        let groups = bucket_groups(view)?;
        let mut looked = Looked::default();
        looked.known.lake.clone_from(&base.ends);
        let latest = self
            .look_up(lease, groups.iter(), OffsetKind::Latest)
            .await?;
        looked.take(latest, |known| &mut known.latest);
        let fresh = groups.iter().filter(|group| {
            let tiered = |bucket| base.ends.get(&bucket).is_some_and(|end| end.0 >= 0);
            let empty = |bucket| {
                looked
                    .known
                    .latest
                    .get(&bucket)
                    .is_none_or(|end| end.0 <= 0)
            };
            group
                .buckets(view.id)
                .any(|bucket| !tiered(bucket) && !empty(bucket))
        });
        let earliest = self.look_up(lease, fresh, OffsetKind::Earliest).await?;
        looked.take(earliest, |known| &mut known.earliest);
        Ok(looked)
    }

    async fn look_up(
        &self,
        lease: &Lease,
        groups: impl Iterator<Item = &BucketGroup>,
        kind: OffsetKind,
    ) -> Result<Vec<(TableBucket, Result<LogOffset>)>> {
        let look_ups: Vec<_> = groups
            .map(|group| self.look_up_group(lease, group, kind).boxed())
            .collect();
        let found: Vec<Vec<_>> = stream::iter(look_ups)
            .buffer_unordered(LOOKUPS)
            .try_collect()
            .await?;
        Ok(found.into_iter().flatten().collect())
    }

    async fn look_up_group(
        &self,
        lease: &Lease,
        group: &BucketGroup,
        kind: OffsetKind,
    ) -> Result<Vec<(TableBucket, Result<LogOffset>)>> {
        let client = &self.resources.client;
        let found = client
            .offsets(&lease.path, lease.table, group, kind)
            .await?;
        let partition = group.partition;
        let key = |bucket| TableBucket {
            table: lease.table,
            partition,
            bucket,
        };
        Ok(found
            .into_iter()
            .map(|(bucket, offset)| (key(bucket), offset))
            .collect())
    }

    fn limits(&self, freshness: Duration) -> Limits {
        let RunnerLimits {
            max_duration,
            max_rows,
            max_bytes,
        } = self.limits;
        Limits {
            max_duration: max_duration.unwrap_or(freshness),
            max_rows,
            max_bytes,
        }
    }
}

enum Planned {
    /// There is nothing to do.
    Idle(Box<RoundReport>),
    Round(Box<Plan>),
}

struct Plan {
    info: Arc<TableInfo>,
    committer: Committer,
    base: Base,
    view: TableView,
    splits: Vec<Split>,
    limits: Limits,
    freshness: Duration,
    as_of_ms: i64,
    faults: Vec<(TableBucket, Trouble)>,
    book: Option<Book>,
    bad_records: BadRecordRules,
    floors: Arc<Floors>,
}

impl Plan {
    /// The report of a round that has done nothing yet.
    fn report(&self, round: &str, started_ms: i64) -> RoundReport {
        RoundReport {
            round: round.to_owned(),
            started_ms,
            committed: None,
            lake_snapshot: self.base.own,
            buckets: 0,
            cut: None,
            faults: self.faults.clone(),
            is_whole: self.faults.is_empty(),
            left_rows: self.splits.iter().map(Split::backlog).sum(),
            as_of_ms: self.as_of_ms,
            freshness: self.freshness,
            view: self.view.clone(),
            lake_ends: self.base.ends.clone(),
        }
    }
}

impl RoundReport {
    /// The buckets that could not be read, each with the reason, in one line; the first few by name.
    /// `None` if all could.
    pub fn trouble(&self) -> Option<Trouble> {
        if self.faults.is_empty() {
            return None;
        }
        let shown = self.faults.iter().take(FAULTS_SHOWN);
        let mut texts: Vec<String> = shown
            .map(|(bucket, fault)| {
                let said = fault.reason.replace(&format!("{bucket}: "), "");
                format!("{}: {said}", self.bucket_name(*bucket))
            })
            .collect();
        let more = self.faults.len().saturating_sub(FAULTS_SHOWN);
        if more > 0 {
            texts.push(format!("and {more} more buckets"));
        }
        Some(Trouble {
            reason: texts.join("; "),
            code: self.faults.iter().find_map(|(_, fault)| fault.code),
            lasting: self.faults.iter().any(|(_, fault)| fault.lasting),
            lost: None,
        })
    }

    fn bucket_name(&self, bucket: TableBucket) -> String {
        let number = bucket.bucket;
        match self.view.partition_name(bucket) {
            None => format!("bucket {number}"),
            Some(name) => format!("partition {name} bucket {number}"),
        }
    }

    fn advance(&mut self, committable: &Committable<CommitMessage>) {
        for range in &committable.ranges {
            let taken = u64::try_from(range.end.0.saturating_sub(range.start.0)).unwrap_or(0);
            self.left_rows = self.left_rows.saturating_sub(taken);
        }
        self.lake_ends.extend(committable.ends());
    }
}

/// Offsets as they come in; a bucket that fails is left for a later round.
#[derive(Default)]
struct Looked {
    known: Offsets,
    faults: Vec<(TableBucket, Trouble)>,
}

impl Looked {
    fn take(
        &mut self,
        found: Vec<(TableBucket, Result<LogOffset>)>,
        place: impl Fn(&mut Offsets) -> &mut BTreeMap<TableBucket, LogOffset>,
    ) {
        let mut failed = BTreeSet::new();
        for (bucket, offset) in found {
            match offset {
                Ok(offset) => {
                    place(&mut self.known).insert(bucket, offset);
                }
                Err(error) => {
                    failed.insert(bucket);
                    let trouble = Trouble {
                        code: error.code(),
                        ..Trouble::passing(error.chain())
                    };
                    self.faults.push((bucket, trouble));
                }
            }
        }
        self.known.unavailable.extend(failed);
    }
}

/// Why a partition can't be written.
fn other_layout(split: &Split, other: i32) -> Trouble {
    let name = split.partition.as_deref().unwrap_or_default();
    let ours = split.total_buckets;
    Trouble::lasting(format!(
        "partition {name} has {ours} buckets, but the lake still has files of {other} buckets of an earlier \
         partition of that name: delete or rewrite those, or drop the partition and make one of another name"
    ))
}

fn cancelled(lease: &Lease) -> Error {
    Error::Cancelled {
        table: lease.path.clone(),
    }
}

/// The table's freshness; at least a second, so that rounds have time to read.
fn freshness(info: &TableInfo) -> Result<Duration> {
    let Some(text) = info.properties.get(FRESHNESS) else {
        return Ok(DEFAULT_FRESHNESS);
    };
    let freshness = weir_lake_format::parse_duration(text).ok_or_else(|| Error::Config {
        key: FRESHNESS,
        reason: format!("`{text}` is no duration"),
    })?;
    Ok(freshness.max(Duration::from_secs(1)))
}

#[cfg(test)]
mod tests;
