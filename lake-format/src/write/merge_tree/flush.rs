//! What a full buffer becomes: sorted changes, and one row a key. All that computes, no IO.

use std::sync::Arc;

use arrow::array::RecordBatch;

use crate::error::Result;
use crate::merge::{ChangeBuffer, Input, Merge, Rule, SortedChanges, Step};
use crate::write::layout::Layout;

/// A buffer on its way to files.
pub(super) struct Flush {
    /// Until it is sorted.
    buffer: Option<ChangeBuffer>,
    sorted: Option<SortedChanges>,
    merge: Merge,
    layout: Layout,
    /// Whether the changes as they came are asked for.
    has_changelog: bool,
}

/// The next rows, in the columns of a file.
pub(super) enum Flushed {
    /// Changes as they came.
    Changes(RecordBatch),
    /// One row a key.
    Merged(RecordBatch),
    /// All is given.
    Done,
}

impl Flush {
    pub(super) fn new(
        buffer: ChangeBuffer,
        rule: Arc<Rule>,
        layout: Layout,
        has_changelog: bool,
    ) -> Result<Self> {
        Ok(Self {
            buffer: Some(buffer),
            sorted: None,
            merge: Merge::new(rule, 1, None)?,
            layout,
            has_changelog,
        })
    }

    /// Goes on until there are rows. The first call sorts.
    pub(super) fn next(&mut self) -> Result<Flushed> {
        if let Some(mut buffer) = self.buffer.take() {
            self.sorted = Some(buffer.take_sorted());
        }
        loop {
            match self.merge.step()? {
                Step::Rows(rows) => return Ok(Flushed::Merged(self.layout.file_rows(&rows)?)),
                Step::Done => return Ok(Flushed::Done),
                Step::Need(_) => {
                    let next = self.sorted.as_mut().map(SortedChanges::next_batch);
                    // A run that is not fed has ended.
                    let Some(batch) = next.transpose()?.flatten() else {
                        self.sorted = None;
                        continue;
                    };
                    let input = Input {
                        batch: batch.clone(),
                        level: 0,
                        age: 0,
                    };
                    self.merge.feed(0, input)?;
                    if self.has_changelog {
                        return Ok(Flushed::Changes(self.layout.file_rows(&batch)?));
                    }
                }
            }
        }
    }
}
