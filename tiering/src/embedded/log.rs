//! `weir log`: the logs of a data directory that no server has open.

use std::path::Path;

use serde::Serialize;
use weir_protocol::ids::TableBucket;
use weir_server::log::repair::Inspection;
use weir_server::offline::{BucketLog, OfflineLogs};
use weir_tiering::cli::exit::{Failure, Outcome, sentence};
use weir_tiering::cli::output::{Align, Columns, count, print, print_json, size};
use weir_tiering::cli::{LogCheck, LogCommand, LogRepair};

/// Runs a subcommand.
pub(crate) async fn run(command: LogCommand) -> Outcome {
    let work = move || match command {
        LogCommand::Check(arguments) => check(&arguments),
        LogCommand::Repair(arguments) => repair(&arguments),
    };
    tokio::task::spawn_blocking(work)
        .await
        .map_err(Failure::error)?
}

/// What is shown of a bucket.
#[derive(Debug, Serialize)]
struct Shown {
    bucket: String,
    segments: usize,
    size_bytes: u64,
    start: i64,
    end: i64,
    /// Absent if nothing is known.
    synced: Option<i64>,
    gaps: usize,
    set_aside: usize,
    damage: Option<String>,
}

fn check(arguments: &LogCheck) -> Outcome {
    let logs = OfflineLogs::open(&arguments.data_dir).map_err(Failure::error)?;
    let mut all = Vec::new();
    for log in logs.buckets().map_err(Failure::error)? {
        all.push(match logs.inspect(&log) {
            Ok(found) => shown(log.bucket, found),
            Err(error) => unreadable(&log, sentence(&error)),
        });
    }
    if arguments.json {
        print_json(&all)?;
    } else {
        table(&all).print()?;
    }
    let damaged = all
        .iter()
        .filter_map(|one| Some((&one.bucket, one.damage.as_ref()?)));
    let sentences: Vec<String> = damaged
        .map(|(bucket, damage)| format!("bucket {bucket}: {damage}"))
        .collect();
    if sentences.is_empty() {
        return Ok(());
    }
    Err(Failure::failed(sentences.join("; ")))
}

fn shown(bucket: TableBucket, found: Inspection) -> Shown {
    let damage = found.damage.map(|damage| {
        let (path, position) = (damage.path.display(), damage.position);
        format!("{path}: corrupt at byte {position}: {}", damage.reason)
    });
    Shown {
        bucket: name(bucket),
        segments: found.segments,
        size_bytes: found.size_bytes,
        start: found.start.0,
        end: found.end.0,
        synced: found.synced.map(|offset| offset.0),
        gaps: found.gaps.len(),
        set_aside: found.set_aside,
        damage,
    }
}

fn unreadable(log: &BucketLog, damage: String) -> Shown {
    Shown {
        bucket: name(log.bucket),
        segments: 0,
        size_bytes: 0,
        start: 0,
        end: 0,
        synced: None,
        gaps: 0,
        set_aside: 0,
        damage: Some(damage),
    }
}

fn table(all: &[Shown]) -> Columns {
    let mut columns = Columns::new(&[
        ("BUCKET", Align::Left),
        ("SEGMENTS", Align::Right),
        ("SIZE", Align::Right),
        ("START", Align::Right),
        ("END", Align::Right),
        ("SYNCED", Align::Right),
        ("GAPS", Align::Right),
        ("SET ASIDE", Align::Right),
        ("DAMAGE", Align::Left),
    ]);
    for one in all {
        let usize_count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        columns.row([
            one.bucket.clone(),
            count(usize_count(one.segments)),
            size(one.size_bytes),
            count(one.start),
            count(one.end),
            one.synced.map_or_else(|| "-".to_owned(), count),
            count(usize_count(one.gaps)),
            count(usize_count(one.set_aside)),
            one.damage.clone().unwrap_or_else(|| "-".to_owned()),
        ]);
    }
    columns
}

fn repair(arguments: &LogRepair) -> Outcome {
    let logs = OfflineLogs::open(&arguments.data_dir).map_err(Failure::error)?;
    let log = find(&logs, &arguments.data_dir, &arguments.bucket)?;
    let found = logs.inspect(&log).map_err(Failure::error)?;
    let Some(damage) = found.damage else {
        return print(&format!("bucket {}: no damage\n", arguments.bucket));
    };
    if !arguments.accept_loss {
        return Err(Failure::usage(format!(
            "{}: corrupt at byte {}: {}; with --accept-loss the records there are given up",
            damage.path.display(),
            damage.position,
            damage.reason
        )));
    }
    let repaired = logs.repair(&log).map_err(Failure::error)?;
    let mut text = String::new();
    for gap in repaired.gaps.iter().filter(|gap| !found.gaps.contains(gap)) {
        text += &format!(
            "bucket {}: offsets {}..{} are lost, the log goes on at {}\n",
            arguments.bucket, gap.from, gap.to, gap.to
        );
    }
    for path in &repaired.set_aside {
        text += &format!("set aside: {}\n", path.display());
    }
    print(&text)
}

fn find(logs: &OfflineLogs, data_dir: &Path, wanted: &str) -> Outcome<BucketLog> {
    let all = logs.buckets().map_err(Failure::error)?;
    let found = all.into_iter().find(|log| name(log.bucket) == wanted);
    found.ok_or_else(|| {
        let data_dir = data_dir.display();
        Failure::usage(format!("{data_dir} has no log of bucket {wanted}"))
    })
}

fn name(bucket: TableBucket) -> String {
    let TableBucket {
        table,
        partition,
        bucket,
    } = bucket;
    match partition {
        Some(partition) => format!("{table}/{partition}/{bucket}"),
        None => format!("{table}/{bucket}"),
    }
}
