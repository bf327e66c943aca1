//! The `weir` binary.

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

use clap::Parser as _;
use tracing_subscriber::EnvFilter;
use weir_tiering::cli::exit::{Failure, Outcome};
use weir_tiering::cli::output::QuietStderr;
use weir_tiering::cli::{Cli, Command, lake, load, replay, status, table, tier, verify};

#[cfg(feature = "embedded")]
mod embedded;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return ended(Err(Failure::failed(format!("no runtime: {error}")))),
    };
    ended(log(&cli).and_then(|()| runtime.block_on(run(cli.command))))
}

async fn run(command: Command) -> Outcome {
    match command {
        #[cfg(feature = "embedded")]
        Command::Up(arguments) => embedded::up::run(arguments).await,
        #[cfg(feature = "embedded")]
        Command::Serve(arguments) => embedded::serve::run(arguments).await,
        #[cfg(feature = "embedded")]
        Command::Demo(arguments) => embedded::demo::run(arguments).await,
        #[cfg(feature = "embedded")]
        Command::Log(command) => embedded::log::run(command).await,
        #[cfg(not(feature = "embedded"))]
        Command::Up(_) | Command::Serve(_) | Command::Demo(_) | Command::Log(_) => Err(
            Failure::usage("this weir was built without its server (feature `embedded`)"),
        ),
        Command::Tier(arguments) => tier::run(arguments).await,
        Command::Load(arguments) => load::run(arguments).await.map(drop),
        Command::Table(command) => table::run(command).await,
        Command::Status(arguments) => status::run(arguments).await,
        Command::Lake(command) => lake::run(command).await,
        Command::Verify(arguments) => verify::run(arguments).await,
        Command::Replay(arguments) => replay::run(arguments).await,
    }
}

fn log(cli: &Cli) -> Outcome {
    let filter = EnvFilter::try_new(&cli.log)
        .map_err(|error| Failure::usage(format!("--log {}: {error}", cli.log)))?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(|| QuietStderr);
    if cli.log_json {
        builder.json().init();
    } else {
        builder.init();
    }
    Ok(())
}

/// Says the last word to the user, also without a log.
fn ended(outcome: Outcome) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // What can't be said is in the exit code.
            let _ = writeln!(QuietStderr, "weir: {failure}");
            failure.code()
        }
    }
}
