//! The file that is being written: encoded on blocking threads, uploaded as row groups finish.

use std::sync::Arc;

use arrow::array::RecordBatch;
use bytes::Bytes;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use parquet::basic::Compression;
use tokio::sync::Semaphore;

use super::WriterOptions;
use super::dictionary::DictionaryChoice;
use super::layout::{Layout, Summary};
use super::parquet::FileEncoder;
use super::upload::Upload;
use crate::data_file::DataFileMeta;
use crate::error::{Error, Result};

/// What all files of a writer share.
pub(super) struct FileContext {
    pub(super) layout: Layout,
    pub(super) compression: Compression,
    pub(super) folder: Path,
    pub(super) store: Arc<dyn ObjectStore>,
}

/// A file between its first and last batch.
pub(super) struct OpenFile {
    path: Path,
    /// Away while a blocking thread has it.
    work: Option<Work>,
    upload: Option<Upload>,
    permits: Option<Arc<Semaphore>>,
    memory_bytes: usize,
    file_bytes: usize,
}

/// The part that computes.
struct Work {
    encoder: FileEncoder,
    summary: Summary,
}

impl OpenFile {
    pub(super) fn new(path: Path, options: &WriterOptions, context: &FileContext) -> Result<Self> {
        let undecided = DictionaryChoice::default();
        let dictionary = options.dictionary.as_ref().unwrap_or(&undecided);
        let encoder = FileEncoder::new(
            context.layout.arrow_schema(),
            context.compression,
            dictionary,
        );
        let encoder = encoder.map_err(|source| parquet_error(&path, source))?;
        let summary = Summary::new(&context.layout)?;
        Ok(Self {
            path,
            work: Some(Work { encoder, summary }),
            upload: None,
            permits: options.encode_permits.clone(),
            memory_bytes: 0,
            file_bytes: 0,
        })
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let parts = if self.upload.is_some() {
            Upload::MEMORY_BYTES
        } else {
            0
        };
        self.memory_bytes + parts
    }

    pub(super) fn file_bytes(&self) -> usize {
        self.file_bytes
    }

    /// Encodes batches, and uploads the row group if it is full.
    pub(super) async fn write(
        &mut self,
        batches: Vec<RecordBatch>,
        row_group_bytes: usize,
        context: &FileContext,
    ) -> Result<()> {
        let path = self.path.clone();
        let output = self
            .compute(move |work| {
                work.write(&batches, &path)?;
                if work.encoder.open_bytes() < row_group_bytes {
                    return Ok(None);
                }
                work.end_row_group(&path).map(Some)
            })
            .await?;
        match output {
            Some(output) => self.upload(output, context).await,
            None => Ok(()),
        }
    }

    /// Ends the open row group and uploads it.
    pub(super) async fn flush(&mut self, context: &FileContext) -> Result<()> {
        let path = self.path.clone();
        let output = self.compute(move |work| work.end_row_group(&path)).await?;
        self.upload(output, context).await
    }

    /// Encodes the last rows, if any are left, and ends the file: at one go, so that not more
    /// encoders than permits hold memory for small files. The creation time and the sequence numbers of
    /// rows without a key are left to the caller. After an error it is still to be aborted.
    pub(super) async fn finish(
        &mut self,
        rest: Vec<RecordBatch>,
        context: &FileContext,
    ) -> Result<DataFileMeta> {
        let path = self.path.clone();
        let mut work = self.work.take().ok_or_else(|| broken(&path))?;
        let finish = move || {
            work.write(&rest, &path)?;
            let row_count = work.encoder.row_count();
            let (rest, size) = work
                .encoder
                .finish()
                .map_err(|source| parquet_error(&path, source))?;
            Ok((rest, size, row_count, work.summary))
        };
        let (rest, size, row_count, summary) =
            blocking(self.permits.as_ref(), &self.path, finish).await?;
        match &mut self.upload {
            None => {
                let put = context.store.put(&self.path, PutPayload::from(rest)).await;
                put.map_err(|source| Error::store(&self.path, source))?;
            }
            Some(upload) => {
                let put = upload.put(rest).await;
                put.map_err(|source| Error::store(&self.path, source))?;
                let completed = upload.complete().await;
                completed.map_err(|source| Error::store(&self.path, source))?;
            }
        }
        let name = self.path.filename().unwrap_or_default();
        let id = context.layout.schema().id;
        let mut meta = DataFileMeta::append(name, to_i64(size), to_i64(row_count), id);
        summary.finish(&mut meta)?;
        Ok(meta)
    }

    /// Gives up an upload in parts; the file itself is left to the caller.
    pub(super) async fn abort(mut self) -> Result<()> {
        match self.upload.take() {
            None => Ok(()),
            Some(mut upload) => upload
                .abort()
                .await
                .map_err(|e| Error::store(&self.path, e)),
        }
    }

    /// Runs `compute` on a blocking thread. If it fails, the file stays without its encoder.
    async fn compute<T, F>(&mut self, compute: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&mut Work) -> Result<T> + Send + 'static,
    {
        let mut work = self.work.take().ok_or_else(|| broken(&self.path))?;
        let run = move || {
            let value = compute(&mut work)?;
            Ok((work, value))
        };
        let (work, value) = blocking(self.permits.as_ref(), &self.path, run).await?;
        self.memory_bytes = work.encoder.memory_bytes();
        self.file_bytes = work.encoder.file_bytes();
        self.work = Some(work);
        Ok(value)
    }

    async fn upload(&mut self, bytes: Bytes, context: &FileContext) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let upload = if let Some(upload) = &mut self.upload {
            upload
        } else {
            let begun = Upload::begin(context.store.as_ref(), &self.path).await;
            let begun = begun.map_err(|source| Error::store(&self.path, source))?;
            self.upload.insert(begun)
        };
        let put = upload.put(bytes).await;
        put.map_err(|source| Error::store(&self.path, source))
    }
}

impl Work {
    fn write(&mut self, batches: &[RecordBatch], path: &Path) -> Result<()> {
        for batch in batches {
            self.summary.update(batch)?;
            let wrote = self.encoder.write(batch);
            wrote.map_err(|source| parquet_error(path, source))?;
        }
        Ok(())
    }

    fn end_row_group(&mut self, path: &Path) -> Result<Bytes> {
        self.encoder
            .close_row_group()
            .map_err(|source| parquet_error(path, source))?;
        self.encoder
            .take_output()
            .map_err(|source| parquet_error(path, source))
    }
}

/// Deletes a file that may not exist.
pub(super) async fn delete(store: &Arc<dyn ObjectStore>, path: &Path) -> Result<()> {
    match store.delete(path).await {
        Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
        Err(source) => Err(Error::store(path, source)),
    }
}

pub(super) async fn blocking<T, F>(
    permits: Option<&Arc<Semaphore>>,
    path: &Path,
    work: F,
) -> Result<T>
where
    T: Send + 'static,
    F: FnOnce() -> Result<T> + Send + 'static,
{
    let permit = match permits {
        None => None,
        Some(permits) => {
            let permit = Arc::clone(permits).acquire_owned().await;
            Some(permit.map_err(|_| broken(path))?)
        }
    };
    let work = move || {
        let _permit = permit;
        work()
    };
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|_| broken(path))?
}

fn broken(path: &Path) -> Error {
    Error::WriterBroken {
        path: path.to_string(),
    }
}

fn parquet_error(path: &Path, source: parquet::errors::ParquetError) -> Error {
    Error::Parquet {
        path: path.to_string(),
        source,
    }
}

fn to_i64(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
