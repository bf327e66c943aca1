//! `weir tier`: the daemon with its control API and its page, until it is told to stop.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use weir_catalog::clock::SystemClock;
use weir_lake_format::open_existing_warehouse;

use super::Tier;
use super::exit::{Failure, Outcome};
use super::output::print;
use super::settings::{Settings, absolute_url};
use super::verify::cluster;
use crate::config::DaemonConfig;
use crate::daemon::{Daemon, Handle};
use crate::{grpc, http};

/// How long running requests of control API and page may take at the end.
const DRAIN: Duration = Duration::from_secs(5);

/// Runs the daemon until SIGTERM or SIGINT.
///
/// # Errors
/// 2 for wrong settings; 1 if an address is taken or the warehouse can't be used.
pub async fn run(arguments: Tier) -> Outcome {
    let mut settings = Settings::load(&arguments.common)?;
    let base: DaemonConfig = settings.take("tiering")?;
    settings.refuse_rest()?;
    let reached = cluster(&arguments.cluster);
    let bootstrap = if arguments.cluster.bootstrap.is_empty() {
        base.bootstrap
    } else {
        reached.bootstrap
    };
    let config = DaemonConfig {
        bootstrap,
        sasl: reached.sasl.or(base.sasl),
        warehouse: absolute_url(&arguments.warehouse.clone().unwrap_or(base.warehouse))?,
        ..base
    };
    if config.warehouse.is_empty() {
        return Err(Failure::usage(
            "no warehouse: give --warehouse, or set tiering.warehouse",
        ));
    }
    // The cluster makes its lake tables, so their warehouse is there before its daemon.
    open_existing_warehouse(&config.warehouse, &config.warehouse_options.0)
        .map_err(Failure::error)?;
    let stop = stop_signal()?;
    let http_listener = listen(&arguments.common.http).await?;
    let grpc_listener = listen(&arguments.grpc).await?;
    let addresses = (address(&http_listener)?, address(&grpc_listener)?);
    let (handle, registry) = start(config.clone())?;
    let about = format!(
        "daemon of {} into {}",
        config.bootstrap.join(","),
        config.warehouse
    );
    let mut surfaces = Surfaces::new(stop.clone());
    surfaces.serve_grpc(grpc_listener, handle.clone());
    let parts = Parts {
        daemon: Some(handle.clone()),
        registries: vec![registry],
        ..Parts::default()
    };
    surfaces.serve_http(http_listener, about, parts);
    if let Some(Ok(())) = stop.run_until_cancelled(handle.ready()).await {
        let (http, grpc) = addresses;
        say_ready(&format!(
            "READY http={http} grpc={grpc} warehouse={}",
            config.warehouse
        ))?;
    }
    let ended = tokio::select! {
        ended = surfaces.wait() => ended,
        () = handle.ended() => Err(daemon_broke()),
    };
    handle.shutdown().await;
    ended
}

/// Why the process ends when its daemon does.
pub fn daemon_broke() -> Failure {
    Failure::failed("the tiering daemon ended by a fault, which the log names: start it again")
}

/// Starts a daemon; its metrics are in the registry.
///
/// # Errors
/// All wrong settings, or why the warehouse can't be opened.
pub fn start(config: DaemonConfig) -> Outcome<(Handle, Arc<Registry>)> {
    if let Err(errors) = config.validate() {
        let sentences: Vec<_> = errors.iter().map(ToString::to_string).collect();
        return Err(Failure::usage(sentences.join("; ")));
    }
    let mut registry = Registry::default();
    let handle = Daemon::start(config, &mut registry).map_err(Failure::error)?;
    Ok((handle, Arc::new(registry)))
}

/// A token that is cancelled by SIGTERM and SIGINT.
///
/// # Errors
/// If signals can't be listened to.
pub fn stop_signal() -> Outcome<CancellationToken> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate()).map_err(Failure::error)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::error)?;
    let stop = CancellationToken::new();
    let token = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("stopping");
        token.cancel();
    });
    Ok(stop)
}

/// Binds an address.
///
/// # Errors
/// 1 that names the address.
pub async fn listen(at: &str) -> Outcome<TcpListener> {
    TcpListener::bind(at)
        .await
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::AddrInUse => Failure::failed(format!(
                "{at} is in use by another process: choose another port, or port 0"
            )),
            _ => Failure::failed(format!("can't listen on {at}: {error}")),
        })
}

/// The address a listener has.
///
/// # Errors
/// What the socket says.
pub fn address(listener: &TcpListener) -> Outcome<String> {
    Ok(listener.local_addr().map_err(Failure::error)?.to_string())
}

/// Prints the line that says where things are, at once.
///
/// # Errors
/// If standard output can't be written.
pub fn say_ready(line: &str) -> Outcome {
    print(&format!("{line}\n"))
}

/// What runs in this process.
#[derive(Debug, Default)]
pub struct Parts {
    /// The daemon.
    pub daemon: Option<Handle>,
    /// The server's readiness.
    pub server: Option<http::Probe>,
    /// The metrics of all parts.
    pub registries: Vec<Arc<Registry>>,
}

/// What people and machines talk to: control API and page.
#[derive(Debug)]
pub struct Surfaces {
    stop: CancellationToken,
    tasks: JoinSet<Outcome>,
    /// How long running requests may take at the end.
    drain: Duration,
}

impl Surfaces {
    /// None yet; all end with `stop`.
    pub fn new(stop: CancellationToken) -> Self {
        Self {
            stop,
            tasks: JoinSet::new(),
            drain: DRAIN,
        }
    }

    /// Serves the control API.
    pub fn serve_grpc(&mut self, listener: TcpListener, handle: Handle) {
        let served = grpc::serve(listener, handle, self.stop.clone());
        self.tasks.spawn(async move {
            served
                .await
                .map_err(|error| Failure::failed(format!("control API: {error}")))
        });
    }

    /// Serves health, metrics and the page.
    pub fn serve_http(&mut self, listener: TcpListener, about: String, parts: Parts) {
        let site = http::Site {
            about,
            daemon: parts.daemon,
            server: parts.server,
            registries: parts.registries,
            clock: Arc::new(SystemClock),
        };
        let served = http::serve(listener, site, self.stop.clone());
        self.tasks.spawn(async move {
            served
                .await
                .map_err(|error| Failure::failed(format!("page: {error}")))
        });
    }

    /// Waits until told to stop, or until one of them fails; then ends all.
    ///
    /// # Errors
    /// The first failure.
    pub async fn wait(mut self) -> Outcome {
        let mut ended = Ok(());
        let stopped = self.stop.clone();
        tokio::select! {
            () = stopped.cancelled() => {}
            Some(first) = self.tasks.join_next() => ended = first.unwrap_or_else(|e| Err(Failure::failed(e))),
        }
        self.stop.cancel();
        let rest = async {
            while let Some(next) = self.tasks.join_next().await {
                let next = next.unwrap_or_else(|error| Err(Failure::failed(error)));
                ended = std::mem::replace(&mut ended, Ok(())).and(next);
            }
        };
        // Whoever holds a request half sent does not keep the process, nor hide why it ends.
        let _ = tokio::time::timeout(self.drain, rest).await;
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_failure_is_told_though_a_request_never_ends() {
        let mut surfaces = Surfaces::new(CancellationToken::new());
        surfaces.drain = Duration::from_millis(20);
        surfaces.tasks.spawn(std::future::pending());
        surfaces
            .tasks
            .spawn(async { Err(Failure::failed("page: gone")) });
        let failure = surfaces.wait().await.unwrap_err();
        assert_eq!(failure.to_string(), "page: gone");
    }
}
