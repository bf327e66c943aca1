//! Ids, offsets and names of the protocol, as types that do not mix.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident($inner:ty);)*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
            #[serde(transparent)]
            pub struct $name(pub $inner);

            impl fmt::Display for $name {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    self.0.fmt(f)
                }
            }
        )*
    };
}

numbers! {
    /// A table, unique in a cluster and never used again.
    TableId(i64);
    /// A partition, unique in a cluster and never used again.
    PartitionId(i64);
    /// A bucket of a table or partition, from 0.
    BucketId(i32);
    /// How many buckets a table or partition has: its resolved count, at least 1.
    TotalBuckets(i32);
    /// A schema of a table, from 1.
    SchemaId(i32);
    /// A position in the log of a bucket, from 0; ranges are half-open.
    LogOffset(i64);
    /// Raised at each election of a bucket's leader.
    LeaderEpoch(i32);
    /// Raised each time a coordinator becomes active.
    CoordinatorEpoch(i32);
    /// Raised each time a table is offered to a tiering worker.
    TieringEpoch(i64);
    /// An idempotent writer, unique in a cluster; −1 on the wire is "none".
    WriterId(i64);
    /// A server of the cluster.
    ServerId(i32);
}

impl TotalBuckets {
    /// The bucket count of a partition, if it is known for certain: its own, or the table's while
    /// that was never altered. Altering it there and back again still leaves a partition without a
    /// count of its own unknown.
    ///
    /// * `own`: what the partition was created with; `None` from who does not tell.
    /// * `table`: the table's, which new partitions copy.
    /// * `layout_epoch`: how often the table's was altered.
    pub fn of_partition(own: Option<Self>, table: Option<Self>, layout_epoch: i64) -> Option<Self> {
        let template = table.filter(|_| layout_epoch == 0);
        own.or(template).filter(|count| count.0 > 0)
    }
}

/// A table by name. Displays as `database.table`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TablePath {
    /// The database.
    pub database: String,
    /// The table.
    pub table: String,
}

impl TablePath {
    /// The path of `table` in `database`; names are checked where a table is created, not here.
    pub fn new(database: impl Into<String>, table: impl Into<String>) -> Self {
        Self {
            database: database.into(),
            table: table.into(),
        }
    }
}

impl From<&crate::proto::PbTablePath> for TablePath {
    fn from(path: &crate::proto::PbTablePath) -> Self {
        Self::new(path.database_name.clone(), path.table_name.clone())
    }
}

impl fmt::Display for TablePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.database, self.table)
    }
}

impl std::str::FromStr for TablePath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('.') {
            Some((database, table))
                if !database.is_empty() && !table.is_empty() && !table.contains('.') =>
            {
                Ok(Self::new(database, table))
            }
            _ => Err(format!("`{text}` is no table: write DATABASE.TABLE")),
        }
    }
}

/// A table, or one partition of it. Displays as `database.table` or
/// `database.table(partition=NAME)`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PhysicalTablePath {
    /// The table.
    pub table: TablePath,
    /// The partition's name: its values in key order, joined by `$`.
    pub partition: Option<String>,
}

impl fmt::Display for PhysicalTablePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.partition {
            Some(partition) => write!(f, "{}(partition={partition})", self.table),
            None => self.table.fmt(f),
        }
    }
}

/// One bucket of a table or of a partition: the unit of logs, leaders and offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TableBucket {
    /// The table.
    pub table: TableId,
    /// The partition, of a partitioned table.
    pub partition: Option<PartitionId>,
    /// The bucket within it.
    pub bucket: BucketId,
}

impl fmt::Display for TableBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.partition {
            Some(partition) => write!(
                f,
                "table {} partition {partition} bucket {}",
                self.table, self.bucket
            ),
            None => write!(f, "table {} bucket {}", self.table, self.bucket),
        }
    }
}
