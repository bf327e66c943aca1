//! Every file name of the format, built and read in one place.

use object_store::path::Path;

use crate::error::Result;
use crate::partition::checked_path;

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

/// The folder of a database below a warehouse: `DB.db`.
///
/// # Errors
/// [`crate::Error::BadValue`] if the name cannot be a folder.
pub fn database_path(warehouse: &Path, database: &str) -> Result<Path> {
    let name = format!("{database}.db");
    if warehouse.as_ref().is_empty() {
        checked_path(&name)
    } else {
        checked_path(&format!("{warehouse}/{name}"))
    }
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

    /// `manifest/`.
    pub fn manifest_dir(&self) -> Path {
        self.root.clone().join("manifest")
    }

    /// A manifest, manifest list or index manifest by its name.
    pub fn manifest(&self, name: &str) -> Path {
        self.manifest_dir().join(name)
    }

    /// `index/NAME`.
    pub fn index(&self, name: &str) -> Path {
        self.root.clone().join("index").join(name)
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
