//! Writing the data files of one (partition, bucket) of an append table.

use std::sync::Arc;

use ::parquet::basic::{Compression, GzipLevel, ZstdLevel};
use arrow::array::{Array, ArrayRef, RecordBatch, UInt32Array};
use arrow::compute::take_record_batch;
use arrow::datatypes::SchemaRef;
use object_store::ObjectStore;
use object_store::path::Path;
use tokio::sync::Semaphore;

use crate::bucket::UNAWARE_TOTAL_BUCKETS;
use crate::data_file::DataFileMeta;
use crate::error::{Error, Result};
use crate::options::{BucketMode, TableOptions};
use crate::partition::Partition;
use crate::paths::{TablePaths, data_file_name, named};
use crate::schema::TableSchema;

mod conform;
mod dictionary;
mod int96;
mod nan;
mod parquet;
mod parquet_schema;
mod rolling;
#[cfg(test)]
mod tests;
mod upload;

pub use dictionary::DictionaryChoice;
use rolling::{FileContext, OpenFile};

/// Rows encoded in one go, so that a huge batch neither overshoots a row group nor holds a thread
/// for long.
const MAX_ROWS_PER_ENCODE: usize = 65_536;

/// Bytes of rows with which a file is begun. An encoder takes some 100 KiB a column from its first
/// row on: a writer of few rows, of which a process may have a thousand, keeps them as they are and
/// has an encoder for the moment of its end only.
const BEGIN_BYTES: usize = 1 << 20;

/// Where rows go.
#[derive(Clone, Debug)]
pub struct WriteTarget {
    /// The schema that the rows have.
    pub schema: Arc<TableSchema>,
    /// The partition; it is not compared with the rows.
    pub partition: Partition,
    /// The bucket, from 0; 0 in bucket-unaware tables.
    pub bucket: i32,
    /// The bucket count of the partition, which is stamped on the files; −1 in bucket-unaware
    /// tables.
    pub total_buckets: i32,
    /// The sequence number of the first row.
    pub first_sequence_number: i64,
}

/// How files are written.
#[derive(Clone, Debug)]
pub struct WriterOptions {
    /// Makes file names unique: a UUID that no other writer has.
    pub file_uuid: String,
    /// Milliseconds of the local clock, as if it were UTC: the creation time of the files.
    pub local_now_ms: i64,
    /// A file is ended when it has about this many bytes.
    pub target_file_size: u64,
    /// A row group is ended when it has about this many bytes, compressed; bounds memory.
    pub row_group_bytes: usize,
    /// What an earlier writer of the same schema found ([`DataFileWriter::dictionary`]).
    pub dictionary: Option<DictionaryChoice>,
    /// Encoding waits for one of these permits, if given; shared by all writers of a process.
    pub encode_permits: Option<Arc<Semaphore>>,
}

impl WriterOptions {
    /// Options with the table's target file size and row groups of 32 MiB.
    ///
    /// # Errors
    /// [`Error::InvalidSchema`] if the table's option is no size.
    pub fn new(schema: &TableSchema, file_uuid: String, local_now_ms: i64) -> Result<Self> {
        let options = TableOptions::new(&schema.options);
        Ok(Self {
            file_uuid,
            local_now_ms,
            target_file_size: options.target_file_size(schema.is_primary_key_table())?,
            row_group_bytes: 32 << 20,
            dictionary: None,
            encode_permits: None,
        })
    }
}

/// The files that one writer made: its part of a commit.
#[derive(Clone, Debug, PartialEq)]
pub struct CommitMessage {
    /// The partition.
    pub partition: Partition,
    /// The bucket.
    pub bucket: i32,
    /// The bucket count that is stamped on the files.
    pub total_buckets: i32,
    /// The files, in the order of their rows.
    pub new_files: Vec<DataFileMeta>,
}

/// Writes rows to Parquet files of one (partition, bucket), one file after the other.
///
/// Files are invisible until a commit names them. Encoding runs on blocking threads. The row groups
/// of a large file are uploaded as they finish, so memory stays below about `row_group_bytes` plus
/// the parts on their way.
///
/// After an error, or if a call was cancelled, the writer only takes [`DataFileWriter::abort`].
pub struct DataFileWriter {
    context: FileContext,
    arrow_schema: SchemaRef,
    total_buckets: i32,
    bucket: i32,
    partition: Partition,
    options: WriterOptions,
    /// Rows of the next file, before it is begun.
    early: EarlyRows,
    /// The file between its first and last batch. It stays after an error, to be aborted.
    open: Option<Box<OpenFile>>,
    /// Whether a call is at work, failed or was cancelled.
    is_broken: bool,
    next_sequence_number: i64,
    row_count: u64,
    finished: Vec<DataFileMeta>,
    /// All files begun, to be deleted on abort.
    begun: Vec<Path>,
}

/// Rows that wait for enough others to begin a file with.
#[derive(Default)]
struct EarlyRows {
    batches: Vec<RecordBatch>,
    bytes: usize,
}

impl EarlyRows {
    /// Keeps a copy of the rows: a slice, or a column that lies in the answer of a server, would hold
    /// all that is around it for as long.
    fn push(&mut self, batch: &RecordBatch) -> Result<()> {
        let rows = UInt32Array::from_iter_values((0..).take(batch.num_rows()));
        let rows = take_record_batch(batch, &rows).map_err(|source| Error::Arrow {
            what: "rows of a new file".to_owned(),
            source,
        })?;
        self.bytes += sliced_bytes(&rows);
        self.batches.push(rows);
        Ok(())
    }
}

/// The bytes that the rows of a batch take, whatever else their buffers hold.
fn sliced_bytes(batch: &RecordBatch) -> usize {
    let bytes = |column: &ArrayRef| {
        let sliced = column.to_data().get_slice_memory_size();
        sliced.unwrap_or_else(|_| column.get_array_memory_size())
    };
    batch.columns().iter().map(bytes).sum()
}

impl std::fmt::Debug for DataFileWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DataFileWriter")
            .field("folder", &self.context.folder)
            .field("rows", &self.row_count)
            .finish_non_exhaustive()
    }
}

impl DataFileWriter {
    /// A writer for `target` in the table at `root`. Does no IO.
    ///
    /// # Errors
    /// [`Error::BadValue`] if bucket and bucket count do not fit the table, [`Error::Unsupported`]
    /// for primary-key tables and for file formats and compressions that are not written.
    pub fn new(
        target: WriteTarget,
        options: WriterOptions,
        store: Arc<dyn ObjectStore>,
        root: Path,
    ) -> Result<Self> {
        check_target(&target)?;
        let schema = target.schema;
        let table_options = TableOptions::new(&schema.options);
        let compression = compression(table_options)?;
        let partition_path = target.partition.path(&schema)?;
        let folder = TablePaths::new(root).bucket_dir(
            table_options.data_directory(),
            &partition_path,
            target.bucket,
        )?;
        let arrow_schema = schema.arrow_schema();
        Ok(Self {
            context: FileContext {
                schema,
                compression,
                folder,
                store,
            },
            arrow_schema,
            total_buckets: target.total_buckets,
            bucket: target.bucket,
            partition: target.partition,
            options,
            early: EarlyRows::default(),
            open: None,
            is_broken: false,
            next_sequence_number: target.first_sequence_number,
            row_count: 0,
            finished: Vec::new(),
            begun: Vec::new(),
        })
    }

    /// Writes the rows of `batch`, whose columns must be the table's by name, order and type.
    ///
    /// # Errors
    /// [`Error::BadValue`] naming the column if they are not, or if a null is where none may be:
    /// then nothing of the batch was written. [`Error::Store`] or [`Error::Parquet`] naming the
    /// file otherwise.
    pub async fn write(&mut self, batch: RecordBatch) -> Result<()> {
        let batch = conform::conform(&batch, &self.arrow_schema)?;
        self.begin_call()?;
        self.is_broken = false;
        let mut start = 0;
        while start < batch.num_rows() {
            let length = MAX_ROWS_PER_ENCODE.min(batch.num_rows() - start);
            let rows = batch.slice(start, length);
            self.row_count += length as u64;
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

    /// Ends the open row group and hands its bytes to the store, to free memory. Many calls make
    /// poor files.
    ///
    /// # Errors
    /// As [`DataFileWriter::write`].
    pub async fn flush(&mut self) -> Result<()> {
        self.begin_with_early_rows().await?;
        self.begin_call()?;
        if let Some(file) = &mut self.open {
            file.flush(&self.context).await?;
        }
        self.is_broken = false;
        Ok(())
    }

    /// Rows written so far.
    pub fn row_count(&self) -> u64 {
        self.row_count
    }

    /// Bytes held in memory: rows before a file is begun, encoded pages, open pages, parts on their
    /// way to the store.
    pub fn memory_bytes(&self) -> usize {
        let open = self.open.as_ref().map_or(0, |file| file.memory_bytes());
        self.early.bytes + open
    }

    /// Which columns get a dictionary, once enough rows were seen to tell; for other writers of the
    /// same schema.
    pub fn dictionary(&self) -> Option<&DictionaryChoice> {
        self.options
            .dictionary
            .as_ref()
            .filter(|choice| choice.is_settled())
    }

    /// Ends the open file. The files are durable as the store makes them, and named by nothing yet.
    ///
    /// # Errors
    /// As [`DataFileWriter::write`]; all files begun are deleted as far as possible then.
    pub async fn finish(mut self) -> Result<CommitMessage> {
        if let Err(error) = self.end_file().await {
            self.delete_files().await.ok();
            return Err(error);
        }
        Ok(CommitMessage {
            partition: self.partition,
            bucket: self.bucket,
            total_buckets: self.total_buckets,
            new_files: self.finished,
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
        let prefix = TableOptions::new(&self.context.schema.options).data_file_prefix();
        let name = data_file_name(prefix, &self.options.file_uuid, self.begun.len());
        let path = named(&self.context.folder, &name)?;
        self.begun.push(path.clone());
        let file = OpenFile::new(path, &self.arrow_schema, &self.options, &self.context)?;
        Ok(Box::new(file))
    }

    async fn end_file(&mut self) -> Result<()> {
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
        meta.min_sequence_number = self.next_sequence_number;
        self.next_sequence_number += meta.row_count;
        meta.max_sequence_number = self.next_sequence_number - 1;
        meta.creation_time = Some(self.options.local_now_ms);
        self.finished.push(meta);
        self.is_broken = false;
        Ok(())
    }

    /// Marks the writer as broken until the call has succeeded.
    fn begin_call(&mut self) -> Result<()> {
        if !std::mem::replace(&mut self.is_broken, true) {
            return Ok(());
        }
        let path = self.begun.last().unwrap_or(&self.context.folder);
        Err(Error::WriterBroken {
            path: path.to_string(),
        })
    }

    async fn delete_files(&mut self) -> Result<()> {
        let mut outcome = Ok(());
        self.is_broken = true;
        if let Some(file) = self.open.take() {
            outcome = file.abort().await;
        }
        for path in std::mem::take(&mut self.begun) {
            let deleted = rolling::delete(&self.context.store, &path).await;
            outcome = outcome.and(deleted);
        }
        outcome
    }
}

/// Looks whether [`DataFileWriter::write`] of a table of `schema` takes the rows. Nothing is copied
/// but lists that hold something below a null.
///
/// # Errors
/// [`Error::BadValue`] or [`Error::Arrow`] as for writing.
pub fn check_rows(batch: &RecordBatch, schema: &SchemaRef) -> Result<()> {
    conform::conform(batch, schema).map(drop)
}

fn check_target(target: &WriteTarget) -> Result<()> {
    let (bucket, total_buckets) = (target.bucket, target.total_buckets);
    let fits = match target.schema.bucket_mode()? {
        BucketMode::Unaware => bucket == 0 && total_buckets == UNAWARE_TOTAL_BUCKETS,
        BucketMode::Fixed(_) => (0..total_buckets).contains(&bucket),
        BucketMode::Dynamic | BucketMode::Postpone => false,
    };
    if target.schema.is_primary_key_table() {
        let what = "writing a table with a primary key".to_owned();
        return Err(Error::Unsupported {
            what,
            reason: "rows are not merged here".to_owned(),
        });
    }
    if !fits {
        let reason = format!("{bucket} of {total_buckets} buckets does not fit the table");
        return Err(Error::bad_value("bucket", reason));
    }
    Ok(())
}

/// The table's compression; zstd level 1 if it names none.
fn compression(options: TableOptions<'_>) -> Result<Compression> {
    let format = options.file_format();
    if !format.eq_ignore_ascii_case("parquet") {
        let what = format!("file format `{format}`");
        return Err(Error::Unsupported {
            what,
            reason: "only Parquet is written".to_owned(),
        });
    }
    let name = options.file_compression().to_ascii_lowercase();
    let compression = match name.as_str() {
        "zstd" => ZstdLevel::try_new(options.zstd_level()?)
            .ok()
            .map(Compression::ZSTD),
        "snappy" => Some(Compression::SNAPPY),
        "lz4" | "lz4_raw" => Some(Compression::LZ4_RAW),
        "gzip" => Some(Compression::GZIP(GzipLevel::default())),
        "none" | "uncompressed" => Some(Compression::UNCOMPRESSED),
        _ => None,
    };
    compression.ok_or_else(|| Error::Unsupported {
        what: format!("file compression `{name}`"),
        reason: "use zstd (levels 1 to 22), snappy, lz4, gzip or none".to_owned(),
    })
}
