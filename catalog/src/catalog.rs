//! The facade: reads, decides with the pure functions of [`crate::ddl`], commits fenced
//! transactions.
//!
//! Cheap to clone. Every change is one transaction, so nothing is ever half made; a lake table is
//! made and changed before, inside every attempt. All calls are safe to drop at any await: the
//! change then happened as a whole or not at all.

use std::sync::Arc;

use weir_protocol::descriptor::TableDescriptor;
use weir_protocol::ids::{PartitionId, SchemaId, TableId, TablePath, TotalBuckets};
use weir_protocol::partition::PartitionSpec;

use crate::clock::Clock;
use crate::ddl::Rules;
use crate::lake::LakeCatalog;
use crate::model::{Document, Stored};
use crate::offsets_files::OffsetsFiles;
use crate::store::{Fence, Key, MetadataStore, Revision, Txn};
use crate::{Error, Result};

mod assignments;
mod databases;
mod lake;
mod partitions;
mod rescale;
mod tables;
mod tiering;

pub use databases::{Contents, DEFAULT_DATABASE, DatabaseChange, DroppedDatabase};
pub use lake::{LakeCommit, OffsetsPolicy, Which};
pub use partitions::NewPartition;
pub use tables::{DroppedTable, NewTable};

/// Attempts to read entries that fit together.
const READ_ATTEMPTS: u32 = 5;

/// What to do when something that is to be created is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfExists {
    /// An error.
    Fail,
    /// Success, without comparing.
    Ignore,
}

/// What to do when something that is to be changed or dropped is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfMissing {
    /// An error.
    Fail,
    /// Success.
    Ignore,
}

/// What a creation came to.
#[derive(Clone, Debug, PartialEq)]
pub enum Created<T> {
    /// It was created.
    New(T),
    /// It was there already.
    Existing(T),
}

impl<T> Created<T> {
    /// The thing, new or not.
    pub fn into_inner(self) -> T {
        match self {
            Created::New(inner) | Created::Existing(inner) => inner,
        }
    }
}

/// A table as it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// Its name.
    pub path: TablePath,
    /// Its id.
    pub table_id: TableId,
    /// The id of its current schema.
    pub schema_id: SchemaId,
    /// The current schema and everything else, as a client may see it.
    pub descriptor: TableDescriptor,
    /// Buckets of an unpartitioned table, or the count that a new partition copies.
    pub bucket_count: TotalBuckets,
    /// How often `bucket_count` was altered.
    pub bucket_layout_epoch: i64,
    /// When it was created, in milliseconds since 1970 UTC.
    pub created_ms: i64,
    /// When it was changed last, in milliseconds since 1970 UTC.
    pub modified_ms: i64,
    /// Where its remote files live, if not at the default.
    pub remote_data_dir: Option<String>,
    /// The transaction that created it: tells it from another table of the same name.
    pub created: Revision,
    /// The transaction that changed it last.
    pub modified: Revision,
}

/// A partition as it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Partition {
    /// Its id.
    pub id: PartitionId,
    /// Its name: the values joined by `$`.
    pub name: String,
    /// Its values, in the order of the table's partition keys.
    pub spec: PartitionSpec,
    /// Its own number of buckets, for ever.
    pub bucket_count: TotalBuckets,
    /// Where its remote files live, if not at the default.
    pub remote_data_dir: Option<String>,
}

/// The catalog.
#[derive(Clone, Debug)]
pub struct Catalog {
    store: Arc<dyn MetadataStore>,
    lake: Option<Arc<dyn LakeCatalog>>,
    offsets_files: Option<OffsetsFiles>,
    clock: Arc<dyn Clock>,
    fence: Option<Fence>,
    rules: Rules,
}

impl Catalog {
    /// A catalog without lake and fence, with the default rules.
    pub fn new(store: Arc<dyn MetadataStore>, clock: Arc<dyn Clock>) -> Self {
        let (lake, offsets_files, fence, rules) = (None, None, None, Rules::default());
        Self {
            store,
            lake,
            offsets_files,
            clock,
            fence,
            rules,
        }
    }

    /// With the lake that lake-enabled tables go to.
    pub fn with_lake(mut self, lake: Arc<dyn LakeCatalog>) -> Self {
        self.lake = Some(lake);
        self
    }

    /// With the folder that offsets files go to.
    pub fn with_offsets_files(mut self, files: OffsetsFiles) -> Self {
        self.offsets_files = Some(files);
        self
    }

    /// With the fence of the active coordinator, see [`crate::leader::take_over`].
    pub fn with_fence(mut self, fence: Fence) -> Self {
        self.fence = Some(fence);
        self
    }

    /// With other limits and defaults.
    pub fn with_rules(mut self, rules: Rules) -> Self {
        self.rules = rules;
        self
    }

    /// The store below.
    pub fn store(&self) -> &Arc<dyn MetadataStore> {
        &self.store
    }

    /// The limits and defaults.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// The clock that stamps documents.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    fn txn(&self) -> Txn {
        Txn::new(self.fence.clone())
    }

    async fn get<T: Document>(&self, key: &Key) -> Result<Option<Stored<T>>> {
        let found = self.store.get(key).await.map_err(Error::store(key))?;
        found.map(|entry| Stored::decode(key, &entry)).transpose()
    }

    async fn children(&self, key: &Key) -> Result<Vec<String>> {
        self.store.children(key).await.map_err(Error::store(key))
    }

    async fn take_id(&self, counter: Key) -> Result<i64> {
        let taken = self
            .store
            .take_ids(&counter, 1)
            .await
            .map_err(Error::store(&counter))?;
        to_id(&counter, taken.start)
    }

    /// Takes `count` writer ids that nobody else gets.
    ///
    /// # Errors
    /// [`Error::Store`] if the store can't be reached.
    pub async fn take_writer_ids(&self, count: u32) -> Result<std::ops::Range<i64>> {
        let counter = Key::writer_ids();
        let taken = self
            .store
            .take_ids(&counter, count)
            .await
            .map_err(Error::store(&counter))?;
        Ok(to_id(&counter, taken.start)?..to_id(&counter, taken.end)?)
    }
}

fn to_id(counter: &Key, id: u64) -> Result<i64> {
    i64::try_from(id).map_err(|_| Error::Corrupt {
        what: counter.to_string(),
        reason: format!("{id} is beyond all ids"),
    })
}

/// For `map_err` on keys built from names that a client sent.
fn bad_key(what: impl std::fmt::Display) -> impl FnOnce(crate::store::StoreError) -> Error {
    Error::store(what)
}

#[cfg(test)]
mod tests;
