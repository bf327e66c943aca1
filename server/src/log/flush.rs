//! Making a log durable, and the checkpoints that keep recovery short.

use std::sync::Arc;

use weir_protocol::ids::LogOffset;

use super::disk::{self, DiskFile};
use super::error::{Error, Result};
use super::recovery::writers_name;
use super::segment::{self, Extent, Segment};
use super::synced::{self, SyncedMark};
use super::{Appender, Flushing, Log};

/// How many writer snapshots are kept: the newest may be damaged.
const KEPT_SNAPSHOTS: usize = 2;

/// Whether a flush writes a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Checkpoint {
    WhenDue,
    Now,
}

/// What one flush has to do.
struct Job {
    closed: Vec<Arc<Segment>>,
    active: Option<(Arc<Segment>, Extent)>,
    sync_active: bool,
    sync_names: bool,
    end: LogOffset,
    /// The writers at the end, as bytes, if a checkpoint is due.
    writers: Option<Vec<u8>>,
}

impl Job {
    /// What to write down once all of it is synced; None if it changes nothing and is no checkpoint.
    fn synced_mark(&self) -> Option<SyncedMark> {
        if !self.sync_active && self.closed.is_empty() && self.writers.is_none() {
            return None;
        }
        let (base_offset, extent) = match (&self.active, self.closed.last()) {
            (Some((active, extent)), _) => (active.base_offset, *extent),
            (None, Some(last)) => (last.base_offset, last.extent()),
            (None, None) => return None,
        };
        Some(SyncedMark {
            base_offset,
            len: extent.len,
            next_offset: extent.next_offset,
        })
    }
}

impl Log {
    /// Makes everything appended so far durable; returns the end up to which it is. Blocks for one
    /// sync per file written to since the last flush; flushes of one log wait for each other, and the
    /// second then finds nothing to do.
    ///
    /// # Errors
    /// [`Error::Failed`] if a sync fails: that is final, the log must be opened again.
    pub fn flush(&self) -> Result<LogOffset> {
        let mut flushing = self.flushing.lock();
        self.flush_with(&mut flushing, Checkpoint::WhenDue)
    }

    pub(super) fn flush_with(
        &self,
        flushing: &mut Flushing,
        checkpoint: Checkpoint,
    ) -> Result<LogOffset> {
        let job = {
            let mut appender = self.appender.lock();
            self.refuse_unless_open(&appender)?;
            self.take_job(&mut appender, checkpoint)
        };
        if let Err(error) = self.sync(&job) {
            self.fail(&mut self.appender.lock(), &error);
            return Err(self.stop_reason());
        }
        // Before anyone is told: a process that dies now must not take what was told for a torn tail.
        let noted = self.note_synced(flushing, &job);
        self.flushed.send_if_modified(|flushed| {
            let advanced = job.end > flushed.end;
            flushed.end = flushed.end.max(job.end);
            advanced
        });
        if let Some(writers) = &job.writers
            && let Err(error) = self.write_checkpoint(flushing, &job, (writers, noted.as_deref()))
        {
            // The records are durable; only the next recovery reads more.
            tracing::warn!(bucket = %self.bucket, %error, "no checkpoint written");
            self.appender.lock().closed.extend(job.closed);
        }
        Ok(job.end)
    }

    fn take_job(&self, appender: &mut Appender, checkpoint: Checkpoint) -> Job {
        let closed = std::mem::take(&mut appender.closed);
        let due = checkpoint == Checkpoint::Now
            || !closed.is_empty()
            || appender.bytes_since_checkpoint >= self.options.config.checkpoint_bytes;
        let end = self.log_end();
        let writers = due.then(|| {
            appender.bytes_since_checkpoint = 0;
            appender.writers.expire(appender.newest_ms);
            appender.writers.encode(end, appender.newest_ms)
        });
        Job {
            closed,
            active: appender
                .active
                .as_ref()
                .map(|active| (Arc::clone(active), active.extent())),
            sync_active: std::mem::take(&mut appender.active_dirty),
            sync_names: std::mem::take(&mut appender.names_dirty),
            end,
            writers,
        }
    }

    /// Files in the order of their offsets, then the names.
    fn sync(&self, job: &Job) -> Result<()> {
        let active = job
            .active
            .iter()
            .filter(|_| job.sync_active)
            .map(|(active, _)| active);
        for segment in job.closed.iter().chain(active) {
            segment
                .file(&*self.options.disk)?
                .sync_data()
                .map_err(|error| Error::io(segment.path(), "sync", error))?;
        }
        if job.sync_names {
            self.sync_names()?;
        }
        Ok(())
    }

    /// Writes down how far the log is durable now. Failing to is no fault of the log: the record says
    /// less than is true then. None if nothing is to be said.
    fn note_synced(&self, flushing: &mut Flushing, job: &Job) -> Option<Arc<dyn DiskFile>> {
        let mark = job.synced_mark()?;
        let written = mark.write(&*self.options.disk, &self.dir);
        if let (Err(error), false) = (&written, flushing.unnoted) {
            tracing::warn!(bucket = %self.bucket, file = %self.dir.join(synced::FILE_NAME).display(),
                %error, "cannot note how far the log is synced");
        }
        flushing.unnoted = written.is_err();
        written.ok()
    }

    pub(super) fn sync_names(&self) -> Result<()> {
        let synced = self.options.disk.sync_dir(&self.dir);
        synced.map_err(|error| Error::io(&self.dir, "sync", error))
    }

    /// Writes the indexes of the closed segments and of the active one, then the writers. Called after
    /// everything up to the job's end was synced: a checkpoint vouches for that.
    fn write_checkpoint(
        &self,
        flushing: &mut Flushing,
        job: &Job,
        (writers, noted): (&[u8], Option<&dyn DiskFile>),
    ) -> Result<()> {
        if let Some(noted) = noted {
            let path = self.dir.join(synced::FILE_NAME);
            noted
                .sync_data()
                .map_err(|error| Error::io(&path, "sync", error))?;
        }
        for segment in &job.closed {
            self.write_index(segment, &segment.extent())?;
        }
        if let Some((active, extent)) = &job.active {
            self.write_index(active, extent)?;
        }
        let path = self.dir.join(writers_name(job.end));
        disk::replace_file(&*self.options.disk, &path, writers)
            .map_err(|error| Error::io(&path, "write", error))?;
        self.sync_names()?;
        for segment in &job.closed {
            segment.close();
        }
        if flushing.snapshots.last() != Some(&job.end) {
            flushing.snapshots.push(job.end);
        }
        while flushing.snapshots.len() > KEPT_SNAPSHOTS {
            let path = self.dir.join(writers_name(flushing.snapshots.remove(0)));
            if let Err(error) = self.options.disk.remove(&path) {
                tracing::warn!(snapshot = %path.display(), %error, "old snapshot stays");
            }
        }
        Ok(())
    }

    fn write_index(&self, segment: &Segment, extent: &Extent) -> Result<()> {
        let Some(bytes) = segment.index_file(extent) else {
            return Ok(());
        };
        let path = self.dir.join(segment::index_name(segment.base_offset));
        disk::replace_file(&*self.options.disk, &path, &bytes)
            .map_err(|error| Error::io(&path, "write", error))
    }
}
