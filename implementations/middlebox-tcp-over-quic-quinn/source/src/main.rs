//! TCP over QUIC: each TCP connection of the terminal's side is a stream of one QUIC connection to the gateway, which
//! connects to where it wanted to go. Configured by the environment of the contract (implementations/_middlebox).

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
/// What the contract of middleboxes wants to see when traffic is carried.
const READY: &str = "/logs/ready";
/// How long to stay at the end, so that the other side learns of it.
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

/// Run `side`, which ends with an error only, until SIGTERM; then say goodbye.
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

/// Say that traffic is carried.
fn ready() -> Result<()> {
    fs::write(READY, b"").context(READY)
}
