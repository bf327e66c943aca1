//! Expiry: old snapshots go, and with them the files that nothing else names.
//!
//! Which snapshots may go is the format's rule ([`Retention`]). The order is our own, so that no
//! reader is shown a snapshot whose files are gone: what is about to expire is written down
//! (`weir/expiring.json`), then the snapshot files go, oldest first, then what only they named:
//! data files, manifests, lists. A run that is cut short anywhere leaves a table that reads, and
//! the next run finishes it by that note.

use std::collections::BTreeSet;
use std::ops::Range;

use futures::{StreamExt, stream};
use object_store::path::Path;
use object_store::{PutMode, PutOptions, PutPayload};

use crate::error::{Error, Result};
use crate::snapshot::Snapshot;
use crate::table::Table;

mod deletion;
mod intent;
mod retention;
#[cfg(test)]
mod tests;

pub use retention::{KeptBy, Retention};

use deletion::Deletion;
use intent::Intent;
use retention::{View, Window, window};

/// Names the files of ours that a snapshot names in its properties; they go with it.
pub type OwnFiles<'a> = &'a (dyn Fn(&Snapshot) -> Vec<Path> + Sync);

/// What may expire.
#[derive(Clone, Copy)]
pub struct ExpireRequest<'a> {
    /// How many snapshots are kept, and for how long.
    pub retention: &'a Retention,
    /// The newest snapshot of this commit user is needed, with all after it: its owner finds out
    /// by it what it committed.
    pub keep_newest_of: &'a str,
    /// Snapshots from this one on are needed, too.
    pub keep_from: Option<i64>,
    /// The time, milliseconds since 1970.
    pub now_ms: i64,
    /// The files of ours beside a snapshot.
    pub own_files: OwnFiles<'a>,
}

impl std::fmt::Debug for ExpireRequest<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExpireRequest")
            .field("retention", self.retention)
            .field("keep_newest_of", &self.keep_newest_of)
            .field("now_ms", &self.now_ms)
            .finish_non_exhaustive()
    }
}

/// What expired, or would.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expired {
    /// The snapshots that went, ascending.
    pub snapshots: Vec<i64>,
    /// Data and changelog files that went with them.
    pub data_files: usize,
    /// Manifests, lists, indexes, statistics and files of ours that went with them.
    pub metadata_files: usize,
    /// The first snapshot that stays; 0 if there is none at all.
    pub kept_from: i64,
    /// Why it stays.
    pub kept_by: KeptBy,
}

impl Table {
    /// Expires one run of snapshots, after finishing what an earlier run left undone. At most
    /// [`Retention::limit`] go; [`KeptBy::Limit`] says that another run would find more.
    ///
    /// Costs a listing of the snapshots and a few reads if nothing may go.
    ///
    /// # Errors
    /// [`Error::Store`] if the store fails, [`Error::Corrupt`] if a file cannot be read that says
    /// what is needed: then nothing is deleted for which that matters. The next run goes on.
    pub async fn expire(&self, request: &ExpireRequest<'_>) -> Result<Expired> {
        let unfinished = self.finish_expiry(request.own_files).await?;
        let mut expired = self.expire_next(request).await?;
        if let Some((snapshots, deletion)) = unfinished {
            expired.snapshots = snapshots
                .into_iter()
                .chain(expired.snapshots)
                .collect::<BTreeSet<_>>()
                .into_iter()
                .collect();
            expired.data_files += deletion.data_files();
            expired.metadata_files += deletion.metadata_files();
        }
        Ok(expired)
    }

    /// What [`Table::expire`] would do now. Deletes and writes nothing.
    ///
    /// # Errors
    /// As [`Table::expire`].
    pub async fn plan_expiry(&self, request: &ExpireRequest<'_>) -> Result<Expired> {
        let Some(chosen) = self.choose_expired(request).await? else {
            return Ok(Expired::nothing());
        };
        let mut expired = chosen.report();
        if let Some(intent) = chosen.intent {
            let deletion = Deletion::plan(self, &intent, &intent.end, request.own_files).await?;
            expired.data_files = deletion.data_files();
            expired.metadata_files = deletion.metadata_files();
        }
        Ok(expired)
    }

    /// The number of the earliest snapshot; `None` for a table without one.
    ///
    /// Reads the hint `EARLIEST`; it is right if that snapshot is there. Otherwise the folder is
    /// listed.
    ///
    /// # Errors
    /// [`Error::Store`] if it cannot be known.
    pub async fn earliest_snapshot_id(&self) -> Result<Option<i64>> {
        if let Some(hint) = self.read_hint(&self.paths().earliest_hint()).await?
            && self.exists(&self.paths().snapshot(hint)).await?
        {
            return Ok(Some(hint));
        }
        Ok(self.snapshot_ids().await?.first().copied())
    }

    /// What it means that reading snapshot `id` failed: if the snapshot is gone, it expired
    /// meanwhile. Otherwise the error stays as it is.
    pub async fn expired_or(&self, id: i64, error: Error) -> Error {
        match self.exists(&self.paths().snapshot(id)).await {
            Ok(false) => Error::SnapshotExpired { id },
            Ok(true) | Err(_) => error,
        }
    }

    async fn expire_next(&self, request: &ExpireRequest<'_>) -> Result<Expired> {
        let Some(chosen) = self.choose_expired(request).await? else {
            return Ok(Expired::nothing());
        };
        let mut expired = chosen.report();
        let Some(intent) = chosen.intent else {
            return Ok(expired);
        };
        if !intent.put(self).await? {
            // Someone else expires this table right now, or was cut short: the next run finishes it.
            expired.snapshots.clear();
            return Ok(expired);
        }
        let deletion = self.carry_out(&intent, request.own_files).await?;
        expired.data_files = deletion.data_files();
        expired.metadata_files = deletion.metadata_files();
        Ok(expired)
    }

    /// Finishes the run that left a note, if there is one.
    async fn finish_expiry(&self, own_files: OwnFiles<'_>) -> Result<Option<(Vec<i64>, Deletion)>> {
        let Some(intent) = Intent::read(self).await? else {
            return Ok(None);
        };
        if intent.is_of_this_table(self).await? {
            let deletion = self.carry_out(&intent, own_files).await?;
            return Ok(Some((intent.ids(), deletion)));
        }
        tracing::warn!(
            table = %self.root(),
            snapshots = ?intent.ids(),
            "a note on expiring snapshots is of other snapshots than those there are; it is dropped, \
             nothing is deleted"
        );
        intent.delete(self).await?;
        Ok(None)
    }

    /// Deletes what a note says; all of it may have been deleted before.
    async fn carry_out(&self, intent: &Intent, own_files: OwnFiles<'_>) -> Result<Deletion> {
        let Some(end) = intent.survivor(self).await? else {
            // No snapshot is left to tell what is still needed.
            intent.delete(self).await?;
            return Ok(Deletion::default());
        };
        self.write_earliest_hint(end.id).await?;
        // One after the other: a hole in the numbers would hide those below it.
        for id in intent.ids() {
            self.delete_objects(vec![self.paths().snapshot(id)]).await?;
        }
        let deletion = Deletion::plan(self, intent, &end, own_files).await?;
        for phase in deletion.phases() {
            self.delete_objects(phase).await?;
        }
        intent.delete(self).await?;
        Ok(deletion)
    }

    /// What may expire now; `None` if there is no snapshot.
    async fn choose_expired(&self, request: &ExpireRequest<'_>) -> Result<Option<Chosen>> {
        request.retention.validate()?;
        let ids = self.snapshot_ids().await?;
        let (Some(&earliest), Some(&latest)) = (ids.first(), ids.last()) else {
            return Ok(None);
        };
        let gone_ms = request.retention.consumer_time.map(|time| {
            let time_ms = i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
            request.now_ms.saturating_sub(time_ms)
        });
        let consumers = self.consumers(gone_ms).await?;
        let consumer = consumers.into_iter().min_by_key(|(_, next)| *next);
        let view = View {
            earliest,
            latest,
            consumer,
            needed: self.needed_from(request, latest).await?,
        };
        let (end, kept_by) = self
            .find_end(request, window(request.retention, &view), earliest)
            .await?;
        let expiring: Vec<i64> = ids.into_iter().filter(|id| *id < end).collect();
        let intent = self.intent_of(&expiring, end).await?;
        Ok(Some(Chosen {
            kept_from: end.max(earliest),
            kept_by,
            intent,
        }))
    }

    async fn needed_from(
        &self,
        request: &ExpireRequest<'_>,
        latest: i64,
    ) -> Result<Option<(String, i64)>> {
        let user = request.keep_newest_of;
        let latest = match self.snapshot(latest).await {
            Ok(latest) => latest,
            // Rolled back since the listing: the next run sees what is there then.
            Err(Error::NotFound { .. }) => return Ok(Some((String::new(), 0))),
            Err(error) => return Err(error),
        };
        let newest = crate::commit::newest_of(self, user, latest).await?;
        let newest = newest.map(|newest| (format!("it is the newest of `{user}`"), newest.id));
        let given = request
            .keep_from
            .map(|from| (format!("it is registered, as of `{user}`"), from));
        Ok(newest.into_iter().chain(given).min_by_key(|(_, id)| *id))
    }

    /// The first snapshot that stays: within the window, the first whose successor is not old
    /// enough.
    async fn find_end(
        &self,
        request: &ExpireRequest<'_>,
        window: Window,
        earliest: i64,
    ) -> Result<(i64, KeptBy)> {
        let age = request.retention.time;
        let age_ms = i64::try_from(age.as_millis()).unwrap_or(i64::MAX);
        let older_than_ms = request.now_ms.saturating_sub(age_ms);
        for id in window.checked.start.max(earliest)..window.checked.end {
            match self.snapshot(id + 1).await {
                Ok(next) if older_than_ms <= next.time_millis => {
                    return Ok((id, KeptBy::Age(age)));
                }
                Ok(_) | Err(Error::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok((window.checked.end, window.kept_by))
    }

    /// What is to be done so that these snapshots expire; `None` if there is nothing to do.
    async fn intent_of(&self, expiring: &[i64], end: i64) -> Result<Option<Intent>> {
        if expiring.is_empty() {
            return Ok(None);
        }
        let end = match self.snapshot(end).await {
            Ok(end) => end,
            // Without the one that stays it cannot be told what is needed.
            Err(Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut snapshots = Vec::with_capacity(expiring.len());
        for id in expiring {
            match self.snapshot(*id).await {
                Ok(snapshot) => snapshots.push(snapshot),
                Err(Error::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok((!snapshots.is_empty()).then_some(Intent { snapshots, end }))
    }

    async fn write_earliest_hint(&self, id: i64) -> Result<()> {
        let path = self.paths().earliest_hint();
        let options = PutOptions::from(PutMode::Overwrite);
        let put = self
            .store()
            .put_opts(&path, PutPayload::from(id.to_string()), options);
        put.await
            .map(|_| ())
            .map_err(|source| Error::store(&path, source))
    }

    /// Deletes objects; that one is gone already is as well.
    pub(crate) async fn delete_objects(&self, paths: Vec<Path>) -> Result<()> {
        let fallback = self.root().clone();
        let mut deletes = self
            .store()
            .delete_stream(stream::iter(paths.into_iter().map(Ok)).boxed());
        while let Some(deleted) = deletes.next().await {
            match deleted {
                Ok(_) | Err(object_store::Error::NotFound { .. }) => {}
                Err(source) => {
                    return Err(Error::Store {
                        path: fallback.to_string(),
                        source,
                    });
                }
            }
        }
        Ok(())
    }
}

/// The outcome of choosing.
struct Chosen {
    kept_from: i64,
    kept_by: KeptBy,
    intent: Option<Intent>,
}

impl Chosen {
    fn report(&self) -> Expired {
        Expired {
            snapshots: self.intent.as_ref().map(Intent::ids).unwrap_or_default(),
            kept_from: self.kept_from,
            kept_by: self.kept_by.clone(),
            ..Expired::nothing()
        }
    }
}

impl Expired {
    fn nothing() -> Self {
        Self {
            snapshots: Vec::new(),
            data_files: 0,
            metadata_files: 0,
            kept_from: 0,
            kept_by: KeptBy::Nothing,
        }
    }

    /// The numbers from the first to behind the last that went.
    pub fn range(&self) -> Option<Range<i64>> {
        let (first, last) = (self.snapshots.first()?, self.snapshots.last()?);
        Some(*first..*last + 1)
    }
}
