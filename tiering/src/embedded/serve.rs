//! `weir serve`: the server alone.

use std::path::Path;

use weir_server::{Components, RunningServer, Server, ServerConfig};
use weir_tiering::cli::exit::{Failure, Outcome};
use weir_tiering::cli::settings::{Settings, absolute_url};
use weir_tiering::cli::tier::{Parts, Surfaces, address, listen, say_ready, stop_signal};
use weir_tiering::cli::{Serve, Serving};
use weir_tiering::http::Probe;

/// Runs the server until SIGTERM or SIGINT.
pub(crate) async fn run(arguments: Serve) -> Outcome {
    let config = config(&arguments.serving, Settings::load(&arguments.common)?)?;
    let stop = stop_signal()?;
    let http = listen(&arguments.common.http).await?;
    let http_address = address(&http)?;
    let server = start(config).await?;
    let mut surfaces = Surfaces::new(stop.clone());
    surfaces.serve_http(
        http,
        format!("server at {}", server.addr()),
        Parts {
            daemon: None,
            server: Some(Probe::new(server.readiness())),
            registries: vec![server.metrics()],
        },
    );
    say_ready(&format!(
        "READY fluss={} http={http_address} warehouse={}",
        server.addr(),
        server.warehouse()
    ))?;
    let ended = tokio::select! {
        ended = surfaces.wait() => ended,
        reason = server.failed() => Err(Failure::failed(reason)),
    };
    server.shutdown().await;
    ended
}

/// The server's settings: those of the file and `-o`, then the flags.
pub(crate) fn config(flags: &Serving, settings: Settings) -> Outcome<ServerConfig> {
    let base: ServerConfig = settings.rest()?;
    let data_dir = flags.data_dir.clone().unwrap_or(base.data_dir);
    if data_dir.as_os_str().is_empty() {
        return Err(Failure::usage(
            "no data directory: give --data-dir, or set data-dir",
        ));
    }
    let data_dir = std::path::absolute(data_dir).map_err(Failure::error)?;
    let warehouse = flags.warehouse.clone().or(base.warehouse);
    let warehouse = warehouse.as_deref().map(absolute_url).transpose()?;
    if let Some(warehouse) = &warehouse {
        warn_of_another_lake(&data_dir, warehouse);
    }
    let remote = flags.remote.clone().or(base.remote);
    Ok(ServerConfig {
        data_dir,
        warehouse,
        remote: remote.as_deref().map(absolute_url).transpose()?,
        listen: flags.listen.clone().unwrap_or(base.listen),
        advertise: flags.advertise.clone().or(base.advertise),
        tablets: flags.tablets.unwrap_or(base.tablets),
        ..base
    })
}

/// The data directory may hold a lake already, which a warehouse by flag or environment passes over.
fn warn_of_another_lake(data_dir: &Path, warehouse: &str) {
    let own = data_dir.join("lake");
    let bare = warehouse.strip_prefix("file://").unwrap_or(warehouse);
    if own.is_dir() && Path::new(bare) != own {
        tracing::warn!(
            warehouse, own = %own.display(),
            "the warehouse is not the lake of this data directory, which is left alone (--warehouse or \
             WEIR_WAREHOUSE)"
        );
    }
}

/// Starts a server.
pub(crate) async fn start(config: ServerConfig) -> Outcome<RunningServer> {
    // A taken port is told before the data directory is made; the server binds it for good.
    drop(listen(&config.listen).await?);
    Server::start(config, Components::default())
        .await
        .map_err(Failure::error)
}
