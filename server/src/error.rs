//! Why the server refuses to start, or refuses a request. `api/error.rs` gives each its code.

use std::path::PathBuf;

use weir_protocol::api_key::ApiKey;
use weir_protocol::error_code::ErrorCode;
use weir_protocol::ids::{
    BucketId, LogOffset, PartitionId, SchemaId, ServerId, TableBucket, TableId, TablePath,
    TotalBuckets,
};

use crate::coordinator::tiering::Refusal;

/// An error of the server. Fields say what; `Display` is one sentence that names its object.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration has mistakes, all of them.
    #[error("configuration: {}", mistakes.join("; "))]
    Config {
        /// One sentence each.
        mistakes: Vec<String>,
    },
    /// Another process listens there.
    #[error("port of {address} is in use by another process")]
    PortInUse {
        /// `HOST:PORT`.
        address: String,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {address}")]
    Listen {
        /// `HOST:PORT`.
        address: String,
        /// Why.
        source: std::io::Error,
    },
    /// A folder or file of the server cannot be used.
    #[error("cannot use {}", path.display())]
    Disk {
        /// The folder or file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Another process has the data directory.
    #[error("data directory {} is held by another process", path.display())]
    Locked {
        /// The data directory.
        path: PathBuf,
    },
    /// The data directory was written by a newer version.
    #[error("data directory {} has format {found}, this version knows formats up to {known}", path.display())]
    NewerFormat {
        /// The data directory.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// The newest this version reads.
        known: u32,
    },
    /// A stored file is not what it must be.
    #[error("{} is corrupt: {reason}", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The warehouse cannot be used.
    #[error("warehouse {url} cannot be used: {reason}")]
    Warehouse {
        /// Its URL.
        url: String,
        /// Why.
        reason: String,
    },
    /// The remote directory, where offsets files go, cannot be used.
    #[error("remote directory {path} cannot be used: {reason}")]
    Remote {
        /// The path or URL.
        path: String,
        /// Why.
        reason: String,
    },
    /// The metadata store cannot be opened.
    #[error(transparent)]
    MetaStore(#[from] crate::meta_store::Error),
    /// What exists, or the store below it.
    #[error(transparent)]
    Catalog(#[from] weir_catalog::Error),
    /// A log.
    #[error(transparent)]
    Log(#[from] crate::log::Error),
    /// The keys of a bucket.
    #[error(transparent)]
    Kv(#[from] weir_kv::Error),
    /// The bytes of a client do not parse.
    #[error(transparent)]
    Protocol(#[from] weir_protocol::Error),

    /// A batch of a log does not parse, although its checksum holds.
    #[error("{bucket}: a stored batch cannot be read: {source}")]
    StoredBatch {
        /// The bucket.
        bucket: TableBucket,
        /// What is wrong with it.
        source: weir_protocol::Error,
    },

    /// A key that the protocol does not have, or that this server does not serve to clients.
    #[error("api {api_key} is not served here")]
    UnknownApi {
        /// The number on the wire.
        api_key: i16,
    },
    /// A version outside of what `API_VERSIONS` told.
    #[error("{} has no version {version} here", api.name())]
    UnsupportedVersion {
        /// The API.
        api: ApiKey,
        /// The version.
        version: i16,
    },
    /// The body is not the API's message.
    #[error("body of {} does not parse: {reason}", api.name())]
    BrokenMessage {
        /// The API.
        api: ApiKey,
        /// What is wrong.
        reason: String,
    },
    /// One request names too much.
    #[error("{} names {count} things, at most {max} are allowed", api.name())]
    TooManyBuckets {
        /// The API.
        api: ApiKey,
        /// How many buckets, or texts and messages of other kinds.
        count: usize,
        /// The limit.
        max: usize,
    },
    /// A login with a mechanism that is not offered.
    #[error("login by `{mechanism}` is not offered here")]
    UnknownMechanism {
        /// What the client asked for.
        mechanism: String,
    },
    /// A login token that does not parse.
    #[error("login refused: {0}")]
    LoginToken(weir_protocol::sasl::Error),
    /// Wrong user or password.
    #[error("login of user `{user}` refused")]
    BadCredentials {
        /// The user.
        user: String,
    },
    /// A request before the login.
    #[error("{} needs a login first", api.name())]
    NotLoggedIn {
        /// The API.
        api: ApiKey,
    },

    /// No tablet of this bucket is here, and nothing is known of it.
    #[error("{bucket} is not known")]
    UnknownBucket {
        /// The bucket.
        bucket: TableBucket,
    },
    /// The bucket exists, but this server does not lead it now.
    #[error("{bucket} is not led by server {server}")]
    NotLeader {
        /// The bucket.
        bucket: TableBucket,
        /// This server.
        server: ServerId,
    },
    /// The bucket's log cannot be opened.
    #[error("{bucket} is offline: {reason}")]
    Offline {
        /// The bucket.
        bucket: TableBucket,
        /// The code of what keeps it offline.
        code: ErrorCode,
        /// What keeps it offline, in one sentence.
        reason: String,
    },
    /// What the bucket's table is cannot be looked up.
    #[error("{bucket}: its table cannot be looked up: {source}")]
    TableNotRead {
        /// The bucket.
        bucket: TableBucket,
        /// Why.
        source: std::sync::Arc<Error>,
    },
    /// A bucket that was never led before finds records in its folder: the metadata is not the one
    /// under which they were written.
    #[error("{} holds records up to offset {end} of {bucket} that the metadata knows nothing of: put the metadata back that they were written under, or move the folder away", path.display())]
    UnknownLog {
        /// The bucket.
        bucket: TableBucket,
        /// Its log's folder.
        path: PathBuf,
        /// Where the log ends.
        end: LogOffset,
    },
    /// The sender computed the bucket with another count.
    #[error("{bucket}: {} but it has {actual} buckets: refresh metadata and route again", given_count(*given))]
    StaleRouting {
        /// The bucket.
        bucket: TableBucket,
        /// The sender's count, if it told one.
        given: Option<i32>,
        /// The true count.
        actual: TotalBuckets,
    },
    /// `acks` is none of −1, 0, 1.
    #[error("acks {acks} is none of -1, 0, 1")]
    InvalidAcks {
        /// The value.
        acks: i32,
    },
    /// The log does not hold this offset.
    #[error("{bucket}: offset {offset} is outside of {start}..={end}")]
    OffsetOutOfRange {
        /// The bucket.
        bucket: TableBucket,
        /// The offset asked for.
        offset: LogOffset,
        /// The first offset of the log.
        start: LogOffset,
        /// The offset after the last.
        end: LogOffset,
    },
    /// More puts wait for the bucket than it takes; this one was not made.
    #[error("{bucket}: too many puts wait for it; send this one again")]
    TooManyPuts {
        /// The bucket.
        bucket: TableBucket,
    },
    /// The rows are appended but were not flushed in time.
    #[error("{bucket}: rows before {needed} were not flushed within {timeout_ms} ms")]
    AckTimeout {
        /// The bucket.
        bucket: TableBucket,
        /// The high watermark waited for.
        needed: LogOffset,
        /// The request's patience, ms.
        timeout_ms: i32,
    },
    /// A batch names a schema that the table does not have.
    #[error(
        "{bucket}: schema {schema} of the batch is not one of the table's, the latest is {latest}"
    )]
    UnknownSchema {
        /// The bucket.
        bucket: TableBucket,
        /// The batch's schema.
        schema: i32,
        /// The table's latest.
        latest: SchemaId,
    },
    /// A projection that the log cannot do.
    #[error("table {table}: projection {fields:?} refused: {reason}")]
    InvalidProjection {
        /// The table.
        table: TableId,
        /// The column indexes.
        fields: Vec<i32>,
        /// What is wrong.
        reason: String,
    },
    /// A time that has not come yet.
    #[error("{bucket}: timestamp {timestamp} is after the server's time {now}")]
    FutureTimestamp {
        /// The bucket.
        bucket: TableBucket,
        /// The time asked for, epoch ms.
        timestamp: i64,
        /// The server's time, epoch ms.
        now: i64,
    },
    /// A value that the request may not have.
    #[error("{} refused: {reason}", api.name())]
    BadRequest {
        /// The API.
        api: ApiKey,
        /// What is wrong.
        reason: String,
    },
    /// A key-value request on a log table.
    #[error("table {table} has no primary key")]
    NoPrimaryKey {
        /// The table.
        table: String,
    },
    /// An append to a table whose log the server writes itself.
    #[error("table {table} has a primary key: its rows are put, not appended")]
    PrimaryKeyTable {
        /// The table.
        table: String,
    },
    /// A batch of changes that does not parse.
    #[error("{bucket}: a batch of changes is refused: {source}")]
    BadKvBatch {
        /// The bucket.
        bucket: TableBucket,
        /// What is wrong with it.
        source: weir_protocol::Error,
    },
    /// A record whose key is not that of its row.
    #[error("{bucket}: record {record}: {reason}")]
    KeyMismatch {
        /// The bucket.
        bucket: TableBucket,
        /// The record's place in its batch, from 0.
        record: usize,
        /// What is wrong with the key.
        reason: String,
    },
    /// A batch that changes more than one batch of the changelog may say.
    #[error(
        "one batch changes {bytes} bytes or values, at most {max} are allowed: send smaller batches"
    )]
    TooManyChanges {
        /// How much it changes.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// An answer that would be too large.
    #[error("{} would be answered with more than {max} bytes: ask for less at a time", api.name())]
    AnswerTooLarge {
        /// The API.
        api: ApiKey,
        /// The limit.
        max: usize,
    },
    /// A scan of keys that is asked for in a way it can't be.
    #[error("scan refused: {reason}")]
    InvalidScan {
        /// What is wrong.
        reason: String,
    },
    /// Bytes that never named a scan.
    #[error("this scan is not known")]
    UnknownScanner,
    /// The state of a bucket's keys cannot be brought to the end of its log.
    #[error("{bucket}: the keys in {} stand at offset {position}, but {reason}", path.display())]
    StateApart {
        /// The bucket.
        bucket: TableBucket,
        /// Where its keys are kept.
        path: PathBuf,
        /// All changes before it are in them.
        position: LogOffset,
        /// What is wrong with the log.
        reason: String,
    },
    /// Requests of the first version encode keys as this table's rows are not.
    #[error("table {table}: {} of version 0 encodes keys in another way; use version 1", api.name())]
    OldKeys {
        /// The table.
        table: String,
        /// The API.
        api: ApiKey,
    },
    /// A feature that this version does not have.
    #[error("{what} is not supported by this server")]
    Unsupported {
        /// The feature.
        what: &'static str,
    },
    /// Access control is not configured.
    #[error("no authorizer is configured")]
    SecurityDisabled,
    /// A request names a server that is not there.
    #[error("server {server} does not exist")]
    UnknownServer {
        /// The server.
        server: ServerId,
    },
    /// A server tag that is there already.
    #[error("server {server} has a tag already")]
    TagExists {
        /// The server.
        server: ServerId,
    },
    /// A server tag that is not there.
    #[error("server {server} does not have this tag")]
    TagMissing {
        /// The server.
        server: ServerId,
    },
    /// Moving buckets is not done by this server.
    #[error("rebalance is not supported by this server")]
    NoRebalancer,
    /// No rebalance runs.
    #[error("no rebalance is in progress")]
    NoRebalance,
    /// The table has no KV snapshot of this id.
    #[error("table {table} has no snapshot {snapshot} of its keys")]
    NoKvSnapshot {
        /// The table.
        table: TableId,
        /// The snapshot.
        snapshot: i64,
    },

    /// The log of a bucket no longer holds all of its keys' changes, and there is no snapshot of them.
    #[error(
        "{table}: the log of bucket {bucket} begins at {start}, so it lacks keys, and this server gives out \
         no snapshots of keys: read them by SCAN_KV, by key, or from the lake"
    )]
    KeysWithoutSnapshot {
        /// The table.
        table: TablePath,
        /// The bucket.
        bucket: BucketId,
        /// The first offset of its log.
        start: LogOffset,
    },
    /// A request of another incarnation of the coordinator.
    #[error("coordinator epoch {given} is not the current one, {current}")]
    WrongCoordinator {
        /// The request's epoch.
        given: i32,
        /// The current epoch.
        current: i32,
    },
    /// A leader change older than what the tablet knows.
    #[error("{bucket}: leader epoch {given} is below {current}")]
    FencedLeader {
        /// The bucket.
        bucket: TableBucket,
        /// The request's epoch.
        given: i32,
        /// The tablet's epoch.
        current: i32,
    },
    /// An entry of a tiering heartbeat is refused.
    #[error(transparent)]
    Tiering(#[from] Refusal),
    /// The path and the id of a lake request are of different tables.
    #[error("table {path} has id {actual}, not {given}: it was dropped and made again")]
    OtherTable {
        /// The table's name.
        path: TablePath,
        /// The request's id.
        given: TableId,
        /// The true id.
        actual: TableId,
    },
    /// A table id that no table has.
    #[error("table {table} does not exist")]
    UnknownTable {
        /// The id.
        table: TableId,
    },
    /// A partition id that no partition of the tables named has.
    #[error("partition {partition} does not exist")]
    UnknownPartition {
        /// The id.
        partition: PartitionId,
    },
    /// Tiered offsets would go back.
    #[error("{bucket}: tiered offset {given} is below {current}, which is in the lake already")]
    LakeRegression {
        /// The bucket.
        bucket: TableBucket,
        /// The request's offset.
        given: LogOffset,
        /// The committed offset.
        current: LogOffset,
    },
    /// The lake cannot hold rows that the log never had.
    #[error("{bucket}: tiered offset {given} is beyond the log, which ends at {log_end}")]
    LakeAheadOfLog {
        /// The bucket.
        bucket: TableBucket,
        /// The request's offset.
        given: LogOffset,
        /// The offset after the last record of the log.
        log_end: LogOffset,
    },
    /// An offsets file that does not belong to the table, or names buckets it does not have.
    #[error("offsets file {path} of table {table} refused: {reason}")]
    OffsetsFile {
        /// The table.
        table: TableId,
        /// The file as the request names it.
        path: String,
        /// What is wrong.
        reason: String,
    },
    /// Another part of the process is stopping.
    #[error("the server is stopping")]
    Stopping,
    /// Work on a blocking thread did not end.
    #[error("{what} was interrupted")]
    Interrupted {
        /// The work.
        what: &'static str,
    },
}

fn given_count(given: Option<i32>) -> String {
    given.map_or_else(
        || "the request does not say how many buckets it routes by,".to_owned(),
        |count| format!("the request routes by {count} buckets,"),
    )
}

impl Error {
    /// Whether the same call may succeed later, unchanged.
    pub fn is_retriable(&self) -> bool {
        ErrorCode::from(self).is_retriable()
    }
}

impl From<tokio::task::JoinError> for Error {
    fn from(_: tokio::task::JoinError) -> Self {
        Self::Interrupted {
            what: "work on a blocking thread",
        }
    }
}
