//! Where a log begins, ends and ceases: retention, truncation, the lake end, closing and deleting.

use std::path::Path;
use std::sync::Arc;

use weir_protocol::ids::LogOffset;

use super::disk::{self, Disk};
use super::error::{Error, Result};
use super::flush::Checkpoint;
use super::meta::Gap;
use super::recovery::{Recovery, remove_segment, writers_name};
use super::segment::{self, Segment};
use super::synced::SyncedMark;
use super::walk::{Check, Step};
use super::{Appender, Flushing, Life, Log, take_up};

/// Ends the name of a folder whose log was deleted but whose files may not all be gone.
const DELETED_SUFFIX: &str = ".deleted";

impl Log {
    /// Where the records begin that are younger than `cutoff_ms`, in whole segments: what is below may
    /// be given to [`Log::delete_segments_below`], once the lake has it.
    pub fn retention_offset(&self, cutoff_ms: i64) -> LogOffset {
        let view = self.view.read();
        let young = view
            .segments
            .iter()
            .find(|segment| segment.extent().newest_ms >= cutoff_ms);
        young.map_or(view.log_end, |segment| segment.base_offset)
    }

    /// Removes the segments whose records are all below `offset` and durable; returns the new start.
    /// The caller passes no offset above what the lake holds. Blocks for two syncs if there are any.
    ///
    /// # Errors
    /// [`Error::Io`]: the start may or may not have moved, nothing at or above `offset` is touched.
    pub fn delete_segments_below(&self, offset: LogOffset) -> Result<LogOffset> {
        let mut flushing = self.flushing.lock();
        let offset = offset.min(self.flushed_end());
        let start = self.view.read().start_after_retention(offset);
        if start == self.log_start() {
            return Ok(start);
        }
        // The writers of what goes must outlive it.
        if flushing
            .snapshots
            .last()
            .is_none_or(|snapshot| *snapshot < start)
        {
            self.flush_with(&mut flushing, Checkpoint::Now)?;
        }
        let mut appender = self.appender.lock();
        self.refuse_unless_open(&appender)?;
        // The last segment may have taken records that nobody has flushed yet: look again.
        let start = self.view.read().start_after_retention(offset);
        if start == self.log_start() {
            return Ok(start);
        }
        appender.meta.log_start = start;
        appender.meta.gaps.retain(|gap| gap.to > start);
        appender.meta.save(&*self.options.disk, &self.dir)?;
        let removed: Vec<Arc<Segment>> = {
            let mut view = self.view.write();
            view.log_start = start;
            let keep = view
                .segments
                .partition_point(|segment| segment.base_offset < start);
            view.segments.drain(..keep).collect()
        };
        appender
            .closed
            .retain(|segment| segment.base_offset >= start);
        if appender
            .active
            .as_ref()
            .is_some_and(|active| active.base_offset < start)
        {
            appender.active = None;
            appender.active_dirty = false;
        }
        drop(appender);
        for segment in removed {
            // What stays is below the start and goes when the log is opened.
            if let Err(error) = remove_segment(&*self.options.disk, &self.dir, segment.base_offset)
            {
                tracing::warn!(bucket = %self.bucket, %error, "old segment stays");
            }
        }
        Ok(start)
    }

    /// Removes every batch that reaches to `offset` or beyond; returns the new end, which is lower if
    /// `offset` lay inside of a batch. Only for a replica that gives up what its leader does not have:
    /// the offsets are used again. Blocks; reads the last segment kept.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] below the start. After [`Error::Io`] the log is failed: open it again.
    pub fn truncate_to(&self, offset: LogOffset) -> Result<LogOffset> {
        let mut flushing = self.flushing.lock();
        let mut appender = self.appender.lock();
        self.refuse_unless_open(&appender)?;
        let view = self.view.read();
        if offset >= view.log_end {
            return Ok(view.log_end);
        }
        self.refuse_out_of_range(&view, offset)?;
        let gap = appender
            .meta
            .gaps
            .iter()
            .find(|gap| gap.from < offset && offset < gap.to);
        let offset = gap.map_or(offset, |gap| gap.from);
        let segments = view.segments.clone();
        drop(view);
        let cut = self.truncate_files(&mut flushing, &mut appender, &segments, offset);
        let config = &self.options.config;
        let recovery = Recovery {
            disk: &*self.options.disk,
            dir: &self.dir,
            bucket: self.bucket,
            config,
        };
        let recovered = match cut.and_then(|()| recovery.run()) {
            Ok(recovered) => recovered,
            Err(error) => {
                self.fail(&mut appender, &error);
                return Err(error);
            }
        };
        let (new_flushing, new_appender, new_view, _) = take_up(recovered);
        let end = new_view.log_end;
        *flushing = new_flushing;
        *appender = new_appender;
        *self.view.write() = new_view;
        self.flushed.send_modify(|flushed| flushed.end = end);
        Ok(end)
    }

    /// First what vouches for the records, durably; then the records, the newest first.
    fn truncate_files(
        &self,
        flushing: &mut Flushing,
        appender: &mut Appender,
        segments: &[Arc<Segment>],
        offset: LogOffset,
    ) -> Result<()> {
        let disk = &*self.options.disk;
        let remove = |path: &Path| {
            disk::remove_if_there(disk, path).map_err(|error| Error::io(path, "remove", error))
        };
        SyncedMark::remove(disk, &self.dir)?;
        let kept = segments.partition_point(|segment| segment.base_offset < offset);
        let cut = kept.checked_sub(1).and_then(|at| segments.get(at));
        for snapshot in flushing
            .snapshots
            .iter()
            .filter(|snapshot| **snapshot > offset)
        {
            remove(&self.dir.join(writers_name(*snapshot)))?;
        }
        let position = match cut {
            Some(segment) if segment.extent().next_offset > offset => {
                let position = batch_position(disk, segment, offset)?;
                // A snapshot inside of the batch that is cut as a whole.
                for snapshot in &flushing.snapshots {
                    remove(&self.dir.join(writers_name(*snapshot)))?;
                }
                remove(&self.dir.join(segment::index_name(segment.base_offset)))?;
                Some((segment, position))
            }
            _ => None,
        };
        self.sync_names()?;
        let gaps = appender.meta.gaps.len();
        appender.meta.gaps.retain(|gap| gap.to <= offset);
        if appender.meta.gaps.len() != gaps {
            appender.meta.save(disk, &self.dir)?;
        }
        for segment in segments.iter().skip(kept).rev() {
            remove_segment(disk, &self.dir, segment.base_offset)?;
        }
        if let Some((segment, position)) = position {
            let file = segment.file(disk)?;
            file.set_len(position)
                .and_then(|()| file.sync_data())
                .map_err(|error| Error::io(segment.path(), "truncate", error))?;
        }
        self.sync_names()
    }

    /// Goes on at `lake_end` if the log ends below it: the records between were lost here but are in
    /// the lake, and an offset is never used twice. Returns the gap, which is remembered. Blocks for a
    /// few syncs if there is one.
    ///
    /// # Errors
    /// As [`Log::flush`]; [`Error::Io`] if the gap can't be recorded, the log being as before.
    pub fn continue_at(&self, lake_end: LogOffset) -> Result<Option<Gap>> {
        if self.log_end() >= lake_end {
            return Ok(None);
        }
        let mut flushing = self.flushing.lock();
        // Whoever leads the bucket calls before it takes appends, so once is enough.
        let mut appender = loop {
            self.flush_with(&mut flushing, Checkpoint::Now)?;
            let appender = self.appender.lock();
            if !appender.active_dirty {
                break appender;
            }
        };
        self.refuse_unless_open(&appender)?;
        let from = self.log_end();
        if from >= lake_end {
            return Ok(None);
        }
        let gap = Gap { from, to: lake_end };
        let mut meta = appender.meta.clone();
        let empty = self
            .view
            .read()
            .segments
            .iter()
            .all(|segment| segment.extent().len == 0);
        match meta.gaps.last_mut() {
            _ if empty => meta.log_start = lake_end,
            Some(last) if last.to == from => last.to = lake_end,
            _ => meta.gaps.push(gap),
        }
        meta.save(&*self.options.disk, &self.dir)?;
        tracing::warn!(
            bucket = %self.bucket, %from, to = %lake_end,
            "log ends below what the lake holds, going on at the lake's end",
        );
        appender.meta = meta;
        let mut view = self.view.write();
        view.log_end = lake_end;
        if empty {
            view.log_start = lake_end;
        }
        // A segment without any batch stood where the gap is now; recovery removes its file.
        view.segments.retain(|segment| segment.extent().len > 0);
        drop(view);
        let active = appender.active.take();
        appender.closed.extend(active);
        appender.closed.retain(|segment| segment.extent().len > 0);
        self.flushed.send_modify(|flushed| flushed.end = lake_end);
        Ok(Some(gap))
    }

    /// Flushes, writes a checkpoint so that the next opening reads nothing, and takes no more appends;
    /// reads go on. A log that is closed already stays so.
    ///
    /// # Errors
    /// As [`Log::flush`].
    pub fn close(&self) -> Result<()> {
        let mut flushing = self.flushing.lock();
        if self.appender.lock().life == Life::Closed {
            return Ok(());
        }
        loop {
            let flushed_end = self.flush_with(&mut flushing, Checkpoint::Now)?;
            let mut appender = self.appender.lock();
            if flushed_end == self.log_end() {
                appender.life = Life::Closed;
                break;
            }
        }
        Ok(())
    }

    /// Removes the log and its folder. Whoever waits for its durability is told that it is closed.
    ///
    /// # Errors
    /// [`Error::Io`]: the log is closed all the same; what stays goes with the folder of its table or
    /// partition at the next start.
    pub fn delete(&self) -> Result<()> {
        let _flushing = self.flushing.lock();
        self.appender.lock().life = Life::Closed;
        self.flushed.send_modify(|flushed| flushed.stopped = true);
        let disk = &*self.options.disk;
        let mut name = self.dir.file_name().unwrap_or_default().to_owned();
        name.push(DELETED_SUFFIX);
        let grave = self.dir.with_file_name(name);
        if disk
            .exists(&grave)
            .map_err(|error| Error::io(&grave, "look up", error))?
        {
            disk.remove_dir_all(&grave)
                .map_err(|error| Error::io(&grave, "remove", error))?;
        }
        disk.rename(&self.dir, &grave)
            .map_err(|error| Error::io(&self.dir, "rename", error))?;
        if let Some(parent) = self.dir.parent() {
            disk.sync_dir(parent)
                .map_err(|error| Error::io(parent, "sync", error))?;
        }
        disk.remove_dir_all(&grave)
            .map_err(|error| Error::io(&grave, "remove", error))
    }
}

impl super::View {
    /// Where the log begins without the segments that end at or below an offset.
    fn start_after_retention(&self, offset: LogOffset) -> LogOffset {
        let kept = self.segments.iter().find(|segment| {
            let extent = segment.extent();
            extent.len == 0 || extent.next_offset > offset
        });
        match kept {
            Some(segment) => segment.base_offset.max(self.log_start),
            None => self.log_end,
        }
    }
}

/// Where the batch begins that contains an offset.
fn batch_position(disk: &dyn Disk, segment: &Segment, offset: LogOffset) -> Result<u64> {
    let walk = segment.walk_from(segment.start_for(disk, offset)?, Check::Headers);
    let file = segment.file(disk)?;
    let walked = walk.run(segment.path(), &*file, |header, _| {
        match header.next_offset() {
            Some(next) if next > offset => Step::Stop,
            _ => Step::On,
        }
    })?;
    match walked.stopped {
        Some(reason) => Err(Error::corrupt(segment.path(), walked.position, reason)),
        None => Ok(walked.position),
    }
}
