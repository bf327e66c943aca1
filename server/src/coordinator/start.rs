//! How a coordinator takes up its work: it finishes drops that a crash cut short, removes logs of what
//! is gone, makes every bucket's leader ready, and schedules the lake tables.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::stream::StreamExt;
use weir_catalog::catalog::{Partition, Table};
use weir_catalog::store::{Key, MetadataStore};
use weir_protocol::ids::{PartitionId, TableId, TablePath};

use super::Coordinator;
use super::activation::{Wanted, is_of_one_table};
use crate::error::Error;
use crate::log::Disk;

/// How many tables and partitions are activated at the same time.
const PARALLEL_ACTIVATIONS: usize = 16;
/// How old a lake table counts at a start: it is looked at at once.
const LONG_AGO_MS: i64 = -(1 << 50);

/// Where the logs of all tablet servers are.
pub(crate) struct LogFolders {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) dirs: Vec<PathBuf>,
}

/// All tables with their partitions, as read once.
#[derive(Default)]
struct Everything {
    tables: Vec<Table>,
    partitions: Vec<(usize, Partition)>,
    /// Some table, or the partitions of one, could not be read: what is missing here may exist.
    has_unreadable: bool,
}

impl Everything {
    /// All that is to be served: tables, then partitions.
    fn wanted(&self) -> Vec<Wanted> {
        let tables = self.tables.iter().cloned();
        let mut wanted: Vec<_> = tables
            .map(|table| Wanted::table(table, LONG_AGO_MS))
            .collect();
        for (at, partition) in &self.partitions {
            let table = self.tables.get(*at).cloned();
            wanted.extend(table.map(|table| Wanted::partition(table, partition.clone())));
        }
        wanted
    }
}

impl Coordinator {
    /// Makes everything that exists ready, at most for `limit`; the rest becomes ready later.
    ///
    /// # Errors
    /// Those of the catalog: what exists could not be read.
    pub(crate) async fn bring_up(
        self: &Arc<Self>,
        folders: Vec<LogFolders>,
        limit: Duration,
    ) -> Result<(), Error> {
        let all = self.read_everything().await?;
        if all.has_unreadable {
            tracing::error!("nothing dropped is cleaned up until all tables can be read");
        } else {
            self.finish_drops(&all).await?;
            let gone = Gone::of(&all, &**self.parts.catalog.store()).await?;
            let remove = move || folders.iter().for_each(|one| gone.remove_from(one));
            tokio::task::spawn_blocking(remove).await?;
        }
        let wanted = all.wanted();
        let coordinator = Arc::clone(self);
        // Goes on beyond the limit.
        let bringing = self.parts.shutdown.spawn(async move {
            let bring = |wanted| coordinator.bring(wanted).settled();
            futures::stream::iter(wanted)
                .for_each_concurrent(PARALLEL_ACTIVATIONS, bring)
                .await;
        });
        match tokio::time::timeout(limit, bringing).await {
            Ok(brought) => brought?,
            Err(_) => tracing::warn!("not all tables are ready yet"),
        }
        Ok(())
    }

    /// An assignment of something that does not exist is a drop that was not finished.
    async fn finish_drops(&self, all: &Everything) -> Result<(), Error> {
        let catalog = &self.parts.catalog;
        let (tables, partitions) = catalog.list_assignments().await?;
        for partition in partitions {
            let is_known = all.partitions.iter().any(|(_, one)| one.id == partition);
            if is_known {
                continue;
            }
            tracing::info!(%partition, "finishing the drop of a partition");
            // Its folder goes with those of everything that is gone.
            catalog.finish_partition_drop(partition).await?;
        }
        for table in tables {
            if !all.tables.iter().any(|one| one.table_id == table) {
                tracing::info!(%table, "finishing the drop of a table");
                catalog.finish_table_drop(table).await?;
            }
        }
        Ok(())
    }

    async fn read_everything(&self) -> Result<Everything, Error> {
        let mut all = Everything::default();
        for path in self.parts.reads.all_tables().await? {
            let table = self.parts.reads.table(&path).await;
            let Some(table) = unless_of_one_table(&path, table)? else {
                all.has_unreadable = true;
                continue;
            };
            self.remember(table.table_id, &path);
            if table.descriptor.is_partitioned() {
                let at = all.tables.len();
                let found = self.parts.reads.partitions(&path).await;
                let found = unless_of_one_table(&path, found)?;
                all.has_unreadable |= found.is_none();
                let partitions = found.into_iter().flat_map(|(_, partitions)| partitions);
                all.partitions.extend(partitions.map(|one| (at, one)));
            }
            all.tables.push(table);
        }
        Ok(all)
    }
}

/// `None`, and a line in the log, for a fault of this one table, which keeps no other from serving.
///
/// # Errors
/// Everything else: the store cannot be read, or is another's by now.
fn unless_of_one_table<T>(path: &TablePath, result: Result<T, Error>) -> Result<Option<T>, Error> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if is_of_one_table(&error) => {
            tracing::error!(table = %path, %error, "the table, or a part of it, is not served");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// What log folders may be removed: of ids that were given out and belong to nothing any more.
struct Gone {
    tables: BTreeSet<TableId>,
    partitions: BTreeSet<PartitionId>,
    next_table: u64,
    next_partition: u64,
}

impl Gone {
    async fn of(all: &Everything, store: &dyn MetadataStore) -> Result<Self, Error> {
        Ok(Self {
            tables: all.tables.iter().map(|table| table.table_id).collect(),
            partitions: all.partitions.iter().map(|(_, one)| one.id).collect(),
            next_table: next_id(store, &Key::table_ids()).await?,
            next_partition: next_id(store, &Key::partition_ids()).await?,
        })
    }

    /// Removes folders of dropped tables and partitions. One that the metadata never knew is kept:
    /// it may be the metadata that is lost. Blocks.
    fn remove_from(&self, logs: &LogFolders) {
        let disk = &*logs.disk;
        for log_dir in &logs.dirs {
            for (table, dir) in numbered(disk, log_dir, "table-") {
                if self.tables.contains(&TableId(table)) {
                    self.remove_partitions(disk, &dir);
                } else {
                    remove_if_known(disk, &dir, table, self.next_table);
                }
            }
        }
    }

    fn remove_partitions(&self, disk: &dyn Disk, table_dir: &Path) {
        for (partition, dir) in numbered(disk, table_dir, "partition-") {
            if !self.partitions.contains(&PartitionId(partition)) {
                remove_if_known(disk, &dir, partition, self.next_partition);
            }
        }
    }
}

/// The number that a counter hands out next; below it all were handed out.
pub(super) async fn next_id(store: &dyn MetadataStore, counter: &Key) -> Result<u64, Error> {
    let what = || counter.to_string();
    let found = store
        .get(counter)
        .await
        .map_err(|source| weir_catalog::Error::Store {
            what: what(),
            source,
        })?;
    let Some(entry) = found else { return Ok(0) };
    let bytes: [u8; 8] = entry.value.as_ref().try_into().map_err(|_| {
        let reason = "it is no 8-byte number".to_owned();
        weir_catalog::Error::Corrupt {
            what: what(),
            reason,
        }
    })?;
    Ok(u64::from_be_bytes(bytes))
}

fn remove_if_known(disk: &dyn Disk, dir: &Path, id: i64, next_id: u64) {
    if u64::try_from(id).is_ok_and(|id| id >= next_id) {
        tracing::error!(folder = %dir.display(),
            "a log belongs to nothing the metadata ever knew: it is kept, look into it");
        return;
    }
    match disk.remove_dir_all(dir) {
        Ok(()) => tracing::info!(folder = %dir.display(), "log of something dropped removed"),
        Err(error) => tracing::warn!(folder = %dir.display(), %error, "dropped log stays"),
    }
}

/// The folders in `parent` named by `prefix` and a number. One that cannot be read has none.
fn numbered(disk: &dyn Disk, parent: &Path, prefix: &str) -> Vec<(i64, PathBuf)> {
    let names = match disk.list(parent) {
        Ok(names) => names,
        Err(error) => {
            if error.kind() != std::io::ErrorKind::NotFound {
                tracing::warn!(folder = %parent.display(), %error, "cannot look for old logs");
            }
            return Vec::new();
        }
    };
    let named = |name: String| {
        let id = name.strip_prefix(prefix)?.parse().ok()?;
        Some((id, parent.join(&name)))
    };
    names.into_iter().filter_map(named).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::FileSystem;

    #[test]
    fn only_logs_of_what_was_known_and_is_gone_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let make = |path: &str| std::fs::create_dir_all(dir.path().join(path)).unwrap();
        for path in [
            "table-1/bucket-0",
            "table-2/bucket-0",
            "table-9/bucket-0",
            "other",
        ] {
            make(path);
        }
        make("table-3/partition-1/bucket-0");
        make("table-3/partition-2/bucket-0");
        make("table-3/partition-8/bucket-0");
        let gone = Gone {
            tables: BTreeSet::from([TableId(1), TableId(3)]),
            partitions: BTreeSet::from([PartitionId(1)]),
            next_table: 5,
            next_partition: 5,
        };
        gone.remove_from(&LogFolders {
            disk: Arc::new(FileSystem),
            dirs: vec![dir.path().to_owned()],
        });
        let exists = |path: &str| dir.path().join(path).exists();
        assert!(exists("table-1/bucket-0") && exists("other"));
        assert!(!exists("table-2"), "it was dropped");
        assert!(exists("table-9"), "the metadata never knew it");
        assert!(exists("table-3/partition-1") && exists("table-3/partition-8"));
        assert!(!exists("table-3/partition-2"), "it was dropped");
    }
}
