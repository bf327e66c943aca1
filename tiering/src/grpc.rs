//! The control API `weir.v1`: what the daemon does, and orders to it.

use std::pin::Pin;
use std::time::Duration;

use futures::Stream;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};
use weir_protocol::ids::TablePath;

use crate::daemon::Handle;
use crate::error::Error;
use crate::status::{Activity, RoundOutcome, RoundSummary, TableState, TableStatus};

/// The messages of the control API, generated from `proto/weir.proto`.
#[allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    clippy::restriction,
    reason = "generated code"
)]
#[allow(unreachable_pub, unused_qualifications, reason = "generated code")]
pub mod proto {
    tonic::include_proto!("weir.v1");
}

use proto::tiering_server::{Tiering, TieringServer};

/// Requests under way at a time, of one connection.
const CONCURRENT_REQUESTS: usize = 64;
/// How long a list waits for fresh lag.
const FRESH_WITHIN: Duration = Duration::from_secs(2);
/// The shortest time between two lists of a watcher.
const WATCH_EVERY: Duration = Duration::from_millis(250);

/// Serves the control API on a listener until `stop`.
///
/// # Errors
/// What the listener or the transport says.
pub async fn serve(
    listener: TcpListener,
    handle: Handle,
    stop: CancellationToken,
) -> Result<(), tonic::transport::Error> {
    let service = Service {
        handle,
        stop: stop.clone(),
    };
    tonic::transport::Server::builder()
        .concurrency_limit_per_connection(CONCURRENT_REQUESTS)
        .add_service(TieringServer::new(service))
        .serve_with_incoming_shutdown(TcpIncoming::from(listener), stop.cancelled_owned())
        .await
}

struct Service {
    handle: Handle,
    stop: CancellationToken,
}

fn message(status: &TableStatus) -> proto::Table {
    let (state, reason, failures, next_attempt_ms) = match &status.state {
        TableState::Unknown => (proto::State::Unknown, String::new(), 0, 0),
        TableState::Healthy => (proto::State::Healthy, String::new(), 0, 0),
        TableState::Retrying {
            failures,
            next_attempt_ms,
        } => (
            proto::State::Retrying,
            String::new(),
            *failures,
            *next_attempt_ms,
        ),
        TableState::Paused { reason } => (proto::State::Paused, reason.clone(), 0, 0),
    };
    let activity = match status.activity {
        Activity::Idle => proto::Activity::Idle,
        Activity::Held => proto::Activity::Held,
        Activity::Splitting => proto::Activity::Splitting,
        Activity::Writing => proto::Activity::Writing,
        Activity::Committing => proto::Activity::Committing,
    };
    proto::Table {
        database: status.path.database.clone(),
        table: status.path.table.clone(),
        table_id: status.table_id.0,
        state: state.into(),
        reason,
        failures,
        next_attempt_ms,
        activity: activity.into(),
        lag_rows: status.lag_rows,
        lag_seconds: status.lag_seconds,
        lake_snapshot: status.lake_snapshot,
        last_round: status.last_round.as_ref().map(round),
        last_error: status.last_error.clone(),
        failing_buckets: u32::try_from(status.failing_buckets).unwrap_or(u32::MAX),
        warning: status.warning.clone(),
        held: status.held.map(|held| proto::HeldBack {
            bytes: held.bytes,
            oldest_ms: held.oldest_ms,
            partitions: u32::try_from(held.partitions).unwrap_or(u32::MAX),
        }),
    }
}

fn round(summary: &RoundSummary) -> proto::Round {
    let (outcome, snapshot, error) = match &summary.outcome {
        RoundOutcome::Committed { snapshot } => ("committed", Some(*snapshot), None),
        RoundOutcome::Nothing => ("nothing", None, None),
        RoundOutcome::Failed { error } => ("failed", None, Some(error.clone())),
    };
    proto::Round {
        id: summary.id.clone(),
        started_ms: summary.started_ms,
        duration_ms: summary.duration_ms,
        outcome: outcome.to_owned(),
        snapshot,
        error,
        buckets: u32::try_from(summary.buckets).unwrap_or(u32::MAX),
        rows: summary.rows,
        files: u32::try_from(summary.files).unwrap_or(u32::MAX),
        bytes: summary.bytes,
        diverted: summary.diverted,
    }
}

fn list(statuses: &[TableStatus], database: &str) -> proto::ListTablesResponse {
    let wanted = statuses
        .iter()
        .filter(|s| database.is_empty() || s.path.database == database);
    proto::ListTablesResponse {
        tables: wanted.map(message).collect(),
    }
}

fn path(request: &proto::TableRequest) -> Result<TablePath, Status> {
    if request.database.is_empty() || request.table.is_empty() {
        return Err(Status::invalid_argument("database and table are needed"));
    }
    Ok(TablePath::new(&request.database, &request.table))
}

fn refusal(error: &Error) -> Status {
    match error {
        Error::UnknownTable { .. } => Status::not_found(error.to_string()),
        Error::Stopped => Status::unavailable(error.to_string()),
        _ if error.is_retriable() => Status::unavailable(error.chain()),
        _ => Status::failed_precondition(error.chain()),
    }
}

impl Service {
    fn answer(&self, path: &TablePath) -> Response<proto::TableResponse> {
        let statuses = self.handle.status();
        let table = statuses
            .iter()
            .find(|status| status.path == *path)
            .map(message);
        Response::new(proto::TableResponse { table })
    }
}

#[tonic::async_trait]
impl Tiering for Service {
    type WatchTablesStream =
        Pin<Box<dyn Stream<Item = Result<proto::ListTablesResponse, Status>> + Send>>;

    async fn list_tables(
        &self,
        request: Request<proto::ListTablesRequest>,
    ) -> Result<Response<proto::ListTablesResponse>, Status> {
        let statuses = self.handle.fresh_status(FRESH_WITHIN).await;
        Ok(Response::new(list(&statuses, &request.get_ref().database)))
    }

    async fn watch_tables(
        &self,
        request: Request<proto::ListTablesRequest>,
    ) -> Result<Response<Self::WatchTablesStream>, Status> {
        let database = request.into_inner().database;
        let (handle, stop) = (self.handle.clone(), self.stop.clone());
        let mut first = true;
        let changes = handle.watch();
        let stream = futures::stream::unfold(changes, move |mut changes| {
            let (handle, stop, database, wait) =
                (handle.clone(), stop.clone(), database.clone(), !first);
            first = false;
            async move {
                if wait {
                    let next = async {
                        tokio::time::sleep(WATCH_EVERY).await;
                        changes.changed().await
                    };
                    match stop.run_until_cancelled(next).await {
                        Some(Ok(())) => {}
                        Some(Err(_)) | None => return None,
                    }
                }
                changes.mark_unchanged();
                Some((Ok(list(&handle.status(), &database)), changes))
            }
        });
        Ok(Response::new(Box::pin(stream)))
    }

    async fn tier_now(
        &self,
        request: Request<proto::TableRequest>,
    ) -> Result<Response<proto::TableResponse>, Status> {
        let path = path(request.get_ref())?;
        self.handle
            .tier_now(&path)
            .await
            .map_err(|error| refusal(&error))?;
        Ok(self.answer(&path))
    }

    async fn pause(
        &self,
        request: Request<proto::TableRequest>,
    ) -> Result<Response<proto::TableResponse>, Status> {
        let path = path(request.get_ref())?;
        self.handle
            .pause(&path)
            .await
            .map_err(|error| refusal(&error))?;
        Ok(self.answer(&path))
    }

    async fn resume(
        &self,
        request: Request<proto::TableRequest>,
    ) -> Result<Response<proto::TableResponse>, Status> {
        let path = path(request.get_ref())?;
        self.handle
            .resume(&path)
            .await
            .map_err(|error| refusal(&error))?;
        Ok(self.answer(&path))
    }

    async fn accept_loss(
        &self,
        request: Request<proto::TableRequest>,
    ) -> Result<Response<proto::AcceptLossResponse>, Status> {
        let path = path(request.get_ref())?;
        let lost = self.handle.accept_loss(&path).await;
        let lost = lost.map_err(|error| refusal(&error))?.into_iter();
        let lost = lost.map(|one| proto::LostOffsets {
            partition: one.partition,
            bucket: one.bucket,
            from: one.from,
            to: one.to,
        });
        let lost = lost.collect();
        Ok(Response::new(proto::AcceptLossResponse { lost }))
    }
}
