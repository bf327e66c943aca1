//! Committing: data files become part of a table in one step, which all readers see or none.
//!
//! Manifests are written first and are invisible. One conditional put of `snapshot-N` publishes
//! them: of several committers that build on the same snapshot one wins, the others look again and
//! retry. What a lost reply did is read back, never guessed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::error::Result;
use crate::manifest::{FileKey, FileKind, ManifestEntry};
use crate::partition::Partition;
use crate::snapshot::{CommitKind, Snapshot};
use crate::table::{Table, TableIdentity};
use crate::write::CommitMessage;

mod base;
mod conflict;
mod execute;
mod merge;
mod plan;
mod scan;
#[cfg(test)]
mod store_tests;
#[cfg(test)]
mod tests;

pub use conflict::Conflict;

pub(crate) use conflict::find_overlap;
pub(crate) use scan::newest_of;

use base::Base;
use execute::{Attempt, Published, ReadBack};
use merge::Haste;
use plan::{Change, Head};

/// What to commit.
#[derive(Clone, Debug)]
pub struct CommitRequest {
    /// The job; its newest snapshot is what [`BaseView::own_latest`] shows.
    pub commit_user: String,
    /// The job's number of this commit; it must not go down.
    pub commit_identifier: i64,
    /// Why: an append has no deletes.
    pub kind: CommitKind,
    /// The files to add.
    pub messages: Vec<CommitMessage>,
    /// The files to remove, as live entries of the table.
    pub deletes: Vec<ManifestEntry>,
    /// What the snapshot notes down.
    pub properties: BTreeMap<String, String>,
    /// Whether a commit without changes makes a snapshot, to carry the properties.
    pub allow_empty: bool,
    /// Makes names of manifests unique: a UUID that no other commit has.
    pub uuid: String,
    /// The snapshot's time, milliseconds since 1970.
    pub now_ms: i64,
}

/// What a commit would build on.
#[derive(Clone, Copy, Debug)]
pub struct BaseView<'a> {
    /// The latest snapshot.
    pub latest: Option<&'a Snapshot>,
    /// The newest snapshot of the same commit user.
    pub own_latest: Option<&'a Snapshot>,
}

/// Why a guard forbids a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardRefusal {
    /// The reason, for people.
    pub reason: String,
}

/// A caller's last look before each attempt to publish, such as a fence against zombies.
pub type Guard<'a> = &'a mut (dyn FnMut(&BaseView<'_>) -> Result<(), GuardRefusal> + Send);

/// How often and how patiently lost races and unknown outcomes are retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Attempts after the first.
    pub max_retries: u32,
    /// Wait before the first retry; it doubles with each.
    pub min_wait: Duration,
    /// Longest wait.
    pub max_wait: Duration,
}

impl Default for RetryPolicy {
    /// The format's defaults: 10 retries, 10 ms to 10 s.
    fn default() -> Self {
        let (min_wait, max_wait) = (Duration::from_millis(10), Duration::from_secs(10));
        Self {
            max_retries: 10,
            min_wait,
            max_wait,
        }
    }
}

impl RetryPolicy {
    /// The wait before retry `retry`, from 0: exponential, less up to a half by the commit's name,
    /// so that rivals part.
    fn wait(&self, retry: u32, uuid: &str) -> Duration {
        let longest = self
            .min_wait
            .saturating_mul(1 << retry.min(20))
            .min(self.max_wait);
        let mix = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
        let hash = uuid
            .bytes()
            .chain([retry.to_le_bytes()[0]])
            .fold(0x811c_9dc5, mix);
        longest.saturating_sub(longest.mul_f64(f64::from(hash >> 16) / 131_072.0))
    }
}

/// How a commit ended. Only `Committed` published anything now.
#[must_use]
#[derive(Clone, Debug, PartialEq)]
pub enum CommitOutcome {
    /// This snapshot was published.
    Committed(Snapshot),
    /// This snapshot, the newest of the commit user, is the very same commit: it was made before.
    AlreadyCommitted(Snapshot),
    /// There was nothing to commit.
    Nothing,
    /// The guard forbade it.
    Refused(GuardRefusal),
    /// It contradicts what is in the table; the same commit will never succeed.
    Conflict(Conflict),
    /// The folder holds another table than the one that the commit is meant for.
    Replaced,
    /// It was published in a folder that held another table already, and taken back. A writer of that
    /// table may have built on it in between, so all its files stay; the orphan sweep finds them.
    TakenBack,
    /// Others were faster each time; the same commit may succeed later.
    Exhausted {
        /// Attempts made.
        attempts: u32,
    },
}

impl CommitOutcome {
    /// Whether no snapshot names the new data files, so that they may be deleted.
    pub fn frees_files(&self) -> bool {
        match self {
            Self::Committed(_)
            | Self::AlreadyCommitted(_)
            | Self::TakenBack
            | Self::Conflict(Conflict::AddedBefore { .. }) => false,
            Self::Nothing
            | Self::Refused(_)
            | Self::Conflict(_)
            | Self::Replaced
            | Self::Exhausted { .. } => true,
        }
    }
}

/// Commits to one table, one commit after the other, remembering what is expensive to find out.
///
/// A commit of new files costs a fixed number of calls, however long the history is: what changed
/// since the last commit is read, never the whole table. The memory is bounded, and only a memory:
/// any other committer may work on the table.
#[derive(Debug)]
pub struct TableCommitter {
    table: Table,
    base: Base,
    identity: Option<TableIdentity>,
}

impl TableCommitter {
    /// A committer that knows nothing yet. Does no IO.
    pub fn new(table: Table) -> Self {
        Self {
            table,
            base: Base::default(),
            identity: None,
        }
    }

    /// Commits go to the table of this identity only, not to one that was made in its folder later.
    ///
    /// It is looked at last before a snapshot is put, and first after it. The store can't put on
    /// condition of another object, so the folder may change hands between look and put: then what
    /// was put is taken back.
    pub fn hold_to(&mut self, identity: &TableIdentity) {
        if self.identity.as_ref() != Some(identity) {
            self.base = Base::default();
            self.identity = Some(identity.clone());
        }
    }

    /// The table.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// The bucket count of a partition's live files in the latest snapshot; `None` if it has none.
    /// A commit of `commit_user` with files of another count is a [`Conflict::TotalBuckets`].
    ///
    /// The first time a partition is asked for, manifests are read newest first, and only those that
    /// may speak of it; then it is remembered.
    ///
    /// # Errors
    /// Whatever keeps snapshots and manifests from being read.
    pub async fn total_buckets(
        &mut self,
        commit_user: &str,
        partition: &Partition,
    ) -> Result<Option<i32>> {
        self.base.refresh(&self.table, commit_user).await?;
        let partition = partition.to_bytes();
        self.base.total_buckets(&self.table, &partition).await
    }

    /// Publishes the request as the next snapshot.
    ///
    /// `guard` is asked before each attempt, with what the attempt would build on.
    ///
    /// # Errors
    /// [`crate::Error::OutcomeUnknown`] if it may have been published and the store does not tell:
    /// then no file may be deleted, and whoever commits next finds out by [`BaseView::own_latest`].
    /// After any other error nothing was published.
    pub async fn commit(
        &mut self,
        request: &CommitRequest,
        guard: Guard<'_>,
        retry: RetryPolicy,
    ) -> Result<CommitOutcome> {
        let change = Change::new(request)?;
        if change.is_empty() && !request.allow_empty {
            return Ok(CommitOutcome::Nothing);
        }
        let mut attempt = Attempt::new(&request.uuid);
        let outcome = self
            .attempt_all(request, &change, guard, retry, &mut attempt)
            .await;
        let is_committed = matches!(outcome, Ok(CommitOutcome::Committed(_)));
        // Unless it is certain that nothing was published, everything stays.
        if !is_committed && !attempt.is_in_doubt() {
            attempt.delete_all(&self.table).await;
        }
        outcome
    }

    async fn attempt_all(
        &mut self,
        request: &CommitRequest,
        change: &Change,
        guard: Guard<'_>,
        retry: RetryPolicy,
        attempt: &mut Attempt,
    ) -> Result<CommitOutcome> {
        for number in 0..=retry.max_retries {
            if number > 0 {
                tokio::time::sleep(retry.wait(number - 1, &request.uuid)).await;
            }
            let published = if attempt.is_in_doubt() {
                self.settle(guard, attempt).await?
            } else {
                match self
                    .prepare(request, change, guard, attempt, number)
                    .await?
                {
                    Some(outcome) => return Ok(outcome),
                    None if self.is_replaced().await? => return Ok(CommitOutcome::Replaced),
                    None => attempt.publish(&self.table).await?,
                }
            };
            if let Published::Yes(built) = published {
                return self.committed(change, *built, attempt).await;
            }
        }
        match attempt.give_up(&self.table).await? {
            Some(built) => self.committed(change, *built, attempt).await,
            None => Ok(CommitOutcome::Exhausted {
                attempts: retry.max_retries.saturating_add(1),
            }),
        }
    }

    /// Looks at the table and writes the manifests of one attempt. `Some` if there will be none.
    async fn prepare(
        &mut self,
        request: &CommitRequest,
        change: &Change,
        guard: Guard<'_>,
        attempt: &mut Attempt,
        number: u32,
    ) -> Result<Option<CommitOutcome>> {
        self.base.refresh(&self.table, &request.commit_user).await?;
        if let Err(refusal) = guard(&self.base.view()) {
            return Ok(Some(CommitOutcome::Refused(refusal)));
        }
        change.check_buckets(self.base.schema()?)?;
        if let Some(conflict) = conflict::check(&mut self.base, &self.table, change).await? {
            let outcome = match self.made_before(request, change).await? {
                Some(snapshot) => CommitOutcome::AlreadyCommitted(snapshot),
                None => CommitOutcome::Conflict(conflict),
            };
            return Ok(Some(outcome));
        }
        let haste = if number == 0 {
            Haste::None
        } else {
            Haste::Retry
        };
        let base = self.base.manifests();
        let merged = merge::merge(&self.table, self.base.schema()?, base, haste).await?;
        attempt
            .write(&self.table, &self.base, (request, change), merged)
            .await?;
        Ok(None)
    }

    /// The newest snapshot of the commit user, if it has the request's number and changed the same
    /// files.
    async fn made_before(
        &self,
        request: &CommitRequest,
        change: &Change,
    ) -> Result<Option<Snapshot>> {
        let Some(own) = self.base.view().own_latest else {
            return Ok(None);
        };
        let keys = |entries: &[ManifestEntry]| -> BTreeSet<(bool, FileKey)> {
            let key = |entry: &ManifestEntry| (entry.kind == FileKind::Add, entry.key());
            entries.iter().map(key).collect()
        };
        let is_same = own.commit_identifier == request.commit_identifier
            && keys(&self.table.delta_entries(own).await?) == keys(&change.entries);
        Ok(is_same.then(|| own.clone()))
    }

    /// Finds out what a put whose reply was lost has done, and puts again what is not there.
    async fn settle(&self, guard: Guard<'_>, attempt: &mut Attempt) -> Result<Published> {
        match attempt.read_back(&self.table).await {
            ReadBack::Settled(published) => Ok(published),
            ReadBack::Unreadable => Ok(Published::Unknown),
            ReadBack::Absent => {
                let is_allowed = guard(&self.base.view()).is_ok();
                match self.is_replaced().await {
                    Ok(false) if is_allowed => attempt.publish(&self.table).await,
                    Err(_) if is_allowed => Ok(Published::Unknown),
                    // The lost put may still arrive: it is neither refused nor committed.
                    _ => Err(attempt.unknown()),
                }
            }
        }
    }

    /// Whether the folder holds another table than the one to commit to.
    async fn is_replaced(&self) -> Result<bool> {
        match &self.identity {
            Some(identity) => Ok(self.table.identity().await? != *identity),
            None => Ok(false),
        }
    }

    async fn committed(
        &mut self,
        change: &Change,
        built: Head,
        attempt: &mut Attempt,
    ) -> Result<CommitOutcome> {
        // Without an answer it stays as it is: the put took place.
        if matches!(self.is_replaced().await, Ok(true)) {
            self.base = Base::default();
            attempt.take_back(&self.table, &built.snapshot).await?;
            return Ok(CommitOutcome::TakenBack);
        }
        execute::write_latest_hint(&self.table, built.snapshot.id).await;
        let snapshot = built.snapshot.clone();
        self.base.advance(change, built);
        Ok(CommitOutcome::Committed(snapshot))
    }
}

impl Table {
    /// Publishes one commit. For many use a [`TableCommitter`], which remembers.
    ///
    /// # Errors
    /// As [`TableCommitter::commit`].
    pub async fn commit(
        &self,
        request: &CommitRequest,
        guard: Guard<'_>,
        retry: RetryPolicy,
    ) -> Result<CommitOutcome> {
        TableCommitter::new(self.clone())
            .commit(request, guard, retry)
            .await
    }

    /// The newest snapshot of a commit user, searched back from the latest one; `None` if none is
    /// kept.
    ///
    /// # Errors
    /// As [`Table::snapshot`]; a snapshot that cannot be read is an error, never skipped.
    pub async fn own_latest(&self, commit_user: &str) -> Result<Option<Snapshot>> {
        let Some(latest) = self.latest_snapshot().await? else {
            return Ok(None);
        };
        newest_of(self, commit_user, latest).await
    }
}
