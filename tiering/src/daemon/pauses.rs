//! The tables that a person paused, kept over a restart in a small file of the daemon's own.
//!
//! Version 1 is `{"version":1,"paused":[{"id":7,"table":"db.t"}]}`. The file is replaced as a whole.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use weir_protocol::ids::{TableId, TablePath};

use crate::error::{Error, Result};

/// Changes that may wait for the disk.
const QUEUE: usize = 16;

/// The version that is written and read.
const VERSION: i32 = 1;

/// Where pauses are kept; nowhere if no file was named.
#[derive(Clone, Debug, Default)]
pub(super) struct Pauses {
    file: Option<PathBuf>,
}

#[derive(Serialize, Deserialize)]
struct Document {
    version: i32,
    paused: Vec<Paused>,
}

#[derive(Serialize, Deserialize)]
struct Paused {
    id: TableId,
    table: TablePath,
}

impl Pauses {
    pub(super) fn new(file: Option<PathBuf>) -> Self {
        Self { file }
    }

    /// The tables that are paused; none if the file is not there yet. Blocks, once at the start.
    ///
    /// # Errors
    /// [`Error::State`] if the file can't be read or is of a newer version.
    pub(super) fn load(&self) -> Result<BTreeMap<TableId, TablePath>> {
        let Some(file) = &self.file else {
            return Ok(BTreeMap::new());
        };
        let bad = |reason: String| Error::State {
            file: file.clone(),
            reason,
        };
        let text = match std::fs::read_to_string(file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(BTreeMap::new());
            }
            Err(error) => return Err(bad(error.to_string())),
        };
        let document: Document = serde_json::from_str(&text).map_err(|e| bad(e.to_string()))?;
        if document.version != VERSION {
            let version = document.version;
            return Err(bad(format!(
                "version {version} is not {VERSION}, the only one known"
            )));
        }
        let paused = document.paused.into_iter();
        Ok(paused.map(|paused| (paused.id, paused.table)).collect())
    }

    /// Remembers exactly these. Blocks for two syncs.
    ///
    /// # Errors
    /// [`Error::State`] if the file can't be replaced; it is as before, then.
    pub(super) fn store(&self, paused: BTreeMap<TableId, TablePath>) -> Result<()> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        let paused = paused.into_iter().map(|(id, table)| Paused { id, table });
        let document = Document {
            version: VERSION,
            paused: paused.collect(),
        };
        // Numbers and names only: there is no way to fail.
        let text = serde_json::to_string(&document).unwrap_or_default();
        replace(file, &text).map_err(|error| Error::State {
            file: file.clone(),
            reason: error.to_string(),
        })
    }
}

/// Stores pauses one after the other, beside the daemon's loop, which waits for no disk.
#[derive(Debug)]
pub(super) struct Keeper {
    file: Option<PathBuf>,
    /// None once it has ended.
    orders: Option<mpsc::Sender<Order>>,
    keeping: JoinSet<()>,
}

/// What is paused from now on, and who waits until that is kept.
#[derive(Debug)]
struct Order {
    paused: BTreeMap<TableId, TablePath>,
    answer: oneshot::Sender<Result<()>>,
}

impl Keeper {
    /// Starts it.
    pub(super) fn start(pauses: Pauses) -> Self {
        let file = pauses.file.clone();
        let (orders, mut inbox) = mpsc::channel::<Order>(QUEUE);
        let mut keeping = JoinSet::new();
        keeping.spawn(async move {
            while let Some(Order { paused, answer }) = inbox.recv().await {
                let pauses = pauses.clone();
                let stored = tokio::task::spawn_blocking(move || pauses.store(paused)).await;
                // Whoever asked may have gone.
                let _ = answer.send(stored.unwrap_or(Err(Error::Stopped)));
            }
        });
        Self {
            file,
            orders: Some(orders),
            keeping,
        }
    }

    /// Keeps exactly these, and answers then; at once if there is no file.
    pub(super) fn keep(
        &self,
        paused: BTreeMap<TableId, TablePath>,
        answer: oneshot::Sender<Result<()>>,
    ) {
        let (Some(file), Some(orders)) = (&self.file, &self.orders) else {
            let _ = answer.send(Ok(()));
            return;
        };
        if let Err(refused) = orders.try_send(Order { paused, answer }) {
            let reason = "the disk has not taken earlier changes yet".to_owned();
            let file = file.clone();
            let _ = refused
                .into_inner()
                .answer
                .send(Err(Error::State { file, reason }));
        }
    }

    /// Ends when all that was ordered is kept.
    pub(super) async fn end(&mut self) {
        self.orders = None;
        while self.keeping.join_next().await.is_some() {}
    }
}

fn replace(file: &Path, text: &str) -> std::io::Result<()> {
    let fresh = file.with_extension("tmp");
    let mut out = std::fs::File::create(&fresh)?;
    out.write_all(text.as_bytes())?;
    out.sync_all()?;
    std::fs::rename(&fresh, file)?;
    match file
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
    {
        Some(folder) => std::fs::File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_survive_their_file_and_a_newer_one_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("tiering.json");
        let pauses = Pauses::new(Some(file.clone()));
        assert_eq!(pauses.load().unwrap(), BTreeMap::new());
        let paused = BTreeMap::from([(TableId(7), TablePath::new("d", "t"))]);
        pauses.store(paused.clone()).unwrap();
        assert_eq!(pauses.load().unwrap(), paused);
        std::fs::write(&file, r#"{"version":2,"paused":[]}"#).unwrap();
        let error = pauses.load().unwrap_err().to_string();
        assert!(
            error.contains("tiering.json") && error.contains("version 2"),
            "{error}"
        );
        std::fs::write(&file, "").unwrap();
        assert!(matches!(pauses.load(), Err(Error::State { .. })));
    }
}
