//! `weir up`: server and daemon in one process.

use weir_server::ServerConfig;
use weir_server::held::Held;
use weir_tiering::cli::Up;
use weir_tiering::cli::exit::{Failure, Outcome};
use weir_tiering::cli::settings::Settings;
use weir_tiering::cli::tier::{
    self, Parts, Surfaces, address, daemon_broke, listen, say_ready, stop_signal,
};
use weir_tiering::config::{DaemonConfig, SaslConfig};

use weir_tiering::http::Probe;
use weir_tiering::status::HeldBack;

use super::serve;

/// A user of the server, as whom the daemon logs in where it is told none.
fn first_user(config: &ServerConfig) -> Option<SaslConfig> {
    let users = &config.sasl.as_ref()?.users;
    let (user, password) = users.iter().next()?;
    Some(SaslConfig {
        user: user.clone(),
        password: password.clone(),
    })
}

fn back(held: Held) -> HeldBack {
    let Held {
        bytes,
        oldest_ms,
        partitions,
    } = held;
    HeldBack {
        bytes,
        oldest_ms,
        partitions,
    }
}

/// Runs both until SIGTERM or SIGINT: first the daemon ends its rounds, then the server stops.
pub(crate) async fn run(arguments: Up) -> Outcome {
    let mut settings = Settings::load(&arguments.common)?;
    let daemon: DaemonConfig = settings.take("tiering")?;
    let config = serve::config(&arguments.serving, settings)?;
    let stop = stop_signal()?;
    let http = listen(&arguments.common.http).await?;
    let grpc = listen(&arguments.grpc).await?;
    let (http_address, grpc_address) = (address(&http)?, address(&grpc)?);
    let sasl = daemon.sasl.clone().or_else(|| first_user(&config));
    let state_file = daemon.state_file.clone();
    let state_file = state_file.unwrap_or_else(|| config.data_dir.join("tiering.json"));
    let server = serve::start(config).await?;
    let daemon = DaemonConfig {
        bootstrap: vec![server.addr()],
        warehouse: server.warehouse().to_owned(),
        sasl,
        foreign: Some(false),
        state_file: Some(state_file),
        ..daemon
    };
    let (handle, registry) = match tier::start(daemon) {
        Ok(started) => started,
        Err(failure) => {
            server.shutdown().await;
            return Err(failure);
        }
    };
    let held = server.held();
    handle.tell_held(move || {
        held()
            .into_iter()
            .map(|(id, held)| (id, back(held)))
            .collect()
    });
    let mut surfaces = Surfaces::new(stop.clone());
    surfaces.serve_grpc(grpc, handle.clone());
    let parts = Parts {
        daemon: Some(handle.clone()),
        server: Some(Probe::new(server.readiness())),
        registries: vec![server.metrics(), registry],
    };
    let about = format!(
        "server at {}, lake in {}",
        server.addr(),
        server.warehouse()
    );
    surfaces.serve_http(http, about, parts);
    if let Some(Ok(())) = stop.run_until_cancelled(handle.ready()).await {
        say_ready(&format!(
            "READY fluss={} http={http_address} grpc={grpc_address} warehouse={}",
            server.addr(),
            server.warehouse()
        ))?;
    }
    let ended = tokio::select! {
        ended = surfaces.wait() => ended,
        reason = server.failed() => Err(Failure::failed(reason)),
        () = handle.ended() => Err(daemon_broke()),
    };
    handle.shutdown().await;
    server.shutdown().await;
    ended
}
