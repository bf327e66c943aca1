//! Offsets files that nothing will ever name: of rounds that failed, of tables that are gone.

use std::collections::{BTreeMap, BTreeSet};

use weir_catalog::catalog::Table;
use weir_catalog::offsets_files::StoredFile;
use weir_catalog::store::Key;
use weir_protocol::ids::TableId;

use super::Coordinator;
use super::start::next_id;
use crate::error::Error;

impl Coordinator {
    /// Removes offsets files by name, once after a start: those of dropped tables, and those that are older
    /// than what their table records. A newer one may be of a lake snapshot that is recorded later.
    pub(super) async fn sweep_offsets_files(&self) -> Result<(), Error> {
        let mut by_table: BTreeMap<TableId, Vec<StoredFile>> = BTreeMap::new();
        for file in self.parts.offsets_files.list().await? {
            by_table.entry(file.table).or_default().push(file);
        }
        let store = &**self.parts.catalog.store();
        let next_table = next_id(store, &Key::table_ids()).await?;
        let existing = self.existing_tables().await?;
        for (table, files) in by_table {
            let is_known = u64::try_from(table.0).is_ok_and(|id| id < next_table);
            let old = match existing.contains(&table) {
                true => self.outlived(table, files).await?,
                // One that was never known may be of metadata that is lost.
                false if is_known => files,
                false => continue,
            };
            for file in old {
                let files = &self.parts.offsets_files;
                files.delete(&file.path, table, &file.uri).await?;
                tracing::debug!(
                    uri = file.uri,
                    "an offsets file that nothing names is removed"
                );
            }
        }
        Ok(())
    }

    async fn existing_tables(&self) -> Result<BTreeSet<TableId>, Error> {
        let mut tables = BTreeSet::new();
        for path in self.parts.reads.all_tables().await? {
            let table: Option<Table> = self.parts.catalog.find_table(&path).await?;
            tables.extend(table.map(|table| table.table_id));
        }
        Ok(tables)
    }

    /// The files that nothing names and that are older than the newest one that is recorded.
    async fn outlived(
        &self,
        table: TableId,
        files: Vec<StoredFile>,
    ) -> Result<Vec<StoredFile>, Error> {
        let Some(found) = self.parts.catalog.find_lake_table(table).await? else {
            return Ok(Vec::new());
        };
        let is_named = |file: &StoredFile| found.document.names(&file.uri);
        let named = files.iter().filter(|file| is_named(file));
        let Some(recorded) = named.map(|file| file.modified).max() else {
            return Ok(Vec::new());
        };
        let old = |file: &StoredFile| file.modified < recorded && !is_named(file);
        Ok(files.into_iter().filter(old).collect())
    }
}
