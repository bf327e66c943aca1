//! `weir lake`: what is in the lake, read by our own reader.

use std::collections::BTreeMap;

use arrow::compute::filter_record_batch;
use futures::TryStreamExt as _;
use serde_json::json;
use weir_lake_format::{
    DataField, Filter, Partition, Predicate, Snapshot, Split, Table, TableSchema, canonical_json,
};

use super::connect::lake_table;
use super::exit::{Failure, Outcome, sentence};
use super::maintain;
use super::output::{Align, Columns, count, print, print_json, print_on, size};
use super::{Conditions, LakeCat, LakeCommand, LakeFiles, LakeTable, LakeTarget};

/// Runs a subcommand.
///
/// # Errors
/// One sentence that names the table or the file.
pub async fn run(command: LakeCommand) -> Outcome {
    match command {
        LakeCommand::Snapshots(target) => snapshots(target).await,
        LakeCommand::Files(arguments) => files(arguments).await,
        LakeCommand::Partitions(target) => partitions(target).await,
        LakeCommand::Cat(arguments) => cat(arguments).await,
        LakeCommand::Check(table) => check(table).await,
        LakeCommand::Expire(arguments) => maintain::expire(arguments).await,
        LakeCommand::Orphans(arguments) => maintain::orphans(arguments).await,
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

async fn splits(
    target: &LakeTarget,
    table: &Table,
    conditions: &[Predicate],
) -> Outcome<Vec<Split>> {
    match snapshot(target, table).await? {
        Some(snapshot) => table
            .plan_where(&snapshot, &Filter::default(), conditions)
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

async fn files(arguments: LakeFiles) -> Outcome {
    let LakeFiles { target, conditions } = arguments;
    let table = open(&target).await?;
    let schema = table.latest_schema().await.map_err(Failure::error)?;
    let conditions = parse(&conditions, &schema)?;
    let splits = splits(&target, &table, &conditions).await?;
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
    name: String,
    rows: i64,
    files: usize,
    bytes: u64,
    total_buckets: i32,
}

async fn partitions(target: LakeTarget) -> Outcome {
    let table = open(&target).await?;
    let schema = table.latest_schema().await.map_err(Failure::error)?;
    let snapshot = snapshot(&target, &table).await?;
    let mut sums = BTreeMap::<Vec<u8>, Sums>::new();
    let splits = match &snapshot {
        Some(snapshot) => table
            .plan(snapshot, &Filter::default())
            .await
            .map_err(Failure::error)?,
        None => Vec::new(),
    };
    let id = snapshot.map(|snapshot| snapshot.id);
    for split in splits {
        let sum = sums.entry(split.partition.to_bytes()).or_default();
        sum.name = partition_name(&split.partition, &schema);
        sum.rows += split.row_count();
        sum.files += split.files.len();
        sum.bytes += split
            .files
            .iter()
            .map(|file| file.file_size.unsigned_abs())
            .sum::<u64>();
        sum.total_buckets = split.total_buckets;
    }
    let mut sums: Vec<Sums> = sums.into_values().collect();
    sums.sort_by(|a, b| a.name.cmp(&b.name));
    if target.table.json {
        let documents: Vec<_> = sums
            .iter()
            .map(|sum| {
                json!({
                    "partition": sum.name, "rows": sum.rows, "files": sum.files, "bytes": sum.bytes,
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
    for sum in sums {
        let files = i64::try_from(sum.files).unwrap_or(i64::MAX);
        let name = if sum.name.is_empty() {
            "(whole table)".to_owned()
        } else {
            sum.name
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
        conditions,
    } = arguments;
    let table = open(&target).await?;
    let schema = table.latest_schema().await.map_err(Failure::error)?;
    let conditions = parse(&conditions, &schema)?;
    let fields = shown_fields(&target, &schema, &columns)?;
    let names = read_columns(&fields, &conditions);
    let shown: Vec<usize> = (0..fields.len()).collect();
    let mut left = limit.unwrap_or(usize::MAX);
    let Some(snapshot) = snapshot(&target, &table).await? else {
        return Ok(());
    };
    let filter = Filter::default();
    let splits = table.plan_where(&snapshot, &filter, &conditions).await;
    for split in splits.map_err(Failure::error)? {
        let mut batches = match table.read_split(&split, Some(&names)).await {
            Ok(batches) => batches,
            Err(error) => return Err(unreadable(&table, snapshot.id, error).await),
        };
        loop {
            let batch = match batches.try_next().await {
                Ok(Some(batch)) => batch,
                Ok(None) => break,
                Err(error) => return Err(unreadable(&table, snapshot.id, error).await),
            };
            let picked = Predicate::pick(&conditions, &batch).map_err(Failure::error)?;
            let batch = filter_record_batch(&batch, &picked).map_err(Failure::error)?;
            let batch = batch.project(&shown).map_err(Failure::error)?;
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

/// A snapshot that can't be read may have expired meanwhile.
async fn unreadable(table: &Table, snapshot: i64, error: weir_lake_format::Error) -> Failure {
    Failure::error(table.expired_or(snapshot, error).await)
}

/// The columns that are asked for; all where none is.
fn shown_fields(
    target: &LakeTarget,
    schema: &TableSchema,
    columns: &[String],
) -> Outcome<Vec<DataField>> {
    if columns.is_empty() {
        return Ok(schema.fields.clone());
    }
    let path = &target.table.table;
    let missing = |name: &String| Failure::usage(format!("{path} has no column `{name}`"));
    let field = |name: &String| schema.field(name).cloned().ok_or_else(|| missing(name));
    columns.iter().map(field).collect()
}

/// The names of the columns that are shown, and behind them those that only conditions look at.
fn read_columns<'a>(fields: &'a [DataField], conditions: &'a [Predicate]) -> Vec<&'a str> {
    let mut names: Vec<&str> = fields.iter().map(|field| field.name.as_str()).collect();
    for condition in conditions {
        if !names.contains(&condition.column()) {
            names.push(condition.column());
        }
    }
    names
}

fn parse(conditions: &Conditions, schema: &TableSchema) -> Outcome<Vec<Predicate>> {
    let texts = conditions.conditions.iter();
    texts
        .map(|text| {
            let parsed = Predicate::parse(text, schema);
            parsed.map_err(|error| Failure::usage(format!("--where: {}", sentence(&error))))
        })
        .collect()
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
        1 => Err(Failure::failed(format!("{}: 1 problem", target.table))),
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
