//! Health, readiness, metrics, and a one-file page of the tables.

mod limit;

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse};
use axum::routing::get;
use axum::{Json, Router};
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::registry::Registry;
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use weir_catalog::clock::Clock;

use crate::daemon::Handle;

/// Connections at a time.
const CONNECTIONS: usize = 256;
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What is served.
#[derive(Clone, Debug)]
pub struct Site {
    /// Said at the top of the page: what runs and where.
    pub about: String,
    /// The daemon, if one runs in this process.
    pub daemon: Option<Handle>,
    /// All metrics, shown one after another.
    pub registries: Vec<Arc<Registry>>,
    /// Whether the server of this process can do its work, if there is one.
    pub server: Option<Probe>,
    /// Wall time.
    pub clock: Arc<dyn Clock>,
}

/// Asks whether something is ready.
#[derive(Clone)]
pub struct Probe(Arc<dyn Fn() -> bool + Send + Sync>);

impl Probe {
    /// A probe that asks `is_ready`, which must not block.
    pub fn new(is_ready: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(is_ready))
    }
}

impl std::fmt::Debug for Probe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Probe").field(&(self.0)()).finish()
    }
}

/// Serves the site on a listener until `stop`.
///
/// # Errors
/// What the listener says.
pub async fn serve(
    listener: TcpListener,
    site: Site,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let router = Router::new()
        .route("/", get(page))
        .route("/healthz", get(health))
        .route("/readyz", get(readiness))
        .route("/metrics", get(metrics))
        .route("/tables", get(tables))
        .with_state(site);
    axum::serve(limit::Limited::new(listener, CONNECTIONS), router)
        .with_graceful_shutdown(stop.cancelled_owned())
        .await
}

async fn page() -> Html<&'static str> {
    Html(include_str!("http/page.html"))
}

/// The process answers.
async fn health() -> &'static str {
    "ok\n"
}

/// What is needed to do the work answers.
async fn readiness(State(site): State<Site>) -> impl IntoResponse {
    if site.server.as_ref().is_some_and(|server| !(server.0)()) {
        let reason = "some buckets have no leader, or a part of the server has failed\n";
        return (StatusCode::SERVICE_UNAVAILABLE, reason);
    }
    match &site.daemon {
        Some(daemon) if !daemon.is_ready() => (
            StatusCode::SERVICE_UNAVAILABLE,
            "the coordinator does not answer the daemon\n",
        ),
        _ => (StatusCode::OK, "ready\n"),
    }
}

async fn metrics(State(site): State<Site>) -> impl IntoResponse {
    if let Some(daemon) = &site.daemon {
        // Whoever reads metrics watches: lag is looked up, and tables that are gone are forgotten.
        drop(daemon.status());
    }
    let mut text = String::new();
    let mut written = Ok(());
    for registry in &site.registries {
        written = written.and_then(|()| encode_registry(&mut text, registry));
    }
    match written.and_then(|()| encode_eof(&mut text)) {
        Ok(()) => (StatusCode::OK, [(header::CONTENT_TYPE, OPENMETRICS)], text),
        Err(error) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            [(header::CONTENT_TYPE, "text/plain; charset=utf-8")],
            format!("metrics can't be written: {error}\n"),
        ),
    }
}

async fn tables(State(site): State<Site>) -> impl IntoResponse {
    let tables = site.daemon.as_ref().map(Handle::status).unwrap_or_default();
    Json(json!({ "about": site.about, "now_ms": site.clock.now_ms(), "tables": tables }))
}
