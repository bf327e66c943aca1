//! Every file name of the format, built and read in one place.

use object_store::path::Path;

use crate::error::{Error, Result};

/// The file names of one table. `root` is the table's folder in its store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TablePaths {
    root: Path,
}

/// The folder of a table below a warehouse: `DB.db/TABLE`.
///
/// # Errors
/// [`crate::Error::BadValue`] if a name cannot be a folder.
pub fn table_path(warehouse: &Path, database: &str, table: &str) -> Result<Path> {
    let below = format!("{database}.db/{table}");
    if warehouse.as_ref().is_empty() {
        checked_path(&below)
    } else {
        checked_path(&format!("{warehouse}/{below}"))
    }
}

/// The object or folder `name` in `folder`, spelled as it is: a name from a file of the table is
/// another's spelling already.
///
/// # Errors
/// [`Error::BadValue`] if it is empty, holds a `/`, or is one that no store keeps.
pub fn named(folder: &Path, name: &str) -> Result<Path> {
    if name.is_empty() || name.contains('/') {
        return Err(Error::bad_value("path", format!("`{name}` is no name")));
    }
    if folder.as_ref().is_empty() {
        checked_path(name)
    } else {
        checked_path(&format!("{folder}/{name}"))
    }
}

/// A path whose parts are kept as they are spelled.
///
/// # Errors
/// [`Error::BadValue`] for `.` and `..`, which no store keeps.
pub(crate) fn checked_path(path: &str) -> Result<Path> {
    Path::parse(path).map_err(|e| Error::bad_value("path", e.to_string()))
}

impl TablePaths {
    /// The names below a table's folder.
    pub fn new(root: Path) -> Self {
        Self { root }
    }

    /// The table's folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// `schema/`.
    pub fn schema_dir(&self) -> Path {
        self.root.clone().join("schema")
    }

    /// `schema/schema-N`.
    pub fn schema(&self, id: i64) -> Path {
        self.schema_dir().join(format!("schema-{id}"))
    }

    /// `snapshot/`.
    pub fn snapshot_dir(&self) -> Path {
        self.root.clone().join("snapshot")
    }

    /// `snapshot/snapshot-N`.
    pub fn snapshot(&self, id: i64) -> Path {
        self.snapshot_dir().join(format!("snapshot-{id}"))
    }

    /// `snapshot/LATEST`, a hint.
    pub fn latest_hint(&self) -> Path {
        self.snapshot_dir().join("LATEST")
    }

    /// `snapshot/EARLIEST`, a hint.
    pub fn earliest_hint(&self) -> Path {
        self.snapshot_dir().join("EARLIEST")
    }

    /// `tag/`.
    pub fn tag_dir(&self) -> Path {
        self.root.clone().join("tag")
    }

    /// `changelog/`.
    pub fn changelog_dir(&self) -> Path {
        self.root.clone().join("changelog")
    }

    /// `branch/`.
    pub fn branch_dir(&self) -> Path {
        self.root.clone().join("branch")
    }

    /// `consumer/`.
    pub fn consumer_dir(&self) -> Path {
        self.root.clone().join("consumer")
    }

    /// `index/`.
    pub fn index_dir(&self) -> Path {
        self.root.clone().join("index")
    }

    /// `statistics/`.
    pub fn statistics_dir(&self) -> Path {
        self.root.clone().join("statistics")
    }

    /// `weir/`: what we alone write; other engines neither read nor sweep it.
    pub fn own_dir(&self) -> Path {
        self.root.clone().join("weir")
    }

    /// `manifest/`.
    pub fn manifest_dir(&self) -> Path {
        self.root.clone().join("manifest")
    }

    /// A manifest, manifest list or index manifest by its name.
    ///
    /// # Errors
    /// As [`named`].
    pub fn manifest(&self, name: &str) -> Result<Path> {
        named(&self.manifest_dir(), name)
    }

    /// The folder of a bucket. `partition` is [`crate::Partition::path`], empty when unpartitioned;
    /// `data_directory` is the option `data-file.path-directory`.
    ///
    /// # Errors
    /// [`crate::Error::BadValue`] if a folder name is one that no store keeps.
    pub fn bucket_dir(
        &self,
        data_directory: Option<&str>,
        partition: &str,
        bucket: i32,
    ) -> Result<Path> {
        let bucket = if bucket == POSTPONE_BUCKET {
            "bucket-postpone".to_owned()
        } else {
            format!("bucket-{bucket}")
        };
        let parts = [
            self.root.as_ref(),
            data_directory.unwrap_or_default(),
            partition,
            &bucket,
        ];
        let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        checked_path(&parts.join("/"))
    }
}

/// The bucket of files that wait for compaction to find theirs.
pub const POSTPONE_BUCKET: i32 = -2;

/// `manifest-UUID-N`.
pub fn manifest_name(uuid: &str, index: usize) -> String {
    format!("manifest-{uuid}-{index}")
}

/// `manifest-list-UUID-N`.
pub fn manifest_list_name(uuid: &str, index: usize) -> String {
    format!("manifest-list-{uuid}-{index}")
}

/// `data-UUID-N.parquet`, with the prefix of the option `data-file.prefix`.
pub fn data_file_name(prefix: &str, uuid: &str, index: usize) -> String {
    format!("{prefix}{uuid}-{index}.parquet")
}

/// The number of a `schema-N`, or `None` if the name is another's.
pub fn schema_id(file_name: &str) -> Option<i64> {
    number_behind(file_name, "schema-")
}

/// The number of a `snapshot-N`, or `None` if the name is another's.
pub fn snapshot_id(file_name: &str) -> Option<i64> {
    number_behind(file_name, "snapshot-")
}

fn number_behind(file_name: &str, prefix: &str) -> Option<i64> {
    let digits = file_name.strip_prefix(prefix)?;
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_format() {
        let paths = TablePaths::new(table_path(&Path::from("lake"), "db", "t").unwrap());
        assert_eq!(
            paths.snapshot(7).as_ref(),
            "lake/db.db/t/snapshot/snapshot-7"
        );
        assert_eq!(paths.schema(0).as_ref(), "lake/db.db/t/schema/schema-0");
        assert_eq!(
            paths.bucket_dir(None, "p=a b%2Fc", 3).unwrap().as_ref(),
            "lake/db.db/t/p=a b%2Fc/bucket-3"
        );
        assert_eq!(
            paths.bucket_dir(Some("data"), "", -2).unwrap().as_ref(),
            "lake/db.db/t/data/bucket-postpone"
        );
    }

    #[test]
    fn names_are_kept_as_they_are_spelled_and_lead_nowhere_else() {
        let folder = Path::from("t/bucket-0");
        for name in ["x~1.parquet", "a%7Eb", "a b#{}^", "é"] {
            let path = named(&folder, name).unwrap();
            assert_eq!(path.as_ref(), format!("t/bucket-0/{name}"));
            assert_eq!(path.filename(), Some(name));
        }
        for name in ["", "..", ".", "a/b", "/a", "../a"] {
            assert!(named(&folder, name).is_err(), "{name}");
        }
        assert_eq!(named(&Path::default(), "a~").unwrap().as_ref(), "a~");
    }

    #[test]
    fn a_warehouse_may_be_the_root_of_its_store() {
        assert_eq!(
            table_path(&Path::default(), "db", "t").unwrap().as_ref(),
            "db.db/t"
        );
    }

    #[test]
    fn only_plain_numbers_are_snapshots() {
        assert_eq!(snapshot_id("snapshot-12"), Some(12));
        for other in [
            "snapshot-",
            "snapshot-1.tmp",
            "snapshot-+1",
            "LATEST",
            ".snapshot-1",
        ] {
            assert_eq!(snapshot_id(other), None);
        }
    }
}
