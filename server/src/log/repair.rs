//! Looking over the log of a bucket that no server has open, and letting one go on that refuses to.
//!
//! Both read every byte, also what checkpoints cover. What a repair takes out of the log is set aside
//! in a file beside it, and the offsets in it become a gap: what stands before and behind stays.

use std::path::{Path, PathBuf};

use weir_protocol::ids::{LogOffset, TableBucket};

use super::aside::{AsideFolder, Cut, copy_range};
use super::config::LogConfig;
use super::disk::{self, Disk, DiskFile};
use super::error::{Error, Result};
use super::meta::{Gap, LogMeta};
use super::recovery::{Listing, Recovery};
use super::scan::{Behind, FoundBatch, Scan};
use super::segment;
use super::synced::SyncedMark;
use super::walk::{Check, Step, Walk, Walked};

/// How many places of one log are mended at most.
const MAX_FAULTS: usize = 10_000;

/// What stands in a log's folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// How many segments there are.
    pub segments: usize,
    /// Their bytes.
    pub size_bytes: u64,
    /// The first offset held.
    pub start: LogOffset,
    /// The offset after the last record that can be reached.
    pub end: LogOffset,
    /// The log was durable below this offset when it was last synced, as far as that is known.
    pub synced: Option<LogOffset>,
    /// Offsets that are not held.
    pub gaps: Vec<Gap>,
    /// Files of what was cut off.
    pub set_aside: usize,
    /// The first place that keeps the log from opening, or from being read to its end.
    pub damage: Option<Damage>,
}

/// A place in a log where records are damaged or missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The file.
    pub path: PathBuf,
    /// Where in it, in bytes.
    pub position: u64,
    /// What does not hold.
    pub reason: &'static str,
}

/// What a repair did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repaired {
    /// The offsets that are no longer held.
    pub gaps: Vec<Gap>,
    /// The files in which what was taken out is kept.
    pub set_aside: Vec<PathBuf>,
}

/// The log of a bucket that nobody has open.
#[derive(Clone, Copy, Debug)]
pub struct ClosedLog<'a> {
    /// Where its files are.
    pub disk: &'a dyn Disk,
    /// Its folder.
    pub dir: &'a Path,
    /// Whose log it is.
    pub bucket: TableBucket,
    /// How it is kept.
    pub config: &'a LogConfig,
}

/// The first thing wrong in a log.
struct Fault {
    damage: Damage,
    /// The first offset that is lost.
    from: LogOffset,
    mend: Mend,
}

enum Mend {
    /// The bytes from the damage on go, up to a whole batch behind them, if there is one.
    CutOut {
        base_offset: LogOffset,
        len: u64,
        behind: Option<FoundBatch>,
    },
    /// The segment goes: its offsets are held by the one before.
    TakeAway { base_offset: LogOffset },
    /// The log goes on at this offset.
    GoOnAt(LogOffset),
}

/// What a look over the whole log came to.
struct Looked {
    end: LogOffset,
    size_bytes: u64,
    fault: Option<Fault>,
}

impl ClosedLog<'_> {
    /// Reads the whole log; changes nothing. Blocks.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if `log.meta` cannot be read, [`Error::NewerFormat`], [`Error::Io`].
    pub fn inspect(&self) -> Result<Inspection> {
        let (meta, listing) = (self.meta()?, self.recovery().list()?);
        let looked = self.look(&meta, &listing)?;
        Ok(Inspection {
            segments: listing.segments.len(),
            size_bytes: looked.size_bytes,
            start: meta.log_start,
            end: looked.end,
            synced: SyncedMark::load(self.disk, self.dir)?.map(|mark| mark.next_offset),
            gaps: meta.gaps,
            set_aside: listing.cuts.len(),
            damage: looked.fault.map(|fault| fault.damage),
        })
    }

    /// Takes out what is damaged, one place after the other, until the log opens. Cut short, it goes on
    /// when it is called again. Blocks.
    ///
    /// # Errors
    /// As [`ClosedLog::inspect`]; what was mended before stays so.
    pub fn repair(&self) -> Result<Repaired> {
        let mut repaired = Repaired::default();
        for _ in 0..MAX_FAULTS {
            let (mut meta, listing) = (self.meta()?, self.recovery().list()?);
            let Some(fault) = self.look(&meta, &listing)?.fault else {
                break;
            };
            self.mend(&fault, &mut meta, &mut repaired)?;
        }
        self.recovery().run()?;
        repaired.gaps = self.meta()?.gaps;
        Ok(repaired)
    }

    fn recovery(&self) -> Recovery<'_> {
        Recovery {
            disk: self.disk,
            dir: self.dir,
            bucket: self.bucket,
            config: self.config,
        }
    }

    fn meta(&self) -> Result<LogMeta> {
        let missing = || Error::corrupt(&self.dir.join(super::meta::FILE_NAME), 0, "missing");
        LogMeta::load(self.disk, self.dir, self.bucket)?.ok_or_else(missing)
    }

    fn path(&self, base_offset: LogOffset) -> PathBuf {
        self.dir.join(segment::log_name(base_offset))
    }

    /// Follows the segments to the first fault.
    fn look(&self, meta: &LogMeta, listing: &Listing) -> Result<Looked> {
        let promised = self.promised(meta, listing)?;
        let mut looked = Looked {
            end: meta.log_start,
            size_bytes: 0,
            fault: None,
        };
        let segments = listing.segments.iter().copied();
        let mut segments = segments.filter(|base| *base >= meta.log_start).peekable();
        while let Some(base) = segments.next() {
            let file = self.open(base)?;
            let len = self.measure(base, &*file)?;
            looked.size_bytes += len;
            if looked.fault.is_some() {
                continue;
            }
            if base != looked.end && base != meta.after_gap(looked.end) {
                if len > 0 {
                    looked.fault = Some(self.broken_chain(looked.end, base));
                }
                continue;
            }
            let walked = self.walk(base, &*file, len)?;
            looked.end = walked.next_offset;
            let is_last = segments.peek().is_none();
            if let Some(reason) = walked.stopped
                // Behind what is promised it is recovery's to cut.
                && !(is_last && walked.next_offset >= promised)
            {
                let limit = segments.peek().copied();
                looked.fault = Some(self.damaged(base, &*file, (walked, len), (reason, limit))?);
            }
        }
        let end = meta.after_gap(looked.end);
        if looked.fault.is_none() && end < promised {
            let from = looked.end;
            looked.fault = Some(self.ends_early(from, promised, listing)?);
        }
        looked.end = end;
        Ok(looked)
    }

    fn open(&self, base: LogOffset) -> Result<std::sync::Arc<dyn DiskFile>> {
        let path = self.path(base);
        self.disk
            .open(&path)
            .map_err(|error| Error::io(&path, "open", error))
    }

    fn measure(&self, base: LogOffset, file: &dyn DiskFile) -> Result<u64> {
        file.len()
            .map_err(|error| Error::io(&self.path(base), "measure", error))
    }

    fn walk(&self, base: LogOffset, file: &dyn DiskFile, len: u64) -> Result<Walked> {
        let walk = Walk {
            range: 0..len,
            next_offset: base,
            check: Check::Everything,
        };
        walk.run(&self.path(base), file, |_, _| Step::On)
    }

    /// Records below this offset were durable, as something in the folder says.
    fn promised(&self, meta: &LogMeta, listing: &Listing) -> Result<LogOffset> {
        let synced = SyncedMark::load(self.disk, self.dir)?.map(|mark| mark.next_offset);
        let gaps = meta.gaps.iter().map(|gap| gap.to);
        let snapshot = self.recovery().newest_readable_snapshot(listing)?;
        let all = synced.into_iter().chain(gaps);
        let all = all.chain(snapshot.map(|snapshot| snapshot.offset));
        Ok(all.fold(meta.log_start, LogOffset::max))
    }

    fn broken_chain(&self, end: LogOffset, base: LogOffset) -> Fault {
        let is_missing = base > end;
        let (at, reason) = if is_missing {
            (end, "the segment is missing")
        } else {
            (base, "the segment before holds these offsets")
        };
        let mend = if is_missing {
            Mend::GoOnAt(base)
        } else {
            Mend::TakeAway { base_offset: base }
        };
        let damage = Damage {
            path: self.path(at),
            position: 0,
            reason,
        };
        Fault {
            damage,
            from: end,
            mend,
        }
    }

    fn damaged(
        &self,
        base_offset: LogOffset,
        file: &dyn DiskFile,
        (walked, len): (Walked, u64),
        (reason, limit): (&'static str, Option<LogOffset>),
    ) -> Result<Fault> {
        let path = self.path(base_offset);
        let scan = Scan {
            path: &path,
            file,
            len,
            // At least the one offset of the bad batch is lost.
            from_offset: LogOffset(walked.next_offset.0 + 1),
            max_batch_bytes: self.config.max_batch_bytes as u64,
        };
        let mut from = walked.position + 1;
        let behind = loop {
            match scan.first_batch(from)? {
                Behind::Batch(found) if limit.is_some_and(|limit| found.base_offset >= limit) => {
                    from = found.position + 1;
                }
                Behind::Batch(found) => break Some(found),
                Behind::Nothing | Behind::Unknown => break None,
            }
        };
        let mend = Mend::CutOut {
            base_offset,
            len,
            behind,
        };
        let (position, from) = (walked.position, walked.next_offset);
        let damage = Damage {
            path,
            position,
            reason,
        };
        Ok(Fault { damage, from, mend })
    }

    fn ends_early(&self, from: LogOffset, promised: LogOffset, listing: &Listing) -> Result<Fault> {
        let last = listing.segments.iter().rev().find(|base| **base <= from);
        let (path, position) = match last {
            Some(base) => (self.path(*base), self.measure(*base, &*self.open(*base)?)?),
            None => (self.path(from), 0),
        };
        let damage = Damage {
            path,
            position,
            reason: "the log ends here",
        };
        let mend = Mend::GoOnAt(promised);
        Ok(Fault { damage, from, mend })
    }

    /// Each step is durable before the next, and a later call goes on from any of them.
    fn mend(&self, fault: &Fault, meta: &mut LogMeta, repaired: &mut Repaired) -> Result<()> {
        let folder = AsideFolder {
            disk: self.disk,
            dir: self.dir,
        };
        match fault.mend {
            Mend::GoOnAt(to) => self.add_gap(meta, fault.from, to),
            Mend::TakeAway { base_offset } => {
                self.remove_index(base_offset)?;
                let cut = Cut {
                    base_offset,
                    position: 0,
                    end: 0,
                };
                let name = folder.take_segment(&cut)?;
                repaired.set_aside.push(self.dir.join(name));
                self.sync_names()
            }
            Mend::CutOut {
                base_offset,
                len,
                behind,
            } => {
                let file = self.open(base_offset)?;
                let position = fault.damage.position;
                let cut = Cut {
                    base_offset,
                    position,
                    end: behind.map_or(len, |found| found.position),
                };
                let name = folder.copy(&cut, &*file)?;
                repaired.set_aside.push(self.dir.join(name));
                self.remove_index(base_offset)?;
                if let Some(found) = behind {
                    self.begin_segment(found, &*file, len)?;
                    self.add_gap(meta, fault.from, found.base_offset)?;
                }
                let path = self.path(base_offset);
                file.set_len(position)
                    .and_then(|()| file.sync_data())
                    .map_err(|error| Error::io(&path, "truncate", error))
            }
        }
    }

    /// What stands behind the damage becomes a segment of its own.
    fn begin_segment(&self, found: FoundBatch, file: &dyn DiskFile, len: u64) -> Result<()> {
        let path = self.path(found.base_offset);
        let temporary = path.with_extension("log.tmp");
        copy_range(self.disk, file, (found.position, len), &temporary)
            .and_then(|()| self.disk.rename(&temporary, &path))
            .map_err(|error| Error::io(&path, "write", error))?;
        self.sync_names()
    }

    fn add_gap(&self, meta: &mut LogMeta, from: LogOffset, to: LogOffset) -> Result<()> {
        match meta.gaps.iter_mut().find(|gap| gap.from == from) {
            Some(gap) => gap.to = to,
            None => meta.gaps.push(Gap { from, to }),
        }
        meta.gaps.sort_unstable_by_key(|gap| gap.from);
        meta.save(self.disk, self.dir)
    }

    fn remove_index(&self, base_offset: LogOffset) -> Result<()> {
        let path = self.dir.join(segment::index_name(base_offset));
        disk::remove_if_there(self.disk, &path)
            .map_err(|error| Error::io(&path, "remove", error))?;
        self.sync_names()
    }

    fn sync_names(&self) -> Result<()> {
        let synced = self.disk.sync_dir(self.dir);
        synced.map_err(|error| Error::io(self.dir, "sync", error))
    }
}
