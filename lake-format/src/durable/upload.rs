//! Uploads in parts to a local disk.

use std::fs::File;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use object_store::{MultipartUpload, PutPayload, PutResult, Result, UploadPart};
use parking_lot::Mutex;

use super::{Disk, DurableLocal, Publish, failed, generic, new_staged_file, publish_as};

/// An upload in parts: a staged file that is synced and named when it is complete. Dropped before,
/// it is removed.
#[derive(Debug)]
pub(super) struct DurableUpload {
    file: Arc<Mutex<File>>,
    /// Taken when the file has its name or is removed.
    staged: Option<PathBuf>,
    path: PathBuf,
    /// Where the next part begins.
    length: u64,
    store: DurableLocal,
}

impl DurableUpload {
    /// Begins an upload to `path`; makes its folder.
    pub(super) async fn begin(store: DurableLocal, path: PathBuf) -> Result<Self> {
        let begun = path.clone();
        let begin = move |disk: &Disk| {
            disk.settle()?;
            disk.make_folders_of(&begun)?;
            new_staged_file(&begun)
        };
        let (file, staged) = store.blocking(begin).await?;
        Ok(Self {
            file: Arc::new(Mutex::new(file)),
            staged: Some(staged),
            path,
            length: 0,
            store,
        })
    }
}

#[async_trait]
impl MultipartUpload for DurableUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let at = self.length;
        self.length += data.content_length() as u64;
        let (file, path) = (Arc::clone(&self.file), self.path.clone());
        let store = self.store.clone();
        let write = move |_: &Disk| {
            let mut file = file.lock();
            let placed = file.seek(SeekFrom::Start(at));
            placed
                .and_then(|_| data.iter().try_for_each(|bytes| file.write_all(bytes)))
                .map_err(|e| failed("write", &path, e))
        };
        Box::pin(async move { store.blocking(write).await })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let staged = self.staged.take();
        let staged = staged.ok_or_else(|| generic("the upload has ended already".into()))?;
        let path = self.path.clone();
        let publish = move |disk: &Disk| {
            let synced = disk.syncer.sync_file(&staged);
            let synced = synced.map_err(|e| failed("sync", &path, e));
            let named = synced.and_then(|()| publish_as(&staged, &path, Publish::Overwrite));
            if named.is_err() {
                // See `Disk::put`: a leftover harms nothing.
                let _ = std::fs::remove_file(&staged);
            }
            named?;
            disk.sync_folders_of(&path)
        };
        self.store.blocking(publish).await?;
        Ok(PutResult {
            e_tag: None,
            version: None,
        })
    }

    async fn abort(&mut self) -> Result<()> {
        let Some(staged) = self.staged.take() else {
            return Ok(());
        };
        let remove =
            move |_: &Disk| std::fs::remove_file(&staged).map_err(|e| failed("remove", &staged, e));
        self.store.blocking(remove).await
    }
}

impl Drop for DurableUpload {
    fn drop(&mut self) {
        if let Some(staged) = self.staged.take() {
            // See `Disk::put`: a leftover harms nothing.
            let _ = std::fs::remove_file(staged);
        }
    }
}
