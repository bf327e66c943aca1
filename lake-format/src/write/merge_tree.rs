//! Writing changes of rows with a primary key: sorted files of level 0.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Int8Array, Int64Array, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use object_store::ObjectStore;
use object_store::path::Path;

use super::layout::Layout;
use super::open_file::blocking;
use super::rolling::{MAX_ROWS_PER_ENCODE, Place, RollingFiles, copied, sliced_bytes};
use super::{CommitMessage, DictionaryChoice, WriteTarget, WriterOptions, check_target, conform};
use crate::error::{Error, Result};
use crate::merge::{ChangeBuffer, Rule, ignore_delete};
use crate::options::TableOptions;
use crate::row_kind::RowKind;
use crate::schema::TableSchema;
use crate::types::arrow_schema;

mod flush;

use flush::{Flush, Flushed};

/// Most bytes that are sorted at once: offsets in Arrow's text arrays end at 2 GiB.
const MAX_BUFFER_BYTES: usize = 1 << 30;

/// Writes changes of keyed rows to sorted level-0 files of one (partition, bucket).
///
/// Changes are held in memory up to `buffer_bytes`, then sorted by key, `sequence.field` and
/// sequence number, merged to one row a key by the table's merge engine, and written (paimon:
/// `MergeTreeWriter`, `SortBufferWriteBuffer`). A key that changed once keeps its change as it came,
/// the kind included; so does the last change of a key with `deduplicate`, be it a retraction. The
/// rows of other engines are inserts, or deletes if the row is gone. `-U` is a change like any
/// other: the `+U` behind it has the higher number and wins. Changes that the options
/// `ignore-delete` and `ignore-update-before` name leave no trace but a gap in the numbers (paimon:
/// `RowKindFilter`).
///
/// With `changelog-producer=input` the changes are also written as they came, in the same order and
/// unmerged, to files of their own.
///
/// Rows of level 0 with the merge engine `first-row` are seen once they are compacted, not before.
///
/// Files are invisible until a commit names them. After an error, or if a call was cancelled, the
/// writer only takes [`MergeTreeWriter::abort`].
pub struct MergeTreeWriter {
    target: WriteTarget,
    rule: Arc<Rule>,
    /// The columns of a batch as it comes.
    arrow_schema: SchemaRef,
    /// The same, then sequence number and row kind.
    changes_schema: SchemaRef,
    ignored: Ignored,
    buffer: ChangeBuffer,
    /// Bytes of the columns in the buffer.
    column_bytes: usize,
    buffer_bytes: usize,
    data: RollingFiles,
    changelog: Option<RollingFiles>,
    next_sequence_number: i64,
    row_count: u64,
    /// Whether a call is at work, failed or was cancelled.
    is_broken: bool,
}

/// Kinds of changes that are left out.
#[derive(Clone, Copy, Debug)]
struct Ignored {
    retractions: bool,
    update_before: bool,
}

impl Ignored {
    fn has(self, kind: RowKind) -> bool {
        self.retractions && kind.is_retraction()
            || self.update_before && kind == RowKind::UpdateBefore
    }
}

impl std::fmt::Debug for MergeTreeWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MergeTreeWriter")
            .field("folder", self.data.folder())
            .field("rows", &self.row_count)
            .finish_non_exhaustive()
    }
}

impl MergeTreeWriter {
    /// A writer for `target` in the table at `root`. Does no IO.
    ///
    /// * `target.first_sequence_number`: of the first change; each change takes the next one, those
    ///   that are ignored too.
    /// * `buffer_bytes`: changes held before they are written; above 1 GiB it is 1 GiB. Sorting
    ///   takes no more than a batch beside them.
    ///
    /// # Errors
    /// [`Error::BadValue`] if bucket, bucket count or sequence number do not fit the table;
    /// [`Error::Unsupported`] for tables without a primary key or with other buckets than by hash,
    /// and for options by which rows are written in ways that are not known here: deletion vectors,
    /// changelogs that compaction makes, `rowkind.field`, merge engines and aggregate functions,
    /// file formats, compressions.
    pub fn new(
        target: WriteTarget,
        options: WriterOptions,
        buffer_bytes: usize,
        store: Arc<dyn ObjectStore>,
        root: Path,
    ) -> Result<Self> {
        let schema = &target.schema;
        let table = root.to_string();
        let table_options = TableOptions::new(&schema.options);
        let has_changelog = check_table(schema, &table)?;
        check_target(&target)?;
        if target.first_sequence_number < 0 {
            return Err(Error::bad_value("sequence number", "it is negative"));
        }
        let rule = Arc::new(Rule::of_changes(schema, &table)?);
        let ignored = Ignored {
            retractions: ignore_delete(table_options)?,
            update_before: table_options.is_true("ignore-update-before", false)?,
        };
        let prefixes = (
            table_options.data_file_prefix(),
            table_options.changelog_file_prefix(),
        );
        if has_changelog && prefixes.0 == prefixes.1 {
            let reason = "options `data-file.prefix` and `changelog-file.prefix` must differ";
            return Err(crate::schema::invalid(format!("{table}: {reason}")));
        }
        let layout = Layout::keyed(schema)?;
        let files = |prefix: &str| {
            let place = Place {
                layout: layout.clone(),
                prefix: prefix.to_owned(),
                store: Arc::clone(&store),
                root: root.clone(),
            };
            RollingFiles::new(&target, options.clone(), place)
        };
        Ok(Self {
            data: files(prefixes.0)?,
            changelog: has_changelog.then(|| files(prefixes.1)).transpose()?,
            arrow_schema: schema.arrow_schema(),
            changes_schema: arrow_schema(rule.fields()),
            ignored,
            buffer: ChangeBuffer::new(Arc::clone(&rule))?,
            column_bytes: 0,
            buffer_bytes: buffer_bytes.min(MAX_BUFFER_BYTES),
            rule,
            next_sequence_number: target.first_sequence_number,
            row_count: 0,
            is_broken: false,
            target,
        })
    }

    /// Takes changes in their order: `batch` has the table's own columns by name, order and type,
    /// `kinds` one kind a row. Writes files if the buffer is full.
    ///
    /// # Errors
    /// [`Error::BadValue`] naming the column if the columns are others, if a null is where none may
    /// be, as in keys, if there are more or fewer kinds than rows: then nothing of the batch was
    /// taken. Otherwise as [`MergeTreeWriter::flush`].
    pub async fn write(&mut self, batch: RecordBatch, kinds: &[RowKind]) -> Result<()> {
        let batch = conform::conform(&batch, &self.arrow_schema)?;
        let rows = batch.num_rows();
        if kinds.len() != rows {
            let reason = format!("{} kinds for {rows} rows", kinds.len());
            return Err(Error::bad_value("row kinds", reason));
        }
        let count = i64::try_from(rows).unwrap_or(i64::MAX);
        let first = self.next_sequence_number;
        let next = first.checked_add(count);
        let next = next.ok_or_else(|| Error::bad_value("sequence number", "none is left"))?;
        let changes = self.changes(&batch, kinds, first)?;
        self.begin_call()?;
        self.next_sequence_number = next;
        self.row_count += rows as u64;
        let row_bytes = sliced_bytes(&changes) / changes.num_rows().max(1);
        let step = (self.buffer_bytes / 4 / row_bytes.max(1)).clamp(1, MAX_ROWS_PER_ENCODE);
        for start in (0..changes.num_rows()).step_by(step) {
            let length = step.min(changes.num_rows() - start);
            let rows = copied(&changes.slice(start, length))?;
            self.column_bytes += sliced_bytes(&rows);
            self.buffer.push(rows)?;
            if self.buffered_bytes() >= self.buffer_bytes {
                self.write_files().await?;
            }
        }
        self.is_broken = false;
        Ok(())
    }

    /// Sorts and merges what is held and writes it to files of level 0, one row a key: several files
    /// if it is more than the table's target file size, and then none has a key of another. The
    /// memory is free then. Many calls make many files, which readers must merge.
    ///
    /// # Errors
    /// [`Error::Store`] or [`Error::Parquet`] naming the file; [`Error::Unsupported`],
    /// [`Error::BadValue`] or [`Error::Arrow`] if the merge engine does not take the changes.
    pub async fn flush(&mut self) -> Result<()> {
        self.begin_call()?;
        self.write_files().await?;
        self.is_broken = false;
        Ok(())
    }

    /// Changes taken so far, before merging.
    pub fn row_count(&self) -> u64 {
        self.row_count
    }

    /// Bytes held in memory: changes, encoded and open pages, parts on their way to the store.
    pub fn memory_bytes(&self) -> usize {
        let changelog = self
            .changelog
            .as_ref()
            .map_or(0, RollingFiles::memory_bytes);
        self.buffered_bytes() + self.data.memory_bytes() + changelog
    }

    /// Which columns get a dictionary, once enough rows were seen to tell; for other writers of the
    /// same schema.
    pub fn dictionary(&self) -> Option<&DictionaryChoice> {
        self.data.dictionary()
    }

    /// Writes what is held. The files are durable as the store makes them, and named by nothing yet.
    ///
    /// # Errors
    /// As [`MergeTreeWriter::flush`]; all files begun are deleted as far as possible then.
    pub async fn finish(mut self) -> Result<CommitMessage> {
        if let Err(error) = self.flush().await {
            self.delete_files().await.ok();
            return Err(error);
        }
        let mut changelog = self.changelog;
        Ok(CommitMessage {
            partition: self.target.partition,
            bucket: self.target.bucket,
            total_buckets: self.target.total_buckets,
            new_files: self.data.take_finished(),
            changelog_files: changelog
                .as_mut()
                .map(RollingFiles::take_finished)
                .unwrap_or_default(),
        })
    }

    /// Deletes all files of this writer. Only for files that no commit names.
    ///
    /// # Errors
    /// [`Error::Store`] with the first file that could not be deleted; the others are deleted all
    /// the same.
    pub async fn abort(mut self) -> Result<()> {
        self.delete_files().await
    }

    fn buffered_bytes(&self) -> usize {
        self.column_bytes + self.buffer.order_bytes()
    }

    /// The batch with its sequence numbers and kinds, without the changes that are ignored.
    fn changes(&self, batch: &RecordBatch, kinds: &[RowKind], first: i64) -> Result<RecordBatch> {
        let numbers = (first..).take(kinds.len());
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(numbers));
        let codes = kinds.iter().map(|kind| kind.code());
        let codes: ArrayRef = Arc::new(Int8Array::from_iter_values(codes));
        let mut columns = batch.columns().to_vec();
        columns.extend([numbers, codes]);
        let failed = |source: ArrowError| Error::Arrow {
            what: format!("changes of {}", self.rule.table()),
            source,
        };
        let schema = SchemaRef::clone(&self.changes_schema);
        let changes = RecordBatch::try_new(schema, columns).map_err(failed)?;
        if !kinds.iter().any(|kind| self.ignored.has(*kind)) {
            return Ok(changes);
        }
        let counts = kinds.iter().map(|kind| Some(!self.ignored.has(*kind)));
        let counts: BooleanArray = counts.collect();
        filter_record_batch(&changes, &counts).map_err(failed)
    }

    async fn write_files(&mut self) -> Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let sorted = {
            let rule = Arc::clone(&self.rule);
            let next = ChangeBuffer::new(Arc::clone(&self.rule))?;
            let full = std::mem::replace(&mut self.buffer, next);
            let layout = self.data.layout().clone();
            Flush::new(full, rule, layout, self.changelog.is_some())?
        };
        let permits = self.data.options().encode_permits.clone();
        let folder = self.data.folder().clone();
        let mut flush = sorted;
        loop {
            let work = move || {
                let rows = flush.next()?;
                Ok((flush, rows))
            };
            let (flushing, rows) = blocking(permits.as_ref(), &folder, work).await?;
            flush = flushing;
            match rows {
                Flushed::Changes(rows) => {
                    if let Some(changelog) = &mut self.changelog {
                        changelog.write(&rows).await?;
                    }
                }
                Flushed::Merged(rows) => self.data.write(&rows).await?,
                Flushed::Done => break,
            }
        }
        drop(flush);
        self.column_bytes = 0;
        self.data.end_file().await?;
        if let Some(changelog) = &mut self.changelog {
            changelog.end_file().await?;
        }
        Ok(())
    }

    /// Marks the writer as broken until the call has succeeded.
    fn begin_call(&mut self) -> Result<()> {
        if !std::mem::replace(&mut self.is_broken, true) {
            return Ok(());
        }
        Err(Error::WriterBroken {
            path: self.data.folder().to_string(),
        })
    }

    async fn delete_files(&mut self) -> Result<()> {
        self.is_broken = true;
        let data = self.data.delete_files().await;
        match &mut self.changelog {
            Some(changelog) => data.and(changelog.delete_files().await),
            None => data,
        }
    }
}

/// Whether changes are also written as they came.
///
/// # Errors
/// [`Error::Unsupported`] if rows of the table are not written here.
fn check_table(schema: &TableSchema, table: &str) -> Result<bool> {
    let refused = |what: &str, reason: &str| {
        Err(Error::Unsupported {
            what: format!("writing {table} {what}"),
            reason: reason.to_owned(),
        })
    };
    if !schema.is_primary_key_table() {
        return refused("by key", "it has no primary key");
    }
    let options = TableOptions::new(&schema.options);
    if options.is_true("deletion-vectors.enabled", false)? {
        let reason = "its rows are seen once compaction has marked the old ones deleted";
        return refused("with deletion vectors", reason);
    }
    if options.get("rowkind.field").is_some() {
        let reason = "kinds are given with the rows, not by a column";
        return refused("with option `rowkind.field`", reason);
    }
    let producer = options.get("changelog-producer").unwrap_or("none");
    let producer = producer.trim().to_ascii_lowercase();
    let is_first_row = options.get("merge-engine").is_some_and(|engine| {
        let engine = engine.trim();
        engine.eq_ignore_ascii_case("first-row")
    });
    match producer.as_str() {
        "none" => Ok(false),
        "input" if is_first_row => {
            let reason = "merge engine `first-row` has no such changelog";
            refused("with `changelog-producer=input`", reason)
        }
        "input" => Ok(true),
        other => {
            let what = format!("with `changelog-producer={other}`");
            refused(&what, "only `none` and `input` are written")
        }
    }
}

#[cfg(test)]
mod tests;
