//! Object stores: the objects that the world holds, and how one process reaches them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};
use parking_lot::Mutex;
use weir_catalog::clock::Clock;

use crate::chaos::Kind;
use crate::process::{Process, Trouble};

/// All objects, with the world's time of when they were written.
#[derive(Debug)]
pub(crate) struct Objects {
    inner: InMemory,
    clock: Arc<dyn Clock>,
    written: Mutex<BTreeMap<Path, i64>>,
}

impl fmt::Display for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("objects")
    }
}

impl Objects {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self {
            inner: InMemory::new(),
            clock,
            written: Mutex::default(),
        })
    }

    /// The names of all objects there are.
    pub(crate) fn names(&self) -> Vec<Path> {
        let listed = self.inner.list(None).collect::<Vec<_>>();
        let listed = futures::executor::block_on(listed);
        listed
            .into_iter()
            .flatten()
            .map(|meta| meta.location)
            .collect()
    }

    fn wrote(&self, path: &Path) {
        self.written
            .lock()
            .insert(path.clone(), self.clock.now_ms());
    }

    fn dated(&self, mut meta: ObjectMeta) -> ObjectMeta {
        let written = self.written.lock().get(&meta.location).copied();
        if let (Some(written), Some(found)) = (written, meta.last_modified.timestamp_nanos_opt()) {
            // To the nanosecond: what is left of the machine's time would put files out of order.
            let ahead = written * 1_000_000 - found;
            let distance = std::time::Duration::from_nanos(ahead.unsigned_abs());
            if ahead > 0 {
                meta.last_modified += distance;
            } else {
                meta.last_modified -= distance;
            }
        }
        meta
    }
}

#[async_trait]
impl ObjectStore for Objects {
    async fn put_opts(
        &self,
        path: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let put = self.inner.put_opts(path, payload, options).await;
        if put.is_ok() {
            self.wrote(path);
        }
        put
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        let mut got = self.inner.get_opts(path, options).await?;
        got.meta = self.dated(got.meta);
        Ok(got)
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let listed = futures::executor::block_on(self.inner.list(prefix).collect::<Vec<_>>());
        let dated = listed
            .into_iter()
            .map(|meta| meta.map(|meta| self.dated(meta)));
        futures::stream::iter(dated.collect::<Vec<_>>()).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let mut listed = self.inner.list_with_delimiter(prefix).await?;
        let objects = std::mem::take(&mut listed.objects);
        listed.objects = objects.into_iter().map(|meta| self.dated(meta)).collect();
        Ok(listed)
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

/// The objects as one process reaches them.
#[derive(Clone, Debug)]
pub(crate) struct Reached {
    pub(crate) objects: Arc<Objects>,
    pub(crate) process: Process,
}

impl fmt::Display for Reached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("objects of the simulation")
    }
}

fn failed(path: &Path, trouble: Trouble) -> object_store::Error {
    match trouble {
        Trouble::MetItself => object_store::Error::AlreadyExists {
            path: path.to_string(),
            source: "it is there".into(),
        },
        Trouble::Refused | Trouble::Unknown => object_store::Error::Generic {
            store: "simulation",
            source: format!("{path}: {trouble:?}").into(),
        },
    }
}

impl Reached {
    async fn reach<T, W>(&self, kind: Kind, verb: &str, path: &Path, work: W) -> Result<T>
    where
        T: Send + 'static,
        W: Future<Output = Result<T>> + Send + 'static,
    {
        let what = format!("{verb} {path}");
        let reached = self.process.call(kind, &what, work).await;
        reached.map_err(|trouble| failed(path, trouble))?
    }
}

#[async_trait]
impl ObjectStore for Reached {
    async fn put_opts(
        &self,
        path: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let (objects, to) = (Arc::clone(&self.objects), path.clone());
        let is_conditional = matches!(options.mode, object_store::PutMode::Create);
        let work = async move { objects.put_opts(&to, payload, options).await };
        let put = self.reach(Kind::Put, "put", path, work).await;
        match put {
            // An unconditional put that is sent twice just writes twice.
            Err(object_store::Error::AlreadyExists { .. }) if !is_conditional => Ok(PutResult {
                e_tag: None,
                version: None,
            }),
            put => put,
        }
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let (objects, to) = (Arc::clone(&self.objects), path.clone());
        let work = async move { objects.put_multipart_opts(&to, options).await };
        let upload = self.reach(Kind::Objects, "begin", path, work).await?;
        Ok(Box::new(Upload {
            upload: Arc::new(tokio::sync::Mutex::new(upload)),
            path: path.clone(),
            reached: self.clone(),
        }))
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        let (objects, from) = (Arc::clone(&self.objects), path.clone());
        let work = async move { objects.get_opts(&from, options).await };
        self.reach(Kind::Objects, "get", path, work).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let reached = self.clone();
        let deleted = paths.then(move |path| {
            let reached = reached.clone();
            async move {
                let path = path?;
                let (objects, gone) = (Arc::clone(&reached.objects), path.clone());
                let work = async move {
                    let one = futures::stream::iter([Ok(gone)]).boxed();
                    let mut deleted: Vec<_> = objects.delete_stream(one).collect().await;
                    deleted.remove(0)
                };
                reached.process.chaos().note(&format!("delete {path}"));
                reached.reach(Kind::Objects, "delete", &path, work).await
            }
        });
        deleted.boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (reached, prefix) = (self.clone(), prefix.cloned());
        let begin = async move {
            let path = prefix.clone().unwrap_or_default();
            let objects = Arc::clone(&reached.objects);
            let work = async move { Ok(objects.list(prefix.as_ref()).collect::<Vec<_>>().await) };
            match reached.reach(Kind::Objects, "list", &path, work).await {
                Ok(listed) => listed,
                Err(error) => vec![Err(error)],
            }
        };
        futures::stream::once(begin)
            .map(futures::stream::iter)
            .flatten()
            .boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let (objects, below) = (Arc::clone(&self.objects), prefix.cloned());
        let work = async move { objects.list_with_delimiter(below.as_ref()).await };
        let path = prefix.cloned().unwrap_or_default();
        self.reach(Kind::Objects, "list", &path, work).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let (objects, source, target) = (Arc::clone(&self.objects), from.clone(), to.clone());
        let work = async move { objects.copy_opts(&source, &target, options).await };
        self.reach(Kind::Put, "copy", to, work).await
    }
}

/// An upload in parts.
#[derive(Debug)]
struct Upload {
    upload: Arc<tokio::sync::Mutex<Box<dyn MultipartUpload>>>,
    path: Path,
    reached: Reached,
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (upload, path) = (Arc::clone(&self.upload), self.path.clone());
        let reached = self.reached.clone();
        // The order of parts is that of these calls.
        let part = match upload.try_lock() {
            Ok(mut upload) => upload.put_part(data),
            Err(_) => return Box::pin(async move { Err(failed(&path, Trouble::Refused)) }),
        };
        Box::pin(async move { reached.reach(Kind::Objects, "part", &path, part).await })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let upload = Arc::clone(&self.upload);
        let (objects, path) = (Arc::clone(&self.reached.objects), self.path.clone());
        let work = async move {
            let done = upload.lock().await.complete().await;
            objects.wrote(&path);
            done
        };
        self.reached
            .reach(Kind::Put, "complete", &self.path, work)
            .await
    }

    async fn abort(&mut self) -> Result<()> {
        let upload = Arc::clone(&self.upload);
        let work = async move { upload.lock().await.abort().await };
        self.reached
            .reach(Kind::Objects, "abort", &self.path, work)
            .await
    }
}
