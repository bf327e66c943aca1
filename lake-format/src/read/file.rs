//! One Parquet data file to batches of its own schema's columns.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt;
use object_store::ObjectStore;
use object_store::path::Path;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ArrowReaderOptions;
use parquet::arrow::async_reader::{ParquetRecordBatchStream, ParquetRecordBatchStreamBuilder};
use parquet::errors::ParquetError;
use parquet::file::metadata::RowGroupMetaData;

use super::object::ObjectReader;
use crate::data_file::DataFileMeta;
use crate::error::{Error, Result};

/// The most rows of a batch.
const BATCH_ROWS: usize = 8192;

/// Bytes of a batch, as far as the file's averages tell: far from the 2 GiB at which the offsets of
/// Arrow's text arrays end.
pub(super) const BATCH_BYTES: u64 = 64 << 20;

/// A data file to be opened.
#[derive(Clone, Debug)]
pub(crate) struct DataFileReader {
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) path: Path,
    pub(crate) file: DataFileMeta,
    /// Bytes of a batch, about.
    pub(crate) batch_bytes: u64,
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
        let builder = self.footer().await?;
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
        let groups = builder.metadata().row_groups();
        let groups = groups.iter().map(|group| size_of(group, &mask));
        let batch_rows = batch_rows(groups, self.batch_bytes);
        let stream = builder
            .with_projection(mask)
            .with_batch_size(batch_rows)
            .build();
        Ok(OpenedFile {
            stream: stream.map_err(|e| file_error(&self.path, e))?,
            columns,
        })
    }

    /// The names of its columns.
    pub(crate) async fn column_names(&self) -> Result<Vec<String>> {
        let builder = self.footer().await?;
        let fields = builder.schema().fields().iter();
        Ok(fields.map(|field| field.name().clone()).collect())
    }

    async fn footer(&self) -> Result<ParquetRecordBatchStreamBuilder<ObjectReader>> {
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
        let builder = ParquetRecordBatchStreamBuilder::new_with_options(reader, options);
        decoding(&self.path, builder).await
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

/// Rows of a row group, and bytes of its wanted columns once they are decoded. A dictionary is small
/// where the texts it stands for are not; writers of old do not tell how large those are.
fn size_of(group: &RowGroupMetaData, mask: &ProjectionMask) -> (u64, u64) {
    let size = |number: i64| u64::try_from(number).unwrap_or(0);
    let wanted = (0..).zip(group.columns());
    let wanted = wanted.filter(|(leaf, _)| mask.leaf_included(*leaf));
    let bytes = wanted.map(|(_, column)| {
        let texts = column.unencoded_byte_array_data_bytes().unwrap_or(0);
        size(column.uncompressed_size().max(texts))
    });
    (size(group.num_rows()), bytes.sum())
}

/// Rows to read at once from row groups of so many rows and bytes each.
fn batch_rows(groups: impl Iterator<Item = (u64, u64)>, batch_bytes: u64) -> usize {
    let row_bytes = groups.map(|(rows, bytes)| bytes / rows.max(1)).max();
    let rows = batch_bytes / row_bytes.unwrap_or(0).max(1);
    usize::try_from(rows).map_or(BATCH_ROWS, |rows| rows.clamp(1, BATCH_ROWS))
}

/// What a Parquet reader makes of a file. It panics at some damage, a negative length in a footer
/// for one: that is the file's fault, and an error like any other.
pub(crate) async fn decoding<T>(
    path: &Path,
    work: impl Future<Output = Result<T, ParquetError>>,
) -> Result<T> {
    match AssertUnwindSafe(work).catch_unwind().await {
        Ok(done) => done.map_err(|error| file_error(path, error)),
        Err(_) => Err(Error::corrupt(path.to_string(), "its decoder failed")),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fc_071_a_batch_of_wide_rows_has_fewer_of_them() {
        const WIDE: u64 = 256 << 10;
        let rows = |groups: &[(u64, u64)]| batch_rows(groups.iter().copied(), BATCH_BYTES);
        // 9,000 rows of 256 KiB are more than 2 GiB: they are read in 36 batches.
        assert_eq!(rows(&[(9_000, 9_000 * WIDE)]), 256);
        let mixed = [(1_000_000, 8_000_000), (10, 10 * WIDE)];
        assert_eq!(rows(&mixed), 256);
        assert_eq!(rows(&[(1, 1 << 31)]), 1);
        assert_eq!(rows(&[(1_000_000, 8_000_000)]), BATCH_ROWS);
        assert_eq!(rows(&[(0, 0)]), BATCH_ROWS);
        assert_eq!(rows(&[]), BATCH_ROWS);
    }
}
