//! An object store in memory whose calls can go wrong.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use futures::stream::{BoxStream, StreamExt};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

use super::Faults;

/// The store; clones of its handle share content and faults.
#[derive(Debug)]
pub(crate) struct FaultyStore {
    inner: Arc<InMemory>,
    faults: Faults,
}

impl FaultyStore {
    /// A store that counts its calls with `faults`.
    pub(crate) fn new(inner: Arc<InMemory>, faults: Faults) -> Self {
        Self { inner, faults }
    }
}

impl fmt::Display for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "faulty {}", self.inner)
    }
}

fn lost(call: &str) -> Error {
    Error::Generic {
        store: "faulty",
        source: format!("{call}: connection lost").into(),
    }
}

#[async_trait]
impl ObjectStore for FaultyStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        let call = format!("put {location}");
        let after = self.faults.before(&call).await.map_err(|()| lost(&call))?;
        let result = self.inner.put_opts(location, payload, opts).await;
        self.faults.after(after).await.map_err(|()| lost(&call))?;
        result
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let call = format!("upload {location}");
        let after = self.faults.before(&call).await.map_err(|()| lost(&call))?;
        let result = self.inner.put_multipart_opts(location, opts).await;
        self.faults.after(after).await.map_err(|()| lost(&call))?;
        result
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let call = format!("get {location}");
        let after = self.faults.before(&call).await.map_err(|()| lost(&call))?;
        let result = self.inner.get_opts(location, options).await;
        self.faults.after(after).await.map_err(|()| lost(&call))?;
        result
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let (inner, faults) = (Arc::clone(&self.inner), self.faults.clone());
        let deleted = locations.then(move |location| {
            let (inner, faults) = (Arc::clone(&inner), faults.clone());
            async move {
                let location = location?;
                let call = format!("delete {location}");
                let after = faults.before(&call).await.map_err(|()| lost(&call))?;
                let one = futures::stream::once(async move { Ok(location) }).boxed();
                let result = inner.delete_stream(one).next().await;
                faults.after(after).await.map_err(|()| lost(&call))?;
                result.unwrap_or_else(|| Err(lost(&call)))
            }
        });
        deleted.boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let listed = self.inner.list(prefix);
        let faults = self.faults.clone();
        let call = format!("list {prefix:?}");
        let begin = async move {
            let after = faults.before(&call).await;
            match after {
                Ok(after) if faults.after(after).await.is_ok() => listed,
                _ => futures::stream::iter([Err(lost(&call))]).boxed(),
            }
        };
        futures::stream::once(begin).flatten().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let call = format!("list {prefix:?}");
        let after = self.faults.before(&call).await.map_err(|()| lost(&call))?;
        let result = self.inner.list_with_delimiter(prefix).await;
        self.faults.after(after).await.map_err(|()| lost(&call))?;
        result
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
