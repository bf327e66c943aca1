//! Making the disk agree with what was judged: what is no part of the log is cut off, or set aside.

use super::super::aside::{AsideFolder, Cut};
use super::super::disk::{self, DiskFile};
use super::super::error::{Error, Result};
use super::super::scan::{Behind, Scan};
use super::super::segment;
use super::super::synced::SyncedMark;
use super::{Judged, Listing, Recovery, RecoveryReport, Verdict, named, remove_segment};

/// What is to be kept of the bytes that go.
#[derive(Default)]
struct Plan {
    /// Tails of segments that stay.
    tails: Vec<Cut>,
    /// Whole segments.
    segments: Vec<Cut>,
}

impl Recovery<'_> {
    /// Sets aside and cuts. Newest segments go first, so that a crash in between leaves a chain that
    /// ends the same way; what is set aside is durable before its segment is cut.
    pub(super) fn clean_up(&self, listing: &Listing, verdict: &Verdict) -> Result<RecoveryReport> {
        let plan = self.plan(listing, verdict)?;
        let mut report = RecoveryReport::default();
        self.set_tails_aside(&plan, verdict, &mut report)?;
        self.remove_unreached(&plan, verdict, &mut report)?;
        for base in verdict.remove.iter().rev() {
            remove_segment(self.disk, self.dir, *base)?;
        }
        let strays = listing
            .indexes
            .iter()
            .filter(|base| !listing.segments.contains(base));
        let strays = strays.map(|base| segment::index_name(*base));
        for name in strays.chain(listing.temporary.iter().cloned()) {
            let path = self.dir.join(name);
            named(&path, "remove", disk::remove_if_there(self.disk, &path))?;
        }
        let mut changed = !verdict.remove.is_empty() || !verdict.unreached.is_empty();
        for judged in &verdict.keep {
            report.scanned_bytes += judged.scanned_bytes;
            let Some(file) = &judged.found.file else {
                continue;
            };
            // Nothing vouches for its name either: who made it may have died before the sync.
            changed |= judged.scanned_bytes > 0 || judged.file_len == 0;
            report.truncated_bytes += self.cut_and_sync(judged, &**file)?;
        }
        if changed {
            named(self.dir, "sync", self.disk.sync_dir(self.dir))?;
        }
        Ok(report)
    }

    /// Looks for whole batches in all that goes. Changes nothing.
    fn plan(&self, listing: &Listing, verdict: &Verdict) -> Result<Plan> {
        let mut plan = Plan::default();
        for judged in &verdict.keep {
            let cut = Cut {
                base_offset: judged.base_offset,
                position: judged.found.extent.len,
                end: judged.file_len,
            };
            if let Some(file) = &judged.found.file
                && self.has_batches(&cut, &**file)?
            {
                plan.tails.push(cut);
            }
        }
        for base in &verdict.unreached {
            let path = self.dir.join(segment::log_name(*base));
            let file = named(&path, "open", self.disk.open(&path))?;
            let cut = Cut {
                base_offset: *base,
                position: 0,
                end: named(&path, "measure", file.len())?,
            };
            if self.has_batches(&cut, &*file)? {
                plan.segments.push(cut);
            }
        }
        self.refuse_too_much(listing, &plan)?;
        Ok(plan)
    }

    /// Whether there is a whole batch in it, or it is too much to tell.
    fn has_batches(&self, cut: &Cut, file: &dyn DiskFile) -> Result<bool> {
        let scan = Scan {
            path: &self.dir.join(segment::log_name(cut.base_offset)),
            file,
            len: cut.end,
            from_offset: cut.base_offset,
            max_batch_bytes: self.config.max_batch_bytes as u64,
        };
        Ok(scan.first_batch(cut.position)? != Behind::Nothing)
    }

    fn refuse_too_much(&self, listing: &Listing, plan: &Plan) -> Result<()> {
        let new = plan.tails.iter().chain(&plan.segments);
        let (new_files, new_bytes) = new.fold((0, 0), |(files, bytes), cut| {
            (files + 1, bytes + cut.end - cut.position)
        });
        if new_files == 0 {
            return Ok(());
        }
        let (files, bytes) = self.folder().held(&listing.cuts)?;
        let (files, bytes) = (files + new_files, bytes + new_bytes);
        if files > self.config.max_cut_files || bytes > self.config.max_cut_bytes {
            return Err(Error::TooMuchAside {
                path: self.dir.to_owned(),
                files,
                bytes,
            });
        }
        Ok(())
    }

    fn folder(&self) -> AsideFolder<'_> {
        AsideFolder {
            disk: self.disk,
            dir: self.dir,
        }
    }

    fn set_tails_aside(
        &self,
        plan: &Plan,
        verdict: &Verdict,
        report: &mut RecoveryReport,
    ) -> Result<()> {
        for cut in &plan.tails {
            let kept = verdict.keep.iter();
            let mut kept = kept.filter(|judged| judged.base_offset == cut.base_offset);
            let file = kept.find_map(|judged| judged.found.file.as_ref());
            if let Some(file) = file {
                let name = self.folder().copy(cut, &**file)?;
                self.tell(cut, &name, report);
            }
        }
        Ok(())
    }

    fn remove_unreached(
        &self,
        plan: &Plan,
        verdict: &Verdict,
        report: &mut RecoveryReport,
    ) -> Result<()> {
        for base in verdict.unreached.iter().rev() {
            report.removed_segments += 1;
            if let Some(cut) = plan.segments.iter().find(|cut| cut.base_offset == *base) {
                let index = self.dir.join(segment::index_name(*base));
                named(&index, "remove", disk::remove_if_there(self.disk, &index))?;
                let name = self.folder().take_segment(cut)?;
                self.tell(cut, &name, report);
            } else {
                tracing::warn!(bucket = %self.bucket, base_offset = %base, end = %verdict.end,
                    "log ends before this segment, in which nothing is whole: removing it");
                remove_segment(self.disk, self.dir, *base)?;
            }
        }
        Ok(())
    }

    fn tell(&self, cut: &Cut, name: &str, report: &mut RecoveryReport) {
        let bytes = cut.end - cut.position;
        report.set_aside_files += 1;
        report.set_aside_bytes += bytes;
        tracing::warn!(
            bucket = %self.bucket, segment = %segment::log_name(cut.base_offset),
            position = cut.position, bytes, file = %self.dir.join(name).display(),
            "whole batches stand behind the end of the log, setting them aside: they were never \
             synced, or the disk changed what it kept",
        );
    }

    /// What a killed process had only handed to the system is made durable before it is served.
    fn cut_and_sync(&self, judged: &Judged, file: &dyn DiskFile) -> Result<u64> {
        let path = self.dir.join(segment::log_name(judged.base_offset));
        let torn_bytes = judged.file_len - judged.found.extent.len;
        if torn_bytes > 0 {
            tracing::warn!(
                bucket = %self.bucket, segment = %path.display(), torn_bytes,
                position = judged.found.extent.len, end = %judged.found.extent.next_offset,
                "log ends in bytes that are no batch and were never synced, cutting them off",
            );
            named(&path, "truncate", file.set_len(judged.found.extent.len))?;
        }
        if judged.scanned_bytes > 0 {
            named(&path, "sync", file.sync_data())?;
        }
        Ok(torn_bytes)
    }

    /// Everything found is durable now. Failing to say so is no fault of the log.
    pub(super) fn note_synced(&self, before: Option<SyncedMark>, verdict: &Verdict) {
        let Some(last) = verdict.keep.last() else {
            return;
        };
        let now = SyncedMark {
            base_offset: last.base_offset,
            len: last.found.extent.len,
            next_offset: last.found.extent.next_offset,
        };
        if before == Some(now) {
            return;
        }
        if let Err(error) = now.write(self.disk, self.dir) {
            tracing::warn!(bucket = %self.bucket, %error, "cannot note how far the log is synced");
        }
    }
}
