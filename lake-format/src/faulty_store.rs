//! A store in memory that loses requests and replies on demand, and counts.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};
use parking_lot::Mutex;

/// What happens to one call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fault {
    /// The request is lost.
    Before,
    /// The reply is lost.
    After,
    /// The store does not allow it.
    Denied,
    /// The store's client lost the reply, put again and met its own object.
    MetItself,
}

type Choose = Box<dyn FnMut(usize, &str, &Path) -> Option<Fault> + Send>;

pub(crate) struct FaultyStore {
    inner: Arc<InMemory>,
    state: Arc<Mutex<State>>,
}

struct State {
    calls: Vec<String>,
    choose: Choose,
}

impl FaultyStore {
    pub(crate) fn new() -> Arc<Self> {
        let state = State {
            calls: Vec::new(),
            choose: Box::new(|_, _, _| None),
        };
        Arc::new(Self {
            inner: Arc::new(InMemory::new()),
            state: Arc::new(Mutex::new(state)),
        })
    }

    /// The same objects without faults.
    pub(crate) fn sound(&self) -> Arc<InMemory> {
        Arc::clone(&self.inner)
    }

    /// From now on `choose` decides, by number of the call, its verb and its path. Forgets the
    /// calls so far.
    pub(crate) fn inject(
        &self,
        choose: impl FnMut(usize, &str, &Path) -> Option<Fault> + Send + 'static,
    ) {
        *self.state.lock() = State {
            calls: Vec::new(),
            choose: Box::new(choose),
        };
    }

    /// The calls since the last time this was asked.
    pub(crate) fn take_calls(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().calls)
    }

    fn call(&self, verb: &str, path: &Path) -> Option<Fault> {
        call(&self.state, verb, path)
    }
}

fn call(state: &Mutex<State>, verb: &str, path: &Path) -> Option<Fault> {
    let mut state = state.lock();
    let number = state.calls.len();
    state.calls.push(format!("{verb} {path}"));
    (state.choose)(number, verb, path)
}

/// An upload in parts; its verbs are `begin`, `part`, `complete` and `abort`.
#[derive(Debug)]
struct FaultyUpload {
    inner: Box<dyn MultipartUpload>,
    path: Path,
    state: Arc<Mutex<State>>,
}

#[async_trait]
impl MultipartUpload for FaultyUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        match call(&self.state, "part", &self.path) {
            None => self.inner.put_part(data),
            Some(_) => Box::pin(async { Err(lost()) }),
        }
    }

    async fn complete(&mut self) -> Result<PutResult> {
        match call(&self.state, "complete", &self.path) {
            None => self.inner.complete().await,
            Some(Fault::Before) => Err(lost()),
            Some(_) => self.inner.complete().await.and(Err(lost())),
        }
    }

    async fn abort(&mut self) -> Result<()> {
        match call(&self.state, "abort", &self.path) {
            None => self.inner.abort().await,
            Some(_) => Err(lost()),
        }
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("State")
    }
}

fn lost() -> object_store::Error {
    object_store::Error::Generic {
        store: "faulty",
        source: "lost".into(),
    }
}

fn denied(path: &Path) -> object_store::Error {
    object_store::Error::PermissionDenied {
        path: path.to_string(),
        source: "denied".into(),
    }
}

fn met_itself(path: &Path) -> object_store::Error {
    object_store::Error::AlreadyExists {
        path: path.to_string(),
        source: "exists".into(),
    }
}

impl fmt::Debug for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FaultyStore")
    }
}

impl fmt::Display for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FaultyStore")
    }
}

#[async_trait]
impl ObjectStore for FaultyStore {
    async fn put_opts(
        &self,
        path: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        match self.call("put", path) {
            None => self.inner.put_opts(path, payload, options).await,
            Some(Fault::Before) => Err(lost()),
            Some(Fault::Denied) => Err(denied(path)),
            Some(Fault::After) => self
                .inner
                .put_opts(path, payload, options)
                .await
                .and(Err(lost())),
            Some(Fault::MetItself) => self
                .inner
                .put_opts(path, payload, options)
                .await
                .and(Err(met_itself(path))),
        }
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        if self.call("begin", path).is_some() {
            return Err(lost());
        }
        Ok(Box::new(FaultyUpload {
            inner: self.inner.put_multipart_opts(path, options).await?,
            path: path.clone(),
            state: Arc::clone(&self.state),
        }))
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        let verb = if options.head { "head" } else { "get" };
        match self.call(verb, path) {
            None => self.inner.get_opts(path, options).await,
            Some(_) => Err(lost()),
        }
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let inner = Arc::clone(&self.inner);
        let paths = futures::executor::block_on(paths.collect::<Vec<_>>());
        let decided: Vec<_> = paths
            .into_iter()
            .map(|path| {
                let path = path?;
                match self.call("delete", &path) {
                    Some(Fault::Before) => Err(lost()),
                    _ => Ok(path),
                }
            })
            .collect();
        inner.delete_stream(futures::stream::iter(decided).boxed())
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        match self.call("list", prefix.unwrap_or(&Path::default())) {
            None => self.inner.list(prefix),
            Some(Fault::Denied) => {
                let refused = Err(denied(prefix.unwrap_or(&Path::default())));
                futures::stream::iter([refused]).boxed()
            }
            Some(_) => futures::stream::iter([Err(lost())]).boxed(),
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
