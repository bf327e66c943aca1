//! `weir lake`: what is in the lake, read by our own reader.

use std::collections::BTreeMap;

use futures::TryStreamExt as _;
use serde_json::json;
use weir_lake_format::{Filter, Partition, Snapshot, Split, Table, TableSchema, canonical_json};

use super::connect::lake_table;
use super::exit::{Failure, Outcome};
use super::output::{Align, Columns, count, print, print_json, print_on, size};
use super::{LakeCat, LakeCommand, LakeTable, LakeTarget};

/// Runs a subcommand.
///
/// # Errors
/// One sentence that names the table or the file.
pub async fn run(command: LakeCommand) -> Outcome {
    match command {
        LakeCommand::Snapshots(target) => snapshots(target).await,
        LakeCommand::Files(target) => files(target).await,
        LakeCommand::Partitions(target) => partitions(target).await,
        LakeCommand::Cat(arguments) => cat(arguments).await,
        LakeCommand::Check(table) => check(table).await,
    }
}

async fn open(target: &LakeTarget) -> Outcome<Table> {
    lake_table(&target.table.warehouse, &target.table.table).await
}

/// A snapshot that was asked for by its id.
async fn wanted_snapshot(target: &LakeTarget, table: &Table, id: i64) -> Outcome<Snapshot> {
    match table.snapshot(id).await {
        Ok(snapshot) => Ok(snapshot),
        Err(weir_lake_format::Error::NotFound { .. }) => {
            let ids = table.snapshot_ids().await.map_err(Failure::error)?;
            let there = match (ids.first(), ids.last()) {
                (Some(first), Some(last)) => format!("those there are go from {first} to {last}"),
                _ => "it has none yet".to_owned(),
            };
            let path = &target.table.table;
            Err(Failure::failed(format!(
                "{path} has no snapshot {id}: {there}"
            )))
        }
        Err(error) => Err(Failure::error(error)),
    }
}

/// What stands for a bucket or a bucket count of a table without bucket key.
const NO_BUCKETS: &str = "none";

/// A file's bucket and the count it was written under. A table without bucket key has no buckets
/// in the lake: the format says 0 of -1.
fn bucket_text(bucket: i32, total_buckets: i32) -> (String, String) {
    if total_buckets < 0 {
        (NO_BUCKETS.to_owned(), String::new())
    } else {
        (bucket.to_string(), total_buckets.to_string())
    }
}

/// The wanted snapshot; `None` if the table has none.
async fn snapshot(target: &LakeTarget, table: &Table) -> Outcome<Option<Snapshot>> {
    match target.snapshot {
        Some(id) => wanted_snapshot(target, table, id).await.map(Some),
        None => table.latest_snapshot().await.map_err(Failure::error),
    }
}

async fn splits(target: &LakeTarget, table: &Table) -> Outcome<Vec<Split>> {
    match snapshot(target, table).await? {
        Some(snapshot) => table
            .plan(&snapshot, &Filter::default())
            .await
            .map_err(Failure::error),
        None => Ok(Vec::new()),
    }
}

fn partition_name(partition: &Partition, schema: &TableSchema) -> String {
    if schema.partition_keys.is_empty() {
        String::new()
    } else {
        partition.describe(schema)
    }
}

async fn snapshots(target: LakeTarget) -> Outcome {
    let table = open(&target).await?;
    let mut all = Vec::new();
    match target.snapshot {
        Some(id) => all.push(wanted_snapshot(&target, &table, id).await?),
        None => {
            for id in table.snapshot_ids().await.map_err(Failure::error)? {
                all.push(table.snapshot(id).await.map_err(Failure::error)?);
            }
        }
    }
    if target.table.json {
        return print_json(&all);
    }
    let mut columns = Columns::new(&[
        ("ID", Align::Right),
        ("KIND", Align::Left),
        ("SCHEMA", Align::Right),
        ("ROWS ADDED", Align::Right),
        ("ROWS", Align::Right),
        ("TIME MS", Align::Right),
        ("USER", Align::Left),
        ("ROUND", Align::Left),
    ]);
    for snapshot in &all {
        columns.row([
            snapshot.id.to_string(),
            format!("{:?}", snapshot.commit_kind).to_uppercase(),
            snapshot.schema_id.to_string(),
            count(snapshot.delta_record_count),
            count(snapshot.total_record_count),
            snapshot.time_millis.to_string(),
            snapshot.commit_user.clone(),
            snapshot
                .property("weir-round")
                .unwrap_or_default()
                .to_owned(),
        ]);
    }
    columns.print()
}

async fn files(target: LakeTarget) -> Outcome {
    let table = open(&target).await?;
    let schema = table.latest_schema().await.map_err(Failure::error)?;
    let splits = splits(&target, &table).await?;
    let rows = splits
        .iter()
        .flat_map(|split| split.files.iter().map(move |file| (split, file)));
    if target.table.json {
        let documents: Vec<_> = rows
            .map(|(split, file)| {
                json!({
                    "partition": partition_name(&split.partition, &schema),
                    "bucket": split.bucket,
                    "total_buckets": split.total_buckets,
                    "file": file.file_name,
                    "rows": file.row_count,
                    "bytes": file.file_size,
                    "schema_id": file.schema_id,
                    "sequence_start": file.min_sequence_number,
                    "sequence_last": file.max_sequence_number,
                })
            })
            .collect();
        return print_json(&documents);
    }
    let mut columns = Columns::new(&[
        ("PARTITION", Align::Left),
        ("BUCKET", Align::Right),
        ("OF", Align::Right),
        ("ROWS", Align::Right),
        ("SIZE", Align::Right),
        ("SCHEMA", Align::Right),
        ("FILE", Align::Left),
    ]);
    for (split, file) in rows {
        let (bucket, total_buckets) = bucket_text(split.bucket, split.total_buckets);
        columns.row([
            partition_name(&split.partition, &schema),
            bucket,
            total_buckets,
            count(file.row_count),
            size(file.file_size.unsigned_abs()),
            file.schema_id.to_string(),
            file.file_name.clone(),
        ]);
    }
    columns.print()
}

/// What a partition holds.
#[derive(Debug, Default)]
struct Sums {
    rows: i64,
    files: usize,
    bytes: u64,
    total_buckets: i32,
}

async fn partitions(target: LakeTarget) -> Outcome {
    let table = open(&target).await?;
    let schema = table.latest_schema().await.map_err(Failure::error)?;
    let snapshot = snapshot(&target, &table).await?;
    let mut sums = BTreeMap::<String, Sums>::new();
    let splits = match &snapshot {
        Some(snapshot) => table
            .plan(snapshot, &Filter::default())
            .await
            .map_err(Failure::error)?,
        None => Vec::new(),
    };
    let id = snapshot.map(|snapshot| snapshot.id);
    for split in splits {
        let sum = sums
            .entry(partition_name(&split.partition, &schema))
            .or_default();
        sum.rows += split.row_count();
        sum.files += split.files.len();
        sum.bytes += split
            .files
            .iter()
            .map(|file| file.file_size.unsigned_abs())
            .sum::<u64>();
        sum.total_buckets = split.total_buckets;
    }
    if target.table.json {
        let documents: Vec<_> = sums
            .iter()
            .map(|(name, sum)| {
                json!({
                    "partition": name, "rows": sum.rows, "files": sum.files, "bytes": sum.bytes,
                    "total_buckets": sum.total_buckets, "snapshot": id,
                })
            })
            .collect();
        return print_json(&documents);
    }
    let mut columns = Columns::new(&[
        ("PARTITION", Align::Left),
        ("ROWS", Align::Right),
        ("FILES", Align::Right),
        ("SIZE", Align::Right),
        ("BUCKETS", Align::Right),
        ("SNAPSHOT", Align::Right),
    ]);
    for (name, sum) in sums {
        let files = i64::try_from(sum.files).unwrap_or(i64::MAX);
        let name = if name.is_empty() {
            "(whole table)".to_owned()
        } else {
            name
        };
        let id = id.map(|id| id.to_string()).unwrap_or_default();
        columns.row([
            name,
            count(sum.rows),
            count(files),
            size(sum.bytes),
            if sum.total_buckets < 0 {
                NO_BUCKETS.to_owned()
            } else {
                sum.total_buckets.to_string()
            },
            id,
        ]);
    }
    columns.print()
}

async fn cat(arguments: LakeCat) -> Outcome {
    let LakeCat {
        target,
        limit,
        columns,
    } = arguments;
    let table = open(&target).await?;
    let schema = table.latest_schema().await.map_err(Failure::error)?;
    let names: Vec<&str> = columns.iter().map(String::as_str).collect();
    let wanted = (!names.is_empty()).then_some(names.as_slice());
    let fields: Vec<_> = match wanted {
        None => schema.fields.clone(),
        Some(names) => {
            let field = |name: &&str| {
                schema
                    .fields
                    .iter()
                    .find(|field| field.name == **name)
                    .cloned()
            };
            let missing = |name: &&str| {
                Failure::usage(format!("{} has no column `{name}`", target.table.table))
            };
            names
                .iter()
                .map(|name| field(name).ok_or_else(|| missing(name)))
                .collect::<Outcome<_>>()?
        }
    };
    let mut left = limit.unwrap_or(usize::MAX);
    for split in splits(&target, &table).await? {
        let mut batches = table
            .read_split(&split, wanted)
            .await
            .map_err(Failure::error)?;
        while let Some(batch) = batches.try_next().await.map_err(Failure::error)? {
            let batch = batch.slice(0, left.min(batch.num_rows()));
            left -= batch.num_rows();
            let lines =
                canonical_json::rows_by_precision(&batch, &fields).map_err(Failure::error)?;
            let text: String = lines.into_iter().map(|line| line + "\n").collect();
            if !print_on(&text)? || left == 0 {
                return Ok(());
            }
        }
    }
    Ok(())
}

async fn check(target: LakeTable) -> Outcome {
    let table = lake_table(&target.warehouse, &target.table).await?;
    let problems = table.check().await.map_err(Failure::error)?;
    if target.json {
        print_json(&problems.iter().map(ToString::to_string).collect::<Vec<_>>())?;
    } else {
        for problem in &problems {
            print(&format!("{problem}\n"))?;
        }
    }
    match problems.len() {
        0 if target.json => Ok(()),
        0 => print("check: ok\n"),
        found => Err(Failure::failed(format!(
            "{}: {found} problems",
            target.table
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_without_buckets_is_shown_no_number_as_a_bucket() {
        assert_eq!(bucket_text(0, -1), ("none".to_owned(), String::new()));
        assert_eq!(bucket_text(0, 4), ("0".to_owned(), "4".to_owned()));
    }
}
