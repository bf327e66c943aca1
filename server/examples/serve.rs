//! A server in a folder, until Ctrl-C: `cargo run -p weir-server --example serve -- DIR [HOST:PORT]`.

use weir_server::{Components, Server, ServerConfig};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().ok_or("the first argument is the data directory")?;
    let mut config = ServerConfig::in_dir(dir);
    if let Some(listen) = arguments.next() {
        config.listen = listen;
    }
    let server = Server::start(config, Components::default()).await?;
    eprintln!("clients connect to {}", server.addr());
    tokio::select! {
        stop = tokio::signal::ctrl_c() => stop?,
        reason = server.failed() => return Err(reason.into()),
    }
    server.shutdown().await;
    Ok(())
}
