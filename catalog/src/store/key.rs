//! The keys of the store: Fluss's own paths, and our private ones below `/x-…`.
//!
//! A key is only built by a constructor named after what it holds, and every piece of foreign text
//! is checked to be one segment, so a name never becomes structure. Paths as in the reference's
//! `ZkData`.

use std::cmp::Ordering;
use std::fmt;

use weir_protocol::ids::{PartitionId, SchemaId, ServerId, TableBucket, TableId, TablePath};

use super::StoreError;

/// Longest key, in bytes.
pub const MAX_KEY_BYTES: usize = 1024;
/// Most segments of a key.
pub const MAX_KEY_DEPTH: usize = 12;

/// The absolute path of one entry, like `/metadata/databases/demo`.
///
/// Keys are ordered by depth, then by path: the order of [`super::MetadataStore::scan`].
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Key(String);

impl Key {
    /// The path: segments of `[A-Za-z0-9_.:$*-]`, each after a `/`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// How many segments the path has, 1 to [`MAX_KEY_DEPTH`].
    pub fn depth(&self) -> usize {
        self.0.bytes().filter(|byte| *byte == b'/').count()
    }

    /// The last segment.
    pub fn name(&self) -> &str {
        self.0.rsplit_once('/').map_or("", |(_, name)| name)
    }

    /// Whether `self` is `prefix` or below it.
    pub fn is_under(&self, prefix: &Key) -> bool {
        match self.0.strip_prefix(prefix.as_str()) {
            Some(rest) => rest.is_empty() || rest.starts_with('/'),
            None => false,
        }
    }

    /// Whether `self` is exactly one segment below `parent`.
    pub fn is_child_of(&self, parent: &Key) -> bool {
        self.0
            .rsplit_once('/')
            .is_some_and(|(front, _)| front == parent.as_str())
    }

    /// Reads a key back from a backend's own storage, checking it like any other text.
    pub fn from_stored(path: &str) -> Result<Self, StoreError> {
        let bad = |reason| StoreError::BadKey {
            path: path.to_owned(),
            reason,
        };
        let segments = path
            .strip_prefix('/')
            .ok_or_else(|| bad("it does not start with `/`"))?;
        for segment in segments.split('/') {
            check_segment(segment).map_err(bad)?;
        }
        Key(path.to_owned()).within_limits()
    }

    fn fixed(path: &'static str) -> Self {
        Key(path.to_owned())
    }

    fn number(&self, number: impl fmt::Display) -> Self {
        Key(format!("{self}/{number}"))
    }

    fn then(&self, fixed: &'static str) -> Self {
        Key(format!("{self}/{fixed}"))
    }

    fn text(&self, text: &str) -> Result<Self, StoreError> {
        let key = Key(format!("{self}/{text}"));
        match check_segment(text) {
            Ok(()) => key.within_limits(),
            Err(reason) => Err(StoreError::BadKey {
                path: key.0,
                reason,
            }),
        }
    }

    fn within_limits(self) -> Result<Self, StoreError> {
        if self.0.len() > MAX_KEY_BYTES {
            return Err(StoreError::BadKey {
                path: self.0,
                reason: "it is longer than 1024 bytes",
            });
        }
        if self.depth() > MAX_KEY_DEPTH {
            return Err(StoreError::BadKey {
                path: self.0,
                reason: "it is more than 12 deep",
            });
        }
        Ok(self)
    }
}

fn check_segment(segment: &str) -> Result<(), &'static str> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.:$*-".contains(&byte);
    match segment {
        "" => Err("it has an empty segment"),
        "." | ".." => Err("a segment is `.` or `..`"),
        _ if segment.bytes().all(allowed) => Ok(()),
        _ => Err("a segment has a character other than A-Z a-z 0-9 _ . : $ * -"),
    }
}

/// Databases, tables, schemas and partitions.
impl Key {
    /// Parent of all databases.
    pub fn databases() -> Self {
        Self::fixed("/metadata/databases")
    }

    /// One database.
    pub fn database(database: &str) -> Result<Self, StoreError> {
        Self::databases().text(database)
    }

    /// Parent of a database's tables.
    pub fn tables(database: &str) -> Result<Self, StoreError> {
        Ok(Self::database(database)?.then("tables"))
    }

    /// One table.
    pub fn table(path: &TablePath) -> Result<Self, StoreError> {
        Self::tables(&path.database)?.text(&path.table)
    }

    /// Parent of a table's schemas.
    pub fn schemas(path: &TablePath) -> Result<Self, StoreError> {
        Ok(Self::table(path)?.then("schemas"))
    }

    /// One schema of a table.
    pub fn schema(path: &TablePath, schema: SchemaId) -> Result<Self, StoreError> {
        Ok(Self::schemas(path)?.number(schema))
    }

    /// Parent of a table's partitions.
    pub fn partitions(path: &TablePath) -> Result<Self, StoreError> {
        Ok(Self::table(path)?.then("partitions"))
    }

    /// One partition, by its name (values joined by `$`).
    pub fn partition(path: &TablePath, name: &str) -> Result<Self, StoreError> {
        Self::partitions(path)?.text(name)
    }

    /// Counter of an auto-increment column.
    pub fn auto_increment(path: &TablePath, column_id: i32) -> Result<Self, StoreError> {
        Ok(Key(format!(
            "{}/auto_inc/col_{column_id}",
            Self::table(path)?
        )))
    }

    /// Counter of table ids: an 8-byte big-endian long.
    pub fn table_ids() -> Self {
        Self::fixed("/metadata/table_seqid")
    }

    /// Counter of partition ids: an 8-byte big-endian long.
    pub fn partition_ids() -> Self {
        Self::fixed("/metadata/partition_seqid")
    }

    /// Counter of writer ids: an 8-byte big-endian long.
    pub fn writer_ids() -> Self {
        Self::fixed("/metadata/writer_id")
    }
}

/// Tablet servers, assignments and leaders.
impl Key {
    /// Parent of the live tablet servers.
    pub fn tablet_servers() -> Self {
        Self::fixed("/tabletservers/ids")
    }

    /// One live tablet server: ephemeral, written by the server itself.
    pub fn tablet_server(server: ServerId) -> Self {
        Self::tablet_servers().number(server)
    }

    /// Counter of server ids.
    pub fn server_ids() -> Self {
        Self::fixed("/tabletservers/seqid")
    }

    /// Tags of tablet servers.
    pub fn server_tags() -> Self {
        Self::fixed("/tabletservers/server_tags")
    }

    /// Parent of all assignments of unpartitioned tables.
    pub fn table_assignments() -> Self {
        Self::fixed("/tabletservers/tables")
    }

    /// Assignment of an unpartitioned table; also parent of what its buckets and its lake table
    /// hold.
    pub fn table_assignment(table: TableId) -> Self {
        Self::table_assignments().number(table)
    }

    /// Parent of all assignments of partitions.
    pub fn partition_assignments() -> Self {
        Self::fixed("/tabletservers/partitions")
    }

    /// Assignment of a partition; also parent of what its buckets hold.
    pub fn partition_assignment(partition: PartitionId) -> Self {
        Self::partition_assignments().number(partition)
    }

    /// Assignment that a bucket belongs to: its partition's, or its table's.
    pub fn assignment_of(table: TableId, partition: Option<PartitionId>) -> Self {
        match partition {
            Some(partition) => Self::partition_assignment(partition),
            None => Self::table_assignment(table),
        }
    }

    fn bucket(bucket: TableBucket) -> Self {
        Self::assignment_of(bucket.table, bucket.partition)
            .then("buckets")
            .number(bucket.bucket)
    }

    /// Leader and in-sync replicas of a bucket.
    pub fn leader_isr(bucket: TableBucket) -> Self {
        Self::bucket(bucket).then("leader_isr")
    }

    /// Parent of a bucket's KV snapshots.
    pub fn kv_snapshots(bucket: TableBucket) -> Self {
        Self::bucket(bucket).then("snapshots")
    }

    /// One KV snapshot of a bucket.
    pub fn kv_snapshot(bucket: TableBucket, snapshot_id: i64) -> Self {
        Self::kv_snapshots(bucket).number(snapshot_id)
    }

    /// Counter of a bucket's KV snapshots.
    pub fn kv_snapshot_ids(bucket: TableBucket) -> Self {
        Self::bucket(bucket).then("snapshot_seqid")
    }

    /// Manifest of a bucket's remote log.
    pub fn remote_logs(bucket: TableBucket) -> Self {
        Self::bucket(bucket).then("remote_logs")
    }

    /// Pointer to the lake snapshots of a table.
    pub fn lake_table(table: TableId) -> Self {
        Self::table_assignment(table).then("laketable")
    }
}

/// The coordinator, the cluster, and what clients leave there.
impl Key {
    /// Parent of the coordinators, active and standby.
    pub fn coordinators() -> Self {
        Self::fixed("/coordinators/ids")
    }

    /// One coordinator: ephemeral.
    pub fn coordinator(id: &str) -> Result<Self, StoreError> {
        Self::coordinators().text(id)
    }

    /// The active coordinator: ephemeral.
    pub fn active_coordinator() -> Self {
        Self::fixed("/coordinators/active")
    }

    /// The coordinator epoch, as decimal text; its revision is the fence of every coordinator
    /// write.
    pub fn coordinator_epoch() -> Self {
        Self::fixed("/coordinators/epoch")
    }

    /// The rebalance handle.
    pub fn rebalance() -> Self {
        Self::fixed("/cluster/rebalance")
    }

    /// Access rules of one resource.
    pub fn acl(resource_type: &str, name: &str) -> Result<Self, StoreError> {
        Self::fixed("/fluss-acls").text(resource_type)?.text(name)
    }

    /// Configuration of all servers.
    pub fn server_config() -> Self {
        Self::fixed("/config/server/global")
    }

    /// Offsets that a producer left for its recovery.
    pub fn producer(id: &str) -> Result<Self, StoreError> {
        Self::fixed("/producers").text(id)
    }

    /// A lease that keeps KV snapshots alive.
    pub fn kv_snapshot_lease(lease: &str) -> Result<Self, StoreError> {
        Self::fixed("/leases/kv_snapshot").text(lease)
    }
}

/// Our own entries, which the reference never reads.
impl Key {
    /// The partition of a table that was made last.
    pub fn last_partition(table: TableId) -> Self {
        Self::table_assignment(table).then("x-last-partition")
    }

    /// Tiering documents of all tables.
    pub fn tiering_tables() -> Self {
        Self::fixed("/x-tiering")
    }

    /// Tiering document of a table: its last tiering epoch.
    pub fn tiering(table: TableId) -> Self {
        Self::tiering_tables().number(table)
    }

    /// Who tiers a table now: ephemeral.
    pub fn tiering_owner(table: TableId) -> Self {
        Self::tiering(table).then("owner")
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.depth(), &self.0).cmp(&(other.depth(), &other.0))
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_protocol::ids::BucketId;

    #[test]
    fn paths_are_those_of_the_reference() {
        let path = TablePath::new("db", "t");
        let bucket = TableBucket {
            table: TableId(7),
            partition: Some(PartitionId(31)),
            bucket: BucketId(2),
        };
        let table_bucket = TableBucket {
            partition: None,
            ..bucket
        };
        let paths = [
            (Key::database("db").unwrap(), "/metadata/databases/db"),
            (
                Key::table(&path).unwrap(),
                "/metadata/databases/db/tables/t",
            ),
            (
                Key::schema(&path, SchemaId(1)).unwrap(),
                "/metadata/databases/db/tables/t/schemas/1",
            ),
            (
                Key::partition(&path, "a$b").unwrap(),
                "/metadata/databases/db/tables/t/partitions/a$b",
            ),
            (
                Key::leader_isr(bucket),
                "/tabletservers/partitions/31/buckets/2/leader_isr",
            ),
            (
                Key::leader_isr(table_bucket),
                "/tabletservers/tables/7/buckets/2/leader_isr",
            ),
            (
                Key::lake_table(TableId(7)),
                "/tabletservers/tables/7/laketable",
            ),
            (Key::tiering_owner(TableId(7)), "/x-tiering/7/owner"),
        ];
        for (key, expected) in paths {
            assert_eq!(key.as_str(), expected);
            assert_eq!(Key::from_stored(expected).unwrap(), key);
        }
    }

    #[test]
    fn foreign_text_never_becomes_structure() {
        for text in ["", ".", "..", "a/b", "/", "a b", "ä", "a\0", "a%2f", "a\n"] {
            assert!(Key::database(text).is_err(), "{text:?}");
            assert!(Key::table(&TablePath::new("db", text)).is_err(), "{text:?}");
            assert!(Key::from_stored(&format!("/metadata/{text}")).is_err() || text == "a/b");
        }
        assert!(Key::database(&"a".repeat(MAX_KEY_BYTES)).is_err());
    }

    #[test]
    fn a_name_that_starts_like_another_is_not_below_it() {
        let short = Key::database("d").unwrap();
        let long = Key::database("dd").unwrap();
        assert!(!long.is_under(&short));
        assert!(Key::tables("d").unwrap().is_under(&short));
        assert!(short.is_under(&short));
        assert!(short.is_child_of(&Key::databases()));
        assert!(!Key::tables("d").unwrap().is_child_of(&Key::databases()));
    }
}
