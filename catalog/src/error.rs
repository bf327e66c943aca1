//! Why a catalog call failed.

use weir_protocol::ids::{SchemaId, TableBucket, TableId, TablePath};

use crate::store::StoreError;

/// What the catalog answers.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failure outside of this crate, kept for its text and its cause.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Why a catalog call failed; the server maps each variant to a code of the protocol.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Others changed the same entries in every attempt; nothing was written.
    #[error("{what}: metadata changed concurrently in {attempts} attempts, retry")]
    Conflict {
        /// What was being done.
        what: String,
        /// How often.
        attempts: u32,
    },
    /// Another coordinator is active; nothing was written.
    #[error("{what}: another coordinator has become active")]
    Fenced {
        /// What was being done.
        what: String,
    },
    /// The change may have happened or not: read before changing again.
    #[error("{what}: outcome unknown, re-read")]
    OutcomeUnknown {
        /// What was being done.
        what: String,
    },
    /// The metadata store refused or failed; nothing was written.
    #[error("{what}: {source}")]
    Store {
        /// What was being done.
        what: String,
        /// What the store said.
        source: StoreError,
    },
    /// A stored document can't be read. Not the same as absent.
    #[error("{what} is corrupt: {reason}")]
    Corrupt {
        /// The document, by key or file.
        what: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A stored document is of a version made after this program.
    #[error("{what} has version {found}, but this program knows up to {known}: use a newer one")]
    NewerVersion {
        /// The document, by key or file.
        what: String,
        /// Its version.
        found: i64,
        /// The newest known.
        known: i64,
    },
    /// No such database.
    #[error("database `{database}` does not exist")]
    DatabaseNotExist {
        /// The database.
        database: String,
    },
    /// The database is there already.
    #[error("database `{database}` already exists")]
    DatabaseAlreadyExist {
        /// The database.
        database: String,
    },
    /// The database has tables.
    #[error("database `{database}` is not empty")]
    DatabaseNotEmpty {
        /// The database.
        database: String,
    },
    /// The default database stays.
    #[error("database `{database}` is the default one and can't be dropped")]
    DatabaseProtected {
        /// The database.
        database: String,
    },
    /// A name or document that makes no database.
    #[error("`{database}` is no valid database: {reason}")]
    InvalidDatabase {
        /// The database.
        database: String,
        /// What is wrong.
        reason: String,
    },
    /// No such table.
    #[error("table {path} does not exist")]
    TableNotExist {
        /// The table.
        path: TablePath,
    },
    /// No table has this id now.
    #[error("no table has the id {table}")]
    TableIdNotExist {
        /// The id.
        table: TableId,
    },
    /// The table is there already.
    #[error("table {path} already exists")]
    TableAlreadyExist {
        /// The table.
        path: TablePath,
    },
    /// A descriptor that makes no table.
    #[error("table {path} is not valid: {reason}")]
    InvalidTable {
        /// The table.
        path: TablePath,
        /// What is wrong.
        reason: String,
    },
    /// A change that the table can't take.
    #[error("table {path} can't be altered: {reason}")]
    InvalidAlterTable {
        /// The table.
        path: TablePath,
        /// Why.
        reason: String,
    },
    /// A property that is unknown or has a wrong value.
    #[error("table {path}: property `{key}`: {reason}")]
    InvalidConfig {
        /// The table.
        path: TablePath,
        /// The property.
        key: String,
        /// What is wrong.
        reason: String,
    },
    /// A replication factor that no table can have here.
    #[error(
        "table {path}: replication factor {found} is not between 1 and the {servers} tablet servers"
    )]
    InvalidReplicationFactor {
        /// The table.
        path: TablePath,
        /// The factor asked for.
        found: i64,
        /// Tablet servers of the cluster.
        servers: usize,
    },
    /// More buckets than allowed.
    #[error("table {path}: {found} buckets, but at most {max} are allowed")]
    TooManyBuckets {
        /// The table.
        path: TablePath,
        /// Buckets asked for.
        found: i64,
        /// The limit.
        max: i32,
    },
    /// No such schema.
    #[error("table {path} has no schema {schema}")]
    SchemaNotExist {
        /// The table.
        path: TablePath,
        /// The schema.
        schema: SchemaId,
    },
    /// Partitions asked of a table without partition keys.
    #[error("table {path} is not partitioned")]
    TableNotPartitioned {
        /// The table.
        path: TablePath,
    },
    /// No such partition.
    #[error("table {path} has no partition `{partition}`")]
    PartitionNotExist {
        /// The table.
        path: TablePath,
        /// The partition's name.
        partition: String,
    },
    /// The partition is there already.
    #[error("table {path} already has partition `{partition}`")]
    PartitionAlreadyExist {
        /// The table.
        path: TablePath,
        /// The partition's name.
        partition: String,
    },
    /// Partition values that make no partition of the table.
    #[error("table {path}: invalid partition: {reason}")]
    InvalidPartition {
        /// The table.
        path: TablePath,
        /// What is wrong.
        reason: String,
    },
    /// More partitions than allowed.
    #[error("table {path} already has {max} partitions, the most allowed")]
    TooManyPartitions {
        /// The table.
        path: TablePath,
        /// The limit.
        max: usize,
    },
    /// How many buckets a partition has is not known here; refresh metadata and route again.
    #[error("{what}: its bucket count is missing although the table's was altered")]
    StaleMetadata {
        /// The partition.
        what: String,
    },
    /// The lake has a table of this name that can't take these rows.
    #[error(
        "the lake already has a table at {folder} in the warehouse, which can't take the rows of \
         {path}: {reason}; move that folder away, or name another lake table with \
         table.datalake.table-name"
    )]
    LakeTableAlreadyExist {
        /// The table, by its Fluss name.
        path: TablePath,
        /// The lake table's folder, from the warehouse on.
        folder: String,
        /// Why it can't be used.
        reason: String,
    },
    /// The cluster has no lake.
    #[error("table {path} asks for a lake table, but this cluster has no lake")]
    LakeNotConfigured {
        /// The table.
        path: TablePath,
    },
    /// The lake refused or failed. The table was not changed; the lake may have been, and takes the
    /// same change again.
    #[error("lake table {path}: {source}")]
    Lake {
        /// The table, by its Fluss name.
        path: TablePath,
        /// What the lake said.
        source: Cause,
        /// Whether the same call may succeed later.
        retriable: bool,
    },
    /// The table, or a partition of it, does not have this bucket.
    #[error("there is no {bucket}")]
    BucketNotExist {
        /// The bucket.
        bucket: TableBucket,
    },
    /// Nothing of the table is in the lake, or not the snapshot asked for.
    #[error("table {table} has no such lake snapshot")]
    LakeSnapshotNotExist {
        /// The table.
        table: TableId,
    },
    /// A lake commit that does not fit what the table holds.
    #[error("lake snapshot {snapshot_id} of table {table} is refused: {reason}")]
    InvalidLakeSnapshot {
        /// The table.
        table: TableId,
        /// The lake's snapshot id.
        snapshot_id: i64,
        /// What is wrong.
        reason: String,
    },
    /// A document or file would be larger than the store takes.
    #[error("{what} would be too large: {source}")]
    TooLarge {
        /// What was being done.
        what: String,
        /// The limit.
        source: StoreError,
    },
}

impl Error {
    /// Whether the same call may succeed later, unchanged.
    pub fn is_retriable(&self) -> bool {
        match self {
            Error::Conflict { .. } => true,
            Error::Store { source, .. } => source.is_retriable(),
            Error::Lake { retriable, .. } => *retriable,
            _ => false,
        }
    }

    /// Turns what the store said while doing `what` into what the caller must know.
    pub(crate) fn from_store(what: impl Into<String>, source: StoreError) -> Self {
        let what = what.into();
        match source {
            StoreError::Fenced => Error::Fenced { what },
            StoreError::Unknown => Error::OutcomeUnknown { what },
            StoreError::Corrupt { reason } => Error::Corrupt { what, reason },
            StoreError::TooLarge { .. } => Error::TooLarge { what, source },
            source => Error::Store { what, source },
        }
    }

    /// For `map_err`: [`Self::from_store`] with a fixed `what`.
    pub(crate) fn store(what: impl ToString) -> impl FnOnce(StoreError) -> Self {
        let what = what.to_string();
        move |source| Self::from_store(what, source)
    }
}
