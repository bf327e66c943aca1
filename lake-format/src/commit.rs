//! Committing: data files become part of a table in one step, which all readers see or none.
//!
//! Manifests are written first and are invisible. One conditional put of `snapshot-N` publishes
//! them: of several committers that build on the same snapshot one wins, the others look again and
//! retry. What a lost reply did is read back, never guessed.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::error::Result;
use crate::manifest::ManifestEntry;
use crate::snapshot::{CommitKind, Snapshot};
use crate::table::Table;
use crate::write::CommitMessage;

mod base;
mod conflict;
mod execute;
mod merge;
mod plan;
mod scan;
#[cfg(test)]
mod tests;

pub use conflict::Conflict;

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

/// How a commit ended. Only `Committed` published anything: after the others the new data files may
/// be deleted.
#[must_use]
#[expect(clippy::large_enum_variant, reason = "there is one a commit")]
#[derive(Clone, Debug, PartialEq)]
pub enum CommitOutcome {
    /// This snapshot was published.
    Committed(Snapshot),
    /// There was nothing to commit.
    Nothing,
    /// The guard forbade it.
    Refused(GuardRefusal),
    /// It contradicts what is in the table; the same commit will never succeed.
    Conflict(Conflict),
    /// Others were faster each time; the same commit may succeed later.
    Exhausted {
        /// Attempts made.
        attempts: u32,
    },
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
}

impl TableCommitter {
    /// A committer that knows nothing yet. Does no IO.
    pub fn new(table: Table) -> Self {
        Self {
            table,
            base: Base::default(),
        }
    }

    /// The table.
    pub fn table(&self) -> &Table {
        &self.table
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
                    None => attempt.publish(&self.table).await?,
                    Some(outcome) => return Ok(outcome),
                }
            };
            if let Published::Yes(built) = published {
                return Ok(self.committed(change, *built).await);
            }
        }
        match attempt.give_up(&self.table).await? {
            Some(built) => Ok(self.committed(change, *built).await),
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
            return Ok(Some(CommitOutcome::Conflict(conflict)));
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

    /// Finds out what a put whose reply was lost has done, and puts again what is not there.
    async fn settle(&self, guard: Guard<'_>, attempt: &mut Attempt) -> Result<Published> {
        match attempt.read_back(&self.table).await {
            ReadBack::Settled(published) => Ok(published),
            ReadBack::Unreadable => Ok(Published::Unknown),
            ReadBack::Absent => match guard(&self.base.view()) {
                Ok(()) => attempt.publish(&self.table).await,
                // The lost put may still arrive: it is neither refused nor committed.
                Err(_) => Err(attempt.unknown()),
            },
        }
    }

    async fn committed(&mut self, change: &Change, built: Head) -> CommitOutcome {
        execute::write_latest_hint(&self.table, built.snapshot.id).await;
        let snapshot = built.snapshot.clone();
        self.base.advance(change, built);
        CommitOutcome::Committed(snapshot)
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
        scan::newest_of(self, commit_user, latest).await
    }
}
