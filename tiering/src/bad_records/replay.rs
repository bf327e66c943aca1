//! Replay: bad records whose cause is mended go into the lake table, each once.
//!
//! It works over two tables that can't be committed in one step. The order is: data files of the
//! lake table → claim (a snapshot of the table of bad records that names the replay) → lake commit →
//! removal of the records. Whoever comes after a crash first removes what the newest replay in the lake
//! put back; where snapshots are gone that could tell what a claim led to, it refuses to guess and asks
//! for what a person found. Of two replays at a time one commits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::RecordBatch;
use futures::TryStreamExt as _;
use weir_catalog::clock::Clock;
use weir_lake_format::commit::CommitRequest;
use weir_lake_format::write::{CommitMessage, DataFileWriter};
use weir_lake_format::{
    BATCH_COMMIT_IDENTIFIER, CommitKind, FileKind, ManifestEntry, Partition, Snapshot,
    Split as LakeSplit,
};
use weir_protocol::ids::{LogOffset, PartitionId, TableBucket, TableId, TablePath};

use super::book::{check_columns, writer};
use super::{BadRecord, commit_after, from_batch};
use crate::cluster::{TableInfo, TieringClient};
use crate::error::{Error, Result};
use crate::lake_table::{LakeTable, Place, Warehouse};
use crate::ranges::{self, Apart, BucketRange};
use crate::wall::unique_name;

mod files;

use files::Files;

/// The commit user of replays, in both tables.
pub const COMMIT_USER: &str = "weir-replay";
/// Snapshot property: the replay.
pub const REPLAY: &str = "weir-replay";
/// Snapshot property: the offsets whose rows were put back (lake table) or are about to be (claim), as
/// a text of [`crate::ranges`].
pub const REPLAYED: &str = "weir-replayed";
/// Snapshot property of the table of bad records: what a claim is about to put back, as JSON.
pub const CLAIM: &str = "weir-replay-claim";

/// Records put back by one commit.
const BATCH_RECORDS: usize = 10_000;

/// What became of a replay that broke off, as a person found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Outcome {
    /// Its rows are in the lake.
    InLake,
    /// None of them is.
    NotInLake,
}

/// What a replay did.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Replayed {
    /// Rows that are in the lake table now.
    pub rows: usize,
    /// The lake snapshots that added them.
    pub snapshots: Vec<i64>,
    /// Records that still don't fit, each with its reason.
    pub still_bad: Vec<StillBad>,
    /// Records of a round that is not committed yet; the next round decides.
    pub pending: usize,
}

/// A record that still doesn't fit.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct StillBad {
    /// The partition's name, of a partitioned table.
    pub partition: Option<String>,
    /// The bucket's number in the log.
    pub bucket: i32,
    /// Its offset.
    pub offset: i64,
    /// The column at fault.
    pub column: String,
    /// Why.
    pub reason: String,
}

/// What is about to be put back.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
struct Claim {
    version: i32,
    replay: String,
    /// The newest snapshot of the lake table when the claim was made.
    lake_snapshot: Option<i64>,
}

/// The version of claims that is written and read.
const CLAIM_VERSION: i32 = 1;

/// The newest snapshots of replays, as of before anything was read: the fence of both tables.
#[derive(Clone, Copy, Debug)]
struct Seen {
    lake: Option<i64>,
    bad: Option<i64>,
}

/// A record's place: what makes it one.
type Key = (TableBucket, LogOffset);

/// Puts the bad records of a table back, as far as they fit now. `assumed` counts for an earlier replay
/// of which nothing else can tell what became of it.
///
/// # Errors
/// [`Error::ReplayUnknown`] if an earlier replay broke off, nothing can tell any more whether it
/// took place, and nothing is assumed; what cluster and lake say. A replay that failed may be run again.
pub async fn replay(
    client: &Arc<dyn TieringClient>,
    warehouse: &Warehouse,
    path: &TablePath,
    clock: &Arc<dyn Clock>,
    assumed: Option<Outcome>,
) -> Result<Replayed> {
    let info = Arc::new(client.table_info(path).await?);
    let lake = Arc::new(warehouse.table(path, &info.properties).await?);
    let mut done = Replayed::default();
    let place = warehouse.bad_records(path, &info.properties)?;
    let Some(bad) = place.open().await? else {
        return Ok(done);
    };
    check_columns(&bad)?;
    let replay = Replay {
        client,
        info,
        lake,
        bad,
        clock,
    };
    // Before anything is read: whoever commits from now on makes our own commits void.
    let mut seen = replay.seen().await?;
    replay.settle(&mut seen, assumed).await?;
    let ends = client.lake_progress(path, replay.info.id).await?.ends;
    let mut passed = BTreeSet::new();
    loop {
        let found = replay.records(&passed).await?;
        if found.is_empty() {
            return Ok(done);
        }
        passed.extend(found.iter().map(key));
        let committed = |record: &BadRecord| {
            let end = ends.get(&record.bucket);
            end.is_some_and(|end| record.offset < *end)
        };
        let (ready, pending): (Vec<_>, Vec<_>) = found.into_iter().partition(committed);
        done.pending += pending.len();
        replay.put_back(ready, &mut seen, &mut done).await?;
    }
}

/// All bad records of a table, in no order.
///
/// # Errors
/// As for the lake.
pub async fn all_records(place: &Place, table: TableId) -> Result<Vec<BadRecord>> {
    let Some(bad) = place.open().await? else {
        return Ok(Vec::new());
    };
    check_columns(&bad)?;
    let reader = Reader { bad: &bad, table };
    let mut all = Vec::new();
    for entry in reader.live_entries().await? {
        all.extend(reader.records(&entry).await?);
    }
    Ok(all)
}

fn key(record: &BadRecord) -> Key {
    (record.bucket, record.offset)
}

/// Reads the records of one table.
struct Reader<'a> {
    bad: &'a LakeTable,
    table: TableId,
}

impl Reader<'_> {
    async fn live_entries(&self) -> Result<Vec<ManifestEntry>> {
        let bad = |error| self.bad.error(error);
        match self.bad.table.latest_snapshot().await.map_err(bad)? {
            Some(latest) => self.bad.table.live_entries(&latest).await.map_err(bad),
            None => Ok(Vec::new()),
        }
    }

    /// The records of a file that are the table's.
    async fn records(&self, entry: &ManifestEntry) -> Result<Vec<BadRecord>> {
        let mut records = Vec::new();
        for batch in self.batches(entry).await? {
            records.extend(self.sound(entry, &batch)?);
        }
        records.retain(|record| record.bucket.table == self.table);
        Ok(records)
    }

    /// The records of a batch; a damaged one, of whatever table, makes its file an error.
    fn sound(&self, entry: &ManifestEntry, batch: &RecordBatch) -> Result<Vec<BadRecord>> {
        from_batch(batch).map_err(|reason| {
            let path = entry.file.file_name.clone();
            let source = None;
            let corrupt = weir_lake_format::Error::Corrupt {
                path,
                reason,
                source,
            };
            self.bad.error(corrupt)
        })
    }

    async fn batches(&self, entry: &ManifestEntry) -> Result<Vec<RecordBatch>> {
        let bad = |error| self.bad.error(error);
        let split = LakeSplit {
            partition: Partition::unpartitioned(),
            bucket: entry.bucket,
            total_buckets: entry.total_buckets,
            files: vec![entry.file.clone()],
            deletions: BTreeMap::new(),
        };
        let stream = self.bad.table.read_split(&split, None).await.map_err(bad)?;
        stream.try_collect().await.map_err(bad)
    }
}

struct Replay<'a> {
    client: &'a Arc<dyn TieringClient>,
    info: Arc<TableInfo>,
    lake: Arc<LakeTable>,
    bad: LakeTable,
    clock: &'a Arc<dyn Clock>,
}

impl Replay<'_> {
    /// Records of the table that are not passed over, in order, as many as one commit takes.
    async fn records(&self, passed: &BTreeSet<Key>) -> Result<Vec<BadRecord>> {
        let mut found = BTreeMap::new();
        for entry in self.reader().live_entries().await? {
            for record in self.reader().records(&entry).await? {
                if !passed.contains(&key(&record)) {
                    found.insert(key(&record), record);
                }
            }
            if found.len() >= BATCH_RECORDS {
                break;
            }
        }
        Ok(found.into_values().take(BATCH_RECORDS).collect())
    }

    fn reader(&self) -> Reader<'_> {
        Reader {
            bad: &self.bad,
            table: self.info.id,
        }
    }

    async fn seen(&self) -> Result<Seen> {
        let bad = self.own_claim().await?.map(|own| own.id);
        let lake = self.lake.table.own_latest(COMMIT_USER).await;
        let lake = lake.map_err(|error| self.lake.error(error))?;
        Ok(Seen {
            lake: lake.map(|own| own.id),
            bad,
        })
    }

    async fn put_back(
        &self,
        records: Vec<BadRecord>,
        seen: &mut Seen,
        done: &mut Replayed,
    ) -> Result<()> {
        let mut files = Files::new(self.client, &self.info, &self.lake, self.clock).await?;
        let mut fit = Vec::new();
        for record in records {
            match files.write(&record).await {
                Ok(None) => fit.push(record),
                Ok(Some((column, reason))) => done.still_bad.push(StillBad {
                    partition: record.partition,
                    bucket: record.bucket.bucket.0,
                    offset: record.offset.0,
                    column,
                    reason,
                }),
                Err(error) => {
                    files.abort().await;
                    return Err(error);
                }
            }
        }
        if fit.is_empty() {
            files.abort().await;
            return Ok(());
        }
        let messages = files.finish().await?;
        let latest = match self.lake.table.latest_snapshot_id().await {
            Ok(latest) => latest,
            Err(error) => {
                self.lake.discard(messages).await;
                return Err(self.lake.error(error));
            }
        };
        let claim = Claim {
            version: CLAIM_VERSION,
            replay: unique_name(),
            lake_snapshot: latest,
        };
        if let Err(error) = self.claim(&claim, &fit, seen).await {
            self.lake.discard(messages).await;
            return Err(error);
        }
        let snapshot = self.publish(&claim, &fit, messages, seen).await?;
        done.rows += fit.len();
        done.snapshots.push(snapshot);
        self.remove(&claim.replay, fit.iter().map(key).collect(), seen)
            .await
    }

    async fn claim(&self, claim: &Claim, records: &[BadRecord], seen: &mut Seen) -> Result<()> {
        let text = serde_json::to_string(claim).map_err(|error| Error::BadRanges {
            reason: format!("{CLAIM}: {error}"),
        })?;
        let file = format!("weir/claimed-{}.json", claim.replay);
        let ranges = self.bad.property(ranges_text(records), &file).await?;
        let properties = vec![(CLAIM, text), (REPLAYED, ranges)];
        let request = self.request(CommitKind::Append, properties, &claim.replay);
        seen.bad = Some(self.commit(&self.bad, request, seen.bad).await?);
        Ok(())
    }

    async fn own_claim(&self) -> Result<Option<Snapshot>> {
        let own = self.bad.table.own_latest(COMMIT_USER).await;
        own.map_err(|error| self.bad.error(error))
    }

    async fn publish(
        &self,
        claim: &Claim,
        records: &[BadRecord],
        messages: Vec<CommitMessage>,
        seen: &mut Seen,
    ) -> Result<i64> {
        let file = format!("weir/replayed-{}.json", claim.replay);
        let text = self.lake.property(ranges_text(records), &file).await?;
        let properties = vec![(REPLAYED, text)];
        let mut request = self.request(CommitKind::Append, properties, &claim.replay);
        request.messages = messages;
        let snapshot = self.commit(&self.lake, request, seen.lake).await?;
        seen.lake = Some(snapshot);
        Ok(snapshot)
    }

    fn request(
        &self,
        kind: CommitKind,
        properties: Vec<(&str, String)>,
        replay: &str,
    ) -> CommitRequest {
        let properties = properties.into_iter();
        let table = (crate::committer::TABLE_ID, self.info.id.to_string());
        let properties = properties.chain([table, (REPLAY, replay.to_owned())]);
        CommitRequest {
            commit_user: COMMIT_USER.to_owned(),
            commit_identifier: BATCH_COMMIT_IDENTIFIER,
            kind,
            messages: Vec::new(),
            deletes: Vec::new(),
            properties: properties
                .map(|(key, value)| (key.to_owned(), value))
                .collect(),
            allow_empty: true,
            uuid: unique_name(),
            now_ms: self.clock.now_ms(),
        }
    }

    /// Commits, unless another replay committed since `seen`.
    async fn commit(
        &self,
        table: &LakeTable,
        request: CommitRequest,
        seen: Option<i64>,
    ) -> Result<i64> {
        let replay = request.properties.get(REPLAY).cloned().unwrap_or_default();
        let refused = |table| Error::LakeConflict {
            table,
            reason: "another replay runs".to_owned(),
        };
        // If the outcome is unknown, the claim tells the next replay where to look.
        commit_after(table, request, seen, &replay, refused).await
    }

    /// Takes records out of the table, those of them that are in it: files that hold one are replaced
    /// by what else they hold.
    async fn remove(&self, replay: &str, keys: BTreeSet<Key>, seen: &mut Seen) -> Result<()> {
        let mut request = self.request(CommitKind::Overwrite, Vec::new(), replay);
        let bad = |error| self.bad.error(error);
        let mut rest = writer(&self.bad, request.now_ms)?;
        let taken_out = self.take_out(&keys, &mut rest).await;
        request.deletes = match taken_out {
            Ok(deletes) if !deletes.is_empty() => deletes,
            nothing => {
                if let Err(error) = rest.abort().await {
                    tracing::debug!(%error, "left for the orphan sweep");
                }
                return nothing.map(drop);
            }
        };
        let rest = rest.finish().await.map_err(bad)?;
        if !rest.new_files.is_empty() {
            request.messages.push(rest);
        }
        seen.bad = Some(self.commit(&self.bad, request, seen.bad).await?);
        Ok(())
    }

    /// Writes what else there is in files that hold one of the records; the deletes of these files.
    async fn take_out(
        &self,
        keys: &BTreeSet<Key>,
        rest: &mut DataFileWriter,
    ) -> Result<Vec<ManifestEntry>> {
        let bad = |error| self.bad.error(error);
        let mut deletes = Vec::new();
        for entry in self.reader().live_entries().await? {
            let batches = self.reader().batches(&entry).await?;
            let mut parts = Vec::new();
            let mut is_hit = false;
            for batch in batches {
                // What is damaged must not be mistaken for another record, nor be written anew.
                self.reader().sound(&entry, &batch)?;
                let kept = files::without(&batch, self.info.id, keys);
                let kept = kept.map_err(|source| {
                    let what = "bad records".to_owned();
                    bad(weir_lake_format::Error::Arrow { what, source })
                })?;
                is_hit |= kept.num_rows() < batch.num_rows();
                parts.push(kept);
            }
            if !is_hit {
                continue;
            }
            for part in parts {
                rest.write(part).await.map_err(bad)?;
            }
            deletes.push(ManifestEntry {
                kind: FileKind::Delete,
                ..entry
            });
        }
        Ok(deletes)
    }

    /// Ends earlier replays that broke off before the removal of their records.
    ///
    /// That is at most the newest one in the lake: whoever commits there after another one had settled
    /// that one before, or is refused. It may be of a claim that is not the newest: its put may have
    /// been under way when a later replay looked.
    async fn settle(&self, seen: &mut Seen, assumed: Option<Outcome>) -> Result<()> {
        if let Some((own, claim)) = self.unsettled().await?
            && let Err(error) = self.find(&claim).await
        {
            match (error, assumed) {
                (Error::ReplayUnknown { .. }, Some(Outcome::NotInLake)) => {}
                (Error::ReplayUnknown { .. }, Some(Outcome::InLake)) => {
                    self.remove_replayed(&self.bad, &own, seen).await?;
                }
                (error, _) => return Err(error),
            }
        }
        let newest = self.lake.table.own_latest(COMMIT_USER).await;
        let newest = newest.map_err(|error| self.lake.error(error))?;
        match newest.filter(|newest| self.is_ours(newest)) {
            Some(newest) => self.remove_replayed(&self.lake, &newest, seen).await,
            None => Ok(()),
        }
    }

    /// Takes the records out that a snapshot of `table` says were put back.
    async fn remove_replayed(
        &self,
        table: &LakeTable,
        snapshot: &Snapshot,
        seen: &mut Seen,
    ) -> Result<()> {
        let mut keys = BTreeSet::new();
        let text = snapshot.property(REPLAYED).unwrap_or_default();
        for range in ranges::load(&table.table, text).await? {
            let bucket = TableBucket {
                table: self.info.id,
                partition: range.partition_id,
                bucket: range.bucket,
            };
            keys.extend((range.start.0..range.end.0).map(|offset| (bucket, LogOffset(offset))));
        }
        let replay = snapshot.property(REPLAY).unwrap_or_default().to_owned();
        self.remove(&replay, keys, seen).await
    }

    /// Whether a snapshot of a replay is about this table, and not another that had its name.
    fn is_ours(&self, snapshot: &Snapshot) -> bool {
        snapshot.property(crate::committer::TABLE_ID) == Some(&self.info.id.to_string())
    }

    /// The newest claim of this table, if its records were not removed since, with its snapshot.
    async fn unsettled(&self) -> Result<Option<(Snapshot, Claim)>> {
        let own = self.own_claim().await?.filter(|own| self.is_ours(own));
        let Some(own) = own else { return Ok(None) };
        let Some(text) = own.property(CLAIM) else {
            return Ok(None);
        };
        let claim: Claim = serde_json::from_str(text).map_err(|error| Error::BadRanges {
            reason: format!("{CLAIM}: {error}"),
        })?;
        if claim.version != CLAIM_VERSION {
            let reason = format!("{CLAIM}: version {} is not known", claim.version);
            return Err(Error::BadRanges { reason });
        }
        Ok(Some((own, claim)))
    }

    /// Looks for the lake snapshot of a claim's replay.
    ///
    /// # Errors
    /// [`Error::ReplayUnknown`] if snapshots are gone among which it may have been.
    async fn find(&self, claim: &Claim) -> Result<()> {
        let lake = |error| self.lake.error(error);
        let table = &self.lake.table;
        let after = claim.lake_snapshot.unwrap_or(0);
        let ids = table.snapshot_ids().await.map_err(lake)?;
        let mut next = after + 1;
        for id in ids.into_iter().filter(|id| *id > after) {
            let snapshot = table.snapshot(id).await.map_err(lake)?;
            if snapshot.property(REPLAY) == Some(&claim.replay) {
                return Ok(());
            }
            if id != next {
                return Err(Error::ReplayUnknown {
                    table: self.lake.path().clone(),
                    replay: claim.replay.clone(),
                    from: next,
                    to: id,
                });
            }
            next = id + 1;
        }
        Ok(())
    }
}

/// Records as ranges: adjacent offsets of a bucket are one.
fn ranges_text(records: &[BadRecord]) -> String {
    type Group<'a> = (Option<PartitionId>, Option<&'a str>, TableBucket);
    let mut groups = BTreeMap::<Group<'_>, Vec<ranges::Offsets>>::new();
    for record in records {
        let partition = record.partition.as_deref();
        let group = (record.bucket.partition, partition, record.bucket);
        ranges::push(groups.entry(group).or_default(), record.offset);
    }
    let mut all = Vec::new();
    for ((partition_id, partition, bucket), offsets) in groups {
        let range = |o: ranges::Offsets| BucketRange {
            partition_id,
            partition: partition.map(str::to_owned),
            bucket: bucket.bucket,
            start: o.start,
            end: o.end,
            rows: o.end.0 - o.start.0,
            apart: Apart::default(),
        };
        all.extend(offsets.into_iter().map(range));
    }
    ranges::to_text(&all)
}

#[cfg(test)]
mod tests;
