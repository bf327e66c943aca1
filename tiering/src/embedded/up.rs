//! `weir up`: server and daemon in one process.

use weir_tiering::cli::Up;
use weir_tiering::cli::exit::{Failure, Outcome};
use weir_tiering::cli::settings::Settings;
use weir_tiering::cli::tier::{self, Surfaces, address, listen, say_ready, stop_signal};
use weir_tiering::config::DaemonConfig;

use super::serve;

/// Runs both until SIGTERM or SIGINT: first the daemon ends its rounds, then the server stops.
pub(crate) async fn run(arguments: Up) -> Outcome {
    let mut settings = Settings::load(&arguments.common)?;
    let daemon: DaemonConfig = settings.take("tiering")?;
    let config = serve::config(&arguments.serving, settings)?;
    let stop = stop_signal()?;
    let http = listen(&arguments.common.http).await?;
    let grpc = listen(&arguments.grpc).await?;
    let (http_address, grpc_address) = (address(&http)?, address(&grpc)?);
    let server = serve::start(config).await?;
    let daemon = DaemonConfig {
        bootstrap: vec![server.addr()],
        warehouse: server.warehouse().to_owned(),
        foreign: Some(false),
        ..daemon
    };
    let (handle, registry) = match tier::start(daemon) {
        Ok(started) => started,
        Err(failure) => {
            server.shutdown().await;
            return Err(failure);
        }
    };
    let mut surfaces = Surfaces::new(stop.clone());
    surfaces.serve_grpc(grpc, handle.clone());
    let registries = vec![server.metrics(), registry];
    let about = format!(
        "server at {}, lake in {}",
        server.addr(),
        server.warehouse()
    );
    surfaces.serve_http(http, about, Some(handle.clone()), registries);
    if stop.run_until_cancelled(handle.ready()).await.is_some() {
        say_ready(&format!(
            "READY fluss={} http={http_address} grpc={grpc_address} warehouse={}",
            server.addr(),
            server.warehouse()
        ))?;
    }
    let ended = tokio::select! {
        ended = surfaces.wait() => ended,
        reason = server.failed() => Err(Failure::failed(reason)),
    };
    handle.shutdown().await;
    server.shutdown().await;
    ended
}
