//! One Parquet data file to batches of its own schema's columns.

use std::collections::HashMap;
use std::sync::Arc;

use object_store::ObjectStore;
use object_store::path::Path;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ArrowReaderOptions;
use parquet::arrow::async_reader::{ParquetRecordBatchStream, ParquetRecordBatchStreamBuilder};
use parquet::errors::ParquetError;

use super::object::ObjectReader;
use crate::data_file::DataFileMeta;
use crate::error::{Error, Result};

/// Rows of a batch.
const BATCH_ROWS: usize = 8192;

/// A data file to be opened.
#[derive(Clone, Debug)]
pub(crate) struct DataFileReader {
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) path: Path,
    pub(crate) file: DataFileMeta,
}

/// An opened data file.
pub(crate) struct OpenedFile {
    /// Its batches, with the wanted columns in the order of the file.
    pub(crate) stream: ParquetRecordBatchStream<ObjectReader>,
    /// Where each wanted column is in a batch, by name.
    pub(crate) columns: HashMap<String, usize>,
}

impl DataFileReader {
    /// Opens the file for the columns `names`, which it must have.
    ///
    /// The Arrow schema that some writers embed is left aside: the Parquet types say what they are.
    pub(crate) async fn open(&self, names: &[&str]) -> Result<OpenedFile> {
        self.check_readable()?;
        let size = u64::try_from(self.file.file_size);
        let size =
            size.map_err(|_| Error::corrupt(self.path.to_string(), "its stated size is negative"))?;
        let reader = ObjectReader {
            store: Arc::clone(&self.store),
            path: self.path.clone(),
            size,
        };
        let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
        let builder = ParquetRecordBatchStreamBuilder::new_with_options(reader, options).await;
        let builder = builder.map_err(|e| file_error(&self.path, e))?;
        let metadata = builder.metadata().file_metadata();
        if metadata.num_rows() != self.file.row_count {
            let reason = format!(
                "{} rows where its manifest says {}",
                metadata.num_rows(),
                self.file.row_count
            );
            return Err(Error::corrupt(self.path.to_string(), reason));
        }
        let fields = builder.schema().fields();
        let mut places = Vec::with_capacity(names.len());
        for name in names {
            let place = fields.iter().position(|field| field.name() == name);
            places.push(place.ok_or_else(|| {
                Error::corrupt(self.path.to_string(), format!("it has no column `{name}`"))
            })?);
        }
        let mask = ProjectionMask::roots(builder.parquet_schema(), places.iter().copied());
        let mut order: Vec<(usize, &str)> = places.into_iter().zip(names.iter().copied()).collect();
        order.sort_unstable();
        let columns = order
            .iter()
            .enumerate()
            .map(|(at, (_, name))| ((*name).to_owned(), at))
            .collect();
        let stream = builder
            .with_projection(mask)
            .with_batch_size(BATCH_ROWS)
            .build();
        Ok(OpenedFile {
            stream: stream.map_err(|e| file_error(&self.path, e))?,
            columns,
        })
    }

    fn check_readable(&self) -> Result<()> {
        let unsupported = |reason: &str| {
            Err(Error::Unsupported {
                what: format!("reading {}", self.path),
                reason: reason.to_owned(),
            })
        };
        if self.path.extension() != Some("parquet") {
            return unsupported("only Parquet files are read");
        }
        if self.file.external_path.is_some() {
            return unsupported("it lies outside of the table");
        }
        if self.file.write_cols.is_some() {
            return unsupported("it holds some of the columns only");
        }
        Ok(())
    }
}

/// What a Parquet reader's error means: the store's failure is not the file's.
pub(crate) fn file_error(path: &Path, error: ParquetError) -> Error {
    let corrupt = |source: Box<dyn std::error::Error + Send + Sync>| Error::Corrupt {
        path: path.to_string(),
        reason: source.to_string(),
        source: Some(source),
    };
    match error {
        ParquetError::External(source) => match source.downcast::<object_store::Error>() {
            Ok(source) => Error::store(path, *source),
            Err(source) => corrupt(source),
        },
        other => corrupt(Box::new(other)),
    }
}
