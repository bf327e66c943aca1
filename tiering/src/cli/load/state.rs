//! What `--state FILE` remembers of a load.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use weir_protocol::client::writer::WriterState;
use weir_protocol::ids::TableId;

use crate::cli::Load;
use crate::cli::exit::{Failure, Outcome};

/// The newest version of the state file.
pub(super) const STATE_VERSION: u32 = 1;

/// Bytes of a source that are read at a time for its checksum.
const PART_BYTES: usize = 1 << 20;

/// What the state file says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct State {
    pub(super) version: u32,
    pub(super) table: String,
    pub(super) table_id: TableId,
    pub(super) source: String,
    /// What the source's file held when the load began; absent of generated rows.
    #[serde(default)]
    pub(super) content: Option<Content>,
    /// Batches of the source that are acknowledged.
    pub(super) batches: usize,
    pub(super) rows: u64,
    pub(super) writer: WriterState,
}

/// What tells a file's content from another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Content {
    bytes: u64,
    crc32c: u32,
}

impl Content {
    /// Reads all of a file.
    pub(super) async fn of(file: PathBuf) -> std::io::Result<Self> {
        let read = move || {
            let mut reader = std::fs::File::open(file)?;
            let mut part = vec![0; PART_BYTES];
            let (mut bytes, mut crc32c) = (0, 0);
            loop {
                match reader.read(&mut part)? {
                    0 => return Ok(Self { bytes, crc32c }),
                    length => {
                        bytes += length as u64;
                        let read = part.get(..length).unwrap_or_default();
                        crc32c = crc32c::crc32c_append(crc32c, read);
                    }
                }
            }
        };
        let done = tokio::task::spawn_blocking(read).await;
        done.map_err(std::io::Error::other)?
    }
}

/// Refuses a file that can't be made, before anything else is done.
pub(super) fn check_folder(file: &Path) -> Outcome {
    let folder = match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => return Ok(()),
    };
    if folder.is_dir() {
        Ok(())
    } else {
        let folder = folder.display();
        Err(Failure::failed(format!(
            "--state {}: there is no folder {folder}",
            file.display()
        )))
    }
}

/// Reads the file; `None` if there is none.
pub(super) async fn read_state(
    file: &Path,
    arguments: &Load,
    table: TableId,
    content: Option<Content>,
) -> Outcome<Option<State>> {
    let bytes = match tokio::fs::read(file).await {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Failure::failed(format!("{}: {error}", file.display()))),
    };
    let state: State = serde_json::from_slice(&bytes).map_err(|error| {
        Failure::failed(format!("{}: no state of a load: {error}", file.display()))
    })?;
    if state.version != STATE_VERSION {
        let version = state.version;
        return Err(Failure::failed(format!(
            "{}: version {version} is newer than this weir",
            file.display()
        )));
    }
    let ours = state.table_id == table && state.source == arguments.source;
    if !ours || state.table != arguments.table.to_string() {
        return Err(Failure::failed(format!(
            "{}: belongs to a load of {} into {} (table id {}); give another --state, or delete it",
            file.display(),
            state.source,
            state.table,
            state.table_id
        )));
    }
    if state.content != content {
        return Err(Failure::failed(format!(
            "{}: has changed since the load of {} began, of which {} rows are acknowledged; put the file back \
             as it was, or give another --state to load all of it as new rows",
            state.source,
            file.display(),
            state.rows
        )));
    }
    Ok(Some(state))
}

/// Replaces the file: a crash leaves the old state or the new one.
pub(super) async fn write_state(file: &Path, state: &State) -> std::io::Result<()> {
    let text = serde_json::to_vec_pretty(state)?;
    let mut name = file.as_os_str().to_owned();
    name.push(".new");
    let new = Path::new(&name).to_owned();
    let target = file.to_owned();
    let work = move || {
        use std::io::Write as _;
        let mut out = std::fs::File::create(&new)?;
        out.write_all(&text)?;
        out.sync_all()?;
        std::fs::rename(&new, &target)
    };
    tokio::task::spawn_blocking(work)
        .await
        .map_err(std::io::Error::other)?
}
