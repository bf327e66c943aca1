//! The book of a table's bad records: what was diverted already, and the commit of more.

use std::collections::BTreeMap;
use std::sync::Arc;

use weir_lake_format::commit::CommitRequest;
use weir_lake_format::write::{CommitMessage, DataFileWriter, WriteTarget, WriterOptions};
use weir_lake_format::{BATCH_COMMIT_IDENTIFIER, CommitKind, DataField, Partition, Snapshot};
use weir_protocol::ids::{LogOffset, TableBucket, TableId};

use super::{BadRecord, Stamp, commit_after, fields, schema, to_batch};
use crate::committer::TABLE_ID;
use crate::error::{Error, Result};
use crate::lake_table::{LakeTable, Place};
use crate::ranges::{self, Apart, BucketRange, Offsets};
use crate::wall::{local_ms, unique_name};

/// The commit user of rounds in tables of bad records.
pub const COMMIT_USER: &str = "weir-bad-records";
/// Snapshot property: the offsets that are diverted and perhaps not yet left out by a committed
/// round, as a text of [`crate::ranges`].
pub const DIVERTED: &str = "weir-diverted";

/// Per bucket, offsets whose rows are in the table of bad records already.
pub type Diverted = BTreeMap<TableBucket, Vec<Offsets>>;

/// The bad records of one table as one reading of the lake.
#[derive(Clone, Debug)]
pub struct Book {
    place: Place,
    table_id: TableId,
    table: Option<LakeTable>,
    /// The newest snapshot of rounds in it.
    own: Option<i64>,
    diverted: Diverted,
}

impl Book {
    /// Reads the book of the table whose bad records are at `place`; that nothing is there is fine.
    ///
    /// # Errors
    /// [`Error::Lake`], [`Error::BadRanges`], and [`Error::Schema`] if another table is there.
    pub async fn read(place: Place, table_id: TableId) -> Result<Self> {
        let table = place.open().await?;
        let mut book = Self {
            place,
            table_id,
            table: None,
            own: None,
            diverted: BTreeMap::new(),
        };
        if let Some(table) = table {
            book.take(table).await?;
        }
        Ok(book)
    }

    /// The table, if anything was ever diverted.
    pub fn table(&self) -> Option<&LakeTable> {
        self.table.as_ref()
    }

    async fn take(&mut self, table: LakeTable) -> Result<()> {
        check_columns(&table)?;
        let own = table.table.own_latest(COMMIT_USER).await;
        let own = own.map_err(|error| table.error(error))?;
        self.own = own.as_ref().map(|own| own.id);
        if let Some(own) = own.filter(|own| self.is_ours(own))
            && let Some(text) = own.property(DIVERTED)
        {
            for range in ranges::load(&table.table, text).await? {
                let bucket = TableBucket {
                    table: self.table_id,
                    partition: range.partition_id,
                    bucket: range.bucket,
                };
                self.diverted.insert(bucket, range.apart.diverted);
            }
        }
        self.table = Some(table);
        Ok(())
    }

    /// Whether a snapshot is about this table, and not another that had its name.
    fn is_ours(&self, own: &Snapshot) -> bool {
        own.property(TABLE_ID) == Some(&self.table_id.to_string())
    }

    /// What is diverted and not yet left out by a committed round, since the lake ends below it:
    /// the next round must leave it out, whatever it thinks of the rows.
    pub fn pending(&self, ends: &BTreeMap<TableBucket, LogOffset>) -> Diverted {
        let mut pending = Diverted::new();
        for (bucket, offsets) in &self.diverted {
            let end = ends.get(bucket).map_or(LogOffset(0), |end| *end);
            let above = offsets.iter().filter(|o| o.end > end);
            let above: Vec<_> = above.map(|o| o.start.max(end)..o.end).collect();
            if !above.is_empty() {
                pending.insert(*bucket, above);
            }
        }
        pending
    }

    /// Commits records of a round that starts from `ends`; those that are there already are not
    /// written again. Afterwards the round may leave them out.
    ///
    /// # Errors
    /// [`Error::Diverted`] if another worker diverted meanwhile, [`Error::UnknownCommit`] if nobody
    /// can tell whether it took place: the next reading of the book can. After any other error
    /// nothing was committed.
    pub async fn commit(
        &mut self,
        records: &[BadRecord],
        ends: &BTreeMap<TableBucket, LogOffset>,
        stamp: Stamp<'_>,
    ) -> Result<()> {
        let mut pending = self.pending(ends);
        let mut fresh = Vec::new();
        for record in records {
            let known = pending.entry(record.bucket).or_default();
            if !known.iter().any(|o| o.contains(&record.offset)) {
                ranges::push(known, record.offset);
                fresh.push(record.clone());
            }
        }
        if fresh.is_empty() {
            return Ok(());
        }
        for offsets in pending.values_mut() {
            offsets.sort_unstable_by_key(|o| o.start);
        }
        let table = match self.table.take() {
            Some(table) => table,
            None => {
                let schema = schema(stamp.now_ms).map_err(|error| self.place.error(error))?;
                self.place.create(&schema).await?
            }
        };
        check_columns(&table)?;
        let table = self.table.insert(table).clone();
        let files = write(&table, &fresh, stamp).await?;
        let text = property_text(&fresh, &pending);
        let own = self.publish(&table, files, text, stamp).await?;
        self.own = Some(own);
        self.diverted = pending;
        Ok(())
    }

    async fn publish(
        &self,
        table: &LakeTable,
        files: CommitMessage,
        text: String,
        stamp: Stamp<'_>,
    ) -> Result<i64> {
        let file = format!("weir/diverted-{}.json", stamp.round);
        let properties = [
            (DIVERTED, table.property(text, &file).await?),
            (TABLE_ID, self.table_id.to_string()),
            (crate::committer::ROUND, stamp.round.to_owned()),
        ];
        let request = CommitRequest {
            commit_user: COMMIT_USER.to_owned(),
            commit_identifier: BATCH_COMMIT_IDENTIFIER,
            kind: CommitKind::Append,
            messages: vec![files],
            deletes: Vec::new(),
            properties: properties
                .map(|(key, value)| (key.to_owned(), value))
                .into(),
            allow_empty: false,
            uuid: unique_name(),
            now_ms: stamp.now_ms,
        };
        let refused = |table| Error::Diverted { table };
        commit_after(table, request, self.own, stamp.round, refused).await
    }
}

/// All that is diverted from each bucket, as a text of [`crate::ranges`].
fn property_text(fresh: &[BadRecord], pending: &Diverted) -> String {
    let name = |bucket: &TableBucket| {
        let same = fresh
            .iter()
            .find(|record| record.bucket.partition == bucket.partition);
        same.and_then(|record| record.partition.clone())
    };
    let range = |(bucket, diverted): (&TableBucket, &Vec<Offsets>)| {
        let (first, last) = (diverted.first()?, diverted.last()?);
        Some(BucketRange {
            partition_id: bucket.partition,
            partition: name(bucket),
            bucket: bucket.bucket,
            start: first.start,
            end: last.end,
            rows: 0,
            apart: Apart {
                diverted: diverted.clone(),
                lost: Vec::new(),
            },
        })
    };
    let ranges: Vec<_> = pending.iter().filter_map(range).collect();
    ranges::to_text(&ranges)
}

async fn write(
    table: &LakeTable,
    records: &[BadRecord],
    stamp: Stamp<'_>,
) -> Result<CommitMessage> {
    let lake = |source| table.error(source);
    let rows = to_batch(records, stamp, &table.schema).map_err(|source| {
        lake(weir_lake_format::Error::Arrow {
            what: "bad records".to_owned(),
            source,
        })
    })?;
    let mut writer = writer(table, stamp.now_ms)?;
    if let Err(error) = writer.write(rows).await {
        // What can't be deleted now is swept by name later.
        let _ = writer.abort().await;
        return Err(lake(error));
    }
    writer.finish().await.map_err(lake)
}

/// A writer of a table of bad records.
pub(super) fn writer(table: &LakeTable, now_ms: i64) -> Result<DataFileWriter> {
    let lake = |source| table.error(source);
    let options = WriterOptions::new(&table.schema, unique_name(), local_ms(now_ms));
    let target = WriteTarget {
        schema: Arc::clone(&table.schema),
        partition: Partition::unpartitioned(),
        bucket: 0,
        total_buckets: -1,
        first_sequence_number: 0,
    };
    let (store, root) = (Arc::clone(table.table.store()), table.table.root().clone());
    DataFileWriter::new(target, options.map_err(lake)?, store, root).map_err(lake)
}

/// Another table may have had the name first.
pub(super) fn check_columns(table: &LakeTable) -> Result<()> {
    let wanted = fields();
    let same = |(found, wanted): (&DataField, &DataField)| {
        found.name == wanted.name && found.data_type.kind == wanted.data_type.kind
    };
    let fits = table.schema.fields.len() == wanted.len()
        && table.schema.fields.iter().zip(&wanted).all(same)
        && table.is_bucket_unaware();
    if fits {
        return Ok(());
    }
    Err(Error::Schema {
        table: table.path().clone(),
        column: "(all)".to_owned(),
        reason: "this is no table of bad records: another one has its name".to_owned(),
    })
}

#[cfg(test)]
pub(crate) mod tests;
