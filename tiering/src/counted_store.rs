//! A store that counts its requests.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result, UploadPart,
};
use prometheus_client::metrics::counter::Counter;

/// Objects that a listing brings with one request, and paths that one request deletes.
const PER_REQUEST: u64 = 1_000;

/// Counts what is asked of a store: one for each call, and one more for every thousand objects that
/// a listing brings or a call deletes. What the store's client repeats by itself is not seen.
pub(crate) struct CountedStore {
    inner: Arc<dyn ObjectStore>,
    requests: Counter,
}

impl CountedStore {
    pub(crate) fn new(inner: Arc<dyn ObjectStore>, requests: Counter) -> Self {
        Self { inner, requests }
    }

    fn counted_stream<T: Send + 'static>(
        &self,
        stream: BoxStream<'static, T>,
    ) -> BoxStream<'static, T> {
        let requests = self.requests.clone();
        let mut seen = 0;
        requests.inc();
        stream
            .inspect(move |_| {
                seen += 1;
                if seen % PER_REQUEST == 0 {
                    requests.inc();
                }
            })
            .boxed()
    }
}

impl fmt::Display for CountedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl fmt::Debug for CountedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.inner, f)
    }
}

#[async_trait]
impl ObjectStore for CountedStore {
    async fn put_opts(
        &self,
        path: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.requests.inc();
        self.inner.put_opts(path, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.requests.inc();
        let inner = self.inner.put_multipart_opts(path, options).await?;
        let requests = self.requests.clone();
        Ok(Box::new(CountedUpload { inner, requests }))
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        self.requests.inc();
        self.inner.get_opts(path, options).await
    }

    async fn get_ranges(&self, path: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.requests.inc();
        self.inner.get_ranges(path, ranges).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.counted_stream(self.inner.delete_stream(paths))
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.counted_stream(self.inner.list(prefix))
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.counted_stream(self.inner.list_with_offset(prefix, offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.requests.inc();
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.requests.inc();
        self.inner.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.requests.inc();
        self.inner.rename_opts(from, to, options).await
    }
}

#[derive(Debug)]
struct CountedUpload {
    inner: Box<dyn MultipartUpload>,
    requests: Counter,
}

#[async_trait]
impl MultipartUpload for CountedUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        self.requests.inc();
        self.inner.put_part(data)
    }

    async fn complete(&mut self) -> Result<PutResult> {
        self.requests.inc();
        self.inner.complete().await
    }

    async fn abort(&mut self) -> Result<()> {
        self.requests.inc();
        self.inner.abort().await
    }
}
