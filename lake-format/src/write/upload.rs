//! An upload in parts that can be given up at any time.

use bytes::{Bytes, BytesMut};
use object_store::path::Path;
use object_store::{MultipartUpload, ObjectStore, ObjectStoreExt, PutPayload, Result};
use tokio::task::JoinSet;

/// Bytes of one part. S3 takes at most 10,000 parts, so a file may have 80 GB.
const PART_BYTES: usize = 8 << 20;

/// Parts on their way to the store at once.
const MAX_PARTS: usize = 4;

/// A file on its way to the store in parts. Until it is complete, what the store holds of it must
/// be aborted, after whatever error.
#[derive(Debug)]
pub(super) struct Upload {
    inner: Box<dyn MultipartUpload>,
    parts: JoinSet<Result<()>>,
    /// Less than a part.
    rest: BytesMut,
}

impl Upload {
    /// Most bytes that it holds in memory.
    pub(super) const MEMORY_BYTES: usize = PART_BYTES * MAX_PARTS;

    pub(super) async fn begin(store: &dyn ObjectStore, path: &Path) -> Result<Self> {
        Ok(Self {
            inner: store.put_multipart(path).await?,
            parts: JoinSet::new(),
            rest: BytesMut::new(),
        })
    }

    /// Adds bytes to the file, and waits until few parts are on their way.
    pub(super) async fn put(&mut self, mut bytes: Bytes) -> Result<()> {
        while self.rest.len() + bytes.len() >= PART_BYTES {
            let head = bytes.split_to(PART_BYTES - self.rest.len());
            let part = if self.rest.is_empty() {
                head
            } else {
                self.rest.extend_from_slice(&head);
                self.rest.split().freeze()
            };
            self.put_part(part).await?;
        }
        self.rest.extend_from_slice(&bytes);
        Ok(())
    }

    /// Ends the file. After an error it is still to be aborted.
    pub(super) async fn complete(&mut self) -> Result<()> {
        if !self.rest.is_empty() {
            let rest = self.rest.split().freeze();
            self.put_part(rest).await?;
        }
        self.wait_for(0).await?;
        self.inner.complete().await.map(|_| ())
    }

    /// Drops all that the store holds of the file.
    pub(super) async fn abort(&mut self) -> Result<()> {
        self.parts.shutdown().await;
        self.inner.abort().await
    }

    async fn put_part(&mut self, part: Bytes) -> Result<()> {
        self.wait_for(MAX_PARTS - 1).await?;
        self.parts
            .spawn(self.inner.put_part(PutPayload::from(part)));
        Ok(())
    }

    /// Waits until at most `count` parts are on their way.
    async fn wait_for(&mut self, count: usize) -> Result<()> {
        while self.parts.len() > count {
            match self.parts.join_next().await {
                None => return Ok(()),
                Some(part) => part.map_err(|e| object_store::Error::JoinError { source: e })??,
            }
        }
        Ok(())
    }
}
