//! The Apache Paimon table format, without a clock, chance or sockets: times, ids and stores are
//! arguments.
//!
//! A table is a folder: schemas ([`TableSchema`]) and numbered snapshots ([`Snapshot`]); a snapshot
//! names two manifest lists, these name manifests, and manifests add and remove data files
//! ([`ManifestEntry`], [`DataFileMeta`]) of a partition ([`Partition`]) and bucket.

mod avro;
mod binary_row;
pub mod bucket;
pub mod canonical_json;
mod check;
pub mod commit;
mod data_file;
mod datum;
mod deletion_vector;
pub mod durable;
mod error;
pub mod expire;
#[cfg(test)]
mod faulty_store;
mod manifest;
mod manifest_list;
mod merge;
mod murmur;
mod options;
pub mod orphans;
pub mod parquet_pages;
mod partition;
pub mod partition_expiry;
pub mod paths;
mod predicate;
mod read;
mod references;
mod row_kind;
mod schema;
mod snapshot;
mod stats;
pub mod store;
mod table;
pub mod types;
pub mod write;

pub use binary_row::BinaryRow;
pub use check::{CheckDepth, Problem};
pub use commit::{CommitOutcome, CommitRequest, TableCommitter};
pub use data_file::{DataFileMeta, FileSource};
pub use datum::{Datum, Timestamp};
pub use deletion_vector::DeletionFile;
pub use durable::DurableLocal;
pub use error::{Error, Result};
pub use manifest::{
    FileKey, FileKind, ManifestEntry, decode_manifest, encode_manifest, live_files,
};
pub use manifest_list::{ManifestFileMeta, decode_manifest_list, encode_manifest_list};
pub use options::{BucketMode, Names, StatsMode, TableOptions, parse_duration};
pub use partition::{Partition, escape, value_text};
pub use paths::TablePaths;
pub use predicate::Predicate;
pub use read::{BatchStream, Filter, Split};
pub use row_kind::RowKind;
pub use schema::{NewTable, SCHEMA_VERSION, SchemaChange, TableSchema};
pub use snapshot::{BATCH_COMMIT_IDENTIFIER, CommitKind, SNAPSHOT_VERSION, Snapshot};
pub use stats::{ColumnStats, SimpleStats, StatsCollector, ValueStats};
pub use store::{open_existing_warehouse, open_warehouse};
pub use table::{Table, TableIdentity};
pub use types::{DataField, DataType, TypeKind};
pub use write::{
    CommitMessage, DataFileWriter, DictionaryChoice, MergeTreeWriter, WriteTarget, WriterOptions,
};
