//! Writing the data files of one (partition, bucket): of an append table ([`DataFileWriter`]) or of
//! one with a primary key ([`MergeTreeWriter`]).

use std::sync::Arc;

use ::parquet::basic::{Compression, GzipLevel, ZstdLevel};
use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use object_store::ObjectStore;
use object_store::path::Path;
use tokio::sync::Semaphore;

use crate::bucket::UNAWARE_TOTAL_BUCKETS;
use crate::data_file::DataFileMeta;
use crate::error::{Error, Result};
use crate::merge::buffer::check_key;
use crate::options::{BucketMode, TableOptions};
use crate::partition::Partition;
use crate::schema::TableSchema;

mod conform;
mod dictionary;
mod int96;
pub(crate) mod layout;
pub mod merge_tree;
mod nan;
mod open_file;
mod parquet;
mod parquet_schema;
mod rolling;
#[cfg(test)]
mod tests;
mod upload;

pub use dictionary::DictionaryChoice;
pub use merge_tree::MergeTreeWriter;

use layout::Layout;
use rolling::{Place, RollingFiles};

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
    /// The sequence number of the first row: with a primary key one above the highest in the bucket,
    /// 0 in an empty one.
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
    /// Files of the changes as they came, in their order; only of tables with
    /// `changelog-producer=input`. They lie beside the data files.
    pub changelog_files: Vec<DataFileMeta>,
}

impl CommitMessage {
    /// All files that were written, to be deleted if no snapshot names them.
    pub fn files(&self) -> impl Iterator<Item = &DataFileMeta> {
        self.new_files.iter().chain(&self.changelog_files)
    }
}

/// Writes rows to Parquet files of one (partition, bucket), one file after the other.
///
/// Files are invisible until a commit names them. Encoding runs on blocking threads. The row groups
/// of a large file are uploaded as they finish, so memory stays below about `row_group_bytes` plus
/// the parts on their way.
///
/// After an error, or if a call was cancelled, the writer only takes [`DataFileWriter::abort`].
pub struct DataFileWriter {
    files: RollingFiles,
    arrow_schema: SchemaRef,
    target: WriteTarget,
    row_count: u64,
}

impl std::fmt::Debug for DataFileWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DataFileWriter")
            .field("folder", self.files.folder())
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
        if target.schema.is_primary_key_table() {
            return Err(Error::Unsupported {
                what: "writing a table with a primary key".to_owned(),
                reason: "rows are not merged here".to_owned(),
            });
        }
        check_target(&target)?;
        let place = Place {
            layout: Layout::append(&target.schema),
            prefix: TableOptions::new(&target.schema.options)
                .data_file_prefix()
                .to_owned(),
            store,
            root,
        };
        Ok(Self {
            files: RollingFiles::new(&target, options, place)?,
            arrow_schema: target.schema.arrow_schema(),
            target,
            row_count: 0,
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
        self.files.write(&batch).await?;
        self.row_count += batch.num_rows() as u64;
        Ok(())
    }

    /// Ends the open row group and hands its bytes to the store, to free memory. Many calls make
    /// poor files.
    ///
    /// # Errors
    /// As [`DataFileWriter::write`].
    pub async fn flush(&mut self) -> Result<()> {
        self.files.flush().await
    }

    /// Rows written so far.
    pub fn row_count(&self) -> u64 {
        self.row_count
    }

    /// Bytes held in memory: rows before a file is begun, encoded pages, open pages, parts on their
    /// way to the store.
    pub fn memory_bytes(&self) -> usize {
        self.files.memory_bytes()
    }

    /// Which columns get a dictionary, once enough rows were seen to tell; for other writers of the
    /// same schema.
    pub fn dictionary(&self) -> Option<&DictionaryChoice> {
        self.files.dictionary()
    }

    /// Ends the open file. The files are durable as the store makes them, and named by nothing yet.
    ///
    /// # Errors
    /// As [`DataFileWriter::write`]; all files begun are deleted as far as possible then.
    pub async fn finish(mut self) -> Result<CommitMessage> {
        if let Err(error) = self.files.end_file().await {
            self.files.delete_files().await.ok();
            return Err(error);
        }
        let mut new_files = self.files.take_finished();
        let mut next = self.target.first_sequence_number;
        for file in &mut new_files {
            file.min_sequence_number = next;
            next += file.row_count;
            file.max_sequence_number = next - 1;
        }
        Ok(CommitMessage {
            partition: self.target.partition,
            bucket: self.target.bucket,
            total_buckets: self.target.total_buckets,
            new_files,
            changelog_files: Vec::new(),
        })
    }

    /// Deletes all files of this writer. Only for files that no commit names.
    ///
    /// # Errors
    /// [`Error::Store`] with the first file that could not be deleted; the others are deleted all
    /// the same.
    pub async fn abort(mut self) -> Result<()> {
        self.files.delete_files().await
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

/// Looks whether a merge-tree writer takes these values as keys; `keys` are the places of the key
/// columns.
///
/// # Errors
/// [`Error::BadValue`] for a NaN of other bits than Java's.
pub fn check_keys(batch: &RecordBatch, keys: &[usize]) -> Result<()> {
    let schema = batch.schema_ref();
    let columns = keys
        .iter()
        .filter_map(|key| Some((schema.fields().get(*key)?, batch.columns().get(*key)?)));
    for (field, values) in columns {
        check_key(field.name(), values)?;
    }
    Ok(())
}

/// Whether a bucket is one of the table's, and new rows are put into such.
fn check_target(target: &WriteTarget) -> Result<()> {
    let (bucket, total_buckets) = (target.bucket, target.total_buckets);
    let fits = match target.schema.bucket_mode()? {
        BucketMode::Unaware => bucket == 0 && total_buckets == UNAWARE_TOTAL_BUCKETS,
        BucketMode::Fixed(_) => (0..total_buckets).contains(&bucket),
        BucketMode::Dynamic | BucketMode::Postpone => {
            return Err(Error::Unsupported {
                what: "writing a table whose option `bucket` is no positive number".to_owned(),
                reason: "which bucket a row is in is decided in ways that are not known here"
                    .to_owned(),
            });
        }
    };
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
