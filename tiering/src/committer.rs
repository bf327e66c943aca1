//! The committer: a complete round becomes a lake snapshot, and the cluster learns of it.
//!
//! The order is fixed: same table? → snapshot of ours that the cluster lacks? → prepare → lake
//! commit → register. A crash before the lake commit leaves orphan files only; one after it leaves
//! a snapshot that the next round registers first. The fence is the newest snapshot of ours as the
//! round saw it before it read any offset: the lake commit checks, in each of its attempts, that it
//! is still the newest one. So of two workers that read the same offsets at most one commits. A lake
//! table that was made anew meanwhile, or that another table uses again, is no longer the round's.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use weir_catalog::clock::Clock;
use weir_lake_format::commit::{BaseView, CommitOutcome, CommitRequest, GuardRefusal, RetryPolicy};
use weir_lake_format::write::CommitMessage;
use weir_lake_format::{BATCH_COMMIT_IDENTIFIER, CommitKind, Partition, Snapshot};
use weir_protocol::ids::{LogOffset, TableBucket, TableId};

use crate::bad_records::Stamp;
use crate::bad_records::book::Book;
use crate::cluster::{LakeProgress, Registration, TieringClient};
use crate::enumerate::BucketGroup;
use crate::error::{Error, Result};
use crate::lake_table::LakeTable;
use crate::lease::{Epochs, Lease};
use crate::ranges;
use crate::round::Committable;
use crate::wall::unique_name;

mod history;
mod memory;

pub use memory::Committers;

/// The commit user of tiering, the reference's own, so that either side can go on where the other
/// stopped.
pub const COMMIT_USER: &str = "__fluss_lake_tiering";
/// Snapshot property: the offsets file of the snapshot (reference).
pub const OFFSETS: &str = "fluss-offsets";
/// Snapshot property: the coordinator epoch of the lease.
pub const COORDINATOR_EPOCH: &str = "weir-coordinator-epoch";
/// Snapshot property: the tiering epoch of the lease.
pub const TIERING_EPOCH: &str = "weir-tiering-epoch";
/// Snapshot property: the round.
pub const ROUND: &str = "weir-round";
/// Snapshot property: what the snapshot added, [`crate::ranges`].
pub const RANGES: &str = "weir-ranges";
/// Snapshot property: the id of the table in the cluster.
pub const TABLE_ID: &str = "weir-table-id";

/// How often a call whose outcome is unknown is repeated at once.
const CALL_ATTEMPTS: u32 = 3;
/// How often lake and cluster are read until they agree.
const BASE_ATTEMPTS: u32 = 5;

/// Commits rounds of one table.
#[derive(Debug)]
pub struct Committer {
    /// The cluster.
    pub client: Arc<dyn TieringClient>,
    /// The lake table.
    pub lake: Arc<LakeTable>,
    /// What earlier commits remember of the lake.
    pub committers: Committers,
    /// Wall time.
    pub clock: Arc<dyn Clock>,
    /// Whether a newer lease in the lake refuses ours, or only warns.
    pub fence: EpochFence,
    /// Whether rows that others put into the lake table before are no trouble.
    pub adopts_history: bool,
}

/// What a lake snapshot under a newer lease means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EpochFence {
    /// Epochs never restart (our own server): ours is stale, the round is refused.
    Refuse,
    /// Epochs restart with the coordinator (a foreign cluster): only the newest own snapshot
    /// counts.
    Warn,
}

/// From where a round starts: what lake and cluster agree on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base {
    /// The newest snapshot of ours in the lake.
    pub own: Option<i64>,
    /// The latest snapshot of anybody, if none is ours.
    pub latest: Option<i64>,
    /// Per bucket, the end of what the lake holds.
    pub ends: BTreeMap<TableBucket, LogOffset>,
}

impl Base {
    /// Leaves out buckets of partitions that are gone: they need not be carried from offsets file
    /// to offsets file.
    pub fn keep_live(&mut self, groups: &[BucketGroup]) {
        let live: BTreeSet<_> = groups.iter().map(|group| group.partition).collect();
        self.ends
            .retain(|bucket, _| live.contains(&bucket.partition));
    }
}

/// A committed and registered round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The lake snapshot.
    pub snapshot: i64,
    /// Rows added.
    pub rows: i64,
    /// Files added.
    pub files: usize,
    /// Bytes of those files.
    pub bytes: i64,
    /// Rows that are in the table of bad records instead.
    pub diverted: i64,
}

impl Committer {
    /// The bucket count of a partition's files in the lake; `None` if it has none. Files of another
    /// count can't be added to it.
    ///
    /// # Errors
    /// [`Error::Lake`].
    pub async fn total_buckets(
        &self,
        table: TableId,
        partition: &Partition,
    ) -> Result<Option<i32>> {
        let mut lake = self.committers.take(&self.lake, table);
        let found = lake.total_buckets(COMMIT_USER, partition).await;
        let found = found.map_err(|e| self.lake.error(e))?;
        self.committers.put_back(table, lake);
        Ok(found)
    }

    /// What a round may build on. A snapshot of ours that the cluster lacks is registered first.
    ///
    /// # Errors
    /// [`Error::LakeBehind`] if the cluster knows of more than the lake holds,
    /// [`Error::ForeignHistory`] if our newest snapshot can't be registered, [`Error::Fenced`] if
    /// it was made under a newer lease.
    pub async fn base(&self, lease: &Lease) -> Result<Base> {
        let mut repaired = None;
        for _ in 0..BASE_ATTEMPTS {
            // The cluster first: whatever it knows was in the lake before, so a lake that lacks it
            // has lost it.
            let progress = self.client.lake_progress(&lease.path, lease.table).await?;
            let own = self.own_latest().await?;
            self.check_epochs(lease.epochs, own.as_ref())?;
            match &own {
                Some(own) if is_missing(own, &progress) => {
                    self.repair(lease.table, own).await?;
                    repaired = Some(own.id);
                }
                _ => {
                    let latest = self.check_history(lease, own.as_ref(), &progress).await?;
                    self.check_ends(lease, own.as_ref(), &progress).await?;
                    return Ok(Base {
                        own: own.map(|s| s.id),
                        latest,
                        ends: progress.ends,
                    });
                }
            }
        }
        let snapshot = repaired.unwrap_or_default();
        let reason = "it stays unknown to the cluster after it was registered".to_owned();
        Err(Error::ForeignHistory {
            table: lease.path.clone(),
            snapshot,
            reason,
        })
    }

    /// Publishes a round that started from `base`. On every error but [`Error::UnknownCommit`] and
    /// a failed registration the round's files are discarded.
    ///
    /// # Errors
    /// [`Error::Recreated`], [`Error::LakeReplaced`], [`Error::Fenced`], [`Error::Repaired`], or
    /// what a call returned; after a failed registration the snapshot stays, and the next
    /// [`Committer::base`] registers it.
    pub async fn commit(
        &self,
        base: &Base,
        mut committable: Committable<CommitMessage>,
        book: Option<&mut Book>,
    ) -> Result<Committed> {
        let files = std::mem::take(&mut committable.files);
        let prepared = async {
            let prepared = self.prepare(base, &committable).await?;
            self.divert(base, &committable, book).await?;
            Ok(prepared)
        };
        let prepared = match prepared.await {
            Ok(prepared) => prepared,
            Err(error) => {
                self.lake.discard(files).await;
                return Err(error);
            }
        };
        let committed = sizes(&committable, &files);
        let snapshot = self.publish(base, &committable, &prepared, files).await?;
        let registration = Registration {
            table: committable.lease.table,
            path: committable.lease.path.clone(),
            snapshot,
            offsets_path: prepared.offsets_path,
            keep_all: false,
            ends: new_ends(&committable),
        };
        self.register(&registration).await?;
        Ok(Committed {
            snapshot,
            ..committed
        })
    }

    /// Bad records are kept before the round that leaves them out is published: a crash between the
    /// two leaves them pending in the book, for the next round to leave out.
    async fn divert(
        &self,
        base: &Base,
        committable: &Committable<CommitMessage>,
        book: Option<&mut Book>,
    ) -> Result<()> {
        let Some(book) = book.filter(|_| !committable.bad.is_empty()) else {
            return Ok(());
        };
        let table = committable.lease.path.to_string();
        let stamp = Stamp {
            table: &table,
            round: &committable.round,
            now_ms: self.clock.now_ms(),
        };
        book.commit(&committable.bad, &base.ends, stamp).await
    }

    /// Everything up to the lake commit; leaves nothing behind but an offsets file.
    async fn prepare(
        &self,
        base: &Base,
        committable: &Committable<CommitMessage>,
    ) -> Result<Prepared> {
        let lease = &committable.lease;
        let info = self.client.table_info(&lease.path).await?;
        if info.id != lease.table {
            let table = lease.path.clone();
            return Err(Error::Recreated {
                table,
                ours: lease.table,
                found: info.id,
            });
        }
        let progress = self.client.lake_progress(&lease.path, lease.table).await?;
        let own = self.own_latest().await?;
        if let Some(own) = own.as_ref().filter(|own| is_missing(own, &progress)) {
            self.repair(lease.table, own).await?;
            return Err(Error::Repaired {
                table: lease.path.clone(),
                snapshot: own.id,
            });
        }
        let own_id = own.as_ref().map(|own| own.id);
        if own_id != base.own {
            return Err(fenced(lease, own_id, base.own));
        }
        self.check_epochs(lease.epochs, own.as_ref())?;
        // All ends, not only the new ones: the file then does not depend on what is registered when
        // it is written.
        let mut ends = base.ends.clone();
        ends.extend(committable.ends());
        let offsets_path = self.prepare_call(lease, &ends).await?;
        let mut epochs = lease.epochs;
        if epochs.is_without_lease() {
            // What the lake remembers of leases stays.
            epochs = own
                .as_ref()
                .and_then(epochs_of)
                .map_or(epochs, |newest| newest.max(epochs));
        }
        let properties = self.properties(committable, epochs, &offsets_path).await?;
        Ok(Prepared {
            offsets_path,
            properties,
        })
    }

    async fn prepare_call(
        &self,
        lease: &Lease,
        ends: &BTreeMap<TableBucket, LogOffset>,
    ) -> Result<String> {
        let mut attempt = 1;
        loop {
            match self.client.prepare(&lease.path, lease.table, ends).await {
                // A second file does no harm: only the one that the snapshot names counts.
                Err(error) if error.is_unanswered() && attempt < CALL_ATTEMPTS => attempt += 1,
                prepared => return prepared,
            }
        }
    }

    async fn properties(
        &self,
        committable: &Committable<CommitMessage>,
        epochs: Epochs,
        offsets_path: &str,
    ) -> Result<BTreeMap<String, String>> {
        let file = format!("weir/ranges-{}.json", committable.round);
        let text = ranges::to_text(&committable.ranges);
        let text = self.lake.property(text, &file).await?;
        let properties = [
            (OFFSETS, offsets_path.to_owned()),
            (COORDINATOR_EPOCH, epochs.coordinator.to_string()),
            (TIERING_EPOCH, epochs.tiering.to_string()),
            (ROUND, committable.round.clone()),
            (RANGES, text),
            (TABLE_ID, committable.lease.table.to_string()),
        ];
        Ok(properties
            .map(|(key, value)| (key.to_owned(), value))
            .into_iter()
            .collect())
    }

    /// The lake commit. Known failures discard the files; after an unknown one they stay, for they
    /// may be live.
    async fn publish(
        &self,
        base: &Base,
        committable: &Committable<CommitMessage>,
        prepared: &Prepared,
        files: Vec<CommitMessage>,
    ) -> Result<i64> {
        let request = CommitRequest {
            commit_user: COMMIT_USER.to_owned(),
            commit_identifier: BATCH_COMMIT_IDENTIFIER,
            kind: CommitKind::Append,
            messages: files,
            deletes: Vec::new(),
            properties: prepared.properties.clone(),
            allow_empty: true,
            uuid: unique_name(),
            now_ms: self.clock.now_ms(),
        };
        let lease = &committable.lease;
        let mut guard = |view: &BaseView<'_>| {
            let own = view.own_latest.map(|own| own.id);
            let latest = view.latest.map(|latest| latest.id);
            let reason = if own != base.own {
                moved(own, base.own)
            } else if own.is_none() && latest != base.latest {
                // Perhaps the claim of a table that uses the lake table again.
                let (latest, before) = (name_of(latest), name_of(base.latest));
                format!("the latest snapshot is {latest}, it was {before}, and none is of tiering")
            } else {
                return Ok(());
            };
            Err(GuardRefusal { reason })
        };
        let retry = RetryPolicy::default();
        let mut lake = self.committers.take(&self.lake, lease.table);
        let outcome = lake.commit(&request, &mut guard, retry).await;
        let error = match outcome {
            Ok(CommitOutcome::Committed(snapshot) | CommitOutcome::AlreadyCommitted(snapshot)) => {
                self.committers.put_back(lease.table, lake);
                return Ok(snapshot.id);
            }
            Ok(outcome) if !outcome.frees_files() => {
                return Err(Self::not_committed(lease, outcome));
            }
            Ok(outcome) => Self::not_committed(lease, outcome),
            Err(source @ weir_lake_format::Error::OutcomeUnknown { .. }) => {
                return self.look_after(committable, source).await;
            }
            Err(source) => self.lake.error(source),
        };
        self.lake.discard(request.messages).await;
        Err(error)
    }

    fn not_committed(lease: &Lease, outcome: CommitOutcome) -> Error {
        let table = lease.path.clone();
        match outcome {
            CommitOutcome::Refused(GuardRefusal { reason }) => Error::Fenced {
                table,
                ours: lease.epochs,
                reason,
            },
            CommitOutcome::Conflict(conflict) => Error::LakeConflict {
                table,
                reason: conflict.to_string(),
            },
            CommitOutcome::Exhausted { attempts } => Error::LakeBusy { table, attempts },
            CommitOutcome::Replaced | CommitOutcome::TakenBack => Error::LakeReplaced { table },
            // Empty commits are allowed, so there is always something to commit.
            CommitOutcome::Nothing
            | CommitOutcome::Committed(_)
            | CommitOutcome::AlreadyCommitted(_) => Error::LakeConflict {
                table,
                reason: "nothing was committed".to_owned(),
            },
        }
    }

    /// Looks whether a commit of unknown outcome took place after all. Its files stay either way:
    /// the put may still arrive, and then the next round's commit finds the snapshot and is
    /// refused.
    async fn look_after(
        &self,
        committable: &Committable<CommitMessage>,
        source: weir_lake_format::Error,
    ) -> Result<i64> {
        let table = &committable.lease.path;
        // In a table that was made in the folder since, it is none of ours, whatever it says.
        let identity = self.lake.table.identity().await.ok();
        if identity.is_some_and(|identity| identity != self.lake.identity) {
            return Err(Error::LakeReplaced {
                table: table.clone(),
            });
        }
        let own = self.own_latest().await.ok().flatten();
        if let Some(own) = own.filter(|own| own.property(ROUND) == Some(&committable.round)) {
            return Ok(own.id);
        }
        Err(Error::UnknownCommit {
            table: table.clone(),
            round: committable.round.clone(),
            source,
        })
    }

    /// Registers a snapshot of ours that the cluster lacks, with the offsets file that it names.
    async fn repair(&self, table: TableId, own: &Snapshot) -> Result<()> {
        let path = self.lake.path().clone();
        let foreign = |reason: &str| Error::ForeignHistory {
            table: path.clone(),
            snapshot: own.id,
            reason: reason.to_owned(),
        };
        if own
            .property(TABLE_ID)
            .is_some_and(|id| *id != table.to_string())
        {
            return Err(foreign("it belongs to another table of that name"));
        }
        let offsets_path = match own.property(OFFSETS) {
            Some(text) if text.trim_start().starts_with('{') => {
                return Err(foreign(
                    "it was made before release 0.9 and can't be restored",
                ));
            }
            Some(offsets_path) => offsets_path.to_owned(),
            None => return Err(foreign("it names no offsets file")),
        };
        tracing::warn!(table = %path, snapshot = own.id, "registering a missing lake snapshot");
        let registration = Registration {
            table,
            path,
            snapshot: own.id,
            offsets_path,
            keep_all: true,
            ends: Vec::new(),
        };
        self.register(&registration).await
    }

    async fn register(&self, registration: &Registration) -> Result<()> {
        let mut attempt = 1;
        loop {
            match self.client.register(registration).await {
                Err(error) if error.is_unanswered() && attempt < CALL_ATTEMPTS => attempt += 1,
                registered => return registered,
            }
        }
    }

    async fn own_latest(&self) -> Result<Option<Snapshot>> {
        self.lake
            .table
            .own_latest(COMMIT_USER)
            .await
            .map_err(|e| self.lake.error(e))
    }

    fn check_epochs(&self, ours: Epochs, own: Option<&Snapshot>) -> Result<()> {
        if ours.is_without_lease() {
            return Ok(());
        }
        let Some(theirs) = own.and_then(epochs_of).filter(|theirs| *theirs > ours) else {
            return Ok(());
        };
        let table = self.lake.path().clone();
        match self.fence {
            EpochFence::Refuse => {
                let reason = format!("the lake was written under epochs {theirs}");
                Err(Error::Fenced {
                    table,
                    ours,
                    reason,
                })
            }
            EpochFence::Warn => {
                tracing::warn!(%table, %ours, %theirs, "the lake was written under a newer lease");
                Ok(())
            }
        }
    }
}

struct Prepared {
    offsets_path: String,
    properties: BTreeMap<String, String>,
}

/// Whether the cluster does not know of our newest snapshot yet.
fn is_missing(own: &Snapshot, progress: &LakeProgress) -> bool {
    progress.snapshot.is_none_or(|known| own.id > known)
}

/// The lease under which a snapshot was made, if a worker of this kind made it.
fn epochs_of(snapshot: &Snapshot) -> Option<Epochs> {
    Some(Epochs {
        coordinator: weir_protocol::ids::CoordinatorEpoch(
            snapshot.property(COORDINATOR_EPOCH)?.parse().ok()?,
        ),
        tiering: weir_protocol::ids::TieringEpoch(snapshot.property(TIERING_EPOCH)?.parse().ok()?),
    })
}

fn fenced(lease: &Lease, found: Option<i64>, seen: Option<i64>) -> Error {
    let reason = moved(found, seen);
    Error::Fenced {
        table: lease.path.clone(),
        ours: lease.epochs,
        reason,
    }
}

fn moved(found: Option<i64>, seen: Option<i64>) -> String {
    let (found, seen) = (name_of(found), name_of(seen));
    format!("the newest snapshot of tiering is {found}, it was {seen} at the round's begin")
}

fn name_of(snapshot: Option<i64>) -> String {
    snapshot.map_or("none".to_owned(), |id| id.to_string())
}

fn new_ends(
    committable: &Committable<CommitMessage>,
) -> Vec<(TableBucket, LogOffset, Option<i64>)> {
    let ends = committable.ends().into_iter();
    ends.map(|(bucket, end)| {
        (
            bucket,
            end,
            committable.max_timestamps_ms.get(&bucket).copied(),
        )
    })
    .collect()
}

fn sizes(committable: &Committable<CommitMessage>, files: &[CommitMessage]) -> Committed {
    let all = || files.iter().flat_map(CommitMessage::files);
    Committed {
        snapshot: 0,
        rows: committable.rows,
        files: all().count(),
        bytes: all().map(|file| file.file_size).sum(),
        diverted: committable
            .ranges
            .iter()
            .map(|range| ranges::count(&range.apart.diverted))
            .sum(),
    }
}
