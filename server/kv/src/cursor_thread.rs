//! The thread of a cursor. An iterator of RocksDB borrows its database, so it lives on one stack
//! from the first page to the last; between pages the thread sleeps.

use std::sync::Arc;
use std::thread;

use bytes::Bytes;
use rocksdb::DBRawIterator;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use crate::cursor::Page;
use crate::database::Database;
use crate::error::{Error, Result};
use crate::state::Position;
use crate::value::StoredValue;

/// What a cursor is asked for.
pub(crate) struct PageRequest {
    /// Bytes of keys and rows after which the page ends.
    pub(crate) max_bytes: usize,
    pub(crate) reply: oneshot::Sender<Result<Page>>,
}

/// Starts the thread; it tells `started` what it sees and ends when `requests` is closed.
pub(crate) fn spawn(
    database: Arc<Database>,
    limit: u64,
    started: oneshot::Sender<Result<Position>>,
    requests: mpsc::Receiver<PageRequest>,
    permit: OwnedSemaphorePermit,
) -> Result<()> {
    let directory = database.directory().to_owned();
    let run = move || {
        serve(&database, limit, started, requests);
        // The database first: who may open the next cursor may also open the directory.
        drop(database);
        drop(permit);
    };
    let thread = thread::Builder::new()
        .name("kv-cursor".to_owned())
        .spawn(run);
    let failed = |source| {
        Error::of_io(
            &directory,
            &directory,
            "start the thread of a cursor",
            &source,
        )
    };
    thread.map(drop).map_err(failed)
}

fn serve(
    database: &Database,
    mut limit: u64,
    started: oneshot::Sender<Result<Position>>,
    mut requests: mpsc::Receiver<PageRequest>,
) {
    let writes = database.hold_writes();
    let mut entries = database.entries();
    let position = database.position();
    drop(writes);
    entries.seek_to_first();
    if let Err(source) = entries.status() {
        // Who asked may be gone; then nobody waits for the error.
        let _ = started.send(Err(database.failed("scan", source)));
        return;
    }
    if started.send(Ok(position)).is_err() {
        return;
    }
    while let Some(request) = requests.blocking_recv() {
        let page = read_page(database, &mut entries, &mut limit, request.max_bytes);
        let is_last = !page.as_ref().is_ok_and(|page| page.has_more);
        // Who gave up has lost the page; the page number keeps it from reading on.
        let _ = request.reply.send(page);
        if is_last {
            return;
        }
    }
}

fn read_page(
    database: &Database,
    entries: &mut DBRawIterator<'_>,
    limit: &mut u64,
    max_bytes: usize,
) -> Result<Page> {
    let mut found = Vec::new();
    let mut size_bytes = 0usize;
    while *limit > 0
        && let Some((key, value)) = entries.item()
    {
        size_bytes = size_bytes.saturating_add(key.len() + value.len());
        if size_bytes > max_bytes && !found.is_empty() {
            break;
        }
        let value = StoredValue::decode(key, &Bytes::copy_from_slice(value))?;
        found.push((Bytes::copy_from_slice(key), value));
        *limit -= 1;
        entries.next();
    }
    // An iterator that met an unreadable file looks as if it was at its end.
    let status = entries.status();
    status.map_err(|source| database.failed("scan", source))?;
    Ok(Page {
        entries: found,
        has_more: *limit > 0 && entries.valid(),
    })
}
