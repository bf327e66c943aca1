//! The note of what is about to expire: `weir/expiring.json`.
//!
//! ```json
//! {"version":1,"snapshots":[…],"end":{…}}
//! ```
//! with whole snapshots, as their files hold them. It exists only while a run is under way, or
//! after one was cut short.

use bytes::Bytes;
use object_store::path::Path;
use object_store::{PutMode, PutOptions, PutPayload};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::snapshot::Snapshot;
use crate::table::Table;

/// The newest version that is written and read.
const VERSION: i32 = 1;

/// Snapshots that are about to expire, ascending, and the one after them, which stays.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Intent {
    pub(super) snapshots: Vec<Snapshot>,
    pub(super) end: Snapshot,
}

#[derive(Serialize, Deserialize)]
struct Document {
    version: i32,
    snapshots: Vec<Snapshot>,
    end: Snapshot,
}

impl Intent {
    pub(super) async fn read(table: &Table) -> Result<Option<Self>> {
        let path = path_in(table);
        let json = match table.read_json(&path).await {
            Ok(json) => json,
            Err(Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let document: Document = serde_json::from_slice(&json)
            .map_err(|e| Error::corrupt(path.as_ref(), e.to_string()))?;
        if document.version > VERSION {
            return Err(Error::Unsupported {
                what: format!("{path} of version {}", document.version),
                reason: format!("versions up to {VERSION} are read"),
            });
        }
        Ok(Some(Self {
            snapshots: document.snapshots,
            end: document.end,
        }))
    }

    /// Writes it down; `false` if there is one already.
    pub(super) async fn put(&self, table: &Table) -> Result<bool> {
        let path = path_in(table);
        let document = Document {
            version: VERSION,
            snapshots: self.snapshots.clone(),
            end: self.end.clone(),
        };
        let json = serde_json::to_vec(&document)
            .map_err(|e| Error::malformed("expiry note", e.to_string()))?;
        let payload = PutPayload::from(Bytes::from(json));
        let create = PutOptions::from(PutMode::Create);
        match table.store().put_opts(&path, payload, create).await {
            Ok(_) => Ok(true),
            Err(object_store::Error::AlreadyExists { .. }) => Ok(false),
            Err(source) => Err(Error::store(&path, source)),
        }
    }

    pub(super) async fn delete(&self, table: &Table) -> Result<()> {
        table.delete_objects(vec![path_in(table)]).await
    }

    pub(super) fn ids(&self) -> Vec<i64> {
        self.snapshots.iter().map(|snapshot| snapshot.id).collect()
    }

    /// Whether the snapshots of these numbers that are still there are the ones that were noted
    /// down: a table that was rolled back or made anew has others.
    pub(super) async fn is_of_this_table(&self, table: &Table) -> Result<bool> {
        for noted in self.snapshots.iter().chain([&self.end]) {
            match table.snapshot(noted.id).await {
                Ok(found) if found != *noted => return Ok(false),
                Ok(_) | Err(Error::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// The earliest snapshot that stays: the one noted down, or, if others expired that meanwhile,
    /// the earliest there is behind it.
    pub(super) async fn survivor(&self, table: &Table) -> Result<Option<Snapshot>> {
        let ids = table.snapshot_ids().await?;
        let mut behind = ids.into_iter().filter(|id| *id >= self.end.id);
        match behind.next() {
            Some(id) => table.snapshot(id).await.map(Some),
            None => Ok(None),
        }
    }
}

fn path_in(table: &Table) -> Path {
    table.paths().own_dir().join("expiring.json")
}
