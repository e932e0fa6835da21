//! TCP over QUIC: each TCP connection at the terminal is a stream of one QUIC connection to the gateway. The gateway
//! connects to the destination. Configured by the environment of the contract (implementations/_middlebox).

mod gateway;
mod header;
mod relay;
mod terminal;
mod transport;
mod trust;

use std::env;
use std::fs;
use std::process::exit;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use quinn::Endpoint;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;

use transport::{NO_ERROR, Settings};

/// UDP port of the gateway.
const PORT: u16 = 4433;
/// The file that the contract of middleboxes requires when traffic is carried.
const READY: &str = "/logs/ready";
/// Time before the end of the program in which the close of the connection is sent.
const FAREWELL: Duration = Duration::from_millis(200);

#[tokio::main]
async fn main() {
    if let Err(error) = run().await {
        eprintln!("{error:#}");
        exit(1);
    }
}

async fn run() -> Result<()> {
    let settings = Settings::from_environment()?;
    println!("applied: {settings}");
    match env::var("ROLE").context("ROLE is not set")?.as_str() {
        "terminal" => {
            let endpoint = terminal::endpoint()?;
            until_told(&endpoint, terminal::run(&endpoint, &settings)).await
        }
        "gateway" => {
            let (endpoint, config) = gateway::endpoint()?;
            until_told(&endpoint, gateway::run(&endpoint, &config, &settings)).await
        }
        other => bail!("ROLE is '{other}'; it must be terminal or gateway"),
    }
}

/// Run `side` until SIGTERM, then close the connections. `side` ends by itself only with an error.
async fn until_told(endpoint: &Endpoint, side: impl Future<Output = Result<()>>) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let outcome = tokio::select! {
        outcome = side => outcome,
        _ = terminate.recv() => Ok(()),
    };
    endpoint.close(NO_ERROR, b"");
    let _ = timeout(FAREWELL, endpoint.wait_idle()).await;
    outcome
}

/// Create the ready file: traffic is carried.
fn ready() -> Result<()> {
    fs::write(READY, b"").context(READY)
}
