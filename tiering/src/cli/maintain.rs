//! `weir lake expire` and `weir lake orphans`: what keeps a lake table from growing for ever.

use std::time::Duration;

use clap::Args;
use serde_json::json;
use weir_catalog::clock::{Clock as _, SystemClock};
use weir_catalog::ddl::properties::parse_duration;
use weir_lake_format::durable::{StagedFile, staged_files};
use weir_lake_format::expire::{ExpireRequest, Expired, KeptBy, Retention};
use weir_lake_format::orphans::{Orphan, OrphanRequest};
use weir_lake_format::partition_expiry::{
    ExpiredPartitions, PartitionExpiry, PartitionExpiryRequest,
};
use weir_lake_format::{Snapshot, Table, TableOptions, store};

use super::LakeTable;
use super::connect::lake_table;
use super::exit::{Failure, Outcome, sentence};
use super::output::{print, print_json, size};
use crate::bad_records::TABLE_SUFFIX;
use crate::committer::COMMIT_USER;
use crate::maintenance::MAINTENANCE_USER;
use crate::ranges;
use crate::wall::{local_ms, unique_name};

/// Shown behind the options of `weir lake expire`.
pub const EXPIRE_HELP: &str = "Examples:
  weir lake expire demo.lineitem --warehouse ./weir-data/lake --dry-run
  weir lake expire demo.lineitem --warehouse ./weir-data/lake --retain-max 20
  weir lake expire demo.lineitem --warehouse ./weir-data/lake --older-than 10min --partitions

What is not given comes from the table's own options: snapshot.num-retained.min (10) and .max (no
limit), snapshot.time-retained (1 h), partition.expiration-time. Tags, branches, consumers and the
newest snapshot of tiering keep what they need. Safe beside a running daemon and readers. A table
of bad records keeps all its snapshots.

Exit codes: 0 done, also if there was nothing to do; 1 failed; 75 the lake can't be reached now.";

/// Shown behind the options of `weir lake orphans`.
pub const ORPHANS_HELP: &str = "Examples:
  weir lake orphans demo.lineitem --warehouse ./weir-data/lake
  weir lake orphans demo.lineitem --warehouse ./weir-data/lake --older-than 2d --delete

An orphan is a file of the table that no snapshot, tag, branch or changelog names: crashed rounds
and lost commits leave some. A file that is younger than --older-than is never one, for its commit
may be under way. If anything of the table can't be read, nothing is deleted.

Exit codes: 0 done; 1 failed; 2 --older-than is too short to delete by; 75 the lake can't be
reached now.";

/// The shortest age to delete by: a commit that is under way must be done before.
const SHORTEST_AGE: Duration = Duration::from_secs(3_600);

/// `weir lake expire`.
#[derive(Args, Clone, Debug)]
pub struct LakeExpire {
    /// The table.
    #[command(flatten)]
    pub table: LakeTable,
    /// Shows what would go, and removes nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Beyond so many snapshots the oldest go, whatever their age.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub retain_max: Option<u32>,
    /// So many of the newest snapshots stay, whatever their age.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub retain_min: Option<u32>,
    /// Snapshots go once they are older than this, such as `1h` or `7d`.
    #[arg(long, value_name = "AGE", value_parser = parse_duration)]
    pub older_than: Option<Duration>,
    /// Drops partitions, too, that are older than the table's `partition.expiration-time`.
    #[arg(long)]
    pub partitions: bool,
}

/// `weir lake orphans`.
#[derive(Args, Clone, Debug)]
pub struct LakeOrphans {
    /// The table.
    #[command(flatten)]
    pub table: LakeTable,
    /// Only files that are older than this.
    #[arg(long, value_name = "AGE", value_parser = parse_duration, default_value = "1d")]
    pub older_than: Duration,
    /// Deletes them; without it they are only shown.
    #[arg(long)]
    pub delete: bool,
}

/// Runs `weir lake expire`.
///
/// # Errors
/// One sentence that names the file or the option.
pub async fn expire(arguments: LakeExpire) -> Outcome {
    let path = &arguments.table.table;
    if path.table.ends_with(TABLE_SUFFIX) {
        return Err(Failure::usage(format!(
            "{path} holds bad records: its snapshots tell rounds and replays what they have done, so \
             none expires; it gets smaller by `weir replay`"
        )));
    }
    let table = lake_table(&arguments.table.warehouse, path).await?;
    let schema = table.latest_schema().await.map_err(failure)?;
    let partition_rule = if arguments.partitions {
        let found = PartitionExpiry::of(&schema).map_err(failure)?;
        let missing = || {
            Failure::usage(format!(
                "{path} has no option `partition.expiration-time`, so its partitions stay for ever"
            ))
        };
        Some(found.ok_or_else(missing)?)
    } else {
        None
    };
    let retention = retention(&arguments, TableOptions::new(&schema.options))?;
    let partitions = match &partition_rule {
        Some(rule) => Some(partitions(&table, rule, arguments.dry_run).await?),
        None => None,
    };
    let expired = snapshots(&table, &retention, arguments.dry_run).await?;
    if arguments.table.json {
        return print_json(&json!({
            "dry_run": arguments.dry_run,
            "snapshots": expired.snapshots,
            "data_files": expired.data_files,
            "metadata_files": expired.metadata_files,
            "kept_from": expired.kept_from,
            "kept_by": expired.kept_by.to_string(),
            "partitions": partitions.as_ref().map(|found| &found.partitions),
            "partition_files": partitions.as_ref().map(|found| found.files),
            "partition_rows": partitions.as_ref().map(|found| found.rows),
        }));
    }
    if let Some(found) = &partitions {
        print(&partition_text(found, arguments.dry_run))?;
    }
    print(&snapshot_text(&expired, arguments.dry_run))
}

/// The table's retention, with what the command line says instead.
fn retention(arguments: &LakeExpire, options: TableOptions<'_>) -> Outcome<Retention> {
    let mut retention = Retention::of(options).map_err(failure)?;
    if let Some(max) = arguments.retain_max {
        retention.max = max;
        // Who asks for few does not ask for at least ten.
        retention.min = retention.min.min(max);
    }
    if let Some(min) = arguments.retain_min {
        retention.min = min;
        if arguments.retain_max.is_none() {
            retention.max = retention.max.max(min);
        }
    }
    if let Some(age) = arguments.older_than {
        retention.time = age;
    }
    retention
        .validate()
        .map_err(|error| Failure::usage(sentence(&error)))?;
    Ok(retention)
}

async fn snapshots(table: &Table, retention: &Retention, dry_run: bool) -> Outcome<Expired> {
    let own_files = |snapshot: &Snapshot| ranges::file_of(table, snapshot);
    let mut request = ExpireRequest {
        retention,
        keep_newest_of: COMMIT_USER,
        keep_from: None,
        now_ms: SystemClock.now_ms(),
        own_files: &own_files,
    };
    if dry_run {
        let unlimited = Retention {
            limit: u32::MAX,
            ..retention.clone()
        };
        request.retention = &unlimited;
        return table.plan_expiry(&request).await.map_err(failure);
    }
    let mut all = table.expire(&request).await.map_err(failure)?;
    while all.kept_by == KeptBy::Limit {
        let more = table.expire(&request).await.map_err(failure)?;
        if more.snapshots.is_empty() {
            all.kept_by = more.kept_by;
            break;
        }
        all.snapshots.extend(more.snapshots);
        all.data_files += more.data_files;
        all.metadata_files += more.metadata_files;
        (all.kept_from, all.kept_by) = (more.kept_from, more.kept_by);
    }
    Ok(all)
}

async fn partitions(
    table: &Table,
    rule: &PartitionExpiry,
    dry_run: bool,
) -> Outcome<ExpiredPartitions> {
    let now_ms = SystemClock.now_ms();
    let local_now_ms = local_ms(now_ms);
    if dry_run {
        let Some(latest) = table.latest_snapshot().await.map_err(failure)? else {
            return Ok(ExpiredPartitions::default());
        };
        let schema = table.schema(latest.schema_id).await.map_err(failure)?;
        let old = table.old_partitions(&latest, rule, local_now_ms).await;
        let old = old.map_err(failure)?;
        let files = || old.partitions.iter().flat_map(|(_, files)| files);
        return Ok(ExpiredPartitions {
            partitions: old
                .partitions
                .iter()
                .map(|(partition, _)| partition.describe(&schema))
                .collect(),
            files: files().count(),
            rows: files().map(|entry| entry.file.row_count).sum(),
            snapshot: None,
            without_time: old.without_time,
        });
    }
    let request = PartitionExpiryRequest {
        expiry: rule,
        commit_user: MAINTENANCE_USER,
        uuid: &unique_name(),
        now_ms,
        local_now_ms,
    };
    table.expire_partitions(&request).await.map_err(failure)
}

fn snapshot_text(expired: &Expired, dry_run: bool) -> String {
    let would = if dry_run { "would expire" } else { "expired" };
    let kept = match expired.kept_by {
        KeptBy::Nothing => return "nothing to expire: the table has no snapshot\n".to_owned(),
        ref why => format!("snapshot {} and later stay: {why}", expired.kept_from),
    };
    let (Some(first), Some(last)) = (expired.snapshots.first(), expired.snapshots.last()) else {
        return format!("nothing to expire; {kept}\n");
    };
    let snapshots = match expired.snapshots.len() {
        1 => format!("1 snapshot ({first})"),
        count => format!("{count} snapshots ({first} to {last})"),
    };
    format!(
        "{would} {snapshots} with {} and {}; {kept}\n",
        counted(expired.data_files, "data file"),
        counted(expired.metadata_files, "metadata file"),
    )
}

fn partition_text(expired: &ExpiredPartitions, dry_run: bool) -> String {
    let would = if dry_run { "would drop" } else { "dropped" };
    let mut text = if expired.partitions.is_empty() {
        "no partition is old enough to drop\n".to_owned()
    } else {
        format!(
            "{would} {} with {} and {}: {}\n",
            counted(expired.partitions.len(), "partition"),
            counted(expired.files, "file"),
            counted(usize::try_from(expired.rows).unwrap_or(0), "row"),
            expired.partitions.join(" ")
        )
    };
    if let Some((first, count)) = &expired.without_time {
        text.push_str(&format!(
            "{} say no time and stay for ever, such as {first}: \
             partition.timestamp-pattern and partition.timestamp-formatter tell how to read one\n",
            counted(*count, "partition")
        ));
    }
    text
}

fn counted(count: usize, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}

/// Runs `weir lake orphans`.
///
/// # Errors
/// One sentence that names what can't be read.
pub async fn orphans(arguments: LakeOrphans) -> Outcome {
    let older_than = arguments.older_than;
    if arguments.delete && older_than < SHORTEST_AGE {
        return Err(Failure::usage(
            "--older-than is too short to delete by: a commit under way would lose its files; give \
             at least 1h",
        ));
    }
    let table = lake_table(&arguments.table.warehouse, &arguments.table.table).await?;
    let own_files = |snapshot: &Snapshot| ranges::file_of(&table, snapshot);
    let now_ms = SystemClock.now_ms();
    let request = OrphanRequest {
        older_than,
        now_ms,
        uuid: &unique_name(),
        own_files: &own_files,
    };
    let found = if arguments.delete {
        table.delete_orphans(&request).await
    } else {
        table.find_orphans(&request).await
    };
    let found = found.map_err(failure)?;
    let age_ms = i64::try_from(older_than.as_millis()).unwrap_or(i64::MAX);
    let staged = staged(&arguments, &table, now_ms.saturating_sub(age_ms)).await?;
    show_orphans(&arguments, &found, &staged)
}

/// What writers that died left on a local disk, where no listing shows it.
async fn staged(
    arguments: &LakeOrphans,
    table: &Table,
    older_than_ms: i64,
) -> Outcome<Vec<StagedFile>> {
    let warehouse = &arguments.table.warehouse.warehouse;
    let Some(folder) = store::local_folder(warehouse).map_err(failure)? else {
        return Ok(Vec::new());
    };
    let folder = folder.join(table.root().as_ref());
    let delete = arguments.delete;
    let sweep = move || -> std::io::Result<Vec<StagedFile>> {
        let found = staged_files(&folder, older_than_ms)?;
        for file in found.iter().filter(|_| delete) {
            match std::fs::remove_file(&file.path) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e),
                Ok(()) | Err(_) => {}
            }
        }
        Ok(found)
    };
    let swept = tokio::task::spawn_blocking(sweep).await;
    let swept = swept.unwrap_or_else(|e| Err(std::io::Error::other(e)));
    swept.map_err(|e| {
        Failure::failed(format!(
            "staged files of {} can't be swept: {e}",
            table.root()
        ))
    })
}

fn show_orphans(arguments: &LakeOrphans, found: &[Orphan], staged: &[StagedFile]) -> Outcome {
    let files: Vec<(String, u64, i64)> = found
        .iter()
        .map(|orphan| (orphan.path.to_string(), orphan.bytes, orphan.modified_ms))
        .chain(staged.iter().map(|file| {
            let path = file.path.display().to_string();
            (path, file.bytes, file.modified_ms)
        }))
        .collect();
    let bytes: u64 = files.iter().map(|(_, bytes, _)| bytes).sum();
    if arguments.table.json {
        let files: Vec<_> = files
            .iter()
            .map(|(path, bytes, modified_ms)| {
                json!({"path": path, "bytes": bytes, "modified_ms": modified_ms})
            })
            .collect();
        return print_json(&json!({
            "deleted": arguments.delete, "files": files, "bytes": bytes,
        }));
    }
    for (path, _, _) in &files {
        print(&format!("{path}\n"))?;
    }
    let many = counted(files.len(), "orphan");
    print(&match (files.is_empty(), arguments.delete) {
        (true, _) => "no orphans\n".to_owned(),
        (false, true) => format!("deleted {many}, {}\n", size(bytes)),
        (false, false) => format!("{many}, {}; --delete removes them\n", size(bytes)),
    })
}

fn failure(error: weir_lake_format::Error) -> Failure {
    if error.is_retriable() {
        Failure::try_again(sentence(&error))
    } else {
        Failure::error(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_has_a_unit() {
        assert_eq!(
            parse_duration("36h").unwrap(),
            Duration::from_secs(36 * 3600)
        );
        for bad in ["10", "", "soon", "-1d"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_expired_is_one_sentence() {
        let expired = Expired {
            snapshots: vec![3, 4, 5],
            data_files: 1,
            metadata_files: 8,
            kept_from: 6,
            kept_by: KeptBy::Count(10),
        };
        assert_eq!(
            snapshot_text(&expired, true),
            "would expire 3 snapshots (3 to 5) with 1 data file and 8 metadata files; snapshot 6 \
             and later stay: the newest 10 are kept\n"
        );
        let nothing = Expired {
            snapshots: Vec::new(),
            kept_by: KeptBy::Age(Duration::from_secs(3600)),
            ..expired
        };
        assert_eq!(
            snapshot_text(&nothing, false),
            "nothing to expire; snapshot 6 and later stay: those of the last 3600 s are kept\n"
        );
    }
}
