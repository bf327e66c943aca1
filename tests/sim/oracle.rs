//! What must hold after every step, looked up by readers that meet no trouble.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::{AsArray as _, RecordBatch};
use arrow::datatypes::Int64Type;
use futures::TryStreamExt as _;
use object_store::ObjectStore;
use object_store::path::Path;
use weir_catalog::lake::is_claim;
use weir_catalog::store::{Key, MetadataStore as _};
use weir_lake_format::{Filter, ManifestEntry, Partition, Snapshot, Split, Table as Lake};
use weir_protocol::ids::{PartitionId, TablePath};
use weir_tiering::ranges::{self, BucketRange};

use crate::log_view::{LogView, log_view};
use crate::model::{RowId, Table};
use crate::world::{LAKE, World};

/// What is wrong, in a sentence.
pub(crate) type Violation = String;

/// A bucket of a table.
pub(crate) type Place = (Option<PartitionId>, i32);

/// How thoroughly to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Depth {
    /// What is new in the lake, offsets, names of files.
    New,
    /// All rows of logs and lake, too.
    All,
}

/// What was seen so far.
#[derive(Debug, Default)]
pub(crate) struct Oracle {
    tables: BTreeMap<TablePath, Seen>,
}

#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) last_snapshot: i64,
    /// How far each bucket is in the lake.
    pub(crate) ends: BTreeMap<Place, i64>,
    /// Rows in the lake, with their bucket's place as far as files tell.
    pub(crate) rows: BTreeSet<RowId>,
    /// Per writer, lake partition and bucket, its newest row.
    newest: BTreeMap<(i64, Vec<u8>, i32), i64>,
    /// Files that live snapshots name.
    named: BTreeSet<Path>,
    data_files: BTreeSet<String>,
    epochs: (i64, i64),
    /// The revision under which the table was given out last, and the epoch.
    given_out: (u64, i64),
    registered: i64,
    pub(crate) high_watermarks: BTreeMap<Place, i64>,
}

impl Oracle {
    /// Looks at everything.
    pub(crate) async fn check(&mut self, world: &World, depth: Depth) -> Result<(), Violation> {
        for table in world.model.tables() {
            let seen = self.tables.entry(table.path.clone()).or_default();
            let checked = async {
                look_at_lake(world, &table, seen).await?;
                look_at_epoch(world, &table, seen).await?;
                let ends = seen.ends.clone();
                // All goes on meanwhile. What is in the lake before is in the log after, and what the
                // server knows of the lake is in the lake after.
                let Some(view) = log_view(world, &table, depth).await? else {
                    return Ok(());
                };
                note_counts(world, &table, &view);
                look_at_log(&ends, seen, &view)?;
                look_at_lake(world, &table, seen).await?;
                look_at_what_is_registered(&table, seen, &view)?;
                if depth == Depth::All {
                    look_at_rows(&table, seen, &view)?;
                }
                Ok(())
            };
            let checked: Result<(), Violation> = checked.await;
            checked.map_err(|violation| format!("{}: {violation}", table.path))?;
        }
        Ok(())
    }

    /// What the lake lacks of what there is: empty once all is quiet.
    pub(crate) async fn lacking(&mut self, world: &World) -> Result<Vec<String>, Violation> {
        let mut lacking = Vec::new();
        for table in &world.model.tables() {
            if table.is_dropped {
                continue;
            }
            let Some(view) = log_view(world, table, Depth::New).await? else {
                lacking.push(format!("{}: no server", table.path));
                continue;
            };
            let walled = walled(world, table, &view).await?;
            let seen = self.tables.entry(table.path.clone()).or_default();
            for (place, bucket) in &view.buckets {
                if place.0.is_some_and(|id| walled.contains_key(&id)) {
                    continue;
                }
                let end = seen.ends.get(place).copied().unwrap_or(0);
                match bucket.high_watermark {
                    Some(high_watermark) if high_watermark <= end => {}
                    found => lacking.push(format!(
                        "{} {place:?}: the lake ends at {end}, the log at {found:?}",
                        table.path
                    )),
                }
                let registered = view.registered_ends.get(place).copied().unwrap_or(0);
                if registered < end {
                    lacking.push(format!(
                        "{} {place:?}: the server knows of {registered}, not of {end}",
                        table.path
                    ));
                }
            }
            let is_walled = |id: &RowId| {
                let part = table.sent.get(id);
                part.is_some_and(|part| walled.values().any(|name| name == part))
            };
            let mut missing = table.owed().filter(|id| !seen.rows.contains(id));
            let missing = missing.find(|id| !is_walled(id));
            if let Some(missing) = missing {
                lacking.push(format!(
                    "{}: row {missing:?} is not in the lake",
                    table.path
                ));
            }
        }
        Ok(lacking)
    }

    /// All rows in the lake, by a reader that begins at the newest snapshot.
    pub(crate) async fn read_all(&self, world: &World) -> Result<u64, Violation> {
        let mut count = 0;
        for (path, seen) in &self.tables {
            let Some(lake) = open(world, path).await? else {
                continue;
            };
            let newest = lake.latest_snapshot().await.map_err(text)?;
            let Some(newest) = newest else { continue };
            let mut rows = Vec::new();
            for split in lake.plan(&newest, &Filter::default()).await.map_err(text)? {
                rows.extend(rows_of(&lake, &split).await?);
            }
            let distinct: BTreeSet<RowId> = rows.iter().map(|(id, _)| *id).collect();
            if distinct.len() != rows.len() || distinct != seen.rows {
                return Err(format!(
                    "{path}: the newest snapshot has {} rows, the snapshots added {}",
                    rows.len(),
                    seen.rows.len()
                ));
            }
            count += distinct.len() as u64;
        }
        Ok(count)
    }
}

/// Partitions of whose name the lake has files of another bucket count: they wait for a person, all
/// others go on.
async fn walled(
    world: &World,
    table: &Table,
    view: &LogView,
) -> Result<BTreeMap<PartitionId, String>, Violation> {
    let mut walled = BTreeMap::new();
    let several = table.counts.values().any(|counts| counts.len() > 1);
    if !(table.is_bucketed && table.is_partitioned && several) {
        return Ok(walled);
    }
    let Some(lake) = open(world, &table.path).await? else {
        return Ok(walled);
    };
    let Some(newest) = lake.latest_snapshot().await.map_err(text)? else {
        return Ok(walled);
    };
    let schema = lake.latest_schema().await.map_err(text)?;
    for entry in lake.live_entries(&newest).await.map_err(text)? {
        let partition = Partition::from_bytes(&entry.partition, &schema).map_err(text)?;
        let described = partition.describe(&schema);
        let name = described.rsplit('=').next().unwrap_or_default();
        let (count, id) = (view.counts.get(name), view.partitions.get(name));
        if let (Some(count), Some(id)) = (count, id)
            && *count != entry.total_buckets
        {
            walled.insert(*id, name.to_owned());
        }
    }
    Ok(walled)
}

/// Partitions keep the count that they were first seen with, as long as they are the same.
fn note_counts(world: &World, table: &Table, view: &LogView) {
    world.model.change(&table.path, |table| {
        for (name, count) in &view.counts {
            table.counts.entry(name.clone()).or_default().insert(*count);
        }
    });
}

async fn open(world: &World, path: &TablePath) -> Result<Option<Lake>, Violation> {
    let root = Path::from(format!("{LAKE}/{}.db/{}", path.database, path.table));
    let store = Arc::clone(&world.objects) as Arc<dyn ObjectStore>;
    match Lake::open(store, root).await {
        Ok(lake) => Ok(Some(lake)),
        Err(weir_lake_format::Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(text(error)),
    }
}

pub(crate) fn text(error: impl std::error::Error) -> Violation {
    weir_catalog::sentence::sentence(&error)
}

async fn look_at_lake(world: &World, table: &Table, seen: &mut Seen) -> Result<(), Violation> {
    let names: BTreeSet<Path> = world.objects.names().into_iter().collect();
    if let Some(gone) = seen.named.iter().find(|name| !names.contains(name)) {
        return Err(format!("{gone} is named by a snapshot and gone"));
    }
    let root = format!("{LAKE}/{}.db/{}", table.path.database, table.path.table);
    let folder = Path::from(format!("{root}/snapshot"));
    let numbers = names.iter().filter_map(|name| {
        let mut parts = name.prefix_match(&folder)?;
        parts
            .next()?
            .as_ref()
            .strip_prefix("snapshot-")?
            .parse()
            .ok()
    });
    let ids: BTreeSet<i64> = numbers.collect();
    let newest = ids.last().copied().unwrap_or(0);
    if ids.len() as i64 != newest {
        return Err(format!("snapshots are not consecutive: {ids:?}"));
    }
    if newest < seen.last_snapshot {
        return Err(format!("snapshot {} is gone", seen.last_snapshot));
    }
    if newest == seen.last_snapshot {
        return Ok(());
    }
    let lake = open(world, &table.path).await?.ok_or("it has no schema")?;
    for id in seen.last_snapshot + 1..=newest {
        let snapshot = lake.snapshot(id).await.map_err(text)?;
        look_at_snapshot(&lake, table, &snapshot, seen)
            .await
            .map_err(|violation| format!("snapshot {id}: {violation}"))?;
        seen.named.insert(lake.paths().snapshot(id));
        seen.last_snapshot = id;
    }
    Ok(())
}

async fn look_at_snapshot(
    lake: &Lake,
    table: &Table,
    snapshot: &Snapshot,
    seen: &mut Seen,
) -> Result<(), Violation> {
    let said = if is_claim(snapshot) {
        // The creation of the table was tried again: nothing was tiered before.
        if !seen.ends.is_empty() {
            return Err("a table with rounds is claimed".to_owned());
        }
        0
    } else {
        look_at_round(lake, snapshot, seen).await?
    };
    for name in [&snapshot.base_manifest_list, &snapshot.delta_manifest_list] {
        seen.named
            .insert(lake.paths().manifest(name).map_err(text)?);
    }
    for manifest in lake.manifests(snapshot).await.map_err(text)? {
        let path = lake.paths().manifest(&manifest.file_name).map_err(text)?;
        seen.named.insert(path);
    }
    let mut rows = 0;
    for entry in lake.delta_entries(snapshot).await.map_err(text)? {
        rows += look_at_file(lake, table, &entry, seen).await?;
    }
    if rows != said {
        return Err(format!("it added {rows} rows and says {said}"));
    }
    Ok(())
}

/// The rows that a snapshot of tiering says it added.
async fn look_at_round(
    lake: &Lake,
    snapshot: &Snapshot,
    seen: &mut Seen,
) -> Result<i64, Violation> {
    let epochs = (
        epoch(snapshot, "weir-coordinator-epoch")?,
        epoch(snapshot, "weir-tiering-epoch")?,
    );
    if epochs < seen.epochs {
        return Err(format!("epochs {epochs:?} after {:?}", seen.epochs));
    }
    seen.epochs = epochs;
    let property = snapshot.property("weir-ranges").ok_or("it has no ranges")?;
    let ranges = ranges::load(lake, property).await.map_err(text)?;
    follow(&ranges, seen)?;
    Ok(ranges.iter().map(|range| range.rows).sum())
}

fn epoch(snapshot: &Snapshot, name: &str) -> Result<i64, Violation> {
    let found = snapshot.property(name).and_then(|text| text.parse().ok());
    found.ok_or_else(|| format!("it has no {name}"))
}

/// Each range begins where the last one of its bucket ended.
fn follow(ranges: &[BucketRange], seen: &mut Seen) -> Result<(), Violation> {
    for range in ranges {
        let place = (range.partition_id, range.bucket.0);
        let end = seen.ends.entry(place).or_default();
        if range.start.0 != *end || range.end < range.start {
            return Err(format!(
                "{place:?}: offsets {}..{} come after {end}",
                range.start, range.end
            ));
        }
        *end = range.end.0;
    }
    Ok(())
}

async fn look_at_file(
    lake: &Lake,
    table: &Table,
    entry: &ManifestEntry,
    seen: &mut Seen,
) -> Result<i64, Violation> {
    let schema = lake.schema(entry.file.schema_id).await.map_err(text)?;
    let partition = Partition::from_bytes(&entry.partition, &schema).map_err(text)?;
    let name = &entry.file.file_name;
    if !seen.data_files.insert(name.clone()) {
        return Err(format!("file {name} was committed before"));
    }
    look_at_count(table, entry, &partition.describe(&schema))?;
    let folder = lake
        .paths()
        .bucket_dir(None, &partition.path(&schema).map_err(text)?, entry.bucket)
        .map_err(text)?;
    seen.named.insert(folder.join(name.as_str()));
    let split = Split {
        partition,
        bucket: entry.bucket,
        total_buckets: entry.total_buckets,
        files: vec![entry.file.clone()],
        deletions: BTreeMap::new(),
    };
    let rows = rows_of(lake, &split).await?;
    for (id, part) in &rows {
        match table.sent.get(id) {
            None => return Err(format!("row {id:?} was never written to this table")),
            Some(sent) if sent != part => {
                return Err(format!("row {id:?} came with part {part}, not {sent}"));
            }
            Some(_) => {}
        }
        if !seen.rows.insert(*id) {
            return Err(format!("row {id:?} is twice in the lake"));
        }
        if table.is_bucketed {
            let key = (id.0, entry.partition.clone(), entry.bucket);
            let newest = seen.newest.entry(key).or_insert(-1);
            if id.1 <= *newest {
                return Err(format!("row {id:?} comes after row {newest} of its writer"));
            }
            *newest = id.1;
        }
    }
    Ok(rows.len() as i64)
}

/// A file is stamped with the count of its own partition.
fn look_at_count(table: &Table, entry: &ManifestEntry, described: &str) -> Result<(), Violation> {
    if !table.is_bucketed {
        return match entry.total_buckets {
            -1 => Ok(()),
            found => Err(format!("a table without buckets has a file of {found}")),
        };
    }
    let name = described.rsplit('=').next().unwrap_or_default();
    let known = table
        .counts
        .get(if table.is_partitioned { name } else { "" });
    match known {
        // It came and went between two looks.
        None => Ok(()),
        Some(counts) if counts.contains(&entry.total_buckets) => Ok(()),
        Some(counts) => Err(format!(
            "a file of {described} says {} buckets; its partition has {counts:?}",
            entry.total_buckets
        )),
    }
}

/// Each time a table is given out its epoch is a new one.
async fn look_at_epoch(world: &World, table: &Table, seen: &mut Seen) -> Result<(), Violation> {
    let found = world
        .store
        .get(&Key::tiering(table.id))
        .await
        .map_err(text)?;
    let Some(found) = found else { return Ok(()) };
    let document: serde_json::Value = serde_json::from_slice(&found.value).map_err(text)?;
    let epoch = document["tiering_epoch"]
        .as_i64()
        .ok_or("it has no epoch")?;
    let (revision, before) = seen.given_out;
    if found.modified.id() != revision && epoch <= before && !table.is_dropped {
        return Err(format!("given out under epoch {epoch} after {before}"));
    }
    seen.given_out = (found.modified.id(), epoch);
    Ok(())
}

/// Logs never get shorter, and reach at least as far as the lake did before.
fn look_at_log(
    lake_ends: &BTreeMap<Place, i64>,
    seen: &mut Seen,
    view: &LogView,
) -> Result<(), Violation> {
    for (place, bucket) in &view.buckets {
        let Some(high_watermark) = bucket.high_watermark else {
            continue;
        };
        let before = seen.high_watermarks.entry(*place).or_default();
        if high_watermark < *before {
            return Err(format!(
                "{place:?}: the log ended at {before}, and ends at {high_watermark} now"
            ));
        }
        *before = high_watermark;
        let end = lake_ends.get(place).copied().unwrap_or(0);
        if end > high_watermark {
            return Err(format!(
                "{place:?}: the lake ends at {end}, beyond the log's {high_watermark}"
            ));
        }
    }
    Ok(())
}

/// What the server knows of the lake only grows, and is never ahead of the lake.
fn look_at_what_is_registered(
    table: &Table,
    seen: &mut Seen,
    view: &LogView,
) -> Result<(), Violation> {
    for (place, registered) in &view.registered_ends {
        let end = seen.ends.get(place).copied().unwrap_or(0);
        if *registered > end {
            return Err(format!(
                "{place:?}: the server says that the lake ends at {registered}, it ends at {end}"
            ));
        }
    }
    if !table.is_dropped {
        if view.registered < seen.registered {
            return Err(format!(
                "the server knew of snapshot {}, now of {}",
                seen.registered, view.registered
            ));
        }
        seen.registered = view.registered;
    }
    Ok(())
}

/// Each row of the log once and in order, each owed row in log or lake, and of the log exactly what
/// is below the lake's end in the lake.
fn look_at_rows(table: &Table, seen: &Seen, view: &LogView) -> Result<(), Violation> {
    let mut in_log = BTreeSet::new();
    let mut is_whole = true;
    for (place, bucket) in &view.buckets {
        let (Some(_), Some(rows)) = (bucket.high_watermark, &bucket.rows) else {
            is_whole = false;
            continue;
        };
        let mut newest = BTreeMap::new();
        let end = seen.ends.get(place).copied().unwrap_or(0);
        for (offset, id) in rows {
            if !table.sent.contains_key(id) {
                return Err(format!("row {id:?} of the log was never sent"));
            }
            if !in_log.insert(*id) {
                return Err(format!("row {id:?} is twice in the log"));
            }
            if newest
                .insert(id.0, id.1)
                .is_some_and(|newest| newest >= id.1)
            {
                return Err(format!("{place:?}: row {id:?} is out of order in the log"));
            }
            let is_in_lake = seen.rows.contains(id);
            if (*offset < end) != is_in_lake {
                return Err(format!(
                    "row {id:?} is at {offset} of {place:?}, the lake ends at {end}, and it is \
                     in the lake: {is_in_lake}"
                ));
            }
        }
    }
    if !is_whole {
        return Ok(());
    }
    let lost = table
        .owed()
        .find(|id| !in_log.contains(id) && !seen.rows.contains(id));
    match lost {
        Some(lost) => Err(format!("row {lost:?} was acknowledged and is lost")),
        None => Ok(()),
    }
}

async fn rows_of(lake: &Lake, split: &Split) -> Result<Vec<(RowId, String)>, Violation> {
    let batches = lake.read_split(split, None).await.map_err(text)?;
    let batches: Vec<RecordBatch> = batches.try_collect().await.map_err(text)?;
    Ok(batches.iter().flat_map(ids).collect())
}

/// The rows of a batch.
pub(crate) fn ids(batch: &RecordBatch) -> Vec<(RowId, String)> {
    let number = |name: &str| batch[name].as_primitive::<Int64Type>().clone();
    let (writers, numbers) = (number("writer"), number("n"));
    let parts = batch["part"].as_string::<i32>();
    (0..batch.num_rows())
        .map(|row| {
            let id = (writers.value(row), numbers.value(row));
            (id, parts.value(row).to_owned())
        })
        .collect()
}
