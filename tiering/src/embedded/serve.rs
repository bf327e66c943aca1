//! `weir serve`: the server alone.

use weir_server::{Components, RunningServer, Server, ServerConfig};
use weir_tiering::cli::exit::{Failure, Outcome};
use weir_tiering::cli::settings::Settings;
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
    Ok(ServerConfig {
        data_dir,
        warehouse: flags.warehouse.clone().or(base.warehouse),
        remote: flags.remote.clone().or(base.remote),
        listen: flags.listen.clone().unwrap_or(base.listen),
        advertise: flags.advertise.clone().or(base.advertise),
        tablets: flags.tablets.unwrap_or(base.tablets),
        ..base
    })
}

/// Starts a server.
pub(crate) async fn start(config: ServerConfig) -> Outcome<RunningServer> {
    // A taken port is told before the data directory is made; the server binds it for good.
    drop(listen(&config.listen).await?);
    Server::start(config, Components::default())
        .await
        .map_err(Failure::error)
}
