//! Ranges of an object for the Parquet reader.

use std::io::Cursor;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt, TryFutureExt};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use parquet::arrow::arrow_reader::ArrowReaderOptions;
use parquet::arrow::async_reader::AsyncFileReader;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};

use crate::parquet_pages::check_page_headers;

/// Bytes of the end of a file that are read at once, in the hope that its footer is in them.
const FOOTER_GUESS_BYTES: usize = 64 << 10;

/// An object of a known size.
#[derive(Clone, Debug)]
pub(crate) struct ObjectReader {
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) path: Path,
    pub(super) size: u64,
}

impl AsyncFileReader for ObjectReader {
    fn get_bytes(&mut self, range: Range<u64>) -> BoxFuture<'_, Result<Bytes>> {
        self.store
            .get_range(&self.path, range)
            .map_err(store_error)
            .boxed()
    }

    /// Column chunks: whole ones, since no page index is read.
    fn get_byte_ranges(&mut self, ranges: Vec<Range<u64>>) -> BoxFuture<'_, Result<Vec<Bytes>>> {
        async move {
            let chunks = self.store.get_ranges(&self.path, &ranges).await;
            let chunks = chunks.map_err(store_error)?;
            for chunk in &chunks {
                check_page_headers(&mut Cursor::new(chunk), chunk.len() as u64)
                    .map_err(|endless| ParquetError::External(endless.into()))?;
            }
            Ok(chunks)
        }
        .boxed()
    }

    fn get_metadata<'a>(
        &'a mut self,
        options: Option<&'a ArrowReaderOptions>,
    ) -> BoxFuture<'a, Result<Arc<ParquetMetaData>>> {
        async move {
            let size = self.size;
            let reader = ParquetMetaDataReader::new()
                .with_arrow_reader_options(options)
                .with_prefetch_hint(Some(FOOTER_GUESS_BYTES));
            Ok(Arc::new(reader.load_and_finish(self, size).await?))
        }
        .boxed()
    }
}

fn store_error(source: object_store::Error) -> ParquetError {
    ParquetError::External(Box::new(source))
}
