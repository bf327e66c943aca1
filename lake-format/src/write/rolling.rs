//! The files of a writer, one after the other: a full one is followed by the next.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch, UInt32Array};
use arrow::compute::take_record_batch;
use object_store::ObjectStore;
use object_store::path::Path;

use super::dictionary::DictionaryChoice;
use super::layout::Layout;
use super::open_file::{self, FileContext, OpenFile};
use super::{WriteTarget, WriterOptions, compression};
use crate::data_file::DataFileMeta;
use crate::error::{Error, Result};
use crate::options::TableOptions;
use crate::paths::{TablePaths, data_file_name, named};

/// Rows encoded in one go, so that a huge batch neither overshoots a row group nor holds a thread
/// for long.
pub(super) const MAX_ROWS_PER_ENCODE: usize = 65_536;

/// Bytes of rows with which a file is begun. An encoder takes some 100 KiB a column from its first
/// row on: a writer of few rows, of which a process may have a thousand, keeps them as they are and
/// has an encoder for the moment of its end only.
const BEGIN_BYTES: usize = 1 << 20;

/// Where the files of a writer are, what they are named, and their layout.
pub(super) struct Place {
    pub(super) layout: Layout,
    pub(super) prefix: String,
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) root: Path,
}

/// Files of one (partition, bucket).
///
/// After an error, or if a call was cancelled, they can only be deleted.
pub(super) struct RollingFiles {
    context: FileContext,
    prefix: String,
    pub(super) options: WriterOptions,
    /// Rows of the next file, before it is begun.
    pub(super) early: EarlyRows,
    /// The file between its first and last batch. It stays after an error, to be aborted.
    open: Option<Box<OpenFile>>,
    /// Whether a call is at work, failed or was cancelled.
    is_broken: bool,
    finished: Vec<DataFileMeta>,
    /// All files begun, to be deleted on abort.
    begun: Vec<Path>,
}

impl RollingFiles {
    /// No file yet. Does no IO.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for file formats and compressions that are not written.
    pub(super) fn new(target: &WriteTarget, options: WriterOptions, place: Place) -> Result<Self> {
        let table_options = TableOptions::new(&target.schema.options);
        let compression = compression(table_options)?;
        let partition_path = target.partition.path(&target.schema)?;
        let folder = TablePaths::new(place.root).bucket_dir(
            table_options.data_directory(),
            &partition_path,
            target.bucket,
        )?;
        Ok(Self {
            context: FileContext {
                layout: place.layout,
                compression,
                folder,
                store: place.store,
            },
            prefix: place.prefix,
            options,
            early: EarlyRows::default(),
            open: None,
            is_broken: false,
            finished: Vec::new(),
            begun: Vec::new(),
        })
    }

    /// The folder that they are in.
    pub(super) fn folder(&self) -> &Path {
        &self.context.folder
    }

    /// The columns of a file.
    pub(super) fn layout(&self) -> &Layout {
        &self.context.layout
    }

    pub(super) fn options(&self) -> &WriterOptions {
        &self.options
    }

    /// Writes the rows of `batch`, which has exactly the columns of the layout.
    pub(super) async fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        self.begin_call()?;
        self.is_broken = false;
        let mut start = 0;
        while start < batch.num_rows() {
            let length = MAX_ROWS_PER_ENCODE.min(batch.num_rows() - start);
            let rows = batch.slice(start, length);
            start += length;
            if self.open.is_some() {
                self.write_rows(vec![rows]).await?;
                continue;
            }
            self.early.push(&rows)?;
            if self.early.bytes >= self.begin_bytes() {
                self.begin_with_early_rows().await?;
            }
        }
        Ok(())
    }

    /// Ends the open row group and hands its bytes to the store.
    pub(super) async fn flush(&mut self) -> Result<()> {
        self.begin_with_early_rows().await?;
        self.begin_call()?;
        if let Some(file) = &mut self.open {
            file.flush(&self.context).await?;
        }
        self.is_broken = false;
        Ok(())
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let open = self.open.as_ref().map_or(0, |file| file.memory_bytes());
        self.early.bytes + open
    }

    pub(super) fn dictionary(&self) -> Option<&DictionaryChoice> {
        self.options
            .dictionary
            .as_ref()
            .filter(|choice| choice.is_settled())
    }

    /// Ends the open file; the next rows begin another.
    pub(super) async fn end_file(&mut self) -> Result<()> {
        self.begin_call()?;
        let rest = std::mem::take(&mut self.early).batches;
        if self.open.is_none() && !rest.is_empty() {
            self.open = Some(self.begin_file(&rest)?);
        }
        let Some(file) = &mut self.open else {
            self.is_broken = false;
            return Ok(());
        };
        let mut meta = file.finish(rest, &self.context).await?;
        self.open = None;
        meta.creation_time = Some(self.options.local_now_ms);
        self.finished.push(meta);
        self.is_broken = false;
        Ok(())
    }

    /// The files that are ended.
    pub(super) fn take_finished(&mut self) -> Vec<DataFileMeta> {
        std::mem::take(&mut self.finished)
    }

    /// Marks the writer as broken until the call has succeeded.
    pub(super) fn begin_call(&mut self) -> Result<()> {
        if !std::mem::replace(&mut self.is_broken, true) {
            return Ok(());
        }
        let path = self.begun.last().unwrap_or(&self.context.folder);
        Err(Error::WriterBroken {
            path: path.to_string(),
        })
    }

    /// Deletes all files begun, as far as possible.
    pub(super) async fn delete_files(&mut self) -> Result<()> {
        let mut outcome = Ok(());
        self.is_broken = true;
        if let Some(file) = self.open.take() {
            outcome = file.abort().await;
        }
        for path in std::mem::take(&mut self.begun) {
            let deleted = open_file::delete(&self.context.store, &path).await;
            outcome = outcome.and(deleted);
        }
        outcome
    }

    fn begin_bytes(&self) -> usize {
        let target = usize::try_from(self.options.target_file_size).unwrap_or(usize::MAX);
        BEGIN_BYTES.min(self.options.row_group_bytes).min(target)
    }

    async fn begin_with_early_rows(&mut self) -> Result<()> {
        let early = std::mem::take(&mut self.early);
        if early.batches.is_empty() {
            return Ok(());
        }
        self.write_rows(early.batches).await
    }

    async fn write_rows(&mut self, batches: Vec<RecordBatch>) -> Result<()> {
        self.begin_call()?;
        let file = match self.open.take() {
            Some(file) => file,
            None => self.begin_file(&batches)?,
        };
        let file = self.open.insert(file);
        file.write(batches, self.options.row_group_bytes, &self.context)
            .await?;
        let is_full = file.file_bytes() as u64 >= self.options.target_file_size;
        self.is_broken = false;
        if is_full {
            self.end_file().await
        } else {
            Ok(())
        }
    }

    fn begin_file(&mut self, batches: &[RecordBatch]) -> Result<Box<OpenFile>> {
        let known = self.options.dictionary.as_ref();
        if known.is_none_or(|choice| !choice.is_settled())
            && let Some(largest) = batches.iter().max_by_key(|batch| batch.num_rows())
        {
            self.options.dictionary = Some(DictionaryChoice::sample(largest));
        }
        let name = data_file_name(&self.prefix, &self.options.file_uuid, self.begun.len());
        let path = named(&self.context.folder, &name)?;
        self.begun.push(path.clone());
        let file = OpenFile::new(path, &self.options, &self.context)?;
        Ok(Box::new(file))
    }
}

/// Rows that wait for enough others to begin a file with.
#[derive(Default)]
pub(super) struct EarlyRows {
    pub(super) batches: Vec<RecordBatch>,
    bytes: usize,
}

impl EarlyRows {
    fn push(&mut self, batch: &RecordBatch) -> Result<()> {
        let rows = copied(batch)?;
        self.bytes += sliced_bytes(&rows);
        self.batches.push(rows);
        Ok(())
    }
}

/// A copy of the rows: a slice, or a column that lies in the answer of a server, would hold all that
/// is around it for as long.
pub(super) fn copied(batch: &RecordBatch) -> Result<RecordBatch> {
    let rows = UInt32Array::from_iter_values((0..).take(batch.num_rows()));
    take_record_batch(batch, &rows).map_err(|source| Error::Arrow {
        what: "rows of a new file".to_owned(),
        source,
    })
}

/// The bytes that the rows of a batch take, whatever else their buffers hold.
pub(super) fn sliced_bytes(batch: &RecordBatch) -> usize {
    let bytes = |column: &ArrayRef| {
        let sliced = column.to_data().get_slice_memory_size();
        sliced.unwrap_or_else(|_| column.get_array_memory_size())
    };
    batch.columns().iter().map(bytes).sum()
}
