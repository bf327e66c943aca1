#![allow(
    clippy::clone_on_ref_ptr,
    clippy::cast_possible_wrap,
    reason = "tests: what is cloned and how large it is can be seen"
)]

use super::*;
use object_store::ObjectStoreExt;
use std::sync::atomic::{AtomicBool, Ordering};

/// Records every sync, and fails those of folders while told to.
#[derive(Default)]
struct Recorder {
    events: Mutex<Vec<String>>,
    broken: AtomicBool,
    /// Done once, while the next folder is synced.
    meanwhile: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Recorder")
    }
}

impl Recorder {
    fn take(&self, root: &FsPath) -> Vec<String> {
        let root = root.canonicalize().unwrap();
        let name = |event: &String| event.replace(root.to_str().unwrap(), "ROOT");
        std::mem::take(&mut *self.events.lock())
            .iter()
            .map(name)
            .collect()
    }
}

impl Syncer for Recorder {
    fn sync_file(&self, file: &FsPath) -> io::Result<()> {
        self.events.lock().push(format!("file {}", file.display()));
        OsSyncer.sync_file(file)
    }

    fn sync_folder(&self, folder: &FsPath) -> io::Result<()> {
        if self.broken.load(Ordering::SeqCst) {
            return Err(io::Error::other("broken disk"));
        }
        OsSyncer.sync_folder(folder)?;
        self.events
            .lock()
            .push(format!("folder {}", folder.display()));
        let meanwhile = self.meanwhile.lock().take();
        if let Some(meanwhile) = meanwhile {
            meanwhile();
        }
        Ok(())
    }
}

fn store() -> (tempfile::TempDir, Arc<Recorder>, DurableLocal) {
    let dir = tempfile::tempdir().unwrap();
    let recorder = Arc::new(Recorder::default());
    let store = DurableLocal::open_with(dir.path(), recorder.clone()).unwrap();
    (dir, recorder, store)
}

fn create() -> PutOptions {
    PutOptions::from(PutMode::Create)
}

async fn read(store: &DurableLocal, path: &str) -> String {
    let bytes = store
        .get(&path.into())
        .await
        .unwrap()
        .bytes()
        .await
        .unwrap();
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[tokio::test]
async fn a_put_syncs_the_bytes_before_the_name_and_then_every_new_folder() {
    let (dir, recorder, store) = store();
    store
        .put_opts(&"t/snapshot/snapshot-1".into(), "one".into(), create())
        .await
        .unwrap();
    let expected = [
        "file ROOT/t/snapshot/.snapshot-1#1",
        "folder ROOT/t/snapshot",
        "folder ROOT/t",
        "folder ROOT",
    ];
    assert_eq!(recorder.take(dir.path()), expected);
    store
        .put(&"t/snapshot/LATEST".into(), "1".into())
        .await
        .unwrap();
    let expected = ["file ROOT/t/snapshot/.LATEST#1", "folder ROOT/t/snapshot"];
    assert_eq!(
        recorder.take(dir.path()),
        expected,
        "known folders are not synced again"
    );
    assert_eq!(read(&store, "t/snapshot/snapshot-1").await, "one");
    let names: Vec<_> = std::fs::read_dir(dir.path().join("t/snapshot"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.contains('#'))
        .collect();
    assert!(names.is_empty(), "{names:?}");
}

#[tokio::test]
async fn a_folder_that_was_removed_and_made_again_is_synced_again() {
    let (dir, recorder, store) = store();
    store.put(&"a/b/x".into(), "1".into()).await.unwrap();
    std::fs::remove_dir_all(dir.path().join("a")).unwrap();
    recorder.take(dir.path());
    store.put(&"a/b/x".into(), "1".into()).await.unwrap();
    let expected = [
        "file ROOT/a/b/.x#1",
        "folder ROOT/a/b",
        "folder ROOT/a",
        "folder ROOT",
    ];
    assert_eq!(recorder.take(dir.path()), expected);
}

#[tokio::test]
async fn one_of_many_creates_wins_and_its_bytes_stay() {
    let (_dir, _, store) = store();
    let tasks: Vec<_> = (0..32)
        .map(|i| {
            let store = store.clone();
            let put = async move {
                store
                    .put_opts(&"n".into(), format!("{i}").into(), create())
                    .await
            };
            tokio::spawn(put)
        })
        .collect();
    let mut winners = vec![];
    for (i, task) in tasks.into_iter().enumerate() {
        match task.await.unwrap() {
            Ok(_) => winners.push(i),
            Err(e) => assert!(
                matches!(e, object_store::Error::AlreadyExists { .. }),
                "{e}"
            ),
        }
    }
    assert_eq!(winners.len(), 1);
    assert_eq!(read(&store, "n").await, winners[0].to_string());
}

#[tokio::test]
async fn an_upload_in_parts_a_copy_and_a_rename_sync_the_bytes_before_the_name() {
    let (dir, recorder, store) = store();
    let mut upload = store.put_multipart(&"d/x".into()).await.unwrap();
    // Parts may arrive in any order.
    let (first, second) = (upload.put_part("ab".into()), upload.put_part("cd".into()));
    second.await.unwrap();
    first.await.unwrap();
    recorder.take(dir.path());
    upload.complete().await.unwrap();
    assert_eq!(
        recorder.take(dir.path()),
        ["file ROOT/d/.x#1", "folder ROOT/d", "folder ROOT"]
    );
    assert_eq!(read(&store, "d/x").await, "abcd");
    upload.complete().await.unwrap_err();
    store.copy(&"d/x".into(), &"d/y".into()).await.unwrap();
    assert_eq!(
        recorder.take(dir.path()),
        ["file ROOT/d/x", "folder ROOT/d"]
    );
    store.rename(&"d/y".into(), &"e/z".into()).await.unwrap();
    assert_eq!(
        recorder.take(dir.path()),
        ["file ROOT/d/y", "folder ROOT/e", "folder ROOT"]
    );
    let absent = store.copy(&"d/y".into(), &"d/w".into()).await;
    assert!(matches!(absent, Err(object_store::Error::NotFound { .. })));
}

#[tokio::test]
async fn an_upload_that_is_aborted_or_dropped_leaves_nothing() {
    let (dir, _, store) = store();
    let mut aborted = store.put_multipart(&"d/x".into()).await.unwrap();
    aborted.put_part("ab".into()).await.unwrap();
    aborted.abort().await.unwrap();
    let mut dropped = store.put_multipart(&"d/y".into()).await.unwrap();
    dropped.put_part("ab".into()).await.unwrap();
    drop(dropped);
    assert_eq!(std::fs::read_dir(dir.path().join("d")).unwrap().count(), 0);
}

#[tokio::test]
async fn a_folder_that_is_owed_a_sync_and_then_removed_fails_nothing_more() {
    let (dir, recorder, store) = store();
    recorder.broken.store(true, Ordering::SeqCst);
    store.put(&"t/s/1".into(), "x".into()).await.unwrap_err();
    std::fs::remove_dir_all(dir.path().join("t")).unwrap();
    recorder.broken.store(false, Ordering::SeqCst);
    store.put(&"other".into(), "y".into()).await.unwrap();
    assert_eq!(recorder.take(dir.path())[1], "folder ROOT");
    assert_eq!(read(&store, "other").await, "y");
}

#[tokio::test]
async fn a_sync_settles_no_failure_that_came_while_it_ran() {
    let (_dir, recorder, store) = store();
    recorder.broken.store(true, Ordering::SeqCst);
    store.put(&"s/1".into(), "x".into()).await.unwrap_err();
    recorder.broken.store(false, Ordering::SeqCst);
    let (disk, inner) = (Arc::clone(&store.disk), recorder.clone());
    *recorder.meanwhile.lock() = Some(Box::new(move || {
        inner.broken.store(true, Ordering::SeqCst);
        disk.sync_folders_of(&disk.root.join("s/2")).unwrap_err();
    }));
    store.get(&"s/1".into()).await.unwrap();
    store.get(&"s/1".into()).await.unwrap_err();
    recorder.broken.store(false, Ordering::SeqCst);
    assert_eq!(read(&store, "s/1").await, "x");
}

#[tokio::test]
async fn after_a_failed_sync_nothing_is_read_until_a_sync_succeeds() {
    let (_dir, recorder, store) = store();
    recorder.broken.store(true, Ordering::SeqCst);
    let error = store
        .put_opts(&"s/1".into(), "x".into(), create())
        .await
        .unwrap_err();
    assert!(
        matches!(error, object_store::Error::Generic { .. }),
        "{error}"
    );
    store.get(&"s/1".into()).await.unwrap_err();
    store.put(&"s/2".into(), "y".into()).await.unwrap_err();
    recorder.broken.store(false, Ordering::SeqCst);
    assert_eq!(read(&store, "s/1").await, "x");
}

#[tokio::test]
async fn a_hint_is_written_without_a_sync() {
    let (dir, recorder, store) = store();
    let mut options = PutOptions::from(PutMode::Overwrite);
    options.extensions.insert(MayBeLost);
    store
        .put_opts(&"LATEST".into(), "7".into(), options)
        .await
        .unwrap();
    assert!(recorder.take(dir.path()).is_empty());
    assert_eq!(read(&store, "LATEST").await, "7");
}

#[tokio::test]
async fn a_root_that_is_missing_is_made_and_synced() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = Arc::new(Recorder::default());
    DurableLocal::open_with(&dir.path().join("a/b"), recorder.clone()).unwrap();
    assert_eq!(recorder.take(dir.path()).len(), 2);
}
