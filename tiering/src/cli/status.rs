//! `weir status`: what the daemon says about its tables, and orders to it.

use std::time::Duration;

use serde_json::json;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};
use weir_catalog::clock::{Clock as _, SystemClock};
use weir_protocol::ids::TablePath;

use super::Status;
use super::exit::{Failure, Outcome};
use super::output::{Align, Columns, count, print, print_json, size};
use crate::grpc::proto::tiering_client::TieringClient;
use crate::grpc::proto::{
    Activity, HeldBack, ListTablesRequest, LostOffsets, Round, State, Table, TableRequest,
};

/// The longest wait for an answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Prints the tables, or gives an order about one.
///
/// # Errors
/// 75 if the daemon does not answer, 1 if it refuses.
pub async fn run(arguments: Status) -> Outcome {
    let mut client = connect(&arguments.grpc).await?;
    if let Some(path) = &arguments.tier_now {
        return client
            .tier_now(request(path))
            .await
            .map(drop)
            .map_err(|status| failure(&arguments.grpc, &status));
    }
    if let Some(path) = &arguments.pause {
        return client
            .pause(request(path))
            .await
            .map(drop)
            .map_err(|status| failure(&arguments.grpc, &status));
    }
    if let Some(path) = &arguments.resume {
        return client
            .resume(request(path))
            .await
            .map(drop)
            .map_err(|status| failure(&arguments.grpc, &status));
    }
    if let Some(path) = &arguments.accept_loss {
        let answer = client.accept_loss(request(path)).await;
        let answer = answer.map_err(|status| failure(&arguments.grpc, &status))?;
        for lost in answer.into_inner().lost {
            print(&format!("{path}: {}\n", let_go(&lost)))?;
        }
        return Ok(());
    }
    let answer = client.list_tables(ListTablesRequest::default()).await;
    let tables = answer
        .map_err(|status| failure(&arguments.grpc, &status))?
        .into_inner()
        .tables;
    if arguments.json {
        return print_json(&tables.iter().map(document).collect::<Vec<_>>());
    }
    if tables.is_empty() {
        tracing::info!(
            "the daemon has no table yet: it tiers those with table.datalake.enabled=true"
        );
    }
    table(&tables).print()
}

async fn connect(address: &str) -> Outcome<TieringClient<Channel>> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))
        .map_err(|_| Failure::usage(format!("`{address}` is no address: write HOST:PORT")))?
        .connect_timeout(TIMEOUT)
        .timeout(TIMEOUT);
    let channel = endpoint.connect().await.map_err(|_| {
        Failure::try_again(format!(
            "no daemon answers at {address}: is `weir up` or `weir tier` running?"
        ))
    })?;
    Ok(TieringClient::new(channel))
}

fn request(path: &TablePath) -> TableRequest {
    TableRequest {
        database: path.database.clone(),
        table: path.table.clone(),
    }
}

fn let_go(lost: &LostOffsets) -> String {
    let bucket = match &lost.partition {
        Some(partition) => format!("partition {partition} bucket {}", lost.bucket),
        None => format!("bucket {}", lost.bucket),
    };
    format!("{bucket}: offsets {}..{} are let go", lost.from, lost.to)
}

/// What the daemon said; what a stranger at that address said is of no use to anybody.
fn failure(address: &str, status: &tonic::Status) -> Failure {
    let stranger = || {
        format!(
            "{address} does not answer as a daemon does: is it the `grpc=` address that `weir up` \
             or `weir tier` shows?"
        )
    };
    match status.code() {
        Code::DeadlineExceeded => Failure::try_again(format!("{address} does not answer")),
        Code::Unavailable => Failure::try_again(status.message()),
        Code::Cancelled => Failure::try_again(stranger()),
        Code::Unknown | Code::Internal | Code::Unimplemented => Failure::failed(stranger()),
        _ => Failure::failed(status.message()),
    }
}

fn state(table: &Table) -> &'static str {
    match table.state() {
        State::Healthy => "healthy",
        State::Retrying => "retrying",
        State::Paused => "paused",
        State::Unknown | State::Unspecified => "unknown",
    }
}

fn activity(table: &Table) -> &'static str {
    match table.activity() {
        Activity::Idle => "idle",
        Activity::Held => "held",
        Activity::Splitting => "splitting",
        Activity::Writing => "writing",
        Activity::Committing => "committing",
        Activity::Unspecified => "unknown",
    }
}

fn round_document(round: &Round) -> serde_json::Value {
    json!({
        "id": round.id, "started_ms": round.started_ms, "duration_ms": round.duration_ms,
        "outcome": round.outcome, "snapshot": round.snapshot, "error": round.error,
        "buckets": round.buckets, "rows": round.rows, "files": round.files, "bytes": round.bytes,
        "diverted": round.diverted,
    })
}

fn document(table: &Table) -> serde_json::Value {
    json!({
        "table": format!("{}.{}", table.database, table.table),
        "table_id": table.table_id,
        "state": state(table),
        "reason": (!table.reason.is_empty()).then_some(&table.reason),
        "failures": table.failures,
        "activity": activity(table),
        "lag_rows": table.lag_rows,
        "lag_seconds": table.lag_seconds,
        "lake_snapshot": table.lake_snapshot,
        "last_round": table.last_round.as_ref().map(round_document),
        "last_error": table.last_error,
        "failing_buckets": table.failing_buckets,
        "warning": table.warning,
        "held": table.held.as_ref().map(|held| json!({
            "bytes": held.bytes, "oldest_ms": held.oldest_ms, "partitions": held.partitions,
        })),
    })
}

fn table(tables: &[Table]) -> Columns {
    let mut columns = Columns::new(&[
        ("TABLE", Align::Left),
        ("STATE", Align::Left),
        ("NOW", Align::Left),
        ("LAG ROWS", Align::Right),
        ("LAG S", Align::Right),
        ("SNAPSHOT", Align::Right),
        ("LAST ROUND", Align::Left),
        ("HELD", Align::Left),
        ("WHY", Align::Left),
    ]);
    let shown = |value: Option<u64>| value.map_or_else(|| "?".to_owned(), count);
    for table in tables {
        let why = if table.reason.is_empty() {
            table.last_error.clone().or(table.warning.clone())
        } else {
            Some(table.reason.clone())
        };
        columns.row([
            format!("{}.{}", table.database, table.table),
            state(table).to_owned(),
            activity(table).to_owned(),
            shown(table.lag_rows),
            shown(table.lag_seconds),
            table
                .lake_snapshot
                .map(|id| id.to_string())
                .unwrap_or_default(),
            table
                .last_round
                .as_ref()
                .map(round_text)
                .unwrap_or_default(),
            table.held.as_ref().map(held_text).unwrap_or_default(),
            why.unwrap_or_default(),
        ]);
    }
    columns
}

/// What retention keeps because the lake lacks it; nothing if it keeps nothing.
fn held_text(held: &HeldBack) -> String {
    if held.bytes == 0 && held.partitions == 0 {
        return String::new();
    }
    let mut text = size(held.bytes);
    if let Some(oldest_ms) = held.oldest_ms {
        let age_ms = SystemClock.now_ms().saturating_sub(oldest_ms).max(0);
        text += &format!(", {}", age(age_ms / 1_000));
    }
    match held.partitions {
        0 => {}
        1 => text += ", 1 partition",
        many => text += &format!(", {many} partitions"),
    }
    text
}

fn age(seconds: i64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}

fn round_text(round: &Round) -> String {
    format!(
        "{}: {} rows, {} files, {} ms",
        round.outcome,
        count(round.rows),
        round.files,
        round.duration_ms
    )
}
